//! The strongest of eight compass kernels; the window is read once for all of them.

use std::ops::Range;

use multiversion::multiversion;

use super::extremum::loader;
use super::linear::{Level, Ring};
use super::order::{Ordered, most};
use super::plane::{Codec, Finish, Source, Span, Target};
use super::simd;
use crate::filter::plan::{COMPASS_RING, Compass};

/// Values of a block: 16-bit sums of eight neighbours then fit the registers.
const BLOCK: usize = 16;

/// One plane's compass filter.
pub(super) struct CompassKernel {
    span: Span,
    codec: Codec,
    finish: Finish,
    level: Level,
}

impl CompassKernel {
    pub fn new(op: &Compass, mut span: Span, mut codec: Codec, level: Level) -> Self {
        codec.centre = 0.0;
        (span.left, span.right) = (1, 1);
        Self { span, codec, finish: Finish::new(codec, 0.0, op.scale, op.delta), level }
    }

    /// Whether the strongest sum, at most 15 times the largest sample, fits 16 bits. Else `f32` holds every sum exactly.
    pub fn narrow(&self) -> bool {
        !self.codec.sample.is_float() && self.codec.max * 15.0 <= 65535.0
    }

    /// Values of scratch that a worker needs.
    pub fn scratch(&self) -> usize {
        self.span.values() + 3 * self.span.extended()
    }

    /// Planes that are [`CompassKernel::narrow`].
    pub fn run_words(&self, source: &Source, target: &Target, rows: Range<usize>, scratch: &mut [u16]) {
        self.walk(source, rows, scratch, |y, sums| {
            // SAFETY: row `y` belongs to this task's band.
            let out = unsafe { target.row(y) };
            match self.level {
                Level::Plain => simd::finish_words_plain(&self.finish, sums, 0, self.codec, out),
                Level::Simd => simd::finish_words(&self.finish, sums, 0, self.codec, out),
            }
        });
    }

    /// All other planes.
    pub fn run_floats(&self, source: &Source, target: &Target, rows: Range<usize>, scratch: &mut [f32]) {
        self.walk(source, rows, scratch, |y, sums| {
            // SAFETY: row `y` belongs to this task's band.
            let out = unsafe { target.row(y) };
            match self.level {
                Level::Plain => self.finish.store(sums, self.codec, out),
                Level::Simd => simd::finish_floats(&self.finish, sums, self.codec, out),
            }
        });
    }

    fn walk<T: Summed>(&self, source: &Source, rows: Range<usize>, scratch: &mut [T], mut emit: impl FnMut(usize, &[T])) {
        let (sums, ring) = scratch.split_at_mut(self.span.values());
        let mut ring = Ring::new(ring, self.span.extended(), 3);
        for position in rows.start as i64 - 1..rows.end as i64 + 1 {
            self.span.load_with(source, self.codec, position, ring.row_mut(position), loader(self.level));
            let y = position - 1;
            if y < rows.start as i64 {
                continue;
            }
            let offsets = COMPASS_RING.map(|i| ring.start(y - 1 + (i / 3) as i64) + i % 3 * self.span.components);
            match self.level {
                Level::Plain => compass_body(ring.memory(), &offsets, sums),
                Level::Simd => compass_fast(ring.memory(), &offsets, sums),
            }
            emit(y as usize, sums);
        }
    }
}

/// A type that the sums are exact in.
trait Summed: Ordered {
    fn plus(self, other: Self) -> Self;
    /// |8 · `strongest` − 3 · `total`|.
    fn margin(strongest: Self, total: Self) -> Self;
}

impl Summed for u16 {
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        self.wrapping_add(other)
    }
    /// Modulo 2^16, which is exact because the result is within 0 to 65535.
    #[inline(always)]
    fn margin(strongest: Self, total: Self) -> Self {
        (strongest << 3).wrapping_sub(total.wrapping_mul(3))
    }
}

impl Summed for f32 {
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        self + other
    }
    #[inline(always)]
    fn margin(strongest: Self, total: Self) -> Self {
        (8.0 * strongest - 3.0 * total).abs()
    }
}

#[inline(always)]
fn compass_block<T: Summed, const N: usize>(base: &[T], offsets: &[usize; 8], out: &mut [T], x: usize) {
    let mut ring = [[T::default(); N]; 8];
    for (values, offset) in ring.iter_mut().zip(offsets) {
        let Some(row) = base[offset + x..].first_chunk::<N>() else { return };
        *values = *row;
    }
    // One loop per operation, so that each becomes operations on whole registers.
    let mut pairs = [[T::default(); N]; 8];
    for k in 0..8 {
        for i in 0..N {
            pairs[k][i] = ring[k][i].plus(ring[(k + 1) % 8][i]);
        }
    }
    let (mut strongest, mut total) = ([T::default(); N], [T::default(); N]);
    for i in 0..N {
        strongest[i] = pairs[0][i].plus(ring[2][i]);
    }
    for k in 1..8 {
        for i in 0..N {
            strongest[i] = most(strongest[i], pairs[k][i].plus(ring[(k + 2) % 8][i]));
        }
    }
    for i in 0..N {
        total[i] = pairs[0][i].plus(pairs[2][i]).plus(pairs[4][i].plus(pairs[6][i]));
    }
    let mut sums = [T::default(); N];
    for i in 0..N {
        sums[i] = T::margin(strongest[i], total[i]);
    }
    out[x..x + N].copy_from_slice(&sums);
}

#[inline(always)]
fn compass_body<T: Summed>(base: &[T], offsets: &[usize; 8], out: &mut [T]) {
    let (width, mut x) = (out.len(), 0);
    while x + BLOCK <= width {
        compass_block::<T, BLOCK>(base, offsets, out, x);
        x += BLOCK;
    }
    if x < width && width >= BLOCK {
        compass_block::<T, BLOCK>(base, offsets, out, width - BLOCK);
    } else {
        (x..width).for_each(|x| compass_block::<T, 1>(base, offsets, out, x));
    }
}

#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
fn compass_fast<T: Summed>(base: &[T], offsets: &[usize; 8], out: &mut [T]) {
    compass_body(base, offsets, out);
}
