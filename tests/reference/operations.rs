//! The operations that the parity and the GPU test give to the backends, each written once, and their constructors. What is worth
//! running differs, so each operation says whose it is. Both tests take borders in turn by an operation's place in the list: a new
//! one at the end of its kind moves the fewest.

use std::sync::Arc;

use convoy::filter::plan::{
    BoxMean, Compass, Direct, Extreme, Extremum, Gradient, Median, Morphology, Pixelate, PlaneOp, Pool, PoolKind, Separable, Unsharp,
};
use convoy::frame::PixelFormat;

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

/// Integer weights from a fixed seed, some negative; `scale` is one over the absolute value of their sum.
pub fn direct(width: usize, height: usize, seed: u64) -> PlaneOp {
    let mut noise = Noise(seed);
    let taps: Vec<f32> = (0..width * height).map(|_| noise.below(17) as f32 - 5.0).collect();
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

/// The test that runs a list.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Suite {
    /// `parity`: the CPU backend against the reference, which sums every window anew and takes long for large ones.
    Parity,
    /// `gpu`: CUDA against the CPU backend, at the sizes where kernels change how they load a tile or keep a sum.
    Gpu,
}

const BOTH: &[Suite] = &[Suite::Parity, Suite::Gpu];
const PARITY: &[Suite] = &[Suite::Parity];
const GPU: &[Suite] = &[Suite::Gpu];

fn of(suite: Suite, list: Vec<(&[Suite], PlaneOp)>) -> Vec<PlaneOp> {
    list.into_iter().filter(|(suites, _)| suites.contains(&suite)).map(|(_, op)| op).collect()
}

/// [`sums`], then [`selections`].
pub fn operations(suite: Suite, format: PixelFormat) -> Vec<PlaneOp> {
    let mut all = sums(suite);
    all.extend(selections(suite, format));
    all
}

/// Weighted sums and what is made of them; and the copy.
pub fn sums(suite: Suite) -> Vec<PlaneOp> {
    let asymmetric: Arc<[f32]> = [0.05f32, 0.3, -0.1, 0.75].as_slice().into();
    let list = vec![
        (BOTH, PlaneOp::Copy),
        (BOTH, separable(gaussian(0.5, 2), gaussian(0.5, 2))),
        (PARITY, separable(gaussian(2.0, 6), gaussian(2.0, 6))),
        (GPU, separable(gaussian(2.5, 7), gaussian(2.5, 7))),
        (BOTH, separable(gaussian(5.0, 15), gaussian(1.0, 3))),
        (BOTH, separable(asymmetric.clone(), gaussian(1.5, 5))),
        (BOTH, separable([1.0f32].as_slice().into(), asymmetric)),
        // Wide Gaussians, cut off at 3σ and whole.
        (BOTH, separable(gaussian(12.0, 37), gaussian(20.0, 61))),
        (BOTH, separable(gaussian(12.0, 61), gaussian(20.0, 102))),
        (GPU, separable(gaussian(7.0, 32), gaussian(6.0, 18))),
        (GPU, separable(gaussian(2.0, 8), gaussian(3.0, 9))),
        (BOTH, direct(1, 1, 1)),
        (BOTH, direct(3, 3, 2)),
        (BOTH, direct(5, 5, 3)),
        (BOTH, direct(7, 7, 4)),
        (BOTH, direct(4, 2, 5)),
        (BOTH, direct(1, 9, 6)),
        (BOTH, direct(11, 1, 7)),
        (GPU, direct(9, 9, 12)),
        (GPU, direct(19, 14, 10)),
        (GPU, direct(31, 31, 13)),
        (BOTH, fractional(3, 3, 8)),
        (BOTH, fractional(9, 9, 9)),
        (BOTH, boxed(1, 1, 1)),
        (BOTH, boxed(7, 7, 1)),
        (BOTH, boxed(2, 2, 2)),
        (PARITY, boxed(4, 0, 2)),
        (PARITY, boxed(1, 3, 2)),
        (BOTH, boxed(31, 13, 1)),
        (GPU, boxed(13, 31, 1)),
        (GPU, boxed(32, 32, 1)),
        (BOTH, boxed(7, 0, 1)),
        (BOTH, boxed(0, 5, 3)),
        (GPU, boxed(5, 3, 3)),
        (BOTH, boxed(60, 40, 1)),
        (GPU, boxed(500, 700, 1)),
        (BOTH, unsharp(5, 5, 1.0)),
        (BOTH, unsharp(3, 7, -0.7)),
        (BOTH, unsharp(23, 23, 1.5)),
        (BOTH, PlaneOp::Gradient(SOBEL)),
        (BOTH, PlaneOp::Gradient(Gradient { y: [0.0; 9], scale: 0.4, delta: 12.0, ..SOBEL })),
    ];
    of(suite, list)
}

/// Operations that are no weighted sums, for samples of `format`.
pub fn selections(suite: Suite, format: PixelFormat) -> Vec<PlaneOp> {
    // What is given in code values is for 8 bits, and floats reach from 0 to 1.
    let unit = if format.max_value() > 1.0 { 1.0 } else { 1.0 / 255.0 };
    let list = vec![
        (BOTH, PlaneOp::Compass(Compass { scale: 1.0, delta: 0.0 })),
        (BOTH, PlaneOp::Compass(Compass { scale: 0.07, delta: 10.0 * unit })),
        (BOTH, extremum(Extreme::Max, 1, 1)),
        (BOTH, extremum(Extreme::Min, 7, 7)),
        (BOTH, extremum(Extreme::Max, 0, 3)),
        (BOTH, extremum(Extreme::Min, 4, 0)),
        (PARITY, extremum(Extreme::Max, 40, 55)),
        (GPU, extremum(Extreme::Max, 31, 2)),
        (GPU, extremum(Extreme::Min, 16, 100)),
        (GPU, extremum(Extreme::Max, 300, 400)),
        (BOTH, morphology(Extreme::Max, 0b1111_1111, Some(20.0 * unit))),
        (PARITY, morphology(Extreme::Min, 0b1111_1111, Some(20.0 * unit))),
        (BOTH, morphology(Extreme::Min, 0b1010_0100, Some(3.0 * unit))),
        (BOTH, morphology(Extreme::Max, 0b0101_1010, None)),
        (BOTH, morphology(Extreme::Min, 0b0000_0001, None)),
        (BOTH, median(1, 1, 4)),
        (BOTH, median(1, 1, 2)),
        (BOTH, median(2, 2, 12)),
        (GPU, median(2, 2, 0)),
        (BOTH, median(2, 1, 14)),
        (PARITY, median(0, 2, 0)),
        (GPU, median(0, 2, 3)),
        (GPU, median(2, 0, 2)),
        (PARITY, median(3, 0, 3)),
        (PARITY, median(4, 4, 40)),
        (GPU, median(7, 3, 52)),
        (BOTH, median(7, 7, 112)),
        (PARITY, median(9, 3, 20)),
        (PARITY, median(30, 2, 304)),
        (GPU, median(4, 8, 0)),
        (GPU, median(8, 7, 254)),
        (BOTH, pool(PoolKind::Max, [2, 2, 0, 1])),
        (BOTH, pool(PoolKind::Mean, [2, 2, 0, 1])),
        (BOTH, pool(PoolKind::Min, [3, 1, 1, 1])),
        (BOTH, pool(PoolKind::Mean, [3, 2, 1, 1])),
        (BOTH, pool(PoolKind::Max, [5, 3, 2, 4])),
        (BOTH, pool(PoolKind::Mean, [4, 7, 1, 3])),
        (BOTH, pool(PoolKind::Mean, [15, 1, 7, 1])),
        (PARITY, pool(PoolKind::Min, [9, 4, 4, 2])),
        (BOTH, PlaneOp::Pixelate(Pixelate { block_x: 2, block_y: 2 })),
        (BOTH, PlaneOp::Pixelate(Pixelate { block_x: 8, block_y: 3 })),
        (BOTH, PlaneOp::Pixelate(Pixelate { block_x: 100, block_y: 70 })),
    ];
    of(suite, list)
}
