//! Kernels that walk down a band of rows with a ring of the rows that the window covers: separable, direct, gradient.

use std::ops::Range;

use super::plane::{Codec, Finish, Source, Span, Target, store_codes, store_floats};
use crate::filter::plan::{Direct, Gradient, Separable};

/// Rows of a band, addressed by their virtual position (rows outside the plane included).
pub(super) struct Ring<'a, T> {
    rows: &'a mut [T],
    width: usize,
    count: i64,
}

impl<'a, T> Ring<'a, T> {
    /// A ring of `count` rows of `width` values in `memory`.
    pub fn new(memory: &'a mut [T], width: usize, count: usize) -> Self {
        Self { rows: &mut memory[..width * count], width, count: count as i64 }
    }

    fn start(&self, y: i64) -> usize {
        y.rem_euclid(self.count) as usize * self.width
    }

    /// The row at position `y`.
    pub fn row(&self, y: i64) -> &[T] {
        let start = self.start(y);
        &self.rows[start..start + self.width]
    }

    /// The row at position `y`, for writing.
    pub fn row_mut(&mut self, y: i64) -> &mut [T] {
        let start = self.start(y);
        &mut self.rows[start..start + self.width]
    }
}

/// A separable kernel for one plane.
pub(super) struct SeparableKernel {
    row: Box<[f32]>,
    col: Box<[f32]>,
    span: Span,
    codec: Codec,
    finish: Finish,
}

impl SeparableKernel {
    pub fn new(op: &Separable, mut span: Span, codec: Codec) -> Self {
        (span.left, span.right) = reach(op.row.len());
        let sum = |taps: &[f32]| taps.iter().map(|&t| f64::from(t)).sum::<f64>();
        let finish = Finish::new(codec, sum(&op.row) * sum(&op.col), op.scale, op.bias);
        Self { row: op.row.as_ref().into(), col: op.col.as_ref().into(), span, codec, finish }
    }

    /// Values of `f32` scratch that a worker needs.
    pub fn scratch(&self) -> usize {
        self.span.extended() + self.span.values() * (self.col.len() + 1)
    }

    pub fn run(&self, source: &Source, target: &Target, rows: Range<usize>, scratch: &mut [f32]) {
        let width = self.span.values();
        let (extended, scratch) = scratch.split_at_mut(self.span.extended());
        let (sums, scratch) = scratch.split_at_mut(width);
        let mut ring = Ring::new(scratch, width, self.col.len());
        let (above, below) = reach(self.col.len());
        let first = rows.start as i64 - above as i64;
        for position in first..rows.end as i64 + below as i64 {
            self.span.load(source, self.codec, position, extended);
            correlate_row(extended, &self.row, self.span.components, ring.row_mut(position));
            let y = position - below as i64;
            if y < rows.start as i64 {
                continue;
            }
            sums.fill(0.0);
            for (k, &weight) in self.col.iter().enumerate() {
                add_scaled(sums, ring.row(y - above as i64 + k as i64), weight);
            }
            // SAFETY: row `y` belongs to this task's band.
            self.finish.store(sums, self.codec, unsafe { target.row(y as usize) });
        }
    }
}

/// A general 2-D kernel for one plane.
pub(super) struct DirectKernel {
    taps: Box<[f32]>,
    width: usize,
    height: usize,
    span: Span,
    codec: Codec,
    finish: Finish,
}

impl DirectKernel {
    pub fn new(op: &Direct, mut span: Span, codec: Codec) -> Self {
        (span.left, span.right) = reach(op.width);
        let finish = Finish::new(codec, op.taps.iter().map(|&t| f64::from(t)).sum(), op.scale, op.bias);
        Self { taps: op.taps.as_ref().into(), width: op.width, height: op.height, span, codec, finish }
    }

    /// Values of `f32` scratch that a worker needs.
    pub fn scratch(&self) -> usize {
        self.span.values() + self.span.extended() * self.height
    }

    pub fn run(&self, source: &Source, target: &Target, rows: Range<usize>, scratch: &mut [f32]) {
        let (sums, scratch) = scratch.split_at_mut(self.span.values());
        let mut ring = Ring::new(scratch, self.span.extended(), self.height);
        let (above, below) = reach(self.height);
        let first = rows.start as i64 - above as i64;
        for position in first..rows.end as i64 + below as i64 {
            self.span.load(source, self.codec, position, ring.row_mut(position));
            let y = position - below as i64;
            if y < rows.start as i64 {
                continue;
            }
            sums.fill(0.0);
            for (k, taps) in self.taps.chunks_exact(self.width).enumerate() {
                let row = ring.row(y - above as i64 + k as i64);
                for (j, &weight) in taps.iter().enumerate() {
                    add_scaled(sums, &row[j * self.span.components..], weight);
                }
            }
            // SAFETY: row `y` belongs to this task's band.
            self.finish.store(sums, self.codec, unsafe { target.row(y as usize) });
        }
    }
}

/// Two 3×3 gradients for one plane.
pub(super) struct GradientKernel {
    op: Gradient,
    span: Span,
    codec: Codec,
    finish: Finish,
}

impl GradientKernel {
    pub fn new(op: &Gradient, mut span: Span, mut codec: Codec) -> Self {
        (span.left, span.right) = (1, 1);
        // The root is not linear: nothing to centre.
        codec.centre = 0.0;
        Self { op: *op, span, codec, finish: Finish::new(codec, 0.0, op.scale, op.delta) }
    }

    /// Values of `f32` scratch that a worker needs.
    pub fn scratch(&self) -> usize {
        2 * self.span.values() + self.span.extended() * 3
    }

    pub fn run(&self, source: &Source, target: &Target, rows: Range<usize>, scratch: &mut [f32]) {
        let (gx, scratch) = scratch.split_at_mut(self.span.values());
        let (gy, scratch) = scratch.split_at_mut(self.span.values());
        let mut ring = Ring::new(scratch, self.span.extended(), 3);
        for position in rows.start as i64 - 1..rows.end as i64 + 1 {
            self.span.load(source, self.codec, position, ring.row_mut(position));
            let y = position - 1;
            if y < rows.start as i64 {
                continue;
            }
            gx.fill(0.0);
            gy.fill(0.0);
            for k in 0..9 {
                let row = &ring.row(y - 1 + (k / 3) as i64)[k % 3 * self.span.components..];
                add_scaled(gx, row, self.op.x[k]);
                add_scaled(gy, row, self.op.y[k]);
            }
            // SAFETY: row `y` belongs to this task's band.
            let out = unsafe { target.row(y as usize) };
            let magnitudes = gx.iter().zip(gy.iter()).map(|(x, y)| (x * x + y * y).sqrt());
            match self.codec.sample {
                crate::frame::Sample::F32 => store_floats(magnitudes.map(|m| m * self.op.scale + self.op.delta), out),
                crate::frame::Sample::U8 | crate::frame::Sample::U16 => {
                    store_codes(magnitudes.map(|m| self.finish.code(m)), self.codec, out);
                }
            }
        }
    }
}

/// Positions before and after the anchor ⌊taps/2⌋.
pub(super) fn reach(taps: usize) -> (usize, usize) {
    (taps / 2, taps.saturating_sub(taps / 2 + 1))
}

fn add_scaled(sums: &mut [f32], row: &[f32], weight: f32) {
    for (sum, &value) in sums.iter_mut().zip(row) {
        *sum += value * weight;
    }
}

fn correlate_row(extended: &[f32], taps: &[f32], components: usize, out: &mut [f32]) {
    out.fill(0.0);
    for (j, &weight) in taps.iter().enumerate() {
        add_scaled(out, &extended[j * components..], weight);
    }
}
