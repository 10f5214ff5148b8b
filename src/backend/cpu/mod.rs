//! SIMD, multi-threaded execution of steps on the CPU.
//!
//! [`Cpu`] gives plain heap memory and runs a frame's work inside `submit`, on a crew of persistent threads of which the
//! caller is one. Samples are computed in `f32` (or exact integers), never in `f64`. Nothing is allocated per frame once
//! the output pool has grown.

mod boxfloat;
mod boxmean;
mod boxsum;
mod columns;
mod compass;
mod counted;
mod crew;
mod extremum;
mod fixed;
mod fuse;
mod lanes;
mod linear;
mod median;
mod network;
mod nine;
mod order;
mod pairs;
mod plane;
mod pool;
mod pyramid;
mod simd;
mod step;
pub mod tensor;
mod unsharp;
mod variant;

use std::sync::Arc;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, bounded};

use super::{BuildOptions, Built, Collector, Device, Submitter, Ticket};
use crate::error::{Error, Result};
use crate::filter::plan::Plan;
use crate::frame::{Frame, FrameLayout, FrameMem, MAX_PLANES, PlaneLayout, Shape};
use crate::pool::{Budget, Heap, HostMem, Lease, Pool};
use crate::profile;
use crate::stats::DeviceStats;
use crate::trace::{Span, Track};
use crew::Crew;
use fuse::Fusion;
use plane::{Source, Target};
use step::{Order, Program};
pub use variant::Variant;

/// Finished frames that may wait for the collector.
const LANES: usize = 4;
/// More threads than this are refused: a typing error rather than a wish.
const MAX_THREADS: usize = 1024;

/// The CPU as a device.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cpu;

impl Cpu {
    /// The CPU is always there.
    pub fn new() -> Self {
        Self
    }

    /// Threads of the machine (or of this process's share of it).
    pub fn threads() -> usize {
        std::thread::available_parallelism().map_or(1, usize::from)
    }
}

impl Device for Cpu {
    fn describe(&self) -> String {
        let threads = Self::threads();
        format!("CPU, {threads} thread{} ({})", if threads == 1 { "" } else { "s" }, instruction_set())
    }

    fn name(&self) -> &'static str {
        "cpu"
    }

    fn host_memory(&self) -> Arc<dyn HostMem> {
        Arc::new(Heap)
    }

    fn variants(&self, _plan: &Plan) -> Vec<&'static str> {
        Variant::ALL.map(Variant::name).to_vec()
    }

    fn build(&self, plan: &Plan, options: &BuildOptions) -> Result<Built> {
        let lanes = options.lanes.unwrap_or(LANES);
        if !(1..=MAX_THREADS).contains(&lanes) {
            return Err(Error::usage("cannot build the CPU backend", format!("{lanes} lanes are outside 1 to {MAX_THREADS}")));
        }
        let stats = Arc::new(DeviceStats::default());
        let engine = Engine::new(plan, options, Fusion::Auto, Arc::clone(&stats))?;
        let notes = engine.notes();
        let (finished, inbox) = bounded(lanes);
        let submitter = CpuSubmitter { engine, finished, lanes, next: 0 };
        Ok(Built { submitter: Box::new(submitter), collector: Box::new(CpuCollector { inbox }), stats, notes })
    }
}

/// Runs `plan` on one frame, on all threads; builds and discards an engine. For tests and single pictures.
///
/// # Errors
/// As for [`Device::build`] and [`Submitter::submit`].
pub fn apply(plan: &Plan, frame: Frame) -> Result<Frame> {
    let options = BuildOptions { lanes: None, threads: None, variant: None, budget: Budget::new(usize::MAX) };
    Engine::new(plan, &options, Fusion::Auto, Arc::default())?.run(frame, 0)
}

/// The instructions that the SIMD kernels use on this machine.
fn instruction_set() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma") {
            return "AVX2";
        }
        "SSE2"
    }
    #[cfg(target_arch = "aarch64")]
    {
        "NEON"
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        "portable code"
    }
}

/// Buffers between the stages of a chain.
struct Chain {
    /// What each stage but the last one writes.
    layouts: Vec<FrameLayout>,
    buffers: [Lease; 2],
}

/// Intermediate planes of box means.
struct Middle {
    planes: [PlaneLayout; MAX_PLANES],
    buffer: Lease,
}

/// Executes a plan on frames, one after the other.
struct Engine {
    input: Shape,
    layout: FrameLayout,
    program: Arc<Program>,
    crew: Crew<Program>,
    pool: Pool,
    chain: Option<Chain>,
    middle: Option<Middle>,
    stats: Arc<DeviceStats>,
}

impl Engine {
    fn new(plan: &Plan, options: &BuildOptions, fusion: Fusion, stats: Arc<DeviceStats>) -> Result<Self> {
        let threads = options.threads.unwrap_or_else(Cpu::threads);
        if !(1..=MAX_THREADS).contains(&threads) {
            return Err(Error::usage("cannot build the CPU backend", format!("{threads} threads are outside 1 to {MAX_THREADS}"))
                .hint("give --threads a number of threads, or leave it out for all"));
        }
        let chosen = |step: &crate::filter::plan::Step| Variant::parse(step.variant.as_deref().or(options.variant.as_deref()), &step.label);
        let variants = plan.steps.iter().map(chosen).collect::<Result<Vec<_>>>()?;
        let layout = FrameLayout::packed(plan.output())?;
        let program = Program::new(plan, &variants, threads, fusion)?;
        let size = if variants.contains(&Variant::Threads) { threads } else { 1 };
        let heap: Arc<dyn HostMem> = Arc::new(Heap);
        let buffer = |bytes: usize| Pool::new(Arc::clone(&heap), bytes, Arc::clone(&options.budget)).lease();
        let between = program.stages.len().saturating_sub(1);
        let output = |stage: &step::Stage| FrameLayout::packed(plan.steps[stage.steps.end - 1].output);
        let layouts = program.stages.iter().take(between).map(output).collect::<Result<Vec<_>>>()?;
        let chain = match layouts.iter().map(|layout| layout.slab_bytes).max() {
            Some(bytes) => Some(Chain { layouts, buffers: [buffer(bytes)?, buffer(bytes)?] }),
            None => None,
        };
        let (planes, bytes) = program.middle(plan.input.format);
        let middle = if bytes > 0 { Some(Middle { planes, buffer: buffer(bytes)? }) } else { None };
        let crew = Crew::new(Arc::clone(&program), size)?;
        let pool = Pool::new(heap, layout.slab_bytes, Arc::clone(&options.budget));
        Ok(Self { input: plan.input, layout, program, crew, pool, chain, middle, stats })
    }

    fn notes(&self) -> Vec<String> {
        let note = |step: &step::Prepared| match step.variant {
            Variant::Scalar => format!("{}: cpu-scalar", step.label),
            Variant::Simd => format!("{}: cpu-simd ({})", step.label, instruction_set()),
            Variant::Threads => format!("{}: cpu-threads ({}, {} threads)", step.label, instruction_set(), self.crew.size()),
        };
        let fused = |stage: &step::Stage| {
            let labels: Vec<_> = self.program.steps[stage.steps.clone()].iter().map(|step| step.label.as_str()).collect();
            stage.band.map(|rows| format!("fused: {}, by bands of {rows} rows", labels.join(" and ")))
        };
        self.program.steps.iter().map(note).chain(self.program.stages.iter().filter_map(fused)).collect()
    }

    fn run(&mut self, frame: Frame, lane: usize) -> Result<Frame> {
        if frame.layout.shape != self.input {
            return Err(Error::failed(
                format!("cannot filter frame {} on the CPU", frame.seq),
                format!("it is {}, and the filters were built for {}", frame.layout.shape, self.input),
            ));
        }
        let _range = profile::range_on("kernels", frame.seq);
        let start = Instant::now();
        if self.program.steps.is_empty() {
            DeviceStats::add(&self.stats.frames, 1);
            return Ok(frame);
        }
        let mut slab = self.pool.lease()?;
        let sample = self.layout.shape.format.sample();
        let output = Target::of_slab(slab.bytes_mut(), self.layout.planes(), sample);
        let middle = match &mut self.middle {
            Some(m) => {
                let count = self.layout.planes().len();
                Target::of_slab(m.buffer.bytes_mut(), &m.planes[..count], crate::frame::Sample::F32)
            }
            None => output,
        };
        let last = self.program.stages.len() - 1;
        let mut sources = Source::of_frame(&frame);
        for (index, stage) in self.program.stages.iter().enumerate() {
            let from = Instant::now();
            let targets = match &mut self.chain {
                Some(chain) if index < last => Target::of_slab(chain.buffers[index % 2].bytes_mut(), chain.layouts[index].planes(), sample),
                Some(_) | None => output,
            };
            for (phase, tasks) in stage.phases().enumerate() {
                let order = Order { stage: index, phase, sources, targets, middle };
                self.crew.run(order, tasks, stage.variant != Variant::Threads)?;
            }
            sources = targets.map(|t| t.as_source());
            if let Some(trace) = self.stats.trace.get() {
                let steps = self.program.steps.get(stage.steps.clone()).unwrap_or_default();
                let labels: Vec<&str> = steps.iter().map(|step| step.label.as_str()).collect();
                let name = format!("step {}", labels.join(" + ")).into();
                trace.span(Span { track: Track::Lane(lane), name, frame: Some(frame.seq), from, took: from.elapsed() });
            }
        }
        let took = start.elapsed();
        DeviceStats::add(&self.stats.kernel_ns, u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        if let Some(trace) = self.stats.trace.get() {
            trace.span(Span { track: Track::Lane(lane), name: "kernels".into(), frame: Some(frame.seq), from: start, took });
        }
        DeviceStats::add(&self.stats.frames, 1);
        Ok(Frame { layout: self.layout, time: frame.time, seq: frame.seq, born: frame.born, mem: FrameMem::Slab(slab) })
    }
}

struct CpuSubmitter {
    engine: Engine,
    finished: Sender<(Ticket, Frame)>,
    lanes: usize,
    next: usize,
}

impl Submitter for CpuSubmitter {
    fn submit(&mut self, frame: Frame, due: &mut Vec<Ticket>) -> Result<()> {
        let ticket = Ticket { lane: self.next, seq: frame.seq };
        let frame = self.engine.run(frame, self.next)?;
        let waiting = Instant::now();
        self.finished.send((ticket, frame)).map_err(|_| Error::disconnected("filter"))?;
        self.engine.stats.waited_for_lane(waiting, ticket.seq);
        self.next = (self.next + 1) % self.lanes;
        due.push(ticket);
        Ok(())
    }

    fn finish(&mut self, _due: &mut Vec<Ticket>) -> Result<()> {
        // No step holds a frame back.
        Ok(())
    }
}

struct CpuCollector {
    inbox: Receiver<(Ticket, Frame)>,
}

impl Collector for CpuCollector {
    fn wait(&mut self, ticket: Ticket) -> Result<Frame> {
        let (found, frame) = self.inbox.recv().map_err(|_| Error::disconnected("encode"))?;
        if found != ticket {
            return Err(Error::failed(
                format!("cannot collect frame {}", ticket.seq),
                format!("frame {} is next: tickets must be collected in the order of submission", found.seq),
            ));
        }
        Ok(frame)
    }
}
