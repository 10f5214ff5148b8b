// The sample of a given rank in windows of up to 255 8-bit samples, by levels ("levels").
//
// The sample of rank k is the number of levels T = 1 .. 255 for which at least n - k samples of the window are T or more.
// Whether that holds is a box filter of a binary picture, whose counts fit bytes: four samples to a word, the cost hardly
// grows with the window, and levels may be taken in any order by any warp.
//
//      512 columns: 32 lanes x 16                     a warp, for LEVELS levels at a time, row by row:
//    +--+-------------------------+--+
//    |8 |  TILE_X = 496 outputs   | 8|                >= T ?        new row - old row       across, by doubling
//    |  |  TILE_Y                 |  |   bytes ---->  0 or 1  --->  column counts    --->   window counts ---> >= n - k ? ---> += 1
//    +--+-------------------------+--+
//
// First every 16th level. Those above which a tile has no median, and those below which all its medians lie, bound the
// cells of 15 levels that are looked at one by one: few in a picture, some 5 of 16 in noise.
//
// Bytes: each sample read once from device memory (halo from L2), written once; shared memory: two reads of a row and one
// addition per row and LEVELS levels, 16 bytes a lane side by side, no conflicts. Operations: some 28 per word of 4 samples
// and level, 3 of them shuffles of a quarter's rate.
//
// Measured (H200, 1080p, 15 x 15, noise): 127 us, 2.5 % of a copy's rate; the issue of instructions limits it (62 % of the slots, at 3
// warps to a scheduler).
#include "plane.cuh"

#if SAMPLE != 8 || COMPONENTS != 1
#error "8-bit samples of one component only"
#endif

#define WARPS 8
#define THREADS (32 * WARPS)
#define PAD 8
#define COLUMNS 512
#define TILE_X (COLUMNS - 2 * PAD)
#define STAGED_Y (TILE_Y + 2 * RADIUS_Y)
#define COUNT ((2 * RADIUS_X + 1) * (2 * RADIUS_Y + 1))
#define ENOUGH (COUNT - RANK) // samples at a level or above that make it count
static_assert(COUNT <= 255 && RADIUS_X <= PAD, "counts are bytes");

#define ONES 0x01010101u
#define TOPS 0x80808080u

struct Shared {
    uint4 tile[STAGED_Y][32];
    u32 found[TILE_Y][4][32];
    u32 some[15], all[15]; // of every 16th level: whether it counts somewhere, everywhere
    u32 next;
};

// Bytes shifted together: the four from byte `by` of two neighbouring words.
__device__ __forceinline__ u32 joined(u32 low, u32 high, int by) { return by == 0 ? low : by == 4 ? high : __funnelshift_r(low, high, 8 * by); }

// Window counts of 4 words from the column counts of 8, by doubling.
__device__ __forceinline__ void windows(const u32 c[8], u32 sum[4]) {
    constexpr int N = 2 * RADIUS_X + 1;
    // part[k][j]: sums of 2^k columns from column 4 j on.
    u32 part[5][8];
#pragma unroll
    for (int j = 0; j < 8; j++) part[0][j] = c[j];
#pragma unroll
    for (int k = 1; k < 5; k++) {
        if ((1 << k) > N) break;
        const int by = 1 << (k - 1);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const int first = j + by / 4, second = first + 1;
            if (first > 7) break;
            // What reaches beyond the last word is never used.
            part[k][j] = part[k - 1][j] + (by % 4 == 0 ? part[k - 1][first] : joined(part[k - 1][first], second > 7 ? 0 : part[k - 1][second], by % 4));
        }
    }
    // Terms at the same place within a word are added before they are shifted.
#pragma unroll
    for (int j = 0; j < 4; j++) sum[j] = 0;
#pragma unroll
    for (int place = 0; place < 4; place++) {
        u32 low[5] = {};
        bool any = false;
        int start = PAD - RADIUS_X;
#pragma unroll
        for (int k = 4; k >= 0; k--)
            if (N >> k & 1) {
                if (start % 4 == place) {
                    any = true;
#pragma unroll
                    for (int j = 0; j < 5; j++)
                        if (j + start / 4 < 8) low[j] += part[k][j + start / 4];
                }
                start += 1 << k;
            }
        if (any)
#pragma unroll
            for (int j = 0; j < 4; j++) sum[j] += place == 0 ? low[j] : joined(low[j], low[j + 1], place);
    }
}

// Bytes of `v` that are at least the level which `add` and `below` stand for: 1 each.
__device__ __forceinline__ u32 reached(u32 v, u32 low7, u32 add, u32 below) {
    const u32 t = low7 + add;
    return (((t & v) | ((t | v) & below)) >> 7) & ONES;
}

// LEVELS levels, `step` apart, from `first` on, those up to `last`, of the whole tile by one warp. COARSE: notes which are everywhere or nowhere.
template <int LEVELS, bool COARSE>
__device__ __forceinline__ void take(Shared& s, int first, int step, int last) {
    const int lane = threadIdx.x & 31;
    u32 add[LEVELS], below[LEVELS];
#pragma unroll
    for (int l = 0; l < LEVELS; l++) {
        // A level beyond the last is one that no byte reaches: 256 acts like 128 with both bits wanted.
        const int level = first + l * step;
        below[l] = level <= 128 ? TOPS : 0u;
        add[l] = (u32)(level <= 128 ? 128 - level : level <= last ? 256 - level : 0) * ONES;
        if (level > last) below[l] = add[l] = 0u;
    }
    u32 column[LEVELS][4] = {};
    u32 some[LEVELS] = {}, all[LEVELS];
#pragma unroll
    for (int l = 0; l < LEVELS; l++) all[l] = TOPS;
    // The first and last 8 columns of the tile are no outputs.
    const u32 no_low = lane == 0 ? TOPS : 0u, no_high = lane == 31 ? TOPS : 0u;
#pragma unroll 1
    for (int y = 0; y < STAGED_Y; y++) {
        const uint4 in4 = s.tile[y][lane];
        const u32 in[4] = {in4.x, in4.y, in4.z, in4.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const u32 low7 = in[j] & ~TOPS;
#pragma unroll
            for (int l = 0; l < LEVELS; l++) column[l][j] += reached(in[j], low7, add[l], below[l]);
        }
        if (y < 2 * RADIUS_Y) continue;
        u32 found[4] = {};
#pragma unroll
        for (int l = 0; l < LEVELS; l++) {
            u32 c[8], sum[4];
#pragma unroll
            for (int j = 0; j < 2; j++) {
                c[j] = __shfl_up_sync(0xffffffffu, column[l][j + 2], 1);
                c[6 + j] = __shfl_down_sync(0xffffffffu, column[l][j], 1);
            }
#pragma unroll
            for (int j = 0; j < 4; j++) c[2 + j] = column[l][j];
            windows(c, sum);
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const u32 t = (sum[j] & ~TOPS) + (u32)(ENOUGH <= 128 ? 128 - ENOUGH : 256 - ENOUGH) * ONES;
                const u32 flags = (ENOUGH <= 128 ? t | sum[j] : t & sum[j]) & TOPS;
                found[j] += flags >> 7;
                if (COARSE) {
                    const u32 no = j < 2 ? no_low : no_high;
                    some[l] |= flags & ~no;
                    all[l] &= flags | no;
                }
            }
        }
#pragma unroll
        for (int j = 0; j < 4; j++) atomicAdd(&s.found[y - 2 * RADIUS_Y][j][lane], found[j]);
        const uint4 out4 = s.tile[y - 2 * RADIUS_Y][lane];
        const u32 out[4] = {out4.x, out4.y, out4.z, out4.w};
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const u32 low7 = out[j] & ~TOPS;
#pragma unroll
            for (int l = 0; l < LEVELS; l++) column[l][j] -= reached(out[j], low7, add[l], below[l]);
        }
    }
    if (COARSE)
#pragma unroll
        for (int l = 0; l < LEVELS; l++) {
            const bool any = __any_sync(0xffffffffu, some[l] != 0), every = __all_sync(0xffffffffu, all[l] == TOPS);
            const int level = first + l * step;
            if (lane == 0 && level <= last) {
                s.some[level / 16 - 1] = any;
                s.all[level / 16 - 1] = every;
            }
        }
}

#define COARSE_LEVELS 2
#define FINE_LEVELS 3 // 5 times 3 between two coarse levels

extern "C" __global__ void __launch_bounds__(THREADS, 2) median__levels(const __grid_constant__ Frame f) {
    __shared__ Shared s;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const Block b = locate(f);
    const Plane& p = f.plane[b.plane];
    const int left = b.x * TILE_X - PAD + 16 * lane, top = b.y * TILE_Y - RADIUS_Y;
    constexpr int ROUNDS = (STAGED_Y + WARPS - 1) / WARPS;
    u32 raw[ROUNDS][4];
    if (__all_sync(0xffffffffu, left >= 0 && left + 16 <= p.width)) {
#pragma unroll
        for (int k = 0; k < ROUNDS; k++) {
            const int y = border_index(top + warp + k * WARPS, p.height);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                uint2 v = *reinterpret_cast<const uint2*>(src_at(p, left + 8 * h, max(y, 0)));
                if (y < 0) v = make_uint2(0, 0);
                raw[k][2 * h] = v.x, raw[k][2 * h + 1] = v.y;
            }
        }
    } else {
        int column[16];
#pragma unroll
        for (int i = 0; i < 16; i++) column[i] = border_index(left + i, p.width);
#pragma unroll
        for (int k = 0; k < ROUNDS; k++) {
            const int y = border_index(top + warp + k * WARPS, p.height);
            const u8* line = src_row(p, max(y, 0));
#pragma unroll
            for (int j = 0; j < 4; j++) {
                u32 v[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    v[i] = line[max(column[4 * j + i], 0)];
                    if (y < 0 || column[4 * j + i] < 0) v[i] = 0;
                }
                raw[k][j] = v[0] | v[1] << 8 | v[2] << 16 | v[3] << 24;
            }
        }
    }
#pragma unroll
    for (int k = 0; k < ROUNDS; k++)
        if (k * WARPS + warp < STAGED_Y) s.tile[k * WARPS + warp][lane] = make_uint4(raw[k][0], raw[k][1], raw[k][2], raw[k][3]);
    for (int i = threadIdx.x; i < TILE_Y * 128; i += THREADS) (&s.found[0][0][0])[i] = 0;
    if (threadIdx.x == 0) s.next = 0;
    __syncthreads();
    take<COARSE_LEVELS, true>(s, 16 * (1 + COARSE_LEVELS * warp), 16, 240);
    __syncthreads();
    // Cells [low, high) of levels 16 cell + 1 .. 16 cell + 15 need a look; every level below them counts everywhere.
    int low = 0, high = 1;
    for (int i = 0; i < 15; i++) {
        low += s.all[i] != 0;
        high += s.some[i] != 0;
    }
    for (;;) {
        int chunk = 0;
        if (lane == 0) chunk = (int)atomicAdd(&s.next, 1u);
        chunk = __shfl_sync(0xffffffffu, chunk, 0);
        if (chunk >= (high - low) * (15 / FINE_LEVELS)) break;
        const int cell = low + chunk / (15 / FINE_LEVELS);
        take<FINE_LEVELS, false>(s, 16 * cell + 1 + chunk % (15 / FINE_LEVELS) * FINE_LEVELS, 1, 255);
    }
    __syncthreads();
    const u32 base = 15u * (u32)low * ONES;
    for (int y = warp; y < TILE_Y && b.y * TILE_Y + y < p.height; y += WARPS) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int x = left + 8 * h;
            if (x >= b.x * TILE_X && x < (b.x + 1) * TILE_X && x < p.width)
                *reinterpret_cast<uint2*>(dst_at(p, x, b.y * TILE_Y + y)) = make_uint2(s.found[y][2 * h][lane] + base, s.found[y][2 * h + 1][lane] + base);
        }
    }
}
