// Weighted sums as products with banded Toeplitz matrices on tensor cores ("tensor"): separable kernels and general ones.
//
// Samples of up to 10 bits are exact in half. Weights are split into a whole number below 2^11 and a rest, so that the products of
// the whole numbers add up without an error, which the hardware's truncating sums would otherwise make; the rest's products are
// summed apart, 2^11 times smaller. The sums of the first pass are split in the same way; the product of the two rests is left out.
//
//   staged tile (halves, shared memory)         horizontal pass, per warp                 vertical pass, per warp
//   +--+------------------+--+             W    [16 outputs x K]  hi, lo               S  [16 outputs x 8 NT rows] hi, lo
//   |  | TILE_X           |  |  ---->    x X^T  [K columns x 8 rows]        ---->    x V  [8 NT rows x 8 outputs]  hi, lo
//   |  | TILE_Y           |  |           = S    [16 outputs x 8 rows]                = Y  [16 across x 8 down]
//   +--+------------------+--+
//
// The first product takes the tile as its right operand, so that 8 rows of samples load by one ldmatrix as they lie, and its
// result has just the layout of a left operand: the sums go from one product to the other in registers. Output m of the
// matrix is column 2 m below 8 and column 2 (m - 8) + 1 from there on, so that a lane ends with neighbouring columns.
// A general kernel is one horizontal product per row of weights, all added up.
//
// Errors of the separable kernel, in units of a sample's range R: weights 2^-23 of the largest one each way, the first pass's sum
// 2^-24 (an addition of two floats) and its rest 2^-23 (a half), the left out product 2^-24, the last addition 2^-24: some
// 2^-21 R at most, rounded both ways, as a sum in float has. Float samples (general kernels): two bfloat16 each, 2^-16 R; halves (general
// kernels) as they are. Sums of floats are not exact anyway: the products of the rests join the others'.
//
// Bytes: each sample read once from device memory (halo from L2), written once; per sample of the tile 2 bytes written to
// shared memory and 2 (16 + 2 PAD) / 16 read. Rows of the tile are an odd number of 16-byte units apart: the 8 rows of an
// ldmatrix hit all banks once. Operations per sample at radius 7: 4 products of 16 x 8 x 16 for 128 first sums, 4.5 for 128 second.
//
// Measured (H200, 8 bits): 15 x 15 5.6 us at 1080p, 48 at 8K, 57 and 37 % of a copy's rate; 31 x 31 7.2 us at 1080p; a general 31 x 31 26 us,
// 54 on floats. The instructions around the products limit it, and 80 registers a thread: the tensor cores are busy 40 % of the time.
#include "plane.cuh"

#if SAMPLE == 16
static_assert(MAX_VALUE <= 1023, "deeper samples are not exact in half");
#endif

#ifndef FOLDED
#define FOLDED 0
#endif
#define WARPS 8
#define THREADS (32 * WARPS)
#define TILE_X (16 * WARPS)
#define REACH (RADIUS_X * COMPONENTS)
#define PAD ((REACH + 7) / 8 * 8)
#define STEPS ((PAD + 16 + REACH + 15) / 16) // products of 16 columns
#define STAGED_X (TILE_X - 16 + 16 * STEPS)
#define UNITS (STAGED_X / 8) // of 8 halves
#define PITCH ((UNITS | 1) * 16)
#define TILES (TILE_Y / 8)
#ifndef GROUP
#define GROUP 4 // tiles whose products are made together, so that few wait for each other
#endif
#ifndef BLOCKS
#define BLOCKS 1
#endif

// Float samples lose range and bits in half: two bfloat16 (16 bits) keep the range. The oldest tensor cores have halves only.
#if SAMPLE == 32 && (!defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800)
#define TYPE "bf16"
#else
#define TYPE "f16"
#endif

__device__ __forceinline__ void product8(float d[4], u32 a0, u32 a1, u32 b0) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32." TYPE "." TYPE ".f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(b0));
}

__device__ __forceinline__ void product16(float d[4], uint4 a, u32 b0, u32 b1) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
#else
    product8(d, a.x, a.y, b0);
    product8(d, a.z, a.w, b1);
#endif
}

// Two floats as a pair of TYPE, the first in the low half.
__device__ __forceinline__ u32 pair_of(float low, float high) {
#if __CUDA_ARCH__ >= 800
    u32 pair;
    asm("cvt.rn." TYPE "x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#else
    unsigned short a, b;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(a) : "f"(low));
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(b) : "f"(high));
    return (u32)a | (u32)b << 16;
#endif
}

#if SAMPLE == 32
// A float rounded to as many bits as TYPE has; the rest is exact. (Not finite: the rest is not a number, nor is the sum.)
__device__ __forceinline__ float upper(float v) {
    const u32 pair = pair_of(v, 0.0f);
#if __CUDA_ARCH__ >= 800
    return __uint_as_float(pair << 16);
#else
    float f;
    asm("{ .reg .b16 low; cvt.u16.u32 low, %1; cvt.f32.f16 %0, low; }" : "=f"(f) : "r"(pair));
    return f;
#endif
}
#endif

// Four 8x8 matrices of halves (two with COUNT 2), each lane giving the address of one row.
__device__ __forceinline__ void load_matrices(u32 to[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address) : "memory");
}
__device__ __forceinline__ void load_matrix_pair(u32 to[2], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "r"(address) : "memory");
}

// Right operands of one row of tiles: STEPS products of 16 columns by 8 rows.
__device__ __forceinline__ void load_samples(u32 to[2 * STEPS], u32 address) {
#pragma unroll
    for (int s = 0; s + 1 < STEPS; s += 2) load_matrices(to + 2 * s, address + 32 * s);
    if (STEPS % 2) load_matrix_pair(to + 2 * (STEPS - 1), address + 32 * (STEPS - 1));
}

#if SAMPLE == 8
typedef uint2 raw8;
#elif SAMPLE == 16
typedef uint4 raw8;
#else
struct raw8 {
    float4 low, high;
};
#endif

__device__ __forceinline__ u32 less_1024(u32 v) {
    u32 d;
    asm("{ .reg .b32 c; mov.b32 c, 0xe400e400; add.rn.f16x2 %0, %1, c; }" : "=r"(d) : "r"(v));
    return d;
}

// Eight samples as halves: 0x6400 | code is 1024 + code. Halves: themselves. Float samples: upper and lower parts, `LOWER` bytes apart.
__device__ __forceinline__ void stage8(u8* to, raw8 r, int lower) {
#if SAMPLE == 8
    *reinterpret_cast<uint4*>(to) = make_uint4(less_1024(__byte_perm(r.x, 0x64646464u, 0x4140)), less_1024(__byte_perm(r.x, 0x64646464u, 0x4342)),
                                               less_1024(__byte_perm(r.y, 0x64646464u, 0x4140)), less_1024(__byte_perm(r.y, 0x64646464u, 0x4342)));
#elif HALVES
    *reinterpret_cast<uint4*>(to) = r;
#elif SAMPLE == 16
#if SHIFT != 0
    const u32 mask = 0x00010001u * MAX_VALUE;
    r.x = (r.x >> SHIFT) & mask, r.y = (r.y >> SHIFT) & mask, r.z = (r.z >> SHIFT) & mask, r.w = (r.w >> SHIFT) & mask;
#endif
    const u32 magic = 0x64006400u;
    *reinterpret_cast<uint4*>(to) = make_uint4(less_1024(r.x | magic), less_1024(r.y | magic), less_1024(r.z | magic), less_1024(r.w | magic));
#else
    const float v[8] = {r.low.x, r.low.y, r.low.z, r.low.w, r.high.x, r.high.y, r.high.z, r.high.w};
    u32 high[4], rest[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        high[i] = pair_of(upper(v[2 * i]), upper(v[2 * i + 1]));
        rest[i] = pair_of(v[2 * i] - upper(v[2 * i]), v[2 * i + 1] - upper(v[2 * i + 1]));
    }
    *reinterpret_cast<uint4*>(to) = make_uint4(high[0], high[1], high[2], high[3]);
    *reinterpret_cast<uint4*>(to + lower) = make_uint4(rest[0], rest[1], rest[2], rest[3]);
#endif
}

#if SAMPLE == 32
#define PARTS 2
#else
#define PARTS 1
#endif

#define FAR_AT_ONCE (SAMPLE == 8 ? 1 : 2)
#define AT_ONCE (THREADS / UNITS) // rows that the block stages at a time

// ROWS rows of the tile from `top` on, columns from `left` on, by all threads of the block: each the same 8 columns of every
// AT_ONCE-th row, all its loads in flight together.
template <int ROWS>
__device__ __forceinline__ void stage(u8* tile, const Plane& p, int left, int top) {
    constexpr int ROUNDS = (ROWS + AT_ONCE - 1) / AT_ONCE;
    const int first = threadIdx.x / UNITS, unit = threadIdx.x % UNITS, x = left + 8 * unit;
    if (first >= AT_ONCE) return;
    u8* to = tile + first * PITCH + unit * 16;
    raw8 raw[ROUNDS];
    if (x >= 0 && x + 8 <= p.width * COMPONENTS) {
        if (top >= 0 && top + AT_ONCE * ROUNDS <= p.height) {
            const u8* at = src_at(p, x, top + first);
#pragma unroll
            for (int k = 0; k < ROUNDS; k++) raw[k] = *reinterpret_cast<const raw8*>(at + (u64)(u32)(k * AT_ONCE) * p.src_pitch);
        } else {
#pragma unroll
            for (int k = 0; k < ROUNDS; k++) {
                const int y = border_index(top + first + k * AT_ONCE, p.height);
                raw[k] = *reinterpret_cast<const raw8*>(src_at(p, x, max(y, 0)));
                if (BORDER == BORDER_ZERO && y < 0) raw[k] = raw8{};
            }
        }
    } else {
#if SAMPLE == 8
        const Gather g[2] = {gather_of(x, p.width), gather_of(x + 4, p.width)};
        if (g[0].near && g[1].near) {
#pragma unroll
            for (int k = 0; k < ROUNDS; k++) {
                const int y = border_index(top + first + k * AT_ONCE, p.height);
                const u8* line = src_row(p, max(y, 0));
                raw[k] = make_uint2(gather(line, g[0]), gather(line, g[1]));
                if (y < 0) raw[k] = raw8{};
            }
        } else
#endif
        {
            // Sample by sample; with 8 bits only where a plane is narrower than its kernel, or wraps.
            int column[8];
#pragma unroll
            for (int e = 0; e < 8; e++) column[e] = border_sample(x + e, p.width);
#pragma unroll FAR_AT_ONCE
            for (int k = 0; k < ROUNDS; k++) {
                const int row = first + k * AT_ONCE, y = border_index(top + row, p.height);
                const sample* line = src_row(p, max(y, 0));
                sample s[8];
#pragma unroll
                for (int e = 0; e < 8; e++) {
                    s[e] = line[max(column[e], 0)];
                    if (BORDER == BORDER_ZERO && (y < 0 || column[e] < 0)) s[e] = (sample)0;
                }
#if SAMPLE == 8
                const raw8 eight = make_uint2((u32)s[0] | (u32)s[1] << 8 | (u32)s[2] << 16 | (u32)s[3] << 24, (u32)s[4] | (u32)s[5] << 8 | (u32)s[6] << 16 | (u32)s[7] << 24);
#elif SAMPLE == 16
                const raw8 eight = make_uint4(bits_of(s[0]) | bits_of(s[1]) << 16, bits_of(s[2]) | bits_of(s[3]) << 16, bits_of(s[4]) | bits_of(s[5]) << 16,
                                              bits_of(s[6]) | bits_of(s[7]) << 16);
#else
                const raw8 eight = {make_float4(s[0], s[1], s[2], s[3]), make_float4(s[4], s[5], s[6], s[7])};
#endif
                if (row < ROWS) stage8(to + k * AT_ONCE * PITCH, eight, ROWS * PITCH);
            }
            return;
        }
    }
#pragma unroll
    for (int k = 0; k < ROUNDS; k++)
        if ((k + 1) * AT_ONCE <= ROWS || first + k * AT_ONCE < ROWS) stage8(to + k * AT_ONCE * PITCH, raw[k], ROWS * PITCH);
}

// Mirrors lower_tensor.rs, which also builds the table: operands as the lanes hold them.
struct Operands {
    const u32* table;
    float shrink; // brings the first pass's sums into half's range: a power of two
    float start;  // of every sum: 0, or where the end is FOLDED the offset over the scale
    Finish finish;
};

// Where a lane of the product writes: two columns of a row, and of the row below; with 8 bits four columns of one row.
struct Place {
    u8* at;
    int row;
    bool inside;
};

__device__ __forceinline__ Place place_of(const Plane& p, int x, int y) {
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
#if SAMPLE == 8
    const int column = x + 4 * (g >> 1), row = y + 2 * t + (g & 1);
#else
    const int column = x + 2 * g, row = y + 2 * t;
#endif
    return {dst_at(p, column, row), row, column < p.width * COMPONENTS};
}

// A warp's 16 x 8 sums, `down` rows below the place. FOLDED: the scale is a power of two, the sums began with the offset, and no
// result leaves the range: one instruction rounds down, and leaves the code in the low bits.
__device__ __forceinline__ void write(const Plane& p, const Place& place, int down, const float d[4], const Finish& f) {
    u8* at = place.at + (u64)(u32)down * p.dst_pitch;
#if SAMPLE == 8
    const float in_rows[4] = {d[0], d[2], d[1], d[3]};
#if FOLDED
    u32 code[4];
#pragma unroll
    for (int i = 0; i < 4; i++) code[i] = __float_as_uint(__fmaf_rd(in_rows[i], f.scale, 8388608.0f));
    const u32 mine = pack4(code[0], code[1], code[2], code[3]);
#else
    const u32 mine = finish4(in_rows, f); // two columns of row 2 t, two of the next
#endif
    const bool odd = threadIdx.x & 4;
    const u32 other = __shfl_xor_sync(0xffffffffu, mine, 4);
    const u32 word = __byte_perm(mine, other, odd ? 0x3276 : 0x5410);
    if (place.inside && place.row + down < p.height) *reinterpret_cast<u32*>(at) = word;
#else
    if (!place.inside) return;
#if HALVES
    typedef u32 two;
    const u32 above = halves_of(finish(d[0], f), finish(d[2], f)), below = halves_of(finish(d[1], f), finish(d[3], f));
#elif SAMPLE == 16
    typedef u32 two;
    const u32 above = finish(d[0], f) | finish(d[2], f) << 16, below = finish(d[1], f) | finish(d[3], f) << 16;
#else
    typedef float2 two;
    const float2 above = make_float2(finish(d[0], f), finish(d[2], f)), below = make_float2(finish(d[1], f), finish(d[3], f));
#endif
    if (place.row + down < p.height) *reinterpret_cast<two*>(at) = above;
    if (place.row + down + 1 < p.height) *reinterpret_cast<two*>(at + p.dst_pitch) = below;
#endif
}

// Address of the row that this lane gives to ldmatrix, at the first product of its warp.
__device__ __forceinline__ u32 matrix_address(const u8* tile) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    return (u32)__cvta_generic_to_shared(tile) + (lane & 7) * PITCH + (lane >> 3) * 16 + warp * 32;
}

#ifdef RADIUS_Y

#define NT (1 + (RADIUS_Y + 3) / 4) // tiles of 8 rows that 8 outputs reach
#define STAGED_Y (TILE_Y + 8 * (NT - 1))

// 1.5 * 2^(23 + 5): adding it and taking it away again rounds to multiples of 32, and sums below 2^15 become 11 bits of them.
#define TO_32 402653184.0f

// Sums across of up to GROUP tiles of 8 rows, in two parts each.
__device__ __forceinline__ void sum_across(const uint4 across[1 + SPLIT_X][STEPS], float shrink, u32 address, int count, u32 high[][2], u32 low[][2]) {
    u32 right[GROUP][2 * STEPS];
    float sum[GROUP][4] = {}, rest[GROUP][4] = {};
#pragma unroll
    for (int i = 0; i < GROUP; i++)
        if (i < count) load_samples(right[i], address + i * 8 * PITCH);
#pragma unroll
    for (int k = 0; k < STEPS; k++)
#pragma unroll
        for (int part = 0; part <= SPLIT_X; part++)
#pragma unroll
            for (int i = 0; i < GROUP; i++)
                if (i < count) product16(part ? rest[i] : sum[i], across[part][k], right[i][2 * k], right[i][2 * k + 1]);
#pragma unroll
    for (int i = 0; i < GROUP; i++)
        if (i < count)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float whole[2], part[2];
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const float s = SPLIT_X ? sum[i][2 * h + e] + rest[i][2 * h + e] : sum[i][2 * h + e];
                    whole[e] = fmaf(s, shrink, TO_32) - TO_32;
                    part[e] = fmaf(s, shrink, -whole[e]);
                }
                high[i][h] = pair_of(whole[0], whole[1]);
                low[i][h] = pair_of(part[0], part[1]);
            }
}

// SPLIT_X, SPLIT_Y: whether the weights have lower parts.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) separable__tensor(const __grid_constant__ Frame f, const __grid_constant__ Operands t) {
    __shared__ __align__(16) u8 tile[STAGED_Y * PITCH];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const Block b = locate(f);
    const Plane& p = f.plane[b.plane];
    const int x = b.x * TILE_X, y = b.y * TILE_Y;
    constexpr int WORDS = (1 + SPLIT_X) * STEPS * 128 + (1 + SPLIT_Y) * NT * 32;
    // The weights come to the L1 while the samples come to shared memory; there are no registers for both at once.
    if (threadIdx.x < (WORDS + 31) / 32) asm volatile("prefetch.global.L1 [%0];" ::"l"(t.table + 32 * threadIdx.x));
    stage<STAGED_Y>(tile, p, x - PAD, y - RADIUS_Y);
    __syncthreads();
    uint4 across[1 + SPLIT_X][STEPS];
    u32 down[1 + SPLIT_Y][NT];
#pragma unroll
    for (int part = 0; part <= SPLIT_X; part++)
#pragma unroll
        for (int s = 0; s < STEPS; s++) across[part][s] = __ldg(reinterpret_cast<const uint4*>(t.table) + (part * STEPS + s) * 32 + lane);
#pragma unroll
    for (int part = 0; part <= SPLIT_Y; part++)
#pragma unroll
        for (int n = 0; n < NT; n++) down[part][n] = __ldg(t.table + (1 + SPLIT_X) * STEPS * 128 + (part * NT + n) * 32 + lane);
    if (x + 16 * warp >= p.width * COMPONENTS) return;
    const u32 address = matrix_address(tile);
    const Place place = place_of(p, x + 16 * warp, y);
    // Sums as left operands, two tiles to one of 16 rows. Tiles are made GROUP at a time: products that wait for each other would leave
    // the tensor core idle.
    u32 high[TILES + NT][2], low[TILES + NT][2];
#pragma unroll
    for (int n = 0; n < NT - 1; n += GROUP) sum_across(across, t.shrink, address + n * 8 * PITCH, min(GROUP, NT - 1 - n), high + n, low + n);
#pragma unroll
    for (int o = 0; o < TILES; o += GROUP) {
        // Keeps the assembler from loading the samples of all tiles at once, for which there are no registers.
        __syncwarp();
        sum_across(across, t.shrink, address + (o + NT - 1) * 8 * PITCH, GROUP, high + o + NT - 1, low + o + NT - 1);
        float d[GROUP][4] = {}, rest[GROUP][4];
#pragma unroll
        for (int i = 0; i < GROUP; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) rest[i][e] = FOLDED ? t.start : 0.0f;
            // Only an even tile and the next lie in neighbouring registers, as a product of 16 rows wants them: an odd output begins, and
            // an output may end, with a product of 8.
#pragma unroll
        for (int k = 0; k < NT; k++)
#pragma unroll
            for (int pass = 0; pass < 2 + SPLIT_Y; pass++)
#pragma unroll
                for (int i = 0; i < GROUP; i++) {
                    const int n = o + i + k;
                    const u32(&a)[2] = pass == 1 ? low[n] : high[n];
                    const u32(&c)[2] = pass == 1 ? low[n + 1] : high[n + 1];
                    const int part = pass == 2 ? 1 : 0;
                    float(&to)[4] = pass == 0 ? d[i] : rest[i];
                    if (n % 2 == 0 && k + 1 < NT) product16(to, make_uint4(a[0], a[1], c[0], c[1]), down[part][k], down[part][k + 1]);
                    if ((n % 2 == 0 && k + 1 == NT) || (n % 2 == 1 && k == 0)) product8(to, a[0], a[1], down[part][k]);
                }
#pragma unroll
        for (int i = 0; i < GROUP; i++)
#pragma unroll
            for (int e = 0; e < 4; e++) d[i][e] += rest[i][e];
#pragma unroll
        for (int i = 0; i < GROUP; i++) write(p, place, 8 * (o + i), d[i], t.finish);
    }
}

#else // a general kernel of HEIGHT rows

#define STAGED_Y (TILE_Y + HEIGHT - 1)
#ifndef FLUSH
#define FLUSH 4
#endif
// FLUSH: rows of weights whose products add up before they join the sum: whole numbers, which stay below 2^24 so

// SPLIT: whether the weights have lower parts.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) direct__tensor(const __grid_constant__ Frame f, const __grid_constant__ Operands t) {
    __shared__ __align__(16) u8 tile[PARTS * STAGED_Y * PITCH];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const Block b = locate(f);
    const Plane& p = f.plane[b.plane];
    const int x = b.x * TILE_X, y = b.y * TILE_Y;
    stage<STAGED_Y>(tile, p, x - PAD, y - HEIGHT / 2);
    __syncthreads();
    if (x + 16 * warp >= p.width * COMPONENTS) return;
    u32 address = matrix_address(tile);
    const Place place = place_of(p, x + 16 * warp, y);
    const uint4* weights = reinterpret_cast<const uint4*>(t.table) + lane;
    float sum[TILES][4], rest[TILES][4] = {};
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) sum[n][e] = FOLDED ? t.start : 0.0f;
#pragma unroll 1
    for (int first = 0; first < HEIGHT; first += FLUSH) {
        float part[TILES][4] = {};
#pragma unroll
        for (int j = 0; j < FLUSH; j++) {
            if (first + j >= HEIGHT) break;
            uint4 w[1 + SPLIT][STEPS];
#pragma unroll
            for (int s = 0; s <= SPLIT; s++)
#pragma unroll
                for (int k = 0; k < STEPS; k++) w[s][k] = __ldg(weights + (s * STEPS + k) * 32);
            weights += (1 + SPLIT) * STEPS * 32;
#pragma unroll
            for (int n = 0; n < TILES; n += GROUP) {
                __syncwarp(); // lest the assembler load the samples of all tiles at once
                u32 right[GROUP][2 * STEPS];
#if SAMPLE == 32
#pragma unroll
                for (int i = 0; i < GROUP; i++) load_samples(right[i], address + STAGED_Y * PITCH + (n + i) * 8 * PITCH);
#pragma unroll
                for (int k = 0; k < STEPS; k++)
#pragma unroll
                    for (int i = 0; i < GROUP; i++) product16(part[n + i], w[0][k], right[i][2 * k], right[i][2 * k + 1]);
#endif
#pragma unroll
                for (int i = 0; i < GROUP; i++) load_samples(right[i], address + (n + i) * 8 * PITCH);
#pragma unroll
                for (int k = 0; k < STEPS; k++)
#pragma unroll
                    for (int s = 0; s <= SPLIT; s++)
#pragma unroll
                        for (int i = 0; i < GROUP; i++) product16(s && !FLOATING ? rest[n + i] : part[n + i], w[s][k], right[i][2 * k], right[i][2 * k + 1]);
            }
            address += PITCH;
        }
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) sum[n][i] += part[n][i];
    }
#if SPLIT && !FLOATING
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) sum[n][i] += rest[n][i];
#endif
#pragma unroll
    for (int n = 0; n < TILES; n++) write(p, place, 8 * n, sum[n], t.finish);
}
#endif
