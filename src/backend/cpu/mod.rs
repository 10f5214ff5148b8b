//! SIMD, multi-threaded execution of steps on the CPU.
