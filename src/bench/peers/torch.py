# PyTorch on a CUDA device, timed as our kernels are: inputs and outputs rotate over four times the L2, a CUDA graph
# replays one pass over all of them, events take the time.
import functools
import sys

try:
    import numpy as np
    import torch
    import torch.nn.functional as F
except ImportError as e:
    print(f"absent {e}", flush=True)
    sys.exit()
if not torch.cuda.is_available():
    print(f"absent PyTorch {torch.__version__} sees no CUDA device", flush=True)
    sys.exit()

device = torch.device("cuda", int(sys.argv[1]))
torch.cuda.set_device(device)
torch.set_grad_enabled(False)
# Products of 10 bits would not be the same result.
torch.backends.cudnn.allow_tf32 = False
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.benchmark = True
inputs = []
graphs = {}


@functools.cache
def weights(text, *shape):
    return torch.tensor([float(v) for v in text.split(",")], device=device).reshape(shape)


def padded(x, k):
    return F.pad(x, (k // 2, k - 1 - k // 2) * 2, mode="replicate")


def load(kind, shape, path):
    graphs.clear()
    inputs.clear()
    x = torch.from_numpy(np.fromfile(path, dtype=kind)).reshape((1,) * (4 - len(shape)) + shape)
    size = x.numel() * x.element_size()
    l2 = max(torch.cuda.get_device_properties(device).L2_cache_size, 4 << 20)
    count = max(8 if size < l2 else 2, min(256, -(-4 * l2 // (2 * size))))
    inputs.extend(torch.roll(x, 17 * i, dims=2).to(device) for i in range(count))
    return count


def check(work):
    return np.ascontiguousarray(work(inputs[0]).cpu().numpy())


def graph(work, call):
    if call not in graphs:
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            # Libraries choose their kernels outside the recording.
            for _ in range(3):
                work(inputs[0])
        side.synchronize()
        recorded = torch.cuda.CUDAGraph()
        with torch.cuda.graph(recorded):
            outputs = [work(x) for x in inputs]
        graphs[call] = recorded, outputs
    return graphs[call][0]


def measure(work, frames, call):
    recorded = graph(work, call)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(frames // len(inputs)):
        recorded.replay()
    end.record()
    end.synchronize()
    return 1e6 * start.elapsed_time(end)


def alive():
    try:
        torch.cuda.synchronize()
        return True
    except RuntimeError:
        return False


print("ready", torch.__version__, flush=True)
serve(load, check, measure, alive)
