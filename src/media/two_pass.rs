//! Two-pass encoding: what the first pass learns, handed to the second.

use std::ffi::CString;
use std::path::PathBuf;

use super::c_string;
use super::owned::Dict;
use crate::error::{Error, Result};

/// How an encoder hands on what it learned.
pub(super) enum Statistics {
    /// In a file that an option names.
    File,
    /// In a file that x265's own parameters name.
    Params,
    /// Through FFmpeg, as text.
    Memory,
}

/// How `encoder` makes two passes.
///
/// # Errors
/// It cannot, and why.
pub(super) fn check(encoder: &str) -> Result<Statistics> {
    let refuse = |why: &str, hint: &str| Err(Error::usage(format!("cannot encode with {encoder} in two passes"), why).hint(hint));
    let others = "leave --two-pass out, or choose libx264, libx265, libvpx-vp9 or libaom-av1 with -c:v";
    match encoder {
        "libx264" | "libx264rgb" => Ok(Statistics::File),
        "libx265" => Ok(Statistics::Params),
        "libvpx" | "libvpx-vp9" | "libaom-av1" | "libtheora" => Ok(Statistics::Memory),
        name if name.ends_with("_nvenc") => {
            refuse("its passes are made picture by picture", "leave --two-pass out, and ask for them with --enc-opt multipass=fullres")
        }
        // It ends the process when the rate is too low for what the first pass learned.
        "mpeg1video" | "mpeg2video" | "mpeg4" | "msmpeg4" | "msmpeg4v2" | "wmv1" | "wmv2" | "flv" | "h263" | "h263p" | "snow" => {
            refuse("FFmpeg's rate control for it may end the program in its second pass", others)
        }
        "libsvtav1" | "librav1e" => refuse("FFmpeg does not hand its first pass on", others),
        _ => refuse("it has no second pass", others),
    }
}

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
        match check(encoder)? {
            Statistics::File => options.set(c"stats", &c_string(&path, "statistics file")?),
            Statistics::Params => {
                let pass = if self.first { 1 } else { 2 };
                let own = options.get(c"x265-params").map_or(String::new(), |params| format!(":{params}"));
                options.set(c"x265-params", &c_string(&format!("pass={pass}:stats={path}{own}"), "encoder option")?);
            }
            Statistics::Memory => {
                if !self.first {
                    let text = std::fs::read(&self.statistics).map_err(|e| Error::failed("cannot read the first pass's statistics", e))?;
                    return CString::new(text).map(Some).map_err(|e| Error::failed("cannot read the first pass's statistics", e));
                }
            }
        }
        Ok(None)
    }
}
