//! Slabs of host memory, lent as [`Lease`]s that return themselves on drop.
//!
//! A pool grows on demand and never shrinks below what is in use; all pools of a run share one [`Budget`], so that an
//! encoder or decoder that holds many frames gets them, and a leak becomes an error that names the number. Nothing is
//! allocated on the Rust heap once the slabs exist: a slab's header is boxed once and travels with it.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result};

/// Where slabs come from: the heap, or memory pinned for a device. Keeps driver types out of this module.
pub trait HostMem: Send + Sync {
    /// Allocates `bytes`, aligned to at least 512. The content is unspecified but initialised memory.
    ///
    /// # Errors
    /// When the system or the driver has no such memory.
    fn alloc(&self, bytes: usize) -> Result<NonNull<u8>>;

    /// Frees what [`HostMem::alloc`] returned.
    ///
    /// # Safety
    /// `ptr` came from `alloc(bytes)` of this object, is freed once, and nothing reads it any more.
    unsafe fn free(&self, ptr: NonNull<u8>, bytes: usize);

    /// Whether a device can copy from and to this memory asynchronously.
    fn pinned(&self) -> bool;
}

/// Plain heap memory, aligned to 4096 bytes.
#[derive(Debug, Default)]
pub struct Heap;

const HEAP_ALIGN: usize = 4096;

impl HostMem for Heap {
    fn alloc(&self, bytes: usize) -> Result<NonNull<u8>> {
        let layout = std::alloc::Layout::from_size_align(bytes.max(1), HEAP_ALIGN)
            .map_err(|e| Error::failed(format!("cannot allocate a frame of {bytes} bytes"), e))?;
        // SAFETY: the layout's size is at least 1.
        let ptr = unsafe { std::alloc::alloc_zeroed(layout) };
        NonNull::new(ptr).ok_or_else(|| Error::failed(format!("cannot allocate a frame of {bytes} bytes"), "out of memory"))
    }

    unsafe fn free(&self, ptr: NonNull<u8>, bytes: usize) {
        if let Ok(layout) = std::alloc::Layout::from_size_align(bytes.max(1), HEAP_ALIGN) {
            // SAFETY: the caller hands back what `alloc` returned for the same size, hence the same layout.
            unsafe { std::alloc::dealloc(ptr.as_ptr(), layout) }
        }
    }

    fn pinned(&self) -> bool {
        false
    }
}

/// One of the machine's memory figures in bytes, by its name in `/proc/meminfo` ("MemTotal"); None where there is none.
pub fn system_memory(name: &str) -> Option<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse::<usize>().ok()?.checked_mul(1024)
}

/// The memory that all pools of a run may hold together.
#[derive(Debug)]
pub struct Budget {
    limit: usize,
    used: AtomicUsize,
}

impl Budget {
    /// A budget of `limit` bytes.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicUsize::new(0) })
    }

    /// Bytes taken so far.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: usize) -> Result<()> {
        let taken =
            self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| used.checked_add(bytes).filter(|&sum| sum <= self.limit));
        taken.map(|_| ()).map_err(|used| {
            let size = |b: usize| if b < 1 << 20 { format!("{} KiB", b.div_ceil(1 << 10)) } else { format!("{} MiB", b.div_ceil(1 << 20)) };
            Error::failed(
                "cannot allocate another frame",
                format!(
                    "{} are in use and one more frame of {} exceeds the memory budget of {}",
                    size(used),
                    size(bytes),
                    size(self.limit)
                ),
            )
            .hint("raise it with --memory, or lower --lanes or --threads")
        })
    }

    fn give(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Boxed, because a lent slab's header leaves through a raw pointer and comes back without an allocation.
type FreeList = Vec<Box<Slab>>;

struct Shared {
    mem: Arc<dyn HostMem>,
    budget: Arc<Budget>,
    bytes: usize,
    free: Mutex<FreeList>,
    allocated: AtomicUsize,
}

impl Shared {
    fn free_list(&self) -> MutexGuard<'_, FreeList> {
        // A push or pop cannot leave the list half-changed, so a poisoned lock is still sound.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let slabs = std::mem::take(self.free.get_mut().unwrap_or_else(PoisonError::into_inner));
        for slab in slabs {
            // SAFETY: every slab came from `mem.alloc(bytes)`; being on the free list, no lease refers to it.
            unsafe { self.mem.free(slab.ptr, self.bytes) };
            self.budget.give(self.bytes);
        }
    }
}

struct Slab {
    ptr: NonNull<u8>,
    /// Set while lent: keeps the pool alive as long as any lease is out.
    home: Option<Arc<Shared>>,
}

// SAFETY: a slab is exclusively owned host memory; nothing about it is tied to a thread.
unsafe impl Send for Slab {}

/// A pool of slabs of one size. Cheap to clone; all clones lend the same slabs.
#[derive(Clone)]
pub struct Pool {
    shared: Arc<Shared>,
}

impl Pool {
    /// A pool of slabs of `bytes` each, from `mem`, charged to `budget`.
    pub fn new(mem: Arc<dyn HostMem>, bytes: usize, budget: Arc<Budget>) -> Self {
        let shared = Shared { mem, budget, bytes, free: Mutex::new(Vec::new()), allocated: AtomicUsize::new(0) };
        Self { shared: Arc::new(shared) }
    }

    /// Size of each slab in bytes.
    pub fn slab_bytes(&self) -> usize {
        self.shared.bytes
    }

    /// Whether the slabs are pinned for a device.
    pub fn pinned(&self) -> bool {
        self.shared.mem.pinned()
    }

    /// Slabs allocated so far (lent or free).
    pub fn allocated(&self) -> usize {
        self.shared.allocated.load(Ordering::Relaxed)
    }

    /// Lends a slab; allocates one when none is free. Never blocks on another lease.
    ///
    /// # Errors
    /// When the budget is spent or the memory cannot be had.
    pub fn lease(&self) -> Result<Lease> {
        let free = self.shared.free_list().pop();
        let mut slab = match free {
            Some(slab) => slab,
            None => self.grow()?,
        };
        slab.home = Some(Arc::clone(&self.shared));
        Ok(Lease { slab: Some(slab) })
    }

    fn grow(&self) -> Result<Box<Slab>> {
        let shared = &self.shared;
        shared.budget.take(shared.bytes)?;
        let ptr = shared.mem.alloc(shared.bytes).inspect_err(|_| shared.budget.give(shared.bytes))?;
        let count = shared.allocated.fetch_add(1, Ordering::Relaxed) + 1;
        // Room for every slab, so that returning one never allocates.
        let mut free = shared.free_list();
        let missing = count.saturating_sub(free.len());
        free.reserve(missing);
        Ok(Box::new(Slab { ptr, home: None }))
    }
}

/// Exclusive use of one slab; goes back to its pool on drop.
pub struct Lease {
    slab: Option<Box<Slab>>,
}

impl Lease {
    /// The slab's first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.slab.as_ref().map_or(std::ptr::null_mut(), |s| s.ptr.as_ptr())
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.home().map_or(0, |h| h.bytes)
    }

    /// Never true; present because `len` is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a device can copy from and to the slab asynchronously.
    pub fn pinned(&self) -> bool {
        self.home().is_some_and(|h| h.mem.pinned())
    }

    fn home(&self) -> Option<&Arc<Shared>> {
        self.slab.as_ref().and_then(|s| s.home.as_ref())
    }

    /// The whole slab.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the lease owns `len` initialised bytes exclusively; the borrow of self keeps them.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }

    /// The whole slab, writable.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` makes the access unique.
        unsafe { std::slice::from_raw_parts_mut(self.as_ptr(), self.len()) }
    }

    /// Gives the lease to foreign code (an AVBufferRef's opaque pointer). Allocates nothing.
    pub fn into_raw(mut self) -> *mut std::ffi::c_void {
        self.slab.take().map_or(std::ptr::null_mut(), |s| Box::into_raw(s).cast())
    }

    /// Takes back what [`Lease::into_raw`] gave.
    ///
    /// # Safety
    /// `raw` came from `into_raw` and is taken back once.
    pub unsafe fn from_raw(raw: *mut std::ffi::c_void) -> Self {
        // SAFETY: the caller hands back the box that `into_raw` leaked.
        Self { slab: (!raw.is_null()).then(|| unsafe { Box::from_raw(raw.cast::<Slab>()) }) }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(mut slab) = self.slab.take()
            && let Some(home) = slab.home.take()
        {
            home.free_list().push(slab);
        }
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Lease({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(limit: usize) -> (Pool, Arc<Budget>) {
        let budget = Budget::new(limit);
        (Pool::new(Arc::new(Heap), 1000, Arc::clone(&budget)), budget)
    }

    #[test]
    fn a_lease_returns_itself_and_is_lent_again() {
        let (pool, _) = pool(10_000);
        let first = pool.lease().unwrap();
        let address = first.as_ptr();
        drop(first);
        assert_eq!(pool.lease().unwrap().as_ptr(), address);
        assert_eq!(pool.allocated(), 1);
    }

    #[test]
    fn leases_through_raw_pointers_return_too() {
        let (pool, _) = pool(10_000);
        let raw = pool.lease().unwrap().into_raw();
        assert_eq!(pool.lease().unwrap().len(), 1000);
        // SAFETY: `raw` was just made by `into_raw`.
        drop(unsafe { Lease::from_raw(raw) });
        assert_eq!(pool.allocated(), 2);
        let both = (pool.lease().unwrap(), pool.lease().unwrap());
        assert_ne!(both.0.as_ptr(), both.1.as_ptr());
        assert_eq!(pool.allocated(), 2);
    }

    #[test]
    fn the_budget_names_its_number_and_is_given_back() {
        let (pool, budget) = pool(2500);
        let held = (pool.lease().unwrap(), pool.lease().unwrap());
        let error = pool.lease().unwrap_err().to_string();
        assert!(error.contains("memory budget of 3 KiB"), "{error}");
        drop(held);
        assert_eq!(budget.used(), 2000);
        drop(pool);
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn a_lease_outlives_its_pool() {
        let (pool, budget) = pool(2500);
        let mut lease = pool.lease().unwrap();
        drop(pool);
        lease.bytes_mut().fill(7);
        assert_eq!(lease.bytes()[999], 7);
        drop(lease);
        assert_eq!(budget.used(), 0);
    }
}
