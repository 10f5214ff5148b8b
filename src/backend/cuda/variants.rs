//! The table of kernel variants: what each supports, what it moves and costs; and the choice among them.
//!
//! A row never falls back: asked for by name where it does not fit, it says why. Only the automatic choice skips rows.
//! Planes of a step that have the same operation share one launch.

use super::device::DeviceInfo;
use super::library::Library;
use super::lower::{
    gradient_spec, lower_box_fused, lower_box_naive, lower_box_running, lower_direct_naive, lower_fused, lower_gradient_tiled,
    lower_separable_naive, lower_tiled, lower_two_pass, lower_unsharp_fused, lower_unsharp_naive, wrong,
};
use super::lower_race::{
    fourier_tiles, lower_coarsened, lower_constant, lower_fft, lower_gemm, lower_plain_tile, lower_texture, lower_winograd2,
    lower_winograd4, slack,
};
use super::lower_windows::{
    lower_compass_naive, lower_compass_tiled, lower_extremum_fused, lower_extremum_naive, lower_extremum_running, lower_median_levels,
    lower_median_naive, lower_median_network, lower_median_select, lower_morphology_naive, lower_morphology_tiled, lower_pixelate_blocks,
    lower_pixelate_naive, lower_pool_naive, lower_pool_tiled,
};
use super::spec::Spec;
use super::tuning::Times;
use super::{lower_direct, lower_tensor, lower_tensor8};
use crate::error::{Error, Result};
use crate::filter::Border;
use crate::filter::plan::{Plan, PlaneOp, Step};
use crate::frame::{PixelFormat, Sample, Shape};

/// The planes of one step that share an operation.
#[derive(Clone, Debug)]
pub struct Task {
    /// What happens to them.
    pub op: PlaneOp,
    /// What lies outside.
    pub border: Border,
    /// The frame.
    pub shape: Shape,
    /// The frame that is written; of another size only where pooling has a stride.
    pub output: Shape,
    /// Interleaved components of these planes.
    pub components: usize,
    /// Their indices.
    pub planes: Vec<usize>,
    /// Threads across and down of a block, where the user named them (`tiled:32x8`).
    pub block: Option<BlockSize>,
}

impl Task {
    /// The tasks of a step: planes with the same operation and as many components go together.
    pub fn of_step(step: &Step) -> Vec<Self> {
        let format = step.input.format;
        let mut tasks: Vec<Self> = Vec::new();
        for (index, op) in step.planes.iter().enumerate().take(format.plane_count()) {
            let components = format.components(index);
            match tasks.iter_mut().find(|t| t.op == *op && t.components == components) {
                Some(task) => task.planes.push(index),
                None => tasks.push(Self {
                    op: op.clone(),
                    border: step.border,
                    shape: step.input,
                    output: step.output,
                    components,
                    planes: vec![index],
                    block: None,
                }),
            }
        }
        tasks
    }

    /// Each plane as a task of its own.
    pub fn one_by_one(&self) -> Vec<Self> {
        self.planes.iter().map(|&plane| Self { planes: vec![plane], ..self.clone() }).collect()
    }

    pub(super) fn format(&self) -> PixelFormat {
        self.shape.format
    }

    /// Samples of all planes that are written.
    pub fn samples(&self) -> usize {
        self.planes.iter().map(|&p| self.output.plane_size(p)).map(|(w, h)| w * h * self.components).sum()
    }
}

/// Name of an operation, as `convoy variants` groups rows.
pub fn family(op: &PlaneOp) -> &'static str {
    match op {
        PlaneOp::Copy => "copy",
        PlaneOp::Separable(_) => "separable",
        PlaneOp::Direct(_) => "direct",
        PlaneOp::Box(_) => "box",
        PlaneOp::Unsharp(_) => "unsharp",
        PlaneOp::Gradient(_) => "gradient",
        PlaneOp::Compass(_) => "compass",
        PlaneOp::Extremum(_) => "extremum",
        PlaneOp::Morphology(_) => "morphology",
        PlaneOp::Median(_) => "median",
        PlaneOp::Pool(_) => "pool",
        PlaneOp::Pixelate(_) => "pixelate",
    }
}

/// One row of the table.
pub struct Variant {
    /// Name for `--variant` and `variant=`.
    pub name: &'static str,
    /// Operation that it executes.
    pub family: &'static str,
    /// What it is, tile and bytes moved per sample, for `convoy variants`.
    pub about: &'static str,
    /// Its launches, or why it does not fit.
    lower: fn(&Task) -> Result<Vec<Spec>, String>,
    /// Estimated cost in bytes moved and operations per sample.
    cost: fn(&Task) -> Cost,
}

/// What a sample costs; see [`Variant::estimate_us`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Bytes through device memory per sample.
    pub bytes: f64,
    /// Instructions per sample.
    pub instructions: f64,
    /// Launches per step.
    pub launches: f64,
}

impl Variant {
    /// Whether the variant can do `task` on this machine.
    ///
    /// # Errors
    /// The reason why not: it does not fit, or its library is missing.
    pub fn supports(&self, task: &Task) -> Result<(), String> {
        self.specs(task)?;
        self.library().map_or(Ok(()), Library::available)
    }

    /// The library that it needs.
    pub fn library(&self) -> Option<Library> {
        match self.name {
            "gemm" => Some(Library::CuBlas),
            "fft" => Some(Library::CuFft),
            _ => None,
        }
    }

    /// Whether the user may name a block size behind its name.
    pub fn takes_block(&self) -> bool {
        matches!((self.name, self.family), ("constant" | "tiled" | "texture", "direct" | "separable"))
    }

    /// How far a sum may be off before it is rounded, relative to the sample's range times the sum of the weights' sizes times the scale.
    /// 0: as exact as the plain sum of products, so that integer samples are equal but for one in a thousand that differs by one.
    pub fn slack(&self, task: &Task) -> f64 {
        slack(self.name, task)
    }

    /// Whether it keeps the tolerance that the automatic choice promises: exact, or floats to 1.5e-5.
    fn exact(&self, task: &Task) -> bool {
        let slack = self.slack(task);
        slack == 0.0 || (task.format().sample() == Sample::F32 && slack <= 1.5e-5)
    }

    /// What it is estimated to cost.
    pub fn cost(&self, task: &Task) -> Cost {
        (self.cost)(task)
    }

    /// The launches that do `task`.
    ///
    /// # Errors
    /// The reason why the variant does not fit.
    pub fn specs(&self, task: &Task) -> Result<Vec<Spec>, String> {
        if self.family != family(&task.op) {
            return Err(format!("it is a variant of {} kernels, not of {}", self.family, family(&task.op)));
        }
        if let Some((x, y)) = task.block.filter(|_| !self.takes_block()) {
            return Err(format!("it has a block size of its own and takes none ({x}x{y} was named)"));
        }
        (self.lower)(task)
    }

    /// What the estimate says is the limit.
    fn limit(&self, task: &Task, machine: Machine) -> &'static str {
        let cost = self.cost(task);
        let with = |cost: Cost| self.time_us(task, cost, machine.multiprocessors, machine.bandwidth);
        let (memory, compute) = (with(Cost { instructions: 0.0, launches: 0.0, ..cost }), with(Cost { bytes: 0.0, launches: 0.0, ..cost }));
        match () {
            () if memory.max(compute) < 1.5 * cost.launches => "launches",
            () if memory >= compute => "memory",
            () => "arithmetic",
        }
    }

    /// Estimated time on a GPU of `multiprocessors` at `bandwidth` bytes per second, in microseconds.
    pub fn estimate_us(&self, task: &Task, multiprocessors: u32, bandwidth: u64) -> f64 {
        self.time_us(task, self.cost(task), multiprocessors, bandwidth)
    }

    fn time_us(&self, task: &Task, cost: Cost, multiprocessors: u32, bandwidth: u64) -> f64 {
        let samples = task.samples() as f64;
        // 128 instructions per multiprocessor and clock at 1.7 GHz, of which two thirds are reached.
        let compute = samples * cost.instructions / (f64::from(multiprocessors.max(1)) * 128.0 * 1.7e3 * 0.66);
        let memory = samples * cost.bytes / (bandwidth.max(1) as f64 * 1e-6 * 0.85);
        compute.max(memory) + 1.5 * cost.launches
    }
}

/// Every row; within a family the baseline first.
pub static TABLE: &[Variant] = &[
    Variant {
        name: "vector",
        family: "copy",
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
        family: "separable",
        about: "a thread per sample, all taps from global memory (L1), blocks of 32x8; up to 127x127 taps",
        lower: lower_separable_naive,
        cost: |task| naive_cost(task, taps_of(task)),
    },
    Variant {
        name: "fused",
        family: "separable",
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
        family: "separable",
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
        family: "separable",
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
        family: "separable",
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
        family: "direct",
        about: "a thread per sample, all taps from global memory (L1), blocks of 32x8; any size",
        lower: lower_direct_naive,
        cost: |task| naive_cost(task, taps_of(task)),
    },
    Variant {
        name: "registers",
        family: "direct",
        about: "up to 3x3 taps on float samples, 4x4 sums per thread in registers, neighbours by shuffle: no shared memory, no barrier",
        lower: |task| match &task.op {
            PlaneOp::Direct(op) => lower_direct::registers(task, op),
            other => Err(wrong(other)),
        },
        cost: |task| Cost { bytes: io_bytes(task), instructions: 1.3 * taps_of(task) + 12.0, launches: 1.0 },
    },
    Variant {
        name: "coarsened",
        family: "direct",
        about: "tile and halo as floats in shared memory, 4x4 sums per thread in registers; unrolled up to 121 taps, in bands of 16 rows beyond",
        lower: |task| match &task.op {
            PlaneOp::Direct(op) => lower_tiled(task, op),
            other => Err(wrong(other)),
        },
        cost: |task| Cost { bytes: io_bytes(task), instructions: 1.15 * taps_of(task) + 12.0, launches: 1.0 },
    },
    Variant {
        name: "integer",
        family: "direct",
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
        family: "direct",
        about: "a product with a banded Toeplitz matrix per row of weights on tensor cores, weights (and floats) in two parts; tiles of 128x64 or 128x32, integer samples of up to 10 bits or floats, up to 65x65 taps",
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
        family: "box",
        about: "a thread per sample, the whole window from global memory (L1); one pass, windows up to 16129 samples",
        lower: lower_box_naive,
        cost: |task| naive_cost(task, taps_of(task)),
    },
    Variant {
        name: "fused",
        family: "box",
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
        family: "box",
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
        family: "unsharp",
        about: "a thread per sample, 64-bit integer sums, all taps from global memory (L1); any size",
        lower: lower_unsharp_naive,
        cost: |task| naive_cost(task, 2.0 * taps_of(task)),
    },
    Variant {
        name: "fused",
        family: "unsharp",
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
        family: "gradient",
        about: "a thread per sample, nine samples from global memory (L1)",
        lower: |task| match &task.op {
            PlaneOp::Gradient(op) => Ok(vec![gradient_spec(task, op, "naive.cu", "gradient__naive").tile(32, 8).threads(256)]),
            other => Err(wrong(other)),
        },
        cost: |task| naive_cost(task, 18.0),
    },
    Variant {
        name: "tiled",
        family: "gradient",
        about: "4x4 samples per thread in registers, neighbours by shuffle; tiles of 120x16",
        lower: |task| match &task.op {
            PlaneOp::Gradient(op) => Ok(vec![lower_gradient_tiled(task, op)]),
            other => Err(wrong(other)),
        },
        cost: |task| Cost { bytes: io_bytes(task), instructions: 40.0, launches: 1.0 },
    },
    Variant {
        name: "naive",
        family: "compass",
        about: "a thread per sample, nine samples from global memory (L1)",
        lower: lower_compass_naive,
        cost: |task| naive_cost(task, 16.0),
    },
    Variant {
        name: "tiled",
        family: "compass",
        about: "4x4 samples per thread in registers, neighbours by shuffle, all eight kernels from one window; tiles of 120x16",
        lower: lower_compass_tiled,
        cost: |task| Cost { bytes: io_bytes(task), instructions: 45.0, launches: 1.0 },
    },
    Variant {
        name: "naive",
        family: "extremum",
        about: "a thread per sample, the whole window from global memory (L1); windows up to 16129 samples",
        lower: lower_extremum_naive,
        cost: |task| naive_cost(task, taps_of(task)),
    },
    Variant {
        name: "fused",
        family: "extremum",
        about: "one launch: van Herk's method down 4 or 8 rows in registers, then across four columns a lane, 16-bit pairs; radius up to 31",
        lower: lower_extremum_fused,
        cost: |task| {
            let (w, h) = extent(task);
            Cost { bytes: io_bytes(task), instructions: ((w + h) / 8.0 + 12.0) * 128.0 / (130.0 - w).max(16.0), launches: 1.0 }
        },
    },
    Variant {
        name: "running",
        family: "extremum",
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
        family: "morphology",
        about: "a thread per sample, nine samples from global memory (L1)",
        lower: lower_morphology_naive,
        cost: |task| naive_cost(task, 9.0),
    },
    Variant {
        name: "tiled",
        family: "morphology",
        about: "4x4 samples per thread in registers, neighbours by shuffle; tiles of 120x16",
        lower: lower_morphology_tiled,
        cost: |task| Cost { bytes: io_bytes(task), instructions: 25.0, launches: 1.0 },
    },
    Variant {
        name: "naive",
        family: "median",
        about: "a thread per sample, the window read from global memory (L1) once per bit of a sample; any size",
        lower: lower_median_naive,
        cost: |task| naive_cost(task, taps_of(task) * f64::from(task.format().depth)),
    },
    Variant {
        name: "network",
        family: "median",
        about: "selection network in registers, two samples of 16 bits per instruction, sorted columns lent by shuffle; radius up to 2, any rank",
        lower: lower_median_network,
        cost: |task| Cost { bytes: io_bytes(task), instructions: 4.0 * taps_of(task) + 10.0, launches: 1.0 },
    },
    Variant {
        name: "levels",
        family: "median",
        about: "counts of samples at a level or above, four to a word, level by level where a tile needs it; 8-bit samples, windows of up to 255, tiles of 496x18",
        lower: lower_median_levels,
        cost: |task| Cost { bytes: io_bytes(task), instructions: 1100.0, launches: 1.0 },
    },
    Variant {
        name: "select",
        family: "median",
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
        family: "pool",
        about: "a thread per sample that is written, its window from global memory (L1); any size",
        lower: lower_pool_naive,
        cost: |task| naive_cost(task, taps_of(task)),
    },
    Variant {
        name: "tiled",
        family: "pool",
        about: "four samples per thread from the samples that their windows span, unrolled; windows up to 7x7",
        lower: lower_pool_tiled,
        cost: |task| Cost { bytes: io_bytes(task), instructions: 2.5 * taps_of(task) + 15.0, launches: 1.0 },
    },
    Variant {
        name: "naive",
        family: "pixelate",
        about: "a thread per sample, its whole block from global memory (L1); blocks up to 16129 samples",
        lower: lower_pixelate_naive,
        cost: |task| naive_cost(task, taps_of(task)),
    },
    Variant {
        name: "blocks",
        family: "pixelate",
        about: "a warp per block of pixels (128 threads above 1024 samples) sums it and writes it: each sample read once; any size",
        lower: lower_pixelate_blocks,
        cost: |task| {
            // Small blocks leave lanes idle.
            Cost { bytes: io_bytes(task), instructions: 8.0 + 1600.0 / taps_of(task), launches: 1.0 }
        },
    },
    Variant {
        name: "constant",
        family: "direct",
        about: "a thread per sample, all taps from global memory (L1), weights in constant memory; block size 32x8 or as named",
        lower: lower_constant,
        cost: |task| Cost { instructions: 9.0 * taps_of(task) + 40.0, ..naive_cost(task, 0.0) },
    },
    Variant {
        name: "tiled",
        family: "direct",
        about: "a thread per sample, tile and halo as floats in shared memory (48 KiB); block size 32x8 or as named",
        lower: lower_plain_tile,
        cost: |task| Cost { instructions: 5.0 * taps_of(task) + 60.0, ..naive_cost(task, 0.0) },
    },
    Variant {
        name: "texture",
        family: "direct",
        about: "a thread per sample, all taps through the texture unit with its border modes (not reflect101)",
        lower: lower_texture,
        cost: |task| Cost { instructions: 20.0 * taps_of(task) + 40.0, ..naive_cost(task, 0.0) },
    },
    Variant {
        name: "winograd",
        family: "direct",
        about: "F(2x2,3x3): 16 products for 4 samples, a tile per thread in registers; kernels up to 3x3",
        lower: lower_winograd2,
        cost: |task| Cost { bytes: io_bytes(task), instructions: 70.0, launches: 1.0 },
    },
    Variant {
        name: "winograd4",
        family: "direct",
        about: "F(4x4,3x3): 36 products for 16 samples, a tile per thread in registers; kernels up to 3x3",
        lower: lower_winograd4,
        cost: |task| Cost { bytes: io_bytes(task), instructions: 60.0, launches: 1.0 },
    },
    Variant {
        name: "gemm",
        family: "direct",
        about: "im2col in strips of 16 samples, then cuBLAS; the matrix in pieces of 256 MiB through device memory",
        lower: lower_gemm,
        cost: gemm_cost,
    },
    Variant {
        name: "fft",
        family: "direct",
        about: "overlapping tiles of 16 to 1024 a side through cuFFT: cost does not grow with the kernel; up to 127x127 taps",
        lower: lower_fft,
        cost: fft_cost,
    },
    Variant {
        name: "constant",
        family: "separable",
        about: "a thread per sample, all taps of the outer product from global memory (L1), weights in constant memory; block size 32x8 or as named",
        lower: lower_constant,
        cost: |task| Cost { instructions: 9.0 * taps_of(task) + 40.0, ..naive_cost(task, 0.0) },
    },
    Variant {
        name: "tiled",
        family: "separable",
        about: "a thread per sample, tile and halo of the outer product as floats in shared memory (48 KiB); block size 32x8 or as named",
        lower: lower_plain_tile,
        cost: |task| Cost { instructions: 5.0 * taps_of(task) + 60.0, ..naive_cost(task, 0.0) },
    },
    Variant {
        name: "coarsened",
        family: "separable",
        about: "the outer product: tile and halo as floats in shared memory, 4x4 sums per thread in registers",
        lower: lower_coarsened,
        cost: |task| Cost { bytes: io_bytes(task), instructions: 1.15 * taps_of(task) + 12.0, launches: 1.0 },
    },
    Variant {
        name: "texture",
        family: "separable",
        about: "a thread per sample, all taps of the outer product through the texture unit with its border modes (not reflect101)",
        lower: lower_texture,
        cost: |task| Cost { instructions: 20.0 * taps_of(task) + 40.0, ..naive_cost(task, 0.0) },
    },
    Variant {
        name: "winograd",
        family: "separable",
        about: "F(2x2,3x3) of the outer product: 16 products for 4 samples, a tile per thread in registers; kernels up to 3x3",
        lower: lower_winograd2,
        cost: |task| Cost { bytes: io_bytes(task), instructions: 70.0, launches: 1.0 },
    },
    Variant {
        name: "winograd4",
        family: "separable",
        about: "F(4x4,3x3) of the outer product: 36 products for 16 samples, a tile per thread in registers; kernels up to 3x3",
        lower: lower_winograd4,
        cost: |task| Cost { bytes: io_bytes(task), instructions: 60.0, launches: 1.0 },
    },
    Variant {
        name: "gemm",
        family: "separable",
        about: "im2col of the outer product in strips of 16 samples, then cuBLAS; the matrix in pieces of 256 MiB through device memory",
        lower: lower_gemm,
        cost: gemm_cost,
    },
    Variant {
        name: "fft",
        family: "separable",
        about: "overlapping tiles of 16 to 1024 a side through cuFFT of the outer product: cost does not grow with the kernel; up to 127x127 taps",
        lower: lower_fft,
        cost: fft_cost,
    },
];

/// The largest [`Variant::slack`] of a variant, by its name, over all tasks of `plan`.
pub fn plan_slack(plan: &Plan, name: &str) -> f64 {
    let name = parse_name(name).map_or(name, |(name, _)| name);
    let of = |task: &Task| TABLE.iter().find(|row| row.name == name && row.family == family(&task.op)).map_or(0.0, |row| row.slack(task));
    plan.steps.iter().flat_map(Task::of_step).map(|task| of(&task)).fold(0.0, f64::max)
}

/// Names of the variants that can run every step of `plan`, in the table's order.
pub fn fitting(plan: &Plan) -> Vec<&'static str> {
    let tasks: Vec<Task> = plan.steps.iter().flat_map(Task::of_step).filter(|task| task.op != PlaneOp::Copy).collect();
    let runs = |name: &str, task: &Task| TABLE.iter().any(|row| row.name == name && row.supports(task).is_ok());
    let mut names: Vec<&'static str> = Vec::new();
    for name in TABLE.iter().map(|row| row.name) {
        if !names.contains(&name) && !tasks.is_empty() && tasks.iter().all(|task| runs(name, task)) {
            names.push(name);
        }
    }
    names
}

/// Threads across and down.
pub type BlockSize = (usize, usize);

/// A variant as the user names it: `tiled`, or with a block size `tiled:32x8` or `tiled-32x8`.
///
/// # Errors
/// What is wrong with the block size.
pub fn parse_name(text: &str) -> Result<(&str, Option<BlockSize>), String> {
    let Some((name, block)) = text.split_once([':', '-']) else { return Ok((text, None)) };
    let side = |t: &str| t.parse::<usize>().ok().filter(|s| (1..=1024).contains(s));
    match block.split_once('x').and_then(|(x, y)| Some((side(x)?, side(y)?))) {
        Some(block) => Ok((name, Some(block))),
        None => Err(format!("'{block}' is no block size such as 32x8")),
    }
}

/// The rows that can do `task`, the cheapest by the cost model first. Libraries are not looked for.
pub fn ranked(task: &Task, multiprocessors: u32, bandwidth: u64) -> Vec<(&'static Variant, f64, Vec<Spec>)> {
    let rows = TABLE.iter().filter(|v| v.family == family(&task.op) && v.exact(task));
    let fitting = rows.filter_map(|row| Some((row, row.estimate_us(task, multiprocessors, bandwidth), row.specs(task).ok()?)));
    let mut fitting: Vec<_> = fitting.collect();
    fitting.sort_by(|a, b| a.1.total_cmp(&b.1));
    fitting
}

/// What the cost model knows of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Bytes per second of device memory.
    pub bandwidth: u64,
}

/// Bandwidth assumed where the driver does not tell, in bytes per second.
const USUAL_BANDWIDTH: u64 = 500_000_000_000;

impl Machine {
    /// What is assumed where there is no GPU.
    pub const ASSUMED: Self = Self { multiprocessors: 132, bandwidth: 4_800_000_000_000 };
    /// [`Machine::ASSUMED`] in words.
    pub const ASSUMED_NAME: &str = "an H200 (sm_90, 132 multiprocessors, 4.8 TB/s)";

    /// Of a GPU that is there.
    pub fn of(info: &DeviceInfo) -> Self {
        let bandwidth = if info.bandwidth > 0 { info.bandwidth } else { USUAL_BANDWIDTH };
        Self { multiprocessors: info.multiprocessors, bandwidth }
    }
}

/// What was chosen for a task.
pub struct Choice {
    /// The variant.
    pub row: &'static Variant,
    /// Its launches.
    pub specs: Vec<Spec>,
    /// Why, for humans.
    pub why: String,
}

/// The row for `task` by the cost model; see [`pick`].
///
/// # Errors
/// As for [`pick`].
pub fn choose(
    task: &Task,
    label: &str,
    forced: Option<&str>,
    multiprocessors: u32,
    bandwidth: u64,
) -> Result<(&'static Variant, Vec<Spec>)> {
    pick(task, label, forced, Machine { multiprocessors, bandwidth }, None).map(|choice| (choice.row, choice.specs))
}

/// The row for `task`: the forced one, else among the exact ones that fit the fastest as `measured`, or without a measurement the
/// cheapest by the cost model.
///
/// # Errors
/// The forced row does not exist or does not fit; the message says why and names those that do.
pub fn pick(task: &Task, label: &str, forced: Option<&str>, machine: Machine, measured: Option<&Times>) -> Result<Choice> {
    pick_ready(task, label, forced, machine, measured, &|_| true)
}

/// As [`pick`]; the automatic choice passes over rows whose kernels are not `ready` (no compiler, and not in the kernel pack).
///
/// # Errors
/// As for [`pick`].
pub fn pick_ready(
    task: &Task,
    label: &str,
    forced: Option<&str>,
    machine: Machine,
    measured: Option<&Times>,
    ready: &dyn Fn(&[Spec]) -> bool,
) -> Result<Choice> {
    // A plane that passes unchanged has one way to pass, whatever is asked for the others.
    if let Some(text) = forced.filter(|&name| task.op != PlaneOp::Copy && name != "auto") {
        return force(task, label, text);
    }
    let mut ranked = ranked(task, machine.multiprocessors, machine.bandwidth);
    let all = ranked.len();
    ranked.retain(|(.., specs)| ready(specs));
    let passed_over = all - ranked.len();
    let timed = |row: &Variant| measured.and_then(|times| times.of(row.name));
    // A row without a time keeps its place behind those that have one.
    ranked.sort_by(|(a, ..), (b, ..)| timed(a).unwrap_or(f64::INFINITY).total_cmp(&timed(b).unwrap_or(f64::INFINITY)));
    let mut missing = Vec::new();
    let mut others = Vec::new();
    let mut best: Option<(&'static Variant, f64, Vec<Spec>)> = None;
    for (row, estimate, specs) in ranked {
        if best.is_some() {
            others.push((row, timed(row).unwrap_or(estimate)));
            continue;
        }
        // Libraries are large: only one that would win is looked for.
        match row.library().map_or(Ok(()), Library::available) {
            Ok(()) => best = Some((row, estimate, specs)),
            Err(_) => missing.push(row),
        }
    }
    let Some((row, estimate, specs)) = best else {
        let what = format!("cannot run '{label}' on CUDA");
        if passed_over > 0 {
            let cause = "the kernel pack has no kernel for it, and there is no NVRTC to compile one";
            return Err(Error::failed(what, cause).hint("install NVRTC (pip install nvidia-cuda-nvrtc-cu12), or use --backend cpu"));
        }
        return Err(Error::failed(what, format!("no {} kernel fits {}", family(&task.op), task.shape)));
    };
    let mut why = match timed(row) {
        Some(us) => format!("{}, measured at {us:.1} us by `bench --tune`", row.name),
        None => format!("{}, estimated at {estimate:.1} us, limited by {}", row.name, row.limit(task, machine)),
    };
    if let Some((other, us)) = others.first() {
        why = format!("{why}; next is {} at {us:.1} us", other.name);
    }
    for other in missing {
        let library = other.library().map_or("", Library::name);
        why = format!("{why}; {} would be faster, but {library} is missing", other.name);
    }
    Ok(Choice { row, specs, why })
}

fn force(task: &Task, label: &str, text: &str) -> Result<Choice> {
    let rows = || TABLE.iter().filter(|v| v.family == family(&task.op));
    let refuse = |reason: String| {
        let fits: Vec<&str> = rows().filter(|v| v.specs(task).is_ok()).map(|v| v.name).collect();
        Error::usage(format!("variant '{text}' cannot run '{label}'"), reason).hint(format!("these can: {}", fits.join(", ")))
    };
    let (name, block) = parse_name(text).map_err(refuse)?;
    let Some(row) = rows().find(|v| v.name == name) else {
        let known = TABLE.iter().any(|v| v.name == name);
        return Err(refuse(if known {
            format!("there is no such variant of {} kernels", family(&task.op))
        } else {
            "the CUDA backend has no variant of that name".to_owned()
        }));
    };
    let specs = row.specs(&Task { block, ..task.clone() }).map_err(refuse)?;
    row.library().map_or(Ok(()), Library::available).map_err(refuse)?;
    Ok(Choice { row, specs, why: format!("{text}, as demanded") })
}

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
