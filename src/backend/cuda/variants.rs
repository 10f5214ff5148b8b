//! The table of kernel variants: what each supports, how it is compiled, what it moves; and the one function that launches.
//!
//! A row never falls back: asked for by name where it does not fit, it says why. Only the automatic choice skips rows.
//! Planes of a step that have the same operation share one launch; the structures here mirror those in `kernels/`.

use std::ffi::c_void;

use super::device::{DeviceBuffer, DevicePtr, Grid, Kernel, Stream};
use super::geometry::{Element, Geometry};
use crate::error::{Error, Result};
use crate::filter::Border;
use crate::filter::plan::{BoxMean, Direct, Gradient, PlaneOp, Separable, Step, Unsharp};
use crate::frame::{MAX_PLANES, PixelFormat, Sample, Shape};

/// Rows of samples that a warp of the register-blocked kernels makes; ROWS in `kernels/`.
const ROWS: usize = 8;
/// Warps of their blocks.
const WARPS: usize = 4;
/// Largest radius that the fused separable kernel is compiled for.
const FUSED_RADIUS: usize = 32;
/// Largest radius that the fused box kernel is compiled for.
const BOX_RADIUS: usize = 31;
/// Most taps that the tiled kernel unrolls.
const UNROLLED_TAPS: usize = 121;
/// Most taps per sample that a naive kernel takes: 127 × 127, the largest convolution.
const NAIVE_TAPS: usize = 127 * 127;

/// The planes of one step that share an operation.
#[derive(Clone, Debug)]
pub struct Task {
    /// What happens to them.
    pub op: PlaneOp,
    /// What lies outside.
    pub border: Border,
    /// The frame.
    pub shape: Shape,
    /// Interleaved components of these planes.
    pub components: usize,
    /// Their indices.
    pub planes: Vec<usize>,
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
                None => tasks.push(Self { op: op.clone(), border: step.border, shape: step.input, components, planes: vec![index] }),
            }
        }
        tasks
    }

    fn format(&self) -> PixelFormat {
        self.shape.format
    }

    /// Samples of all planes.
    pub fn samples(&self) -> usize {
        self.planes.iter().map(|&p| self.shape.plane_size(p)).map(|(w, h)| w * h * self.components).sum()
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
    /// Whether the variant can do `task`.
    ///
    /// # Errors
    /// The reason why not.
    pub fn supports(&self, task: &Task) -> Result<(), String> {
        self.specs(task).map(|_| ())
    }

    /// The launches that do `task`.
    ///
    /// # Errors
    /// The reason why the variant does not fit.
    pub fn specs(&self, task: &Task) -> Result<Vec<Spec>, String> {
        if self.family != family(&task.op) {
            return Err(format!("it is a variant of {} kernels, not of {}", self.family, family(&task.op)));
        }
        (self.lower)(task)
    }

    /// Estimated time on a GPU of `multiprocessors` at `bandwidth` bytes per second, in microseconds.
    pub fn estimate_us(&self, task: &Task, multiprocessors: u32, bandwidth: u64) -> f64 {
        let cost = (self.cost)(task);
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
        lower: |task| Ok(vec![Spec::new(task, "copy.cu", "copy__vector").tile(512 / task.format().sample().bytes(), 8).threads(256)]),
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
        about: "both passes in one launch, column sums in registers, row sums through shared memory; tiles of (128 - 2 pad)x32, radius up to 32",
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
        name: "tiled",
        family: "direct",
        about: "tile and halo as floats in shared memory, 4x8 sums per thread in registers; unrolled up to 121 taps, in bands of 16 rows beyond",
        lower: |task| match &task.op {
            PlaneOp::Direct(op) => lower_tiled(task, op),
            other => Err(wrong(other)),
        },
        cost: |task| Cost { bytes: io_bytes(task), instructions: 1.15 * taps_of(task) + 12.0, launches: 1.0 },
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
        about: "one launch: packed column sums slide down 16 rows, windows from a prefix sum across the warp; one pass, radius up to 31 (float: 32)",
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
        about: "one launch per direction and pass through device memory, windows as differences of prefix sums: any radius, any number of passes",
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
        about: "4x8 samples per thread in registers, neighbours by shuffle; tiles of 120x32",
        lower: |task| match &task.op {
            PlaneOp::Gradient(op) => {
                Ok(vec![gradient_spec(task, op, "gradient.cu", "gradient__tiled").tile(120, WARPS * ROWS).threads(32 * WARPS)])
            }
            other => Err(wrong(other)),
        },
        cost: |task| Cost { bytes: io_bytes(task), instructions: 40.0, launches: 1.0 },
    },
];

fn wrong(op: &PlaneOp) -> String {
    format!("it does not execute {} kernels", family(op))
}

/// The row for `task`: the forced one, else the cheapest that fits by the cost model.
///
/// # Errors
/// The forced row does not exist or does not fit; the message says why and names those that do.
pub fn choose(
    task: &Task,
    label: &str,
    forced: Option<&str>,
    multiprocessors: u32,
    bandwidth: u64,
) -> Result<(&'static Variant, Vec<Spec>)> {
    let rows = || TABLE.iter().filter(|v| v.family == family(&task.op));
    // A plane that passes unchanged has one way to pass, whatever is asked for the others.
    if let Some(name) = forced.filter(|_| task.op != PlaneOp::Copy) {
        let refuse = |reason: String| {
            let fits: Vec<&str> = rows().filter(|v| v.supports(task).is_ok()).map(|v| v.name).collect();
            Error::usage(format!("variant '{name}' cannot run '{label}'"), reason).hint(format!("these can: {}", fits.join(", ")))
        };
        let Some(row) = rows().find(|v| v.name == name) else {
            let known = TABLE.iter().any(|v| v.name == name);
            return Err(refuse(if known {
                format!("there is no such variant of {} kernels", family(&task.op))
            } else {
                "the CUDA backend has no variant of that name".to_owned()
            }));
        };
        let specs = row.specs(task).map_err(refuse)?;
        return Ok((row, specs));
    }
    let fitting = rows().filter_map(|row| row.specs(task).ok().map(|specs| (row, specs)));
    fitting
        .min_by(|(a, _), (b, _)| {
            let estimate = |row: &Variant| row.estimate_us(task, multiprocessors, bandwidth);
            estimate(a).total_cmp(&estimate(b))
        })
        .ok_or_else(|| {
            Error::failed(format!("cannot run '{label}' on CUDA"), format!("no {} kernel fits {}", family(&task.op), task.shape))
        })
}

/// A buffer of a step, by its role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffer {
    /// What the step reads.
    Source,
    /// What the step writes.
    Target,
    /// Scratch of 4 bytes per sample (0, 1).
    Scratch(usize),
    /// Scratch of 8 bytes per sample.
    Sums,
}

/// A launch to be compiled.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Kernel file.
    pub file: &'static str,
    /// Entry point.
    pub entry: &'static str,
    /// Compile-time constants.
    pub defines: Vec<(&'static str, i64)>,
    /// Threads per block.
    pub threads: usize,
    /// Dynamic shared memory in bytes.
    pub shared: usize,
    /// Samples across and rows down that one block makes.
    pub tile: (usize, usize),
    /// Run-time parameters behind the frame's; a table's address is put in front.
    pub params: Params,
    /// Coefficients that live in device memory.
    pub table: Vec<u32>,
    /// Planes.
    pub planes: Vec<usize>,
    /// Read.
    pub from: Buffer,
    /// Written.
    pub to: Buffer,
    /// Scratch besides.
    pub aux: Option<Buffer>,
}

impl Spec {
    fn new(task: &Task, file: &'static str, entry: &'static str) -> Self {
        let format = task.format();
        let (sample, max, shift) = match format.sample() {
            Sample::U8 => (8, (1i64 << format.depth) - 1, 0),
            Sample::U16 => (16, (1i64 << format.depth) - 1, if format.high_bits { 16 - i64::from(format.depth) } else { 0 }),
            Sample::F32 => (32, 1, 0),
        };
        let border = match task.border {
            Border::Clamp => 0,
            Border::Zero => 1,
            Border::Reflect => 2,
            Border::Reflect101 => 3,
            Border::Wrap => 4,
        };
        let defines = vec![
            ("SAMPLE", sample),
            ("MAX_VALUE", max),
            ("SHIFT", shift),
            ("COMPONENTS", task.components as i64),
            ("BORDER", border),
            ("CENTRE", 0),
        ];
        Self {
            file,
            entry,
            defines,
            threads: 256,
            shared: 0,
            tile: (1, 1),
            params: Params::default(),
            table: Vec::new(),
            planes: task.planes.clone(),
            from: Buffer::Source,
            to: Buffer::Target,
            aux: None,
        }
    }

    fn define(mut self, name: &'static str, value: usize) -> Self {
        self.defines.retain(|(n, _)| *n != name);
        self.defines.push((name, value as i64));
        self
    }

    fn centred(self, format: PixelFormat) -> Self {
        self.define("CENTRE", centre(format) as usize)
    }

    fn tile(mut self, across: usize, down: usize) -> Self {
        self.tile = (across, down);
        self
    }

    fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    fn params(mut self, params: Params) -> Self {
        self.params = params;
        self
    }

    fn table(mut self, floats: impl IntoIterator<Item = f32>) -> Self {
        self.table = floats.into_iter().map(f32::to_bits).collect();
        self
    }

    fn between(mut self, from: Buffer, to: Buffer) -> Self {
        (self.from, self.to) = (from, to);
        self
    }
}

/// Bytes of a kernel's parameter structure; every member is 4 bytes but a leading address.
#[derive(Clone, Debug, Default)]
pub struct Params {
    words: Vec<u32>,
}

impl Params {
    fn floats(mut self, values: impl IntoIterator<Item = f32>) -> Self {
        self.words.extend(values.into_iter().map(f32::to_bits));
        self
    }

    fn ints(mut self, values: impl IntoIterator<Item = i32>) -> Self {
        self.words.extend(values.into_iter().map(|v| v as u32));
        self
    }

    fn finish(self, f: Finish) -> Self {
        self.floats([f.scale, f.offset]).ints([f.base])
    }
}

/// Mirrors `Finish` in `plane.cuh` and the CPU backend's: `⌊sum · scale + offset⌋ + base`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Finish {
    scale: f32,
    offset: f32,
    base: i32,
}

impl Finish {
    /// `weights` is the kernel's sum: what [`centre`] took away comes back as its multiple.
    fn new(format: PixelFormat, centre: f32, weights: f64, scale: f32, bias: f32) -> Self {
        if format.sample() == Sample::F32 {
            return Self { scale, offset: bias, base: 0 };
        }
        let constant = f64::from(centre) * weights * f64::from(scale) + f64::from(bias);
        // Far outside the sample's range the fraction no longer matters, and the integer must not overflow.
        let base = if centre != 0.0 && constant.abs() < f64::from(1 << 20) { constant.floor() } else { 0.0 };
        Self { scale, offset: (constant - base + 0.5) as f32, base: base as i32 }
    }
}

/// Subtracted on loading, so that sums of deep samples keep their fraction in float: half the range above 12 bits, else 0.
fn centre(format: PixelFormat) -> f32 {
    if format.sample() == Sample::U16 && format.depth > 12 { (format.max_value() + 1.0) / 2.0 } else { 0.0 }
}

fn sum(weights: &[f32]) -> f64 {
    weights.iter().map(|&w| f64::from(w)).sum()
}

/// Taps around their anchor ⌊n/2⌋, padded with zeros to 2·radius + 1.
fn centred_taps(taps: &[f32], radius: usize) -> Vec<f32> {
    let mut padded = vec![0.0; radius - taps.len() / 2];
    padded.extend_from_slice(taps);
    padded.resize(2 * radius + 1, 0.0);
    padded
}

/// Radii that are compiled: each small one, above 8 every fourth, so that few kernels serve many sigmas.
fn bucket(radius: usize) -> usize {
    if radius <= 8 { radius } else { radius.next_multiple_of(4) }
}

/// Samples across that a warp's 128 columns leave when `radius` is needed on both sides.
fn warp_tile(radius: usize, components: usize) -> usize {
    128 - 2 * (radius * components).next_multiple_of(4)
}

fn lower_fused(task: &Task, op: &Separable) -> Result<Vec<Spec>, String> {
    let (rx, ry) = (bucket(op.row.len() / 2), bucket(op.col.len() / 2));
    let limit = FUSED_RADIUS / task.components;
    if rx > limit || ry > FUSED_RADIUS {
        return Err(format!(
            "its radius is limited to {limit} across and {FUSED_RADIUS} down; this kernel has {} and {}",
            op.row.len() / 2,
            op.col.len() / 2
        ));
    }
    let format = task.format();
    let finish = Finish::new(format, centre(format), sum(&op.row) * sum(&op.col), op.scale, op.bias);
    let params = Params::default().floats(centred_taps(&op.col, ry)).floats(centred_taps(&op.row, rx)).finish(finish);
    let spec = Spec::new(task, "separable.cu", "separable__fused").centred(format).define("RADIUS_X", rx).define("RADIUS_Y", ry);
    Ok(vec![spec.tile(warp_tile(rx, task.components), WARPS * ROWS).threads(32 * WARPS).params(params)])
}

fn lower_two_pass(task: &Task, op: &Separable) -> Vec<Spec> {
    let format = task.format();
    let pass = |taps: &[f32], outside: f32, finish: Finish| {
        let count = taps.len().next_multiple_of(8);
        let params = Params::default().ints([count as i32, (taps.len() / 2) as i32]).floats([outside]).finish(finish);
        (params, taps.iter().copied().chain(std::iter::repeat_n(0.0, count - taps.len())).collect::<Vec<_>>())
    };
    let plain = Finish { scale: 1.0, offset: 0.0, base: 0 };
    let (rows, row_taps) = pass(&op.row, 0.0, plain);
    // Under the zero border a row outside is a row of zeros, that is, of −centre each.
    let outside = (-f64::from(centre(format)) * sum(&op.row)) as f32;
    let finish = Finish::new(format, centre(format), sum(&op.row) * sum(&op.col), op.scale, op.bias);
    let (cols, col_taps) = pass(&op.col, outside, finish);
    let spec = |entry| Spec::new(task, "separable.cu", entry).centred(format).threads(128);
    vec![
        spec("separable__rows").tile(1024, 1).params(rows).table(row_taps).between(Buffer::Source, Buffer::Scratch(0)),
        spec("separable__cols").tile(128, 8).params(cols).table(col_taps).between(Buffer::Scratch(0), Buffer::Target),
    ]
}

fn within_naive(taps: usize) -> Result<(), String> {
    if taps <= NAIVE_TAPS { Ok(()) } else { Err(format!("it takes {NAIVE_TAPS} taps per sample at most; this kernel has {taps}")) }
}

fn lower_separable_naive(task: &Task) -> Result<Vec<Spec>, String> {
    let PlaneOp::Separable(op) = &task.op else { return Err(wrong(&task.op)) };
    within_naive(op.row.len() * op.col.len())?;
    let format = task.format();
    let finish = Finish::new(format, centre(format), sum(&op.row) * sum(&op.col), op.scale, op.bias);
    let params = Params::default().ints([op.row.len() as i32, op.col.len() as i32]).finish(finish);
    let spec = Spec::new(task, "naive.cu", "separable__naive").centred(format).tile(32, 8).params(params);
    Ok(vec![spec.table(op.col.iter().chain(op.row.iter()).copied())])
}

fn lower_direct_naive(task: &Task) -> Result<Vec<Spec>, String> {
    let PlaneOp::Direct(op) = &task.op else { return Err(wrong(&task.op)) };
    let format = task.format();
    let finish = Finish::new(format, centre(format), sum(&op.taps), op.scale, op.bias);
    let params = Params::default().ints([op.width as i32, op.height as i32]).finish(finish);
    Ok(vec![Spec::new(task, "naive.cu", "direct__naive").centred(format).tile(32, 8).params(params).table(op.taps.iter().copied())])
}

fn lower_tiled(task: &Task, op: &Direct) -> Result<Vec<Spec>, String> {
    let format = task.format();
    let finish = Finish::new(format, centre(format), sum(&op.taps), op.scale, op.bias);
    let (rx, ry) = (op.width / 2, op.height / 2);
    let row = |y: usize| op.taps.get(y * op.width..(y + 1) * op.width).unwrap_or_default();
    if (2 * rx + 1) * (2 * ry + 1) <= UNROLLED_TAPS && rx * task.components <= 16 && ry <= 16 {
        let rows = (0..2 * ry + 1).flat_map(|y| centred_taps(row(y), rx));
        // A row beyond an even kernel's last is empty: centred_taps fills it with zeros.
        let params = Params::default().floats(rows).finish(finish);
        let spec = Spec::new(task, "direct.cu", "direct__tiled").centred(format).define("RADIUS_X", rx).define("RADIUS_Y", ry);
        return Ok(vec![spec.tile(warp_tile(rx, task.components), WARPS * ROWS).threads(32 * WARPS).params(params)]);
    }
    // Zero taps in front keep the first column a multiple of four; zero rows around spare the kernel every test.
    let left = rx.next_multiple_of(4);
    let pitch = (left - rx + op.width).next_multiple_of(8);
    let shared = 16 * (128 + pitch * task.components) * 4;
    if shared > 48 << 10 {
        return Err(format!("a band of its input needs {shared} bytes of shared memory, more than the 48 KiB that every GPU has"));
    }
    let around = BANDED_ROWS - 1;
    let mut table = vec![0.0; (op.height + 2 * around) * pitch];
    for y in 0..op.height {
        for (to, from) in table.iter_mut().skip((around + y) * pitch + left - rx).zip(row(y)) {
            *to = *from;
        }
    }
    let params = Params::default().ints([pitch as i32, op.height as i32, left as i32, ry as i32]).finish(finish);
    let spec = Spec::new(task, "direct.cu", "direct__banded").centred(format).define("ROWS", BANDED_ROWS);
    let mut spec = spec.tile(128, WARPS * BANDED_ROWS).threads(32 * WARPS).params(params).table(table);
    spec.shared = shared;
    Ok(vec![spec])
}

/// Rows per warp of the banded kernel: fewer than elsewhere, since its taps are in registers too.
const BANDED_ROWS: usize = 4;

fn lower_box_naive(task: &Task) -> Result<Vec<Spec>, String> {
    let PlaneOp::Box(op) = task.op else { return Err(wrong(&task.op)) };
    if op.power != 1 {
        return Err(format!("it makes one pass; this filter makes {}", op.power));
    }
    within_naive((2 * op.radius_x + 1) * (2 * op.radius_y + 1))?;
    let params = Params::default().ints([op.radius_x as i32, op.radius_y as i32]);
    Ok(vec![Spec::new(task, "naive.cu", "box__naive").tile(32, 8).params(params)])
}

fn lower_box_fused(task: &Task, op: BoxMean) -> Result<Vec<Spec>, String> {
    if op.power != 1 {
        return Err(format!("it makes one pass; this filter makes {}", op.power));
    }
    let (rx, ry) = (op.radius_x, op.radius_y);
    if task.format().sample() == Sample::F32 {
        let ones = |radius: usize| vec![1.0f32; 2 * radius + 1].into();
        let scale = 1.0 / ((2 * rx + 1) * (2 * ry + 1)) as f32;
        return lower_fused(task, &Separable { row: ones(rx), col: ones(ry), scale, bias: 0.0 });
    }
    let limit = BOX_RADIUS / task.components;
    if rx > limit || ry > BOX_RADIUS {
        return Err(format!("its radius is limited to {limit} across and {BOX_RADIUS} down; this filter has {rx} and {ry}"));
    }
    let spec = Spec::new(task, "box.cu", "box__fused").define("RADIUS_X", rx).define("RADIUS_Y", ry);
    Ok(vec![spec.tile(warp_tile(rx, task.components), WARPS * 16).threads(32 * WARPS)])
}

fn lower_box_running(task: &Task, op: BoxMean) -> Vec<Spec> {
    let format = task.format();
    let float = format.sample() == Sample::F32;
    let windows = [(2 * op.radius_x + 1) as u64, (2 * op.radius_y + 1) as u64];
    let max = if float { 1 } else { (1u64 << format.depth) - 1 };
    // One pass each way with sums that fit 32 bits needs no division in between.
    let narrow = !float && op.power == 1 && max * windows[0] * windows[1] < 1 << 32;
    let fraction = if narrow || float { 0 } else { 32 - i32::from(format.depth) };
    let passes = 2 * op.power;
    let mut specs = Vec::with_capacity(passes);
    for pass in 0..passes {
        let across = pass < op.power;
        let (first, last) = (pass == 0, pass + 1 == passes);
        let (radius, window) = if across { (op.radius_x, windows[0]) } else { (op.radius_y, windows[1]) };
        let divisor = if !narrow {
            window
        } else if last {
            windows[0] * windows[1]
        } else {
            1
        };
        let from = if first { Buffer::Source } else { Buffer::Scratch((pass - 1) % 2) };
        let to = if last { Buffer::Target } else { Buffer::Scratch(pass % 2) };
        // Row sums stay in shared memory where the widest row fits.
        let widest = task.planes.iter().map(|&p| task.shape.plane_size(p).0).max().unwrap_or(1) * task.components;
        let bytes = widest * if narrow { 4 } else { 8 };
        let in_shared = across && bytes <= 46 << 10;
        let shift = |edge: bool| if edge { 0 } else { fraction };
        let params = Params::default().ints([radius as i32, divisor as u32 as i32, shift(first), shift(last)]);
        let entry = if across { "box__rows" } else { "box__cols" };
        let mut spec = Spec::new(task, "box.cu", entry)
            .define("READS", usize::from(!first))
            .define("WRITES", usize::from(!last))
            .define("WIDE", usize::from(!narrow))
            .define("IN_SHARED", usize::from(in_shared))
            .params(params)
            .between(from, to);
        spec = if across { spec.tile(usize::MAX, 1).threads(256) } else { spec.tile(16, usize::MAX).threads(1024) };
        spec.shared = if in_shared { bytes } else { 0 };
        spec.aux = (!in_shared).then_some(Buffer::Sums);
        specs.push(spec);
    }
    specs
}

/// C(size − 1, i): at most C(22, 11) = 705432.
fn binomial(size: usize) -> Vec<u32> {
    let mut row = vec![1u32];
    for _ in 1..size {
        let mut next = vec![1];
        next.extend(row.windows(2).map(|w| w.iter().sum::<u32>()));
        next.push(1);
        row = next;
    }
    row
}

fn lower_unsharp_naive(task: &Task) -> Result<Vec<Spec>, String> {
    let PlaneOp::Unsharp(op) = task.op else { return Err(wrong(&task.op)) };
    let shift = (op.size_x + op.size_y - 2) as i32;
    let params = Params::default().ints([op.size_x as i32, op.size_y as i32, shift, op.amount]);
    let mut spec = Spec::new(task, "naive.cu", "unsharp__naive").tile(32, 8).params(params);
    spec.table = binomial(op.size_y).into_iter().chain(binomial(op.size_x)).collect();
    Ok(vec![spec])
}

fn lower_unsharp_fused(task: &Task, op: Unsharp) -> Result<Vec<Spec>, String> {
    let format = task.format();
    let bits = op.size_x + op.size_y - 2;
    if format.sample() != Sample::F32 && usize::from(format.depth) + bits > 24 {
        return Err(format!(
            "sums of {} bits times 2^{bits} are not exact in float; depth + size_x + size_y must not exceed 26",
            format.depth
        ));
    }
    if op.amount.unsigned_abs() > 8_000_000 {
        return Err(format!("its amount is limited to 122; this filter has {}", op.amount / 65536));
    }
    let (rx, ry) = (op.size_x / 2, op.size_y / 2);
    let weights = |size| binomial(size).into_iter().map(|w| w as f32);
    let params =
        Params::default().floats(weights(op.size_y)).floats(weights(op.size_x)).floats([(-(bits as f32)).exp2()]).ints([op.amount]);
    let spec = Spec::new(task, "separable.cu", "unsharp__fused").define("RADIUS_X", rx).define("RADIUS_Y", ry);
    Ok(vec![spec.tile(warp_tile(rx, task.components), WARPS * ROWS).threads(32 * WARPS).params(params)])
}

fn gradient_spec(task: &Task, op: &Gradient, file: &'static str, entry: &'static str) -> Spec {
    let finish = Finish::new(task.format(), 0.0, 0.0, op.scale, op.delta);
    Spec::new(task, file, entry).params(Params::default().floats(op.x).floats(op.y).finish(finish))
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

/// Mirrors `Plane` in `plane.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PlaneArgs {
    src: u64,
    dst: u64,
    src_pitch: u32,
    dst_pitch: u32,
    width: i32,
    height: i32,
    first_block: u32,
    blocks_x: u32,
    aux: u64,
    aux_pitch: u32,
    reserved: u32,
}

/// Mirrors `Frame` in `plane.cuh`: what a launch needs to know of the frame and the lane.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameArgs {
    planes: [PlaneArgs; MAX_PLANES],
    count: u32,
    reserved: u32,
}

/// Where a launch's planes are: device addresses and geometry of each buffer.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// First byte.
    pub base: DevicePtr,
    /// Offsets and pitches.
    pub geometry: &'a Geometry,
}

/// A compiled launch, shared by all lanes.
#[derive(Debug)]
pub struct Launch {
    kernel: Kernel,
    threads: u32,
    shared: u32,
    blocks: u32,
    /// The parameter structure, 8-byte aligned.
    params: Vec<u64>,
    /// Keeps the table that `params` points at.
    _table: Option<DeviceBuffer>,
    planes: Vec<LaunchPlane>,
    /// Read.
    pub from: Buffer,
    /// Written.
    pub to: Buffer,
    /// Scratch besides.
    pub aux: Option<Buffer>,
}

#[derive(Clone, Copy, Debug)]
struct LaunchPlane {
    index: usize,
    width: i32,
    height: i32,
    first_block: u32,
    blocks_x: u32,
}

impl Launch {
    /// Joins a spec with its compiled kernel. `table` holds the spec's table on the device.
    ///
    /// # Errors
    /// When the frame has more tiles than a grid can have.
    pub fn new(spec: &Spec, shape: Shape, kernel: Kernel, table: Option<DeviceBuffer>) -> Result<Self> {
        let too_large = || Error::failed(format!("cannot filter {shape} on CUDA"), "the frame has too many tiles for one launch");
        let mut planes = Vec::with_capacity(spec.planes.len());
        let mut blocks = 0u32;
        for &index in &spec.planes {
            let (width, height) = shape.plane_size(index);
            let blocks_x = (width * shape.format.components(index)).div_ceil(spec.tile.0);
            let blocks_y = height.div_ceil(spec.tile.1);
            planes.push(LaunchPlane {
                index,
                width: i32::try_from(width).map_err(|_| too_large())?,
                height: i32::try_from(height).map_err(|_| too_large())?,
                first_block: blocks,
                blocks_x: u32::try_from(blocks_x).map_err(|_| too_large())?,
            });
            let more = u32::try_from(blocks_x * blocks_y).map_err(|_| too_large())?;
            blocks = blocks.checked_add(more).filter(|&b| b <= i32::MAX as u32).ok_or_else(too_large)?;
        }
        let mut words = Vec::new();
        if let Some(table) = &table {
            words.extend([table.ptr() as u32, (table.ptr() >> 32) as u32]);
        }
        words.extend_from_slice(&spec.params.words);
        if words.len() % 2 == 1 {
            words.push(0);
        }
        let params = words.chunks_exact(2).map(|pair| u64::from(pair[0]) | u64::from(pair[1]) << 32).collect();
        Ok(Self {
            kernel,
            threads: spec.threads as u32,
            shared: spec.shared as u32,
            blocks,
            params,
            _table: table,
            planes,
            from: spec.from,
            to: spec.to,
            aux: spec.aux,
        })
    }

    /// The kernel.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// Arguments for one set of buffers.
    pub fn arguments(&self, from: Place<'_>, to: Place<'_>, aux: Option<Place<'_>>) -> FrameArgs {
        let mut args = FrameArgs { count: self.planes.len() as u32, ..FrameArgs::default() };
        for (out, plane) in args.planes.iter_mut().zip(&self.planes) {
            let (src, dst) = (from.geometry.planes[plane.index], to.geometry.planes[plane.index]);
            *out = PlaneArgs {
                src: from.base + src.offset as u64,
                dst: to.base + dst.offset as u64,
                src_pitch: src.pitch as u32,
                dst_pitch: dst.pitch as u32,
                width: plane.width,
                height: plane.height,
                first_block: plane.first_block,
                blocks_x: plane.blocks_x,
                aux: aux.map_or(0, |a| a.base + a.geometry.planes[plane.index].offset as u64),
                aux_pitch: aux.map_or(0, |a| a.geometry.planes[plane.index].pitch as u32),
                reserved: 0,
            };
        }
        args
    }

    /// Enqueues the launch.
    ///
    /// # Safety
    /// `args` came from [`Launch::arguments`] of this launch with live buffers that are as large as their geometries say,
    /// and no other stream uses the written ones until the kernel has run.
    ///
    /// # Errors
    /// A device error.
    pub unsafe fn enqueue(&self, stream: &Stream, args: &FrameArgs) -> Result<()> {
        let mut pointers: [*mut c_void; 2] = [std::ptr::from_ref(args).cast_mut().cast(), self.params.as_ptr().cast_mut().cast()];
        let used = if self.params.is_empty() { 1 } else { 2 };
        let grid = Grid { blocks: self.blocks, threads: self.threads, shared_bytes: self.shared };
        // SAFETY: the structures mirror the kernel's parameters (each spec is built beside its kernel's name, and
        // tests/gpu.rs runs every row); the buffers are the caller's promise.
        unsafe { self.kernel.launch(stream, grid, &mut pointers[..used]) }
    }
}

/// Which element a buffer holds.
pub fn element(buffer: Buffer) -> Element {
    match buffer {
        Buffer::Source | Buffer::Target => Element::Sample,
        Buffer::Scratch(_) => Element::Word,
        Buffer::Sums => Element::Double,
    }
}
