// General kernels of up to 3 x 3 samples, floats or halves, from registers ("registers").
//
// A lane loads its four columns of ROWS + 2 rows, all in flight together, and borrows a column from either neighbour by
// shuffle: no shared memory, no barrier, since at this size what counts is how soon the last load leaves.
//
//        lane 0   lane 1         lane 30  lane 31
//      | . . . . | . . . . | ... | . . . . | . . . . |  ROWS + 2 rows
//                 \__ 120 columns of outputs __/        the outer lanes only lend
//
// Bytes: each sample read once from device memory, halo rows and columns from L1, written once. Operations per sample: 9 FMA,
// (ROWS + 2) / ROWS / 2 shuffles.
//
// Measured (H200, 1080p): 6.2 us where a copy takes 5.9, 96 % of its rate.
#include "plane.cuh"

#if !FLOATING || COMPONENTS != 1
#error "float samples of one component only"
#endif

#ifndef ROWS
#define ROWS 4
#endif
#ifndef WARPS
#define WARPS 2
#endif
#define PAD 4
#define TILE (128 - 2 * PAD)

// Mirrors lower_direct.rs.
struct Taps {
    float tap[3][3];
    Finish finish;
};

extern "C" __global__ void __launch_bounds__(32 * WARPS) direct__registers(const __grid_constant__ Frame f, const __grid_constant__ Taps t) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const Block b = locate(f);
    const Plane& p = f.plane[b.plane];
    const int left = b.x * TILE - PAD, x = left + 4 * lane, y0 = (b.y * WARPS + warp) * ROWS;
    if (y0 >= p.height) return;
    raw4 raw[ROWS + 2];
    if (left >= 0 && left + 128 <= p.width && y0 >= 1 && y0 + ROWS + 1 <= p.height) {
        const u8* at = src_at(p, x, y0 - 1);
#pragma unroll
        for (int k = 0; k < ROWS + 2; k++) raw[k] = load4(at, p.src_pitch, k);
    } else {
        load_edge<ROWS + 2>(p, x, y0 - 1, 1, raw);
    }
    float sum[ROWS][4] = {};
#pragma unroll
    for (int r = 0; r < ROWS + 2; r++) {
        float own[4];
        unpack(raw[r], own);
        const float v[6] = {__shfl_up_sync(0xffffffffu, own[3], 1), own[0], own[1], own[2], own[3], __shfl_down_sync(0xffffffffu, own[0], 1)};
#pragma unroll
        for (int o = 0; o < ROWS; o++) {
            const int j = r - o;
            if (j < 0 || j > 2) continue;
#pragma unroll
            for (int k = 0; k < 3; k++)
#pragma unroll
                for (int i = 0; i < 4; i++) sum[o][i] = fmaf(t.tap[j][k], v[i + k], sum[o][i]);
        }
    }
    if (lane == 0 || lane == 31 || x >= p.width) return;
    u8* to = dst_at(p, x, y0);
#pragma unroll
    for (int o = 0; o < ROWS; o++)
        if (y0 + o < p.height) store4(to, p.dst_pitch, o, finish4(sum[o], t.finish));
}
