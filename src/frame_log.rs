//! `--log-frames`: one JSON line per packet and frame at each stage, for bug reports about times.

use std::io::Write;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use crate::error::{Error, Result};
use crate::frame::FrameTime;

/// What passed where. Times count in `time_base` (seconds, numerator and denominator).
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Entry {
    /// demux (a packet as read), decode (a frame as it goes into the filters), filter (as it comes out), encode (the encoder's
    /// packet), mux (a packet as written).
    pub stage: &'static str,
    /// The stream's number: the input's, at mux the output's.
    pub stream: usize,
    /// Presentation time.
    pub pts: Option<i64>,
    /// Decoding time; frames have none.
    pub dts: Option<i64>,
    /// Duration; 0 if unknown.
    pub duration: i64,
    /// Seconds per unit, as numerator and denominator.
    pub time_base: (i32, i32),
    /// Bytes: of the packet, or of the frame's visible samples.
    pub size: usize,
    /// Whether decoding can start here; frames have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<bool>,
}

impl FrameTime {
    /// What the log says about a frame of this time.
    pub fn entry(&self, stage: &'static str, stream: usize, time_base: (i32, i32), size: usize) -> Entry {
        Entry { stage, stream, pts: self.pts, dts: None, duration: self.duration, time_base, size, key: None }
    }
}

/// Where the lines go.
pub struct FrameLog {
    out: Mutex<Box<dyn Write + Send>>,
}

impl std::fmt::Debug for FrameLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "FrameLog")
    }
}

impl FrameLog {
    /// A log on stderr, or in a new file.
    ///
    /// # Errors
    /// The file cannot be made.
    pub fn open(file: Option<&Path>) -> Result<Self> {
        let out: Box<dyn Write + Send> = match file {
            None => Box::new(std::io::stderr()),
            Some(path) => {
                let made = std::fs::File::create(path);
                let made = made.map_err(|e| Error::failed(format!("cannot write the frame log '{}'", path.display()), e))?;
                Box::new(std::io::BufWriter::new(made))
            }
        };
        Ok(Self { out: Mutex::new(out) })
    }

    /// Writes one line. A log that cannot be written (a closed stderr) must not end the run.
    pub fn write(&self, entry: &Entry) {
        let Ok(mut line) = serde_json::to_string(entry) else { return };
        line.push('\n');
        let _ = self.out.lock().unwrap_or_else(PoisonError::into_inner).write_all(line.as_bytes());
    }
}

impl Drop for FrameLog {
    fn drop(&mut self) {
        let _ = self.out.get_mut().unwrap_or_else(PoisonError::into_inner).flush();
    }
}
