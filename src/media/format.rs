//! Pixel formats: FFmpeg's descriptors to [`PixelFormat`] and back, and the nearest native format for the rest.

use ffmpeg_next::ffi;

use super::owned;
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
    let has = |flag: libc::c_int| d.flags & flag as u64 != 0;
    let refused = [
        ffi::AV_PIX_FMT_FLAG_BE,
        ffi::AV_PIX_FMT_FLAG_PAL,
        ffi::AV_PIX_FMT_FLAG_BITSTREAM,
        ffi::AV_PIX_FMT_FLAG_HWACCEL,
        ffi::AV_PIX_FMT_FLAG_BAYER,
    ];
    if refused.into_iter().any(has) {
        return None;
    }
    let components = d.comp.get(..usize::from(d.nb_components))?;
    let first = components.first()?;
    let depth = u8::try_from(first.depth).ok()?;
    let float = has(ffi::AV_PIX_FMT_FLAG_FLOAT);
    let supported = if float { depth == 32 } else { matches!(depth, 8 | 9 | 10 | 12 | 14 | 16) };
    let alpha = has(ffi::AV_PIX_FMT_FLAG_ALPHA);
    let rgb = has(ffi::AV_PIX_FMT_FLAG_RGB);
    let model = match (components.len() - usize::from(alpha), rgb) {
        (1, false) => Model::Gray,
        (3, true) => Model::Rgb,
        (3, false) => Model::Yuv,
        _ => return None,
    };
    let format = PixelFormat {
        model,
        alpha,
        chroma_shift_x: if model == Model::Yuv { d.log2_chroma_w } else { 0 },
        chroma_shift_y: if model == Model::Yuv { d.log2_chroma_h } else { 0 },
        depth,
        packing: Packing::Planar,
        high_bits: false,
    };
    let bytes = format.sample().bytes() as libc::c_int;
    // R, G, B lie in planes 2, 0, 1: the project's order G, B, R.
    let planes: [libc::c_int; 4] = if rgb { [2, 0, 1, 3] } else { [0, 1, 2, if model == Model::Gray { 1 } else { 3 }] };
    let planes = if model == Model::Gray { [0, 1, 2, 3] } else { planes };
    let own_planes =
        components.iter().zip(planes).all(|(c, plane)| (c.plane, c.step, c.offset, c.shift, c.depth) == (plane, bytes, 0, 0, first.depth));
    (supported && own_planes && usize::from(d.nb_components) == format.plane_count()).then_some(format)
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

/// The native format into which frames of `from` are converted on entry: lossless wherever FFmpeg has such a format.
pub(super) fn nearest_native(from: ffi::AVPixelFormat) -> Option<(ffi::AVPixelFormat, PixelFormat)> {
    // SAFETY: pure queries of swscale's tables.
    let convertible = |to: ffi::AVPixelFormat| unsafe { ffi::sws_isSupportedInput(from) != 0 && ffi::sws_isSupportedOutput(to) != 0 };
    let source = descriptor(from)?;
    let rgb_source = source.flags & (ffi::AV_PIX_FMT_FLAG_RGB | ffi::AV_PIX_FMT_FLAG_PAL) as u64 != 0;
    let mut candidates: Vec<_> = descriptors()
        .filter_map(|(id, d)| {
            let format = native_of(d)?;
            // RGB stays RGB and YUV stays YUV: the matrix between them is not exact.
            let same_model = source.nb_components < 3 || (format.model == Model::Rgb) == rgb_source;
            (!is_yuvj(d) && format.sample() != Sample::F32 && same_model && convertible(id)).then_some((format.depth, id))
        })
        .collect();
    // FFmpeg's score does not tell 10 bits in 16 from 16 bits; of equals the first one wins.
    candidates.sort_by_key(|&(depth, _)| depth);
    let best = nearest(from, candidates.into_iter().map(|(_, id)| id))?;
    Some((best, native(best)?))
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
        for id in [
            AV_PIX_FMT_NV12,
            AV_PIX_FMT_P010LE,
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
            (AV_PIX_FMT_YUYV422, AV_PIX_FMT_YUV422P),
            (AV_PIX_FMT_UYVY422, AV_PIX_FMT_YUV422P),
            (AV_PIX_FMT_NV12, AV_PIX_FMT_YUV420P),
            (AV_PIX_FMT_NV21, AV_PIX_FMT_YUV420P),
            (AV_PIX_FMT_P010LE, AV_PIX_FMT_YUV420P10LE),
            (AV_PIX_FMT_YUV420P10BE, AV_PIX_FMT_YUV420P10LE),
            (AV_PIX_FMT_RGB48LE, AV_PIX_FMT_GBRP16LE),
            (AV_PIX_FMT_RGBA64BE, AV_PIX_FMT_GBRAP16LE),
            (AV_PIX_FMT_PAL8, AV_PIX_FMT_GBRAP),
            (AV_PIX_FMT_MONOBLACK, AV_PIX_FMT_GRAY8),
        ] {
            assert_eq!(nearest_native(id).map(|(av, _)| name(av)), Some(name(kin)), "{}", name(id));
        }
    }
}
