//! What a kernel variant is, and the choice among those of the [`TABLE`].
//!
//! A row never falls back: asked for by name where it does not fit, it says why. Only the automatic choice skips rows.
//! Planes of a step that have the same operation share one launch.

use super::device::DeviceInfo;
use super::library::Library;
use super::lower_race::slack;
use super::spec::Spec;
pub use super::table::TABLE;
use super::tuning::Times;
use crate::error::{Error, Result};
use crate::filter::Border;
use crate::filter::plan::{Plan, PlaneOp, Step};
use crate::frame::{PixelFormat, Shape};

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
    /// Operations that it executes, as [`family`] calls them.
    pub families: &'static [&'static str],
    /// What it is, tile and bytes moved per sample, for `convoy variants`.
    pub about: &'static str,
    /// Its launches, or why it does not fit.
    pub(super) lower: fn(&Task) -> Result<Vec<Spec>, String>,
    /// Estimated cost in bytes moved and operations per sample.
    pub(super) cost: fn(&Task) -> Cost,
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
    /// Whether it is a variant of operations of this kind.
    pub fn executes(&self, op: &PlaneOp) -> bool {
        self.families.contains(&family(op))
    }

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
        matches!(self.name, "constant" | "tiled" | "texture") && self.families.contains(&"direct")
    }

    /// How far a sum may be off before it is rounded, relative to the sample's range times the sum of the weights' sizes times the scale.
    /// 0: as exact as the plain sum of products, so that integer samples are equal but for one in a thousand that differs by one.
    pub fn slack(&self, task: &Task) -> f64 {
        slack(self.name, task)
    }

    /// Whether it keeps the tolerance that the automatic choice promises: exact, or floats to 1.5e-5.
    fn exact(&self, task: &Task) -> bool {
        let slack = self.slack(task);
        slack == 0.0 || (task.format().sample().is_float() && slack <= 1.5e-5)
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
        if !self.executes(&task.op) {
            return Err(format!("it is a variant of {} kernels, not of {}", self.families.join(" and "), family(&task.op)));
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

/// The largest [`Variant::slack`] of a variant, by its name, over all tasks of `plan`.
pub fn plan_slack(plan: &Plan, name: &str) -> f64 {
    let name = parse_name(name).map_or(name, |(name, _)| name);
    let of = |task: &Task| TABLE.iter().find(|row| row.name == name && row.executes(&task.op)).map_or(0.0, |row| row.slack(task));
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
    let rows = TABLE.iter().filter(|v| v.executes(&task.op) && v.exact(task));
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
    let rows = || TABLE.iter().filter(|v| v.executes(&task.op));
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
