//! `convoy run`: opens everything in order, runs the pipeline, gives the output its name.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::backend::cpu::Cpu;
use crate::backend::small::too_small_for_gpu;
use crate::backend::{self, BuildOptions, Built, Choice, Device, fields};
use crate::cancel::Cancel;
use crate::cli::{Backend, Fields, RunArgs, StatsForm};
use crate::error::{Error, Result};
use crate::filter::plan::Plan;
use crate::filter::{self, Filter};
use crate::frame::Shape;
use crate::frame_log::FrameLog;
use crate::media::{
    self, By, EncodeSpec, FileMuxer, Input, InputSpec, MediaCounters, Pass, Rational, SourceInfo, SourceOptions, Treatment, VideoEncoder,
};
use crate::output::{Committed, Target};
use crate::pace::{Pace, WallClock};
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
    let log = match &args.selection.log_frames {
        None => None,
        Some(file) => Some(Arc::new(FrameLog::open(Some(file.as_path()).filter(|f| *f != Path::new("-")))?)),
    };
    let encode = encode_spec(args, &log);
    let target = Target::prepare(&args.output, &args.input, args.overwrite(), cancel)?;
    if !target.is_null() {
        let passes = args.encoding.two_pass.then(|| Pass { first: true, statistics: PathBuf::new() });
        media::check_output(target.name(), &EncodeSpec { pass: passes, ..encode.clone() })?;
    }
    let trace = args.trace.as_deref().map(TraceFile::create).transpose()?.map(|file| (file, Arc::new(Trace::new())));
    let job = Job { args, filters: &filters, log, trace, cancel };
    if !args.encoding.two_pass {
        return job.run(target, encode);
    }
    if target.is_null() || args.input == "-" || media::is_live(&args.input) {
        return Err(Error::usage("cannot encode in two passes", "the input must be read twice, and the output written")
            .hint("name a file as input and output, or leave --two-pass out")
            .into());
    }
    let folder = tempfile::tempdir().map_err(|e| Error::failed("cannot keep the first pass's statistics", e))?;
    let pass = |first| Some(Pass { first, statistics: folder.path().join("statistics") });
    job.learn(&target, &EncodeSpec { pass: pass(true), log: None, ..encode.clone() })?;
    job.run(target, EncodeSpec { pass: pass(false), ..encode })
}

/// One run as the command line asks for it.
struct Job<'a> {
    args: &'a RunArgs,
    filters: &'a [Filter],
    log: Option<Arc<FrameLog>>,
    /// Where `--trace` goes; of two passes, the second is traced.
    trace: Option<(TraceFile, Arc<Trace>)>,
    cancel: &'a Cancel,
}

/// Everything before the encoder, opened.
struct Ready {
    device: Box<dyn Device>,
    started: Started,
    built: Built,
    /// In which pieces frames are filtered; None without a filter.
    filtered: Option<By>,
    /// Shape of the filtered frames.
    output: Shape,
    watch: Option<verify::Watch>,
}

/// What filters the frames.
struct Lanes {
    built: Built,
    filtered: Option<By>,
    /// Shape of the filtered frames.
    output: Shape,
    watch: Option<verify::Watch>,
}

impl Job<'_> {
    /// Opens input, device and filters.
    fn open(&self, log: Option<Arc<FrameLog>>) -> Result<Ready> {
        let args = self.args;
        // A GPU's driver takes some 0.2 s to start, which is long enough to read the input's header.
        let idle = self.filters.is_empty();
        let (device, opened) = pipeline::together("device", || open_device(args, idle), || Opened::open(args, log, self.cancel))?;
        let (opened, (device, notice)) = (opened?, device?);
        if let Some(notice) = notice {
            status::say(notice);
        }
        let budget = Budget::new(args.memory.unwrap_or_else(default_budget));
        let source = SourceOptions { mem: device.host_memory(), budget: Arc::clone(&budget), threads: args.threads };
        let started = opened.start(args, self.filters, source, self.cancel)?;
        let options = BuildOptions { lanes: args.lanes, threads: args.threads, variant: args.variant.clone(), budget };
        let plan = filter::plan(self.filters, started.shape)?;
        let device = if left_to_us(args, &plan) { off_gpu(device, &plan) } else { device };
        let Lanes { built, filtered, output, watch } = self.build(device.as_ref(), plan, &started, &options)?;
        Ok(Ready { device, started, built, filtered, output, watch })
    }

    /// Builds the lanes: for whole frames, as `plan` says, or for fields.
    fn build(&self, device: &dyn Device, plan: Plan, started: &Started, options: &BuildOptions) -> Result<Lanes> {
        if plan.steps.is_empty() {
            // Nothing to compute: the frames pass by, whatever device their memory belongs to.
            return Ok(Lanes { filtered: None, ..self.watched(Cpu::new().build(&plan, options)?, &plan) });
        }
        let by_field = match self.args.selection.fields {
            Fields::Frame => false,
            Fields::Field => true,
            Fields::Auto => started.info.interlaced,
        };
        if by_field {
            let field_plan = fields::field_shape(started.shape).map(|shape| filter::plan(self.filters, shape)).transpose()?;
            if let Some((plan, output)) = field_plan.and_then(|plan| fields::frame_shape(plan.output()).map(|shape| (plan, shape))) {
                let built = device.build(&plan, &fields::options(options))?;
                let lanes = self.watched(built, &plan);
                let mut built = fields::weave(lanes.built, output, device.host_memory(), Arc::clone(&options.budget))?;
                built.notes.push("interlaced: each field is filtered by itself".to_owned());
                return Ok(Lanes { built, output, filtered: Some(By::Field), ..lanes });
            }
            status::warn(format_args!(
                "the video is interlaced, but the {} rows of its {} pictures cannot be shared out to two fields: whole frames are filtered",
                started.shape.height, started.shape.format
            ));
        }
        Ok(self.watched(device.build(&plan, options)?, &plan))
    }

    /// Lanes whose results are compared with the reference, if `--verify` says so.
    fn watched(&self, built: Built, plan: &Plan) -> Lanes {
        let (output, filtered) = (plan.output(), Some(By::Frame));
        match self.args.verify {
            None => Lanes { built, filtered, output, watch: None },
            Some(every) => {
                let (built, watch) = verify::watch(built, plan, every);
                Lanes { built, filtered, output, watch: Some(watch) }
            }
        }
    }

    /// The first of two passes: everything but the output. What it has to say, the second pass says.
    fn learn(&self, target: &Target, encode: &EncodeSpec) -> Result<(), Ended> {
        let Ready { started, built, output, .. } = self.open(None)?;
        let encoder = Box::new(media::open_encoder(target.name(), encode, &started.info, output)?);
        if self.args.verbose {
            status::say("first pass of two");
        }
        let stats = Arc::new(PipelineStats::default());
        let display = Display::start(self.args.progress, &stats, expected(self.args, &started.info))?;
        let stages =
            Stages { source: started.source, submitter: built.submitter, collector: built.collector, encoder, muxer: Box::new(Discard) };
        let outcome = pipeline::run(stages, &stats, self.cancel);
        drop(display);
        outcome?;
        match self.cancel.signal() {
            Some(signal) => {
                status::say("interrupted in the first of two passes; nothing was written");
                Err(Ended::Interrupted(signal))
            }
            None => Ok(()),
        }
    }

    fn run(self, target: Target, encode: EncodeSpec) -> Result<(), Ended> {
        let (args, cancel) = (self.args, self.cancel);
        let Ready { device, started, built, filtered, output, watch } = self.open(self.log.clone())?;
        let mut heard = Heard::default();
        started.counters.iter().for_each(|c| heard.listen(c));
        if args.verbose {
            status::say(format_args!("input {} ({})", media::redact(&args.input), started.shape));
            started.counters.iter().for_each(|c| note(&c.notes()));
            status::say(format_args!("device {}", device.describe()));
            note(&built.notes);
        }

        let mut done = Treatment { filtered: filtered.filter(|_| args.selection.fields == Fields::Auto), marks_each: true };
        let (encoder, muxer): (Box<dyn Encoder>, Box<dyn Muxer>) = if target.is_null() {
            (Box::new(Discard), Box::new(Discard))
        } else {
            let (encoder, muxer) = open_output(&target, &encode, &started.info, output, cancel)?;
            warn(muxer.warnings());
            done.marks_each = encoder.marks_each_scan();
            if args.verbose {
                status::say(format_args!("encoder {} ({})", encoder.name(), encoder.pixel_format()));
                note(&encoder.counters().notes());
                note(muxer.notes());
            }
            heard.listen(&encoder.counters());
            (Box::new(encoder), Box::new(muxer))
        };

        let stats = Arc::new(PipelineStats::default());
        if let Some((_, trace)) = &self.trace {
            stats.trace(trace);
            // Nobody set one before: the stats were made with the backend.
            let _ = built.stats.trace.set(Arc::clone(trace));
        }
        let display = Display::start(args.progress, &stats, expected(args, &started.info))?;
        let pace = pace(args, &started.info);
        let stages = Stages { source: started.source, submitter: built.submitter, collector: built.collector, encoder, muxer };
        let outcome = pipeline::run_paced(stages, pace, &stats, cancel);
        drop(display);
        heard.tell();
        started.counters.iter().filter_map(|c| c.mixture(&done)).for_each(status::warn);
        // Also of a run that failed: that is when one wants to see it.
        let traced = self.trace.map_or(Ok(()), |(file, trace)| file.write(&trace));
        let timing = match (outcome, traced) {
            (Ok(timing), Ok(())) => timing,
            (Ok(_), Err(error)) | (Err(error), Ok(())) => return Err(error.into()),
            (Err(first), Err(second)) => return Err(first.and(second).into()),
        };
        if let Some(watch) = watch {
            status::say(watch.report(output.format.sample().is_float()));
        }
        finish(target, &timing, cancel)?;
        if let Some(form) = args.stats {
            let mut report = Report::new((device.name(), device.describe()), built.notes, timing, &stats, &built.stats, heard.copied());
            report.damaged = heard.counters().map(|c| c.damaged()).sum();
            print_stats(form, &report, args.output == "-")?;
        }
        // The process ends here: the driver takes its memory back faster by itself than piece by piece.
        std::mem::forget(device);
        let damaged = heard.counters().any(|c| c.damaged() > 0 || c.ended_early());
        match cancel.signal() {
            Some(signal) => Err(Ended::Interrupted(signal)),
            None if damaged && args.selection.strict => {
                Err(Error::failed("the input is not whole", "--strict says that this is a failure; the output holds what could be read")
                    .into())
            }
            None => Ok(()),
        }
    }
}

/// Source and encoder, and how many of their warnings the user has read.
#[derive(Default)]
struct Heard(Vec<(Arc<MediaCounters>, usize)>);

impl Heard {
    /// Prints what there is to say already, before the run starts.
    fn listen(&mut self, counters: &Arc<MediaCounters>) {
        self.0.push((Arc::clone(counters), 0));
        self.tell();
    }

    /// Prints what is new.
    fn tell(&mut self) {
        for (counters, said) in &mut self.0 {
            let warnings = counters.warnings();
            warn(warnings.get(*said..).unwrap_or_default());
            *said = warnings.len();
        }
    }

    fn counters(&self) -> impl Iterator<Item = &MediaCounters> {
        self.0.iter().map(|(counters, _)| counters.as_ref())
    }

    fn copied(&self) -> u64 {
        self.counters().map(|c| c.host_copied_bytes.load(Ordering::Relaxed)).sum()
    }
}

/// The clock by which a live output is fed, or the user wants to read.
fn pace(args: &RunArgs, info: &SourceInfo) -> Option<Pace> {
    let live = media::is_live_output(&args.output) && !info.live && !media::is_live(&args.input);
    if args.selection.no_re || !(args.selection.re || live) {
        return None;
    }
    if !args.selection.re {
        status::say("reading at the input's own speed, since the output is live (--no-re reads as fast as possible)");
    }
    let bases = info.streams.iter().map(|s| (s.time_base.num, s.time_base.den)).collect();
    Some(Pace::new(Box::new(WallClock::default()), bases, info.video))
}

fn expected(args: &RunArgs, info: &SourceInfo) -> Expected {
    Expected { frames: expected_frames(args.frames, info.frames), fps: info.frame_rate.and_then(Rational::value) }
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

fn encode_spec(args: &RunArgs, log: &Option<Arc<FrameLog>>) -> EncodeSpec {
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
        odd: args.encoding.odd.into(),
        index_last: args.encoding.no_faststart,
        pass: None,
        log: log.clone(),
    }
}

fn open_device(args: &RunArgs, idle: bool) -> Result<(Box<dyn Device>, Option<String>)> {
    // A plain transcode does not start a GPU unless it was asked for by name.
    let choice = if idle && args.backend == Backend::Auto { Choice::Cpu } else { args.backend.into() };
    backend::open(choice, args.device)
}

/// Whether neither the backend nor a variant, which would name one, was demanded.
fn left_to_us(args: &RunArgs, plan: &Plan) -> bool {
    args.backend == Backend::Auto && args.variant.is_none() && plan.steps.iter().all(|step| step.variant.is_none())
}

/// The CPU in the GPU's place for frames too small to send there; their memory stays the GPU's, which the CPU reads as well.
fn off_gpu(device: Box<dyn Device>, plan: &Plan) -> Box<dyn Device> {
    match too_small_for_gpu(plan).filter(|_| device.name() == "cuda" && !plan.steps.is_empty()) {
        Some(reason) => {
            status::say(format_args!("filtering on the CPU ({reason})"));
            Box::new(Cpu::new())
        }
        None => device,
    }
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
    fn open(args: &RunArgs, log: Option<Arc<FrameLog>>, cancel: &Cancel) -> Result<Self> {
        if let Some(spec) = args.input.strip_prefix(SYNTH) {
            return SynthSpec::parse(spec).map(Self::Synth);
        }
        let spec = InputSpec {
            url: args.input.clone(),
            format: args.input_format.clone(),
            options: args.in_opt.clone(),
            threads: args.threads,
            frames: args.frames,
            from_us: args.selection.ss,
            to_us: args.selection.to,
            select: args.selection.select(),
            gaps: args.selection.gaps.into(),
            on_change: args.selection.on_change.into(),
            log,
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
