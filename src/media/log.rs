//! FFmpeg's log, kept instead of printed: the last error lines explain an error code.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use ffmpeg_next::ffi;

const KEPT: usize = 32;
/// Lines quoted in one error message.
const QUOTED: usize = 3;

struct Ring {
    lines: VecDeque<String>,
    count: u64,
}

// FFmpeg's log callback is one per process and carries no user pointer: the only global of this module.
static RING: Mutex<Ring> = Mutex::new(Ring { lines: VecDeque::new(), count: 0 });

fn ring() -> MutexGuard<'static, Ring> {
    RING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A moment in the log; what came later may explain an error.
#[derive(Clone, Copy, Debug)]
pub struct Mark(u64);

impl Mark {
    /// Now.
    pub fn now() -> Self {
        Self(ring().count)
    }

    /// The last error lines logged since, joined; None if there were none.
    pub fn lines(self) -> Option<String> {
        let ring = ring();
        let new = usize::try_from(ring.count.saturating_sub(self.0)).unwrap_or(usize::MAX).min(ring.lines.len());
        let mut lines: Vec<&str> = ring.lines.iter().skip(ring.lines.len() - new).map(String::as_str).collect();
        lines.dedup();
        let skip = lines.len().saturating_sub(QUOTED);
        let text = lines.get(skip..).unwrap_or_default().join("; ");
        (!text.is_empty()).then_some(text)
    }
}

pub(super) fn install() {
    // SAFETY: the callback is sound from any thread; the level is a plain integer. Libraries that print by themselves
    // ask for the level.
    unsafe {
        ffi::av_log_set_level(ffi::AV_LOG_ERROR);
        #[cfg(target_arch = "x86_64")]
        ffi::av_log_set_callback(Some(record));
        #[cfg(not(target_arch = "x86_64"))]
        ffi::av_log_set_level(ffi::AV_LOG_QUIET);
    }
}

#[cfg(target_arch = "x86_64")]
unsafe extern "C" fn record(object: *mut libc::c_void, level: libc::c_int, format: *const libc::c_char, args: *mut ffi::__va_list_tag) {
    if level > ffi::AV_LOG_ERROR {
        return;
    }
    let mut buffer = [0 as libc::c_char; 512];
    let mut prefix = 0;
    // SAFETY: FFmpeg passes a matching format and argument list; the buffer's size is passed and the text is terminated.
    let line = unsafe {
        ffi::av_log_format_line2(object, level, format, args, buffer.as_mut_ptr(), buffer.len() as libc::c_int, &mut prefix);
        super::owned::text(buffer.as_ptr())
    };
    let Some(line) = line else { return };
    let line = line.trim().split(' ').map(redact_word).collect::<Vec<_>>().join(" ");
    if line.is_empty() {
        return;
    }
    let mut ring = ring();
    if ring.lines.len() == KEPT {
        ring.lines.pop_front();
    }
    ring.lines.push_back(line);
    ring.count += 1;
}

#[cfg(target_arch = "x86_64")]
fn redact_word(word: &str) -> String {
    // URLs appear quoted or followed by punctuation inside log lines.
    if word.contains("://") { super::redact(word) } else { word.to_owned() }
}
