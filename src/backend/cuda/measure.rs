//! Times a plan's kernels on data that stays on the device, beside a device-to-device copy in the same run.
//!
//! Buffers are rotated over several times the L2, so that no repetition finds its input there; all frames of one repetition
//! are captured in a CUDA graph and replayed, so that launch gaps on the host stay out of the numbers.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::{result, sys};

use super::buffers::{Buffers, enqueue};
use super::device::{Event, Stream, Waiting, driver_error};
use super::lane::row_copies;
use super::launch::FrameArgs;
use super::{Cuda, Program, device};
use crate::backend::Device;
use crate::error::{Error, Result};
use crate::filter::plan::Plan;
use crate::frame::{Frame, FrameLayout, FrameMem, FrameTime};
use crate::pool::{Budget, HostMem, Pool};

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
    let prepared = Prepared::new(cuda, plan, variant, &[])?;
    let kernel = replay(&prepared, Work::Kernels, settings)?;
    let copy = replay(&prepared, Work::Copies, settings)?;
    let kernels = prepared.kernels()?;
    let (frame_bytes, sets) = (prepared.frame_bytes, prepared.sets());
    Ok(Measurement { kernel, copy, frame_bytes, sets, notes: prepared.program.notes().to_vec(), kernels })
}

/// What a replay does to every buffer set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// The plan's kernels.
    Kernels,
    /// A device-to-device copy of the planes.
    Copies,
}

/// A compiled plan on buffer sets that rotate, with a recorded graph for the kernels and one for copies.
pub struct Prepared {
    // Dropped before the buffers that they refer to.
    kernels: Graph,
    copies: Graph,
    stream: Stream,
    buffers: Vec<Buffers>,
    arguments: Vec<Vec<FrameArgs>>,
    program: Program,
    layout: FrameLayout,
    frame_bytes: usize,
    memory: Arc<dyn HostMem>,
}

impl Prepared {
    /// Compiles `plan`, makes buffer sets, fills them with the samples of `inputs` in turn (noise without any) and records the graphs.
    /// The inputs are frames of the plan's input shape.
    ///
    /// # Errors
    /// The variant does not fit, out of device memory, or a device error.
    pub fn new(cuda: &Cuda, plan: &Plan, variant: Option<&str>, inputs: &[Frame]) -> Result<Self> {
        if let Some(other) = inputs.iter().find(|frame| frame.layout.shape != plan.input) {
            let why = format!("an input is {}, the plan's are {}", other.layout.shape, plan.input);
            return Err(Error::failed("cannot prepare a measurement", why));
        }
        let program = cuda.compile(plan, variant)?;
        let context = cuda.context();
        let stream = Stream::new(context)?;
        let first = Buffers::new(context, &program, 0)?;
        // Whole 512 bytes: an odd tail makes the driver's copy half as fast.
        let frame_bytes = first.plane_bytes();
        // Four times the L2 in inputs and outputs, so that each is evicted before its turn comes again.
        let l2 = context.info().l2_bytes.max(4 << 20);
        let sets = (4 * l2).div_ceil(2 * frame_bytes.max(1)).clamp(8, 256);
        let noise = noise(first.input().bytes());
        let mut buffers = vec![first];
        for _ in 1..sets {
            buffers.push(Buffers::new(context, &program, 0)?);
        }
        let mut arguments: Vec<Vec<FrameArgs>> = Vec::with_capacity(sets);
        for (index, set) in buffers.iter().enumerate() {
            set.output().fill(0xA5)?;
            let picture = inputs.get(index % inputs.len().max(1));
            let geometry = set.input_geometry();
            match picture {
                // Plane by plane: the buffer's rows of chroma may lie farther apart than the frame's.
                Some(frame) => row_copies(frame, set.input().ptr(), &geometry).try_for_each(|copy| {
                    // SAFETY: the frame has these rows, and lives until the copies have run, which is waited for below; the buffer was
                    // made for this geometry.
                    unsafe { stream.upload_rows(copy) }
                })?,
                // SAFETY: `noise` is as long as an input buffer, and lives until the copy has run, which is waited for below.
                None => unsafe { stream.upload(set.input().ptr(), noise.as_ptr(), noise.len().min(set.input().bytes())) }?,
            }
            stream.synchronize()?;
            let mut args = Vec::new();
            set.arguments(&program, &geometry, &mut args)?;
            arguments.push(args);
        }
        context.bind()?;
        let kernel = |index: usize| {
            // SAFETY: the buffers live as long as the graph (`Prepared` keeps both), and this stream alone uses them.
            arguments.get(index).zip(buffers.get(index)).map_or(Ok(()), |(args, set)| unsafe { enqueue(&program, set, args, &stream) })
        };
        let copy = |index: usize| {
            buffers.get(index).map_or(Ok(()), |set: &Buffers| {
                // SAFETY: two live buffers, both larger than the planes.
                unsafe { stream.copy(set.output().ptr(), set.input().ptr(), frame_bytes) }
            })
        };
        // Once outside the graphs: lazy loading must not happen during capture.
        kernel(0)?;
        stream.synchronize()?;
        let kernels = Graph::capture(&stream, || (0..sets).try_for_each(kernel))?;
        let copies = Graph::capture(&stream, || (0..sets).try_for_each(copy))?;
        let layout = FrameLayout::packed(program.plan.output())?;
        let memory = cuda.host_memory();
        Ok(Self { kernels, copies, stream, buffers, arguments, program, layout, frame_bytes, memory })
    }

    /// Buffer sets: frames of one replay.
    pub fn sets(&self) -> usize {
        self.arguments.len()
    }

    /// Bytes of a frame's packed planes: what a copy reads, and writes again.
    pub fn frame_bytes(&self) -> usize {
        self.frame_bytes
    }

    /// Which variants run.
    pub fn notes(&self) -> &[String] {
        self.program.notes()
    }

    /// Resources of each kernel.
    ///
    /// # Errors
    /// A driver error.
    pub fn kernels(&self) -> Result<Vec<device::KernelInfo>> {
        Ok(self.program.kernels()?.into_iter().map(|(_, info)| info).collect())
    }

    /// Fills every output with 0xA5, then runs the kernels on every set.
    ///
    /// # Errors
    /// A device error.
    pub fn run_on_spoiled_outputs(&self) -> Result<()> {
        self.stream.context().bind()?;
        self.buffers.iter().try_for_each(|set| set.output().fill(0xA5))?;
        self.kernels.launch(&self.stream)?;
        self.stream.synchronize()
    }

    /// What the kernels wrote for set `index`.
    ///
    /// # Errors
    /// There is no such set, no host memory, or a device error.
    pub fn result(&self, index: usize) -> Result<Frame> {
        let set =
            self.buffers.get(index).ok_or_else(|| Error::failed("cannot read a result", format!("there is no buffer set {index}")))?;
        let mut lease = Pool::new(Arc::clone(&self.memory), self.layout.slab_bytes, Budget::new(usize::MAX)).lease()?;
        let (_, end) = self.layout.span();
        let bytes = end.min(lease.bytes_mut().len()).min(set.output().bytes());
        self.stream.context().bind()?;
        // SAFETY: the lease is ours alone and outlives the copy, which is waited for; the output holds a packed slab.
        unsafe { self.stream.download(lease.bytes_mut().as_mut_ptr(), set.output().ptr(), bytes) }?;
        self.stream.synchronize()?;
        Ok(Frame { layout: self.layout, time: FrameTime::default(), seq: index as u64, born: Instant::now(), mem: FrameMem::Slab(lease) })
    }

    /// The clock of the multiprocessors in MHz, if the driver's management library tells.
    pub fn clock_mhz(&self) -> Option<f64> {
        super::clock::multiprocessors_mhz(self.stream.context().info().index)
    }

    /// Replays `work` over all sets `times` times; nanoseconds by the device's events.
    ///
    /// # Errors
    /// A device error.
    pub fn replay(&self, work: Work, times: usize) -> Result<f64> {
        let context = self.stream.context();
        context.bind()?;
        let graph = match work {
            Work::Kernels => &self.kernels,
            Work::Copies => &self.copies,
        };
        let (started, ended) = (Event::new(context, Waiting::Spins)?, Event::new(context, Waiting::Spins)?);
        started.record(&self.stream)?;
        (0..times).try_for_each(|_| graph.launch(&self.stream))?;
        ended.record(&self.stream)?;
        ended.wait()?;
        Ok(started.elapsed_ns(&ended)? as f64)
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        // The GPU may still use the buffers; an error here is one that was reported already.
        let _ = self.stream.synchronize();
    }
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

/// Times single replays, per frame.
fn replay(prepared: &Prepared, work: Work, settings: Settings) -> Result<Times> {
    let run = || Ok(prepared.replay(work, 1)? / 1e3 / prepared.sets().max(1) as f64);
    let begin = Instant::now();
    while begin.elapsed() < settings.warm_up {
        run()?;
    }
    Ok(Times::new((0..settings.repetitions.max(1)).map(|_| run()).collect::<Result<_>>()?))
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
        // SAFETY: made in `capture`, destroyed once; whoever launched it waited for the stream.
        let _ = unsafe { result::graph::exec_destroy(self.exec) };
        // SAFETY: as above.
        let _ = unsafe { result::graph::destroy(self.raw) };
    }
}
