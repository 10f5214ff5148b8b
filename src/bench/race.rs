//! The measuring core: contenders take turns on one clock, so that whatever disturbs the machine hits all of them.
//!
//! Each contender is first held to the reference; one that fails is never timed. The rest warm up by time, which also tells how
//! many frames make one repetition long enough for the clock. Then every round times each of them once, starting with another
//! one each time, on inputs that rotate. Clock and contenders are handed in: the tests measure with neither time nor a device.

use std::time::{Duration, Instant};

use super::summary::{Summary, warnings};
use crate::error::{Error, Result};
use crate::reference::Comparison;

/// A clock that never goes back.
pub trait Clock {
    /// Time since some fixed moment.
    fn now(&self) -> Duration;
}

/// The machine's monotonic clock.
#[derive(Debug)]
pub struct WallClock(Instant);

impl WallClock {
    /// A clock that starts now.
    pub fn start() -> Self {
        Self(Instant::now())
    }
}

impl Clock for WallClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Something that is timed.
pub trait Subject {
    /// Compares its results with the reference. Called once, before anything is timed.
    ///
    /// # Errors
    /// The result is wrong, or the subject cannot run; its row shows this instead of a time.
    fn verify(&mut self) -> Result<Comparison>;

    /// Inputs that it holds; more than the caches take, so that none is found there when its turn comes again.
    fn inputs(&self) -> usize;

    /// Processes `frames` frames, the first of which is input `first`, and waits for the last one. Returns what the device's own
    /// clock says they took in nanoseconds, where there is one.
    ///
    /// # Errors
    /// Anything that ends the row.
    fn run(&mut self, first: usize, frames: usize) -> Result<Option<f64>>;

    /// [`Subject::run`] is asked for multiples of this many frames.
    fn granule(&self) -> usize {
        1
    }

    /// The clock that drives it in MHz, where that can be asked.
    fn clock_mhz(&mut self) -> Option<f64> {
        None
    }
}

/// How long and how often.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Each contender runs at least this long before it is timed.
    pub warm_up: Duration,
    /// A repetition takes at least this long: frames are added until it does.
    pub repetition: Duration,
    /// Repetitions at least.
    pub least: usize,
    /// Repetitions at most.
    pub most: usize,
    /// Repetitions beyond the least are taken until a contender has been timed this long.
    pub budget: Duration,
    /// Frames of every repetition, for contenders that must all do the same; each then runs once on a tenth of them to warm up.
    pub frames: Option<usize>,
}

impl Default for Settings {
    fn default() -> Self {
        let ms = Duration::from_millis;
        Self { warm_up: ms(100), repetition: ms(5), least: 11, most: 101, budget: ms(600), frames: None }
    }
}

/// Times of one contender, per frame, in microseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// What was compared with the reference.
    pub verdict: Comparison,
    /// By the host's clock, waits and launches included.
    pub wall: Summary,
    /// By the device's clock.
    pub device: Option<Summary>,
    /// Frames of one repetition.
    pub frames: usize,
    /// The subject's clock before and after, in MHz.
    pub clock_mhz: Option<[f64; 2]>,
    /// Why the times are suspect, and what to do.
    pub warnings: Vec<String>,
}

impl Measured {
    /// The times that count: the device's where it has a clock.
    pub fn time(&self) -> Summary {
        self.device.unwrap_or(self.wall)
    }
}

struct Runner<'a> {
    subject: &'a mut dyn Subject,
    verdict: Comparison,
    next: usize,
    frames: usize,
    repetitions: usize,
    wall: Vec<f64>,
    device: Vec<f64>,
    clock_before: Option<f64>,
}

impl Runner<'_> {
    /// Runs `frames` frames; wall and device time in nanoseconds.
    fn run(&mut self, clock: &dyn Clock, frames: usize) -> Result<(f64, Option<f64>)> {
        let first = self.next;
        self.next = (self.next + frames) % self.subject.inputs().max(1);
        let start = clock.now();
        let device = self.subject.run(first, frames)?;
        Ok((clock.now().saturating_sub(start).as_nanos() as f64, device))
    }

    /// Runs for the warm-up time and sets frames per repetition and the number of repetitions from what it saw.
    fn warm_up(&mut self, clock: &dyn Clock, settings: &Settings) -> Result<()> {
        if let Some(frames) = settings.frames {
            let some = (frames / 10).max(1);
            let per_frame = (self.run(clock, some)?.0 / some as f64).max(1.0);
            self.frames = frames;
            let wanted = (settings.budget.as_nanos() as f64 / (per_frame * frames as f64)).ceil();
            self.repetitions = (wanted as usize).clamp(settings.least, settings.most.max(settings.least));
            self.clock_before = self.subject.clock_mhz();
            return Ok(());
        }
        let begin = clock.now();
        let granule = self.subject.granule().max(1);
        let most = MOST_FRAMES.max(granule);
        let mut frames = granule;
        loop {
            let (ns, _) = self.run(clock, frames)?;
            let long_enough = ns >= settings.repetition.as_nanos() as f64;
            if clock.now().saturating_sub(begin) >= settings.warm_up && (long_enough || frames >= most) {
                let least = settings.repetition.as_nanos() as f64;
                // The last chunk was warm: what it took per frame tells how many frames a repetition needs.
                let per_frame = (ns / frames as f64).max(1.0);
                self.frames = ((least / per_frame).ceil() as usize).clamp(1, most).next_multiple_of(granule);
                let wanted = settings.budget.as_nanos() as f64 / (per_frame * self.frames as f64);
                // What takes very long is repeated less: three times at least.
                let bearable = (PATIENCE.as_nanos() as f64 / (per_frame * self.frames as f64)) as usize;
                let least = settings.least.min(bearable.max(FEWEST)).max(1);
                self.repetitions = (wanted as usize).clamp(least, settings.most.max(least));
                self.clock_before = self.subject.clock_mhz();
                return Ok(());
            }
            if !long_enough {
                frames = (2 * frames).min(most.next_multiple_of(granule));
            }
        }
    }

    fn repeat(&mut self, clock: &dyn Clock) -> Result<()> {
        let frames = self.frames;
        let (wall, device) = self.run(clock, frames)?;
        let us = |ns: f64| ns / 1e3 / frames as f64;
        self.wall.push(us(wall));
        self.device.extend(device.map(us));
        Ok(())
    }

    fn finish(self) -> Measured {
        let clock_mhz = self.clock_before.and_then(|before| Some([before, self.subject.clock_mhz()?]));
        // A device that told its time only now and then told nothing.
        let device = (!self.device.is_empty() && self.device.len() == self.wall.len()).then_some(self.device);
        let warnings = warnings(device.as_ref().unwrap_or(&self.wall), clock_mhz);
        Measured {
            verdict: self.verdict,
            wall: Summary::of(&self.wall),
            device: device.map(|samples| Summary::of(&samples)),
            frames: self.frames,
            clock_mhz,
            warnings,
        }
    }
}

/// Repetitions below [`Settings::least`] are accepted when those would take longer than this …
const PATIENCE: Duration = Duration::from_secs(8);
/// … but never fewer than these.
const FEWEST: usize = 3;
/// Frames per repetition at most.
const MOST_FRAMES: usize = 1 << 16;

/// Verifies, warms up and times the contenders against each other. One outcome each, in their order; a contender that fails drops
/// out with its error, and the others go on.
pub fn race(clock: &dyn Clock, contenders: &mut [&mut dyn Subject], settings: &Settings) -> Vec<Result<Measured>> {
    let start = |subject: &mut dyn Subject| -> Result<Comparison> { subject.verify() };
    let mut runners: Vec<Result<Runner<'_>>> = contenders
        .iter_mut()
        .map(|subject| {
            let verdict = start(&mut **subject)?;
            let (wall, device) = (Vec::with_capacity(settings.most), Vec::with_capacity(settings.most));
            Ok(Runner { subject: &mut **subject, verdict, next: 0, frames: 1, repetitions: 0, wall, device, clock_before: None })
        })
        .collect();
    let mut each = |work: &mut dyn FnMut(&mut Runner<'_>) -> Result<()>, first: usize| {
        let count = runners.len();
        for turn in 0..count {
            let slot = &mut runners[(first + turn) % count];
            if let Ok(runner) = slot
                && let Err(error) = work(runner)
            {
                *slot = Err(error);
            }
        }
        runners.iter().flatten().map(|r| r.repetitions).max().unwrap_or(0)
    };
    let rounds = each(&mut |runner| runner.warm_up(clock, settings), 0);
    for round in 0..rounds {
        let repeat = &mut |runner: &mut Runner<'_>| if round < runner.repetitions { runner.repeat(clock) } else { Ok(()) };
        each(repeat, round);
    }
    runners.into_iter().map(|runner| runner.map(Runner::finish)).collect()
}

/// The error of a row whose result is not the reference's.
pub fn wrong_result(what: &str, why: impl std::fmt::Display) -> Error {
    Error::failed(format!("{what}: wrong result, not timed"), why)
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    use super::*;

    /// Time that only the fakes move.
    #[derive(Default)]
    struct Stopped(Cell<u64>);

    impl Clock for Stopped {
        fn now(&self) -> Duration {
            Duration::from_nanos(self.0.get())
        }
    }

    type Log = Rc<RefCell<Vec<(&'static str, usize, usize)>>>;

    struct Fake {
        name: &'static str,
        clock: Rc<Stopped>,
        log: Log,
        /// Nanoseconds of each call in turn per frame, then the last one for ever.
        costs: Vec<u64>,
        calls: usize,
        verdict: Result<(), String>,
        fails_at: Option<usize>,
        device_share: Option<f64>,
        mhz: Vec<f64>,
    }

    impl Subject for Fake {
        fn verify(&mut self) -> Result<Comparison> {
            match &self.verdict {
                Ok(()) => Ok(Comparison { samples: 100, exact: 100, ..Comparison::default() }),
                Err(why) => Err(wrong_result(self.name, why)),
            }
        }

        fn inputs(&self) -> usize {
            5
        }

        fn run(&mut self, first: usize, frames: usize) -> Result<Option<f64>> {
            self.log.borrow_mut().push((self.name, first, frames));
            if self.fails_at == Some(self.calls) {
                return Err(Error::failed("the fake broke", "as planned"));
            }
            let cost = self.costs[self.calls.min(self.costs.len() - 1)] * frames as u64;
            self.calls += 1;
            self.clock.0.set(self.clock.0.get() + cost);
            Ok(self.device_share.map(|share| cost as f64 * share))
        }

        fn clock_mhz(&mut self) -> Option<f64> {
            (!self.mhz.is_empty()).then(|| self.mhz.remove(0))
        }
    }

    fn fake(name: &'static str, clock: &Rc<Stopped>, log: &Log, costs: &[u64]) -> Fake {
        let (clock, log) = (Rc::clone(clock), Rc::clone(log));
        Fake { name, clock, log, costs: costs.to_vec(), calls: 0, verdict: Ok(()), fails_at: None, device_share: None, mhz: vec![] }
    }

    const MS: u64 = 1_000_000;

    fn settings() -> Settings {
        let ms = Duration::from_millis;
        Settings { warm_up: ms(20), repetition: ms(10), least: 3, most: 5, budget: ms(40), frames: None }
    }

    #[test]
    fn warm_up_lasts_its_time_and_sizes_the_repetitions() {
        let (clock, log) = (Rc::new(Stopped::default()), Log::default());
        // 8 ms cold, then 1 ms: 1, 2, 4, 8, 16 frames until a chunk fills 10 ms; ten frames a repetition from then on.
        let mut a = fake("a", &clock, &log, &[8 * MS, MS]);
        let outcome = race(&*clock, &mut [&mut a], &settings()).remove(0).unwrap();
        assert_eq!(outcome.frames, 10);
        assert_eq!((outcome.wall.median, outcome.wall.count, outcome.wall.spread), (1000.0, 4, 0.0));
        let chunks: Vec<_> = log.borrow().iter().map(|l| l.2).collect();
        assert_eq!(chunks, [1, 2, 4, 8, 16, 10, 10, 10, 10]);
        // Inputs rotate: each run begins where the last one ended, modulo five.
        let firsts: Vec<_> = log.borrow().iter().map(|l| l.1).collect();
        assert_eq!(firsts, [0, 1, 3, 2, 0, 1, 1, 1, 1]);
        assert_eq!(outcome.warnings, ["only 4 repetitions: raise --runs"]);
        assert_eq!(outcome.verdict.samples, 100);
    }

    #[test]
    fn contenders_take_turns_and_none_is_always_first() {
        let (clock, log) = (Rc::new(Stopped::default()), Log::default());
        let mut a = fake("a", &clock, &log, &[10 * MS]);
        let mut b = fake("b", &clock, &log, &[20 * MS]);
        let outcomes = race(&*clock, &mut [&mut a, &mut b], &Settings { least: 4, ..settings() });
        let medians: Vec<_> = outcomes.into_iter().map(|o| o.unwrap().wall.median).collect();
        assert_eq!(medians, [10_000.0, 20_000.0]);
        let order: String = log.borrow().iter().map(|l| l.0).collect();
        // Warm-up: twice 10 ms for a, once 20 ms for b; then four rounds.
        assert_eq!(order, "aab".to_owned() + "ab" + "ba" + "ab" + "ba");
    }

    #[test]
    fn the_number_of_repetitions_stays_within_its_bounds() {
        for (cost, count) in [(MS, 4), (100 * MS, 3)] {
            let (clock, log) = (Rc::new(Stopped::default()), Log::default());
            let mut a = fake("a", &clock, &log, &[cost]);
            assert_eq!(race(&*clock, &mut [&mut a], &settings()).remove(0).unwrap().wall.count, count);
        }
        let (clock, log) = (Rc::new(Stopped::default()), Log::default());
        let mut a = fake("a", &clock, &log, &[MS]);
        let settings = Settings { budget: Duration::from_secs(9), ..settings() };
        assert_eq!(race(&*clock, &mut [&mut a], &settings).remove(0).unwrap().wall.count, 5);
    }

    #[test]
    fn contenders_that_must_do_the_same_do_it_and_the_slow_less_often() {
        let (clock, log) = (Rc::new(Stopped::default()), Log::default());
        let mut quick = fake("quick", &clock, &log, &[MS]);
        let mut slow = fake("slow", &clock, &log, &[100 * MS]);
        let settings = Settings { least: 1, most: 3, budget: Duration::from_secs(6), frames: Some(40), ..settings() };
        let outcomes = race(&*clock, &mut [&mut quick, &mut slow], &settings);
        let told: Vec<_> = outcomes.into_iter().map(|o| o.unwrap()).map(|m| (m.frames, m.wall.count, m.wall.median)).collect();
        // 0.04 s a run, and 4 s: the second one passes the budget.
        assert_eq!(told, [(40, 3, 1000.0), (40, 2, 100_000.0)]);
        let frames: Vec<_> = log.borrow().iter().map(|l| l.2).collect();
        assert_eq!(frames, [4, 4, 40, 40, 40, 40, 40]);
    }

    #[test]
    fn percentiles_are_those_of_the_repetitions() {
        let (clock, log) = (Rc::new(Stopped::default()), Log::default());
        let mut a = fake("a", &clock, &log, &[20 * MS, 10 * MS, 12 * MS, 11 * MS, 14 * MS, 13 * MS]);
        a.device_share = Some(0.5);
        let outcome = race(&*clock, &mut [&mut a], &Settings { least: 5, ..settings() }).remove(0).unwrap();
        assert_eq!((outcome.wall.min, outcome.wall.median, outcome.wall.max), (10_000.0, 12_000.0, 14_000.0));
        assert!((outcome.wall.p5 - 10_200.0).abs() < 1e-9 && (outcome.wall.p95 - 13_800.0).abs() < 1e-9);
        // The device's own clock is shown beside, and counts.
        assert_eq!((outcome.device.unwrap().median, outcome.time().median), (6_000.0, 6_000.0));
        assert!(outcome.warnings[0].contains("span 30 %"), "{:?}", outcome.warnings);
    }

    #[test]
    fn a_clock_that_moved_is_a_warning() {
        let (clock, log) = (Rc::new(Stopped::default()), Log::default());
        let mut a = fake("a", &clock, &log, &[10 * MS]);
        a.mhz = vec![1980.0, 1200.0];
        let outcome = race(&*clock, &mut [&mut a], &Settings { least: 5, ..settings() }).remove(0).unwrap();
        assert_eq!(outcome.clock_mhz, Some([1980.0, 1200.0]));
        assert!(outcome.warnings[0].contains("from 1980 to 1200 MHz"));
    }

    #[test]
    fn a_wrong_contender_is_never_timed_and_a_broken_one_drops_out() {
        let (clock, log) = (Rc::new(Stopped::default()), Log::default());
        let mut wrong = fake("wrong", &clock, &log, &[1]);
        wrong.verdict = Err("plane 0, x 3, y 0: got 1, want 2".to_owned());
        let mut broken = fake("broken", &clock, &log, &[10 * MS]);
        broken.fails_at = Some(3);
        let mut good = fake("good", &clock, &log, &[10 * MS]);
        let outcomes = race(&*clock, &mut [&mut wrong, &mut broken, &mut good], &settings());
        let text = |i: usize| outcomes[i].as_ref().unwrap_err().to_string();
        assert_eq!(text(0), "wrong: wrong result, not timed: plane 0, x 3, y 0: got 1, want 2");
        assert_eq!(text(1), "the fake broke: as planned");
        assert_eq!(outcomes[2].as_ref().unwrap().wall.count, 4);
        assert!(log.borrow().iter().all(|l| l.0 != "wrong"));
    }
}
