//! Lanes: one frame in flight each, with its own stream for kernels, device buffers, events and leases; transfers of all lanes share one
//! stream each way.
//!
//! `submit` only enqueues: one upload of the frame's span, the steps, one download into a leased slab. It waits for a free
//! lane and for nothing else. `wait` waits for the lane's last event. Nothing is allocated, looked up or synchronised per
//! frame (a lane's input buffer grows once, if a decoder's layout is larger than expected). A buffer that the GPU may touch
//! is owned by its lane, and a lane waits for its stream before it lets go of anything: a lane that failed is dropped, not
//! reused.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};

use super::Program;
use super::buffers::{Buffers, enqueue};
use super::device::{Context, DevicePtr, Event, RowCopy, Stream, Waiting};
use super::geometry::{Geometry, TAIL};
use super::launch::{FrameArgs, Launch};
use crate::backend::{BuildOptions, Built, Collector, Submitter, Ticket};
use crate::error::{Error, Result};
use crate::frame::{Frame, FrameLayout, FrameMem, Shape};
use crate::pool::{HostMem, Lease, Pool};
use crate::profile;
use crate::stats::DeviceStats;
use crate::trace::{Span, Track};

/// Frames in flight when the user does not say: upload, filter and download of three overlap, and one waits.
const DEFAULT_LANES: usize = 4;

/// Where frames are usually ready sooner than this, the collector watches for them instead of sleeping: at thousands of
/// frames per second a wake-up per frame costs a tenth of the rate; at video rates it is free and the core is not.
const SPIN_BELOW: Duration = Duration::from_micros(250);

struct Lane {
    id: usize,
    program: Arc<Program>,
    buffers: Buffers,
    args: Vec<FrameArgs>,
    /// What `args` was made for.
    geometry: Geometry,
    /// After the upload, after the kernels, after the download.
    events: [Event; 3],
    /// After the download too, for a waiter that sleeps.
    done: Event,
    /// Before the upload and at the same places as `events`, with the time: of the frames that are timed.
    stamps: [Event; 4],
    /// How many frames the one in flight stands for in the statistics; 0 if it is not timed.
    weight: u64,
    /// In flight: the input, kept until its upload has run, and the slab that the download writes.
    frame: Option<Frame>,
    output: Option<Lease>,
    /// Kernels.
    stream: Stream,
    transfers: Arc<Transfers>,
    /// Whether `done` was recorded for the frame in flight.
    sleeper: bool,
    /// Whether the input's planes must be aligned as textures need it.
    textured: bool,
}

/// One stream for all uploads and one for all downloads, so that each copy engine finds its next copy in the queue that it already
/// works on; lanes that brought their own made the engines change queues between any two copies.
struct Transfers {
    up: Stream,
    down: Stream,
    /// Whether the collector sleeps until frames are done. An interrupt per frame is only asked for then.
    sleeps: AtomicBool,
    /// A moment on the device's clock and on the host's; only of a traced run.
    anchor: Mutex<Option<(Event, Instant)>>,
}

impl Transfers {
    fn anchored(&self) -> MutexGuard<'_, Option<(Event, Instant)>> {
        // It is set once, whole.
        self.anchor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads both clocks, when the first frame comes.
    fn anchor(&self) -> Result<()> {
        let mut anchor = self.anchored();
        if anchor.is_none() {
            let event = Event::new(self.up.context(), Waiting::Spins)?;
            event.record(&self.up)?;
            event.wait()?;
            *anchor = Some((event, Instant::now()));
        }
        Ok(())
    }

    /// When `event` happened, on the host's clock.
    fn host_time(&self, event: &Event) -> Result<Instant> {
        match &*self.anchored() {
            Some((anchor, at)) => Ok(*at + Duration::from_nanos(anchor.elapsed_ns(event)?)),
            None => Ok(Instant::now()),
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // The GPU may still read the frame or write the slab; an error here is the one that the lane already reported. In this order,
        // since kernels wait for uploads and downloads for kernels.
        let _ = self.transfers.up.synchronize();
        let _ = self.stream.synchronize();
        let _ = self.transfers.down.synchronize();
    }
}

impl Lane {
    fn new(id: usize, transfers: Arc<Transfers>, program: &Arc<Program>, input_bytes: usize) -> Result<Self> {
        let context = transfers.up.context();
        let buffers = Buffers::new(context, program, input_bytes)?;
        let geometry = buffers.input_geometry();
        let mut args = Vec::with_capacity(program.launches.len());
        buffers.arguments(program, &geometry, &mut args)?;
        let event = || Event::mark(context, Waiting::Spins);
        let events = [event()?, event()?, event()?];
        let done = Event::mark(context, Waiting::Sleeps)?;
        let stamp = || Event::new(context, Waiting::Spins);
        let stamps = [stamp()?, stamp()?, stamp()?, stamp()?];
        Ok(Self {
            id,
            program: Arc::clone(program),
            buffers,
            args,
            geometry,
            events,
            done,
            stamps,
            weight: 0,
            frame: None,
            output: None,
            stream: Stream::new(context)?,
            transfers: Arc::clone(&transfers),
            sleeper: false,
            textured: program.launches.iter().map(|(_, launch)| launch).any(Launch::textured),
        })
    }

    /// Enqueues everything for `frame`, which stands for `weight` frames in the statistics. On error the lane must be dropped.
    fn submit(&mut self, frame: Frame, output: Lease, layout: &FrameLayout, stats: &DeviceStats, weight: u64) -> Result<()> {
        let contiguous = !matches!(frame.mem, FrameMem::Foreign { .. });
        let span = Geometry::of_span(&frame.layout).filter(|g| contiguous && (!self.textured || g.suits_textures()));
        let geometry = span.unwrap_or(self.buffers.input_geometry());
        if geometry.bytes > self.buffers.input().bytes() {
            // A decoder pads more than was foreseen: once per stream. The lane is idle, so nothing reads the old buffer.
            self.buffers.replace_input(geometry.bytes)?;
            self.buffers.arguments(&self.program, &geometry, &mut self.args)?;
            self.geometry = geometry;
        } else if geometry != self.geometry {
            self.buffers.arguments(&self.program, &geometry, &mut self.args)?;
            self.geometry = geometry;
        }
        // From here on the lane owns what the GPU touches.
        let frame = self.frame.insert(frame);
        let output = self.output.insert(output);
        let (stream, up, down) = (&self.stream, &self.transfers.up, &self.transfers.down);
        let [uploaded, filtered, downloaded] = &self.events;
        let [before, after_upload, after_kernels, after_download] = &self.stamps;
        let stamp = |event: &Event, stream: &Stream| if weight > 0 { event.record(stream) } else { Ok(()) };
        self.weight = weight;

        if stats.trace.get().is_some() {
            self.transfers.anchor()?;
        }
        // The profiler lays what is enqueued within a range under it on the device's side too.
        let seq = frame.seq;
        let range = profile::range_on("upload", seq);
        stamp(before, up)?;
        if span.is_some() {
            let bytes = geometry.bytes - TAIL;
            let first = frame.plane_ptr(first_plane(&frame.layout));
            // SAFETY: the visible planes span `bytes` bytes of one slab, which the frame, kept by the lane, keeps alive and
            // unwritten; the buffer is at least `geometry.bytes` large.
            unsafe { up.upload(self.buffers.input().ptr(), first, bytes) }?;
            DeviceStats::add(&stats.uploads, 1);
            DeviceStats::add(&stats.upload_bytes, bytes as u64);
        } else {
            for copy in row_copies(frame, self.buffers.input().ptr(), &geometry) {
                // SAFETY: whoever made the frame promised these rows; the frame is kept; the packed geometry has room.
                unsafe { up.upload_rows(copy) }?;
                DeviceStats::add(&stats.uploads, 1);
                DeviceStats::add(&stats.upload_bytes, (copy.row_bytes * copy.rows) as u64);
            }
        }
        stamp(after_upload, up)?;
        uploaded.record(up)?;
        drop(range);
        let range = profile::range_on("kernels", seq);
        stream.after(uploaded)?;
        // SAFETY: `args` was made from this lane's buffers; the stream is the lane's own, and the lane waits for it in drop.
        unsafe { enqueue(&self.program, &self.buffers, &self.args, stream) }?;
        stamp(after_kernels, stream)?;
        filtered.record(stream)?;
        drop(range);
        let _range = profile::range_on("download", seq);
        down.after(filtered)?;
        let (_, end) = layout.span();
        let bytes = end.min(output.len());
        // SAFETY: the lease is the lane's own until it is collected; the output buffer holds a whole packed slab.
        unsafe { down.download(output.as_ptr(), self.buffers.output().ptr(), bytes) }?;
        stamp(after_download, down)?;
        downloaded.record(down)?;
        self.sleeper = self.transfers.sleeps.load(Ordering::Relaxed);
        if self.sleeper {
            self.done.record(down)?;
        }
        DeviceStats::add(&stats.downloads, 1);
        DeviceStats::add(&stats.download_bytes, bytes as u64);
        Ok(())
    }

    /// Waits for the frame. On error the lane must be dropped.
    fn collect(&mut self, layout: FrameLayout, stats: &DeviceStats) -> Result<Frame> {
        let [.., downloaded] = &self.events;
        self.stream.context().bind()?;
        if self.sleeper { self.done.wait() } else { downloaded.wait() }?;
        DeviceStats::add(&stats.frames, 1);
        if self.weight > 0 {
            self.count_phases(stats)?;
        }
        let empty = || Error::failed("cannot collect a frame", format!("lane {} carries none", self.id));
        let (input, output) = (self.frame.take().ok_or_else(empty)?, self.output.take().ok_or_else(empty)?);
        Ok(Frame { layout, time: input.time, seq: input.seq, born: input.born, mem: FrameMem::Slab(output) })
    }

    /// Adds the times of the frame that has come back, and notes them in the trace, if there is one.
    fn count_phases(&self, stats: &DeviceStats) -> Result<()> {
        let [before, uploaded, filtered, downloaded] = &self.stamps;
        let phases = [before.elapsed_ns(uploaded)?, uploaded.elapsed_ns(filtered)?, filtered.elapsed_ns(downloaded)?];
        for (counter, ns) in [&stats.upload_ns, &stats.kernel_ns, &stats.download_ns].into_iter().zip(phases) {
            DeviceStats::add(counter, self.weight * ns);
        }
        if let Some(trace) = stats.trace.get() {
            let mut from = self.transfers.host_time(before)?;
            let frame = self.frame.as_ref().map(|f| f.seq);
            for (name, ns) in ["upload", "kernels", "download"].into_iter().zip(phases) {
                let took = Duration::from_nanos(ns);
                trace.span(Span { track: Track::Lane(self.id), name: name.into(), frame, from, took });
                from += took;
            }
        }
        Ok(())
    }
}

/// Every frame up to this one is timed, so that short runs have figures, then one in [`TIMED_OF`].
const TIMED_FIRST: u64 = 64;
/// A copy with a time stamp behind it keeps the next one waiting: 3 of 69 µs a frame at 1080p.
const TIMED_OF: u64 = 16;

/// How many frames the `index`th of a run stands for in the statistics; 0: it is not timed.
fn weight(index: u64, traced: bool) -> u64 {
    match (index < TIMED_FIRST || traced, index % TIMED_OF) {
        (true, _) => 1,
        (false, 0) => TIMED_OF,
        (false, _) => 0,
    }
}

/// The copies, one per plane, that bring a frame into a buffer at `to` whose planes lie as `geometry` says. A frame's layout may have
/// other pitches: a buffer of the device aligns the rows of every plane as a frame does luma's, and chroma's twice as far.
pub(super) fn row_copies(frame: &Frame, to: DevicePtr, geometry: &Geometry) -> impl Iterator<Item = RowCopy> {
    let sample = frame.layout.shape.format.sample();
    frame.layout.planes().iter().zip(&geometry.planes).enumerate().map(move |(index, (plane, place))| RowCopy {
        src: frame.plane_ptr(index),
        src_pitch: plane.pitch,
        dst: to + place.offset as u64,
        dst_pitch: place.pitch,
        row_bytes: plane.row_bytes(sample),
        rows: plane.height,
    })
}

/// Index of the plane that lies first in its slab.
fn first_plane(layout: &FrameLayout) -> usize {
    layout.planes().iter().enumerate().min_by_key(|(_, plane)| plane.offset).map_or(0, |(index, _)| index)
}

struct Submit {
    context: Arc<Context>,
    free: Receiver<Box<Lane>>,
    busy: Sender<Box<Lane>>,
    pool: Pool,
    shape: Shape,
    layout: FrameLayout,
    stats: Arc<DeviceStats>,
    submitted: u64,
}

impl Submitter for Submit {
    fn submit(&mut self, frame: Frame, due: &mut Vec<Ticket>) -> Result<()> {
        if frame.layout.shape != self.shape {
            return Err(Error::failed(
                format!("cannot filter frame {}", frame.seq),
                format!("it is {}, and the run was set up for {}", frame.layout.shape, self.shape),
            ));
        }
        let waiting = Instant::now();
        let mut lane = self.free.recv().map_err(|_| Error::disconnected("filter"))?;
        self.stats.waited_for_lane(waiting, frame.seq);
        self.context.bind()?;
        let ticket = Ticket { lane: lane.id, seq: frame.seq };
        let output = self.pool.lease()?;
        lane.submit(frame, output, &self.layout, &self.stats, weight(self.submitted, self.stats.trace.get().is_some()))?;
        self.submitted += 1;
        self.busy.send(lane).map_err(|_| Error::disconnected("filter"))?;
        due.push(ticket);
        Ok(())
    }

    fn finish(&mut self, _due: &mut Vec<Ticket>) -> Result<()> {
        // No step holds frames back yet.
        Ok(())
    }
}

struct Collect {
    free: Sender<Box<Lane>>,
    busy: Receiver<Box<Lane>>,
    layout: FrameLayout,
    stats: Arc<DeviceStats>,
    /// Moving average of the time that a frame was waited for.
    usual_wait: Duration,
    transfers: Arc<Transfers>,
}

impl Collector for Collect {
    fn wait(&mut self, ticket: Ticket) -> Result<Frame> {
        let mut lane = self.busy.recv().map_err(|_| Error::disconnected("encode"))?;
        let carried = lane.frame.as_ref().map(|f| f.seq);
        if lane.id != ticket.lane || carried != Some(ticket.seq) {
            return Err(Error::failed(
                format!("cannot collect frame {} of lane {}", ticket.seq, ticket.lane),
                format!("lane {} with frame {carried:?} is due: tickets must be collected in order", lane.id),
            ));
        }
        let begin = Instant::now();
        let frame = lane.collect(self.layout, &self.stats)?;
        self.usual_wait = (7 * self.usual_wait + begin.elapsed()) / 8;
        self.transfers.sleeps.store(self.usual_wait >= SPIN_BELOW, Ordering::Relaxed);
        // The submitter may be gone: the lane is dropped then.
        let _ = self.free.send(lane);
        Ok(frame)
    }
}

/// Makes the lanes for a compiled program.
///
/// # Errors
/// Out of device memory, or no lanes.
pub fn build(context: &Arc<Context>, memory: Arc<dyn HostMem>, program: Program, options: &BuildOptions) -> Result<Built> {
    let count = options.lanes.unwrap_or(DEFAULT_LANES);
    if count == 0 {
        return Err(Error::usage("cannot run on CUDA", "the number of lanes is 0").hint("use --lanes 1 or more"));
    }
    let shape = program.plan.input;
    let layout = FrameLayout::packed(program.plan.output())?;
    let notes = program.notes.clone();
    let program = Arc::new(program);
    // Decoders pad to macroblocks and add edges; Geometry::of_span of such a frame must fit as a rule.
    let room = FrameLayout::padded(shape, shape.width.next_multiple_of(64) + 64, shape.height.next_multiple_of(64) + 64)
        .map_or(0, |padded| padded.slab_bytes + TAIL);
    let (free_in, free_out) = bounded(count);
    let (busy_in, busy_out) = bounded(count);
    let transfers = Arc::new(Transfers {
        up: Stream::new(context)?,
        down: Stream::new(context)?,
        sleeps: AtomicBool::new(true),
        anchor: Mutex::default(),
    });
    for id in 0..count {
        let lane = Lane::new(id, Arc::clone(&transfers), &program, room).map_err(|e| e.context(format!("lane {} of {count}", id + 1)))?;
        free_in.send(Box::new(lane)).map_err(|_| Error::disconnected("filter"))?;
    }
    let stats = Arc::new(DeviceStats::default());
    let pool = Pool::new(memory, layout.slab_bytes, Arc::clone(&options.budget));
    let submitter = Submit {
        context: Arc::clone(context),
        free: free_out,
        busy: busy_in,
        pool,
        shape,
        layout,
        stats: Arc::clone(&stats),
        submitted: 0,
    };
    let collector =
        Collect { free: free_in, busy: busy_out, layout, stats: Arc::clone(&stats), usual_wait: Duration::from_millis(1), transfers };
    Ok(Built { submitter: Box::new(submitter), collector: Box::new(collector), stats, notes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cuda::geometry::Element;
    use crate::frame::{Packing, PixelFormat};
    use crate::pool::Heap;
    use crate::reference::{Content, Picture};

    #[test]
    fn rows_land_where_the_device_reads_them() {
        let nv12 = PixelFormat { packing: Packing::SemiPlanar, ..PixelFormat::yuv(8, 1, 1) };
        for format in [PixelFormat::gray(8), PixelFormat::yuv(8, 1, 1), nv12, PixelFormat::yuv(10, 1, 1), PixelFormat::yuv(8, 1, 0)] {
            for width in [1, 128, 129, 300, 1920] {
                let shape = Shape { format, width, height: 5 };
                let picture = Picture::new(shape, Content::Random, 1);
                let frame = picture.frame(Arc::new(Heap), 0).unwrap();
                let geometry = Geometry::packed(shape, Element::Sample);
                let mut device = vec![0xA5u8; geometry.bytes];
                for copy in row_copies(&frame, 0, &geometry) {
                    for row in 0..copy.rows {
                        // SAFETY: the frame has these rows.
                        let from = unsafe { std::slice::from_raw_parts(copy.src.add(row * copy.src_pitch), copy.row_bytes) };
                        let to = copy.dst as usize + row * copy.dst_pitch;
                        device[to..to + copy.row_bytes].copy_from_slice(from);
                    }
                }
                for (index, place) in geometry.planes.iter().enumerate().take(format.plane_count()) {
                    for y in 0..shape.plane_size(index).1 {
                        let want = frame.row(index, y);
                        let at = place.offset + y * place.pitch;
                        assert_eq!(&device[at..at + want.len()], want, "{shape}, plane {index}, row {y}");
                    }
                }
            }
        }
        // What makes the copies needed: a slab copied as it is would put every row but the first elsewhere.
        let shape = Shape { format: PixelFormat::yuv(8, 1, 1), width: 1920, height: 1080 };
        assert_ne!(FrameLayout::packed(shape).unwrap().planes[1].pitch, Geometry::packed(shape, Element::Sample).planes[1].pitch);
    }

    #[test]
    fn timed_frames_stand_for_all() {
        let total = |frames: u64, traced| (0..frames).map(|i| weight(i, traced)).sum::<u64>();
        for frames in [1, 50, 64, 80, 1600] {
            assert_eq!(total(frames, false), frames);
            assert_eq!(total(frames, true), frames);
        }
        // Two timed beyond the first, for 16 each.
        assert_eq!((0..96).filter(|&i| weight(i, false) > 0).count(), 66);
        assert!((0..96).all(|i| weight(i, true) == 1));
    }
}
