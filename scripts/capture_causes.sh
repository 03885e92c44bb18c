#!/usr/bin/env bash
# Captures the workloads with one function for each cause (scripts/workloads/sync_causes*.py, jax_waits.py) and
# those of the diff and the notebook, and proves
# the advice: no wait is left after it. On a machine with a GPU, in about six minutes:
#
#   capture_causes.sh NSYS OUT
#
#   NSYS  an nsys: the program, or a bundle (tar.xz) that unpacks to nsys-slim/bin/nsys
#   OUT   a folder for scrubbed exports (NAME.sqlite) and logs (NAME.log)
#   NEWER_NSYS=PROGRAM in the environment also exports sync_causes with a newer nsys
#
# `nsys-sync` and a `python3` with PyTorch, CuPy, Numba, Triton and JAX must be on the PATH. Then, for each export:
#   python3 tests/fixtures/scrub.py NAME OUT/NAME.sqlite
set -uo pipefail
nsys=${1:?usage: capture_causes.sh NSYS OUT}
out=${2:?usage: capture_causes.sh NSYS OUT}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 1
case $nsys in
  *.tar.xz) [ -x /tmp/nsys-slim/bin/nsys ] || tar xf "$nsys" -C /tmp; nsys=/tmp/nsys-slim/bin/nsys ;;
  *) nsys=$(readlink -f "$nsys") ;;
esac
rm -rf /tmp/workspace && mkdir -p /tmp/workspace && cp -r "$here"/. /tmp/workspace/ && cd /tmp/workspace || exit 1
clean=(env -i "PATH=$PATH" HOME=/tmp LANG=C.UTF-8 "NSYS_SYNC_NSYS=$nsys" ${PYTHONPATH:+"PYTHONPATH=$PYTHONPATH"}
       ${LD_LIBRARY_PATH:+"LD_LIBRARY_PATH=$LD_LIBRARY_PATH"})
failed=0

capture() {  # NAME, arguments of nsys-sync profile
  local name=$1; shift
  echo "== $name"
  "${clean[@]}" timeout 150 nsys-sync profile --force --no-report -o "$name" --capture-range cudaProfilerApi "$@" \
    > "$out/$name.log" 2>&1 || { echo "exit status $?"; failed=1; }
  "${clean[@]}" nsys-sync export --scrub --force "$name.nsys-rep" -o "$out/$name.sqlite" || failed=1
}

capture sync_causes workloads/sync_causes.py 3
if [ -n "${NEWER_NSYS:-}" ]; then
  "$NEWER_NSYS" export --type sqlite --include-blobs=true --force-overwrite=true -o newer.sqlite sync_causes.nsys-rep
  "${clean[@]}" nsys-sync export --scrub --force newer.sqlite -o "$out/sync_causes.newer.sqlite" || failed=1
fi
capture sync_causes_allocator --all-backtraces workloads/sync_causes.py 3 allocator
capture sync_causes_other workloads/sync_causes_other.py 5
capture sync_causes_distributed workloads/sync_causes_distributed.py 4 nccl
capture jax_waits workloads/jax_waits.py
capture moved_before workloads/moved_before.py
capture moved_after workloads/moved_after.py
for mode in healthy print fixed; do capture "one_$mode" workloads/one_print.py $mode; done

echo "== advice, run"
"${clean[@]}" timeout 200 python3 -u check_advice_on_gpu.py > "$out/advice.log" 2>&1 || failed=1
tail -n 1 "$out/advice.log"
# In parts: an nsys older than the driver loses events of a long capture.
"${clean[@]}" python3 -c '
from nsys_sync.analysis.advice import ADVICE
apart = {"triton-fixed-config", "find-with-debug-mode"}  # many calls, and a mode of the whole process
ids = [advice for advice in ADVICE if advice not in apart]
for k in range(0, len(ids), 16):
    print(*ids[k : k + 16])' | {
  part=0
  while read -ra ids; do
    part=$((part + 1))
    capture "advice_$part" check_advice_on_gpu.py --capture --only "${ids[@]}"
    "${clean[@]}" python3 check_advice_on_gpu.py --verify "$out/advice_$part.sqlite" --only "${ids[@]}" \
      > "$out/verify_$part.log" || failed=1
    grep -E "MISS|pieces" "$out/verify_$part.log"
    rm -f "$out/advice_$part.sqlite"
  done
  exit $failed
} || failed=1
ls -l "$out"
exit $failed
