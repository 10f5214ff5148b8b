// General 2-D kernels by Fourier transforms of overlapping tiles ("fft"): spread, transform (cuFFT), multiply, transform back, gather.
//
//      TILE_X x TILE_Y, sides of small primes          Each tile yields VALID_X x VALID_Y samples: the kernel's size less than its
//      +------------------+                            own. All tiles of all planes have one size, so that a 4:2:0 frame is one batch
//      | valid     | lost |                            under one plan, and the kernel's spectrum stays in the L2.
//      |           |      |
//      +-----------+      |   out(x) = sum_k w(k) tile(x + k): a correlation, hence the conjugate of the kernel's spectrum; a tile
//      | lost             |   begins KW / 2 before its first sample, and border rules apply where it reads.
//      +------------------+
// Bytes per sample, times TILE / VALID for what overlaps: 4 written by the spread, then cuFFT's passes, 16 by the product, 4 by the
// gather, mostly from the L2. Operations: about 5 log2(TILE_X TILE_Y) twice, whatever the kernel's size.
#include "plane.cuh"

#define VALID_X (TILE_X - KW + 1) // pixels
#define VALID_Y (TILE_Y - KH + 1)
#define HALF (TILE_X / 2 + 1)
#define THREADS 256

// First tile of a plane: those of earlier planes come before. Component c of tile (x, y) is first + (y * across + x) * COMPONENTS + c.
struct Tiling {
    u32 first;
    u32 across;
    u32 count;
};

__device__ __forceinline__ Tiling tiling(const Frame& f, int plane) {
    Tiling t = {};
#pragma unroll
    for (int k = 0; k < PLANES; k++) {
        if (k > plane) break;
        t.first += t.count;
        t.across = (u32)(f.plane[k].width + VALID_X - 1) / VALID_X;
        t.count = t.across * ((u32)(f.plane[k].height + VALID_Y - 1) / VALID_Y) * COMPONENTS;
    }
    return t;
}

// A thread per sample of a tile.
extern "C" __global__ void __launch_bounds__(THREADS) direct__spread(const __grid_constant__ Frame f) {
    const u32 index = blockIdx.x * THREADS + threadIdx.x;
    const u32 tile = index / (TILE_X * TILE_Y);
    if (tile >= TILES) return;
    int plane = 0;
#pragma unroll
    for (int k = 1; k < PLANES; k++)
        if (tile >= tiling(f, k).first) plane = k;
    const Plane& p = f.plane[plane];
    const Tiling t = tiling(f, plane);
    const u32 local = tile - t.first;
    const int component = (int)(local % COMPONENTS);
    const int x = (int)(local / COMPONENTS % t.across) * VALID_X - KW / 2 + (int)(index % TILE_X);
    const int y = (int)(local / COMPONENTS / t.across) * VALID_Y - KH / 2 + (int)(index / TILE_X % TILE_Y);
    const int row = border_index(y, p.height), column = border_index(x, p.width);
    float* to = reinterpret_cast<float*>(p.dst);
    to[index] = row < 0 || column < 0 ? OUTSIDE : to_float(src_row(p, row)[column * COMPONENTS + component]);
}

// Mirrors lower_race.rs.
struct Spectrum {
    const float2* kernel;
};

// A thread per frequency and GROUP tiles: the kernel's value is read once for all of them.
#define GROUP 4
extern "C" __global__ void __launch_bounds__(THREADS) direct__multiply(const __grid_constant__ Frame f, const __grid_constant__ Spectrum s) {
    const u32 each = HALF * TILE_Y;
    const u32 parts = (each + THREADS - 1) / THREADS;
    const u32 i = blockIdx.x % parts * THREADS + threadIdx.x;
    if (i >= each) return;
    const float2 k = __ldg(s.kernel + i);
    float2* at = reinterpret_cast<float2*>(f.plane[0].dst) + (u64)(blockIdx.x / parts * GROUP) * each + i;
    float2 v[GROUP];
#pragma unroll
    for (int g = 0; g < GROUP; g++)
        if (blockIdx.x / parts * GROUP + g < TILES) v[g] = at[(u64)g * each];
#pragma unroll
    for (int g = 0; g < GROUP; g++)
        if (blockIdx.x / parts * GROUP + g < TILES) at[(u64)g * each] = make_float2(v[g].x * k.x + v[g].y * k.y, v[g].y * k.x - v[g].x * k.y);
}

// A thread per sample, blocks of 32 x 8.
extern "C" __global__ void __launch_bounds__(THREADS) direct__gather(const __grid_constant__ Frame f, const __grid_constant__ Finish end) {
    const Block b = locate(f);
    const Plane& p = f.plane[b.plane];
    const int s = b.x * 32 + (int)(threadIdx.x & 31), y = b.y * 8 + (int)(threadIdx.x >> 5);
    if (s >= p.width * COMPONENTS || y >= p.height) return;
    const Tiling t = tiling(f, b.plane);
    const u32 x = (u32)s / COMPONENTS, component = (u32)s % COMPONENTS;
    const u32 tile = t.first + ((u32)y / VALID_Y * t.across + x / VALID_X) * COMPONENTS + component;
    const float* from = reinterpret_cast<const float*>(p.src) + (u64)tile * (TILE_X * TILE_Y);
    dst_row(p, y)[s] = (sample)finish((wide)from[(u32)y % VALID_Y * TILE_X + x % VALID_X], end);
}
