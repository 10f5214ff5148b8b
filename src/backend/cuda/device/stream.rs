//! Streams and events.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::{Context, DevicePtr, driver_error};
use crate::error::Result;

/// An in-order queue of device work that does not synchronise with the default stream.
#[derive(Debug)]
pub struct Stream {
    context: Arc<Context>,
    raw: sys::CUstream,
}

// SAFETY: stream handles may be used from any thread; the owner moves with its lane.
unsafe impl Send for Stream {}
// SAFETY: the driver's calls on a stream are thread-safe; nothing is mutated through a shared reference.
unsafe impl Sync for Stream {}

impl Stream {
    /// A new stream.
    ///
    /// # Errors
    /// A device error.
    pub fn new(context: &Arc<Context>) -> Result<Self> {
        context.bind()?;
        let raw =
            result::stream::create(result::stream::StreamKind::NonBlocking).map_err(|e| driver_error("cannot create a CUDA stream", e))?;
        Ok(Self { context: Arc::clone(context), raw })
    }

    /// The driver's handle.
    pub fn raw(&self) -> sys::CUstream {
        self.raw
    }

    /// The context it lives in.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Waits until everything enqueued has run.
    ///
    /// # Errors
    /// An error of that work.
    pub fn synchronize(&self) -> Result<()> {
        self.context.bind()?;
        // SAFETY: the stream is alive.
        unsafe { result::stream::synchronize(self.raw) }.map_err(|e| driver_error("the GPU failed", e))
    }

    /// What is enqueued from here on runs after `event`, which was recorded on another stream.
    ///
    /// # Errors
    /// A device error.
    pub fn after(&self, event: &Event) -> Result<()> {
        // SAFETY: both are alive and of one context.
        unsafe { result::stream::wait_event(self.raw, event.raw, sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT) }
            .map_err(|e| driver_error("cannot order two CUDA streams", e))
    }

    /// Enqueues a copy of `bytes` from the host.
    ///
    /// # Safety
    /// `src` has `bytes` readable bytes until the copy has run, `dst` that many in device memory.
    ///
    /// # Errors
    /// A device error.
    pub unsafe fn upload(&self, dst: DevicePtr, src: *const u8, bytes: usize) -> Result<()> {
        // SAFETY: promised by the caller.
        unsafe { sys::cuMemcpyHtoDAsync_v2(dst, src.cast(), bytes, self.raw) }
            .result()
            .map_err(|e| driver_error("cannot upload a frame", e))
    }

    /// Enqueues a copy of `bytes` to the host.
    ///
    /// # Safety
    /// `dst` has `bytes` writable bytes that nobody else touches until the copy has run, `src` that many in device memory.
    ///
    /// # Errors
    /// A device error.
    pub unsafe fn download(&self, dst: *mut u8, src: DevicePtr, bytes: usize) -> Result<()> {
        // SAFETY: promised by the caller.
        unsafe { sys::cuMemcpyDtoHAsync_v2(dst.cast(), src, bytes, self.raw) }
            .result()
            .map_err(|e| driver_error("cannot download a frame", e))
    }

    /// Enqueues a copy inside device memory.
    ///
    /// # Safety
    /// Both ranges are `bytes` of live device memory and do not overlap.
    ///
    /// # Errors
    /// A device error.
    pub unsafe fn copy(&self, dst: DevicePtr, src: DevicePtr, bytes: usize) -> Result<()> {
        // SAFETY: promised by the caller.
        unsafe { result::memcpy_dtod_async(dst, src, bytes, self.raw) }.map_err(|e| driver_error("cannot copy on the GPU", e))
    }

    /// Enqueues a copy of `rows` rows of `row_bytes` from the host; pitches in bytes.
    ///
    /// # Safety
    /// As for [`Stream::upload`], for each row.
    ///
    /// # Errors
    /// A device error.
    pub unsafe fn upload_rows(&self, copy: RowCopy) -> Result<()> {
        let parameters = sys::CUDA_MEMCPY2D_st {
            srcXInBytes: 0,
            srcY: 0,
            srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
            srcHost: copy.src.cast::<c_void>(),
            srcDevice: 0,
            srcArray: std::ptr::null_mut(),
            srcPitch: copy.src_pitch,
            dstXInBytes: 0,
            dstY: 0,
            dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
            dstHost: std::ptr::null_mut(),
            dstDevice: copy.dst,
            dstArray: std::ptr::null_mut(),
            dstPitch: copy.dst_pitch,
            WidthInBytes: copy.row_bytes,
            Height: copy.rows,
        };
        // SAFETY: promised by the caller; the structure lives through the call, which copies it.
        unsafe { sys::cuMemcpy2DAsync_v2(&parameters, self.raw) }.result().map_err(|e| driver_error("cannot upload a plane", e))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: created in `new`, destroyed once.
            let _ = unsafe { result::stream::destroy(self.raw) };
        }
    }
}

/// Rows to upload; see [`Stream::upload_rows`].
#[derive(Clone, Copy, Debug)]
pub struct RowCopy {
    /// First byte on the host.
    pub src: *const u8,
    /// Bytes between rows on the host.
    pub src_pitch: usize,
    /// First byte on the device.
    pub dst: DevicePtr,
    /// Bytes between rows on the device.
    pub dst_pitch: usize,
    /// Bytes of a row.
    pub row_bytes: usize,
    /// Rows.
    pub rows: usize,
}

/// How a thread waits for an [`Event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Watching memory: at once, and a core is busy meanwhile.
    Spins,
    /// Asleep until an interrupt: tens of microseconds late, and the core is free for codecs.
    Sleeps,
}

impl Waiting {
    fn flag(self) -> sys::CUevent_flags {
        match self {
            Self::Spins => sys::CUevent_flags::CU_EVENT_DEFAULT,
            Self::Sleeps => sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC,
        }
    }
}

/// A point in a stream.
#[derive(Debug)]
pub struct Event {
    context: Arc<Context>,
    raw: sys::CUevent,
}

// SAFETY: event handles may be used from any thread.
unsafe impl Send for Event {}

impl Event {
    /// A new event with a time stamp.
    ///
    /// # Errors
    /// A device error.
    pub fn new(context: &Arc<Context>, waiting: Waiting) -> Result<Self> {
        Self::with(context, waiting.flag() as u32)
    }

    /// A new event without a time stamp: what is behind it in its stream need not wait until one is written.
    ///
    /// # Errors
    /// A device error.
    pub fn mark(context: &Arc<Context>, waiting: Waiting) -> Result<Self> {
        Self::with(context, waiting.flag() as u32 | sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32)
    }

    fn with(context: &Arc<Context>, flags: u32) -> Result<Self> {
        context.bind()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the context is current; writes one handle.
        unsafe { sys::cuEventCreate(&mut raw, flags) }.result().map_err(|e| driver_error("cannot create a CUDA event", e))?;
        Ok(Self { context: Arc::clone(context), raw })
    }

    /// Enqueues the event.
    ///
    /// # Errors
    /// A device error.
    pub fn record(&self, stream: &Stream) -> Result<()> {
        // SAFETY: both are alive and of one context.
        unsafe { result::event::record(self.raw, stream.raw) }.map_err(|e| driver_error("cannot record a CUDA event", e))
    }

    /// Waits for the event.
    ///
    /// # Errors
    /// An error of the work before it.
    pub fn wait(&self) -> Result<()> {
        // SAFETY: the event is alive.
        unsafe { result::event::synchronize(self.raw) }.map_err(|e| driver_error("the GPU failed while it filtered a frame", e))
    }

    /// Nanoseconds from `self` to `later`, both having happened.
    ///
    /// # Errors
    /// When one has not happened, or has no time stamp.
    pub fn elapsed_ns(&self, later: &Self) -> Result<u64> {
        // SAFETY: both are alive.
        let ms = unsafe { result::event::elapsed(self.raw, later.raw) }.map_err(|e| driver_error("cannot read a GPU timer", e))?;
        Ok((f64::from(ms) * 1e6) as u64)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: created in `new`, destroyed once.
            let _ = unsafe { result::event::destroy(self.raw) };
        }
    }
}
