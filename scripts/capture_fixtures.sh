#!/usr/bin/env bash
# Makes the captures behind tests/fixtures/ that this repository brings itself, on a machine with GPUs.
#
#   capture_fixtures.sh NSYS OUT [NAME...]
#
#   NSYS  an nsys 2023.4.4: the program, or a bundle (tar.xz) that unpacks to nsys-slim/bin/nsys
#   OUT   a folder; per capture it gets NAME.nsys-rep, NAME.sqlite, NAME.python.json and NAME.log
#   NAME  1 GPU: nvtx_threads, polls, driver_api, driver_api_contexts, per_thread_stream, managed, managed_faults,
#         managed_prefetch, many_threads, edges, unknown_call, unknown_call_flushed, unknown_call_plain,
#         graph_conditional_node, graph_conditional_graph, graph_device_node, graph_device_graph;
#         2 GPUs: two_gpus, two_gpus_visible, one_process_two_gpus, nccl_late, nccl_late_ranks; these and nvtx_threads
#         by default
#   NEWER_NSYS=PROGRAM in the environment also exports NAME.newer.sqlite with a newer nsys (the one that Nsight
#         Compute brings will do: /opt/nvidia/nsight-compute/*/host/target-linux-x64/nsys)
#
# `python3` on the PATH must hold PyTorch and CuPy. Each takes about ten seconds on an H200. What lands in OUT is raw:
# a report records the environment, working directory and command line of every process of the machine. Never
# commit it: tests/fixtures/scrub.py makes fixtures of it.
# The captures are independent, and one that fails does not stop the next. nsys can exit 0 without a report, so
# what counts is the table of row counts that each one prints.
set -uo pipefail
nsys=${1:?usage: capture_fixtures.sh NSYS OUT [NAME...]}
out=${2:?usage: capture_fixtures.sh NSYS OUT [NAME...]}
shift 2
[ $# -gt 0 ] || set -- nvtx_threads two_gpus two_gpus_visible one_process_two_gpus nccl_late nccl_late_ranks
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
mkdir -p "$out" && out=$(cd "$out" && pwd) || exit 1

# A report records paths, so everything runs in one folder that says nothing about the machine.
work=/tmp/workspace
mkdir -p "$work" && cp "$here"/workloads/*.py "$work/" || exit 1
case $nsys in
  *.tar.xz) tar xf "$nsys" -C /tmp && nsys=/tmp/nsys-slim/bin/nsys ;;
  *) nsys=$(readlink -f "$nsys") ;;
esac
"$nsys" --version || exit 1

# The environment is recorded too. The last three keep NVLink multicast off.
clean=(env -i "PATH=$PATH" HOME=/tmp LANG=C.UTF-8 ${LD_LIBRARY_PATH:+"LD_LIBRARY_PATH=$LD_LIBRARY_PATH"}
       NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1)

count_rows() {
  python3 - "$1" <<'PY'
import sqlite3, sys
db = sqlite3.connect(sys.argv[1])
tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
def show(label, query):
    try:
        print(f"  {label}:", *db.execute(query).fetchall())
    except sqlite3.OperationalError as error:
        print(f"  {label}: {error}")
for name in ("RUNTIME", "KERNEL", "MEMCPY", "MEMSET", "SYNCHRONIZATION"):
    table = f"CUPTI_ACTIVITY_KIND_{name}"
    show(name, f"SELECT count(*) FROM {table}")
for table in ("NVTX_EVENTS", "CUDA_CALLCHAINS", "PROFILER_OVERHEAD", "DIAGNOSTIC_EVENT"):
    show(table, f"SELECT count(*) FROM {table}")
show("NVTX by type", "SELECT eventType, count(*) FROM NVTX_EVENTS GROUP BY 1")
show("KERNEL (deviceId, contextId, globalPid, rows)",
     "SELECT deviceId, contextId, globalPid, count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL GROUP BY 1, 2, 3")
show("CONTEXT (processId, deviceId, contextId, hwId)",
     "SELECT processId, deviceId, contextId, hwId FROM TARGET_INFO_CUDA_CONTEXT_INFO")
show("GPU", "SELECT id, name, busLocation, uuid, cuDevice, pwGpuId FROM TARGET_INFO_GPU")
PY
}

capture() {  # NAME WORKLOAD [ARGUMENT...]
  local name=$1 report=$out/$1.nsys-rep log=$out/$1.log raw=$out/$1.json
  shift
  rm -f "$out/$name".{nsys-rep,qdstrm,sqlite,newer.sqlite,json,python.json,log}
  (cd "$work" && timeout -k 5 120 "${clean[@]}" "$nsys" profile \
     --trace=cuda,nvtx --cpuctxsw=none "${stacks[@]}" "--cuda-graph-trace=$graphs" "${more[@]}" \
     -c cudaProfilerApi --capture-range-end=stop --kill=none \
     --force-overwrite=true -o "${report%.nsys-rep}" python3 "$@") > "$log" 2>&1
  echo "== $name: exit status $?"
  tr '\r' '\n' < "$log" | grep -v '%' | tail -n 15
  [ -s "$report" ] || { echo "  no report"; return 1; }
  [ ! -e "${report%.nsys-rep}.qdstrm" ] || echo "  a .qdstrm lies beside the report: the importer gave up"
  "$nsys" export --type sqlite --force-overwrite=true -o "$out/$name.sqlite" "$report" >> "$log" 2>&1
  "$nsys" export --type json --force-overwrite=true -o "$raw" "$report" >> "$log" 2>&1
  grep -E '^\{"Type":(33|34|75),' "$raw" > "$out/$name.python.json"
  rm -f "$raw"
  [ -z "${NEWER_NSYS:-}" ] || "$NEWER_NSYS" export --type sqlite --include-blobs=true --force-overwrite=true \
    -o "$out/$name.newer.sqlite" "$report" >> "$log" 2>&1 || echo "  the newer nsys exported nothing"
  count_rows "$out/$name.sqlite"
}

failed=0
for name in "$@"; do
  started=$SECONDS more=() graphs=node
  stacks=(--sample=process-tree --cudabacktrace=sync:0 --python-backtrace=cuda)
  [ "$name" = many_threads ] || stacks+=(--python-sampling=true)  # samples of all threads are 40 MB
  case $name in
    two_gpus_visible) capture "$name" two_gpus.py visible ;;
    driver_api_contexts) capture "$name" driver_api.py contexts ;;
    managed_faults) more=(--cuda-um-cpu-page-faults=true --cuda-um-gpu-page-faults=true); capture "$name" managed.py ;;
    managed_prefetch) capture "$name" managed.py prefetch ;;
    unknown_call_flushed) more=(--cuda-flush-interval=20); capture "$name" unknown_call.py 2 ;;
    unknown_call_plain) more=(--cuda-flush-interval=20) stacks=(--sample=none); capture "$name" unknown_call.py 2 ;;
    graph_conditional_* | graph_device_*)
      kind=${name#graph_} graphs=${name##*_}
      [ -e "$work/libgraph_kinds.so" ] || nvcc -shared -Xcompiler -fPIC -arch=sm_90 -rdc=true \
        "$here/workloads/graph_kinds.cu" -o "$work/libgraph_kinds.so" -lcudadevrt || exit 1
      capture "$name" graph_kinds.py "${kind%_*}" ;;
    nccl_late_ranks)  # a report for each
      store=$(mktemp -u)
      capture nccl_late_rank1 nccl_late.py 1 "$store" > "$out/rank1" &
      capture nccl_late_rank0 nccl_late.py 0 "$store"
      wait && cat "$out/rank1" && rm "$out/rank1" ;;
    *) capture "$name" "$name.py" ;;
  esac || failed=1
  echo "  $((SECONDS - started)) s"
done
ls -l "$out"
exit $failed
