//! The muxer: the encoded stream and everything that is carried over, into one file or stream.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use ffmpeg_next::ffi;

use super::container::{holds_one_stream, is_mov, maps, set_defaults};
use super::encode::VideoEncoder;
use super::info::{SourceInfo, StreamInfo, StreamKind};
use super::io::{Interrupt, open_fifo_for_writing};
use super::output::{Chosen, EncodeSpec, OutputTarget, choose};
use super::owned::Dict;
use super::{Packet, Rational, av_failed, c_string, describe, log, redact, rescale, timestamp};
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::pipeline::Muxer;

/// How long one write of a cancelled run may wait for a peer that takes nothing.
const CANCEL_GRACE: Duration = Duration::from_secs(5);

/// Tags that describe the old file, not the programme.
const STALE_TAGS: [&std::ffi::CStr; 4] = [c"major_brand", c"minor_version", c"compatible_brands", c"encoder"];
/// Tags that describe the old encoding of the filtered stream.
const STALE_VIDEO_TAGS: [&std::ffi::CStr; 7] = [
    c"encoder",
    c"BPS",
    c"NUMBER_OF_FRAMES",
    c"NUMBER_OF_BYTES",
    c"_STATISTICS_TAGS",
    c"_STATISTICS_WRITING_APP",
    c"_STATISTICS_WRITING_DATE_UTC",
];

/// An output context; freed on drop, its file closed.
struct Output {
    raw: *mut ffi::AVFormatContext,
    /// Whether `raw.pb` was opened by us.
    owns_io: bool,
}

// SAFETY: used by one thread at a time.
unsafe impl Send for Output {}

impl Output {
    fn new(chosen: &Chosen, url: &str) -> Result<Self> {
        let url = c_string(url, "output name")?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: a static container and a terminated string; the result is checked.
        let code = unsafe { ffi::avformat_alloc_output_context2(&mut raw, chosen.container, std::ptr::null(), url.as_ptr()) };
        if code < 0 || raw.is_null() {
            return Err(av_failed("cannot set up the output", code, log::Mark::now()));
        }
        Ok(Self { raw, owns_io: false })
    }

    fn get(&mut self) -> &mut ffi::AVFormatContext {
        // SAFETY: never null (`new`), exclusively owned.
        unsafe { &mut *self.raw }
    }

    fn close(&mut self) -> i32 {
        if !std::mem::take(&mut self.owns_io) {
            return 0;
        }
        // SAFETY: opened by avio_open2 and closed once.
        unsafe { ffi::avio_closep(&mut (*self.raw).pb) }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.close();
        // SAFETY: owned; also runs the muxer's own clean-up.
        unsafe { ffi::avformat_free_context(self.raw) }
    }
}

/// Where an input stream's packets go.
#[derive(Clone, Copy)]
struct Route {
    output: i32,
    from: Rational,
    to: Rational,
    /// Added to every time, in units of `to`.
    delay: i64,
    last_dts: Option<i64>,
}

/// Writes one output. Streams keep the input's order.
pub struct FileMuxer {
    output: Output,
    interrupt: Box<Interrupt>,
    /// The FIFO behind the output, closed last.
    fifo: Option<OwnedFd>,
    name: String,
    routes: Vec<Option<Route>>,
    /// Whether equal time stamps may follow each other.
    nonstrict: bool,
    untimed: bool,
    warnings: Vec<String>,
    lost: bool,
    finished: bool,
}

impl FileMuxer {
    pub(super) fn open(
        target: &OutputTarget<'_>,
        spec: &EncodeSpec,
        info: &SourceInfo,
        encoder: &VideoEncoder,
        cancel: &Cancel,
    ) -> Result<Self> {
        let chosen = choose(target.final_name, spec)?;
        let name = redact(target.final_name);
        let tried = format!("cannot write '{name}'");
        let fifo = open_fifo_for_writing(target.url, cancel).map_err(|e| Error::failed(&tried, e))?;
        let url = fifo.as_ref().map_or_else(|| open_url(target.url), |fd| format!("pipe:{}", fd.as_raw_fd()));
        let interrupt = Interrupt::after(cancel, CANCEL_GRACE);
        let mut warnings = Vec::new();
        let wanted = Wanted { chosen: &chosen, info, encoder, turned: true };
        let streams = wanted.streams_that_fit(&mut warnings)?;
        warnings.extend(wanted.lost_rotation()?);
        let mut output = Output::new(&chosen, &url)?;
        let context = output.get();
        let regular = std::fs::metadata(target.url).map_or_else(|_| !names_a_stream(target.url), |m| m.is_file());
        // A file takes everything in the end; moving its index to the front may just take long.
        let callback = if regular { ffi::AVIOInterruptCB { callback: None, opaque: std::ptr::null_mut() } } else { interrupt.callback() };
        context.interrupt_callback = callback;
        context.strict_std_compliance = ffi::FF_COMPLIANCE_EXPERIMENTAL;
        for stream in &streams {
            wanted.add_stream(&mut output, stream)?;
        }
        wanted.add_metadata(&mut output)?;
        let mut options = Dict::from_pairs(&spec.mux_options, "muxer option")?;
        let mark = log::Mark::now();
        if chosen.container.flags & ffi::AVFMT_NOFILE == 0 {
            let c_url = c_string(&url, "output name")?;
            // SAFETY: the callback's object outlives the context; unknown options stay in the dictionary for the muxer.
            let code = unsafe { ffi::avio_open2(&mut (*output.raw).pb, c_url.as_ptr(), ffi::AVIO_FLAG_WRITE, &callback, options.as_mut()) };
            if code < 0 {
                return Err(av_failed(tried, code, mark));
            }
            output.owns_io = true;
        }
        // SAFETY: the IO context, if there is one, is open.
        let rewinds = unsafe { output.get().pb.as_ref() }.is_none_or(|pb| pb.seekable & ffi::AVIO_SEEKABLE_NORMAL as libc::c_int != 0);
        warnings.extend(set_defaults(&chosen.container_name(), encoder.time_base(), rewinds, info, &mut options));
        // SAFETY: a complete context.
        let code = unsafe { ffi::avformat_write_header(output.raw, options.as_mut()) };
        if code < 0 {
            return Err(av_failed(tried, code, mark));
        }
        if let Some(unknown) = options.keys().first() {
            return Err(Error::usage(tried, format!("the container {} has no option '{unknown}'", chosen.container_name())));
        }
        let mut routes = vec![None; info.streams.len()];
        for (index, stream) in streams.iter().enumerate() {
            // SAFETY: one output stream was added per entry; the muxer may have changed its time base.
            let to = unsafe { (**(*output.raw).streams.add(index)).time_base }.into();
            let from = if stream.index == info.video { encoder.time_base() } else { stream.time_base };
            if let Some(route) = routes.get_mut(stream.index) {
                let delay = wanted.codec_delay(stream, to);
                *route = Some(Route { output: i32::try_from(index).unwrap_or(0), from, to, delay, last_dts: None });
            }
        }
        let flags = chosen.container.flags;
        Ok(Self {
            output,
            interrupt,
            fifo,
            name,
            routes,
            nonstrict: flags & ffi::AVFMT_TS_NONSTRICT != 0,
            untimed: flags & ffi::AVFMT_NOTIMESTAMPS != 0,
            warnings,
            lost: false,
            finished: false,
        })
    }

    /// What could not be carried over, and why.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    fn operation(&self) -> String {
        format!("cannot write '{}'", self.name)
    }

    fn failed(&self, code: i32, mark: log::Mark) -> Error {
        let error = av_failed(self.operation(), code, mark);
        match code {
            _ if code == ffi::AVERROR(libc::ENOSPC) => {
                Error::failed(self.operation(), "no space left on device").hint("free some space, or write elsewhere")
            }
            ffi::AVERROR_EXIT => Error::failed(self.operation(), "interrupted, and the reader takes no more"),
            _ if code == ffi::AVERROR(libc::EPIPE) => Error::failed(self.operation(), "the reader closed the pipe"),
            _ => error,
        }
    }

    /// Repairs what muxers refuse: missing and falling decoding time stamps. Time stamps that are in order pass unchanged.
    fn order(&mut self, raw: &mut ffi::AVPacket, stream: usize) {
        if self.untimed {
            return;
        }
        let Some(Some(route)) = self.routes.get_mut(stream) else { return };
        let least = route.last_dts.map(|last| if self.nonstrict { last } else { last.saturating_add(1) });
        let mut dts = timestamp(raw.dts).or(timestamp(raw.pts)).or(least).unwrap_or(0);
        if let Some(least) = least.filter(|&least| dts < least) {
            dts = least;
        }
        raw.dts = dts;
        if timestamp(raw.pts).is_none_or(|pts| pts < dts) {
            raw.pts = dts;
        }
        route.last_dts = Some(dts);
    }
}

impl Muxer for FileMuxer {
    fn write(&mut self, packet: Packet) -> Result<()> {
        let stream = packet.stream();
        let Some(route) = self.routes.get(stream) else {
            if !std::mem::replace(&mut self.lost, true) {
                self.warnings.push(format!("stream #{stream} appeared in mid-file and is left out"));
            }
            return Ok(());
        };
        let Some(route) = *route else { return Ok(()) };
        // SAFETY: the packet is owned.
        let raw = unsafe { &mut *packet.raw };
        // SAFETY: plain arithmetic on the packet's own fields.
        unsafe { ffi::av_packet_rescale_ts(raw, route.from.av(), route.to.av()) };
        for time in [&mut raw.pts, &mut raw.dts] {
            if let Some(known) = timestamp(*time) {
                *time = known.saturating_add(route.delay);
            }
        }
        raw.stream_index = route.output;
        raw.pos = -1;
        self.order(raw, stream);
        self.interrupt.begin();
        let mark = log::Mark::now();
        // SAFETY: the header is written; the call takes the packet's content and leaves it blank.
        let code = unsafe { ffi::av_interleaved_write_frame(self.output.raw, packet.raw) };
        if code < 0 { Err(self.failed(code, mark)) } else { Ok(()) }
    }

    fn finish(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.finished, true) {
            return Ok(());
        }
        self.interrupt.begin();
        let mark = log::Mark::now();
        // SAFETY: the header is written, and the trailer once.
        let trailer = unsafe { ffi::av_write_trailer(self.output.raw) };
        // SAFETY: the IO context, if there is one, is open.
        let written = unsafe { self.output.get().pb.as_ref() }.map_or(0, |pb| pb.error);
        let closed = self.output.close();
        self.fifo = None;
        match [trailer, written, closed].into_iter().find(|&code| code < 0 && code != ffi::AVERROR_EOF) {
            Some(code) => Err(self.failed(code, mark)),
            None => Ok(()),
        }
    }
}

/// Whether a target is standard output or a URL.
fn names_a_stream(target: &str) -> bool {
    target == "-" || target.starts_with("pipe:") || target.contains("://")
}

/// FFmpeg's URL for a target. The prefix keeps it from reading "a:b.mp4" as a protocol.
fn open_url(target: &str) -> String {
    if target == "-" {
        "pipe:1".to_owned()
    } else if target.contains("://") || target.starts_with("pipe:") || target.starts_with("file:") || target.contains('%') {
        target.to_owned()
    } else {
        format!("file:{target}")
    }
}

/// What the output should hold.
struct Wanted<'a> {
    chosen: &'a Chosen,
    info: &'a SourceInfo,
    encoder: &'a VideoEncoder,
    /// Whether the video's rotation is passed on.
    turned: bool,
}

impl<'a> Wanted<'a> {
    /// The input streams that the container takes, tried one by one on a muxer that writes into memory.
    fn streams_that_fit(&self, warnings: &mut Vec<String>) -> Result<Vec<&'a StreamInfo>> {
        let mut kept: Vec<&StreamInfo> = self.info.video_stream().into_iter().collect();
        for stream in self.info.streams.iter().filter(|s| s.index != self.info.video) {
            match self.refusal(&kept, stream)? {
                None => {
                    kept.push(stream);
                    kept.sort_by_key(|s| s.index);
                }
                Some(_) if self.is_made_anew(stream) => {}
                Some(reason) => {
                    warnings.push(format!("{} is left out: {reason}", stream.label()));
                }
            }
        }
        Ok(kept)
    }

    /// Tracks that the muxer makes anew: MP4's chapter titles and time code, which the demuxer also reports as chapters
    /// and as a tag.
    fn is_made_anew(&self, stream: &StreamInfo) -> bool {
        let chapters = !self.info.chapters.is_empty() && stream.codec == "bin_data";
        let time_code =
            stream.params.get().codec_tag == u32::from_le_bytes(*b"tmcd") && matches!(self.chosen.container_name().as_str(), "mp4" | "mov");
        stream.kind == StreamKind::Data && (chapters || time_code)
    }

    /// Why `stream` cannot join `kept`; None when it can.
    fn refusal(&self, kept: &[&StreamInfo], stream: &StreamInfo) -> Result<Option<String>> {
        let container = self.chosen.container_name();
        let codec = stream.params.get().codec_id;
        if codec == ffi::AVCodecID::AV_CODEC_ID_NONE && stream.kind != StreamKind::Attachment {
            return Ok(Some("its codec is unknown".to_owned()));
        }
        // SAFETY: the container is static.
        let holds = unsafe { ffi::avformat_query_codec(self.chosen.container, codec, ffi::FF_COMPLIANCE_EXPERIMENTAL) };
        // Attachments are files of any type, which no list of codecs covers.
        if stream.kind == StreamKind::Attachment {
            if container != "matroska" {
                return Ok(Some(format!("{container} holds no attachments")));
            }
        } else if holds == 0 || !maps(&container, codec, &self.info.container) {
            return Ok(Some(format!("{container} cannot hold {}", stream.codec)));
        }
        if holds_one_stream(self.chosen.container) {
            return Ok(Some(format!("{container} holds the one video stream only")));
        }
        // Containers without a file of their own connect or create files in their header: no trial there.
        if self.chosen.container.flags & ffi::AVFMT_NOFILE != 0 {
            return Ok((container == "null").then(|| format!("{container} holds pictures only")));
        }
        let mut trial: Vec<&StreamInfo> = kept.to_vec();
        trial.push(stream);
        trial.sort_by_key(|s| s.index);
        let mark = log::Mark::now();
        let (code, _) = self.try_header(&trial)?;
        Ok((code < 0).then(|| {
            let why = mark.lines().unwrap_or_else(|| describe(code));
            format!("{container} does not take it ({why})")
        }))
    }

    /// Writes a header for `streams` into memory. Returns FFmpeg's code and the header's bytes.
    fn try_header(&self, streams: &[&StreamInfo]) -> Result<(i32, i32)> {
        let mut output = Output::new(self.chosen, "")?;
        output.get().strict_std_compliance = ffi::FF_COMPLIANCE_EXPERIMENTAL;
        for stream in streams {
            self.add_stream(&mut output, stream)?;
        }
        let mark = log::Mark::now();
        // SAFETY: a complete context writing into memory, which is freed here; the muxer cleans up in Output's drop.
        unsafe {
            let context = output.get();
            let code = ffi::avio_open_dyn_buf(&mut context.pb);
            if code < 0 {
                return Err(av_failed("cannot set up the output", code, mark));
            }
            let code = ffi::avformat_write_header(output.raw, std::ptr::null_mut());
            let mut buffer = std::ptr::null_mut();
            let bytes = ffi::avio_close_dyn_buf((*output.raw).pb, &mut buffer);
            (*output.raw).pb = std::ptr::null_mut();
            ffi::av_free(buffer.cast());
            Ok((code, bytes))
        }
    }

    /// A warning when the video is shown turned and the container cannot say so.
    fn lost_rotation(&self) -> Result<Option<String>> {
        let Some(video) = self.info.video_stream() else { return Ok(None) };
        let container = self.chosen.container_name();
        if self.info.rotation == 0 || is_mov(&container) || container == "null" {
            return Ok(None);
        }
        let file = self.chosen.container.flags & ffi::AVFMT_NOFILE == 0;
        // A header that holds the rotation is longer. (MP4 writes it only at the end.)
        let (with, without) = (self.try_header(&[video])?, Self { turned: false, ..*self }.try_header(&[video])?);
        let kept = file && with.0 >= 0 && with.1 != without.1;
        Ok((!kept).then(|| {
            format!("the rotation by {}° is left out: {container} cannot hold it, so the video is shown as it is coded", self.info.rotation)
        }))
    }

    /// What a time needs added so that it reads back as it was. Matroska's reader takes Opus' delay off every time, but its
    /// writer adds none: the sound would come earlier with each pass.
    fn codec_delay(&self, stream: &StreamInfo, to: Rational) -> i64 {
        let params = stream.params.get();
        let matroska = matches!(self.chosen.container_name().as_str(), "matroska" | "webm");
        if !matroska || params.codec_id != ffi::AVCodecID::AV_CODEC_ID_OPUS || params.sample_rate <= 0 {
            return 0;
        }
        rescale(i64::from(params.initial_padding), Rational { num: 1, den: params.sample_rate }, to)
    }

    fn add_stream(&self, output: &mut Output, stream: &StreamInfo) -> Result<()> {
        let is_video = stream.index == self.info.video;
        // SAFETY: the context is valid and not yet started; the stream that it returns is checked. Parameters, dictionary and
        // side data are copied.
        unsafe {
            let raw = ffi::avformat_new_stream(output.raw, std::ptr::null());
            let Some(out) = raw.as_mut() else { return Err(Error::failed("cannot set up the output", "out of memory")) };
            let code = if is_video {
                ffi::avcodec_parameters_from_context(out.codecpar, self.encoder.raw())
            } else {
                ffi::avcodec_parameters_copy(out.codecpar, stream.params.get())
            };
            if code < 0 {
                return Err(av_failed("cannot set up the output", code, log::Mark::now()));
            }
            if is_video {
                out.time_base = self.encoder.time_base().av();
                out.avg_frame_rate = self.info.average_rate.or(self.info.frame_rate).map_or(stream.average_rate, Rational::av);
                out.r_frame_rate = stream.real_rate;
                out.sample_aspect_ratio = (*self.encoder.raw()).sample_aspect_ratio;
            } else {
                out.time_base = stream.time_base.av();
                out.avg_frame_rate = stream.average_rate;
                out.r_frame_rate = stream.real_rate;
                out.sample_aspect_ratio = stream.sample_aspect;
                (*out.codecpar).codec_tag = self.tag_for(stream);
            }
            out.disposition = stream.disposition;
            let mut metadata = stream.metadata.clone();
            if is_video {
                STALE_VIDEO_TAGS.iter().for_each(|tag| metadata.remove(tag));
            }
            ffi::av_dict_copy(&mut out.metadata, metadata.as_ptr(), 0);
            for (kind, bytes) in stream.side_data.iter().filter(|(kind, _)| !is_video || self.describes_picture(*kind)) {
                let data = ffi::av_stream_new_side_data(raw, *kind, bytes.len());
                if !data.is_null() {
                    std::ptr::copy_nonoverlapping(bytes.as_ptr(), data, bytes.len());
                }
            }
        }
        Ok(())
    }

    /// The input's codec tag where this container knows it, else 0: the muxer chooses.
    fn tag_for(&self, stream: &StreamInfo) -> u32 {
        let params = stream.params.get();
        let tags = self.chosen.container.codec_tag;
        // SAFETY: the container's tag lists are static; `wanted` is a local.
        unsafe {
            let mut wanted = 0;
            let keep = tags.is_null()
                || ffi::av_codec_get_id(tags, params.codec_tag) == params.codec_id
                || ffi::av_codec_get_tag2(tags, params.codec_id, &mut wanted) == 0;
            if keep { params.codec_tag } else { 0 }
        }
    }

    /// Side data that says how the picture is shown, true of the filtered picture too.
    fn describes_picture(&self, kind: ffi::AVPacketSideDataType) -> bool {
        use ffi::AVPacketSideDataType::*;
        match kind {
            AV_PKT_DATA_DISPLAYMATRIX => self.turned,
            AV_PKT_DATA_STEREO3D | AV_PKT_DATA_SPHERICAL | AV_PKT_DATA_ICC_PROFILE => true,
            AV_PKT_DATA_MASTERING_DISPLAY_METADATA | AV_PKT_DATA_CONTENT_LIGHT_LEVEL => true,
            _ => false,
        }
    }

    fn add_metadata(&self, output: &mut Output) -> Result<()> {
        let mut metadata = self.info.metadata.clone();
        STALE_TAGS.iter().for_each(|tag| metadata.remove(tag));
        let context = output.get();
        // SAFETY: the chapter array and its entries come from FFmpeg's allocator, as avformat_free_context expects; every
        // allocation is checked before use.
        unsafe {
            ffi::av_dict_copy(&mut context.metadata, metadata.as_ptr(), 0);
            let chapters = &self.info.chapters;
            if chapters.is_empty() {
                return Ok(());
            }
            let out_of_memory = || Error::failed("cannot set up the output", "out of memory");
            context.chapters = ffi::av_calloc(chapters.len(), size_of::<*mut ffi::AVChapter>()).cast();
            if context.chapters.is_null() {
                return Err(out_of_memory());
            }
            for chapter in chapters {
                let raw = ffi::av_mallocz(size_of::<ffi::AVChapter>()).cast::<ffi::AVChapter>();
                let Some(out) = raw.as_mut() else { return Err(out_of_memory()) };
                out.id = chapter.id as _;
                out.time_base = chapter.time_base;
                (out.start, out.end) = (chapter.start, chapter.end);
                ffi::av_dict_copy(&mut out.metadata, chapter.metadata.as_ptr(), 0);
                *context.chapters.add(context.nb_chapters as usize) = raw;
                context.nb_chapters += 1;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_never_become_protocols() {
        assert_eq!(open_url("a:b.mp4"), "file:a:b.mp4");
        assert_eq!(open_url("-"), "pipe:1");
        assert_eq!(open_url("rtmp://host/key"), "rtmp://host/key");
        assert_eq!(open_url("f_%04d.png"), "f_%04d.png");
    }
}
