// Means of 8-bit samples over windows of radius 31 at most, in one launch ("fused").
//
// A window's sum is separable and exact in integers. A block stages nothing but column sums:
//
//        256 columns, 64 quads of 4             PAD   TILE_X outputs    PAD
//      +----------------------------+          +---+-----------------+---+
//      | chunk 0: SHARE rows a thread|          |   |                 |   |
//      | chunk 1                    |   --->   |   | TILE_Y rows of  |   |   --->  TILE_X x TILE_Y means
//      | ...        ROWS_IN rows    |          |   | column sums     |   |
//      +----------------------------+          +---+-----------------+---+
//
// 1. A thread loads SHARE rows of its quad, all in flight together, and adds them up, two columns to a word. The threads of
//    a quad exchange their totals, so that each knows the sum of all rows above its own: prefix sums modulo 2^32, whose
//    differences are exact in both halves of a word, since 63 * 255 < 2^15.
// 2. The sum of the window of output row j is prefix[j + 2 RADIUS_Y] - prefix[j - 1]. Whoever holds the first writes it to
//    column[j], then whoever holds the second subtracts it: prefix sums of other threads' rows need no room.
// 3. A thread slides along 16 outputs of a row: one sum of packed words, then two dp2a for each next output.
//
// Bytes: each sample read once from device memory (halo from L2), written once. Shared: TILE_Y * 528 bytes a block. Rows of
// column sums are 33 units of 16 bytes apart, and 8 neighbouring lanes read 4 places of two rows, 32 bytes apart: all banks
// are hit once.
//
// Operations per sample at radius 7: some 22, of which 4 add columns up and 6 slide. Measured (H200, 1080p): 4.7 us at radius 7, 5.9 at
// 31, where a copy takes 3.2: 69 and 54 % of its rate.
#include "plane.cuh"

#if SAMPLE != 8
#error "8-bit samples only"
#endif

#define COLUMNS 256
#define QUADS (COLUMNS / 4)
#define PAD ((RADIUS_X * COMPONENTS + 7) / 8 * 8)
#define TILE_X (COLUMNS - 2 * PAD)
#define ROWS_IN (TILE_Y + 2 * RADIUS_Y)
#define CHUNKS (THREADS / QUADS)
#define SHARE ((ROWS_IN + CHUNKS - 1) / CHUNKS)
#define RUN 16 // outputs of a thread
#define RUNS ((TILE_X / RUN + 3) / 4 * 4) // of a row, a multiple of 4
#define ITEMS ((TILE_Y + 1) / 2 * 2 * RUNS)
#define COUNT ((2 * RADIUS_X + 1) * (2 * RADIUS_Y + 1))
#define ROW_BYTES (COLUMNS * 2 + 16)

// Quotient by COUNT as the high word of a product: exact while sum * (MAGIC_N * COUNT - 2^32) < 2^32.
#define MAGIC_N ((u32)(((1ull << 32) + COUNT - 1) / COUNT))
static_assert(COUNT > 1 && (255ull * COUNT + COUNT / 2) * ((u64)MAGIC_N * COUNT - (1ull << 32)) < (1ull << 32), "the quotient is not exact");
static_assert((2 * RADIUS_Y + 1) * 255 < 32768, "column sums must fit 15 bits");
static_assert(CHUNKS * QUADS * 8 <= TILE_Y * ROW_BYTES, "the totals lie where the column sums will");

struct Pair {
    u32 even, odd; // columns 0 and 2, 1 and 3 of a quad
};

// Element i of a run's packed words, as dp2a's second operand.
__device__ __forceinline__ constexpr int plus(int i) { return i & 2 ? 0x0100 : 0x0001; }
__device__ __forceinline__ constexpr int minus(int i) { return i & 2 ? 0xff00 : 0x00ff; }

extern "C" __global__ void __launch_bounds__(THREADS) box__packed(const __grid_constant__ Frame f) {
    __shared__ __align__(16) u8 shared[TILE_Y * ROW_BYTES];
    const Block b = locate(f);
    const Plane& p = f.plane[b.plane];
    const int samples = p.width * COMPONENTS;
    const int left = b.x * TILE_X - PAD, top = b.y * TILE_Y - RADIUS_Y;
    const int quad = threadIdx.x % QUADS, chunk = threadIdx.x / QUADS;
    const int x = left + 4 * quad, first = chunk * SHARE;

    u32 raw[SHARE];
    const bool within = x >= 0 && x + 4 <= samples;
    if (!__all_sync(0xffffffffu, within)) {
        // A warp at the left or right edge.
        const Gather g = gather_of(x, p.width);
        if (__all_sync(0xffffffffu, g.near)) {
#pragma unroll
            for (int k = 0; k < SHARE; k++) {
                const int row = border_index(top + first + k, p.height);
                raw[k] = gather(src_row(p, max(row, 0)), g);
                if (row < 0) raw[k] = 0;
            }
        } else {
#pragma unroll
            for (int k = 0; k < SHARE; k++) {
                const int row = border_index(top + first + k, p.height);
                raw[k] = gather_far(src_row(p, max(row, 0)), g);
                if (row < 0) raw[k] = 0;
            }
        }
    } else if (top < 0 || top + CHUNKS * SHARE > p.height) {
#pragma unroll
        for (int k = 0; k < SHARE; k++) {
            const int row = border_index(top + first + k, p.height);
            raw[k] = *reinterpret_cast<const u32*>(src_at(p, x, max(row, 0)));
            if (row < 0) raw[k] = 0;
        }
    } else {
        const u8* at = src_at(p, x, top + first);
#pragma unroll
        for (int k = 0; k < SHARE; k++) raw[k] = load4(at, p.src_pitch, k);
    }
    Pair prefix[SHARE];
    Pair sum = {0, 0};
#pragma unroll
    for (int k = 0; k < SHARE; k++) {
        sum.even += raw[k] & 0x00ff00ffu;
        sum.odd += (raw[k] >> 8) & 0x00ff00ffu;
        prefix[k] = sum;
    }
    uint2* totals = reinterpret_cast<uint2*>(shared);
    totals[threadIdx.x] = make_uint2(sum.even, sum.odd);
    __syncthreads();
    Pair above = {0, 0};
#pragma unroll
    for (int c = 0; c < CHUNKS - 1; c++)
        if (c < chunk) {
            const uint2 v = totals[c * QUADS + quad];
            above.even += v.x;
            above.odd += v.y;
        }
    __syncthreads();
    u8* mine = shared + first * ROW_BYTES + quad * 8;
#pragma unroll
    for (int k = 0; k < SHARE; k++) {
        prefix[k].even += above.even;
        prefix[k].odd += above.odd;
        if (first + k >= 2 * RADIUS_Y && first + k < ROWS_IN)
            *reinterpret_cast<uint2*>(mine + (k - 2 * RADIUS_Y) * ROW_BYTES) = make_uint2(prefix[k].even, prefix[k].odd);
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < SHARE; k++)
        if (first + k + 1 < TILE_Y) {
            uint2* column = reinterpret_cast<uint2*>(mine + (k + 1) * ROW_BYTES);
            uint2 v = *column;
            v.x -= prefix[k].even;
            v.y -= prefix[k].odd;
            *column = v;
        }
    __syncthreads();

    for (int item = threadIdx.x; item < ITEMS; item += THREADS) {
        // Eight lanes: four runs of two rows.
        const int run = (item & 3) + (item >> 3) % (RUNS / 4) * 4;
        const int row = 2 * ((item >> 3) / (RUNS / 4)) + ((item >> 2) & 1);
        const int to_x = b.x * TILE_X + run * RUN, to_y = b.y * TILE_Y + row;
        if (run * RUN >= TILE_X || row >= TILE_Y || to_x >= samples || to_y >= p.height) continue;
        constexpr int WORDS = (RUN + 2 * PAD) / 2;
        u32 w[WORDS];
#pragma unroll
        for (int i = 0; i < WORDS / 4; i++) {
            const uint4 v = *reinterpret_cast<const uint4*>(shared + row * ROW_BYTES + (run * 2 + i) * 16);
            w[4 * i] = v.x;
            w[4 * i + 1] = v.y;
            w[4 * i + 2] = v.z;
            w[4 * i + 3] = v.w;
        }
        // Element e lies in word e / 4 * 2 + (e & 1), in its high half where e & 2.
        constexpr int LOW = PAD - RADIUS_X * COMPONENTS, HIGH = PAD + RADIUS_X * COMPONENTS;
        int sums[COMPONENTS];
#pragma unroll
        for (int c = 0; c < COMPONENTS; c++) {
            // So many words of column sums add up without a carry between their halves.
            constexpr int ROOM = 65535 / ((2 * RADIUS_Y + 1) * 255) < 16 ? 65535 / ((2 * RADIUS_Y + 1) * 255) : 16;
            int total = COUNT / 2;
            u32 packed = 0;
            int used = 0;
#pragma unroll
            for (int word = 0; word < WORDS; word++) {
                const int low = word / 2 * 4 + (word & 1), high = low + 2;
                const bool has_low = low >= LOW + c && low <= HIGH + c && (low - c - LOW) % COMPONENTS == 0;
                const bool has_high = high >= LOW + c && high <= HIGH + c && (high - c - LOW) % COMPONENTS == 0;
                if (has_low && has_high) {
                    packed += w[word];
                    used++;
                    if (used == ROOM) {
                        total += (packed & 0xffffu) + (packed >> 16);
                        packed = 0;
                        used = 0;
                    }
                } else if (has_low) {
                    total = __dp2a_lo((int)w[word], 0x0001, total);
                } else if (has_high) {
                    total = __dp2a_lo((int)w[word], 0x0100, total);
                }
            }
            if (used > 0) total += (packed & 0xffffu) + (packed >> 16);
            sums[c] = total;
        }
        u32 codes[RUN];
#pragma unroll
        for (int i = 0; i < RUN; i++) {
            int& s = sums[i % COMPONENTS];
            codes[i] = __umulhi((u32)s, MAGIC_N);
            if (i + COMPONENTS < RUN) {
                const int in = i + HIGH + COMPONENTS, out = i + LOW;
                s = __dp2a_lo((int)w[in / 4 * 2 + (in & 1)], plus(in), s);
                s = __dp2a_lo((int)w[out / 4 * 2 + (out & 1)], minus(out), s);
            }
        }
        uint4 v;
        v.x = pack4(codes[0], codes[1], codes[2], codes[3]);
        v.y = pack4(codes[4], codes[5], codes[6], codes[7]);
        v.z = pack4(codes[8], codes[9], codes[10], codes[11]);
        v.w = pack4(codes[12], codes[13], codes[14], codes[15]);
        *reinterpret_cast<uint4*>(dst_at(p, to_x, to_y)) = v;
    }
}
