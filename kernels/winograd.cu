// 3x3 kernels by Winograd's minimal filtering F(OUT x OUT, 3 x 3): a thread makes OUT x OUT samples from (OUT + 2)^2, by (OUT + 2)^2
// products instead of 9 OUT^2 (16 for 36 at OUT 2, 36 for 144 at OUT 4), paid for with additions before and after.
//
//     out = A^T [ (G g G^T) . (B^T d B) ] A          (Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2015)
//
//      d: OUT + 2 samples        u = G g G^T comes from the host, made in double
//      +---------------+
//      | . . . . . .   |         For one plane and one kernel the additions cost more than the products save: this is a station of the
//      | . o o o o .   |         race, not its winner. Bytes: each sample read once from device memory (neighbours from L1), written
//      | . o o o o .   |         once. Operations at OUT 4: 36 products and some 260 additions for 16 samples.
//      +---------------+
#include "plane.cuh"

#define IN (OUT + 2)
#define THREADS 128
#define STRIP (32 * OUT) // samples across that a warp makes

// Mirrors lower_race.rs.
struct Winograd {
    wide u[IN * IN];
    Finish finish;
};

// B^T of one line, in place of the line with a stride.
template <int STRIDE>
__device__ __forceinline__ void into(wide* d) {
#if OUT == 2
    const wide d0 = d[0], d1 = d[STRIDE], d2 = d[2 * STRIDE], d3 = d[3 * STRIDE];
    d[0] = d0 - d2;
    d[STRIDE] = d1 + d2;
    d[2 * STRIDE] = d2 - d1;
    d[3 * STRIDE] = d1 - d3;
#else
    const wide d0 = d[0], d1 = d[STRIDE], d2 = d[2 * STRIDE], d3 = d[3 * STRIDE], d4 = d[4 * STRIDE], d5 = d[5 * STRIDE];
    d[0] = 4 * d0 - 5 * d2 + d4;
    d[STRIDE] = -4 * (d1 + d2) + d3 + d4;
    d[2 * STRIDE] = 4 * (d1 - d2) - d3 + d4;
    d[3 * STRIDE] = 2 * (d3 - d1) - d2 + d4;
    d[4 * STRIDE] = 2 * (d1 - d3) - d2 + d4;
    d[5 * STRIDE] = 4 * d1 - 5 * d3 + d5;
#endif
}

// A^T of one line.
template <int STRIDE>
__device__ __forceinline__ void out_of(const wide* m, wide* o, int step) {
#if OUT == 2
    o[0] = m[0] + m[STRIDE] + m[2 * STRIDE];
    o[step] = m[STRIDE] - m[2 * STRIDE] - m[3 * STRIDE];
#else
    const wide a = m[STRIDE] + m[2 * STRIDE], b = m[STRIDE] - m[2 * STRIDE], c = m[3 * STRIDE] + m[4 * STRIDE], d = m[3 * STRIDE] - m[4 * STRIDE];
    o[0] = m[0] + a + c;
    o[step] = b + 2 * d;
    o[2 * step] = a + 4 * c;
    o[3 * step] = b + 8 * d + m[5 * STRIDE];
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS) direct__winograd(const __grid_constant__ Frame f, const __grid_constant__ Winograd t) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const Block b = locate(f);
    const Plane& p = f.plane[b.plane];
    // Lanes take tiles side by side; with two components, neighbouring lanes the same tile of each.
    const int x0 = b.x * STRIP + lane / COMPONENTS * (OUT * COMPONENTS) + lane % COMPONENTS;
    const int y0 = (b.y * (THREADS / 32) + warp) * OUT;
    if (x0 >= p.width * COMPONENTS || y0 >= p.height) return;
    wide v[IN * IN];
    int column[IN];
#pragma unroll
    for (int i = 0; i < IN; i++) column[i] = border_sample(x0 + (i - 1) * COMPONENTS, p.width);
#pragma unroll
    for (int j = 0; j < IN; j++) {
        const int row = border_index(y0 + j - 1, p.height);
        const sample* line = src_row(p, max(row, 0));
#pragma unroll
        for (int i = 0; i < IN; i++) v[j * IN + i] = row < 0 || column[i] < 0 ? (wide)OUTSIDE : (wide)to_float(line[column[i]]);
    }
#pragma unroll
    for (int i = 0; i < IN; i++) into<IN>(v + i);
#pragma unroll
    for (int j = 0; j < IN; j++) into<1>(v + j * IN);
#pragma unroll
    for (int i = 0; i < IN * IN; i++) v[i] *= t.u[i];
    wide half[OUT * IN];
#pragma unroll
    for (int i = 0; i < IN; i++) out_of<IN>(v + i, half + i, IN);
#pragma unroll
    for (int j = 0; j < OUT; j++) {
        wide o[OUT];
        out_of<1>(half + j * IN, o, 1);
        if (y0 + j < p.height) {
            sample* to = dst_row(p, y0 + j);
#pragma unroll
            for (int i = 0; i < OUT; i++)
                if (x0 + i * COMPONENTS < p.width * COMPONENTS) to[x0 + i * COMPONENTS] = (sample)finish(o[i], t.finish);
        }
    }
}
