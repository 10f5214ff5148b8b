//! What the input says about itself, copied out of the demuxer so that the output can be built on another thread.

use std::sync::Arc;
use std::time::Duration;

use ffmpeg_next::ffi;

use super::hdr::Hdr;
use super::owned::{self, AvFrame, Dict, Params};
use super::riders::{Rider, Riders};
use super::select::Selected;
use super::{Rational, c_string, format, redact, timestamp};
use crate::error::Result;
use crate::frame::Shape;

/// What a stream carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamKind {
    /// Pictures (the filtered stream, further video, cover art).
    Video,
    /// Sound.
    Audio,
    /// Text or bitmap subtitles.
    Subtitle,
    /// A file inside the container (fonts).
    Attachment,
    /// Anything else (timecode, telemetry).
    Data,
}

impl StreamKind {
    pub(super) fn of(kind: ffi::AVMediaType) -> Self {
        match kind {
            ffi::AVMediaType::AVMEDIA_TYPE_VIDEO => Self::Video,
            ffi::AVMediaType::AVMEDIA_TYPE_AUDIO => Self::Audio,
            ffi::AVMediaType::AVMEDIA_TYPE_SUBTITLE => Self::Subtitle,
            ffi::AVMediaType::AVMEDIA_TYPE_ATTACHMENT => Self::Attachment,
            _ => Self::Data,
        }
    }

    /// The word for messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Video => "video",
            Self::Audio => "audio",
            Self::Subtitle => "subtitle",
            Self::Attachment => "attachment",
            Self::Data => "data",
        }
    }
}

/// One stream of the input.
pub struct StreamInfo {
    /// Its index in the input.
    pub index: usize,
    /// What it carries.
    pub kind: StreamKind,
    /// FFmpeg's codec name.
    pub codec: String,
    /// Unit of its time stamps, in seconds.
    pub time_base: Rational,
    /// Whether it is to be carried over.
    pub(super) selected: bool,
    /// The container's number of the stream (MPEG-TS: PID).
    pub(super) id: i32,
    pub(super) params: Params,
    /// The picture, of cover art.
    pub(super) attached: Option<Vec<u8>>,
    pub(super) metadata: Dict,
    pub(super) disposition: i32,
    pub(super) sample_aspect: ffi::AVRational,
    pub(super) average_rate: ffi::AVRational,
    pub(super) real_rate: ffi::AVRational,
    pub(super) side_data: Vec<(ffi::AVPacketSideDataType, Vec<u8>)>,
}

impl StreamInfo {
    /// How two views are arranged in a picture, if the container says so (AVStereo3D, byte for byte).
    pub(super) fn stereo(&self) -> Option<Vec<u8>> {
        let of = |(kind, _): &&(ffi::AVPacketSideDataType, Vec<u8>)| *kind == ffi::AVPacketSideDataType::AV_PKT_DATA_STEREO3D;
        self.side_data.iter().find(of).map(|(_, bytes)| bytes.clone())
    }

    /// Whether alpha comes beside the pictures, as in WebM.
    pub(super) fn has_hidden_alpha(&self) -> bool {
        self.metadata.get(c"alpha_mode").is_some_and(|mode| mode.trim() == "1")
    }

    /// "audio stream #1 (aac)", for messages.
    pub fn label(&self) -> String {
        format!("{} stream #{} ({})", self.kind.name(), self.index, self.codec)
    }
}

/// Colour tags as the stream carries them (FFmpeg's code points); kept, never interpreted, except the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Colour {
    pub(super) range: ffi::AVColorRange,
    pub(super) primaries: ffi::AVColorPrimaries,
    pub(super) transfer: ffi::AVColorTransferCharacteristic,
    pub(super) matrix: ffi::AVColorSpace,
    pub(super) chroma_location: ffi::AVChromaLocation,
}

impl Colour {
    /// What codec parameters say.
    pub(super) fn of(params: &ffi::AVCodecParameters) -> Self {
        Self {
            range: params.color_range,
            primaries: params.color_primaries,
            transfer: params.color_trc,
            matrix: params.color_space,
            chroma_location: params.chroma_location,
        }
    }

    /// Names of what is told here and not in `got`. What goes without saying is not missed: the video range, the matrix of RGB,
    /// chroma on the left.
    pub(super) fn missing_from(&self, got: &Self) -> Vec<&'static str> {
        use ffi::{
            AVChromaLocation as Place, AVColorPrimaries as P, AVColorRange as R, AVColorSpace as M, AVColorTransferCharacteristic as T,
        };
        let range = self.range == R::AVCOL_RANGE_JPEG && got.range != self.range;
        let primaries = self.primaries != P::AVCOL_PRI_UNSPECIFIED && got.primaries != self.primaries;
        let transfer = self.transfer != T::AVCOL_TRC_UNSPECIFIED && got.transfer != self.transfer;
        let matrix = !matches!(self.matrix, M::AVCOL_SPC_UNSPECIFIED | M::AVCOL_SPC_RGB) && got.matrix != self.matrix;
        let silent = matches!(self.chroma_location, Place::AVCHROMA_LOC_UNSPECIFIED | Place::AVCHROMA_LOC_LEFT);
        let place = !silent && got.chroma_location != self.chroma_location;
        let all = [(range, "range"), (primaries, "primaries"), (transfer, "transfer"), (matrix, "matrix"), (place, "chroma location")];
        all.into_iter().filter(|(lost, _)| *lost).map(|(_, name)| name).collect()
    }

    /// Whether samples use their full range (0…255) rather than the video range (16…235).
    pub fn full_range(&self) -> bool {
        self.range == ffi::AVColorRange::AVCOL_RANGE_JPEG
    }
}

/// One service of a transport stream.
pub(super) struct Program {
    pub id: i32,
    /// Indices of its streams.
    pub streams: Vec<usize>,
    pub metadata: Dict,
}

pub(super) struct Chapter {
    pub id: i64,
    pub time_base: ffi::AVRational,
    pub start: i64,
    pub end: i64,
    pub metadata: Dict,
}

/// What is known about the input after probing; refined by the first decoded frame.
pub struct SourceInfo {
    /// The input's name without credentials.
    pub name: String,
    /// Demuxer name ("mov,mp4,m4a,3gp,3g2,mj2").
    pub container: String,
    /// Codec of the filtered stream.
    pub codec: String,
    /// Name of the coded pixel format.
    pub pixel_format: String,
    /// Visible width in samples.
    pub width: usize,
    /// Visible height in samples.
    pub height: usize,
    /// Format and size of the frames, as far as the headers tell; the first frame decides.
    pub shape: Option<Shape>,
    /// Unit of the frames' time stamps, in seconds.
    pub time_base: Rational,
    /// Frames per second: FFmpeg's best guess for this stream.
    pub frame_rate: Option<Rational>,
    /// Average frames per second over the stream.
    pub average_rate: Option<Rational>,
    /// Duration, if the container tells.
    pub duration: Option<Duration>,
    /// Number of frames: counted by the container, else estimated from duration and rate.
    pub frames: Option<u64>,
    /// Sample aspect ratio; 0/1 if unknown.
    pub sample_aspect: Rational,
    /// Colour tags.
    pub colour: Colour,
    /// Clockwise rotation for display, in degrees.
    pub rotation: i32,
    /// Whether pictures are interlaced, as tagged.
    pub interlaced: bool,
    /// How often an animation is shown (0: for ever), if the input is a file of one.
    pub(super) plays: Option<u32>,
    /// Whether this is a live source (camera, network stream): no known end.
    pub live: bool,
    /// Index of the filtered stream in `streams`.
    pub video: usize,
    /// Every stream.
    pub streams: Vec<StreamInfo>,
    /// What is subtracted from every time of the input, in microseconds: its start, where that is far from zero, and what
    /// `--ss` skips.
    pub(super) start_us: i64,
    /// The input's start where it is far from zero, in microseconds.
    pub(super) far_start_us: i64,
    pub(super) field_order: ffi::AVFieldOrder,
    /// The coded pixel format; None when it is unknown or there is no decoder.
    pub(super) coded_format: Option<ffi::AVPixelFormat>,
    pub(super) bits_per_raw_sample: i32,
    pub(super) hdr: Hdr,
    /// What pictures between source and encoder bring beside their samples.
    pub(super) riders: Arc<Riders>,
    /// The first picture's time code, where pictures have them.
    pub(super) picture_time_code: Option<String>,
    pub(super) programs: Vec<Program>,
    pub(super) metadata: Dict,
    pub(super) chapters: Vec<Chapter>,
}

impl SourceInfo {
    /// The filtered stream.
    pub fn video_stream(&self) -> Option<&StreamInfo> {
        self.streams.get(self.video)
    }

    /// A source without a demuxer: one video stream of `shape` at `rate`, no tags, no end known.
    ///
    /// # Errors
    /// Out of memory.
    pub fn generated(name: &str, shape: Shape, rate: Rational) -> Result<Self> {
        let time_base = rate.inverse();
        let unknown = ffi::AVRational { num: 0, den: 1 };
        let stream = StreamInfo {
            index: 0,
            kind: StreamKind::Video,
            codec: "none".to_owned(),
            time_base,
            selected: true,
            id: 0,
            params: Params::empty_video()?,
            attached: None,
            metadata: Dict::new(),
            disposition: ffi::AV_DISPOSITION_DEFAULT,
            sample_aspect: unknown,
            average_rate: rate.av(),
            real_rate: rate.av(),
            side_data: Vec::new(),
        };
        Ok(Self {
            name: name.to_owned(),
            container: "none".to_owned(),
            codec: "none".to_owned(),
            pixel_format: shape.format.to_string(),
            coded_format: None,
            width: shape.width,
            height: shape.height,
            shape: Some(shape),
            time_base,
            frame_rate: Some(rate),
            average_rate: Some(rate),
            duration: None,
            frames: None,
            sample_aspect: unknown.into(),
            colour: Colour {
                range: ffi::AVColorRange::AVCOL_RANGE_UNSPECIFIED,
                primaries: ffi::AVColorPrimaries::AVCOL_PRI_UNSPECIFIED,
                transfer: ffi::AVColorTransferCharacteristic::AVCOL_TRC_UNSPECIFIED,
                matrix: ffi::AVColorSpace::AVCOL_SPC_UNSPECIFIED,
                chroma_location: ffi::AVChromaLocation::AVCHROMA_LOC_UNSPECIFIED,
            },
            rotation: 0,
            interlaced: false,
            plays: None,
            live: false,
            video: 0,
            streams: vec![stream],
            start_us: 0,
            far_start_us: 0,
            field_order: ffi::AVFieldOrder::AV_FIELD_UNKNOWN,
            bits_per_raw_sample: 0,
            hdr: Hdr::default(),
            riders: Arc::default(),
            picture_time_code: None,
            programs: Vec::new(),
            metadata: Dict::new(),
            chapters: Vec::new(),
        })
    }

    /// The rate for a container that counts pictures: the one at which they follow each other, unless that is only the clock's
    /// own rate, far above how often they come.
    pub(super) fn counted_rate(&self) -> Rational {
        let value = |rate: Option<Rational>| rate.and_then(Rational::value).unwrap_or(0.0);
        let steady = self.frame_rate.filter(|_| self.average_rate.is_none() || value(self.frame_rate) <= 2.0 * value(self.average_rate));
        steady.or(self.average_rate).unwrap_or(Rational { num: 25, den: 1 })
    }

    /// Takes over what the first picture says of the whole stream, where the container does not.
    pub(super) fn adopt_side_data(&mut self, first: &AvFrame) {
        use ffi::AVFrameSideDataType as Of;
        use ffi::AVPacketSideDataType::*;
        for (kind, bytes) in first.all_side_data() {
            if let Some(code) = (Rider { kind, bytes: bytes.to_vec() }).time_code() {
                self.picture_time_code.get_or_insert(code);
            }
            let kind = match kind {
                Of::AV_FRAME_DATA_DISPLAYMATRIX => AV_PKT_DATA_DISPLAYMATRIX,
                Of::AV_FRAME_DATA_STEREO3D => AV_PKT_DATA_STEREO3D,
                Of::AV_FRAME_DATA_SPHERICAL => AV_PKT_DATA_SPHERICAL,
                Of::AV_FRAME_DATA_ICC_PROFILE => AV_PKT_DATA_ICC_PROFILE,
                _ => continue,
            };
            if let Some(stream) = self.streams.get_mut(self.video).filter(|s| s.side_data.iter().all(|(k, _)| *k != kind)) {
                stream.side_data.push((kind, bytes.to_vec()));
            }
        }
        self.rotation = rotation(self.streams.get(self.video));
    }

    /// The time code of the file or its streams, if a tag has one.
    pub(super) fn tagged_time_code(&self) -> Option<String> {
        std::iter::once(&self.metadata).chain(self.streams.iter().map(|s| &s.metadata)).find_map(|tags| tags.get(c"timecode"))
    }

    /// Moves the time code, which names the first frame, by `us` microseconds.
    pub(super) fn advance_time_code(&mut self, us: i64) {
        let Some(rate) = self.frame_rate else { return };
        let dicts = self.streams.iter_mut().map(|s| &mut s.metadata).chain(std::iter::once(&mut self.metadata));
        for metadata in dicts {
            let Some(text) = metadata.get(c"timecode") else { continue };
            let moved = c_string(&text, "time code").ok().and_then(|text| {
                // SAFETY: plain data; a terminated string; the buffer is as large as FFmpeg asks.
                unsafe {
                    let mut code: ffi::AVTimecode = std::mem::zeroed();
                    if ffi::av_timecode_init_from_string(&mut code, rate.av(), text.as_ptr(), std::ptr::null_mut()) < 0 {
                        return None;
                    }
                    // Whole frames that begin before the cut.
                    let frames = ffi::av_rescale_rnd(
                        us,
                        i64::from(rate.num),
                        i64::from(rate.den) * i64::from(ffi::AV_TIME_BASE),
                        ffi::AVRounding::AV_ROUND_UP,
                    );
                    let mut buffer = [0 as libc::c_char; 32];
                    ffi::av_timecode_make_string(&code, buffer.as_mut_ptr(), i32::try_from(frames).ok()?);
                    owned::text(buffer.as_ptr())
                }
            });
            if let Some(moved) = moved.and_then(|text| c_string(&text, "time code").ok()) {
                metadata.set(c"timecode", &moved);
            }
        }
    }

    /// Reads everything out of an opened, probed demuxer.
    ///
    /// # Safety
    /// `context` is valid, and `selected` was chosen among its streams.
    pub(super) unsafe fn read(context: *mut ffi::AVFormatContext, selected: &Selected, url: &str, live: bool) -> Result<Self> {
        let video = selected.video;
        // SAFETY: the caller's promise; streams and chapters are arrays of the stated lengths, read only.
        unsafe {
            let c = &*context;
            let count = c.nb_streams as usize;
            let mut streams = Vec::with_capacity(count);
            for index in 0..count {
                streams.push(read_stream(&**c.streams.add(index), index)?);
            }
            for (stream, &kept) in streams.iter_mut().zip(&selected.kept) {
                stream.selected = kept;
            }
            let hdr = streams.get(video).map_or_else(Hdr::default, |s: &StreamInfo| Hdr::of_stream(&s.side_data));
            let mut programs = Vec::new();
            for index in 0..c.nb_programs as usize {
                let program = &**c.programs.add(index);
                let members = (0..program.nb_stream_indexes as usize).map(|n| *program.stream_index.add(n) as usize).collect();
                programs.push(Program { id: program.id, streams: members, metadata: Dict::copy_of(program.metadata) });
            }
            let mut chapters = Vec::new();
            for index in 0..c.nb_chapters as usize {
                let chapter = &**c.chapters.add(index);
                let metadata = Dict::copy_of(chapter.metadata);
                chapters.push(Chapter { id: chapter.id, time_base: chapter.time_base, start: chapter.start, end: chapter.end, metadata });
            }
            let stream = *c.streams.add(video);
            let params = &*(*stream).codecpar;
            let rate = Rational::from(ffi::av_guess_frame_rate(context, stream, std::ptr::null_mut())).positive();
            let average_rate = Rational::from((*stream).avg_frame_rate).positive();
            let time_base = Rational::from((*stream).time_base);
            let seconds = timestamp((*stream).duration)
                .filter(|&d| d > 0)
                .and_then(|d| Some(d as f64 * time_base.value()?))
                .or_else(|| timestamp(c.duration).filter(|&d| d > 0).map(|d| d as f64 / f64::from(ffi::AV_TIME_BASE)))
                .filter(|_| !live);
            let frames = u64::try_from((*stream).nb_frames).ok().filter(|&n| n > 0).or_else(|| {
                let rate = average_rate.or(rate)?.value()?;
                Some((seconds? * rate).round() as u64).filter(|&n| n > 0)
            });
            let pixel_format = format::av_from_raw(params.format);
            let (width, height) = (usize::try_from(params.width).unwrap_or(0), usize::try_from(params.height).unwrap_or(0));
            let native = pixel_format.and_then(format::entry).map(|e| e.format);
            let mut colour = Colour::of(params);
            if pixel_format.is_some_and(format::implies_full_range) {
                colour.range = ffi::AVColorRange::AVCOL_RANGE_JPEG;
            }
            Ok(Self {
                name: redact(url),
                container: owned::text((*c.iformat).name).unwrap_or_default(),
                codec: codec_name(params.codec_id),
                coded_format: pixel_format,
                pixel_format: pixel_format.map_or_else(|| "unknown".to_owned(), format::name),
                width,
                height,
                shape: native.filter(|_| width > 0 && height > 0).map(|format| Shape { format, width, height }),
                time_base,
                frame_rate: rate,
                average_rate,
                duration: seconds.and_then(|s| Duration::try_from_secs_f64(s).ok()),
                frames: frames.filter(|_| !live),
                sample_aspect: ffi::av_guess_sample_aspect_ratio(context, stream, std::ptr::null_mut()).into(),
                colour,
                rotation: rotation(streams.get(video)),
                interlaced: !matches!(params.field_order, ffi::AVFieldOrder::AV_FIELD_UNKNOWN | ffi::AVFieldOrder::AV_FIELD_PROGRESSIVE),
                plays: None,
                live,
                video,
                streams,
                start_us: 0,
                far_start_us: 0,
                field_order: params.field_order,
                bits_per_raw_sample: params.bits_per_raw_sample,
                hdr,
                riders: Arc::default(),
                picture_time_code: None,
                programs,
                metadata: Dict::copy_of(c.metadata),
                chapters,
            })
        }
    }
}

/// FFmpeg's name of a codec.
pub(super) fn codec_name(id: ffi::AVCodecID) -> String {
    // SAFETY: always returns a static string.
    unsafe { owned::text(ffi::avcodec_get_name(id)) }.unwrap_or_default()
}

/// # Safety
/// `stream` belongs to a valid demuxer context.
unsafe fn read_stream(stream: &ffi::AVStream, index: usize) -> Result<StreamInfo> {
    // SAFETY: codecpar is always set; side data is an array of the stated length, each entry of its stated size.
    unsafe {
        let params = &*stream.codecpar;
        let mut side_data = Vec::new();
        for entry in 0..usize::try_from(stream.nb_side_data).unwrap_or(0) {
            let entry = &*stream.side_data.add(entry);
            if !entry.data.is_null() {
                side_data.push((entry.type_, std::slice::from_raw_parts(entry.data, entry.size).to_vec()));
            }
        }
        let kind = StreamKind::of(params.codec_type);
        Ok(StreamInfo {
            index,
            kind,
            codec: codec_name(params.codec_id),
            time_base: stream.time_base.into(),
            selected: true,
            id: stream.id,
            params: Params::copy_of(params)?,
            attached: attached(stream),
            metadata: Dict::copy_of(stream.metadata),
            disposition: stream.disposition,
            sample_aspect: stream.sample_aspect_ratio,
            average_rate: stream.avg_frame_rate,
            real_rate: stream.r_frame_rate,
            side_data,
        })
    }
}

/// The picture of cover art.
///
/// # Safety
/// As for [`read_stream`].
unsafe fn attached(stream: &ffi::AVStream) -> Option<Vec<u8>> {
    let picture = &stream.attached_pic;
    let bytes = usize::try_from(picture.size).ok().filter(|&n| n > 0 && !picture.data.is_null())?;
    let cover = stream.disposition & ffi::AV_DISPOSITION_ATTACHED_PIC != 0;
    // SAFETY: a packet's data has the stated size.
    cover.then(|| unsafe { std::slice::from_raw_parts(picture.data, bytes) }.to_vec())
}

fn rotation(stream: Option<&StreamInfo>) -> i32 {
    let matrix = stream.and_then(|s| s.side_data.iter().find(|(kind, _)| *kind == ffi::AVPacketSideDataType::AV_PKT_DATA_DISPLAYMATRIX));
    let Some((_, bytes)) = matrix else { return 0 };
    let mut words = [0i32; 9];
    for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(4)) {
        *word = i32::from_ne_bytes(chunk.try_into().unwrap_or_default());
    }
    // SAFETY: the function reads nine integers.
    let counterclockwise = unsafe { ffi::av_display_rotation_get(words.as_ptr()) };
    if counterclockwise.is_finite() { (-counterclockwise.round() as i32).rem_euclid(360) } else { 0 }
}
