// The textbook's ways to a general 2-D kernel, one sample per thread: weights in constant memory ("constant"), a tile with its halo in
// shared memory ("tiled"), reads through the texture unit ("texture"). Stations of the race, plain on purpose.
//
//        BLOCK_X + KW - 1            constant: KW * KH global reads per sample (L1), weights broadcast from the constant cache
//      +------------------+          tiled:    one global read per sample and halo, KW * KH shared reads; lanes read neighbouring
//      |   halo           | KH / 2             words, so no bank conflicts at one component, none at two (a warp reads 32 in a row)
//      |  +-----------+   |          texture:  KW * KH fetches per sample from the texture cache; clamp and zero with pixel coordinates,
//      |  | BLOCK_X x |   |                    wrap and reflect with normalised ones, border rules free
//      |  |  BLOCK_Y  |   |
//      |  +-----------+   |          Bytes per sample: read once (tiled: plus the halo), written once. Operations: KW * KH multiply-adds.
//      +------------------+
#include "plane.cuh"

#ifndef BLOCK_X
#define BLOCK_X 32
#endif
#ifndef BLOCK_Y
#define BLOCK_Y 8
#endif
#define THREADS (BLOCK_X * BLOCK_Y)

struct Place {
    int plane;
    int left; // first sample of the block
    int top;
    int x; // sample index
    int y;
    bool inside;
};

__device__ __forceinline__ Place place(const Frame& f) {
    const Block b = locate(f);
    Place at;
    at.plane = b.plane;
    at.left = b.x * BLOCK_X;
    at.top = b.y * BLOCK_Y;
    at.x = at.left + (int)(threadIdx.x % BLOCK_X);
    at.y = at.top + (int)(threadIdx.x / BLOCK_X);
    at.inside = at.x < f.plane[b.plane].width * COMPONENTS && at.y < f.plane[b.plane].height;
    return at;
}

__device__ __forceinline__ void put(const Plane& p, const Place& at, wide sum, const Finish& f) { dst_row(p, at.y)[at.x] = (sample)finish(sum, f); }

#if defined(CONSTANT_TAPS)

// Filled by the host after loading, row-major.
__constant__ float constant_taps[CONSTANT_TAPS];

extern "C" __global__ void __launch_bounds__(THREADS) direct__constant(const __grid_constant__ Frame f, const __grid_constant__ Finish end) {
    const Place at = place(f);
    if (!at.inside) return;
    const Plane& p = f.plane[at.plane];
    wide sum = 0;
    for (int j = 0; j < KH; j++) {
        const int row = border_index(at.y + j - KH / 2, p.height);
        const sample* line = src_row(p, max(row, 0));
        for (int i = 0; i < KW; i++) {
            const int column = border_sample(at.x + (i - KW / 2) * COMPONENTS, p.width);
            const float v = row < 0 || column < 0 ? OUTSIDE : to_float(line[column]);
            sum = fma((wide)constant_taps[j * KW + i], (wide)v, sum);
        }
    }
    put(p, at, sum, end);
}

#elif defined(TEXTURE)

// Mirrors lower_race.rs: weights in device memory, row-major.
struct Taps {
    const float* taps;
    Finish finish;
};

struct Texel {
    float v[2];
};

// The pixel at (x, y). NORMALISED: coordinates are shares of the plane's size.
__device__ __forceinline__ Texel fetch(u64 texture, float x, float y) {
    Texel t;
#if FLOATING
    // The texture unit makes floats of halves.
    float a, b, c, d;
    asm("tex.2d.v4.f32.f32 {%0, %1, %2, %3}, [%4, {%5, %6}];" : "=f"(a), "=f"(b), "=f"(c), "=f"(d) : "l"(texture), "f"(x), "f"(y));
    t.v[0] = a;
    t.v[1] = b;
#else
    u32 a, b, c, d;
    asm("tex.2d.v4.u32.f32 {%0, %1, %2, %3}, [%4, {%5, %6}];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "l"(texture), "f"(x), "f"(y));
    t.v[0] = to_float((sample)a);
    t.v[1] = to_float((sample)b);
#endif
    return t;
}

extern "C" __global__ void __launch_bounds__(THREADS) direct__texture(const __grid_constant__ Frame f, const __grid_constant__ Taps t) {
    const Place at = place(f);
    if (!at.inside) return;
    const Plane& p = f.plane[at.plane];
    // The handle lies where other kernels have scratch.
    const u64 texture = (u64)p.aux;
    const int component = COMPONENTS == 1 ? 0 : at.x & 1;
    const float x0 = (float)(at.x / COMPONENTS - KW / 2) + 0.5f, y0 = (float)(at.y - KH / 2) + 0.5f;
#if NORMALISED
    const float scale_x = 1.f / (float)p.width, scale_y = 1.f / (float)p.height;
#else
    const float scale_x = 1.f, scale_y = 1.f;
#endif
    wide sum = 0;
    for (int j = 0; j < KH; j++)
        for (int i = 0; i < KW; i++) {
            const Texel v = fetch(texture, (x0 + (float)i) * scale_x, (y0 + (float)j) * scale_y);
            sum = fma((wide)__ldg(t.taps + j * KW + i), (wide)(component ? v.v[1] : v.v[0]), sum);
        }
    put(p, at, sum, t.finish);
}

#else

// Mirrors lower_race.rs: weights in device memory, row-major.
struct Taps {
    const float* taps;
    Finish finish;
};

#define SPAN_X (BLOCK_X + (KW - 1) * COMPONENTS)
#define SPAN_Y (BLOCK_Y + KH - 1)

extern "C" __global__ void __launch_bounds__(THREADS) direct__tiled(const __grid_constant__ Frame f, const __grid_constant__ Taps t) {
    __shared__ float tile[SPAN_Y][SPAN_X];
    const Place at = place(f);
    const Plane& p = f.plane[at.plane];
    const int left = at.left - KW / 2 * COMPONENTS, top = at.top - KH / 2;
    for (int i = threadIdx.x; i < SPAN_X * SPAN_Y; i += THREADS) {
        const int r = i / SPAN_X, c = i % SPAN_X;
        const int row = border_index(top + r, p.height), column = border_sample(left + c, p.width);
        tile[r][c] = row < 0 || column < 0 ? OUTSIDE : to_float(src_row(p, row)[column]);
    }
    __syncthreads();
    if (!at.inside) return;
    const int x = threadIdx.x % BLOCK_X, y = threadIdx.x / BLOCK_X;
    wide sum = 0;
    for (int j = 0; j < KH; j++)
        for (int i = 0; i < KW; i++) sum = fma((wide)__ldg(t.taps + j * KW + i), (wide)tile[y + j][x + i * COMPONENTS], sum);
    put(p, at, sum, t.finish);
}
#endif
