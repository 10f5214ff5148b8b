// Separable kernels in one launch ("fused") and in two through device memory ("separable").
//
// Fused: a warp filters a tile of TILE x ROWS samples. Lane l owns the four columns at tile_x - PAD + 4 l. It sums them
// vertically in registers over ROWS + 2 RADIUS_Y rows, straight from global memory; the ROWS x 128 column sums go to shared
// memory, where the same warp reads them back for the horizontal sum: no barrier wider than a warp. Vertical first, because
// the horizontal halo (2 PAD of 128 columns) repeats less work than the vertical one (2 RADIUS_Y of ROWS rows) would, and
// each sample is converted once per vertical window rather than once per tap.
//
// Bytes: each sample read once from device memory (halo rows come from L1), written once. Shared: ROWS * 512 per warp.
#include "plane.cuh"

#ifdef RADIUS_X

#ifndef ROWS
#define ROWS 8
#endif
#ifndef WARPS
#define WARPS 4
#endif
#ifndef UNROLL
#define UNROLL (CENTRE == 0 ? 4 : 1) // rows of the horizontal sum in flight
#endif

#define REACH (RADIUS_X * COMPONENTS)
#define PAD ((REACH + 3) / 4 * 4)
#define TILE (128 - 2 * PAD)
#define SPAN (ROWS + 2 * RADIUS_Y)
// Rows fetched together: enough loads in flight, and no more than some 24 registers for them.
#define LOADS (SAMPLE == 8 ? 24 : HALVES ? 14 : SAMPLE == 16 ? 12 : 8)
#define CHUNK (SPAN < LOADS ? SPAN : LOADS)

// RIMS: weights near the edge differ from place to place (several passes, each with its own border). `rims` holds them, first those of
// columns, then those of rows: (2 radius + 1) places, of which the middle one is every place farther inside, times the taps.
#ifndef RIMS
#define RIMS 0
#endif

// Mirrors the bytes that lower.rs builds.
struct Taps {
#if RIMS
    const float* rims;
#endif
    wide col[2 * RADIUS_Y + 1];
    wide row[2 * RADIUS_X + 1];
    Finish finish;
};

// Weights of the place i of n >= 2 RADIUS + 1 places.
template <int RADIUS>
__device__ __forceinline__ const float* rim(const float* table, int i, int n) {
    const int place = i < RADIUS ? i : max(RADIUS, 2 * RADIUS - (n - 1 - i));
    return table + min(place, 2 * RADIUS) * (2 * RADIUS + 1);
}

struct __align__(16) Wide4 {
    wide x, y, z, w;
};

// Column sums of ROWS rows from y0 on, for the four columns at x. `inside`: every row and column of the warp is.
__device__ __forceinline__ void sum_columns(const Plane& p, int x, bool inside, int y0, const wide* col, const float* rims, wide acc[ROWS][4]) {
#pragma unroll
    for (int o = 0; o < ROWS; o++)
#pragma unroll
        for (int i = 0; i < 4; i++) acc[o][i] = 0.f;
    const u8* at = inside ? src_at(p, x, y0 - RADIUS_Y) : nullptr;
    const u32 pitch = p.src_pitch;
#pragma unroll
    for (int first = 0; first < SPAN; first += CHUNK) {
        raw4 raw[CHUNK];
        if (inside) {
#pragma unroll
            for (int k = 0; k < CHUNK; k++)
                if (first + k < SPAN) raw[k] = load4(at, pitch, first + k);
        } else {
            load_edge<CHUNK>(p, x, y0 - RADIUS_Y + first, 1, raw);
        }
#pragma unroll
        for (int k = 0; k < CHUNK; k++) {
            if (first + k < SPAN) {
                float v[4];
                unpack(raw[k], v);
#pragma unroll
                for (int o = 0; o < ROWS; o++) {
                    const int tap = first + k - o;
                    if (tap >= 0 && tap <= 2 * RADIUS_Y) {
                        wide weight = col[tap];
#if RIMS
                        if (!inside) weight = __ldg(rim<RADIUS_Y>(rims, y0 + o, p.height) + tap);
#endif
#pragma unroll
                        for (int i = 0; i < 4; i++) acc[o][i] = fma(weight, (wide)v[i], acc[o][i]);
                    }
                }
            }
        }
    }
}

// Row sums of the four samples at column 4 lane of a row of column sums, from the outer taps to the middle: the small
// products add up before the large ones, which rounds less.
__device__ __forceinline__ void sum_row(const Wide4* sums, int lane, const wide* row, wide out[4]) {
    wide window[4 + 2 * PAD];
#pragma unroll
    for (int q = 0; q < 1 + PAD / 2; q++) {
        const Wide4 v = sums[lane + q];
        window[4 * q] = v.x;
        window[4 * q + 1] = v.y;
        window[4 * q + 2] = v.z;
        window[4 * q + 3] = v.w;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) out[i] = 0.f;
#pragma unroll
    for (int k = 0; k <= 2 * RADIUS_X; k++) {
        const int tap = k & 1 ? 2 * RADIUS_X - k / 2 : k / 2;
#pragma unroll
        for (int i = 0; i < 4; i++) out[i] = fma(row[tap], window[PAD - REACH + i + tap * COMPONENTS], out[i]);
    }
}

#if RIMS
// The same near the edge, from sample x on.
__device__ __forceinline__ void sum_row_rim(const Wide4* sums, int lane, const float* rims, int x, int width, wide out[4]) {
    const wide* line = reinterpret_cast<const wide*>(sums + lane) + PAD - REACH;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float* row = rim<RADIUS_X>(rims, min((x + i) / COMPONENTS, width - 1), width);
        out[i] = 0;
        for (int k = 0; k <= 2 * RADIUS_X; k++) out[i] = fma((wide)__ldg(row + k), line[i + k * COMPONENTS], out[i]);
    }
}
#endif

// A warp's tile.
struct Tile {
    int x;  // first column that is written
    int y0; // first row
    bool inside; // with its halo
};

__device__ __forceinline__ Tile tile_of(const Plane& p, const Block& b, int warp) {
    Tile t;
    t.x = b.x * TILE;
    t.y0 = (b.y * WARPS + warp) * ROWS;
    t.inside = t.x >= PAD && t.x - PAD + 128 <= p.width * COMPONENTS && t.y0 >= RADIUS_Y && t.y0 + ROWS + RADIUS_Y <= p.height;
    return t;
}

// Column sums of a warp's tile, into shared memory.
__device__ __forceinline__ void stage_columns(const Plane& p, const Tile& t, int lane, const wide* col, const float* rims, Wide4 sums[ROWS][32]) {
    wide acc[ROWS][4];
    sum_columns(p, t.x - PAD + 4 * lane, t.inside, t.y0, col, rims, acc);
#pragma unroll
    for (int o = 0; o < ROWS; o++) sums[o][lane] = {acc[o][0], acc[o][1], acc[o][2], acc[o][3]};
    __syncwarp();
}

// out = sum * scale + bias
extern "C" __global__ void __launch_bounds__(32 * WARPS) separable__fused(const __grid_constant__ Frame f, const __grid_constant__ Taps t) {
    __shared__ Wide4 sums[WARPS][ROWS][32];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const Block b = locate(f);
    const Plane& p = f.plane[b.plane];
    const Tile tile = tile_of(p, b, warp);
    if (tile.y0 >= p.height) return;
#if RIMS
    stage_columns(p, tile, lane, t.col, t.rims, sums[warp]);
#else
    stage_columns(p, tile, lane, t.col, nullptr, sums[warp]);
#endif
    const int x = tile.x + 4 * lane;
    if (lane >= TILE / 4 || x >= p.width * COMPONENTS) return;
    u8* to = dst_at(p, x, tile.y0);
    const u32 pitch = p.dst_pitch;
    const int rows = min(ROWS, p.height - tile.y0);
#pragma unroll UNROLL
    for (int o = 0; o < ROWS; o++) {
        if (o >= rows) break;
        wide v[4];
#if RIMS
        if (!tile.inside)
            sum_row_rim(sums[warp][o], lane, t.rims + (2 * RADIUS_Y + 1) * (2 * RADIUS_Y + 1), x, p.width, v);
        else
#endif
            sum_row(sums[warp][o], lane, t.row, v);
        store4(to, pitch, o, finish4(v, t.finish));
    }
}

#if CENTRE == 0
// FFmpeg's unsharp. The binomial sums are integers below 2^24 (the host checks), hence exact in float.
// Mirrors the bytes that lower.rs builds: scale is 1 / sum of weights, a power of two; amount in 1/65536.
struct Sharpen {
    float col[2 * RADIUS_Y + 1];
    float row[2 * RADIUS_X + 1];
    float scale;
    int amount;
};

extern "C" __global__ void __launch_bounds__(32 * WARPS) unsharp__fused(const __grid_constant__ Frame f, const __grid_constant__ Sharpen t) {
    __shared__ Wide4 sums[WARPS][ROWS][32];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const Block b = locate(f);
    const Plane& p = f.plane[b.plane];
    const Tile tile = tile_of(p, b, warp);
    if (tile.y0 >= p.height) return;
    stage_columns(p, tile, lane, t.col, nullptr, sums[warp]);
    const int x = tile.x + 4 * lane;
    if (lane >= TILE / 4 || x >= p.width * COMPONENTS) return;
    const u8* from = src_at(p, x, tile.y0);
    u8* to = dst_at(p, x, tile.y0);
    const int rows = min(ROWS, p.height - tile.y0);
#pragma unroll UNROLL
    for (int o = 0; o < ROWS; o++) {
        if (o >= rows) break;
        float v[4], in[4];
        sum_row(sums[warp][o], lane, t.row, v);
        // The row's padding is readable, so a strip that ends outside needs no care.
        unpack(load4(from, p.src_pitch, o), in);
#if FLOATING
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = in[i] + (in[i] - v[i] * t.scale) * ((float)t.amount * (1.f / 65536.f));
        store4(to, p.dst_pitch, o, pack4(v[0], v[1], v[2], v[3]));
#else
        u32 code[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int blur = (int)fmaf(v[i], t.scale, 0.5f);
            const int value = (int)in[i];
#if MAX_VALUE <= 255
            const int sharp = value + (((value - blur) * t.amount) >> 16); // the host bounds the amount
#else
            const int sharp = value + (int)(((long long)(value - blur) * t.amount) >> 16);
#endif
            code[i] = (u32)min(max(sharp, 0), (int)MAX_VALUE) << SHIFT;
        }
        store4(to, p.dst_pitch, o, pack4(code[0], code[1], code[2], code[3]));
#endif
    }
}
#endif

#else // two passes of any radius

// Mirrors lower.rs. Taps lie in device memory, padded with zeros to a multiple of 8.
struct Pass {
    const float* taps;
    int count;  // a multiple of 8
    int anchor; // tap that falls on the sample itself
    wide outside; // a row sum of samples outside under the zero border
    Finish finish;
};


#define OUTPUTS 8 // per thread; also the taps that are summed apart, since partial sums of thousands of taps would round away
#define THREADS 128
// Doubles have no need of that.
#if CENTRE != 0
#define PARTIAL(part, acc) wide(&part)[OUTPUTS] = acc
#define JOIN(part, acc)
#else
#define PARTIAL(part, acc) wide part[OUTPUTS] = {}
#define JOIN(part, acc)                                    \
    _Pragma("unroll") for (int o = 0; o < OUTPUTS; o++) acc[o] += part[o]
#endif
#define STEP 256
// One float of padding behind every 8, so that lanes 8 apart hit different banks.
#define AT(i) ((i) + ((i) >> 3))

// Horizontal sums of one row's segment, into a plane of floats (doubles for deep samples). A thread makes 8 neighbouring sums.
extern "C" __global__ void __launch_bounds__(THREADS) separable__rows(const __grid_constant__ Frame f, const __grid_constant__ Pass t) {
    __shared__ float staged[AT(THREADS * OUTPUTS + STEP * COMPONENTS + 8) + 1];
    const Block b = locate(f);
    const Plane& p = f.plane[b.plane];
    const int samples = p.width * COMPONENTS;
    const int first = b.x * (THREADS * OUTPUTS);
    const sample* row = src_row(p, b.y);
    wide acc[OUTPUTS];
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++) acc[o] = 0.f;
    for (int tap0 = 0; tap0 < t.count; tap0 += STEP) {
        const int taps = min(STEP, t.count - tap0);
        const int origin = first + (tap0 - t.anchor) * COMPONENTS;
        __syncthreads();
        for (int i = threadIdx.x; i < THREADS * OUTPUTS + taps * COMPONENTS; i += THREADS) {
            const int column = border_sample(origin + i, p.width);
            staged[AT(i)] = column < 0 ? OUTSIDE : to_float(row[column]);
        }
        __syncthreads();
        const int at = threadIdx.x * OUTPUTS;
#if COMPONENTS == 1
        float window[OUTPUTS];
#pragma unroll
        for (int o = 0; o < OUTPUTS - 1; o++) window[o] = staged[AT(at + o)];
        for (int k = 0; k < taps; k += OUTPUTS) {
            PARTIAL(part, acc);
#pragma unroll
            for (int u = 0; u < OUTPUTS; u++) {
                window[(u + OUTPUTS - 1) % OUTPUTS] = staged[AT(at + k + u + OUTPUTS - 1)];
                const wide w = __ldg(t.taps + tap0 + k + u);
#pragma unroll
                for (int o = 0; o < OUTPUTS; o++) part[o] = fma(w, (wide)window[(u + o) % OUTPUTS], part[o]);
            }
            JOIN(part, acc);
        }
#else
        for (int k0 = 0; k0 < taps; k0 += OUTPUTS) {
            PARTIAL(part, acc);
            for (int k = k0; k < k0 + OUTPUTS; k++) {
                const wide w = __ldg(t.taps + tap0 + k);
#pragma unroll
                for (int o = 0; o < OUTPUTS; o++) part[o] = fma(w, (wide)staged[AT(at + k * COMPONENTS + o)], part[o]);
            }
            JOIN(part, acc);
        }
#endif
    }
    wide* out = reinterpret_cast<wide*>(p.dst + (u64)(u32)b.y * p.dst_pitch);
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++) {
        const int x = first + threadIdx.x * OUTPUTS + o;
        if (x < samples) out[x] = acc[o];
    }
}

__device__ __forceinline__ wide sum_at(const wide* column, u64 pitch, int height, wide outside, int y) {
    const int row = border_index(y, height);
    return row < 0 ? outside : column[(u64)(u32)row * pitch];
}

// Vertical sums of such a plane, into samples. A thread makes 8 sums below each other.
extern "C" __global__ void __launch_bounds__(THREADS) separable__cols(const __grid_constant__ Frame f, const __grid_constant__ Pass t) {
    const Block b = locate(f);
    const Plane& p = f.plane[b.plane];
    const int x = b.x * THREADS + threadIdx.x;
    const int y0 = b.y * OUTPUTS;
    if (x >= p.width * COMPONENTS) return;
    const wide* column = reinterpret_cast<const wide*>(p.src) + x;
    const u64 pitch = p.src_pitch / sizeof(wide);
    wide acc[OUTPUTS], window[OUTPUTS];
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++) acc[o] = 0.f;
    const int top = y0 - t.anchor;
#pragma unroll
    for (int o = 0; o < OUTPUTS - 1; o++) window[o] = sum_at(column, pitch, p.height, t.outside, top + o);
    for (int k = 0; k < t.count; k += OUTPUTS) {
        PARTIAL(part, acc);
#pragma unroll
        for (int u = 0; u < OUTPUTS; u++) {
            window[(u + OUTPUTS - 1) % OUTPUTS] = sum_at(column, pitch, p.height, t.outside, top + k + u + OUTPUTS - 1);
            const wide w = __ldg(t.taps + k + u);
#pragma unroll
            for (int o = 0; o < OUTPUTS; o++) part[o] = fma(w, (wide)window[(u + o) % OUTPUTS], part[o]);
        }
        JOIN(part, acc);
    }
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++)
        if (y0 + o < p.height) dst_row(p, y0 + o)[x] = (sample)finish(acc[o], t.finish);
}
#endif
