//! `bench --compare OLD.json`: what got faster or slower beyond the noise.

use super::row::{Document, Row};

/// What became of one row.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Within the threshold, or within the noise.
    Same,
    /// Beyond both.
    Faster,
    /// Beyond both.
    Slower,
    /// It had a time and now has an error.
    Broken(String),
    /// It was measured then and not now.
    Gone,
    /// It is measured now and was not then.
    New,
}

/// One row, then and now.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The row.
    pub label: String,
    /// Median then.
    pub old_us: Option<f64>,
    /// Median now.
    pub new_us: Option<f64>,
    /// What it means.
    pub verdict: Verdict,
}

impl Change {
    /// Whether it counts as a regression.
    pub fn is_regression(&self) -> bool {
        match self.verdict {
            Verdict::Slower | Verdict::Broken(_) => true,
            Verdict::Same | Verdict::Faster | Verdict::Gone | Verdict::New => false,
        }
    }
}

/// Compares row by row, in the new bench's order, then those that are gone.
///
/// A row is slower if its median grew by more than `threshold` (0.05 is 5 %) and its fastest 5 % are slower than the old one's slowest 5 %:
/// a change that the scatter of either run can explain is none. It is faster if the old row would be slower in its place.
pub fn changes(old: &Document, new: &Document, threshold: f64) -> Vec<Change> {
    let find = |rows: &[Row], key: &str| rows.iter().position(|r| r.key() == key);
    let mut found: Vec<Change> = new
        .rows
        .iter()
        .map(|row| {
            let before = find(&old.rows, &row.key()).and_then(|i| old.rows.get(i));
            let then = before.and_then(|r| r.time_us);
            let verdict = match (then, row.time_us, &row.error) {
                (Some(_), None, error) => Verdict::Broken(error.clone().unwrap_or_default()),
                (Some(then), Some(now), _) => {
                    // By how much the longer time exceeds the shorter: a threshold of 100 % is a factor of two either way.
                    let grew = |from: f64, to: f64| from > 0.0 && to > from * (1.0 + threshold);
                    match () {
                        () if grew(then.median, now.median) && now.p5 > then.p95 => Verdict::Slower,
                        () if grew(now.median, then.median) && now.p95 < then.p5 => Verdict::Faster,
                        () => Verdict::Same,
                    }
                }
                (None, _, _) => Verdict::New,
            };
            Change { label: row.label(), old_us: then.map(|t| t.median), new_us: row.time_us.map(|t| t.median), verdict }
        })
        .collect();
    let gone = old.rows.iter().filter(|row| find(&new.rows, &row.key()).is_none());
    found.extend(gone.map(|row| Change {
        label: row.label(),
        old_us: row.time_us.map(|t| t.median),
        new_us: None,
        verdict: Verdict::Gone,
    }));
    found
}

/// The changes as a table; rows that stayed the same are only counted.
pub fn report(changes: &[Change], threshold: f64) -> String {
    use std::fmt::Write;
    let mut text = String::new();
    let time = |us: Option<f64>| us.map_or("-".to_owned(), |us| format!("{us:.2}"));
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{:<9} {:>12} {:>12} {:>8}  row", "change", "old µs", "new µs", "new/old");
    for change in changes {
        let (word, tail) = match &change.verdict {
            Verdict::Same => continue,
            Verdict::Faster => ("faster", String::new()),
            Verdict::Slower => ("SLOWER", String::new()),
            Verdict::Broken(error) => ("BROKEN", format!(": {error}")),
            Verdict::Gone => ("gone", String::new()),
            Verdict::New => ("new", String::new()),
        };
        let ratio = change.old_us.zip(change.new_us).map_or("-".to_owned(), |(old, new)| format!("{:.3}", new / old.max(1e-9)));
        let _ = writeln!(text, "{word:<9} {:>12} {:>12} {ratio:>8}  {}{tail}", time(change.old_us), time(change.new_us), change.label);
    }
    let same = changes.iter().filter(|c| c.verdict == Verdict::Same).count();
    let _ = write!(
        text,
        "{same} rows within the noise or {:.0} %, {} regressions",
        100.0 * threshold,
        changes.iter().filter(|c| c.is_regression()).count()
    );
    text
}

#[cfg(test)]
mod tests {
    use super::super::store::tests::{document, row};
    use super::*;

    #[test]
    fn only_what_noise_cannot_explain_counts() {
        let old = document(vec![
            row("slower", "a", &[100.0, 101.0, 102.0]),
            row("noisy", "a", &[100.0, 101.0, 140.0]),
            row("little", "a", &[100.0, 100.0, 100.0]),
            row("faster", "a", &[100.0, 101.0, 102.0]),
            row("broken", "a", &[100.0]),
            row("gone", "a", &[100.0]),
        ]);
        let mut broken = row("broken", "a", &[]);
        broken.error = Some("wrong".to_owned());
        let new = document(vec![
            row("slower", "a", &[110.0, 111.0, 112.0]),
            row("noisy", "a", &[110.0, 111.0, 112.0]),
            row("little", "a", &[104.0, 104.0, 104.0]),
            row("faster", "a", &[90.0, 91.0, 92.0]),
            broken,
            row("slower", "b", &[1.0]),
        ]);
        let found = changes(&old, &new, 0.05);
        let verdicts: Vec<_> = found.iter().map(|c| c.verdict.clone()).collect();
        let want =
            [Verdict::Slower, Verdict::Same, Verdict::Same, Verdict::Faster, Verdict::Broken("wrong".into()), Verdict::New, Verdict::Gone];
        assert_eq!(verdicts, want);
        assert_eq!((found[0].old_us, found[0].new_us), (Some(101.0), Some(111.0)));
        let text = report(&found, 0.05);
        assert!(
            text.contains("SLOWER") && text.contains("1.099") && text.ends_with("2 rows within the noise or 5 %, 2 regressions"),
            "{text}"
        );
        // Thresholds of a factor and more tell both ways.
        let (slow, fast) = (document(vec![row("x", "a", &[300.0])]), document(vec![row("x", "a", &[100.0])]));
        for (threshold, both) in [(1.9, [Verdict::Faster, Verdict::Slower]), (2.1, [Verdict::Same, Verdict::Same])] {
            let found = [changes(&slow, &fast, threshold), changes(&fast, &slow, threshold)].map(|c| c[0].verdict.clone());
            assert_eq!(found, both, "{threshold}");
        }
        // Against itself nothing changed.
        assert!(changes(&new, &new, 0.0).iter().filter(|c| c.new_us.is_some()).all(|c| c.verdict == Verdict::Same));
    }
}
