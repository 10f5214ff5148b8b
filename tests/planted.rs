//! Planted faults: a device that returns a stale buffer, one off by one column, one that skips the last row, one that does
//! nothing, one that hands out frames in the wrong order. None of them may get a time, and `verify` must name each.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test is a panic")]

use std::sync::{Arc, Mutex};

use convoy::backend::cpu::Cpu;
use convoy::backend::{BuildOptions, Built, Collector, Device, Submitter, Ticket};
use convoy::bench::frames::FrameSubject;
use convoy::bench::race::{Clock, Settings, race};
use convoy::error::Result;
use convoy::filter::{self, plan::Plan};
use convoy::frame::{Frame, FrameMem, PixelFormat, Shape};
use convoy::pool::{Budget, Heap, HostMem, Pool};
use convoy::reference::Picture;
use convoy::verify::{Trial, watch};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// Every frame but the first is the one before.
    Stale,
    /// Each row begins one sample too late.
    OffByOneColumn,
    /// The last row keeps what the buffer held.
    LastRowSkipped,
    /// The buffer is handed out as it is.
    DoesNothing,
    /// The input passes unfiltered.
    Unfiltered,
    /// One sample of 10,000 is three code values off.
    OneSample,
}

/// The CPU's results, spoiled on their way out through buffers of its own.
struct Planted(Fault);

impl Device for Planted {
    fn describe(&self) -> String {
        format!("CPU with {:?}", self.0)
    }

    fn name(&self) -> &'static str {
        "planted"
    }

    fn host_memory(&self) -> Arc<dyn HostMem> {
        Arc::new(Heap)
    }

    fn variants(&self, _plan: &Plan) -> Vec<&'static str> {
        vec!["cpu-simd"]
    }

    fn build(&self, plan: &Plan, options: &BuildOptions) -> Result<Built> {
        let built = Cpu.build(plan, options)?;
        let bytes = convoy::frame::FrameLayout::packed(plan.output())?.slab_bytes;
        let pool = Pool::new(Arc::new(Heap), bytes, Budget::new(usize::MAX));
        let inputs = Arc::new(Mutex::new(Vec::new()));
        let submitter = Box::new(Keep { inner: built.submitter, inputs: Arc::clone(&inputs) });
        let collector = Box::new(Spoil { inner: built.collector, fault: self.0, pool, before: None, inputs });
        Ok(Built { submitter, collector, ..built })
    }
}

struct Keep {
    inner: Box<dyn Submitter>,
    inputs: Arc<Mutex<Vec<Picture>>>,
}

impl Submitter for Keep {
    fn submit(&mut self, frame: Frame, due: &mut Vec<Ticket>) -> Result<()> {
        self.inputs.lock().unwrap().push(Picture::read(&frame));
        self.inner.submit(frame, due)
    }

    fn finish(&mut self, due: &mut Vec<Ticket>) -> Result<()> {
        self.inner.finish(due)
    }
}

struct Spoil {
    inner: Box<dyn Collector>,
    fault: Fault,
    pool: Pool,
    before: Option<Picture>,
    inputs: Arc<Mutex<Vec<Picture>>>,
}

impl Collector for Spoil {
    fn wait(&mut self, ticket: Ticket) -> Result<Frame> {
        let good = self.inner.wait(ticket)?;
        let input = self.inputs.lock().unwrap().remove(0);
        let lease = self.pool.lease()?;
        let mut out = Frame { layout: good.layout, time: good.time, seq: good.seq, born: good.born, mem: FrameMem::Slab(lease) };
        let picture = Picture::read(&good);
        let shown = match self.fault {
            Fault::Stale => self.before.replace(picture.clone()).unwrap_or(picture),
            Fault::Unfiltered => input,
            _ => picture,
        };
        let FrameMem::Slab(lease) = &mut out.mem else { unreachable!() };
        let layout = out.layout;
        match self.fault {
            Fault::DoesNothing => {}
            Fault::LastRowSkipped => {
                let mut planes = layout.planes;
                planes.iter_mut().for_each(|p| p.height = p.height.saturating_sub(1));
                let mut short = shown;
                for (plane, samples) in short.planes.iter_mut().enumerate() {
                    samples.truncate(planes[plane].width * planes[plane].height);
                }
                short.write(lease.bytes_mut(), &planes);
            }
            Fault::OffByOneColumn => {
                let mut shifted = shown;
                let widths: Vec<usize> = layout.planes().iter().map(|p| p.width).collect();
                for (samples, width) in shifted.planes.iter_mut().zip(widths) {
                    samples.chunks_exact_mut(width).for_each(|row| row.rotate_right(1));
                }
                shifted.write(lease.bytes_mut(), &layout.planes);
            }
            Fault::OneSample => {
                let mut touched = shown;
                let sample = &mut touched.planes[0][1234];
                *sample += if *sample > 100.0 { -3.0 } else { 3.0 };
                touched.write(lease.bytes_mut(), &layout.planes);
            }
            Fault::None | Fault::Stale | Fault::Unfiltered => shown.write(lease.bytes_mut(), &layout.planes),
        }
        Ok(out)
    }
}

fn plan(graph: &str) -> Plan {
    let shape = Shape { format: PixelFormat::yuv(8, 1, 1), width: 123, height: 77 };
    filter::plan(&filter::parse(graph).unwrap(), shape).unwrap()
}

fn options(lanes: usize) -> BuildOptions {
    BuildOptions { lanes: Some(lanes), threads: Some(1), variant: None, budget: Budget::new(usize::MAX) }
}

const FAULTS: [(Fault, &str); 6] = [
    (Fault::Stale, "plane 0"),
    (Fault::OffByOneColumn, "plane 0, x 0, y 0"),
    (Fault::LastRowSkipped, "x 0, y 76: got 165"),
    (Fault::DoesNothing, "plane 0, x 0, y 0: got 165"),
    (Fault::Unfiltered, "plane 0, x 0, y 0"),
    (Fault::OneSample, "plane 0, x 4, y 10"),
];

#[test]
fn verify_sees_every_fault_with_any_number_of_lanes() {
    let plan = plan("gblur=2");
    let trial = Trial::new(&plan).unwrap();
    let heap: Arc<dyn HostMem> = Arc::new(Heap);
    for lanes in 1..=8 {
        let run = |fault| trial.run(&mut Planted(fault).build(&plan, &options(lanes)).unwrap(), lanes, &heap);
        assert!(run(Fault::None).is_ok(), "{lanes} lanes");
        for (fault, place) in FAULTS {
            let error = run(fault).expect_err(&format!("{fault:?} passed with {lanes} lanes")).to_string();
            assert!(error.contains("differs from the reference") && error.contains(place), "{fault:?}, {lanes} lanes: {error}");
        }
    }
}

/// Time stands still: whoever is timed would never finish warming up, so a refused row shows by the test ending at all.
struct Forbidden;

impl Clock for Forbidden {
    fn now(&self) -> std::time::Duration {
        panic!("a wrong result was timed");
    }
}

#[test]
fn bench_never_times_a_wrong_result() {
    let plan = plan("convolution='1 2 3 2 5 1 3 1 2'");
    for (fault, place) in FAULTS {
        let device = Planted(fault);
        let mut subject = FrameSubject::new(&device, &plan, &options(2), 5).unwrap();
        let error = race(&Forbidden, &mut [&mut subject], &Settings::default()).remove(0).unwrap_err().to_string();
        assert!(error.contains(place), "{fault:?}: {error}");
    }
}

#[test]
fn a_watched_run_ends_at_the_first_wrong_frame() {
    let plan = plan("gblur=2");
    let run = |fault, every| -> Result<String> {
        let (mut built, watch) = watch(Planted(fault).build(&plan, &options(2))?, &plan, every);
        let mut due = Vec::new();
        for seq in 0..10 {
            let picture = Picture::new(plan.input, convoy::reference::Content::Random, seq);
            built.submitter.submit(picture.frame(Arc::new(Heap), seq)?, &mut due)?;
            for ticket in due.drain(..) {
                built.collector.wait(ticket)?;
            }
        }
        Ok(watch.report(false))
    };
    assert!(run(Fault::None, 3).unwrap().contains("verified 4 frames"));
    assert!(run(Fault::Stale, 4).unwrap_err().to_string().contains("frame 4 differs from the reference"));
    for (fault, _) in FAULTS.into_iter().filter(|f| f.0 != Fault::Stale) {
        assert!(run(fault, 1).unwrap_err().to_string().contains("frame 0 differs"), "{fault:?}");
    }
}
