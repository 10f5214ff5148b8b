//! A chain of filters lowered to steps: the only thing that backends execute.
//!
//! Semantics of every step, on every backend: each plane is filtered in its own samples; kernels are applied as
//! written (correlation), anchored at ⌊k/2⌋; sums are 32-bit float or exact integers; the result is scaled, biased,
//! rounded half up and clamped to the sample's range once, at the end of the step. Float planes are not rounded or clamped.

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
