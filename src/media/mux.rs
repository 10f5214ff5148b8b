//! The muxer: the encoded stream and everything that is carried over, into one file or stream.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use ffmpeg_next::ffi;

use super::audit;
use super::carry::{Form, Said, Wanted};
use super::container::{Layout, holds, is_mov, set_defaults};
use super::counters::MediaCounters;
use super::encode::{VideoEncoder, writes_stereo};
use super::evenness::{Evenness, counts_pictures};
use super::header::Header;
use super::info::SourceInfo;
use super::io::{Interrupt, open_fifo_for_writing};
use super::output::{Chosen, EncodeSpec, OutputTarget, choose};
use super::owned::Dict;
use super::subtitles::TextConverter;
use super::window::MICROSECONDS;
use super::{Packet, Rational, av_failed, c_string, log, redact, rescale, timestamp};
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::frame_log::FrameLog;
use crate::pipeline::Muxer;

/// How long one write of a cancelled run may wait for a peer that takes nothing.
const CANCEL_GRACE: Duration = Duration::from_secs(5);

/// Streams that begin closer together than this begin together: sound and pictures have different units.
const APART_US: i64 = 50_000;

/// An output context; freed on drop, its file closed.
pub(super) struct Output {
    raw: *mut ffi::AVFormatContext,
    /// Whether `raw.pb` was opened by us.
    owns_io: bool,
}

// SAFETY: used by one thread at a time.
unsafe impl Send for Output {}

impl Output {
    pub(super) fn new(chosen: &Chosen, url: &str) -> Result<Self> {
        let url = c_string(url, "output name")?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: a static container and a terminated string; the result is checked.
        let code = unsafe { ffi::avformat_alloc_output_context2(&mut raw, chosen.container, std::ptr::null(), url.as_ptr()) };
        if code < 0 || raw.is_null() {
            return Err(av_failed("cannot set up the output", code, log::Mark::now()));
        }
        Ok(Self { raw, owns_io: false })
    }

    pub(super) fn get(&mut self) -> &mut ffi::AVFormatContext {
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
struct Route {
    output: i32,
    /// Converts the packets' text first.
    text: Option<Box<TextConverter>>,
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
    /// Input stream of the filtered video.
    video: usize,
    routes: Vec<Option<Route>>,
    /// Whether equal time stamps may follow each other.
    nonstrict: bool,
    untimed: bool,
    container: String,
    /// Duration of the last packet of the first stream, in its output time base.
    last_duration: Option<i64>,
    warnings: Vec<String>,
    notes: Vec<String>,
    log: Option<Arc<FrameLog>>,
    /// For what must be said while packets flow.
    counters: Arc<MediaCounters>,
    /// What the file should hold, and where it is.
    expected: Option<(audit::Wanted, String)>,
    /// In a container without times: how even the pictures are.
    evenness: Option<Evenness>,
    /// First time of each output stream in microseconds, there.
    begins_us: Vec<Option<i64>>,
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
        let mut said = Said::default();
        let wanted = Wanted { chosen: &chosen, info, encoder, turned: true };
        let streams = wanted.streams_that_fit(&mut said)?;
        let Said { mut warnings, notes } = said;
        warnings.extend(wanted.lost_rotation()?);
        warnings.extend(wanted.lost_hdr());
        let container = chosen.container_name();
        let layout = |rewinds| Layout { container: &container, video_base: encoder.time_base(), rewinds, index_last: spec.index_last };
        let mut trial_options = Dict::from_pairs(&spec.mux_options, "muxer option")?;
        set_defaults(&Layout { index_last: true, ..layout(true) }, info, &mut trial_options);
        let mut losses = wanted.lost_tags(&streams, trial_options)?;
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
        wanted.add_metadata(&mut output, &streams)?;
        // SAFETY: a complete context.
        let mut header = unsafe { Header::of(output.raw) };
        let video = streams.iter().position(|s| s.stream.index == info.video).unwrap_or(0);
        if let Some(facts) = header.streams.get_mut(video) {
            // The encoder may know no fields.
            facts.field_order = info.field_order;
        }
        let labels: Vec<String> = streams.iter().map(|s| s.stream.label()).collect();
        if container != "null" {
            losses.extend(audit::foreseen(&header, &container, holds(&container)));
        }
        losses.sort_by_key(|loss| loss.stream);
        warnings.extend(audit::describe(&losses, &labels, &container, &header));
        // What a file holds can be read back.
        let expected = (regular && chosen.container.flags & ffi::AVFMT_NOFILE == 0 && container != "null").then(|| audit::Wanted {
            header,
            labels,
            container: container.clone(),
            video,
            stereo_in_pictures: writes_stereo(encoder.name()),
            named: losses,
        });
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
        warnings.extend(set_defaults(&layout(rewinds), info, &mut options));
        // SAFETY: a complete context.
        let code = unsafe { ffi::avformat_write_header(output.raw, options.as_mut()) };
        if code < 0 {
            return Err(av_failed(tried, code, mark));
        }
        if let Some(unknown) = options.keys().first() {
            return Err(Error::usage(tried, format!("the container {} has no option '{unknown}'", chosen.container_name())));
        }
        let mut routes: Vec<Option<Route>> = info.streams.iter().map(|_| None).collect();
        for (index, carried) in streams.into_iter().enumerate() {
            let stream = carried.stream;
            let text = match carried.form {
                Form::Text(converter) => Some(converter),
                // An attachment is in the header; its packets are not written.
                Form::Attached => continue,
                Form::Encoded | Form::Copied => None,
            };
            // SAFETY: one output stream was added per entry; the muxer may have changed its time base.
            let to = unsafe { (**(*output.raw).streams.add(index)).time_base }.into();
            let from = if stream.index == info.video { encoder.time_base() } else { stream.time_base };
            if let Some(route) = routes.get_mut(stream.index) {
                let delay = wanted.codec_delay(stream, to);
                *route = Some(Route { output: i32::try_from(index).unwrap_or(0), text, from, to, delay, last_dts: None });
            }
        }
        let flags = chosen.container.flags;
        let name_of_container = container.clone();
        let told_rate = info.counted_rate();
        Ok(Self {
            output,
            interrupt,
            fifo,
            name,
            video: info.video,
            routes,
            nonstrict: flags & ffi::AVFMT_TS_NONSTRICT != 0,
            untimed: flags & ffi::AVFMT_NOTIMESTAMPS != 0,
            container,
            last_duration: None,
            warnings,
            notes,
            log: spec.log.clone(),
            counters: encoder.counters(),
            expected: expected.map(|wanted| (wanted, url)),
            evenness: counts_pictures(&name_of_container, flags).then(|| Evenness::new(told_rate, encoder.time_base())),
            begins_us: Vec::new(),
            lost: false,
            finished: false,
        })
    }

    /// What could not be carried over, and why.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// What was converted without loss, for `-v`.
    pub fn notes(&self) -> &[String] {
        &self.notes
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

    /// Where the container holds no times: notes what is lost with them.
    fn note_time(&mut self, packet: &Packet, stream: usize) {
        let (Some(even), Some(Some(route))) = (&mut self.evenness, self.routes.get(stream)) else { return };
        let output = usize::try_from(route.output).unwrap_or(0);
        if stream == self.video {
            even.note(packet);
        }
        if output >= self.begins_us.len() {
            self.begins_us.resize(output + 1, None);
        }
        let time = packet.pts().map(|pts| rescale(pts, route.from, MICROSECONDS));
        if let Some(begin) = self.begins_us.get_mut(output) {
            // Reordered pictures: the first packet is the first picture, except where open groups begin.
            *begin = begin.or(time);
        }
    }

    /// Says what a container without times has lost.
    fn tell_lost_times(&mut self) {
        let Some(even) = &mut self.evenness else { return };
        if let Some(text) = even.verdict(&self.container) {
            self.counters.warn(text);
        }
        let begins = || self.begins_us.iter().flatten().copied();
        if let (Some(first), Some(last)) = (begins().min(), begins().max())
            && last - first > APART_US
        {
            let apart = (last - first) as f64 * 1e-6;
            self.counters.warn(format!("the streams begin up to {apart:.3} s apart: {} starts them together", self.container));
        }
    }

    /// Names what the finished file lacks. A file that cannot be read back in this way (a lone elementary stream of few pictures)
    /// tells nothing.
    fn read_back(&mut self) {
        let Some((wanted, url)) = self.expected.take().filter(|_| !self.interrupt.cancelled()) else { return };
        if let Ok(got) = Header::read_back(&url, &self.container) {
            wanted.missing_from(&got).into_iter().for_each(|text| self.counters.warn(text));
        }
    }

    /// GIF and APNG time a picture by the next one: the last one's duration is told by hand.
    fn set_final_delay(&mut self) {
        let (Some(duration), true) = (self.last_duration.filter(|&d| d > 0), matches!(self.container.as_str(), "gif" | "apng")) else {
            return;
        };
        // SAFETY: the muxer's private options are live until the output is dropped.
        unsafe {
            let Some(stream) = (*(*self.output.raw).streams).as_ref() else { return };
            let base = stream.time_base;
            let options = (*self.output.raw).priv_data;
            let seconds = ffi::AVRational { num: i32::try_from(duration).unwrap_or(0).saturating_mul(base.num), den: base.den };
            if self.container == "gif" {
                let centiseconds = ffi::av_rescale_q(duration, base, ffi::AVRational { num: 1, den: 100 });
                ffi::av_opt_set_int(options, c"final_delay".as_ptr(), centiseconds.clamp(0, 65_535), 0);
            } else {
                ffi::av_opt_set_q(options, c"final_delay".as_ptr(), seconds, 0);
            }
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
        self.note_time(&packet, stream);
        let Some(route) = self.routes.get_mut(stream) else {
            if !std::mem::replace(&mut self.lost, true) {
                self.counters.warn(format!("stream #{stream} appeared in mid-file and is left out"));
            }
            return Ok(());
        };
        let Some(route) = route else { return Ok(()) };
        if !is_mov(&self.container) && stream != self.video && is_long_gone(&packet) {
            return Ok(());
        }
        let packet = match &mut route.text {
            None => packet,
            Some(converter) => match converter.convert(&packet)? {
                Some(converted) => converted,
                None => return Ok(()),
            },
        };
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
        if route.output == 0 {
            self.last_duration = Some(raw.duration);
        }
        self.order(raw, stream);
        if let (Some(log), Some(Some(route))) = (&self.log, self.routes.get(stream)) {
            log.write(&packet.entry("mux", route.to));
        }
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
        self.set_final_delay();
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
            None => {
                self.tell_lost_times();
                self.read_back();
                Ok(())
            }
        }
    }
}

/// Whether a packet lies before an edit list's beginning and does not even prepare what is heard there. Only MP4 and its
/// relatives can say so; elsewhere it would be heard, and push everything else back.
fn is_long_gone(packet: &Packet) -> bool {
    // SAFETY: the packet is owned.
    let discard = unsafe { (*packet.raw).flags } & ffi::AV_PKT_FLAG_DISCARD != 0;
    discard && packet.duration() > 0 && packet.pts().is_some_and(|pts| pts.saturating_add(2 * packet.duration()) <= 0)
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
