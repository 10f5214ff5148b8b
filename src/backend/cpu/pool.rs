//! Pooling and pixelation: one value for many samples that exist; borders do not count.

use std::ops::Range;

use multiversion::multiversion;

use super::extremum::loader;
use super::linear::Level;
use super::order::{Ordered, least, leveled, merge_row, most, store_row};
use super::plane::{Codec, Source, Span, Target, store_codes, store_floats};
use crate::filter::plan::{Extreme, Pixelate, Pool, PoolKind};
use crate::frame::Sample;

/// The input positions that one output position reads in one direction.
#[derive(Clone, Copy, Debug)]
struct Window {
    /// First position that is inside the plane.
    first: usize,
    /// How many are, at least 1.
    count: usize,
}

/// Window of output position `index` in a direction of `length` samples.
fn window(op: &Pool, index: usize, length: usize) -> Window {
    let (start, step) = (index as i64 * op.stride as i64 - op.pad as i64, op.dilation as i64);
    let last = start + (op.kernel as i64 - 1) * step;
    let skipped = if start < 0 { (-start + step - 1) / step } else { 0 };
    let end = (length as i64 - 1).min(last);
    let first = start + skipped * step;
    if first > end {
        let nearest = (start + (op.kernel / 2) as i64 * step).clamp(0, length as i64 - 1);
        return Window { first: nearest as usize, count: 1 };
    }
    Window { first: first as usize, count: ((end - first) / step) as usize + 1 }
}

/// One plane's pooling.
pub(super) struct PoolKernel {
    op: Pool,
    /// The input plane.
    span: Span,
    codec: Codec,
    level: Level,
    columns: Box<[Window]>,
    /// Columns whose windows lie inside with all their samples.
    inner: Range<usize>,
}

/// Strides up to this are pooled at every column first, whole registers at a time, and thinned out then: by the registers' width less
/// work than column by column at stride 1, and still less at this one.
pub(super) const DENSE_STRIDE: usize = 4;

/// Which of `results` windows along a line of `n` samples lie inside with all their samples; also the layers' over tensors.
pub(super) fn inner([kernel, stride, pad, dilation]: [usize; 4], n: usize, results: usize) -> Range<usize> {
    // x · stride ≥ pad, and x · stride − pad + (kernel − 1) · dilation < n.
    let first = pad.div_ceil(stride);
    let beyond = (n + pad).saturating_sub((kernel - 1) * dilation).div_ceil(stride).min(results);
    first.min(beyond)..beyond
}

impl PoolKernel {
    /// `width` is the output plane's.
    pub fn new(op: &Pool, span: Span, mut codec: Codec, level: Level, width: usize) -> Self {
        codec.centre = 0.0;
        let columns = (0..width).map(|x| window(op, x, span.width)).collect();
        let inner = inner([op.kernel, op.stride, op.pad, op.dilation], span.width, width);
        Self { op: *op, span, codec, level, columns, inner }
    }

    /// The plane's codec.
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// What the windows become.
    pub fn kind(&self) -> PoolKind {
        self.op.kind
    }

    /// Values of scratch that a worker needs, of each type.
    pub fn scratch(&self) -> usize {
        2 * self.span.values() + self.columns.len() * self.span.components
    }

    /// Maximum and minimum.
    pub fn run_extreme<T: Ordered>(&self, kind: Extreme, source: &Source, target: &Target, rows: Range<usize>, scratch: &mut [T]) {
        let (line, scratch) = scratch.split_at_mut(self.span.values());
        let (down, out) = scratch.split_at_mut(self.span.values());
        let out = &mut out[..self.columns.len() * self.span.components];
        for y in rows {
            let rows = |row: &[T], into: &mut [T]| merge_row(self.level, kind, row, into);
            self.down(source, y, line, down, rows);
            let values = |a, b| match kind {
                Extreme::Min => least(a, b),
                Extreme::Max => most(a, b),
            };
            self.across(down, line, out, rows, values);
            // SAFETY: row `y` belongs to this task's band.
            store_row(self.level, out, self.codec, unsafe { target.row(y) });
        }
    }

    /// Means of integer planes. Sums are exact: `check` has limited the window.
    pub fn run_codes(&self, source: &Source, target: &Target, rows: Range<usize>, scratch: &mut [u32]) {
        let (line, scratch) = scratch.split_at_mut(self.span.values());
        let (down, out) = scratch.split_at_mut(self.span.values());
        let c = self.span.components;
        let out = &mut out[..self.columns.len() * c];
        for y in rows {
            let rows = |row: &[u32], into: &mut [u32]| add_codes(self.level, row, into);
            let count = self.down(source, y, line, down, rows);
            self.across(down, line, out, rows, |a, b| a + b);
            for (sums, window) in out.chunks_exact_mut(c).zip(&self.columns) {
                let samples = (count * window.count) as u32;
                sums.iter_mut().for_each(|sum| *sum = (*sum + samples / 2) / samples);
            }
            // SAFETY: row `y` belongs to this task's band.
            store_codes(out.iter().copied(), self.codec, unsafe { target.row(y) });
        }
    }

    /// Means of float planes.
    pub fn run_floats(&self, source: &Source, target: &Target, rows: Range<usize>, scratch: &mut [f32]) {
        let (line, scratch) = scratch.split_at_mut(self.span.values());
        let (down, out) = scratch.split_at_mut(self.span.values());
        let c = self.span.components;
        let out = &mut out[..self.columns.len() * c];
        for y in rows {
            let rows = |row: &[f32], into: &mut [f32]| add_floats(self.level, row, into);
            let count = self.down(source, y, line, down, rows);
            self.across(down, line, out, rows, |a, b| a + b);
            // Windows that lie inside have one size.
            let (first, inner) = out.split_at_mut(self.inner.start * c);
            let (inner, last) = inner.split_at_mut(self.inner.len() * c);
            divide(self.level, inner, (count * self.op.kernel) as f32);
            let edges = self.columns.iter().take(self.inner.start).zip(first.chunks_exact_mut(c));
            for (window, sums) in edges.chain(self.columns.iter().skip(self.inner.end).zip(last.chunks_exact_mut(c))) {
                let samples = (count * window.count) as f32;
                sums.iter_mut().for_each(|sum| *sum /= samples);
            }
            // SAFETY: row `y` belongs to this task's band.
            store_row(self.level, out, self.codec, unsafe { target.row(y) });
        }
    }

    /// Combines the rows of output row `y`'s windows; returns how many there are.
    fn down<T: Ordered>(&self, source: &Source, y: usize, line: &mut [T], down: &mut [T], merge: impl Fn(&[T], &mut [T])) -> usize {
        let rows = window(&self.op, y, self.span.height);
        let load = loader::<T>(self.level);
        load(source.row(rows.first), self.codec, down);
        for index in 1..rows.count {
            load(source.row(rows.first + index * self.op.dilation), self.codec, line);
            merge(line, down);
        }
        rows.count
    }

    /// Combines the columns of every window, those inside row-wise with `rows`, the others with `values`. `spare` is as long as the row.
    #[inline(always)]
    fn across<T: Ordered>(&self, row: &[T], spare: &mut [T], out: &mut [T], rows: impl Fn(&[T], &mut [T]), values: impl Fn(T, T) -> T) {
        let c = self.span.components;
        let step = self.op.dilation * c;
        let inner = if self.op.stride <= DENSE_STRIDE { self.inner.clone() } else { 0..0 };
        let edges = (0..inner.start).chain(inner.end..self.columns.len());
        for (x, window) in edges.filter_map(|x| Some((x, self.columns.get(x)?))) {
            for component in 0..c {
                let first = window.first * c + component;
                let mut value = row[first];
                for index in 1..window.count {
                    value = values(value, row[first + index * step]);
                }
                out[x * c + component] = value;
            }
        }
        let windows = [self.op.kernel, self.op.stride, self.op.pad, self.op.dilation];
        let (out, from) = (out.get_mut(inner.start * c..inner.end * c).unwrap_or_default(), inner.start);
        dense(self.level, windows, (from, c), row, spare, out, |tap, values, dense| match tap {
            0 => dense.copy_from_slice(&values[..dense.len()]),
            _ => rows(values, dense),
        });
    }
}

/// Combines windows that lie inside of a line with all their samples, from window `from` on as many as `out` has room for, whole registers
/// at a time: at every column from the first window's to the last one's, thinned out then where there is a stride. `merge` gets the number
/// of a tap, what lies under that tap of the first window and behind it, and the windows so far: at tap 0 whatever was there before.
/// `spare` is as long as the line.
#[inline(always)]
pub(super) fn dense<T: Ordered>(
    level: Level,
    [kernel, stride, pad, dilation]: [usize; 4],
    (from, components): (usize, usize),
    row: &[T],
    spare: &mut [T],
    out: &mut [T],
    mut merge: impl FnMut(usize, &[T], &mut [T]),
) {
    let windows = out.len() / components;
    if windows == 0 {
        return;
    }
    let (first, count) = ((from * stride - pad) * components, ((windows - 1) * stride + 1) * components);
    let dense = if stride == 1 { &mut *out } else { spare.get_mut(..count).unwrap_or_default() };
    for tap in 0..kernel {
        merge(tap, row.get(first + tap * dilation * components..).unwrap_or_default(), dense);
    }
    if stride > 1 {
        thin_out(level, stride, components, spare.get(..count).unwrap_or_default(), out);
    }
}

#[inline(always)]
fn thin_out_body<T: Ordered>(stride: usize, components: usize, dense: &[T], out: &mut [T]) {
    match (stride, components) {
        // Known distances become shuffles.
        (2, 1) => out.iter_mut().zip(dense.iter().step_by(2)).for_each(|(o, &v)| *o = v),
        (_, 1) => out.iter_mut().zip(dense.iter().step_by(stride)).for_each(|(o, &v)| *o = v),
        (_, c) => out.chunks_exact_mut(c).zip(dense.chunks(stride * c)).for_each(|(o, v)| o.copy_from_slice(&v[..c])),
    }
}

leveled!(
    /// Every `stride`-th sample of `components` values.
    thin_out, thin_out_fast, thin_out_body(stride: usize, components: usize, dense: &[T], out: &mut [T])
);

#[inline(always)]
fn divide_body(sums: &mut [f32], by: f32) {
    sums.iter_mut().for_each(|sum| *sum /= by);
}

#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
fn divide_fast(sums: &mut [f32], by: f32) {
    divide_body(sums, by);
}

fn divide(level: Level, sums: &mut [f32], by: f32) {
    match level {
        Level::Plain => divide_body(sums, by),
        Level::Simd => divide_fast(sums, by),
    }
}

#[inline(always)]
fn add_codes_body(row: &[u32], sums: &mut [u32]) {
    for (sum, value) in sums.iter_mut().zip(row) {
        *sum = sum.wrapping_add(*value);
    }
}

#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
fn add_codes_fast(row: &[u32], sums: &mut [u32]) {
    add_codes_body(row, sums);
}

fn add_codes(level: Level, row: &[u32], sums: &mut [u32]) {
    match level {
        Level::Plain => add_codes_body(row, sums),
        Level::Simd => add_codes_fast(row, sums),
    }
}

#[inline(always)]
fn add_floats_body(row: &[f32], sums: &mut [f32]) {
    for (sum, value) in sums.iter_mut().zip(row) {
        *sum += value;
    }
}

#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
fn add_floats_fast(row: &[f32], sums: &mut [f32]) {
    add_floats_body(row, sums);
}

fn add_floats(level: Level, row: &[f32], sums: &mut [f32]) {
    match level {
        Level::Plain => add_floats_body(row, sums),
        Level::Simd => add_floats_fast(row, sums),
    }
}

/// One plane's pixelation.
pub(super) struct PixelateKernel {
    op: Pixelate,
    span: Span,
    codec: Codec,
    level: Level,
}

impl PixelateKernel {
    pub fn new(op: &Pixelate, span: Span, mut codec: Codec, level: Level) -> Self {
        codec.centre = 0.0;
        // Blocks beyond the plane's sides change nothing, and a column's sum must stay within 32 bits.
        let op = Pixelate { block_x: op.block_x.min(span.width), block_y: op.block_y.min(span.height) };
        Self { op, span, codec, level }
    }

    /// The plane's sample type.
    pub fn sample(&self) -> Sample {
        self.codec.sample
    }

    /// Values of scratch that a worker needs.
    pub fn scratch(&self) -> usize {
        2 * self.span.values()
    }

    /// Integer planes. A column of at most 65535 samples has a sum within 32 bits.
    pub fn run_codes(&self, source: &Source, target: &Target, rows: Range<usize>, scratch: &mut [u32]) {
        let (line, down) = scratch.split_at_mut(self.span.values());
        let down = &mut down[..line.len()];
        self.blocks(rows, |block, rows| {
            let count = self.down(source, block, line, down, |line, down| add_codes(self.level, line, down));
            self.across(down, |sums, c, samples| {
                for component in 0..c {
                    let total: u64 = sums.iter().skip(component).step_by(c).map(|&sum| u64::from(sum)).sum();
                    let samples = (samples * count) as u64;
                    let mean = ((total + samples / 2) / samples) as u32;
                    sums.iter_mut().skip(component).step_by(c).for_each(|value| *value = mean);
                }
            });
            for y in rows {
                // SAFETY: row `y` belongs to this task's band.
                store_codes(down.iter().copied(), self.codec, unsafe { target.row(y) });
            }
        });
    }

    /// Float planes.
    pub fn run_floats(&self, source: &Source, target: &Target, rows: Range<usize>, scratch: &mut [f32]) {
        let (line, down) = scratch.split_at_mut(self.span.values());
        let down = &mut down[..line.len()];
        self.blocks(rows, |block, rows| {
            let count = self.down(source, block, line, down, |line, down| add_floats(self.level, line, down));
            self.across(down, |sums, c, samples| {
                for component in 0..c {
                    let total: f64 = sums.iter().skip(component).step_by(c).map(|&sum| f64::from(sum)).sum();
                    let mean = (total / (samples * count) as f64) as f32;
                    sums.iter_mut().skip(component).step_by(c).for_each(|value| *value = mean);
                }
            });
            for y in rows {
                // SAFETY: row `y` belongs to this task's band.
                store_floats(down.iter().copied(), self.codec.sample, unsafe { target.row(y) });
            }
        });
    }

    /// Rows of blocks that meet `rows`: all rows of each, and those within `rows`.
    fn blocks(&self, rows: Range<usize>, mut each: impl FnMut(Range<usize>, Range<usize>)) {
        let mut y = rows.start;
        while y < rows.end {
            let top = y / self.op.block_y * self.op.block_y;
            let bottom = (top + self.op.block_y).min(self.span.height);
            each(top..bottom, y..bottom.min(rows.end));
            y = bottom;
        }
    }

    /// Sums of columns of a row of blocks; returns how many rows it has.
    fn down<T: Ordered>(&self, source: &Source, rows: Range<usize>, line: &mut [T], down: &mut [T], add: impl Fn(&[T], &mut [T])) -> usize {
        let count = rows.len();
        let load = loader::<T>(self.level);
        load(source.row(rows.start), self.codec, down);
        for y in rows.skip(1) {
            load(source.row(y), self.codec, line);
            add(line, down);
        }
        count
    }

    /// Calls `each` with the values of every block, the number of components and of samples per component.
    fn across<T>(&self, down: &mut [T], each: impl Fn(&mut [T], usize, usize)) {
        let c = self.span.components;
        for values in down.chunks_mut(self.op.block_x * c) {
            let samples = values.len() / c;
            each(values, c, samples);
        }
    }
}
