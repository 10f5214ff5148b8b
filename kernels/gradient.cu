// Gradient magnitude of two 3x3 kernels. A warp filters TILE x ROWS samples: each lane holds four columns in registers and
// takes its neighbours' edge samples by shuffle, so that a sample is loaded and converted once per ROWS + 2 rows.
#include "plane.cuh"

#ifndef ROWS
#define ROWS 8
#endif
#ifndef WARPS
#define WARPS 4
#endif
#define TILE 120 // lanes 0 and 31 only lend their samples

// Compile-time: TAPS_X and TAPS_Y have a bit for each weight that is not zero.

// Mirrors the bytes that lower.rs builds.
struct Gradients {
    float x[9];
    float y[9];
    Finish finish;
};

// Rounded as the square root of separately rounded products and sum, so that every backend rounds alike.
__device__ __forceinline__ float magnitude(float gx, float gy) {
#if TAPS_Y == 0
    return fabsf(gx);
#elif TAPS_X == 0
    return fabsf(gy);
#else
    const float power = __fadd_rn(__fmul_rn(gx, gx), __fmul_rn(gy, gy));
#if FLOATING
    return __fsqrt_rn(power);
#else
    // One Newton step from the approximate reciprocal root: right to the last bit for the finite, normal sums of integer
    // samples, at a quarter of the library's cost. The floor keeps 0 away from 0 * infinity.
    const float x = fmaxf(power, 1e-30f);
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    const float root = x * y;
    return fmaf(fmaf(-root, root, x), 0.5f * y, root);
#endif
#endif
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) gradient__tiled(const __grid_constant__ Frame f, const __grid_constant__ Gradients g) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const Block b = locate(f);
    const Plane& p = f.plane[b.plane];
    const int y0 = (b.y * WARPS + warp) * ROWS;
    if (y0 >= p.height) return;
    const int left = b.x * TILE - 4;
    const int x = left + 4 * lane;
    const bool inside = left >= 0 && left + 128 <= p.width * COMPONENTS && y0 >= 1 && y0 + ROWS + 1 <= p.height;
    raw4 raw[ROWS + 2];
    if (inside) {
        const u8* at = src_at(p, x, y0 - 1);
        const u32 pitch = p.src_pitch;
#pragma unroll
        for (int r = 0; r < ROWS + 2; r++) raw[r] = load4(at, pitch, r);
    } else {
        load_edge<ROWS + 2>(p, x, y0 - 1, 1, raw);
    }
    const bool writes = lane >= 1 && lane < 31 && x < p.width * COMPONENTS;
    u8* to = p.dst + (u64)(u32)y0 * p.dst_pitch + (long long)x * (long long)sizeof(sample);
    // Rows r-2, r-1, r in window[r % 3], each with COMPONENTS samples of the neighbours on both sides.
    float window[3][4 + 2 * COMPONENTS];
#pragma unroll
    for (int r = 0; r < ROWS + 2; r++) {
        float v[4];
        unpack(raw[r], v);
#pragma unroll
        for (int i = 0; i < 4; i++) window[r % 3][COMPONENTS + i] = v[i];
#pragma unroll
        for (int c = 0; c < COMPONENTS; c++) {
            window[r % 3][c] = __shfl_up_sync(0xffffffffu, v[4 - COMPONENTS + c], 1);
            window[r % 3][4 + COMPONENTS + c] = __shfl_down_sync(0xffffffffu, v[c], 1);
        }
        if (r >= 2 && y0 + r - 2 < p.height) {
            float out[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float gx = 0.f, gy = 0.f;
#pragma unroll
                for (int j = 0; j < 3; j++)
#pragma unroll
                    for (int k = 0; k < 3; k++) {
                        const float w = window[(r + 1 + j) % 3][i + k * COMPONENTS];
                        if (TAPS_X >> (3 * j + k) & 1) gx = fmaf(g.x[3 * j + k], w, gx);
                        if (TAPS_Y >> (3 * j + k) & 1) gy = fmaf(g.y[3 * j + k], w, gy);
                    }
                out[i] = magnitude(gx, gy);
            }
            if (writes) store4(to, p.dst_pitch, r - 2, finish4(out, g.finish));
        }
    }
}
