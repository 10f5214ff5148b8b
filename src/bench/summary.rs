//! What many timings of one thing come to, and when they are not to be trusted.

use serde::{Deserialize, Serialize};

/// Order statistics of repetitions, in the unit of the samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Half of the repetitions lie below.
    pub median: f64,
    /// 5 % lie below.
    pub p5: f64,
    /// 95 % lie below.
    pub p95: f64,
    /// The lowest.
    pub min: f64,
    /// The highest.
    pub max: f64,
    /// (p95 − p5) / median.
    pub spread: f64,
    /// Repetitions.
    pub count: usize,
}

impl Summary {
    /// Of any number of samples in any order; all zero without any.
    pub fn of(samples: &[f64]) -> Self {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (Some(&min), Some(&max)) = (sorted.first(), sorted.last()) else { return Self::default() };
        let (median, p5, p95) = (quantile(&sorted, 0.5), quantile(&sorted, 0.05), quantile(&sorted, 0.95));
        let spread = if median > 0.0 { (p95 - p5) / median } else { 0.0 };
        Self { median, p5, p95, min, max, spread, count: sorted.len() }
    }

    /// The same in another unit.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        let [median, p5, p95, min, max] = [self.median, self.p5, self.p95, self.min, self.max].map(|v| v * factor);
        Self { median, p5, p95, min, max, ..self }
    }
}

/// Quantile `share` (0…1) of ascending samples, interpolated between neighbours (R's type 7, NumPy's default).
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = share * sorted.len().saturating_sub(1) as f64;
    let at = |i: f64| sorted.get(i as usize).copied().unwrap_or(0.0);
    let (low, high) = (at(place.floor()), at(place.ceil()));
    low + (high - low) * place.fract()
}

/// Spread from which a row is suspect.
const WIDE_SPREAD: f64 = 0.10;
/// Change of the clock, or of the times over a row, from which it is suspect.
const MOVED: f64 = 0.05;
/// Repetitions below which percentiles mean little.
const FEW: usize = 5;

/// Why a row is suspect, and what to do; empty for a good one. `samples` are in the order in which they were taken, `clock_mhz`
/// is the clock before and after.
pub fn warnings(samples: &[f64], clock_mhz: Option<[f64; 2]>) -> Vec<String> {
    let summary = Summary::of(samples);
    let mut found = Vec::new();
    if summary.count < FEW {
        found.push(format!("only {} repetitions: raise --runs", summary.count));
    }
    if summary.spread > WIDE_SPREAD {
        let percent = 100.0 * summary.spread;
        found.push(format!("the middle 90 % of the times span {percent:.0} % of the median: stop other programs, or raise --runs"));
    }
    if let Some([before, after]) = clock_mhz
        && before > 0.0
        && (after - before).abs() / before > MOVED
    {
        found.push(format!(
            "the clock moved from {before:.0} to {after:.0} MHz: warm up longer (--warm-up), let the machine cool, or lock the clock \
             (nvidia-smi --lock-gpu-clocks, cpupower frequency-set)"
        ));
    }
    let third = samples.len() / 3;
    if third >= FEW {
        let (first, last) = (Summary::of(&samples[..third]).median, Summary::of(&samples[samples.len() - third..]).median);
        if first > 0.0 && (last - first).abs() / first > MOVED {
            let (word, percent) = (if last > first { "rose" } else { "fell" }, 100.0 * (last - first).abs() / first);
            found.push(format!("the times {word} by {percent:.0} % from the first third to the last: warm up longer (--warm-up)"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_statistics_are_exact() {
        let samples: Vec<f64> = (1..=21).rev().map(f64::from).collect();
        let s = Summary::of(&samples);
        assert_eq!((s.median, s.p5, s.p95, s.min, s.max, s.count), (11.0, 2.0, 20.0, 1.0, 21.0, 21));
        assert_eq!(s.spread, 18.0 / 11.0);
        // Between neighbours: 0.05 · 3 = 0.15 of the way from 1 to 2.
        let s = Summary::of(&[4.0, 1.0, 3.0, 2.0]);
        assert_eq!((s.median, s.p5), (2.5, 1.15));
        assert!((s.p95 - 3.85).abs() < 1e-12);
        assert_eq!(Summary::of(&[7.0]).spread, 0.0);
        assert_eq!(Summary::of(&[]), Summary::default());
        assert_eq!(Summary::of(&[2.0, 4.0]).scaled(0.5).median, 1.5);
    }

    #[test]
    fn a_steady_row_has_no_warning_and_each_fault_has_its_own() {
        let steady: Vec<f64> = (0..30).map(|i| 100.0 + f64::from(i % 3)).collect();
        assert_eq!(warnings(&steady, Some([1980.0, 1975.0])), Vec::<String>::new());
        let only = |samples: &[f64], clock, word: &str| {
            let found = warnings(samples, clock);
            assert!(found.len() == 1 && found[0].contains(word), "{found:?}");
        };
        only(&steady, Some([1980.0, 1410.0]), "from 1980 to 1410 MHz");
        only(&[1.0, 1.0], None, "only 2 repetitions");
        let noisy: Vec<f64> = (0..30).map(|i| if i % 3 == 0 { 130.0 } else { 100.0 }).collect();
        only(&noisy, None, "span 30 %");
        let rising: Vec<f64> = (0..30).map(|i| 100.0 + f64::from(i) * 0.29).collect();
        only(&rising, None, "rose by 6 %");
    }
}
