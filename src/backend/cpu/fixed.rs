//! Blurs of 8-bit planes in whole numbers: columns, then rows, as sums of pairs of products (`vpmaddwd`: twice the products of
//! an instruction on floats), four output rows at a time.
//!
//! Weights are scaled to 16 bits, and the sums of the columns, moved by half the range, are kept in 16 bits: some 8 bits below
//! the code value. What that costs is estimated from the weights before a kernel is chosen (see [`FixedKernel::new`]). The
//! sums are rounded at places that change along the row, so that the error does not add up where neighbours are alike. Flat
//! areas stay exact: the final scale is one over the weights' sum as it is.

use std::ops::Range;

use super::linear::{Level, reach};
use super::pairs::{self, Columns};
use super::plane::{Codec, Source, Span, Target};
use crate::filter::Border;
use crate::filter::math::border_index;
use crate::filter::plan::{BoxMean, Separable};
use crate::frame::Sample;

/// Output rows that are summed together: each pair of rows is loaded once for all of them.
pub(super) const ROWS: usize = 4;
/// Samples of a block of the inner loops, which rows are padded to.
pub(super) const BLOCK: usize = 64;
/// Estimated share of samples that may round to the other side where noise is strongest; the tolerance is 1 in 1000.
const UNEQUAL: f64 = 5e-4;
/// Samples of a plane at least, so that a share of one in 1000 means something. Smaller planes are summed in floats.
const LARGE: usize = 1 << 14;
/// Range of the sums of the columns on both sides of 0.
const SUMS: f64 = 32600.0;
/// What is left of 32 bits for the sums of the rows, over [`SUMS`].
const ROW_WEIGHTS: f64 = 65500.0;

/// Largest radius of a box: above, running sums are cheaper. 255 · 9² is below 2^15.
const MOST_RADIUS: usize = 4;

/// Two neighbouring weights in one 32-bit lane.
pub(super) type Weights = i32;

/// Weights of four output rows for one pair of input rows.
pub(super) type Fan = [Weights; ROWS];

/// The end of a row: `sum · scale + offset`, cut to `0..=max`.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub scale: f32,
    /// With the ½ that rounds.
    pub offset: f32,
    pub max: f32,
}

/// From the sums of the columns to 16 bits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    /// Subtracted from every sum: half the range.
    pub middle: i32,
    pub shift: i32,
}

/// A separable blur for one plane.
pub(super) struct FixedKernel {
    span: Span,
    /// For each pair of input rows.
    fans: Box<[Fan]>,
    start: Start,
    /// For each pair of columns: weights of the even and of the odd outputs.
    across: Box<[[Weights; 2]]>,
    end: End,
    above: usize,
    below: usize,
    /// Radii of a box mean of two passes; its second pass takes its border from what the first one gives.
    twice: Option<(usize, usize)>,
}

/// Whole weights near `taps` times the best scale up to `most`, and the root of the sum of squares of what they are off,
/// relative to the taps' sum.
fn whole(taps: &[f32], most: f64) -> (Vec<i32>, f64) {
    let sum: f64 = taps.iter().map(|&t| f64::from(t)).sum();
    let largest = taps.iter().fold(0.0, |m: f64, &t| m.max(f64::from(t)));
    let most = most.min(32767.0 / largest);
    let mut best = (Vec::new(), f64::INFINITY);
    for candidate in 0..2048 {
        let scale = most * (1.0 - f64::from(candidate) / 32768.0);
        let rounded = || taps.iter().map(|&t| (f64::from(t) * scale).round());
        let total: f64 = rounded().sum();
        let error: f64 = rounded().zip(taps).map(|(w, &t)| (w / total - f64::from(t) / sum).powi(2)).sum();
        if total > 0.0 && error < best.1 {
            best = (rounded().map(|w| w as i32).collect(), error);
        }
    }
    (best.0, best.1.sqrt())
}

/// Weights `low` and `high` as lanes of 16 bits.
fn pair(low: i32, high: i32) -> Weights {
    (high << 16) | (low & 0xFFFF)
}

impl FixedKernel {
    /// None if this machine has no such instructions, or if the weights are not those of a blur, or too coarse in 16 bits.
    pub fn new(op: &Separable, span: Span, codec: Codec, level: Level) -> Option<Self> {
        let taps = || op.row.iter().chain(op.col.iter());
        let large = span.width * span.height >= LARGE;
        if level == Level::Plain || !pairs::has_pairs() || codec.sample != Sample::U8 || span.components != 1 || !large {
            return None;
        }
        let sum = |taps: &[f32]| taps.iter().map(|&t| f64::from(t)).sum::<f64>();
        let (row_sum, col_sum) = (sum(&op.row), sum(&op.col));
        let gain = row_sum * col_sum * f64::from(op.scale);
        if !taps().all(|&t| (0.0..=1e6).contains(&t)) || !(1e-3..=1e6).contains(&row_sum.min(col_sum)) || (gain - 1.0).abs() > 0.01 {
            return None;
        }
        // Columns: as many bits as 16-bit weights hold, such that a shift leaves 16 bits of the sum and uses them all.
        let largest = op.col.iter().fold(0.0, |m: f32, &t| m.max(t));
        let shift = (32767.0 / f64::from(largest) * col_sum * 128.0 / SUMS).log2().floor().clamp(0.0, 14.0) as i32;
        let (col, col_error) = whole(&op.col, SUMS / 128.0 / col_sum * f64::from(1 << shift));
        let col_total: i32 = col.iter().sum();
        // A code value in the sums of the columns.
        let step = f64::from(col_total) / f64::from(1 << shift);
        let (row, row_error) = whole(&op.row, ROW_WEIGHTS / row_sum);
        let row_total: i32 = row.iter().sum();

        // Noise of all or nothing, the worst case: deviation 127.5.
        let share = |taps: &[f32], sum: f64| taps.iter().map(|&t| (f64::from(t) / sum).powi(2)).sum::<f64>().sqrt();
        let (keep_row, keep_col) = (share(&op.row, row_sum), share(&op.col, col_sum));
        let rounding = keep_row / step / 12f64.sqrt();
        let error = (rounding.powi(2) + (127.5 * col_error * keep_row).powi(2) + (127.5 * keep_col * row_error).powi(2)).sqrt();
        if 0.8 * error > UNEQUAL || f64::from(row_total) > ROW_WEIGHTS || 128.0 * step > SUMS + 100.0 {
            return None;
        }

        let end = End {
            scale: (gain / (step * f64::from(row_total))) as f32,
            offset: (128.0 * gain + f64::from(op.bias) + 0.5) as f32,
            max: codec.max,
        };
        let start = Start { middle: 128 * col_total, shift };
        Some(Self::of(&row, &col, span, start, end))
    }

    /// A small box mean of two passes, exact. None if the sums of the columns may not fit 16 bits, or if no place of the plane
    /// gives what the second pass reads beyond the border.
    pub fn of_box(op: &BoxMean, span: Span, codec: Codec, level: Level) -> Option<Self> {
        let usable = level == Level::Simd && pairs::has_pairs() && codec.sample == Sample::U8 && span.components == 1;
        let inside = op.radius_x < span.width && op.radius_y < span.height && span.border != Border::Zero;
        if !usable || !inside || op.power != 2 || op.radius_x.max(op.radius_y) > MOST_RADIUS {
            return None;
        }
        let taps = |radius: usize| -> Vec<i32> {
            let size = 2 * radius as i32 + 1;
            (1 - size..size).map(|i| size - i.abs()).collect()
        };
        let (row, col) = (taps(op.radius_x), taps(op.radius_y));
        let total = row.iter().sum::<i32>() * col.iter().sum::<i32>();
        let end = End { scale: (1.0 / f64::from(total)) as f32, offset: 0.5, max: codec.max };
        let kernel = Self::of(&row, &col, span, Start { middle: 0, shift: 0 }, end);
        Some(Self { twice: Some((op.radius_x, op.radius_y)), ..kernel })
    }

    fn of(row: &[i32], col: &[i32], mut span: Span, start: Start, end: End) -> Self {
        (span.left, span.right) = reach(row.len());
        let at = |weights: &[i32], i: usize, back: usize| i.checked_sub(back).and_then(|i| weights.get(i)).copied().unwrap_or(0);
        let fans = (0..(col.len() + ROWS - 1).div_ceil(2))
            .map(|k| std::array::from_fn(|r| pair(at(col, 2 * k, r), at(col, 2 * k + 1, r))))
            .collect();
        let across =
            (0..(row.len() + 1).div_ceil(2)).map(|k| [0, 1].map(|odd| pair(at(row, 2 * k, odd), at(row, 2 * k + 1, odd)))).collect();
        let (above, below) = reach(col.len());
        Self { span, fans, start, across, end, above, below, twice: None }
    }

    /// The place that stands for position `at` of `length`.
    ///
    /// With the edge repeated, a second pass of radius r repeats the mean m₀ at the edge: m₋₁ = m₀ where sample −r − 1 is sample r,
    /// and so on to sample −2r, which is sample 1. The other borders mirror or repeat the means as they do the samples.
    fn place(&self, at: i64, length: usize, twice: Option<usize>) -> Option<usize> {
        let n = length as i64;
        if let (Some(radius), Border::Clamp) = (twice, self.span.border) {
            let reach = 2 * radius as i64 + 1;
            // Rows beyond that are under no output that counts.
            if at < -(radius as i64) {
                return Some((reach + at).max(0) as usize);
            }
            if at >= n + radius as i64 {
                return Some((at - reach).min(n - 1) as usize);
            }
        }
        border_index(at, n, self.span.border).map(|at| at as usize)
    }

    /// Values of a padded row.
    fn padded(&self) -> usize {
        self.span.width.next_multiple_of(BLOCK)
    }

    /// Values of a row of sums with its sides and what the last block reads beyond.
    fn sums(&self) -> usize {
        self.padded() + 2 * self.across.len() + BLOCK
    }

    /// Bytes and 16-bit values of scratch that a worker needs.
    pub fn scratch(&self) -> (usize, usize) {
        (2 * self.padded() * self.fans.len() + BLOCK, self.sums() * ROWS)
    }

    pub fn run(&self, source: &Source, target: &Target, rows: Range<usize>, bytes: &mut [u8], words: &mut [u16]) {
        let (padded, count) = (self.padded(), self.fans.len());
        let (ring, last) = bytes[..2 * padded * count + BLOCK].split_at_mut(2 * padded * count);
        let sums = &mut words[..self.sums() * ROWS];
        let (first, end) = (rows.start as i64 - self.above as i64, (rows.end + self.below) as i64);
        let zero = ((self.start.round(0) - self.start.middle) >> self.start.shift) as u16;
        // Pairs of rows in the ring, counted from `first`.
        let mut ready = 0;
        for (turn, y) in rows.clone().step_by(ROWS).enumerate() {
            let oldest = turn * ROWS / 2;
            while ready < oldest + count {
                let slot = ready % count * 2 * padded;
                self.interleave(source, first + 2 * ready as i64, end, &mut ring[slot..slot + 2 * padded]);
                ready += 1;
            }
            let columns = Columns { ring, oldest: oldest % count, fans: &self.fans, start: self.start };
            pairs::down_pairs(&columns, self.span.left, sums);
            for (y, sums) in (y..rows.end).zip(sums.chunks_exact_mut(self.sums())) {
                self.extend(&mut sums[..self.span.extended()], zero);
                // SAFETY: row `y` belongs to this task's band.
                pairs::across_pairs(sums, &self.across, self.end, last, unsafe { target.row(y) });
            }
        }
    }

    /// Fills both sides of a row of sums.
    fn extend(&self, row: &mut [u16], zero: u16) {
        let Some((radius, _)) = self.twice else { return self.span.extend(row, zero) };
        let (left, width) = (self.span.left as i64, self.span.width);
        for i in (-left..0).chain(width as i64..(width + self.span.right) as i64) {
            let value = self.place(i, width, Some(radius)).map_or(zero, |from| row[from + self.span.left]);
            row[(i + left) as usize] = value;
        }
    }

    /// Rows `y` and `y + 1`, sample by sample; those from `end` on are under no output that counts, and may not be there.
    fn interleave(&self, source: &Source, y: i64, end: i64, out: &mut [u8]) {
        let place = |y: i64| self.place(y, self.span.height, self.twice.map(|(_, radius)| radius));
        let row = |y: i64| if y < end { place(y).map(|y| source.row(y)) } else { None };
        match (row(y), row(y + 1)) {
            (Some(upper), Some(lower)) => pairs::interleave(upper, lower, out),
            (upper, lower) => {
                for (offset, row) in [(0, upper), (1, lower)] {
                    let row = row.unwrap_or_default().iter().chain(std::iter::repeat(&0));
                    out[offset..].iter_mut().step_by(2).zip(row).for_each(|(o, &value)| *o = value);
                }
            }
        }
    }
}
