//! What a bench measures: axes and presets as a list of cases.

use clap::ValueEnum;

use crate::axes::{Planes, SampleType};
use crate::cli::{BenchArgs, Preset};
use crate::error::{Error, Result};
use crate::filter::plan::{Plan, PlaneOp};
use crate::filter::{self, Border};
use crate::frame::Shape;
use crate::tensor::{Pooling, Reduce};

/// A filter whose window the `--kernel` axis sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// A Gaussian of a sixth of its window.
    Gauss,
    /// A general kernel: integer weights, neither separable nor symmetric.
    Conv,
    /// The mean.
    Box,
    /// The maximum.
    Max,
    /// The minimum.
    Min,
    /// The median.
    Median,
    /// FFmpeg's unsharp.
    Unsharp,
    /// The Sobel operator; 3×3 only.
    Sobel,
    /// Max pooling of stride 1.
    Maxpool,
    /// Average pooling of stride 1, of the samples that exist.
    Avgpool,
}

impl Kind {
    /// The name as typed.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gauss => "gauss",
            Self::Conv => "conv",
            Self::Box => "box",
            Self::Max => "max",
            Self::Min => "min",
            Self::Median => "median",
            Self::Unsharp => "unsharp",
            Self::Sobel => "sobel",
            Self::Maxpool => "maxpool",
            Self::Avgpool => "avgpool",
        }
    }

    /// The graph for a window of `k` × `k`.
    pub fn graph(self, k: usize) -> String {
        let radius = k / 2;
        match self {
            Self::Gauss => format!("gblur=radius={radius}:sigma={}", sigma(k)),
            Self::Conv => {
                let taps: Vec<String> = weights(k).iter().map(ToString::to_string).collect();
                let taps = taps.join(" ");
                format!("convolution='{taps}:{taps}:{taps}'")
            }
            Self::Box => format!("avgblur={radius}"),
            Self::Max => format!("dilation=radius={radius}"),
            Self::Min => format!("erosion=radius={radius}"),
            Self::Median => format!("median=radius={radius}"),
            Self::Unsharp => format!("unsharp={k}:{k}:1:{k}:{k}:1"),
            Self::Sobel => "sobel".to_owned(),
            Self::Maxpool | Self::Avgpool => format!("{}={k}:1:{radius}", self.name()),
        }
    }

    /// Whether it has windows of this size.
    fn has(self, k: usize) -> bool {
        match self {
            Self::Gauss | Self::Box | Self::Max | Self::Min | Self::Median => k % 2 == 1,
            Self::Conv => k <= 127,
            Self::Unsharp => k % 2 == 1 && (3..=23).contains(&k),
            Self::Sobel => k == 3,
            Self::Maxpool | Self::Avgpool => true,
        }
    }
}

/// Standard deviation of the Gaussian of `k` taps: the window ends at three of them.
pub fn sigma(k: usize) -> f64 {
    (k as f64 / 6.0 * 100.0).round() / 100.0
}

/// Integer weights without structure.
pub fn weights(k: usize) -> Vec<usize> {
    (0..k * k).map(|i| (i * 7 + i / k.max(1) * 3) % 5 + 1).collect()
}

/// A graph on one kind of frame.
#[derive(Clone, Debug)]
pub struct Case {
    /// Heading of its rows.
    pub group: String,
    /// Our graph, the border included.
    pub graph: String,
    /// Filter and window, where the axes made it.
    pub kind: Option<(Kind, usize)>,
    /// The frame.
    pub shape: Shape,
    /// Its plane layout.
    pub planes: Planes,
    /// Its sample type.
    pub sample: SampleType,
    /// Of every filter; None if the graph's own.
    pub border: Option<Border>,
    /// Frames that count as one.
    pub batch: usize,
    /// Of pooling; 1 where the axes made the case.
    pub stride: usize,
}

/// Frames up to this size are what the reference verifies where the whole is too much for it.
const SMALL: (usize, usize) = (640, 360);

impl Case {
    /// The steps on the whole frame.
    ///
    /// # Errors
    /// The graph does not parse or does not fit the format.
    pub fn plan(&self) -> Result<Plan> {
        self.plan_on(self.shape)
    }

    /// The steps on a small frame of the same format.
    ///
    /// # Errors
    /// As for [`Case::plan`].
    pub fn small_plan(&self) -> Result<Plan> {
        self.plan_on(Shape { width: self.shape.width.min(SMALL.0), height: self.shape.height.min(SMALL.1), ..self.shape })
    }

    /// The case as a layer, if it is pooling: padded by half of the window, means of the values that exist, as the filters are.
    pub fn pooling(&self) -> Option<Pooling> {
        let (kind, kernel) = self.kind?;
        let reduce = match kind {
            Kind::Maxpool => Reduce::Max,
            Kind::Avgpool => Reduce::Mean,
            Kind::Gauss | Kind::Conv | Kind::Box | Kind::Max | Kind::Min | Kind::Median | Kind::Unsharp | Kind::Sobel => return None,
        };
        Some(Pooling { count_pad: false, ..Pooling::new(reduce, kernel, self.stride).pad(kernel / 2) })
    }

    fn plan_on(&self, shape: Shape) -> Result<Plan> {
        let mut filters = filter::parse(&self.graph)?;
        if let Some(border) = self.border {
            filters.iter_mut().for_each(|f| f.border = border);
        }
        filter::plan(&filters, shape)
    }
}

/// Multiply-adds per sample of the first plane; None unless every step is a weighted sum.
pub fn operations(plan: &Plan) -> Option<f64> {
    let of = |op: &PlaneOp| match op {
        PlaneOp::Separable(op) => Some((op.row.len() + op.col.len()) as f64),
        PlaneOp::Direct(op) => Some((op.width * op.height) as f64),
        PlaneOp::Gradient(_) => Some(18.0),
        PlaneOp::Copy
        | PlaneOp::Box(_)
        | PlaneOp::Unsharp(_)
        | PlaneOp::Compass(_)
        | PlaneOp::Extremum(_)
        | PlaneOp::Morphology(_)
        | PlaneOp::Median(_)
        | PlaneOp::Pool(_)
        | PlaneOp::Pixelate(_) => None,
    };
    plan.steps.iter().map(|step| step.planes.first().and_then(of)).sum()
}

/// What the kernel level measures.
///
/// # Errors
/// A graph that does not parse, or axes that leave nothing.
pub fn kernel_cases(args: &BenchArgs) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    match args.preset {
        Some(Preset::Article) => {
            cross(
                &mut cases,
                &Axes { kinds: &[Kind::Conv], kernels: &[3], sizes: &[(1920, 1080)], samples: &[SampleType::F32], ..Axes::of(args) },
            )?;
            let mut pool = Vec::new();
            cross(
                &mut pool,
                &Axes { kinds: &[Kind::Maxpool], kernels: &[3], sizes: &[(256, 256)], samples: &[SampleType::F32], ..Axes::of(args) },
            )?;
            // 32×64×256×256: 2048 planes.
            pool.iter_mut().for_each(|case| case.batch = 32 * 64);
            cases.append(&mut pool.clone());
            // The same at half the resolution, and means of halves.
            for case in &mut pool {
                (case.group, case.graph, case.stride) = ("maxpool 3x3 stride 2".to_owned(), "maxpool=3:2:1".to_owned(), 2);
            }
            cases.append(&mut pool);
            cross(
                &mut pool,
                &Axes { kinds: &[Kind::Avgpool], kernels: &[3], sizes: &[(256, 256)], samples: &[SampleType::F16], ..Axes::of(args) },
            )?;
            pool.iter_mut().for_each(|case| case.batch = 32 * 64);
            cases.append(&mut pool);
        }
        Some(Preset::Sweep) => {
            let sizes = [(854, 480), (1280, 720), (1920, 1080), (3840, 2160), (7680, 4320)];
            let axes = Axes {
                kinds: &[Kind::Gauss, Kind::Conv],
                kernels: &[3, 5, 7, 9, 15, 31],
                sizes: &sizes,
                samples: &[SampleType::U8, SampleType::F32],
                ..Axes::of(args)
            };
            cross(&mut cases, &axes.narrowed(args))?;
        }
        None => {
            let mut axes = Axes::of(args);
            if args.filter.is_empty() && args.kernel.is_empty() && args.vf.is_empty() {
                // Seven that stand for the families of kernels.
                for (kind, k) in [
                    (Kind::Conv, 3),
                    (Kind::Conv, 7),
                    (Kind::Gauss, 15),
                    (Kind::Box, 15),
                    (Kind::Max, 15),
                    (Kind::Median, 3),
                    (Kind::Sobel, 3),
                ] {
                    cross(&mut cases, &Axes { kinds: &[kind], kernels: &[k], ..axes })?;
                }
            } else if !args.filter.is_empty() || !args.kernel.is_empty() {
                if args.filter.is_empty() {
                    axes.kinds = &[Kind::Gauss, Kind::Conv];
                }
                cross(&mut cases, &axes)?;
            }
            for graph in &args.vf {
                axes.graph(&mut cases, graph)?;
            }
        }
    }
    if cases.is_empty() {
        return Err(Error::usage("nothing to measure", "no combination of these axes exists")
            .hint("windows are odd (unsharp 3 to 23, sobel 3); float samples have the planes gray and gbr"));
    }
    Ok(cases)
}

/// The axes of one cross product.
#[derive(Clone, Copy)]
struct Axes<'a> {
    kinds: &'a [Kind],
    kernels: &'a [usize],
    sizes: &'a [(usize, usize)],
    samples: &'a [SampleType],
    planes: &'a [Planes],
    borders: &'a [Border],
    batch: &'a [usize],
}

fn given<'a, T>(asked: &'a [T], usual: &'a [T]) -> &'a [T] {
    if asked.is_empty() { usual } else { asked }
}

impl<'a> Axes<'a> {
    fn of(args: &'a BenchArgs) -> Self {
        Self {
            kinds: &args.filter,
            kernels: given(&args.kernel, &[3]),
            sizes: given(&args.size, &[(1920, 1080)]),
            samples: given(&args.sample, &[SampleType::U8, SampleType::F32]),
            planes: given(&args.planes, &[Planes::Gray]),
            borders: &args.border,
            batch: given(&args.batch, &[1]),
        }
    }

    /// A preset's axes, where the user did not name others.
    fn narrowed(self, args: &'a BenchArgs) -> Self {
        Self {
            kinds: given(&args.filter, self.kinds),
            kernels: given(&args.kernel, self.kernels),
            sizes: given(&args.size, self.sizes),
            samples: given(&args.sample, self.samples),
            ..self
        }
    }

    /// Frames of every size, layout, type, border and batch.
    fn each(&self, work: &mut dyn FnMut(Shape, Planes, SampleType, Option<Border>, usize) -> Result<()>) -> Result<()> {
        let borders: Vec<Option<Border>> =
            if self.borders.is_empty() { vec![None] } else { self.borders.iter().copied().map(Some).collect() };
        for &(width, height) in self.sizes {
            for &planes in self.planes {
                for &sample in self.samples {
                    let Some(format) = planes.format(sample) else { continue };
                    for &border in &borders {
                        for &batch in self.batch {
                            work(Shape { format, width, height }, planes, sample, border, batch)?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn graph(&self, cases: &mut Vec<Case>, graph: &str) -> Result<()> {
        filter::parse(graph)?;
        self.each(&mut |shape, planes, sample, border, batch| {
            let group: String = graph.chars().take(40).collect();
            cases.push(Case { group, graph: graph.to_owned(), kind: None, shape, planes, sample, border, batch, stride: 1 });
            Ok(())
        })
    }
}

fn cross(cases: &mut Vec<Case>, axes: &Axes<'_>) -> Result<()> {
    for &kind in axes.kinds {
        for &k in axes.kernels.iter().filter(|&&k| kind.has(k)) {
            axes.each(&mut |shape, planes, sample, border, batch| {
                let group = format!("{} {k}x{k}", kind.name());
                cases.push(Case { group, graph: kind.graph(k), kind: Some((kind, k)), shape, planes, sample, border, batch, stride: 1 });
                Ok(())
            })?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::cli::{self, Command};

    fn cases(args: &[&str]) -> Result<Vec<Case>> {
        let all = ["convoy", "bench"].iter().chain(args).map(OsString::from);
        match cli::parse(all).unwrap().command {
            Command::Bench(args) => kernel_cases(&args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn axes_multiply_and_impossible_combinations_fall_out() {
        let found =
            cases(&["--filter", "gauss,unsharp", "--kernel", "3,5,4,31", "--type", "u8,f32", "--size", "720p,8x8", "--planes", "gray,420"])
                .unwrap();
        // Windows: gauss 3, 5, 31; unsharp 3, 5. Frames: 2 sizes × (gray u8, gray f32, 4:2:0 u8).
        assert_eq!(found.len(), 5 * 2 * 3);
        assert!(found.iter().all(|c| c.plan().is_ok()));
        assert_eq!(found[0].plan().unwrap().input.width, 1280);
        assert!(cases(&["--filter", "sobel", "--kernel", "5"]).unwrap_err().to_string().contains("nothing to measure"));
        assert!(cases(&["--vf", "nosuch"]).is_err());
        assert_eq!(cases(&["--vf", "sobel", "--border", "zero,wrap", "--type", "u8"]).unwrap().len(), 2);
    }

    #[test]
    fn presets_are_the_classic_tables() {
        let article = cases(&["--preset", "article"]).unwrap();
        assert_eq!(
            article.iter().map(|c| (c.group.as_str(), c.shape.width, c.batch, c.sample.name())).collect::<Vec<_>>(),
            [
                ("conv 3x3", 1920, 1, "f32"),
                ("maxpool 3x3", 256, 2048, "f32"),
                ("maxpool 3x3 stride 2", 256, 2048, "f32"),
                ("avgpool 3x3", 256, 2048, "f16")
            ]
        );
        assert_eq!(article.iter().map(|c| c.plan().unwrap().output().width).collect::<Vec<_>>(), [1920, 256, 128, 256]);
        assert_eq!(article[2].pooling().unwrap().windows.stride, [2, 2]);
        assert_eq!(cases(&["--preset", "sweep"]).unwrap().len(), 2 * 6 * 5 * 2);
        assert_eq!(cases(&["--preset", "sweep", "--size", "480p", "--filter", "gauss"]).unwrap().len(), 6 * 2);
        assert_eq!(cases(&[]).unwrap().len(), 7 * 2);
    }

    #[test]
    fn every_kind_means_what_it_says() {
        for kind in Kind::value_variants() {
            assert_eq!(Kind::from_str(kind.name(), false).as_ref(), Ok(kind));
            for k in (3..=31).filter(|&k| kind.has(k)) {
                let shape = Shape { format: crate::frame::PixelFormat::gray(8), width: 64, height: 64 };
                let plan = filter::plan(&filter::parse(&kind.graph(k)).unwrap(), shape).unwrap();
                let side = match &plan.steps[0].planes[0] {
                    PlaneOp::Separable(op) => op.row.len(),
                    PlaneOp::Direct(op) => op.width,
                    PlaneOp::Box(op) => 2 * op.radius_x + 1,
                    PlaneOp::Extremum(op) => 2 * op.radius_x + 1,
                    PlaneOp::Median(op) => 2 * op.radius_x + 1,
                    PlaneOp::Unsharp(op) => op.size_x,
                    PlaneOp::Gradient(_) => 3,
                    PlaneOp::Pool(op) => op.kernel,
                    other => panic!("{other:?}"),
                };
                assert_eq!(side, k, "{}", kind.name());
            }
        }
    }
}
