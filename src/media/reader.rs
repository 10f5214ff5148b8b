//! Reading packets: damage is counted, times that start far from zero are moved, and an end that comes early is noticed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use ffmpeg_next::ffi;

use super::counters::MediaCounters;
use super::info::SourceInfo;
use super::input::{Demuxer, is_interrupt, read_error};
use super::io::pause;
use super::sequence::Images;
use super::window::MICROSECONDS;
use super::{Packet, Rational, describe, log, rescale, timestamp};
use crate::cancel::Cancel;
use crate::error::Result;
use crate::frame_log::FrameLog;

/// Damaged packets in a row, with none read in between, after which nothing more is expected. A file that is cut off gives
/// one for each sample that its index still lists.
const HOPELESS: u32 = 1000;

/// Starts up to here are a container's habit (MPEG-TS) rather than a fact about the recording.
const HABITUAL_START_US: i64 = 10_000_000;

/// How much earlier than its header says a file may end, in microseconds: headers are written in rounded units.
const ROUNDED_END_US: i64 = 250_000;

/// What the header says will come.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Promise {
    /// Packets of the filtered stream that the index lists.
    pictures: Option<u64>,
    /// End of the longest stream in microseconds, on the input's clock.
    end_us: Option<i64>,
}

impl Promise {
    /// # Safety
    /// `context` is an open, probed demuxer, and `video` one of its streams.
    unsafe fn read(context: *mut ffi::AVFormatContext, video: usize, container: &str) -> Self {
        // SAFETY: the caller's promise; the index is only read.
        unsafe {
            let stream = *(*context).streams.add(video);
            let count = ffi::avformat_index_get_entries_count(stream);
            // Empty entries repeat the picture before; the demuxers pass over them.
            let listed = (0..count).filter(|&n| ffi::avformat_index_get_entry(stream, n).as_ref().is_some_and(|e| e.size() > 0)).count();
            let listed = listed as u64;
            let mov = container.contains("mov");
            // Other demuxers index key frames only, or what they have read so far.
            let pictures = (mov || container == "avi").then_some(listed);
            if container == "avi" {
                // An AVI that was cut off has lost its index, which was to reach to the end; its header has the length in ticks.
                let ticks = (*stream).nb_frames;
                let reach = ffi::avformat_index_get_entry(stream, count - 1).as_ref().map_or(0, |e| e.timestamp);
                let end = rescale(ticks, (*stream).time_base.into(), MICROSECONDS);
                return Self { pictures, end_us: (reach < ticks / 4 * 3).then_some(end) };
            }
            // Measured or guessed durations say nothing about an end that is missing; nor do edit lists, but MP4 has an index.
            let stated = (*context).duration_estimation_method == ffi::AVDurationEstimationMethod::AVFMT_DURATION_FROM_STREAM && !mov;
            // Matroska's duration is its end, counted from 0. Where it is counted from the start, this asks for less.
            let end_us = timestamp((*context).duration).filter(|&d| stated && d > 0);
            Self { pictures, end_us }
        }
    }

    /// What to say about an end after `pictures` packets of the filtered stream, of which `frames` were decoded, and at
    /// `end_us`; `frame_us` is one frame.
    fn broken(self, [pictures, frames]: [u64; 2], end_us: i64, frame_us: i64) -> Option<String> {
        if let Some(listed) = self.pictures.filter(|&listed| listed > pictures + 1) {
            return Some(format!("the input ends early: {frames} of {listed} frames"));
        }
        let promised = self.end_us.filter(|&promised| promised - end_us > ROUNDED_END_US.max(2 * frame_us))?;
        let seconds = |us: i64| us as f64 / f64::from(ffi::AV_TIME_BASE);
        Some(format!("the input ends early: after {:.3} of {:.3} seconds", seconds(end_us), seconds(promised)))
    }
}

/// What a reader is made of.
pub(super) struct Open {
    pub demuxer: Demuxer,
    pub cancel: Cancel,
    /// Images of a sequence.
    pub images: Option<Images>,
    pub log: Option<Arc<FrameLog>>,
}

/// The demuxer, as the decoder sees it.
pub(super) struct Reader {
    demuxer: Demuxer,
    cancel: Cancel,
    name: String,
    counters: Arc<MediaCounters>,
    video: usize,
    /// Time base of each stream; None for cover art, whose time means nothing.
    bases: Vec<Option<Rational>>,
    /// Subtracted from every time, in microseconds.
    start_us: i64,
    promise: Promise,
    /// Images of a sequence that may be read.
    images: Option<Images>,
    log: Option<Arc<FrameLog>>,
    pictures: u64,
    /// Latest end of a packet in microseconds, on the input's clock.
    end_us: i64,
    frame_us: i64,
    errors_in_a_row: u32,
    /// What FFmpeg said about the first damage.
    cause: Option<String>,
}

impl Reader {
    pub(super) fn new(open: Open, info: &SourceInfo, counters: Arc<MediaCounters>) -> Self {
        let Open { demuxer, cancel, images, log } = open;
        let bases = info.streams.iter().map(|s| (s.disposition & ffi::AV_DISPOSITION_ATTACHED_PIC == 0).then_some(s.time_base)).collect();
        let promise = match &images {
            // SAFETY: the demuxer is open and probed, and the filtered stream is one of its streams.
            None if !info.live => unsafe { Promise::read(demuxer.as_ptr(), info.video, &info.container) },
            _ => Promise::default(),
        };
        if info.far_start_us != 0 {
            let seconds = info.far_start_us as f64 / f64::from(ffi::AV_TIME_BASE);
            let text = format!("the input's times start at {seconds:.3} s: they are counted from there");
            if info.far_start_us.abs() > HABITUAL_START_US { counters.warn(text) } else { counters.note(text) }
        }
        let frame_us = info.frame_rate.map_or(0, |rate| rescale(1, rate.inverse(), MICROSECONDS));
        Self {
            demuxer,
            cancel,
            name: info.name.clone(),
            counters,
            video: info.video,
            bases,
            start_us: info.start_us,
            promise,
            images,
            log,
            pictures: 0,
            end_us: 0,
            frame_us,
            errors_in_a_row: 0,
            cause: None,
        }
    }

    /// Whether this is an MP4 whose samples had gone by before its index came: through a pipe there is no way back.
    pub(super) fn index_came_late(&self) -> bool {
        // SAFETY: an open demuxer; its IO context, if there is one, lives as long.
        let piped = unsafe { (*self.demuxer.as_ptr()).pb.as_ref() }.is_some_and(|pb| pb.seekable == 0);
        piped && self.promise.pictures.is_some_and(|listed| listed > 0) && self.pictures == 0
    }

    /// The next packet of any stream; None at the end, and when cancelled.
    pub(super) fn read(&mut self) -> Result<Option<Packet>> {
        if self.images.as_ref().is_some_and(|images| self.pictures >= images.count()) {
            return Ok(None);
        }
        let packet = Packet::alloc()?;
        let mark = log::Mark::now();
        loop {
            // SAFETY: an open demuxer and a blank packet.
            let code = unsafe { ffi::av_read_frame(self.demuxer.as_ptr(), packet.raw) };
            if code >= 0 {
                self.errors_in_a_row = 0;
                self.take(&packet);
                return Ok(Some(packet));
            }
            if self.cancel.requested() || is_interrupt(code) {
                return Ok(None);
            }
            match code {
                ffi::AVERROR_EOF => {
                    // SAFETY: the IO context, if there is one, lives as long as the demuxer.
                    let error = unsafe { (*self.demuxer.as_ptr()).pb.as_ref() }.map_or(0, |pb| pb.error);
                    if error < 0 && error != ffi::AVERROR_EOF {
                        self.counters.end_early(format!("input '{}' ended early: {}", self.name, describe(error)));
                    }
                    return Ok(None);
                }
                ffi::AVERROR_INVALIDDATA => {
                    add(&self.counters.corrupt_packets);
                    self.cause = self.cause.take().or_else(|| mark.lines());
                    self.errors_in_a_row += 1;
                    if self.errors_in_a_row > HOPELESS {
                        return Ok(None);
                    }
                }
                _ if code == ffi::AVERROR(libc::EAGAIN) => pause(2),
                // What came before is worth keeping: a sender that goes away looks like this (SRT), and so does a broken disk.
                _ if self.pictures > 0 => {
                    self.counters.end_early(format!("input '{}' ended early: {}", self.name, describe(code)));
                    return Ok(None);
                }
                _ => return Err(read_error(&self.name, code, mark)),
            }
        }
    }

    /// Moves to the key picture before `target_us` on the input's clock; false where this input cannot.
    ///
    /// # Errors
    /// The input had moved before and now does not.
    pub(super) fn seek(&mut self, target_us: i64, again: bool) -> Result<bool> {
        let Some(base) = self.bases.get(self.video).copied().flatten() else { return Ok(false) };
        let target = rescale(target_us, MICROSECONDS, base);
        let mark = log::Mark::now();
        let stream = i32::try_from(self.video).unwrap_or(0);
        // SAFETY: an open demuxer.
        let code = unsafe { ffi::av_seek_frame(self.demuxer.as_ptr(), stream, target, ffi::AVSEEK_FLAG_BACKWARD as libc::c_int) };
        if code < 0 && again {
            return Err(read_error(&self.name, code, mark));
        }
        // What the index lists before this place is not read.
        self.promise.pictures = None;
        self.pictures = 0;
        Ok(code >= 0)
    }

    /// Counts a packet and moves its times.
    fn take(&mut self, packet: &Packet) {
        // SAFETY: the packet was just filled and is owned by the caller, who does not touch it meanwhile.
        let raw = unsafe { &mut *packet.raw };
        if raw.flags & ffi::AV_PKT_FLAG_CORRUPT != 0 {
            add(&self.counters.corrupt_packets);
        }
        if let Some(images) = &self.images {
            images.retime(raw);
        }
        if let Some(log) = &self.log {
            let base = self.bases.get(packet.stream()).copied().flatten().unwrap_or(MICROSECONDS);
            log.write(&packet.entry("demux", base));
        }
        if packet.stream() == self.video {
            self.pictures += 1;
        }
        let Some(base) = self.bases.get(packet.stream()).copied().flatten() else { return };
        if let Some(time) = timestamp(raw.pts).or(timestamp(raw.dts)) {
            self.end_us = self.end_us.max(rescale(time.saturating_add(raw.duration.max(0)), base, MICROSECONDS));
        }
        let shift = rescale(self.start_us, MICROSECONDS, base);
        for time in [&mut raw.pts, &mut raw.dts] {
            if let Some(known) = timestamp(*time) {
                *time = known.saturating_sub(shift);
            }
        }
    }

    /// Says what was damaged or missing. `frames` came out; `whole` tells whether the input was to be read to its end.
    pub(super) fn report(&self, frames: u64, whole: bool) {
        let [packets, pictures] = [&self.counters.corrupt_packets, &self.counters.corrupt_pictures].map(|n| n.load(Ordering::Relaxed));
        if packets + pictures > 0 {
            let plural = |n: u64, one: &str| format!("{n} {one}{}", if n == 1 { "" } else { "s" });
            let cause = self.cause.as_ref().map_or(String::new(), |c| format!(" ({c})"));
            self.counters.warn(format!(
                "the input is damaged: {} and {} were affected{cause}",
                plural(packets, "packet"),
                plural(pictures, "picture")
            ));
        }
        if whole && let Some(text) = self.promise.broken([self.pictures, frames], self.end_us, self.frame_us) {
            self.counters.end_early(text);
        }
    }
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_early_end_is_told_from_a_rounded_one() {
        let counted = Promise { pictures: Some(40), end_us: None };
        assert_eq!(counted.broken([11, 10], 0, 40_000).as_deref(), Some("the input ends early: 10 of 40 frames"));
        assert_eq!(counted.broken([39, 38], 0, 40_000), None);
        let timed = Promise { pictures: None, end_us: Some(1_600_000) };
        assert_eq!(timed.broken([10, 10], 400_000, 40_000).as_deref(), Some("the input ends early: after 0.400 of 1.600 seconds"));
        assert_eq!(timed.broken([35, 35], 1_400_000, 40_000), None);
        assert_eq!(Promise::default().broken([0, 0], 0, 0), None);
    }
}
