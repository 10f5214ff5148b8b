//! Setting up an encoder: its pixel format, options, time base; what it cannot take is said before it starts.

use std::ffi::CStr;

use ffmpeg_next::ffi;

use super::exit::{Picked, Way};
use super::info::SourceInfo;
use super::output::{Chosen, EncodeSpec};
use super::owned::{self, Dict};
use super::{Rational, av_failed, c_string, format, log, output_defaults};
use crate::error::{Error, Result};
use crate::frame::{Model, Shape};

/// What an encoder is opened for.
pub(super) struct EncoderRequest<'a> {
    pub chosen: Chosen,
    pub spec: &'a EncodeSpec,
    pub info: &'a SourceInfo,
    pub shape: Shape,
}

/// An opened codec context; freed on drop.
pub(super) struct Context {
    pub raw: *mut ffi::AVCodecContext,
}

// SAFETY: used by one thread at a time.
unsafe impl Send for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: owned; accepts null; joins the codec's threads.
        unsafe { ffi::avcodec_free_context(&mut self.raw) }
    }
}

/// Whether the encoder, or the generic codec layer, has the option.
fn has_option(codec: &ffi::AVCodec, option: &CStr) -> bool {
    let class = &codec.priv_class;
    // SAFETY: searching a fake object by its static class, as av_opt_find documents.
    let find = |class: &*const ffi::AVClass| unsafe {
        !class.is_null()
            && !ffi::av_opt_find(
                std::ptr::from_ref(class).cast_mut().cast(),
                option.as_ptr(),
                std::ptr::null(),
                0,
                ffi::AV_OPT_SEARCH_FAKE_OBJ,
            )
            .is_null()
    };
    // SAFETY: returns a static class.
    let generic = unsafe { ffi::avcodec_get_class() };
    find(class) || find(&generic)
}

/// Options that the encoder does not have are usage errors.
pub(super) fn check_options(codec: &ffi::AVCodec, spec: &EncodeSpec) -> Result<()> {
    // SAFETY: static string.
    let name = unsafe { owned::text(codec.name) }.unwrap_or_default();
    let refuse = |option: &str| {
        Err(Error::usage(format!("cannot set up the encoder {name}"), format!("it has no option '{option}'"))
            .hint(format!("ffmpeg -h encoder={name} lists its options")))
    };
    if spec.crf.is_some() && !has_option(codec, c"crf") {
        return refuse("crf");
    }
    if spec.preset.is_some() && !has_option(codec, c"preset") {
        return refuse("preset");
    }
    for (key, _) in &spec.options {
        if !has_option(codec, &c_string(key, "encoder option")?) {
            return refuse(key);
        }
    }
    if let Some(pix_fmt) = &spec.pix_fmt {
        let wanted = c_string(pix_fmt, "pixel format")?;
        // SAFETY: a terminated string.
        let format = unsafe { ffi::av_get_pix_fmt(wanted.as_ptr()) };
        if format == ffi::AVPixelFormat::AV_PIX_FMT_NONE {
            return Err(Error::usage(format!("cannot encode as '{pix_fmt}'"), "FFmpeg has no such pixel format")
                .hint("ffmpeg -pix_fmts lists them"));
        }
        if let Some(taken) = accepted(codec)
            && !taken.contains(&format)
        {
            return Err(Error::usage(format!("cannot encode as '{pix_fmt}'"), format!("{name} takes {}", names(&taken))));
        }
    }
    Ok(())
}

/// Formats that the encoder takes; None when it does not say.
pub(super) fn accepted(codec: &ffi::AVCodec) -> Option<Vec<ffi::AVPixelFormat>> {
    if codec.pix_fmts.is_null() {
        return None;
    }
    let mut formats = Vec::new();
    let mut entry = codec.pix_fmts;
    // SAFETY: a static array that ends with AV_PIX_FMT_NONE.
    unsafe {
        while *entry != ffi::AVPixelFormat::AV_PIX_FMT_NONE {
            formats.push(*entry);
            entry = entry.add(1);
        }
    }
    Some(formats)
}

pub(super) fn names(formats: &[ffi::AVPixelFormat]) -> String {
    formats.iter().map(|&f| format::name(f)).collect::<Vec<_>>().join(", ")
}

/// Encoders that refuse odd sizes for subsampled chroma, said before they do.
pub(super) fn check_size(encoder: &str, target: ffi::AVPixelFormat, shape: Shape) -> Result<()> {
    let Some(format) = format::native(target).filter(|f| f.model == Model::Yuv) else { return Ok(()) };
    let strict = matches!(encoder, "libx264" | "libx265" | "libopenh264") || encoder.ends_with("_nvenc") || encoder.ends_with("_vaapi");
    let odd = !shape.width.is_multiple_of(1 << format.chroma_shift_x) || !shape.height.is_multiple_of(1 << format.chroma_shift_y);
    if strict && odd {
        return Err(Error::failed(
            format!("cannot encode {}x{} with {encoder}", shape.width, shape.height),
            format!(
                "{} needs sides that are multiples of {}x{}",
                format::name(target),
                1 << format.chroma_shift_x,
                1 << format.chroma_shift_y
            ),
        )
        .hint("use --pix-fmt yuv444p, or an encoder that takes odd sizes: -c:v ffv1, or libvpx-vp9 into .webm or .mkv"));
    }
    Ok(())
}

/// Opens the encoder in the first time base that it takes: the input's, the same within 16 bits, one over the frame rate.
pub(super) fn open_context(request: &EncoderRequest<'_>, picked: &Picked) -> Result<(Context, Rational)> {
    let info = request.info;
    let rate = info.frame_rate.or(info.average_rate).unwrap_or(Rational { num: 25, den: 1 });
    let input = info.time_base.positive().unwrap_or(rate.inverse());
    let mut reduced = input.av();
    // SAFETY: writes to two local integers.
    unsafe { ffi::av_reduce(&mut reduced.num, &mut reduced.den, i64::from(input.num), i64::from(input.den), 65_535) };
    let mut bases = vec![input, Rational::from(reduced), rate.inverse()];
    bases.retain(|b| b.positive().is_some());
    bases.dedup();
    let mark = log::Mark::now();
    let mut first_error = None;
    for base in bases {
        match try_open(request, picked, (base, rate), mark) {
            Ok(context) => return Ok((context, base)),
            Err(error) if error.kind() == crate::error::Kind::Usage => return Err(error),
            Err(error) => first_error = first_error.or(Some(error)),
        }
    }
    Err(first_error.unwrap_or_else(|| Error::failed("cannot open the encoder", "it takes no time base")))
}

fn try_open(request: &EncoderRequest<'_>, picked: &Picked, (base, rate): (Rational, Rational), mark: log::Mark) -> Result<Context> {
    let EncoderRequest { chosen, spec, info, shape } = request;
    let name = chosen.codec_name();
    let operation = format!("cannot open the encoder {name}");
    // SAFETY: the codec is static; the result is checked.
    let context = Context { raw: unsafe { ffi::avcodec_alloc_context3(chosen.codec) } };
    // SAFETY: fresh, exclusively owned.
    let Some(c) = (unsafe { context.raw.as_mut() }) else { return Err(Error::failed(operation, "out of memory")) };
    let side = |s: usize| i32::try_from(s).map_err(|e| Error::failed(&operation, e));
    (c.width, c.height) = (side(shape.width)?, side(shape.height)?);
    c.pix_fmt = picked.target;
    c.time_base = base.av();
    c.framerate = rate.av();
    c.sample_aspect_ratio = info.sample_aspect.positive().map_or(ffi::AVRational { num: 0, den: 1 }, Rational::av);
    c.color_range = if picked.target_full_range { ffi::AVColorRange::AVCOL_RANGE_JPEG } else { info.colour.range };
    c.color_primaries = info.colour.primaries;
    c.color_trc = info.colour.transfer;
    let target_rgb = format::is_rgb(picked.target);
    // The matrix of RGB is the identity, which the RGB formats themselves say.
    c.colorspace = if target_rgb { ffi::AVColorSpace::AVCOL_SPC_RGB } else { info.colour.matrix };
    c.chroma_sample_location = info.colour.chroma_location;
    c.field_order = info.field_order;
    c.thread_count = spec.threads.map_or(0, |n| i32::try_from(n).unwrap_or(0));
    c.strict_std_compliance = ffi::FF_COMPLIANCE_UNOFFICIAL;
    let same_samples = matches!(picked.way, Way::AsIs | Way::Repack(_)) && format::depth(picked.target) == u32::from(shape.format.depth);
    if same_samples && info.bits_per_raw_sample > 0 && i32::from(shape.format.depth) >= info.bits_per_raw_sample {
        c.bits_per_raw_sample = info.bits_per_raw_sample;
    }
    if chosen.container.flags & ffi::AVFMT_GLOBALHEADER != 0 {
        c.flags |= ffi::AV_CODEC_FLAG_GLOBAL_HEADER as i32;
    }
    let interlaced = matches!(
        info.field_order,
        ffi::AVFieldOrder::AV_FIELD_TT | ffi::AVFieldOrder::AV_FIELD_BB | ffi::AVFieldOrder::AV_FIELD_TB | ffi::AVFieldOrder::AV_FIELD_BT
    );
    if interlaced {
        c.flags |= ffi::AV_CODEC_FLAG_INTERLACED_DCT as i32;
    }
    let mut options = options(&name, chosen.codec, spec)?;
    // SAFETY: a configured context and its own codec.
    let code = unsafe { ffi::avcodec_open2(context.raw, chosen.codec, options.as_mut()) };
    if code < 0 {
        return Err(av_failed(operation, code, mark));
    }
    if let Some(unknown) = options.keys().first() {
        return Err(Error::usage(operation, format!("it has no option '{unknown}'")));
    }
    Ok(context)
}

/// The user's options over the defaults.
fn options(name: &str, codec: &ffi::AVCodec, spec: &EncodeSpec) -> Result<Dict> {
    let mut dict = Dict::from_pairs(&spec.options, "encoder option")?;
    let mut user_rate =
        ["b", "cq", "qp", "q", "qscale", "global_quality", "lossless"].into_iter().any(|key| spec.options.iter().any(|(k, _)| k == key));
    if let Some(crf) = spec.crf {
        dict.set(c"crf", &c_string(&crf.to_string(), "crf")?);
    }
    if let Some(preset) = &spec.preset {
        dict.set(c"preset", &c_string(preset, "preset")?);
    }
    if let Some(bitrate) = &spec.bitrate {
        dict.set(c"b", &c_string(bitrate, "bit rate")?);
        user_rate = true;
    }
    if name == "libx265"
        && let Some(params) = dict.get(c"x265-params")
    {
        // Its own log would go to stderr.
        dict.set(c"x265-params", &c_string(&format!("log-level=none:{params}"), "encoder option")?);
    }
    let quality = output_defaults::quality(name);
    for (key, value) in quality.other.iter().chain(if user_rate { &[] } else { quality.rate }) {
        // A crf of the user keeps the other rate options, such as VP9's bit rate of 0.
        let key = c_string(key, "encoder option")?;
        if has_option(codec, &key) {
            dict.set_default(&key, &c_string(value, "encoder option")?);
        }
    }
    Ok(dict)
}
