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

__device__ __forceinline__ void put(const Plane& p, const Place& at, wide sum, const Finish& f) { dst_row(p, at.y)[at.x] = (sample)finish(sum, f); }

// Mirrors lower.rs: weights in device memory, row-major.
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
    wide sum = 0;
    for (int j = 0; j < k.height; j++)
        for (int i = 0; i < k.width; i++)
            sum = fma((wide)__ldg(k.taps + j * k.width + i), (wide)at_offset(p, at.x, at.y, i - k.width / 2, j - k.height / 2), sum);
    put(p, at, sum, k.finish);
}

// Mirrors lower.rs: `height` column weights, then `width` row weights.
extern "C" __global__ void __launch_bounds__(BLOCK_X* BLOCK_Y) separable__naive(const __grid_constant__ Frame f, const __grid_constant__ Kernel2D k) {
    const Place at = place(f);
    if (!at.inside) return;
    const Plane& p = f.plane[at.plane];
    const float* row = k.taps + k.height;
    wide sum = 0;
    for (int j = 0; j < k.height; j++) {
        wide line = 0;
        for (int i = 0; i < k.width; i++)
            line = fma((wide)__ldg(row + i), (wide)at_offset(p, at.x, at.y, i - k.width / 2, j - k.height / 2), line);
        sum = fma((wide)__ldg(k.taps + j), line, sum);
    }
    put(p, at, sum, k.finish);
}

// Mirrors lower.rs.
struct Window {
    int radius_x;
    int radius_y;
};

// Mean of a window, one pass: integer sums are exact.
extern "C" __global__ void __launch_bounds__(BLOCK_X* BLOCK_Y) box__naive(const __grid_constant__ Frame f, const __grid_constant__ Window w) {
    const Place at = place(f);
    if (!at.inside) return;
    const Plane& p = f.plane[at.plane];
#if FLOATING
    float sum = 0.f;
#else
    u64 sum = 0;
#endif
    for (int j = -w.radius_y; j <= w.radius_y; j++)
        for (int i = -w.radius_x; i <= w.radius_x; i++) {
#if FLOATING
            sum += at_offset(p, at.x, at.y, i, j);
#else
            sum += (u32)at_offset(p, at.x, at.y, i, j);
#endif
        }
    const u64 count = (u64)(2 * w.radius_x + 1) * (u64)(2 * w.radius_y + 1);
#if FLOATING
    dst_row(p, at.y)[at.x] = (sample)(sum / (float)count);
#else
    // Half up in integers; the mean never exceeds the largest sample.
    dst_row(p, at.y)[at.x] = (sample)(((2 * sum + count) / (2 * count)) << SHIFT);
#endif
}

// Mirrors lower.rs: binomial weights of the column (size_y of them), then of the row, as integers in device memory;
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
#if FLOATING
    // Scaled per row, so that wide kernels keep their precision.
    float sum = 0.f;
    for (int j = 0; j < k.size_y; j++) {
        float line = 0.f;
        for (int i = 0; i < k.size_x; i++)
            line = fmaf((float)__ldg(row + i), at_offset(p, at.x, at.y, i - k.size_x / 2, j - k.size_y / 2), line);
        sum = fmaf((float)__ldg(k.weights + j), line, sum);
    }
    const float in = at_offset(p, at.x, at.y, 0, 0);
    dst_row(p, at.y)[at.x] = (sample)(in + (in - ldexpf(sum, -k.shift)) * ((float)k.amount * (1.f / 65536.f)));
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

// Mirrors lower.rs.
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

// Mirrors lower_windows.rs.
struct Ends {
    Finish finish;
};

extern "C" __global__ void __launch_bounds__(BLOCK_X* BLOCK_Y) compass__naive(const __grid_constant__ Frame f, const __grid_constant__ Ends k) {
    const Place at = place(f);
    if (!at.inside) return;
    const Plane& p = f.plane[at.plane];
    float ring[8], total = 0.f, strongest = 0.f;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int cell = i < 4 ? i : i + 1;
        ring[i] = at_offset(p, at.x, at.y, cell % 3 - 1, cell / 3 - 1);
        total += ring[i];
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float sum = ring[i] + ring[(i + 1) % 8] + ring[(i + 2) % 8];
        strongest = i == 0 ? sum : fmaxf(strongest, sum);
    }
    put(p, at, fabsf(8.f * strongest - 3.f * total), k.finish);
}

// Sample at (x + dx pixels, y + dy) as an integer of the same order.
__device__ __forceinline__ u32 key_at(const Plane& p, int x, int y, int dx, int dy) {
    const int row = border_index(y + dy, p.height);
    const int column = border_sample(x + dx * COMPONENTS, p.width);
    return key_of(row < 0 || column < 0 ? (sample)0 : src_row(p, row)[column]);
}

// Mirrors lower_windows.rs.
struct Extreme {
    int radius_x;
    int radius_y;
    int maximum;
};

extern "C" __global__ void __launch_bounds__(BLOCK_X* BLOCK_Y) extremum__naive(const __grid_constant__ Frame f, const __grid_constant__ Extreme k) {
    const Place at = place(f);
    if (!at.inside) return;
    const Plane& p = f.plane[at.plane];
    u32 best = key_at(p, at.x, at.y, 0, 0);
    for (int j = -k.radius_y; j <= k.radius_y; j++)
        for (int i = -k.radius_x; i <= k.radius_x; i++) {
            const u32 v = key_at(p, at.x, at.y, i, j);
            best = k.maximum ? max(best, v) : min(best, v);
        }
    dst_row(p, at.y)[at.x] = of_key(best);
}

// Mirrors lower_windows.rs. Bit i of `cells` stands for the window's cell i, the centre left out.
struct Neighbours {
    int cells;
    int maximum;
    float threshold; // infinity for none
    Finish finish;
};

extern "C" __global__ void __launch_bounds__(BLOCK_X* BLOCK_Y) morphology__naive(const __grid_constant__ Frame f, const __grid_constant__ Neighbours k) {
    const Place at = place(f);
    if (!at.inside) return;
    const Plane& p = f.plane[at.plane];
    const float in = at_offset(p, at.x, at.y, 0, 0);
    float best = in;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int cell = i < 4 ? i : i + 1;
        const float v = at_offset(p, at.x, at.y, cell % 3 - 1, cell / 3 - 1);
        if (k.cells >> i & 1) best = k.maximum ? fmaxf(best, v) : fminf(best, v);
    }
    best = k.maximum ? fminf(best, in + k.threshold) : fmaxf(best, in - k.threshold);
    put(p, at, best, k.finish);
}

// Mirrors lower_windows.rs.
struct Ranked {
    int radius_x;
    int radius_y;
    int rank;
};

// The rank's sample, bit by bit from the top: a bit is set if no more than `rank` samples lie below what it makes.
extern "C" __global__ void __launch_bounds__(BLOCK_X* BLOCK_Y) median__naive(const __grid_constant__ Frame f, const __grid_constant__ Ranked k) {
    const Place at = place(f);
    if (!at.inside) return;
    const Plane& p = f.plane[at.plane];
    u32 found = 0;
    for (int bit = KEY_BITS - 1; bit >= 0; bit--) {
        const u32 candidate = found | 1u << bit;
        int below = 0;
        for (int j = -k.radius_y; j <= k.radius_y; j++)
            for (int i = -k.radius_x; i <= k.radius_x; i++) below += key_at(p, at.x, at.y, i, j) < candidate;
        if (below <= k.rank) found = candidate;
    }
    dst_row(p, at.y)[at.x] = of_key(found);
}

// The positions inside 0..n that an output position reads: `first`, then `step` apart, `count` of them.
struct Reach {
    int first;
    int count;
};

__device__ __forceinline__ Reach reach(int index, int n, int kernel, int stride, int pad, int dilation) {
    const int start = index * stride - pad;
    const int last = start + (kernel - 1) * dilation;
    const int skipped = start < 0 ? (-start + dilation - 1) / dilation : 0;
    const int end = min(n - 1, last);
    Reach r;
    r.first = start + skipped * dilation;
    if (r.first > end) {
        r.first = min(max(start + kernel / 2 * dilation, 0), n - 1);
        r.count = 1;
    } else {
        r.count = (end - r.first) / dilation + 1;
    }
    return r;
}

// Mirrors lower_windows.rs. `kind` is 0 for the maximum, 1 for the mean, 2 for the minimum.
struct Pooling {
    int kind;
    int kernel;
    int stride;
    int pad;
    int dilation;
};

__device__ __forceinline__ sample mean_of(double sum, u64 whole, u64 count) {
#if FLOATING
    return (sample)(float)(sum / (double)count);
#else
    return (sample)(((2 * whole + count) / (2 * count)) << SHIFT);
#endif
}

extern "C" __global__ void __launch_bounds__(BLOCK_X* BLOCK_Y) pool__naive(const __grid_constant__ Frame f, const __grid_constant__ Pooling k) {
    const Place at = place(f);
    if (!at.inside) return;
    const Plane& p = f.plane[at.plane];
    const int component = at.x % COMPONENTS;
    const Reach x = reach(at.x / COMPONENTS, p.src_width, k.kernel, k.stride, k.pad, k.dilation);
    const Reach y = reach(at.y, p.src_height, k.kernel, k.stride, k.pad, k.dilation);
    double sum = 0;
    u64 whole = 0;
    u32 best = k.kind == 0 ? 0u : 0xffffffffu;
    for (int j = 0; j < y.count; j++) {
        const sample* row = src_row(p, y.first + j * k.dilation);
        for (int i = 0; i < x.count; i++) {
            const sample v = row[(x.first + i * k.dilation) * COMPONENTS + component];
            if (k.kind != 1)
                best = k.kind == 0 ? max(best, key_of(v)) : min(best, key_of(v));
            else if (FLOATING)
                sum += (double)to_float(v);
            else
                whole += key_of(v);
        }
    }
    dst_row(p, at.y)[at.x] = k.kind == 1 ? mean_of(sum, whole, (u64)x.count * (u64)y.count) : of_key(best);
}

// Mirrors lower_windows.rs.
struct Blocks {
    int width; // pixels
    int height;
};

extern "C" __global__ void __launch_bounds__(BLOCK_X* BLOCK_Y) pixelate__naive(const __grid_constant__ Frame f, const __grid_constant__ Blocks k) {
    const Place at = place(f);
    if (!at.inside) return;
    const Plane& p = f.plane[at.plane];
    const int component = at.x % COMPONENTS;
    const int left = at.x / COMPONENTS / k.width * k.width, top = at.y / k.height * k.height;
    const int right = min(left + k.width, p.width), bottom = min(top + k.height, p.height);
    double sum = 0;
    u64 whole = 0;
    for (int y = top; y < bottom; y++)
        for (int x = left; x < right; x++) {
            const sample v = src_row(p, y)[x * COMPONENTS + component];
            if (FLOATING)
                sum += (double)to_float(v);
            else
                whole += key_of(v);
        }
    dst_row(p, at.y)[at.x] = mean_of(sum, whole, (u64)(right - left) * (u64)(bottom - top));
}
