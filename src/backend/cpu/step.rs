//! A plan's steps prepared for execution: kernels per plane, phases, tasks.

use std::ops::Range;
use std::sync::Arc;

use super::boxfloat::{self, FloatBox};
use super::boxmean::BoxKernel;
use super::boxsum::{ExactBox, Sums};
use super::compass::CompassKernel;
use super::counted::{CountedKernel, Room};
use super::crew::Work;
use super::extremum::{ExtremumKernel, MorphologyKernel};
use super::fixed::FixedKernel;
use super::fuse::{self, Fusion};
use super::linear::{DirectKernel, GradientKernel, Level, Memory, Need, SeparableKernel};
use super::median::{Extent, FAN, MedianKernel, Node, Workspace};
use super::nine::NineMean;
use super::order::Kind;
use super::plane::{Codec, Source, Span, Target};
use super::pool::{PixelateKernel, PoolKernel};
use super::pyramid::PyramidKernel;
use super::unsharp::{UnsharpKernel, Width};
use super::variant::Variant;
use crate::error::{Error, Result};
use crate::filter::Border;
use crate::filter::plan::{Extreme, Plan, PlaneOp, PoolKind, Step};
use crate::frame::{MAX_PLANES, PixelFormat, PlaneLayout, Sample, Shape};

/// Rows of a task at least: shorter bands would compute too many halo rows twice.
const BAND_ROWS: usize = 32;

/// All steps of a plan, shared by the workers.
pub(super) struct Program {
    pub steps: Vec<Prepared>,
    pub stages: Vec<Stage>,
    /// The most that any kernel needs.
    need: Demand,
}

/// Values of scratch, by type.
#[derive(Clone, Copy, Default)]
struct Demand {
    linear: Need,
    /// 32-bit integers.
    words: usize,
    longs: usize,
    bytes: usize,
    nodes: usize,
    counts: usize,
    /// Bytes of a band between two steps of a stage.
    band: usize,
}

/// One step.
pub(super) struct Prepared {
    pub variant: Variant,
    pub label: String,
    input: Shape,
    border: Border,
    planes: Vec<Kernel>,
    /// Rows above and below that each plane's output rows read.
    reaches: Vec<(usize, usize)>,
}

/// Steps that run together: one, or neighbours that are fused.
pub(super) struct Stage {
    pub steps: Range<usize>,
    /// Rows of a band if the steps are fused.
    pub band: Option<usize>,
    pub variant: Variant,
    /// Tasks of each phase; a phase starts when the one before has finished.
    phases: Vec<Vec<Task>>,
}

impl Stage {
    /// Number of tasks in each phase.
    pub fn phases(&self) -> impl ExactSizeIterator<Item = usize> {
        self.phases.iter().map(Vec::len)
    }
}

enum Kernel {
    Copy,
    Separable(SeparableKernel),
    Pyramid(PyramidKernel),
    Fixed(FixedKernel),
    Direct(DirectKernel),
    Box(BoxKernel),
    NineMean(NineMean),
    ExactBox(ExactBox),
    FloatBox(FloatBox),
    Unsharp(UnsharpKernel),
    Gradient(GradientKernel),
    Compass(CompassKernel),
    Extremum(ExtremumKernel),
    Morphology(MorphologyKernel),
    Median(MedianKernel),
    Counted(CountedKernel),
    Pool(PoolKernel),
    Pixelate(PixelateKernel),
}

#[derive(Clone, Copy)]
enum Task {
    /// Rows `from..to` of a plane.
    Rows { plane: usize, from: usize, to: usize },
    /// Column strip of a plane (vertical phase of a box mean).
    Strip { plane: usize, strip: usize },
}

/// What a crew is told: one phase of one stage on one frame's memory.
#[derive(Clone, Copy)]
pub(super) struct Order {
    pub stage: usize,
    pub phase: usize,
    pub sources: [Source; MAX_PLANES],
    pub targets: [Target; MAX_PLANES],
    /// Intermediate planes of box means.
    pub middle: [Target; MAX_PLANES],
}

/// A worker's memory.
pub(super) struct Scratch {
    linear: Memory,
    codes: Vec<u32>,
    longs: Vec<u64>,
    bytes: Vec<u8>,
    nodes: Vec<Node>,
    counts: Vec<u8>,
    /// What lies between the steps of a stage, in turn.
    bands: [Vec<u8>; 2],
}

impl Demand {
    fn max(self, other: Self) -> Self {
        let linear = Need {
            floats: self.linear.floats.max(other.linear.floats),
            words: self.linear.words.max(other.linear.words),
            offsets: self.linear.offsets.max(other.linear.offsets),
        };
        Self {
            linear,
            words: self.words.max(other.words),
            longs: self.longs.max(other.longs),
            bytes: self.bytes.max(other.bytes),
            nodes: self.nodes.max(other.nodes),
            counts: self.counts.max(other.counts),
            band: self.band.max(other.band),
        }
    }

    /// `count` values of the type that samples are compared in.
    fn ordered(kind: Kind, count: usize) -> Self {
        match kind {
            Kind::Bytes => Self { bytes: count, ..Self::default() },
            Kind::Words => Self { linear: Need { words: count, ..Need::default() }, ..Self::default() },
            Kind::Floats => Self { linear: Need { floats: count, ..Need::default() }, ..Self::default() },
        }
    }
}

impl Program {
    /// Prepares `plan`; `variants` holds one per step, `threads` the crew's size.
    ///
    /// # Errors
    /// When a step is malformed.
    pub fn new(plan: &Plan, variants: &[Variant], threads: usize, fusion: Fusion) -> Result<Arc<Self>> {
        let mut program = Self { steps: Vec::new(), stages: Vec::new(), need: Demand::default() };
        let mut shape = plan.input;
        for (step, &variant) in plan.steps.iter().zip(variants) {
            let pools = step.planes.iter().any(|op| matches!(op, PlaneOp::Pool(_)));
            if step.input != shape || (step.output != step.input && !pools) || step.output.format != step.input.format {
                return Err(Error::failed(
                    format!("cannot run '{}' on the CPU", step.label),
                    format!("it turns {} into {} after a step that gives {shape}", step.input, step.output),
                ));
            }
            shape = step.output;
            program.steps.push(prepare(step, variant)?);
        }
        for step in &program.steps {
            for kernel in &step.planes {
                program.need = program.need.max(kernel.need());
            }
        }
        let fits = |step: usize| program.steps[step].planes.iter().all(Kernel::runs_by_bands);
        for (steps, band) in fuse::stages(&plan.steps, fusion, fits) {
            let Some(variant) = variants.get(steps.start).copied() else { break };
            let workers = if variant == Variant::Threads { threads } else { 1 };
            let last = steps.end - 1;
            let output = plan.steps[last].output;
            program.need.band = match band {
                Some(rows) => program.need.band.max(program.band_bytes(steps.clone(), rows)),
                None => program.need.band,
            };
            let phases = phases(&program.steps[last], output, workers, band);
            program.stages.push(Stage { steps, band, variant, phases });
        }
        Ok(Arc::new(program))
    }

    /// Bytes of the most rows of any plane that lie between two fused steps.
    fn band_bytes(&self, steps: Range<usize>, rows: usize) -> usize {
        let steps = &self.steps[steps];
        let bytes = |plane: usize| {
            let reach = |step: &Prepared| step.reaches.get(plane).map_or(0, |(above, below)| above + below);
            let halo: usize = steps.iter().skip(1).map(reach).sum();
            let shape = steps[0].input;
            // A window that is larger than the band may find mirrored rows beyond it.
            let (width, height) = shape.plane_size(plane);
            let row = width * shape.format.components(plane) * shape.format.sample().bytes();
            row * (rows + 2 * halo + 1).min(height)
        };
        (0..steps[0].planes.len()).map(bytes).max().unwrap_or(0)
    }

    /// Layout of the intermediate planes, the largest of all steps, and the bytes that they take together.
    pub fn middle(&self, format: PixelFormat) -> ([PlaneLayout; MAX_PLANES], usize) {
        let mut planes = [PlaneLayout::default(); MAX_PLANES];
        let mut offset = 0;
        for (index, plane) in planes.iter_mut().enumerate().take(format.plane_count()) {
            let size = |step: &Prepared| step.input.plane_size(index);
            let boxes = || self.steps.iter().filter(|s| s.has_middle()).map(size);
            let (Some(width), Some(height)) = (boxes().map(|s| s.0).max(), boxes().map(|s| s.1).max()) else { continue };
            let components = format.components(index);
            *plane = PlaneLayout { offset, pitch: width * components * 4, width, height, components };
            offset += plane.pitch * plane.height;
        }
        (planes, offset)
    }
}

impl Work for Program {
    type Order = Order;
    type Scratch = Scratch;

    fn scratch(&self) -> Scratch {
        let Demand { linear, words, longs, bytes, nodes, counts, band } = self.need;
        let linear = Memory { floats: vec![0.0; linear.floats], words: vec![0; linear.words], offsets: vec![0; linear.offsets] };
        Scratch {
            linear,
            codes: vec![0; words],
            longs: vec![0; longs],
            bytes: vec![0; bytes],
            nodes: vec![[0; FAN]; nodes],
            counts: vec![0; counts],
            bands: [vec![0; band], vec![0; band]],
        }
    }

    fn run(&self, order: &Order, task: usize, scratch: &mut Scratch) {
        let stage = &self.stages[order.stage];
        let steps = &self.steps[stage.steps.clone()];
        match stage.phases[order.phase][task] {
            Task::Rows { plane, from, to } => {
                let (source, target) = (&order.sources[plane], &order.targets[plane]);
                match steps {
                    [step] => step.planes[plane].run(source, target, Some(&order.middle[plane]), from..to, scratch),
                    steps => run_band(steps, plane, source, target, from..to, scratch),
                }
            }
            Task::Strip { plane, strip } => {
                if let Some(Kernel::Box(kernel)) = steps.first().map(|step| &step.planes[plane]) {
                    let middle = order.middle[plane].as_source();
                    kernel.run_strip(&middle, &order.targets[plane], strip, &mut scratch.codes, &mut scratch.linear.floats);
                }
            }
        }
    }
}

/// Runs fused steps on a band of a plane.
fn run_band(steps: &[Prepared], plane: usize, source: &Source, target: &Target, rows: Range<usize>, scratch: &mut Scratch) {
    let mut wanted: [Range<usize>; fuse::STEPS] = std::array::from_fn(|_| 0..0);
    let mut next = rows;
    for (step, wanted) in steps.iter().zip(&mut wanted).rev() {
        *wanted = next.clone();
        next = fuse::needed(&next, step.reaches[plane], step.input.plane_size(plane).1, step.border);
    }
    let mut bands = std::mem::take(&mut scratch.bands);
    let mut from = *source;
    for (index, (step, rows)) in steps.iter().zip(wanted).enumerate() {
        let [band, other] = &mut bands;
        let to = if index + 1 == steps.len() { *target } else { Target::of_band(band, rows.clone(), target.row_bytes()) };
        step.planes[plane].run(&from, &to, None, rows, scratch);
        from = to.as_source();
        std::mem::swap(band, other);
    }
    scratch.bands = bands;
}

fn prepare(step: &Step, variant: Variant) -> Result<Prepared> {
    let format = step.input.format;
    let codec = Codec::new(format);
    let level = if variant == Variant::Scalar { Level::Plain } else { Level::Simd };
    let (mut planes, mut reaches) = (Vec::new(), Vec::new());
    for (plane, op) in step.planes.iter().enumerate().take(format.plane_count()) {
        check(op).map_err(|cause| Error::failed(format!("cannot run '{}' on the CPU", step.label), cause))?;
        let (width, height) = step.input.plane_size(plane);
        let out = step.output.plane_size(plane);
        if out != (width, height) && !matches!(op, PlaneOp::Pool(_)) {
            let cause = format!("plane {plane} keeps its size of {width}x{height}, but {}x{} is wanted", out.0, out.1);
            return Err(Error::failed(format!("cannot run '{}' on the CPU", step.label), cause));
        }
        let span = Span { width, height, components: format.components(plane), left: 0, right: 0, border: step.border };
        planes.push(Kernel::new(op, span, codec, level, out.0));
        reaches.push(fuse::reach(op).unwrap_or_default());
    }
    Ok(Prepared { variant, label: step.label.clone(), input: step.input, border: step.border, planes, reaches })
}

/// Tasks of a stage whose last step is `step`.
fn phases(step: &Prepared, output: Shape, workers: usize, band: Option<usize>) -> Vec<Vec<Task>> {
    let mut phases = vec![Vec::new()];
    let mut strips = Vec::new();
    for (plane, kernel) in step.planes.iter().enumerate() {
        let height = output.plane_size(plane).1;
        // Twice as many bands as workers, so that a worker that starts late finds less to do.
        let shared = if workers == 1 { 1 } else { (2 * workers).min(height / BAND_ROWS.max(kernel.halo())).max(1) };
        let bands = match band {
            Some(rows) => height.div_ceil(rows.max(1)).next_multiple_of(shared).min(height),
            None => shared,
        };
        phases[0].extend((0..bands).map(|b| Task::Rows { plane, from: height * b / bands, to: height * (b + 1) / bands }));
        if let Kernel::Box(kernel) = kernel {
            strips.extend((0..kernel.strips()).map(|strip| Task::Strip { plane, strip }));
        }
    }
    if !strips.is_empty() {
        phases.push(strips);
    }
    phases
}

impl Prepared {
    /// Whether a plane needs an intermediate one.
    fn has_middle(&self) -> bool {
        self.planes.iter().any(|kernel| matches!(kernel, Kernel::Box(_)))
    }
}

impl Kernel {
    /// Computes `rows` of the target; `middle` is the intermediate plane of a box mean.
    fn run(&self, source: &Source, target: &Target, middle: Option<&Target>, rows: Range<usize>, scratch: &mut Scratch) {
        match self {
            Kernel::Copy => {
                for y in rows {
                    // SAFETY: row `y` belongs to this task's band.
                    unsafe { target.row(y) }.copy_from_slice(source.row(y));
                }
            }
            Kernel::Separable(kernel) => kernel.run(source, target, rows, &mut scratch.linear),
            Kernel::Pyramid(kernel) => kernel.run(source, target, rows, &mut scratch.linear),
            Kernel::Fixed(kernel) => kernel.run(source, target, rows, &mut scratch.bytes, &mut scratch.linear.words),
            Kernel::Direct(kernel) => kernel.run(source, target, rows, &mut scratch.linear),
            Kernel::Gradient(kernel) => kernel.run(source, target, rows, &mut scratch.linear),
            Kernel::Box(kernel) => {
                // Steps with such planes run alone: see `runs_by_bands`.
                if let Some(middle) = middle {
                    kernel.run_rows(source, middle, rows, &mut scratch.codes, &mut scratch.linear.floats);
                }
            }
            Kernel::ExactBox(kernel) => {
                kernel.run(source, target, rows, Sums { words: &mut scratch.linear.words, codes: &mut scratch.codes });
            }
            Kernel::NineMean(kernel) => kernel.run(source, target, rows),
            Kernel::FloatBox(kernel) => kernel.run(source, target, rows, &mut scratch.linear.floats),
            Kernel::Unsharp(kernel) => match kernel.width() {
                Width::Words => kernel.run_codes(source, target, rows, &mut scratch.linear.words),
                Width::Codes => kernel.run_codes(source, target, rows, &mut scratch.codes),
                Width::Longs => kernel.run_codes(source, target, rows, &mut scratch.longs),
                Width::Floats => kernel.run_floats(source, target, rows, &mut scratch.linear.floats),
            },
            Kernel::Compass(kernel) if kernel.narrow() => kernel.run_words(source, target, rows, &mut scratch.linear.words),
            Kernel::Compass(kernel) => kernel.run_floats(source, target, rows, &mut scratch.linear.floats),
            Kernel::Extremum(kernel) => match Kind::of(kernel.codec()) {
                Kind::Bytes => kernel.run(source, target, rows, &mut scratch.bytes),
                Kind::Words => kernel.run(source, target, rows, &mut scratch.linear.words),
                Kind::Floats => kernel.run(source, target, rows, &mut scratch.linear.floats),
            },
            Kernel::Morphology(kernel) => match Kind::of(kernel.codec()) {
                Kind::Bytes => kernel.run(source, target, rows, &mut scratch.bytes),
                Kind::Words => kernel.run(source, target, rows, &mut scratch.linear.words),
                Kind::Floats => kernel.run(source, target, rows, &mut scratch.linear.floats),
            },
            Kernel::Median(kernel) => {
                let (keys, sorted, nodes) = (&mut scratch.codes[..], &mut scratch.longs[..], &mut scratch.nodes[..]);
                let counts = &mut scratch.counts[..];
                match Kind::of(kernel.codec()) {
                    Kind::Bytes => {
                        let values = &mut scratch.bytes[..];
                        kernel.run(source, target, rows, Workspace { values, keys, sorted, nodes, counts });
                    }
                    Kind::Words => {
                        let values = &mut scratch.linear.words[..];
                        kernel.run(source, target, rows, Workspace { values, keys, sorted, nodes, counts });
                    }
                    Kind::Floats => {
                        let values = &mut scratch.linear.floats[..];
                        kernel.run(source, target, rows, Workspace { values, keys, sorted, nodes, counts });
                    }
                }
            }
            Kernel::Counted(kernel) => {
                let room = Room { bytes: &mut scratch.bytes, counts: &mut scratch.counts };
                kernel.run(source, target, rows, room);
            }
            Kernel::Pool(kernel) => {
                let extreme = match kernel.kind() {
                    PoolKind::Max => Some(Extreme::Max),
                    PoolKind::Min => Some(Extreme::Min),
                    PoolKind::Mean => None,
                };
                match (Kind::of(kernel.codec()), extreme) {
                    (Kind::Bytes, Some(kind)) => kernel.run_extreme(kind, source, target, rows, &mut scratch.bytes),
                    (Kind::Words, Some(kind)) => kernel.run_extreme(kind, source, target, rows, &mut scratch.linear.words),
                    (Kind::Floats, Some(kind)) => kernel.run_extreme(kind, source, target, rows, &mut scratch.linear.floats),
                    (Kind::Bytes | Kind::Words, None) => kernel.run_codes(source, target, rows, &mut scratch.codes),
                    (Kind::Floats, None) => kernel.run_floats(source, target, rows, &mut scratch.linear.floats),
                }
            }
            Kernel::Pixelate(kernel) => match kernel.sample() {
                Sample::U8 | Sample::U16 => kernel.run_codes(source, target, rows, &mut scratch.codes),
                Sample::F16 | Sample::F32 => kernel.run_floats(source, target, rows, &mut scratch.linear.floats),
            },
        }
    }

    /// Whether the rows of another step's band may be its source: it reads none but those that `fuse::reach` says, at once.
    fn runs_by_bands(&self) -> bool {
        match self {
            Self::Box(_) | Self::Pyramid(_) | Self::Pool(_) | Self::Pixelate(_) => false,
            // It sums up a window's rows for every band.
            Self::FloatBox(kernel) => kernel.halo() <= BAND_ROWS / 2,
            Self::Copy
            | Self::Separable(_)
            | Self::Fixed(_)
            | Self::Direct(_)
            | Self::NineMean(_)
            | Self::ExactBox(_)
            | Self::Unsharp(_)
            | Self::Gradient(_)
            | Self::Compass(_)
            | Self::Extremum(_)
            | Self::Morphology(_)
            | Self::Median(_)
            | Self::Counted(_) => true,
        }
    }

    /// `width` is the output plane's.
    fn new(op: &PlaneOp, span: Span, codec: Codec, level: Level, width: usize) -> Self {
        match op {
            PlaneOp::Copy => Self::Copy,
            PlaneOp::Separable(op) => match PyramidKernel::new(op, span, codec, level) {
                Some(kernel) => Self::Pyramid(kernel),
                None => match FixedKernel::new(op, span, codec, level) {
                    Some(kernel) => Self::Fixed(kernel),
                    None => Self::Separable(SeparableKernel::new(op, span, codec, level)),
                },
            },
            PlaneOp::Direct(op) => Self::Direct(DirectKernel::new(op, span, codec, level)),
            PlaneOp::Box(op) if op.radius_x == 0 && op.radius_y == 0 => Self::Copy,
            PlaneOp::Box(op) => {
                let few = || boxfloat::as_kernel(op, codec).map(|op| Self::Direct(DirectKernel::new(&op, span, codec, level)));
                let nine = || NineMean::new(op, span, codec, level).map(Self::NineMean);
                let exact = || FixedKernel::of_box(op, span, codec, level).map(Self::Fixed);
                let sums = || ExactBox::new(op, span, codec, level).map(Self::ExactBox);
                let floats = || FloatBox::new(op, span, codec, level).map(Self::FloatBox);
                few()
                    .or_else(nine)
                    .or_else(exact)
                    .or_else(sums)
                    .or_else(floats)
                    .unwrap_or_else(|| Self::Box(BoxKernel::new(op, span, codec, level)))
            }
            PlaneOp::Unsharp(op) => Self::Unsharp(UnsharpKernel::new(op, span, codec, level)),
            PlaneOp::Gradient(op) => Self::Gradient(GradientKernel::new(op, span, codec, level)),
            PlaneOp::Compass(op) => Self::Compass(CompassKernel::new(op, span, codec, level)),
            PlaneOp::Extremum(op) => Self::Extremum(ExtremumKernel::new(op, span, codec, level)),
            PlaneOp::Morphology(op) => Self::Morphology(MorphologyKernel::new(op, span, codec, level)),
            PlaneOp::Median(op) if MedianKernel::is_small(op) => Self::Median(MedianKernel::new(op, span, codec, level)),
            PlaneOp::Median(op) => match CountedKernel::new(op, span, codec, level) {
                Some(kernel) => Self::Counted(kernel),
                None => Self::Median(MedianKernel::new(op, span, codec, level)),
            },
            PlaneOp::Pool(op) => Self::Pool(PoolKernel::new(op, span, codec, level, width)),
            PlaneOp::Pixelate(op) => Self::Pixelate(PixelateKernel::new(op, span, codec, level)),
        }
    }

    /// Rows that a band computes beyond its own, where they are many.
    fn halo(&self) -> usize {
        match self {
            Self::Extremum(kernel) => kernel.halo(),
            Self::ExactBox(kernel) => kernel.halo(),
            Self::FloatBox(kernel) => kernel.halo(),
            Self::Pyramid(kernel) => kernel.halo(),
            Self::Median(kernel) => kernel.halo(),
            Self::Counted(kernel) => kernel.halo(),
            Self::Copy
            | Self::Separable(_)
            | Self::Fixed(_)
            | Self::Direct(_)
            | Self::Box(_)
            | Self::NineMean(_)
            | Self::Unsharp(_)
            | Self::Gradient(_)
            | Self::Compass(_)
            | Self::Morphology(_)
            | Self::Pool(_)
            | Self::Pixelate(_) => 0,
        }
    }

    /// The scratch that a worker needs.
    fn need(&self) -> Demand {
        let linear = |need| Demand { linear: need, ..Demand::default() };
        // Integer and float planes use the one or the other; both are small beside the frames.
        let words = |count| Demand { words: count, linear: Need { floats: count, ..Need::default() }, ..Demand::default() };
        match self {
            Self::Copy | Self::NineMean(_) => Demand::default(),
            Self::Separable(kernel) => linear(kernel.need()),
            Self::Pyramid(kernel) => linear(kernel.need()),
            Self::Fixed(kernel) => {
                let (bytes, words) = kernel.scratch();
                Demand { bytes, ..Demand::ordered(Kind::Words, words) }
            }
            Self::Direct(kernel) => linear(kernel.need()),
            Self::Gradient(kernel) => linear(kernel.need()),
            Self::Box(kernel) => words(kernel.scratch()),
            Self::ExactBox(kernel) => {
                let (small, large) = kernel.scratch();
                Demand { words: large, ..Demand::ordered(Kind::Words, small) }
            }
            Self::FloatBox(kernel) => Demand::ordered(Kind::Floats, kernel.scratch()),
            Self::Unsharp(kernel) => {
                let count = kernel.scratch();
                match kernel.width() {
                    Width::Words => linear(Need { words: count, ..Need::default() }),
                    Width::Floats => linear(Need { floats: count, ..Need::default() }),
                    Width::Codes => Demand { words: count, ..Demand::default() },
                    Width::Longs => Demand { longs: count, ..Demand::default() },
                }
            }
            Self::Compass(kernel) => Demand::ordered(if kernel.narrow() { Kind::Words } else { Kind::Floats }, kernel.scratch()),
            Self::Extremum(kernel) => Demand::ordered(Kind::of(kernel.codec()), kernel.scratch()),
            Self::Morphology(kernel) => Demand::ordered(Kind::of(kernel.codec()), kernel.scratch()),
            Self::Median(kernel) => {
                let Extent { values, keys, sorted, nodes, counts } = kernel.extent();
                Demand { words: keys, longs: sorted, nodes, counts, ..Demand::ordered(Kind::of(kernel.codec()), values) }
            }
            Self::Counted(kernel) => {
                let (bytes, counts) = kernel.scratch();
                Demand { bytes, counts, ..Demand::default() }
            }
            Self::Pool(kernel) => Demand { words: kernel.scratch(), ..Demand::ordered(Kind::of(kernel.codec()), kernel.scratch()) },
            Self::Pixelate(kernel) => words(kernel.scratch()),
        }
    }
}

/// Both ends of every length, so that the kernels can rely on them.
fn check(op: &PlaneOp) -> Result<(), String> {
    let fits = |what: &str, size: usize| {
        if (1..=1 << 16).contains(&size) { Ok(()) } else { Err(format!("{what} of {size} samples is outside 1 to 65536")) }
    };
    match op {
        PlaneOp::Copy | PlaneOp::Gradient(_) | PlaneOp::Compass(_) | PlaneOp::Morphology(_) => Ok(()),
        PlaneOp::Extremum(op) => fits("a window", 2 * op.radius_x + 1).and_then(|()| fits("a window", 2 * op.radius_y + 1)),
        PlaneOp::Median(op) => {
            let (width, height) = (2 * op.radius_x + 1, 2 * op.radius_y + 1);
            if width.max(height) > 255 {
                Err(format!("a window of {width}x{height} samples is larger than 255x255"))
            } else if op.rank >= width * height {
                Err(format!("rank {} is not below the {} samples of a window", op.rank, width * height))
            } else {
                Ok(())
            }
        }
        PlaneOp::Pool(op) => {
            if !(1..=127).contains(&op.kernel) {
                Err(format!("a kernel of {} is outside 1 to 127", op.kernel))
            } else if op.stride == 0 || op.dilation == 0 {
                Err("the stride and the dilation must be at least 1".into())
            } else if op.pad > op.kernel / 2 {
                Err(format!("a pad of {} is more than half the kernel of {}", op.pad, op.kernel))
            } else {
                Ok(())
            }
        }
        PlaneOp::Pixelate(op) => {
            if op.block_x == 0 || op.block_y == 0 {
                Err("a block has no samples".into())
            } else {
                Ok(())
            }
        }
        PlaneOp::Separable(op) => fits("a row kernel", op.row.len()).and_then(|()| fits("a column kernel", op.col.len())),
        PlaneOp::Direct(op) => {
            fits("a kernel row", op.width).and_then(|()| fits("a kernel column", op.height))?;
            let (want, have) = (op.width * op.height, op.taps.len());
            if want == have { Ok(()) } else { Err(format!("a {}x{} kernel has {have} weights", op.width, op.height)) }
        }
        PlaneOp::Box(op) => {
            fits("a window", 2 * op.radius_x + 1).and_then(|()| fits("a window", 2 * op.radius_y + 1))?;
            if op.power == 0 { Err("the power is 0".into()) } else { Ok(()) }
        }
        PlaneOp::Unsharp(op) => {
            let legal = |size: usize| size % 2 == 1 && (3..=23).contains(&size);
            if legal(op.size_x) && legal(op.size_y) {
                Ok(())
            } else {
                Err(format!("a matrix of {}x{} is not odd and within 3 to 23", op.size_x, op.size_y))
            }
        }
    }
}
