//! Options of the commands that look at kernels and clips: `variants`, `kernels`, `verify`, `compare`.

use clap::{Args, Subcommand};

use super::Backend;
use super::values::{parse_pair, parse_share, parse_size};
use crate::axes::{self, Planes, SampleType, parse_size as parse_named_size};
use crate::filter::Border;

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
    /// Sample types; a list (default: u8, u10, u16, f16, f32).
    #[arg(long = "type", value_name = "LIST", value_delimiter = ',', value_enum)]
    pub sample: Vec<SampleType>,
    /// Plane layouts; a list (default: gray, 420).
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_enum)]
    pub planes: Vec<Planes>,
    /// Largest error allowed as a share of the sample range, instead of what each variant states; 0 wants every sample exact.
    /// Integer samples are held to whole code values; a float's own rounding is 6e-8, a half's is allowed for.
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
