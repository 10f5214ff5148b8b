// General kernels of whole weights from -128 to 127 on 8-bit samples, four taps to an instruction ("integer").
//
// A lane makes ACROSS samples across (16 where kernels are small, else 8) and ROWS down, straight from global memory: no shared memory,
// no barrier.
//
//        4 | 8 samples | 4        for each row: the 4 bytes from place i on, for every i  (funnel shifts)
//      +---+-----------+---+      each meets every row of weights that it belongs to      (dp4a)
//      |   | . . . . . |   |  ROWS + HEIGHT - 1 rows, their loads in flight together
//      +---+-----------+---+      bytes 0 .. 3 of a row of taps in one word, 4 .. 7 in the next
//
// Sums are exact. FIXED: their end is a multiplication in whole numbers, where the host has found one that gives the same codes as the
// float's for every sum. Else: 81 * 128 * 255 < 2^22, so that 1.5 * 2^23 as the start makes the sum's word a float.
// Bytes: each sample read once from device memory, its neighbours and halo rows from L1, written once. Operations per
// sample: HEIGHT * (WIDTH / 4, rounded up) dp4a, 3/4 (ROWS + HEIGHT - 1) / ROWS funnel shifts, 2.5 to finish (in floats 4.5).
//
// Measured (H200, 8 bits, 3 x 3): 3.2 us at 1080p, 20.2 at 8K, where a copy takes 2.9 and 17.2: 88 and 85 % of its rate. With the end in floats
// 3.4 and 22.5; lanes of 8 samples and 4 rows at 8K 21.7, of 16 samples and 3 rows 21.1, and stores that leave the caches early 20.2.
#include "plane.cuh"

#if SAMPLE != 8 || COMPONENTS != 1
#error "8-bit samples of one component only"
#endif

#ifndef ROWS
#define ROWS 4
#endif
#define WARPS 4
#ifndef ACROSS
#define ACROSS 8
#endif
#ifndef FIXED
#define FIXED 0
#endif
#ifndef STREAMED // whether outputs leave the caches first: frames that fill the L2 by themselves
#define STREAMED 0
#endif
#define MID (ACROSS / 4) // words of a lane's own samples; one more on either side are its neighbours'
#define WORDS ((WIDTH + 3) / 4)
#define SPAN (ROWS + HEIGHT - 1)
#define LEFT (WIDTH / 2)
static_assert(LEFT <= 4 && WIDTH - 1 - LEFT <= 4 && HEIGHT <= 9, "neighbours are 4 samples at most");
static_assert(ACROSS == 8 || ACROSS == 16, "a vector load of 8 or 16 bytes");

// Mirrors lower_direct.rs.
struct Weights {
    u32 row[HEIGHT][WORDS];
    int multiplier; // of the whole sum, before it is shifted
    int addend;     // the rounding's half and the bias, shifted too
    int shift;
    Finish finish;
};

__device__ __forceinline__ int dot(u32 samples, u32 weights, int sum) {
    int d;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(samples), "r"(weights), "r"(sum));
    return d;
}

// Four whole numbers as codes, clamped.
__device__ __forceinline__ u32 pack_clamped(const int code[4]) {
    u32 word;
    asm("{ .reg .b32 high; cvt.pack.sat.u8.s32.b32 high, %4, %3, 0; cvt.pack.sat.u8.s32.b32 %0, %2, %1, high; }"
        : "=r"(word)
        : "r"(code[0]), "r"(code[1]), "r"(code[2]), "r"(code[3]));
    return word;
}

template <class Vector>
__device__ __forceinline__ void store(Vector* to, Vector v) {
#if STREAMED
    __stcs(to, v);
#else
    *to = v;
#endif
}

// A lane's own samples of a row, and its neighbours' next to them.
__device__ __forceinline__ void load_row(u32 raw[MID + 2], const u8* left, const u8* mid) {
    raw[0] = LEFT > 0 ? *reinterpret_cast<const u32*>(left) : 0;
#if ACROSS == 16
    const uint4 v = *reinterpret_cast<const uint4*>(mid);
    raw[1] = v.x, raw[2] = v.y, raw[3] = v.z, raw[4] = v.w;
#else
    const uint2 v = *reinterpret_cast<const uint2*>(mid);
    raw[1] = v.x, raw[2] = v.y;
#endif
    raw[MID + 1] = LEFT < WIDTH - 1 ? *reinterpret_cast<const u32*>(mid + ACROSS) : 0;
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 4) direct__integer(const __grid_constant__ Frame f, const __grid_constant__ Weights t) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const Block b = locate(f);
    const Plane& p = f.plane[b.plane];
    const int x = (b.x * 32 + lane) * ACROSS, y0 = (b.y * WARPS + warp) * ROWS;
    if (y0 >= p.height) return;
    const int top = y0 - HEIGHT / 2;
    // Lanes behind the row's end read something and write nothing.
    const int near_x = min(x, (p.width - 1) & ~(ACROSS - 1));
    u32 raw[SPAN][MID + 2];
    const bool rows_inside = top >= 0 && top + SPAN <= p.height;
    const auto row_of = [&](int k) { return rows_inside ? top + k : max(border_index(top + k, p.height), 0); };
    const int left_x = max(near_x - 4, 0);
    if (rows_inside) {
        const u8 *mid = src_at(p, near_x, top), *left = src_at(p, left_x, top);
#pragma unroll
        for (int k = 0; k < SPAN; k++) load_row(raw[k], left + (u64)(u32)k * p.src_pitch, mid + (u64)(u32)k * p.src_pitch);
    } else {
#pragma unroll
        for (int k = 0; k < SPAN; k++) load_row(raw[k], src_at(p, left_x, row_of(k)), src_at(p, near_x, row_of(k)));
    }
    // Few lanes of few warps have samples outside: they load these words once more, as the border rule says.
    if (near_x < 4 || near_x + ACROSS + 4 > p.width) {
#pragma unroll
        for (int q = 0; q < MID + 2; q++) {
            const int at = near_x - 4 + 4 * q;
            if (at >= 0 && at + 4 <= p.width) continue;
            const Gather g = gather_of(at, p.width);
#pragma unroll
            for (int k = 0; k < SPAN; k++) raw[k][q] = g.near ? gather(src_row(p, row_of(k)), g) : gather_far(src_row(p, row_of(k)), g);
        }
    }
#if BORDER == BORDER_ZERO
    if (!rows_inside)
#pragma unroll
        for (int k = 0; k < SPAN; k++)
            if (top + k < 0 || top + k >= p.height)
#pragma unroll
                for (int q = 0; q < MID + 2; q++) raw[k][q] = 0;
#endif
    int sum[ROWS][ACROSS];
#pragma unroll
    for (int o = 0; o < ROWS; o++)
#pragma unroll
        for (int i = 0; i < ACROSS; i++) sum[o][i] = FIXED ? 0 : 0x4b400000;
#pragma unroll
    for (int k = 0; k < SPAN; k++) {
#pragma unroll
        for (int i = 0; i < ACROSS + 4 * (WORDS - 1); i++) {
            const int byte = 4 - LEFT + i;
            const u32 four = byte % 4 == 0 ? raw[k][byte / 4] : __funnelshift_r(raw[k][byte / 4], byte / 4 + 1 > MID + 1 ? 0u : raw[k][byte / 4 + 1], 8 * (byte % 4));
#pragma unroll
            for (int o = 0; o < ROWS; o++) {
                const int j = k - o;
                if (j < 0 || j >= HEIGHT) continue;
#pragma unroll
                for (int w = 0; w < WORDS; w++)
                    if (i - 4 * w >= 0 && i - 4 * w < ACROSS) sum[o][i - 4 * w] = dot(four, t.row[j][w], sum[o][i - 4 * w]);
            }
        }
    }
    u8* to = dst_at(p, near_x, y0);
#pragma unroll
    for (int o = 0; o < ROWS; o++, to += p.dst_pitch) {
        u32 word[MID];
#pragma unroll
        for (int h = 0; h < MID; h++) {
            int code[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
#if FIXED
                code[i] = (sum[o][4 * h + i] * t.multiplier + t.addend) >> t.shift;
#else
                // Adding 1.5 * 2^23 rounding down leaves the floor in the low bits (the host sees to |v| < 2^22). One rounding less than elsewhere: the product of a
                // whole sum and the scale is nearer to a tie than half a unit of the float only where it is meant to be one.
                const float v = fmaf(__int_as_float(sum[o][4 * h + i]) - 12582912.0f, t.finish.scale, t.finish.offset);
                code[i] = __float_as_int(__fadd_rd(v, 12582912.0f)) - 0x4b400000;
#endif
            }
            word[h] = pack_clamped(code);
        }
        if (x < p.width && y0 + o < p.height) {
#if ACROSS == 16
            store(reinterpret_cast<uint4*>(to), make_uint4(word[0], word[1], word[2], word[3]));
#else
            store(reinterpret_cast<uint2*>(to), make_uint2(word[0], word[1]));
#endif
        }
    }
}
