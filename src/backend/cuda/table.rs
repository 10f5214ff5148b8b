//! The table of kernel variants: what each supports, what it moves and costs.

use super::lower::{
    gradient_spec, lower_box_fused, lower_box_naive, lower_box_running, lower_direct_naive, lower_fused, lower_gradient_tiled,
    lower_separable_naive, lower_tiled, lower_two_pass, lower_unsharp_fused, lower_unsharp_naive, wrong,
};
use super::lower_race::{
    fourier_tiles, lower_coarsened, lower_constant, lower_fft, lower_gemm, lower_plain_tile, lower_texture, lower_winograd2,
    lower_winograd4,
};
use super::lower_windows::{
    lower_compass_naive, lower_compass_tiled, lower_extremum_fused, lower_extremum_naive, lower_extremum_running, lower_median_levels,
    lower_median_naive, lower_median_network, lower_median_select, lower_morphology_naive, lower_morphology_tiled, lower_pixelate_blocks,
    lower_pixelate_naive, lower_pool_naive, lower_pool_tiled,
};
use super::spec::Spec;
use super::variants::{Cost, Task, Variant};
use super::{lower_direct, lower_tensor, lower_tensor8};
use crate::filter::plan::PlaneOp;
use crate::frame::Sample;

/// Kernels of weights. Rows of both take a separable one as the outer product that it is.
const WEIGHTED: &[&str] = &["direct", "separable"];

/// Every row; within a family the baseline first.
pub static TABLE: &[Variant] = &[
    Variant {
        name: "vector",
        families: &["copy"],
        about: "planes that pass: 16 bytes per thread, read once, written once",
        lower: |task| {
            // Whatever lies outside is not read.
            let spec = Spec::new(task, "copy.cu", "copy__vector").define("BORDER", 0);
            Ok(vec![spec.tile(512 / task.format().sample().bytes(), 8).threads(256)])
        },
        cost: |task| Cost { bytes: 2.0 * task.format().sample().bytes() as f64, instructions: 1.0, launches: 1.0 },
    },
    Variant {
        name: "naive",
        families: &["separable"],
        about: "a thread per sample, all taps from global memory (L1), blocks of 32x8; up to 127x127 taps",
        lower: lower_separable_naive,
        cost: |task| naive_cost(task, taps_of(task)),
    },
    Variant {
        name: "fused",
        families: &["separable"],
        about: "both passes in one launch, column sums in registers, row sums through shared memory; tiles of 128 columns less the halo, radius up to 32",
        lower: |task| match &task.op {
            PlaneOp::Separable(op) => lower_fused(task, op),
            other => Err(wrong(other)),
        },
        cost: |task| {
            let (w, h) = extent(task);
            Cost { bytes: io_bytes(task), instructions: (w + 1.2 * h) + 2.5 * (8.0 + h) / 8.0 + 8.0, launches: 1.0 }
        },
    },
    Variant {
        name: "tensor",
        families: &["separable"],
        about: "both passes as products with banded Toeplitz matrices on tensor cores, weights and sums as two halves each; tiles of 128x64, samples of up to 10 bits, radius up to 32",
        lower: |task| match &task.op {
            PlaneOp::Separable(op) => lower_tensor::separable(task, op),
            other => Err(wrong(other)),
        },
        cost: |task| {
            let (w, h) = extent(task);
            Cost { bytes: io_bytes(task), instructions: 24.0 + 0.3 * (w + h), launches: 1.0 }
        },
    },
    Variant {
        name: "tensor8",
        families: &["separable"],
        about: "as tensor, in whole numbers: 8-bit samples as they are, weights and first sums in 16 bits as two bytes each; tiles of 128x32 to 128x128, weights of at least 0 that add up to 1 at most, radius up to 32",
        lower: |task| match &task.op {
            PlaneOp::Separable(op) => lower_tensor8::separable(task, op),
            other => Err(wrong(other)),
        },
        cost: |task| {
            let (w, h) = extent(task);
            let groups = (w * task.components as f64 / 16.0).ceil() + (h / 16.0).ceil();
            Cost { bytes: io_bytes(task), instructions: 12.0 + 4.0 * groups, launches: 1.0 }
        },
    },
    Variant {
        name: "separable",
        families: &["separable"],
        about: "two launches through a float plane in device memory, any radius; 8 sums per thread",
        lower: |task| match &task.op {
            PlaneOp::Separable(op) => Ok(lower_two_pass(task, op)),
            other => Err(wrong(other)),
        },
        cost: |task| {
            let (w, h) = extent(task);
            Cost { bytes: io_bytes(task) + 8.0, instructions: 1.5 * (w + h) + 16.0, launches: 2.0 }
        },
    },
    Variant {
        name: "naive",
        families: &["direct"],
        about: "a thread per sample, all taps from global memory (L1), blocks of 32x8; any size",
        lower: lower_direct_naive,
        cost: |task| naive_cost(task, taps_of(task)),
    },
    Variant {
        name: "registers",
        families: &["direct"],
        about: "up to 3x3 taps on floats or halves, 4x4 sums per thread in registers, neighbours by shuffle: no shared memory, no barrier",
        lower: |task| match &task.op {
            PlaneOp::Direct(op) => lower_direct::registers(task, op),
            other => Err(wrong(other)),
        },
        cost: |task| Cost { bytes: io_bytes(task), instructions: 1.3 * taps_of(task) + 12.0, launches: 1.0 },
    },
    Variant {
        name: "coarsened",
        families: &["direct"],
        about: "tile and halo as floats in shared memory, 4x4 sums per thread in registers; unrolled up to 121 taps, in bands of 16 rows beyond",
        lower: |task| match &task.op {
            PlaneOp::Direct(op) => lower_tiled(task, op),
            other => Err(wrong(other)),
        },
        cost: |task| Cost { bytes: io_bytes(task), instructions: 1.15 * taps_of(task) + 12.0, launches: 1.0 },
    },
    Variant {
        name: "integer",
        families: &["direct"],
        about: "whole weights from -128 to 127 on 8-bit samples, four taps per instruction, 8x4 exact sums per thread in registers; up to 9x9 taps",
        lower: |task| match &task.op {
            PlaneOp::Direct(op) => lower_direct::integer(task, op),
            other => Err(wrong(other)),
        },
        cost: |task| {
            let (w, h) = extent(task);
            Cost { bytes: io_bytes(task), instructions: 1.6 * h * (w / 4.0).ceil() + 16.0, launches: 1.0 }
        },
    },
    Variant {
        name: "tensor",
        families: &["direct"],
        about: "a product with a banded Toeplitz matrix per row of weights on tensor cores, weights (and floats) in two parts; tiles of 128x64 or 128x32, integer samples of up to 10 bits, halves or floats, up to 65x65 taps",
        lower: |task| match &task.op {
            PlaneOp::Direct(op) => lower_tensor::direct(task, op),
            other => Err(wrong(other)),
        },
        cost: |task| {
            let (w, h) = extent(task);
            // A product of 16 columns for each part of the weights (and of floats) and row.
            let whole = matches!(&task.op, PlaneOp::Direct(op) if op.taps.iter().all(|w| w.fract() == 0.0 && w.abs() <= 128.0));
            let parts = if task.format().sample() == Sample::F32 { 2.0 } else { 1.0 } + if whole { 0.0 } else { 1.0 };
            let steps = 1.0 + (w * task.components as f64 / 16.0).ceil();
            Cost { bytes: io_bytes(task), instructions: 30.0 + 1.7 * parts * steps * h, launches: 1.0 }
        },
    },
    Variant {
        name: "naive",
        families: &["box"],
        about: "a thread per sample, the whole window from global memory (L1); one pass, windows up to 16129 samples",
        lower: lower_box_naive,
        cost: |task| naive_cost(task, taps_of(task)),
    },
    Variant {
        name: "fused",
        families: &["box"],
        about: "one launch. 8 bits, one pass, radius up to 31: packed column sums by prefix sums down, windows slide across two samples an instruction. Radius times power up to 32: the fused separable kernel. Deeper samples up to 31: column sums slide down 8 rows, windows from a prefix sum across the warp",
        lower: |task| match &task.op {
            PlaneOp::Box(op) => lower_box_fused(task, *op),
            other => Err(wrong(other)),
        },
        cost: |task| {
            let (w, h) = extent(task);
            Cost { bytes: io_bytes(task), instructions: (h / 16.0 + 16.0) * 128.0 / (128.0 - w).max(16.0), launches: 1.0 }
        },
    },
    Variant {
        name: "running",
        families: &["box"],
        about: "one launch per direction and pass through device memory, windows as differences of prefix sums, or sliding down from them where one pass fits 32 bits: any radius, any number of passes",
        lower: |task| match &task.op {
            PlaneOp::Box(op) => Ok(lower_box_running(task, *op)),
            other => Err(wrong(other)),
        },
        cost: |task| {
            let passes = match &task.op {
                PlaneOp::Box(op) => 2.0 * op.power as f64,
                _ => 2.0,
            };
            Cost { bytes: io_bytes(task) + 16.0 * passes, instructions: 30.0 * passes, launches: passes }
        },
    },
    Variant {
        name: "naive",
        families: &["unsharp"],
        about: "a thread per sample, 64-bit integer sums, all taps from global memory (L1); any size",
        lower: lower_unsharp_naive,
        cost: |task| naive_cost(task, 2.0 * taps_of(task)),
    },
    Variant {
        name: "fused",
        families: &["unsharp"],
        about: "binomial blur and formula in one launch, sums exact in float: sizes up to depth + size_x + size_y <= 26",
        lower: |task| match &task.op {
            PlaneOp::Unsharp(op) => lower_unsharp_fused(task, *op),
            other => Err(wrong(other)),
        },
        cost: |task| {
            let (w, h) = extent(task);
            Cost { bytes: io_bytes(task), instructions: (w + 1.2 * h) + 2.5 * (8.0 + h) / 8.0 + 16.0, launches: 1.0 }
        },
    },
    Variant {
        name: "naive",
        families: &["gradient"],
        about: "a thread per sample, nine samples from global memory (L1)",
        lower: |task| match &task.op {
            PlaneOp::Gradient(op) => Ok(vec![gradient_spec(task, op, "naive.cu", "gradient__naive").tile(32, 8).threads(256)]),
            other => Err(wrong(other)),
        },
        cost: |task| naive_cost(task, 18.0),
    },
    Variant {
        name: "tiled",
        families: &["gradient"],
        about: "4x4 samples per thread in registers, neighbours by shuffle; tiles of 120x16",
        lower: |task| match &task.op {
            PlaneOp::Gradient(op) => Ok(vec![lower_gradient_tiled(task, op)]),
            other => Err(wrong(other)),
        },
        cost: |task| Cost { bytes: io_bytes(task), instructions: 40.0, launches: 1.0 },
    },
    Variant {
        name: "naive",
        families: &["compass"],
        about: "a thread per sample, nine samples from global memory (L1)",
        lower: lower_compass_naive,
        cost: |task| naive_cost(task, 16.0),
    },
    Variant {
        name: "tiled",
        families: &["compass"],
        about: "4x4 samples per thread in registers, neighbours by shuffle, all eight kernels from one window; tiles of 120x16",
        lower: lower_compass_tiled,
        cost: |task| Cost { bytes: io_bytes(task), instructions: 45.0, launches: 1.0 },
    },
    Variant {
        name: "naive",
        families: &["extremum"],
        about: "a thread per sample, the whole window from global memory (L1); windows up to 16129 samples",
        lower: lower_extremum_naive,
        cost: |task| naive_cost(task, taps_of(task)),
    },
    Variant {
        name: "fused",
        families: &["extremum"],
        about: "one launch: van Herk's method down 4 or 8 rows in registers, then across four columns a lane, 16-bit pairs; radius up to 31",
        lower: lower_extremum_fused,
        cost: |task| {
            let (w, h) = extent(task);
            Cost { bytes: io_bytes(task), instructions: ((w + h) / 8.0 + 12.0) * 128.0 / (130.0 - w).max(16.0), launches: 1.0 }
        },
    },
    Variant {
        name: "running",
        families: &["extremum"],
        about: "the fused kernel up to radius 15, then passes that make the window five times as large each, 25 reads per sample: any radius",
        lower: lower_extremum_running,
        cost: |task| {
            let passes = extent(task).0.max(extent(task).1).ln() / 5f64.ln() - 2.0;
            let passes = passes.ceil().max(0.0);
            Cost { bytes: io_bytes(task) * (1.0 + passes), instructions: 30.0 + 120.0 * passes, launches: 1.0 + passes }
        },
    },
    Variant {
        name: "naive",
        families: &["morphology"],
        about: "a thread per sample, nine samples from global memory (L1)",
        lower: lower_morphology_naive,
        cost: |task| naive_cost(task, 9.0),
    },
    Variant {
        name: "tiled",
        families: &["morphology"],
        about: "4x4 samples per thread in registers, neighbours by shuffle; tiles of 120x16",
        lower: lower_morphology_tiled,
        cost: |task| Cost { bytes: io_bytes(task), instructions: 25.0, launches: 1.0 },
    },
    Variant {
        name: "naive",
        families: &["median"],
        about: "a thread per sample, the window read from global memory (L1) once per bit of a sample; any size",
        lower: lower_median_naive,
        cost: |task| naive_cost(task, taps_of(task) * f64::from(task.format().depth)),
    },
    Variant {
        name: "network",
        families: &["median"],
        about: "selection network in registers, two samples of 16 bits per instruction, sorted columns lent by shuffle; radius up to 2, any rank",
        lower: lower_median_network,
        cost: |task| Cost { bytes: io_bytes(task), instructions: 4.0 * taps_of(task) + 10.0, launches: 1.0 },
    },
    Variant {
        name: "levels",
        families: &["median"],
        about: "counts of samples at a level or above, four to a word, level by level where a tile needs it; 8-bit samples, windows of up to 255, tiles of 496x18",
        lower: lower_median_levels,
        cost: |task| Cost { bytes: io_bytes(task), instructions: 1100.0, launches: 1.0 },
    },
    Variant {
        name: "select",
        families: &["median"],
        about: "rank found bit by bit, the window in shared memory, four samples per thread; tiles of 32x16 whose windows fit 46 KiB",
        lower: lower_median_select,
        cost: |task| Cost {
            bytes: io_bytes(task),
            instructions: 3.0 * taps_of(task) * f64::from(task.format().depth) + 40.0,
            launches: 1.0,
        },
    },
    Variant {
        name: "naive",
        families: &["pool"],
        about: "a thread per sample that is written, its window from global memory (L1); any size",
        lower: lower_pool_naive,
        cost: |task| naive_cost(task, taps_of(task)),
    },
    Variant {
        name: "tiled",
        families: &["pool"],
        about: "four samples per thread from the samples that their windows span, unrolled; windows up to 7x7",
        lower: lower_pool_tiled,
        cost: |task| Cost { bytes: io_bytes(task), instructions: 2.5 * taps_of(task) + 15.0, launches: 1.0 },
    },
    Variant {
        name: "naive",
        families: &["pixelate"],
        about: "a thread per sample, its whole block from global memory (L1); blocks up to 16129 samples",
        lower: lower_pixelate_naive,
        cost: |task| naive_cost(task, taps_of(task)),
    },
    Variant {
        name: "blocks",
        families: &["pixelate"],
        about: "a warp per block of pixels (128 threads above 1024 samples) sums it and writes it: each sample read once; any size",
        lower: lower_pixelate_blocks,
        cost: |task| {
            // Small blocks leave lanes idle.
            Cost { bytes: io_bytes(task), instructions: 8.0 + 1600.0 / taps_of(task), launches: 1.0 }
        },
    },
    Variant {
        name: "constant",
        families: WEIGHTED,
        about: "a thread per sample, all taps from global memory (L1), weights in constant memory; block size 32x8 or as named; a separable kernel as its outer product",
        lower: lower_constant,
        cost: |task| Cost { instructions: 9.0 * taps_of(task) + 40.0, ..naive_cost(task, 0.0) },
    },
    Variant {
        name: "tiled",
        families: WEIGHTED,
        about: "a thread per sample, tile and halo as floats in shared memory (48 KiB); block size 32x8 or as named; a separable kernel as its outer product",
        lower: lower_plain_tile,
        cost: |task| Cost { instructions: 5.0 * taps_of(task) + 60.0, ..naive_cost(task, 0.0) },
    },
    Variant {
        name: "texture",
        families: WEIGHTED,
        about: "a thread per sample, all taps through the texture unit with its border modes (not reflect101); a separable kernel as its outer product",
        lower: lower_texture,
        cost: |task| Cost { instructions: 20.0 * taps_of(task) + 40.0, ..naive_cost(task, 0.0) },
    },
    Variant {
        name: "winograd",
        families: WEIGHTED,
        about: "F(2x2,3x3): 16 products for 4 samples, a tile per thread in registers; kernels up to 3x3; a separable kernel as its outer product",
        lower: lower_winograd2,
        cost: |task| Cost { bytes: io_bytes(task), instructions: 70.0, launches: 1.0 },
    },
    Variant {
        name: "winograd4",
        families: WEIGHTED,
        about: "F(4x4,3x3): 36 products for 16 samples, a tile per thread in registers; kernels up to 3x3; a separable kernel as its outer product",
        lower: lower_winograd4,
        cost: |task| Cost { bytes: io_bytes(task), instructions: 60.0, launches: 1.0 },
    },
    Variant {
        name: "gemm",
        families: WEIGHTED,
        about: "im2col in strips of 16 samples, then cuBLAS; the matrix in pieces of 256 MiB through device memory; a separable kernel as its outer product",
        lower: lower_gemm,
        cost: gemm_cost,
    },
    Variant {
        name: "fft",
        families: WEIGHTED,
        about: "overlapping tiles of 16 to 1024 a side through cuFFT: cost does not grow with the kernel; up to 127x127 taps; a separable kernel as its outer product",
        lower: lower_fft,
        cost: fft_cost,
    },
    Variant {
        name: "coarsened",
        families: &["separable"],
        about: "the outer product: tile and halo as floats in shared memory, 4x4 sums per thread in registers",
        lower: lower_coarsened,
        cost: |task| Cost { bytes: io_bytes(task), instructions: 1.15 * taps_of(task) + 12.0, launches: 1.0 },
    },
];

/// Bytes read and written per sample when each is touched once.
fn io_bytes(task: &Task) -> f64 {
    2.0 * task.format().sample().bytes() as f64
}

/// Taps across and down.
fn extent(task: &Task) -> (f64, f64) {
    let (w, h) = match &task.op {
        PlaneOp::Copy => (1, 1),
        PlaneOp::Separable(op) => (op.row.len(), op.col.len()),
        PlaneOp::Direct(op) => (op.width, op.height),
        PlaneOp::Box(op) => (2 * op.radius_x + 1, 2 * op.radius_y + 1),
        PlaneOp::Unsharp(op) => (op.size_x, op.size_y),
        PlaneOp::Gradient(_) | PlaneOp::Compass(_) | PlaneOp::Morphology(_) => (3, 3),
        PlaneOp::Extremum(op) => (2 * op.radius_x + 1, 2 * op.radius_y + 1),
        PlaneOp::Median(op) => (2 * op.radius_x + 1, 2 * op.radius_y + 1),
        PlaneOp::Pool(op) => (op.kernel, op.kernel),
        PlaneOp::Pixelate(op) => (op.block_x, op.block_y),
    };
    (w as f64, h as f64)
}

fn taps_of(task: &Task) -> f64 {
    let (w, h) = extent(task);
    w * h
}

fn naive_cost(task: &Task, taps: f64) -> Cost {
    // Address, border test, load, conversion and multiply for every tap: measured at some ten times the tiled kernel's.
    Cost { bytes: io_bytes(task), instructions: 10.0 * taps + 40.0, launches: 1.0 }
}

/// Per sample: (15 + w) h / 16 matrix cells written and read again, the sums too.
fn gemm_cost(task: &Task) -> Cost {
    let (w, h) = extent(task);
    let cells = (15.0 + w) * h;
    let pieces = (task.samples() as f64 * cells / 4.0 / f64::from(256 << 20)).ceil();
    Cost { bytes: io_bytes(task) + cells + 8.0, instructions: 2.0 * cells + 20.0, launches: 3.0 * pieces }
}

/// Six passes over tiles whose overlap is done twice, at some three times the rate of device memory, since most of it stays in the L2.
fn fft_cost(task: &Task) -> Cost {
    let (w, h) = extent(task);
    let (bytes, instructions) = fourier_tiles(task, (w as usize, h as usize)).map_or((f64::INFINITY, f64::INFINITY), |tiles| {
        let growth = (tiles.width * tiles.height * tiles.count) as f64 / (task.samples() as f64).max(1.0);
        (growth * 56.0 / 2.0, growth * 60.0)
    });
    Cost { bytes: io_bytes(task) + bytes, instructions, launches: 7.0 }
}
