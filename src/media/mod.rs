//! FFmpeg at both ends: decoding into slabs, encoding from slabs, muxing with copied streams.
//!
//! Promises: nothing is printed (FFmpeg's log is kept for error messages, see [`log`]), every read and write can be
//! interrupted, and a planar frame is never copied on the host. FFmpeg types never leave this module.

use std::ffi::CString;
use std::fmt;

use ffmpeg_next::ffi;

use crate::error::{Error, Result};
use crate::frame_log::Entry;

mod audit;
mod carry;
mod container;
mod convert;
mod copy_params;
mod counters;
mod decode;
mod decoder;
mod doctor;
mod encode;
mod encoder_setup;
mod evenness;
mod exit;
pub mod format;
mod hdr;
mod header;
mod info;
mod input;
mod intake;
mod io;
pub mod log;
mod mux;
mod output;
mod output_defaults;
mod owned;
mod palette;
mod reader;
mod repack;
mod repeats;
mod riders;
mod scan;
mod select;
mod sequence;
mod slab;
mod subtitles;
mod tags;
mod trial;
mod two_pass;
mod window;

pub use counters::MediaCounters;
pub use decode::DecodeSource;
pub use decoder::SourceOptions;
pub use doctor::{Doctor, Part, doctor};
pub use encode::VideoEncoder;
pub use info::{Colour, SourceInfo, StreamInfo, StreamKind};
pub use input::{Input, InputSpec, OnChange, is_live};
pub use mux::FileMuxer;
pub use output::{EncodeSpec, Odd, OutputTarget, check_output, is_live_output, open_encoder, open_output};
pub use scan::{By, Treatment};
pub use select::Select;
pub use sequence::Gaps;
pub use two_pass::Pass;

/// An encoded packet, owned. Its stream index is the input's; its time base is the input stream's for copied packets
/// and the encoder's for encoded ones.
pub struct Packet {
    raw: *mut ffi::AVPacket,
}

// SAFETY: an AVPacket is plain data with counted buffers, used by one owner at a time.
unsafe impl Send for Packet {}

impl Packet {
    /// An empty packet.
    fn alloc() -> Result<Self> {
        // SAFETY: allocates or returns null, which is checked.
        let raw = unsafe { ffi::av_packet_alloc() };
        if raw.is_null() {
            return Err(Error::failed("cannot allocate a packet", "out of memory"));
        }
        Ok(Self { raw })
    }

    /// A packet without payload, for sinks and sources that are not FFmpeg's.
    ///
    /// # Errors
    /// Out of memory.
    pub fn empty(stream: usize, pts: i64) -> Result<Self> {
        let packet = Self::alloc()?;
        // SAFETY: `alloc` returned a valid packet that nobody else has.
        unsafe {
            (*packet.raw).stream_index = i32::try_from(stream).unwrap_or(i32::MAX);
            (*packet.raw).pts = pts;
        }
        Ok(packet)
    }

    /// The input stream that it belongs to.
    pub fn stream(&self) -> usize {
        // SAFETY: `raw` is a valid packet for the life of self.
        usize::try_from(unsafe { (*self.raw).stream_index }).unwrap_or(usize::MAX)
    }

    /// Presentation time stamp in its time base.
    pub fn pts(&self) -> Option<i64> {
        // SAFETY: as in `stream`.
        timestamp(unsafe { (*self.raw).pts })
    }

    /// Decoding time stamp in its time base.
    pub fn dts(&self) -> Option<i64> {
        // SAFETY: as in `stream`.
        timestamp(unsafe { (*self.raw).dts })
    }

    /// Duration in its time base; 0 if unknown.
    pub fn duration(&self) -> i64 {
        // SAFETY: as in `stream`.
        unsafe { (*self.raw).duration }
    }

    /// What the frame log says about it.
    fn entry(&self, stage: &'static str, base: Rational) -> Entry {
        // SAFETY: as in `stream`.
        let key = unsafe { (*self.raw).flags } & ffi::AV_PKT_FLAG_KEY != 0;
        let time_base = (base.num, base.den);
        let (pts, dts, duration, size) = (self.pts(), self.dts(), self.duration(), self.bytes());
        Entry { stage, stream: self.stream(), pts, dts, duration, time_base, size, key: Some(key) }
    }

    /// Payload in bytes.
    pub fn bytes(&self) -> usize {
        // SAFETY: as in `stream`.
        usize::try_from(unsafe { (*self.raw).size }).unwrap_or(0)
    }
}

impl Drop for Packet {
    fn drop(&mut self) {
        // SAFETY: `raw` is owned; av_packet_free accepts null.
        unsafe { ffi::av_packet_free(&mut self.raw) }
    }
}

impl fmt::Debug for Packet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Packet of stream {} pts {:?} dts {:?} ({} bytes)", self.stream(), self.pts(), self.dts(), self.bytes())
    }
}

/// A ratio of integers: a time base in seconds, a frame rate per second, a sample aspect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rational {
    /// Numerator.
    pub num: i32,
    /// Denominator.
    pub den: i32,
}

impl Rational {
    /// The value; None when it is undefined or not positive.
    pub fn value(self) -> Option<f64> {
        (self.num > 0 && self.den > 0).then(|| f64::from(self.num) / f64::from(self.den))
    }

    fn positive(self) -> Option<Self> {
        (self.num > 0 && self.den > 0).then_some(self)
    }

    fn inverse(self) -> Self {
        Self { num: self.den, den: self.num }
    }

    fn av(self) -> ffi::AVRational {
        ffi::AVRational { num: self.num, den: self.den }
    }
}

impl From<ffi::AVRational> for Rational {
    fn from(r: ffi::AVRational) -> Self {
        Self { num: r.num, den: r.den }
    }
}

impl fmt::Display for Rational {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.num, self.den)
    }
}

/// `value` in units of `from`, in units of `to`, rounded to nearest.
fn rescale(value: i64, from: Rational, to: Rational) -> i64 {
    if from == to || from.positive().is_none() || to.positive().is_none() {
        return value;
    }
    // SAFETY: pure arithmetic on positive ratios.
    unsafe { ffi::av_rescale_q(value, from.av(), to.av()) }
}

fn timestamp(raw: i64) -> Option<i64> {
    (raw != ffi::AV_NOPTS_VALUE).then_some(raw)
}

/// FFmpeg's text for an error code.
fn describe(code: i32) -> String {
    let mut buffer = [0 as libc::c_char; 128];
    // SAFETY: the buffer's size is passed; av_strerror always terminates it.
    unsafe {
        ffi::av_strerror(code, buffer.as_mut_ptr(), buffer.len());
        owned::text(buffer.as_ptr()).unwrap_or_default()
    }
}

/// An error for a failed FFmpeg call: its code's text, then what FFmpeg logged since `mark`.
fn av_failed(operation: impl Into<String>, code: i32, mark: log::Mark) -> Error {
    let mut cause = describe(code);
    if let Some(lines) = mark.lines() {
        cause = format!("{cause} ({lines})");
    }
    Error::failed(operation, cause)
}

fn c_string(text: &str, what: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error::usage(format!("cannot use {what} '{}'", text.escape_default()), "it contains a zero byte"))
}

/// Prepares FFmpeg once: devices registered, its log captured, nothing on stdout or stderr.
fn prepare() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        log::install();
        // SAFETY: registering devices and starting the network layer are idempotent and have no preconditions.
        unsafe {
            ffi::avdevice_register_all();
            ffi::avformat_network_init();
        }
    });
}

/// A URL without its credentials, for messages.
pub fn redact(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (address, query) = rest.split_at(rest.find(['?', '#']).unwrap_or(rest.len()));
    // Up to the last @, since passwords hold unescaped @ and / more often than paths do.
    let address = address.rsplit_once('@').map_or(address.to_owned(), |(_, host)| format!("***@{host}"));
    // An RTMP path ends in the stream key.
    let address = match address.rsplit_once('/') {
        Some((app, key)) if scheme.starts_with("rtmp") && !key.is_empty() => format!("{app}/***"),
        _ => address,
    };
    // Tokens travel as query parameters.
    let query = if query.is_empty() { "" } else { "?***" };
    format!("{scheme}://{address}{query}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_never_show() {
        assert_eq!(redact("rtsp://user:p@ss@cam/live"), "rtsp://***@cam/live");
        assert_eq!(redact("http://host/a?token=abc"), "http://host/a?***");
        assert_eq!(redact("rtsp://u:sec/ret@cam/live"), "rtsp://***@cam/live");
        assert_eq!(redact("rtmp://host/app/key"), "rtmp://host/app/***");
        assert_eq!(redact("udp://239.0.0.1:1234"), "udp://239.0.0.1:1234");
        assert_eq!(redact("a@b.mp4"), "a@b.mp4");
    }

    #[test]
    fn timestamps_are_rescaled_to_the_nearest_tick() {
        let from = Rational { num: 1, den: 90_000 };
        assert_eq!(rescale(3003, from, Rational { num: 1, den: 1000 }), 33);
        assert_eq!(rescale(-3003, from, Rational { num: 1001, den: 30_000 }), -1);
        assert_eq!(rescale(7, from, from), 7);
    }
}
