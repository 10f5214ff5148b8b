//! A chain of filters lowered to steps: the only thing that backends execute.
//!
//! Semantics of every step, on every backend: each plane is filtered in its own samples; kernels are applied as
//! written (correlation), anchored at ⌊k/2⌋; sums are 32-bit float or exact integers; the result is scaled, biased,
//! rounded half up and clamped to the sample's range once, at the end of the step. Float planes are not rounded or clamped.
//!
//! A position outside the plane stands for the sample that [`Step::border`] puts there, whatever the operation reads it
//! for: a weight, a gradient, a rank. `zero` is the sample value 0, on chroma and alpha too, and it takes part: a minimum
//! next to the edge is 0, a median counts it among its window. Only [`Pool`] and [`Pixelate`] know no border: they read
//! the samples that exist.

use std::sync::Arc;

use super::Border;
use crate::frame::{MAX_PLANES, Shape};

/// What a run does to every frame: steps in order, each reading what the one before wrote.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Shape of the frames that come in.
    pub input: Shape,
    /// The filters; empty for a plain transcode.
    pub steps: Vec<Step>,
}

impl Plan {
    /// Shape of the frames that go out.
    pub fn output(&self) -> Shape {
        self.steps.last().map_or(self.input, |s| s.output)
    }
}

/// One filter, lowered.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The filter's text form, for messages.
    pub label: String,
    /// What lies outside each plane.
    pub border: Border,
    /// A kernel variant that the user demands.
    pub variant: Option<String>,
    /// Shape that it reads.
    pub input: Shape,
    /// Shape that it writes.
    pub output: Shape,
    /// What happens to each plane.
    pub planes: [PlaneOp; MAX_PLANES],
}

/// What happens to one plane.
#[derive(Clone, Debug, PartialEq)]
pub enum PlaneOp {
    /// The samples pass unchanged (planes that are not filtered).
    Copy,
    /// `out = Σ_y col[y] Σ_x row[x] · in`, then `· scale + bias`.
    Separable(Separable),
    /// `out = Σ_yx taps[y][x] · in`, then `· scale + bias`.
    Direct(Direct),
    /// Mean over a window, repeated.
    Box(BoxMean),
    /// FFmpeg's 8-bit unsharp formula.
    Unsharp(Unsharp),
    /// Magnitude of two 3×3 gradients.
    Gradient(Gradient),
    /// The strongest of eight 3×3 kernels.
    Compass(Compass),
    /// Minimum or maximum over a rectangular window.
    Extremum(Extremum),
    /// Minimum or maximum over chosen neighbours, limited in how far a sample may move.
    Morphology(Morphology),
    /// The sample of a given rank within a window.
    Median(Median),
    /// Maximum, mean or minimum over windows that lie `stride` apart: one sample per window.
    Pool(Pool),
    /// Mean over blocks, shown at the original size.
    Pixelate(Pixelate),
}

/// Weights of a separable kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Separable {
    /// Horizontal taps, left to right.
    pub row: Arc<[f32]>,
    /// Vertical taps, top to bottom.
    pub col: Arc<[f32]>,
    /// Multiplies the sum.
    pub scale: f32,
    /// Added after scaling, in code values (float planes: in sample values).
    pub bias: f32,
}

/// Weights of a general 2-D kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Direct {
    /// Taps per row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// `height` × `width` weights, row-major.
    pub taps: Arc<[f32]>,
    /// Multiplies the sum.
    pub scale: f32,
    /// Added after scaling.
    pub bias: f32,
}

/// Mean over (2·radius_x + 1) × (2·radius_y + 1) samples: `power` horizontal passes, then `power` vertical passes, each
/// pass taking its border from its own input; nothing is rounded in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoxMean {
    /// Horizontal radius; 0 leaves rows alone.
    pub radius_x: usize,
    /// Vertical radius; 0 leaves columns alone.
    pub radius_y: usize,
    /// Passes per direction, at least 1.
    pub power: usize,
}

/// `blur = ⌊B/S + ½⌋` with B the exact sum under the binomial kernel of `size_x`×`size_y` (weights C(size−1, i), whose
/// sum is S); `out = in + ⌊(in − blur) · amount / 65536⌋`, clamped. Float planes: the same without the floors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsharp {
    /// Odd, 3…23.
    pub size_x: usize,
    /// Odd, 3…23.
    pub size_y: usize,
    /// Strength × 65536, truncated toward zero (libavfilter/vf_unsharp.c).
    pub amount: i32,
}

/// `out = √(gx² + gy²) · scale + delta`, with gx, gy the sums under two 3×3 kernels centred on the sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gradient {
    /// Row-major weights of gx; all zero when only y counts.
    pub x: [f32; 9],
    /// Row-major weights of gy; all zero when only x counts.
    pub y: [f32; 9],
    /// Multiplies the magnitude.
    pub scale: f32,
    /// Added after scaling, in code values.
    pub delta: f32,
}

/// `out = |max_k Σ K_k · in| · scale + delta` over the eight kernels K_0…K_7 of [`COMPASS_RING`], centred on the sample:
/// the Kirsch operator as FFmpeg has it (`libavfilter/vf_convolution.c`, `filter_kirsch`).
///
/// K_k weighs the three samples at ring places k, k+1, k+2 (modulo 8) with 5, the other five with −3, the centre with 0. So
/// `max_k Σ K_k · in = 8 · max_k (r[k] + r[k+1] + r[k+2]) − 3 · Σ r`, which is never negative, since the eight sums add up
/// to 0. FFmpeg's ring runs along the rows, not around the centre; the textbook's differs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Compass {
    /// Multiplies the strongest sum.
    pub scale: f32,
    /// Added after scaling, in code values (float planes: in sample values).
    pub delta: f32,
}

/// The neighbours in the order of [`Compass`]'s ring, as indices into the row-major 3×3 window.
pub const COMPASS_RING: [usize; 8] = [0, 1, 2, 3, 5, 6, 7, 8];

/// Which end of the order counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Extreme {
    /// Erosion.
    Min,
    /// Dilation.
    Max,
}

/// Minimum or maximum of the (2·radius_x + 1) × (2·radius_y + 1) samples around each; the border takes part.
///
/// Separable: the extremum along rows, then of those along columns. Nothing is rounded, floats pass as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extremum {
    /// Minimum or maximum.
    pub kind: Extreme,
    /// Horizontal radius; 0 leaves rows alone.
    pub radius_x: usize,
    /// Vertical radius; 0 leaves columns alone.
    pub radius_y: usize,
}

/// FFmpeg's erosion and dilation (`libavfilter/vf_neighbor.c`): the minimum or maximum m of the sample itself and those of its
/// eight neighbours whose bit is set, then `out = max(m, in − threshold)` (erosion) or `out = min(m, in + threshold)`
/// (dilation). No clamping is needed: m is a sample.
///
/// Bit 0…7 of `coordinates` is the neighbour at the index [`COMPASS_RING`] of the same place: top left, top, top right, left,
/// right, bottom left, bottom, bottom right.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Morphology {
    /// Minimum or maximum.
    pub kind: Extreme,
    /// Which neighbours count.
    pub coordinates: u8,
    /// How far a sample may move, in code values of its own depth, a whole number (float planes: in sample values); None
    /// for any distance.
    pub threshold: Option<f32>,
}

/// The samples of a (2·radius_x + 1) × (2·radius_y + 1) window in ascending order, of which `out` is the one at `rank`; the border
/// takes part. Nothing is rounded. Float samples order as numbers; where a NaN goes is not defined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Median {
    /// Horizontal radius, at least 0.
    pub radius_x: usize,
    /// Vertical radius, at least 0.
    pub radius_y: usize,
    /// 0 is the minimum, (window − 1) / 2 the median, window − 1 the maximum.
    pub rank: usize,
}

/// What a pooling window becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PoolKind {
    /// The largest sample.
    Max,
    /// The mean of those that exist, rounded half up (float planes: not rounded).
    Mean,
    /// The smallest sample.
    Min,
}

/// One sample per window. Output column i reads the input columns `i·stride − pad + j·dilation`, j = 0…kernel − 1, that lie
/// inside the plane; rows alike; the window is every pair of such a row and column. Nothing outside the plane counts,
/// the mean divides by the number of samples read, and the border is not used.
///
/// If no such column is inside (chroma, a small plane or a wide dilation), the window has one column: the one nearest to
/// `i·stride − pad + ⌊kernel/2⌋·dilation`, that is, clamped into the plane; rows alike.
///
/// The number of output columns and rows is [`Step::output`]'s, for luma
/// `max(1, ⌊(n + 2·pad − dilation·(kernel − 1) − 1) / stride⌋ + 1)`; a subsampled chroma plane has that of luma, divided by the
/// subsampling and rounded up, and its last windows may reach over its edge where luma's do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// What a window becomes.
    pub kind: PoolKind,
    /// Samples per window in each direction, at least 1.
    pub kernel: usize,
    /// Distance of neighbouring windows, at least 1.
    pub stride: usize,
    /// How far the first window starts before the plane, at most ⌊kernel/2⌋.
    pub pad: usize,
    /// Distance of neighbouring samples of a window, at least 1.
    pub dilation: usize,
}

/// Blocks of `block_x` × `block_y` samples from the top left; every sample becomes the mean of its block, rounded half up
/// (float planes: not rounded). Blocks at the right and bottom edge end with the plane, and so does their mean. The
/// border is not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pixelate {
    /// Block width in samples of this plane, at least 1.
    pub block_x: usize,
    /// Block height, at least 1.
    pub block_y: usize,
}
