//! Options of `convoy bench`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use super::Backend;
use super::values::{parse_batch, parse_lanes, parse_limit, parse_percent, parse_seconds, parse_window};
use crate::axes::{self, Planes, SampleType, parse_size as parse_named_size};
use crate::bench::plan::Kind;
use crate::filter::Border;

const BENCH_EXAMPLES: &str = "\
Levels: kernel (variants against each other, data on the device, beside a device copy), loop (host memory to host memory over several
lanes), pipeline (whole processes beside ffmpeg's). Every row is compared with the reference first; a wrong one gets an error instead of
a time, and the exit code is 1. Files are rewritten after every row, so that a bench that is cut short keeps what it measured.

Examples:
  convoy bench                                                    the default tables
  convoy bench --vf gblur=2 --vf sobel --size 720p,4k             two graphs, two sizes, all levels
  convoy bench --level kernel --filter gauss,conv --kernel 3,7,15 --type u8,f32
  convoy bench --preset article --json=new.json --html new.html   the classic tables, with plots
  convoy bench --preset article --compare old.json                exit code 1 if a row got slower beyond the noise";

/// Options of `convoy bench`.
#[derive(Debug, Args)]
#[command(after_help = BENCH_EXAMPLES)]
pub struct BenchArgs {
    /// What to measure: kernels on the device, the device loop, whole runs; a list (default: all that apply).
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LIST")]
    pub level: Vec<Level>,
    /// What filters the frames.
    #[arg(long, value_enum, default_value_t)]
    pub backend: Backend,
    /// The GPU to use.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub device: usize,
    /// A set of cases: the classic tables (1080p float 3x3, max pooling of 32x64x256x256), or window sizes against frame sizes.
    #[arg(long, value_enum)]
    pub preset: Option<Preset>,
    /// A filter graph to measure; may be repeated (default: a fixed set).
    #[arg(long, value_name = "GRAPH", help_heading = "Axes")]
    pub vf: Vec<String>,
    /// Filters whose window --kernel sets; a list.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum, help_heading = "Axes")]
    pub filter: Vec<Kind>,
    /// Window sizes of --filter, e.g. 3,7,15.
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_window, help_heading = "Axes")]
    pub kernel: Vec<usize>,
    /// Frame sizes; a list of WxH or 480p, 720p, 1080p, 1440p, 4k, 8k (default: 1080p).
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_named_size, help_heading = "Axes")]
    pub size: Vec<(usize, usize)>,
    /// Sample types of the kernel level; a list (default: u8, f32).
    #[arg(long = "type", value_name = "LIST", value_delimiter = ',', value_enum, help_heading = "Axes")]
    pub sample: Vec<SampleType>,
    /// Plane layouts of the kernel level; a list (default: gray).
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum, help_heading = "Axes")]
    pub planes: Vec<Planes>,
    /// Borders; a list (default: the graph's).
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = axes::parse_border, help_heading = "Axes")]
    pub border: Vec<Border>,
    /// Kernel variants, or auto; a list (default: all that fit).
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "Axes")]
    pub variant: Vec<String>,
    /// Frames in flight of the loop level; a list (default: 1,2,4,8).
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_lanes, help_heading = "Axes")]
    pub lanes: Vec<usize>,
    /// Frames that count as one at the kernel level; a list (default: 1).
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_batch, help_heading = "Axes")]
    pub batch: Vec<usize>,
    /// Frames per run of the pipeline level, the same for both programs (default: as many as keep Convoy filtering for a second, 100 at least).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(10..=1_000_000), help_heading = "Measuring")]
    pub frames: Option<u64>,
    /// Repetitions per row; the median counts (default: 3 of whole runs, fewer where one takes more than 10 s; 11 to 101 of kernels).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000), help_heading = "Measuring")]
    pub runs: Option<u64>,
    /// Seconds that each kernel row runs before it is timed.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, default_value = "0.1", help_heading = "Measuring")]
    pub warm_up: std::time::Duration,
    /// Measure other programs at the kernel level too: OpenCV (Python with cv2, one thread of the CPU) and, on a GPU, NPP (built with nvcc) and
    /// PyTorch. Each is compared with the reference first; what is absent is said. ffmpeg stands beside whole runs anyway.
    #[arg(long, help_heading = "Measuring")]
    pub peers: bool,
    /// Seconds that another program may take for one answer, and a whole run for its end: then it is stopped, its row says so, and the bench
    /// goes on. One that is stopped twice in a row is not asked again.
    #[arg(long, value_name = "SECONDS", value_parser = parse_limit, default_value = "120", help_heading = "Measuring")]
    pub peer_limit: std::time::Duration,
    /// Store which variant is fastest on this GPU for each case of the kernel level; `auto` uses it from then on.
    #[arg(long, help_heading = "Measuring")]
    pub tune: bool,
    /// Write the rows as JSON, to stdout or to a file.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-", help_heading = "Results")]
    pub json: Option<PathBuf>,
    /// Write the rows as CSV, to stdout or to a file.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-", help_heading = "Results")]
    pub csv: Option<PathBuf>,
    /// Write a page with plots; it needs no network.
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    pub html: Option<PathBuf>,
    /// Measure nothing: show rows that --json=FILE stored, those of several files of one machine put together.
    #[arg(long, value_name = "FILE.json", value_delimiter = ',', conflicts_with_all = ["vf", "filter", "kernel", "preset", "peers", "tune"], help_heading = "Results")]
    pub from: Vec<PathBuf>,
    /// Say what got faster or slower than in this JSON file; exit code 1 if anything got slower.
    #[arg(long, value_name = "OLD.json", help_heading = "Results")]
    pub compare: Option<PathBuf>,
    /// Times that grew by less than this many percent, or whose old value exceeds them by less, count as the same.
    #[arg(long, value_name = "PERCENT", default_value_t = 5.0, value_parser = parse_percent, requires = "compare", help_heading = "Results")]
    pub threshold: f64,
}

impl BenchArgs {
    /// Whether `level` was asked for; axes and presets of the kernel level ask for that one alone.
    pub fn wants(&self, level: Level) -> bool {
        if !self.level.is_empty() {
            return self.level.contains(&level);
        }
        let kernels_only = self.preset.is_some() || !self.filter.is_empty() || !self.kernel.is_empty();
        level == Level::Kernel || !kernels_only
    }
}

/// `--preset` of `bench`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Preset {
    /// 1920x1080 gray float 3x3, and 3x3 max pooling of 32x64x256x256.
    Article,
    /// Gaussian and general kernels of 3 to 31, 480p to 8k, u8 and f32.
    Sweep,
}

/// `--level` of `bench`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Data on the device, beside the device copy.
    Kernel,
    /// Pinned memory up, filter, down, over several lanes.
    Loop,
    /// Whole processes, beside ffmpeg.
    Pipeline,
}

impl Level {
    /// The name as typed.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Loop => "loop",
            Self::Pipeline => "pipeline",
        }
    }
}
