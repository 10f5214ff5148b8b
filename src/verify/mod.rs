//! `convoy verify`: every kernel variant × size × border × sample type against the reference.

use std::process::ExitCode;

use serde::Serialize;

use crate::axes::{Planes, SampleType};
use crate::backend::{self, BuildOptions, Choice, Device};
use crate::cli::{Backend, VerifyArgs};
use crate::error::{Error, Kind, Result};
use crate::filter::plan::Plan;
use crate::filter::{self, Border, Filter};
use crate::frame::Shape;
use crate::pool::Budget;
use crate::reference::{self, Comparison, Tolerance};
use crate::status;

mod live;
mod through;

pub use live::{Watch, watch};
pub use through::Trial;

/// What is verified unless `--vf` says otherwise: every filter, every way that the kernels are divided.
const GRAPHS: [&str; 34] = [
    "gblur=sigma=0.5",
    "gblur=sigma=2",
    "gblur=sigma=5:sigmaV=1",
    "gblur=sigma=12",
    "convolution='1 2 3 2 5 1 3 1 2'",
    "convolution='1 2 3 4 5 2 5 1 3 2 1 4 3 1 4 1 5 2 6 4 2 7 1 3 5'",
    "convolution='0.5 -1.25 0.5 0 3.5 0 0.125 -1 0.25':0rdiv=0.4:0bias=7",
    "convolution='1 2 3 4 3 2 1':0mode=row",
    "convolution='1 -2 3 4 5':0mode=column",
    "boxblur",
    "boxblur=5:1",
    "avgblur=7",
    "avgblur=40",
    "unsharp",
    "unsharp=23:23:1.5",
    "sobel",
    "sobel=scale=0.4:delta=12:direction=x",
    "prewitt",
    "scharr",
    "roberts",
    "kirsch=scale=0.1",
    "laplacian",
    "emboss",
    "sharpen",
    "edge",
    "erosion",
    "erosion=coordinates=90:threshold0=20",
    "dilation=radius=7",
    "median",
    "median=radius=4:percentile=0.25",
    "maxpool=2:2",
    "avgpool=3:2:1",
    "minpool=3:1:1:2",
    "pixelate=8",
];

const SIZES: [(usize, usize); 6] = [(1, 1), (2, 2), (9, 7), (13, 42), (123, 33), (321, 241)];
const TYPES: [SampleType; 5] = [SampleType::U8, SampleType::U10, SampleType::U16, SampleType::F16, SampleType::F32];
const PLANES: [Planes; 2] = [Planes::Gray, Planes::Yuv420];
/// Frames in flight while verifying: two, so that one buffer's leftovers cannot pass for the other's result.
const LANES: usize = 2;
/// Sample reads of the reference above which a combination is left out, unless its size was asked for.
const SLOW: f64 = 1.5e7;

/// One variant of one graph on one kind of sample, over all sizes and borders.
#[derive(Debug, Serialize)]
struct Row {
    backend: &'static str,
    variant: String,
    graph: String,
    planes: &'static str,
    r#type: &'static str,
    /// Sizes and borders that were compared.
    cases: usize,
    samples: u64,
    /// Code values, or relative to the range for float samples.
    max_error: f64,
    exact_percent: f64,
    /// Integer samples that are not the expected value rounded, and the number that may be.
    unequal: u64,
    allowed: f64,
    failures: Vec<Failure>,
}

#[derive(Debug, Serialize)]
struct Failure {
    size: String,
    border: &'static str,
    error: String,
}

/// Verifies and prints a table, or JSON. The exit code is 1 if any combination failed.
///
/// # Errors
/// A graph that does not parse, a variant or backend that is not there, or nothing to compare.
pub fn verify(args: &VerifyArgs) -> Result<ExitCode> {
    let graphs: Vec<String> = if args.vf.is_empty() { GRAPHS.map(str::to_owned).to_vec() } else { args.vf.clone() };
    let parsed = graphs.iter().map(|g| filter::parse(g)).collect::<Result<Vec<_>>>()?;
    let devices = devices(args)?;
    if !args.json {
        println!(
            "{:<8} {:<12} {:<34} {:<9} {:>5} {:>10} {:>9}  result",
            "backend", "variant", "graph", "samples", "cases", "max error", "exact %"
        );
    }
    let mut table = Table { args, rows: Vec::new(), left_out: 0, misfits: Vec::new() };
    for (graph, filters) in graphs.iter().zip(&parsed) {
        for &planes in pick(&args.planes, &PLANES) {
            for &sample in pick(&args.sample, &TYPES) {
                table.kind(&devices, (graph, filters), planes, sample)?;
            }
        }
    }
    table.finish()
}

fn pick<'a, T>(asked: &'a [T], usual: &'a [T]) -> &'a [T] {
    if asked.is_empty() { usual } else { asked }
}

/// What `--backend` means here: auto verifies the CPU, and CUDA where there is one.
fn devices(args: &VerifyArgs) -> Result<Vec<Box<dyn Device>>> {
    let open = |choice| backend::open(choice, args.device).map(|(device, _)| device);
    Ok(match args.backend {
        Backend::Cpu => vec![open(Choice::Cpu)?],
        Backend::Cuda => vec![open(Choice::Cuda)?],
        Backend::Auto => {
            let cuda = open(Choice::Cuda).inspect_err(|e| {
                let text = e.to_string();
                status::say(format_args!("CUDA variants are not verified: {}", text.lines().next().unwrap_or_default()));
            });
            std::iter::once(open(Choice::Cpu)?).chain(cuda.ok()).collect()
        }
    })
}

struct Table<'a> {
    args: &'a VerifyArgs,
    rows: Vec<Row>,
    left_out: usize,
    /// Why variants that were asked for did not fit.
    misfits: Vec<String>,
}

impl Table<'_> {
    /// Every variant, size and border of one graph and sample type.
    fn kind(&mut self, devices: &[Box<dyn Device>], (graph, filters): (&str, &[Filter]), planes: Planes, sample: SampleType) -> Result<()> {
        let Some(format) = planes.format(sample) else { return Ok(()) };
        let mut rows: Vec<Row> = Vec::new();
        for &(width, height) in pick(&self.args.size, &SIZES) {
            for &border in pick(&self.args.border, &Border::ALL) {
                let mut filters = filters.to_vec();
                filters.iter_mut().for_each(|f| f.border = border);
                let plan = filter::plan(&filters, Shape { format, width, height })?;
                if self.args.size.is_empty() && reference::cost(&plan) > SLOW {
                    self.left_out += 1;
                    continue;
                }
                let Ok(trial) = Trial::new(&plan) else {
                    self.left_out += 1;
                    continue;
                };
                for device in devices {
                    for variant in self.variants(device.as_ref(), &plan) {
                        let tolerance = match self.args.tolerance {
                            Some(share) => Tolerance::of_range(share, format),
                            None => trial.tolerance().with_slack(&plan, device.slack(&plan, &variant)),
                        };
                        let outcome = one(device.as_ref(), &plan, &variant, &trial, tolerance);
                        if let Err(error) = &outcome
                            && error.kind() == Kind::Usage
                        {
                            self.misfits.push(error.to_string());
                            continue;
                        }
                        let place = rows.iter().position(|r| r.backend == device.name() && r.variant == variant);
                        let index = place.unwrap_or(rows.len());
                        if place.is_none() {
                            rows.push(Row::new(device.name(), variant, graph, (planes.name(), sample.name())));
                        }
                        if let Some(row) = rows.get_mut(index) {
                            row.count(outcome, tolerance, (width, height), border);
                        }
                    }
                }
            }
        }
        rows.iter_mut().for_each(Row::close);
        if !self.args.json {
            rows.iter().for_each(Row::print);
        }
        self.rows.append(&mut rows);
        Ok(())
    }

    fn variants(&self, device: &dyn Device, plan: &Plan) -> Vec<String> {
        if !self.args.variant.is_empty() {
            return self.args.variant.clone();
        }
        device.variants(plan).into_iter().map(str::to_owned).collect()
    }

    fn finish(self) -> Result<ExitCode> {
        let cases: usize = self.rows.iter().map(|r| r.cases).sum();
        if cases == 0 {
            let why = self.misfits.last().cloned().unwrap_or_else(|| "no combination is left to compare".to_owned());
            return Err(Error::usage("nothing was verified", why).hint("`convoy verify` without --variant lists those that fit"));
        }
        let failed: usize = self.rows.iter().map(|r| r.failures.len()).sum();
        if self.args.json {
            let text = serde_json::to_string_pretty(&self.rows).map_err(|e| Error::failed("cannot write the table as JSON", e))?;
            status::print(&text)?;
        }
        let left_out = match self.left_out {
            0 => String::new(),
            n => format!("; {n} left out, where the reference is slow (--size asks for them)"),
        };
        status::say(format_args!("{cases} combinations compared with the reference, {failed} failed{left_out}"));
        Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
    }
}

fn one(device: &dyn Device, plan: &Plan, variant: &str, trial: &Trial, tolerance: Tolerance) -> Result<Comparison> {
    let options = BuildOptions { lanes: Some(LANES), threads: None, variant: Some(variant.to_owned()), budget: Budget::new(usize::MAX) };
    let mut built = device.build(plan, &options)?;
    trial.run_within(&mut built, LANES, &device.host_memory(), tolerance)
}

impl Row {
    fn new(backend: &'static str, variant: String, graph: &str, (planes, sample): (&'static str, &'static str)) -> Self {
        let graph = graph.to_owned();
        Self {
            backend,
            variant,
            graph,
            planes,
            r#type: sample,
            cases: 0,
            samples: 0,
            max_error: 0.0,
            exact_percent: 100.0,
            unequal: 0,
            allowed: 0.0,
            failures: vec![],
        }
    }

    fn count(&mut self, outcome: Result<Comparison>, tolerance: Tolerance, (width, height): (usize, usize), border: Border) {
        self.cases += 1;
        match outcome {
            Ok(found) => {
                let exact = self.exact_percent * self.samples as f64 + 100.0 * found.exact as f64;
                self.samples += found.samples;
                self.exact_percent = exact / (self.samples as f64).max(1.0);
                self.max_error = self.max_error.max(found.max_error);
                self.unequal += found.unequal;
                self.allowed += found.samples as f64 * tolerance.unequal;
            }
            Err(error) => {
                self.failures.push(Failure { size: format!("{width}x{height}"), border: border.name(), error: error.to_string() });
            }
        }
    }

    /// Each case alone may scatter; together they are held to the plain share.
    fn close(&mut self) {
        if self.unequal as f64 > self.allowed.ceil() {
            let error = format!("{} of {} samples differ, {:.0} may", self.unequal, self.samples, self.allowed);
            self.failures.push(Failure { size: "all sizes".to_owned(), border: "any", error });
        }
    }

    fn print(&self) {
        let graph: String = self.graph.chars().take(34).collect();
        let kind = format!("{} {}", self.planes, self.r#type);
        let error =
            if self.max_error > 0.0 && self.max_error < 0.01 { format!("{:.1e}", self.max_error) } else { format!("{}", self.max_error) };
        let result = if self.failures.is_empty() { "ok".to_owned() } else { format!("FAILED ({} of {})", self.failures.len(), self.cases) };
        println!(
            "{:<8} {:<12} {graph:<34} {kind:<9} {:>5} {error:>10} {:>9.3}  {result}",
            self.backend, self.variant, self.cases, self.exact_percent
        );
        for failure in self.failures.iter().take(3) {
            println!("  {} border {}: {}", failure.size, failure.border, failure.error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_default_graph_is_understood_and_every_filter_is_there() {
        let names: Vec<&str> = GRAPHS.iter().map(|graph| filter::parse(graph).unwrap()[0].name()).collect();
        for line in filter::list().lines().filter(|l| !l.starts_with(' ')) {
            if let Some(name) = line.split([' ', '=']).next().filter(|n| filter::describe(n).is_ok()) {
                assert!(names.contains(&name), "{name} is not verified");
            }
        }
    }
}
