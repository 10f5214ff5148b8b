//! Options of `convoy run`.

use clap::{Args, ValueEnum};

use super::values::{parse_bit_rate, parse_bytes, parse_lanes, parse_pair, parse_threads};
use super::{Backend, EncodingArgs, SelectionArgs};
use crate::output::Overwrite;

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
