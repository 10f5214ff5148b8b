//! The pipeline level: whole processes from raw file to null, ours and ffmpeg's with the same graph, taking turns.

use std::ffi::{OsStr, OsString};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::cases::Case;
use super::child::{Custody, Finished, Program, Watched};
use super::length;
use super::race::{Clock, Settings, Subject, race, wrong_result};
use super::row::{Row, Span, StageShare};
use crate::cancel::Cancel;
use crate::cli::{BenchArgs, Level};
use crate::error::{Error, Result};
use crate::filter;
use crate::frame::{FrameLayout, FrameMem, Shape};
use crate::pipeline::{Item, Source};
use crate::pool::{Budget, Heap, Pool};
use crate::reference::{Comparison, Judge, Picture, Tolerance};
use crate::synth::{Synth, SynthSpec};

/// Frames of the raw input at most; longer runs read it again and again …
const FRAMES: usize = 150;
/// … and its bytes, but for a few frames.
const BYTES: usize = 512 << 20;
const FEWEST: usize = 8;

/// The raw input, and how to name it to both programs.
pub(super) struct Raw {
    _watched: Watched,
    path: tempfile::TempPath,
    spec: SynthSpec,
    frames: u64,
}

impl Raw {
    /// A raw 4:2:0 file of the synthetic source for runs of `frames` frames, or as many as need be; in memory-backed storage where there is
    /// some; removed on drop.
    ///
    /// # Errors
    /// No room for it.
    pub fn new((width, height): (usize, usize), frames: Option<u64>, custody: &Custody) -> Result<Self> {
        let failed = |e: std::io::Error| {
            Error::failed("cannot write the benchmark's raw input", e).hint("set TMPDIR to a folder with room, or choose a smaller --size")
        };
        let spec = SynthSpec::parse(&format!("{width}x{height}@25"))?;
        let held = (BYTES / spec.shape.payload_bytes().max(1)).clamp(FEWEST, FRAMES) as u64;
        let frames = frames.map_or(held, |frames| frames.min(held));
        let bytes = spec.shape.payload_bytes() as u64 * frames;
        let file = tempfile::Builder::new().prefix("convoy-bench-").suffix(".yuv").tempfile_in(scratch_folder(bytes)).map_err(failed)?;
        let watched = custody.watch(file.path());
        let mut out = BufWriter::new(file.as_file());
        let mut source = Synth::new(spec, Some(frames), Arc::new(Heap), Budget::new(1 << 30), Cancel::new())?;
        while let Item::Frame(frame) = source.next()? {
            for (plane, layout) in frame.layout.planes().iter().enumerate() {
                for y in 0..layout.height {
                    out.write_all(frame.row(plane, y)).map_err(failed)?;
                }
            }
        }
        out.flush().map_err(failed)?;
        drop(out);
        Ok(Self { _watched: watched, path: file.into_temp_path(), spec, frames })
    }

    fn shape(&self) -> Shape {
        self.spec.shape
    }

    /// What both programs read for a run of so many frames: the file, as often in a row as it takes. FFmpeg's protocol `concat` joins the
    /// bytes, at the same cost for both.
    fn input(&self) -> impl Fn(u64) -> OsString + Clone + use<> {
        let (path, held) = (self.path.to_path_buf(), self.frames.max(1));
        move |frames| match usize::try_from(frames.div_ceil(held)).unwrap_or(usize::MAX) {
            0 | 1 => path.clone().into_os_string(),
            times => {
                let mut input = OsString::from("concat:");
                input.push(vec![path.as_os_str(); times].join(OsStr::new("|")));
                input
            }
        }
    }

    fn size(&self) -> String {
        format!("{}x{}", self.spec.shape.width, self.spec.shape.height)
    }

    /// The first frame.
    fn picture(&self) -> Result<Picture> {
        let mut source = Synth::new(self.spec, Some(1), Arc::new(Heap), Budget::new(1 << 30), Cancel::new())?;
        match source.next()? {
            Item::Frame(frame) => Ok(Picture::read(&frame)),
            Item::Packet(_) | Item::End => Err(Error::failed("cannot read the synthetic source", "it gave no frame")),
        }
    }

    #[cfg(test)]
    fn path(&self) -> &Path {
        &self.path
    }
}

/// `/dev/shm` when it can hold `bytes` in a third of the free memory, else the system's temporary folder.
fn scratch_folder(bytes: u64) -> PathBuf {
    let shm = Path::new("/dev/shm");
    let available = crate::pool::system_memory("MemAvailable");
    if shm.is_dir() && available.is_some_and(|free| bytes < free as u64 / 3) { shm.to_path_buf() } else { std::env::temp_dir() }
}

/// What the pipeline level needs for every case.
pub(super) struct Bench<'a> {
    pub args: &'a BenchArgs,
    pub raw: &'a Raw,
    pub ours: &'a Rc<Program>,
    /// None where there is none.
    pub ffmpeg: Option<&'a Rc<Program>>,
    pub clock: &'a dyn Clock,
}

/// Our row and, where it is there, ffmpeg's.
///
/// # Errors
/// Convoy's own program file is not to be found.
pub(super) fn rows(bench: &Bench<'_>, case: &Case) -> Result<Vec<Row>> {
    let Bench { args, raw, clock, .. } = *bench;
    let exe = std::env::current_exe().map_err(|e| Error::failed("cannot find convoy's own program file", e))?;
    let mut ours = Process::ours(bench, case, exe);
    let mut theirs = bench.ffmpeg.map(|ffmpeg| Process::theirs(raw, case, ffmpeg));
    // What cannot run says so when it is verified; until then nothing is known of it.
    let start_up = length::start_up(clock, &mut |frames| ours.once(frames)).ok();
    let frames = match (args.frames, start_up) {
        (Some(frames), _) => frames,
        (None, Some(start_up)) => {
            let wanted = length::frames(clock, start_up, &mut |frames| ours.once(frames)).unwrap_or(raw.frames);
            // Both read the same frames: no more than the slower one gets through.
            let longest = args.peer_limit / 3;
            let most = theirs.as_mut().and_then(|theirs| length::within(clock, longest, &mut |frames| theirs.once(frames)).ok());
            wanted.min(most.unwrap_or(wanted))
        }
        (None, None) => raw.frames,
    };
    let runs = args.runs.and_then(|n| usize::try_from(n).ok());
    let settings = Settings {
        warm_up: Duration::ZERO,
        repetition: Duration::ZERO,
        least: runs.unwrap_or(1),
        most: runs.unwrap_or(RUNS),
        budget: BUDGET,
        frames: usize::try_from(frames).ok(),
    };
    let mut contenders: Vec<&mut dyn Subject> = vec![&mut ours];
    contenders.extend(theirs.as_mut().map(|theirs| theirs as &mut dyn Subject));
    let outcomes = race(clock, &mut contenders, &settings);
    let mut rows = Vec::new();
    for (index, outcome) in outcomes.into_iter().enumerate() {
        let mut row = Row::new(Level::Pipeline, &case.name, &case.graph, raw.shape(), ("420", "u8"));
        row.bytes = 2 * raw.shape().payload_bytes() as u64;
        row.fill(outcome);
        // Few repetitions are the rule here; that alone is no reason for doubt.
        row.warnings.retain(|w| !w.starts_with("only "));
        if index == 0 {
            (row.backend, row.variant) = (args.backend.name().to_owned(), "auto".to_owned());
            ours.report(&mut row);
            start_up.into_iter().for_each(|start_up| row.set_start_up(start_up));
            if row.error.is_none() {
                row.timeline = ours.timeline(frames).unwrap_or_default();
            }
        } else {
            row.program = "ffmpeg".to_owned();
            (row.backend, row.variant) = ("cpu".to_owned(), case.peer.chars().take(40).collect());
            if let Some(theirs) = theirs.as_mut().filter(|_| row.error.is_none())
                && let Ok(start_up) = length::start_up(clock, &mut |frames| theirs.once(frames))
            {
                row.set_start_up(start_up);
            }
            if let Some(check) = row.check.filter(|c| c.max_error > 1.0) {
                row.notes.push(format!("not the same result: up to {} code values off", check.max_error));
            }
        }
        rows.push(row);
    }
    Ok(rows)
}

/// Runs of each program, unless the user says how many …
const RUNS: usize = 3;
/// … or a program has been running this long: one that takes half a minute is known well enough.
const BUDGET: Duration = Duration::from_secs(20);

/// A program that filters the raw file.
struct Process {
    program: Rc<Program>,
    /// For so many frames.
    command: Box<dyn Fn(u64) -> Command>,
    check: Box<dyn Fn() -> Result<Comparison>>,
    /// What the last run printed.
    output: String,
}

impl Process {
    fn ours(bench: &Bench<'_>, case: &Case, exe: PathBuf) -> Self {
        let Bench { args, raw, .. } = *bench;
        let (input, size, graph, backend) = (raw.input(), raw.size(), case.graph.clone(), args.backend.name());
        let base = move |frames: u64| {
            let mut command = Command::new(&exe);
            command.args(["run"]).arg(input(frames)).args([
                "--input-format",
                "rawvideo",
                "--progress",
                "none",
                "-o",
                "null:",
                "--backend",
                backend,
            ]);
            command.args(["--in-opt", &format!("video_size={size}"), "--in-opt", "pixel_format=yuv420p", "--vf", &graph, "--stats=json"]);
            command.args(["--frames", &frames.to_string()]);
            command
        };
        let samples = 2 * raw.shape().payload_bytes() as u64;
        let (checked, program) = (base.clone(), Rc::clone(bench.ours));
        let check = move || {
            let mut command = checked(2);
            command.args(["--verify", "1"]);
            let text = output_of(&program, command)?.stderr;
            verified(&text, samples).ok_or_else(|| wrong_result("convoy", format!("no word of a comparison in '{}'", text.trim())))
        };
        Self { program: Rc::clone(bench.ours), command: Box::new(base), check: Box::new(check), output: String::new() }
    }

    fn theirs(raw: &Raw, case: &Case, ffmpeg: &Rc<Program>) -> Self {
        let (input, size, graph) = (raw.input(), raw.size(), case.peer.clone());
        let base = move |frames: u64| {
            let mut command = Command::new("ffmpeg");
            command
                .args(["-hide_banner", "-nostdin", "-v", "error", "-f", "rawvideo", "-s", &size, "-pix_fmt", "yuv420p", "-i"])
                .arg(input(frames));
            command.args(["-vf", &graph, "-frames:v", &frames.to_string()]);
            command
        };
        let (checked, program) = (base.clone(), Rc::clone(ffmpeg));
        let (shape, picture, own) = (raw.shape(), raw.picture(), case.graph.clone());
        let picture = picture.map_err(|e| e.to_string());
        let check = move || {
            let mut command = checked(1);
            command.args(["-f", "rawvideo", "-pix_fmt", "yuv420p", "-"]);
            let samples = output_of(&program, command)?.stdout;
            let wrong = |why: String| wrong_result("ffmpeg", why);
            let picture = picture.as_ref().map_err(|e| wrong(e.clone()))?;
            let plan = filter::plan(&filter::parse(&own)?, shape)?;
            let frame = frame_of(&samples, plan.output()).map_err(|e| wrong(e.to_string()))?;
            Judge::within(&plan, picture, 2e8).map_err(wrong)?.compare(&frame, Tolerance::of_plan(&plan)).map_err(wrong)
        };
        let command = move |frames| {
            let mut command = base(frames);
            command.args(["-f", "null", "-"]);
            command
        };
        Self { program: Rc::clone(ffmpeg), command: Box::new(command), check: Box::new(check), output: String::new() }
    }

    /// One run.
    fn once(&mut self, frames: u64) -> Result<()> {
        self.output = String::from_utf8_lossy(&output_of(&self.program, (self.command)(frames))?.stdout).into_owned();
        Ok(())
    }

    /// A few frames of one more, shorter run, from its trace; None if that does not work out, since no figure depends on it.
    fn timeline(&self, frames: u64) -> Option<Vec<Span>> {
        let file = tempfile::NamedTempFile::new().ok()?;
        let mut command = (self.command)((SHOWN_FROM + SHOWN + 10).min(frames));
        command.arg("--trace").arg(file.path());
        output_of(&self.program, command).ok()?;
        let trace = serde_json::from_str(&std::fs::read_to_string(file.path()).ok()?).ok()?;
        let first = SHOWN_FROM.min(frames.saturating_sub(SHOWN));
        Some(spans(&trace, first..first + SHOWN))
    }

    /// Stages of the last run, from its `--stats=json`.
    fn report(&self, row: &mut Row) {
        let Ok(report) = serde_json::from_str::<serde_json::Value>(&self.output) else { return };
        for stage in report["stages"].as_array().map(Vec::as_slice).unwrap_or_default() {
            if let (Some(name), Some(busy_percent)) = (stage["name"].as_str(), stage["busy_percent"].as_f64()) {
                row.stages.push(StageShare { name: name.to_owned(), busy_percent });
            }
        }
        row.limited_by = report["limited_by"].as_str().map(str::to_owned);
        let phases: Vec<f64> =
            report["device_us_per_frame"].as_array().map(|a| a.iter().filter_map(|v| v.as_f64()).collect()).unwrap_or_default();
        row.phases_us = <[f64; 3]>::try_from(phases).ok();
        if let Some(name) = report["backend"].as_str() {
            row.notes.push(format!("ran on {name}"));
        }
    }
}

impl Subject for Process {
    fn verify(&mut self) -> Result<Comparison> {
        (self.check)()
    }

    fn inputs(&self) -> usize {
        1
    }

    fn run(&mut self, _first: usize, frames: usize) -> Result<Option<f64>> {
        self.once(frames as u64).map(|()| None)
    }
}

fn output_of(program: &Program, command: Command) -> Result<Finished> {
    let output = program.output(command)?;
    if !output.status.success() {
        return Err(Error::failed(format!("{} failed in the benchmark", program.name), output.stderr.trim()));
    }
    Ok(output)
}

/// Frames of the timeline, behind those that fill queues and lanes.
const SHOWN_FROM: u64 = 30;
const SHOWN: u64 = 8;

/// The work on some frames in a Chrome trace; waiting is left out.
fn spans(trace: &serde_json::Value, frames: std::ops::Range<u64>) -> Vec<Span> {
    let events = trace["traceEvents"].as_array().map(Vec::as_slice).unwrap_or_default();
    let name_of = |tid: &serde_json::Value| {
        let event = events.iter().find(|e| e["name"] == "thread_name" && e["tid"] == *tid)?;
        event["args"]["name"].as_str().map(str::to_owned)
    };
    let span = |event: &serde_json::Value| {
        let frame = event["args"]["frame"].as_u64().filter(|n| frames.contains(n))?;
        let name = event["name"].as_str().filter(|n| !n.starts_with("wait") && !n.starts_with("step"))?.to_owned();
        let (start_us, length_us) = (event["ts"].as_f64()?, event["dur"].as_f64()?);
        Some(Span { track: name_of(&event["tid"])?, name, frame: Some(frame), start_us, length_us })
    };
    let mut spans: Vec<Span> = events.iter().filter(|e| e["ph"] == "X").filter_map(span).collect();
    let start = spans.iter().map(|s| s.start_us).fold(f64::INFINITY, f64::min);
    spans.iter_mut().for_each(|s| s.start_us -= start);
    spans
}

/// Reads what `run --verify` says of itself.
fn verified(text: &str, samples: u64) -> Option<Comparison> {
    let line = text.lines().find(|l| l.contains("frames against the reference"))?;
    let number = |after: &str| line.split_once(after)?.1.split_whitespace().next()?.parse::<f64>().ok();
    let percent = line.split(", ").last()?.split(' ').next()?.parse::<f64>().ok()?;
    let exact = (samples as f64 * percent / 100.0).round() as u64;
    Some(Comparison { samples, exact, max_error: number("max error ")?, ..Comparison::default() })
}

/// Raw planes as a frame.
fn frame_of(bytes: &[u8], shape: Shape) -> Result<crate::frame::Frame> {
    if bytes.len() != shape.payload_bytes() {
        return Err(Error::failed("its frame has another size", format!("{} bytes, not {}", bytes.len(), shape.payload_bytes())));
    }
    let layout = FrameLayout::packed(shape)?;
    let lease = Pool::new(Arc::new(Heap), layout.slab_bytes, Budget::new(usize::MAX)).lease()?;
    let picture = Picture { shape, planes: Vec::new() };
    let mut frame = picture.wrap(layout, FrameMem::Slab(lease), 0);
    let mut rest = bytes;
    for (plane, place) in layout.planes().iter().enumerate() {
        for y in 0..place.height {
            let (row, tail) = rest.split_at_checked(place.row_bytes(shape.format.sample())).unwrap_or((rest, &[]));
            rest = tail;
            if let Some(target) = frame.row_mut(plane, y)
                && target.len() == row.len()
            {
                target.copy_from_slice(row);
            }
        }
    }
    Ok(frame)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_raw_file_holds_every_sample_and_goes_away() {
        let raw = Raw::new((33, 17), Some(4), &Custody::default()).unwrap();
        let path = raw.path().to_path_buf();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len(), 4 * (33 * 17 + 2 * 17 * 9));
        let first = frame_of(&bytes[..bytes.len() / 4], raw.shape()).unwrap();
        assert_eq!(Picture::read(&first).planes, raw.picture().unwrap().planes);
        assert!(frame_of(&bytes[1..], raw.shape()).is_err());
        let file = path.to_str().unwrap();
        assert_eq!(raw.input()(4), file);
        assert_eq!(raw.input()(9), format!("concat:{file}|{file}|{file}").as_str());
        drop(raw);
        assert!(!path.exists());
    }

    #[test]
    fn what_verify_said_is_read_back() {
        let watch = crate::verify::Watch::default();
        let found = verified(&format!("convoy: {}", watch.report(false)), 1000).unwrap();
        assert_eq!((found.samples, found.exact, found.max_error), (1000, 1000, 0.0));
        assert!(verified("convoy: something else", 1).is_none());
    }
}
