//! What is made of the 3 × 3 samples around each, read where they lie and written where it belongs: the median, and the mean of whole numbers.
//!
//! The median: the samples of each column are sorted; it is then the middle one of the largest of the lowest, the middle one of the middle ones and
//! the smallest of the highest (Kopp and Purgathofer, Efficient 3×3 median filter computations, 1994). A column is sorted three times, once for
//! each window that sees it: in registers that costs less than to store it sorted and to load it back from beside where it was stored. Two rows at
//! a time, whose middle two need sorting only once, are a seventh faster in the caches and a third slower out of memory: two new rows are two
//! streams to fetch.

use std::ops::Range;

use half::f16;
use multiversion::multiversion;

use super::boxsum::{Addend, Quotient};
use super::linear::Level;
use super::order::{Ordered, least, most};
use super::plane::{Codec, Source, Span, Target, load};
use crate::filter::Border;
use crate::filter::math::border_index;
use crate::filter::plan::BoxMean;
use crate::frame::Sample;

/// Values of a block, whose number the compiler knows: four registers of bytes.
const BLOCK: usize = 128;

/// What is made of a window, given by its columns.
pub(super) trait Reduce<T>: Copy {
    fn of(self, columns: [[T; 3]; 3]) -> T;
}

/// The median.
#[derive(Clone, Copy)]
pub(super) struct Middle;

impl<T: Ordered> Reduce<T> for Middle {
    #[inline(always)]
    fn of(self, columns: [[T; 3]; 3]) -> T {
        median(columns)
    }
}

/// The mean, rounded half up.
#[derive(Clone, Copy)]
pub(super) struct Mean(Quotient);

impl Reduce<u16> for Mean {
    #[inline(always)]
    fn of(self, columns: [[u16; 3]; 3]) -> u16 {
        self.0.of_word(sum(columns))
    }
}

impl Reduce<u32> for Mean {
    #[inline(always)]
    fn of(self, columns: [[u32; 3]; 3]) -> u32 {
        self.0.of_code(sum(columns))
    }
}

#[inline(always)]
fn sum<T: Addend>([[a, b, c], [d, e, f], [g, h, i]]: [[T; 3]; 3]) -> T {
    a.plus(b).plus(c).plus(d.plus(e).plus(f)).plus(g.plus(h).plus(i))
}

/// The box mean of 3 × 3 samples that are whole numbers, of one pass.
pub(super) struct NineMean {
    window: NineKernel,
    mean: Mean,
    /// All sums fit 16 bits.
    narrow: bool,
}

impl NineMean {
    /// None for other windows, for floats and without vectors, where running sums are no slower.
    pub fn new(op: &BoxMean, span: Span, codec: Codec, level: Level) -> Option<Self> {
        let fits = (op.radius_x, op.radius_y, op.power) == (1, 1, 1) && level == Level::Simd && !codec.sample.is_float();
        let codec = Codec { centre: 0.0, ..codec };
        let largest = 9 * codec.max as u64;
        let narrow = largest + 4 < 1 << 16;
        fits.then(|| Self {
            window: NineKernel::new(span, codec, level),
            mean: Mean(Quotient::new(largest, 9, codec.max as u64, narrow)),
            narrow,
        })
    }

    pub fn run(&self, source: &Source, target: &Target, rows: Range<usize>) {
        match self.narrow {
            true => self.window.run::<u16, _>(self.mean, source, target, rows, &mut []),
            false => self.window.run::<u32, _>(self.mean, source, target, rows, &mut []),
        }
    }
}

/// A plane whose windows of 3 × 3 samples are reduced.
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

    pub fn run<T: Ordered, R: Reduce<T>>(&self, reduce: R, source: &Source, target: &Target, rows: Range<usize>, scratch: &mut [T]) {
        let (c, bytes) = (self.span.components, self.codec.sample.bytes());
        let line = |y: i64| border_index(y, self.span.height as i64, self.span.border).map_or(&*self.outside, |y| source.row(y as usize));
        for y in rows {
            let (above, row, below) = (line(y as i64 - 1), line(y as i64), line(y as i64 + 1));
            // SAFETY: row `y` belongs to this task's band.
            let out = unsafe { target.row(y) };
            windows(reduce, [above, row, below], self, scratch, out);
            for (x, [left, centre, right]) in [0, self.span.width - 1].into_iter().zip(self.ends) {
                for component in 0..c {
                    let column = |x| self.column::<T>([above, row, below], x, component);
                    let value = reduce.of([column(left), column(centre), column(right)]);
                    let at = (x * c + component) * bytes;
                    put(value, self.codec, &mut out[at..at + bytes]);
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

/// Stores one sample; `out` has its bytes. A row's store knows the sample's own type only.
#[inline(always)]
fn put<T: Ordered>(value: T, codec: Codec, out: &mut [u8]) {
    match codec.sample {
        Sample::U8 => out.copy_from_slice(&[value.code() as u8]),
        Sample::U16 => out.copy_from_slice(&((value.code() as u16) << codec.shift).to_le_bytes()),
        Sample::F16 => out.copy_from_slice(&f16::from_f32(value.float()).to_le_bytes()),
        Sample::F32 => out.copy_from_slice(&value.float().to_le_bytes()),
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

/// `N` results, from `x + step` on, of samples whose neighbours lie `step` values before and behind; `work` turns nine stored samples into one.
#[inline(always)]
fn block<S: Copy, O, const N: usize>([a, b, c]: [&[S]; 3], (step, x): (usize, usize), work: impl Fn([[S; 3]; 3]) -> O, out: &mut [O]) {
    let (a, b, c) = (&a[x..][..2 * step + N], &b[x..][..2 * step + N], &c[x..][..2 * step + N]);
    let (a0, b0, c0) = (&a[..N], &b[..N], &c[..N]);
    let (a1, b1, c1) = (&a[step..][..N], &b[step..][..N], &c[step..][..N]);
    let (a2, b2, c2) = (&a[2 * step..][..N], &b[2 * step..][..N], &c[2 * step..][..N]);
    let out = &mut out[x + step..][..N];
    for i in 0..N {
        out[i] = work([[a0[i], b0[i], c0[i]], [a1[i], b1[i], c1[i]], [a2[i], b2[i], c2[i]]]);
    }
}

/// The results of all values but the first and the last `step`; the last block overlaps the one before.
#[inline(always)]
fn inner<S: Copy, O>(rows: [&[S]; 3], step: usize, work: impl Fn([[S; 3]; 3]) -> O, out: &mut [O]) {
    let Some(n) = out.len().checked_sub(2 * step) else { return };
    if n < BLOCK {
        for x in 0..n {
            block::<S, O, 1>(rows, (step, x), &work, out);
        }
        return;
    }
    for x in (0..n).step_by(BLOCK) {
        block::<S, O, BLOCK>(rows, (step, x.min(n - BLOCK)), &work, out);
    }
}

/// Nine stored samples, each as `read` makes it.
#[inline(always)]
fn of_read<S: Copy, T>([a, b, c]: [[S; 3]; 3], read: impl Fn(S) -> T) -> [[T; 3]; 3] {
    [[read(a[0]), read(a[1]), read(a[2])], [read(b[0]), read(b[1]), read(b[2])], [read(c[0]), read(c[1]), read(c[2])]]
}

#[inline(always)]
fn windows_body<T: Ordered, R: Reduce<T>>(
    reduce: R,
    (a, b, c): (&[u8], &[u8], &[u8]),
    kernel: &NineKernel,
    scratch: &mut [T],
    out: &mut [u8],
) {
    let (step, codec) = (kernel.span.components, kernel.codec);
    match codec.sample {
        Sample::U8 => inner([a, b, c], step, |nine| reduce.of(of_read(nine, |b| T::from_code(u32::from(b)))).code() as u8, out),
        Sample::U16 => {
            let rows = [a.as_chunks().0, b.as_chunks().0, c.as_chunks().0];
            let out = out.as_chunks_mut().0;
            let word = |b| u16::from_le_bytes(b);
            match codec.shift {
                0 => {
                    let work = |nine| (reduce.of(of_read(nine, |b| T::from_code(u32::from(word(b))))).code() as u16).to_le_bytes();
                    inner(rows, step, work, out);
                }
                shift => {
                    let read = |b| T::from_code(u32::from(word(b) >> shift));
                    inner(rows, step, |nine| ((reduce.of(of_read(nine, read)).code() as u16) << shift).to_le_bytes(), out);
                }
            }
        }
        Sample::F32 => {
            let rows = [a.as_chunks().0, b.as_chunks().0, c.as_chunks().0];
            let work = |nine| reduce.of(of_read(nine, |b| T::from_float(f32::from_le_bytes(b)))).float().to_le_bytes();
            inner(rows, step, work, out.as_chunks_mut().0);
        }
        Sample::F16 => {
            let n = kernel.span.values();
            let (inputs, results) = scratch[..4 * n].split_at_mut(3 * n);
            for (row, input) in [a, b, c].into_iter().zip(inputs.chunks_exact_mut(n)) {
                load(row, codec, input);
            }
            inner([&inputs[..n], &inputs[n..2 * n], &inputs[2 * n..]], step, |nine| reduce.of(nine), results);
            T::store(results, codec, out);
        }
    }
}

/// Rows come one by one: in an array the compiler could not know that none of them is written.
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
fn windows_fast<T: Ordered, R: Reduce<T>>(reduce: R, a: &[u8], b: &[u8], c: &[u8], kernel: &NineKernel, scratch: &mut [T], out: &mut [u8]) {
    windows_body(reduce, (a, b, c), kernel, scratch, out);
}

/// Reduces the windows of three stored rows, but for the first and the last.
fn windows<T: Ordered, R: Reduce<T>>(reduce: R, [a, b, c]: [&[u8]; 3], kernel: &NineKernel, scratch: &mut [T], out: &mut [u8]) {
    match kernel.level {
        Level::Plain => windows_body(reduce, (a, b, c), kernel, scratch, out),
        Level::Simd => windows_fast(reduce, a, b, c, kernel, scratch, out),
    }
}
