//! The two levels below the whole pipeline: kernels on data that stays on the device, and the device loop (pinned host
//! memory in and out over several lanes), each beside the copy that limits it, measured in the same run.

use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use crate::backend::cuda::measure::{Settings, measure};
use crate::backend::{BuildOptions, Device, cuda};
use crate::cancel::Cancel;
use crate::error::Result;
use crate::filter;
use crate::frame::{Frame, FrameLayout, FrameMem, FrameTime, PixelFormat, Shape};
use crate::pipeline::{self, Discard, Item, Source, Stages};
use crate::pool::{Budget, Pool};
use crate::stats::PipelineStats;

/// One graph on the device, without transfers.
#[derive(Debug, Serialize)]
pub(super) struct KernelRow {
    name: String,
    median_us: f64,
    p5_us: f64,
    p95_us: f64,
    /// A device-to-device copy of the same frame, measured in the same run.
    copy_us: f64,
    variants: Vec<String>,
}

/// The device loop with a number of lanes.
#[derive(Debug, Serialize)]
pub(super) struct LoopRow {
    lanes: usize,
    /// Upload, filter, download.
    fps: f64,
    /// Upload, a plain copy, download: what the bus allows.
    copy_fps: f64,
    /// Device time per frame of upload, kernels and download: more than 1 / fps when they overlap.
    device_us: [f64; 3],
}

/// Kernels whose size is the point, beside the graphs of the whole runs.
const KERNELS: [&str; 7] = [
    "gblur=radius=1",
    "gblur=radius=2:sigma=1",
    "gblur=radius=4:sigma=1.5",
    "gblur=radius=7:sigma=2.5",
    "gblur=radius=15:sigma=5",
    "avgblur=7",
    "avgblur=31",
];

/// Times each graph on a 4:2:0 8-bit frame, a gray 8-bit and a gray float plane.
pub(super) fn kernel_rows((width, height): (usize, usize), graphs: &[String]) -> Result<Vec<KernelRow>> {
    let cuda = cuda::open(0)?;
    let mut rows = Vec::new();
    for (label, format) in [("4:2:0", PixelFormat::yuv(8, 1, 1)), ("gray", PixelFormat::gray(8)), ("gray float", PixelFormat::gray(32))] {
        let shape = Shape { format, width, height };
        for graph in graphs.iter().map(String::as_str).chain(KERNELS) {
            let plan = filter::plan(&filter::parse(graph)?, shape)?;
            let measured = measure(&cuda, &plan, None, Settings::default())?;
            let short: String = graph.chars().take(28).collect();
            rows.push(KernelRow {
                name: format!("{short} {label}"),
                median_us: measured.kernel.median(),
                p5_us: measured.kernel.quantile(0.05),
                p95_us: measured.kernel.quantile(0.95),
                copy_us: measured.copy.median(),
                variants: measured.notes,
            });
        }
    }
    Ok(rows)
}

/// Frames per row of the device loop: about a second at the bus's limit.
const LOOP_FRAMES: u64 = 12_000;

/// Runs 4:2:0 8-bit frames through pinned memory, the device and back, without any codec.
pub(super) fn loop_rows((width, height): (usize, usize), graph: &str) -> Result<Vec<LoopRow>> {
    let cuda = cuda::open(0)?;
    let shape = Shape { format: PixelFormat::yuv(8, 1, 1), width, height };
    let mut rows = Vec::new();
    for lanes in [1, 2, 4, 8] {
        let (fps, device_us) = device_loop(&cuda, shape, graph, lanes)?;
        let (copy_fps, _) = device_loop(&cuda, shape, "", lanes)?;
        rows.push(LoopRow { lanes, fps, copy_fps, device_us });
    }
    Ok(rows)
}

fn device_loop(device: &dyn Device, shape: Shape, graph: &str, lanes: usize) -> Result<(f64, [f64; 3])> {
    let filters = if graph.is_empty() { Vec::new() } else { filter::parse(graph)? };
    let plan = filter::plan(&filters, shape)?;
    let budget = Budget::new(4 << 30);
    let options = BuildOptions { lanes: Some(lanes), threads: None, variant: None, budget: Arc::clone(&budget) };
    let built = device.build(&plan, &options)?;
    let source = Replay::new(device, shape, LOOP_FRAMES, budget)?;
    let stages = Stages {
        source: Box::new(source),
        submitter: built.submitter,
        collector: built.collector,
        encoder: Box::new(Discard),
        muxer: Box::new(Discard),
    };
    let timing = pipeline::run(stages, &Arc::new(PipelineStats::default()), &Cancel::new())?;
    Ok((timing.steady_fps, built.stats.device_us(timing.frames)))
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
    fn new(device: &dyn Device, shape: Shape, frames: u64, budget: Arc<Budget>) -> Result<Self> {
        let layout = FrameLayout::packed(shape)?;
        let pool = Pool::new(device.host_memory(), layout.slab_bytes, budget);
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

/// Prints both tables to stdout.
pub(super) fn print(kernels: &[KernelRow], loops: &[LoopRow]) {
    if !kernels.is_empty() {
        println!("\n{:<44} {:>10} {:>10} {:>10}", "kernel on the device", "µs", "copy µs", "× copy");
    }
    for k in kernels {
        println!("{:<44} {:>10.2} {:>10.2} {:>10.2}", k.name, k.median_us, k.copy_us, k.median_us / k.copy_us.max(1e-9));
    }
    if !loops.is_empty() {
        println!("\ndevice loop, gblur=sigma=2: pinned memory up, filter, down; beside a plain copy in the filter's place");
        println!("{:>5} {:>10} {:>10} {:>8} {:>34}", "lanes", "fps", "copy fps", "share", "upload + kernels + download µs");
    }
    for row in loops {
        let [up, kernel, down] = row.device_us;
        let share = 100.0 * row.fps / row.copy_fps.max(1e-9);
        println!("{:>5} {:>10.0} {:>10.0} {share:>6.0} % {up:>12.1} {kernel:>10.1} {down:>10.1}", row.lanes, row.fps, row.copy_fps);
    }
}
