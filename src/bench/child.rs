//! The programs that a bench starts, with all that they start in turn: each answers within a limit or is killed, and none is left behind.
//!
//! A child leads a process group of its own, so that one signal reaches its children too. Its pipes are polled: one that hangs, floods or
//! dies half-way costs its own row and no more. [`Custody`] knows the groups that run and the files that lie about, for the signal that
//! ends the bench early.

use std::cell::Cell;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process_group};
use wait_timeout::ChildExt;

use crate::error::{Error, Result};

/// An answer without an end is given up after this many bytes …
const LONGEST_LINE: usize = 1 << 20;
/// … and what a program prints after these.
const LONGEST_OUTPUT: usize = 1 << 30;
/// Of what is said on stderr, the end tells why.
const COMPLAINTS: usize = 8 << 10;
/// A killed process that a driver holds on to is not waited for longer than this.
const GRACE: Duration = Duration::from_secs(5);
/// A process whose stdout is closed has this long to say why on stderr.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// A program that was silent this often in a row is not started again: each time costs the limit.
const CHANCES: u32 = 2;

/// What must not outlive the bench: process groups and temporary files. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Custody {
    held: Arc<Mutex<Held>>,
}

#[derive(Debug, Default)]
struct Held {
    groups: Vec<Pid>,
    paths: Vec<PathBuf>,
    closed: bool,
}

impl Custody {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Kills every group, removes every file, and lets no more be started: for a process that ends at once.
    pub fn end(&self) {
        let mut held = self.held();
        held.closed = true;
        for group in held.groups.drain(..) {
            // One that is gone already needs no killing.
            let _ = kill_process_group(group, Signal::KILL);
        }
        for path in held.paths.drain(..) {
            // The process is about to end; there is nobody left to tell that something stays.
            let _ = if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        }
    }

    /// Has `path` removed by [`Custody::end`] for as long as the value lives.
    pub(super) fn watch(&self, path: &Path) -> Watched {
        self.held().paths.push(path.to_path_buf());
        Watched { custody: self.clone(), path: path.to_path_buf() }
    }

    /// Starts `command` with pipes at stdout and stderr, and at stdin if `talks`.
    ///
    /// # Errors
    /// The system's, or the bench is ending.
    pub(super) fn start(&self, command: &mut Command, talks: bool) -> io::Result<Child> {
        command.stdin(if talks { Stdio::piped() } else { Stdio::null() }).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut held = self.held();
        if held.closed {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "the bench is ending"));
        }
        let mut process = command.spawn()?;
        let group = Pid::from_child(&process);
        held.groups.push(group);
        drop(held);
        let (input, output, errors) = (process.stdin.take(), process.stdout.take(), process.stderr.take());
        let child = Child { process, group, custody: self.clone(), input, output, errors, said: Vec::new(), complaints: Vec::new() };
        if let Some(input) = &child.input {
            // This end alone: the child reads as usual.
            rustix::io::ioctl_fionbio(input, true)?;
        }
        Ok(child)
    }
}

/// A path in [`Custody`].
#[derive(Debug)]
pub(super) struct Watched {
    custody: Custody,
    path: PathBuf,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.custody.held().paths.retain(|path| *path != self.path);
    }
}

/// Why nothing more is to be had from a child.
#[derive(Debug)]
pub(super) enum Halt {
    /// The limit passed.
    Late(Duration),
    /// It ended, or closed its stdout; what it said last on stderr.
    Ended(String),
    /// It said more than this many bytes.
    TooMuch(usize),
    /// The system's error.
    Failed(io::Error),
}

impl From<io::Error> for Halt {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

impl Halt {
    /// The error of the row of program `name`.
    pub fn error(self, name: &str) -> Error {
        let what = format!("{name} does not answer");
        match self {
            Self::Late(limit) => Error::failed(format!("{name} did not answer within {} s", limit.as_secs_f64()), "it was stopped")
                .hint("--peer-limit gives it longer"),
            Self::Ended(words) if words.is_empty() => Error::failed(what, "its process ended"),
            Self::Ended(words) => Error::failed(what, format!("its process ended: {words}")),
            Self::TooMuch(bytes) => Error::failed(format!("{name} floods"), format!("more than {bytes} bytes in one answer")),
            Self::Failed(error) => Error::failed(what, error),
        }
    }
}

/// A running program and its pipes; killed with all of its group when dropped.
#[derive(Debug)]
pub(super) struct Child {
    process: std::process::Child,
    group: Pid,
    custody: Custody,
    input: Option<ChildStdin>,
    output: Option<ChildStdout>,
    errors: Option<ChildStderr>,
    /// From stdout, not yet taken.
    said: Vec<u8>,
    /// The end of stderr.
    complaints: Vec<u8>,
}

impl Child {
    /// Whether the process has ended.
    pub fn ended(&mut self) -> bool {
        !matches!(self.process.try_wait(), Ok(None))
    }

    /// Kills it and whatever it started.
    pub fn kill(&mut self) {
        let mut held = self.custody.held();
        let before = held.groups.len();
        held.groups.retain(|group| *group != self.group);
        if held.groups.len() < before {
            // The number is not given to another group while a member lives, and is not given again soon when none does.
            let _ = kill_process_group(self.group, Signal::KILL);
        }
        drop(held);
        // One that does not even die cannot be helped from here.
        let _ = self.process.wait_timeout(GRACE);
    }

    /// Waits for the pipes up to `wait` and moves what they have: in from stdout and stderr, out from the front of `unsent`. Returns how many
    /// bytes went out; None if nothing happened.
    fn pump(&mut self, unsent: &[u8], wait: Duration) -> io::Result<Option<usize>> {
        let pipes = [
            watched(self.output.as_ref().map(AsFd::as_fd), PollFlags::IN),
            watched(self.errors.as_ref().map(AsFd::as_fd), PollFlags::IN),
            watched(self.input.as_ref().filter(|_| !unsent.is_empty()).map(AsFd::as_fd), PollFlags::OUT),
        ];
        let (places, mut polled): (Vec<usize>, Vec<PollFd<'_>>) =
            pipes.into_iter().enumerate().filter_map(|(place, fd)| Some((place, fd?))).unzip();
        let wait = Timespec::try_from(wait).map_err(io::Error::other)?;
        match poll(&mut polled, Some(&wait)) {
            Err(rustix::io::Errno::INTR) | Ok(0) => return Ok(None),
            Err(e) => return Err(e.into()),
            Ok(_) => {}
        }
        let ready: Vec<usize> =
            places.into_iter().zip(&polled).filter(|(_, fd)| !fd.revents().is_empty()).map(|(place, _)| place).collect();
        if ready.contains(&0) {
            read(&mut self.output, &mut self.said)?;
        }
        if ready.contains(&1) {
            read(&mut self.errors, &mut self.complaints)?;
            let surplus = self.complaints.len().saturating_sub(COMPLAINTS);
            self.complaints.drain(..surplus);
        }
        match self.input.as_mut().filter(|_| ready.contains(&2)).map(|input| input.write(unsent)) {
            Some(Err(e)) if e.kind() != io::ErrorKind::WouldBlock && e.kind() != io::ErrorKind::Interrupted => Err(e),
            Some(Ok(sent)) => Ok(Some(sent)),
            Some(Err(_)) | None => Ok(Some(0)),
        }
    }

    /// Reads until `done` finds what it wants in what was said, or the pipe is closed.
    fn read_until<T>(&mut self, most: usize, limit: Duration, mut done: impl FnMut(&mut Self) -> Option<T>) -> Result<T, Halt> {
        let deadline = Instant::now() + limit;
        loop {
            if let Some(found) = done(self) {
                return Ok(found);
            }
            if self.said.len() > most {
                return Err(Halt::TooMuch(most));
            }
            self.pump(&[], left(deadline, limit)?)?;
        }
    }

    /// What it says on stderr before it closes that, or within a second: the last line.
    fn last_words(&mut self) -> String {
        let deadline = Instant::now() + LAST_WORDS;
        while self.errors.is_some() && self.said.len() <= LONGEST_LINE {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.pump(&[], left).is_err() {
                break;
            }
        }
        let complaints = String::from_utf8_lossy(&self.complaints);
        complaints.lines().rfind(|line| !line.trim().is_empty()).map_or(String::new(), |line| line.trim().to_owned())
    }

    /// The next whole line of stdout; a piece of one at its end is none.
    ///
    /// # Errors
    /// There is none within the limit, or never.
    pub fn line(&mut self, limit: Duration) -> Result<String, Halt> {
        let found = self.read_until(LONGEST_LINE, limit, |child| match child.said.iter().position(|&byte| byte == b'\n') {
            Some(end) => {
                let line: Vec<u8> = child.said.drain(..=end).collect();
                Some(Some(String::from_utf8_lossy(&line).trim().to_owned()))
            }
            None => child.output.is_none().then_some(None),
        })?;
        found.ok_or_else(|| Halt::Ended(self.last_words()))
    }

    /// The beginning of what it said that nobody has taken.
    pub fn unasked(&mut self) -> Option<String> {
        // A pipe that cannot be read is told by the next call.
        let _ = self.pump(&[], Duration::ZERO);
        let said = String::from_utf8_lossy(&self.said);
        (!self.said.is_empty()).then(|| said.lines().next().unwrap_or_default().trim().chars().take(80).collect())
    }

    /// Writes a line to stdin, and takes in what is said meanwhile.
    ///
    /// # Errors
    /// It does not take the line within the limit, or its stdin is closed.
    pub fn send(&mut self, line: &str, limit: Duration) -> Result<(), Halt> {
        let deadline = Instant::now() + limit;
        let text = format!("{line}\n");
        let mut unsent = text.as_bytes();
        while !unsent.is_empty() {
            if self.input.is_none() || self.said.len() > LONGEST_LINE {
                return Err(Halt::TooMuch(LONGEST_LINE));
            }
            let sent = self.pump(unsent, left(deadline, limit)?)?.unwrap_or(0);
            unsent = unsent.get(sent..).unwrap_or_default();
        }
        Ok(())
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// It does not end within the limit, or prints without end.
    pub fn finish(mut self, limit: Duration) -> Result<Finished, Halt> {
        let deadline = Instant::now() + limit;
        self.input = None;
        self.read_until(LONGEST_OUTPUT, limit, |child| (child.output.is_none() && child.errors.is_none()).then_some(()))?;
        let status = self.process.wait_timeout(left(deadline, limit)?)?.ok_or(Halt::Late(limit))?;
        let stderr = String::from_utf8_lossy(&self.complaints).into_owned();
        Ok(Finished { status, stdout: std::mem::take(&mut self.said), stderr })
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

fn watched(pipe: Option<BorrowedFd<'_>>, on: PollFlags) -> Option<PollFd<'_>> {
    pipe.map(|fd| PollFd::from_borrowed_fd(fd, on))
}

fn left(deadline: Instant, limit: Duration) -> Result<Duration, Halt> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(Halt::Late(limit)) } else { Ok(left) }
}

/// Reads once from a pipe that has something, or was closed and is then let go.
fn read(pipe: &mut Option<impl Read>, into: &mut Vec<u8>) -> io::Result<()> {
    let mut buffer = [0; 64 << 10];
    match pipe.as_mut().map(|pipe| pipe.read(&mut buffer)) {
        Some(Ok(0)) => *pipe = None,
        Some(Ok(count)) => into.extend(buffer.iter().take(count)),
        Some(Err(e)) if e.kind() != io::ErrorKind::Interrupted => return Err(e),
        Some(Err(_)) | None => {}
    }
    Ok(())
}

/// What a program left behind.
#[derive(Debug)]
pub(super) struct Finished {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    /// The end of it.
    pub stderr: String,
}

/// A program that is run again and again, each time to its end within the limit.
#[derive(Debug)]
pub(super) struct Program {
    pub name: &'static str,
    pub custody: Custody,
    pub limit: Duration,
    silent: Cell<u32>,
}

impl Program {
    pub fn new(name: &'static str, custody: &Custody, limit: Duration) -> Self {
        Self { name, custody: custody.clone(), limit, silent: Cell::new(0) }
    }

    /// Runs `command` to its end, whatever that is.
    ///
    /// # Errors
    /// It cannot be started, or does not end within the limit.
    pub fn output(&self, mut command: Command) -> Result<Finished> {
        let child = self.custody.start(&mut command, false).map_err(|e| Error::failed(format!("cannot start {}", self.name), e))?;
        let outcome = child.finish(self.limit);
        self.silent.set(if matches!(outcome, Err(Halt::Late(_))) { self.silent.get() + 1 } else { 0 });
        outcome.map_err(|halt| halt.error(self.name))
    }

    /// Whether it did not end so often that it is not worth waiting for.
    pub fn given_up(&self) -> bool {
        gives_up(self.silent.get())
    }
}

/// Whether a program that was silent `times` in a row is started no more.
pub(super) fn gives_up(times: u32) -> bool {
    times >= CHANCES
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Long enough for a shell on a busy machine.
    pub const LIMIT: Duration = Duration::from_secs(60);
    /// For those that never answer.
    pub const SHORT: Duration = Duration::from_millis(300);

    fn shell(custody: &Custody, script: &str) -> Child {
        custody.start(Command::new("sh").args(["-c", script]), true).unwrap()
    }

    /// Whether process `id` runs; a zombie does not.
    pub fn runs(id: &str) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", id.trim())).unwrap_or_default();
        stat.rsplit(") ").next().and_then(|rest| rest.chars().next()).is_some_and(|state| state != 'Z')
    }

    pub fn gone(id: &str) -> bool {
        let start = Instant::now();
        while runs(id) && start.elapsed() < LIMIT {
            std::hint::spin_loop();
        }
        !runs(id)
    }

    #[test]
    fn a_child_that_hangs_is_killed_with_its_own_children() {
        let custody = Custody::default();
        let mut child = shell(&custody, "sleep 1000 & echo $!; wait");
        let grandchild = child.line(LIMIT).unwrap();
        assert!(runs(&grandchild));
        let error = child.line(SHORT).unwrap_err().error("the fake").to_string();
        assert_eq!(error, "the fake did not answer within 0.3 s: it was stopped\n  hint: --peer-limit gives it longer");
        drop(child);
        assert!(gone(&grandchild) && custody.held().groups.is_empty());
        // A child that closes its pipes and stays is late as well.
        let child = shell(&custody, "exec >&- 2>&-; sleep 1000");
        assert!(matches!(child.finish(SHORT), Err(Halt::Late(_))));
    }

    #[test]
    fn the_end_of_the_bench_ends_all_and_lets_nothing_start() {
        let custody = Custody::default();
        let folder = tempfile::tempdir().unwrap();
        let (file, kept) = (folder.path().join("raw"), folder.path().join("kept"));
        std::fs::write(&file, "x").unwrap();
        std::fs::write(&kept, "x").unwrap();
        let _raw = custody.watch(&file);
        drop(custody.watch(&kept));
        let mut child = shell(&custody, "sleep 1000 & echo $!; wait");
        let grandchild = child.line(LIMIT).unwrap();
        custody.clone().end();
        assert!(gone(&grandchild) && !file.exists() && kept.exists());
        assert!(custody.start(&mut Command::new("true"), false).is_err());
        assert!(matches!(child.line(LIMIT), Err(Halt::Ended(_))));
    }

    #[test]
    fn floods_are_cut_off_and_half_an_answer_is_none() {
        let custody = Custody::default();
        let mut flood = shell(&custody, "yes | tr -d '\\n'");
        assert!(matches!(flood.line(LIMIT), Err(Halt::TooMuch(LONGEST_LINE))));
        // Its complaints do not pile up either, and it is not held up by them.
        let mut loud = shell(&custody, "yes no | head -c 3000000 >&2; echo done; echo 12 | tr -d '\\n'; echo killed >&2");
        assert_eq!(loud.line(LIMIT).unwrap(), "done");
        assert!(loud.complaints.len() <= COMPLAINTS);
        match loud.line(LIMIT) {
            Err(Halt::Ended(words)) => assert_eq!(words, "killed"),
            other => panic!("{other:?}"),
        }
        let mut early = shell(&custody, "echo 1; echo 2; read -r line");
        assert_eq!(early.line(LIMIT).unwrap(), "1");
        while early.unasked().is_none() {
            std::hint::spin_loop();
        }
        assert_eq!(early.unasked().unwrap(), "2");
        // A line longer than the pipe holds, to one that does not read it.
        let mut deaf = shell(&custody, "sleep 1000");
        assert!(matches!(deaf.send(&"x".repeat(1 << 18), SHORT), Err(Halt::Late(_))));
    }

    #[test]
    fn a_program_is_run_to_its_end_or_given_up() {
        let custody = Custody::default();
        let run = |program: &Program, script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            program.output(command)
        };
        let program = Program::new("the fake", &custody, LIMIT);
        let done = run(&program, "head -c 300000 /dev/zero; echo no >&2; exit 3").unwrap();
        assert_eq!((done.status.code(), done.stdout.len(), done.stderr.as_str()), (Some(3), 300_000, "no\n"));
        let program = Program::new("the fake", &custody, SHORT);
        assert!(run(&program, "sleep 1000").unwrap_err().to_string().contains("did not answer within 0.3 s"));
        assert!(!program.given_up());
        assert!(run(&program, "sleep 1000").is_err() && program.given_up());
        assert!(run(&Program::new("x", &custody, LIMIT), "true").is_ok() && custody.held().groups.is_empty());
    }
}
