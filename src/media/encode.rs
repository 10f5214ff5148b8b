//! The encoder: frames are wrapped, never copied, unless the encoder takes another pixel format.

use std::collections::VecDeque;
use std::ffi::{CStr, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use ffmpeg_next::ffi;

use super::convert::{Converter, Picture};
use super::decode::{MediaCounters, release_frame};
use super::info::{Colour, SourceInfo};
use super::output::{Chosen, EncodeSpec};
use super::owned::{self, AvFrame, Dict};
use super::{Packet, Rational, av_failed, c_string, format, log, output_defaults, rescale, slab};
use crate::error::{Error, Result};
use crate::frame::{Frame, FrameMem, Model, Shape};
use crate::pipeline::Encoder;

/// What an encoder is opened for.
pub(super) struct EncoderRequest<'a> {
    pub chosen: Chosen,
    pub spec: &'a EncodeSpec,
    pub info: &'a SourceInfo,
    pub shape: Shape,
}

/// An opened codec context; freed on drop.
struct Context {
    raw: *mut ffi::AVCodecContext,
}

// SAFETY: used by one thread at a time.
unsafe impl Send for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: owned; accepts null; joins the codec's threads.
        unsafe { ffi::avcodec_free_context(&mut self.raw) }
    }
}

/// Encodes the filtered stream. Packets carry the input stream's index and the encoder's time base.
pub struct VideoEncoder {
    context: Context,
    name: String,
    stream: usize,
    shape: Shape,
    /// Time base of incoming frames.
    input_base: Rational,
    time_base: Rational,
    colour: Colour,
    frame_format: ffi::AVPixelFormat,
    conversion: Option<Conversion>,
    wrapper: AvFrame,
    last_pts: Option<i64>,
    /// (pts, duration) of frames in the encoder: most encoders forget durations.
    durations: VecDeque<(i64, i64)>,
    counters: Arc<MediaCounters>,
}

/// From the frames' format to the one that the encoder takes.
struct Conversion {
    converter: Converter,
    from: Picture,
    to: Picture,
    payload: usize,
}

impl VideoEncoder {
    pub(super) fn open(request: &EncoderRequest<'_>) -> Result<Self> {
        let EncoderRequest { chosen, spec, info, shape } = request;
        let name = chosen.codec_name();
        let counters = Arc::new(MediaCounters::default());
        check_options(chosen.codec, spec)?;
        let picked = pick_format(chosen.codec, spec, *shape, info.colour)?;
        if let Some(warning) = &picked.warning {
            counters.warn(warning.clone());
        }
        check_size(&name, picked.target, *shape)?;
        let (context, time_base) = open_context(request, &picked)?;
        let conversion = (picked.source != picked.target || picked.target_full_range != info.colour.full_range()).then(|| {
            let picture = |format, full_range| Picture {
                format,
                width: shape.width as i32,
                height: shape.height as i32,
                matrix: info.colour.matrix,
                full_range,
            };
            Conversion {
                converter: Converter::new(),
                from: picture(picked.source, info.colour.full_range()),
                to: picture(picked.target, picked.target_full_range),
                payload: shape.payload_bytes(),
            }
        });
        // A yuvj format is the same samples under another name.
        let conversion =
            conversion.filter(|c| c.from.full_range != c.to.full_range || format::native(c.from.format) != format::native(c.to.format));
        Ok(Self {
            context,
            name,
            stream: info.video,
            shape: *shape,
            input_base: info.time_base,
            time_base,
            colour: info.colour,
            frame_format: picked.target,
            conversion,
            wrapper: AvFrame::alloc()?,
            last_pts: None,
            durations: VecDeque::with_capacity(64),
            counters,
        })
    }

    /// FFmpeg's name of the encoder.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Name of the pixel format that is encoded.
    pub fn pixel_format(&self) -> String {
        format::name(self.frame_format)
    }

    /// Unit of the packets' time stamps, in seconds.
    pub fn time_base(&self) -> Rational {
        self.time_base
    }

    /// Bytes converted, and warnings.
    pub fn counters(&self) -> Arc<MediaCounters> {
        Arc::clone(&self.counters)
    }

    pub(super) fn raw(&self) -> *mut ffi::AVCodecContext {
        self.context.raw
    }

    fn operation(&self) -> String {
        format!("cannot encode with {}", self.name)
    }

    /// Points the wrapper at the frame's memory and moves its ownership into the wrapper's buffer.
    fn wrap(&mut self, frame: Frame) -> Result<()> {
        let layout = frame.layout;
        let planes = layout.planes().len();
        let mut data = [std::ptr::null_mut(); 4];
        for (index, pointer) in data.iter_mut().enumerate().take(planes) {
            *pointer = frame.plane_ptr(index).cast_mut();
        }
        let mut pitches = [0; 4];
        for (pitch, plane) in pitches.iter_mut().zip(layout.planes()) {
            *pitch = i32::try_from(plane.pitch).map_err(|e| Error::failed(self.operation(), e))?;
        }
        let own_format = if self.conversion.is_some() { self.source_format() } else { self.frame_format };
        let raw = self.wrapper.get_mut();
        raw.data[..4].copy_from_slice(&data);
        raw.linesize[..4].copy_from_slice(&pitches);
        raw.extended_data = raw.data.as_mut_ptr();
        raw.format = own_format as i32;
        raw.width = self.shape.width as i32;
        raw.height = self.shape.height as i32;
        let out_of_memory = || Error::failed("cannot wrap a frame for the encoder", "out of memory");
        match frame.mem {
            FrameMem::Slab(lease) => {
                let (base, bytes) = (lease.as_ptr(), lease.len());
                let opaque = lease.into_raw();
                // SAFETY: base..base+bytes belongs to the buffer until `release` takes the lease back.
                raw.buf[0] = unsafe { ffi::av_buffer_create(base, bytes, Some(slab::release), opaque, 0) };
                if raw.buf[0].is_null() {
                    // SAFETY: the lease was not handed over.
                    drop(unsafe { crate::pool::Lease::from_raw(opaque) });
                    return Err(out_of_memory());
                }
            }
            FrameMem::Shared { guard, .. } | FrameMem::Foreign { guard, .. } if guard.is(release_frame) => {
                // SAFETY: this guard's object is a decoded AVFrame; its buffers are referenced before the guard frees it.
                unsafe {
                    let decoded = &*guard.object().as_ptr().cast::<ffi::AVFrame>();
                    for (ours, theirs) in raw.buf.iter_mut().zip(decoded.buf).filter(|(_, theirs)| !theirs.is_null()) {
                        *ours = ffi::av_buffer_ref(theirs);
                        if ours.is_null() {
                            return Err(out_of_memory());
                        }
                    }
                }
            }
            mem @ (FrameMem::Shared { .. } | FrameMem::Foreign { .. }) => {
                let first = data.first().copied().unwrap_or(std::ptr::null_mut());
                let opaque = Box::into_raw(Box::new(mem));
                // SAFETY: the boxed memory stays alive until `release_mem`; it is read only.
                raw.buf[0] = unsafe { ffi::av_buffer_create(first, 1, Some(release_mem), opaque.cast(), ffi::AV_BUFFER_FLAG_READONLY) };
                if raw.buf[0].is_null() {
                    // SAFETY: the box was not handed over.
                    drop(unsafe { Box::from_raw(opaque) });
                    return Err(out_of_memory());
                }
            }
        }
        Ok(())
    }

    fn source_format(&self) -> ffi::AVPixelFormat {
        self.conversion.as_ref().map_or(self.frame_format, |c| c.from.format)
    }

    /// Converts the wrapped frame into one that the encoder takes.
    fn convert(&mut self) -> Result<()> {
        let Some(conversion) = &mut self.conversion else { return Ok(()) };
        let mut target = AvFrame::alloc()?;
        let raw = target.get_mut();
        raw.format = conversion.to.format as i32;
        (raw.width, raw.height) = (conversion.to.width, conversion.to.height);
        // SAFETY: format and size are set, as the call demands.
        let code = unsafe { ffi::av_frame_get_buffer(target.as_ptr(), 0) };
        if code < 0 {
            return Err(av_failed("cannot allocate a frame for the encoder", code, log::Mark::now()));
        }
        let (source, destination) = (self.wrapper.get(), target.get());
        // SAFETY: both frames hold pictures of the stated formats and sizes; the target is freshly allocated.
        unsafe {
            conversion.converter.run(
                (conversion.from, (&source.data[..4], &source.linesize[..4])),
                (conversion.to, (&destination.data[..4], &destination.linesize[..4])),
            )
        }?;
        self.counters.copied(conversion.payload);
        self.wrapper = target;
        Ok(())
    }

    fn drain(&mut self, sink: &mut dyn FnMut(Packet) -> Result<()>) -> Result<()> {
        loop {
            let mark = log::Mark::now();
            let packet = Packet::alloc()?;
            // SAFETY: an open encoder and a blank packet.
            let code = unsafe { ffi::avcodec_receive_packet(self.context.raw, packet.raw) };
            if code == ffi::AVERROR(libc::EAGAIN) || code == ffi::AVERROR_EOF {
                return Ok(());
            }
            if code < 0 {
                return Err(av_failed(self.operation(), code, mark));
            }
            // SAFETY: the packet was just filled and is owned.
            let raw = unsafe { &mut *packet.raw };
            raw.stream_index = i32::try_from(self.stream).unwrap_or(0);
            if let Some(at) = self.durations.iter().position(|&(pts, _)| pts == raw.pts)
                && let Some((_, duration)) = self.durations.remove(at)
                && raw.duration <= 0
            {
                raw.duration = duration;
            }
            sink(packet)?;
        }
    }
}

/// Drops boxed frame memory: the free callback of frames that bring a guard of another kind.
unsafe extern "C" fn release_mem(opaque: *mut c_void, _data: *mut u8) {
    let _ = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: `opaque` is the box given to av_buffer_create, which calls this once.
        drop(unsafe { Box::from_raw(opaque.cast::<FrameMem>()) });
    }));
}

impl Encoder for VideoEncoder {
    fn encode(&mut self, frame: Frame, sink: &mut dyn FnMut(Packet) -> Result<()>) -> Result<()> {
        if frame.layout.shape != self.shape {
            return Err(Error::failed(
                self.operation(),
                format!("internal error: a frame of {} came, not {}", frame.layout.shape, self.shape),
            ));
        }
        let time = frame.time;
        // SAFETY: a valid frame; drops the references of the one before.
        unsafe { ffi::av_frame_unref(self.wrapper.as_ptr()) };
        self.wrap(frame)?;
        self.convert()?;
        let pts = match (time.pts.map(|pts| rescale(pts, self.input_base, self.time_base)), self.last_pts) {
            (Some(pts), Some(last)) => pts.max(last + 1),
            (Some(pts), None) => pts,
            (None, last) => last.map_or(0, |last| last + 1),
        };
        self.last_pts = Some(pts);
        let duration = rescale(time.duration, self.input_base, self.time_base);
        if duration > 0 {
            self.durations.push_back((pts, duration));
        }
        let colour = self.colour;
        let raw = self.wrapper.get_mut();
        raw.pts = pts;
        raw.pict_type = ffi::AVPictureType::AV_PICTURE_TYPE_NONE;
        // SAFETY: the context is open for the life of self.
        let context = unsafe { &*self.context.raw };
        raw.sample_aspect_ratio = context.sample_aspect_ratio;
        raw.color_range = context.color_range;
        raw.color_primaries = colour.primaries;
        raw.color_trc = colour.transfer;
        raw.colorspace = context.colorspace;
        raw.chroma_location = colour.chroma_location;
        match context.field_order {
            ffi::AVFieldOrder::AV_FIELD_TT | ffi::AVFieldOrder::AV_FIELD_TB => (raw.interlaced_frame, raw.top_field_first) = (1, 1),
            ffi::AVFieldOrder::AV_FIELD_BB | ffi::AVFieldOrder::AV_FIELD_BT => (raw.interlaced_frame, raw.top_field_first) = (1, 0),
            _ => {}
        }
        let mark = log::Mark::now();
        // SAFETY: an open encoder and a complete frame, which the encoder references on its own.
        let mut code = unsafe { ffi::avcodec_send_frame(self.context.raw, self.wrapper.as_ptr()) };
        if code == ffi::AVERROR(libc::EAGAIN) {
            self.drain(sink)?;
            // SAFETY: as above.
            code = unsafe { ffi::avcodec_send_frame(self.context.raw, self.wrapper.as_ptr()) };
        }
        // SAFETY: the encoder holds its own reference; ours would keep the slab out of its pool until the next frame.
        unsafe { ffi::av_frame_unref(self.wrapper.as_ptr()) };
        if code < 0 {
            return Err(av_failed(self.operation(), code, mark));
        }
        self.drain(sink)
    }

    fn finish(&mut self, sink: &mut dyn FnMut(Packet) -> Result<()>) -> Result<()> {
        // SAFETY: a null frame starts the flush.
        let code = unsafe { ffi::avcodec_send_frame(self.context.raw, std::ptr::null()) };
        if code < 0 && code != ffi::AVERROR_EOF {
            return Err(av_failed(self.operation(), code, log::Mark::now()));
        }
        self.drain(sink)
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
fn accepted(codec: &ffi::AVCodec) -> Option<Vec<ffi::AVPixelFormat>> {
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

fn names(formats: &[ffi::AVPixelFormat]) -> String {
    formats.iter().map(|&f| format::name(f)).collect::<Vec<_>>().join(", ")
}

struct Picked {
    /// Format of the frames that come.
    source: ffi::AVPixelFormat,
    /// Format that is encoded.
    target: ffi::AVPixelFormat,
    target_full_range: bool,
    warning: Option<String>,
}

/// The encoder's pixel format: the frames' own, else one that loses nothing, else an error that names what it takes.
fn pick_format(codec: &ffi::AVCodec, spec: &EncodeSpec, shape: Shape, colour: Colour) -> Result<Picked> {
    // SAFETY: static string.
    let name = unsafe { owned::text(codec.name) }.unwrap_or_default();
    let operation = format!("cannot encode {} with {name}", shape.format);
    let source = format::av(shape.format).ok_or_else(|| Error::failed(&operation, "FFmpeg has no such pixel format"))?;
    let full_range = colour.full_range();
    let yuvj = format::av_full_range(shape.format);
    if let Some(wanted) = &spec.pix_fmt {
        let wanted = c_string(wanted, "pixel format")?;
        // SAFETY: a terminated string.
        let target = unsafe { ffi::av_get_pix_fmt(wanted.as_ptr()) };
        return Ok(Picked { source, target, target_full_range: full_range || format::implies_full_range(target), warning: None });
    }
    let Some(taken) = accepted(codec) else {
        return Ok(Picked { source, target: source, target_full_range: full_range, warning: None });
    };
    // JPEG only knows full range; by that name where the encoder has it.
    let jpeg = matches!(codec.id, ffi::AVCodecID::AV_CODEC_ID_MJPEG | ffi::AVCodecID::AV_CODEC_ID_LJPEG);
    if let Some(yuvj) = yuvj.filter(|f| taken.contains(f) && (full_range || jpeg)) {
        let warning = (!full_range).then(|| format!("{name} stores full-range samples only: the video range is expanded"));
        return Ok(Picked { source, target: yuvj, target_full_range: true, warning });
    }
    if taken.contains(&source) {
        return Ok(Picked { source, target: source, target_full_range: full_range, warning: None });
    }
    // SAFETY: pure queries of swscale's tables.
    let convertible: Vec<_> = taken.iter().copied().filter(|&f| unsafe { ffi::sws_isSupportedOutput(f) } != 0).collect();
    let nearest = format::nearest(source, convertible.iter().copied());
    let refusal = || {
        let remedy = nearest.map_or("-c:v ffv1".to_owned(), |f| format!("--pix-fmt {}", format::name(f)));
        Error::failed(&operation, format!("it takes {}", names(&taken)))
            .hint(format!("convert with {remedy}, or choose another encoder with -c:v"))
    };
    let target = nearest.ok_or_else(refusal)?;
    let loss = format::loss(source, target);
    let serious = ffi::FF_LOSS_RESOLUTION | ffi::FF_LOSS_DEPTH | ffi::FF_LOSS_COLORSPACE | ffi::FF_LOSS_CHROMA;
    // An encoder that takes no format of this colour model (PNG, GIF) can do nothing else, and its user expects it.
    let model_taken = taken.iter().any(|&f| format::is_rgb(f) == (shape.format.model == Model::Rgb) && !format::is_gray(f));
    if loss & serious != 0 && (model_taken || shape.format.model == Model::Gray) {
        return Err(refusal());
    }
    let warning = Some(format!("{name} cannot take {}: frames are converted to {}", shape.format, format::name(target)));
    Ok(Picked { source, target, target_full_range: full_range || format::implies_full_range(target), warning })
}

/// Encoders that refuse odd sizes for subsampled chroma, said before they do.
fn check_size(encoder: &str, target: ffi::AVPixelFormat, shape: Shape) -> Result<()> {
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
fn open_context(request: &EncoderRequest<'_>, picked: &Picked) -> Result<(Context, Rational)> {
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
    let target_rgb = format::native(picked.target).map_or(format::native(picked.source), Some).is_some_and(|f| f.model == Model::Rgb);
    // The matrix of RGB is the identity, which the RGB formats themselves say.
    c.colorspace = if target_rgb { ffi::AVColorSpace::AVCOL_SPC_RGB } else { info.colour.matrix };
    c.chroma_sample_location = info.colour.chroma_location;
    c.field_order = info.field_order;
    c.thread_count = spec.threads.map_or(0, |n| i32::try_from(n).unwrap_or(0));
    c.strict_std_compliance = ffi::FF_COMPLIANCE_UNOFFICIAL;
    if picked.source == picked.target && info.bits_per_raw_sample > 0 && i32::from(shape.format.depth) >= info.bits_per_raw_sample {
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
    let mut user_rate = ["b", "crf", "cq", "qp", "q", "qscale", "global_quality", "lossless"]
        .into_iter()
        .any(|key| spec.options.iter().any(|(k, _)| k == key));
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
