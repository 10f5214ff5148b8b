//! What the tests add to the program's independent reference (`convoy::reference`): plans of single operations, frames in
//! awkward memory, and a way to run frames through a device.
#![allow(dead_code, unused_imports, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod gpu;
pub mod operations;

use std::collections::VecDeque;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use convoy::backend::{BuildOptions, Device};
use convoy::error::Result;
use convoy::filter::Border;
use convoy::filter::plan::{Plan, PlaneOp, Step};
use convoy::frame::{Frame, FrameLayout, FrameMem, Guard, MAX_PLANES, PlaneLayout, Shape};
use convoy::pool::{Budget, Heap, HostMem};
pub use convoy::reference::{Content, Noise, Picture, Tally, Tolerance, check, expect, round};

/// Frames as decoders give them.
trait Awkward {
    fn foreign(&self, seq: u64) -> Frame;
    fn shared(&self, seq: u64) -> Frame;
}

impl Awkward for Picture {
    /// The picture in foreign memory: odd pitches, odd addresses, each plane on its own.
    fn foreign(&self, seq: u64) -> Frame {
        let mut layout = FrameLayout::packed(self.shape).unwrap();
        let sample = self.shape.format.sample();
        let mut bytes = 1;
        let mut inner = layout.planes;
        for (index, plane) in inner.iter_mut().enumerate().take(self.planes.len()) {
            plane.pitch = plane.row_bytes(sample) + 2 * index + 1;
            plane.offset = bytes;
            bytes += plane.pitch * plane.height + 7;
        }
        let mut memory = Box::new(vec![0x5A; bytes]);
        self.write(&mut memory, &inner);
        let mut planes = [std::ptr::null(); MAX_PLANES];
        for (index, pointer) in planes.iter_mut().enumerate().take(self.planes.len()) {
            *pointer = memory.as_ptr().wrapping_add(inner[index].offset);
            layout.planes[index] = PlaneLayout { offset: 0, ..inner[index] };
        }
        layout.slab_bytes = 0;
        let guard = guard(memory);
        self.wrap(layout, FrameMem::Foreign { planes, guard }, seq)
    }

    /// The picture in a shared slab whose planes start in the middle, as a cropped decoder's do.
    fn shared(&self, seq: u64) -> Frame {
        let mut layout = FrameLayout::padded(self.shape, self.shape.width + 37, self.shape.height + 5).unwrap();
        for (index, plane) in layout.planes.iter_mut().enumerate().take(self.planes.len()) {
            plane.offset += 2 * plane.pitch + 3 * (index + 1);
        }
        let mut memory = Box::new(vec![0x5A; layout.slab_bytes]);
        self.write(&mut memory, &layout.planes);
        let base = NonNull::new(memory.as_mut_ptr()).unwrap();
        let bytes = memory.len();
        self.wrap(layout, FrameMem::Shared { base, bytes, pinned: false, guard: guard(memory) }, seq)
    }
}

// A boxed vector is one thin pointer, as the guard wants it.
#[allow(clippy::box_collection)]
fn guard(memory: Box<Vec<u8>>) -> Guard {
    unsafe fn release(object: NonNull<c_void>) {
        // SAFETY: `object` is the box leaked below, released once.
        drop(unsafe { Box::from_raw(object.as_ptr().cast::<Vec<u8>>()) });
    }
    let object = NonNull::new(Box::into_raw(memory).cast::<c_void>()).unwrap();
    // SAFETY: a boxed vector may be dropped from any thread.
    unsafe { Guard::new(object, release) }
}

/// A plan of one step that does `op` to every plane.
pub fn plan(shape: Shape, border: Border, op: PlaneOp) -> Plan {
    chain(shape, &[(border, op)])
}

/// A plan of several steps; pooling changes the shape on the way.
pub fn chain(shape: Shape, ops: &[(Border, PlaneOp)]) -> Plan {
    let mut input = shape;
    let mut step = |(border, op): &(Border, PlaneOp)| {
        let output = shape_after(op, input);
        let label = format!("{op:?}").chars().take(60).collect();
        let planes = [op.clone(), op.clone(), op.clone(), op.clone()];
        Step { label, border: *border, variant: None, input: std::mem::replace(&mut input, output), output, planes }
    };
    Plan { input: shape, steps: ops.iter().map(&mut step).collect() }
}

/// Shape of the frames that a step with `op` writes.
pub fn shape_after(op: &PlaneOp, shape: Shape) -> Shape {
    let PlaneOp::Pool(pool) = op else { return shape };
    let windows = |n: usize| {
        // Counted, not divided: window i is there if its last sample does not pass the pad behind the plane.
        let last = |i: usize| i * pool.stride + pool.dilation * (pool.kernel - 1);
        (1..).take_while(|&i| last(i) < n + 2 * pool.pad).count() + 1
    };
    Shape { width: windows(shape.width), height: windows(shape.height), ..shape }
}

/// Options for a test: two lanes, unlimited memory.
pub fn options(variant: Option<&str>, threads: Option<usize>) -> BuildOptions {
    BuildOptions { lanes: Some(2), threads, variant: variant.map(str::to_owned), budget: Budget::new(usize::MAX) }
}

/// Runs frames through build, submit and wait, in order. The output slabs are poisoned with 0xA5 first: every lane's buffer
/// is filled by running the first frame `lanes` times, overwritten, and given back to its pool.
///
/// # Errors
/// The device's.
pub fn run(device: &dyn Device, plan: &Plan, options: &BuildOptions, pictures: &[Picture]) -> Result<Vec<Frame>> {
    let mut built = device.build(plan, options)?;
    let lanes = options.lanes.unwrap_or(2);
    let mut due = Vec::new();
    let mut spoiled = Vec::new();
    for _ in 0..if plan.steps.is_empty() { 0 } else { lanes } {
        let Some(first) = pictures.first() else { break };
        built.submitter.submit(first.frame(device.host_memory(), 0)?, &mut due)?;
        for ticket in due.drain(..) {
            let mut frame = built.collector.wait(ticket)?;
            let FrameMem::Slab(lease) = &mut frame.mem else { panic!("an output frame must own its slab") };
            lease.bytes_mut().fill(0xA5);
            spoiled.push(frame);
        }
    }
    drop(spoiled);
    let mut waiting = VecDeque::new();
    let mut out = Vec::new();
    for (seq, picture) in pictures.iter().enumerate() {
        // All three kinds of memory take turns.
        let frame = match seq % 3 {
            0 => picture.frame(device.host_memory(), seq as u64)?,
            1 => picture.foreign(seq as u64),
            _ => picture.shared(seq as u64),
        };
        built.submitter.submit(frame, &mut due)?;
        waiting.extend(due.drain(..));
        while waiting.len() >= lanes {
            out.push(built.collector.wait(waiting.pop_front().unwrap())?);
        }
    }
    built.submitter.finish(&mut due)?;
    waiting.extend(due.drain(..));
    for ticket in waiting {
        out.push(built.collector.wait(ticket)?);
    }
    assert_eq!(out.len(), pictures.len(), "every frame comes out once");
    for (seq, frame) in out.iter().enumerate() {
        assert_eq!((frame.seq, frame.time.pts), (seq as u64, Some(1000 + 40 * seq as i64)), "time and position are carried over");
    }
    Ok(out)
}

/// Heap memory, for frames that no device needs.
pub fn heap() -> Arc<dyn HostMem> {
    Arc::new(Heap)
}
