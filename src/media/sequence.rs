//! Image sequences: `f_%04d.png` names files by number; the start is found, and what a missing number means is decided.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use ffmpeg_next::ffi;

use super::timestamp;
use crate::error::{Error, Result};

/// What a missing number means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gaps {
    /// The run is refused before it starts.
    #[default]
    Error,
    /// The images on both sides follow each other.
    Skip,
    /// The image before the gap stays on screen: every image keeps the time that its number stands for.
    Hold,
}

/// A pattern with one `%d` or `%0Nd` in its file name.
pub(super) struct Sequence {
    folder: PathBuf,
    prefix: String,
    suffix: String,
    digits: usize,
}

/// The images of a sequence, in order.
pub(super) struct Images {
    numbers: Vec<u64>,
    gaps: Gaps,
    /// Links to the images under numbers without gaps, which is what FFmpeg's reader wants; their suffix.
    links: Option<(tempfile::TempDir, String)>,
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

    /// The numbers of at least `from` in the folder, in order.
    fn scan(&self, from: u64) -> Vec<u64> {
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten();
        let numbers = entries.flatten().filter_map(|e| self.number(e.file_name().to_str()?));
        let mut numbers: Vec<u64> = numbers.filter(|&n| n >= from).collect();
        numbers.sort_unstable();
        numbers
    }

    fn file(&self, number: u64) -> PathBuf {
        self.folder.join(format!("{}{number:0width$}{}", self.prefix, self.suffix, width = self.digits))
    }

    /// The images of at least number `from`.
    ///
    /// # Errors
    /// There is none, or one is missing and `gaps` says that this is an error.
    pub(super) fn images(&self, from: u64, gaps: Gaps) -> Result<Images> {
        let numbers = self.scan(from);
        if numbers.is_empty() {
            return Err(Error::failed("", "no file matches this image sequence"));
        }
        let Some(gap) = numbers.windows(2).find(|pair| pair[1] > pair[0] + 1) else {
            return Ok(Images { numbers, gaps, links: None });
        };
        if gaps == Gaps::Error {
            let missing = numbers.windows(2).map(|pair| pair[1] - pair[0] - 1).sum::<u64>();
            let first = self.file(gap[0] + 1);
            let others = if missing > 1 { format!(" ({missing} numbers are missing in all)") } else { String::new() };
            return Err(Error::failed("", format!("'{}' is missing{others}", first.display()))
                .hint("pass --gaps skip to close the gap, or --gaps hold to keep the image before it on screen"));
        }
        let cannot = |e: std::io::Error| Error::failed("cannot line the images up", e);
        let folder = tempfile::tempdir().map_err(cannot)?;
        let real = std::fs::canonicalize(&self.folder).map_err(cannot)?;
        for (index, &number) in numbers.iter().enumerate() {
            let name = self.file(number);
            let target = real.join(name.file_name().unwrap_or_default());
            symlink(target, folder.path().join(format!("{index}{}", self.suffix))).map_err(cannot)?;
        }
        Ok(Images { numbers, gaps, links: Some((folder, self.suffix.clone())) })
    }
}

impl Images {
    /// Number of the first file that FFmpeg's reader opens.
    pub(super) fn first(&self) -> u64 {
        if self.links.is_some() { 0 } else { self.numbers.first().copied().unwrap_or(0) }
    }

    /// What FFmpeg's reader opens instead of the user's pattern.
    pub(super) fn pattern(&self) -> Option<String> {
        let (folder, suffix) = self.links.as_ref()?;
        let folder = folder.path().to_str()?.replace('%', "%%");
        Some(format!("{folder}/%d{}", suffix.replace('%', "%%")))
    }

    /// How many there are.
    pub(super) fn count(&self) -> u64 {
        self.numbers.len() as u64
    }

    /// What the user should know.
    pub(super) fn warning(&self) -> Option<String> {
        self.links.as_ref()?;
        let (first, last) = (self.numbers.first()?, self.numbers.last()?);
        let missing = last - first + 1 - self.count();
        let gap = self.numbers.windows(2).find(|pair| pair[1] > pair[0] + 1)?;
        let what = match self.gaps {
            Gaps::Hold => "the image before a gap stays on screen",
            Gaps::Skip | Gaps::Error => "the images around a gap follow each other",
        };
        let plural = if missing == 1 { "image is" } else { "images are" };
        Some(format!("{missing} {plural} missing from the sequence, the first after number {}: {what}", gap[0]))
    }

    /// Gives a packet, whose time is its place in the sequence, the time that its number stands for.
    pub(super) fn retime(&self, packet: &mut ffi::AVPacket) {
        if self.gaps != Gaps::Hold || self.links.is_none() {
            return;
        }
        let (Some(pts), Some(first)) = (timestamp(packet.pts), self.numbers.first()) else { return };
        let at = |index: i64| usize::try_from(index).ok().and_then(|i| self.numbers.get(i)).and_then(|n| i64::try_from(n - first).ok());
        let Some(time) = at(pts) else { return };
        packet.duration = at(pts + 1).map_or(packet.duration, |next| next - time);
        (packet.pts, packet.dts) = (time, time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(numbers: &[u64]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for n in numbers {
            std::fs::write(folder.path().join(format!("f_{n:03}.png")), b"").unwrap();
        }
        std::fs::write(folder.path().join("f_x.png"), b"").unwrap();
        folder
    }

    fn sequence(folder: &tempfile::TempDir, name: &str) -> Sequence {
        Sequence::parse(folder.path().join(name).to_str().unwrap()).unwrap()
    }

    #[test]
    fn the_first_number_and_the_gap_are_found() {
        let folder = folder(&[98, 99, 100, 103]);
        let padded = sequence(&folder, "f_%03d.png");
        assert_eq!(padded.scan(0), [98, 99, 100, 103]);
        assert_eq!(padded.scan(100), [100, 103]);
        assert_eq!(sequence(&folder, "f_%d.png").scan(0)[0], 100);
        let error = padded.images(0, Gaps::Error).err().unwrap().to_string();
        assert!(error.contains("f_101.png' is missing (2 numbers are missing in all)") && error.contains("--gaps hold"), "{error}");
        let images = padded.images(0, Gaps::Skip).unwrap();
        assert_eq!((images.first(), images.count()), (0, 4));
        assert!(images.warning().unwrap().starts_with("2 images are missing from the sequence, the first after number 100"));
        let pattern = images.pattern().unwrap();
        assert!(std::fs::canonicalize(pattern.replace("%d", "3")).unwrap().ends_with("f_103.png"), "{pattern}");
    }

    #[test]
    fn held_images_keep_the_times_of_their_numbers() {
        let folder = folder(&[5, 6, 9]);
        let images = sequence(&folder, "f_%03d.png").images(0, Gaps::Hold).unwrap();
        let times = [0, 1, 2].map(|index| {
            // SAFETY: a packet of zeros is a valid blank one.
            let mut packet: ffi::AVPacket = unsafe { std::mem::zeroed() };
            (packet.pts, packet.dts, packet.duration) = (index, index, 1);
            images.retime(&mut packet);
            (packet.pts, packet.duration)
        });
        assert_eq!(times, [(0, 1), (1, 3), (4, 1)]);
    }

    #[test]
    fn a_sequence_without_gaps_is_read_as_it_is() {
        let folder = folder(&[7, 8]);
        let images = sequence(&folder, "f_%03d.png").images(0, Gaps::Error).unwrap();
        assert_eq!((images.first(), images.count(), images.pattern(), images.warning()), (7, 2, None, None));
    }

    #[test]
    fn ordinary_names_are_no_pattern() {
        for name in ["a.mp4", "100%.mp4", "%s.png", "a%d_%d.png"] {
            assert!(Sequence::parse(name).is_none(), "{name}");
        }
    }
}
