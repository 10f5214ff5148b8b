//! The part of the input that is wanted: finding its first frame, and ending after its last.

use ffmpeg_next::ffi;

use super::{DecodeSource, Pulled};
use crate::error::{Error, Result};
use crate::media::info::StreamKind;
use crate::media::owned::AvFrame;
use crate::media::window::{MICROSECONDS, Place};
use crate::media::{Packet, Rational, log, rescale};
use crate::pipeline::Item;

/// How far before the wanted time a key picture is looked for, in microseconds, one try after the other. The first leaves
/// room for sound that lies before its pictures; the last is the beginning.
const SEEK_BACK_US: [i64; 4] = [1_000_000, 10_000_000, 100_000_000, 1 << 50];

impl DecodeSource {
    /// Whether this container's demuxer moves exactly, every stream to its own place. Elsewhere the input is decoded from its
    /// start, which costs time but loses nothing.
    pub(super) fn seekable(&self) -> bool {
        !self.info.live && ["mov", "matroska"].iter().any(|c| self.info.container.contains(c))
    }

    /// The first frame of the wanted part; packets before it are held.
    pub(super) fn first_frame(&mut self, operation: &str, mark: log::Mark) -> Result<AvFrame> {
        loop {
            match self.pull()? {
                Pulled::Packet(packet) => self.held.push_back(packet),
                Pulled::Frame(frame) => match self.window.place(self.time_of(&frame).pts.unwrap_or(0), self.info.time_base) {
                    Place::Before => {}
                    Place::Inside => return Ok(frame),
                    Place::After => return Err(Error::failed(operation, "no frame begins between --ss and --to")),
                },
                Pulled::End if self.cancel.requested() => return Err(Error::failed(operation, "interrupted before the first frame")),
                Pulled::End if self.reader.index_came_late() => {
                    return Err(Error::failed(operation, "its index lies at the end, and a pipe cannot be rewound to its pictures")
                        .hint("name the file itself, or write it with its index in front (ffmpeg -movflags +faststart)"));
                }
                Pulled::End if self.window.starts && self.began.is_some() => {
                    return Err(Error::failed(operation, "no frame begins after --ss: the input ends before"));
                }
                Pulled::End => {
                    let lines = mark.lines().map_or(String::new(), |l| format!(" ({l})"));
                    return Err(Error::failed(operation, format!("it holds no {} frame that can be decoded{lines}", self.info.codec)));
                }
            }
        }
    }

    /// As [`Self::first_frame`], from a key picture before it. Demuxers look for one by decoding times, so the picture found
    /// may be shown later than wanted: then from an earlier one.
    pub(super) fn first_frame_after_seek(&mut self, operation: &str, mark: log::Mark) -> Result<AvFrame> {
        for (attempt, back_us) in SEEK_BACK_US.into_iter().enumerate() {
            if !self.reader.seek(self.info.start_us.saturating_sub(back_us), attempt > 0)? {
                break;
            }
            self.restart();
            let first = self.first_frame(operation, mark);
            // What is shown after the first key picture depends on nothing before it.
            if self.began.is_some_and(|pts| pts <= 0) || attempt + 1 == SEEK_BACK_US.len() {
                return first;
            }
        }
        self.first_frame(operation, mark)
    }

    /// Forgets what was read, for another beginning.
    fn restart(&mut self) {
        self.held.clear();
        (self.draining, self.ended, self.position, self.began) = (false, false, None, None);
        // SAFETY: an open decoder; frames that were given out keep their own references.
        unsafe { ffi::avcodec_flush_buffers(self.decoder.context) };
    }

    /// The packet, if it belongs to the wanted part.
    pub(super) fn admit(&mut self, mut packet: Packet) -> Option<Packet> {
        if self.info.streams.get(packet.stream()).is_some_and(|s| !s.selected) {
            return None;
        }
        match self.window.admit(&mut packet, &self.info) {
            Place::Inside => Some(packet),
            Place::Before => None,
            Place::After => {
                self.pass(&packet);
                None
            }
        }
    }

    /// A held packet whose turn it is. With a frame limit, packets wait until the frames have reached their time.
    pub(super) fn release(&mut self) -> Option<Packet> {
        let due = match (self.window.frames, self.held.front()) {
            (None, _) => true,
            (Some(_), Some(packet)) => !self.beyond(packet),
            (Some(_), None) => false,
        };
        if due { self.held.pop_front() } else { None }
    }

    /// Whether a packet starts after the frames given out so far, where their number is limited.
    fn beyond(&self, packet: &Packet) -> bool {
        let Some(time) = packet.dts().or(packet.pts()).filter(|_| self.window.frames.is_some()) else { return false };
        let Some(position) = self.position else { return true };
        let base = self.info.streams.get(packet.stream()).map_or(self.info.time_base, |s| s.time_base);
        compare(time, base, position, self.info.time_base).is_ge()
    }

    /// After the last wanted frame: the copied packets that belong to its time, then the end.
    pub(super) fn tail(&mut self) -> Result<Item> {
        self.tailing = true;
        while let Some(packet) = self.held.pop_front() {
            if !self.beyond(&packet) {
                return Ok(Item::Packet(packet));
            }
            self.pass(&packet);
        }
        let end = self.window.length_us.map(|us| rescale(us, MICROSECONDS, self.info.time_base));
        let end = [self.position.filter(|_| self.window.frames.is_some()), end].into_iter().flatten().min();
        while !self.ended && !self.cancel.requested() && !self.all_passed() {
            let Some(packet) = self.reader.read()? else { break };
            if packet.stream() == self.info.video {
                let second = self.info.time_base.inverse().value().map_or(0, |ticks| ticks as i64);
                if packet.dts().zip(end).is_some_and(|(dts, end)| dts > end.saturating_add(second)) {
                    break;
                }
            } else if self.beyond(&packet) {
                self.pass(&packet);
            } else if let Some(packet) = self.admit(packet) {
                return Ok(Item::Packet(packet));
            }
        }
        self.ended = true;
        Ok(Item::End)
    }

    fn pass(&mut self, packet: &Packet) {
        if let Some(passed) = self.passed.get_mut(packet.stream()) {
            *passed = true;
        }
    }

    fn all_passed(&self) -> bool {
        // Only sound comes regularly enough to wait for.
        self.info.streams.iter().zip(&self.passed).all(|(s, &passed)| passed || !s.selected || s.kind != StreamKind::Audio)
    }
}

fn compare(a: i64, a_base: Rational, b: i64, b_base: Rational) -> std::cmp::Ordering {
    // SAFETY: pure arithmetic; time bases of streams are positive.
    unsafe { ffi::av_compare_ts(a, a_base.av(), b, b_base.av()) }.cmp(&0)
}
