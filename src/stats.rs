//! Counters of a run: busy and wait time per stage, latency, transfers. Values that are handed on, not globals.

use std::sync::atomic::{AtomicU64, Ordering};

/// What a backend counts while it runs; all times in nanoseconds of device (or CPU worker) time.
#[derive(Debug, Default)]
pub struct DeviceStats {
    /// Frames finished.
    pub frames: AtomicU64,
    /// Time of host-to-device copies.
    pub upload_ns: AtomicU64,
    /// Time of kernels (CPU backend: of the steps).
    pub kernel_ns: AtomicU64,
    /// Time of device-to-host copies.
    pub download_ns: AtomicU64,
    /// Host-to-device transfers enqueued.
    pub uploads: AtomicU64,
    /// Device-to-host transfers enqueued.
    pub downloads: AtomicU64,
    /// Bytes moved host-to-device.
    pub upload_bytes: AtomicU64,
    /// Bytes moved device-to-host.
    pub download_bytes: AtomicU64,
    /// Time that the submitter waited for a free lane.
    pub lane_wait_ns: AtomicU64,
    /// Bytes that the host copied to bring a frame into shape (0 for planar codecs).
    pub host_copied_bytes: AtomicU64,
}

impl DeviceStats {
    /// Adds `value` to a counter.
    pub fn add(counter: &AtomicU64, value: u64) {
        counter.fetch_add(value, Ordering::Relaxed);
    }
}
