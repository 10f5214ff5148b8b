// Compass kernels and FFmpeg's erosion and dilation: operations on the 3x3 neighbours. As in gradient.cu, a lane holds four columns in
// registers and takes its neighbours' edge samples by shuffle, so that a sample is loaded and converted once per ROWS + 2 rows.
#include "plane.cuh"

#ifndef ROWS
#define ROWS 4
#endif
#ifndef WARPS
#define WARPS 4
#endif
#define TILE 120 // lanes 0 and 31 only lend their samples

// Mirrors lower_windows.rs.
struct Ends {
    Finish finish;
    float threshold; // of morphology: how far a sample may move, infinity for any distance
};

// |8 times the strongest three neighbours in a row of the ring - 3 times all eight|: exact for integer samples.
__device__ __forceinline__ float strongest(const float w[9]) {
    const float ring[8] = {w[0], w[1], w[2], w[3], w[5], w[6], w[7], w[8]};
    float pair[8];
#pragma unroll
    for (int i = 0; i < 8; i++) pair[i] = ring[i] + ring[(i + 1) % 8];
    float most = pair[0] + ring[2];
#pragma unroll
    for (int i = 1; i < 8; i++) most = fmaxf(most, pair[i] + ring[(i + 2) % 8]);
    const float total = (pair[0] + pair[2]) + (pair[4] + pair[6]);
    return fabsf(8.f * most - 3.f * total);
}

#ifdef CELLS // bit i for neighbour i, the centre left out
__device__ __forceinline__ float moved(const float w[9], float threshold) {
    float best = w[4];
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (CELLS >> i & 1) best = MAXIMUM ? fmaxf(best, w[i < 4 ? i : i + 1]) : fminf(best, w[i < 4 ? i : i + 1]);
    return MAXIMUM ? fminf(best, w[4] + threshold) : fmaxf(best, w[4] - threshold);
}
#endif

template <class Work>
__device__ __forceinline__ void walk(const Frame& f, const Finish& finish, Work work) {
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
#pragma unroll
        for (int r = 0; r < ROWS + 2; r++) raw[r] = load4(at, p.src_pitch, r);
    } else {
        load_edge<ROWS + 2>(p, x, y0 - 1, 1, raw);
    }
    const bool writes = lane >= 1 && lane < 31 && x < p.width * COMPONENTS;
    u8* to = p.dst + (u64)(u32)y0 * p.dst_pitch + (long long)x * (long long)sizeof(sample);
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
                float w[9];
#pragma unroll
                for (int j = 0; j < 9; j++) w[j] = window[(r + 1 + j / 3) % 3][i + j % 3 * COMPONENTS];
                out[i] = work(w);
            }
            if (writes) store4(to, p.dst_pitch, r - 2, finish4(out, finish));
        }
    }
}

#ifndef CELLS
extern "C" __global__ void __launch_bounds__(32 * WARPS) compass__tiled(const __grid_constant__ Frame f, const __grid_constant__ Ends e) {
    walk(f, e.finish, [](const float w[9]) { return strongest(w); });
}
#else
extern "C" __global__ void __launch_bounds__(32 * WARPS) morphology__tiled(const __grid_constant__ Frame f, const __grid_constant__ Ends e) {
    walk(f, e.finish, [&](const float w[9]) { return moved(w, e.threshold); });
}
#endif
