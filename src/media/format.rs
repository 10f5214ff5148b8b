//! Pixel formats: FFmpeg's descriptors to [`PixelFormat`] and back, and the nearest native format for the rest.

use ffmpeg_next::ffi;

use super::owned;
use super::repack::{Places, Repack};
use crate::error::{Error, Result};
use crate::frame::{Model, Packing, PixelFormat, Sample};

/// FFmpeg's enum value for a raw number; None for AV_PIX_FMT_NONE and numbers that this build does not know.
pub(super) fn av_from_raw(raw: i32) -> Option<ffi::AVPixelFormat> {
    if raw < 0 {
        return None;
    }
    // The enum is sparse, so a number may only become one when a known descriptor has it.
    descriptors().find(|&(id, _)| id as i32 == raw).map(|(id, _)| id)
}

fn descriptors() -> impl Iterator<Item = (ffi::AVPixelFormat, &'static ffi::AVPixFmtDescriptor)> {
    let mut last: *const ffi::AVPixFmtDescriptor = std::ptr::null();
    std::iter::from_fn(move || {
        // SAFETY: iteration over FFmpeg's static table with its own previous element; entries live forever.
        unsafe {
            last = ffi::av_pix_fmt_desc_next(last);
            (!last.is_null()).then(|| (ffi::av_pix_fmt_desc_get_id(last), &*last))
        }
    })
}

fn descriptor(format: ffi::AVPixelFormat) -> Option<&'static ffi::AVPixFmtDescriptor> {
    // SAFETY: returns null or an entry of a static table.
    unsafe { ffi::av_pix_fmt_desc_get(format).as_ref() }
}

/// FFmpeg's name of a raw pixel format.
pub(super) fn name(format: ffi::AVPixelFormat) -> String {
    // SAFETY: returns null or a static string.
    unsafe { owned::text(ffi::av_get_pix_fmt_name(format)) }.unwrap_or_else(|| "unknown".to_owned())
}

fn is_yuvj(descriptor: &ffi::AVPixFmtDescriptor) -> bool {
    // SAFETY: descriptor names are static strings.
    unsafe { owned::text(descriptor.name) }.is_some_and(|name| name.starts_with("yuvj"))
}

/// Whether the format implies full range by its name (yuvj420p and its kin).
pub(super) fn implies_full_range(format: ffi::AVPixelFormat) -> bool {
    descriptor(format).is_some_and(is_yuvj)
}

/// Whether the components are R, G, B, directly or through a palette.
pub(super) fn is_rgb(format: ffi::AVPixelFormat) -> bool {
    descriptor(format).is_some_and(|d| d.flags & (ffi::AV_PIX_FMT_FLAG_RGB | ffi::AV_PIX_FMT_FLAG_PAL) as u64 != 0)
}

/// Whether there is no colour.
pub(super) fn is_gray(format: ffi::AVPixelFormat) -> bool {
    descriptor(format).is_some_and(|d| d.nb_components < 3) && !is_rgb(format)
}

/// The native format that FFmpeg's `format` is; None when its samples must be converted.
pub(super) fn native(format: ffi::AVPixelFormat) -> Option<PixelFormat> {
    descriptor(format).and_then(native_of)
}

fn native_of(d: &ffi::AVPixFmtDescriptor) -> Option<PixelFormat> {
    let places = Places::of_descriptor(d)?;
    let planar = places.planar()?;
    let packings = [(Packing::Planar, false), (Packing::SemiPlanar, false), (Packing::SemiPlanar, true), (Packing::Planar, true)];
    let mut candidates = packings.into_iter().map(|(packing, high_bits)| PixelFormat { packing, high_bits, ..planar });
    candidates.find(|&format| Places::of_native(format) == places)
}

/// Planes of halves by FFmpeg's names, which its older versions do not know.
const HALVES: [(&str, PixelFormat); 3] = [
    ("grayf16le", PixelFormat::gray(32).half()),
    ("gbrpf16le", PixelFormat::gbr(32).half()),
    ("gbrapf16le", PixelFormat { alpha: true, ..PixelFormat::gbr(32).half() }),
];

/// The native format of FFmpeg's name for it.
///
/// # Errors
/// FFmpeg has no such format, or its samples would be converted on entry.
pub fn named(name: &str) -> Result<PixelFormat> {
    if let Some((_, format)) = HALVES.iter().find(|(known, _)| *known == name) {
        return Ok(*format);
    }
    let found = descriptors().map(|(id, _)| id).find(|&id| self::name(id) == name);
    let wrong = |cause: &str| Error::usage(format!("cannot use the pixel format '{name}'"), cause).hint("ffmpeg -pix_fmts lists them");
    let id = found.ok_or_else(|| wrong("FFmpeg has no such format"))?;
    native(id).ok_or_else(|| wrong("its samples are converted before they are filtered; name the format that they become"))
}

/// Where the components of FFmpeg's `format` lie; None when not at regular places.
pub(super) fn places(format: ffi::AVPixelFormat) -> Option<Places> {
    descriptor(format).and_then(Places::of_descriptor)
}

/// Bits of the widest component; 0 when the format's samples lie irregularly.
pub(super) fn depth(format: ffi::AVPixelFormat) -> u32 {
    places(format).map_or(0, |p| p.depth())
}

/// FFmpeg's gray format with alpha beside each sample: it has none with a plane of its own.
pub(super) fn interleaved_alpha(format: PixelFormat) -> Option<ffi::AVPixelFormat> {
    match (format.model, format.alpha && !format.float, format.depth) {
        (Model::Gray, true, 8) => Some(ffi::AVPixelFormat::AV_PIX_FMT_YA8),
        (Model::Gray, true, 16) => Some(ffi::AVPixelFormat::AV_PIX_FMT_YA16LE),
        _ => None,
    }
}

/// The conversion of native frames into FFmpeg's `to`, if it loses nothing.
pub(super) fn repack_to(from: PixelFormat, to: ffi::AVPixelFormat) -> Option<Repack> {
    Repack::between(Places::of_native(from), places(to)?)
}

/// As [`repack_to`], leaving alpha out.
pub(super) fn repack_without_alpha(from: PixelFormat, to: ffi::AVPixelFormat) -> Option<Repack> {
    Repack::without_alpha(Places::of_native(from), places(to)?)
}

/// The conversion of FFmpeg's `from` into native frames, if it loses nothing.
pub(super) fn repack_from(from: ffi::AVPixelFormat, to: PixelFormat) -> Option<Repack> {
    Repack::between(places(from)?, Places::of_native(to))
}

/// FFmpeg's format for a native one; never a yuvj format. None when FFmpeg has no such format.
pub(super) fn av(format: PixelFormat) -> Option<ffi::AVPixelFormat> {
    descriptors().find(|(_, d)| !is_yuvj(d) && native_of(d) == Some(format)).map(|(id, _)| id)
}

/// The yuvj format of a native 8-bit YUV format, for encoders that only know full range by that name.
pub(super) fn av_full_range(format: PixelFormat) -> Option<ffi::AVPixelFormat> {
    descriptors().find(|(_, d)| is_yuvj(d) && native_of(d) == Some(format)).map(|(id, _)| id)
}

/// What a conversion loses, in FFmpeg's FF_LOSS bits.
pub(super) fn loss(from: ffi::AVPixelFormat, to: ffi::AVPixelFormat) -> i32 {
    let has_alpha = descriptor(from).is_some_and(|d| d.flags & ffi::AV_PIX_FMT_FLAG_ALPHA as u64 != 0);
    // SAFETY: both formats are known.
    unsafe { ffi::av_get_pix_fmt_loss(to, from, has_alpha.into()) }
}

/// The candidate that keeps most of `from`, as FFmpeg scores it.
pub(super) fn nearest(from: ffi::AVPixelFormat, candidates: impl Iterator<Item = ffi::AVPixelFormat>) -> Option<ffi::AVPixelFormat> {
    let has_alpha = descriptor(from).is_some_and(|d| d.flags & (ffi::AV_PIX_FMT_FLAG_ALPHA as u64) != 0);
    candidates.fold(None, |best, candidate| {
        let Some(best) = best else { return Some(candidate) };
        // SAFETY: all formats are known ones; the loss pointer may be null.
        Some(unsafe { ffi::av_find_best_pix_fmt_of_2(best, candidate, from, has_alpha.into(), std::ptr::null_mut()) })
    })
}

/// How frames of a format come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// What is filtered.
    pub format: PixelFormat,
    /// How it comes about.
    pub way: Way,
}

/// What happens to samples on entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// They are filtered where they lie.
    Native,
    /// They are moved without loss.
    Lossless,
    /// They are computed anew; something is lost.
    Lossy,
}

/// Whether frames could be converted for any encoder. Planes of halves are younger than packed halves, and swscale's input younger still:
/// without it halves are filtered as floats.
fn goes_on(format: PixelFormat) -> bool {
    match format.sample() {
        Sample::U8 | Sample::U16 | Sample::F32 => true,
        // SAFETY: a pure query of swscale's tables.
        Sample::F16 => av(format).is_some_and(|id| unsafe { ffi::sws_isSupportedInput(id) } != 0),
    }
}

/// The native format in which frames of `from` are filtered: without loss wherever their samples can be told apart.
pub(super) fn entry(from: ffi::AVPixelFormat) -> Option<Entry> {
    if let Some(format) = native(from).filter(|&format| goes_on(format)) {
        return Some(Entry { format, way: Way::Native });
    }
    if let Some(format) = places(from).and_then(|p| p.planar()) {
        let format = if goes_on(format) { format } else { PixelFormat { depth: 32, ..format } };
        return Some(Entry { format, way: Way::Lossless });
    }
    let format = scaled(from)?;
    // swscale turns single bits into black and white; Bayer, XYZ and 4-bit RGB pass through arithmetic that rounds.
    let way = if is_gray(from) { Way::Lossless } else { Way::Lossy };
    Some(Entry { format, way })
}

/// The nearest native format that swscale can convert `from` into.
fn scaled(from: ffi::AVPixelFormat) -> Option<PixelFormat> {
    // SAFETY: pure queries of swscale's tables.
    let convertible = |to: ffi::AVPixelFormat| unsafe { ffi::sws_isSupportedInput(from) != 0 && ffi::sws_isSupportedOutput(to) != 0 };
    let source = descriptor(from)?;
    let rgb_source = source.flags & (ffi::AV_PIX_FMT_FLAG_RGB | ffi::AV_PIX_FMT_FLAG_PAL | ffi::AV_PIX_FMT_FLAG_BAYER) as u64 != 0;
    let mut candidates: Vec<_> = descriptors()
        .filter_map(|(id, d)| {
            let format = native_of(d)?;
            // RGB stays RGB and YUV stays YUV: the matrix between them is not exact.
            let same_model = source.nb_components < 3 || (format.model == Model::Rgb) == rgb_source;
            let plain = format.packing == Packing::Planar && !is_yuvj(d) && !format.sample().is_float();
            (plain && same_model && convertible(id)).then_some((format.depth, id))
        })
        .collect();
    // FFmpeg's score does not tell 10 bits in 16 from 16 bits; of equals the first one wins.
    candidates.sort_by_key(|&(depth, _)| depth);
    nearest(from, candidates.into_iter().map(|(_, id)| id)).and_then(native)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ffi::AVPixelFormat::*;

    #[test]
    fn every_native_format_maps_back_to_itself() {
        let mut count = 0;
        for (id, d) in descriptors() {
            if let Some(format) = native_of(d) {
                count += 1;
                let back = if is_yuvj(d) { av_full_range(format) } else { av(format) };
                assert_eq!(back, Some(id), "{format}");
                assert_eq!(av_from_raw(id as i32), Some(id));
            }
        }
        assert!(count > 60, "{count}");
    }

    #[test]
    fn the_formats_of_the_spec_are_native() {
        for (id, format) in [
            (AV_PIX_FMT_GRAY8, PixelFormat::gray(8)),
            (AV_PIX_FMT_GRAY12LE, PixelFormat::gray(12)),
            (AV_PIX_FMT_YUV420P, PixelFormat::yuv(8, 1, 1)),
            (AV_PIX_FMT_YUVJ420P, PixelFormat::yuv(8, 1, 1)),
            (AV_PIX_FMT_YUV422P10LE, PixelFormat::yuv(10, 1, 0)),
            (AV_PIX_FMT_YUV444P16LE, PixelFormat::yuv(16, 0, 0)),
            (AV_PIX_FMT_YUV440P, PixelFormat::yuv(8, 0, 1)),
            (AV_PIX_FMT_YUV411P, PixelFormat::yuv(8, 2, 0)),
            (AV_PIX_FMT_YUVA420P, PixelFormat { alpha: true, ..PixelFormat::yuv(8, 1, 1) }),
            (AV_PIX_FMT_GBRP, PixelFormat::gbr(8)),
            (AV_PIX_FMT_GBRAP12LE, PixelFormat { alpha: true, ..PixelFormat::gbr(12) }),
            (AV_PIX_FMT_GBRPF32LE, PixelFormat::gbr(32)),
        ] {
            assert_eq!(native(id), Some(format));
        }
        let semi = |format| PixelFormat { packing: Packing::SemiPlanar, ..format };
        for (id, format) in [
            (AV_PIX_FMT_NV12, semi(PixelFormat::yuv(8, 1, 1))),
            (AV_PIX_FMT_NV16, semi(PixelFormat::yuv(8, 1, 0))),
            (AV_PIX_FMT_NV24, semi(PixelFormat::yuv(8, 0, 0))),
            (AV_PIX_FMT_NV20LE, semi(PixelFormat::yuv(10, 1, 0))),
            (AV_PIX_FMT_P010LE, PixelFormat { high_bits: true, ..semi(PixelFormat::yuv(10, 1, 1)) }),
            (AV_PIX_FMT_P210LE, PixelFormat { high_bits: true, ..semi(PixelFormat::yuv(10, 1, 0)) }),
            (AV_PIX_FMT_P016LE, semi(PixelFormat::yuv(16, 1, 1))),
        ] {
            assert_eq!(native(id), Some(format), "{}", name(id));
        }
        for id in [
            AV_PIX_FMT_NV21,
            AV_PIX_FMT_P010BE,
            AV_PIX_FMT_RGB24,
            AV_PIX_FMT_PAL8,
            AV_PIX_FMT_YUV420P10BE,
            AV_PIX_FMT_YA8,
            AV_PIX_FMT_MONOBLACK,
            AV_PIX_FMT_VAAPI,
        ] {
            assert_eq!(native(id), None, "{}", name(id));
        }
    }

    #[test]
    fn packed_formats_find_their_lossless_planar_kin() {
        for (id, kin) in [
            (AV_PIX_FMT_RGB24, AV_PIX_FMT_GBRP),
            (AV_PIX_FMT_BGRA, AV_PIX_FMT_GBRAP),
            (AV_PIX_FMT_BGR0, AV_PIX_FMT_GBRP),
            (AV_PIX_FMT_RGB565LE, AV_PIX_FMT_GBRP),
            (AV_PIX_FMT_X2RGB10LE, AV_PIX_FMT_GBRP10LE),
            (AV_PIX_FMT_Y210LE, AV_PIX_FMT_YUV422P10LE),
            (AV_PIX_FMT_AYUV64LE, AV_PIX_FMT_YUVA444P16LE),
            (AV_PIX_FMT_GBRPF32BE, AV_PIX_FMT_GBRPF32LE),
            (AV_PIX_FMT_GRAY16BE, AV_PIX_FMT_GRAY16LE),
            (AV_PIX_FMT_YUYV422, AV_PIX_FMT_YUV422P),
            (AV_PIX_FMT_UYVY422, AV_PIX_FMT_YUV422P),
            (AV_PIX_FMT_NV21, AV_PIX_FMT_YUV420P),
            (AV_PIX_FMT_P010BE, AV_PIX_FMT_YUV420P10LE),
            (AV_PIX_FMT_YUV420P10BE, AV_PIX_FMT_YUV420P10LE),
            (AV_PIX_FMT_RGB48LE, AV_PIX_FMT_GBRP16LE),
            (AV_PIX_FMT_RGBA64BE, AV_PIX_FMT_GBRAP16LE),
            (AV_PIX_FMT_PAL8, AV_PIX_FMT_GBRAP),
            (AV_PIX_FMT_MONOBLACK, AV_PIX_FMT_GRAY8),
        ] {
            let entry = entry(id).unwrap();
            assert_eq!((av(entry.format), entry.way), (Some(kin), Way::Lossless), "{}", name(id));
        }
        for (id, way) in [(AV_PIX_FMT_NV12, Way::Native), (AV_PIX_FMT_YA8, Way::Lossless), (AV_PIX_FMT_BAYER_BGGR8, Way::Lossy)] {
            assert_eq!(entry(id).map(|e| e.way), Some(way), "{}", name(id));
        }
        for (text, format) in HALVES {
            assert_eq!(named(text).ok(), Some(format));
            // Where FFmpeg has planes of halves, they are filtered as they are or as floats.
            if let Some((id, _)) = descriptors().find(|&(id, _)| name(id) == text) {
                assert_eq!((native(id), av(format)), (Some(format), Some(id)));
                let entry = entry(id).unwrap();
                assert_eq!(
                    (entry.format, entry.way),
                    if goes_on(format) { (format, Way::Native) } else { (PixelFormat { depth: 32, ..format }, Way::Lossless) }
                );
            } else {
                assert!(!goes_on(format));
            }
        }
        assert_eq!(entry(AV_PIX_FMT_YA8).unwrap().format, PixelFormat { alpha: true, ..PixelFormat::gray(8) });
        assert!(entry(AV_PIX_FMT_VAAPI).is_none());
    }

    #[test]
    fn every_format_that_is_not_native_comes_back_from_its_planar_kin() {
        let mut count = 0;
        for (id, d) in descriptors() {
            let Some(planar) = places(id).and_then(|p| p.planar()) else { continue };
            assert!(repack_from(id, planar).is_some(), "{}", name(id));
            // Written back unless samples share bytes.
            let shared = ["565", "555", "444", "x2", "rgb8", "bgr8", "rgb4_byte", "bgr4_byte", "pal8"];
            let shared = d.log2_chroma_w == 0 && is_rgb(id) && shared.iter().any(|s| name(id).contains(s));
            assert_eq!(repack_to(planar, id).is_some(), !shared, "{}", name(id));
            count += 1;
        }
        assert!(count > 150, "{count}");
    }
}
