//! Nothing is allocated per frame once the lanes exist: a counting allocator around a whole pipeline.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test is a panic")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use convoy::backend::cpu::Cpu;
use convoy::backend::{BuildOptions, Device};
use convoy::cancel::Cancel;
use convoy::error::Result;
use convoy::frame::Frame;
use convoy::media::Packet;
use convoy::pipeline::{self, Encoder, Muxer, Source, Stages};
use convoy::pool::Budget;
use convoy::stats::PipelineStats;
use convoy::synth::{Synth, SynthSpec};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: forwards to the system allocator unchanged; the counter has no bearing on the memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Frames that may allocate: pools and codecs are filling.
const WARM_UP: u64 = 40;

/// On a busy machine a pool may reach its largest size only after the warm-up: a slab's header and a longer free list for a
/// few slabs at most, against 160 frames that are counted.
const LATE_GROWTH: u64 = 16;

/// Discards frames, notes the number of allocations at the end of the warm-up and at the last frame.
struct Probe {
    at_warm_up: u64,
    at_last: Arc<AtomicU64>,
    /// Plants an allocation per frame, to see the check fail.
    leaky: bool,
}

impl Encoder for Probe {
    fn encode(&mut self, frame: Frame, _sink: &mut dyn FnMut(Packet) -> Result<()>) -> Result<()> {
        if self.leaky {
            std::hint::black_box(Box::new(frame.seq));
        }
        let now = ALLOCATIONS.load(Ordering::Relaxed);
        if frame.seq == WARM_UP {
            self.at_warm_up = now;
        }
        self.at_last.store(now - self.at_warm_up, Ordering::Relaxed);
        Ok(())
    }

    fn finish(&mut self, _sink: &mut dyn FnMut(Packet) -> Result<()>) -> Result<()> {
        Ok(())
    }
}

impl Muxer for Probe {
    fn write(&mut self, _packet: Packet) -> Result<()> {
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }
}

fn allocations_after_warm_up(
    graph: &str,
    source: impl FnOnce(&dyn Device, &Arc<Budget>, &Cancel) -> (Box<dyn Source>, convoy::frame::Shape),
    leaky: bool,
) -> u64 {
    let device = Cpu::new();
    let (budget, cancel) = (Budget::new(1 << 30), Cancel::new());
    let (source, shape) = source(&device, &budget, &cancel);
    let plan = convoy::filter::plan(&convoy::filter::parse(graph).unwrap(), shape).unwrap();
    let options = BuildOptions { lanes: None, threads: Some(2), variant: None, budget };
    let built = device.build(&plan, &options).unwrap();
    let at_last = Arc::new(AtomicU64::new(u64::MAX));
    let probe = || Probe { at_warm_up: 0, at_last: Arc::clone(&at_last), leaky };
    let stages =
        Stages { source, submitter: built.submitter, collector: built.collector, encoder: Box::new(probe()), muxer: Box::new(probe()) };
    let timing = pipeline::run(stages, &Arc::new(PipelineStats::default()), &cancel).unwrap();
    assert_eq!(timing.frames, 200);
    at_last.load(Ordering::Relaxed)
}

fn synth(device: &dyn Device, budget: &Arc<Budget>, cancel: &Cancel) -> (Box<dyn Source>, convoy::frame::Shape) {
    let spec = SynthSpec::parse("320x180@25").unwrap();
    (Box::new(Synth::new(spec, Some(200), device.host_memory(), Arc::clone(budget), cancel.clone()).unwrap()), spec.shape)
}

/// One test, so that no other thread of this binary allocates meanwhile.
#[test]
fn no_frame_costs_an_allocation() {
    for graph in ["gblur=2", "unsharp,boxblur=3:2,sobel", "convolution='1 2 3 4 5 6 7 8 9:1 2 3 4 5 6 7 8 9'"] {
        let allocations = allocations_after_warm_up(graph, synth, false);
        assert!(allocations <= LATE_GROWTH, "{graph}: {allocations} allocations in 160 frames");
    }
    assert!(allocations_after_warm_up("gblur=2", synth, true) >= 200 - 1 - WARM_UP, "the counter does not count");
}
