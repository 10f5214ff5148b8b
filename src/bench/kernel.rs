//! The kernel level: variants of one graph against each other, data where the variant wants it, beside a copy in the same rounds.

use std::rc::Rc;

use super::batch::{Batched, Place};
use super::frames::FrameSubject;
use super::peers::{Peers, difference};
use super::plan::{Case, operations};
use super::race::{Clock, Measured, Settings, Subject, race, wrong_result};
use super::row::{KernelUse, Row};
use crate::axes::{Planes, SampleType};
use crate::backend::cpu::Cpu;
use crate::backend::cuda::Cuda;
use crate::backend::cuda::measure::{Prepared, Work};
use crate::backend::{BuildOptions, Device};
use crate::cli::{Backend, BenchArgs, Level};
use crate::error::{Error, Result};
use crate::filter::plan::Plan;
use crate::frame::Frame;
use crate::pool::{Budget, Heap};
use crate::reference::{Comparison, Tolerance, is_affordable};
use crate::tensor::Engine;
use crate::verify::Trial;

/// The variant that speed-ups are counted from.
const ONE_PLAIN_THREAD: &str = "cpu-scalar";

/// What the kernel level needs for every case.
pub(super) struct Bench<'a> {
    pub args: &'a BenchArgs,
    pub clock: &'a dyn Clock,
    pub settings: Settings,
    pub cuda: Option<&'a Cuda>,
    pub peers: &'a Peers,
}

impl Bench<'_> {
    /// All rows of one case.
    ///
    /// # Errors
    /// The graph does not fit the frame.
    pub fn rows(&self, case: &Case) -> Result<Vec<Row>> {
        let plan = case.plan()?;
        let mut rows = Vec::new();
        let batched = Batched::of(case);
        match &batched {
            _ if self.args.backend == Backend::Cuda => {}
            // The layers have loops of their own for halves; frames of halves are pooled as floats.
            Some(batched) if case.sample == SampleType::F16 => {
                let row = || row_of(case, &plan, "cpu", "");
                let place = Place { engine: Engine::cpu(None), name: Cpu.describe(), on_device: false, row: &row };
                rows.extend(batched.rows(self, &place)?);
            }
            Some(_) | None => rows.extend(self.on_cpu(case, &plan)?),
        }
        if let Some(cuda) = self.cuda {
            // A launch per small frame would measure launches: batches are pooled as tensors.
            match &batched {
                Some(batched) => {
                    let row = || row_of(case, &plan, "cuda", "");
                    let engine = Engine::cuda(cuda.info().index)?;
                    rows.extend(batched.rows(self, &Place { engine, name: cuda.describe(), on_device: true, row: &row })?);
                }
                None => rows.extend(self.on_cuda(cuda, case, &plan)?),
            }
        }
        let time = |row: &Row| row.time_us.map(|t| t.median);
        let base = rows.iter().find(|r| r.variant == ONE_PLAIN_THREAD && r.program == "convoy").and_then(time);
        for row in &mut rows {
            row.speedup = base.zip(time(row)).map(|(base, own)| base / own.max(1e-9));
        }
        Ok(rows)
    }

    /// The variants to measure: those that were asked for, else those that fit.
    fn variants(&self, device: &dyn Device, plan: &Plan) -> Vec<String> {
        let fitting = device.variants(plan);
        if self.args.variant.is_empty() {
            return fitting.into_iter().map(str::to_owned).collect();
        }
        // A block size may follow the name.
        let known = |name: &str| name == "auto" || fitting.contains(&name.split([':']).next().unwrap_or(name));
        self.args.variant.iter().filter(|name| known(name)).cloned().collect()
    }

    fn on_cpu(&self, case: &Case, plan: &Plan) -> Result<Vec<Row>> {
        let small = case.small_plan()?;
        let device = Cpu;
        let mut rows = Vec::new();
        let mut subjects: Vec<Batch<'_>> = Vec::new();
        let mut entered = Vec::new();
        for variant in self.variants(&device, plan) {
            let threads = if variant == "cpu-threads" || variant == "auto" { None } else { Some(1) };
            let options = BuildOptions { lanes: Some(1), threads, variant: Some(variant.clone()), budget: Budget::new(usize::MAX) };
            let mut row = row_of(case, plan, "cpu", &variant);
            let inputs = FrameSubject::inputs_beyond_caches(plan.input.payload_bytes());
            match FrameSubject::new(&device, plan, &options, inputs) {
                Ok(subject) => {
                    row.notes = subject.notes().to_vec();
                    subjects.push(Batch { inner: Box::new(subject.or_verify(small.clone())), size: case.batch });
                    entered.push(rows.len());
                }
                Err(error) => row.error = Some(error.to_string()),
            }
            rows.push(row);
        }
        if case.planes == Planes::Gray && case.batch == 1 {
            for peer in self.peers.on_cpu(case, plan)? {
                rows.push(row_of(case, plan, "cpu", "").of_peer(&peer.program, &peer.variant, &peer.notes));
                subjects.push(Batch { inner: Box::new(peer), size: 1 });
                entered.push(rows.len() - 1);
            }
        }
        if entered.is_empty() {
            return Ok(rows);
        }
        subjects.push(Batch { inner: Box::new(HostCopy::new(plan.input.payload_bytes())), size: case.batch });
        let mut contenders: Vec<&mut dyn Subject> = subjects.iter_mut().map(|s| s as &mut dyn Subject).collect();
        let mut outcomes = race(self.clock, &mut contenders, &self.settings);
        let copy = outcomes.pop();
        for (index, outcome) in entered.into_iter().zip(outcomes) {
            if let Some(row) = rows.get_mut(index) {
                fill(row, outcome, plan);
            }
        }
        if let Some(Ok(copy)) = copy {
            for row in &mut rows {
                row.copy_share = row.time_us.map(|time| copy.time().median / time.median.max(1e-9));
            }
            let mut row = row_of(case, plan, "cpu", COPY_OF_ONE_THREAD);
            row.notes.push("memory to memory, one thread".to_owned());
            row.operations = None;
            row.fill(Ok(copy));
            row.check = None;
            rows.push(row);
        }
        Ok(rows)
    }

    fn on_cuda(&self, cuda: &Cuda, case: &Case, plan: &Plan) -> Result<Vec<Row>> {
        let whole = is_affordable(plan);
        let small = case.small_plan()?;
        let judged = if whole { plan } else { &small };
        let trial = Trial::quick(judged).map_err(|why| Error::failed(format!("cannot verify '{}'", case.graph), why))?;
        let trial = Rc::new(trial);
        let inputs = frames(&trial)?;
        // The automatic choice is marked, not measured twice.
        let chosen = cuda.compile(plan, None).map(|p| p.notes().to_vec()).unwrap_or_default();
        let mut rows: Vec<Row> = Vec::new();
        let gray = case.planes == Planes::Gray && case.batch == 1;
        let mut peers = if gray { self.peers.on_gpu(case, plan)? } else { Vec::new() };
        for names in self.variants(cuda, plan).chunks(chunk(cuda, plan)) {
            let mut subjects = Vec::new();
            let mut entered = Vec::new();
            for variant in names {
                let mut row = row_of(case, plan, "cuda", variant);
                let forced = Some(variant.as_str()).filter(|&v| v != "auto");
                let prepared = Prepared::new(cuda, plan, forced, if whole { &inputs } else { &[] });
                match prepared.and_then(|p| Ok((p.kernels()?, Rc::new(p)))) {
                    Ok((kernels, prepared)) => {
                        row.notes = prepared.notes().to_vec();
                        if row.notes == chosen {
                            row.notes.push("auto's choice".to_owned());
                        }
                        let usage = |k: &crate::backend::cuda::device::KernelInfo| KernelUse {
                            registers: k.registers,
                            shared_bytes: k.shared_bytes,
                            local_bytes: k.local_bytes,
                        };
                        row.kernels = kernels.iter().map(usage).collect();
                        let elsewhere = if whole { None } else { Some((cuda, small.clone(), forced.map(str::to_owned))) };
                        let name = format!("cuda {variant}");
                        let tolerance = trial.tolerance().with_slack(judged, cuda.slack(judged, variant));
                        subjects.push(KernelSubject {
                            name,
                            prepared,
                            work: Work::Kernels,
                            trial: Rc::clone(&trial),
                            tolerance,
                            elsewhere,
                        });
                        entered.push(rows.len());
                    }
                    Err(error) => row.error = Some(error.to_string()),
                }
                rows.push(row);
            }
            // The copy takes its turn in every round: drift hits both.
            let Some(first) = subjects.first() else { continue };
            let copy = KernelSubject {
                name: "copy".to_owned(),
                prepared: Rc::clone(&first.prepared),
                work: Work::Copies,
                trial: Rc::clone(&trial),
                tolerance: trial.tolerance(),
                elsewhere: None,
            };
            let mut subjects: Vec<Batch<'_>> = subjects.into_iter().map(|s| Batch { inner: Box::new(s), size: case.batch }).collect();
            for peer in peers.drain(..) {
                let mut row = row_of(case, plan, "cuda", "").of_peer(&peer.program, &peer.variant, &peer.notes);
                // The host's time would hold the way to another process.
                row.notes.push("times by its own events".to_owned());
                rows.push(row);
                subjects.push(Batch { inner: Box::new(peer), size: 1 });
                entered.push(rows.len() - 1);
            }
            subjects.push(Batch { inner: Box::new(copy), size: case.batch });
            let mut contenders: Vec<&mut dyn Subject> = subjects.iter_mut().map(|s| s as &mut dyn Subject).collect();
            let mut outcomes = race(self.clock, &mut contenders, &self.settings);
            let copy = outcomes.pop().and_then(Result::ok);
            for (index, outcome) in entered.into_iter().zip(outcomes) {
                let Some(row) = rows.get_mut(index) else { continue };
                fill(row, outcome, plan);
                if let (Some(copy), Some(time)) = (&copy, row.time_us) {
                    row.copy_share = Some(copy.time().median / time.median.max(1e-9));
                    row.clock_mhz = copy.clock_mhz;
                }
            }
            if let Some(copy) = copy {
                let mut row = row_of(case, plan, "cuda", "copy");
                row.notes.push("device to device, the limit".to_owned());
                row.operations = None;
                row.fill(Ok(copy));
                row.check = None;
                if !rows.iter().any(|r| r.variant == "copy") {
                    rows.push(row);
                }
            }
        }
        Ok(rows)
    }
}

/// An empty row of a case.
fn row_of(case: &Case, plan: &Plan, backend: &str, variant: &str) -> Row {
    let mut row = Row::new(Level::Kernel, &case.group, &case.graph, case.shape, (case.planes.name(), case.sample.name()));
    row.kernel = case.kind.map(|(_, k)| k);
    row.border = case.border.map_or("own", crate::filter::Border::name).to_owned();
    row.batch = case.batch;
    (row.backend, row.variant) = (backend.to_owned(), variant.to_owned());
    row.bytes = (plan.input.payload_bytes() + plan.output().payload_bytes()) as u64 * case.batch as u64;
    row.operations = operations(plan);
    row
}

/// Variant of the row that shows what memory allows one thread.
const COPY_OF_ONE_THREAD: &str = "copy (1 thread)";

/// A copy of a frame from memory to memory, over buffers beyond the caches.
struct HostCopy {
    from: Vec<Vec<u8>>,
    to: Vec<Vec<u8>>,
}

impl HostCopy {
    fn new(bytes: usize) -> Self {
        let count = FrameSubject::inputs_beyond_caches(bytes);
        // Touched and different: a page of zeros that was never written may be one page for all.
        let buffers = |seed: usize| (0..count).map(|i| (0..bytes).map(|j| (i * 31 + j * 7 + seed) as u8).collect()).collect();
        Self { from: buffers(1), to: buffers(2) }
    }
}

impl Subject for HostCopy {
    fn verify(&mut self) -> Result<Comparison> {
        Ok(Comparison::default())
    }

    fn inputs(&self) -> usize {
        self.from.len()
    }

    fn run(&mut self, first: usize, frames: usize) -> Result<Option<f64>> {
        let count = self.from.len().max(1);
        for frame in first..first + frames {
            if let (Some(from), Some(to)) = (self.from.get(frame % count), self.to.get_mut(frame % count)) {
                to.copy_from_slice(from);
                std::hint::black_box(to);
            }
        }
        Ok(None)
    }
}

/// Takes over what was measured. A peer's result that is not the reference's is timed all the same, and the row says so.
fn fill(row: &mut Row, outcome: Result<Measured>, plan: &Plan) {
    let verdict = outcome.as_ref().ok().map(|measured| measured.verdict);
    row.fill(outcome);
    if row.program != "convoy" {
        row.notes.extend(verdict.and_then(|verdict| difference(&verdict, plan)));
    }
}

/// Variants whose buffers fit the GPU's memory together.
fn chunk(cuda: &Cuda, plan: &Plan) -> usize {
    let info = cuda.info();
    let frame = plan.input.payload_bytes() + plan.output().payload_bytes();
    let each = (8 * frame).max(5 * info.l2_bytes) * 2;
    (info.memory_bytes / 2 / each.max(1)).clamp(1, 16)
}

/// The trial's pictures as frames of heap memory.
fn frames(trial: &Trial) -> Result<Vec<Frame>> {
    trial.pictures().zip(0u64..).map(|(picture, seq)| picture.frame(std::sync::Arc::new(Heap), seq)).collect()
}

/// A subject whose frames count as one in batches.
struct Batch<'a> {
    inner: Box<dyn Subject + 'a>,
    size: usize,
}

impl Subject for Batch<'_> {
    fn verify(&mut self) -> Result<Comparison> {
        self.inner.verify()
    }

    fn inputs(&self) -> usize {
        self.inner.inputs()
    }

    fn run(&mut self, first: usize, frames: usize) -> Result<Option<f64>> {
        self.inner.run(first, frames * self.size)
    }

    fn granule(&self) -> usize {
        // As many batches as make whole granules of the inner one.
        let inner = self.inner.granule().max(1);
        (1..=inner).find(|n| (n * self.size).is_multiple_of(inner)).unwrap_or(inner)
    }

    fn clock_mhz(&mut self) -> Option<f64> {
        self.inner.clock_mhz()
    }
}

/// One variant's kernels on buffers that stay on the device.
struct KernelSubject<'a> {
    name: String,
    prepared: Rc<Prepared>,
    work: Work,
    trial: Rc<Trial>,
    tolerance: Tolerance,
    /// What is verified instead where the reference cannot afford the whole frame.
    elsewhere: Option<(&'a Cuda, Plan, Option<String>)>,
}

impl Subject for KernelSubject<'_> {
    fn verify(&mut self) -> Result<Comparison> {
        let named = |e: Error| e.context(&self.name);
        if self.work == Work::Copies {
            return Ok(Comparison::default());
        }
        let smaller = match &self.elsewhere {
            Some((cuda, plan, variant)) => Some(Prepared::new(cuda, plan, variant.as_deref(), &frames(&self.trial)?).map_err(named)?),
            None => None,
        };
        let prepared = smaller.as_ref().unwrap_or(&self.prepared);
        prepared.run_on_spoiled_outputs().map_err(named)?;
        let mut found = Comparison::default();
        // Neighbours have different pictures, so that one that got the other's buffer shows.
        for index in [0, 1, prepared.sets().saturating_sub(1)] {
            found.add(&self.trial.judge(index, &prepared.result(index)?, self.tolerance).map_err(|e| wrong_result(&self.name, e))?);
        }
        Ok(found)
    }

    fn inputs(&self) -> usize {
        self.prepared.sets()
    }

    fn granule(&self) -> usize {
        self.prepared.sets()
    }

    fn run(&mut self, _first: usize, frames: usize) -> Result<Option<f64>> {
        self.prepared.replay(self.work, frames / self.prepared.sets().max(1)).map(Some)
    }

    fn clock_mhz(&mut self) -> Option<f64> {
        // Asked of the copy alone: one question per round is enough.
        if self.work == Work::Copies { self.prepared.clock_mhz() } else { None }
    }
}
