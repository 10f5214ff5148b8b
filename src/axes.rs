//! The axes along which `bench` and `verify` vary a frame, as one types them: sizes, sample types, plane layouts, borders.

use clap::ValueEnum;

use crate::filter::Border;
use crate::frame::{Packing, PixelFormat};

/// Depth of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SampleType {
    /// 8 bits.
    U8,
    /// 9 bits in 16.
    U9,
    /// 10 bits in 16.
    U10,
    /// 12 bits in 16.
    U12,
    /// 14 bits in 16.
    U14,
    /// 16 bits.
    U16,
    /// 16-bit float.
    F16,
    /// 32-bit float.
    F32,
}

impl SampleType {
    /// The name as typed.
    pub const fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::U9 => "u9",
            Self::U10 => "u10",
            Self::U12 => "u12",
            Self::U14 => "u14",
            Self::U16 => "u16",
            Self::F16 => "f16",
            Self::F32 => "f32",
        }
    }

    /// Bits per sample.
    pub const fn depth(self) -> u8 {
        match self {
            Self::U8 => 8,
            Self::U9 => 9,
            Self::U10 => 10,
            Self::U12 => 12,
            Self::U14 => 14,
            Self::U16 | Self::F16 => 16,
            Self::F32 => 32,
        }
    }

    /// Whether samples are floats.
    pub const fn is_float(self) -> bool {
        match self {
            Self::U8 | Self::U9 | Self::U10 | Self::U12 | Self::U14 | Self::U16 => false,
            Self::F16 | Self::F32 => true,
        }
    }
}

/// Planes of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Planes {
    /// One plane.
    Gray,
    /// Chroma of half width and height.
    #[value(name = "420")]
    Yuv420,
    /// Chroma of half width.
    #[value(name = "422")]
    Yuv422,
    /// Full chroma.
    #[value(name = "444")]
    Yuv444,
    /// 4:2:0 with interleaved chroma: nv12, or p010 and p016 with deeper samples.
    Nv12,
    /// Green, blue, red.
    Gbr,
}

impl Planes {
    /// The name as typed.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gray => "gray",
            Self::Yuv420 => "420",
            Self::Yuv422 => "422",
            Self::Yuv444 => "444",
            Self::Nv12 => "nv12",
            Self::Gbr => "gbr",
        }
    }

    /// The pixel format of these planes with such samples; None where there is none (float has no chroma, p0xx has 10, 12 or 16 bits).
    pub fn format(self, sample: SampleType) -> Option<PixelFormat> {
        let (depth, float) = (sample.depth(), sample.is_float());
        match self {
            Self::Gray => Some(PixelFormat { float, ..PixelFormat::gray(depth) }),
            Self::Gbr => Some(PixelFormat { float, ..PixelFormat::gbr(depth) }),
            Self::Yuv420 => (!float).then(|| PixelFormat::yuv(depth, 1, 1)),
            Self::Yuv422 => (!float).then(|| PixelFormat::yuv(depth, 1, 0)),
            Self::Yuv444 => (!float).then(|| PixelFormat::yuv(depth, 0, 0)),
            Self::Nv12 => match sample {
                SampleType::U8 | SampleType::U10 | SampleType::U12 | SampleType::U16 => {
                    let high_bits = (9..16).contains(&depth);
                    Some(PixelFormat { packing: Packing::SemiPlanar, high_bits, ..PixelFormat::yuv(depth, 1, 1) })
                }
                SampleType::U9 | SampleType::U14 | SampleType::F16 | SampleType::F32 => None,
            },
        }
    }
}

/// `WIDTHxHEIGHT`, or one of the usual names.
///
/// # Errors
/// Neither.
pub fn parse_size(text: &str) -> Result<(usize, usize), String> {
    let named = [
        ("480p", (854, 480)),
        ("720p", (1280, 720)),
        ("1080p", (1920, 1080)),
        ("1440p", (2560, 1440)),
        ("4k", (3840, 2160)),
        ("8k", (7680, 4320)),
    ];
    match named.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)) {
        Some((_, size)) => Ok(*size),
        None => crate::cli::parse_size(text).map_err(|e| format!("{e}, or 480p, 720p, 1080p, 1440p, 4k, 8k")),
    }
}

/// A border by its name in a filter graph.
///
/// # Errors
/// There is no such border; the names.
pub fn parse_border(text: &str) -> Result<Border, String> {
    let names = Border::ALL.map(Border::name).join(", ");
    Border::ALL.into_iter().find(|b| b.name() == text).ok_or_else(|| format!("expected one of {names}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        assert_eq!((parse_size("4K"), parse_size("13x42")), (Ok((3840, 2160)), Ok((13, 42))));
        assert!(parse_size("big").unwrap_err().contains("8k"));
        assert_eq!(parse_border("reflect101"), Ok(Border::Reflect101));
        assert!(parse_border("x").unwrap_err().contains("wrap"));
        for sample in SampleType::value_variants() {
            assert_eq!(SampleType::from_str(sample.name(), false).as_ref(), Ok(sample));
        }
        for planes in Planes::value_variants() {
            assert_eq!(Planes::from_str(planes.name(), false).as_ref(), Ok(planes));
        }
        assert!(Planes::Nv12.format(SampleType::U10).unwrap().high_bits);
        assert_eq!(Planes::Yuv420.format(SampleType::F32), None);
        assert_eq!(Planes::Gray.format(SampleType::F16), Some(PixelFormat::gray(32).half()));
        assert_eq!(Planes::Gbr.format(SampleType::U16), Some(PixelFormat::gbr(16)));
        assert!([Planes::Yuv444, Planes::Nv12].iter().all(|planes| planes.format(SampleType::F16).is_none()));
    }
}
