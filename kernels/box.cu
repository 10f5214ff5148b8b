// Means over windows.
//
// "fused": one launch for radii up to 31. A warp keeps four packed column sums per lane, slides them down ROWS rows, and
// takes each row's windows from a prefix sum across the warp: the cost per sample hardly grows with the radius.
//
// "running": one pass per direction through device memory, for any radius and any number of passes. A block makes the
// prefix sums of its rows or columns; a window is the difference of two values of the *extended* prefix sum, which has a
// closed form under every border rule, so the cost does not depend on the radius at all. Sums are integers modulo 2^32 or
// 2^64 (a difference is exact whenever the window's own sum fits) and doubles for float planes.
#include "plane.cuh"

#ifdef RADIUS_X

#ifndef ROWS
#define ROWS 8
#endif
#ifndef WARPS
#define WARPS 4
#endif
#define PAD ((RADIUS_X * COMPONENTS + 3) / 4 * 4)
#define TILE (128 - 2 * PAD)
#define COUNT ((2 * RADIUS_X + 1) * (2 * RADIUS_Y + 1))

#if FLOATING
#error "integer samples only"
#endif

// Four column sums. 8-bit samples share words: 63 * 255 fits 16 bits.
struct Sums {
#if SAMPLE == 8
    u32 even, odd;
    __device__ __forceinline__ void add(raw4 r) {
        even += r & 0x00ff00ffu;
        odd += (r >> 8) & 0x00ff00ffu;
    }
    __device__ __forceinline__ void sub(raw4 r) {
        even -= r & 0x00ff00ffu;
        odd -= (r >> 8) & 0x00ff00ffu;
    }
    __device__ __forceinline__ uint4 columns() const { return make_uint4(even & 0xffffu, odd & 0xffffu, even >> 16, odd >> 16); }
#elif SAMPLE == 16
    u32 v[4];
    __device__ __forceinline__ void add(raw4 r) {
        v[0] += (r.x & 0xffffu) >> SHIFT;
        v[1] += r.x >> (16 + SHIFT);
        v[2] += (r.y & 0xffffu) >> SHIFT;
        v[3] += r.y >> (16 + SHIFT);
    }
    __device__ __forceinline__ void sub(raw4 r) {
        v[0] -= (r.x & 0xffffu) >> SHIFT;
        v[1] -= r.x >> (16 + SHIFT);
        v[2] -= (r.y & 0xffffu) >> SHIFT;
        v[3] -= r.y >> (16 + SHIFT);
    }
    __device__ __forceinline__ uint4 columns() const { return make_uint4(v[0], v[1], v[2], v[3]); }
#endif
};

// Mean of a window sum, half up, exact.
__device__ __forceinline__ u32 mean(u32 sum) {
    const u32 n = COUNT;
    const u32 s = sum + n / 2; // n is odd
#if MAX_VALUE <= 255
    // s < 2^24 and the quotient's distance from an integer is at least 1 / (2 n) = 1.2e-4, above the product's error 3e-5.
    return (u32)(((float)s + 0.5f) * (1.0f / (float)n));
#else
    int q = (int)((float)s * (1.0f / (float)n));
    const int rest = (int)(s - (u32)q * n);
    if (rest < 0) q--;
    if (rest >= (int)n) q++;
    return (u32)q;
#endif
}

// Window sums of the four samples at column 4 lane, from a row's exclusive prefix sums.
__device__ __forceinline__ void windows(const uint4* row, int lane, u32 sum[4]) {
    constexpr int HIGH = PAD + (RADIUS_X + 1) * COMPONENTS, LOW = PAD - RADIUS_X * COMPONENTS;
    const uint4 h0 = row[lane + HIGH / 4], l0 = row[lane + LOW / 4];
    uint4 h1 = h0, l1 = l0;
    if (HIGH % 4) h1 = row[lane + HIGH / 4 + 1];
    if (LOW % 4) l1 = row[lane + LOW / 4 + 1];
    const u32 high[8] = {h0.x, h0.y, h0.z, h0.w, h1.x, h1.y, h1.z, h1.w};
    const u32 low[8] = {l0.x, l0.y, l0.z, l0.w, l1.x, l1.y, l1.z, l1.w};
#pragma unroll
    for (int i = 0; i < 4; i++) sum[i] = high[HIGH % 4 + i] - low[LOW % 4 + i];
}

#define AHEAD 16 // rows of the first window in flight

extern "C" __global__ void __launch_bounds__(32 * WARPS) box__fused(const __grid_constant__ Frame f) {
    __shared__ uint4 prefix[WARPS][ROWS][34];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const Block b = locate(f);
    const Plane& p = f.plane[b.plane];
    const int y0 = (b.y * WARPS + warp) * ROWS;
    if (y0 >= p.height) return;
    const int left = b.x * TILE - PAD;
    const bool inside = left >= 0 && left + 128 <= p.width * COMPONENTS && y0 >= RADIUS_Y && y0 + ROWS + RADIUS_Y <= p.height;
    const int from_x = left + 4 * lane;
    const u8* at = inside ? src_at(p, from_x, y0 - RADIUS_Y) : nullptr;
    const u32 pitch = p.src_pitch;
    Sums sums = {};
    uint4 column[ROWS];
    raw4 in[ROWS], out[ROWS];
    if (inside) {
#pragma unroll
        for (int o = 0; o < ROWS; o++) {
            in[o] = load4(at, pitch, 2 * RADIUS_Y + o);
            out[o] = load4(at, pitch, o);
        }
#pragma unroll
        for (int first = 0; first < 2 * RADIUS_Y; first += AHEAD) {
            raw4 raw[AHEAD];
#pragma unroll
            for (int k = 0; k < AHEAD; k++)
                if (first + k < 2 * RADIUS_Y) raw[k] = load4(at, pitch, first + k);
#pragma unroll
            for (int k = 0; k < AHEAD; k++)
                if (first + k < 2 * RADIUS_Y) sums.add(raw[k]);
        }
    } else {
        load_edge<ROWS>(p, from_x, y0 + RADIUS_Y, 1, in);
        load_edge<ROWS>(p, from_x, y0 - RADIUS_Y, 1, out);
        constexpr int BATCH = 8;
        for (int first = 0; first < 2 * RADIUS_Y; first += BATCH) {
            raw4 raw[BATCH];
            load_edge<BATCH>(p, from_x, y0 - RADIUS_Y + first, 1, raw);
#pragma unroll
            for (int k = 0; k < BATCH; k++)
                if (first + k < 2 * RADIUS_Y) sums.add(raw[k]);
        }
    }
#pragma unroll
    for (int o = 0; o < ROWS; o++) {
        sums.add(in[o]);
        column[o] = sums.columns();
        sums.sub(out[o]);
    }
    // Exclusive prefix sums over the warp's 128 columns, per component, the rows side by side so that shuffles overlap.
#if COMPONENTS == 1
    u32 scan[ROWS];
#pragma unroll
    for (int o = 0; o < ROWS; o++) scan[o] = column[o].x + column[o].y + column[o].z + column[o].w;
#pragma unroll
    for (int d = 1; d < 32; d *= 2)
#pragma unroll
        for (int o = 0; o < ROWS; o++) {
            const u32 v = __shfl_up_sync(0xffffffffu, scan[o], d);
            if (lane >= d) scan[o] += v;
        }
#pragma unroll
    for (int o = 0; o < ROWS; o++) {
        const uint4 c = column[o];
        const u32 last = scan[o] - c.w, third = last - c.z, second = third - c.y;
        prefix[warp][o][lane] = make_uint4(second - c.x, second, third, last);
        if (lane == 31) prefix[warp][o][32] = make_uint4(scan[o], scan[o], scan[o], scan[o]);
    }
#else
    u32 scan[2][ROWS];
#pragma unroll
    for (int o = 0; o < ROWS; o++) {
        scan[0][o] = column[o].x + column[o].z;
        scan[1][o] = column[o].y + column[o].w;
    }
#pragma unroll
    for (int d = 1; d < 32; d *= 2)
#pragma unroll
        for (int o = 0; o < ROWS; o++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const u32 v = __shfl_up_sync(0xffffffffu, scan[c][o], d);
                if (lane >= d) scan[c][o] += v;
            }
#pragma unroll
    for (int o = 0; o < ROWS; o++) {
        const uint4 c = column[o];
        const u32 last0 = scan[0][o] - c.z, last1 = scan[1][o] - c.w;
        prefix[warp][o][lane] = make_uint4(last0 - c.x, last1 - c.y, last0, last1);
        if (lane == 31) prefix[warp][o][32] = make_uint4(scan[0][o], scan[1][o], scan[0][o], scan[1][o]);
    }
#endif
    __syncwarp();
    const int x = b.x * TILE + 4 * lane;
    if (lane >= TILE / 4 || x >= p.width * COMPONENTS) return;
    u8* to = dst_at(p, x, y0);
    const int rows = min(ROWS, p.height - y0);
#pragma unroll 4
    for (int o = 0; o < ROWS; o++) {
        if (o >= rows) break;
        u32 v[4];
        windows(prefix[warp][o], lane, v);
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = mean(v[i]) << SHIFT;
        store4(to, p.dst_pitch, o, pack4(v[0], v[1], v[2], v[3]));
    }
}

#else

// Compile-time: READS and WRITES are 0 for samples, 1 for 4-byte scratch (u32 with FRACTION fractional bits, or float);
// WIDE selects 64-bit sums; DIVISOR_BITS... see Pass.
#if FLOATING
typedef double acc;
typedef float scratch;
#elif WIDE
typedef u64 acc;
typedef u32 scratch;
#else
typedef u32 acc;
typedef u32 scratch;
#endif

// Mirrors lower.rs.
struct Pass {
    int radius;
    u32 divisor;   // samples in the window that this pass finishes; 1 hands on the bare sum
    int shift_in;  // fractional bits of the scratch that is read (0 for samples)
    int shift_out; // fractional bits of the scratch that is written (0 for samples)
};

__device__ __forceinline__ acc read_value(const u8* at, int i) {
#if READS == 0
    const sample v = reinterpret_cast<const sample*>(at)[i];
#if FLOATING
    return (acc)to_float(v);
#else
    return (acc)to_code(v);
#endif
#else
    return (acc) reinterpret_cast<const scratch*>(at)[i];
#endif
}

__device__ __forceinline__ void write_value(u8* at, int i, acc sum, const Pass& t) {
#if FLOATING
    const float mean = (float)(sum / (double)t.divisor);
#if WRITES == 1
    reinterpret_cast<scratch*>(at)[i] = mean;
#else
    reinterpret_cast<sample*>(at)[i] = (sample)mean;
#endif
#elif WRITES == 1 && !WIDE
    reinterpret_cast<scratch*>(at)[i] = sum;
#else
    u64 s = sum;
#if WRITES == 1
    s = t.shift_out >= t.shift_in ? s << (t.shift_out - t.shift_in) : s >> (t.shift_in - t.shift_out);
    reinterpret_cast<scratch*>(at)[i] = (scratch)min((s + t.divisor / 2) / t.divisor, 0xffffffffull);
#else
    const u64 unit = (u64)t.divisor << t.shift_in;
    reinterpret_cast<sample*>(at)[i] = (sample)((u32)min((s + unit / 2) / unit, (u64)MAX_VALUE) << SHIFT);
#endif
#endif
}

// Sum of the first k values (k may be negative or beyond n) of a line continued by the border rule; `P(k)` is that sum for
// 0 <= k <= n.
template <class Prefix>
__device__ __forceinline__ acc extended(const Prefix& P, int k, int n) {
    if (k >= 0 && k <= n) return P(k);
#if BORDER == BORDER_ZERO
    return k < 0 ? (acc)0 : P(n);
#elif BORDER == BORDER_CLAMP
    return k < 0 ? (acc)k * P(1) : P(n) + (acc)(k - n) * (P(n) - P(n - 1));
#else
#if BORDER == BORDER_REFLECT101
    if (n == 1) return (acc)k * P(1);
    const int period = 2 * n - 2;
    const acc whole = P(n) + P(n - 1) - P(1);
#elif BORDER == BORDER_REFLECT
    const int period = 2 * n;
    const acc whole = P(n) + P(n);
#else
    const int period = n;
    const acc whole = P(n);
#endif
    int q = k / period, r = k - q * period;
    if (r < 0) r += period, q--;
    acc part;
    if (r <= n)
        part = P(r);
    else {
#if BORDER == BORDER_REFLECT101
        part = P(n) + P(n - 1) - P(2 * n - 1 - r);
#else
        part = P(n) + P(n) - P(2 * n - r);
#endif
    }
    return (acc)q * whole + part;
#endif
}

#define ROW_THREADS 256

// A block per row. Prefix sums lie in dynamic shared memory where the row fits (IN_SHARED), else in the aux plane.
extern "C" __global__ void __launch_bounds__(ROW_THREADS) box__rows(const __grid_constant__ Frame f, const __grid_constant__ Pass t) {
    extern __shared__ double shared_prefix[];
    __shared__ acc warp_total[ROW_THREADS / 32];
    const Block b = locate(f);
    const Plane& p = f.plane[b.plane];
    const u8* in = p.src + (u64)(u32)b.y * p.src_pitch;
    u8* out = p.dst + (u64)(u32)b.y * p.dst_pitch;
#if IN_SHARED
    acc* prefix = reinterpret_cast<acc*>(shared_prefix);
#else
    acc* prefix = reinterpret_cast<acc*>(p.aux + (u64)(u32)b.y * p.aux_pitch);
#endif
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (int c = 0; c < COMPONENTS; c++) {
        acc carry = 0;
        for (int first = 0; first < p.width; first += 4 * ROW_THREADS) {
            const int x = first + 4 * threadIdx.x;
            acc v[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                v[i] = x + i < p.width ? read_value(in, (x + i) * COMPONENTS + c) : (acc)0;
                if (i) v[i] += v[i - 1];
            }
            acc scan = v[3];
#pragma unroll
            for (int d = 1; d < 32; d *= 2) {
                const acc up = __shfl_up_sync(0xffffffffu, scan, d);
                if (lane >= d) scan += up;
            }
            if (lane == 31) warp_total[warp] = scan;
            __syncthreads();
            acc base = carry + scan - v[3];
            acc total = 0;
#pragma unroll
            for (int w = 0; w < ROW_THREADS / 32; w++) {
                if (w < warp) base += warp_total[w];
                total += warp_total[w];
            }
            carry += total;
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (x + i < p.width) prefix[(x + i) * COMPONENTS + c] = base + v[i];
            __syncthreads();
        }
        const auto P = [&](int k) { return k == 0 ? (acc)0 : prefix[(k - 1) * COMPONENTS + c]; };
        for (int x = threadIdx.x; x < p.width; x += ROW_THREADS)
            write_value(out, x * COMPONENTS + c, extended(P, x + t.radius + 1, p.width) - extended(P, x - t.radius, p.width), t);
    }
}

#define COLUMNS 16
#define GROUPS 64

// A block per 16 columns, all rows; 64 groups of threads share the rows. Prefix sums lie in the aux plane.
extern "C" __global__ void __launch_bounds__(COLUMNS* GROUPS) box__cols(const __grid_constant__ Frame f, const __grid_constant__ Pass t) {
    __shared__ acc group_total[GROUPS][COLUMNS];
    const Block b = locate(f);
    const Plane& p = f.plane[b.plane];
    const int column = threadIdx.x & (COLUMNS - 1), group = threadIdx.x / COLUMNS;
    const int x = b.x * COLUMNS + column;
    const bool valid = x < p.width * COMPONENTS;
    const int per_group = (p.height + GROUPS - 1) / GROUPS;
    const int low = min(group * per_group, p.height), high = min(low + per_group, p.height);
    acc sum = 0;
    if (valid)
#pragma unroll 4
        for (int y = low; y < high; y++) sum += read_value(p.src + (u64)(u32)y * p.src_pitch, x);
    group_total[group][column] = sum;
    __syncthreads();
    if (group == 0) {
        acc base = 0;
        for (int g = 0; g < GROUPS; g++) {
            const acc v = group_total[g][column];
            group_total[g][column] = base;
            base += v;
        }
    }
    __syncthreads();
    if (valid) {
        acc run = group_total[group][column];
#pragma unroll 4
        for (int y = low; y < high; y++) {
            run += read_value(p.src + (u64)(u32)y * p.src_pitch, x);
            reinterpret_cast<acc*>(p.aux + (u64)(u32)y * p.aux_pitch)[x] = run;
        }
    }
    __syncthreads();
    if (!valid) return;
    const auto P = [&](int k) { return k == 0 ? (acc)0 : reinterpret_cast<const acc*>(p.aux + (u64)(u32)(k - 1) * p.aux_pitch)[x]; };
    for (int y = low; y < high; y++)
        write_value(p.dst + (u64)(u32)y * p.dst_pitch, x, extended(P, y + t.radius + 1, p.height) - extended(P, y - t.radius, p.height), t);
}
#endif
