//! FFmpeg's unsharp mask: the blur is an exact integer sum, so that its rounding is exact at every depth.

use std::ops::{Add, Mul, Range};

use super::linear::{Level, Ring};
use super::plane::{Codec, Source, Span, Target, Value, load, store_codes, store_floats};
use super::simd;
use crate::filter::plan::Unsharp;
use crate::frame::Sample;

/// Weights of one direction at most.
const TAPS: usize = 23;

/// One plane's unsharp mask.
pub(super) struct UnsharpKernel {
    row: Box<[u32]>,
    col: Box<[u32]>,
    amount: i64,
    /// log2 of the sum of all weights.
    bits: u32,
    span: Span,
    codec: Codec,
    level: Level,
}

/// The type that a plane's sums fit: every integer sum is exact, its rounding included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    /// u16: 8-bit samples under 5×5 and smaller, SIMD only.
    Words,
    /// u32.
    Codes,
    /// u64.
    Longs,
    /// f32, for float planes.
    Floats,
}

/// What turns an integer sum into a sample; see [`UnsharpKernel::new`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Sharpen {
    pub bits: u32,
    pub amount: i64,
    pub max: i64,
}

impl Sharpen {
    /// Whether all intermediate values fit `i32`.
    pub fn narrow(&self) -> bool {
        self.max * self.amount.abs() < 1 << 31
    }

    /// `in + ⌊(in − ⌊sum/2^bits + ½⌋) · amount / 65536⌋`, clamped.
    #[inline(always)]
    fn code(&self, sum: u64, input: u64) -> u32 {
        let blur = ((sum + (1 << (self.bits - 1))) >> self.bits) as i64;
        let input = input as i64;
        (input + (((input - blur) * self.amount) >> 16)).clamp(0, self.max) as u32
    }
}

impl UnsharpKernel {
    pub fn new(op: &Unsharp, mut span: Span, mut codec: Codec, level: Level) -> Self {
        codec.centre = 0.0;
        (span.left, span.right) = (op.size_x / 2, op.size_x / 2);
        let bits = (op.size_x + op.size_y - 2) as u32;
        Self { row: binomial(op.size_x), col: binomial(op.size_y), amount: i64::from(op.amount), bits, span, codec, level }
    }

    /// The type of this plane's sums.
    pub fn width(&self) -> Width {
        // Largest sum plus the rounding's half.
        let top = (u128::from(self.codec.max as u32) << self.bits) + (1 << (self.bits - 1));
        match self.codec.sample {
            Sample::F16 | Sample::F32 => Width::Floats,
            Sample::U8 | Sample::U16 if top < 1 << 16 && self.level == Level::Simd => Width::Words,
            Sample::U8 | Sample::U16 if top < 1 << 32 => Width::Codes,
            Sample::U8 | Sample::U16 => Width::Longs,
        }
    }

    /// Values of scratch that a worker needs, of the type that sums have.
    pub fn scratch(&self) -> usize {
        self.span.extended() + self.span.values() * (self.col.len() + 2)
    }

    /// Integer planes; `T` is what [`UnsharpKernel::width`] says.
    pub fn run_codes<T: Sum + Into<u64>>(&self, source: &Source, target: &Target, rows: Range<usize>, scratch: &mut [T]) {
        let sharpen = Sharpen { bits: self.bits, amount: self.amount, max: self.codec.max as i64 };
        self.walk(source, rows, scratch, |y, sums, input| {
            // SAFETY: row `y` belongs to this task's band.
            let out = unsafe { target.row(y) };
            if self.level == Level::Plain || !T::sharpen(&sharpen, sums, input, self.codec, out) {
                let codes = sums.iter().zip(input).map(|(&sum, &input)| sharpen.code(sum.into(), input.into()));
                store_codes(codes, self.codec, out);
            }
        });
    }

    /// Float planes: the same formula without the floors.
    pub fn run_floats(&self, source: &Source, target: &Target, rows: Range<usize>, scratch: &mut [f32]) {
        let (norm, amount) = ((-(self.bits as f32)).exp2(), self.amount as f32 / 65536.0);
        self.walk(source, rows, scratch, |y, sums, input: &[f32]| {
            let values = sums.iter().zip(input).map(|(sum, input)| input + (input - sum * norm) * amount);
            // SAFETY: row `y` belongs to this task's band.
            store_floats(values, self.codec.sample, unsafe { target.row(y) });
        });
    }

    fn walk<T: Sum>(&self, source: &Source, rows: Range<usize>, scratch: &mut [T], mut emit: impl FnMut(usize, &[T], &[T])) {
        let width = self.span.values();
        let (extended, scratch) = scratch.split_at_mut(self.span.extended());
        let (sums, scratch) = scratch.split_at_mut(width);
        let (input, scratch) = scratch.split_at_mut(width);
        let mut ring = Ring::new(scratch, width, self.col.len());
        let (row, col) = (weights::<T>(&self.row), weights::<T>(&self.col));
        let (row, col) = (&row[..self.row.len()], &col[..self.col.len()]);
        let (mut across, mut down) = ([0; TAPS], [0; TAPS]);
        across.iter_mut().enumerate().for_each(|(j, offset)| *offset = j * self.span.components);
        let reach = (col.len() / 2) as i64;
        let load: fn(&[u8], Codec, &mut [T]) = if self.level == Level::Simd { T::load_simd } else { load };
        for position in rows.start as i64 - reach..rows.end as i64 + reach {
            self.span.load_with(source, self.codec, position, extended, load);
            self.correlate(extended, &across, row, ring.row_mut(position));
            let y = position - reach;
            if y < rows.start as i64 {
                continue;
            }
            down.iter_mut().zip(y - reach..).take(col.len()).for_each(|(offset, y)| *offset = ring.start(y));
            self.correlate(ring.memory(), &down, col, sums);
            load(source.row(y as usize), self.codec, input);
            emit(y as usize, sums, input);
        }
    }

    fn correlate<T: Sum>(&self, base: &[T], offsets: &[usize], weights: &[T], out: &mut [T]) {
        match self.level {
            Level::Simd => T::weighted(base, offsets, weights, out),
            Level::Plain => {
                out.fill(T::default());
                for (&offset, &weight) in offsets.iter().zip(weights) {
                    for (sum, &value) in out.iter_mut().zip(&base[offset..]) {
                        *sum = *sum + value * weight;
                    }
                }
            }
        }
    }
}

fn weights<T: Sum>(weights: &[u32]) -> [T; TAPS] {
    let mut out = [T::default(); TAPS];
    out.iter_mut().zip(weights).for_each(|(o, &w)| *o = T::from_code(w));
    out
}

/// A type that sums are made in, with its SIMD functions.
pub(super) trait Sum: Value + Add<Output = Self> + Mul<Output = Self> {
    fn weighted(base: &[Self], offsets: &[usize], weights: &[Self], out: &mut [Self]);
    fn load_simd(bytes: &[u8], codec: Codec, out: &mut [Self]);
    /// Finishes a row; false if there is no fast way for these numbers.
    fn sharpen(sharpen: &Sharpen, sums: &[Self], input: &[Self], codec: Codec, out: &mut [u8]) -> bool;
}

impl Sum for u16 {
    fn weighted(base: &[Self], offsets: &[usize], weights: &[Self], out: &mut [Self]) {
        simd::weighted_words(base, offsets, weights, 0, out);
    }
    fn load_simd(bytes: &[u8], codec: Codec, out: &mut [Self]) {
        simd::load_words(bytes, codec, out);
    }
    fn sharpen(sharpen: &Sharpen, sums: &[Self], input: &[Self], codec: Codec, out: &mut [u8]) -> bool {
        sharpen.narrow() && codec.sample == Sample::U8 && {
            simd::sharpen_words(sharpen, sums, input, out);
            true
        }
    }
}

impl Sum for u32 {
    fn weighted(base: &[Self], offsets: &[usize], weights: &[Self], out: &mut [Self]) {
        simd::weighted_codes(base, offsets, weights, out);
    }
    fn load_simd(bytes: &[u8], codec: Codec, out: &mut [Self]) {
        simd::load_codes(bytes, codec, out);
    }
    fn sharpen(sharpen: &Sharpen, sums: &[Self], input: &[Self], codec: Codec, out: &mut [u8]) -> bool {
        sharpen.narrow() && {
            simd::sharpen_codes(sharpen, sums, input, codec, out);
            true
        }
    }
}

impl Sum for u64 {
    fn weighted(base: &[Self], offsets: &[usize], weights: &[Self], out: &mut [Self]) {
        simd::weighted_longs(base, offsets, weights, out);
    }
    fn load_simd(bytes: &[u8], codec: Codec, out: &mut [Self]) {
        load(bytes, codec, out);
    }
    fn sharpen(_: &Sharpen, _: &[Self], _: &[Self], _: Codec, _: &mut [u8]) -> bool {
        false
    }
}

impl Sum for f32 {
    fn weighted(base: &[Self], offsets: &[usize], weights: &[Self], out: &mut [Self]) {
        simd::weighted_floats(base, offsets, weights, out);
    }
    fn load_simd(bytes: &[u8], codec: Codec, out: &mut [Self]) {
        simd::load_floats(bytes, codec, out);
    }
    fn sharpen(_: &Sharpen, _: &[Self], _: &[Self], _: Codec, _: &mut [u8]) -> bool {
        false
    }
}

/// C(size − 1, i) for i below `size`; at most C(22, 11) = 705432.
fn binomial(size: usize) -> Box<[u32]> {
    let mut weights = vec![0; size];
    for n in 0..size {
        weights[n] = 1;
        for i in (1..n).rev() {
            weights[i] += weights[i - 1];
        }
    }
    weights.into()
}

#[cfg(test)]
mod tests {
    #[test]
    fn binomial_weights_are_pascals_rows() {
        assert_eq!(*super::binomial(3), [1, 2, 1]);
        assert_eq!(*super::binomial(5), [1, 4, 6, 4, 1]);
        assert_eq!(super::binomial(23).iter().sum::<u32>(), 1 << 22);
    }
}
