"""One function for each way in which PyTorch makes the CPU wait for the GPU, and one for each that does not.

    sync_causes.py [ROUNDS] [all|allocator]

Every function is called ROUNDS times inside the capture range, in an NVTX range of its own name, with a matrix product
queued before and after it. `allocator` are the functions whose CUDA calls get a stack only with --all-backtraces.
"""

import logging
import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 4
GROUP = sys.argv[2] if len(sys.argv) > 2 else "all"
dev = torch.device("cuda")
torch.manual_seed(0)
logging.basicConfig(stream=sys.stdout, level=logging.INFO)
log = logging.getLogger("train")

work = torch.randn(1024, 1024, device=dev)
large = torch.randn(4096, 4096, device=dev)
product = torch.empty_like(large)
x = torch.randn(4096, device=dev)
ones = torch.ones(4096, device=dev)
small = x[:6].clone()
mask = x > 0.5
counts = torch.randint(1, 4, (64,), device=dev)
rows = torch.arange(64, device=dev)
n = torch.tensor(5, device=dev)
yes = torch.tensor(True, device=dev)
host = torch.randn(1 << 20)
cpu_index = torch.tensor([0, 3, 5])
layer = nn.Linear(64, 1).to(dev)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.0)
scaler = torch.amp.GradScaler("cuda")
loader = DataLoader([torch.randn(256) for _ in range(8)], batch_size=4, collate_fn=lambda items: collate(items))
side_stream = torch.cuda.Stream()


def read_item():
    return x.sum().item()


def read_float():
    return float(x.sum())


def read_int():
    return int(n)


def read_complex():
    return complex(x.sum())


def read_list():
    return small.tolist()


def branch_bool():
    return bool(yes)


def branch_if():
    if yes:
        return 1
    return 0


def branch_while():
    left = n.clone()
    while left > 3:
        left = left - 1


def branch_assert():
    assert torch.isfinite(x).all()


def branch_and():
    return yes and 1


def branch_not():
    return not yes


def branch_is_nonzero():
    return torch.is_nonzero(yes)


def branch_contains():
    return 2.0 in small


def branch_all_builtin():
    return all(small > -100)


def print_tensor():
    print(small)


def format_tensor():
    return f"{small}"


def format_scalar():
    return f"loss {x.mean():.3f}"


def log_tensor():
    log.info("loss %s", small)


def log_item():
    log.info("loss %.3f", x.mean().item())


def print_item():
    print("loss", x.mean().item())


def copy_to_cpu():
    return x.cpu()


def copy_to_cpu_by_to():
    return x.to("cpu")


def copy_into_cpu_tensor():
    target = torch.empty(4096)
    target.copy_(x)
    return target


def copy_to_numpy():
    return x.cpu().numpy()


def copy_to_numpy_by_force():
    return x.numpy(force=True)


def copy_by_legacy_type():
    return x.type(torch.FloatTensor)


def copy_by_type_name():
    return x.type("torch.FloatTensor")


def upload_by_cuda():
    return host.cuda()


def upload_by_to():
    return host.to(dev)


def upload_by_to_small():
    return cpu_index.to(dev)


def upload_by_copy():
    x.copy_(host[:4096])


def upload_by_legacy_type():
    return host.type(torch.cuda.FloatTensor)


def upload_module():
    nn.Linear(256, 256).to(dev)


def construct_tensor():
    return torch.tensor([1.0, 2.0, 3.0], device=dev)


def construct_scalar_tensor():
    return torch.tensor(3.0, device=dev)


def construct_as_tensor():
    return torch.as_tensor([1, 2, 3], device=dev)


def construct_as_tensor_of_array():
    return torch.as_tensor(np.arange(1000), device=dev)


def construct_legacy():
    return torch.cuda.BoolTensor([True, False, True])


def construct_legacy_float():
    return torch.cuda.FloatTensor([1.0, 2.0])


def construct_new_tensor():
    return x.new_tensor([1.0, 2.0])


def construct_full():
    return torch.full((3,), 2.0, device=dev)


def index_by_mask():
    return x[mask]


def assign_by_mask():
    x.clone()[mask] = ones[: int(mask_count)]


def assign_scalar_by_mask():
    x.clone()[mask] = 0.0


def index_by_list():
    return x[[0, 3, 5]]


def index_by_cpu_tensor():
    return x[cpu_index]


def index_by_gpu_tensor():
    return x[rows]


def assign_by_list():
    x[[0, 3, 5]] = ones[:3]


def assign_scalar_by_index():
    x[rows] = 1.0


def assign_scalar_at_position():
    x[0] = 1.0


def assign_cpu_tensor_at_position():
    x[0] = torch.tensor(1.0)


def assign_array_at_position():
    x[:3] = torch.from_numpy(np.ones(3, dtype=np.float32))


def assign_at_gpu_scalar():
    x[n] = 1.0


def index_by_gpu_scalar():
    return x[n]


def slice_by_gpu_scalar():
    return x[:n]


def range_of_gpu_scalar():
    return list(range(n))


def arange_of_gpu_scalar():
    return torch.arange(n, device=dev)


def split_by_gpu_sizes():
    return torch.split(x, [n, 4091])


def shape_nonzero():
    return torch.nonzero(mask)


def shape_nonzero_method():
    return mask.nonzero(as_tuple=True)


def shape_argwhere():
    return torch.argwhere(mask)


def shape_where():
    return torch.where(mask)


def shape_masked_select():
    return torch.masked_select(x, mask)


def shape_unique():
    return torch.unique(counts)


def shape_unique_dim():
    return torch.unique(counts.reshape(8, 8), dim=0)


def shape_unique_consecutive():
    return torch.unique_consecutive(counts)


def shape_repeat_interleave():
    return torch.repeat_interleave(rows, counts)


def shape_repeat_interleave_known():
    return torch.repeat_interleave(rows, counts, output_size=int(counts_sum))


def shape_bincount():
    return torch.bincount(counts)


def shape_one_hot():
    return nn.functional.one_hot(counts)


def builtin_max():
    return max(x[0], x[1])


def builtin_min_of_list():
    return min([x[0], x[1], x[2]])


def builtin_sum():
    return sum(small)


def builtin_sorted():
    return sorted(small.unbind())


def compare_equal():
    return torch.equal(x, ones)


def compare_allclose():
    return torch.allclose(x, ones)


def clip_error_if_nonfinite():
    nn.utils.clip_grad_norm_(layer.parameters(), 1.0, error_if_nonfinite=True)


def clip_plain():
    nn.utils.clip_grad_norm_(layer.parameters(), 1.0)


def step_grad_scaler():
    optimizer.zero_grad()
    scaler.scale(layer(x[:64]).sum()).backward()
    scaler.step(optimizer)
    scaler.update()


def item_in_backward():
    class Reading(torch.autograd.Function):
        @staticmethod
        def forward(ctx, tensor):
            return tensor * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * gradient.mean().item()

    source = x[:64].clone().requires_grad_()
    Reading.apply(source).sum().backward()


def wait_for_device():
    torch.cuda.synchronize()


def wait_for_stream():
    torch.cuda.current_stream().synchronize()


def wait_for_event():
    event = torch.cuda.Event()
    event.record()
    event.synchronize()


def wait_for_nothing():
    side_stream.synchronize()


def collate(items):
    return torch.stack(items).to(dev)


def iterate_data_loader():
    for _ in loader:
        pass


def iterate_data_loader_on_default_device():
    with torch.device("cuda"):
        for _ in DataLoader(range(4), batch_size=2):
            pass


def seed_from_gpu():
    torch.manual_seed(n)


def multinomial():
    return torch.multinomial(x.abs(), 4)


def pad_sequence():
    return nn.utils.rnn.pad_sequence([small, small])


def histogram():
    return torch.histc(x, bins=10, min=-3, max=3)


def cholesky():
    return torch.linalg.cholesky(torch.eye(16, device=dev))


def inverse():
    return torch.linalg.inv(torch.eye(16, device=dev))


def ctc_loss():
    return nn.functional.ctc_loss(
        torch.randn(50, 4, 20, device=dev).log_softmax(2),
        torch.randint(1, 20, (4, 10), device=dev),
        torch.full((4,), 50),
        torch.full((4,), 10),
    )


def state_dict_to_cpu():
    return {name: value.cpu() for name, value in layer.state_dict().items()}


def save_state():
    import io

    torch.save(layer.state_dict(), io.BytesIO())


def empty_cache():
    block = torch.empty(1 << 26, dtype=torch.uint8, device=dev)
    del block
    for _ in range(20):
        torch.matmul(large, large, out=product)
    torch.cuda.empty_cache()


kept = []  # so that no block of pinned memory can be used again


def pin_memory():
    kept.append(torch.randn(1 << 20).pin_memory())


def pinned_empty():
    kept.append(torch.empty(1 << 24, pin_memory=True))


def allocator_retry():
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + (1 << 28)) / total)
    one = torch.empty(1 << 27, dtype=torch.uint8, device=dev)
    del one
    for _ in range(20):
        torch.matmul(large, large, out=product)
    two = torch.empty(200 << 20, dtype=torch.uint8, device=dev)
    del two
    torch.cuda.set_per_process_memory_fraction(1.0)


mask_count = int(mask.sum())
counts_sum = int(counts.sum())
ALLOCATOR = (empty_cache, pin_memory, pinned_empty, allocator_retry)
HELPERS = ("collate",)
functions = [
    value
    for name, value in list(globals().items())
    if getattr(value, "__module__", "") == "__main__"
    and callable(value)
    and name not in HELPERS
    and isinstance(value, type(read_item))
    and (value in ALLOCATOR) == (GROUP == "allocator")
]


def run_all():
    for function in functions:
        torch.matmul(work, work)
        with torch.cuda.nvtx.range(function.__name__):
            function()
        torch.matmul(work, work)


if __name__ == "__main__":
    run_all()
    run_all()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    for _ in range(ROUNDS):
        run_all()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()
    # What PyTorch itself sees: the second opinion beside the trace.
    for function in functions:
        torch.cuda.set_sync_debug_mode("error")
        try:
            function()
            said = "no"
        except RuntimeError as error:
            said = "yes" if "synchronizing" in str(error) else f"{error}"[:60]
        torch.cuda.set_sync_debug_mode("default")
        print("DEBUGMODE", function.__name__, said)
