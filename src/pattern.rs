//! Names of image sequences: `folder/frame_%04d.png`.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// A printf pattern with one `%d` or `%0Nd` in its file name.
#[derive(Debug, PartialEq, Eq)]
pub struct Pattern {
    folder: PathBuf,
    prefix: String,
    suffix: String,
}

impl Pattern {
    /// The pattern in `path`'s file name, if it holds one.
    pub fn parse(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let (start, percent) = name.match_indices('%').find_map(|(at, _)| {
            let rest = &name[at + 1..];
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            rest[digits..].starts_with('d').then_some((at, digits + 2))
        })?;
        // %% stands for a percent sign in the rest of the name.
        let literal = |text: &str| text.replace("%%", "%");
        Some(Self { folder: folder.to_path_buf(), prefix: literal(&name[..start]), suffix: literal(&name[start + percent..]) })
    }

    /// Whether `name` is one of the sequence's file names.
    pub fn matches(&self, name: &OsStr) -> bool {
        let middle = name.to_str().and_then(|n| n.strip_prefix(&self.prefix)?.strip_suffix(&self.suffix));
        middle.is_some_and(|m| !m.is_empty() && m.bytes().all(|b| b.is_ascii_digit()))
    }

    /// A file of the sequence that exists already.
    pub fn existing(&self) -> Option<PathBuf> {
        let mut names: Vec<_> =
            fs::read_dir(&self.folder).ok()?.filter_map(|e| Some(e.ok()?.file_name())).filter(|n| self.matches(n)).collect();
        names.sort();
        names.first().map(|n| self.folder.join(n))
    }

    /// Whether writing this sequence could overwrite `input`, a file or another sequence.
    pub fn overlaps(&self, input: &Path) -> bool {
        let same_folder = |other: &Path| matches!((fs::canonicalize(&self.folder), fs::canonicalize(other)), (Ok(a), Ok(b)) if a == b);
        match Self::parse(input) {
            // Two patterns of one folder can meet unless their fixed parts exclude each other.
            Some(other) => {
                let meets = |a: &str, b: &str, starts: bool| {
                    if starts { a.starts_with(b) || b.starts_with(a) } else { a.ends_with(b) || b.ends_with(a) }
                };
                same_folder(&other.folder) && meets(&self.prefix, &other.prefix, true) && meets(&self.suffix, &other.suffix, false)
            }
            None => {
                let folder = input.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
                same_folder(folder) && input.file_name().is_some_and(|n| self.matches(n))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_found_and_match_their_files() {
        let p = Pattern::parse(Path::new("a/f_%04d.png")).unwrap();
        assert!(p.matches(OsStr::new("f_0001.png")) && p.matches(OsStr::new("f_12345.png")));
        for other in ["f_.png", "f_1x.png", "g_0001.png", "f_0001.jpg"] {
            assert!(!p.matches(OsStr::new(other)), "{other}");
        }
        assert_eq!(Pattern::parse(Path::new("100%.png")), None);
        assert_eq!(Pattern::parse(Path::new("a%d/b.png")), None);
        assert!(Pattern::parse(Path::new("100%%_%d.png")).unwrap().matches(OsStr::new("100%_7.png")));
    }

    #[test]
    fn a_sequence_overlaps_itself_its_files_and_sequences_that_can_meet_it() {
        let dir = tempfile::tempdir().unwrap();
        let at = |n: &str| dir.path().join(n);
        let p = Pattern::parse(&at("f_%04d.png")).unwrap();
        assert!(p.overlaps(&at("f_%d.png")) && p.overlaps(&at("./f_0003.png")));
        assert!(!p.overlaps(&at("g_%04d.png")) && !p.overlaps(Path::new("f_0003.png")));
        assert_eq!(p.existing(), None);
        fs::write(at("f_0003.png"), "x").unwrap();
        assert_eq!(p.existing(), Some(at("f_0003.png")));
    }
}
