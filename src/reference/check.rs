//! Holding a result to the reference: how far samples may be off, how many, and where the first bad one is.

use super::{Picture, binary16};
use crate::filter::plan::{Plan, PlaneOp};
use crate::frame::{Frame, PixelFormat, Sample};

/// Samples compared and how many of them differed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Samples compared.
    pub samples: u64,
    /// Of these, samples that are not the expected value rounded half up.
    pub unequal: u64,
}

impl Tally {
    /// Adds another comparison.
    pub fn add(&mut self, other: Self) {
        self.samples += other.samples;
        self.unequal += other.unequal;
    }

    /// Whether 99.9 % were equal.
    pub fn holds(&self) -> bool {
        self.unequal * 1000 <= self.samples
    }
}

/// How far results may be off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Code values, integer formats.
    pub codes: f64,
    /// Relative to the largest of the range and the expected value, float formats. A half is the result rounded to the nearest one:
    /// what counts is how far the expected value lies from the numbers that would be rounded to it.
    pub float: f64,
    /// Share of integer samples that may differ within `codes`.
    pub unequal: f64,
}

impl Tolerance {
    /// The spec's for exact variants: one code value, 99.9 % equal; 1e-4 for float samples, before halves are rounded.
    pub const EXACT: Self = Self { codes: 1.0, float: 1e-4, unequal: 0.001 };

    /// What holds for a whole plan. A single step is held to [`Tolerance::EXACT`]; a Gaussian wider than σ 8 may be computed by any
    /// method within one code value. In a chain, a sample that an earlier step rounded the other way spreads: the next step
    /// multiplies its error by at most the sum of its weights' magnitudes, and every output that reads it may differ. Such a half is
    /// the distance between two halves off, at most 2⁻¹⁰ of the range or the value.
    pub fn of_plan(plan: &Plan) -> Self {
        let mut total: Option<Self> = None;
        for step in &plan.steps {
            let ops = step.planes.iter().take(step.input.format.plane_count());
            let worst = |f: &dyn Fn(&PlaneOp) -> f64| ops.clone().map(f).fold(0.0, f64::max);
            let own = if worst(&|op| f64::from(u8::from(is_wide(op)))) > 0.0 { Self { unequal: 1.0, ..Self::EXACT } } else { Self::EXACT };
            total = Some(match total {
                None => own,
                Some(before) => Self {
                    codes: before.codes * worst(&gain).max(1.0) + own.codes,
                    float: (before.float + rounding(step.input.format)) * worst(&gain).max(1.0) + own.float,
                    unequal: (own.unequal + before.unequal * worst(&reach)).min(1.0),
                },
            });
        }
        total.unwrap_or(Self { codes: 0.0, float: 0.0, unequal: 0.0 })
    }
}

impl Tolerance {
    /// A share of the sample range, for any number of samples; 0 is every sample exact.
    pub fn of_range(share: f64, format: PixelFormat) -> Self {
        let codes = (share * f64::from(format.max_value())).floor();
        Self { codes, float: share, unequal: f64::from(u8::from(codes > 0.0)) }
    }

    /// The same for a variant whose sums may be off by `slack` of the sample's range times the sum of the weights' sizes, before rounding.
    #[must_use]
    pub fn with_slack(self, plan: &Plan, slack: f64) -> Self {
        if slack <= 0.0 {
            return self;
        }
        let format = plan.output().format;
        let ops = plan.steps.iter().flat_map(|step| step.planes.iter().take(step.input.format.plane_count()));
        // Relative to the range; an error of half a code and more can move a sample by one more than that.
        let off = slack * ops.map(gain).fold(0.0, f64::max);
        let codes = (off * f64::from(format.max_value())).ceil();
        Self { codes: self.codes + codes, float: self.float.max(off), unequal: 1.0 }
    }

    /// The same for a single comparison of few samples, whose share of unequal ones scatters: three standard deviations more. Whoever
    /// compares many frames holds their sum to the plain tolerance.
    #[must_use]
    pub fn for_few(self, samples: u64) -> Self {
        Self { unequal: self.unequal + 3.0 * (self.unequal / (samples.max(1) as f64)).sqrt(), ..self }
    }
}

/// How far two roundings of values that are near each other may lie apart, relative to the largest of the range and the value.
fn rounding(format: PixelFormat) -> f64 {
    match format.sample() {
        Sample::F16 => (-10f64).exp2(),
        // Whole numbers are counted in code values; a float's last bit is a thousandth of what a step may be off anyway.
        Sample::U8 | Sample::U16 | Sample::F32 => 0.0,
    }
}

/// Taps of a Gaussian of σ 8 at the radius ⌈3σ⌉.
const TAPS_AT_SIGMA_8: usize = 49;

fn is_wide(op: &PlaneOp) -> bool {
    matches!(op, PlaneOp::Separable(s) if s.row.len().max(s.col.len()) > TAPS_AT_SIGMA_8)
}

/// By how much an operation can multiply the error of its input.
fn gain(op: &PlaneOp) -> f64 {
    let sum = |weights: &[f32]| weights.iter().map(|&w| f64::from(w).abs()).sum::<f64>();
    match op {
        PlaneOp::Separable(op) => sum(&op.row) * sum(&op.col) * f64::from(op.scale).abs(),
        PlaneOp::Direct(op) => sum(&op.taps) * f64::from(op.scale).abs(),
        PlaneOp::Unsharp(op) => 1.0 + 2.0 * f64::from(op.amount).abs() / 65536.0,
        PlaneOp::Gradient(op) => sum(&op.x).hypot(sum(&op.y)) * f64::from(op.scale).abs(),
        // Three weights of 5 and five of −3.
        PlaneOp::Compass(op) => 30.0 * f64::from(op.scale).abs(),
        PlaneOp::Copy
        | PlaneOp::Box(_)
        | PlaneOp::Extremum(_)
        | PlaneOp::Morphology(_)
        | PlaneOp::Median(_)
        | PlaneOp::Pool(_)
        | PlaneOp::Pixelate(_) => 1.0,
    }
}

/// How many outputs read one input sample, at most.
fn reach(op: &PlaneOp) -> f64 {
    let window = |x: usize, y: usize| x as f64 * y as f64;
    match op {
        PlaneOp::Copy => 1.0,
        PlaneOp::Separable(op) => window(op.row.len(), op.col.len()),
        PlaneOp::Direct(op) => window(op.width, op.height),
        PlaneOp::Box(op) => window(2 * op.radius_x * op.power + 1, 2 * op.radius_y * op.power + 1),
        PlaneOp::Unsharp(op) => window(op.size_x, op.size_y),
        PlaneOp::Gradient(_) | PlaneOp::Compass(_) | PlaneOp::Morphology(_) => 9.0,
        PlaneOp::Extremum(op) => window(2 * op.radius_x + 1, 2 * op.radius_y + 1),
        PlaneOp::Median(op) => window(2 * op.radius_x + 1, 2 * op.radius_y + 1),
        PlaneOp::Pool(op) => window(op.kernel, op.kernel),
        PlaneOp::Pixelate(op) => window(op.block_x, op.block_y),
    }
}

/// A sample that is not what it should be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BadSample {
    /// Plane in memory.
    pub plane: usize,
    /// Column, in samples of one component.
    pub x: usize,
    /// Row.
    pub y: usize,
    /// What came.
    pub got: f64,
    /// What the reference says, before rounding.
    pub want: f64,
}

impl std::fmt::Display for BadSample {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "plane {}, x {}, y {}: got {}, want {}", self.plane, self.x, self.y, self.got, self.want)
    }
}

/// What a comparison found; comparisons of several frames add up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Comparison {
    /// Samples compared.
    pub samples: u64,
    /// Integer samples that are not the expected value rounded half up, ties of an `f32` scale aside.
    pub unequal: u64,
    /// Samples that are the expected value rounded to the format, to the last bit.
    pub exact: u64,
    /// Largest error: code values for integer samples, relative to the range (or to the value, if larger) for float. Of halves
    /// without their rounding.
    pub max_error: f64,
    /// The first sample that is off by more than the tolerance.
    pub first_bad: Option<BadSample>,
    /// The first sample that counts as unequal.
    pub first_unequal: Option<BadSample>,
}

impl Comparison {
    /// Adds what another comparison found, which comes later.
    pub fn add(&mut self, later: &Self) {
        self.samples += later.samples;
        self.unequal += later.unequal;
        self.exact += later.exact;
        self.max_error = self.max_error.max(later.max_error);
        self.first_bad = self.first_bad.or(later.first_bad);
        self.first_unequal = self.first_unequal.or(later.first_unequal);
    }

    /// Share of samples that are exact, 0…1.
    pub fn exact_share(&self) -> f64 {
        if self.samples == 0 { 1.0 } else { self.exact as f64 / self.samples as f64 }
    }

    /// Why the samples do not hold; None if they do.
    pub fn failure(&self, tolerance: Tolerance) -> Option<String> {
        if let Some(bad) = self.first_bad {
            return Some(bad.to_string());
        }
        // Rounded up to a whole sample, for tiny frames.
        let allowed = (self.samples as f64 * tolerance.unequal).ceil();
        match self.first_unequal {
            Some(first) if self.unequal as f64 > allowed => {
                Some(format!("{} of {} samples differ, the first at {first}", self.unequal, self.samples))
            }
            _ => None,
        }
    }
}

/// Compares a frame with the expected values, sample by sample.
///
/// A sample is equal if it is the expected value rounded half up. Where the expected value is so near to a tie that the last
/// bit of an `f32` scale decides (2^-24 of it), both neighbours are: 1/14 in `f32` is not 1/14.
///
/// # Errors
/// The frame has another shape.
pub fn compare(got: &Frame, want: &Picture, tolerance: Tolerance) -> Result<Comparison, String> {
    let format = want.shape.format;
    if got.layout.shape != want.shape {
        return Err(format!("got {}, want {}", got.layout.shape, want.shape));
    }
    let mut found = Comparison::default();
    for (plane, (got, want_plane)) in Picture::read(got).planes.iter().zip(&want.planes).enumerate() {
        let components = format.components(plane);
        let values = want.shape.plane_size(plane).0 * components;
        if got.len() != want_plane.len() {
            return Err(format!("plane {plane}: got {} values, want {}", got.len(), want_plane.len()));
        }
        for (i, (&got, &want)) in got.iter().zip(want_plane).enumerate() {
            judge(&mut found, format, tolerance, (got, want), (plane, i % values / components, i / values));
        }
    }
    Ok(found)
}

/// Counts one sample.
pub(super) fn judge(
    found: &mut Comparison,
    format: PixelFormat,
    tolerance: Tolerance,
    (got, want): (f64, f64),
    (plane, x, y): (usize, usize, usize),
) {
    let at = || BadSample { plane, x, y, got, want };
    found.samples += 1;
    let sample = format.sample();
    if sample.is_float() {
        let (nearest, off) = match sample {
            Sample::F16 => (binary16::nearest(want), binary16::distance(got, want)),
            Sample::U8 | Sample::U16 | Sample::F32 => (f64::from(want as f32), (got - want).abs()),
        };
        found.exact += u64::from(got == nearest);
        let error = off / want.abs().max(1.0);
        // A NaN is no number to be larger than anything.
        if error.is_nan() || error > tolerance.float {
            found.first_bad.get_or_insert_with(at);
        }
        found.max_error = found.max_error.max(if error.is_nan() { f64::INFINITY } else { error });
        return;
    }
    let rounded = (want + 0.5).floor().clamp(0.0, f64::from(format.max_value()));
    if got == rounded {
        found.exact += 1;
        return;
    }
    let error = (got - rounded).abs();
    found.max_error = found.max_error.max(error);
    if error > tolerance.codes || got.fract() != 0.0 {
        found.first_bad.get_or_insert_with(at);
    }
    if (got - want).abs() > 0.5 + want.abs() * (-24f64).exp2() {
        found.unequal += 1;
        found.first_unequal.get_or_insert_with(at);
    }
}

/// Like [`compare`], with the verdict: the error names the first bad sample: plane, x, y, got, want.
///
/// # Errors
/// Another shape, a sample beyond the tolerance, or too many unequal samples.
pub fn check(got: &Frame, want: &Picture, tolerance: Tolerance) -> Result<Tally, String> {
    let found = compare(got, want, tolerance)?;
    match found.failure(tolerance) {
        Some(failure) => Err(failure),
        None => Ok(Tally { samples: found.samples, unequal: found.unequal }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter;
    use crate::frame::{PixelFormat, Shape};

    fn tolerance(graph: &str) -> Tolerance {
        let shape = Shape { format: PixelFormat::gray(8), width: 64, height: 48 };
        Tolerance::of_plan(&filter::plan(&filter::parse(graph).unwrap(), shape).unwrap())
    }

    #[test]
    fn a_single_step_is_exact_and_a_chain_spreads_what_rounding_did() {
        assert_eq!(tolerance("gblur=2"), Tolerance::EXACT);
        assert_eq!(tolerance("gblur=sigma=9"), Tolerance { unequal: 1.0, ..Tolerance::EXACT });
        // Sobel: |gx| sums to 8, |gy| to 8; √128 times one code value, plus its own.
        let chain = tolerance("gblur=2,sobel");
        assert!((chain.codes - (128f64.sqrt() + 1.0)).abs() < 1e-5, "{chain:?}");
        assert!((chain.unequal - 0.010).abs() < 1e-12);
        assert_eq!(tolerance("erosion,dilation").codes, 2.0);
    }

    #[test]
    fn halves_are_judged_by_what_would_be_rounded_to_them() {
        let format = PixelFormat::gray(32).half();
        let error = |got: f64, want: f64| {
            let mut found = Comparison::default();
            judge(&mut found, format, Tolerance::EXACT, (got, want), (0, 0, 0));
            (found.max_error, found.exact, found.first_bad.is_some())
        };
        let ulp = (-11f64).exp2();
        assert_eq!(error(0.75, 0.75), (0.0, 1, false));
        assert_eq!(error(0.75, 0.75 + 0.49 * ulp), (0.0, 1, false));
        // Rounded the other way, by an error within the tolerance and by one beyond.
        assert_eq!(error(0.75, 0.75 + 0.625 * ulp), (0.125 * ulp, 0, false));
        assert_eq!(error(0.75, 0.75 + 0.875 * ulp), (0.375 * ulp, 0, true));
        // Cut off rather than rounded; the gap below 1 is half of the one above.
        assert!(error(1.0 - ulp, 1.0).2 && error(1.0, 1.0 + 1.9 * ulp).2);
        assert_eq!(error(f64::INFINITY, 1e5), (0.0, 1, false));
        assert!(error(f64::NAN, 0.5).2 && error(f64::INFINITY, 0.5).2);
        // Between two steps a half may be rounded either way.
        let shape = Shape { format, width: 64, height: 48 };
        let chain = Tolerance::of_plan(&filter::plan(&filter::parse("erosion,dilation").unwrap(), shape).unwrap());
        assert_eq!(chain.float, 2e-4 + (-10f64).exp2());
    }

    #[test]
    fn a_comparison_counts_and_names_the_first() {
        let shape = Shape { format: PixelFormat::gray(8), width: 4, height: 2 };
        let want = Picture { shape, planes: vec![vec![10.0, 10.4, 20.5, 7.0, 1.0, 2.0, 3.0, 4.0]] };
        let got = Picture { shape, planes: vec![vec![10.0, 10.0, 21.0, 8.0, 1.0, 2.0, 9.0, 4.0]] };
        let frame = got.frame(std::sync::Arc::new(crate::pool::Heap), 0).unwrap();
        let found = compare(&frame, &want, Tolerance::EXACT).unwrap();
        assert_eq!((found.samples, found.unequal, found.exact, found.max_error), (8, 2, 6, 6.0));
        assert_eq!(found.first_unequal.map(|b| (b.x, b.y)), Some((3, 0)));
        assert_eq!(found.first_bad, Some(BadSample { plane: 0, x: 2, y: 1, got: 9.0, want: 3.0 }));
        assert!(found.failure(Tolerance::EXACT).unwrap().contains("plane 0, x 2, y 1: got 9, want 3"));
    }
}
