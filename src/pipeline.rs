//! Three threads joined by bounded channels: decode → filter → encode.
//!
//! Frames and copied packets travel in one FIFO, so that a packet keeps its place between frames and nothing deadlocks
//! in the muxer. Nothing flows back but empty buffers. Any stage's error or panic ends all three; the first cause wins.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, bounded};

use crate::backend::{Collector, Submitter, Ticket};
use crate::cancel::Cancel;
use crate::error::{Error, Kind, Result};
use crate::frame::Frame;
use crate::media::Packet;
use crate::pace::Pace;
use crate::stats::{LatencyRecorder, PipelineStats, Queue, Timing};

/// Decoded frames that may wait for the filter thread.
const FRAMES_QUEUED: usize = 4;
/// Items (frames and packets) that a channel holds; audio between two frames fits many times over.
const ITEMS_QUEUED: usize = 256;

/// What travels from stage to stage.
#[expect(clippy::large_enum_variant, reason = "boxing the frame would cost an allocation per frame")]
pub enum Item {
    /// A decoded or filtered picture.
    Frame(Frame),
    /// A packet of another stream, to be copied.
    Packet(Packet),
    /// No more.
    End,
}

/// Produces items; lives in the decode thread.
pub trait Source: Send {
    /// The next frame or copied packet; `Item::End` once, at the end or when cancelled.
    ///
    /// # Errors
    /// A read or decode error that ends the run. Damage that can be skipped is counted, not returned.
    fn next(&mut self) -> Result<Item>;
}

/// Turns frames into packets; lives in the encode thread.
pub trait Encoder: Send {
    /// Encodes one frame, handing each finished packet to `sink` in order.
    ///
    /// # Errors
    /// The encoder's or the sink's.
    fn encode(&mut self, frame: Frame, sink: &mut dyn FnMut(Packet) -> Result<()>) -> Result<()>;

    /// Flushes delayed packets. Called once, after the last frame.
    ///
    /// # Errors
    /// As for [`Encoder::encode`].
    fn finish(&mut self, sink: &mut dyn FnMut(Packet) -> Result<()>) -> Result<()>;
}

/// Writes packets to the output; lives in the encode thread.
pub trait Muxer: Send {
    /// Writes one packet, of the encoder or copied.
    ///
    /// # Errors
    /// The write failed (disk full, peer gone).
    fn write(&mut self, packet: Packet) -> Result<()>;

    /// Writes the trailer, flushes and closes. Nothing is renamed here: whoever opened the output commits it.
    ///
    /// # Errors
    /// The write failed.
    fn finish(&mut self) -> Result<()>;
}

/// `null:`: takes frames and packets, keeps nothing.
pub struct Discard;

impl Encoder for Discard {
    fn encode(&mut self, _frame: Frame, _sink: &mut dyn FnMut(Packet) -> Result<()>) -> Result<()> {
        Ok(())
    }

    fn finish(&mut self, _sink: &mut dyn FnMut(Packet) -> Result<()>) -> Result<()> {
        Ok(())
    }
}

impl Muxer for Discard {
    fn write(&mut self, _packet: Packet) -> Result<()> {
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

/// Everything a run needs, opened and ready; each part moves whole into its thread.
pub struct Stages {
    /// For the decode thread.
    pub source: Box<dyn Source>,
    /// For the filter thread.
    pub submitter: Box<dyn Submitter>,
    /// For the encode thread.
    pub collector: Box<dyn Collector>,
    /// For the encode thread.
    pub encoder: Box<dyn Encoder>,
    /// For the encode thread.
    pub muxer: Box<dyn Muxer>,
}

/// What travels from the filter to the encode thread.
enum Due {
    Frame(Ticket),
    Packet(Packet),
    End,
}

/// The first error of any stage, and the flag that makes blocked neighbours give up.
struct FirstCause {
    error: Mutex<Option<Error>>,
    cancel: Cancel,
}

impl FirstCause {
    fn record(&self, error: Error) {
        if error.kind() != Kind::Disconnected {
            let mut first = self.error.lock().unwrap_or_else(PoisonError::into_inner);
            first.get_or_insert(error);
        }
        self.cancel.abort();
    }
}

/// Runs the stages to the end of the source (or to the cancel request), joins the threads and returns the timing.
///
/// # Errors
/// The first error that any stage met; a stage's panic is one too.
pub fn run(stages: Stages, stats: &Arc<PipelineStats>, cancel: &Cancel) -> Result<Timing> {
    run_paced(stages, None, stats, cancel)
}

/// As [`run`], with items held back until it is time for them.
///
/// # Errors
/// As for [`run`].
pub fn run_paced(stages: Stages, mut pace: Option<Pace>, stats: &Arc<PipelineStats>, cancel: &Cancel) -> Result<Timing> {
    let Stages { mut source, mut submitter, mut collector, mut encoder, mut muxer } = stages;
    let cause = Arc::new(FirstCause { error: Mutex::new(None), cancel: cancel.clone() });
    let (decoded_tx, decoded_rx) = bounded::<Item>(ITEMS_QUEUED);
    let (due_tx, due_rx) = bounded::<Due>(ITEMS_QUEUED);
    // A frame needs a token to enter the first queue, packets do not: frames are many megabytes, packets are not.
    let (token_tx, token_rx) = bounded::<()>(FRAMES_QUEUED);
    for _ in 0..FRAMES_QUEUED {
        // Cannot fail: the channel has exactly this capacity and both ends are alive.
        let _ = token_tx.try_send(());
    }

    let clock = Arc::clone(stats);
    let flag = cancel.clone();
    let decode = stage("decode", &cause, move || {
        let mut hold = |item: &Item| pace.as_mut().map_or((), |pace| pace.hold(item, &flag));
        decode_loop(source.as_mut(), (&decoded_tx, &token_rx), &mut hold, &clock)
    })?;
    let clock = Arc::clone(stats);
    let filter = stage("filter", &cause, move || filter_loop(submitter.as_mut(), &decoded_rx, &token_tx, &due_tx, &clock))?;
    let clock = Arc::clone(stats);
    let started = Instant::now();
    let encode = stage("encode", &cause, move || {
        let mut sink = Sink { collector: collector.as_mut(), encoder: encoder.as_mut(), muxer: muxer.as_mut(), stats: &clock };
        sink.run(&due_rx, started)
    })?;

    // Join in the order of the flow; an earlier stage's end is what lets the later ones finish.
    let ended = (join(decode), join(filter), join(encode));
    if let Some(error) = cause.error.lock().unwrap_or_else(PoisonError::into_inner).take() {
        return Err(error);
    }
    match ended {
        (Some(()), Some(()), Some(timing)) => Ok(timing),
        // A stage ended by "neighbour hung up" alone: nobody recorded a cause, so this is a fault of the pipeline itself.
        _ => Err(Error::failed("the pipeline stopped", "a stage ended before its neighbours")),
    }
}

fn decode_loop(
    source: &mut dyn Source,
    (out, tokens): (&Sender<Item>, &Receiver<()>),
    hold: &mut dyn FnMut(&Item),
    stats: &PipelineStats,
) -> Result<()> {
    loop {
        let frame_of = |item: &Result<Item>| match item {
            Ok(Item::Frame(frame)) => Some(frame.seq),
            Ok(Item::Packet(_) | Item::End) | Err(_) => None,
        };
        let item = stats.decode.busy_on("decode", || source.next(), frame_of)?;
        stats.decode.wait(|| hold(&item));
        match &item {
            Item::Frame(_) => {
                stats.decode.wait(|| tokens.recv()).map_err(|_| Error::disconnected("decode"))?;
                stats.frames_in.fetch_add(1, Ordering::Relaxed);
            }
            Item::Packet(_) => {
                stats.packets_copied.fetch_add(1, Ordering::Relaxed);
            }
            Item::End => {}
        }
        let end = matches!(item, Item::End);
        stats.decode.wait(|| out.send(item).map_err(|_| Error::disconnected("decode")))?;
        stats.queued(Queue::Decoded, out.len());
        if end {
            return Ok(());
        }
    }
}

fn filter_loop(
    submitter: &mut dyn Submitter,
    input: &Receiver<Item>,
    tokens: &Sender<()>,
    out: &Sender<Due>,
    stats: &PipelineStats,
) -> Result<()> {
    let gone = |_| Error::disconnected("filter");
    let mut due = Vec::with_capacity(8);
    let forward = |due: &mut Vec<Ticket>| -> Result<()> {
        for ticket in due.drain(..) {
            stats.filter.wait(|| out.send(Due::Frame(ticket))).map_err(gone)?;
        }
        stats.queued(Queue::Due, out.len());
        Ok(())
    };
    loop {
        match stats.filter.wait(|| input.recv()).map_err(|_| Error::disconnected("filter"))? {
            Item::Frame(frame) => {
                // The decoder may have ended already: its token is then simply not needed any more.
                let _ = tokens.try_send(());
                let seq = frame.seq;
                stats.filter.busy_on("submit", || submitter.submit(frame, &mut due), |_| Some(seq))?;
                forward(&mut due)?;
            }
            Item::Packet(packet) => stats.filter.wait(|| out.send(Due::Packet(packet))).map_err(gone)?,
            Item::End => {
                stats.filter.busy("finish", || submitter.finish(&mut due))?;
                forward(&mut due)?;
                return out.send(Due::End).map_err(gone);
            }
        }
    }
}

struct Sink<'a> {
    collector: &'a mut dyn Collector,
    encoder: &'a mut dyn Encoder,
    muxer: &'a mut dyn Muxer,
    stats: &'a PipelineStats,
}

impl Sink<'_> {
    fn run(&mut self, input: &Receiver<Due>, started: Instant) -> Result<Timing> {
        let stats = self.stats;
        let mut latency = LatencyRecorder::new(started);
        loop {
            match stats.encode.wait(|| input.recv()).map_err(|_| Error::disconnected("encode"))? {
                Due::Frame(ticket) => {
                    let frame = stats.encode.wait(|| self.collector.wait(ticket))?;
                    let born = frame.born;
                    let muxer = &mut *self.muxer;
                    let seq = frame.seq;
                    stats.encode.busy_on("encode", || self.encoder.encode(frame, &mut |packet| muxer.write(packet)), |_| Some(seq))?;
                    latency.record(born, Instant::now());
                    stats.frames_out.fetch_add(1, Ordering::Relaxed);
                }
                Due::Packet(packet) => stats.encode.busy("mux", || self.muxer.write(packet))?,
                Due::End => {
                    let muxer = &mut *self.muxer;
                    stats.encode.busy("flush", || self.encoder.finish(&mut |packet| muxer.write(packet)))?;
                    stats.encode.busy("trailer", || self.muxer.finish())?;
                    // The flush is part of the job: a run is over when its last packet is written.
                    latency.finish(Instant::now());
                    return Ok(latency.summary());
                }
            }
        }
    }
}

/// Spawns a named thread whose error or panic is recorded as a cause.
fn stage<T: Send + 'static>(
    name: &'static str,
    cause: &Arc<FirstCause>,
    body: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<JoinHandle<Option<T>>> {
    let shared = Arc::clone(cause);
    let spawned = thread::Builder::new().name(name.to_owned()).spawn(move || {
        // The state behind the closure is dropped right after a panic, so nobody sees it broken.
        let outcome = catch_unwind(AssertUnwindSafe(body))
            .unwrap_or_else(|panic| Err(Error::failed(format!("the {name} stage broke down"), panic_text(&panic))));
        outcome.map_err(|error| shared.record(error)).ok()
    });
    spawned.map_err(|e| {
        cause.cancel.abort();
        Error::failed(format!("cannot start the {name} thread"), e)
    })
}

fn join<T>(handle: JoinHandle<Option<T>>) -> Option<T> {
    handle.join().ok().flatten()
}

/// What a panic said.
fn panic_text(panic: &Box<dyn std::any::Any + Send>) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned()).or_else(|| panic.downcast_ref::<String>().cloned());
    format!("internal error: {}", text.unwrap_or_else(|| "panic".to_owned()))
}

/// Spawns a detached helper thread (signals, progress); the only place outside the CPU backend that does.
///
/// # Errors
/// The system refused the thread.
pub fn spawn_helper(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    thread::Builder::new().name(name.to_owned()).spawn(body).map_err(|e| Error::failed(format!("cannot start the {name} thread"), e))
}

/// Runs `beside` on a thread of its own while `here` runs on the caller's, and returns what both returned.
///
/// # Errors
/// The system refused the thread, or `beside` panicked.
pub fn together<A: Send, B>(name: &str, beside: impl FnOnce() -> A + Send, here: impl FnOnce() -> B) -> Result<(A, B)> {
    thread::scope(|scope| {
        let thread = thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, beside);
        let thread = thread.map_err(|e| Error::failed(format!("cannot start the {name} thread"), e))?;
        let b = here();
        let a = thread.join().map_err(|panic| Error::failed(format!("the {name} thread broke down"), panic_text(&panic)))?;
        Ok((a, b))
    })
}

/// Steps of niceness by which decoding yields to what comes after it.
const DECODE_NICENESS: i32 = 5;

/// Runs `open` on a thread that yields the cores to others; threads that `open` starts inherit that.
///
/// For decoders: their threads run ahead of the encoder, and where both are software they take its cores although the encoder
/// is what limits. Work drains from the end then: the decoder gets what the encoder leaves, and all of it when it is the one that limits.
/// (16 cores, H.264 1080p to x264 ultrafast: 457 and 487 frames/s without, 508 and 519 with.)
///
/// # Errors
/// The system refused the thread, or `open` panicked.
pub fn yielding<T: Send>(open: impl FnOnce() -> T + Send) -> Result<T> {
    let niced = move || {
        // Of the calling thread alone, on Linux. A system that refuses leaves it as it was, which only costs speed.
        let _ = rustix::process::nice(DECODE_NICENESS);
        open()
    };
    together("open", niced, || ()).map(|(opened, ())| opened)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn niceness() -> i32 {
        rustix::process::getpriority_process(None).unwrap_or(i32::MIN)
    }

    #[test]
    fn both_sides_run_and_a_panic_is_an_error() {
        assert_eq!(together("test", || 1, || 2).ok(), Some((1, 2)));
        let error = together("test", || -> () { std::panic::resume_unwind(Box::new("on purpose")) }, || ());
        assert!(error.is_err_and(|e| e.to_string().contains("on purpose")));
    }

    #[test]
    fn only_the_opened_threads_yield() {
        let before = niceness();
        let inherited = yielding(|| thread::spawn(niceness).join().unwrap_or(i32::MIN)).unwrap_or(i32::MIN);
        assert_eq!(inherited, (before + DECODE_NICENESS).min(19));
        assert_eq!(niceness(), before);
    }
}
