//! Closed captions (ATSC A/53): they travel inside the pictures, so the filtered picture needs them handed over.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use ffmpeg_next::ffi;

use super::owned::AvFrame;

/// More pictures than are ever between source and encoder. Where nobody takes captions (`null:`), old ones are forgotten.
const MOST: usize = 1024;

/// Captions of the pictures that are on their way, by position in the stream. Pictures without any cost nothing.
#[derive(Debug, Default)]
pub(super) struct Captions {
    waiting: Mutex<VecDeque<(u64, Vec<u8>)>>,
}

impl Captions {
    /// Remembers the captions of picture `seq`.
    pub(super) fn remember(&self, seq: u64, frame: &AvFrame) {
        if let Some(bytes) = frame.side_data(ffi::AVFrameSideDataType::AV_FRAME_DATA_A53_CC) {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            if waiting.len() >= MOST {
                waiting.pop_front();
            }
            waiting.push_back((seq, bytes.to_vec()));
        }
    }

    /// The captions of picture `seq`; those of pictures before it are forgotten.
    pub(super) fn take(&self, seq: u64) -> Option<Vec<u8>> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        while waiting.front().is_some_and(|&(at, _)| at < seq) {
            waiting.pop_front();
        }
        waiting.pop_front_if(|&mut (at, _)| at == seq).map(|(_, bytes)| bytes)
    }
}
