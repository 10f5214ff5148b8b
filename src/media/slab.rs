//! `get_buffer2`: libavcodec decodes straight into slabs of a growing pool.
//!
//! One AVBufferRef per frame owns a whole slab; its free callback puts the lease back and does nothing else. The callbacks
//! run on codec threads: they never block on a frame, and a panic never crosses into C.

use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ffmpeg_next::ffi;

use super::format;
use crate::error::{Error, Result};
use crate::frame::{FrameLayout, Shape};
use crate::pool::{Budget, HostMem, Lease, Pool};

/// Its address in `AVFrame.opaque` marks a frame whose first buffer is one of our slabs.
static OURS: u8 = 0;

fn mark() -> *mut c_void {
    std::ptr::from_ref(&OURS).cast_mut().cast()
}

/// Gives a decoder its frame memory. Must outlive the codec context that refers to it.
pub(super) struct SlabAllocator {
    mem: Arc<dyn HostMem>,
    budget: Arc<Budget>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    current: Option<Current>,
    error: Option<Error>,
}

/// The pool for the coded size in use; a change of size replaces it, leases keep the old one alive.
struct Current {
    key: (i32, i32, i32),
    layout: FrameLayout,
    pool: Pool,
}

impl SlabAllocator {
    pub(super) fn new(mem: Arc<dyn HostMem>, budget: Arc<Budget>) -> Box<Self> {
        Box::new(Self { mem, budget, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Both fields are replaced whole, so a poisoned lock is still sound.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why the last allocation failed, once.
    pub(super) fn take_error(&self) -> Option<Error> {
        self.state().error.take()
    }

    /// Makes `context` call this allocator.
    ///
    /// # Safety
    /// `context` is a valid, unopened decoder, and self outlives it at this address.
    pub(super) unsafe fn attach(&self, context: *mut ffi::AVCodecContext) {
        // SAFETY: the caller's promise.
        let context = unsafe { &mut *context };
        context.opaque = std::ptr::from_ref(self).cast_mut().cast();
        context.get_buffer2 = Some(get_buffer);
        // Without it, FFmpeg before version 6 serialises frame threads on the caller's thread.
        #[cfg(not(ffmpeg_6))]
        {
            context.thread_safe_callbacks = 1;
        }
    }

    /// Fills `frame` with a slab. Ok(false) when the format is not ours.
    fn fill(&self, context: &mut ffi::AVCodecContext, frame: &mut ffi::AVFrame) -> Result<bool> {
        let key = (frame.format, frame.width, frame.height);
        let mut state = self.state();
        if state.current.as_ref().is_none_or(|c| c.key != key) {
            let Some(layout) = coded_layout(context, frame)? else { return Ok(false) };
            let pool = Pool::new(Arc::clone(&self.mem), layout.slab_bytes, Arc::clone(&self.budget));
            state.current = Some(Current { key, layout, pool });
        }
        let Some(current) = state.current.as_ref() else { return Ok(false) };
        let lease = current.pool.lease()?;
        let (base, bytes) = (lease.as_ptr(), lease.len());
        let raw = lease.into_raw();
        // SAFETY: base..base+bytes is the slab, which belongs to the buffer until `release` takes the lease back.
        let buffer = unsafe { ffi::av_buffer_create(base, bytes, Some(release), raw, 0) };
        if buffer.is_null() {
            // SAFETY: `raw` was not handed over.
            drop(unsafe { Lease::from_raw(raw) });
            return Err(Error::failed("cannot allocate a frame", "out of memory"));
        }
        frame.buf[0] = buffer;
        for (index, plane) in current.layout.planes().iter().enumerate() {
            frame.data[index] = base.wrapping_add(plane.offset);
            frame.linesize[index] = i32::try_from(plane.pitch).unwrap_or(i32::MAX);
        }
        frame.extended_data = frame.data.as_mut_ptr();
        frame.opaque = mark();
        Ok(true)
    }
}

/// The layout for what the codec will write, its alignment included; None for formats that we do not map.
fn coded_layout(context: &mut ffi::AVCodecContext, frame: &ffi::AVFrame) -> Result<Option<FrameLayout>> {
    let Some(native) = format::av_from_raw(frame.format).and_then(format::native) else { return Ok(None) };
    let (mut width, mut height) = (frame.width, frame.height);
    let mut align = [0; ffi::AV_NUM_DATA_POINTERS as usize];
    // SAFETY: a decoder context inside its own callback; all pointers are to locals.
    unsafe { ffi::avcodec_align_dimensions2(context, &mut width, &mut height, align.as_mut_ptr()) };
    let side = |s: i32| usize::try_from(s).unwrap_or(0);
    let shape = Shape { format: native, width: side(frame.width), height: side(frame.height) };
    let layout = FrameLayout::padded(shape, side(width), side(height))?;
    let fits = layout.planes().iter().zip(align).all(|(p, a)| side(a) == 0 || p.pitch % side(a) == 0);
    Ok(fits.then_some(layout))
}

/// Where a decoded frame lies, if its memory is one of our slabs: (base, bytes).
pub(super) fn slab_of(frame: &ffi::AVFrame) -> Option<(std::ptr::NonNull<u8>, usize)> {
    if frame.opaque != mark() || !frame.buf[1].is_null() {
        return None;
    }
    // SAFETY: a non-null buf entry of a valid frame is a valid reference.
    let buffer = unsafe { frame.buf[0].as_ref() }?;
    Some((std::ptr::NonNull::new(buffer.data)?, buffer.size))
}

unsafe extern "C" fn get_buffer(context: *mut ffi::AVCodecContext, frame: *mut ffi::AVFrame, flags: libc::c_int) -> libc::c_int {
    // SAFETY: FFmpeg passes a valid context whose opaque pointer `attach` set, and a valid frame. With frame threading
    // the context is that thread's copy, with the same opaque pointer.
    let (allocator, c, f) = unsafe { (&*(*context).opaque.cast::<SlabAllocator>(), &mut *context, &mut *frame) };
    // SAFETY: the codec of an open context is set and static.
    let direct = unsafe { c.codec.as_ref() }.is_some_and(|codec| codec.capabilities & ffi::AV_CODEC_CAP_DR1 as libc::c_int != 0);
    let filled = if direct && c.hw_frames_ctx.is_null() && f.hw_frames_ctx.is_null() {
        catch_unwind(AssertUnwindSafe(|| allocator.fill(c, f)))
            .unwrap_or_else(|_| Err(Error::failed("cannot allocate a frame", "internal error: the allocator panicked")))
    } else {
        Ok(false)
    };
    match filled {
        Ok(true) => 0,
        // SAFETY: the documented fallback, on the same arguments.
        Ok(false) => unsafe { ffi::avcodec_default_get_buffer2(context, frame, flags) },
        Err(error) => {
            allocator.state().error = Some(error);
            ffi::AVERROR(libc::ENOMEM)
        }
    }
}

/// Puts a slab's lease back; the free callback of every buffer that wraps a slab.
pub(super) unsafe extern "C" fn release(opaque: *mut c_void, _data: *mut u8) {
    // A panic here could only come from a broken allocator; it must not unwind into C.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: `opaque` is the lease given to av_buffer_create, which calls this once.
        drop(unsafe { Lease::from_raw(opaque) });
    }));
}
