//! Opening an input: files, pipes, FIFOs, cameras, URLs, image sequences, lavfi graphs; and saying why one cannot be.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

use ffmpeg_next::ffi;

use super::decode::{DecodeSource, Start};
use super::decoder::SourceOptions;
use super::info::SourceInfo;
use super::io::{FdInput, Interrupt};
use super::owned::{self, Dict};
use super::select::{Select, select};
use super::sequence::{Gaps, Images, Sequence};
use super::window::{MICROSECONDS, Window};
use super::{av_failed, c_string, describe, log, prepare, redact, rescale, timestamp};
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::frame_log::FrameLog;

/// Starts up to here are kept as they are.
const NEAR_ZERO_US: i64 = 1_000_000;

/// Which input, and how.
#[derive(Clone, Debug, Default)]
pub struct InputSpec {
    /// A file, `-`, a URL, a device, an image sequence, `lavfi:GRAPH`.
    pub url: String,
    /// Demuxer to force.
    pub format: Option<String>,
    /// Options for the demuxer and its protocol.
    pub options: Vec<(String, String)>,
    /// Decoder threads; None lets FFmpeg choose.
    pub threads: Option<usize>,
    /// Stop after this many frames.
    pub frames: Option<u64>,
    /// Begin this many microseconds after the input's start.
    pub from_us: Option<i64>,
    /// End this many microseconds after the input's start.
    pub to_us: Option<i64>,
    /// Which streams.
    pub select: Select,
    /// What a missing number of an image sequence means.
    pub gaps: Gaps,
    /// What a change of the picture in mid-stream means.
    pub on_change: OnChange,
    /// Where every packet and frame is noted.
    pub log: Option<Arc<FrameLog>>,
}

/// What a change of size, aspect or pixel format in mid-stream means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnChange {
    /// Later pictures are scaled to the first one's size, with a warning.
    #[default]
    Scale,
    /// The run fails.
    Error,
}

/// The demuxer's context and what it needs to live; fields drop in the right order.
pub(super) struct Demuxer {
    context: *mut ffi::AVFormatContext,
    _io: Option<FdInput>,
    _interrupt: Box<Interrupt>,
}

// SAFETY: a demuxer context is used by one thread at a time; its callbacks' objects move with it.
unsafe impl Send for Demuxer {}

impl Demuxer {
    pub(super) fn as_ptr(&self) -> *mut ffi::AVFormatContext {
        self.context
    }
}

impl Drop for Demuxer {
    fn drop(&mut self) {
        // SAFETY: owned; accepts null (a failed open frees the context itself). Custom IO is dropped after it.
        unsafe { ffi::avformat_close_input(&mut self.context) }
    }
}

/// An opened and probed input; nothing is decoded yet.
pub struct Input {
    demuxer: Demuxer,
    info: SourceInfo,
    spec: InputSpec,
    cancel: Cancel,
    images: Option<Images>,
}

/// What kind of place the input's name is.
enum Place {
    Stdin,
    Lavfi,
    Camera,
    /// A FIFO or another descriptor that can block.
    Pipe,
    File,
    Sequence(Sequence),
    Url,
}

impl Input {
    /// Opens and probes.
    ///
    /// # Errors
    /// The input is missing, a directory, not a media file, cut in its header, has no video stream, or the run was cancelled.
    pub fn open(spec: &InputSpec, cancel: &Cancel) -> Result<Self> {
        prepare();
        let name = redact(&spec.url);
        let tried = format!("cannot open input '{name}'");
        let place = place(&spec.url, &tried, spec.format.is_some())?;
        let mut options = Dict::from_pairs(&spec.options, "input option")?;
        let mut io = None;
        let mut images = None;
        let mut format_name = spec.format.clone();
        let mut url = spec.url.clone();
        let live = matches!(place, Place::Camera) || is_live_url(&spec.url);
        match &place {
            Place::Stdin => io = Some(FdInput::stdin(cancel)?),
            Place::Pipe => io = Some(FdInput::open(Path::new(&spec.url), cancel).map_err(|e| Error::failed(&tried, e))??),
            Place::Lavfi => {
                format_name = Some("lavfi".to_owned());
                url = spec.url.trim_start_matches("lavfi:").to_owned();
            }
            Place::Camera => format_name = format_name.or(Some("video4linux2".to_owned())),
            // The prefix keeps FFmpeg from reading "a:b.mp4" as a protocol.
            Place::File => url = format!("file:{}", spec.url),
            Place::Sequence(sequence) => {
                let start = options.get(c"start_number").and_then(|n| n.parse().ok()).unwrap_or(0);
                let found = sequence.images(start, spec.gaps).map_err(|e| e.context(&tried))?;
                format_name = format_name.or(Some("image2".to_owned()));
                options.set(c"start_number", &c_string(&found.first().to_string(), "start number")?);
                url = found.pattern().unwrap_or(url);
                images = Some(found);
            }
            Place::Url => {}
        }
        let interrupt = Interrupt::at_once(cancel);
        let demuxer = open_context(
            &OpenRequest { spec, tried: &tried, url: &url, format: format_name.as_deref(), cancel },
            options,
            io,
            interrupt,
            matches!(place, Place::Camera),
        )?;
        let context = demuxer.as_ptr();
        let mark = log::Mark::now();
        // SAFETY: the context was opened; no per-stream options are passed.
        let code = unsafe { ffi::avformat_find_stream_info(context, std::ptr::null_mut()) };
        if cancel.requested() {
            return Err(Error::failed(tried, "interrupted"));
        }
        if code < 0 {
            return Err(av_failed(tried, code, mark));
        }
        // SAFETY: the context is open and probed, and what was selected are its streams.
        let mut info = unsafe {
            let selected = select(context, &spec.select, &tried, mark)?;
            for (index, _) in selected.kept.iter().enumerate().filter(|(_, kept)| !**kept) {
                (**(*context).streams.add(index)).discard = ffi::AVDiscard::AVDISCARD_ALL;
            }
            SourceInfo::read(context, &selected, &spec.url, live)
        }?;
        info.plays = matches!(place, Place::File).then(|| super::repeats::of_file(&info.container, &spec.url)).flatten();
        start_at_zero(&demuxer, &mut info);
        cut(&demuxer, &mut info, spec).map_err(|e| e.context(&tried))?;
        if let Some(limit) = spec.frames.into_iter().chain(images.as_ref().map(Images::count)).min() {
            info.frames = Some(info.frames.map_or(limit, |n| n.min(limit)));
        }
        if (info.width == 0 || info.height == 0) && info.shape.is_none() && matches!(place, Place::File) {
            let lines = mark.lines().map_or(String::new(), |l| format!(" ({l})"));
            return Err(Error::failed(tried, format!("its video stream has no picture size: the header is damaged or cut off{lines}")));
        }
        Ok(Self { demuxer, info, spec: spec.clone(), cancel: cancel.clone(), images })
    }

    /// What the headers say.
    pub fn info(&self) -> &SourceInfo {
        &self.info
    }

    /// Opens the decoder on `options.mem` and decodes the first frame.
    ///
    /// # Errors
    /// No decoder for the codec, no frame that can be decoded, no memory, or cancelled.
    pub fn into_source(self, options: SourceOptions) -> Result<DecodeSource> {
        let Self { demuxer, info, spec, cancel, images } = self;
        let length_us = spec.to_us.map(|to| to - spec.from_us.unwrap_or(0));
        let window = Window { starts: spec.from_us.is_some(), length_us, frames: spec.frames };
        DecodeSource::new(Start { demuxer, info, cancel, images, window, spec }, options)
    }
}

/// Has times counted from `--ss`, and cuts chapters and time code to the part that is wanted.
fn cut(demuxer: &Demuxer, info: &mut SourceInfo, spec: &InputSpec) -> Result<()> {
    let from = spec.from_us.unwrap_or(0);
    if spec.to_us.is_some_and(|to| to <= from) {
        return Err(Error::usage("nothing is left", "--to is not after --ss").hint("both count from the input's start"));
    }
    if let Some(duration) = info.duration.and_then(|d| i64::try_from(d.as_micros()).ok()).filter(|&d| from >= d && d > 0) {
        let seconds = |us: i64| us as f64 / f64::from(ffi::AV_TIME_BASE);
        return Err(Error::failed(
            "nothing is left",
            format!("--ss {:.3} is not before its end at {:.3} s", seconds(from), seconds(duration)),
        ));
    }
    let end = spec.to_us.map(|to| to - from);
    if spec.from_us.is_some() {
        // SAFETY: the context is open and probed.
        let start = timestamp(unsafe { (*demuxer.as_ptr()).start_time }).unwrap_or(0);
        // Chapters were moved by what was subtracted so far.
        let moved = start + from - info.start_us;
        info.start_us = start + from;
        for chapter in &mut info.chapters {
            let shift = rescale(moved, MICROSECONDS, chapter.time_base.into());
            (chapter.start, chapter.end) = (chapter.start.saturating_sub(shift), chapter.end.saturating_sub(shift));
        }
        info.chapters.retain(|c| c.end > 0);
        info.chapters.iter_mut().for_each(|c| c.start = c.start.max(0));
        info.advance_time_code(from);
    }
    if let Some(end) = end {
        let limit = |c: &super::info::Chapter| rescale(end, MICROSECONDS, c.time_base.into());
        info.chapters.retain(|c| c.start < limit(c));
        for chapter in &mut info.chapters {
            chapter.end = chapter.end.min(limit(chapter));
        }
    }
    if let (Some(duration), Some(frames)) = (info.duration, info.frames)
        && (from > 0 || end.is_some())
    {
        let whole = duration.as_micros() as f64;
        let part = end.map_or(whole - from as f64, |end| (end as f64).min(whole - from as f64));
        info.frames = (whole > 0.0).then(|| (frames as f64 * part / whole).round().max(1.0) as u64);
    }
    Ok(())
}

/// Has every time counted from the input's start when that is far from zero (broadcasts, cameras), as ffmpeg does; a start
/// near zero (priming, reordered pictures, a late stream) is kept.
fn start_at_zero(demuxer: &Demuxer, info: &mut SourceInfo) {
    // SAFETY: the context is open and probed, and the filtered video one of its streams.
    let (start, shown) = unsafe {
        let context = &*demuxer.as_ptr();
        let stream = &**context.streams.add(info.video);
        (timestamp(context.start_time), timestamp(stream.start_time))
    };
    // Pictures before zero (a transport stream whose clock runs over) would lie before the beginning of an MP4, and not be shown.
    let before_zero = shown.is_some_and(|time| time < 0);
    let Some(start) = start.filter(|start| start.abs() > NEAR_ZERO_US || before_zero) else { return };
    (info.start_us, info.far_start_us) = (start, start);
    for chapter in &mut info.chapters {
        let shift = rescale(start, MICROSECONDS, chapter.time_base.into());
        chapter.start = chapter.start.saturating_sub(shift).max(0);
        chapter.end = chapter.end.saturating_sub(shift).max(0);
    }
}

struct OpenRequest<'a> {
    spec: &'a InputSpec,
    tried: &'a str,
    url: &'a str,
    format: Option<&'a str>,
    cancel: &'a Cancel,
}

fn open_context(
    request: &OpenRequest<'_>,
    mut options: Dict,
    io: Option<FdInput>,
    interrupt: Box<Interrupt>,
    camera: bool,
) -> Result<Demuxer> {
    let tried = request.tried;
    let format = match request.format {
        None => std::ptr::null(),
        Some(name) => {
            let c_name = c_string(name, "input format")?;
            // SAFETY: a terminated string; the result is null or static.
            let format = unsafe { ffi::av_find_input_format(c_name.as_ptr()) };
            if format.is_null() {
                return Err(Error::usage(tried, format!("FFmpeg has no input format '{name}'")).hint("ffmpeg -demuxers lists them"));
            }
            format
        }
    };
    let url = c_string(request.url, "input")?;
    let mark = log::Mark::now();
    // SAFETY: a fresh context; `interrupt` and `io` are kept beside it and dropped after it. On failure FFmpeg frees the
    // context and nulls the pointer.
    let (demuxer, code) = unsafe {
        let context = ffi::avformat_alloc_context();
        let Some(c) = context.as_mut() else { return Err(Error::failed(tried, "out of memory")) };
        c.interrupt_callback = interrupt.callback();
        if let Some(io) = &io {
            c.pb = io.as_ptr();
            c.flags |= ffi::AVFMT_FLAG_CUSTOM_IO;
        }
        if camera {
            // Reads return at once, so that a silent camera can be cancelled.
            c.flags |= ffi::AVFMT_FLAG_NONBLOCK;
        }
        let mut demuxer = Demuxer { context, _io: io, _interrupt: interrupt };
        let code = ffi::avformat_open_input(&mut demuxer.context, url.as_ptr(), format, options.as_mut());
        (demuxer, code)
    };
    if code < 0 {
        if request.cancel.requested() {
            return Err(Error::failed(tried, "interrupted"));
        }
        return Err(open_error(request, code, mark));
    }
    if let Some(unknown) = options.keys().first() {
        return Err(Error::usage(tried, format!("no demuxer or protocol here knows the input option '{unknown}'")));
    }
    // SAFETY: the context is open.
    let container = unsafe { owned::text((*(*demuxer.context).iformat).name) }.unwrap_or_default();
    // FFmpeg shows any .txt file as a terminal's screen; nobody filters that by accident.
    if container == "tty" && request.format.is_none() {
        return Err(not_media(tried));
    }
    Ok(demuxer)
}

fn not_media(tried: &str) -> Error {
    Error::failed(tried, "it is not a media file that FFmpeg recognises").hint("if it is raw data, name its format with --input-format")
}

fn open_error(request: &OpenRequest<'_>, code: i32, mark: log::Mark) -> Error {
    let tried = request.tried;
    match code {
        ffi::AVERROR_INVALIDDATA | ffi::AVERROR_EOF if request.format.is_none() => {
            // Only a file can be looked at twice.
            let container = if request.url.starts_with("file:") { probe(request.url) } else { None };
            let Some(container) = container else { return not_media(tried) };
            let lines = mark.lines().map_or(String::new(), |l| format!(" ({l})"));
            Error::failed(tried, format!("it looks like {container}, but its header is damaged or cut off{lines}"))
        }
        ffi::AVERROR_PROTOCOL_NOT_FOUND => {
            let scheme = request.spec.url.split(':').next().unwrap_or_default().to_owned();
            Error::failed(tried, format!("this FFmpeg has no protocol '{scheme}'")).hint("convoy doctor lists the protocols found")
        }
        ffi::AVERROR_HTTP_UNAUTHORIZED => Error::failed(tried, "the server asks for a user name and password (401)"),
        _ => av_failed(tried, code, mark),
    }
}

/// Which container the start of a file looks like, if FFmpeg is reasonably sure.
fn probe(url: &str) -> Option<String> {
    let url = c_string(url, "input").ok()?;
    let mut io = std::ptr::null_mut();
    let mut format = std::ptr::null();
    // SAFETY: the context is opened, probed and closed here; the format found is static.
    unsafe {
        if ffi::avio_open(&mut io, url.as_ptr(), ffi::AVIO_FLAG_READ) < 0 {
            return None;
        }
        let score = ffi::av_probe_input_buffer2(io, &mut format, url.as_ptr(), std::ptr::null_mut(), 0, 0);
        ffi::avio_closep(&mut io);
        if score <= ffi::AVPROBE_SCORE_MAX / 4 || format.is_null() { None } else { owned::text((*format).long_name) }
    }
}

/// Whether an input cannot be read twice: a camera, a pipe, a live stream.
pub fn is_live(url: &str) -> bool {
    let special = std::fs::metadata(url).is_ok_and(|m| m.file_type().is_fifo() || m.file_type().is_char_device());
    url == "-" || special || is_live_url(url)
}

fn is_live_url(url: &str) -> bool {
    ["rtsp://", "rtsps://", "rtmp://", "rtmps://", "udp://", "rtp://", "srt://", "mms://"].into_iter().any(|p| url.starts_with(p))
}

fn place(url: &str, tried: &str, format_given: bool) -> Result<Place> {
    if url == "-" {
        return Ok(Place::Stdin);
    }
    if url.starts_with("lavfi:") {
        return Ok(Place::Lavfi);
    }
    if url.is_empty() {
        return Err(Error::usage("cannot open the input", "its name is empty"));
    }
    match std::fs::metadata(url) {
        Ok(meta) if meta.is_dir() => {
            Err(Error::failed(tried, "it is a directory").hint("name a file, or an image sequence such as dir/f_%04d.png"))
        }
        Ok(meta) if meta.file_type().is_char_device() && url.starts_with("/dev/video") => Ok(Place::Camera),
        Ok(meta) if meta.file_type().is_fifo() || meta.file_type().is_char_device() => Ok(Place::Pipe),
        Ok(meta) if meta.is_file() && meta.len() == 0 => Err(Error::failed(tried, "the file is empty")),
        Ok(_) => match std::fs::File::open(url) {
            Ok(_) => Ok(Place::File),
            Err(e) => Err(Error::failed(tried, e)),
        },
        Err(_) if is_url(url) || format_given => Ok(Sequence::parse(url).map_or(Place::Url, Place::Sequence)),
        Err(e) => match Sequence::parse(url) {
            Some(sequence) => Ok(Place::Sequence(sequence)),
            None if e.kind() == std::io::ErrorKind::NotFound && url.starts_with("/dev/video") => {
                Err(Error::failed(tried, "there is no such camera").hint("convoy doctor lists the cameras found"))
            }
            None if e.kind() == std::io::ErrorKind::NotFound => Err(Error::failed(tried, "no such file")),
            None => Err(Error::failed(tried, e)),
        },
    }
}

/// Whether the name starts with a protocol ("rtsp:", "concat:").
fn is_url(url: &str) -> bool {
    let scheme = url.split(':').next().unwrap_or_default();
    url.len() > scheme.len()
        && scheme.len() > 1
        && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.' | b','))
}

/// Whether a read error means that the run was cancelled.
pub(super) fn is_interrupt(code: i32) -> bool {
    code == ffi::AVERROR_EXIT
}

/// Text of a read error.
pub(super) fn read_error(name: &str, code: i32, mark: log::Mark) -> Error {
    let cause = mark.lines().map_or_else(|| describe(code), |l| format!("{} ({l})", describe(code)));
    Error::failed(format!("cannot read from input '{name}'"), cause)
}
