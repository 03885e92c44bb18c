#!/usr/bin/env bash
# Proves `nsys-sync profile` on a machine with a GPU: real programs, real nsys, every sync at its line.
#
#   profile_on_gpu.sh NSYS OUT
#
#   NSYS  an nsys: the program, or a bundle (tar.xz) that unpacks to nsys-slim/bin/nsys
#   OUT   a folder for scrubbed exports (NAME.schema-VERSION.sqlite.xz) and logs (NAME.log)
#   NEWER_NSYS=PROGRAM in the environment also exports `raises.py` with a newer nsys, and compares the Python events
#         of both exports (the nsys of Nsight Compute will do: /opt/nvidia/nsight-compute/*/host/target-linux-x64/nsys)
#
# `nsys-sync` and a `python3` with PyTorch and CuPy must be on the PATH. It takes about two minutes on an H200.
# Nothing that lands in OUT names this machine. Ends with exit status 1 when something is not as it should be.
set -uo pipefail
nsys=${1:?usage: profile_on_gpu.sh NSYS OUT}
out=${2:?usage: profile_on_gpu.sh NSYS OUT}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 1
case $nsys in
  *.tar.xz) [ -x /tmp/nsys-slim/bin/nsys ] || tar xf "$nsys" -C /tmp; nsys=/tmp/nsys-slim/bin/nsys ;;
  *) nsys=$(readlink -f "$nsys") ;;
esac
unicode="/tmp/nsys sync ünïcode"
# Where nsys 2023.4 could not follow: a module cannot be started through a link, and CuPy's own files are ASCII anyway.
spaces="/tmp/nsys sync"
for folder in "$unicode" "$spaces"; do
  rm -rf "$folder" && mkdir -p "$folder" && cp -r "$here"/workloads/. "$folder/" || exit 1
done
cp "$unicode/endless.py" "$unicode/zählt.py" && cd "$unicode" || exit 1
clean=(env -i "PATH=$PATH" HOME=/tmp LANG=C.UTF-8 "NSYS_SYNC_NSYS=$nsys" ${PYTHONPATH:+"PYTHONPATH=$PYTHONPATH"}
       ${LD_LIBRARY_PATH:+"LD_LIBRARY_PATH=$LD_LIBRARY_PATH"})
failed=0

say_how_it_went() {  # NAME, exit status, expected exit status
  local name=$1 expected=$3 verdict=ok
  [ "$2" = "$expected" ] || { verdict="WRONG, expected $expected"; failed=1; }
  echo "== $name: exit status $2 ($verdict), after $((SECONDS - started)) s"
  sed -n '/^nsys-sync: \|^ok  /,$p' "$out/$name.log" | head -n 22 | cut -c1-150
}

keep_scrubbed() {  # NAME, trace
  local version
  "${clean[@]}" nsys-sync export --scrub --force "$2" -o scrubbed.sqlite 2>> "$out/$1.log" || { failed=1; return; }
  version=$(python3 -c 'import sqlite3, sys; print(*sqlite3.connect(sys.argv[1]).execute(
    "SELECT value FROM META_DATA_EXPORT WHERE name = ?", ("EXPORT_SCHEMA_VERSION",)).fetchone())' scrubbed.sqlite)
  xz -9e -c scrubbed.sqlite > "$out/$1.schema-$version.sqlite.xz"
  mv scrubbed.sqlite "$1.schema-$version.sqlite"
}

profile() {  # NAME, expected exit status, arguments of nsys-sync profile
  local name=$1 expected=$2 started=$SECONDS; shift 2
  "${clean[@]}" nsys-sync profile --force -o "$name" --format terminal "$@" > "$out/$name.log" 2>&1
  say_how_it_went "$name" $? "$expected"
  [ -f "$name.nsys-rep" ] && keep_scrubbed "$name" "$name.nsys-rep" || { echo "no report"; failed=1; }
}

interrupted() {  # NAME, program: Ctrl-C, as a terminal sends it, once the program is well inside its loop
  local name=$1 started=$SECONDS pid; shift
  set -m  # so that it has a process group of its own, and listens to SIGINT
  "${clean[@]}" nsys-sync profile --force -o "$name" --format terminal "${range[@]}" "$@" > "$out/$name.log" 2>&1 &
  pid=$!
  set +m
  for _ in $(seq 600); do
    grep -q '^step 200' "$out/$name.log" || ! kill -0 $pid 2> /dev/null && break
    sleep 0.1
  done
  kill -INT -- "-$pid"
  wait $pid
  say_how_it_went "$name" $? 130
  [ -f "$name.nsys-rep" ] || { echo "no report"; failed=1; }
}

same_python_events() {  # two exports
  python3 - "$@" << 'PY'
import sys
from pathlib import Path
from nsys_sync.trace.read import read_trace
from nsys_sync.trace.sqlite_file import SqliteFile

def events(path):
    python = read_trace(SqliteFile(Path(path)), ("python",)).python
    assert python.refused is None, python.refused
    frames = [
        (python.functions[function], python.files[file], int(line))
        for function, file, line in zip(python.frame_function, python.frame_file, python.frame_line)
    ]
    return sorted(
        (int(start), int(tid), bool(sample), frames[first : first + count])
        for start, tid, sample, first, count in zip(
            python.start_ns, python.global_tid, python.is_sample, python.first, python.count
        )
    )

one, other = (events(path) for path in sys.argv[1:])
same = sum(a == b for a, b in zip(one, other))
samples = sum(event[2] for event in one)
print(f"{len(one)} and {len(other)} Python events ({samples} samples in the first), {same} alike in start, globalTid, frames")
sys.exit(not one or one != other)
PY
}

range=(--capture-range cudaProfilerApi)
profile profiled_sync_heavy 0 "${range[@]}" sync_heavy.py 10
profile profiled_procs 0 "${range[@]}" procs.py
profile profiled_raises 1 "${range[@]}" raises.py
if [ -n "${NEWER_NSYS:-}" ]; then
  "$NEWER_NSYS" export --type sqlite --include-blobs=true --force-overwrite=true -o newer.sqlite \
    profiled_raises.nsys-rep > "$out/newer.log" 2>&1
  keep_scrubbed profiled_raises newer.sqlite
  same_python_events profiled_raises.schema-*.sqlite || { echo "WRONG: the Python events differ"; failed=1; }
fi
profile profiled_file_name 0 "${range[@]}" zählt.py 50
interrupted interrupted endless.py
cd "$spaces" || exit 1
profile profiled_module 0 "${range[@]}" -m syncing_package 20
profile profiled_copies 0 --all-backtraces "${range[@]}" memcpy_sync.py
started=$SECONDS
"${clean[@]}" nsys-sync doctor > "$out/doctor.log" 2>&1
say_how_it_went doctor $? 0
ls -l "$out"
exit $failed
