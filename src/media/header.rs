//! What a file's header says, in one form for a file that is about to be written and for one that was read back.

use ffmpeg_next::ffi;

use super::info::{Colour, StreamKind, codec_name};
use super::owned::{self, Dict};
use super::window::MICROSECONDS;
use super::{av_failed, c_string, format, log, rescale};
use crate::error::Result;

/// As much as is read of an output to learn what it holds.
const PROBE_BYTES: &std::ffi::CStr = c"2000000";
/// The same in microseconds of media.
const PROBE_US: &std::ffi::CStr = c"1000000";

/// One chapter; times in microseconds.
pub(super) struct ChapterFacts {
    pub start_us: i64,
    pub title: Option<String>,
}

/// One stream.
pub(super) struct StreamFacts {
    pub kind: StreamKind,
    pub id: i32,
    pub codec: String,
    pub disposition: i32,
    pub tags: Dict,
    pub side_data: Vec<ffi::AVPacketSideDataType>,
    /// Width over height of a sample; 1 where it is not told.
    pub aspect: f64,
    pub colour: Colour,
    pub field_order: ffi::AVFieldOrder,
    pub pixel_format: Option<ffi::AVPixelFormat>,
}

impl StreamFacts {
    /// Whether a colour tag says something of these samples: the range of RGB goes without saying, and chroma has a row of its own
    /// to be above or below only where rows share it.
    pub(super) fn may_miss(&self, colour_tag: &str) -> bool {
        let Some(format) = self.pixel_format else { return true };
        match colour_tag {
            "range" => !format::is_rgb(format) && format != ffi::AVPixelFormat::AV_PIX_FMT_PAL8,
            "chroma location" => format::native(format).is_none_or(|native| native.chroma_shift_y > 0),
            _ => true,
        }
    }
}

/// A whole header.
pub(super) struct Header {
    pub tags: Dict,
    pub streams: Vec<StreamFacts>,
    pub chapters: Vec<ChapterFacts>,
    /// Names of the programmes.
    pub programs: Vec<String>,
}

impl Header {
    /// # Safety
    /// `context` is a valid context whose streams, chapters and programmes are set up.
    pub(super) unsafe fn of(context: *const ffi::AVFormatContext) -> Self {
        // SAFETY: the caller's promise: arrays of the stated lengths, read only.
        unsafe {
            let c = &*context;
            let streams = (0..c.nb_streams as usize).map(|n| stream_facts(&**c.streams.add(n))).collect();
            let chapter = |n: usize| {
                let chapter = &**c.chapters.add(n);
                let tags = Dict::copy_of(chapter.metadata);
                ChapterFacts { start_us: rescale(chapter.start, chapter.time_base.into(), MICROSECONDS), title: tags.get(c"title") }
            };
            let chapters = (0..c.nb_chapters as usize).map(chapter).collect();
            let program = |n: usize| {
                let program = &**c.programs.add(n);
                Dict::copy_of(program.metadata).get(c"service_name").unwrap_or_else(|| program.id.to_string())
            };
            let programs = (0..c.nb_programs as usize).map(program).collect();
            Self { tags: Dict::copy_of(c.metadata), streams, chapters, programs }
        }
    }

    /// Reads a file that was just written.
    ///
    /// # Errors
    /// FFmpeg does not open it.
    pub(super) fn read_back(url: &str, container: &str) -> Result<Self> {
        let operation = "cannot read the output back";
        let url = c_string(url, "output name")?;
        let mut options = Dict::new();
        options.set(c"probesize", PROBE_BYTES);
        options.set(c"analyzeduration", PROBE_US);
        let mut context = std::ptr::null_mut();
        let mark = log::Mark::now();
        // SAFETY: a terminated name and a null context, which the call sets; the demuxer is closed below on every path.
        unsafe {
            let code = ffi::avformat_open_input(&mut context, url.as_ptr(), reader_of(container), options.as_mut());
            if code < 0 {
                return Err(av_failed(operation, code, mark));
            }
            let code = ffi::avformat_find_stream_info(context, std::ptr::null_mut());
            let header = if code < 0 { Err(av_failed(operation, code, mark)) } else { Ok(Self::of(context)) };
            ffi::avformat_close_input(&mut context);
            header
        }
    }
}

/// The demuxer of a container that is written under this name; null lets FFmpeg guess.
fn reader_of(container: &str) -> *const ffi::AVInputFormat {
    let name = match container {
        "mpegts" | "avi" | "flv" | "mxf" | "nut" | "gif" | "apng" => container,
        _ => return std::ptr::null(),
    };
    // SAFETY: a terminated name; the result is null or static.
    c_string(name, "format").map_or(std::ptr::null(), |name| unsafe { ffi::av_find_input_format(name.as_ptr()) })
}

/// # Safety
/// `stream` belongs to a valid context.
unsafe fn stream_facts(stream: &ffi::AVStream) -> StreamFacts {
    // SAFETY: codecpar is always set; side data is an array of the stated length.
    unsafe {
        let params = &*stream.codecpar;
        let side_data = (0..usize::try_from(stream.nb_side_data).unwrap_or(0)).map(|n| (*stream.side_data.add(n)).type_).collect();
        let aspect = [stream.sample_aspect_ratio, params.sample_aspect_ratio].into_iter().find(|a| a.num > 0 && a.den > 0);
        StreamFacts {
            kind: StreamKind::of(params.codec_type),
            id: stream.id,
            codec: codec_name(params.codec_id),
            disposition: stream.disposition,
            tags: Dict::copy_of(stream.metadata),
            side_data,
            aspect: aspect.map_or(1.0, |a| f64::from(a.num) / f64::from(a.den)),
            colour: Colour::of(params),
            field_order: params.field_order,
            pixel_format: format::av_from_raw(params.format),
        }
    }
}

/// FFmpeg's word for a bit of a stream's disposition.
pub(super) fn disposition_name(bit: i32) -> String {
    // SAFETY: returns null or a static string.
    unsafe { owned::text(ffi::av_disposition_to_string(bit)) }.unwrap_or_else(|| format!("{bit:#x}"))
}

/// FFmpeg's word for a kind of side data.
pub(super) fn side_data_name(kind: ffi::AVPacketSideDataType) -> String {
    // SAFETY: returns null or a static string.
    unsafe { owned::text(ffi::av_packet_side_data_name(kind)) }.unwrap_or_else(|| "unknown side data".to_owned())
}
