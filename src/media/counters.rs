//! What source and encoder count and have to say while media flows.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::scan::{ScanCounts, Treatment};

/// Counted while media flows; shared with whoever reports.
#[derive(Debug, Default)]
pub struct MediaCounters {
    /// Bytes that the host copied to bring frames into shape; 0 for planar codecs.
    pub host_copied_bytes: AtomicU64,
    /// Packets that arrived damaged, could not be read, or that the decoder refused.
    pub corrupt_packets: AtomicU64,
    /// Pictures that were decoded with errors.
    pub corrupt_pictures: AtomicU64,
    /// How the pictures were scanned.
    pub(super) scans: ScanCounts,
    /// Whether the input ended before it should.
    early: AtomicBool,
    warnings: Mutex<Vec<String>>,
    notes: Mutex<Vec<String>>,
}

impl MediaCounters {
    /// What the user should know, each once, in order.
    pub fn warnings(&self) -> Vec<String> {
        self.warnings.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Which conversions happen and why, for `-v`; complete once source and encoder are open.
    pub fn notes(&self) -> Vec<String> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Damaged packets and pictures together.
    pub fn damaged(&self) -> u64 {
        [&self.corrupt_packets, &self.corrupt_pictures].map(|n| n.load(Ordering::Relaxed)).iter().sum()
    }

    /// Whether the input ended before it should.
    pub fn ended_early(&self) -> bool {
        self.early.load(Ordering::Relaxed)
    }

    /// What to say about pictures that were scanned in different ways.
    pub fn mixture(&self, done: &Treatment) -> Option<String> {
        self.scans.mixture(done)
    }

    pub(super) fn end_early(&self, text: String) {
        self.early.store(true, Ordering::Relaxed);
        self.warn(text);
    }

    pub(super) fn warn(&self, text: String) {
        add_once(&self.warnings, text);
    }

    pub(super) fn note(&self, text: String) {
        add_once(&self.notes, text);
    }

    pub(super) fn copied(&self, bytes: usize) {
        self.host_copied_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

fn add_once(list: &Mutex<Vec<String>>, text: String) {
    let mut list = list.lock().unwrap_or_else(PoisonError::into_inner);
    if !list.contains(&text) {
        list.push(text);
    }
}
