//! Options of `convoy run` for what an encoder or a container asks of the picture.

use clap::{Args, ValueEnum};

use crate::media::Odd;

/// Sizes, passes, layout of the file.
#[derive(Debug, Args)]
#[command(next_help_heading = "Encoding")]
pub struct EncodingArgs {
    /// A size that the encoder refuses: repeat the last column or row, cut it off, encode full chroma, or refuse.
    #[arg(long, value_enum, default_value_t)]
    pub odd: OddArg,
    /// Encode twice: once to learn where the bits are needed, once to write. Needs --bitrate, a file as input, and libx264, libx265,
    /// libvpx, libvpx-vp9, libaom-av1 or libtheora.
    #[arg(long, requires = "bitrate")]
    pub two_pass: bool,
    /// Write mp4 and mov with their index in front, so that players can start at once (the default).
    #[arg(long, overrides_with = "no_faststart")]
    pub faststart: bool,
    /// Leave the index of mp4 and mov at the end.
    #[arg(long, overrides_with = "faststart")]
    pub no_faststart: bool,
}

/// `--odd`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OddArg {
    /// Refuse, before anything is written.
    #[default]
    Error,
    /// Repeat the last column or row.
    Pad,
    /// Cut the last column or row off.
    Crop,
    /// Encode without chroma subsampling.
    #[value(name = "444")]
    Full,
}

impl From<OddArg> for Odd {
    fn from(odd: OddArg) -> Self {
        match odd {
            OddArg::Error => Self::Error,
            OddArg::Pad => Self::Pad,
            OddArg::Crop => Self::Crop,
            OddArg::Full => Self::FullChroma,
        }
    }
}
