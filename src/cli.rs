//! The command line: flags to validated plans. Parsing does no work.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::axes::{self, Planes, SampleType, parse_size as parse_named_size};
use crate::backend::Choice;
use crate::bench::plan::Kind;
use crate::error::{Error, Result};
use crate::filter::Border;
use crate::output::Overwrite;

mod encoding;
mod selection;

pub use encoding::{EncodingArgs, OddArg};
pub use selection::{Fields, GapsArg, OnChangeArg, SelectionArgs};

/// Filters video in real time, on CUDA or the CPU.
#[derive(Debug, Parser)]
#[command(name = "convoy", version, about, max_term_width = 110, propagate_version = true, after_help = EXAMPLES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "\
Examples:
  convoy run in.mp4 -o out.mp4 --vf gblur=sigma=2      blur a video, keep its sound
  convoy run in.mkv -o out.mkv --vf unsharp,sobel -y   a chain of filters, overwrite out.mkv
  convoy run in.mp4 -o null: --vf gblur=2 --stats      measure, write nothing
  convoy filters gblur                                 parameters of one filter
  convoy variants --vf gblur=5                         the kernels that could run a graph, and which one would
  convoy doctor                                        what this machine offers

Results go to stdout, status to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage, 130/143 interrupted (the output is
valid but partial).";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Filter a video.
    Run(Box<RunArgs>),
    /// List filters, or show one filter's parameters, formula and example.
    Filters {
        /// A filter's name.
        name: Option<String>,
    },
    /// Measure frames per second, beside ffmpeg and the device's copy rate.
    Bench(Box<BenchArgs>),
    /// List kernel variants: what each needs, moves and costs, and which one `auto` would choose.
    Variants(VariantsArgs),
    /// Compiled kernels for machines without NVRTC.
    Kernels {
        /// What to do.
        #[command(subcommand)]
        command: KernelsCommand,
    },
    /// Hold kernel variants to the reference: sizes, borders, sample types; exit code 1 if one fails.
    Verify(VerifyArgs),
    /// Compare two clips: PSNR and SSIM per plane, largest difference, frame count and times.
    Compare(CompareArgs),
    /// Report driver, GPU, NVRTC, FFmpeg, codecs and cameras: found, or how to get them.
    Doctor,
    /// Print a completion script for a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print a manual page (roff): the program's, or one command's. View it with `convoy man run | man -l -`.
    Man {
        /// A command, e.g. run.
        command: Option<String>,
    },
}

const RUN_EXAMPLES: &str = "\
INPUT may be a file of any container, - (stdin), a URL (rtsp://, http://, udp://, srt://), a camera (/dev/video0), an image
sequence (f_%04d.png), lavfi:GRAPH (as ffmpeg's -f lavfi) or synth:SIZE@FPS (a built-in moving card).
OUTPUT may be a file, - (stdout, needs --format), a URL, an image sequence or null: (filter and discard).

Examples:
  convoy run in.mp4 -o out.mp4 --vf gblur=sigma=2
  convoy run in.mp4 -o out.mkv --vf 'unsharp=5:5:1.0,sobel' -c:v ffv1
  convoy run in.mp4 -o small.mp4 --crf 28 --preset veryfast --frames 250
  convoy run synth:1920x1080@60 -o null: --vf gblur=2 --frames 1000 --stats
  convoy run lavfi:testsrc2=size=hd720 -o out.mp4 --frames 100";

/// Options of `convoy run`.
#[derive(Debug, Args)]
#[command(after_help = RUN_EXAMPLES)]
pub struct RunArgs {
    /// What to read.
    pub input: String,
    /// Where to write.
    #[arg(short, long, value_name = "OUTPUT", allow_hyphen_values = true)]
    pub output: String,
    /// The filters, in FFmpeg's syntax: gblur=sigma=2,unsharp (none: a plain transcode).
    #[arg(long, value_name = "GRAPH", default_value = "", hide_default_value = true)]
    pub vf: String,

    /// Overwrite an existing output.
    #[arg(short = 'y', long, conflicts_with = "never")]
    pub yes: bool,
    /// Never overwrite an existing output (the default; refuses with exit code 1).
    #[arg(short = 'n', long = "no")]
    pub never: bool,
    /// Stop after this many frames.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub frames: Option<u64>,

    /// Which part, which streams, and what to do about oddities.
    #[command(flatten)]
    pub selection: SelectionArgs,

    /// What filters the frames: auto takes CUDA when it works, else the CPU.
    #[arg(long, value_enum, default_value_t, help_heading = "Execution")]
    pub backend: Backend,
    /// The GPU to use.
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Execution")]
    pub device: usize,
    /// Force a kernel variant for every filter.
    #[arg(long, value_name = "NAME", help_heading = "Execution")]
    pub variant: Option<String>,
    /// Frames in flight (default: the backend's choice).
    #[arg(long, value_name = "N", value_parser = parse_lanes, help_heading = "Execution")]
    pub lanes: Option<usize>,
    /// CPU threads for decoder, filters and encoder (default: all).
    #[arg(long, value_name = "N", value_parser = parse_threads, help_heading = "Execution")]
    pub threads: Option<usize>,
    /// Memory that frames may take, e.g. 4G (default: the larger of 2G and a quarter of RAM).
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, help_heading = "Execution")]
    pub memory: Option<usize>,

    /// Encoder (default: libx264 -crf 18 -preset medium, or what the container asks for); copy-params: the input's codec and
    /// profile.
    #[arg(long = "c:v", alias = "codec", value_name = "NAME", help_heading = "Encoding")]
    pub codec: Option<String>,
    /// Constant quality, the encoder's own scale.
    #[arg(long, value_name = "N", conflicts_with = "bitrate", help_heading = "Encoding")]
    pub crf: Option<f64>,
    /// The encoder's preset.
    #[arg(long, value_name = "NAME", help_heading = "Encoding")]
    pub preset: Option<String>,
    /// Bit rate instead of constant quality, e.g. 4M.
    #[arg(long, value_name = "BITS/S", value_parser = parse_bit_rate, help_heading = "Encoding")]
    pub bitrate: Option<u64>,
    /// Pixel format handed to the encoder (default: the filtered one).
    #[arg(long, value_name = "NAME", help_heading = "Encoding")]
    pub pix_fmt: Option<String>,
    /// An option of the encoder; may be repeated.
    #[arg(long, value_name = "K=V", value_parser = parse_pair, help_heading = "Encoding")]
    pub enc_opt: Vec<(String, String)>,
    /// An option of the muxer; may be repeated.
    #[arg(long, value_name = "K=V", value_parser = parse_pair, help_heading = "Encoding")]
    pub mux_opt: Vec<(String, String)>,
    /// An option of the demuxer; may be repeated.
    #[arg(long, value_name = "K=V", value_parser = parse_pair, help_heading = "Input")]
    pub in_opt: Vec<(String, String)>,
    /// The input's format, when it cannot be guessed.
    #[arg(long, value_name = "NAME", help_heading = "Input")]
    pub input_format: Option<String>,
    /// The output's container, when its name does not tell.
    #[arg(long, value_name = "NAME", help_heading = "Encoding")]
    pub format: Option<String>,

    /// Sizes, passes, layout of the file.
    #[command(flatten)]
    pub encoding: EncodingArgs,

    /// Compare every Nth frame with the reference; the first one that differs ends the run with exit code 1.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), help_heading = "Reporting")]
    pub verify: Option<u64>,
    /// Print what each stage did when done: busy and wait time, fps, latency, bytes copied, the stage that limits.
    #[arg(long, value_enum, value_name = "FORM", num_args = 0..=1, require_equals = true, default_missing_value = "text", help_heading = "Reporting")]
    pub stats: Option<StatsForm>,
    /// Write what each stage did with each frame, for Perfetto (ui.perfetto.dev) or chrome://tracing.
    #[arg(long, value_name = "FILE", help_heading = "Reporting")]
    pub trace: Option<String>,
    /// Progress on stderr: a bar on a terminal, JSON lines, or nothing.
    #[arg(long, value_enum, default_value_t, help_heading = "Reporting")]
    pub progress: Progress,
    /// Say which device and kernel variants were chosen and what was converted.
    #[arg(short, long, help_heading = "Reporting")]
    pub verbose: bool,
}

impl RunArgs {
    /// The overwrite rule that -y and -n ask for.
    pub fn overwrite(&self) -> Overwrite {
        if self.yes { Overwrite::Replace } else { Overwrite::Refuse }
    }
}

/// The commands of `convoy kernels`.
#[derive(Debug, Subcommand)]
pub enum KernelsCommand {
    /// Compile the kernels of the common filters into one file, which a machine with a driver alone can run. Set CONVOY_KERNEL_PACK to
    /// that file there, or embed it: CONVOY_EMBED_KERNEL_PACK=FILE cargo build --release.
    Pack(PackArgs),
}

/// Options of `convoy kernels pack`.
#[derive(Debug, Args)]
pub struct PackArgs {
    /// Architectures, a list; one serves later GPUs of the same major version (sm_80 also sm_86 and sm_89).
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_arch, default_value = "sm_75,sm_80,sm_90,sm_100,sm_120")]
    pub arch: Vec<String>,
    /// The file to write.
    #[arg(short, long, value_name = "FILE")]
    pub output: std::path::PathBuf,
}

fn parse_arch(text: &str) -> Result<String, String> {
    let digits = text.strip_prefix("sm_").filter(|d| (2..=3).contains(&d.len()) && d.bytes().all(|b| b.is_ascii_digit()));
    digits.map(|_| text.to_owned()).ok_or_else(|| "expected an architecture such as sm_90".to_owned())
}

const VARIANTS_EXAMPLES: &str = "\
A name goes behind --variant or into a graph as variant=NAME; constant, tiled and texture take a block size, e.g. tiled:32x8 (in a
graph: tiled-32x8). A forced variant that does not fit is an error that says why.

Examples:
  convoy variants                                       every variant, each family by an example
  convoy variants --vf gblur=sigma=5 --size 3840x2160   the variants of one graph, their costs, and the choice
  convoy variants --vf 'convolution=1 2 1 2 4 2 1 2 1' --format grayf32le --json";

/// Options of `convoy variants`.
#[derive(Debug, Args)]
#[command(after_help = VARIANTS_EXAMPLES)]
pub struct VariantsArgs {
    /// The filters whose variants to list (default: an example of every family).
    #[arg(long, value_name = "GRAPH")]
    pub vf: Option<String>,
    /// Frame size.
    #[arg(long, value_name = "WxH", default_value = "1920x1080", value_parser = parse_size)]
    pub size: (usize, usize),
    /// FFmpeg's name of the pixel format.
    #[arg(long, value_name = "NAME", default_value = "yuv420p")]
    pub format: String,
    /// The GPU that would run them.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub device: usize,
    /// Print JSON instead of tables.
    #[arg(long)]
    pub json: bool,
}

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
    /// Frames per run of the pipeline level.
    #[arg(long, value_name = "N", default_value_t = 150, value_parser = clap::value_parser!(u64).range(10..), help_heading = "Measuring")]
    pub frames: u64,
    /// Repetitions per row; the median counts (default: 3 of whole runs, 11 to 101 of kernels).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000), help_heading = "Measuring")]
    pub runs: Option<u64>,
    /// Seconds that each kernel row runs before it is timed.
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, default_value = "0.1", help_heading = "Measuring")]
    pub warm_up: std::time::Duration,
    /// Measure other programs at the kernel level too: OpenCV (Python with cv2, one thread of the CPU) and, on a GPU, NPP (built with nvcc) and
    /// PyTorch. Each is compared with the reference first; what is absent is said. ffmpeg stands beside whole runs anyway.
    #[arg(long, help_heading = "Measuring")]
    pub peers: bool,
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
    /// Measure nothing: show the rows of this JSON file, as tables and as --html and --csv say.
    #[arg(long, value_name = "FILE.json", conflicts_with_all = ["compare", "tune", "json"], help_heading = "Results")]
    pub render: Option<PathBuf>,
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

/// Options of `convoy verify`.
#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// A filter graph to verify; may be repeated (default: every filter).
    #[arg(long, value_name = "GRAPH")]
    pub vf: Vec<String>,
    /// Kernel variants; a list (default: all that fit).
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub variant: Vec<String>,
    /// Whose variants: auto takes the CPU's, and CUDA's where it works.
    #[arg(long, value_enum, default_value_t)]
    pub backend: Backend,
    /// The GPU to use.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub device: usize,
    /// Frame sizes; a list of WxH or 480p…8k (default: 1x1 to 321x241).
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_named_size)]
    pub size: Vec<(usize, usize)>,
    /// Borders; a list (default: all).
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = axes::parse_border)]
    pub border: Vec<Border>,
    /// Sample types; a list (default: u8, u10, u16, f32).
    #[arg(long = "type", value_name = "LIST", value_delimiter = ',', value_enum)]
    pub sample: Vec<SampleType>,
    /// Plane layouts; a list (default: gray, 420).
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum)]
    pub planes: Vec<Planes>,
    /// Largest error allowed as a share of the sample range, instead of what each variant states; 0 wants every sample exact.
    /// Integer samples are held to whole code values; a float's own rounding is 6e-8.
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    pub tolerance: Option<f64>,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// Options of `convoy compare`.
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// A file, URL, image sequence, lavfi:GRAPH or synth:SIZE@FPS.
    pub a: String,
    /// The same.
    pub b: String,
    /// Exit with code 1 when any plane's PSNR over the whole clip is below this, or the clips have different lengths.
    #[arg(long, value_name = "DB")]
    pub min_psnr: Option<f64>,
    /// Compare this many frames at most.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub frames: Option<u64>,
    /// The inputs' format, when it cannot be guessed.
    #[arg(long, value_name = "NAME")]
    pub input_format: Option<String>,
    /// An option of both demuxers; may be repeated.
    #[arg(long, value_name = "K=V", value_parser = parse_pair)]
    pub in_opt: Vec<(String, String)>,
    /// Print JSON (an infinite PSNR is null).
    #[arg(long)]
    pub json: bool,
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

/// `--backend`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Backend {
    /// CUDA when it works, else the CPU.
    #[default]
    Auto,
    /// CUDA or an error.
    Cuda,
    /// The CPU.
    Cpu,
}

impl From<Backend> for Choice {
    fn from(backend: Backend) -> Self {
        match backend {
            Backend::Auto => Self::Auto,
            Backend::Cuda => Self::Cuda,
            Backend::Cpu => Self::Cpu,
        }
    }
}

impl Backend {
    /// The name as typed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Cuda => "cuda",
            Self::Cpu => "cpu",
        }
    }
}

/// `--stats`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StatsForm {
    /// A table.
    Text,
    /// One JSON object.
    Json,
}

/// `--progress`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Progress {
    /// A bar when stderr is a terminal.
    #[default]
    Auto,
    /// Nothing.
    None,
    /// One JSON object per line, about twice a second.
    Json,
}

/// Parses the process's arguments. ffmpeg's spellings `-c:v`, `-vf`, `-crf`, `-preset` are accepted for ours.
///
/// # Errors
/// Clap's: wrong usage, or help and version as text.
pub fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    const SINGLE_DASH: [&str; 10] = ["-c:v", "-vf", "-crf", "-preset", "-frames", "-pix_fmt", "-ss", "-to", "-map", "-re"];
    let args = args.into_iter().map(|arg| match arg.to_str() {
        Some("-pix_fmt") => "--pix-fmt".into(),
        Some(text) if SINGLE_DASH.contains(&text) => format!("-{text}").into(),
        _ => arg,
    });
    Cli::try_parse_from(args)
}

/// Writes the completion script for `shell`.
pub fn completions(shell: clap_complete::Shell, out: &mut dyn std::io::Write) {
    clap_complete::generate(shell, &mut Cli::command(), "convoy", out);
}

/// Writes the manual page of the program, or of one of its commands.
///
/// # Errors
/// There is no such command, or the write failed.
pub fn man(name: Option<&str>, out: &mut dyn std::io::Write) -> Result<()> {
    let mut command = Cli::command();
    command.build();
    if let Some(name) = name {
        let found = command.find_subcommand(name).cloned();
        command =
            found.ok_or_else(|| Error::usage(format!("there is no command '{name}'"), "").hint("`convoy --help` lists the commands"))?;
    }
    clap_mangen::Man::new(command).render(out).map_err(|e| Error::failed("cannot write the manual page", e))
}

fn parse_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}

/// `1920x1080`.
pub fn parse_size(text: &str) -> Result<(usize, usize), String> {
    let side = |t: &str| t.parse::<usize>().ok().filter(|s| (1..=crate::frame::MAX_SIDE).contains(s));
    text.split_once('x')
        .and_then(|(w, h)| Some((side(w)?, side(h)?)))
        .ok_or_else(|| format!("expected WIDTHxHEIGHT, each 1 to {}", crate::frame::MAX_SIDE))
}

fn parse_bounded(text: &str, limit: usize) -> Result<usize, String> {
    text.parse().ok().filter(|n| (1..=limit).contains(n)).ok_or_else(|| format!("expected a whole number from 1 to {limit}"))
}

fn parse_lanes(text: &str) -> Result<usize, String> {
    parse_bounded(text, 64)
}

fn parse_threads(text: &str) -> Result<usize, String> {
    parse_bounded(text, 512)
}

fn parse_window(text: &str) -> Result<usize, String> {
    parse_bounded(text, 255)
}

fn parse_batch(text: &str) -> Result<usize, String> {
    parse_bounded(text, 1 << 20)
}

fn parse_seconds(text: &str) -> Result<std::time::Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|s| (0.0..=600.0).contains(s));
    seconds.map(std::time::Duration::from_secs_f64).ok_or_else(|| "expected seconds from 0 to 600".to_owned())
}

fn parse_share(text: &str) -> Result<f64, String> {
    text.parse::<f64>().ok().filter(|s| (0.0..=1.0).contains(s)).ok_or_else(|| "expected a share from 0 to 1".to_owned())
}

fn parse_percent(text: &str) -> Result<f64, String> {
    text.parse::<f64>().ok().filter(|p| (0.0..=1000.0).contains(p)).ok_or_else(|| "expected percent from 0 to 1000".to_owned())
}

/// A number with an optional suffix; `step` is 1024 for bytes, 1000 for bit rates.
fn parse_scaled(text: &str, step: f64) -> Option<f64> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(split);
    let power = match suffix.trim_end_matches("iB").trim_end_matches('B') {
        "" => 0,
        "k" | "K" => 1,
        "M" => 2,
        "G" => 3,
        "T" => 4,
        _ => return None,
    };
    number.parse::<f64>().ok().map(|n| n * step.powi(power)).filter(|n| *n >= 1.0 && *n < 9e15)
}

fn parse_bytes(text: &str) -> Result<usize, String> {
    parse_scaled(text, 1024.0).map(|n| n as usize).ok_or_else(|| "expected a size such as 512M or 4G".to_owned())
}

fn parse_bit_rate(text: &str) -> Result<u64, String> {
    parse_scaled(text, 1000.0).map(|n| n as u64).ok_or_else(|| "expected a rate such as 800k or 4M".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_args(args: &[&str]) -> RunArgs {
        let all = ["convoy", "run"].iter().chain(args).map(OsString::from);
        match parse(all).unwrap().command {
            Command::Run(run) => *run,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn clap_finds_the_definition_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn ffmpegs_spellings_are_understood() {
        let args = run_args(&[
            "a", "-o", "b", "-c:v", "ffv1", "-vf", "sobel", "-crf", "20", "--stats", "--memory", "1.5G", "-ss", "1.5", "-map", "-a",
        ]);
        assert_eq!(
            (args.codec.as_deref(), args.vf.as_str(), args.crf, args.stats),
            (Some("ffv1"), "sobel", Some(20.0), Some(StatsForm::Text))
        );
        assert_eq!((args.memory, args.selection.ss, args.selection.map), (Some(3 << 29), Some(1_500_000), vec!["-a".to_owned()]));
        assert_eq!(run_args(&["a", "-o", "b", "--bitrate", "4M", "--two-pass"]).bitrate, Some(4_000_000));
        assert_eq!(run_args(&["a", "-o", "-", "--stats=json"]).stats, Some(StatsForm::Json));
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        for (bad, word) in [
            ("--frames=0", "frames"),
            ("--lanes=0", "lanes"),
            ("--memory=x", "memory"),
            ("--enc-opt=x", "KEY=VALUE"),
            ("--backend=tpu", "backend"),
            ("--ss=x", "--ss"),
            ("--two-pass", "--bitrate"),
        ] {
            let error = parse(["convoy", "run", "a", "-o", "b", bad].iter().map(OsString::from)).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(word), "{error}");
        }
        assert!(parse_size("0x4").is_err() && parse_size("4").is_err());
    }
}
