// General 2-D kernels as a matrix product: im2col here, the product by cuBLAS, the end here ("gemm").
//
// A column of the matrix is what 16 neighbouring samples of a row ("strip") need: KH rows of 15 + KW pixels' worth. The weights are a
// banded 16 x DEPTH matrix, so the input grows (15 + KW) KH / 16 times instead of the KW KH times of one column per sample.
//
//     weights (16 x DEPTH)      columns (DEPTH x strips)       sums (16 x strips)
//     w0 w1 w2  .  .  .    x    strip 0 | strip 1 | ...    =   16 samples of strip 0 | ...
//      . w0 w1 w2  .  .
//      .  . w0 w1 w2  .         Strips are counted row by row, plane by plane; a launch takes `count` of them from `first` on, so that
//                               the matrix of a large frame is made and used in pieces.
// Bytes per sample: (15 + KW) KH / 4 written and read again, 8 for the sums. Operations: (15 + KW) KH multiply-adds.
#include "plane.cuh"

#define STRIP 16
#define ACROSS (STRIP + (KW - 1) * COMPONENTS)
#define DEPTH (ACROSS * KH)
#define THREADS 256

struct Strip {
    int plane;
    int x;
    int y;
};

// Strips never outnumber 2^31: the host sees to it.
__device__ __forceinline__ Strip strip_at(const Frame& f, u32 index) {
    Strip s = {};
#pragma unroll
    for (int k = 0; k < PLANES; k++) {
        const u32 across = (u32)(f.plane[k].width * COMPONENTS + STRIP - 1) / STRIP;
        const u32 strips = across * (u32)f.plane[k].height;
        s.plane = k;
        if (index < strips || k + 1 == PLANES) {
            s.y = (int)(index / across);
            s.x = (int)(index % across) * STRIP;
            return s;
        }
        index -= strips;
    }
    return s;
}

// Mirrors lower_race.rs.
struct Piece {
    u32 first;
    u32 count;
};

// A warp per strip: lanes run along the column, so that writes are dense.
extern "C" __global__ void __launch_bounds__(THREADS) direct__columns(const __grid_constant__ Frame f, const __grid_constant__ Piece piece) {
    const u32 index = blockIdx.x * (THREADS / 32) + (threadIdx.x >> 5);
    if (index >= piece.count) return;
    const Strip s = strip_at(f, piece.first + index);
    const Plane& p = f.plane[s.plane];
    float* column = reinterpret_cast<float*>(p.dst) + (u64)index * DEPTH;
    for (int k = threadIdx.x & 31; k < DEPTH; k += 32) {
        const int row = border_index(s.y + k / ACROSS - KH / 2, p.height);
        const int at = border_sample(s.x + k % ACROSS - KW / 2 * COMPONENTS, p.width);
        column[k] = row < 0 || at < 0 ? OUTSIDE : to_float(src_row(p, row)[at]);
    }
}

struct End {
    u32 first;
    u32 count;
    Finish finish;
};

extern "C" __global__ void __launch_bounds__(THREADS) direct__strips(const __grid_constant__ Frame f, const __grid_constant__ End end) {
    const u32 index = blockIdx.x * (THREADS / STRIP) + threadIdx.x / STRIP;
    if (index >= end.count) return;
    const Strip s = strip_at(f, end.first + index);
    const Plane& p = f.plane[s.plane];
    const int x = s.x + (int)(threadIdx.x % STRIP);
    if (x >= p.width * COMPONENTS) return;
    const float sum = reinterpret_cast<const float*>(p.src)[(u64)index * STRIP + threadIdx.x % STRIP];
    dst_row(p, s.y)[x] = (sample)finish((wide)sum, end.finish);
}
