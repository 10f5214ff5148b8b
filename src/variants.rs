//! `convoy variants`: every kernel variant with what it needs, moves and costs, and which one the automatic choice takes, and why.
//!
//! Works without a GPU: it says which one it assumes then. Registers and shared memory come from compiling, where NVRTC is present.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Serialize;

use crate::backend::cpu::{self, Cpu};
use crate::backend::cuda::compile::{Nvrtc, Request, resources};
use crate::backend::cuda::spec::Spec;
use crate::backend::cuda::variants::{Machine, TABLE, Task, Variant, family, pick};
use crate::backend::cuda::{self, tuning::Tuning};
use crate::backend::small::too_small_for_gpu;
use crate::cli::VariantsArgs;
use crate::error::{Error, Result};
use crate::filter;
use crate::filter::plan::{Plan, PlaneOp};
use crate::frame::Shape;
use crate::media;

/// A filter of every family.
const EXAMPLES: [&str; 11] = [
    "gblur=sigma=2",
    "convolution=1 2 1 2 5 2 1 3 1",
    "avgblur=7",
    "unsharp",
    "sobel",
    "kirsch",
    "erosion=coordinates=90",
    "dilation=radius=7",
    "median=2",
    "avgpool=kernel=3:stride=2",
    "pixelate=16",
];

/// The whole report.
#[derive(Debug, Serialize)]
struct Report {
    /// The GPU, or what is assumed.
    gpu: String,
    /// Whether there is one.
    gpu_present: bool,
    /// Where registers and shared memory come from; None if there is no compiler.
    compiler: Option<String>,
    cpu: Vec<CpuRow>,
    /// Why `--backend auto` runs the graph on the CPU even with a GPU, if it does.
    too_small: Option<String>,
    tasks: Vec<TaskReport>,
}

/// A variant of the CPU backend.
#[derive(Debug, Serialize)]
struct CpuRow {
    name: &'static str,
    about: String,
    tolerance: String,
}

/// The variants of one operation on one group of planes.
#[derive(Debug, Serialize)]
struct TaskReport {
    filter: String,
    family: &'static str,
    planes: Vec<usize>,
    /// The variant that `auto` takes.
    chosen: Option<&'static str>,
    why: String,
    rows: Vec<Row>,
}

/// One variant for one task.
#[derive(Debug, Serialize)]
struct Row {
    name: &'static str,
    about: &'static str,
    needs: String,
    tolerance: String,
    /// Why it cannot run this; the rest is empty then.
    unfit: Option<String>,
    bytes_per_sample: f64,
    instructions_per_sample: f64,
    launches: usize,
    /// Samples across and rows down that a block makes.
    tile: Option<(usize, usize)>,
    threads: Option<usize>,
    /// The most of its kernels.
    registers: Option<usize>,
    shared_bytes: Option<usize>,
    spilled_bytes: Option<usize>,
    estimate_us: f64,
    /// By `convoy bench --tune` on this GPU.
    measured_us: Option<f64>,
}

/// The report, for stdout.
///
/// # Errors
/// A graph that does not parse or does not fit the format, or an unknown format.
pub fn report(args: &VariantsArgs) -> Result<String> {
    let shape = Shape { format: media::format::named(&args.format)?, width: args.size.0, height: args.size.1 };
    let graphs: Vec<&str> = args.vf.as_deref().map_or(EXAMPLES.to_vec(), |graph| vec![graph]);
    let plans = graphs.iter().map(|graph| filter::plan(&filter::parse(graph)?, shape)).collect::<Result<Vec<Plan>>>()?;
    let too_small = plans.first().filter(|plan| args.vf.is_some() && !plan.steps.is_empty()).and_then(too_small_for_gpu);
    let survey = cuda::probe();
    let device = survey.devices.ok().and_then(|devices| devices.into_iter().nth(args.device));
    let machine = device.as_ref().map_or(Machine::ASSUMED, Machine::of);
    let arch = device.as_ref().map_or("sm_90".to_owned(), |d| d.arch());
    let driver = survey.driver.ok();
    let compiler = Nvrtc::open(driver.map(|d| d.0)).ok();
    let tuning = device.as_ref().and_then(|d| Some(Tuning::open(d, driver?)));
    let mut inspector = Inspector { compiler: compiler.as_ref(), arch: &arch, known: BTreeMap::new() };
    let mut tasks = Vec::new();
    for step in plans.iter().flat_map(|plan| &plan.steps) {
        for task in Task::of_step(step).into_iter().filter(|task| task.op != PlaneOp::Copy) {
            tasks.push(task_report(&task, &step.label, machine, tuning.as_ref(), &mut inspector));
        }
    }
    let gpu = match &device {
        Some(d) => format!("{} ({}, {} multiprocessors)", d.name, d.arch(), d.multiprocessors),
        None => format!("none here; costs and resources for {}", Machine::ASSUMED_NAME),
    };
    let compiler = compiler.map(|c| format!("NVRTC {}.{}", c.version().0, c.version().1));
    let report = Report { gpu, gpu_present: device.is_some(), compiler, cpu: cpu_rows(), too_small, tasks };
    if args.json {
        return serde_json::to_string_pretty(&report).map_err(|e| Error::failed("cannot write the variants as JSON", e));
    }
    Ok(text(&report, shape))
}

fn cpu_rows() -> Vec<CpuRow> {
    let about = |variant| match variant {
        cpu::Variant::Scalar => "one thread, plain loops".to_owned(),
        cpu::Variant::Simd => "one thread, SIMD".to_owned(),
        cpu::Variant::Threads => {
            format!("all {} threads, SIMD, bands of rows that stay in the cache; auto's choice on the CPU", Cpu::threads())
        }
    };
    cpu::Variant::ALL.into_iter().map(|v| CpuRow { name: v.name(), about: about(v), tolerance: tolerance(0.0) }).collect()
}

/// What a slack of the unrounded sum means for results.
fn tolerance(slack: f64) -> String {
    if slack == 0.0 { "exact".to_owned() } else { format!("sum to {slack:.0e}") }
}

/// Compiles kernels to see what they need, each once.
struct Inspector<'a> {
    compiler: Option<&'a Nvrtc>,
    arch: &'a str,
    known: BTreeMap<String, Option<[usize; 3]>>,
}

impl Inspector<'_> {
    /// Registers, shared bytes and spilled bytes of a launch; None without a compiler, or if it does not compile.
    fn inspect(&mut self, spec: &Spec) -> Option<[usize; 3]> {
        let compiler = self.compiler?;
        let request = Request { file: spec.file, defines: spec.defines.clone(), arch: self.arch.to_owned() };
        let key = format!("{request} {}", spec.entry);
        *self.known.entry(key).or_insert_with(|| {
            let (_, log) = compiler.compile(&request, true).ok()?;
            let found = resources(&log).into_iter().find(|r| r.entry == spec.entry)?;
            Some([found.registers, found.shared_bytes + spec.shared, found.spilled_bytes])
        })
    }
}

fn task_report(task: &Task, label: &str, machine: Machine, tuning: Option<&Tuning>, inspector: &mut Inspector<'_>) -> TaskReport {
    let measured = tuning.and_then(|t| t.find(task));
    let (chosen, why) = match pick(task, label, None, machine, measured) {
        Ok(choice) => (Some(choice.row.name), choice.why),
        Err(error) => (None, error.to_string()),
    };
    let rows = TABLE.iter().filter(|row| row.executes(&task.op));
    TaskReport {
        filter: label.to_owned(),
        family: family(&task.op),
        planes: task.planes.clone(),
        chosen,
        why,
        rows: rows.map(|row| self::row(row, task, machine, measured.and_then(|m| m.of(row.name)), inspector)).collect(),
    }
}

fn row(row: &'static Variant, task: &Task, machine: Machine, measured_us: Option<f64>, inspector: &mut Inspector<'_>) -> Row {
    let cost = row.cost(task);
    let mut out = Row {
        name: row.name,
        about: row.about,
        needs: row.library().map_or("any GPU".to_owned(), |library| library.name().to_owned()),
        tolerance: tolerance(row.slack(task)),
        unfit: None,
        bytes_per_sample: cost.bytes,
        instructions_per_sample: cost.instructions,
        launches: 0,
        tile: None,
        threads: None,
        registers: None,
        shared_bytes: None,
        spilled_bytes: None,
        estimate_us: row.estimate_us(task, machine.multiprocessors, machine.bandwidth),
        measured_us,
    };
    match row.specs(task) {
        Err(why) => out.unfit = Some(why),
        Ok(specs) => {
            out.launches = specs.len();
            let kernels: Vec<&Spec> = specs.iter().filter(|spec| spec.call.is_none()).collect();
            // Scratch-bound launches have no tile of their own.
            out.tile = kernels.iter().map(|spec| spec.tile).find(|tile| tile.0.max(tile.1) < 1 << 16);
            out.threads = kernels.first().map(|spec| spec.threads);
            let found: Vec<_> = kernels.iter().filter_map(|spec| inspector.inspect(spec)).collect();
            let most = |index: usize| found.iter().filter_map(|f| f.get(index)).max().copied();
            (out.registers, out.shared_bytes, out.spilled_bytes) = (most(0), most(1), most(2));
            if let Some(Err(why)) = row.library().map(|library| library.available()) {
                out.needs = format!("{} ({})", out.needs, why.lines().next().unwrap_or_default());
            }
        }
    }
    out
}

fn text(report: &Report, shape: Shape) -> String {
    let mut out = format!("GPU: {}\nregisters and shared memory: {}\n", report.gpu, report.compiler.as_deref().unwrap_or("no NVRTC here"));
    out.push_str("exact: within one code value, 99.9 % of samples equal (float: 1e-4; half: 1e-4 before it is rounded); else how far a sum\nmay be off before it is rounded, as a share of the range times the kernel's weights\n\nCPU\n");
    for row in &report.cpu {
        line(&mut out, &format!("  {:<12} {:<10} {}", row.name, row.tolerance, row.about));
    }
    if let Some(reason) = &report.too_small {
        line(&mut out, &format!("  --backend auto runs this on the CPU: {reason}"));
    }
    for task in &report.tasks {
        let planes: Vec<String> = task.planes.iter().map(ToString::to_string).collect();
        line(&mut out, &format!("\n{} on {shape}, planes {} ({} kernel)", task.filter, planes.join(","), task.family));
        line(
            &mut out,
            &format!(
                "  {:<12} {:>9} {:>7} {:>9} {:>8} {:>5} {:>7} {:>9} {:>9}  {:<10} needs",
                "variant", "B/sample", "ops", "launches", "tile", "regs", "shared", "est. us", "meas. us", "tolerance"
            ),
        );
        for row in &task.rows {
            let mark = if task.chosen == Some(row.name) { '*' } else { ' ' };
            if let Some(why) = &row.unfit {
                line(&mut out, &format!("{mark} {:<12} does not fit: {why}", row.name));
                continue;
            }
            let number = |n: Option<usize>| n.map_or("-".to_owned(), |n| n.to_string());
            let tile = row.tile.map_or("-".to_owned(), |(x, y)| format!("{x}x{y}"));
            let measured = row.measured_us.map_or("-".to_owned(), |us| format!("{us:.1}"));
            let spilled = row.spilled_bytes.filter(|&b| b > 0).map_or(String::new(), |b| format!(", spills {b} bytes"));
            line(
                &mut out,
                &format!(
                    "{mark} {:<12} {:>9.1} {:>7.0} {:>9} {:>8} {:>5} {:>7} {:>9.1} {:>9}  {:<10} {}{spilled}",
                    row.name,
                    row.bytes_per_sample,
                    row.instructions_per_sample,
                    row.launches,
                    tile,
                    number(row.registers),
                    number(row.shared_bytes),
                    row.estimate_us,
                    measured,
                    row.tolerance,
                    row.needs
                ),
            );
        }
        line(&mut out, &format!("  auto: {}", task.why));
    }
    out.push_str("\nWhat they are\n");
    let mut seen = Vec::new();
    for task in &report.tasks {
        for row in task.rows.iter().filter(|row| !seen.contains(&(task.family, row.name))).collect::<Vec<_>>() {
            seen.push((task.family, row.name));
            line(&mut out, &format!("  {:<10} {:<12} {}", task.family, row.name, row.about));
        }
    }
    out
}

fn line(out: &mut String, text: &str) {
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{}", text.trim_end());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(vf: Option<&str>, format: &str, json: bool) -> VariantsArgs {
        VariantsArgs { vf: vf.map(str::to_owned), size: (640, 360), format: format.to_owned(), device: 0, json }
    }

    #[test]
    fn every_row_of_the_table_is_listed() {
        let text = report(&args(None, "yuv420p", true)).unwrap();
        let report: serde_json::Value = serde_json::from_str(&text).unwrap();
        let rows = TABLE.iter().flat_map(|row| row.families.iter().map(move |family| (*family, row.name)));
        for (family, name) in rows.filter(|(family, _)| *family != "copy") {
            let found = report["tasks"]
                .as_array()
                .unwrap()
                .iter()
                .any(|task| task["family"] == family && task["rows"].as_array().unwrap().iter().any(|r| r["name"] == name));
            assert!(found, "{family} {name}");
        }
        assert_eq!(report["cpu"].as_array().unwrap().len(), 3);
    }

    #[test]
    fn a_graph_shows_its_choice_and_reasons() {
        let text = report(&args(Some("gblur=sigma=20"), "gray16le", false)).unwrap();
        assert!(text.contains("* separable") && text.contains("auto: separable"), "{text}");
        assert!(text.contains("does not fit: its radius is limited to 32"), "{text}");
        let error = report(&args(None, "rgb24", false)).unwrap_err().to_string();
        assert!(error.contains("converted"), "{error}");
        assert!(report(&args(None, "nonsense", false)).is_err());
        assert!(report(&args(Some("nonsense"), "gray", false)).is_err());
    }
}
