// General 2-D kernels from a shared-memory tile with halo, several samples per thread in registers ("tiled").
//
// A block of WARPS warps filters TILE x (WARPS * ROWS) samples. The tile and its halo are converted to float once, in shared
// memory; lane l then sums the four columns at 4 l over ROWS rows, each shared row read once for all the output rows that
// it reaches. Bytes: each sample read once from device memory plus the halo, written once.
#include "plane.cuh"

#ifndef WARPS
#define WARPS 4
#endif
#ifndef ROWS
#define ROWS 8
#endif

#ifdef RADIUS_X // the kernel's size is a compile-time constant: everything unrolled

#define REACH (RADIUS_X * COMPONENTS)
#define PAD ((REACH + 3) / 4 * 4)
#define TILE (128 - 2 * PAD)
#define STAGED (WARPS * ROWS + 2 * RADIUS_Y)

// Mirrors the bytes that lower.rs builds; sizes are odd, an even kernel is padded with zeros at the right and below.
struct Taps {
    wide tap[2 * RADIUS_Y + 1][2 * RADIUS_X + 1];
    Finish finish;
};

#define SHARE ((STAGED + WARPS - 1) / WARPS)

__device__ __forceinline__ void stage(float4 tile[STAGED][32], const Plane& p, int left, int top) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const int x = left + 4 * lane;
    const bool inside = left >= 0 && left + 128 <= p.width * COMPONENTS && top >= 0 && top + STAGED <= p.height;
    float v[4];
    raw4 raw[SHARE];
    if (inside) {
        const u8* at = src_at(p, x, top + warp);
        const u32 pitch = p.src_pitch;
#pragma unroll
        for (int k = 0; k < SHARE; k++)
            if (k * WARPS + WARPS <= STAGED || k * WARPS + warp < STAGED) raw[k] = load4(at, pitch, k * WARPS);
    } else {
        load_edge<SHARE>(p, x, top + warp, WARPS, raw);
    }
#pragma unroll
    for (int k = 0; k < SHARE; k++)
        if (k * WARPS + WARPS <= STAGED || k * WARPS + warp < STAGED) {
            unpack(raw[k], v);
            tile[k * WARPS + warp][lane] = make_float4(v[0], v[1], v[2], v[3]);
        }
}

extern "C" __global__ void __launch_bounds__(32 * WARPS) direct__tiled(const __grid_constant__ Frame f, const __grid_constant__ Taps t) {
    __shared__ float4 tile[STAGED][32];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const Block b = locate(f);
    const Plane& p = f.plane[b.plane];
    stage(tile, p, b.x * TILE - PAD, b.y * (WARPS * ROWS) - RADIUS_Y);
    __syncthreads();
    const int x = b.x * TILE + 4 * lane;
    const int y0 = (b.y * WARPS + warp) * ROWS;
    if (lane >= TILE / 4 || x >= p.width * COMPONENTS || y0 >= p.height) return;
    wide acc[ROWS][4];
#pragma unroll
    for (int o = 0; o < ROWS; o++)
#pragma unroll
        for (int i = 0; i < 4; i++) acc[o][i] = 0.f;
#pragma unroll
    for (int r = 0; r < ROWS + 2 * RADIUS_Y; r++) {
        wide window[4 + 2 * PAD];
#pragma unroll
        for (int q = 0; q < 1 + PAD / 2; q++) {
            const float4 v = tile[warp * ROWS + r][lane + q];
            window[4 * q] = v.x;
            window[4 * q + 1] = v.y;
            window[4 * q + 2] = v.z;
            window[4 * q + 3] = v.w;
        }
#pragma unroll
        for (int o = 0; o < ROWS; o++) {
            const int j = r - o;
            if (j >= 0 && j <= 2 * RADIUS_Y) {
#pragma unroll
                for (int k = 0; k <= 2 * RADIUS_X; k++)
#pragma unroll
                    for (int i = 0; i < 4; i++) acc[o][i] = fma(t.tap[j][k], window[PAD - REACH + i + k * COMPONENTS], acc[o][i]);
            }
        }
    }
    u8* to = dst_at(p, x, y0);
#pragma unroll
    for (int o = 0; o < ROWS; o++)
        if (y0 + o < p.height) store4(to, p.dst_pitch, o, finish4(acc[o], t.finish));
}

#else // any size: bands of the input pass through shared memory, the sums stay in registers

#define BAND 16
#define TILE 128
#define STEP 8 // taps of a row taken together

// Mirrors lower.rs. `taps` is `height + 2 (ROWS - 1)` rows of `pitch` weights (a multiple of 8), the first and last
// ROWS - 1 of them zero, so that no row of a thread's window needs a test. `left` is a multiple of 4 (zero taps in front),
// so that strips stay aligned.
struct Kernel2D {
    const float* taps;
    int pitch;
    int height;
    int left;
    int above;
    Finish finish;
};

// Four blocks wanted, not more: left to itself the assembler stops at 64 registers on sm_75 and spills one.
extern "C" __global__ void __launch_bounds__(32 * WARPS, 4) direct__banded(const __grid_constant__ Frame f, const __grid_constant__ Kernel2D k) {
    // BAND rows of TILE + pitch * COMPONENTS samples.
    extern __shared__ float4 band[];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const Block b = locate(f);
    const Plane& p = f.plane[b.plane];
    const int strips = (TILE + k.pitch * COMPONENTS) / 4;
    const int left = b.x * TILE - k.left * COMPONENTS;
    const int top = b.y * (WARPS * ROWS) - k.above;
    const int rows = WARPS * ROWS + k.height - 1;
    wide acc[ROWS][4];
#pragma unroll
    for (int o = 0; o < ROWS; o++)
#pragma unroll
        for (int i = 0; i < 4; i++) acc[o][i] = 0.f;
    for (int band0 = 0; band0 < rows; band0 += BAND) {
        __syncthreads();
        // A warp takes two rows of 32 strips at a time.
        for (int q = warp; q < BAND / 2 * ((strips + 31) / 32); q += WARPS) {
            const int r = 2 * (q & 7), c = 32 * (q >> 3) + lane;
            raw4 raw[2];
            load_edge<2>(p, left + 4 * c, top + band0 + r, 1, raw);
            if (c < strips) {
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    float v[4];
                    unpack(raw[k], v);
                    band[(r + k) * strips + c] = make_float4(v[0], v[1], v[2], v[3]);
                }
            }
        }
        __syncthreads();
        const int low = max(band0, warp * ROWS), high = min(band0 + BAND, warp * ROWS + ROWS - 1 + k.height);
        for (int r = low; r < high; r++) {
            const float4* row = band + (r - band0) * strips + lane;
            // Row r of the band meets output o of this warp at tap r - warp * ROWS - o; the table is shifted by ROWS - 1.
            const float* taps = k.taps + (r - warp * ROWS + ROWS - 1) * k.pitch;
            for (int x = 0; x < k.pitch; x += STEP) {
                float window[4 + STEP * COMPONENTS];
#pragma unroll
                for (int q = 0; q < 1 + STEP * COMPONENTS / 4; q++) {
                    const float4 v = row[x * COMPONENTS / 4 + q];
                    window[4 * q] = v.x;
                    window[4 * q + 1] = v.y;
                    window[4 * q + 2] = v.z;
                    window[4 * q + 3] = v.w;
                }
#pragma unroll
                for (int o = 0; o < ROWS; o++) {
                    const float4* w = reinterpret_cast<const float4*>(taps - o * k.pitch + x);
                    const float4 w0 = __ldg(w), w1 = __ldg(w + 1);
                    const float tap[STEP] = {w0.x, w0.y, w0.z, w0.w, w1.x, w1.y, w1.z, w1.w};
#pragma unroll
                    for (int u = 0; u < STEP; u++)
#pragma unroll
                        for (int i = 0; i < 4; i++) acc[o][i] = fma((wide)tap[u], (wide)window[i + u * COMPONENTS], acc[o][i]);
                }
            }
        }
    }
    const int x = b.x * TILE + 4 * lane;
    const int y0 = (b.y * WARPS + warp) * ROWS;
    if (x >= p.width * COMPONENTS) return;
    u8* to = dst_at(p, x, y0);
#pragma unroll
    for (int o = 0; o < ROWS; o++)
        if (y0 + o < p.height) store4(to, p.dst_pitch, o, finish4(acc[o], k.finish));
}
#endif
