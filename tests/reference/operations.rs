//! Constructors of operations that the parity and the GPU tests give to both backends. Each test keeps its own list: what is
//! worth running differs.

use std::sync::Arc;

use convoy::filter::plan::{BoxMean, Direct, Extreme, Extremum, Gradient, Median, Morphology, PlaneOp, Pool, PoolKind, Separable, Unsharp};

use super::Noise;

/// Sobel's two kernels, unscaled.
pub const SOBEL: Gradient = Gradient {
    x: [1.0, 0.0, -1.0, 2.0, 0.0, -2.0, 1.0, 0.0, -1.0],
    y: [1.0, 2.0, 1.0, 0.0, 0.0, 0.0, -1.0, -2.0, -1.0],
    scale: 1.0,
    delta: 0.0,
};

/// Normalised Gaussian weights, 2·radius + 1 of them.
pub fn gaussian(sigma: f64, radius: i64) -> Arc<[f32]> {
    let weights: Vec<f64> = (-radius..=radius).map(|i| (-0.5 * (i as f64 / sigma).powi(2)).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|w| (w / sum) as f32).collect()
}

pub fn separable(row: Arc<[f32]>, col: Arc<[f32]>) -> PlaneOp {
    PlaneOp::Separable(Separable { row, col, scale: 1.0, bias: 0.0 })
}

/// Integer weights from a fixed seed, some negative.
pub fn integer_taps(width: usize, height: usize, seed: u64) -> Vec<f32> {
    let mut noise = Noise(seed);
    (0..width * height).map(|_| noise.below(17) as f32 - 5.0).collect()
}

/// Integer weights from a fixed seed; `scale` is one over their sum, as convolution's default.
pub fn direct(width: usize, height: usize, seed: u64) -> PlaneOp {
    let taps = integer_taps(width, height, seed);
    let sum: f32 = taps.iter().sum();
    PlaneOp::Direct(Direct { width, height, taps: taps.into(), scale: if sum == 0.0 { 1.0 } else { 1.0 / sum.abs() }, bias: 0.0 })
}

/// Fractional weights from a fixed seed, with a scale and a bias.
pub fn fractional(width: usize, height: usize, seed: u64) -> PlaneOp {
    let mut noise = Noise(seed);
    let taps: Vec<f32> = (0..width * height).map(|_| noise.below(1000) as f32 / 777.0 - 0.3).collect();
    let sum: f32 = taps.iter().sum();
    PlaneOp::Direct(Direct { width, height, taps: taps.into(), scale: 0.9 / sum, bias: 3.25 })
}

pub fn boxed(radius_x: usize, radius_y: usize, power: usize) -> PlaneOp {
    PlaneOp::Box(BoxMean { radius_x, radius_y, power })
}

pub fn unsharp(size_x: usize, size_y: usize, amount: f64) -> PlaneOp {
    PlaneOp::Unsharp(Unsharp { size_x, size_y, amount: (amount * 65536.0) as i32 })
}

pub fn extremum(kind: Extreme, radius_x: usize, radius_y: usize) -> PlaneOp {
    PlaneOp::Extremum(Extremum { kind, radius_x, radius_y })
}

/// `threshold` in the samples' own values.
pub fn morphology(kind: Extreme, coordinates: u8, threshold: Option<f32>) -> PlaneOp {
    PlaneOp::Morphology(Morphology { kind, coordinates, threshold })
}

pub fn median(radius_x: usize, radius_y: usize, rank: usize) -> PlaneOp {
    PlaneOp::Median(Median { radius_x, radius_y, rank })
}

pub fn pool(kind: PoolKind, [kernel, stride, pad, dilation]: [usize; 4]) -> PlaneOp {
    PlaneOp::Pool(Pool { kind, kernel, stride, pad, dilation })
}
