// Means of integer samples over windows of any radius whose sum fits 32 bits, in two launches through a plane of words
// ("running"): windows down each column, then across each row. Neither cost depends on the radius, and nothing but the
// samples and that plane (which the L2 holds at 1080p) is read or written.
//
// box__columns: a block sums ACROSS quads of columns over their whole height.
//
//        4 ACROSS columns
//      +----------+  chunk 0: `rows` rows, one thread per quad           prefix sums at chunk borders (shared memory)
//      +----------+  chunk 1                                      --->   + some rows = any prefix sum
//      +----------+  ...                                                 two of them = the window of a chunk's first row
//      +----------+  chunk CHUNKS - 1                                    + one row - one row = each next window
//
// The *extended* prefix sum has a closed form under every border rule, so a window far outside costs no more than one
// inside. Bytes per sample: 4 reads of it, of which 3 meet the L1 or L2, 4 written.
//
// box__across: a block per row. Prefix sums of the row in dynamic shared memory, written 16 bytes a lane and read 4, side by
// side, hence without bank conflicts; a window is the difference of two. The quotient is the high word of a product, which
// the host checks to be exact. Bytes per sample: 4 read, 1 or 2 written.
//
// Sums are taken modulo 2^32: a difference is exact whenever the window's own sum fits.
// Measured (H200, 1080p 8 bits, radius 500): 7.4 and 6.2 us, together 25 % of a copy's rate.
#include "plane.cuh"

#if FLOATING
#error "integer samples only"
#endif

// Sum of the first k values (k may be negative or beyond n) of a line continued by the border rule; `P(k)` is that sum for
// 0 <= k <= n.
template <class Sum, class Prefix>
__device__ __forceinline__ Sum extended(const Prefix& P, int k, int n) {
    if (k >= 0 && k <= n) return P(k);
#if BORDER == BORDER_ZERO
    return P(k < 0 ? 0 : n);
#elif BORDER == BORDER_CLAMP
    return k < 0 ? P(1) * (u32)k : P(n) + (P(n) - P(n - 1)) * (u32)(k - n);
#else
#if BORDER == BORDER_REFLECT101
    if (n == 1) return P(1) * (u32)k;
    const int period = 2 * n - 2;
    const Sum whole = P(n) + P(n - 1) - P(1);
#elif BORDER == BORDER_REFLECT
    const int period = 2 * n;
    const Sum whole = P(n) + P(n);
#else
    const int period = n;
    const Sum whole = P(n);
#endif
    int q = k / period, r = k - q * period;
    if (r < 0) r += period, q--;
    if (r <= n) return whole * (u32)q + P(r);
#if BORDER == BORDER_REFLECT101
    return whole * (u32)q + P(n) + P(n - 1) - P(2 * n - 1 - r);
#else
    return whole * (u32)q + P(n) + P(n) - P(2 * n - r);
#endif
#endif
}

#ifdef ACROSS // columns

struct Words {
    u32 v[4];
};

__device__ __forceinline__ Words operator+(const Words& a, const Words& b) { return {a.v[0] + b.v[0], a.v[1] + b.v[1], a.v[2] + b.v[2], a.v[3] + b.v[3]}; }
__device__ __forceinline__ Words operator-(const Words& a, const Words& b) { return {a.v[0] - b.v[0], a.v[1] - b.v[1], a.v[2] - b.v[2], a.v[3] - b.v[3]}; }
__device__ __forceinline__ Words operator*(const Words& a, u32 b) { return {a.v[0] * b, a.v[1] * b, a.v[2] * b, a.v[3] * b}; }

__device__ __forceinline__ Words words_of(raw4 r) {
#if SAMPLE == 8
    return {r & 0xffu, (r >> 8) & 0xffu, (r >> 16) & 0xffu, r >> 24};
#else
    return {(r.x & 0xffffu) >> SHIFT, r.x >> (16 + SHIFT), (r.y & 0xffffu) >> SHIFT, r.y >> (16 + SHIFT)};
#endif
}

// Mirrors lower.rs.
struct Down {
    int radius;
};

#define CHUNKS (THREADS / ACROSS)
#define BATCH 5
#define STRIDE (CHUNKS + 2) // words between columns: lanes of a warp hit different banks

extern "C" __global__ void __launch_bounds__(THREADS, 1) box__columns(const __grid_constant__ Frame f, const __grid_constant__ Down t) {
    __shared__ u32 above[4 * ACROSS * STRIDE];
#if STAGED
    extern __shared__ raw4 strip[]; // the block's columns, whole
#endif
    const Block b = locate(f);
    const Plane& p = f.plane[b.plane];
    const int quad = threadIdx.x % ACROSS, chunk = threadIdx.x / ACROSS;
    const int rows = (p.height + CHUNKS - 1) / CHUNKS;
    const int first = min(chunk * rows, p.height), last = min(first + rows, p.height);
    // Quads behind the row's end are computed from its padding, which is readable, and never written.
    const int x = min((b.x * ACROSS + quad) * 4, (p.width * COMPONENTS - 1) / 4 * 4);
    const u8* column = p.src + (u32)x * (u32)sizeof(sample);
    // Every row is read some four times; from shared memory where the strip fits.
    const auto row = [&](int y) {
#if STAGED
        return strip[y * ACROSS + quad];
#else
        return load4(column, p.src_pitch, y);
#endif
    };
    // Rows from `low` to before `high`, BATCH loads in flight: a loop that waited for each would take longer than all the rest.
    const auto sum_of = [&](int low, int high) {
        Words s = {};
        for (int y = low; y < high; y += BATCH) {
            raw4 r[BATCH];
#pragma unroll
            for (int k = 0; k < BATCH; k++) r[k] = row(min(y + k, p.height - 1));
#pragma unroll
            for (int k = 0; k < BATCH; k++)
                if (y + k < high) s = s + words_of(r[k]);
        }
        return s;
    };
    Words sum = {};
#if STAGED
    for (int y = first; y < last; y += BATCH) {
        raw4 r[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; k++) r[k] = load4(column, p.src_pitch, min(y + k, p.height - 1));
#pragma unroll
        for (int k = 0; k < BATCH; k++)
            if (y + k < last) {
                sum = sum + words_of(r[k]);
                strip[(y + k) * ACROSS + quad] = r[k];
            }
    }
#else
    sum = sum_of(first, last);
#endif
#pragma unroll
    for (int i = 0; i < 4; i++) above[(4 * quad + i) * STRIDE + chunk] = sum.v[i];
    __syncthreads();
    // Exclusive prefix sums over the chunks, a warp per column.
    for (int c = threadIdx.x / 32; c < 4 * ACROSS; c += THREADS / 32) {
        const int lane = threadIdx.x & 31;
        u32 carry = 0, v[CHUNKS / 32], scan[CHUNKS / 32];
#pragma unroll
        for (int k = 0; k < CHUNKS / 32; k++) scan[k] = v[k] = above[c * STRIDE + 32 * k + lane];
#pragma unroll
        for (int d = 1; d < 32; d *= 2)
#pragma unroll
            for (int k = 0; k < CHUNKS / 32; k++) {
                const u32 up = __shfl_up_sync(0xffffffffu, scan[k], d);
                if (lane >= d) scan[k] += up;
            }
#pragma unroll
        for (int k = 0; k < CHUNKS / 32; k++) {
            above[c * STRIDE + 32 * k + lane] = carry + scan[k] - v[k];
            carry += __shfl_sync(0xffffffffu, scan[k], 31);
        }
    }
    __syncthreads();
    if (first >= last || (b.x * ACROSS + quad) * 4 >= p.width * COMPONENTS) return;
    const u32* mine = above + 4 * quad * STRIDE;
    const auto P = [&](int k) {
        // The last chunk's border may lie below the last chunk.
        const int at = min(k / rows, CHUNKS - 1);
        const Words s = {mine[at], mine[STRIDE + at], mine[2 * STRIDE + at], mine[3 * STRIDE + at]};
        return s + sum_of(at * rows, k);
    };
    Words window = extended<Words>(P, first + t.radius + 1, p.height) - extended<Words>(P, first - t.radius, p.height);
    u8* out = p.dst + (u64)(u32)first * p.dst_pitch + (u32)x * 4u;
    for (int y = first; y < last; y += BATCH) {
        raw4 more[BATCH], less[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            const int in = border_index(y + k + t.radius + 1, p.height), gone = border_index(y + k - t.radius, p.height);
            more[k] = row(max(in, 0));
            less[k] = row(max(gone, 0));
#if BORDER == BORDER_ZERO
            if (in < 0) more[k] = zero4();
            if (gone < 0) less[k] = zero4();
#endif
        }
#pragma unroll
        for (int k = 0; k < BATCH; k++, out += p.dst_pitch)
            if (y + k < last) {
                *reinterpret_cast<uint4*>(out) = make_uint4(window.v[0], window.v[1], window.v[2], window.v[3]);
                window = window + words_of(more[k]) - words_of(less[k]);
            }
    }
}

#else // rows

// Mirrors lower_box.rs: quotient = (sum + half) * magic >> (32 + shift).
struct Across {
    int radius;
    u32 half;
    u32 magic;
    int shift;
};

#define GROUPS 4 // of 4 neighbouring words a lane: a warp takes 4 times 128 words together
#define SPAN (128 * GROUPS)
#define FRONT 4 // words before the first, of which the last COMPONENTS are the empty sum

extern "C" __global__ void __launch_bounds__(THREADS) box__across(const __grid_constant__ Frame f, const __grid_constant__ Across t) {
    extern __shared__ uint4 prefix4[]; // FRONT, then inclusive prefix sums per component
    __shared__ u32 warp_total[COMPONENTS][THREADS / 32];
    u32* prefix = reinterpret_cast<u32*>(prefix4);
    const Block b = locate(f);
    const Plane& p = f.plane[b.plane];
    const int samples = p.width * COMPONENTS;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const u32* in = reinterpret_cast<const u32*>(p.src + (u64)(u32)b.y * p.src_pitch);
    if (threadIdx.x == 0) prefix4[0] = make_uint4(0, 0, 0, 0);
    u32 carry[COMPONENTS] = {};
    for (int first = 0; first < samples; first += SPAN * (THREADS / 32)) {
        const int x = first + warp * SPAN + 4 * lane;
        u32 v[GROUPS][4], scan[GROUPS][COMPONENTS];
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            // Rows of this plane are padded to 128 bytes; what lies there reaches no sum that is used.
            const uint4 four = x + 128 * g < samples ? *reinterpret_cast<const uint4*>(in + x + 128 * g) : make_uint4(0, 0, 0, 0);
            v[g][0] = four.x, v[g][1] = four.y, v[g][2] = four.z, v[g][3] = four.w;
        }
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
#pragma unroll
            for (int i = COMPONENTS; i < 4; i++) v[g][i] += v[g][i - COMPONENTS];
#pragma unroll
            for (int c = 0; c < COMPONENTS; c++) scan[g][c] = v[g][4 - COMPONENTS + c];
        }
#pragma unroll
        for (int d = 1; d < 32; d *= 2)
#pragma unroll
            for (int g = 0; g < GROUPS; g++)
#pragma unroll
                for (int c = 0; c < COMPONENTS; c++) {
                    const u32 up = __shfl_up_sync(0xffffffffu, scan[g][c], d);
                    if (lane >= d) scan[g][c] += up;
                }
        u32 before[GROUPS][COMPONENTS];
#pragma unroll
        for (int c = 0; c < COMPONENTS; c++) {
            u32 run = 0;
#pragma unroll
            for (int g = 0; g < GROUPS; g++) {
                before[g][c] = run + scan[g][c] - v[g][4 - COMPONENTS + c];
                run += __shfl_sync(0xffffffffu, scan[g][c], 31);
            }
            if (lane == 0) warp_total[c][warp] = run;
        }
        __syncthreads();
        u32 base[COMPONENTS];
#pragma unroll
        for (int c = 0; c < COMPONENTS; c++) {
            base[c] = carry[c];
#pragma unroll
            for (int w = 0; w < THREADS / 32; w++) {
                const u32 total = warp_total[c][w];
                if (w < warp) base[c] += total;
                carry[c] += total;
            }
        }
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
            if (x + 128 * g < samples) {
                u32 sums[4];
#pragma unroll
                for (int i = 0; i < 4; i++) sums[i] = base[i % COMPONENTS] + before[g][i % COMPONENTS] + v[g][i];
                prefix4[(FRONT + x + 128 * g) / 4] = make_uint4(sums[0], sums[1], sums[2], sums[3]);
            }
        __syncthreads();
    }
    sample* out = dst_row(p, b.y);
    const int n = p.width;
    const u32* sums = prefix + FRONT - COMPONENTS; // sums[k COMPONENTS + c]: of the first k samples of component c
    for (int first = warp * SPAN; first < samples; first += SPAN * (THREADS / 32))
#pragma unroll 4
        for (int i = 0; i < SPAN; i += 32) {
            const int x = first + i + lane;
            if (x >= samples) break;
            const int c = x % COMPONENTS, high = x / COMPONENTS + t.radius + 1, low = x / COMPONENTS - t.radius;
            const auto P = [&](int k) { return sums[k * COMPONENTS + c]; };
            u32 sum;
#if BORDER == BORDER_CLAMP || BORDER == BORDER_ZERO
            const int high_in = min(high, n), low_in = max(low, 0);
            sum = P(high_in) - P(low_in) + t.half;
#if BORDER == BORDER_CLAMP
            sum += (u32)(high - high_in) * (P(n) - P(n - 1)) + (u32)(low_in - low) * P(1);
#endif
#else
            if (low >= 0 && high <= n)
                sum = P(high) - P(low) + t.half;
            else
                sum = extended<u32>(P, high, n) - extended<u32>(P, low, n) + t.half;
#endif
            out[x] = (sample)((__umulhi(sum, t.magic) >> t.shift) << SHIFT);
        }
}
#endif
