//! How long a whole run must be, so that what is measured is filtering and not the start of a process.
//!
//! A run on one frame is nearly all start-up: loading, opening, a device's context. A short run beyond that tells what a frame takes, and from
//! both follows the number of frames that keeps the program filtering for [`FILTERING`]. The start-up stays in the measured time, as a user
//! meets it, and is told beside it.

use std::time::Duration;

use super::race::Clock;
use crate::error::Result;

/// Filtering per run, start-up not counted: a second, and what a short run overestimates a frame by.
const FILTERING: Duration = Duration::from_millis(1050);
/// A short run that tells the time per frame filters this long.
const PROBE: Duration = Duration::from_millis(250);
/// Frames of the first short run.
const FIRST: u64 = 25;
/// Frames of a run at least: enough that filling and draining the stages is no part of it …
const LEAST: u64 = 100;
/// … and at most, where frames are tiny.
const MOST: u64 = 20_000;

/// Runs a program on that many frames.
pub(super) type Run<'a> = dyn FnMut(u64) -> Result<()> + 'a;

fn timed(clock: &dyn Clock, run: &mut Run<'_>, frames: u64) -> Result<Duration> {
    let start = clock.now();
    run(frames)?;
    Ok(clock.now().saturating_sub(start))
}

/// What a run on one frame takes once the program and the input are in memory: the shorter of two after a first one.
///
/// # Errors
/// The program's own.
pub(super) fn start_up(clock: &dyn Clock, run: &mut Run<'_>) -> Result<Duration> {
    run(1)?;
    Ok(timed(clock, run, 1)?.min(timed(clock, run, 1)?))
}

/// Frames that a program with this start-up filters for about a second.
///
/// # Errors
/// The program's own.
pub(super) fn frames(clock: &dyn Clock, start_up: Duration, run: &mut Run<'_>) -> Result<u64> {
    let mut tried = FIRST;
    loop {
        let net = timed(clock, run, tried)?.saturating_sub(start_up);
        if net >= PROBE || tried >= MOST {
            // The first frame's own time is in the start-up.
            let per_frame = net.as_secs_f64().max(1e-9) / (tried - 1) as f64;
            let wanted = (FILTERING.as_secs_f64() / per_frame).ceil() as u64;
            return Ok(wanted.clamp(LEAST, MOST).next_multiple_of(10));
        }
        tried = (4 * tried).min(MOST);
    }
}

/// Frames that a program, which may be a hundred times slower, gets through in `longest`, start-up included; as many as a run has at least in
/// any case.
///
/// # Errors
/// The program's own.
pub(super) fn within(clock: &dyn Clock, longest: Duration, run: &mut Run<'_>) -> Result<u64> {
    let per_frame = timed(clock, run, FIRST)?.as_secs_f64().max(1e-9) / FIRST as f64;
    Ok(((longest.as_secs_f64() / per_frame) as u64).clamp(LEAST, MOST) / 10 * 10)
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use super::*;
    use crate::error::Error;

    /// A program on a clock that only it moves: start-up, then a time for each frame after the first.
    struct Fake {
        now: Cell<Duration>,
        start_up: Duration,
        frame: Duration,
        /// Added to its first run.
        cold: Cell<Duration>,
        asked: RefCell<Vec<u64>>,
    }

    impl Clock for Fake {
        fn now(&self) -> Duration {
            self.now.get()
        }
    }

    impl Fake {
        fn new(start_up_ms: u64, frame_us: u64) -> Self {
            let (start_up, frame) = (Duration::from_millis(start_up_ms), Duration::from_micros(frame_us));
            Self { now: Cell::default(), start_up, frame, cold: Cell::new(Duration::from_secs(3)), asked: RefCell::default() }
        }

        fn run(&self, frames: u64) -> Result<()> {
            self.asked.borrow_mut().push(frames);
            let frame = self.frame * u32::try_from(frames - 1).unwrap();
            self.now.set(self.now.get() + self.start_up + frame + self.cold.take());
            Ok(())
        }

        fn measure(&self) -> (Duration, u64, Vec<u64>) {
            let run = &mut |frames| self.run(frames);
            let start = start_up(self, run).unwrap();
            (start, frames(self, start, run).unwrap(), self.asked.take())
        }
    }

    #[test]
    fn a_run_filters_for_its_time_whatever_the_start_costs() {
        // 916 fps behind a start of 80 ms: 150 frames would be half start-up.
        let (start, frames, asked) = Fake::new(80, 1092).measure();
        assert_eq!((start, frames), (Duration::from_millis(80), 970));
        // 25 frames filter for 26 ms, 100 for 108, 400 for 436: that is enough to tell.
        assert_eq!(asked, [1, 1, 1, 25, 100, 400]);
        // A device that takes longer to open changes nothing in it.
        assert_eq!(Fake::new(600, 1092).measure().1, 970);
        let (_, frames, asked) = Fake::new(80, 13_000).measure();
        assert_eq!((frames, asked), (100, vec![1, 1, 1, 25]));
        // Slow ones run long enough anyway, tiny frames end somewhere.
        assert_eq!(Fake::new(80, 400_000).measure().1, LEAST);
        let (_, frames, asked) = Fake::new(80, 1).measure();
        assert_eq!((frames, asked.last()), (MOST, Some(&MOST)));
        assert_eq!(Fake::new(80, 0).measure().1, MOST);
    }

    #[test]
    fn a_slow_program_runs_no_longer_than_it_may() {
        let slow = |frame_us| {
            let fake = Fake { cold: Cell::default(), ..Fake::new(40, frame_us) };
            within(&fake, Duration::from_secs(40), &mut |frames| fake.run(frames)).unwrap()
        };
        // 10 fps: 2.44 s for 25 frames, a little over 400 in 40 s.
        assert_eq!(slow(100_000), 400);
        assert_eq!((slow(10), slow(2_000_000)), (MOST, LEAST));
    }

    #[test]
    fn a_cold_start_is_not_the_start_up_and_a_failure_is_told() {
        let fake = Fake::new(80, 100);
        assert_eq!(start_up(&fake, &mut |frames| fake.run(frames)).unwrap(), Duration::from_millis(80));
        let fails = &mut |_| Err(Error::failed("the fake", "broke"));
        assert!(start_up(&fake, fails).is_err() && frames(&fake, Duration::ZERO, fails).is_err());
    }
}
