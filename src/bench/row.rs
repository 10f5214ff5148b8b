//! What a bench writes: the document of `--json`, its rows, and the machine that they were measured on.
//!
//! Schema 1. `rows[]` has one object per contender; `error` is set in place of times where the result was wrong or the contender could
//! not run. Times are microseconds per frame. Unknown or meaningless fields are null.

use serde::{Deserialize, Serialize};

use super::summary::Summary;
use crate::cli::Level;
use crate::error::{Error, Result};
use crate::frame::Shape;
use crate::reference::Comparison;

/// Of the document; raised when a field changes its meaning.
pub const SCHEMA: u32 = 1;

/// A whole bench.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Document {
    /// [`SCHEMA`].
    pub schema: u32,
    /// False while the bench runs, and for ever if it was cut short.
    pub complete: bool,
    /// The machine.
    pub environment: Environment,
    /// In the order of measuring.
    pub rows: Vec<Row>,
}

/// What the figures depend on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Environment {
    /// Convoy's version.
    pub convoy: String,
    /// UTC, ISO 8601.
    pub date: String,
    /// The command line.
    pub command: String,
    /// Kernel name and release.
    pub os: String,
    /// Model and instruction set.
    pub cpu: String,
    /// Threads that this process may use.
    pub cpu_threads: usize,
    /// Bytes.
    pub memory: Option<usize>,
    /// Name and architecture.
    pub gpu: Option<String>,
    /// CUDA version of the driver.
    pub driver: Option<String>,
    /// Version of the kernel compiler.
    pub nvrtc: Option<String>,
    /// The ffmpeg program's first line.
    pub ffmpeg: Option<String>,
    /// What could not be measured, and why.
    pub missing: Vec<String>,
}

/// How a result compares with the reference.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// Samples compared.
    pub samples: u64,
    /// Percent that are exact to the last bit.
    pub exact_percent: f64,
    /// Code values, or relative to the range for float samples.
    pub max_error: f64,
}

impl From<&Comparison> for Check {
    fn from(found: &Comparison) -> Self {
        Self { samples: found.samples, exact_percent: 100.0 * found.exact_share(), max_error: found.max_error }
    }
}

/// Resources of one launch.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelUse {
    /// Per thread.
    pub registers: u32,
    /// Static, per block.
    pub shared_bytes: u32,
    /// Local memory per thread: spills or indexed arrays.
    pub local_bytes: u32,
}

/// One stage of a whole run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageShare {
    /// "decode", "filter", "device", "encode".
    pub name: String,
    /// Busy share of the wall time in percent.
    pub busy_percent: f64,
}

/// A piece of work on a track of a whole run's timeline, in microseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// The track: a thread or a lane.
    pub track: String,
    /// What was done.
    pub name: String,
    /// The frame.
    pub frame: Option<u64>,
    /// Since the first span shown.
    pub start_us: f64,
    /// Length.
    pub length_us: f64,
}

/// Several documents of one machine as one; a row that is in two of them is taken from the later one.
///
/// # Errors
/// They come from different machines, or there is none.
pub fn together(documents: Vec<Document>) -> Result<Document> {
    let machine = |e: &Environment| (e.cpu.clone(), e.gpu.clone(), e.driver.clone());
    let mut documents = documents.into_iter();
    let Some(mut all) = documents.next() else { return Err(Error::usage("cannot show stored rows", "no file was given")) };
    for document in documents {
        let (first, other) = (machine(&all.environment), machine(&document.environment));
        if first != other {
            let why = format!("one comes from {first:?}, another from {other:?}");
            return Err(Error::usage("cannot put benches together", why).hint("--compare sets two benches beside each other"));
        }
        all.complete &= document.complete;
        all.environment.command += &format!("\n{}", document.environment.command);
        let lacking: Vec<_> = document.environment.missing.into_iter().filter(|m| !all.environment.missing.contains(m)).collect();
        all.environment.missing.extend(lacking);
        for row in document.rows {
            let key = row.key();
            match all.rows.iter_mut().find(|earlier| earlier.key() == key) {
                Some(earlier) => *earlier = row,
                None => all.rows.push(row),
            }
        }
    }
    Ok(all)
}

/// One contender's result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// How much of the way was measured.
    pub level: Level,
    /// What was measured: rows of one group compete.
    pub group: String,
    /// Our graph.
    pub graph: String,
    /// Window's side in samples, where the axis was varied.
    pub kernel: Option<usize>,
    /// Samples.
    pub width: usize,
    /// Samples.
    pub height: usize,
    /// Plane layout: gray, 420, …
    pub planes: String,
    /// Sample type: u8, f32, …
    pub r#type: String,
    /// Border of every filter.
    pub border: String,
    /// Frames per batch.
    pub batch: usize,
    /// "convoy" or a peer.
    pub program: String,
    /// "cpu", "cuda", or what the peer runs on.
    pub backend: String,
    /// Kernel variant, or what the peer calls it.
    pub variant: String,
    /// What `auto` chose, and more in words.
    pub notes: Vec<String>,
    /// Frames in flight.
    pub lanes: Option<usize>,
    /// Host memory of the loop: pinned or pageable.
    pub memory: Option<String>,
    /// Why there is no time.
    pub error: Option<String>,
    /// Against the reference.
    pub check: Option<Check>,
    /// By the device's clock where it has one, else by the host's.
    pub time_us: Option<Summary>,
    /// By the host's clock, waits and launches included.
    pub wall_us: Option<Summary>,
    /// 10⁶ / median time.
    pub fps: Option<f64>,
    /// Bytes of a frame that goes in and of the one that comes out.
    pub bytes: u64,
    /// `bytes` over the median time.
    pub gb_per_s: Option<f64>,
    /// A copy's time over this one's, measured in the same rounds.
    pub copy_share: Option<f64>,
    /// How many times as fast as one plain CPU thread in the same group.
    pub speedup: Option<f64>,
    /// Multiply-adds per sample, for the roofline; None where the operation is no sum.
    pub operations: Option<f64>,
    /// Of each launch.
    pub kernels: Vec<KernelUse>,
    /// Device time per frame of upload, kernels and download in microseconds.
    pub phases_us: Option<[f64; 3]>,
    /// Wall time in milliseconds of a whole run on one frame; part of every other run's time.
    #[serde(default)]
    pub start_up_ms: Option<f64>,
    /// Frames per second of a whole run without its start-up.
    #[serde(default)]
    pub net_fps: Option<f64>,
    /// Of a whole run.
    pub stages: Vec<StageShare>,
    /// The stage that limits a whole run.
    pub limited_by: Option<String>,
    /// A few frames of a whole run.
    pub timeline: Vec<Span>,
    /// Frames of one repetition.
    pub frames: usize,
    /// The device's clock before and after.
    pub clock_mhz: Option<[f64; 2]>,
    /// Why the times are suspect, and what to do.
    pub warnings: Vec<String>,
}

impl Row {
    /// An empty row of convoy's own.
    pub fn new(level: Level, group: &str, graph: &str, shape: Shape, (planes, sample): (&str, &str)) -> Self {
        Self {
            level,
            group: group.to_owned(),
            graph: graph.to_owned(),
            kernel: None,
            width: shape.width,
            height: shape.height,
            planes: planes.to_owned(),
            r#type: sample.to_owned(),
            border: String::new(),
            batch: 1,
            program: "convoy".to_owned(),
            backend: String::new(),
            variant: String::new(),
            notes: Vec::new(),
            lanes: None,
            memory: None,
            error: None,
            check: None,
            time_us: None,
            wall_us: None,
            fps: None,
            bytes: 0,
            gb_per_s: None,
            copy_share: None,
            speedup: None,
            operations: None,
            kernels: Vec::new(),
            phases_us: None,
            start_up_ms: None,
            net_fps: None,
            stages: Vec::new(),
            limited_by: None,
            timeline: Vec::new(),
            frames: 0,
            clock_mhz: None,
            warnings: Vec::new(),
        }
    }

    /// The same of another program, whose operations are not known.
    #[must_use]
    pub fn of_peer(self, program: &str, variant: &str, notes: &[String]) -> Self {
        let (program, variant) = (program.to_owned(), variant.to_owned());
        Self { program, variant, notes: notes.to_vec(), operations: None, kernels: Vec::new(), ..self }
    }

    /// Takes over what was measured.
    pub fn fill(&mut self, outcome: Result<super::race::Measured>) {
        match outcome {
            Err(error) => self.error = Some(error.to_string()),
            Ok(measured) => {
                let time = measured.time();
                self.check = Some(Check::from(&measured.verdict));
                self.time_us = Some(time);
                self.wall_us = Some(measured.wall);
                self.fps = (time.median > 0.0).then(|| 1e6 / time.median);
                self.gb_per_s = (time.median > 0.0 && self.bytes > 0).then(|| self.bytes as f64 / time.median / 1e3);
                self.frames = measured.frames;
                self.clock_mhz = measured.clock_mhz;
                self.warnings.extend(measured.warnings);
            }
        }
    }

    /// Notes what a run on one frame takes, and the rate without it.
    pub fn set_start_up(&mut self, start_up: std::time::Duration) {
        self.start_up_ms = Some(1e3 * start_up.as_secs_f64());
        let net = self.time_us.map(|time| time.median * self.frames as f64 - 1e6 * start_up.as_secs_f64());
        // The first frame is in the start-up.
        self.net_fps = net.filter(|&us| us > 0.0).map(|us| 1e6 * self.frames.saturating_sub(1) as f64 / us);
    }

    /// What rows that compete have in common.
    pub fn title(&self) -> (&str, &str, usize, usize, &str, &str, &str, usize) {
        (&self.group, &self.graph, self.width, self.height, &self.planes, &self.r#type, &self.border, self.batch)
    }

    /// What makes this row the same row in another bench.
    pub fn key(&self) -> String {
        let lanes = self.lanes.map_or(String::new(), |n| format!(" {n} lanes"));
        let memory = self.memory.as_deref().unwrap_or_default();
        format!(
            "{} {} {} {}x{} {} {} {} batch {} {} {} {}{lanes} {memory}",
            self.level.name(),
            self.group,
            self.graph,
            self.width,
            self.height,
            self.planes,
            self.r#type,
            self.border,
            self.batch,
            self.program,
            self.backend,
            self.variant
        )
        .trim_end()
        .to_owned()
    }

    /// The same for humans.
    pub fn label(&self) -> String {
        let lanes = self.lanes.map_or(String::new(), |n| format!(", {n} lanes"));
        let who = if self.program == "convoy" {
            format!("{} {}", self.backend, self.variant)
        } else {
            format!("{} {}", self.program, self.variant)
        };
        format!("{}: {} {}x{} {} {}, {who}{lanes}", self.level.name(), self.group, self.width, self.height, self.planes, self.r#type)
    }
}
