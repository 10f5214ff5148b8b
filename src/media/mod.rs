//! FFmpeg at both ends: decoding into slabs, encoding from slabs, muxing with copied streams.

use ffmpeg_next::ffi;

/// An encoded packet, owned. Its stream index and time base are those that its producer documents.
pub struct Packet {
    raw: *mut ffi::AVPacket,
}

// SAFETY: an AVPacket is plain data with counted buffers, used by one owner at a time.
unsafe impl Send for Packet {}

impl Drop for Packet {
    fn drop(&mut self) {
        // SAFETY: `raw` is owned; av_packet_free accepts null.
        unsafe { ffi::av_packet_free(&mut self.raw) }
    }
}
