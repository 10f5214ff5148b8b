//! Device memory, filled and waited for.

use std::sync::Arc;

use cudarc::driver::{DriverError, result, sys};

use super::{Context, DevicePtr, driver_error};
use crate::error::Result;

/// `CU_STREAM_LEGACY` of cuda.h, a macro there: the default stream that all threads share.
const CU_STREAM_LEGACY: usize = 1;
/// `CU_STREAM_PER_THREAD`, likewise.
const CU_STREAM_PER_THREAD: usize = 2;

/// Enqueues work on this thread's own default stream, and waits for it. The shared default stream, and waiting for the whole context, fail
/// while another thread records a graph; and the driver's synchronous copy of a small table returns when the table has been staged, and only
/// streams that wait for the shared default one then wait for the rest: ours do not.
fn at_once(enqueue: impl FnOnce(sys::CUstream) -> Result<(), DriverError>) -> Result<(), DriverError> {
    let stream = std::ptr::without_provenance_mut(CU_STREAM_PER_THREAD);
    enqueue(stream)?;
    // SAFETY: the driver knows the stream by this number, in whatever context is current.
    unsafe { result::stream::synchronize(stream) }
}

/// Waits for the shared default stream of the current context. Libraries fill their tables on it, maybe from memory that the driver has only
/// staged when the call returns, and our streams do not wait for it. As for the libraries' own calls on it, no graph may be recorded meanwhile:
/// only measurements record any, of what they have built before.
pub(in super::super) fn wait_for_libraries() -> Result<(), DriverError> {
    // SAFETY: the driver knows the stream by this number, in whatever context is current.
    unsafe { result::stream::synchronize(std::ptr::without_provenance_mut(CU_STREAM_LEGACY)) }
}

/// Copies a table, and waits until it is there.
///
/// # Safety
/// `dst` has room for `data` in memory of the current context.
pub(super) unsafe fn upload_and_wait<T: Copy>(dst: DevicePtr, data: &[T]) -> Result<(), DriverError> {
    // SAFETY: promised by the caller; `data` outlives the copy, which is waited for.
    at_once(|stream| unsafe { sys::cuMemcpyHtoDAsync_v2(dst, data.as_ptr().cast(), std::mem::size_of_val(data), stream) }.result())
}

/// Device memory.
#[derive(Debug)]
pub struct DeviceBuffer {
    context: Arc<Context>,
    ptr: DevicePtr,
    bytes: usize,
}

impl DeviceBuffer {
    /// Allocates `bytes`, aligned to at least 256. The content is unspecified.
    ///
    /// # Errors
    /// Out of device memory.
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<Self> {
        context.bind()?;
        // SAFETY: freed once, in drop.
        let ptr = unsafe { result::malloc_sync(bytes.max(1)) }.map_err(|e| {
            driver_error(format!("cannot allocate {} MiB of GPU memory", bytes.div_ceil(1 << 20)), e)
                .hint("lower --lanes, or free GPU memory")
        })?;
        Ok(Self { context: Arc::clone(context), ptr, bytes })
    }

    /// Allocates and fills from `data`.
    ///
    /// # Errors
    /// Out of device memory, or the copy failed.
    pub fn from_slice<T: Copy>(context: &Arc<Context>, data: &[T]) -> Result<Self> {
        let buffer = Self::new(context, std::mem::size_of_val(data))?;
        if !data.is_empty() {
            // SAFETY: the buffer was made as large as `data`.
            unsafe { upload_and_wait(buffer.ptr, data) }.map_err(|e| driver_error("cannot copy a table to the GPU", e))?;
        }
        Ok(buffer)
    }

    /// First byte.
    pub fn ptr(&self) -> DevicePtr {
        self.ptr
    }

    /// Size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Fills with one byte, and waits.
    ///
    /// # Errors
    /// A device error.
    pub fn fill(&self, byte: u8) -> Result<()> {
        self.context.bind()?;
        // SAFETY: the range is the buffer.
        at_once(|stream| unsafe { result::memset_d8_async(self.ptr, byte, self.bytes, stream) })
            .map_err(|e| driver_error("cannot fill GPU memory", e))
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: allocated in `new`, freed once; owners wait for the stream before they drop buffers.
            let _ = unsafe { result::free_sync(self.ptr) };
        }
    }
}
