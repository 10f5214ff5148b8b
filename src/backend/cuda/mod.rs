//! CUDA: device, compiler, variants, lanes.
