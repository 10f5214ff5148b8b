//! Pacing (ffmpeg's `-re`): what is read leaves at the speed at which it is to be shown, for receivers that take it in live.

use std::time::{Duration, Instant};

use crate::cancel::Cancel;
use crate::pipeline::Item;

/// How long one sleep may last before the cancel flag is looked at again.
const NAP: Duration = Duration::from_millis(50);

/// Time as it passes; the tests' passes at once.
pub trait Clock: Send {
    /// Since an arbitrary moment.
    fn now(&self) -> Duration;

    /// Lets `time` pass.
    fn sleep(&mut self, time: Duration);
}

/// The real one.
pub struct WallClock(Instant);

impl Default for WallClock {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Clock for WallClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn sleep(&mut self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// Holds items back until their time has come, on a clock that starts with the first.
pub struct Pace {
    clock: Box<dyn Clock>,
    /// Seconds per unit of each stream's times, as numerator and denominator.
    bases: Vec<(i32, i32)>,
    /// The stream whose times frames have.
    video: usize,
    /// When the first item came: on the media's clock in microseconds, and on ours.
    start: Option<(i64, Duration)>,
}

impl Pace {
    /// For items of streams with these time bases; frames are those of stream `video`.
    pub fn new(clock: Box<dyn Clock>, bases: Vec<(i32, i32)>, video: usize) -> Self {
        Self { clock, bases, video, start: None }
    }

    /// Waits until it is time for `item`, or the run is cancelled. Items without a time pass.
    pub fn hold(&mut self, item: &Item, cancel: &Cancel) {
        let Some(time) = self.micros(item) else { return };
        let (first, began) = *self.start.get_or_insert_with(|| (time, self.clock.now()));
        let Ok(after) = u64::try_from(time.saturating_sub(first)) else { return };
        let due = began + Duration::from_micros(after);
        while !cancel.requested() {
            let left = due.saturating_sub(self.clock.now());
            if left.is_zero() {
                return;
            }
            self.clock.sleep(left.min(NAP));
        }
    }

    fn micros(&self, item: &Item) -> Option<i64> {
        let (stream, time) = match item {
            Item::Frame(frame) => (self.video, frame.time.pts),
            Item::Packet(packet) => (packet.stream(), packet.dts().or(packet.pts())),
            Item::End => return None,
        };
        let &(num, den) = self.bases.get(stream)?;
        if den <= 0 {
            return None;
        }
        i64::try_from(i128::from(time?) * i128::from(num) * 1_000_000 / i128::from(den)).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::media::Packet;

    /// A clock that only its sleeps move.
    #[derive(Clone, Default)]
    struct Mock(Arc<Mutex<Duration>>);

    impl Clock for Mock {
        fn now(&self) -> Duration {
            *self.0.lock().unwrap()
        }

        fn sleep(&mut self, time: Duration) {
            assert!(time <= NAP && !time.is_zero());
            *self.0.lock().unwrap() += time;
        }
    }

    fn packet(stream: usize, pts: i64) -> Item {
        Item::Packet(Packet::empty(stream, pts).unwrap())
    }

    #[test]
    fn items_leave_when_their_time_has_come() {
        let clock = Mock::default();
        let mut pace = Pace::new(Box::new(clock.clone()), vec![(1, 25), (1, 1000)], 0);
        let cancel = Cancel::new();
        let mut at = |item: Item| {
            pace.hold(&item, &cancel);
            clock.now().as_millis()
        };
        // Starting at 2 s; the other stream's clock counts milliseconds; what is late or has no stream does not wait.
        assert_eq!([(0, 50), (1, 2020), (0, 51), (1, 2010), (7, 9999), (0, 100)].map(|(s, t)| at(packet(s, t))), [0, 20, 40, 40, 40, 2000]);
        assert_eq!(at(Item::End), 2000);
        cancel.request(2);
        assert_eq!(at(packet(0, 1000)), 2000);
    }
}
