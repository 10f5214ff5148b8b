// 2-D convolution of an NCHW image of floats with OUT_CHANNELS x IN_CHANNELS kernels of KH x KW ("tensor_conv"), one image per launch:
//
//     out[o][y][x] = bias[o] + sum_{i, j, k} weight[o][i][j][k] * in[i][y SH - PH + j DH][x SW - PW + k DW]      (0 outside)
//
//   direct    32 x 8 results of 8 output channels per block, one thread each: a channel's tile in shared memory, read once for all eight
//   gemm      im2col here (a row per weight, a column per result), then cuBLAS: out = weights x columns
//   winograd  F(2x2,3x3): tiles of 4 x 4 to 16 planes here, 16 products by cuBLAS, back to 2 x 2 here; 2.25 times fewer products
//
// Compile-time: KH KW SH SW PH PW DH DW. Bytes: gemm writes and reads the input KH KW times; winograd 4 times, and the results 4 times.
typedef unsigned int u32;
typedef unsigned long long u64;

// Mirrors backend/cuda/tensor.rs.
struct Layer {
    const float* in;
    float* out;
    const float* weights;
    const float* bias; // may be null
    int in_channels;
    int out_channels;
    int height;
    int width;
    int out_height;
    int out_width;
    u32 blocks_x;
    u32 blocks_y;
};

#define ACROSS 32
#define DOWN 8
#define CHANNELS 8 // of the output, per thread
#define SPAN_X ((ACROSS - 1) * SW + (KW - 1) * DW + 1)
#define SPAN_Y ((DOWN - 1) * SH + (KH - 1) * DH + 1)

#ifdef DIRECT
extern "C" __global__ void __launch_bounds__(ACROSS* DOWN) tensor_conv__direct(const __grid_constant__ Layer t) {
    __shared__ float tile[SPAN_Y][SPAN_X];
    const u32 bx = blockIdx.x % t.blocks_x, rest = blockIdx.x / t.blocks_x;
    const u32 by = rest % t.blocks_y;
    const int o0 = (int)(rest / t.blocks_y) * CHANNELS;
    const int lane = threadIdx.x % ACROSS, line = threadIdx.x / ACROSS;
    const int left = (int)bx * (ACROSS * SW) - PW, top = (int)by * (DOWN * SH) - PH;
    float sum[CHANNELS] = {};
    for (int i = 0; i < t.in_channels; i++) {
        const float* plane = t.in + (u64)(u32)i * (u32)t.height * (u32)t.width;
        __syncthreads();
        for (int n = threadIdx.x; n < SPAN_X * SPAN_Y; n += ACROSS * DOWN) {
            const int r = n / SPAN_X, c = n % SPAN_X, y = top + r, x = left + c;
            const bool exists = x >= 0 && x < t.width && y >= 0 && y < t.height;
            tile[r][c] = exists ? plane[(u64)(u32)y * (u32)t.width + (u32)x] : 0.f;
        }
        __syncthreads();
        const float* w = t.weights + ((u64)(u32)o0 * (u32)t.in_channels + (u32)i) * (KH * KW);
        const u64 step = (u64)(u32)t.in_channels * (KH * KW);
        for (int j = 0; j < KH; j++)
            for (int k = 0; k < KW; k++) {
                const float v = tile[line * SH + j * DH][lane * SW + k * DW];
#pragma unroll
                for (int c = 0; c < CHANNELS; c++)
                    if (o0 + c < t.out_channels) sum[c] = fmaf(__ldg(w + c * step + j * KW + k), v, sum[c]);
            }
    }
    const int x = (int)bx * ACROSS + lane, y = (int)by * DOWN + line;
    if (x >= t.out_width || y >= t.out_height) return;
#pragma unroll
    for (int c = 0; c < CHANNELS; c++)
        if (o0 + c < t.out_channels) {
            const float bias = t.bias ? __ldg(t.bias + o0 + c) : 0.f;
            t.out[((u64)(u32)(o0 + c) * (u32)t.out_height + (u32)y) * (u32)t.out_width + (u32)x] = sum[c] + bias;
        }
}
#endif

// A thread per cell; neighbouring threads write neighbouring results' columns. `out` is the matrix.
extern "C" __global__ void __launch_bounds__(256) tensor_conv__columns(const __grid_constant__ Layer t) {
    const u32 results = (u32)t.out_height * (u32)t.out_width;
    const u64 index = (u64)blockIdx.x * 256 + threadIdx.x;
    const u32 p = (u32)(index % results), k = (u32)(index / results);
    if (k >= (u32)t.in_channels * (KH * KW)) return;
    const int y = (int)(p / (u32)t.out_width) * SH - PH + (int)(k % (KH * KW) / KW) * DH;
    const int x = (int)(p % (u32)t.out_width) * SW - PW + (int)(k % KW) * DW;
    const bool exists = x >= 0 && x < t.width && y >= 0 && y < t.height;
    t.out[index] = exists ? t.in[((u64)(k / (KH * KW)) * (u32)t.height + (u32)y) * (u32)t.width + (u32)x] : 0.f;
}

// Adds the bias in place.
extern "C" __global__ void __launch_bounds__(256) tensor_conv__bias(const __grid_constant__ Layer t) {
    const u32 results = (u32)t.out_height * (u32)t.out_width;
    const u64 index = (u64)blockIdx.x * 256 + threadIdx.x;
    if (index < (u64)results * (u32)t.out_channels) t.out[index] += __ldg(t.bias + index / results);
}

// A thread per channel and tile of 4 x 4, to 16 planes of in_channels x tiles.
extern "C" __global__ void __launch_bounds__(256) tensor_conv__into(const __grid_constant__ Layer t) {
    const u32 across = (u32)(t.out_width + 1) / 2, tiles = across * ((u32)(t.out_height + 1) / 2);
    const u64 index = (u64)blockIdx.x * 256 + threadIdx.x;
    const u32 tile = (u32)(index % tiles), c = (u32)(index / tiles);
    if (c >= (u32)t.in_channels) return;
    const int y0 = (int)(tile / across) * 2 - PH, x0 = (int)(tile % across) * 2 - PW;
    const float* plane = t.in + (u64)c * (u32)t.height * (u32)t.width;
    float d[4][4];
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int y = y0 + j, x = x0 + i;
            d[j][i] = y >= 0 && y < t.height && x >= 0 && x < t.width ? plane[(u64)(u32)y * (u32)t.width + (u32)x] : 0.f;
        }
    float v[4][4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        v[0][i] = d[0][i] - d[2][i];
        v[1][i] = d[1][i] + d[2][i];
        v[2][i] = d[2][i] - d[1][i];
        v[3][i] = d[1][i] - d[3][i];
    }
    const u64 step = (u64)(u32)t.in_channels * tiles;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float* to = t.out + (u64)(4 * j) * step + index;
        to[0] = v[j][0] - v[j][2];
        to[step] = v[j][1] + v[j][2];
        to[2 * step] = v[j][2] - v[j][1];
        to[3 * step] = v[j][1] - v[j][3];
    }
}

// A thread per output channel and tile: 16 planes of out_channels x tiles (`in`) to 2 x 2 results.
extern "C" __global__ void __launch_bounds__(256) tensor_conv__back(const __grid_constant__ Layer t) {
    const u32 across = (u32)(t.out_width + 1) / 2, tiles = across * ((u32)(t.out_height + 1) / 2);
    const u64 index = (u64)blockIdx.x * 256 + threadIdx.x;
    const u32 tile = (u32)(index % tiles), c = (u32)(index / tiles);
    if (c >= (u32)t.out_channels) return;
    const u64 step = (u64)(u32)t.out_channels * tiles;
    float m[4][4], h[2][4];
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) m[j][i] = t.in[(u64)(4 * j + i) * step + index];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        h[0][i] = m[0][i] + m[1][i] + m[2][i];
        h[1][i] = m[1][i] - m[2][i] - m[3][i];
    }
    const float bias = t.bias ? __ldg(t.bias + c) : 0.f;
    const int y0 = (int)(tile / across) * 2, x0 = (int)(tile % across) * 2;
#pragma unroll
    for (int j = 0; j < 2; j++) {
        if (y0 + j >= t.out_height) break;
        float* to = t.out + ((u64)c * (u32)t.out_height + (u32)(y0 + j)) * (u32)t.out_width + (u32)x0;
        to[0] = h[j][0] + h[j][1] + h[j][2] + bias;
        if (x0 + 1 < t.out_width) to[1] = h[j][1] - h[j][2] - h[j][3] + bias;
    }
}
