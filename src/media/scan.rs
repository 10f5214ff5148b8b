//! How pictures were scanned: progressive, or as two fields of which one comes first; and streams that mix them.

use std::sync::atomic::{AtomicU64, Ordering};

use ffmpeg_next::ffi;

/// How a picture was scanned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan {
    /// All rows at once.
    Progressive,
    /// Two fields, the one of the even rows first.
    TopFirst,
    /// Two fields, the one of the odd rows first.
    BottomFirst,
}

impl Scan {
    /// What a decoded picture says.
    pub(super) fn of(frame: &ffi::AVFrame) -> Self {
        match (frame.interlaced_frame != 0, frame.top_field_first != 0) {
            (false, _) => Self::Progressive,
            (true, true) => Self::TopFirst,
            (true, false) => Self::BottomFirst,
        }
    }

    /// The same as FFmpeg's flags: interlaced, top field first.
    pub(super) fn flags(self) -> (i32, i32) {
        match self {
            Self::Progressive => (0, 0),
            Self::TopFirst => (1, 1),
            Self::BottomFirst => (1, 0),
        }
    }
}

/// How many pictures were scanned in which way.
#[derive(Debug, Default)]
pub(super) struct ScanCounts([AtomicU64; 3]);

impl ScanCounts {
    pub(super) fn count(&self, scan: Scan) {
        self.0[scan as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn of(&self, scan: Scan) -> u64 {
        self.0[scan as usize].load(Ordering::Relaxed)
    }

    /// What to say at the end about a stream that mixes them; None where all pictures are alike.
    pub(super) fn mixture(&self, done: &Treatment) -> Option<String> {
        let [progressive, top, bottom] = [Scan::Progressive, Scan::TopFirst, Scan::BottomFirst].map(|scan| self.of(scan));
        let interlaced = top + bottom;
        let all = progressive + interlaced;
        if progressive > 0 && interlaced > 0 {
            let (count, kind, fate) = match done.filtered {
                Some(By::Field) => {
                    (progressive, "progressive", "filtered field by field like the rest (--fields frame filters whole frames)")
                }
                Some(By::Frame) => (interlaced, "interlaced", "filtered as whole frames (--fields field filters each field by itself)"),
                None if done.marks_each => return None,
                None => (interlaced, "interlaced", "marked like the first one, since the encoder does not mark pictures one by one"),
            };
            return Some(format!("{count} of {all} pictures are {kind}, unlike the rest: they are {fate}"));
        }
        (top > 0 && bottom > 0 && !done.marks_each).then(|| {
            format!(
                "{} of {all} pictures show their other field first: the output gives all the order of the first picture",
                top.min(bottom)
            )
        })
    }
}

/// What was done with the pictures.
pub struct Treatment {
    /// How they were filtered; None where there was no filter.
    pub filtered: Option<By>,
    /// Whether the output marks every picture by itself.
    pub marks_each: bool,
}

/// In which pieces pictures are filtered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Whole.
    Frame,
    /// Each field by itself.
    Field,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mixture_is_told_from_a_pure_stream() {
        let counts = ScanCounts::default();
        let treated = |filtered, marks_each| Treatment { filtered, marks_each };
        for _ in 0..3 {
            counts.count(Scan::TopFirst);
        }
        assert_eq!(counts.mixture(&treated(Some(By::Frame), false)), None);
        counts.count(Scan::BottomFirst);
        assert_eq!(counts.mixture(&treated(Some(By::Field), true)), None);
        assert!(counts.mixture(&treated(None, false)).is_some_and(|t| t.starts_with("1 of 4 pictures show their other field first")));
        counts.count(Scan::Progressive);
        assert!(counts.mixture(&treated(Some(By::Field), true)).is_some_and(|t| t.starts_with("1 of 5 pictures are progressive")));
        assert!(counts.mixture(&treated(Some(By::Frame), true)).is_some_and(|t| t.starts_with("4 of 5 pictures are interlaced")));
        assert_eq!(counts.mixture(&treated(None, true)), None);
    }
}
