// Operations that only compare samples: minimum and maximum of a window, and the sample of a given rank in a small one.
//
// Integer samples and halves are compared two at a time, 16 bits each in a word ("pair"); floats one at a time. A warp owns
// 128 columns, four a lane, as in the other families. Bits below a sample (P010's) are cleared on loading.
#include "plane.cuh"

#ifndef ROWS
#define ROWS 4
#endif
#ifndef WARPS
#define WARPS 4
#endif

#if SAMPLE == 32

typedef float word;
typedef float4 quad;
#define WORDS 4 // of four neighbouring samples
#define DEEP 1  // rows that share a word of the horizontal pass
__device__ __forceinline__ word least(word a, word b) { return fminf(a, b); }
__device__ __forceinline__ word most(word a, word b) { return fmaxf(a, b); }
__device__ __forceinline__ quad make_quad(word a, word b, word c, word d) { return make_float4(a, b, c, d); }

#else

typedef u32 word;
typedef uint4 quad;
#define WORDS 2
#define DEEP 2

// Halves are compared as such, or, where there is no instruction for it, as integers of the same order.
#if HALVES && __CUDA_ARCH__ < 800
__device__ __forceinline__ word keys_of(word halves) { return halves ^ ((halves >> 15 & 0x00010001u) * 0xffffu | 0x80008000u); }
__device__ __forceinline__ word of_keys(word keys) { return keys ^ ((~keys >> 15 & 0x00010001u) * 0xffffu | 0x80008000u); }
#else
__device__ __forceinline__ word keys_of(word v) { return v; }
__device__ __forceinline__ word of_keys(word v) { return v; }
#endif

__device__ __forceinline__ word least(word a, word b) {
    word out;
#if __CUDA_ARCH__ >= 900 && !HALVES
    asm("min.u16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
#elif __CUDA_ARCH__ >= 800 && (HALVES || (MAX_VALUE << SHIFT) < 0x7c00)
    // Halves below infinity order as their bits do, subnormal ones too.
    asm("min.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
#else
    asm("vmin2.u32.u32.u32 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(0));
#endif
    return out;
}

__device__ __forceinline__ word most(word a, word b) {
    word out;
#if __CUDA_ARCH__ >= 900 && !HALVES
    asm("max.u16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
#elif __CUDA_ARCH__ >= 800 && (HALVES || (MAX_VALUE << SHIFT) < 0x7c00)
    asm("max.f16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
#else
    asm("vmax2.u32.u32.u32 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(0));
#endif
    return out;
}

__device__ __forceinline__ quad make_quad(word a, word b, word c, word d) { return make_uint4(a, b, c, d); }

#endif

// Four neighbouring samples: words (0, 2) and (1, 3), or four floats.
struct Four {
    word w[WORDS];
};

__device__ __forceinline__ Four split(raw4 r) {
    Four v;
#if SAMPLE == 8
    v.w[0] = r & 0x00ff00ffu;
    v.w[1] = (r >> 8) & 0x00ff00ffu;
#elif SAMPLE == 16
    v.w[0] = keys_of(__byte_perm(r.x, r.y, 0x5410));
    v.w[1] = keys_of(__byte_perm(r.x, r.y, 0x7632));
#if SHIFT != 0
    v.w[0] &= 0x00010001u * (MAX_VALUE << SHIFT);
    v.w[1] &= 0x00010001u * (MAX_VALUE << SHIFT);
#endif
#else
    v.w[0] = r.x;
    v.w[1] = r.y;
    v.w[2] = r.z;
    v.w[3] = r.w;
#endif
    return v;
}

__device__ __forceinline__ raw4 join(const Four& v) {
#if SAMPLE == 8
    return v.w[0] | v.w[1] << 8;
#elif SAMPLE == 16
    const word even = of_keys(v.w[0]), odd = of_keys(v.w[1]);
    return make_uint2(__byte_perm(even, odd, 0x5410), __byte_perm(even, odd, 0x7632));
#else
    return make_float4(v.w[0], v.w[1], v.w[2], v.w[3]);
#endif
}

// COUNT rows from y on, of the four samples at x.
template <int COUNT>
__device__ __forceinline__ void fetch(const Plane& p, int x, int y, bool inside, raw4 raw[COUNT]) {
    if (inside) {
        const u8* at = src_at(p, x, y);
#pragma unroll
        for (int k = 0; k < COUNT; k++) raw[k] = load4(at, p.src_pitch, k);
    } else {
        load_edge<COUNT>(p, x, y, 1, raw);
    }
}

#ifdef MAXIMUM // 1 for the maximum, 0 for the minimum

#if MAXIMUM
#define best most
#else
#define best least
#endif

__device__ __forceinline__ Four best4(const Four& a, const Four& b) {
    Four out;
#pragma unroll
    for (int i = 0; i < WORDS; i++) out.w[i] = best(a.w[i], b.w[i]);
    return out;
}

#ifdef RADIUS_X

// One launch. Columns first, in registers: the rows that all ROWS windows share are joined once, those above and below in running order
// (van Herk's and Gil and Werman's method with the block in registers). Then rows, through shared memory, four windows a lane.

#define REACH (RADIUS_X * COMPONENTS)
#define PAD ((REACH + 3) / 4 * 4)
#define TILE (128 - 2 * PAD)
#define LINES (ROWS / DEEP)
#define PIXELS (4 / COMPONENTS)

// Extremes of columns over rows o to o + 2 RADIUS_Y, o = 0 to ROWS - 1, counted from y.
__device__ __forceinline__ void down(const Plane& p, int x, int y, bool inside, Four out[ROWS]) {
    if (2 * RADIUS_Y < ROWS - 1) {
        constexpr int SPAN = ROWS + 2 * RADIUS_Y;
        raw4 raw[SPAN];
        Four v[SPAN];
        fetch<SPAN>(p, x, y, inside, raw);
#pragma unroll
        for (int k = 0; k < SPAN; k++) v[k] = split(raw[k]);
#pragma unroll
        for (int o = 0; o < ROWS; o++) {
            out[o] = v[o];
#pragma unroll
            for (int k = 1; k <= 2 * RADIUS_Y; k++) out[o] = best4(out[o], v[o + k]);
        }
        return;
    }
    raw4 raw[ROWS];
    fetch<ROWS>(p, x, y, inside, raw);
#pragma unroll
    for (int o = 0; o < ROWS; o++) out[o] = split(raw[o]);
#pragma unroll
    for (int o = ROWS - 2; o >= 0; o--) out[o] = best4(out[o], out[o + 1]);
    // A chunk may reach below the shared rows, never below the last window.
    Four shared = out[ROWS - 1];
#pragma unroll
    for (int first = ROWS; first <= 2 * RADIUS_Y; first += ROWS) {
        fetch<ROWS>(p, x, y + first, inside, raw);
#pragma unroll
        for (int k = 0; k < ROWS; k++)
            if (first + k <= 2 * RADIUS_Y) shared = best4(shared, split(raw[k]));
    }
#pragma unroll
    for (int o = 0; o < ROWS; o++) out[o] = best4(out[o], shared);
    raw4 tail[ROWS - 1];
    fetch<ROWS - 1>(p, x, y + 2 * RADIUS_Y + 1, inside, tail);
    Four run = split(tail[0]);
#pragma unroll
    for (int o = 1; o < ROWS; o++) {
        if (o > 1) run = best4(run, split(tail[o - 1]));
        out[o] = best4(out[o], run);
    }
}

// The same along a row of words, four outputs.
__device__ __forceinline__ void across(const word* v, word out[4]) {
#pragma unroll
    for (int c = 0; c < COMPONENTS; c++) {
        if (2 * RADIUS_X < PIXELS - 1) {
#pragma unroll
            for (int o = 0; o < PIXELS; o++) {
                word all = v[o * COMPONENTS + c];
#pragma unroll
                for (int k = 1; k <= 2 * RADIUS_X; k++) all = best(all, v[(o + k) * COMPONENTS + c]);
                out[o * COMPONENTS + c] = all;
            }
        } else {
            word all = v[(PIXELS - 1) * COMPONENTS + c];
#pragma unroll
            for (int k = PIXELS; k <= 2 * RADIUS_X; k++) all = best(all, v[k * COMPONENTS + c]);
            out[(PIXELS - 1) * COMPONENTS + c] = all;
#pragma unroll
            for (int o = PIXELS - 2; o >= 0; o--) {
                all = best(all, v[o * COMPONENTS + c]);
                out[o * COMPONENTS + c] = all;
            }
            word run = v[(2 * RADIUS_X + 1) * COMPONENTS + c];
#pragma unroll
            for (int o = 1; o < PIXELS; o++) {
                if (o > 1) run = best(run, v[(2 * RADIUS_X + o) * COMPONENTS + c]);
                out[o * COMPONENTS + c] = best(out[o * COMPONENTS + c], run);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) extremum__fused(const __grid_constant__ Frame f) {
    __shared__ quad lines[WARPS][LINES][32];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const Block b = locate(f);
    const Plane& p = f.plane[b.plane];
    const int y0 = (b.y * WARPS + warp) * ROWS;
    if (y0 >= p.height) return;
    const int left = b.x * TILE - PAD;
    const bool inside = left >= 0 && left + 128 <= p.width * COMPONENTS && y0 >= RADIUS_Y && y0 + ROWS + RADIUS_Y <= p.height;
    Four v[ROWS];
    down(p, left + 4 * lane, y0 - RADIUS_Y, inside, v);
#pragma unroll
    for (int l = 0; l < LINES; l++) {
#if SAMPLE == 32
        lines[warp][l][lane] = make_quad(v[l].w[0], v[l].w[1], v[l].w[2], v[l].w[3]);
#else
        // A word holds one column of two rows from here on.
        const Four &a = v[2 * l], &c = v[2 * l + 1];
        lines[warp][l][lane] = make_quad(__byte_perm(a.w[0], c.w[0], 0x5410), __byte_perm(a.w[1], c.w[1], 0x5410),
                                         __byte_perm(a.w[0], c.w[0], 0x7632), __byte_perm(a.w[1], c.w[1], 0x7632));
#endif
    }
    __syncwarp();
    const int x = b.x * TILE + 4 * lane;
    if (lane >= TILE / 4 || x >= p.width * COMPONENTS) return;
    u8* to = dst_at(p, x, y0);
    const int rows = min(ROWS, p.height - y0);
#pragma unroll
    for (int l = 0; l < LINES; l++) {
        if (l * DEEP >= rows) break;
        word window[4 + 2 * PAD], out[4];
#pragma unroll
        for (int q = 0; q < 1 + PAD / 2; q++) {
            const quad part = lines[warp][l][lane + q];
            window[4 * q] = part.x;
            window[4 * q + 1] = part.y;
            window[4 * q + 2] = part.z;
            window[4 * q + 3] = part.w;
        }
        across(window + PAD - REACH, out);
#if SAMPLE != 32
#pragma unroll
        for (int i = 0; i < 4; i++) out[i] = of_keys(out[i]);
#endif
        store4(to, p.dst_pitch, l * DEEP, pack4(out[0], out[1], out[2], out[3]));
#if SAMPLE != 32
        if (2 * l + 1 < rows) store4(to, p.dst_pitch, 2 * l + 1, pack4(out[0] >> 16, out[1] >> 16, out[2] >> 16, out[3] >> 16));
#endif
    }
}

#else

// A window made larger: the extreme of extremes that lie up to their own width apart. A thread per sample.

#define PROBES 5

// Mirrors lower_windows.rs.
struct Probes {
    int count_x;
    int count_y;
    int x[PROBES]; // pixels
    int y[PROBES];
};

#if HALVES
__device__ __forceinline__ bool above(sample a, sample b) { return to_float(a) > to_float(b); }
#else
__device__ __forceinline__ bool above(sample a, sample b) { return a > b; }
#endif

// A place outside stands for the nearest inside: the window there reaches just as far into the plane as one that overhangs, whatever the
// border rule, except that wrapping goes around and zeros count as such.
__device__ __forceinline__ int probe(int i, int n, bool& zero) {
    if (i >= 0 && i < n) return i;
#if BORDER == BORDER_WRAP
    return border_index(i, n);
#else
    zero = true;
    return i < 0 ? 0 : n - 1;
#endif
}

extern "C" __global__ void __launch_bounds__(256) extremum__widened(const __grid_constant__ Frame f, const __grid_constant__ Probes k) {
    const Block b = locate(f);
    const Plane& p = f.plane[b.plane];
    const int at = b.x * 32 + (threadIdx.x & 31), y = b.y * 8 + (threadIdx.x >> 5);
    if (at >= p.width * COMPONENTS || y >= p.height) return;
    const int x = at / COMPONENTS, component = at % COMPONENTS;
    sample result = src_row(p, y)[at];
    bool zero = false;
#pragma unroll
    for (int j = 0; j < PROBES; j++) {
        if (j >= k.count_y) break;
        const sample* row = src_row(p, probe(y + k.y[j], p.height, zero));
#pragma unroll
        for (int i = 0; i < PROBES; i++) {
            if (i >= k.count_x) break;
            const sample v = row[probe(x + k.x[i], p.width, zero) * COMPONENTS + component];
#if MAXIMUM
            result = above(v, result) ? v : result;
#else
            result = above(result, v) ? v : result;
#endif
        }
    }
#if BORDER == BORDER_ZERO
    if (zero) result = (MAXIMUM != 0) == above(result, (sample)0) ? result : (sample)0;
#endif
    dst_row(p, y)[at] = result;
}

#endif
#endif

#ifdef RANK // of a window of radius 2 at most each way

// Networks: each column is sorted once and lent to its neighbours by shuffle; the columns that two neighbouring windows share are merged
// once (Batcher's odd-even merge); the rank of that list joined with one more column is a minimum of maxima. What does not lead to the
// rank, the compiler drops.

#define HEIGHT (2 * RADIUS_Y + 1)
#define TILE 120 // lanes 0 and 31 only lend their samples

// Merges two ascending lists.
template <int A, int B>
struct Merge {
    static __device__ __forceinline__ void run(const word* a, const word* b, word* out) {
        constexpr int EVEN_A = (A + 1) / 2, EVEN_B = (B + 1) / 2, ODD_A = A / 2, ODD_B = B / 2;
        constexpr int EVEN = EVEN_A + EVEN_B, ODD = ODD_A + ODD_B;
        word ea[EVEN_A], eb[EVEN_B], oa[ODD_A + 1], ob[ODD_B + 1], e[EVEN], o[ODD + 1];
#pragma unroll
        for (int i = 0; i < EVEN_A; i++) ea[i] = a[2 * i];
#pragma unroll
        for (int i = 0; i < EVEN_B; i++) eb[i] = b[2 * i];
#pragma unroll
        for (int i = 0; i < ODD_A; i++) oa[i] = a[2 * i + 1];
#pragma unroll
        for (int i = 0; i < ODD_B; i++) ob[i] = b[2 * i + 1];
        Merge<EVEN_A, EVEN_B>::run(ea, eb, e);
        Merge<ODD_A, ODD_B>::run(oa, ob, o);
        out[0] = e[0];
#pragma unroll
        for (int i = 0; i < ODD && i + 1 < EVEN; i++) {
            out[2 * i + 1] = least(o[i], e[i + 1]);
            out[2 * i + 2] = most(o[i], e[i + 1]);
        }
        if (EVEN == ODD) out[A + B - 1] = o[ODD - 1];
        if (EVEN == ODD + 2) out[A + B - 1] = e[EVEN - 1];
    }
};

template <>
struct Merge<1, 1> {
    static __device__ __forceinline__ void run(const word* a, const word* b, word* out) {
        out[0] = least(a[0], b[0]);
        out[1] = most(a[0], b[0]);
    }
};

template <int A>
struct Merge<A, 0> {
    static __device__ __forceinline__ void run(const word* a, const word*, word* out) {
#pragma unroll
        for (int i = 0; i < A; i++) out[i] = a[i];
    }
};

template <int B>
struct Merge<0, B> {
    static __device__ __forceinline__ void run(const word*, const word* b, word* out) {
#pragma unroll
        for (int i = 0; i < B; i++) out[i] = b[i];
    }
};

template <>
struct Merge<0, 0> {
    static __device__ __forceinline__ void run(const word*, const word*, word*) {}
};

template <int N>
struct Sort {
    static __device__ __forceinline__ void run(const word* in, word* out) {
        word low[N / 2], high[N - N / 2];
        Sort<N / 2>::run(in, low);
        Sort<N - N / 2>::run(in + N / 2, high);
        Merge<N / 2, N - N / 2>::run(low, high, out);
    }
};

template <>
struct Sort<1> {
    static __device__ __forceinline__ void run(const word* in, word* out) { out[0] = in[0]; }
};

// Place RANK of two ascending lists together: with i from the second, the larger of both lists' last; the smallest over i.
template <int A, int B>
__device__ __forceinline__ word select(const word* a, const word* b) {
    word result = most(a[0], b[0]);
    bool any = false;
#pragma unroll
    for (int i = 0; i <= B; i++) {
        const int j = RANK - i;
        if (j < A && j >= -1) {
            word value;
            if (i == 0)
                value = a[j < 0 ? 0 : j];
            else if (j < 0)
                value = b[i - 1];
            else
                value = most(a[j], b[i - 1]);
            result = any ? least(result, value) : value;
            any = true;
        }
    }
    return result;
}

// The results of two neighbours from their 2 RADIUS_X + 2 sorted columns.
__device__ __forceinline__ void neighbours(const word column[2 * RADIUS_X + 2][HEIGHT], word& first, word& second) {
#if RADIUS_X == 0
    first = column[0][RANK];
    second = column[1][RANK];
#elif RADIUS_X == 1
    word shared[2 * HEIGHT];
    Merge<HEIGHT, HEIGHT>::run(column[1], column[2], shared);
    first = select<2 * HEIGHT, HEIGHT>(shared, column[0]);
    second = select<2 * HEIGHT, HEIGHT>(shared, column[3]);
#else
    word low[2 * HEIGHT], high[2 * HEIGHT], shared[4 * HEIGHT];
    Merge<HEIGHT, HEIGHT>::run(column[1], column[2], low);
    Merge<HEIGHT, HEIGHT>::run(column[3], column[4], high);
    Merge<2 * HEIGHT, 2 * HEIGHT>::run(low, high, shared);
    first = select<4 * HEIGHT, HEIGHT>(shared, column[0]);
    second = select<4 * HEIGHT, HEIGHT>(shared, column[5]);
#endif
}

__device__ __forceinline__ word left_of(word v) { return __shfl_up_sync(0xffffffffu, v, 1); }
__device__ __forceinline__ word right_of(word v) { return __shfl_down_sync(0xffffffffu, v, 1); }

extern "C" __global__ void __launch_bounds__(32 * WARPS) median__network(const __grid_constant__ Frame f) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const Block b = locate(f);
    const Plane& p = f.plane[b.plane];
    const int y0 = (b.y * WARPS + warp) * ROWS;
    if (y0 >= p.height) return;
    const int left = b.x * TILE - 4;
    const int x = left + 4 * lane;
    const bool inside = left >= 0 && left + 128 <= p.width * COMPONENTS && y0 >= RADIUS_Y && y0 + ROWS + RADIUS_Y <= p.height;
    raw4 raw[ROWS + 2 * RADIUS_Y];
    fetch<ROWS + 2 * RADIUS_Y>(p, x, y0 - RADIUS_Y, inside, raw);
    const bool writes = lane >= 1 && lane < 31 && x < p.width * COMPONENTS;
    u8* to = p.dst + (u64)(u32)y0 * p.dst_pitch + (long long)x * (long long)sizeof(sample);
#pragma unroll
    for (int o = 0; o < ROWS; o++) {
        if (y0 + o >= p.height) break;
        word own[WORDS][HEIGHT];
#pragma unroll
        for (int w = 0; w < WORDS; w++) {
            word in[HEIGHT];
#pragma unroll
            for (int k = 0; k < HEIGHT; k++) in[k] = split(raw[o + k]).w[w];
            Sort<HEIGHT>::run(in, own[w]);
        }
        Four out;
        word column[2 * RADIUS_X + 2][HEIGHT];
#if SAMPLE == 32
        // Columns -2 to 5 around the lane's four.
        word around[8][HEIGHT];
#pragma unroll
        for (int k = 0; k < HEIGHT; k++) {
            around[0][k] = left_of(own[2][k]);
            around[1][k] = left_of(own[3][k]);
#pragma unroll
            for (int i = 0; i < 4; i++) around[2 + i][k] = own[i][k];
            around[6][k] = right_of(own[0][k]);
            around[7][k] = right_of(own[1][k]);
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
#pragma unroll
            for (int t = 0; t < 2 * RADIUS_X + 2; t++)
#pragma unroll
                for (int k = 0; k < HEIGHT; k++) column[t][k] = around[2 + 2 * half - RADIUS_X + t][k];
            neighbours(column, out.w[2 * half], out.w[2 * half + 1]);
        }
#elif COMPONENTS == 1
#pragma unroll
        for (int k = 0; k < HEIGHT; k++) {
            const word even = own[0][k], odd = own[1][k];
            const word around[6] = {__byte_perm(left_of(even), even, 0x5432), __byte_perm(left_of(odd), odd, 0x5432), even, odd,
                                    __byte_perm(even, right_of(even), 0x5432), __byte_perm(odd, right_of(odd), 0x5432)};
#pragma unroll
            for (int t = 0; t < 2 * RADIUS_X + 2; t++) column[t][k] = around[2 - RADIUS_X + t];
        }
        neighbours(column, out.w[0], out.w[1]);
#else
        // A word is one component of two pixels; its two neighbours are not neighbours of each other.
#pragma unroll
        for (int w = 0; w < 2; w++) {
#pragma unroll
            for (int k = 0; k < HEIGHT; k++) {
                const word mid = own[w][k], before = left_of(mid), behind = right_of(mid);
                const word around[6] = {before, __byte_perm(before, mid, 0x5432), mid, __byte_perm(mid, behind, 0x5432), behind, behind};
#pragma unroll
                for (int t = 0; t < 2 * RADIUS_X + 2; t++) column[t][k] = around[2 - RADIUS_X + t];
            }
            word unused;
            neighbours(column, out.w[w], unused);
        }
#endif
        if (writes) store4(to, p.dst_pitch, o, join(out));
    }
}
#endif
