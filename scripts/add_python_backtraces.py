"""Adds the Python backtraces of an nsys JSON export to the SQLite export of the same report.

    python scripts/add_python_backtraces.py TRACE.sqlite TRACE.python.json

nsys before schema 3.13.2 leaves them out of SQLite. TRACE.python.json may be the whole JSON export or its NVTX lines.
"""

from __future__ import annotations

import sys
from pathlib import Path

from nsys_sync.errors import NsysSyncError
from nsys_sync.nsys.json_backtraces import add_python_backtraces

if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    database, lines = Path(sys.argv[1]), Path(sys.argv[2])
    try:
        with lines.open(encoding="utf-8") as file:
            print(f"{add_python_backtraces(database, file)} Python backtraces added to {database}")
    except (NsysSyncError, OSError) as error:
        sys.exit(f"{lines}: {error}")
