//! Wide Gaussians on a coarse grid: a narrow Gaussian lets through what a grid of every `step`th sample can hold, the rest of the
//! blur happens on that grid, and polynomials of degree 5 lead back. Off the sum of all taps by what the taps cut off, which is
//! less than half a code value, and by less than a tenth of one for the rest (see the test).

use std::ops::Range;

use super::linear::{Level, Memory, Need, Ring};
use super::plane::{Codec, Finish, Source, Span, Target};
use super::simd;
use crate::filter::math::{gaussian_radius, gaussian_weights};
use crate::filter::plan::Separable;

/// Samples of the coarse grid that one of the fine grid is interpolated from.
pub(super) const TAPS: usize = 6;
/// Those at or before it.
const BEFORE: usize = TAPS / 2;
/// Standard deviation of the first blur in steps of the coarse grid: the grid's own frequency keeps 2.4·10⁻⁴ of its amplitude, a
/// thirtieth of a code value of 8 bits.
const PREFILTER: f64 = 0.65;
/// The same for deeper samples: 3·10⁻⁶.
const DEEP_PREFILTER: f64 = 0.8;
/// Taps of the first blur at most: 5.5 standard deviations to each side at the largest step, 16.
const MOST: usize = 2 * 71 + 1;
/// Below this the taps are few, and their exact sum is asked for.
const LEAST_SIGMA: f64 = 8.0;

/// A Gaussian for one plane of integers.
pub(super) struct PyramidKernel {
    /// Distance of the coarse grid's samples.
    step: usize,
    /// Taps before and on the coarse grid.
    narrow: Box<[f32]>,
    row: Box<[f32]>,
    row_offsets: Box<[usize]>,
    col: Box<[f32]>,
    /// Weights of the coarse samples for each place between two of them.
    between: Box<[[f32; TAPS]]>,
    span: Span,
    codec: Codec,
    finish: Finish,
    level: Level,
}

/// The standard deviation of taps that are a Gaussian's and reach as far as samples up to `max` ask for: the grid's blur has the
/// whole bell, so that taps cut off earlier are another kernel (3σ of 10 bits: up to one and a half code values off).
fn deviation(taps: &[f32], max: f64) -> Option<f64> {
    let radius = taps.len() / 2;
    if taps.len().is_multiple_of(2) || radius < 24 {
        return None;
    }
    let side: Vec<f64> = taps[radius..].iter().map(|&t| f64::from(t)).collect();
    let far = radius / 2;
    let (near, last) = (side[1], side[radius]);
    if near <= 0.0 || side[far] <= 0.0 || side[far] >= near || last > 0.02 * near {
        return None;
    }
    let sigma = ((far * far - 1) as f64 / (2.0 * (near / side[far]).ln())).sqrt();
    let peak = near * (0.5 / (sigma * sigma)).exp();
    let fits = |(i, &tap): (usize, &f32)| {
        let x = (i as f64 - radius as f64) / sigma;
        (f64::from(tap) - peak * (-0.5 * x * x).exp()).abs() < 1e-4 * peak
    };
    let whole = (side.iter().sum::<f64>() * 2.0 - side[0] - 1.0).abs() < 1e-3;
    // One less: σ is known from rounded taps only.
    let far_enough = radius + 1 >= gaussian_radius(sigma, max);
    (whole && far_enough && taps.iter().enumerate().all(fits)).then_some(sigma)
}

/// A Gaussian's taps to `reach` standard deviations.
fn gaussian(sigma: f64, reach: f64) -> Box<[f32]> {
    gaussian_weights(sigma, (reach * sigma).ceil() as usize).into()
}

/// Lagrange's weights for a point at `at` between samples 0 and 1.
fn interpolation(at: f64) -> [f32; TAPS] {
    std::array::from_fn(|i| {
        let place = |i: usize| i as f64 - (BEFORE as f64 - 1.0);
        (0..TAPS).filter(|&j| j != i).map(|j| (at - place(j)) / (place(i) - place(j))).product::<f64>() as f32
    })
}

impl PyramidKernel {
    /// None if the taps are not those of a wide Gaussian on integer samples.
    pub fn new(op: &Separable, mut span: Span, codec: Codec, level: Level) -> Option<Self> {
        if level == Level::Plain || codec.sample.is_float() {
            return None;
        }
        let (across, down) = (deviation(&op.row, codec.max.into())?, deviation(&op.col, codec.max.into())?);
        let least = across.min(down);
        if least <= LEAST_SIGMA {
            return None;
        }
        // The polynomials' error falls with the sixth power of this.
        // What is cut off beyond `reach` deviations weighs less than a twentieth of a code value.
        let (fine, prefilter, reach) = if codec.max < 256.0 {
            (2.5, PREFILTER, 4.0)
        } else if codec.max < 4096.0 {
            (4.0, DEEP_PREFILTER, 4.5)
        } else {
            (6.0, DEEP_PREFILTER, 5.5)
        };
        let mut step = 1;
        while step < 16 && least / (2 * step) as f64 >= fine {
            step *= 2;
        }
        if step == 1 {
            return None;
        }
        let first = prefilter * step as f64;
        let rest = |sigma: f64| gaussian((sigma * sigma - first * first).sqrt() / step as f64, reach);
        let (narrow, row, col) = (gaussian(first, reach), rest(across), rest(down));
        let margin = (row.len() / 2 + BEFORE) * step + narrow.len() / 2;
        (span.left, span.right) = (margin, margin + step);
        let row_offsets = (0..row.len()).map(|j| j * span.components).collect();
        let between = (0..step).map(|p| interpolation(p as f64 / step as f64)).collect();
        let finish = Finish::new(codec, 1.0, op.scale, op.bias);
        Some(Self { step, narrow, row, row_offsets, col, between, span, codec, finish, level })
    }

    /// Rows that a band must read beyond its own.
    pub fn halo(&self) -> usize {
        (self.col.len() + TAPS) * self.step + self.narrow.len()
    }

    /// Coarse samples of a row that interpolation reads: from `1 − BEFORE` on.
    fn coarse(&self) -> usize {
        (self.span.width - 1) / self.step + 1 + TAPS - 1
    }

    /// Values of a row of whole steps.
    fn shown(&self) -> usize {
        self.span.width.next_multiple_of(self.step) * self.span.components
    }

    pub fn need(&self) -> Need {
        let (values, c) = (self.span.values(), self.span.components);
        let coarse = self.coarse() * c;
        let wide = coarse + (self.row.len() - 1) * c;
        let fine = values * self.narrow.len() + self.span.extended();
        let floats = fine + wide + coarse * (self.col.len() + TAPS + 1) + self.shown() + self.phase() * self.step;
        Need { floats, offsets: self.narrow.len().max(self.col.len()).max(TAPS), ..Need::default() }
    }

    pub fn run(&self, source: &Source, target: &Target, rows: Range<usize>, memory: &mut Memory) {
        let (values, c, step) = (self.span.values(), self.span.components, self.step as i64);
        let coarse = self.coarse() * c;
        let (extended, rest) = memory.floats.split_at_mut(self.span.extended());
        let (fine, rest) = rest.split_at_mut(values * self.narrow.len());
        let (wide, rest) = rest.split_at_mut(coarse + (self.row.len() - 1) * c);
        let (blurred, rest) = rest.split_at_mut(coarse * self.col.len());
        let (columns, rest) = rest.split_at_mut(coarse * TAPS);
        let (line, rest) = rest.split_at_mut(coarse);
        let (sums, rest) = rest.split_at_mut(self.shown());
        let phases = &mut rest[..self.phase() * self.step];
        let mut fine = Ring::new(fine, values, self.narrow.len());
        let mut blurred = Ring::new(blurred, coarse, self.col.len());
        let mut columns = Ring::new(columns, coarse, TAPS);
        let offsets = &mut memory.offsets[..];
        let (reach, radius) = ((self.narrow.len() / 2) as i64, (self.col.len() / 2) as i64);
        let visible = self.span.left * c;
        let zero = -self.codec.centre;
        let span = Span { left: 0, right: 0, ..self.span };

        let top = rows.start as i64 / step - (BEFORE as i64 - 1);
        let (mut read, mut done, mut ready) = (i64::MIN, top - radius, top);
        for y in rows {
            let cell = y as i64 / step;
            // Rows of the coarse grid, blurred, up to the last one that this row needs.
            while ready <= cell + BEFORE as i64 {
                while done <= ready + radius {
                    let centre = done * step;
                    for position in read.max(centre - reach)..=centre + reach {
                        span.load_with(source, self.codec, position, fine.row_mut(position), self.level.load());
                        read = position + 1;
                    }
                    for (k, offset) in offsets.iter_mut().enumerate().take(self.narrow.len()) {
                        *offset = fine.start(centre - reach + k as i64);
                    }
                    let narrow = &mut extended[visible..visible + values];
                    self.level.weighted(fine.memory(), &offsets[..self.narrow.len()], &self.narrow, narrow);
                    self.span.extend(extended, zero);
                    self.decimate(extended, phases, wide);
                    self.level.weighted(wide, &self.row_offsets, &self.row, blurred.row_mut(done));
                    done += 1;
                }
                for (k, offset) in offsets.iter_mut().enumerate().take(self.col.len()) {
                    *offset = blurred.start(ready - radius + k as i64);
                }
                self.level.weighted(blurred.memory(), &offsets[..self.col.len()], &self.col, columns.row_mut(ready));
                ready += 1;
            }
            let weights = &self.between[y % self.step];
            for (t, offset) in offsets.iter_mut().enumerate().take(TAPS) {
                *offset = columns.start(cell - (BEFORE as i64 - 1) + t as i64);
            }
            // Interpolated downwards while the row is short, then along it.
            self.level.weighted(columns.memory(), &offsets[..TAPS], weights, line);
            self.widen(line, sums);
            // SAFETY: row `y` belongs to this task's band.
            self.level.finish(&self.finish, &sums[..values], self.codec, unsafe { target.row(y) });
        }
    }

    /// The narrow blur along a row, at the coarse grid's places. Places `step` apart are gathered first, so that every tap reads
    /// neighbours.
    fn decimate(&self, row: &[f32], phases: &mut [f32], out: &mut [f32]) {
        let c = self.span.components;
        // The first place is `BEFORE − 1 + radius` steps before the plane; its first tap is at `first` in the row.
        let steps = BEFORE - 1 + self.row.len() / 2;
        let first = self.span.left - steps * self.step - self.narrow.len() / 2;
        let row = &row[first * c..];
        let length = self.phase();
        for (p, phase) in phases.chunks_exact_mut(length).enumerate() {
            for component in 0..c {
                let from = row[p * c + component..].iter().step_by(self.step * c);
                phase[component..].iter_mut().step_by(c).zip(from).for_each(|(to, from)| *to = *from);
            }
        }
        let mut offsets = [0; MOST];
        for (j, offset) in offsets.iter_mut().enumerate().take(self.narrow.len()) {
            *offset = j % self.step * length + j / self.step * c;
        }
        self.level.weighted(phases, &offsets[..self.narrow.len()], &self.narrow, out);
    }

    /// Values of a phase of [`PyramidKernel::decimate`].
    fn phase(&self) -> usize {
        (self.coarse() + self.row.len() + self.narrow.len() / self.step + 1) * self.span.components
    }

    /// Interpolates a row of coarse samples to whole steps.
    fn widen(&self, coarse: &[f32], out: &mut [f32]) {
        let c = self.span.components;
        match (self.step, c) {
            (2, 1) => simd::widen::<2, 1, 2>(coarse, &self.between, out),
            (4, 1) => simd::widen::<4, 1, 4>(coarse, &self.between, out),
            (8, 1) => simd::widen::<8, 1, 8>(coarse, &self.between, out),
            (16, 1) => simd::widen::<16, 1, 16>(coarse, &self.between, out),
            (2, 2) => simd::widen::<2, 2, 4>(coarse, &self.between, out),
            (4, 2) => simd::widen::<4, 2, 8>(coarse, &self.between, out),
            (8, 2) => simd::widen::<8, 2, 16>(coarse, &self.between, out),
            (16, 2) => simd::widen::<16, 2, 32>(coarse, &self.between, out),
            (step, c) => {
                for (i, cell) in out.chunks_exact_mut(step * c).enumerate() {
                    for (j, out) in cell.iter_mut().enumerate() {
                        let taps = self.between[j / c].iter().enumerate();
                        *out = taps.map(|(t, &weight)| coarse[(i + t) * c + j % c] * weight).sum();
                    }
                }
            }
        }
    }
}
