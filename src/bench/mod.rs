//! `convoy bench`: fps per kernel variant, honest. Cases come from [`plan`], are measured by [`race`] at three levels ([`kernel`],
//! [`looped`], [`whole`]), each row verified first, printed and saved as soon as it is done.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

mod batch;
mod cases;
pub mod child;
mod environment;
pub mod frames;
mod html;
mod kernel;
mod length;
mod looped;
mod peers;
pub mod plan;
pub mod race;
pub mod regress;
pub mod row;
pub mod store;
pub mod summary;
pub mod table;
mod whole;

use cases::{Case, default_cases};
use child::{Custody, Program};
use race::{Clock, Settings, WallClock};
use row::{Document, Environment, Row, SCHEMA};
use store::Store;
use table::Style;

use crate::backend::Device;
use crate::backend::cpu::Cpu;
use crate::backend::cuda::{self, Cuda, tuning};
use crate::cli::{Backend, BenchArgs, Level, Preset};
use crate::error::{Error, Result};
use crate::filter;
use crate::status;

/// What the loop level filters unless a graph is given.
const LOOP_GRAPH: &str = "gblur=sigma=2";
/// Lanes of the loop level.
const LANES: [usize; 4] = [1, 2, 4, 8];

/// Runs the bench; what it starts and leaves about is in `custody`. Tables go to stdout, unless JSON or CSV do. The exit code is 1 if a row of ours has an error, or if `--compare` found a
/// regression.
///
/// # Errors
/// A graph that does not parse, a backend that is not there, a file that cannot be written.
pub fn bench(args: &BenchArgs, custody: &Custody) -> Result<ExitCode> {
    let old = args.compare.as_deref().map(store::load).transpose()?;
    if !args.from.is_empty() {
        let documents = args.from.iter().map(|path| store::load(path)).collect::<Result<Vec<_>>>()?;
        let mut session = Session::new(args, custody, row::together(documents)?)?;
        session.show()?;
        return session.finish(old.as_ref());
    }
    args.vf.iter().try_for_each(|graph| filter::parse(graph).map(drop))?;
    let cuda = open_cuda(args)?;
    let mut session = Session::new(args, custody, empty(args, custody, cuda.as_ref().err()))?;
    let cuda = cuda.ok();
    if args.wants(Level::Pipeline) {
        session.pipelines(args)?;
    }
    if args.wants(Level::Kernel) {
        session.kernels(args, cuda.as_ref())?;
    }
    if args.tune {
        session.tune(args, cuda.as_ref())?;
    }
    if args.wants(Level::Loop) {
        session.loops(args, cuda.as_ref())?;
    }
    session.finish(old.as_ref())
}

/// The GPU, or in a word why there is none.
fn open_cuda(args: &BenchArgs) -> Result<Result<Cuda, String>> {
    match args.backend {
        Backend::Cpu => Ok(Err("--backend cpu".to_owned())),
        Backend::Cuda => cuda::open(args.device).map(Ok),
        Backend::Auto => Ok(cuda::open(args.device).map_err(|e| e.to_string().lines().next().unwrap_or_default().to_owned())),
    }
}

/// A document without rows, which knows this machine and what it lacks.
fn empty(args: &BenchArgs, custody: &Custody, no_cuda: Option<&String>) -> Document {
    let ffmpeg = Program::new("ffmpeg", custody, args.peer_limit);
    let mut document = Document { schema: SCHEMA, complete: false, environment: Environment::survey(&ffmpeg), rows: Vec::new() };
    let missing = &mut document.environment.missing;
    if let Some(why) = no_cuda.filter(|_| args.backend == Backend::Auto) {
        missing.push(format!("CUDA variants, device copy, pinned loop: {why}"));
    }
    if document.environment.ffmpeg.is_none() && args.wants(Level::Pipeline) {
        document.environment.missing.push("ffmpeg beside whole runs: it is not installed".to_owned());
    }
    document
}

/// The document as it grows.
struct Session<'a> {
    args: &'a BenchArgs,
    custody: &'a Custody,
    clock: WallClock,
    document: Document,
    store: Store,
    /// Whether tables are printed.
    tables: bool,
    style: Style,
}

/// The file behind an option whose `-` is stdout.
fn file(path: Option<&PathBuf>) -> Option<PathBuf> {
    path.filter(|p| p.as_path() != Path::new("-")).cloned()
}

impl<'a> Session<'a> {
    fn new(args: &'a BenchArgs, custody: &'a Custody, document: Document) -> Result<Self> {
        let to_stdout = |path: &Option<PathBuf>| path.as_deref() == Some(Path::new("-"));
        if to_stdout(&args.json) && to_stdout(&args.csv) {
            return Err(
                Error::usage("cannot write JSON and CSV to stdout", "one would spoil the other").hint("give one a file: --csv=FILE")
            );
        }
        let store = Store { json: file(args.json.as_ref()), csv: file(args.csv.as_ref()) };
        let tables = !to_stdout(&args.json) && !to_stdout(&args.csv);
        let session = Self { args, custody, clock: WallClock::start(), document, store, tables, style: Style::of_stdout() };
        // A file that cannot be written is better known now than after an hour.
        session.store.save(&session.document)?;
        session.print(&(session.document.environment.summary() + "\n\n"))?;
        session.document.environment.missing.iter().for_each(|m| status::say(format_args!("not measured: {m}")));
        Ok(session)
    }

    fn print(&self, text: &str) -> Result<()> {
        if self.tables { status::print(text) } else { Ok(()) }
    }

    /// Prints and saves rows that belong together.
    fn add(&mut self, rows: Vec<Row>) -> Result<()> {
        self.print(&table::group(&rows, self.style))?;
        self.document.rows.extend(rows);
        self.store.save(&self.document)
    }

    /// Prints the rows of a stored document, those that competed together.
    fn show(&mut self) -> Result<()> {
        let compete = |a: &Row, b: &Row| a.level == b.level && a.title() == b.title();
        let mut before = None;
        for rows in self.document.rows.chunk_by(compete) {
            let level = rows.first().map(|row| row.level);
            if level == Some(Level::Pipeline) && before != level {
                self.print(&table::pipeline_heading(self.style))?;
            }
            before = level;
            self.print(&table::group(rows, self.style))?;
        }
        self.print("\n")
    }

    fn miss(&mut self, what: String) {
        status::say(format_args!("not measured: {what}"));
        self.document.environment.missing.push(what);
    }

    fn pipelines(&mut self, args: &BenchArgs) -> Result<()> {
        let cases = if args.vf.is_empty() { default_cases() } else { args.vf.iter().map(|g| Case::same(g, g.clone())).collect() };
        let sizes = if args.size.is_empty() { vec![(1920, 1080)] } else { args.size.clone() };
        let mut with_ffmpeg = self.document.environment.ffmpeg.is_some();
        let [ours, ffmpeg] = ["convoy", "ffmpeg"].map(|name| Rc::new(Program::new(name, self.custody, args.peer_limit)));
        for size in sizes {
            let raw = whole::Raw::new(size, args.frames, self.custody)?;
            self.print(&format!(
                "{}x{} 4:2:0 8-bit, raw file to null, whole processes; net: without start-up, which is a run on one frame\n",
                size.0, size.1
            ))?;
            self.print(&table::pipeline_heading(self.style))?;
            for case in &cases {
                if with_ffmpeg && ffmpeg.given_up() {
                    with_ffmpeg = false;
                    self.miss("ffmpeg beside further runs: it did not end again and again".to_owned());
                }
                let rows = whole::rows(
                    &whole::Bench { args, raw: &raw, ours: &ours, ffmpeg: with_ffmpeg.then_some(&ffmpeg), clock: &self.clock },
                    case,
                )?;
                self.add(rows)?;
            }
            self.print("\n")?;
        }
        Ok(())
    }

    fn kernels(&mut self, args: &BenchArgs, cuda: Option<&Cuda>) -> Result<()> {
        let cases = plan::kernel_cases(args)?;
        let default = args.vf.is_empty() && args.preset.is_none() && args.filter.is_empty() && args.kernel.is_empty();
        let mut peers = peers::Peers::default();
        let ward = peers::Ward { custody: self.custody.clone(), limit: args.peer_limit };
        if (args.peers || default)
            && args.backend != Backend::Cuda
            && let Err(why) = peers.start_opencv(&ward)
        {
            self.miss(format!("OpenCV: {why}"));
        }
        if args.peers {
            match cuda {
                Some(cuda) => peers.start_on_gpu(cuda.info().index, &ward).into_iter().for_each(|absent| self.miss(absent)),
                None if args.backend == Backend::Cpu => {}
                None => self.miss("NPP, PyTorch: they run on a GPU, and CUDA is not available".to_owned()),
            }
        }
        let measured = self.document.rows.len();
        for case in &cases {
            let clock: &dyn Clock = &self.clock;
            let bench = kernel::Bench { args, clock, settings: settings(args), cuda, peers: &peers };
            let rows = bench.rows(case)?;
            self.add(rows)?;
        }
        if self.document.rows.len() == measured {
            return Err(Error::usage("nothing was measured", format!("no variant of {:?} fits", args.variant))
                .hint("`convoy bench` without --variant measures those that fit"));
        }
        self.print("\n")
    }

    /// Measures every variant of every case as the automatic choice wants it, and stores the times for it.
    fn tune(&mut self, args: &BenchArgs, cuda: Option<&Cuda>) -> Result<()> {
        let Some(cuda) = cuda else {
            return Err(Error::failed("cannot tune the automatic choice", "it chooses among CUDA variants, and CUDA is not available")
                .hint("`convoy doctor` says what is missing"));
        };
        for case in plan::kernel_cases(args)? {
            for (task, times) in tuning::tune(cuda, &case.plan()?, cuda::measure::Settings::default())? {
                let ranked: Vec<String> = times.ranked().iter().take(3).map(|(name, us)| format!("{name} {us:.2} µs")).collect();
                self.print(&format!("tuned {task}: {}\n", ranked.join(", ")))?;
            }
        }
        Ok(())
    }

    fn loops(&mut self, args: &BenchArgs, cuda: Option<&Cuda>) -> Result<()> {
        let device: &dyn Device = cuda.map_or(&Cpu as &dyn Device, |cuda| cuda);
        let lanes = if args.lanes.is_empty() { LANES.to_vec() } else { args.lanes.clone() };
        let graphs = if args.vf.is_empty() { vec![LOOP_GRAPH.to_owned()] } else { args.vf.clone() };
        let sizes = if args.size.is_empty() { vec![(1920, 1080)] } else { args.size.clone() };
        let repetitions = args.runs.map_or(5, |n| usize::try_from(n).unwrap_or(5));
        // Long enough that filling the lanes, pinning slabs and a clock that rises are no part of it.
        let frames = if cuda.is_some() { 12_000 } else { 90 };
        for graph in &graphs {
            for &size in &sizes {
                let what = looped::Loop { device, graph, size, lanes: &lanes, frames, repetitions };
                let rows = looped::rows(&what, &self.clock)?;
                self.add(rows)?;
            }
        }
        Ok(())
    }

    /// Writes what is written last, and says how it ended.
    fn finish(mut self, old: Option<&Document>) -> Result<ExitCode> {
        self.document.complete |= self.args.from.is_empty();
        self.store.save(&self.document)?;
        if let Some(path) = &self.args.html {
            store::replace(path, html::page(&self.document).as_bytes())?;
        }
        let is = |path: &Option<PathBuf>| path.as_deref() == Some(Path::new("-"));
        if is(&self.args.json) {
            status::print(&store::json(&self.document)?)?;
        }
        if is(&self.args.csv) {
            status::print(&store::csv(&self.document.rows))?;
        }
        let advice: std::collections::BTreeSet<&str> =
            self.document.rows.iter().flat_map(|r| &r.warnings).filter_map(|w| w.split_once(": ").map(|(_, advice)| advice)).collect();
        let doubtful = self.document.rows.iter().filter(|r| !r.warnings.is_empty()).count();
        if doubtful > 0 {
            status::say(format_args!("{doubtful} of {} rows are in doubt", self.document.rows.len()));
            advice.iter().for_each(|text| status::say(format_args!("  to do: {text}")));
        }
        let mut failed = false;
        let broken = self.document.rows.iter().filter(|r| r.program == "convoy" && r.error.is_some()).count();
        if broken > 0 {
            failed = true;
            status::say(format_args!("{broken} of {} rows have an error instead of a time", self.document.rows.len()));
        }
        if let Some(old) = old {
            let threshold = self.args.threshold / 100.0;
            let changes = regress::changes(old, &self.document, threshold);
            self.print(&(regress::report(&changes, threshold) + "\n"))?;
            let (then, now) = (&old.environment, &self.document.environment);
            if (&then.cpu, &then.gpu, &then.driver) != (&now.cpu, &now.gpu, &now.driver) {
                status::warn("the old bench ran on another machine or driver");
            }
            let regressions = changes.iter().filter(|c| c.is_regression()).count();
            if regressions > 0 {
                failed = true;
                status::say(format_args!("{regressions} regressions"));
            }
        }
        Ok(if failed { ExitCode::from(1) } else { ExitCode::SUCCESS })
    }
}

/// How long and how often the kernel level measures.
fn settings(args: &BenchArgs) -> Settings {
    let usual = Settings { warm_up: args.warm_up, ..Settings::default() };
    let usual = match args.preset {
        // Hundreds of rows.
        Some(Preset::Sweep) => {
            Settings { warm_up: args.warm_up.min(Duration::from_millis(20)), budget: Duration::from_millis(100), ..usual }
        }
        Some(Preset::Article) | None => usual,
    };
    match args.runs.and_then(|n| usize::try_from(n).ok()) {
        Some(runs) => Settings { least: runs, most: runs, ..usual },
        None => usual,
    }
}
