//! The median of 3 × 3 samples: each column of the window is sorted; the median is then the middle one of the largest of the lowest, the
//! middle one of the middle ones and the smallest of the highest (Kopp and Purgathofer, Efficient 3×3 median filter computations, 1994).
//!
//! Samples are read where they lie and medians written where they belong. A column is sorted three times, once for each window that sees it:
//! in registers that costs less than to store it sorted and to load it back from beside where it was stored. Two rows at a time, whose middle
//! two need sorting only once, are an eighth faster in the caches and a third slower out of memory: two new rows are two streams to fetch.

use std::ops::Range;

use half::f16;
use multiversion::multiversion;

use super::linear::Level;
use super::order::{Ordered, least, leveled, most};
use super::plane::{Codec, Source, Span, Target, load};
use crate::filter::Border;
use crate::filter::math::border_index;
use crate::frame::Sample;

/// Values of a block, whose number the compiler knows: four registers of bytes.
const BLOCK: usize = 128;

/// The median of 3 × 3 of one plane.
pub(super) struct NineKernel {
    span: Span,
    codec: Codec,
    level: Level,
    /// Columns under the windows of the first and of the last sample; None lies in zeros.
    ends: [[Option<usize>; 3]; 2],
    /// A stored row outside the plane, under the border of zeros; empty under the others.
    outside: Box<[u8]>,
}

impl NineKernel {
    pub fn new(span: Span, codec: Codec, level: Level) -> Self {
        let outside = if span.border == Border::Zero { span.values() * codec.sample.bytes() } else { 0 };
        let around = |x: i64| [-1, 0, 1].map(|step| border_index(x + step, span.width as i64, span.border).map(|x| x as usize));
        Self { span, codec, level, ends: [around(0), around(span.width as i64 - 1)], outside: vec![0; outside].into() }
    }

    /// Values of scratch that a worker needs: halves are compared as floats, three rows of samples and one of medians.
    pub fn scratch(&self) -> usize {
        if self.codec.sample == Sample::F16 { 4 * self.span.values() } else { 0 }
    }

    pub fn run<T: Ordered>(&self, source: &Source, target: &Target, rows: Range<usize>, scratch: &mut [T]) {
        let (c, bytes) = (self.span.components, self.codec.sample.bytes());
        let line = |y: i64| border_index(y, self.span.height as i64, self.span.border).map_or(&*self.outside, |y| source.row(y as usize));
        for y in rows {
            let (above, row, below) = (line(y as i64 - 1), line(y as i64), line(y as i64 + 1));
            // SAFETY: row `y` belongs to this task's band.
            let out = unsafe { target.row(y) };
            medians(self.level, above, row, below, self, scratch, out);
            for (x, [left, centre, right]) in [0, self.span.width - 1].into_iter().zip(self.ends) {
                for component in 0..c {
                    let column = |x| self.column([above, row, below], x, component);
                    let value: T = median([column(left), column(centre), column(right)]);
                    let at = (x * c + component) * bytes;
                    T::store(&[value], self.codec, &mut out[at..at + bytes]);
                }
            }
        }
    }

    /// The samples of one column.
    #[inline(always)]
    fn column<T: Ordered>(&self, [above, row, below]: [&[u8]; 3], x: Option<usize>, component: usize) -> [T; 3] {
        let Some(x) = x else { return [T::default(); 3] };
        let index = x * self.span.components + component;
        [sample(above, index, self.codec), sample(row, index, self.codec), sample(below, index, self.codec)]
    }
}

/// One stored sample.
#[inline(always)]
fn sample<T: Ordered>(row: &[u8], index: usize, codec: Codec) -> T {
    match codec.sample {
        Sample::U8 => T::from_code(u32::from(row[index])),
        Sample::U16 => T::from_code(u32::from(u16::from_le_bytes(row.as_chunks().0[index]) >> codec.shift)),
        Sample::F16 => T::from_float(f16::from_le_bytes(row.as_chunks().0[index]).to_f32()),
        Sample::F32 => T::from_float(f32::from_le_bytes(row.as_chunks().0[index])),
    }
}

#[inline(always)]
fn sort<T: Ordered>([a, b, c]: [T; 3]) -> [T; 3] {
    let (low, high) = (least(a, b), most(a, b));
    [least(low, c), least(high, most(low, c)), most(high, c)]
}

#[inline(always)]
fn middle<T: Ordered>(a: T, b: T, c: T) -> T {
    most(least(a, b), least(most(a, b), c))
}

/// The median of three columns.
#[inline(always)]
fn median<T: Ordered>([left, centre, right]: [[T; 3]; 3]) -> T {
    let ([l0, m0, h0], [l1, m1, h1], [l2, m2, h2]) = (sort(left), sort(centre), sort(right));
    middle(most(most(l0, l1), l2), middle(m0, m1, m2), least(least(h0, h1), h2))
}

/// Medians of `N` values from `x` on, whose neighbours lie `step` values before and behind.
#[inline(always)]
fn block<T: Ordered, S: Copy, O, const N: usize>(
    [a, b, c]: [&[S]; 3],
    (step, x): (usize, usize),
    read: impl Fn(S) -> T,
    write: impl Fn(T) -> O,
    out: &mut [O],
) {
    let (a, b, c) = (&a[x..][..2 * step + N], &b[x..][..2 * step + N], &c[x..][..2 * step + N]);
    let (a0, b0, c0) = (&a[..N], &b[..N], &c[..N]);
    let (a1, b1, c1) = (&a[step..][..N], &b[step..][..N], &c[step..][..N]);
    let (a2, b2, c2) = (&a[2 * step..][..N], &b[2 * step..][..N], &c[2 * step..][..N]);
    let out = &mut out[x + step..][..N];
    for i in 0..N {
        let left = [read(a0[i]), read(b0[i]), read(c0[i])];
        let centre = [read(a1[i]), read(b1[i]), read(c1[i])];
        let right = [read(a2[i]), read(b2[i]), read(c2[i])];
        out[i] = write(median([left, centre, right]));
    }
}

/// The medians of all values but the first and the last `step`; the last block overlaps the one before.
#[inline(always)]
fn inner<T: Ordered, S: Copy, O>(rows: [&[S]; 3], step: usize, read: impl Fn(S) -> T, write: impl Fn(T) -> O, out: &mut [O]) {
    let Some(n) = out.len().checked_sub(2 * step) else { return };
    if n < BLOCK {
        for x in 0..n {
            block::<T, S, O, 1>(rows, (step, x), &read, &write, out);
        }
        return;
    }
    for x in (0..n).step_by(BLOCK) {
        block::<T, S, O, BLOCK>(rows, (step, x.min(n - BLOCK)), &read, &write, out);
    }
}

#[inline(always)]
fn medians_body<T: Ordered>(a: &[u8], b: &[u8], c: &[u8], kernel: &NineKernel, scratch: &mut [T], out: &mut [u8]) {
    let (step, codec) = (kernel.span.components, kernel.codec);
    match codec.sample {
        Sample::U8 => inner([a, b, c], step, |b| T::from_code(u32::from(b)), |value| value.code() as u8, out),
        Sample::U16 => {
            // Shifted samples have the order of others; what may lie below them goes at the end.
            let read = |b| T::from_code(u32::from(u16::from_le_bytes(b)));
            let write = |value: T| (value.code() as u16 >> codec.shift << codec.shift).to_le_bytes();
            inner([a.as_chunks().0, b.as_chunks().0, c.as_chunks().0], step, read, write, out.as_chunks_mut().0);
        }
        Sample::F32 => {
            let (read, write) = (|b| T::from_float(f32::from_le_bytes(b)), |value: T| value.float().to_le_bytes());
            inner([a.as_chunks().0, b.as_chunks().0, c.as_chunks().0], step, read, write, out.as_chunks_mut().0);
        }
        Sample::F16 => {
            let n = kernel.span.values();
            let (inputs, medians) = scratch[..4 * n].split_at_mut(3 * n);
            for (row, input) in [a, b, c].into_iter().zip(inputs.chunks_exact_mut(n)) {
                load(row, codec, input);
            }
            inner([&inputs[..n], &inputs[n..2 * n], &inputs[2 * n..]], step, |value| value, |value| value, medians);
            T::store(medians, codec, out);
        }
    }
}

leveled!(
    /// Medians of three stored rows, but for the first and the last sample. Rows come one by one: in an array the compiler could not know that
    /// none of them is written.
    medians, medians_fast, medians_body(a: &[u8], b: &[u8], c: &[u8], kernel: &NineKernel, scratch: &mut [T], out: &mut [u8])
);
