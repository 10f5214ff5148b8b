//! A peer in a process of its own, which is told in lines what to do: whatever it does to its memory, its device or its threads stays there.
//!
//! It says `ready VERSION` when it has started, or `absent WHY`. Then it answers each line with one: `load TYPE SHAPE FILE` takes samples
//! (NumPy's name of the type, sides joined by `x`) and answers `ok FRAMES`, the frames that `time` is asked for multiples of;
//! `check FILE CALL` runs a call on these samples, writes the result and answers `ok`; `time FRAMES CALL` answers with nanoseconds.
//! Instead of any answer comes `error TEXT`; it may end after that. Its working folder is ours: files have names without blanks.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::error::{Error, Result};

/// Samples in, in the peer's folder.
const INPUT: &str = "input.raw";
/// Samples out.
const OUTPUT: &str = "output.raw";
/// What it says on stderr.
const COMPLAINTS: &str = "stderr.txt";

/// Samples for a peer.
pub(super) struct Input {
    /// NumPy's name of the type.
    pub kind: &'static str,
    /// Sides, slowest first.
    pub shape: Vec<usize>,
    /// The samples without gaps, little-endian.
    pub bytes: Vec<u8>,
}

/// The running process.
pub(super) struct Process {
    /// What rows and errors call it.
    pub name: &'static str,
    /// "4.10.0".
    pub version: String,
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    folder: tempfile::TempDir,
    granule: usize,
}

impl Process {
    /// Starts `command` in `folder`, which goes when the process does.
    ///
    /// # Errors
    /// Why it is not there, in a word.
    pub fn start(name: &'static str, mut command: Command, folder: tempfile::TempDir) -> Result<Self, String> {
        let program = command.get_program().to_string_lossy().into_owned();
        let cannot = |e: std::io::Error| format!("cannot start '{program}': {e}");
        let complaints = File::create(folder.path().join(COMPLAINTS)).map_err(cannot)?;
        command.current_dir(folder.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(complaints);
        let mut child = command.spawn().map_err(cannot)?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(format!("cannot talk to '{program}'"));
        };
        let mut process = Self { name, version: String::new(), child, input, output: BufReader::new(output), folder, granule: 1 };
        let line = process.answer().map_err(|e| e.to_string())?;
        match (line.strip_prefix("ready "), line.strip_prefix("absent ")) {
            (Some(version), _) => version.clone_into(&mut process.version),
            (None, Some(why)) => return Err(why.to_owned()),
            (None, None) => return Err(format!("'{program}' said '{line}' instead of being ready")),
        }
        Ok(process)
    }

    fn answer(&mut self) -> Result<String> {
        let what = || format!("{} does not answer", self.name);
        let mut line = String::new();
        self.output.read_line(&mut line).map_err(|e| Error::failed(what(), e))?;
        if line.is_empty() {
            // What a process says last tells most.
            let complaints = std::fs::read_to_string(self.folder.path().join(COMPLAINTS)).unwrap_or_default();
            let last = complaints.lines().rfind(|l| !l.trim().is_empty()).map_or(String::new(), |l| format!(": {}", l.trim()));
            return Err(Error::failed(what(), format!("its process ended{last}")));
        }
        Ok(line.trim().to_owned())
    }

    fn ask(&mut self, line: &str) -> Result<String> {
        if let Err(e) = writeln!(self.input, "{line}") {
            // It ended: its last words say more than a broken pipe.
            self.answer()?;
            return Err(Error::failed(format!("{} takes no more orders", self.name), e));
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
        !matches!(self.child.try_wait(), Ok(None))
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
        self.ask(&format!("check {OUTPUT} {call}"))?;
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

impl Drop for Process {
    fn drop(&mut self) {
        // The process only waits for more input; nothing of its end matters.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A folder for a process.
///
/// # Errors
/// There is no room for temporary files.
pub(super) fn folder() -> Result<tempfile::TempDir, String> {
    tempfile::tempdir().map_err(|e| format!("no temporary folder: {e}"))
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
pub(super) fn start_python(name: &'static str, code: &str, arguments: &[String]) -> Result<Process, String> {
    let mut command = Command::new(python());
    command.arg("-c").arg([include_str!("serve.py"), code].concat()).args(arguments);
    Process::start(name, command, folder()?).map_err(|why| format!("{why} (CONVOY_PYTHON names another Python)"))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A shell script in the place of a peer: reads one line and answers it at a time.
    pub fn fake(script: &str) -> Result<Process, String> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Process::start("the fake", command, folder().unwrap())
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
        let nowhere = Process::start("x", Command::new("/no/such/program"), folder().unwrap()).err().unwrap();
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
}
