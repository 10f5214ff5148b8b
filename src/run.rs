//! `convoy run`: opens everything in order, runs the pipeline, gives the output its name.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::backend::cpu::Cpu;
use crate::backend::{self, BuildOptions, Choice, Device};
use crate::cancel::Cancel;
use crate::cli::{Backend, RunArgs, StatsForm};
use crate::error::{Error, Result};
use crate::filter::{self, Filter};
use crate::frame::{Sample, Shape};
use crate::media::{self, EncodeSpec, FileMuxer, Input, InputSpec, MediaCounters, Rational, SourceInfo, SourceOptions, VideoEncoder};
use crate::output::{Committed, Target};
use crate::pipeline::{self, Discard, Encoder, Muxer, Source, Stages};
use crate::pool::{self, Budget};
use crate::progress::{Display, Expected};
use crate::stats::{PipelineStats, Report, Timing};
use crate::status;
use crate::synth::{Synth, SynthSpec};
use crate::trace::{Trace, TraceFile};
use crate::verify;

/// Prefix of the built-in source.
const SYNTH: &str = "synth:";

/// Runs one job. Status goes to stderr, `--stats` to stdout (to stderr when the video goes to stdout).
///
/// # Errors
/// The first cause of whatever failed; the temporary output is gone then.
pub fn run(args: &RunArgs, cancel: &Cancel) -> Result<ExitCode> {
    match execute(args, cancel) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(Ended::Error(error)) => match cancel.signal() {
            // Opening or draining was cut short by the signal: nothing of value was lost, and the code says why.
            Some(signal) => {
                status::say(format_args!("interrupted: {error}"));
                Ok(signal_code(signal))
            }
            None => Err(error),
        },
        Err(Ended::Interrupted(signal)) => Ok(signal_code(signal)),
    }
}

fn signal_code(signal: i32) -> ExitCode {
    ExitCode::from(u8::try_from(128 + signal).unwrap_or(1))
}

enum Ended {
    Error(Error),
    Interrupted(i32),
}

impl From<Error> for Ended {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

fn execute(args: &RunArgs, cancel: &Cancel) -> Result<(), Ended> {
    // What can be refused without touching a device or the network comes first.
    let filters = if args.vf.trim().is_empty() { Vec::new() } else { filter::parse(&args.vf)? };
    let encode = encode_spec(args);
    let target = Target::prepare(&args.output, &args.input, args.overwrite(), cancel)?;
    if !target.is_null() {
        media::check_output(target.name(), &encode)?;
    }

    let trace = args.trace.as_deref().map(TraceFile::create).transpose()?.map(|file| (file, Arc::new(Trace::new())));
    let opened = Opened::open(args, cancel)?;
    let device = open_device(args, filters.is_empty())?;
    let budget = Budget::new(args.memory.unwrap_or_else(default_budget));
    let started = opened.start(
        args,
        &filters,
        SourceOptions { mem: device.host_memory(), budget: Arc::clone(&budget), threads: args.threads },
        cancel,
    )?;
    let plan = filter::plan(&filters, started.shape)?;
    let options = BuildOptions { lanes: args.lanes, threads: args.threads, variant: args.variant.clone(), budget };
    // Nothing to compute: the frames pass by, whatever device their memory belongs to.
    let mut built = if plan.steps.is_empty() { Cpu::new().build(&plan, &options)? } else { device.build(&plan, &options)? };
    let mut watched = None;
    if let Some(every) = args.verify {
        let (checked, watch) = verify::watch(built, &plan, every);
        (built, watched) = (checked, Some(watch));
    }
    if args.verbose {
        status::say(format_args!("input {} ({})", media::redact(&args.input), started.shape));
        started.counters.iter().for_each(|c| note(&c.notes()));
        status::say(format_args!("device {}", device.describe()));
        note(&built.notes);
    }

    let mut counters: Vec<Arc<MediaCounters>> = started.counters.into_iter().collect();
    let (encoder, muxer): (Box<dyn Encoder>, Box<dyn Muxer>) = if target.is_null() {
        (Box::new(Discard), Box::new(Discard))
    } else {
        let (encoder, muxer) = open_output(&target, &encode, &started.info, plan.output(), cancel)?;
        warn(muxer.warnings());
        if args.verbose {
            status::say(format_args!("encoder {} ({})", encoder.name(), encoder.pixel_format()));
            note(&encoder.counters().notes());
        }
        counters.push(encoder.counters());
        (Box::new(encoder), Box::new(muxer))
    };

    let stats = Arc::new(PipelineStats::default());
    if let Some((_, trace)) = &trace {
        stats.trace(trace);
        // Nobody set one before: the stats were made with the backend.
        let _ = built.stats.trace.set(Arc::clone(trace));
    }
    let expected =
        Expected { frames: expected_frames(args.frames, started.info.frames), fps: started.info.frame_rate.and_then(Rational::value) };
    let display = Display::start(args.progress, &stats, expected)?;
    let stages = Stages { source: started.source, submitter: built.submitter, collector: built.collector, encoder, muxer };
    let outcome = pipeline::run(stages, &stats, cancel);
    drop(display);
    if let Some((file, trace)) = trace {
        // Also of a run that failed: that is when one wants to see it.
        file.write(&trace)?;
    }
    let copied = counters.iter().map(|c| c.host_copied_bytes.load(Ordering::Relaxed)).sum();
    counters.iter().for_each(|c| warn(&c.warnings()));
    let timing = outcome?;
    if let Some(watch) = watched {
        status::say(watch.report(plan.output().format.sample() == Sample::F32));
    }
    finish(target, &timing, cancel)?;
    if let Some(form) = args.stats {
        let mut report = Report::new((device.name(), device.describe()), built.notes, timing, &stats, &built.stats, copied);
        report.damaged = counters.iter().map(|c| c.damaged()).sum();
        print_stats(form, &report, args.output == "-")?;
    }
    match cancel.signal() {
        Some(signal) => Err(Ended::Interrupted(signal)),
        None => Ok(()),
    }
}

/// Commits the output, or says where the partial one is.
fn finish(target: Target, timing: &Timing, cancel: &Cancel) -> Result<()> {
    let discards = target.is_null();
    let name = target.name().to_owned();
    match (cancel.signal(), timing.frames) {
        (Some(_), 0) => {
            status::say("interrupted before the first frame; nothing was written");
            Ok(())
        }
        (Some(_), frames) => {
            let place = match target.commit_partial()? {
                Committed::Partial(path) => format!("; the partial result is {} ({name} is untouched)", path.display()),
                Committed::Final if discards => String::new(),
                Committed::Final => format!("; {name} is valid but partial"),
            };
            status::say(format_args!("interrupted after {frames} frames{place}"));
            Ok(())
        }
        (None, 0) => Err(Error::failed("nothing to write", "the input holds no decodable frame")),
        (None, _) => target.commit(),
    }
}

fn print_stats(form: StatsForm, report: &Report, to_stderr: bool) -> Result<()> {
    let text = match form {
        StatsForm::Text => report.to_string(),
        StatsForm::Json => serde_json::to_string(report).map_err(|e| Error::failed("cannot write the statistics as JSON", e))?,
    };
    if to_stderr {
        text.lines().for_each(status::say);
        return Ok(());
    }
    status::print(&text)
}

fn warn(warnings: &[String]) {
    warnings.iter().for_each(status::warn);
}

fn note(notes: &[String]) {
    notes.iter().for_each(status::say);
}

fn encode_spec(args: &RunArgs) -> EncodeSpec {
    EncodeSpec {
        codec: args.codec.clone(),
        crf: args.crf,
        preset: args.preset.clone(),
        bitrate: args.bitrate.map(|b| b.to_string()),
        pix_fmt: args.pix_fmt.clone(),
        options: args.enc_opt.clone(),
        threads: args.threads,
        format: args.format.clone(),
        mux_options: args.mux_opt.clone(),
    }
}

fn open_device(args: &RunArgs, idle: bool) -> Result<Box<dyn Device>> {
    // A plain transcode does not start a GPU unless it was asked for by name.
    let choice = if idle && args.backend == Backend::Auto { Choice::Cpu } else { args.backend.into() };
    let (device, notice) = backend::open(choice, args.device)?;
    if let Some(notice) = notice {
        status::say(notice);
    }
    Ok(device)
}

fn open_output(target: &Target, spec: &EncodeSpec, info: &SourceInfo, shape: Shape, cancel: &Cancel) -> Result<(VideoEncoder, FileMuxer)> {
    media::open_output(&media::OutputTarget { url: target.url(), final_name: target.name() }, spec, info, shape, cancel)
}

/// An input whose streams are known and whose decoder is not open yet.
enum Opened {
    Media(Box<Input>),
    Synth(SynthSpec),
}

/// An input that delivers frames.
struct Started {
    source: Box<dyn Source>,
    info: Arc<SourceInfo>,
    shape: Shape,
    counters: Option<Arc<MediaCounters>>,
}

impl Opened {
    fn open(args: &RunArgs, cancel: &Cancel) -> Result<Self> {
        if let Some(spec) = args.input.strip_prefix(SYNTH) {
            return SynthSpec::parse(spec).map(Self::Synth);
        }
        let spec = InputSpec {
            url: args.input.clone(),
            format: args.input_format.clone(),
            options: args.in_opt.clone(),
            threads: args.threads,
            frames: args.frames,
        };
        Input::open(&spec, cancel).map(|input| Self::Media(Box::new(input)))
    }

    /// Opens the decoder with the device's host memory; its first frame tells the true shape.
    fn start(self, args: &RunArgs, filters: &[Filter], options: SourceOptions, cancel: &Cancel) -> Result<Started> {
        match self {
            Self::Media(input) => {
                let mut source = input.into_source(options)?;
                if filter::separates_chroma(filters, source.shape()) {
                    source.separate_chroma()?;
                }
                Ok(Started { info: source.info(), shape: source.shape(), counters: Some(source.counters()), source: Box::new(source) })
            }
            Self::Synth(spec) => {
                let info = Arc::new(SourceInfo::generated("synth", spec.shape, Rational { num: spec.rate.0, den: spec.rate.1 })?);
                let source = Synth::new(spec, args.frames, options.mem, options.budget, cancel.clone())?;
                Ok(Started { info, shape: spec.shape, counters: None, source: Box::new(source) })
            }
        }
    }
}

fn expected_frames(limit: Option<u64>, known: Option<u64>) -> Option<u64> {
    match (limit, known) {
        (Some(limit), Some(known)) => Some(limit.min(known)),
        (limit, known) => limit.or(known),
    }
}

/// The larger of 2 GiB and a quarter of the machine's memory.
fn default_budget() -> usize {
    const FLOOR: usize = 2 << 30;
    pool::system_memory("MemTotal").map_or(FLOOR, |bytes| (bytes / 4).max(FLOOR))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_expected_length_is_the_shorter_of_what_is_known() {
        assert_eq!(expected_frames(Some(5), Some(9)), Some(5));
        assert_eq!(expected_frames(None, Some(9)), Some(9));
        assert_eq!(expected_frames(None, None), None);
        assert!(default_budget() >= 2 << 30);
    }
}
