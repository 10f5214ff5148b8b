//! Text subtitles from one container's form into another's: srt, mov_text, WebVTT. The words and their times stay.

use ffmpeg_next::ffi;

use super::encoder_setup::Context;
use super::info::{StreamInfo, StreamKind, codec_name};
use super::{Packet, av_failed, log};
use crate::error::{Error, Result};

/// Room for one cue; FFmpeg's own limit for text.
const CUE_BYTES: usize = 1 << 16;

/// The text codec that a container takes for a stream's; None when either is not plain text.
pub(super) fn text_codec_for(container: &str, stream: &StreamInfo) -> Option<ffi::AVCodecID> {
    use ffi::AVCodecID::*;
    let text = matches!(stream.params.get().codec_id, AV_CODEC_ID_SUBRIP | AV_CODEC_ID_MOV_TEXT | AV_CODEC_ID_WEBVTT | AV_CODEC_ID_TEXT);
    if stream.kind != StreamKind::Subtitle || !text {
        return None;
    }
    let target = match container {
        "mp4" | "mov" | "ipod" | "psp" | "3gp" | "3g2" => AV_CODEC_ID_MOV_TEXT,
        "matroska" => AV_CODEC_ID_SUBRIP,
        "webm" => AV_CODEC_ID_WEBVTT,
        _ => return None,
    };
    (target != stream.params.get().codec_id).then_some(target)
}

/// Decoder and encoder of one text stream.
pub(super) struct TextConverter {
    decoder: Context,
    encoder: Context,
    target: ffi::AVCodecID,
    buffer: Vec<u8>,
}

impl TextConverter {
    /// Opens both codecs for `stream`.
    pub(super) fn new(stream: &StreamInfo, target: ffi::AVCodecID) -> Result<Self> {
        let operation = format!("cannot convert {} to {}", stream.label(), codec_name(target));
        let mark = log::Mark::now();
        // SAFETY: codecs are static; contexts are fresh, checked and owned at once; the header that the decoder made is copied
        // into memory of FFmpeg's allocator, which the encoder's context frees.
        unsafe {
            let (from, to) = (ffi::avcodec_find_decoder(stream.params.get().codec_id), ffi::avcodec_find_encoder(target));
            if from.is_null() || to.is_null() {
                return Err(Error::failed(operation, "this FFmpeg has no such codec"));
            }
            let decoder = Context { raw: ffi::avcodec_alloc_context3(from), statistics: None };
            let encoder = Context { raw: ffi::avcodec_alloc_context3(to), statistics: None };
            let (Some(d), Some(e)) = (decoder.raw.as_mut(), encoder.raw.as_mut()) else {
                return Err(Error::failed(operation, "out of memory"));
            };
            let checked = |code: i32| if code < 0 { Err(av_failed(&operation, code, mark)) } else { Ok(()) };
            checked(ffi::avcodec_parameters_to_context(d, stream.params.get()))?;
            d.pkt_timebase = stream.time_base.av();
            checked(ffi::avcodec_open2(d, from, std::ptr::null_mut()))?;
            e.time_base = stream.time_base.av();
            if let Ok(size) = usize::try_from(d.subtitle_header_size)
                && size > 0
                && !d.subtitle_header.is_null()
            {
                e.subtitle_header = ffi::av_mallocz(size + 1).cast();
                if e.subtitle_header.is_null() {
                    return Err(Error::failed(operation, "out of memory"));
                }
                std::ptr::copy_nonoverlapping(d.subtitle_header, e.subtitle_header, size);
                e.subtitle_header_size = d.subtitle_header_size;
            }
            checked(ffi::avcodec_open2(e, to, std::ptr::null_mut()))?;
            Ok(Self { decoder, encoder, target, buffer: vec![0; CUE_BYTES] })
        }
    }

    /// Parameters of the converted stream.
    pub(super) fn encoder(&self) -> *const ffi::AVCodecContext {
        self.encoder.raw
    }

    /// The codec that comes out.
    pub(super) fn codec(&self) -> ffi::AVCodecID {
        self.target
    }

    /// FFmpeg's name of the codec that comes out.
    pub(super) fn target(&self) -> String {
        codec_name(self.target)
    }

    /// The packet in the other form, times in the same base; None for a packet that shows nothing (mov_text's pauses).
    pub(super) fn convert(&mut self, packet: &Packet) -> Result<Option<Packet>> {
        let mark = log::Mark::now();
        // SAFETY: open codecs, a valid packet; the decoded subtitle is freed here on every path; the buffer's size is passed.
        unsafe {
            let mut cue: ffi::AVSubtitle = std::mem::zeroed();
            let mut got = 0;
            let code = ffi::avcodec_decode_subtitle2(self.decoder.raw, &mut cue, &mut got, packet.raw);
            if code < 0 || got == 0 || cue.num_rects == 0 {
                if got != 0 {
                    ffi::avsubtitle_free(&mut cue);
                }
                // Damaged text is counted nowhere else, but must not end the run.
                return Ok(None);
            }
            let room = i32::try_from(self.buffer.len()).unwrap_or(i32::MAX);
            cue.start_display_time = 0;
            let written = ffi::avcodec_encode_subtitle(self.encoder.raw, self.buffer.as_mut_ptr(), room, &cue);
            ffi::avsubtitle_free(&mut cue);
            if written < 0 {
                return Err(av_failed(format!("cannot convert a subtitle to {}", self.target()), written, mark));
            }
            let mut size = usize::try_from(written).unwrap_or(0).min(self.buffer.len());
            if self.target != ffi::AVCodecID::AV_CODEC_ID_MOV_TEXT {
                // FFmpeg ends lines as DOS does; the file came with one character.
                let text: Vec<u8> = self.buffer[..size].iter().copied().filter(|&byte| byte != b'\r').collect();
                size = text.len();
                self.buffer[..size].copy_from_slice(&text);
            }
            let made = Packet::alloc()?;
            let code = ffi::av_new_packet(made.raw, i32::try_from(size).unwrap_or(0));
            if code < 0 {
                return Err(av_failed("cannot convert a subtitle", code, mark));
            }
            let (source, target) = (&*packet.raw, &mut *made.raw);
            std::ptr::copy_nonoverlapping(self.buffer.as_ptr(), target.data, size);
            (target.pts, target.dts, target.duration) = (source.pts, source.dts, source.duration);
            (target.stream_index, target.flags) = (source.stream_index, source.flags);
            Ok(Some(made))
        }
    }
}
