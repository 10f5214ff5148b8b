//! A peer in a process of its own, which is told in lines what to do: whatever it does to its memory, its device or its threads stays there.
//!
//! It says `ready VERSION` when it has started, or `absent WHY`. Then it answers each line with one: `load TYPE SHAPE FILE` takes samples
//! (NumPy's name of the type, sides joined by `x`) and answers `ok FRAMES`, the frames that `time` is asked for multiples of;
//! `check FILE CALL` runs a call on these samples, writes the result and answers `ok`; `time FRAMES CALL` answers with nanoseconds.
//! Instead of any answer comes `error TEXT`; it may end after that. Its working folder is ours: files have names without blanks.
//! It speaks when it is asked, and each answer comes within the limit, or it is killed with all that it started.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::bench::child::{Child, Custody, Halt, Watched};
use crate::error::{Error, Result};

/// Samples in, in the peer's folder.
const INPUT: &str = "input.raw";
/// Samples out.
const OUTPUT: &str = "output.raw";

/// Samples for a peer.
pub(super) struct Input {
    /// NumPy's name of the type.
    pub kind: &'static str,
    /// Sides, slowest first.
    pub shape: Vec<usize>,
    /// The samples without gaps, little-endian.
    pub bytes: Vec<u8>,
}

/// Where peers run, and how long each may take for an answer.
#[derive(Clone, Debug)]
pub(in crate::bench) struct Ward {
    pub custody: Custody,
    pub limit: Duration,
}

/// A folder for a process; it goes with the value, or with the bench.
pub(super) struct Folder {
    // Before the folder, which is then nobody's but the value's.
    _watched: Watched,
    folder: tempfile::TempDir,
}

impl Folder {
    /// # Errors
    /// There is no room for temporary files.
    pub fn new(custody: &Custody) -> Result<Self, String> {
        let folder = tempfile::tempdir().map_err(|e| format!("no temporary folder: {e}"))?;
        Ok(Self { _watched: custody.watch(folder.path()), folder })
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// The running process.
pub(super) struct Process {
    /// What rows and errors call it.
    pub name: &'static str,
    /// "4.10.0".
    pub version: String,
    // Before the folder: it is killed before its folder goes.
    child: Child,
    folder: Folder,
    granule: usize,
    /// For each answer.
    pub limit: Duration,
    silent: bool,
}

impl Process {
    /// Starts `command` in `folder`, which goes when the process does.
    ///
    /// # Errors
    /// Why it is not there, in a word.
    pub fn start(name: &'static str, mut command: Command, folder: Folder, ward: &Ward) -> Result<Self, String> {
        let program = command.get_program().to_string_lossy().into_owned();
        command.current_dir(folder.path());
        let child = ward.custody.start(&mut command, true).map_err(|e| format!("cannot start '{program}': {e}"))?;
        let mut process = Self { name, version: String::new(), child, folder, granule: 1, limit: ward.limit, silent: false };
        let line = process.answer().map_err(|e| e.to_string().lines().next().unwrap_or_default().to_owned())?;
        match (line.strip_prefix("ready "), line.strip_prefix("absent ")) {
            (Some(version), _) => version.clone_into(&mut process.version),
            (None, Some(why)) => return Err(why.to_owned()),
            (None, None) => return Err(format!("'{program}' said '{line}' instead of being ready")),
        }
        Ok(process)
    }

    /// Notes why there is no answer, and ends a process whose next answer could be this one's.
    fn halted(&mut self, halt: Halt) -> Error {
        self.silent = matches!(halt, Halt::Late(_));
        self.child.kill();
        halt.error(self.name)
    }

    fn answer(&mut self) -> Result<String> {
        self.child.line(self.limit).map_err(|halt| self.halted(halt))
    }

    fn ask(&mut self, line: &str) -> Result<String> {
        if let Some(said) = self.child.unasked() {
            self.child.kill();
            return Err(Error::failed(format!("{} speaks without being asked", self.name), format!("it said '{said}'")));
        }
        match self.child.send(line, self.limit) {
            // It ended: its last words say more than a broken pipe.
            Err(Halt::Failed(e)) => {
                self.answer()?;
                return Err(Error::failed(format!("{} takes no more orders", self.name), e));
            }
            Err(halt) => return Err(self.halted(halt)),
            Ok(()) => {}
        }
        let answer = self.answer()?;
        match answer.strip_prefix("error ") {
            Some(why) => Err(Error::failed(format!("{} cannot run this", self.name), why)),
            None => Ok(answer),
        }
    }

    /// Hands over samples for the calls that follow.
    ///
    /// # Errors
    /// No room for the file, or the peer's own.
    pub fn load(&mut self, samples: &Input) -> Result<()> {
        let name = self.name;
        let what = || format!("cannot hand {name} its input");
        std::fs::write(self.folder.path().join(INPUT), &samples.bytes)
            .map_err(|e| Error::failed(what(), e).hint("set TMPDIR to a folder with room"))?;
        let shape: Vec<String> = samples.shape.iter().map(ToString::to_string).collect();
        let answer = self.ask(&format!("load {} {} {INPUT}", samples.kind, shape.join("x")))?;
        let granule = answer.strip_prefix("ok ").and_then(|n| n.parse().ok());
        self.granule = granule.ok_or_else(|| Error::failed(what(), format!("it answered '{answer}'")))?;
        Ok(())
    }

    /// Whether it has ended, by a fault or by itself after one.
    pub fn ended(&mut self) -> bool {
        self.child.ended()
    }

    /// Whether it was ended because an answer did not come within the limit; says so once.
    pub fn take_silence(&mut self) -> bool {
        std::mem::take(&mut self.silent)
    }

    /// Frames that [`Process::time`] is asked for multiples of.
    pub fn granule(&self) -> usize {
        self.granule.max(1)
    }

    /// What `call` makes of the samples.
    ///
    /// # Errors
    /// The peer's own.
    pub fn check(&mut self, call: &str) -> Result<Vec<u8>> {
        let path = self.folder.path().join(OUTPUT);
        // What an earlier call left must not pass for this one's result.
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(Error::failed("cannot remove an old result", e)),
            Ok(()) | Err(_) => {}
        }
        let answer = self.ask(&format!("check {OUTPUT} {call}"))?;
        if answer != "ok" {
            return Err(Error::failed(format!("cannot check {}", self.name), format!("it answered '{answer}'")));
        }
        std::fs::read(&path).map_err(|e| Error::failed(format!("cannot read {}'s result", self.name), e))
    }

    /// Nanoseconds that `call` took on `frames` frames, by the peer's clock.
    ///
    /// # Errors
    /// The peer's own.
    pub fn time(&mut self, frames: usize, call: &str) -> Result<f64> {
        let answer = self.ask(&format!("time {frames} {call}"))?;
        answer.parse().map_err(|_| Error::failed(format!("cannot time {}", self.name), format!("it answered '{answer}'")))
    }
}

/// The Python that runs peers: `CONVOY_PYTHON`, else the first on the path.
pub(super) fn python() -> std::ffi::OsString {
    let named = std::env::var_os("CONVOY_PYTHON").filter(|v| !v.is_empty());
    let named = named.unwrap_or_else(|| "python3".into());
    // The process has another working folder.
    let is_path = named.as_encoded_bytes().contains(&b'/');
    if is_path { std::path::absolute(&named).map_or(named, Into::into) } else { named }
}

/// Starts a Python peer whose own file is `code`.
///
/// # Errors
/// Why it is not there, in a word.
pub(super) fn start_python(name: &'static str, code: &str, arguments: &[String], ward: &Ward) -> Result<Process, String> {
    let mut command = Command::new(python());
    command.arg("-c").arg([include_str!("serve.py"), code].concat()).args(arguments);
    Process::start(name, command, Folder::new(&ward.custody)?, ward).map_err(|why| format!("{why} (CONVOY_PYTHON names another Python)"))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::bench::child::tests::{LIMIT, SHORT, gone, runs};

    pub fn ward(limit: Duration) -> Ward {
        Ward { custody: Custody::default(), limit }
    }

    /// A shell script in the place of a peer: reads one line and answers it at a time.
    pub fn fake(script: &str) -> Result<Process, String> {
        fake_within(script, LIMIT)
    }

    /// One that has `limit` for an answer.
    pub fn fake_within(script: &str, limit: Duration) -> Result<Process, String> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let ward = ward(limit);
        Process::start("the fake", command, Folder::new(&ward.custody).unwrap(), &ward)
    }

    /// Doubles bytes; takes 1000 ns per frame; three frames at a time.
    pub const DOUBLES: &str = r#"
echo "ready 1.2"
while read -r word argument rest; do
  case "$word" in
    load) set -- $rest; cp "$2" loaded; echo "$argument $1" > kind; echo "ok 3";;
    check) [ "$rest" = double ] || { echo "error no call '$rest'"; continue; }
      cat loaded loaded > "$argument"; echo ok;;
    time) echo $((argument * 1000));;
  esac
done"#;

    fn input(bytes: &[u8]) -> Input {
        Input { kind: "uint8", shape: vec![2, 3], bytes: bytes.to_vec() }
    }

    #[test]
    fn a_peer_is_told_in_lines_and_answers_in_lines() {
        let mut peer = fake(DOUBLES).unwrap();
        assert_eq!((peer.version.as_str(), peer.granule()), ("1.2", 1));
        peer.load(&input(b"abcdef")).unwrap();
        assert_eq!(peer.granule(), 3);
        assert_eq!(std::fs::read_to_string(peer.folder.path().join("kind")).unwrap(), "uint8 2x3\n");
        assert_eq!(peer.check("double").unwrap(), b"abcdefabcdef");
        assert_eq!(peer.time(6, "double").unwrap(), 6000.0);
        let error = peer.check("triple").unwrap_err().to_string();
        assert_eq!(error, "the fake cannot run this: no call 'triple'");
        // It goes on after an error.
        assert_eq!(peer.check("double").unwrap().len(), 12);
    }

    #[test]
    fn an_old_result_does_not_pass_for_a_new_one() {
        let script =
            "echo ready 1; read -r a; echo ok 1; read -r word file call; echo x > \"$file\"; echo ok; read -r a; echo ok; read -r a";
        let mut peer = fake(script).unwrap();
        peer.load(&input(b"abcdef")).unwrap();
        assert_eq!(peer.check("writes").unwrap(), b"x\n");
        assert!(peer.check("does not").unwrap_err().to_string().contains("cannot read the fake's result"));
    }

    #[test]
    fn why_a_peer_is_absent_is_said_in_a_word() {
        let why = |script: &str| fake(script).err().unwrap();
        assert_eq!(why("echo absent no module named so"), "no module named so");
        assert!(why("echo hello").contains("said 'hello'"));
        assert_eq!(why("echo first >&2; echo 'ImportError: libx' >&2"), "the fake does not answer: its process ended: ImportError: libx");
        let nowhere =
            Process::start("x", Command::new("/no/such/program"), Folder::new(&ward(LIMIT).custody).unwrap(), &ward(LIMIT)).err().unwrap();
        assert!(nowhere.starts_with("cannot start '/no/such/program': "), "{nowhere}");
    }

    #[test]
    fn a_peer_that_ends_or_talks_nonsense_is_an_error_of_its_row() {
        let mut ended = fake("echo ready 1; read -r a; echo ok 1; echo Killed >&2").unwrap();
        ended.load(&input(b"abcdef")).unwrap();
        let error = ended.time(1, "x").unwrap_err().to_string();
        assert!(error.contains("the fake does not answer: its process ended: Killed"), "{error}");
        let mut odd = fake("echo ready 1; while read -r a; do echo maybe; done").unwrap();
        assert!(odd.load(&input(b"")).unwrap_err().to_string().contains("answered 'maybe'"));
        assert!(odd.time(1, "x").unwrap_err().to_string().contains("answered 'maybe'"));
    }

    #[test]
    fn a_peer_that_hangs_floods_or_dies_half_way_is_an_error_and_leaves_nobody() {
        let mut hangs = fake("sleep 1000 & echo $! > child; echo ready 1; read -r a; wait").unwrap();
        let grandchild = std::fs::read_to_string(hangs.folder.path().join("child")).unwrap();
        hangs.limit = SHORT;
        assert!(runs(&grandchild));
        let error = hangs.load(&input(b"abcdef")).unwrap_err().to_string();
        assert!(error.starts_with("the fake did not answer within 0.3 s"), "{error}");
        assert!(hangs.ended() && hangs.take_silence() && gone(&grandchild));
        // The answer to this question would be one of those to none.
        let mut floods = fake("echo ready 1; read -r a; echo ok 1; while echo 5; do :; done").unwrap();
        floods.load(&input(b"abcdef")).unwrap();
        while floods.child.unasked().is_none() {
            std::hint::spin_loop();
        }
        let error = floods.time(1, "x").unwrap_err().to_string();
        assert_eq!(error, "the fake speaks without being asked: it said '5'");
        assert!(floods.ended() && !floods.take_silence());
        let mut dies = fake("echo ready 1; read -r a; echo ok 1; read -r a; printf 12; echo Killed >&2").unwrap();
        dies.load(&input(b"abcdef")).unwrap();
        assert!(dies.time(1, "x").unwrap_err().to_string().ends_with("its process ended: Killed"));
        let late = fake_within("sleep 1000", SHORT).err().unwrap();
        assert_eq!(late, "the fake did not answer within 0.3 s: it was stopped");
    }
}
