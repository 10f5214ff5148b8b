//! `convoy compare A B`: are two clips the same, and if not, how far apart.

use std::process::ExitCode;
use std::sync::Arc;

use serde::Serialize;

use crate::cancel::Cancel;
use crate::cli::CompareArgs;
use crate::error::{Error, Result};
use crate::frame::{Frame, Model, PixelFormat, Shape};
use crate::media::{self, Input, InputSpec, Rational, SourceOptions};
use crate::pipeline::{Item, Source};
use crate::pool::{Budget, Heap};
use crate::reference::Picture;
use crate::status;
use crate::synth::{Synth, SynthSpec};

mod metrics;

pub use metrics::{Figures, PlaneScore};

/// What a comparison found.
#[derive(Debug, Serialize)]
struct Report {
    format: String,
    /// Frames of A and of B.
    frames: [u64; 2],
    /// Frames that both have.
    compared: u64,
    identical: bool,
    planes: Vec<Plane>,
    /// All planes together, weighted by their samples.
    overall: Figures,
    times: Times,
}

#[derive(Debug, Serialize)]
struct Plane {
    name: &'static str,
    #[serde(flatten)]
    figures: Figures,
}

/// Frames that are not shown at the same time, to half a tick of the coarser clock.
#[derive(Debug, Default, Serialize)]
struct Times {
    different: u64,
    first_different: Option<u64>,
    largest_ms: f64,
}

/// Compares and prints. The exit code is 1 if `--min-psnr` is not reached, or the clips differ in length while it is given.
///
/// # Errors
/// An input that cannot be read, or clips of different size or format.
pub fn compare(args: &CompareArgs, cancel: &Cancel) -> Result<ExitCode> {
    let mut a = Clip::open(&args.a, args, cancel)?;
    let mut b = Clip::open(&args.b, args, cancel)?;
    if a.shape != b.shape {
        return Err(Error::failed(
            format!("cannot compare '{}' with '{}'", media::redact(&args.a), media::redact(&args.b)),
            format!("the first is {}, the second {}", a.shape, b.shape),
        )
        .hint("bring one to the other's size and format, e.g. with `ffmpeg -i … -vf scale=W:H -pix_fmt …`"));
    }
    let report = scores(&mut a, &mut b)?;
    if cancel.signal().is_some() {
        return Err(Error::failed("cannot compare the clips to their ends", "interrupted"));
    }
    let text = if args.json {
        serde_json::to_string_pretty(&report).map_err(|e| Error::failed("cannot write the comparison as JSON", e))?
    } else {
        report.to_string()
    };
    status::print(&text)?;
    let Some(least) = args.min_psnr else { return Ok(ExitCode::SUCCESS) };
    let worst = report.planes.iter().min_by(|a, b| a.figures.psnr.total_cmp(&b.figures.psnr));
    if let Some(plane) = worst.filter(|p| p.figures.psnr < least) {
        status::say(format_args!("the PSNR of {} is {:.2} dB, below {least} dB", plane.name, plane.figures.psnr));
        return Ok(ExitCode::from(1));
    }
    if report.frames[0] != report.frames[1] {
        status::say(format_args!("the clips have {} and {} frames", report.frames[0], report.frames[1]));
        return Ok(ExitCode::from(1));
    }
    Ok(ExitCode::SUCCESS)
}

/// One side.
struct Clip {
    source: Box<dyn Source>,
    shape: Shape,
    time_base: Rational,
}

impl Clip {
    fn open(url: &str, args: &CompareArgs, cancel: &Cancel) -> Result<Self> {
        let budget = Budget::new(usize::MAX);
        if let Some(spec) = url.strip_prefix("synth:") {
            let spec = SynthSpec::parse(spec)?;
            let time_base = Rational { num: spec.rate.1, den: spec.rate.0 };
            let source = Synth::new(spec, args.frames, Arc::new(Heap), budget, cancel.clone())?;
            return Ok(Self { source: Box::new(source), shape: spec.shape, time_base });
        }
        let spec = InputSpec {
            url: url.to_owned(),
            format: args.input_format.clone(),
            options: args.in_opt.clone(),
            threads: None,
            frames: args.frames,
            ..InputSpec::default()
        };
        let mut source = Input::open(&spec, cancel)?.into_source(SourceOptions { mem: Arc::new(Heap), budget, threads: None })?;
        // Interleaved chroma is a matter of storage, not of content.
        source.separate_chroma()?;
        Ok(Self { shape: source.shape(), time_base: source.info().time_base, source: Box::new(source) })
    }

    fn next(&mut self) -> Result<Option<Frame>> {
        loop {
            match self.source.next()? {
                Item::Frame(frame) => return Ok(Some(frame)),
                Item::Packet(_) => {}
                Item::End => return Ok(None),
            }
        }
    }
}

fn scores(a: &mut Clip, b: &mut Clip) -> Result<Report> {
    let format = a.shape.format;
    let peak = f64::from(format.max_value());
    let mut planes = vec![PlaneScore::default(); format.plane_count()];
    let mut times = Times::default();
    let mut frames = [0, 0];
    loop {
        let (left, right) = (a.next()?, b.next()?);
        frames[0] += u64::from(left.is_some());
        frames[1] += u64::from(right.is_some());
        let (left, right) = match (left, right) {
            (Some(left), Some(right)) => (left, right),
            (None, None) => break,
            // Only the count of the longer one is of interest from here on.
            (Some(_), None) | (None, Some(_)) => continue,
        };
        if left.layout.shape != right.layout.shape {
            let error = format!("one is {}, the other {}", left.layout.shape, right.layout.shape);
            return Err(Error::failed(format!("cannot compare frame {}", frames[0] - 1), error));
        }
        times.compare((&left, a.time_base), (&right, b.time_base), frames[0] - 1);
        let (left, right) = (Picture::read(&left), Picture::read(&right));
        for (index, (score, (l, r))) in planes.iter_mut().zip(left.planes.iter().zip(&right.planes)).enumerate() {
            score.add(l, r, left.shape.plane_size(index).0 * format.components(index), peak);
        }
    }
    let overall = metrics::overall(&planes, peak);
    let names = plane_names(format);
    Ok(Report {
        format: a.shape.to_string(),
        frames,
        compared: frames[0].min(frames[1]),
        identical: frames[0] == frames[1] && overall.max_difference == 0.0 && times.different == 0,
        planes: names.into_iter().zip(&planes).map(|(name, score)| Plane { name, figures: score.figures(peak) }).collect(),
        overall,
        times,
    })
}

impl Times {
    fn compare(&mut self, (a, a_base): (&Frame, Rational), (b, b_base): (&Frame, Rational), number: u64) {
        let (Some(a), Some(b)) = (a.time.pts, b.time.pts) else { return };
        // In units of 1 / (den · den), which hold both exactly.
        let wide = |n: i32| i128::from(n.max(1));
        let difference = (i128::from(a) * wide(a_base.num) * wide(b_base.den) - i128::from(b) * wide(b_base.num) * wide(a_base.den)).abs();
        let tick = (wide(a_base.num) * wide(b_base.den)).max(wide(b_base.num) * wide(a_base.den));
        if 2 * difference > tick {
            self.different += 1;
            self.first_different.get_or_insert(number);
            let seconds = difference as f64 / (wide(a_base.den) * wide(b_base.den)) as f64;
            self.largest_ms = self.largest_ms.max(1e3 * seconds);
        }
    }
}

/// Names of the planes in memory.
fn plane_names(format: PixelFormat) -> Vec<&'static str> {
    let mut names = match format.model {
        Model::Gray => vec!["Y"],
        Model::Yuv => vec!["Y", "U", "V"],
        Model::Rgb => vec!["G", "B", "R"],
    };
    if format.alpha {
        names.push("A");
    }
    names
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "format   {}", self.format)?;
        writeln!(f, "frames   {} and {}, {} compared", self.frames[0], self.frames[1], self.compared)?;
        writeln!(f, "plane      PSNR dB      SSIM  max diff")?;
        let all = Plane { name: "all", figures: self.overall };
        for plane in self.planes.iter().chain([&all]) {
            let Figures { psnr, ssim, max_difference } = plane.figures;
            let ssim = ssim.map_or("-".to_owned(), |s| format!("{s:.6}"));
            writeln!(f, "{:<8} {psnr:>9.3} {ssim:>9} {max_difference:>9}", plane.name)?;
        }
        match self.times.first_different {
            None => write!(f, "times    equal")?,
            Some(first) => write!(
                f,
                "times    {} frames are shown at other times, the first is frame {first}; {:.3} ms at most",
                self.times.different, self.times.largest_ms
            )?,
        }
        write!(f, "\n{}", if self.identical { "identical" } else { "different" })
    }
}
