#!/usr/bin/env bash
# Proves `nsys-sync profile` on a machine with a GPU: real programs, real nsys, every sync at its line.
#
#   profile_on_gpu.sh NSYS OUT
#
#   NSYS  an nsys: the program, or a bundle (tar.xz) that unpacks to nsys-slim/bin/nsys
#   OUT   a folder for scrubbed exports (NAME.sqlite.xz) and logs (NAME.log)
#
# `nsys-sync` and a `python3` with PyTorch must be on the PATH. Nothing that lands in OUT names this machine.
set -uo pipefail
nsys=${1:?usage: profile_on_gpu.sh NSYS OUT}
out=${2:?usage: profile_on_gpu.sh NSYS OUT}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 1
case $nsys in
  *.tar.xz) [ -x /tmp/nsys-slim/bin/nsys ] || tar xf "$nsys" -C /tmp; nsys=/tmp/nsys-slim/bin/nsys ;;
  *) nsys=$(readlink -f "$nsys") ;;
esac
work="/tmp/nsys sync ünïcode"
rm -rf "$work" && mkdir -p "$work" && cp -r "$here"/workloads/. "$work/" && cd "$work" || exit 1
clean=(env -i "PATH=$PATH" HOME=/tmp LANG=C.UTF-8 "NSYS_SYNC_NSYS=$nsys" ${PYTHONPATH:+"PYTHONPATH=$PYTHONPATH"}
       ${LD_LIBRARY_PATH:+"LD_LIBRARY_PATH=$LD_LIBRARY_PATH"})

run() {  # NAME, expected exit status, arguments of nsys-sync profile
  local name=$1 expected=$2; shift 2
  "${clean[@]}" nsys-sync profile --force -o "$name" --format terminal "$@" > "$out/$name.log" 2>&1
  local status=$?
  echo "== $name: exit status $status (expected $expected)"
  tail -n 25 "$out/$name.log"
  [ -f "$name.nsys-rep" ] || return
  "${clean[@]}" nsys-sync export --scrub --force "$name.nsys-rep" -o "$name.sqlite" && xz -T0 -c "$name.sqlite" > "$out/$name.sqlite.xz"
}

range=(--capture-range cudaProfilerApi)
run profiled_sync_heavy 0 "${range[@]}" sync_heavy.py 10
run profiled_procs 0 "${range[@]}" procs.py
run profiled_raises 1 "${range[@]}" raises.py
run profiled_module 0 "${range[@]}" -m syncing_package 20
run profiled_copies 0 --all-backtraces "${range[@]}" memcpy_sync.py
ls -l "$out"
