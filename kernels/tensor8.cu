// Both passes of a smoothing kernel on 8-bit samples as products with banded Toeplitz matrices on integer tensor cores ("tensor8").
//
// 8-bit samples lie in memory just as a right operand wants them: nothing is converted. Weights have 16 bits, an unsigned upper byte and a
// signed lower one, each in a product of its own; sums are whole numbers, so that nothing is lost in them. The first sums keep 16 bits, 8 of
// them behind the point, and go on as two bytes. Of the second pass's four products that of both lower bytes is left out, but for its mean.
//
//   samples, 48 x 8 a time           first pass, per warp                       second pass, per warp
//   +--+----------------+--+     W   [16 columns x K] upper, lower          V   [16 rows x K] upper, lower
//   |  |  32 x TILE_Y   |  |     x   X^T [K columns x 8 rows]     ---->     x   S^T [K rows x 8 columns] high, low   ---->  32-byte sectors
//   +--+----------------+--+     =   S   [16 columns x 8 rows]              =   Y [16 rows x 8 columns]
//
// The order of a product's K is free where both operands have the same, and so is the order of outputs. So a lane loads 8 neighbouring
// samples at once; what it has of two results of the first pass, two rows each, are the 4 rows of its right operand in the second, by
// permutations of bytes in its own registers; and it ends with 4 neighbouring columns. A warp walks down two matrices side by side: of the
// K rows (32 up to radius 8) all but the last 16 are there from the step before, and their columns together are whole sectors of rows,
// without which half of the L2's writes would be for nothing. K is 16 (1 + PAD / 8).
//
// Errors, in code values of noise: the first sums' rounding 2^-8 sqrt(1/12) sqrt(sum of squared weights down), 4e-4 at 15 x 15; the products left
// out 2.5e-4; weights 2e-4 to 3e-4, after the host has chosen how to share the gain between the passes. Together 5e-4, whose mean size is the share of
// samples that are rounded the other way: 0.04 %. The host computes it and leaves kernels above 0.06 % to others. A dither, another in each of 8 rows,
// keeps the rounding of first sums from adding up where rows are alike. Ties may fall either way.
//
// Bytes: each sample read once from device memory, by two warps and two matrices from the L1; halo rows (2 PAD_Y of TILE_Y) from the L2. Blocks at
// an edge stage their samples in shared memory, where rows lie such that 4 of them meet all banks once. Operations per sample at 15 x 15, TILE_Y
// 128: 1.3 products, 2 multiplications, 1.1 shifts, 1.9 permutations, 1.3 to load, exchange and store: 9 with the rest, where halves need 22.
//
// Measured (H200): 15 x 15 4.4 us at 1080p, 28 at 8K, 65 and 61 % of a copy's rate, 5.7 us for 1080p 4:2:0 in one launch; 31 x 31 5.6 us at 1080p, 41
// at 8K; 65 x 65 7.8 us. What limits it is the wait for the L1, which serves 8 rows of each load and store one after the other.
#include "plane.cuh"

#if SAMPLE != 8
#error "8-bit samples only"
#endif

// PAD_X, PAD_Y: the kernel's reach in samples, rounded up to a multiple of 8. TILE_Y: rows of a block. AHEAD: groups of 16 rows whose samples are
// loaded before they are needed. BLOCKS: on a multiprocessor.
#define WARPS 4
#define THREADS (32 * WARPS)
#define SPAN 32 // columns of a warp: two matrices of 16, so that its lanes write whole sectors of 32 bytes
#define TILE_X (SPAN * WARPS)
#define GROUPS_X (1 + PAD_X / 8) // of 16 columns that 16 outputs reach
#define GROUPS_Y (1 + PAD_Y / 8) // of 16 rows
#define GROUPS (TILE_Y / 16 + GROUPS_Y - 1)
// Whether lanes hold the vertical weights twice, as sum_down wants them for even and for odd groups: else they would be copied each time.
#define PARITIES (GROUPS_Y == 2 || GROUPS_Y == 3 ? 2 : 1)
#define MARGIN ((PAD_X + 15) / 16 * 16) // columns staged to the left and the right
#define CHUNKS ((TILE_X + 2 * MARGIN) / 16)
#define PITCH (16 * CHUNKS + (CHUNKS % 4 == 0 ? 32 : 0)) // so that 4 rows of 8 words lie in different banks
#define ROWS_STAGED (16 * GROUPS)

// d = a b + c; the weights a are unsigned bytes, or signed ones (LOWER).
template <bool LOWER>
__device__ __forceinline__ void product16(u32 d[4], const u32 a[2], u32 b, const u32 c[4]) {
#define ENDS8 : "=r"(d[0]), "=r"(d[1]) : "r"(a[0]), "r"(b), "r"(c[0]), "r"(c[1])
#define BELOW8 : "=r"(d[2]), "=r"(d[3]) : "r"(a[1]), "r"(b), "r"(c[2]), "r"(c[3])
#define ENDS16 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(b), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3])
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    if (LOWER) asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.u8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%8,%9,%10};" ENDS16);
    else asm("mma.sync.aligned.m16n8k16.row.col.s32.u8.u8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%8,%9,%10};" ENDS16);
#else
    if (LOWER) {
        asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.u8.s32 {%0,%1}, {%2}, {%3}, {%4,%5};" ENDS8);
        asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.u8.s32 {%0,%1}, {%2}, {%3}, {%4,%5};" BELOW8);
    } else {
        asm("mma.sync.aligned.m8n8k16.row.col.s32.u8.u8.s32 {%0,%1}, {%2}, {%3}, {%4,%5};" ENDS8);
        asm("mma.sync.aligned.m8n8k16.row.col.s32.u8.u8.s32 {%0,%1}, {%2}, {%3}, {%4,%5};" BELOW8);
    }
#endif
}

template <bool LOWER>
__device__ __forceinline__ void product32(u32 d[4], const u32 a0[2], const u32 a1[2], u32 b0, u32 b1, const u32 c[4]) {
#define ENDS32 \
    : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3]) \
    : "r"(a0[0]), "r"(a0[1]), "r"(a1[0]), "r"(a1[1]), "r"(b0), "r"(b1), "r"(c[0]), "r"(c[1]), "r"(c[2]), "r"(c[3])
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    if (LOWER) asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};" ENDS32);
    else asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};" ENDS32);
#else
    product16<LOWER>(d, a0, b0, c);
    product16<LOWER>(d, a1, b1, d);
#endif
}

// The first pass: d = a b + c over the groups of columns.
template <bool LOWER>
__device__ __forceinline__ void sum_across(u32 d[4], const u32 (&a)[GROUPS_X][2], const u32 (&b)[GROUPS_X], const u32 c[4]) {
#pragma unroll
    for (int k = 0; k + 1 < GROUPS_X; k += 2) product32<LOWER>(d, a[k], a[k + 1], b[k], b[k + 1], k == 0 ? c : d);
    if (GROUPS_X % 2) product16<LOWER>(d, a[GROUPS_X - 1], b[GROUPS_X - 1], GROUPS_X == 1 ? c : d);
}

// The second: d += a b over the groups of rows o to o + GROUPS_Y - 1. A product of two groups wants them in neighbouring registers, the first in an
// even one: so an even group always meets the odd one behind it or, where that is beyond the last, the one that it replaces.
template <bool LOWER>
__device__ __forceinline__ void sum_down(u32 d[4], const u32 (&a)[GROUPS_Y][2], const u32 (&b)[GROUPS], int o) {
#pragma unroll
    for (int k = 0; k < GROUPS_Y; k++) {
        const int n = o + k;
        if (n % 2 == 0 && (GROUPS_Y % 2 == 0 || k + 1 < GROUPS_Y)) {
            const int next = k + 1 < GROUPS_Y ? k + 1 : k + 1 - GROUPS_Y;
            product32<LOWER>(d, a[k], a[next], b[n], b[o + next], d);
        } else if (GROUPS_Y % 2 && (n % 2 == 0 || k == 0)) {
            product16<LOWER>(d, a[k], b[n], d);
        }
    }
}

__device__ __forceinline__ void copy16(u8* to, const u8* from) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from) : "memory");
#else
    *reinterpret_cast<uint4*>(to) = *reinterpret_cast<const uint4*>(from);
#endif
}

__device__ __forceinline__ void copies_done() {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// A row of the tile stands for this row of the plane; -1: zeros.
__device__ __forceinline__ int staged_row(const Plane& p, int top, int row) { return border_index(top + row, p.height); }

// WORDS words of four samples from column `from` on, of which some lie outside, in every row of the tile: a thread makes one word of every
// AT_ONCE-th row, so that at an edge, which outlasts other blocks, few instructions wait for each other.
template <int WORDS>
__device__ __forceinline__ void stage_edge(u8* tile, const Plane& p, int left, int top, int from) {
    constexpr int AT_ONCE = THREADS / WORDS, ROUNDS = (ROWS_STAGED + AT_ONCE - 1) / AT_ONCE, IN_FLIGHT = ROUNDS < 4 ? ROUNDS : 4;
    const int first = threadIdx.x / WORDS, x = from + 4 * (int)(threadIdx.x % WORDS);
    if (first >= AT_ONCE || x >= p.width * COMPONENTS + PAD_X || x + 4 > left + 16 * CHUNKS) return;
    const Gather g = gather_of(x, p.width);
    u8* to = tile + first * PITCH + (x - left);
    const auto line = [&](int y) { return src_row(p, max(y, 0)); };
    const auto put = [&](int k, int y, u32 word) {
        if (BORDER == BORDER_ZERO && y < 0) word = 0;
        if (first + k * AT_ONCE < ROWS_STAGED) *reinterpret_cast<u32*>(to + k * AT_ONCE * PITCH) = word;
    };
    if (!g.near) { // only where a plane is narrower than its kernel, or wraps in the midst of a word
#pragma unroll 1
        for (int k = 0; k < ROUNDS; k++) {
            const int y = staged_row(p, top, first + k * AT_ONCE);
            put(k, y, gather_far(line(y), g));
        }
        return;
    }
#pragma unroll 1
    for (int k0 = 0; k0 < ROUNDS; k0 += IN_FLIGHT) {
        u32 word[IN_FLIGHT];
#pragma unroll
        for (int k = 0; k < IN_FLIGHT; k++) word[k] = gather(line(staged_row(p, top, first + (k0 + k) * AT_ONCE)), g);
#pragma unroll
        for (int k = 0; k < IN_FLIGHT; k++) put(k0 + k, BORDER == BORDER_ZERO ? staged_row(p, top, first + (k0 + k) * AT_ONCE) : 0, word[k]);
    }
}

// The tile and its halo, by all threads of the block: each the same 16 columns of every AT_ONCE-th row where they lie inside, then the words
// at the edges. Columns that no output needs stay as they are: their weights are zero.
__device__ __forceinline__ void stage(u8* tile, const Plane& p, int left, int top) {
    constexpr int AT_ONCE = THREADS / CHUNKS, ROUNDS = (ROWS_STAGED + AT_ONCE - 1) / AT_ONCE;
    const int first = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS, x = left + 16 * chunk, width = p.width * COMPONENTS;
    if (first < AT_ONCE && x >= 0 && x + 16 <= width) {
        u8* to = tile + first * PITCH + chunk * 16;
#pragma unroll
        for (int k = 0; k < ROUNDS; k++) {
            const int row = first + k * AT_ONCE, y = staged_row(p, top, row);
            u8* here = to + k * AT_ONCE * PITCH;
            if ((k + 1) * AT_ONCE > ROWS_STAGED && row >= ROWS_STAGED) continue;
            if (BORDER != BORDER_ZERO || y >= 0) copy16(here, src_at(p, x, y));
            else *reinterpret_cast<uint4*>(here) = make_uint4(0, 0, 0, 0);
        }
    }
#if PAD_X > 0
    if (left < 0) stage_edge<PAD_X / 4>(tile, p, left, top, -PAD_X);
    if (left + TILE_X + 2 * MARGIN > width) {
        if (width % 16 == 0) stage_edge<PAD_X / 4>(tile, p, left, top, width);
        else stage_edge<(16 + PAD_X) / 4>(tile, p, left, top, width & ~15);
    }
#else
    if (left + TILE_X > width && width % 16 != 0) stage_edge<4>(tile, p, left, top, width & ~15);
#endif
}

// Mirrors lower_tensor8.rs, which also builds the table: operands as the lanes hold them.
struct Operands {
    const uint2* table;
    u32 upper, middle; // bring the second products to a sum whose upper byte is the code
};

__device__ __forceinline__ void load_pair(u32 to[2], const uint2* at) {
    asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "l"(at));
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) separable__tensor8(const __grid_constant__ Frame f, const __grid_constant__ Operands t) {
    __shared__ __align__(16) u8 tile[ROWS_STAGED * PITCH];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, row = lane >> 2, quad = lane & 3;
    const Block b = locate(f);
    const Plane& p = f.plane[b.plane];
    const int x = b.x * TILE_X, y = b.y * TILE_Y, width = p.width * COMPONENTS;
    // Where this lane's first samples lie: in the plane, or for a block at an edge in shared memory.
    const u8* at = tile + (MARGIN - PAD_X) + SPAN * warp + row * PITCH;
    u32 pitch = PITCH;
    if (x >= PAD_X && y >= PAD_Y && x + TILE_X + PAD_X <= width && y - PAD_Y + ROWS_STAGED <= p.height) {
        at = src_at(p, x - PAD_X + SPAN * warp, y - PAD_Y + row), pitch = p.src_pitch;
    } else {
        stage(tile, p, x - MARGIN, y - PAD_Y);
        copies_done();
        __syncthreads();
    }
    if (x + SPAN * warp >= width) return;
    u32 samples[GROUPS][2][2][GROUPS_X];
    const auto load = [&](int i) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
#pragma unroll
            for (int s = 0; s < 2; s++) {
                const u8* from = at + (u64)(u32)((2 * i + h) * 8) * pitch + 16 * s;
                u32(&to)[GROUPS_X] = samples[i][s][h];
#pragma unroll
                for (int k = 0; k + 1 < GROUPS_X; k += 2) {
                    const uint2 two = *reinterpret_cast<const uint2*>(from + 16 * k + 8 * quad);
                    to[k] = two.x, to[k + 1] = two.y;
                }
                if (GROUPS_X % 2) to[GROUPS_X - 1] = *reinterpret_cast<const u32*>(from + 16 * (GROUPS_X - 1) + 4 * quad);
            }
        }
    };
#pragma unroll
    for (int i = 0; i < AHEAD && i < GROUPS; i++) load(i);
    u32 across[2][GROUPS_X][2], down[PARITIES][2][GROUPS_Y][2];
    const uint2* weights = t.table + lane;
#pragma unroll
    for (int i = 0; i < 2 * GROUPS_X; i++, weights += 32) load_pair(across[i / GROUPS_X][i % GROUPS_X], weights);
#pragma unroll
    for (int i = 0; i < PARITIES * 2 * GROUPS_Y; i++, weights += 32) load_pair(down[i / (2 * GROUPS_Y)][i / GROUPS_Y % 2][i % GROUPS_Y], weights);
    // What the first sums begin with: the share of the rounding, and the dither, which differs from row to row.
    u32 start[4];
    load_pair(start, weights);
    load_pair(start + 2, weights + 32);
    const int column = x + SPAN * warp + 16 * (quad & 1) + 8 * (quad >> 1);
    // Rows that this lane writes; none where its columns lie outside.
    const int rows = column < width ? p.height - y - row : 0;
    const u64 step = 8 * (u64)p.dst_pitch;
    u8* to = dst_at(p, column, y + row);
    // First sums as right operands: for each of the two matrices and halves of its columns, groups of 16 rows.
    u32 high[2][2][GROUPS], low[2][2][GROUPS];
#pragma unroll
    for (int i = 0; i < GROUPS; i++) {
        // Before the stores of this round, which the assembler does not move loads across.
        if (i + AHEAD < GROUPS) load(i + AHEAD);
        const int o = i - (GROUPS_Y - 1);
        u32 word[2][2];
#pragma unroll
        for (int s = 0; s < 2; s++) {
            u32 pairs[2][2];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                u32 lower[4], sum[4];
                sum_across<true>(lower, across[1], samples[i][s][h], start);
#pragma unroll
                for (int e = 0; e < 4; e++) lower[e] = (u32)((int)lower[e] >> 8);
                sum_across<false>(sum, across[0], samples[i][s][h], lower);
                pairs[h][0] = __byte_perm(sum[0], sum[1], 0x5140);
                pairs[h][1] = __byte_perm(sum[2], sum[3], 0x5140);
            }
#pragma unroll
            for (int q = 0; q < 2; q++) {
                low[s][q][i] = __byte_perm(pairs[0][q], pairs[1][q], 0x5410);
                high[s][q][i] = __byte_perm(pairs[0][q], pairs[1][q], 0x7632);
            }
            if (o < 0) continue;
            u32 code[2][4];
#pragma unroll
            for (int q = 0; q < 2; q++) {
                u32 upper[4] = {0, 0, 0, 0}, middle[4] = {0, 0, 0, 0};
                sum_down<false>(upper, down[o % PARITIES][0], high[s][q], o);
                sum_down<false>(middle, down[o % PARITIES][0], low[s][q], o);
                sum_down<true>(middle, down[o % PARITIES][1], high[s][q], o);
#pragma unroll
                for (int e = 0; e < 4; e++) code[q][e] = upper[e] * t.upper + middle[e] * t.middle;
            }
#pragma unroll
            for (int h = 0; h < 2; h++)
                word[s][h] = __byte_perm(__byte_perm(code[0][2 * h], code[0][2 * h + 1], 0x0073), __byte_perm(code[1][2 * h], code[1][2 * h + 1], 0x0073), 0x5410);
        }
        if (o < 0) continue;
        // Even lanes get the left matrix's columns of two lanes, odd ones the right one's: four lanes write 32 bytes of a row.
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const bool odd = quad & 1;
            const u32 other = __shfl_xor_sync(0xffffffffu, odd ? word[0][h] : word[1][h], 1);
            const uint2 eight = make_uint2(odd ? other : word[0][h], odd ? word[1][h] : other);
            if (16 * o + 8 * h < rows) *reinterpret_cast<uint2*>(to) = eight;
            to += step;
        }
    }
}
