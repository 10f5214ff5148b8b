//! The loop level: frames through (pinned) host memory, the device and back over several lanes, without any codec; on CUDA beside the
//! same loop with a plain copy in the filter's place, and from pageable memory.

use std::sync::Arc;
use std::time::Instant;

use super::race::{Clock, Settings, Subject, race};
use super::row::Row;
use crate::backend::{BuildOptions, Device};
use crate::cancel::Cancel;
use crate::cli::Level;
use crate::error::Result;
use crate::filter;
use crate::filter::plan::Plan;
use crate::frame::{Frame, FrameLayout, FrameMem, FrameTime, PixelFormat, Shape};
use crate::pipeline::{self, Discard, Item, Source, Stages};
use crate::pool::{Budget, Heap, HostMem, Pool};
use crate::reference::Comparison;
use crate::stats::PipelineStats;
use crate::verify::Trial;

/// What is looped.
pub(super) struct Loop<'a> {
    pub device: &'a dyn Device,
    pub graph: &'a str,
    pub size: (usize, usize),
    pub lanes: &'a [usize],
    /// Frames of one repetition.
    pub frames: u64,
    pub repetitions: usize,
}

/// One row per number of lanes and kind of memory.
///
/// # Errors
/// The graph does not fit.
pub(super) fn rows(what: &Loop<'_>, clock: &dyn Clock) -> Result<Vec<Row>> {
    let shape = Shape { format: PixelFormat::yuv(8, 1, 1), width: what.size.0, height: what.size.1 };
    let plan = filter::plan(&filter::parse(what.graph)?, shape)?;
    let copy = filter::plan(&[], shape)?;
    let pinned = what.device.host_memory();
    let on_gpu = pinned.pinned();
    let mut rows = Vec::new();
    let mut subjects = Vec::new();
    for &lanes in what.lanes {
        let kinds: &[(&str, bool)] = if on_gpu { &[("pinned", false), ("pinned", true), ("pageable", false)] } else { &[("heap", false)] };
        for &(memory, plain) in kinds {
            let mut row = Row::new(Level::Loop, what.graph, what.graph, shape, ("420", "u8"));
            (row.backend, row.variant) = (what.device.name().to_owned(), if plain { "copy" } else { "auto" }.to_owned());
            (row.lanes, row.memory) = (Some(lanes), Some(memory.to_owned()));
            row.bytes = (plan.input.payload_bytes() + plan.output().payload_bytes()) as u64;
            rows.push(row);
            let mem: Arc<dyn HostMem> = if memory == "pageable" { Arc::new(Heap) } else { Arc::clone(&pinned) };
            let plan = if plain { copy.clone() } else { plan.clone() };
            // Pageable memory takes three to four times as long.
            let frames = if memory == "pageable" { what.frames / 4 } else { what.frames };
            subjects.push(LoopSubject { device: what.device, plan, lanes, frames, mem, phases: [0.0; 3] });
        }
    }
    let settings = Settings {
        warm_up: std::time::Duration::ZERO,
        repetition: std::time::Duration::ZERO,
        least: what.repetitions,
        most: what.repetitions,
        budget: std::time::Duration::ZERO,
        frames: None,
    };
    let outcomes = {
        let mut contenders: Vec<&mut dyn Subject> = subjects.iter_mut().map(|s| s as &mut dyn Subject).collect();
        race(clock, &mut contenders, &settings)
    };
    for ((row, outcome), subject) in rows.iter_mut().zip(outcomes).zip(&subjects) {
        row.fill(outcome);
        // The host's time holds the making of lanes and buffers.
        row.wall_us = None;
        row.phases_us = row.time_us.map(|_| subject.phases);
    }
    let copies: Vec<(Option<usize>, f64)> =
        rows.iter().filter(|r| r.variant == "copy").filter_map(|r| Some((r.lanes, r.time_us?.median))).collect();
    for row in &mut rows {
        let copy = copies.iter().find(|(lanes, _)| *lanes == row.lanes).map(|(_, us)| *us);
        row.copy_share = copy.zip(row.time_us).map(|(copy, time)| copy / time.median.max(1e-9));
    }
    Ok(rows)
}

struct LoopSubject<'a> {
    device: &'a dyn Device,
    plan: Plan,
    lanes: usize,
    frames: u64,
    mem: Arc<dyn HostMem>,
    phases: [f64; 3],
}

impl LoopSubject<'_> {
    fn options(&self) -> BuildOptions {
        BuildOptions { lanes: Some(self.lanes), threads: None, variant: None, budget: Budget::new(4 << 30) }
    }
}

impl Subject for LoopSubject<'_> {
    fn verify(&mut self) -> Result<Comparison> {
        let trial = Trial::quick(&self.plan).map_err(|why| super::race::wrong_result("loop", why))?;
        trial.run(&mut self.device.build(&self.plan, &self.options())?, self.lanes, &self.mem)
    }

    fn inputs(&self) -> usize {
        REPLAY_SLABS
    }

    fn granule(&self) -> usize {
        usize::try_from(self.frames).unwrap_or(1)
    }

    /// The time is that of the steady rate: from the frame at which lanes and queues are full to the last one.
    fn run(&mut self, _first: usize, frames: usize) -> Result<Option<f64>> {
        let options = self.options();
        let built = self.device.build(&self.plan, &options)?;
        let source = Replay::new(Arc::clone(&self.mem), self.plan.input, frames as u64, Arc::clone(&options.budget))?;
        let stages = Stages {
            source: Box::new(source),
            submitter: built.submitter,
            collector: built.collector,
            encoder: Box::new(Discard),
            muxer: Box::new(Discard),
        };
        let timing = pipeline::run(stages, &Arc::new(PipelineStats::default()), &Cancel::new())?;
        self.phases = built.stats.device_us(timing.frames);
        Ok((timing.steady_fps > 0.0).then(|| 1e9 / timing.steady_fps * frames as f64))
    }
}

/// Lends slabs that were filled once: a source that costs nothing.
struct Replay {
    pool: Pool,
    layout: FrameLayout,
    next: u64,
    frames: u64,
}

/// Filled slabs: more than the lanes and queues hold.
const REPLAY_SLABS: usize = 32;

impl Replay {
    fn new(mem: Arc<dyn HostMem>, shape: Shape, frames: u64, budget: Arc<Budget>) -> Result<Self> {
        let layout = FrameLayout::packed(shape)?;
        let pool = Pool::new(mem, layout.slab_bytes, budget);
        let mut leases = (0..REPLAY_SLABS).map(|_| pool.lease()).collect::<Result<Vec<_>>>()?;
        for (i, lease) in leases.iter_mut().enumerate() {
            lease.bytes_mut().iter_mut().enumerate().for_each(|(j, b)| *b = (i * 31 + j * 7 + j / 251) as u8);
        }
        Ok(Self { pool, layout, next: 0, frames })
    }
}

impl Source for Replay {
    fn next(&mut self) -> Result<Item> {
        if self.next >= self.frames {
            return Ok(Item::End);
        }
        let seq = self.next;
        self.next += 1;
        let time = FrameTime { pts: i64::try_from(seq).ok(), duration: 1 };
        Ok(Item::Frame(Frame { layout: self.layout, time, seq, born: Instant::now(), mem: FrameMem::Slab(self.pool.lease()?) }))
    }
}
