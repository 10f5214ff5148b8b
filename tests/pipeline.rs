//! The threads and channels, with a fake device, codec and file: order, bounds, cancel, first cause.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test is a panic")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use convoy::backend::{Collector, Submitter, Ticket};
use convoy::cancel::Cancel;
use convoy::error::{Error, Result};
use convoy::frame::{Frame, FrameLayout, FrameMem, FrameTime, PixelFormat, Shape};
use convoy::media::Packet;
use convoy::pipeline::{self, Encoder, Item, Muxer, Source, Stages};
use convoy::pool::{Budget, Heap, Pool};
use convoy::stats::{PipelineStats, Timing};
use crossbeam_channel::{Receiver, Sender, bounded};

/// Stream index of copied packets; encoded ones have 0.
const AUDIO: usize = 1;
const LANES: usize = 3;
/// Nothing here takes longer unless something hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// Where and how a stage breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    Fail(&'static str, u64),
    Panic(&'static str, u64),
}

impl Fault {
    fn check(self, stage: &str, at: u64) -> Result<()> {
        match self {
            Fault::Fail(s, n) if s == stage && n == at => Err(Error::failed(format!("{stage} broke"), "planted")),
            Fault::Panic(s, n) if s == stage && n == at => panic!("{stage} panicked on purpose"),
            _ => Ok(()),
        }
    }
}

struct FakeSource {
    pool: Pool,
    layout: FrameLayout,
    frames: u64,
    packets_between: u64,
    frame: u64,
    packet: u64,
    fault: Fault,
    cancel: Cancel,
    /// After the last frame, block until cancelled (a camera that went silent).
    silent_end: bool,
    delivered: Arc<AtomicUsize>,
}

impl Source for FakeSource {
    fn next(&mut self) -> Result<Item> {
        if self.cancel.requested() {
            return Ok(Item::End);
        }
        if self.packet < self.frame * self.packets_between {
            self.packet += 1;
            return Ok(Item::Packet(Packet::empty(AUDIO, self.packet as i64 - 1)?));
        }
        if self.frame == self.frames {
            while self.silent_end && !self.cancel.requested() {
                std::thread::sleep(Duration::from_millis(2));
            }
            return Ok(Item::End);
        }
        self.fault.check("source", self.frame)?;
        let mut lease = self.pool.lease()?;
        lease.bytes_mut().fill(self.frame as u8);
        let seq = self.frame;
        self.frame += 1;
        self.delivered.fetch_add(1, Ordering::SeqCst);
        let time = FrameTime { pts: Some(seq as i64), duration: 1 };
        Ok(Item::Frame(Frame { layout: self.layout, time, seq, born: Instant::now(), mem: FrameMem::Slab(lease) }))
    }
}

/// A device that hands frames back unchanged, `LANES` in flight.
struct FakeSubmitter {
    free: Receiver<usize>,
    busy: Sender<Frame>,
    fault: Fault,
    swap: Option<u64>,
    held: Option<Frame>,
}

impl Submitter for FakeSubmitter {
    fn submit(&mut self, frame: Frame, due: &mut Vec<Ticket>) -> Result<()> {
        self.fault.check("submit", frame.seq)?;
        let lane = self.free.recv().map_err(|_| Error::disconnected("submit"))?;
        due.push(Ticket { lane, seq: frame.seq });
        // Swapping two frames is the planted bug that the order check must see.
        if self.swap == Some(frame.seq) {
            self.held = Some(frame);
            return Ok(());
        }
        self.busy.send(frame).map_err(|_| Error::disconnected("submit"))?;
        match self.held.take() {
            Some(held) => self.busy.send(held).map_err(|_| Error::disconnected("submit")),
            None => Ok(()),
        }
    }

    fn finish(&mut self, _due: &mut Vec<Ticket>) -> Result<()> {
        Ok(())
    }
}

struct FakeCollector {
    busy: Receiver<Frame>,
    free: Sender<usize>,
    fault: Fault,
}

impl Collector for FakeCollector {
    fn wait(&mut self, ticket: Ticket) -> Result<Frame> {
        self.fault.check("collect", ticket.seq)?;
        let frame = self.busy.recv().map_err(|_| Error::disconnected("collect"))?;
        // The submitter leaves as soon as it has submitted the last frame; nobody needs the lane then.
        let _ = self.free.send(ticket.lane);
        Ok(frame)
    }
}

/// Delays two frames, as encoders do, and lets a test hold it up.
struct FakeEncoder {
    delayed: std::collections::VecDeque<u64>,
    fault: Fault,
    gate: Option<mpsc::Receiver<()>>,
}

impl Encoder for FakeEncoder {
    fn encode(&mut self, frame: Frame, sink: &mut dyn FnMut(Packet) -> Result<()>) -> Result<()> {
        if let Some(gate) = self.gate.take() {
            let _ = gate.recv();
        }
        self.fault.check("encode", frame.seq)?;
        assert_eq!(frame.row(0, 0)[0], frame.seq as u8, "a slab was lent twice");
        self.delayed.push_back(frame.seq);
        if self.delayed.len() > 2 { sink(Packet::empty(0, self.delayed.pop_front().unwrap() as i64)?) } else { Ok(()) }
    }

    fn finish(&mut self, sink: &mut dyn FnMut(Packet) -> Result<()>) -> Result<()> {
        self.fault.check("flush", 0)?;
        self.delayed.drain(..).try_for_each(|seq| sink(Packet::empty(0, seq as i64)?))
    }
}

#[derive(Clone, Default)]
struct Written {
    packets: Arc<Mutex<Vec<(usize, i64)>>>,
    trailer: Arc<AtomicUsize>,
}

impl Written {
    fn of(&self, stream: usize) -> Vec<i64> {
        self.packets.lock().unwrap().iter().filter(|p| p.0 == stream).map(|p| p.1).collect()
    }
}

struct FakeMuxer {
    written: Written,
    fault: Fault,
}

impl Muxer for FakeMuxer {
    fn write(&mut self, packet: Packet) -> Result<()> {
        let mut packets = self.written.packets.lock().unwrap();
        self.fault.check("write", packets.len() as u64)?;
        packets.push((packet.stream(), packet.pts().unwrap()));
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.fault.check("trailer", 0)?;
        self.written.trailer.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

struct Setup {
    frames: u64,
    packets_between: u64,
    fault: Fault,
    silent_end: bool,
    swap: Option<u64>,
    gate: Option<mpsc::Receiver<()>>,
}

impl Default for Setup {
    fn default() -> Self {
        Self { frames: 20, packets_between: 2, fault: Fault::None, silent_end: false, swap: None, gate: None }
    }
}

struct Running {
    result: mpsc::Receiver<Result<Timing>>,
    written: Written,
    cancel: Cancel,
    stats: Arc<PipelineStats>,
    delivered: Arc<AtomicUsize>,
    budget: Arc<Budget>,
}

impl Running {
    fn result(&self) -> Result<Timing> {
        self.result.recv_timeout(PATIENCE).expect("the pipeline hangs")
    }
}

fn start(setup: Setup) -> Running {
    let layout = FrameLayout::packed(Shape { format: PixelFormat::gray(8), width: 16, height: 4 }).unwrap();
    let budget = Budget::new(1 << 24);
    let pool = Pool::new(Arc::new(Heap), layout.slab_bytes, Arc::clone(&budget));
    let (cancel, written, delivered) = (Cancel::new(), Written::default(), Arc::new(AtomicUsize::new(0)));
    let (free_tx, free_rx) = bounded(LANES);
    let (busy_tx, busy_rx) = bounded(LANES);
    (0..LANES).for_each(|lane| free_tx.send(lane).unwrap());
    let fault = setup.fault;
    let source = FakeSource {
        pool,
        layout,
        frames: setup.frames,
        packets_between: setup.packets_between,
        frame: 0,
        packet: 0,
        fault,
        cancel: cancel.clone(),
        silent_end: setup.silent_end,
        delivered: Arc::clone(&delivered),
    };
    let stages = Stages {
        source: Box::new(source),
        submitter: Box::new(FakeSubmitter { free: free_rx, busy: busy_tx, fault, swap: setup.swap, held: None }),
        collector: Box::new(FakeCollector { busy: busy_rx, free: free_tx, fault }),
        encoder: Box::new(FakeEncoder { delayed: Default::default(), fault, gate: setup.gate }),
        muxer: Box::new(FakeMuxer { written: written.clone(), fault }),
    };
    let stats = Arc::new(PipelineStats::default());
    let (tx, result) = mpsc::channel();
    let (run_stats, run_cancel) = (Arc::clone(&stats), cancel.clone());
    std::thread::spawn(move || tx.send(pipeline::run(stages, &run_stats, &run_cancel)));
    Running { result, written, cancel, stats, delivered, budget }
}

fn in_order(written: &Written, frames: u64, packets: u64) -> bool {
    written.of(0) == (0..frames as i64).collect::<Vec<_>>() && written.of(AUDIO) == (0..packets as i64).collect::<Vec<_>>()
}

#[test]
fn frames_and_packets_arrive_complete_and_in_order() {
    let run = start(Setup::default());
    let timing = run.result().unwrap();
    assert_eq!(timing.frames, 20);
    assert!(in_order(&run.written, 20, 40), "{:?}", run.written.packets.lock().unwrap());
    assert_eq!(run.written.trailer.load(Ordering::SeqCst), 1);
    // Packets keep their place between frames: the first two follow the first frame, long before the last one.
    let order = run.written.packets.lock().unwrap().clone();
    let place = |p: (usize, i64)| order.iter().position(|q| *q == p).unwrap();
    assert!(place((AUDIO, 0)) < place((0, 5)) && place((0, 5)) < place((AUDIO, 39)));
    assert_eq!(run.budget.used(), 0, "slabs were leaked");
}

#[test]
fn the_order_check_sees_two_swapped_frames() {
    let run = start(Setup { swap: Some(7), ..Setup::default() });
    // The fake encoder's own check of the slab passes; only the order is wrong.
    run.result().unwrap();
    assert!(!in_order(&run.written, 20, 40));
}

#[test]
fn ten_thousand_packets_between_frames_do_not_deadlock() {
    let run = start(Setup { frames: 3, packets_between: 10_000, ..Setup::default() });
    run.result().unwrap();
    assert!(in_order(&run.written, 3, 30_000));
}

#[test]
fn an_empty_input_still_gets_its_trailer() {
    let run = start(Setup { frames: 0, ..Setup::default() });
    assert_eq!(run.result().unwrap().frames, 0);
    assert_eq!(run.written.trailer.load(Ordering::SeqCst), 1);
}

#[test]
fn a_slow_encoder_holds_the_source_back() {
    let (open, gate) = mpsc::channel();
    let run = start(Setup { frames: 500, packets_between: 0, gate: Some(gate), ..Setup::default() });
    std::thread::sleep(Duration::from_millis(300));
    // Four queued, one in each lane, one in the hands of each thread.
    let ahead = run.delivered.load(Ordering::SeqCst);
    assert!((LANES + 4..=LANES + 4 + 3).contains(&ahead), "{ahead} frames were decoded ahead of a stopped encoder");
    open.send(()).unwrap();
    assert_eq!(run.result().unwrap().frames, 500);
}

#[test]
fn every_stages_error_stops_all_and_is_the_one_reported() {
    for (stage, at) in [("source", 5), ("submit", 5), ("collect", 5), ("encode", 5), ("flush", 0), ("write", 9), ("trailer", 0)] {
        let run = start(Setup { fault: Fault::Fail(stage, at), ..Setup::default() });
        let error = run.result().unwrap_err().to_string();
        assert_eq!(error, format!("{stage} broke: planted"));
        assert_eq!(run.written.trailer.load(Ordering::SeqCst), 0, "{stage}");
        assert!(run.cancel.aborted());
    }
}

#[test]
fn every_stages_panic_becomes_its_error() {
    for (stage, thread) in [("source", "decode"), ("submit", "filter"), ("collect", "encode"), ("encode", "encode")] {
        let run = start(Setup { fault: Fault::Panic(stage, 5), ..Setup::default() });
        let error = run.result().unwrap_err().to_string();
        assert!(error.contains(&format!("{stage} panicked on purpose")) && error.contains(thread), "{error}");
    }
}

#[test]
fn a_failing_encoder_ends_a_source_that_is_blocked() {
    let run = start(Setup { silent_end: true, fault: Fault::Fail("encode", 19), ..Setup::default() });
    assert!(run.result().unwrap_err().to_string().contains("encode broke"));
}

#[test]
fn a_signal_drains_what_is_in_flight_and_writes_the_trailer() {
    let run = start(Setup { frames: u64::MAX, ..Setup::default() });
    while run.stats.frames_out.load(Ordering::SeqCst) < 10 {
        std::thread::yield_now();
    }
    assert!(run.cancel.request(2));
    let timing = run.result().unwrap();
    let frames = run.written.of(0);
    assert_eq!(timing.frames as usize, frames.len());
    assert_eq!(frames.len(), run.delivered.load(Ordering::SeqCst), "a frame that was decoded was not written");
    assert_eq!(run.written.trailer.load(Ordering::SeqCst), 1);
}
