//! The request to stop, handed from the signal handlers to the source and to FFmpeg's interrupt callbacks.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Shared by everything that may have to stop. Cheap to clone.
///
/// Two degrees: *requested* (a first signal: the source ends as at end of file and everything behind it drains) and
/// *aborted* (a stage failed: nobody will use the result, blocking reads and writes give up).
#[derive(Clone, Debug, Default)]
pub struct Cancel {
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    signal: AtomicI32,
    aborted: AtomicBool,
    temporary: Mutex<Option<PathBuf>>,
}

impl Cancel {
    /// Nothing requested yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks the source to end as if at end of file; the first signal counts. Returns false if one was requested before.
    pub fn request(&self, signal: i32) -> bool {
        self.state.signal.compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// The signal that asked to stop.
    pub fn signal(&self) -> Option<i32> {
        match self.state.signal.load(Ordering::SeqCst) {
            0 => None,
            signal => Some(signal),
        }
    }

    /// Whether the source should end: a signal came, or the run is aborted. Inputs ask this.
    pub fn requested(&self) -> bool {
        self.signal().is_some() || self.aborted()
    }

    /// Gives the run up: blocking reads and writes return.
    pub fn abort(&self) {
        self.state.aborted.store(true, Ordering::SeqCst);
    }

    /// Whether the run is given up. Outputs ask this: after a signal they still have a trailer to write.
    pub fn aborted(&self) -> bool {
        self.state.aborted.load(Ordering::SeqCst)
    }

    /// Names the file to remove if the process must end at once; None when there is none any more.
    pub fn set_temporary(&self, path: Option<&Path>) {
        *self.temporary() = path.map(Path::to_path_buf);
    }

    /// Removes the file named by [`Cancel::set_temporary`], for the second signal.
    pub fn remove_temporary(&self) {
        if let Some(path) = self.temporary().take() {
            // The process is about to end; there is nobody left to tell that the file was gone already.
            let _ = std::fs::remove_file(path);
        }
    }

    fn temporary(&self) -> std::sync::MutexGuard<'_, Option<PathBuf>> {
        self.state.temporary.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_signal_counts_and_an_abort_is_no_signal() {
        let cancel = Cancel::new();
        assert!(!cancel.requested());
        assert!(cancel.request(2));
        assert!(!cancel.request(15));
        assert_eq!((cancel.signal(), cancel.requested(), cancel.aborted()), (Some(2), true, false));
        let other = Cancel::new();
        other.clone().abort();
        assert_eq!((other.signal(), other.requested(), other.aborted()), (None, true, true));
    }

    #[test]
    fn the_temporary_is_removed_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::fs::write(&path, "x").unwrap();
        let cancel = Cancel::new();
        cancel.set_temporary(Some(&path));
        cancel.remove_temporary();
        assert!(!path.exists());
        std::fs::write(&path, "y").unwrap();
        cancel.remove_temporary();
        assert!(path.exists());
    }
}
