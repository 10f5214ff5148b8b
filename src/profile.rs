//! Ranges for NVIDIA's profilers (NVTX): what every thread does with which frame, beside the CUDA calls and kernels that `nsys` shows.
//!
//! They are made only where a profiler listens: it sets one of [`SIGNS`] in its child's environment. Otherwise a range is one look at a
//! flag, and the library behind NVTX is never touched.

use std::ffi::CString;
use std::sync::OnceLock;

/// Variables that a profiler sets: the library that NVTX calls are handed to, and Nsight Systems' session.
const SIGNS: [&str; 2] = ["NVTX_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID"];

fn listens(variable: impl Fn(&str) -> Option<std::ffi::OsString>) -> bool {
    SIGNS.iter().any(|sign| variable(sign).is_some_and(|value| !value.is_empty()))
}

/// Whether a profiler listens to this process.
fn profiled() -> bool {
    static PROFILED: OnceLock<bool> = OnceLock::new();
    *PROFILED.get_or_init(|| listens(|name| std::env::var_os(name)))
}

/// What this thread does until it is dropped. Ranges of one thread nest.
pub struct Range(#[allow(dead_code, reason = "it ends when it is dropped")] Option<nvtx::LocalRange>);

/// A text for a profiler; a name that holds a NUL, which none does, would be empty.
fn text(name: impl Into<Vec<u8>>) -> nvtx::Str {
    CString::new(name).unwrap_or_default().into()
}

/// Begins a range that is named for the work alone.
pub fn range(name: &str) -> Range {
    Range(profiled().then(|| nvtx::LocalRange::new(text(name))))
}

/// Begins a range on a frame, whose number is its payload.
pub fn range_on(name: &str, frame: u64) -> Range {
    Range(profiled().then(|| {
        let attributes = nvtx::EventAttributes::builder().message(text(format!("{name} {frame}")));
        nvtx::LocalRange::new(attributes.payload(frame).build())
    }))
}

/// Marks the frame that the work of the open range turned out to be about.
pub fn mark_frame(frame: impl FnOnce() -> Option<u64>) {
    if profiled()
        && let Some(frame) = frame()
    {
        nvtx::mark(nvtx::EventAttributes::builder().message(text(format!("frame {frame}"))).payload(frame).build());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_profiler_that_listens_costs_anything() {
        assert!(!listens(|_| None));
        assert!(!listens(|_| Some("".into())));
        assert!(listens(|name| (name == "NVTX_INJECTION64_PATH").then(|| "/opt/x.so".into())));
        assert!(listens(|name| (name == "NSYS_PROFILING_SESSION_ID").then(|| "7".into())));
        // Here none does; a range is nothing then.
        if !profiled() {
            assert!(range("x").0.is_none() && range_on("x", 1).0.is_none());
            mark_frame(|| unreachable!());
        }
    }
}
