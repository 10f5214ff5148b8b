//! Interlaced video, field by field: every frame goes through the filters as two pictures of half the height and comes out
//! woven together again. The fields are views of the frame (every other row), so nothing is copied on the way in.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use crossbeam_channel::{Receiver, Sender, unbounded};

use super::{BuildOptions, Built, Collector, Submitter, Ticket};
use crate::error::{Error, Result};
use crate::frame::{Frame, FrameLayout, FrameMem, Guard, MAX_PLANES, Shape};
use crate::pool::{Budget, HostMem, Pool};
use crate::stats::DeviceStats;

/// The shape of one field; None when the rows of some plane cannot be shared out evenly.
pub fn field_shape(frame: Shape) -> Option<Shape> {
    let rows = 2 << frame.format.chroma_shift_y;
    frame.height.is_multiple_of(rows).then_some(Shape { height: frame.height / 2, ..frame })
}

/// The shape of two woven fields; None when their rows do not interleave.
pub fn frame_shape(field: Shape) -> Option<Shape> {
    Some(Shape { height: field.height * 2, ..field }).filter(|&frame| field_shape(frame) == Some(field))
}

/// The options for lanes that carry fields: both fields of a frame are on their way before the first is collected.
pub fn options(options: &BuildOptions) -> BuildOptions {
    BuildOptions { lanes: options.lanes.map(|lanes| 2 * lanes), ..options.clone() }
}

/// Makes lanes that filter fields take and give frames, the latter of shape `output`.
///
/// # Errors
/// The size cannot be laid out.
pub fn weave(built: Built, output: Shape, mem: Arc<dyn HostMem>, budget: Arc<Budget>) -> Result<Built> {
    let layout = FrameLayout::packed(output)?;
    let pool = Pool::new(mem, layout.slab_bytes, budget);
    let (tickets, pairs) = unbounded();
    let submitter = Split { inner: built.submitter, tickets, first: None, due: Vec::with_capacity(8) };
    let collector = Weave { inner: built.collector, pairs, pool, layout, stats: Arc::clone(&built.stats) };
    Ok(Built { submitter: Box::new(submitter), collector: Box::new(collector), ..built })
}

struct Split {
    inner: Box<dyn Submitter>,
    tickets: Sender<[Ticket; 2]>,
    /// The ticket of a first field whose second one is not due yet.
    first: Option<Ticket>,
    due: Vec<Ticket>,
}

impl Split {
    /// Turns the fields' tickets into the frames'.
    fn pair(&mut self, due: &mut Vec<Ticket>) -> Result<()> {
        for ticket in self.due.drain(..) {
            match self.first.take() {
                None => self.first = Some(ticket),
                Some(first) => {
                    self.tickets.send([first, ticket]).map_err(|_| Error::disconnected("filter"))?;
                    due.push(Ticket { lane: first.lane, seq: first.seq / 2 });
                }
            }
        }
        Ok(())
    }
}

impl Submitter for Split {
    fn submit(&mut self, frame: Frame, due: &mut Vec<Ticket>) -> Result<()> {
        for field in fields(frame)? {
            self.inner.submit(field, &mut self.due)?;
        }
        self.pair(due)
    }

    fn finish(&mut self, due: &mut Vec<Ticket>) -> Result<()> {
        self.inner.finish(&mut self.due)?;
        self.pair(due)
    }
}

/// Both fields of `frame`, the one of the even rows first.
fn fields(frame: Frame) -> Result<[Frame; 2]> {
    let shape = field_shape(frame.layout.shape)
        .ok_or_else(|| Error::failed("cannot filter by field", "internal error: the frame's rows cannot be shared out"))?;
    let views = [0, 1].map(|parity| View::new(&frame, shape, parity));
    let (time, seq, born) = (frame.time, frame.seq, frame.born);
    // Nobody locks it: the views' memory stays where it is for as long as one count is left.
    let kept = Arc::new(Mutex::new(frame));
    let mut parity = 0;
    Ok(views.map(|view| {
        let field = Frame { layout: view.layout, time, seq: 2 * seq + parity, born, mem: view.guarded(&kept) };
        parity += 1;
        field
    }))
}

/// One field of a frame, without what keeps the frame.
struct View {
    layout: FrameLayout,
    place: Place,
}

enum Place {
    Slab { base: NonNull<u8>, bytes: usize, pinned: bool },
    Foreign([*const u8; MAX_PLANES]),
}

impl View {
    fn new(frame: &Frame, shape: Shape, parity: usize) -> Self {
        let mut layout = FrameLayout { shape, ..frame.layout };
        let mut pointers = [std::ptr::null(); MAX_PLANES];
        let foreign = matches!(frame.mem, FrameMem::Foreign { .. });
        let planes = layout.planes.iter_mut().zip(&mut pointers).enumerate().take(shape.format.plane_count());
        for (index, (plane, pointer)) in planes {
            *pointer = frame.plane_ptr(index).wrapping_add(parity * plane.pitch);
            plane.offset += if foreign { 0 } else { parity * plane.pitch };
            plane.height = shape.plane_size(index).1;
            plane.pitch *= 2;
        }
        let slab = match &frame.mem {
            FrameMem::Slab(lease) => NonNull::new(lease.as_ptr()).map(|base| (base, lease.len(), lease.pinned())),
            FrameMem::Shared { base, bytes, pinned, .. } => Some((*base, *bytes, *pinned)),
            FrameMem::Foreign { .. } => None,
        };
        let place = slab.map_or(Place::Foreign(pointers), |(base, bytes, pinned)| Place::Slab { base, bytes, pinned });
        Self { layout, place }
    }

    /// The view's memory with a guard that keeps the frame.
    fn guarded(&self, frame: &Arc<Mutex<Frame>>) -> FrameMem {
        // SAFETY: the address of a counted object is never null.
        let object = unsafe { NonNull::new_unchecked(Arc::into_raw(Arc::clone(frame)).cast_mut().cast::<c_void>()) };
        // SAFETY: the object is a counted frame, which may be released from any thread; the guard owns the count taken above.
        let guard = unsafe { Guard::new(object, release) };
        match self.place {
            Place::Slab { base, bytes, pinned } => FrameMem::Shared { base, bytes, pinned, guard },
            Place::Foreign(planes) => FrameMem::Foreign { planes, guard },
        }
    }
}

/// Gives back one count of the frame behind a field.
unsafe fn release(object: NonNull<c_void>) {
    // SAFETY: the pointer is that of a counted frame, and each guard gives back the count that it took.
    drop(unsafe { Arc::from_raw(object.as_ptr().cast::<Mutex<Frame>>()) });
}

struct Weave {
    inner: Box<dyn Collector>,
    pairs: Receiver<[Ticket; 2]>,
    pool: Pool,
    layout: FrameLayout,
    stats: Arc<DeviceStats>,
}

impl Collector for Weave {
    fn wait(&mut self, ticket: Ticket) -> Result<Frame> {
        let pair = self.pairs.recv().map_err(|_| Error::disconnected("encode"))?;
        if pair[0].seq / 2 != ticket.seq {
            return Err(Error::failed(format!("cannot collect frame {}", ticket.seq), "tickets must be collected in order"));
        }
        let mut lease = self.pool.lease()?;
        let (mut time, mut born) = (None, None);
        for (parity, ticket) in pair.into_iter().enumerate() {
            let field = self.inner.wait(ticket)?;
            for (index, plane) in field.layout.planes().iter().enumerate() {
                let goal = self.layout.planes[index];
                for y in 0..plane.height {
                    let row = field.row(index, y);
                    let start = goal.offset + (2 * y + parity) * goal.pitch;
                    if let Some(bytes) = lease.bytes_mut().get_mut(start..start + row.len()) {
                        bytes.copy_from_slice(row);
                    }
                }
            }
            (time, born) = (time.or(Some(field.time)), born.or(Some(field.born)));
        }
        DeviceStats::add(&self.stats.host_copied_bytes, self.layout.shape.payload_bytes() as u64);
        let lost = || Error::failed("cannot collect a frame", "internal error: it has no fields");
        let (time, born) = (time.ok_or_else(lost)?, born.ok_or_else(lost)?);
        Ok(Frame { layout: self.layout, time, seq: ticket.seq, born, mem: FrameMem::Slab(lease) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{FrameTime, PixelFormat};
    use crate::pool::Heap;

    #[test]
    fn rows_that_cannot_be_shared_out_are_told_apart() {
        let yuv420 = |height| Shape { format: PixelFormat::yuv(8, 1, 1), width: 16, height };
        assert_eq!(field_shape(yuv420(576)), Some(yuv420(288)));
        assert_eq!((field_shape(yuv420(575)), field_shape(yuv420(574))), (None, None));
        assert_eq!((frame_shape(yuv420(288)), frame_shape(yuv420(287))), (Some(yuv420(576)), None));
        let gray = Shape { format: PixelFormat::gray(8), width: 5, height: 6 };
        assert_eq!(field_shape(gray).and_then(frame_shape), Some(gray));
    }

    #[test]
    fn fields_are_every_other_row_and_keep_the_frame_until_both_are_gone() {
        let shape = Shape { format: PixelFormat::yuv(8, 1, 1), width: 6, height: 8 };
        let layout = FrameLayout::packed(shape).unwrap();
        let budget = Budget::new(1 << 20);
        let pool = Pool::new(Arc::new(Heap), layout.slab_bytes, Arc::clone(&budget));
        let mut lease = pool.lease().unwrap();
        for (index, plane) in layout.planes().iter().enumerate() {
            for y in 0..plane.height {
                let start = plane.offset + y * plane.pitch;
                lease.bytes_mut()[start..start + plane.width].fill((10 * index + y) as u8);
            }
        }
        let time = FrameTime { pts: Some(7), duration: 1 };
        let frame = Frame { layout, time, seq: 3, born: std::time::Instant::now(), mem: FrameMem::Slab(lease) };
        let [top, bottom] = fields(frame).unwrap();
        assert_eq!((top.seq, bottom.seq, top.time), (6, 7, time));
        for (parity, field) in [(0, &top), (1, &bottom)] {
            for index in 0..3 {
                for y in 0..field.layout.planes()[index].height {
                    assert!(field.row(index, y).iter().all(|&s| s == (10 * index + 2 * y + parity) as u8), "{parity} {index} {y}");
                }
            }
        }
        drop(top);
        assert_eq!((bottom.row(0, 0)[0], pool.allocated()), (1, 1));
        // The slab goes back with the second field: the next lease needs no other one.
        drop(bottom);
        let again = pool.lease().unwrap();
        assert_eq!(pool.allocated(), 1);
        drop(again);
    }
}
