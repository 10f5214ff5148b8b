// Planes that pass unchanged, 16 bytes per thread, from one layout to another.
#include "plane.cuh"

#define BLOCK_X 32 // threads across, 16 bytes each
#define BLOCK_Y 8  // threads down

extern "C" __global__ void __launch_bounds__(BLOCK_X* BLOCK_Y) copy__vector(const __grid_constant__ Frame f) {
    const Block b = locate(f);
    const Plane& p = f.plane[b.plane];
    const int byte = (b.x * BLOCK_X + (threadIdx.x & 31)) * 16;
    const int y = b.y * BLOCK_Y + (threadIdx.x >> 5);
    if (byte >= p.width * COMPONENTS * (int)sizeof(sample) || y >= p.height) return;
    const uint4 v = *reinterpret_cast<const uint4*>(p.src + (u64)(u32)y * p.src_pitch + byte);
    *reinterpret_cast<uint4*>(p.dst + (u64)(u32)y * p.dst_pitch + byte) = v;
}
