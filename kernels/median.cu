// The sample of a given rank in a window of any size that fits shared memory: bit by bit from the top, a bit is set if no more than
// `rank` samples lie below what it makes. A thread makes OUTPUTS samples below each other, so that each read serves all of them.
#include "plane.cuh"

#define ACROSS 32
#define GROUPS 4
#define OUTPUTS 4

#if SAMPLE == 32
typedef u32 key;
#elif SAMPLE == 16
typedef u16 key;
#else
typedef u8 key;
#endif

// Mirrors lower_windows.rs.
struct Ranked {
    int radius_x;
    int radius_y;
    int rank;
};

extern "C" __global__ void __launch_bounds__(ACROSS* GROUPS) median__select(const __grid_constant__ Frame f, const __grid_constant__ Ranked k) {
    extern __shared__ u32 staged_words[];
    key* staged = reinterpret_cast<key*>(staged_words);
    const Block b = locate(f);
    const Plane& p = f.plane[b.plane];
    const int pitch = ACROSS + 2 * k.radius_x * COMPONENTS, rows = GROUPS * OUTPUTS + 2 * k.radius_y;
    const int left = b.x * ACROSS - k.radius_x * COMPONENTS, top = b.y * (GROUPS * OUTPUTS) - k.radius_y;
    const int lane = threadIdx.x & 31, group = threadIdx.x >> 5;
    for (int y = group; y < rows; y += GROUPS) {
        const int row = border_index(top + y, p.height);
        for (int x = lane; x < pitch; x += ACROSS) {
            const int column = border_sample(left + x, p.width);
            staged[y * pitch + x] = (key)key_of(row < 0 || column < 0 ? (sample)0 : src_row(p, row)[column]);
        }
    }
    __syncthreads();
    const int x = b.x * ACROSS + lane, y0 = b.y * (GROUPS * OUTPUTS) + group * OUTPUTS;
    if (x >= p.width * COMPONENTS || y0 >= p.height) return;
    const key* window = staged + group * OUTPUTS * pitch + lane;
    u32 found[OUTPUTS] = {};
    for (int bit = KEY_BITS - 1; bit >= 0; bit--) {
        int below[OUTPUTS] = {};
        for (int j = 0; j < 2 * k.radius_y + OUTPUTS; j++) {
            u32 candidate[OUTPUTS];
            // Nothing is below 0: rows outside an output's window do not count for it.
#pragma unroll
            for (int o = 0; o < OUTPUTS; o++) candidate[o] = j >= o && j - o <= 2 * k.radius_y ? found[o] | 1u << bit : 0u;
#pragma unroll 4
            for (int i = 0; i <= 2 * k.radius_x; i++) {
                const u32 v = window[j * pitch + i * COMPONENTS];
#pragma unroll
                for (int o = 0; o < OUTPUTS; o++) below[o] += v < candidate[o];
            }
        }
#pragma unroll
        for (int o = 0; o < OUTPUTS; o++)
            if (below[o] <= k.rank) found[o] |= 1u << bit;
    }
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++)
        if (y0 + o < p.height) dst_row(p, y0 + o)[x] = of_key(found[o]);
}
