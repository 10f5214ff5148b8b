// Pooling of batches of images: maximum, mean, minimum over windows ("tensor_pool").
//
// An image is HEIGHT x WIDTH pixels of `components` neighbouring values: a plane of an NCHW tensor (1), an image of an NHWC one (its
// channels). Compile-time: HALF (IEEE half instead of float), KIND (0 maximum, 1 mean, 2 minimum), KH KW (window), SH SW (stride),
// PH PW (padding), DH DW (dilation), COUNT_PAD (the mean's divisor counts the padding), KAHAN (compensated sums).
//
//   naive      a thread per value: KH * KW reads
//   tiled      32 x 8 windows and what they span as floats in shared memory, rows first, then columns: KW (8 SH + KH) / 8 + KH operations
//   coarsened  16 bytes of a row's results per lane, ROWS rows: the lane's own columns and its neighbours' by shuffle, each row reduced
//              across once and then down into all the windows that it belongs to. Halves: pairs in one instruction (maximum, minimum).
//   vector     NHWC: 16 bytes of channels per thread, KH * KW reads of 16 bytes
//
//   coarsened, stride 1:    lane l-1  |   lane l    | lane l+1        Bytes: each value read once and (KH - 1) / ROWS of them again from
//                           . . . a b | c d e f     | g . . .         the L2, each result written once. Warp shuffles, no shared memory.
#ifndef HALF
#error "HALF must be 0 or 1"
#endif
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#if HALF
typedef u16 element;
#define VEC 8 // elements of 16 bytes
#define PER_WORD 2
#else
typedef float element;
#define VEC 4
#define PER_WORD 1
#endif

__device__ __forceinline__ float widen(u16 h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}
__device__ __forceinline__ u16 narrow(float f) {
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
__device__ __forceinline__ float load(const element* at) {
#if HALF
    return widen(*at);
#else
    return *at;
#endif
}
__device__ __forceinline__ void store(element* at, float v) {
#if HALF
    *at = narrow(v);
#else
    *at = v;
#endif
}

#define INFINITE __int_as_float(0x7f800000)
#if KIND == 0
#define NEUTRAL (-INFINITE)
#define NEUTRAL_WORD (HALF ? 0xfc00fc00u : 0xff800000u)
__device__ __forceinline__ float join(float a, float b) { return fmaxf(a, b); }
#elif KIND == 2
#define NEUTRAL INFINITE
#define NEUTRAL_WORD (HALF ? 0x7c007c00u : 0x7f800000u)
__device__ __forceinline__ float join(float a, float b) { return fminf(a, b); }
#else
#define NEUTRAL 0.f
#define NEUTRAL_WORD 0u
__device__ __forceinline__ float join(float a, float b) { return a + b; }
#endif

// A running value; sums may carry what rounding lost (Kahan).
struct Total {
    float value;
#if KIND == 1 && KAHAN
    float lost;
    __device__ __forceinline__ void add(float v) {
        const float y = __fsub_rn(v, lost);
        const float t = __fadd_rn(value, y);
        lost = __fsub_rn(__fsub_rn(t, value), y);
        value = t;
    }
    __device__ __forceinline__ void begin() { value = 0.f, lost = 0.f; }
#else
    __device__ __forceinline__ void add(float v) { value = join(value, v); }
    __device__ __forceinline__ void begin() { value = NEUTRAL; }
#endif
};

// Mirrors backend/cuda/tensor.rs.
struct Images {
    const u8* in;
    u8* out;
    u32 images;
    int height;
    int width;
    int out_height;
    int out_width;
    int components;
    u32 blocks_x;
    u32 blocks_y;
};

// Taps of window `o` along a line of n that lie inside: [first, end).
template <int KERNEL, int STRIDE, int PAD, int DILATION>
__device__ __forceinline__ void inside(int o, int n, int& first, int& end) {
    const int start = o * STRIDE - PAD;
    first = start < 0 ? (-start + DILATION - 1) / DILATION : 0;
    end = min(KERNEL, (n - start + DILATION - 1) / DILATION);
    if (end < first) end = first;
}

__device__ __forceinline__ float finished(float v, int x, int y, const Images& t) {
#if KIND != 1
    return v;
#elif COUNT_PAD
    return v * (1.f / (float)(KH * KW));
#else
    int x0, x1, y0, y1;
    inside<KW, SW, PW, DW>(x, t.width, x0, x1);
    inside<KH, SH, PH, DH>(y, t.height, y0, y1);
    const int count = (x1 - x0) * (y1 - y0);
    // Division costs ten instructions: only at the edge.
    if (count == KH * KW) return v * (1.f / (float)(KH * KW));
    return count == 0 ? 0.f : v / (float)count;
#endif
}

#if defined(ROWS) // coarsened: dilation 1, components 1, width a multiple of VEC

#ifndef PAIRS
#define PAIRS 0
#endif
#define LANE_COLUMNS (VEC * SW)
#define SPAN ((ROWS - 1) * SH + KH)
#define CHUNK (SPAN < 6 ? SPAN : 6)
// Words of the neighbours that windows reach into.
#define LEFT_WORDS ((PW + PER_WORD - 1) / PER_WORD)
#define OVER ((VEC - 1) * SW + KW - 1 - PW - (LANE_COLUMNS - 1))
#define RIGHT_WORDS (OVER > 0 ? (OVER + PER_WORD - 1) / PER_WORD : 0)
#define OWN_WORDS (4 * SW)
#define WORDS (4 + OWN_WORDS + 4)

struct Raw {
    uint4 own[SW];
    uint4 side; // the vector beside the warp: lane 0's left one, lane 31's right one
};

__device__ __forceinline__ u32 word(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

__device__ __forceinline__ u32 join_pair(u32 a, u32 b) {
#if PAIRS
    u32 c;
#if KIND == 0
    asm("max.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
#else
    asm("min.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
#endif
    return c;
#else
    return a;
#endif
}

__device__ __forceinline__ float value(const u32* words, int i) {
#if HALF
    return widen((u16)(words[i / 2] >> (i % 2 * 16)));
#else
    return __uint_as_float(words[i]);
#endif
}

extern "C" __global__ void __launch_bounds__(128) tensor_pool__coarsened(const __grid_constant__ Images t) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const u32 bx = blockIdx.x % t.blocks_x, rest = blockIdx.x / t.blocks_x;
    const u32 by = rest % t.blocks_y, image = rest / t.blocks_y;
    const int ox = (int)bx * (32 * VEC) + lane * VEC;
    const int oy = ((int)by * 4 + warp) * ROWS;
    if (oy >= t.out_height) return;
    const int x = ox * SW, y = oy * SH - PH;
    const element* plane = reinterpret_cast<const element*>(t.in) + (u64)image * (u32)t.height * (u32)t.width;
    const int beside = lane == 0 ? x - VEC : x + LANE_COLUMNS;
    const bool has_side = ((lane == 0 && LEFT_WORDS > 0) || (lane == 31 && RIGHT_WORDS > 0)) && beside >= 0 && beside < t.width;
    const uint4 neutral = make_uint4(NEUTRAL_WORD, NEUTRAL_WORD, NEUTRAL_WORD, NEUTRAL_WORD);
#if PAIRS
    u32 acc[ROWS][VEC / 2];
#pragma unroll
    for (int o = 0; o < ROWS; o++)
#pragma unroll
        for (int i = 0; i < VEC / 2; i++) acc[o][i] = NEUTRAL_WORD;
#else
    float acc[ROWS][VEC];
#pragma unroll
    for (int o = 0; o < ROWS; o++)
#pragma unroll
        for (int i = 0; i < VEC; i++) acc[o][i] = NEUTRAL;
#endif
#pragma unroll
    for (int first = 0; first < SPAN; first += CHUNK) {
        Raw raw[CHUNK];
#pragma unroll
        for (int k = 0; k < CHUNK; k++) {
            const int row = y + first + k;
            const bool exists = first + k < SPAN && row >= 0 && row < t.height;
            const element* at = plane + (u64)(u32)max(row, 0) * (u32)t.width;
#pragma unroll
            for (int s = 0; s < SW; s++)
                raw[k].own[s] = exists && x + s * VEC < t.width ? *reinterpret_cast<const uint4*>(at + x + s * VEC) : neutral;
            raw[k].side = exists && has_side ? *reinterpret_cast<const uint4*>(at + beside) : neutral;
        }
#pragma unroll
        for (int k = 0; k < CHUNK; k++) {
            if (first + k >= SPAN) break;
            u32 words[WORDS];
#pragma unroll
            for (int i = 0; i < WORDS; i++) words[i] = NEUTRAL_WORD;
#pragma unroll
            for (int i = 0; i < OWN_WORDS; i++) words[4 + i] = word(raw[k].own[i / 4], i % 4);
#pragma unroll
            for (int i = 4 - LEFT_WORDS; i < 4; i++) {
                const u32 from = __shfl_up_sync(0xffffffffu, word(raw[k].own[SW - 1], i), 1);
                words[i] = lane == 0 ? word(raw[k].side, i) : from;
            }
#pragma unroll
            for (int i = 0; i < RIGHT_WORDS; i++) {
                const u32 from = __shfl_down_sync(0xffffffffu, word(raw[k].own[0], i), 1);
                words[4 + OWN_WORDS + i] = lane == 31 ? word(raw[k].side, i) : from;
            }
#if PAIRS
            // Stride 1. A pair at an odd column lies in two words.
            u32 across[VEC / 2];
#pragma unroll
            for (int i = 0; i < VEC / 2; i++) {
#pragma unroll
                for (int j = 0; j < KW; j++) {
                    const int c = 8 + 2 * i - PW + j;
                    const u32 pair = c % 2 == 0 ? words[c / 2] : __byte_perm(words[c / 2], words[c / 2 + 1], 0x5432);
                    across[i] = j == 0 ? pair : join_pair(across[i], pair);
                }
            }
#else
            float across[VEC];
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                across[i] = NEUTRAL;
#pragma unroll
                for (int j = 0; j < KW; j++) across[i] = join(across[i], value(words, VEC + i * SW - PW + j));
            }
#endif
#pragma unroll
            for (int o = 0; o < ROWS; o++) {
                const int tap = first + k - o * SH;
                if (tap >= 0 && tap < KH) {
#if PAIRS
#pragma unroll
                    for (int i = 0; i < VEC / 2; i++) acc[o][i] = join_pair(acc[o][i], across[i]);
#else
#pragma unroll
                    for (int i = 0; i < VEC; i++) acc[o][i] = join(acc[o][i], across[i]);
#endif
                }
            }
        }
    }
    if (ox >= t.out_width) return;
    element* out = reinterpret_cast<element*>(t.out) + (u64)image * (u32)t.out_height * (u32)t.out_width + ox;
#pragma unroll
    for (int o = 0; o < ROWS; o++) {
        if (oy + o >= t.out_height) break;
        element* to = out + (u64)(u32)(oy + o) * (u32)t.out_width;
        u32 packed[4];
#if PAIRS
#pragma unroll
        for (int i = 0; i < 4; i++) packed[i] = acc[o][i];
#else
#pragma unroll
        for (int i = 0; i < VEC; i++) acc[o][i] = finished(acc[o][i], ox + i, oy + o, t);
#if HALF
#pragma unroll
        for (int i = 0; i < 4; i++) packed[i] = (u32)narrow(acc[o][2 * i]) | (u32)narrow(acc[o][2 * i + 1]) << 16;
#else
#pragma unroll
        for (int i = 0; i < 4; i++) packed[i] = __float_as_uint(acc[o][i]);
#endif
#endif
        if (t.out_width % VEC == 0) {
            *reinterpret_cast<uint4*>(to) = make_uint4(packed[0], packed[1], packed[2], packed[3]);
        } else {
#pragma unroll
            for (int i = 0; i < VEC; i++)
                if (ox + i < t.out_width) {
#if HALF
                    to[i] = (u16)(packed[i / 2] >> (i % 2 * 16));
#else
                    to[i] = __uint_as_float(packed[i]);
#endif
                }
        }
    }
}

#elif defined(TILED) // components 1

#define ACROSS 32
#define DOWN 8
#define SPAN_X ((ACROSS - 1) * SW + (KW - 1) * DW + 1)
#define SPAN_Y ((DOWN - 1) * SH + (KH - 1) * DH + 1)

extern "C" __global__ void __launch_bounds__(ACROSS* DOWN) tensor_pool__tiled(const __grid_constant__ Images t) {
    __shared__ float tile[SPAN_Y][SPAN_X];
    __shared__ float rows[SPAN_Y][ACROSS];
    const u32 bx = blockIdx.x % t.blocks_x, rest = blockIdx.x / t.blocks_x;
    const u32 by = rest % t.blocks_y, image = rest / t.blocks_y;
    const int left = (int)bx * (ACROSS * SW) - PW, top = (int)by * (DOWN * SH) - PH;
    const element* plane = reinterpret_cast<const element*>(t.in) + (u64)image * (u32)t.height * (u32)t.width;
    for (int i = threadIdx.x; i < SPAN_X * SPAN_Y; i += ACROSS * DOWN) {
        const int r = i / SPAN_X, c = i % SPAN_X, y = top + r, x = left + c;
        const bool exists = x >= 0 && x < t.width && y >= 0 && y < t.height;
        tile[r][c] = exists ? load(plane + (u64)(u32)y * (u32)t.width + (u32)x) : NEUTRAL;
    }
    __syncthreads();
    const int lane = threadIdx.x % ACROSS, line = threadIdx.x / ACROSS;
    for (int r = line; r < SPAN_Y; r += DOWN) {
        Total total;
        total.begin();
        for (int j = 0; j < KW; j++) total.add(tile[r][lane * SW + j * DW]);
        rows[r][lane] = total.value;
    }
    __syncthreads();
    const int x = (int)bx * ACROSS + lane, y = (int)by * DOWN + line;
    if (x >= t.out_width || y >= t.out_height) return;
    Total total;
    total.begin();
    for (int j = 0; j < KH; j++) total.add(rows[line * SH + j * DH][lane]);
    element* out = reinterpret_cast<element*>(t.out) + (u64)image * (u32)t.out_height * (u32)t.out_width;
    store(out + (u64)(u32)y * (u32)t.out_width + (u32)x, finished(total.value, x, y, t));
}

#elif defined(VECTOR) // components a multiple of VEC

extern "C" __global__ void __launch_bounds__(256) tensor_pool__vector(const __grid_constant__ Images t) {
    const u32 groups = (u32)t.components / VEC;
    const u64 index = (u64)blockIdx.x * 256 + threadIdx.x;
    const u64 pixel = index / groups;
    const u32 c = (u32)(index % groups) * VEC;
    const int x = (int)(pixel % (u32)t.out_width), y = (int)(pixel / (u32)t.out_width % (u32)t.out_height);
    const u64 image = pixel / (u32)t.out_width / (u32)t.out_height;
    if (image >= t.images) return;
    const element* from = reinterpret_cast<const element*>(t.in) + image * (u32)t.height * (u32)t.width * (u32)t.components + c;
    Total total[VEC];
#pragma unroll
    for (int i = 0; i < VEC; i++) total[i].begin();
    int x0, x1, y0, y1;
    inside<KW, SW, PW, DW>(x, t.width, x0, x1);
    inside<KH, SH, PH, DH>(y, t.height, y0, y1);
    for (int j = y0; j < y1; j++)
        for (int i = x0; i < x1; i++) {
            const u64 at = (u64)(u32)(y * SH - PH + j * DH) * (u32)t.width + (u32)(x * SW - PW + i * DW);
            const uint4 v = *reinterpret_cast<const uint4*>(from + at * (u32)t.components);
            const u32 words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
            for (int k = 0; k < VEC; k++) {
#if HALF
                total[k].add(widen((u16)(words[k / 2] >> (k % 2 * 16))));
#else
                total[k].add(__uint_as_float(words[k]));
#endif
            }
        }
    u32 packed[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
#if HALF
        packed[i] = (u32)narrow(finished(total[2 * i].value, x, y, t)) | (u32)narrow(finished(total[2 * i + 1].value, x, y, t)) << 16;
#else
        packed[i] = __float_as_uint(finished(total[i].value, x, y, t));
#endif
    }
    *reinterpret_cast<uint4*>(reinterpret_cast<element*>(t.out) + pixel * (u32)t.components + c) =
        make_uint4(packed[0], packed[1], packed[2], packed[3]);
}

#else

extern "C" __global__ void __launch_bounds__(256) tensor_pool__naive(const __grid_constant__ Images t) {
    const u64 index = (u64)blockIdx.x * 256 + threadIdx.x;
    const u32 c = (u32)(index % (u32)t.components);
    const u64 pixel = index / (u32)t.components;
    const int x = (int)(pixel % (u32)t.out_width), y = (int)(pixel / (u32)t.out_width % (u32)t.out_height);
    const u64 image = pixel / (u32)t.out_width / (u32)t.out_height;
    if (image >= t.images) return;
    const element* from = reinterpret_cast<const element*>(t.in) + image * (u32)t.height * (u32)t.width * (u32)t.components + c;
    Total total;
    total.begin();
    int x0, x1, y0, y1;
    inside<KW, SW, PW, DW>(x, t.width, x0, x1);
    inside<KH, SH, PH, DH>(y, t.height, y0, y1);
    for (int j = y0; j < y1; j++)
        for (int i = x0; i < x1; i++) {
            const u64 at = (u64)(u32)(y * SH - PH + j * DH) * (u32)t.width + (u32)(x * SW - PW + i * DW);
            total.add(load(from + at * (u32)t.components));
        }
    store(reinterpret_cast<element*>(t.out) + index, finished(total.value, x, y, t));
}
#endif
