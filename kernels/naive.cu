// A thread per sample, everything from global memory: the baseline that the other variants are measured against, and the
// variant that takes every operation, type, size and border.
#include "plane.cuh"

#define BLOCK_X 32
#define BLOCK_Y 8

struct Place {
    int plane;
    int x; // sample index
    int y;
    bool inside;
};

__device__ __forceinline__ Place place(const Frame& f) {
    const Block b = locate(f);
    Place at;
    at.plane = b.plane;
    at.x = b.x * BLOCK_X + (threadIdx.x & 31);
    at.y = b.y * BLOCK_Y + (threadIdx.x >> 5);
    at.inside = at.x < f.plane[b.plane].width * COMPONENTS && at.y < f.plane[b.plane].height;
    return at;
}

// Sample at (x + dx pixels, y + dy) as the border rule has it.
__device__ __forceinline__ float at_offset(const Plane& p, int x, int y, int dx, int dy) {
    const int row = border_index(y + dy, p.height);
    const int column = border_sample(x + dx * COMPONENTS, p.width);
    return row < 0 || column < 0 ? OUTSIDE : to_float(src_row(p, row)[column]);
}

__device__ __forceinline__ void put(const Plane& p, const Place& at, float sum, const Finish& f) { dst_row(p, at.y)[at.x] = (sample)finish(sum, f); }

// Mirrors variants.rs: weights in device memory, row-major.
struct Kernel2D {
    const float* taps;
    int width;
    int height;
    Finish finish;
};

extern "C" __global__ void __launch_bounds__(BLOCK_X* BLOCK_Y) direct__naive(const __grid_constant__ Frame f, const __grid_constant__ Kernel2D k) {
    const Place at = place(f);
    if (!at.inside) return;
    const Plane& p = f.plane[at.plane];
    float sum = 0.f;
    for (int j = 0; j < k.height; j++)
        for (int i = 0; i < k.width; i++)
            sum = fmaf(__ldg(k.taps + j * k.width + i), at_offset(p, at.x, at.y, i - k.width / 2, j - k.height / 2), sum);
    put(p, at, sum, k.finish);
}

// Mirrors variants.rs: `height` column weights, then `width` row weights.
extern "C" __global__ void __launch_bounds__(BLOCK_X* BLOCK_Y) separable__naive(const __grid_constant__ Frame f, const __grid_constant__ Kernel2D k) {
    const Place at = place(f);
    if (!at.inside) return;
    const Plane& p = f.plane[at.plane];
    const float* row = k.taps + k.height;
    float sum = 0.f;
    for (int j = 0; j < k.height; j++) {
        float line = 0.f;
        for (int i = 0; i < k.width; i++)
            line = fmaf(__ldg(row + i), at_offset(p, at.x, at.y, i - k.width / 2, j - k.height / 2), line);
        sum = fmaf(__ldg(k.taps + j), line, sum);
    }
    put(p, at, sum, k.finish);
}

// Mirrors variants.rs.
struct Window {
    int radius_x;
    int radius_y;
};

// Mean of a window, one pass: integer sums are exact.
extern "C" __global__ void __launch_bounds__(BLOCK_X* BLOCK_Y) box__naive(const __grid_constant__ Frame f, const __grid_constant__ Window w) {
    const Place at = place(f);
    if (!at.inside) return;
    const Plane& p = f.plane[at.plane];
#if SAMPLE == 32
    float sum = 0.f;
#else
    u64 sum = 0;
#endif
    for (int j = -w.radius_y; j <= w.radius_y; j++)
        for (int i = -w.radius_x; i <= w.radius_x; i++) {
#if SAMPLE == 32
            sum += at_offset(p, at.x, at.y, i, j);
#else
            sum += (u32)at_offset(p, at.x, at.y, i, j);
#endif
        }
    const u64 count = (u64)(2 * w.radius_x + 1) * (u64)(2 * w.radius_y + 1);
#if SAMPLE == 32
    dst_row(p, at.y)[at.x] = sum / (float)count;
#else
    // Half up in integers; the mean never exceeds the largest sample.
    dst_row(p, at.y)[at.x] = (sample)(((2 * sum + count) / (2 * count)) << SHIFT);
#endif
}

// Mirrors variants.rs: binomial weights of the column (size_y of them), then of the row, as integers in device memory;
// shift is log2 of the sum of all weights.
struct Sharpen {
    const u32* weights;
    int size_x;
    int size_y;
    int shift;
    int amount;
};

extern "C" __global__ void __launch_bounds__(BLOCK_X* BLOCK_Y) unsharp__naive(const __grid_constant__ Frame f, const __grid_constant__ Sharpen k) {
    const Place at = place(f);
    if (!at.inside) return;
    const Plane& p = f.plane[at.plane];
    const u32* row = k.weights + k.size_y;
#if SAMPLE == 32
    // Scaled per row, so that wide kernels keep their precision.
    float sum = 0.f;
    for (int j = 0; j < k.size_y; j++) {
        float line = 0.f;
        for (int i = 0; i < k.size_x; i++)
            line = fmaf((float)__ldg(row + i), at_offset(p, at.x, at.y, i - k.size_x / 2, j - k.size_y / 2), line);
        sum = fmaf((float)__ldg(k.weights + j), line, sum);
    }
    const float in = at_offset(p, at.x, at.y, 0, 0);
    dst_row(p, at.y)[at.x] = in + (in - ldexpf(sum, -k.shift)) * ((float)k.amount * (1.f / 65536.f));
#else
    u64 sum = 0;
    for (int j = 0; j < k.size_y; j++) {
        u64 line = 0;
        for (int i = 0; i < k.size_x; i++)
            line += (u64)__ldg(row + i) * (u32)at_offset(p, at.x, at.y, i - k.size_x / 2, j - k.size_y / 2);
        sum += (u64)__ldg(k.weights + j) * line;
    }
    const long long blur = (long long)((sum + ((1ull << k.shift) >> 1)) >> k.shift);
    const long long in = (long long)at_offset(p, at.x, at.y, 0, 0);
    const long long out = in + (((in - blur) * k.amount) >> 16);
    dst_row(p, at.y)[at.x] = (sample)((u32)min(max(out, 0ll), (long long)MAX_VALUE) << SHIFT);
#endif
}

// Mirrors variants.rs.
struct Gradients {
    float x[9];
    float y[9];
    Finish finish;
};

extern "C" __global__ void __launch_bounds__(BLOCK_X* BLOCK_Y) gradient__naive(const __grid_constant__ Frame f, const __grid_constant__ Gradients k) {
    const Place at = place(f);
    if (!at.inside) return;
    const Plane& p = f.plane[at.plane];
    float gx = 0.f, gy = 0.f;
#pragma unroll
    for (int j = 0; j < 3; j++)
#pragma unroll
        for (int i = 0; i < 3; i++) {
            const float v = at_offset(p, at.x, at.y, i - 1, j - 1);
            gx = fmaf(k.x[3 * j + i], v, gx);
            gy = fmaf(k.y[3 * j + i], v, gy);
        }
    // Not fused, so that every backend rounds alike.
    const float power = __fadd_rn(__fmul_rn(gx, gx), __fmul_rn(gy, gy));
    put(p, at, __fsqrt_rn(power), k.finish);
}
