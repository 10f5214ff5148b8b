//! Containers without times: every picture follows the one before after the same time. How far that is from the truth is
//! measured while packets pass.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use ffmpeg_next::ffi;

use super::window::MICROSECONDS;
use super::{Packet, Rational, rescale};

/// Whether a container holds no times of its own, so that its reader counts pictures.
pub(super) fn counts_pictures(container: &str, flags: i32) -> bool {
    container != "null" && (flags & ffi::AVFMT_NOTIMESTAMPS != 0 || container == "yuv4mpegpipe")
}

/// Compares the pictures' times with those that counting gives.
#[derive(Debug)]
pub(super) struct Evenness {
    /// Pictures per second, as the container is told.
    rate: Rational,
    /// Unit of the packets' times.
    base: Rational,
    first: Option<i64>,
    /// Pictures whose place in the order of presentation is known.
    placed: i64,
    /// Times of pictures that others may still come before.
    pending: BinaryHeap<Reverse<i64>>,
    /// Pictures that move, and by how many microseconds at most.
    moved: u64,
    worst_us: i64,
}

impl Evenness {
    pub(super) fn new(rate: Rational, base: Rational) -> Self {
        Self { rate, base, first: None, placed: 0, pending: BinaryHeap::new(), moved: 0, worst_us: 0 }
    }

    /// Takes note of the encoder's next packet.
    pub(super) fn note(&mut self, packet: &Packet) {
        let Some(pts) = packet.pts() else { return };
        self.add(pts, packet.dts().unwrap_or(pts));
    }

    fn add(&mut self, pts: i64, dts: i64) {
        self.pending.push(Reverse(pts));
        // What comes later is shown at `dts` or after it.
        while self.pending.peek().is_some_and(|&Reverse(least)| least <= dts) {
            self.place_next();
        }
    }

    fn place_next(&mut self) {
        let Some(Reverse(time)) = self.pending.pop() else { return };
        let first = *self.first.get_or_insert(time);
        let counted = rescale(self.placed, self.rate.inverse(), MICROSECONDS);
        let off = (rescale(time - first, self.base, MICROSECONDS) - counted).abs();
        // Clocks of milliseconds (Matroska) and half a tick of coarse ones are no irregularity.
        let tolerance = rescale(1, self.base, MICROSECONDS).max(1500);
        if off > tolerance {
            self.moved += 1;
            self.worst_us = self.worst_us.max(off);
        }
        self.placed += 1;
    }

    /// What to say at the end; None when all pictures stand where they should.
    pub(super) fn verdict(&mut self, container: &str) -> Option<String> {
        while !self.pending.is_empty() {
            self.place_next();
        }
        let rate = self.rate.value().unwrap_or(0.0);
        (self.moved > 0).then(|| {
            format!(
                "{} of {} pictures leave their places, by up to {:.3} s: {container} holds no times, and its readers show {} pictures per second",
                self.moved,
                self.placed,
                self.worst_us as f64 * 1e-6,
                (rate * 1000.0).round() / 1000.0
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_times_pass_in_any_order_and_uneven_ones_are_measured() {
        let (rate, base) = (Rational { num: 25, den: 1 }, Rational { num: 1, den: 1000 });
        let verdict = |packets: &[(i64, i64)]| {
            let mut even = Evenness::new(rate, base);
            packets.iter().for_each(|&(pts, dts)| even.add(pts, dts));
            even.verdict("mxf")
        };
        // With B-frames, and a start away from zero.
        assert_eq!(verdict(&[(500, 420), (620, 460), (540, 500), (580, 540), (660, 580)]), None);
        // 29.97 in milliseconds.
        let mut ntsc = Evenness::new(Rational { num: 30_000, den: 1001 }, base);
        [0, 33, 67, 100, 133, 167, 200].into_iter().for_each(|t| ntsc.add(t, t));
        assert_eq!(ntsc.verdict("mxf"), None);
        let said = verdict(&[(0, 0), (40, 40), (200, 200), (240, 240)]).unwrap_or_default();
        assert!(said.starts_with("2 of 4 pictures leave their places, by up to 0.120 s: mxf holds no times"), "{said}");
    }
}
