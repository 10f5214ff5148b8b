//! Pinned host memory for slabs.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::{result, sys};

use super::device::{Context, driver_error};
use crate::error::{Error, Result};
use crate::pool::{Heap, HostMem};

/// Host memory that the GPU copies from and to asynchronously: portable, never write-combined (the encoder reads it).
///
/// When pinning fails (a locked-memory limit), heap memory serves instead, slower, and says so once.
pub struct Pinned {
    context: Arc<Context>,
    heap: Heap,
    /// Addresses that came from the heap because pinning failed; empty as a rule.
    unpinned: Mutex<Vec<usize>>,
    fell_back: AtomicBool,
}

impl Pinned {
    /// Memory for GPU `context`.
    pub fn new(context: Arc<Context>) -> Self {
        Self { context, heap: Heap, unpinned: Mutex::new(Vec::new()), fell_back: AtomicBool::new(false) }
    }

    fn unpinned(&self) -> MutexGuard<'_, Vec<usize>> {
        // A push or removal cannot leave the list half-changed, so a poisoned lock is still sound.
        self.unpinned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pin(&self, bytes: usize) -> Result<NonNull<u8>> {
        // Called from codec threads, which never saw the context before.
        self.context.bind()?;
        let what = || format!("cannot pin {} KiB of memory for the GPU", bytes.div_ceil(1024));
        // SAFETY: freed once, in `free`.
        let raw = unsafe { result::malloc_host(bytes.max(1), sys::CU_MEMHOSTALLOC_PORTABLE) }.map_err(|e| driver_error(what(), e))?;
        let ptr = NonNull::new(raw.cast::<u8>()).ok_or_else(|| Error::failed(what(), "the driver returned no memory"))?;
        // SAFETY: the driver gave `bytes` bytes; touching them now makes them initialised and keeps page faults out of the run.
        unsafe { ptr.as_ptr().write_bytes(0, bytes) };
        Ok(ptr)
    }
}

impl HostMem for Pinned {
    fn alloc(&self, bytes: usize) -> Result<NonNull<u8>> {
        if !self.fell_back.load(Ordering::Acquire) {
            match self.pin(bytes) {
                Ok(ptr) => return Ok(ptr),
                Err(error) => {
                    if !self.fell_back.swap(true, Ordering::AcqRel) {
                        crate::status::warn(format_args!("{error}; copies will be slower"));
                    }
                }
            }
        }
        let ptr = self.heap.alloc(bytes)?;
        self.unpinned().push(ptr.as_ptr().addr());
        Ok(ptr)
    }

    unsafe fn free(&self, ptr: NonNull<u8>, bytes: usize) {
        let from_heap = {
            let mut unpinned = self.unpinned();
            let found = unpinned.iter().position(|&address| address == ptr.as_ptr().addr());
            found.map(|index| unpinned.swap_remove(index)).is_some()
        };
        if from_heap {
            // SAFETY: listed, so it came from the heap in `alloc` with the same size; the caller frees once.
            unsafe { self.heap.free(ptr, bytes) }
        } else if self.context.bind().is_ok() {
            // SAFETY: not listed, so `pin` made it; the caller frees once.
            let _ = unsafe { result::free_host(ptr.as_ptr().cast()) };
        }
    }

    fn pinned(&self) -> bool {
        !self.fell_back.load(Ordering::Acquire)
    }
}
