//! A plan's steps prepared for execution: kernels per plane, phases, tasks.

use std::sync::Arc;

use super::boxmean::BoxKernel;
use super::crew::Work;
use super::linear::{DirectKernel, GradientKernel, Level, Memory, Need, SeparableKernel};
use super::plane::{Codec, Source, Span, Target};
use super::unsharp::{UnsharpKernel, Width};
use super::variant::Variant;
use crate::error::{Error, Result};
use crate::filter::plan::{Plan, PlaneOp, Step};
use crate::frame::{FrameLayout, MAX_PLANES, PixelFormat, PlaneLayout};

/// Rows of a task at least: shorter bands would compute too many halo rows twice.
const BAND_ROWS: usize = 32;

/// All steps of a plan, shared by the workers.
pub(super) struct Program {
    pub steps: Vec<Prepared>,
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
}

/// One step.
pub(super) struct Prepared {
    pub variant: Variant,
    pub label: String,
    planes: Vec<Kernel>,
    /// Tasks of each phase; a phase starts when the one before has finished.
    phases: Vec<Vec<Task>>,
}

impl Prepared {
    /// Number of tasks in each phase.
    pub fn phases(&self) -> impl ExactSizeIterator<Item = usize> {
        self.phases.iter().map(Vec::len)
    }
}

enum Kernel {
    Copy,
    Separable(SeparableKernel),
    Direct(DirectKernel),
    Box(BoxKernel),
    Unsharp(UnsharpKernel),
    Gradient(GradientKernel),
}

#[derive(Clone, Copy)]
enum Task {
    /// Rows `from..to` of a plane.
    Rows { plane: usize, from: usize, to: usize },
    /// Column strip of a plane (vertical phase of a box mean).
    Strip { plane: usize, strip: usize },
}

/// What a crew is told: one phase of one step on one frame's memory.
#[derive(Clone, Copy)]
pub(super) struct Order {
    pub step: usize,
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
}

impl Demand {
    fn max(self, other: Self) -> Self {
        let linear = Need {
            floats: self.linear.floats.max(other.linear.floats),
            words: self.linear.words.max(other.linear.words),
            offsets: self.linear.offsets.max(other.linear.offsets),
        };
        Self { linear, words: self.words.max(other.words), longs: self.longs.max(other.longs) }
    }
}

impl Program {
    /// Prepares `plan`; `variants` holds one per step, `threads` the crew's size.
    ///
    /// # Errors
    /// When a step is malformed.
    pub fn new(plan: &Plan, variants: &[Variant], threads: usize) -> Result<Arc<Self>> {
        let mut program = Self { steps: Vec::new(), need: Demand::default() };
        let mut shape = plan.input;
        for (step, &variant) in plan.steps.iter().zip(variants) {
            if step.input != shape || step.output != step.input {
                return Err(Error::failed(
                    format!("cannot run '{}' on the CPU", step.label),
                    format!("it turns {} into {} after a step that gives {shape}", step.input, step.output),
                ));
            }
            shape = step.output;
            let workers = if variant == Variant::Threads { threads } else { 1 };
            program.steps.push(program.prepare(step, variant, workers)?);
        }
        for step in &program.steps {
            for kernel in &step.planes {
                program.need = program.need.max(kernel.need());
            }
        }
        Ok(Arc::new(program))
    }

    fn prepare(&self, step: &Step, variant: Variant, workers: usize) -> Result<Prepared> {
        let format = step.input.format;
        let codec = Codec::new(format);
        let level = if variant == Variant::Scalar { Level::Plain } else { Level::Simd };
        let mut planes = Vec::new();
        let mut phases = vec![Vec::new()];
        let mut strips = Vec::new();
        for (plane, op) in step.planes.iter().enumerate().take(format.plane_count()) {
            check(op).map_err(|cause| Error::failed(format!("cannot run '{}' on the CPU", step.label), cause))?;
            let (width, height) = step.input.plane_size(plane);
            let span = Span { width, height, components: format.components(plane), left: 0, right: 0, border: step.border };
            let kernel = Kernel::new(op, span, codec, level);
            // Twice as many bands as workers, so that a worker that starts late finds less to do.
            let bands = if workers == 1 { 1 } else { (2 * workers).min(height / BAND_ROWS).max(1) };
            let rows = (0..bands).map(|b| Task::Rows { plane, from: height * b / bands, to: height * (b + 1) / bands });
            phases[0].extend(rows);
            if let Kernel::Box(kernel) = &kernel {
                strips.extend((0..kernel.strips()).map(|strip| Task::Strip { plane, strip }));
            }
            planes.push(kernel);
        }
        if !strips.is_empty() {
            phases.push(strips);
        }
        Ok(Prepared { variant, label: step.label.clone(), planes, phases })
    }

    /// Layout of the intermediate planes, the largest of all steps, and the bytes that they take together.
    pub fn middle(&self, format: PixelFormat, layout: &FrameLayout) -> ([PlaneLayout; MAX_PLANES], usize) {
        let mut planes = layout.planes;
        let mut offset = 0;
        let boxes = self.steps.iter().any(|s| s.phases.len() > 1);
        for plane in planes.iter_mut().take(format.plane_count()) {
            *plane = PlaneLayout { offset, pitch: plane.width * plane.components * 4, ..*plane };
            offset += plane.pitch * plane.height;
        }
        (planes, if boxes { offset } else { 0 })
    }
}

impl Work for Program {
    type Order = Order;
    type Scratch = Scratch;

    fn scratch(&self) -> Scratch {
        let Demand { linear, words, longs } = self.need;
        let linear = Memory { floats: vec![0.0; linear.floats], words: vec![0; linear.words], offsets: vec![0; linear.offsets] };
        Scratch { linear, codes: vec![0; words], longs: vec![0; longs] }
    }

    fn run(&self, order: &Order, task: usize, scratch: &mut Scratch) {
        let step = &self.steps[order.step];
        match step.phases[order.phase][task] {
            Task::Rows { plane, from, to } => {
                let (source, target, rows) = (&order.sources[plane], &order.targets[plane], from..to);
                match &step.planes[plane] {
                    Kernel::Copy => {
                        for y in rows {
                            // SAFETY: row `y` belongs to this task's band.
                            unsafe { target.row(y) }.copy_from_slice(source.row(y));
                        }
                    }
                    Kernel::Separable(kernel) => kernel.run(source, target, rows, &mut scratch.linear),
                    Kernel::Direct(kernel) => kernel.run(source, target, rows, &mut scratch.linear),
                    Kernel::Gradient(kernel) => kernel.run(source, target, rows, &mut scratch.linear),
                    Kernel::Box(kernel) => {
                        kernel.run_rows(source, &order.middle[plane], rows, &mut scratch.codes, &mut scratch.linear.floats);
                    }
                    Kernel::Unsharp(kernel) => match kernel.width() {
                        Width::Words => kernel.run_codes(source, target, rows, &mut scratch.linear.words),
                        Width::Codes => kernel.run_codes(source, target, rows, &mut scratch.codes),
                        Width::Longs => kernel.run_codes(source, target, rows, &mut scratch.longs),
                        Width::Floats => kernel.run_floats(source, target, rows, &mut scratch.linear.floats),
                    },
                }
            }
            Task::Strip { plane, strip } => {
                if let Kernel::Box(kernel) = &step.planes[plane] {
                    let middle = order.middle[plane].as_source();
                    kernel.run_strip(&middle, &order.targets[plane], strip, &mut scratch.codes, &mut scratch.linear.floats);
                }
            }
        }
    }
}

impl Kernel {
    fn new(op: &PlaneOp, span: Span, codec: Codec, level: Level) -> Self {
        match op {
            PlaneOp::Copy => Self::Copy,
            PlaneOp::Separable(op) => Self::Separable(SeparableKernel::new(op, span, codec, level)),
            PlaneOp::Direct(op) => Self::Direct(DirectKernel::new(op, span, codec, level)),
            PlaneOp::Box(op) if op.radius_x == 0 && op.radius_y == 0 => Self::Copy,
            PlaneOp::Box(op) => Self::Box(BoxKernel::new(op, span, codec, level)),
            PlaneOp::Unsharp(op) => Self::Unsharp(UnsharpKernel::new(op, span, codec, level)),
            PlaneOp::Gradient(op) => Self::Gradient(GradientKernel::new(op, span, codec, level)),
            // `check` has refused these.
            PlaneOp::Compass(_)
            | PlaneOp::Extremum(_)
            | PlaneOp::Morphology(_)
            | PlaneOp::Median(_)
            | PlaneOp::Pool(_)
            | PlaneOp::Pixelate(_) => Self::Copy,
        }
    }

    /// The scratch that a worker needs.
    fn need(&self) -> Demand {
        let linear = |need| Demand { linear: need, ..Demand::default() };
        // Integer and float planes use the one or the other; both are small beside the frames.
        let words = |count| Demand { words: count, linear: Need { floats: count, ..Need::default() }, longs: 0 };
        match self {
            Self::Copy => Demand::default(),
            Self::Separable(kernel) => linear(kernel.need()),
            Self::Direct(kernel) => linear(kernel.need()),
            Self::Gradient(kernel) => linear(kernel.need()),
            Self::Box(kernel) => words(kernel.scratch()),
            Self::Unsharp(kernel) => {
                let count = kernel.scratch();
                match kernel.width() {
                    Width::Words => linear(Need { words: count, ..Need::default() }),
                    Width::Floats => linear(Need { floats: count, ..Need::default() }),
                    Width::Codes => Demand { words: count, ..Demand::default() },
                    Width::Longs => Demand { longs: count, ..Demand::default() },
                }
            }
        }
    }
}

/// Both ends of every length, so that the kernels can rely on them.
fn check(op: &PlaneOp) -> Result<(), String> {
    let fits = |what: &str, size: usize| {
        if (1..=1 << 16).contains(&size) { Ok(()) } else { Err(format!("{what} of {size} samples is outside 1 to 65536")) }
    };
    match op {
        PlaneOp::Copy | PlaneOp::Gradient(_) => Ok(()),
        PlaneOp::Compass(_)
        | PlaneOp::Extremum(_)
        | PlaneOp::Morphology(_)
        | PlaneOp::Median(_)
        | PlaneOp::Pool(_)
        | PlaneOp::Pixelate(_) => Err("this filter is not built yet on the CPU".into()),
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
