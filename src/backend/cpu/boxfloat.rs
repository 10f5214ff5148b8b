//! The box mean of float planes, of one pass: bands of rows, no intermediate plane. Windows of few samples are a general kernel's.
//!
//! Rows are summed by doubling ([`window_sums`]). Down the columns it is van Herk's and Gil and Werman's method with sums in the place of extremes:
//! the window's rows lie in two neighbouring blocks of as many rows as it is high. Of the upper block the sums from each row to the block's
//! end are made once; of the lower one a sum runs along. Three additions a sample for any height, and no sum grows longer than a window: nothing
//! drifts.

use std::ops::Range;

use multiversion::multiversion;

use super::boxsum::window_sums;
use super::linear::Level;
use super::order::{leveled, store_row};
use super::plane::{Codec, Source, Span, Target};
use crate::filter::plan::{BoxMean, Direct};
use crate::frame::Sample;

/// Bytes of a block of rows at most: beyond the caches, strips of columns (`boxmean::BoxKernel`) are faster.
const BLOCK_BYTES: usize = 8 << 20;
/// Windows below one another that a plane must have room for: each band sums up a window's rows anew, and there must be bands for all threads.
const WINDOWS: usize = 8;

/// One plane's box mean.
pub(super) struct FloatBox {
    op: BoxMean,
    span: Span,
    codec: Codec,
    level: Level,
}

/// A window of so few samples is a general kernel's, whose weights need no sums of sums.
const FEW: usize = 9;

/// The mean over few samples as a general kernel; None where that is no gain.
pub(super) fn as_kernel(op: &BoxMean, codec: Codec) -> Option<Direct> {
    let (width, height) = (2 * op.radius_x + 1, 2 * op.radius_y + 1);
    let few = width.checked_mul(height).filter(|&n| n <= FEW && op.power == 1 && codec.sample == Sample::F32)?;
    Some(Direct { width, height, taps: vec![1.0; few].into(), scale: 1.0 / few as f32, bias: 0.0 })
}

impl FloatBox {
    /// None for whole numbers, several passes, and windows whose rows do not fit the caches or are a large part of the plane's.
    pub fn new(op: &BoxMean, mut span: Span, codec: Codec, level: Level) -> Option<Self> {
        (span.left, span.right) = (op.radius_x, op.radius_x);
        let rows = op.radius_y.checked_mul(2)?.checked_add(1)?;
        let fits = rows.checked_mul(4 * span.values())? <= BLOCK_BYTES && (rows == 1 || rows.checked_mul(WINDOWS)? <= span.height);
        (codec.sample.is_float() && op.power == 1 && fits).then_some(Self { op: *op, span, codec, level })
    }

    /// Rows that a band must read beyond its own.
    pub fn halo(&self) -> usize {
        self.rows() - 1
    }

    /// Rows of the window.
    fn rows(&self) -> usize {
        2 * self.op.radius_y + 1
    }

    /// Values of scratch that a worker needs.
    pub fn scratch(&self) -> usize {
        2 * self.span.extended() + (2 + self.rows()) * self.span.values()
    }

    pub fn run(&self, source: &Source, target: &Target, rows: Range<usize>, scratch: &mut [f32]) {
        let (width, size) = (self.span.values(), 2 * self.op.radius_x + 1);
        let (extended, scratch) = scratch.split_at_mut(self.span.extended());
        let (spare, scratch) = scratch.split_at_mut(self.span.extended());
        let (running, scratch) = scratch.split_at_mut(width);
        let (means, block) = scratch.split_at_mut(width);
        let block = &mut block[..self.rows() * width];
        let mut sum = |y: i64, out: &mut [f32]| {
            self.span.load_with(source, self.codec, y, extended, self.level.load());
            window_sums(self.level, size, self.span.components, extended, spare, out);
        };
        // Blocks begin at the same rows for every band, so that sums are rounded alike: the row where the window of row `y` begins has the place
        // `y % size_y`.
        let (size_y, begin) = (self.rows(), rows.start % self.rows());
        for index in 0..size_y {
            let at = (begin + index) % size_y;
            sum((rows.start + index) as i64 - self.op.radius_y as i64, &mut block[at * width..][..width]);
        }
        if begin > 0 {
            add_up(self.level, width, &mut block[begin * width..]);
            running.fill(0.0);
            for row in block.chunks_exact(width).take(begin - 1) {
                add(self.level, row, running);
            }
        }
        let factor = 1.0 / (size * size_y) as f32;
        for y in rows.start..rows.end {
            let at = y % size_y;
            if at == 0 {
                // The rows of the block are all there, each as it came.
                add_up(self.level, width, block);
                running.fill(0.0);
                scale(self.level, &block[..width], factor, means);
            } else {
                let (before, after) = block.split_at(at * width);
                join(self.level, running, &before[(at - 1) * width..], &after[..width], factor, means);
            }
            // SAFETY: row `y` belongs to this task's band.
            store_row(self.level, means, self.codec, unsafe { target.row(y) });
            if y + 1 < rows.end {
                // The sum that was just used gives way to the row that enters.
                sum(y as i64 + 1 + self.op.radius_y as i64, &mut block[at * width..][..width]);
            }
        }
    }
}

leveled!(
    []
    /// Turns the rows of a block into the sums from each to the last.
    add_up, add_up_fast, add_up_body(width: usize, block: &mut [f32])
);
leveled!(
    []
    /// The row joins the sums.
    add, add_fast, add_body(row: &[f32], sums: &mut [f32])
);
leveled!(
    []
    /// `out = sums · factor`.
    scale, scale_fast, scale_body(sums: &[f32], factor: f32, out: &mut [f32])
);
leveled!(
    []
    /// The entering row joins the running sum, and `out = (rest + running) · factor`.
    join, join_fast, join_body(running: &mut [f32], entering: &[f32], rest: &[f32], factor: f32, out: &mut [f32])
);

#[inline(always)]
fn add_up_body(width: usize, block: &mut [f32]) {
    for from in (width..block.len()).step_by(width).rev() {
        let (row, below) = block[from - width..].split_at_mut(width);
        add_body(&below[..width], row);
    }
}

#[inline(always)]
fn add_body(row: &[f32], sums: &mut [f32]) {
    for (sum, &value) in sums.iter_mut().zip(row) {
        *sum += value;
    }
}

#[inline(always)]
fn scale_body(sums: &[f32], factor: f32, out: &mut [f32]) {
    for (o, &sum) in out.iter_mut().zip(sums) {
        *o = sum * factor;
    }
}

#[inline(always)]
fn join_body(running: &mut [f32], entering: &[f32], rest: &[f32], factor: f32, out: &mut [f32]) {
    let n = out.len();
    let (running, entering, rest) = (&mut running[..n], &entering[..n], &rest[..n]);
    for x in 0..n {
        running[x] += entering[x];
        out[x] = (rest[x] + running[x]) * factor;
    }
}
