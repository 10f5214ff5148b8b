// Pooling with a stride, and pixelation: one value for many samples, of which only those inside the plane count.
#include "plane.cuh"

#ifdef KERNEL // and STRIDE, PAD, DILATION; KIND 0 for the maximum, 1 for the mean, 2 for the minimum

#define ACROSS 32
#define WARPS 4

// What one output position reads in one direction: `first`, then DILATION apart.
struct Reach {
    int first;
    int count;
};

__device__ __forceinline__ Reach reach(int index, int n) {
    const int start = index * STRIDE - PAD;
    const int last = start + (KERNEL - 1) * DILATION;
    const int skipped = start < 0 ? (-start + DILATION - 1) / DILATION : 0;
    const int end = min(n - 1, last);
    Reach r;
    r.first = start + skipped * DILATION;
    r.count = (end - r.first) / DILATION + 1;
    if (r.first > end) {
        r.first = min(max(start + KERNEL / 2 * DILATION, 0), n - 1);
        r.count = 1;
    }
    return r;
}

#if FLOATING
typedef float value;
__device__ __forceinline__ value value_of(sample v) { return to_float(v); }
__device__ __forceinline__ value least(value a, value b) { return fminf(a, b); }
__device__ __forceinline__ value most(value a, value b) { return fmaxf(a, b); }
__device__ __forceinline__ value mean(value sum, u32 count) { return sum / (float)count; }
#else
typedef u32 value;
__device__ __forceinline__ value value_of(sample v) { return to_code(v); }
__device__ __forceinline__ value least(value a, value b) { return min(a, b); }
__device__ __forceinline__ value most(value a, value b) { return max(a, b); }
// Half up; 64 samples of 16 bits, doubled, fit 32 bits.
__device__ __forceinline__ value mean(value sum, u32 count) { return (2 * sum + count) / (2 * count); }
#endif

__device__ __forceinline__ value joined(value all, value v) {
#if KIND == 0
    return most(all, v);
#elif KIND == 1
    return all + v;
#else
    return least(all, v);
#endif
}

// A thread makes four neighbouring samples of a row from the samples that their windows span, each read once per row.
extern "C" __global__ void __launch_bounds__(ACROSS* WARPS) pool__tiled(const __grid_constant__ Frame f) {
    const Block b = locate(f);
    const Plane& p = f.plane[b.plane];
    const int x = (b.x * ACROSS + (threadIdx.x & 31)) * 4, y = b.y * WARPS + (threadIdx.x >> 5);
    if (x >= p.width * COMPONENTS || y >= p.height) return;
    constexpr int PIXELS = 4 / COMPONENTS;
    constexpr int SPAN = ((PIXELS - 1) * STRIDE + (KERNEL - 1) * DILATION + 1) * COMPONENTS;
    const int first = x / COMPONENTS * STRIDE - PAD, top = y * STRIDE - PAD;
    value out[4];
    if (first >= 0 && first + SPAN / COMPONENTS <= p.src_width && top >= 0 && top + (KERNEL - 1) * DILATION < p.src_height) {
#pragma unroll
        for (int j = 0; j < KERNEL; j++) {
            const sample* row = src_row(p, top + j * DILATION) + first * COMPONENTS;
            value v[SPAN];
#pragma unroll
            for (int i = 0; i < SPAN; i++) v[i] = value_of(row[i]);
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int k = 0; k < KERNEL; k++) {
                    const value next = v[(i / COMPONENTS * STRIDE + k * DILATION) * COMPONENTS + i % COMPONENTS];
                    out[i] = j + k == 0 ? next : joined(out[i], next);
                }
        }
#if KIND == 1
#pragma unroll
        for (int i = 0; i < 4; i++) out[i] = mean(out[i], KERNEL * KERNEL);
#endif
    } else {
        const Reach down = reach(y, p.src_height);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const Reach across = reach((x + i) / COMPONENTS, p.src_width);
            value all = 0;
            for (int j = 0; j < down.count; j++) {
                const sample* row = src_row(p, down.first + j * DILATION);
                for (int k = 0; k < across.count; k++) {
                    const value next = value_of(row[(across.first + k * DILATION) * COMPONENTS + i % COMPONENTS]);
                    all = j + k == 0 ? next : joined(all, next);
                }
            }
#if KIND == 1
            all = mean(all, (u32)(across.count * down.count));
#endif
            out[i] = all;
        }
    }
#if !FLOATING
#pragma unroll
    for (int i = 0; i < 4; i++) out[i] <<= SHIFT;
#endif
    store4(dst_at(p, x, y), p.dst_pitch, 0, pack4(out[0], out[1], out[2], out[3]));
}

#else // GROUP threads, 32 or all 128, make one block of pixels; LANES_X of them, a power of two, lie side by side

#define THREADS 128

// Mirrors lower_windows.rs.
struct Blocks {
    int width; // pixels
    int height;
};

#if FLOATING
typedef double total;
__device__ __forceinline__ sample mean(total sum, u64 count) { return (sample)(float)(sum / (double)count); }
__device__ __forceinline__ total value_of(sample v) { return (total)to_float(v); }
#else
typedef u64 total;
__device__ __forceinline__ sample mean(total sum, u64 count) { return (sample)(((2 * sum + count) / (2 * count)) << SHIFT); }
__device__ __forceinline__ total value_of(sample v) { return (total)to_code(v); }
#endif

extern "C" __global__ void __launch_bounds__(THREADS) pixelate__blocks(const __grid_constant__ Frame f, const __grid_constant__ Blocks k) {
    __shared__ total sums[THREADS / 32][COMPONENTS];
    const Block b = locate(f);
    const Plane& p = f.plane[b.plane];
    const int thread = threadIdx.x % GROUP;
    const int left = (b.x * (THREADS / GROUP) + threadIdx.x / GROUP) * k.width, top = b.y * k.height;
    const int right = min(left + k.width, p.width), bottom = min(top + k.height, p.height);
    const int x0 = left * COMPONENTS + thread % LANES_X, y0 = top + thread / LANES_X;
    // LANES_X is even where there are two components: a thread meets one of them only.
    total sum = 0;
    for (int y = y0; y < bottom; y += GROUP / LANES_X) {
        const sample* row = src_row(p, y);
#pragma unroll 4
        for (int x = x0; x < right * COMPONENTS; x += LANES_X) sum += value_of(row[x]);
    }
    // Lanes of one component lie COMPONENTS apart.
#pragma unroll
    for (int d = COMPONENTS; d < 32; d *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
#if GROUP > 32
    if ((threadIdx.x & 31) < COMPONENTS) sums[threadIdx.x >> 5][threadIdx.x & 31] = sum;
    __syncthreads();
    sum = 0;
#pragma unroll
    for (int w = 0; w < THREADS / 32; w++) sum += sums[w][threadIdx.x % COMPONENTS];
#endif
    if (left >= p.width) return;
    const sample value = mean(sum, (u64)(right - left) * (u64)(bottom - top));
    for (int y = y0; y < bottom; y += GROUP / LANES_X) {
        sample* row = dst_row(p, y);
        for (int x = x0; x < right * COMPONENTS; x += LANES_X) row[x] = value;
    }
}
#endif
