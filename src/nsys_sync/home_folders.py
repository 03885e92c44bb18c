"""Home folders in texts of a trace: they are named after people."""

from __future__ import annotations

import re

_SEP = r"[\\/]+(?:\.[\\/]+)*"
_PART = r"""(?!\.[\\/])[^\\/\s"'`<>|:;,()\[\]{}=&*?]+"""
_USER = rf"(?!\.\.[\\/])(?![^\\/\s]*\.(?:py|ipynb)(?![\w\\/]))(?:{_PART})(?:{_SEP}\.\.{_SEP}{_PART})*"
"""A folder below `home`, and not a program that lies there; `/home/a/../b` is another user's."""
_WINDOWS_USER = rf"""(?:[^\\/:;,'"`<>|\r\n]{{1,64}}(?=[\\/])|{_USER})"""
_HOME = re.compile(
    rf"""
    (?<![\w.~\\/-]) (?<!\bhttp:) (?<!\bhttps:)       # where a path begins
    (?:
        (?:{_SEP}root(?![\w.-]))                    # the administrator's
      | (?:{_SEP}(?:homes?|Users){_SEP}{_USER})
      | (?:(?!{_SEP}(?:app|code|opt|repo|src|workspaces?)[\\/])  # where programs lie, that may have a folder `home`
          (?:{_SEP}{_PART}){{1,3}}?{_SEP}(?:homes?|Users){_SEP}{_USER})      # mounted: /mnt/c/Users, /nfs/homes
      | (?:(?:[A-Za-z]:|(?:{_SEP}(?:mnt|cygdrive))?{_SEP}[A-Za-z])?{_SEP}(?i:users){_SEP}{_WINDOWS_USER})
      | (?:[A-Za-z]:(?:{_SEP}{_PART}){{0,2}}?{_SEP}homes?{_SEP}{_USER})
    )
    """,
    re.VERBOSE,
)

_ANY_HOME = re.compile("root|home|users", re.IGNORECASE)
"""In each of them. Most names have none, and this tells a hundred times sooner."""


def without_home_folders(text: str) -> str:
    """A path or other text with home folders, wherever they are mounted, as `~`.

    A folder in a folder `home`, `homes` or `Users` counts as one, up to three folders deep, but for places where
    programs lie (`/opt`, `/workspace`, …). Addresses of web pages stay.
    """
    return _HOME.sub("~", text) if _ANY_HOME.search(text) else text
