//! The encoder: frames are wrapped, never copied, unless the encoder takes another pixel format.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use ffmpeg_next::ffi;

use super::container::describes;
use super::convert::{Converter, Picture};
use super::counters::MediaCounters;
use super::encoder_setup::{Context, EncoderRequest, Plan, check_options, has_option, open_context, plan};
use super::exit::Way as ExitWay;
use super::info::{Colour, StreamInfo};
use super::intake::release_frame;
use super::owned::AvFrame;
use super::palette::Paletter;
use super::repack::{Memory, Repack};
use super::riders::{Rider, Riders, Writer};
use super::two_pass::Pass;
use super::{Packet, Rational, av_failed, format, log, owned, rescale, slab};
use crate::error::{Error, Result};
use crate::frame::{Frame, FrameMem, Shape};
use crate::frame_log::FrameLog;
use crate::pipeline::Encoder;

/// More frames than any encoder delays.
const MOST_DURATIONS: usize = 512;

/// Encodes the filtered stream. Packets carry the input stream's index and the encoder's time base.
pub struct VideoEncoder {
    context: Context,
    name: String,
    stream: usize,
    shape: Shape,
    /// Size of the encoded picture; larger or smaller by a column or row where the encoder refuses odd sides.
    size: (usize, usize),
    /// Set in the first of two passes.
    pass: Option<Pass>,
    /// Time base of incoming frames.
    input_base: Rational,
    time_base: Rational,
    colour: Colour,
    frame_format: ffi::AVPixelFormat,
    /// The incoming frames' format.
    native_format: ffi::AVPixelFormat,
    conversion: Option<Conversion>,
    /// Bytes that a conversion writes per frame.
    payload: usize,
    wrapper: AvFrame,
    last_pts: Option<i64>,
    /// (pts, duration) of frames in the encoder: most encoders forget durations.
    durations: VecDeque<(i64, i64)>,
    /// Pictures that went in, packets that came out.
    counted: [u64; 2],
    counters: Arc<MediaCounters>,
    riders: Arc<Riders>,
    /// What the container says of a stereo arrangement, for encoders that write it into the pictures.
    stereo: Option<Vec<u8>>,
    container: String,
    /// The time code that the file's tags carry already; empty once the pictures' were seen.
    time_code: Option<String>,
    log: Option<Arc<FrameLog>>,
}

/// From the frames' format to the one that the encoder takes.
enum Conversion {
    /// Samples are moved.
    Repack(Box<Repack>),
    /// Every picture gets a palette.
    Palette(Paletter),
    /// Samples are computed anew by swscale.
    Scale { converter: Converter, from: Picture, to: Picture },
}

impl VideoEncoder {
    pub(super) fn open(request: &EncoderRequest<'_>) -> Result<Self> {
        let EncoderRequest { chosen, spec, info, shape } = request;
        let name = chosen.codec_name();
        let counters = Arc::new(MediaCounters::default());
        check_options(chosen.codec, spec)?;
        let plan = plan(request)?;
        let (context, time_base) = open_context(request, &plan)?;
        let Plan { picked, width, height, warning } = plan;
        picked.warning.into_iter().chain(warning).for_each(|text| counters.warn(text));
        info.hdr.losses().for_each(|text| counters.warn(text));
        picked.note.into_iter().for_each(|text| counters.note(text));
        let conversion = match picked.way {
            ExitWay::AsIs => None,
            ExitWay::Repack(repack) => Some(Conversion::Repack(repack)),
            ExitWay::Scale(source) => {
                let picture = |format, full_range| Picture {
                    format,
                    width: shape.width as i32,
                    height: shape.height as i32,
                    matrix: info.colour.matrix,
                    full_range,
                };
                let (from, to) = (picture(source, info.colour.full_range()), picture(picked.target, picked.target_full_range));
                Some(Conversion::Scale { converter: Converter::new(), from, to })
            }
            ExitWay::Palette(source) => Some(Conversion::Palette(Paletter::new(source, shape.width, shape.height)?)),
        };
        Ok(Self {
            context,
            name,
            stream: info.video,
            shape: *shape,
            size: (width, height),
            pass: spec.pass.clone().filter(|pass| pass.first),
            input_base: info.time_base,
            time_base,
            colour: info.colour,
            frame_format: picked.target,
            native_format: format::av(shape.format).unwrap_or(picked.target),
            conversion,
            payload: shape.payload_bytes(),
            wrapper: AvFrame::alloc()?,
            last_pts: None,
            durations: VecDeque::with_capacity(MOST_DURATIONS),
            counted: [0; 2],
            counters,
            riders: Arc::clone(&info.riders),
            stereo: info.video_stream().and_then(StreamInfo::stereo).filter(|_| writes_stereo(&chosen.codec_name())),
            container: chosen.container_name(),
            time_code: info.tagged_time_code(),
            log: spec.log.clone(),
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

    /// Whether the output says of every picture how it was scanned.
    pub fn marks_each_scan(&self) -> bool {
        // SAFETY: the context is open for the life of self.
        let (flags, level) = unsafe { ((*self.context.raw).flags, (*self.context.raw).level) };
        // FFV1 does so from its third version on, MPEG-2 and ProRes in interlaced sequences.
        match self.name.as_str() {
            "ffv1" => level >= 3,
            "mpeg2video" | "prores_ks" => flags & ffi::AV_CODEC_FLAG_INTERLACED_DCT as i32 != 0,
            _ => false,
        }
    }

    /// Gives side data to the picture that is about to be encoded, or says that it is lost.
    fn seat(&mut self, rider: &Rider) {
        let Some(kind) = rider.fate() else { return };
        let written = match kind.writer {
            // SAFETY: the codec is static.
            Writer::Option(name) => unsafe { (*self.context.raw).codec.as_ref() }.is_some_and(|codec| has_option(codec, name)),
            Writer::Named(names) => names.contains(&self.name.as_str()),
            Writer::Nobody(text) => return self.counters.warn(format!("the video's {} {text}", kind.name)),
        };
        if written {
            self.wrapper.add_side_data(rider.kind, &rider.bytes);
        } else if describes(&self.container, rider.kind) {
            // Kept once for all pictures.
        } else if let Some(code) = rider.time_code() {
            // One word about all of them. What a tag of the file says too is not lost.
            let known = self.time_code.replace(String::new());
            if known.is_none_or(|known| !known.is_empty() && known.replace(';', ":") != code.replace(';', ":")) {
                self.counters
                    .warn(format!("the time codes in the pictures (from {code} on) are left out: {} cannot write them", self.name));
            }
        } else {
            self.counters.warn(format!("the {} in the pictures are left out: {} cannot write them", kind.name, self.name));
        }
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
        let raw = self.wrapper.get_mut();
        raw.data[..4].copy_from_slice(&data);
        raw.linesize[..4].copy_from_slice(&pitches);
        raw.extended_data = raw.data.as_mut_ptr();
        // What a conversion reads is known to it; the encoder sees this one.
        raw.format = self.frame_format as i32;
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

    /// Converts the wrapped frame into one that the encoder takes.
    fn convert(&mut self, pts: i64) -> Result<()> {
        let Some(conversion) = &mut self.conversion else { return Ok(()) };
        if let Conversion::Palette(paletter) = conversion {
            self.wrapper.get_mut().format = self.native_format as i32;
            self.wrapper = paletter.run(&mut self.wrapper, pts)?;
            self.counters.copied(self.payload);
            return Ok(());
        }
        let target = blank(self.frame_format, (self.shape.width, self.shape.height))?;
        let (source, destination) = (self.wrapper.get(), target.get());
        let pitches = |frame: &ffi::AVFrame| [0, 1, 2, 3].map(|p| frame.linesize[p]);
        match conversion {
            Conversion::Repack(repack) => {
                let from = Memory { planes: [0, 1, 2, 3].map(|p| source.data[p].cast_const()), pitches: pitches(source) };
                let to = Memory { planes: [0, 1, 2, 3].map(|p| destination.data[p]), pitches: pitches(destination) };
                // SAFETY: the wrapper holds the native frame of this shape; the target is freshly allocated for its format.
                unsafe { repack.run((self.shape.width, self.shape.height), from, to) };
            }
            Conversion::Palette(_) => {}
            Conversion::Scale { converter, from, to } => {
                // SAFETY: both frames hold pictures of the stated formats and sizes; the target is freshly allocated.
                unsafe {
                    converter.run(
                        (*from, (&source.data[..4], &source.linesize[..4])),
                        (*to, (&destination.data[..4], &destination.linesize[..4])),
                    )
                }?;
            }
        }
        self.counters.copied(self.payload);
        self.wrapper = target;
        Ok(())
    }

    /// Brings the frame to the encoded size: smaller by naming less of it, larger by repeating its last samples.
    fn resize(&mut self) -> Result<()> {
        let (width, height) = self.size;
        if width <= self.shape.width && height <= self.shape.height {
            (self.wrapper.get_mut().width, self.wrapper.get_mut().height) = (width as i32, height as i32);
            return Ok(());
        }
        let Some(format) = format::native(self.frame_format) else { return Ok(()) };
        let mut target = blank(self.frame_format, self.size)?;
        for plane in 0..format.plane_count() {
            let unit = format.components(plane) * format.sample().bytes();
            let (from, to) = (format.plane_size(plane, self.shape.width, self.shape.height), format.plane_size(plane, width, height));
            let (source, goal) = (self.wrapper.get(), target.get_mut());
            for y in 0..to.1 {
                let row = y.min(from.1 - 1) as isize;
                // SAFETY: both planes have the stated rows and samples; the target was just allocated for them.
                unsafe {
                    let read = source.data[plane].offset(row * source.linesize[plane] as isize);
                    let write = goal.data[plane].offset(y as isize * goal.linesize[plane] as isize);
                    std::ptr::copy_nonoverlapping(read, write, from.0 * unit);
                    for x in from.0..to.0 {
                        std::ptr::copy_nonoverlapping(read.add((from.0 - 1) * unit), write.add(x * unit), unit);
                    }
                }
            }
        }
        self.counters.copied(self.payload);
        self.wrapper = target;
        Ok(())
    }

    /// Notes what the encoder learned, in the first of two passes.
    fn note_statistics(&mut self) -> Result<()> {
        let Some(pass) = &self.pass else { return Ok(()) };
        // SAFETY: the context is open; its statistics are null or a terminated string.
        let Some(text) = (unsafe { owned::text((*self.context.raw).stats_out) }) else { return Ok(()) };
        let file = std::fs::File::options().append(true).create(true).open(&pass.statistics);
        file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|e| Error::failed("cannot write the first pass's statistics", e))
    }

    fn drain(&mut self, sink: &mut dyn FnMut(Packet) -> Result<()>) -> Result<()> {
        loop {
            let mark = log::Mark::now();
            let packet = Packet::alloc()?;
            // SAFETY: an open encoder and a blank packet.
            let code = unsafe { ffi::avcodec_receive_packet(self.context.raw, packet.raw) };
            if code == ffi::AVERROR_EOF {
                let [sent, came] = self.counted;
                if came < sent {
                    self.counters.warn(format!("{} dropped {} of {sent} pictures to keep its bit rate", self.name, sent - came));
                }
                return self.note_statistics();
            }
            if code == ffi::AVERROR(libc::EAGAIN) {
                return Ok(());
            }
            if code < 0 {
                return Err(av_failed(self.operation(), code, mark));
            }
            self.counted[1] += 1;
            // SAFETY: the packet was just filled and is owned.
            let raw = unsafe { &mut *packet.raw };
            raw.stream_index = i32::try_from(self.stream).unwrap_or(0);
            if let Some(at) = self.durations.iter().position(|&(pts, _)| pts == raw.pts)
                && let Some((_, duration)) = self.durations.remove(at)
                && raw.duration <= 0
            {
                raw.duration = duration;
            }
            self.note_statistics()?;
            if let Some(log) = &self.log {
                log.write(&packet.entry("encode", self.time_base));
            }
            sink(packet)?;
        }
    }
}

/// Whether an encoder writes a stereo arrangement into the pictures.
pub(super) fn writes_stereo(encoder: &str) -> bool {
    encoder.starts_with("libx264")
}

/// A frame with memory of its own.
fn blank(format: ffi::AVPixelFormat, (width, height): (usize, usize)) -> Result<AvFrame> {
    let mut frame = AvFrame::alloc()?;
    let raw = frame.get_mut();
    raw.format = format as i32;
    (raw.width, raw.height) = (width as i32, height as i32);
    // SAFETY: format and size are set, as the call demands.
    let code = unsafe { ffi::av_frame_get_buffer(frame.as_ptr(), 0) };
    if code < 0 { Err(av_failed("cannot allocate a frame for the encoder", code, log::Mark::now())) } else { Ok(frame) }
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
        let (time, seq) = (frame.time, frame.seq);
        if let Some(log) = &self.log {
            log.write(&time.entry("filter", self.stream, (self.input_base.num, self.input_base.den), frame.layout.shape.payload_bytes()));
        }
        // SAFETY: a valid frame; drops the references of the one before.
        unsafe { ffi::av_frame_unref(self.wrapper.as_ptr()) };
        self.wrap(frame)?;
        let pts = match (time.pts.map(|pts| rescale(pts, self.input_base, self.time_base)), self.last_pts) {
            (Some(pts), Some(last)) => pts.max(last + 1),
            (Some(pts), None) => pts,
            (None, last) => last.map_or(0, |last| last + 1),
        };
        self.last_pts = Some(pts);
        self.convert(pts)?;
        self.resize()?;
        let duration = rescale(time.duration, self.input_base, self.time_base);
        if duration > 0 {
            // An encoder that drops frames or renumbers them leaves entries behind.
            if self.durations.len() >= MOST_DURATIONS {
                self.durations.pop_front();
            }
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
        // TB means coded top first, shown bottom first.
        match context.field_order {
            ffi::AVFieldOrder::AV_FIELD_TT | ffi::AVFieldOrder::AV_FIELD_BT => (raw.interlaced_frame, raw.top_field_first) = (1, 1),
            ffi::AVFieldOrder::AV_FIELD_BB | ffi::AVFieldOrder::AV_FIELD_TB => (raw.interlaced_frame, raw.top_field_first) = (1, 0),
            _ => {}
        }
        if let Some(load) = self.riders.take(seq) {
            load.riders.iter().for_each(|rider| self.seat(rider));
            if let Some(scan) = load.scan.filter(|_| self.marks_each_scan()) {
                let raw = self.wrapper.get_mut();
                (raw.interlaced_frame, raw.top_field_first) = scan.flags();
            }
        }
        let kind = ffi::AVFrameSideDataType::AV_FRAME_DATA_STEREO3D;
        if let Some(stereo) = self.stereo.as_ref().filter(|_| self.wrapper.side_data(kind).is_none()) {
            self.wrapper.add_side_data(kind, stereo);
        }
        let mark = log::Mark::now();
        // SAFETY: an open encoder and a complete frame, which the encoder references on its own.
        let mut code = unsafe { ffi::avcodec_send_frame(self.context.raw, self.wrapper.as_ptr()) };
        if code == ffi::AVERROR(libc::EAGAIN) {
            self.drain(sink)?;
            // SAFETY: as above.
            code = unsafe { ffi::avcodec_send_frame(self.context.raw, self.wrapper.as_ptr()) };
        }
        self.counted[0] += 1;
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
