// CUDA graphs that PyTorch does not make: with a conditional node, and one that the GPU launches itself.
// nvcc -shared -Xcompiler -fPIC -arch=sm_90 -rdc=true graph_kinds.cu -o libgraph_kinds.so -lcudadevrt
#include <cstdio>
#include <cuda_runtime.h>

#define CHECK(call)                                                                                  \
    if (cudaError_t error = (call)) {                                                                \
        std::printf("%s: %s\n", #call, cudaGetErrorString(error));                                   \
        return 1;                                                                                    \
    }

__device__ void spin_for(long long clocks) {
    for (long long first = clock64(); clock64() - first < clocks;) {
    }
}
__global__ void before() { spin_for(50000); }
__global__ void body(cudaGraphConditionalHandle handle, int *left) {
    spin_for(50000);
    cudaGraphSetConditional(handle, --*left > 0);
}
__global__ void set_rounds(int *left) { *left = 3; }
__global__ void tail() { spin_for(50000); }
__global__ void launcher(cudaGraphExec_t other) {
    spin_for(20000);
    cudaGraphLaunch(other, cudaStreamGraphFireAndForget);
}

static cudaStream_t stream;
static cudaGraphExec_t conditional, launched, launching;

static int kernel_node(cudaGraph_t graph, cudaGraphNode_t *node, cudaGraphNode_t *after, void *function, void **parameters) {
    cudaKernelNodeParams kernel = {};
    kernel.func = function;
    kernel.gridDim = dim3(1);
    kernel.blockDim = dim3(1);
    kernel.kernelParams = parameters;
    CHECK(cudaGraphAddKernelNode(node, graph, after, after ? 1 : 0, &kernel));
    return 0;
}

// before -> set_rounds -> while (left > 0) body -> tail: `body` runs three times.
extern "C" int make_conditional() {
    int *left;
    cudaGraph_t graph;
    cudaGraphNode_t first, second, loop, last, inner;
    cudaGraphConditionalHandle handle;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK(cudaMalloc(&left, sizeof *left));
    CHECK(cudaGraphCreate(&graph, 0));
    CHECK(cudaGraphConditionalHandleCreate(&handle, graph, 1, cudaGraphCondAssignDefault));
    void *rounds[] = {&left};
    if (kernel_node(graph, &first, nullptr, (void *)before, nullptr)) return 1;
    if (kernel_node(graph, &second, &first, (void *)set_rounds, rounds)) return 1;
    cudaGraphNodeParams parameters = {cudaGraphNodeTypeConditional};
    parameters.conditional.handle = handle;
    parameters.conditional.type = cudaGraphCondTypeWhile;
    parameters.conditional.size = 1;
    CHECK(cudaGraphAddNode(&loop, graph, &second, nullptr, 1, &parameters));
    void *arguments[] = {&handle, &left};
    if (kernel_node(parameters.conditional.phGraph_out[0], &inner, nullptr, (void *)body, arguments)) return 1;
    if (kernel_node(graph, &last, &loop, (void *)tail, nullptr)) return 1;
    CHECK(cudaGraphInstantiate(&conditional, graph, 0));
    return 0;
}

// A graph that the host launches, whose kernel launches another.
extern "C" int make_device_launched() {
    cudaGraph_t other, graph;
    cudaGraphNode_t node;
    CHECK(cudaGraphCreate(&other, 0));
    if (kernel_node(other, &node, nullptr, (void *)tail, nullptr)) return 1;
    CHECK(cudaGraphInstantiate(&launched, other, cudaGraphInstantiateFlagDeviceLaunch));
    CHECK(cudaGraphUpload(launched, stream));
    CHECK(cudaGraphCreate(&graph, 0));
    void *arguments[] = {&launched};
    if (kernel_node(graph, &node, nullptr, (void *)launcher, arguments)) return 1;
    CHECK(cudaGraphInstantiate(&launching, graph, cudaGraphInstantiateFlagDeviceLaunch));
    CHECK(cudaGraphUpload(launching, stream));
    return 0;
}

extern "C" int launch_conditional() {
    CHECK(cudaGraphLaunch(conditional, stream));
    return 0;
}
extern "C" int launch_device_launched() {
    CHECK(cudaGraphLaunch(launching, stream));
    return 0;
}
extern "C" int wait_for_stream() {
    CHECK(cudaStreamSynchronize(stream));
    return 0;
}
