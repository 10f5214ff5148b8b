//! Which pixel format an encoder gets, and what happens to the frames for it.

use ffmpeg_next::ffi;

use super::encoder_setup::{accepted, names};
use super::info::SourceInfo;
use super::output::EncodeSpec;
use super::repack::Repack;
use super::{c_string, format, owned, palette};
use crate::error::{Error, Result};
use crate::frame::{Model, Shape};

const PAL8: ffi::AVPixelFormat = ffi::AVPixelFormat::AV_PIX_FMT_PAL8;

/// The pixel format that is encoded.
pub(super) struct Picked {
    pub target: ffi::AVPixelFormat,
    pub target_full_range: bool,
    pub way: Way,
    /// What the user should know: something is lost.
    pub warning: Option<String>,
    /// What `-v` says: nothing is lost.
    pub note: Option<String>,
}

/// What happens to a frame before the encoder takes it.
pub(super) enum Way {
    /// Nothing.
    AsIs,
    /// Samples are moved without loss.
    Repack(Box<Repack>),
    /// swscale converts from this format.
    Scale(ffi::AVPixelFormat),
    /// Every picture gets a palette of its own; frames come in this format.
    Palette(ffi::AVPixelFormat),
}

/// What is to be encoded, and by which encoder.
struct Choice<'a> {
    encoder: String,
    operation: String,
    shape: Shape,
    /// The frames' format as FFmpeg knows it.
    source: Option<ffi::AVPixelFormat>,
    /// The input's own format.
    coded: Option<ffi::AVPixelFormat>,
    full_range: bool,
    codec: &'a ffi::AVCodec,
}

/// The encoder's pixel format: the frames' own, else the input's, else one that loses nothing, else an error that names
/// what it takes.
pub(super) fn pick_format(codec: &ffi::AVCodec, spec: &EncodeSpec, shape: Shape, info: &SourceInfo) -> Result<Picked> {
    // SAFETY: static string.
    let encoder = unsafe { owned::text(codec.name) }.unwrap_or_default();
    let operation = format!("cannot encode {} with {encoder}", shape.format);
    let (source, full_range) = (format::av(shape.format), info.colour.full_range());
    let choice = Choice { encoder, operation, shape, source, coded: info.coded_format, full_range, codec };
    match (&spec.pix_fmt, accepted(codec)) {
        (Some(wanted), _) => choice.wanted(wanted),
        (None, None) => choice.anything(),
        (None, Some(taken)) => choice.among(&taken),
    }
}

impl Choice<'_> {
    /// How frames become `target`.
    fn way(&self, target: ffi::AVPixelFormat, target_full_range: bool) -> Result<Way> {
        if self.full_range == target_full_range || format::is_rgb(target) {
            if format::native(target) == Some(self.shape.format) {
                return Ok(Way::AsIs);
            }
            if let Some(repack) = format::repack_to(self.shape.format, target) {
                return Ok(Way::Repack(Box::new(repack)));
            }
        }
        self.source.map(Way::Scale).ok_or_else(|| {
            Error::failed(&self.operation, format!("FFmpeg cannot convert it to {}", format::name(target)))
                .hint("choose another encoder with -c:v, or another format with --pix-fmt")
        })
    }

    fn picked(&self, target: ffi::AVPixelFormat, target_full_range: bool, why: &str) -> Result<Picked> {
        let way = self.way(target, target_full_range)?;
        let text = format!("frames are converted from {} to {} for {}, {why}", self.frames(), format::name(target), self.encoder);
        let (warning, note) = match way {
            Way::AsIs => (None, None),
            Way::Repack(_) => (None, Some(format!("{text} (without loss)"))),
            Way::Scale(_) | Way::Palette(_) if why == ASKED => (None, Some(text)),
            Way::Scale(_) | Way::Palette(_) => (Some(text), None),
        };
        Ok(Picked { target, target_full_range, way, warning, note })
    }

    /// The format of `--pix-fmt`.
    fn wanted(&self, wanted: &str) -> Result<Picked> {
        let wanted = c_string(wanted, "pixel format")?;
        // SAFETY: a terminated string.
        let target = unsafe { ffi::av_get_pix_fmt(wanted.as_ptr()) };
        self.picked(target, self.full_range || format::implies_full_range(target), ASKED)
    }

    /// For an encoder that takes every format (rawvideo): the input's own, as long as the frames still fit into it.
    fn anything(&self) -> Result<Picked> {
        let own = |&f: &ffi::AVPixelFormat| {
            format::depth(f) >= u32::from(self.shape.format.depth) && matches!(self.way(f, self.full_range), Ok(Way::Repack(_)))
        };
        let Some(target) = self.coded.filter(own).or(self.source) else {
            return match format::interleaved_alpha(self.shape.format) {
                Some(target) => self.picked(target, self.full_range, "which needs a format that FFmpeg knows"),
                None => Err(Error::failed(&self.operation, "FFmpeg has no such pixel format")),
            };
        };
        self.picked(target, self.full_range, "the input's own format")
    }

    /// The best of the formats that the encoder takes.
    fn among(&self, taken: &[ffi::AVPixelFormat]) -> Result<Picked> {
        let encoder = &self.encoder;
        // JPEG only knows full range; by that name where the encoder has it.
        let jpeg = matches!(self.codec.id, ffi::AVCodecID::AV_CODEC_ID_MJPEG | ffi::AVCodecID::AV_CODEC_ID_LJPEG);
        let yuvj = format::av_full_range(self.shape.format.planar());
        if let Some(yuvj) = yuvj.filter(|f| taken.contains(f) && (self.full_range || jpeg)) {
            let picked = self.picked(yuvj, true, "which takes planes only")?;
            let expanded = (!self.full_range).then(|| format!("{encoder} stores full-range samples only: the video range is expanded"));
            return Ok(Picked { warning: expanded, ..picked });
        }
        if let Some(source) = self.source.filter(|s| taken.contains(s)) {
            return self.picked(source, self.full_range, "");
        }
        let why = format!("which does not take {}", self.frames());
        let whole_colours = taken.iter().any(|&f| format::depth(f) >= 8 && !format::is_gray(f) && f != PAL8);
        if let Some(source) = self.source.filter(|_| taken.contains(&PAL8) && !whole_colours && self.shape.format.model != Model::Gray)
            && palette::available()
        {
            let text =
                format!("{encoder} stores at most 256 colours: every picture gets a palette of its own, and more colours are diffused");
            return Ok(Picked { target: PAL8, target_full_range: true, way: Way::Palette(source), warning: None, note: Some(text) });
        }
        if let Some(exact) = self.exact(taken) {
            return self.picked(exact, self.full_range, &why);
        }
        if self.source.is_none()
            && let Some((target, repack)) = self.opaque(taken)
        {
            let warning = format!("{encoder} cannot take alpha: frames are converted to {} without it", format::name(target));
            let way = Way::Repack(Box::new(repack));
            return Ok(Picked { target, target_full_range: self.full_range, way, warning: Some(warning), note: None });
        }
        // SAFETY: pure queries of swscale's tables.
        let convertible = taken.iter().copied().filter(|&f| unsafe { ffi::sws_isSupportedOutput(f) } != 0);
        let nearest = self.source.and_then(|source| format::nearest(source, convertible));
        let refusal = || {
            let remedy = nearest.map_or("-c:v ffv1".to_owned(), |f| format!("--pix-fmt {}", format::name(f)));
            Error::failed(&self.operation, format!("it takes {}", names(taken)))
                .hint(format!("convert with {remedy}, or choose another encoder with -c:v"))
        };
        let (Some(source), Some(target)) = (self.source, nearest) else { return Err(refusal()) };
        // Transparency is worth more than the colour planes' resolution.
        let with_alpha = self.shape.format.alpha.then(|| self.yuv_with_alpha(taken)).flatten();
        if let Some(target) = with_alpha.filter(|_| self.shape.format.model == Model::Rgb) {
            return self.picked(target, self.full_range, &why);
        }
        let loss = format::loss(source, target);
        let serious = ffi::FF_LOSS_RESOLUTION | ffi::FF_LOSS_DEPTH | ffi::FF_LOSS_COLORSPACE | ffi::FF_LOSS_CHROMA;
        // An encoder that takes no format of this colour model (PNG, GIF) can do nothing else, and its user expects it.
        let model = self.shape.format.model;
        let model_taken = taken.iter().any(|&f| format::is_rgb(f) == (model == Model::Rgb) && !format::is_gray(f));
        if loss & serious != 0 && (model_taken || model == Model::Gray) {
            return Err(refusal());
        }
        self.picked(target, self.full_range || format::implies_full_range(target), &why)
    }

    /// For RGB with alpha and an encoder that has alpha beside Y, U and V only (VP9): the format with the most chroma.
    fn yuv_with_alpha(&self, taken: &[ffi::AVPixelFormat]) -> Option<ffi::AVPixelFormat> {
        let fits = |&f: &ffi::AVPixelFormat| {
            let native = format::native(f)?;
            let keeps = native.alpha && native.model == Model::Yuv && native.depth >= self.shape.format.depth.min(10);
            keeps.then_some((native.chroma_shift_x + native.chroma_shift_y, native.depth, f))
        };
        taken.iter().filter_map(fits).min_by_key(|&(shift, depth, _)| (shift, depth)).map(|(_, _, f)| f)
    }

    /// The frames' format, by FFmpeg's name if it has one.
    fn frames(&self) -> String {
        self.source.map_or_else(|| self.shape.format.to_string(), format::name)
    }

    /// A format that holds everything but alpha, for frames that swscale does not know.
    fn opaque(&self, taken: &[ffi::AVPixelFormat]) -> Option<(ffi::AVPixelFormat, Repack)> {
        let candidates = taken.iter().filter(|&&f| self.full_range || !format::implies_full_range(f));
        candidates.filter_map(|&f| Some((f, format::repack_without_alpha(self.shape.format, f)?))).min_by_key(|(_, r)| r.depth())
    }

    /// The format that holds the frames exactly with the fewest bits; of equals the input's own, then the encoder's first.
    fn exact(&self, taken: &[ffi::AVPixelFormat]) -> Option<ffi::AVPixelFormat> {
        let candidates = taken.iter().filter(|&&f| self.full_range || !format::implies_full_range(f));
        let ranked = candidates.filter_map(|&f| {
            let repack = format::repack_to(self.shape.format, f)?;
            Some(((repack.adds_alpha(), repack.depth(), self.coded != Some(f)), f))
        });
        ranked.min_by_key(|&(rank, _)| rank).map(|(_, f)| f)
    }
}

const ASKED: &str = "as --pix-fmt asks";
