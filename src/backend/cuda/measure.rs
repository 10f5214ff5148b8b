//! Times a plan's kernels on data that stays on the device, beside a device-to-device copy in the same run.
//!
//! Buffers are rotated over several times the L2, so that no repetition finds its input there; all frames of one repetition
//! are captured in a CUDA graph and replayed, so that launch gaps on the host stay out of the numbers.

use std::time::{Duration, Instant};

use cudarc::driver::{result, sys};

use super::device::{DeviceBuffer, Event, Stream, Waiting, driver_error};
use super::lane::{Buffers, enqueue};
use super::{Cuda, device};
use crate::error::{Error, Result};
use crate::filter::plan::Plan;

/// How long and how often.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Warm-up time before the first timed repetition.
    pub warm_up: Duration,
    /// Timed repetitions; at least 1.
    pub repetitions: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Self { warm_up: Duration::from_millis(30), repetitions: 21 }
    }
}

/// Times of one thing, per frame, in microseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Times {
    sorted: Vec<f64>,
}

impl Times {
    fn new(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        Self { sorted: values }
    }

    /// The value below which `share` (0..=1) of the repetitions lie; 0 without any.
    pub fn quantile(&self, share: f64) -> f64 {
        let last = self.sorted.len().saturating_sub(1);
        self.sorted.get((share * last as f64).round() as usize).copied().unwrap_or(0.0)
    }

    /// Median.
    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// Repetitions.
    pub fn count(&self) -> usize {
        self.sorted.len()
    }
}

/// What [`measure`] found.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// The plan's kernels, per frame.
    pub kernel: Times,
    /// A device-to-device copy of the same planes (the smaller of input and output), per frame.
    pub copy: Times,
    /// Bytes of a frame's packed planes: what the copy reads, and writes again.
    pub frame_bytes: usize,
    /// Buffer sets that were rotated.
    pub sets: usize,
    /// Which variants ran.
    pub notes: Vec<String>,
    /// Resources of each kernel.
    pub kernels: Vec<device::KernelInfo>,
}

/// Times `plan` under `variant` (None lets the backend choose).
///
/// # Errors
/// The variant does not fit, or a device error.
pub fn measure(cuda: &Cuda, plan: &Plan, variant: Option<&str>, settings: Settings) -> Result<Measurement> {
    let program = cuda.compile(plan, variant)?;
    let context = cuda.context();
    let stream = Stream::new(context)?;
    let first = Buffers::new(context, &program, 0)?;
    // Whole 512 bytes: an odd tail makes the driver's copy half as fast.
    let frame_bytes = first.plane_bytes();
    // Four times the L2 in inputs and outputs, so that each is evicted before its turn comes again.
    let l2 = context.info().l2_bytes.max(4 << 20);
    let sets = (4 * l2).div_ceil(2 * frame_bytes).clamp(8, 256);

    let noise = noise(first.input().bytes());
    let mut buffers = vec![first];
    for _ in 1..sets {
        buffers.push(Buffers::new(context, &program, 0)?);
    }
    let mut arguments = Vec::with_capacity(sets);
    for set in &buffers {
        set.output().fill(0xA5)?;
        // SAFETY: `noise` is as large as the first input, and all inputs are of one size; the copy is waited for below.
        unsafe { stream.upload(set.input().ptr(), noise.as_ptr(), noise.len().min(set.input().bytes())) }?;
        stream.synchronize()?;
        let mut args = Vec::new();
        set.arguments(&program, &set.input_geometry(), &mut args)?;
        arguments.push(args);
    }

    let kernel = replay(&stream, sets, settings, |i| {
        // SAFETY: the buffers live until the stream is idle (`replay` waits), and this stream alone uses them.
        arguments.get(i).zip(buffers.get(i)).map_or(Ok(()), |(args, set)| unsafe { enqueue(&program, set, args, &stream) })
    })?;
    let copy = replay(&stream, sets, settings, |i| {
        buffers.get(i).map_or(Ok(()), |set: &Buffers| {
            let (from, to): (&DeviceBuffer, &DeviceBuffer) = (set.input(), set.output());
            // SAFETY: two live buffers, both larger than the planes.
            unsafe { stream.copy(to.ptr(), from.ptr(), frame_bytes) }
        })
    })?;
    stream.synchronize()?;
    let kernels = program.kernels()?.into_iter().map(|(_, info)| info).collect();
    Ok(Measurement { kernel, copy, frame_bytes, sets, notes: program.notes().to_vec(), kernels })
}

/// Never zeros: they hide unwritten outputs and run faster than data does.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..bytes.div_ceil(8)).flat_map(|_| next().to_le_bytes()).take(bytes).collect()
}

/// Captures `frames` calls of `work` into a graph and times its replays.
fn replay(stream: &Stream, frames: usize, settings: Settings, work: impl Fn(usize) -> Result<()>) -> Result<Times> {
    let context = stream.context();
    context.bind()?;
    // Once outside the graph: lazy loading must not happen during capture.
    work(0)?;
    stream.synchronize()?;
    let graph = Graph::capture(stream, || (0..frames).try_for_each(&work))?;
    let (started, ended) = (Event::new(context, Waiting::Spins)?, Event::new(context, Waiting::Spins)?);
    let run = || -> Result<f64> {
        started.record(stream)?;
        graph.launch(stream)?;
        ended.record(stream)?;
        ended.wait()?;
        Ok(started.elapsed_ns(&ended)? as f64 / 1e3 / frames.max(1) as f64)
    };
    let begin = Instant::now();
    while begin.elapsed() < settings.warm_up {
        run()?;
    }
    let values = (0..settings.repetitions.max(1)).map(|_| run()).collect::<Result<_>>()?;
    stream.synchronize()?;
    Ok(Times::new(values))
}

/// An instantiated CUDA graph.
struct Graph {
    raw: sys::CUgraph,
    exec: sys::CUgraphExec,
}

impl Graph {
    fn capture(stream: &Stream, work: impl FnOnce() -> Result<()>) -> Result<Self> {
        let failed = |e| driver_error("cannot record a CUDA graph", e);
        // SAFETY: the stream is alive, and capture is ended below on every path.
        unsafe { result::stream::begin_capture(stream.raw(), sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED) }.map_err(failed)?;
        let outcome = work();
        // SAFETY: as above.
        let raw = unsafe { result::stream::end_capture(stream.raw()) }.map_err(failed)?;
        outcome?;
        if raw.is_null() {
            return Err(Error::failed("cannot record a CUDA graph", "the driver returned none"));
        }
        // SAFETY: `raw` is a graph that was just made.
        match unsafe { result::graph::instantiate(raw, sys::CUgraphInstantiate_flags(0)) } {
            Ok(exec) => Ok(Self { raw, exec }),
            Err(e) => {
                // SAFETY: made above, destroyed once.
                let _ = unsafe { result::graph::destroy(raw) };
                Err(failed(e))
            }
        }
    }

    fn launch(&self, stream: &Stream) -> Result<()> {
        // SAFETY: graph and stream are alive.
        unsafe { result::graph::launch(self.exec, stream.raw()) }.map_err(|e| driver_error("cannot replay a CUDA graph", e))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made in `capture`, destroyed once; `replay` waited for the stream.
        let _ = unsafe { result::graph::exec_destroy(self.exec) };
        // SAFETY: as above.
        let _ = unsafe { result::graph::destroy(self.raw) };
    }
}
