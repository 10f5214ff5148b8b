//! Setting up an encoder: its pixel format, options, time base; what it cannot take is said before it starts.

use std::ffi::{CStr, CString};

use ffmpeg_next::ffi;

use super::evenness::counts_pictures;
use super::exit::{Picked, Way, pick_format};
use super::info::SourceInfo;
use super::output::{Chosen, EncodeSpec, Odd};
use super::owned::{self, Dict};
use super::{Rational, av_failed, c_string, format, log, output_defaults, rescale};
use crate::error::{Error, Result};
use crate::frame::{Model, PixelFormat, Shape};

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
    /// What the first of two passes wrote: the context reads it and does not own it.
    pub statistics: Option<CString>,
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
pub(super) fn has_option(codec: &ffi::AVCodec, option: &CStr) -> bool {
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

/// What is encoded: the pixel format with its way, and the size.
pub(super) struct Plan {
    pub picked: Picked,
    pub width: usize,
    pub height: usize,
    /// What was decided about the size.
    pub warning: Option<String>,
}

/// Decides about sizes that the encoder refuses, before it does: odd ones with subsampled chroma.
pub(super) fn plan(request: &EncoderRequest<'_>) -> Result<Plan> {
    let EncoderRequest { chosen, spec, info, shape } = request;
    let name = chosen.codec_name();
    let (width, height) = (shape.width, shape.height);
    let picked = pick_format(chosen.codec, spec, *shape, info)?;
    let plan = Plan { picked, width, height, warning: None };
    let Some(format) = format::native(plan.picked.target).filter(|f| f.model == Model::Yuv) else { return Ok(plan) };
    let strict = matches!(name.as_str(), "libx264" | "libx265" | "libopenh264" | "libsvtav1")
        || name.ends_with("_nvenc")
        || name.ends_with("_vaapi");
    let step = (1 << format.chroma_shift_x, 1 << format.chroma_shift_y);
    if !strict || (width.is_multiple_of(step.0) && height.is_multiple_of(step.1)) {
        return Ok(plan);
    }
    let target = format::name(plan.picked.target);
    let needs = format!("{target} needs sides that are multiples of {}x{}", step.0, step.1);
    let resized = |to: (usize, usize), how: &str| Plan {
        width: to.0,
        height: to.1,
        warning: Some(format!("the {width}x{height} picture is {how} to {}x{} for {name}: {needs}", to.0, to.1)),
        ..plan
    };
    match spec.odd {
        Odd::Pad => Ok(resized((width.next_multiple_of(step.0), height.next_multiple_of(step.1)), "padded")),
        Odd::Crop if width >= step.0 && height >= step.1 => Ok(resized((width - width % step.0, height - height % step.1), "cropped")),
        Odd::FullChroma => {
            let full = PixelFormat { chroma_shift_x: 0, chroma_shift_y: 0, ..format.planar() };
            let full = format::av(full).filter(|f| accepted(chosen.codec).is_none_or(|taken| taken.contains(f)));
            let Some(full) = full else {
                return Err(Error::failed(
                    format!("cannot encode {width}x{height} with {name}"),
                    "it takes no format without chroma subsampling",
                )
                .hint("use --odd pad or --odd crop"));
            };
            let spec = EncodeSpec { pix_fmt: Some(format::name(full)), ..(*spec).clone() };
            let warning = format!("the {width}x{height} picture is encoded as {} for {name}: {needs}", format::name(full));
            Ok(Plan { picked: pick_format(chosen.codec, &spec, *shape, info)?, width, height, warning: Some(warning) })
        }
        Odd::Error | Odd::Crop => Err(Error::failed(format!("cannot encode {width}x{height} with {name}"), needs).hint(
            "use --odd pad, --odd crop or --odd 444, or an encoder that takes odd sizes: -c:v ffv1, or libvpx-vp9 into .webm or .mkv",
        )),
    }
}

/// Opens the encoder in the first time base that it takes: the input's, the same within 16 bits, one over the frame rate.
pub(super) fn open_context(request: &EncoderRequest<'_>, plan: &Plan) -> Result<(Context, Rational)> {
    let info = request.info;
    let rate = if counts_pictures(&request.chosen.container_name(), request.chosen.container.flags) {
        info.counted_rate()
    } else {
        info.frame_rate.or(info.average_rate).unwrap_or(Rational { num: 25, den: 1 })
    };
    let input = info.time_base.positive().unwrap_or(rate.inverse());
    let mut reduced = input.av();
    // SAFETY: writes to two local integers.
    unsafe { ffi::av_reduce(&mut reduced.num, &mut reduced.den, i64::from(input.num), i64::from(input.den), 65_535) };
    let mut bases = vec![input, Rational::from(reduced), rate.inverse()];
    let constant = info.frame_rate.zip(info.average_rate).is_some_and(|(a, b)| a == b);
    let rate_controlled = request.spec.bitrate.is_some() && counts_by_time_base(&request.chosen.codec_name());
    // AVI takes the time base for the frame rate too.
    if constant && (rate_controlled || request.chosen.container_name() == "avi") {
        bases.insert(0, rate.inverse());
    }
    bases.retain(|b| b.positive().is_some());
    bases.dedup();
    let mark = log::Mark::now();
    let mut last_error = None;
    // Some encoders know no fields (FLV1): then the pictures are told to be whole, which the muxer will name.
    let orders: &[ffi::AVFieldOrder] = match is_interlaced(info.field_order) {
        true => &[info.field_order, ffi::AVFieldOrder::AV_FIELD_UNKNOWN],
        false => &[info.field_order],
    };
    for &order in orders {
        for &base in &bases {
            match try_open(request, plan, Timing { base, rate, order }, mark) {
                Ok(context) => return Ok((context, base)),
                Err(error) if error.kind() == crate::error::Kind::Usage => return Err(error),
                Err(error) => last_error = Some(error),
            }
        }
    }
    let error = last_error.unwrap_or_else(|| Error::failed("cannot open the encoder", "it takes no time base"));
    let irregular = info.frame_rate.zip(info.average_rate).is_some_and(|(a, b)| a != b);
    Err(if irregular && counts_by_time_base(&request.chosen.codec_name()) {
        error.hint("the input's pictures come at irregular times, which this encoder may not take: libx264 and ffv1 do")
    } else {
        error
    })
}

/// When pictures come, and their fields.
#[derive(Clone, Copy)]
struct Timing {
    base: Rational,
    rate: Rational,
    order: ffi::AVFieldOrder,
}

fn is_interlaced(order: ffi::AVFieldOrder) -> bool {
    use ffi::AVFieldOrder::*;
    matches!(order, AV_FIELD_TT | AV_FIELD_BB | AV_FIELD_TB | AV_FIELD_BT)
}

fn try_open(request: &EncoderRequest<'_>, plan: &Plan, timing: Timing, mark: log::Mark) -> Result<Context> {
    let Timing { base, rate, order } = timing;
    let picked = &plan.picked;
    let EncoderRequest { chosen, spec, info, shape } = request;
    let name = chosen.codec_name();
    let operation = format!("cannot open the encoder {name}");
    // SAFETY: the codec is static; the result is checked.
    let mut context = Context { raw: unsafe { ffi::avcodec_alloc_context3(chosen.codec) }, statistics: None };
    // SAFETY: fresh, exclusively owned.
    let Some(c) = (unsafe { context.raw.as_mut() }) else { return Err(Error::failed(operation, "out of memory")) };
    let side = |s: usize| i32::try_from(s).map_err(|e| Error::failed(&operation, e));
    (c.width, c.height) = (side(plan.width)?, side(plan.height)?);
    c.pix_fmt = picked.target;
    c.time_base = base.av();
    c.framerate = rate.av();
    if matches!(name.as_str(), "libvpx" | "libvpx-vp9" | "libaom-av1") {
        // These take it for a frame's duration, and share the bits out by it.
        c.ticks_per_frame = i32::try_from(rescale(1, rate.inverse(), base).max(1)).unwrap_or(1);
    }
    c.sample_aspect_ratio = info.sample_aspect.positive().map_or(ffi::AVRational { num: 0, den: 1 }, Rational::av);
    c.color_range = if picked.target_full_range { ffi::AVColorRange::AVCOL_RANGE_JPEG } else { info.colour.range };
    c.color_primaries = info.colour.primaries;
    c.color_trc = info.colour.transfer;
    let target_rgb = format::is_rgb(picked.target);
    // The matrix of RGB is the identity, which the RGB formats themselves say.
    c.colorspace = if target_rgb { ffi::AVColorSpace::AVCOL_SPC_RGB } else { info.colour.matrix };
    c.chroma_sample_location = info.colour.chroma_location;
    c.field_order = order;
    c.thread_count = spec.threads.map_or(0, |n| i32::try_from(n).unwrap_or(0));
    c.strict_std_compliance = ffi::FF_COMPLIANCE_UNOFFICIAL;
    let same_samples = matches!(picked.way, Way::AsIs | Way::Repack(_)) && format::depth(picked.target) == u32::from(shape.format.depth);
    if same_samples && info.bits_per_raw_sample > 0 && i32::from(shape.format.depth) >= info.bits_per_raw_sample {
        c.bits_per_raw_sample = info.bits_per_raw_sample;
    }
    if chosen.container.flags & ffi::AVFMT_GLOBALHEADER != 0 {
        c.flags |= ffi::AV_CODEC_FLAG_GLOBAL_HEADER as i32;
    }
    if is_interlaced(order) {
        c.flags |= ffi::AV_CODEC_FLAG_INTERLACED_DCT as i32;
    }
    let mut options = options(&name, chosen.codec, spec, info)?;
    if let Some(pass) = &spec.pass {
        let statistics = pass.prepare(&name, &mut options)?;
        c.flags |= if pass.first { ffi::AV_CODEC_FLAG_PASS1 } else { ffi::AV_CODEC_FLAG_PASS2 } as i32;
        c.stats_in = statistics.as_ref().map_or(std::ptr::null_mut(), |text| text.as_ptr().cast_mut());
        context.statistics = statistics;
    }
    // SAFETY: a configured context and its own codec.
    let code = unsafe { ffi::avcodec_open2(context.raw, chosen.codec, options.as_mut()) };
    if code < 0 {
        let error = av_failed(operation, code, mark);
        let nvenc = name.ends_with("_nvenc");
        return Err(if nvenc {
            error.hint("it needs an NVIDIA GPU with its driver; -c:v libx264 or libx265 encodes on the CPU")
        } else {
            error
        });
    }
    if let Some(unknown) = options.keys().first() {
        return Err(Error::usage(operation, format!("it has no option '{unknown}'")));
    }
    Ok(context)
}

/// FFmpeg's own MPEG encoders and Theora, whose rate control takes the time base for the frame rate: with a finer clock they miss the
/// rate many times over.
fn counts_by_time_base(encoder: &str) -> bool {
    matches!(encoder, "mpeg1video" | "mpeg2video" | "mpeg4" | "msmpeg4" | "msmpeg4v2" | "wmv1" | "wmv2" | "flv" | "mjpeg" | "libtheora")
}

/// Options that let the encoder write what the pictures bring along.
fn rider_options(encoder: &str, info: &SourceInfo) -> Vec<(&'static CStr, String)> {
    let mut options = vec![(c"udu_sei", "1".to_owned())];
    let Some(code) = &info.picture_time_code else { return options };
    options.push((c"s12m_tc", "1".to_owned()));
    // Only these rates drop numbers; elsewhere the mark is an error to FFmpeg.
    let drops = info.frame_rate.is_some_and(|rate| rate.den == 1001 && matches!(rate.num, 30_000 | 60_000));
    if matches!(encoder, "mpeg1video" | "mpeg2video") {
        options.push((c"gop_timecode", if drops { code.clone() } else { code.replace(';', ":") }));
    }
    options
}

/// The user's options over the defaults.
fn options(name: &str, codec: &ffi::AVCodec, spec: &EncodeSpec, info: &SourceInfo) -> Result<Dict> {
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
    // What the library shall know, the user's own words last: they win. x265's own log would go to stderr.
    let quiet = (name == "libx265").then(|| "log-level=none".to_owned());
    let params = if name == "libx265" { c"x265-params" } else { c"x264-params" };
    let hdr = info.hdr.encoder_option(name).map(|(_, text)| text);
    let parts: Vec<String> = quiet.into_iter().chain(hdr).chain(dict.get(params)).collect();
    if !parts.is_empty() {
        dict.set(params, &c_string(&parts.join(":"), "encoder option")?);
    }
    // What pictures bring along is written where the encoder can.
    for (key, value) in rider_options(name, info) {
        if has_option(codec, key) {
            dict.set_default(key, &c_string(&value, "encoder option")?);
        }
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
