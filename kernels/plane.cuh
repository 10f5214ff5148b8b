// Plane addressing, border index, load and store conversion: the twin of src/filter/math.rs.
//
// Compile-time: SAMPLE (bits of one: 8, 16 or 32), FLOATING (1: floats of 16 or 32 bits; where it is not given, those of 32 are),
// MAX_VALUE (2^depth - 1; 1 for floats), SHIFT (bits below the sample in its 16, P010), COMPONENTS (interleaved components, 1
// or 2), BORDER (0 clamp, 1 zero, 2 reflect, 3 reflect101, 4 wrap), CENTRE (half the range where sums of deep samples would
// lose their fraction in float, else 0: what is subtracted on loading), PLANES (in this launch), and where they apply UNIT
// (1: the scale is 1) and BOUNDED (1: no result leaves the range, so none is clamped).
//
// Rows of every plane, read or written, start at multiples of 16 bytes, and pitches are multiples of 16: the host sees to
// it. A "sample" index counts components; a sample's pixel is index / COMPONENTS. Nothing else is included anywhere.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define BORDER_CLAMP 0
#define BORDER_ZERO 1
#define BORDER_REFLECT 2
#define BORDER_REFLECT101 3
#define BORDER_WRAP 4

#ifndef FLOATING
#define FLOATING (SAMPLE == 32)
#endif
#define HALVES (FLOATING && SAMPLE == 16)

#if SAMPLE == 8
typedef u8 sample;
typedef u32 raw4; // four samples as they lie in memory
#elif SAMPLE == 16
#if FLOATING
// A half is converted and compared, never computed with: nothing takes its bits for a number.
struct sample {
    u16 bits;
    sample() = default;
    // To the nearest, ties to even; beyond 65504 infinity.
    __device__ __forceinline__ explicit sample(float v) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(v)); }
};
#else
typedef u16 sample;
#endif
typedef uint2 raw4;
#elif SAMPLE == 32
typedef float sample;
typedef float4 raw4;
#else
#error "SAMPLE must be 8, 16 or 32"
#endif

// One plane of one launch. Mirrors launch.rs::PlaneArgs.
struct Plane {
    const u8* src;
    u8* dst;
    u32 src_pitch; // bytes
    u32 dst_pitch; // bytes
    int width;     // pixels of the plane that is written
    int height;    // its rows
    u32 first_block;
    u32 blocks_x;
    u8* aux; // scratch of the kernels that say so, else null
    u32 aux_pitch;
    u32 blocks_magic; // 2^32 / blocks_x, rounded up, at most 2^32 - 1
    int src_width;    // pixels of the plane that is read, where it has another size
    int src_height;
};

// All planes of one launch: blocks [first_block, next plane's first_block) belong to a plane. Mirrors launch.rs::FrameArgs.
struct Frame {
    Plane plane[4];
    u32 count;
    u32 reserved;
};

struct Block {
    int plane;
    int x; // block column
    int y; // block row
};

__device__ __forceinline__ Block locate(const Frame& f) {
    Block b;
    const u32 i = blockIdx.x;
    b.plane = 0;
#pragma unroll
    for (int p = 1; p < PLANES; p++)
        if (i >= f.plane[p].first_block) b.plane = p;
    const Plane& plane = f.plane[b.plane];
    const u32 local = i - plane.first_block;
    // Division by a multiplication that is off by one at most.
    u32 row = __umulhi(local, plane.blocks_magic);
    int column = (int)(local - row * plane.blocks_x);
    if (column < 0) {
        row--;
        column += (int)plane.blocks_x;
    }
    if (column >= (int)plane.blocks_x) {
        row++;
        column -= (int)plane.blocks_x;
    }
    b.x = column;
    b.y = (int)row;
    return b;
}

// Index inside 0..n that stands for position i; -1 means the sample is zero. n is at least 1.
__device__ __forceinline__ int border_index(int i, int n) {
    if (i >= 0 && i < n) return i;
#if BORDER == BORDER_CLAMP
    return i < 0 ? 0 : n - 1;
#elif BORDER == BORDER_ZERO
    return -1;
#elif BORDER == BORDER_WRAP
    int r = i % n;
    return r < 0 ? r + n : r;
#elif BORDER == BORDER_REFLECT
    int r = i % (2 * n);
    if (r < 0) r += 2 * n;
    return r < n ? r : 2 * n - 1 - r;
#elif BORDER == BORDER_REFLECT101
    if (n == 1) return 0;
    const int period = 2 * n - 2;
    int r = i % period;
    if (r < 0) r += period;
    return r < n ? r : period - r;
#else
#error "BORDER must be 0 to 4"
#endif
}

// The same for a sample index in a row of `width` pixels of COMPONENTS samples.
__device__ __forceinline__ int border_sample(int s, int width) {
#if COMPONENTS == 1
    return border_index(s, width);
#else
    const int component = s & 1;
    const int pixel = border_index((s - component) / 2, width);
    return pixel < 0 ? -1 : 2 * pixel + component;
#endif
}

__device__ __forceinline__ const sample* src_row(const Plane& p, int y) {
    return reinterpret_cast<const sample*>(p.src + (u64)(u32)y * p.src_pitch);
}

__device__ __forceinline__ sample* dst_row(const Plane& p, int y) {
    return reinterpret_cast<sample*>(p.dst + (u64)(u32)y * p.dst_pitch);
}

// A value outside under the zero border, in the scale of to_float.
#define OUTSIDE (-(float)CENTRE)

// Value of a stored sample less CENTRE, exact.
__device__ __forceinline__ float to_float(sample v) {
#if HALVES
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(v.bits));
    return f;
#elif FLOATING
    return v;
#else
    return (float)(int)((u32)v >> SHIFT) - (float)CENTRE;
#endif
}

// Integer value of a stored sample.
#if !FLOATING
__device__ __forceinline__ u32 to_code(sample v) { return (u32)v >> SHIFT; }
#endif

// A stored sample of 8 or 16 bits as it lies in memory.
#if HALVES
__device__ __forceinline__ u32 bits_of(sample v) { return v.bits; }
#elif SAMPLE != 32
__device__ __forceinline__ u32 bits_of(sample v) { return v; }
#endif

// Samples as unsigned integers of the same order, without the bits below a sample (P010's), and back.
#if SAMPLE == 32
#define KEY_BITS 32
__device__ __forceinline__ u32 key_of(sample v) {
    const u32 bits = __float_as_uint(v);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ sample of_key(u32 key) { return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key); }
#elif HALVES
#define KEY_BITS 16
__device__ __forceinline__ u32 key_of(sample v) { return v.bits & 0x8000u ? ~(u32)v.bits & 0xffffu : v.bits | 0x8000u; }
__device__ __forceinline__ sample of_key(u32 key) {
    sample v;
    v.bits = (u16)(key & 0x8000u ? key & 0x7fffu : ~key);
    return v;
}
#else
#define KEY_BITS (32 - __clz(MAX_VALUE))
__device__ __forceinline__ u32 key_of(sample v) { return to_code(v); }
__device__ __forceinline__ sample of_key(u32 key) { return (sample)(key << SHIFT); }
#endif

// The end of a step: floor(sum * scale + offset) + base, clamped. `offset` holds the rounding's 1/2, and `base` the integer
// part of whatever CENTRE took away, so that the float part stays small and keeps its fraction. Float planes: no rounding,
// no clamp, base 0. The twin of backend/cpu/plane.rs::Finish: product and sum round apart, so that ties fall alike.
struct Finish {
    float scale;
    float offset;
    int base;
};

#ifndef UNIT
#define UNIT 0
#endif
#ifndef BOUNDED
#define BOUNDED 0
#endif

__device__ __forceinline__ float scaled(float sum, const Finish& f) {
#if UNIT
    return __fadd_rn(sum, f.offset);
#else
    return __fadd_rn(__fmul_rn(sum, f.scale), f.offset);
#endif
}

// Weights and sums. Deep samples need more than the 24 bits of a float: rounding at 32768 is 1/512 of a code value, and a sum has dozens
// of roundings.
#if CENTRE != 0
typedef double wide;
#else
typedef float wide;
#endif

#if FLOATING
__device__ __forceinline__ float finish(float sum, const Finish& f) { return scaled(sum, f); }
#else
__device__ __forceinline__ u32 finish(float sum, const Finish& f) {
    const float v = scaled(sum, f);
#if CENTRE == 0
    // The conversion truncates and clamps negative values to 0.
    return min(__float2uint_rz(v), (u32)MAX_VALUE) << SHIFT;
#else
    return (u32)min(max(__float2int_rd(v) + f.base, 0), (int)MAX_VALUE) << SHIFT;
#endif
}
#if CENTRE != 0
__device__ __forceinline__ u32 finish(double sum, const Finish& f) {
    const int code = __double2int_rd(sum * (double)f.scale + (double)f.offset);
    return (u32)min(max(min(max(code, -(1 << 24)), 1 << 24) + f.base, 0), (int)MAX_VALUE) << SHIFT;
}
#endif
#endif

// A word whose value as a float is 2^23 + code: subtracting 2^23 is exact and cheaper than a conversion instruction.
#define MAGIC (8388608.0f + (float)CENTRE)

__device__ __forceinline__ void unpack(raw4 r, float v[4]) {
#if SAMPLE == 8
    v[0] = __uint_as_float(__byte_perm(r, 0x4b000000u, 0x7440)) - MAGIC;
    v[1] = __uint_as_float(__byte_perm(r, 0x4b000000u, 0x7441)) - MAGIC;
    v[2] = __uint_as_float(__byte_perm(r, 0x4b000000u, 0x7442)) - MAGIC;
    v[3] = __uint_as_float(__byte_perm(r, 0x4b000000u, 0x7443)) - MAGIC;
#elif HALVES
    asm("{ .reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b; }" : "=f"(v[0]), "=f"(v[1]) : "r"(r.x));
    asm("{ .reg .b16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b; }" : "=f"(v[2]), "=f"(v[3]) : "r"(r.y));
#elif SAMPLE == 16
#if SHIFT != 0
    r.x = (r.x >> SHIFT) & (0x00010001u * MAX_VALUE);
    r.y = (r.y >> SHIFT) & (0x00010001u * MAX_VALUE);
#endif
    v[0] = __uint_as_float(__byte_perm(r.x, 0x4b000000u, 0x7610)) - MAGIC;
    v[1] = __uint_as_float(__byte_perm(r.x, 0x4b000000u, 0x7632)) - MAGIC;
    v[2] = __uint_as_float(__byte_perm(r.y, 0x4b000000u, 0x7610)) - MAGIC;
    v[3] = __uint_as_float(__byte_perm(r.y, 0x4b000000u, 0x7632)) - MAGIC;
#else
    v[0] = r.x;
    v[1] = r.y;
    v[2] = r.z;
    v[3] = r.w;
#endif
}

// Four finished samples as they lie in memory.
#if SAMPLE == 8
__device__ __forceinline__ raw4 pack4(u32 a, u32 b, u32 c, u32 d) {
    return __byte_perm(__byte_perm(a, b, 0x0040), __byte_perm(c, d, 0x0040), 0x5410);
}
#elif SAMPLE == 16
__device__ __forceinline__ raw4 pack4(u32 a, u32 b, u32 c, u32 d) { return make_uint2(__byte_perm(a, b, 0x5410), __byte_perm(c, d, 0x5410)); }
#else
__device__ __forceinline__ raw4 pack4(float a, float b, float c, float d) { return make_float4(a, b, c, d); }
#endif
#if HALVES
// Two floats as halves, rounded as a sample is, the first in the low bits.
__device__ __forceinline__ u32 halves_of(float low, float high) {
    u32 pair;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
#else
    asm("{ .reg .b16 a, b; cvt.rn.f16.f32 a, %1; cvt.rn.f16.f32 b, %2; mov.b32 %0, {a, b}; }" : "=r"(pair) : "f"(low), "f"(high));
#endif
    return pair;
}
__device__ __forceinline__ raw4 pack4(float a, float b, float c, float d) { return make_uint2(halves_of(a, b), halves_of(c, d)); }
#endif

template <class Sum>
__device__ __forceinline__ raw4 finish4(const Sum sums[4], const Finish& f) {
#if !FLOATING && CENTRE == 0
    // Adding 2^23 rounding down leaves the floor in the low bits: no conversion, whose rate is a quarter of an addition's.
    u32 code[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float v = scaled(sums[i], f);
#if !BOUNDED
        v = fminf(fmaxf(v, 0.0f), (float)MAX_VALUE + 0.5f);
#endif
        code[i] = __float_as_uint(__fadd_rd(v, 8388608.0f)) << SHIFT;
    }
    return pack4(code[0], code[1], code[2], code[3]);
#else
    return pack4(finish(sums[0], f), finish(sums[1], f), finish(sums[2], f), finish(sums[3], f));
#endif
}

__device__ __forceinline__ raw4 zero4() {
#if SAMPLE == 8
    return 0u;
#elif SAMPLE == 16
    return make_uint2(0u, 0u);
#else
    return make_float4(0.f, 0.f, 0.f, 0.f);
#endif
}

// COUNT rows from y on, `step` apart, of the four samples at x, for a whole warp at an edge: border rules are applied once
// per column and row (lane l looks up rows l, l + 32, ...), and all loads are in flight together. An edge warp that waited
// for each row would outlast the rest of the launch.
template <int COUNT>
__device__ __forceinline__ void load_edge(const Plane& p, int x, int y, int step, raw4 raw[COUNT]) {
    const int lane = threadIdx.x & 31;
    int mapped[(COUNT + 31) / 32];
#pragma unroll
    for (int i = 0; i < (COUNT + 31) / 32; i++) mapped[i] = border_index(y + (32 * i + lane) * step, p.height);
    if (__all_sync(0xffffffffu, x >= 0 && x + 4 <= p.width * COMPONENTS)) {
        const u8* column = p.src + x * (int)sizeof(sample);
#pragma unroll
        for (int k = 0; k < COUNT; k++) {
            const int row = __shfl_sync(0xffffffffu, mapped[k / 32], k & 31);
            raw[k] = *reinterpret_cast<const raw4*>(column + (u64)(u32)max(row, 0) * p.src_pitch);
#if BORDER == BORDER_ZERO
            if (row < 0) raw[k] = zero4();
#endif
        }
    } else {
        int column[4];
#pragma unroll
        for (int i = 0; i < 4; i++) column[i] = border_sample(x + i, p.width);
#pragma unroll
        for (int k = 0; k < COUNT; k++) {
            const int row = __shfl_sync(0xffffffffu, mapped[k / 32], k & 31);
            const sample* line = src_row(p, max(row, 0));
            sample s[4];
#pragma unroll
            for (int i = 0; i < 4; i++) s[i] = line[max(column[i], 0)];
#if BORDER == BORDER_ZERO
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (row < 0 || column[i] < 0) s[i] = (sample)0;
#endif
#if SAMPLE == 8
            raw[k] = bits_of(s[0]) | bits_of(s[1]) << 8 | bits_of(s[2]) << 16 | bits_of(s[3]) << 24;
#elif SAMPLE == 16
            raw[k] = make_uint2(bits_of(s[0]) | bits_of(s[1]) << 16, bits_of(s[2]) | bits_of(s[3]) << 16);
#else
            raw[k] = make_float4(s[0], s[1], s[2], s[3]);
#endif
        }
    }
}

// Address of sample x of row y, which lies inside.
__device__ __forceinline__ const u8* src_at(const Plane& p, int x, int y) {
    return p.src + (u64)(u32)y * p.src_pitch + (u32)x * (u32)sizeof(sample);
}

__device__ __forceinline__ u8* dst_at(const Plane& p, int x, int y) {
    return p.dst + (u64)(u32)y * p.dst_pitch + (u32)x * (u32)sizeof(sample);
}

// The k-th row below an address.
__device__ __forceinline__ raw4 load4(const u8* at, u32 pitch, int k) { return *reinterpret_cast<const raw4*>(at + (u64)(u32)k * pitch); }

// May write the padding behind the row.
__device__ __forceinline__ void store4(u8* at, u32 pitch, int k, raw4 v) { *reinterpret_cast<raw4*>(at + (u64)(u32)k * pitch) = v; }

#if SAMPLE == 8
// How the four samples at x come from two neighbouring words where some of them lie outside: under every border rule they are
// copies of near neighbours, unless the plane is narrower than they are apart (then `near` is false, and each is loaded by itself).
// Two loads and a permutation a row instead of four loads and three more to join them.
struct Gather {
    int column[4]; // -1: zero
    int base;      // of the first word
    u32 pick;      // __byte_perm's selector
    u32 keep;      // mask of samples that are not zero
    bool near;
};

__device__ __forceinline__ Gather gather_of(int x, int width) {
    Gather g;
    int low = width * COMPONENTS, high = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        g.column[i] = border_sample(x + i, width);
        if (g.column[i] >= 0) low = min(low, g.column[i]), high = max(high, g.column[i]);
    }
    g.base = min(low, high) & ~3;
    g.near = high - g.base < 8;
    g.pick = g.keep = 0;
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (g.column[i] >= 0) {
            g.pick |= (u32)((g.column[i] - g.base) & 7) << (4 * i);
            g.keep |= 0xffu << (8 * i);
        }
    return g;
}

// Four samples of a row by a gather that is near.
__device__ __forceinline__ u32 gather(const u8* line, const Gather& g) {
    const u32* at = reinterpret_cast<const u32*>(line + g.base);
    return __byte_perm(at[0], at[1], g.pick) & g.keep;
}

// And by one that is not.
__device__ __forceinline__ u32 gather_far(const u8* line, const Gather& g) {
    u32 word = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) word |= (u32)line[max(g.column[i], 0)] << (8 * i);
    return word & g.keep;
}
#endif
