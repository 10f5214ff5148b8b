//! The request to stop, handed from the signal handlers to the source.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

/// Shared between signal handlers, the source's loop and FFmpeg's interrupt callbacks. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Cancel {
    signal: Arc<AtomicI32>,
}

impl Cancel {
    /// Nothing requested yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks the source to end as if at end of file; the first signal counts. Returns false if one was requested before.
    pub fn request(&self, signal: i32) -> bool {
        self.signal.compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// The signal that asked to stop.
    pub fn signal(&self) -> Option<i32> {
        match self.signal.load(Ordering::SeqCst) {
            0 => None,
            signal => Some(signal),
        }
    }

    /// Whether the source should end.
    pub fn requested(&self) -> bool {
        self.signal().is_some()
    }
}
