# OpenCV on one thread of the CPU, timed by the host's clock.
import sys
import time

try:
    import cv2
    import numpy as np
except ImportError as e:
    print(f"absent {e}", flush=True)
    sys.exit()

cv2.setNumThreads(1)
inputs = []


def load(kind, shape, path):
    x = np.fromfile(path, dtype=kind).reshape(shape)
    # More inputs than the caches hold.
    inputs[:] = [np.roll(x, 17 * i, axis=0).copy() for i in range(max(3, min(64, (96 << 20) // x.nbytes)))]
    return 1


def check(work):
    return np.ascontiguousarray(work(inputs[0]))


def measure(work, frames, _call):
    begin = time.perf_counter_ns()
    for i in range(frames):
        work(inputs[i % len(inputs)])
    return time.perf_counter_ns() - begin


print("ready", cv2.__version__, flush=True)
serve(load, check, measure)
