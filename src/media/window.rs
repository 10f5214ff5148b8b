//! `--ss`, `--to`, `--frames`: which frames and packets belong to the part that is wanted.
//!
//! Times are already counted from the part's start. A frame belongs to it when it begins there, as with ffmpeg's `-ss` and
//! `-to`; sound when its packet begins there; a subtitle that is on screen at the start is shown from the start.

use ffmpeg_next::ffi;

use super::info::{SourceInfo, StreamKind};
use super::{Packet, Rational, rescale, timestamp};

/// FFmpeg's unit for times of a whole file.
pub(super) const MICROSECONDS: Rational = Rational { num: 1, den: ffi::AV_TIME_BASE };

/// The wanted part.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Window {
    /// Whether what begins before 0 is cut off.
    pub starts: bool,
    /// Its length in microseconds, if it ends before the input.
    pub length_us: Option<i64>,
    /// Frames at most.
    pub frames: Option<u64>,
}

/// Whether something belongs to the window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It comes before.
    Before,
    /// It belongs to it.
    Inside,
    /// It begins at the end or later.
    After,
}

impl Window {
    /// Where a time in units of `base` lies.
    pub(super) fn place(&self, time: i64, base: Rational) -> Place {
        // The end is rounded as the start was, so that parts of a file fit together.
        match self.length_us.map(|us| rescale(us, MICROSECONDS, base)) {
            Some(end) if time >= end => Place::After,
            _ if self.starts && time < 0 => Place::Before,
            _ => Place::Inside,
        }
    }

    /// Where a copied packet lies; a subtitle that reaches into the window is trimmed to it.
    pub(super) fn admit(&self, packet: &mut Packet, info: &SourceInfo) -> Place {
        let Some(stream) = info.streams.get(packet.stream()) else { return Place::Inside };
        // Cover art and files have no time.
        if stream.attached.is_some() {
            return Place::Inside;
        }
        let Some(time) = packet.pts().or(packet.dts()) else { return Place::Inside };
        let place = self.place(time, stream.time_base);
        if stream.kind != StreamKind::Subtitle || place == Place::After {
            return place;
        }
        // SAFETY: the packet is owned by the caller, who lent it for this.
        let raw = unsafe { &mut *packet.raw };
        if place == Place::Before {
            if raw.duration <= 0 || time.saturating_add(raw.duration) <= 0 {
                return Place::Before;
            }
            raw.duration += time;
            raw.pts = 0;
            raw.dts = timestamp(raw.dts).map_or(ffi::AV_NOPTS_VALUE, |dts| dts.max(0));
        }
        if let Some(end) = self.length_us.map(|us| rescale(us, MICROSECONDS, stream.time_base)) {
            raw.duration = raw.duration.min(end - raw.pts);
        }
        Place::Inside
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_file_fit_together() {
        let base = Rational { num: 1001, den: 30_000 };
        // 0.5 s lies between frames 14 and 15.
        let first = Window { length_us: Some(500_000), ..Window::default() };
        assert_eq!([14, 15].map(|t| first.place(t, base)), [Place::Inside, Place::After]);
        let second = Window { starts: true, ..Window::default() };
        let shift = rescale(500_000, MICROSECONDS, base);
        assert_eq!([14, 15].map(|t| second.place(t - shift, base)), [Place::Before, Place::Inside]);
    }
}
