//! Opening a decoder that decodes into the device's host memory.

use std::sync::Arc;

use ffmpeg_next::ffi;

use super::info::{SourceInfo, StreamInfo};
use super::input::Demuxer;
use super::slab::SlabAllocator;
use super::{av_failed, log};
use crate::error::{Error, Result};
use crate::pipeline;
use crate::pool::{Budget, HostMem};

/// Where frames are decoded to, and with how many threads.
#[derive(Clone)]
pub struct SourceOptions {
    /// Host memory of the device that will filter.
    pub mem: Arc<dyn HostMem>,
    /// What all pools of the run may take together.
    pub budget: Arc<Budget>,
    /// Decoder threads; None lets FFmpeg choose.
    pub threads: Option<usize>,
}

/// An opened decoder and the memory that it decodes into.
pub(super) struct Decoder {
    pub context: *mut ffi::AVCodecContext,
    // Freed after the context: its threads call it until they are joined.
    pub allocator: Box<SlabAllocator>,
}

// SAFETY: a codec context is used by one thread at a time; the allocator is Sync.
unsafe impl Send for Decoder {}

impl Drop for Decoder {
    fn drop(&mut self) {
        // SAFETY: owned; joins the codec's threads.
        unsafe { ffi::avcodec_free_context(&mut self.context) }
    }
}

/// The decoder of a stream: FFmpeg's choice, but for VP8 and VP9 with alpha, which only Google's own decoders show.
fn decoder_of(stream: &StreamInfo) -> *const ffi::AVCodec {
    let codec = stream.params.get().codec_id;
    let named = match codec {
        ffi::AVCodecID::AV_CODEC_ID_VP8 if stream.has_hidden_alpha() => Some(c"libvpx"),
        ffi::AVCodecID::AV_CODEC_ID_VP9 if stream.has_hidden_alpha() => Some(c"libvpx-vp9"),
        _ => None,
    };
    // SAFETY: lookups by a terminated name or an id; results are null or static.
    unsafe {
        let own = named.map_or(std::ptr::null(), |name| ffi::avcodec_find_decoder_by_name(name.as_ptr()));
        if own.is_null() { ffi::avcodec_find_decoder(codec) } else { own }
    }
}

/// Opens the decoder of the filtered stream on `options.mem`.
///
/// # Errors
/// There is none for the codec, or it refuses the stream.
pub(super) fn open_decoder(demuxer: &Demuxer, info: &SourceInfo, options: &SourceOptions, threads: Option<usize>) -> Result<Decoder> {
    let operation = format!("cannot decode input '{}'", info.name);
    let stream = info.video_stream().ok_or_else(|| Error::failed(&operation, "it has no video stream"))?;
    let mark = log::Mark::now();
    // SAFETY: the parameters belong to the info; the context is fresh and owned at once; the allocator is boxed beside it
    // and dropped after it.
    unsafe {
        let codec = decoder_of(stream);
        if codec.is_null() {
            return Err(Error::failed(operation, format!("this FFmpeg has no decoder for {}", info.codec))
                .hint("convoy doctor lists the codecs found"));
        }
        let context = ffi::avcodec_alloc_context3(codec);
        if context.is_null() {
            return Err(Error::failed(operation, "out of memory"));
        }
        let allocator = SlabAllocator::new(Arc::clone(&options.mem), Arc::clone(&options.budget));
        let decoder = Decoder { context, allocator };
        let code = ffi::avcodec_parameters_to_context(context, stream.params.get());
        if code < 0 {
            return Err(av_failed(operation, code, mark));
        }
        decoder.allocator.attach(context);
        let c = &mut *context;
        c.pkt_timebase = stream.time_base.av();
        c.framerate = ffi::av_guess_frame_rate(demuxer.as_ptr(), *(*demuxer.as_ptr()).streams.add(info.video), std::ptr::null_mut());
        // Or FFmpeg rounds a crop's left edge to its SIMD alignment.
        c.flags |= ffi::AV_CODEC_FLAG_UNALIGNED as libc::c_int;
        c.thread_count = options.threads.or(threads).map_or(0, |n| i32::try_from(n).unwrap_or(0));
        // The codec's threads start here and inherit the priority.
        let (decoder, code) = pipeline::yielding(move || {
            let code = ffi::avcodec_open2(decoder.context, std::ptr::null(), std::ptr::null_mut());
            (decoder, code)
        })?;
        if code < 0 {
            return Err(av_failed(operation, code, mark));
        }
        Ok(decoder)
    }
}
