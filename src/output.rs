//! Where the result goes, and when it takes its final name.
//!
//! A regular or new target is written under a temporary name in its own folder and renamed when complete, so that an
//! existing file is untouched until the new one is whole. Devices, FIFOs, URLs, image sequences and playlists are opened
//! in place.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tempfile::TempPath;

use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::pattern::Pattern;

/// What to do when the output exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overwrite {
    /// Refuse, and say how to allow it.
    #[default]
    Refuse,
    /// Replace it (`-y`).
    Replace,
}

/// An output that is ready to be opened.
#[derive(Debug)]
pub struct Target {
    text: String,
    kind: Kind,
    cancel: Cancel,
}

#[derive(Debug)]
enum Kind {
    /// `null:`: filter and discard.
    Null,
    /// `-`.
    Stdout,
    /// A device, FIFO, URL, image sequence or playlist.
    InPlace,
    /// A file that is complete or absent.
    Replace { temporary: TempPath, url: String, final_path: PathBuf, existed: bool, overwrite: Overwrite },
}

/// Where the bytes ended up.
#[derive(Debug, PartialEq, Eq)]
pub enum Committed {
    /// Under the name that the user gave (or in place).
    Final,
    /// A partial result beside an untouched older file.
    Partial(PathBuf),
}

/// Playlist extensions: these muxers write further files beside the one named.
const PLAYLISTS: [&str; 3] = ["m3u8", "mpd", "ism"];

impl Target {
    /// Checks `text` as given with `-o` against `input` and the file system, and creates the temporary file if one is needed.
    ///
    /// # Errors
    /// The output exists (and may not be replaced), is the input or a directory, or its folder cannot be written.
    pub fn prepare(text: &str, input: &str, overwrite: Overwrite, cancel: &Cancel) -> Result<Self> {
        let target = |kind| Ok(Self { text: text.to_owned(), kind, cancel: cancel.clone() });
        let text = text.strip_prefix("file:").unwrap_or(text);
        match text {
            "" => return Err(Error::usage("no output", "the name is empty").hint("name a file with -o, or null: to discard the frames")),
            "null:" => return target(Kind::Null),
            "-" => return target(Kind::Stdout),
            _ => {}
        }
        let path = Path::new(text);
        refuse_input(text, path, input)?;
        if is_url(text) {
            return target(Kind::InPlace);
        }
        if let Some(pattern) = Pattern::parse(path) {
            refuse_collision(&pattern, text, input, overwrite)?;
            return target(Kind::InPlace);
        }
        if has_extension(path, &PLAYLISTS) {
            if path.exists() && overwrite == Overwrite::Refuse {
                return Err(exists(text));
            }
            return target(Kind::InPlace);
        }
        let resolved = resolve(path).map_err(|e| cannot_write(text, &e))?;
        let existed = match fs::metadata(&resolved) {
            Ok(meta) if meta.is_dir() => {
                return Err(Error::failed(format!("cannot write output '{text}'"), "it is a directory").hint("name a file inside it"));
            }
            Ok(meta) if is_special(&meta.file_type()) => return target(Kind::InPlace),
            Ok(_) if overwrite == Overwrite::Refuse => {
                return Err(exists(text));
            }
            Ok(_) => true,
            Err(e) if e.kind() == io::ErrorKind::NotFound => false,
            Err(e) => return Err(cannot_write(text, &e)),
        };
        let (temporary, url) = temporary_beside(&resolved).map_err(|e| cannot_write(text, &e))?;
        cancel.set_temporary(Some(&temporary));
        target(Kind::Replace { temporary, url, final_path: resolved, existed, overwrite })
    }

    /// Whether frames are discarded.
    pub fn is_null(&self) -> bool {
        matches!(self.kind, Kind::Null)
    }

    /// What the muxer should open.
    pub fn url(&self) -> &str {
        match &self.kind {
            Kind::Null => "null:",
            Kind::Stdout => "pipe:1",
            Kind::InPlace => &self.text,
            Kind::Replace { url, .. } => url,
        }
    }

    /// The name as the user gave it: decides the container.
    pub fn name(&self) -> &str {
        &self.text
    }

    /// Gives a complete file its final name.
    ///
    /// # Errors
    /// The rename failed; the temporary file is removed.
    pub fn commit(mut self) -> Result<()> {
        let Kind::Replace { temporary, final_path, existed, overwrite, .. } = std::mem::replace(&mut self.kind, Kind::Null) else {
            return Ok(());
        };
        self.cancel.set_temporary(None);
        if existed && let Ok(old) = fs::metadata(&final_path) {
            // Keep the mode of the file that is replaced; failing that, the new file's own mode will do.
            let _ = fs::set_permissions(&temporary, fs::Permissions::from_mode(old.mode() & 0o7777));
        }
        match overwrite {
            Overwrite::Replace => temporary.persist(&final_path).map_err(|e| cannot_write(&self.text, &e.error)),
            Overwrite::Refuse => match self.persist_beside(temporary, &final_path)? {
                Committed::Final => Ok(()),
                Committed::Partial(path) => {
                    let why = format!("somebody else made it meanwhile; the complete result is {}", path.display());
                    Err(Error::failed(format!("output '{}' exists", self.text), why))
                }
            },
        }
    }

    /// Gives a valid but partial file a name: the final one if nothing stands there, else `NAME.partial.EXT` beside it.
    ///
    /// # Errors
    /// The rename failed; the temporary file is removed.
    pub fn commit_partial(mut self) -> Result<Committed> {
        let Kind::Replace { temporary, final_path, .. } = std::mem::replace(&mut self.kind, Kind::Null) else {
            return Ok(Committed::Final);
        };
        self.cancel.set_temporary(None);
        self.persist_beside(temporary, &final_path)
    }

    /// Renames without replacing anything: to `final_path`, else to the first free `NAME.partial.EXT`.
    fn persist_beside(&self, mut temporary: TempPath, final_path: &Path) -> Result<Committed> {
        // No-clobber renames: a file that appeared meanwhile is somebody's.
        for attempt in 0..1000 {
            let path = if attempt == 0 { final_path.to_path_buf() } else { partial_path(final_path, attempt) };
            match temporary.persist_noclobber(&path) {
                Ok(()) if attempt == 0 => return Ok(Committed::Final),
                Ok(()) => return Ok(Committed::Partial(path)),
                Err(e) if e.error.kind() == io::ErrorKind::AlreadyExists => temporary = e.path,
                Err(e) => return Err(cannot_write(&self.text, &e.error)),
            }
        }
        Err(Error::failed(format!("cannot name the partial output of '{}'", self.text), "too many partial files stand beside it"))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // An uncommitted temporary is removed by TempPath; the signal handler must not look for it any more.
        if matches!(self.kind, Kind::Replace { .. }) {
            self.cancel.set_temporary(None);
        }
    }
}

fn exists(text: &str) -> Error {
    Error::failed(format!("output '{text}' exists"), "it would be overwritten").hint("pass -y to replace it, or choose another name")
}

/// An image sequence is written in place: refused when it would replace its own input, or older files without leave.
fn refuse_collision(pattern: &Pattern, text: &str, input: &str, overwrite: Overwrite) -> Result<()> {
    if pattern.overlaps(Path::new(input.strip_prefix("file:").unwrap_or(input))) {
        return Err(is_the_input(text));
    }
    match pattern.existing() {
        Some(old) if overwrite == Overwrite::Refuse => Err(exists(&old.display().to_string())),
        _ => Ok(()),
    }
}

fn is_the_input(text: &str) -> Error {
    Error::usage(format!("output '{text}' is the input"), "it would be destroyed while it is read").hint("choose another name")
}

fn cannot_write(text: &str, cause: &io::Error) -> Error {
    let error = Error::failed(format!("cannot write output '{text}'"), describe(cause));
    match cause.kind() {
        io::ErrorKind::NotFound => error.hint("create the folder first"),
        io::ErrorKind::PermissionDenied => error.hint("choose a folder that you may write to"),
        _ => error,
    }
}

/// An I/O error without the "(os error N)" that says nothing to a user.
fn describe(cause: &io::Error) -> String {
    let text = cause.to_string();
    match text.rfind(" (os error ") {
        Some(end) if cause.kind() == io::ErrorKind::NotFound => format!("{} (its folder does not exist)", &text[..end]),
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

/// `scheme:` with at least two letters; `C:` is not one, and a file that exists under the literal name wins.
fn is_url(text: &str) -> bool {
    let scheme_len = text.bytes().take_while(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.' | b',')).count();
    scheme_len >= 2 && text[scheme_len..].starts_with(':') && !Path::new(text).exists()
}

fn has_extension(path: &Path, list: &[&str]) -> bool {
    path.extension().and_then(|e| e.to_str()).is_some_and(|e| list.iter().any(|l| l.eq_ignore_ascii_case(e)))
}

fn is_special(kind: &fs::FileType) -> bool {
    kind.is_char_device() || kind.is_block_device() || kind.is_fifo() || kind.is_socket()
}

/// Follows links, also to a file that does not exist yet.
fn resolve(path: &Path) -> io::Result<PathBuf> {
    let mut current = path.to_path_buf();
    for _ in 0..40 {
        match fs::symlink_metadata(&current) {
            Ok(meta) if meta.is_symlink() => {
                let to = fs::read_link(&current)?;
                current = current.parent().unwrap_or(Path::new("")).join(to);
            }
            Ok(_) => return Ok(current),
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(current),
            Err(e) => return Err(e),
        }
    }
    Err(io::Error::other("too many levels of symbolic links"))
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Creates an empty file beside `path` with the same extension, and its name as FFmpeg should open it.
fn temporary_beside(path: &Path) -> io::Result<(TempPath, String)> {
    let name = path.file_name().ok_or_else(|| io::Error::other("it names no file"))?.to_string_lossy();
    let suffix = path.extension().map(|e| format!(".{}", e.to_string_lossy())).unwrap_or_default();
    // File names end at 255 bytes; a long name is cut at a character so that the temporary fits too.
    let prefix: String = name.chars().take(40).collect();
    let file = tempfile::Builder::new()
        .prefix(&format!(".{prefix}."))
        .suffix(&suffix)
        .permissions(fs::Permissions::from_mode(0o666))
        .tempfile_in(folder(path))?;
    let temporary = file.into_temp_path();
    let absolute = std::path::absolute(&temporary)?;
    let url = absolute.to_str().ok_or_else(|| io::Error::other("the path is not valid UTF-8"))?;
    // The protocol prefix keeps FFmpeg from reading a scheme or a pattern out of the name.
    let url = format!("file:{url}");
    Ok((temporary, url))
}

fn partial_path(path: &Path, attempt: u32) -> PathBuf {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let number = if attempt == 1 { String::new() } else { format!("-{attempt}") };
    let extension = path.extension().map(|e| format!(".{}", e.to_string_lossy())).unwrap_or_default();
    path.with_file_name(format!("{stem}.partial{number}{extension}"))
}

/// Refuses an output that is the input: same path, link, hard link, another spelling, or standard input from that file.
fn refuse_input(text: &str, output: &Path, input: &str) -> Result<()> {
    let input = if input == "-" { "/dev/stdin" } else { input.strip_prefix("file:").unwrap_or(input) };
    if let (Ok(a), Ok(b)) = (fs::metadata(input), fs::metadata(output))
        && (a.dev(), a.ino()) == (b.dev(), b.ino())
        && !is_special(&a.file_type())
    {
        return Err(is_the_input(text));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prepare(text: &Path, overwrite: Overwrite) -> Result<Target> {
        Target::prepare(text.to_str().unwrap(), "in.mp4", overwrite, &Cancel::new())
    }

    fn write(target: &Target, content: &str) {
        fs::write(target.url().strip_prefix("file:").unwrap(), content).unwrap();
    }

    #[test]
    fn an_old_file_is_untouched_until_the_commit_and_keeps_its_mode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("o.mkv");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        assert!(prepare(&path, Overwrite::Refuse).unwrap_err().to_string().contains("-y"));
        let target = prepare(&path, Overwrite::Replace).unwrap();
        write(&target, "new");
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        target.commit().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_dropped_target_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let target = prepare(&dir.path().join("o.mp4"), Overwrite::Refuse).unwrap();
        assert!(target.url().ends_with(".mp4"));
        drop(target);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_partial_result_takes_the_free_name_or_stands_beside() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("o.mkv");
        let target = prepare(&path, Overwrite::Refuse).unwrap();
        write(&target, "part");
        assert_eq!(target.commit_partial().unwrap(), Committed::Final);
        for expected in ["o.partial.mkv", "o.partial-2.mkv"] {
            let target = prepare(&path, Overwrite::Replace).unwrap();
            write(&target, "again");
            assert_eq!(target.commit_partial().unwrap(), Committed::Partial(dir.path().join(expected)));
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "part");
    }

    #[test]
    fn links_are_resolved_and_the_input_is_refused_under_any_name() {
        let dir = tempfile::tempdir().unwrap();
        let at = |n: &str| dir.path().join(n);
        fs::write(at("in.mkv"), "x").unwrap();
        std::os::unix::fs::symlink(at("in.mkv"), at("soft.mkv")).unwrap();
        fs::hard_link(at("in.mkv"), at("hard.mkv")).unwrap();
        let input = at("in.mkv");
        for name in ["in.mkv", "soft.mkv", "hard.mkv", "./in.mkv"] {
            let error =
                Target::prepare(at(name).to_str().unwrap(), input.to_str().unwrap(), Overwrite::Replace, &Cancel::new()).unwrap_err();
            assert!(error.to_string().contains("is the input"), "{error}");
        }
        std::os::unix::fs::symlink(at("new.mkv"), at("dangling.mkv")).unwrap();
        let target = prepare(&at("dangling.mkv"), Overwrite::Refuse).unwrap();
        write(&target, "n");
        target.commit().unwrap();
        assert_eq!(fs::read_to_string(at("new.mkv")).unwrap(), "n");
        assert!(fs::symlink_metadata(at("dangling.mkv")).unwrap().is_symlink());
    }

    #[test]
    fn a_file_that_appears_meanwhile_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("o.mkv");
        let target = prepare(&path, Overwrite::Refuse).unwrap();
        write(&target, "ours");
        fs::write(&path, "theirs").unwrap();
        let error = target.commit().unwrap_err().to_string();
        assert!(error.contains("o.partial.mkv"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), "theirs");
        assert_eq!(fs::read_to_string(dir.path().join("o.partial.mkv")).unwrap(), "ours");
    }

    #[test]
    fn sequences_and_playlists_do_not_replace_without_leave() {
        let dir = tempfile::tempdir().unwrap();
        let at = |n: &str| dir.path().join(n).to_str().unwrap().to_owned();
        let prepare = |output: &str, input: &str, o| Target::prepare(&at(output), &at(input), o, &Cancel::new());
        prepare("f_%04d.png", "in.mp4", Overwrite::Refuse).unwrap();
        for name in ["f_0003.png", "x.m3u8"] {
            fs::write(at(name), "x").unwrap();
        }
        assert!(prepare("f_%04d.png", "in.mp4", Overwrite::Refuse).unwrap_err().to_string().contains("f_0003.png' exists"));
        prepare("f_%04d.png", "in.mp4", Overwrite::Replace).unwrap();
        for input in ["f_%04d.png", "f_0003.png"] {
            assert!(prepare("f_%04d.png", input, Overwrite::Replace).unwrap_err().to_string().contains("is the input"));
        }
        assert!(prepare("x.m3u8", "in.mp4", Overwrite::Refuse).is_err());
        prepare("x.m3u8", "in.mp4", Overwrite::Replace).unwrap();
    }

    #[test]
    fn devices_urls_patterns_and_playlists_are_opened_in_place() {
        for name in ["/dev/full", "rtmp://host/x", "udp://127.0.0.1:9", "f_%04d.png", "live.m3u8"] {
            assert_eq!(prepare(Path::new(name), Overwrite::Refuse).unwrap().url(), name);
        }
        assert!(prepare(Path::new("/nonexistent-folder/o.mp4"), Overwrite::Refuse).unwrap_err().to_string().contains("folder"));
        assert!(prepare(Path::new("/tmp"), Overwrite::Replace).unwrap_err().to_string().contains("directory"));
    }
}
