//! Image sequences: `f_%04d.png` names files by number; the start is found, a gap is reported.

use std::path::{Path, PathBuf};

/// A pattern with one `%d` or `%0Nd` in its file name.
pub(super) struct Sequence {
    folder: PathBuf,
    prefix: String,
    suffix: String,
    digits: usize,
}

/// What lies on disk for a pattern.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Lowest number.
    pub first: u64,
    /// Last number before a gap.
    pub last: u64,
    /// Number after the gap, if files follow one.
    pub after_gap: Option<u64>,
}

impl Sequence {
    /// Splits a path; None when it is no pattern.
    pub(super) fn parse(path: &str) -> Option<Self> {
        let path = Path::new(path);
        let name = path.file_name()?.to_str()?;
        let (prefix, rest) = name.split_once('%')?;
        let end = rest.find(|c: char| !c.is_ascii_digit())?;
        let (width, suffix) = (rest.get(..end)?, rest.get(end..)?.strip_prefix('d')?);
        if suffix.contains('%') {
            return None;
        }
        let digits = if width.is_empty() { 0 } else { width.parse().ok()? };
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_path_buf();
        Some(Self { folder, prefix: prefix.to_owned(), suffix: suffix.to_owned(), digits })
    }

    fn number(&self, name: &str) -> Option<u64> {
        let digits = name.strip_prefix(self.prefix.as_str())?.strip_suffix(self.suffix.as_str())?;
        let padded = digits.len() >= self.digits && (digits.len() == self.digits.max(1) || !digits.starts_with('0'));
        (padded && digits.bytes().all(|b| b.is_ascii_digit())).then(|| digits.parse().ok()).flatten()
    }

    /// Looks at the folder for numbers of at least `from`; None when no file matches.
    pub(super) fn scan(&self, from: u64) -> Option<Found> {
        let entries = std::fs::read_dir(&self.folder).ok()?;
        let numbers = entries.flatten().filter_map(|e| self.number(e.file_name().to_str()?));
        let mut numbers: Vec<u64> = numbers.filter(|&n| n >= from).collect();
        numbers.sort_unstable();
        let first = *numbers.first()?;
        let last = numbers.iter().zip(first..).take_while(|&(&n, expected)| n == expected).last().map_or(first, |(&n, _)| n);
        Some(Found { first, last, after_gap: numbers.into_iter().find(|&n| n > last) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_number_and_the_gap_are_found() {
        let folder = tempfile::tempdir().unwrap();
        for n in [98, 99, 100, 103] {
            std::fs::write(folder.path().join(format!("f_{n:03}.png")), b"").unwrap();
        }
        std::fs::write(folder.path().join("f_x.png"), b"").unwrap();
        let pattern = folder.path().join("f_%03d.png");
        let found = Sequence::parse(pattern.to_str().unwrap()).unwrap().scan(0).unwrap();
        assert_eq!(found, Found { first: 98, last: 100, after_gap: Some(103) });
        let later = Sequence::parse(pattern.to_str().unwrap()).unwrap().scan(100).unwrap();
        assert_eq!(later, Found { first: 100, last: 100, after_gap: Some(103) });
        let unpadded = folder.path().join("f_%d.png");
        assert_eq!(Sequence::parse(unpadded.to_str().unwrap()).unwrap().scan(0).unwrap().first, 100);
    }

    #[test]
    fn ordinary_names_are_no_pattern() {
        for name in ["a.mp4", "100%.mp4", "%s.png", "a%d_%d.png"] {
            assert!(Sequence::parse(name).is_none(), "{name}");
        }
    }
}
