//! Two-pass encoding: what the first pass learns, handed to the second.

use std::ffi::CString;
use std::path::PathBuf;

use super::c_string;
use super::owned::Dict;
use crate::error::{Error, Result};

/// One of two passes over the same input.
#[derive(Clone, Debug)]
pub struct Pass {
    /// Whether this is the one that learns; its packets are thrown away.
    pub first: bool,
    /// Where the first pass notes what the second reads.
    pub statistics: PathBuf,
}

impl Pass {
    /// Sets what the encoder needs, and returns the statistics for encoders that take them from memory.
    ///
    /// # Errors
    /// The encoder knows no second pass, or the statistics cannot be read.
    pub(super) fn prepare(&self, encoder: &str, options: &mut Dict) -> Result<Option<CString>> {
        let path = self.statistics.to_string_lossy();
        match encoder {
            "libx264" | "libx264rgb" => options.set(c"stats", &c_string(&path, "statistics file")?),
            "libx265" => {
                let pass = if self.first { 1 } else { 2 };
                let own = options.get(c"x265-params").map_or(String::new(), |params| format!(":{params}"));
                options.set(c"x265-params", &c_string(&format!("pass={pass}:stats={path}{own}"), "encoder option")?);
            }
            "libvpx" | "libvpx-vp9" | "libaom-av1" => {
                if !self.first {
                    let text = std::fs::read(&self.statistics).map_err(|e| Error::failed("cannot read the first pass's statistics", e))?;
                    return CString::new(text).map(Some).map_err(|e| Error::failed("cannot read the first pass's statistics", e));
                }
            }
            // FFmpeg's own MPEG encoders have a second pass that ends the process when the rate is too low for the first's figures.
            _ => {
                return Err(Error::usage(
                    format!("cannot encode with {encoder} in two passes"),
                    "it has no second pass that can be used here",
                )
                .hint("leave --two-pass out, or choose libx264, libx265 or libvpx-vp9 with -c:v"));
            }
        }
        Ok(None)
    }
}
