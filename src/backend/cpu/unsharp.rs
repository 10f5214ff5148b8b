//! FFmpeg's unsharp mask: the blur is an exact integer sum, so that its rounding is exact at every depth.

use std::ops::{Add, Mul, Range};

use super::linear::Ring;
use super::plane::{Codec, Source, Span, Target, Value, load, store_codes, store_floats};
use crate::filter::plan::Unsharp;
use crate::frame::Sample;

/// One plane's unsharp mask.
pub(super) struct UnsharpKernel {
    row: Box<[u32]>,
    col: Box<[u32]>,
    amount: i64,
    /// log2 of the sum of all weights.
    bits: u32,
    span: Span,
    codec: Codec,
}

impl UnsharpKernel {
    pub fn new(op: &Unsharp, mut span: Span, mut codec: Codec) -> Self {
        codec.centre = 0.0;
        (span.left, span.right) = (op.size_x / 2, op.size_x / 2);
        let bits = (op.size_x + op.size_y - 2) as u32;
        Self { row: binomial(op.size_x), col: binomial(op.size_y), amount: i64::from(op.amount), bits, span, codec }
    }

    /// Whether sums of this plane need 64 bits.
    pub fn wide(&self) -> bool {
        self.codec.sample != Sample::F32 && self.codec.max as u64 >> (32 - self.bits.min(32)) != 0
    }

    /// Values of scratch that a worker needs, of the type that sums have.
    pub fn scratch(&self) -> usize {
        self.span.extended() + self.span.values() * (self.col.len() + 2)
    }

    /// Integer planes; `T` is u32, or u64 when [`UnsharpKernel::wide`].
    pub fn run_codes<T>(&self, source: &Source, target: &Target, rows: Range<usize>, scratch: &mut [T])
    where
        T: Value + Add<Output = T> + Mul<Output = T> + Into<u64>,
    {
        let half = 1u64 << (self.bits - 1);
        self.walk(source, rows, scratch, T::from_code, |y, sums, input: &[T]| {
            let codes = sums.iter().zip(input).map(|(&sum, &input)| {
                let blur = ((sum.into() + half) >> self.bits) as i64;
                let input = input.into() as i64;
                (input + ((input - blur) * self.amount >> 16)).clamp(0, self.codec.max as i64) as u32
            });
            // SAFETY: row `y` belongs to this task's band.
            store_codes(codes, self.codec, unsafe { target.row(y) });
        });
    }

    /// Float planes: the same formula without the floors.
    pub fn run_floats(&self, source: &Source, target: &Target, rows: Range<usize>, scratch: &mut [f32]) {
        let (norm, amount) = ((-(self.bits as f32)).exp2(), self.amount as f32 / 65536.0);
        self.walk(
            source,
            rows,
            scratch,
            |code| code as f32,
            |y, sums, input: &[f32]| {
                let values = sums.iter().zip(input).map(|(sum, input)| input + (input - sum * norm) * amount);
                // SAFETY: row `y` belongs to this task's band.
                store_floats(values, unsafe { target.row(y) });
            },
        );
    }

    fn walk<T>(
        &self,
        source: &Source,
        rows: Range<usize>,
        scratch: &mut [T],
        weight: impl Fn(u32) -> T,
        mut emit: impl FnMut(usize, &[T], &[T]),
    ) where
        T: Value + Add<Output = T> + Mul<Output = T>,
    {
        let width = self.span.values();
        let (extended, scratch) = scratch.split_at_mut(self.span.extended());
        let (sums, scratch) = scratch.split_at_mut(width);
        let (input, scratch) = scratch.split_at_mut(width);
        let mut ring = Ring::new(scratch, width, self.col.len());
        let reach = (self.col.len() / 2) as i64;
        for position in rows.start as i64 - reach..rows.end as i64 + reach {
            self.span.load(source, self.codec, position, extended);
            correlate(
                ring.row_mut(position),
                self.row.iter().enumerate().map(|(j, &w)| (&extended[j * self.span.components..], weight(w))),
            );
            let y = position - reach;
            if y < rows.start as i64 {
                continue;
            }
            correlate(sums, self.col.iter().enumerate().map(|(k, &w)| (ring.row(y - reach + k as i64), weight(w))));
            load(source.row(y as usize), self.codec, input);
            emit(y as usize, sums, input);
        }
    }
}

fn correlate<'a, T>(out: &mut [T], terms: impl Iterator<Item = (&'a [T], T)>)
where
    T: Value + Add<Output = T> + Mul<Output = T>,
{
    out.fill(T::default());
    for (row, weight) in terms {
        for (sum, &value) in out.iter_mut().zip(row) {
            *sum = *sum + value * weight;
        }
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
