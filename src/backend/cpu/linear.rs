//! Kernels that walk down a band of rows with a ring of the rows that the window covers: separable, direct, gradient.

use std::ops::Range;

use super::plane::{Codec, Finish, Source, Span, Target, Value, load};
use super::simd;
use crate::filter::plan::{Direct, Gradient, Separable};
use crate::frame::Sample;

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

    /// All rows; see [`Ring::start`].
    pub fn memory(&self) -> &[T] {
        self.rows
    }

    /// Where the row at position `y` starts in [`Ring::memory`].
    pub fn start(&self, y: i64) -> usize {
        y.rem_euclid(self.count) as usize * self.width
    }

    /// The row at position `y`, for writing.
    pub fn row_mut(&mut self, y: i64) -> &mut [T] {
        let start = self.start(y);
        &mut self.rows[start..start + self.width]
    }
}

/// How the inner loops run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Level {
    /// Plain loops for the compiler's baseline.
    Plain,
    /// The functions of [`simd`].
    Simd,
}

impl Level {
    pub fn load(self) -> fn(&[u8], Codec, &mut [f32]) {
        match self {
            Self::Plain => load,
            Self::Simd => simd::load_floats,
        }
    }

    /// `out[x] = Σ weights[i] · base[offsets[i] + x]`.
    pub fn weighted(self, base: &[f32], offsets: &[usize], weights: &[f32], out: &mut [f32]) {
        match self {
            Self::Plain => {
                out.fill(0.0);
                for (&offset, &weight) in offsets.iter().zip(weights) {
                    for (sum, &value) in out.iter_mut().zip(&base[offset..]) {
                        *sum += value * weight;
                    }
                }
            }
            Self::Simd => simd::weighted_floats(base, offsets, weights, out),
        }
    }

    pub fn finish(self, finish: &Finish, sums: &[f32], codec: Codec, out: &mut [u8]) {
        match self {
            Self::Plain => finish.store(sums, codec, out),
            Self::Simd => simd::finish_floats(finish, sums, codec, out),
        }
    }
}

/// Memory of one worker for the kernels here.
#[derive(Default)]
pub(super) struct Memory {
    pub floats: Vec<f32>,
    pub words: Vec<u16>,
    /// One offset per tap.
    pub offsets: Vec<usize>,
}

/// What a kernel needs of [`Memory`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Need {
    pub floats: usize,
    pub words: usize,
    pub offsets: usize,
}

/// A separable kernel for one plane.
pub(super) struct SeparableKernel {
    row: Box<[f32]>,
    row_offsets: Box<[usize]>,
    col: Box<[f32]>,
    span: Span,
    codec: Codec,
    finish: Finish,
    level: Level,
}

impl SeparableKernel {
    pub fn new(op: &Separable, mut span: Span, codec: Codec, level: Level) -> Self {
        (span.left, span.right) = reach(op.row.len());
        let sum = |taps: &[f32]| taps.iter().map(|&t| f64::from(t)).sum::<f64>();
        let finish = Finish::new(codec, sum(&op.row) * sum(&op.col), op.scale, op.bias);
        let row_offsets = (0..op.row.len()).map(|j| j * span.components).collect();
        Self { row: op.row.as_ref().into(), row_offsets, col: op.col.as_ref().into(), span, codec, finish, level }
    }

    pub fn need(&self) -> Need {
        let floats = self.span.extended() + self.span.values() * (self.col.len() + 1);
        Need { floats, offsets: self.col.len(), ..Need::default() }
    }

    pub fn run(&self, source: &Source, target: &Target, rows: Range<usize>, memory: &mut Memory) {
        let width = self.span.values();
        let (extended, rest) = memory.floats.split_at_mut(self.span.extended());
        let (sums, rest) = rest.split_at_mut(width);
        let mut ring = Ring::new(rest, width, self.col.len());
        let offsets = &mut memory.offsets[..self.col.len()];
        let (above, below) = reach(self.col.len());
        let first = rows.start as i64 - above as i64;
        for position in first..rows.end as i64 + below as i64 {
            self.span.load_with(source, self.codec, position, extended, self.level.load());
            self.level.weighted(extended, &self.row_offsets, &self.row, ring.row_mut(position));
            let y = position - below as i64;
            if y < rows.start as i64 {
                continue;
            }
            for (k, offset) in offsets.iter_mut().enumerate() {
                *offset = ring.start(y - above as i64 + k as i64);
            }
            self.level.weighted(ring.rows, offsets, &self.col, sums);
            // SAFETY: row `y` belongs to this task's band.
            self.level.finish(&self.finish, sums, self.codec, unsafe { target.row(y as usize) });
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
    level: Level,
    words: Option<Words>,
}

/// Small integer weights on integer samples: every sum fits 16 bits, twice as many to a register as floats.
struct Words {
    /// The weights modulo 2^16.
    taps: Box<[u16]>,
    /// Added to every sum to make it positive.
    start: u16,
}

impl Words {
    fn new(op: &Direct, codec: Codec) -> Option<Self> {
        let small = |t: &f32| t.fract() == 0.0 && t.abs() <= 32767.0;
        if codec.sample == Sample::F32 || !op.taps.iter().all(small) {
            return None;
        }
        let sum = |sign: f32| op.taps.iter().map(|t| f64::from((t * sign).max(0.0))).sum::<f64>() * f64::from(codec.max);
        let (above, below) = (sum(1.0), sum(-1.0));
        let taps = op.taps.iter().map(|&t| t as i32 as u16).collect();
        (above + below <= 65535.0).then_some(Self { taps, start: below as u16 })
    }
}

impl DirectKernel {
    pub fn new(op: &Direct, mut span: Span, mut codec: Codec, level: Level) -> Self {
        (span.left, span.right) = reach(op.width);
        let words = if level == Level::Simd { Words::new(op, codec) } else { None };
        if words.is_some() {
            codec.centre = 0.0;
        }
        let finish = Finish::new(codec, op.taps.iter().map(|&t| f64::from(t)).sum(), op.scale, op.bias);
        Self { taps: op.taps.as_ref().into(), width: op.width, height: op.height, span, codec, finish, level, words }
    }

    pub fn need(&self) -> Need {
        let values = self.span.values() + self.span.extended() * self.height;
        let (floats, words) = if self.words.is_some() { (0, values) } else { (values, 0) };
        Need { floats, words, offsets: self.taps.len() }
    }

    pub fn run(&self, source: &Source, target: &Target, rows: Range<usize>, memory: &mut Memory) {
        let offsets = &mut memory.offsets[..self.taps.len()];
        match &self.words {
            Some(words) => self.walk(source, rows, &mut memory.words, simd::load_words, |y, ring, sums| {
                self.offsets(ring, y, offsets);
                simd::weighted_words(ring.rows, offsets, &words.taps, words.start, sums);
                // SAFETY: row `y` belongs to this task's band.
                let out = unsafe { target.row(y) };
                simd::finish_words(&self.finish, sums, i32::from(words.start), self.codec, out);
            }),
            None => self.walk(source, rows, &mut memory.floats, self.level.load(), |y, ring, sums| {
                self.offsets(ring, y, offsets);
                self.level.weighted(ring.rows, offsets, &self.taps, sums);
                // SAFETY: row `y` belongs to this task's band.
                self.level.finish(&self.finish, sums, self.codec, unsafe { target.row(y) });
            }),
        }
    }

    /// Where each tap's values for output row `y` start in the ring.
    fn offsets<T>(&self, ring: &Ring<'_, T>, y: usize, offsets: &mut [usize]) {
        let first = y as i64 - reach(self.height).0 as i64;
        for (k, offsets) in offsets.chunks_exact_mut(self.width).enumerate() {
            let start = ring.start(first + k as i64);
            for (j, offset) in offsets.iter_mut().enumerate() {
                *offset = start + j * self.span.components;
            }
        }
    }

    fn walk<T: Value>(
        &self,
        source: &Source,
        rows: Range<usize>,
        memory: &mut [T],
        load: fn(&[u8], Codec, &mut [T]),
        mut emit: impl FnMut(usize, &Ring<'_, T>, &mut [T]),
    ) {
        let (sums, rest) = memory.split_at_mut(self.span.values());
        let mut ring = Ring::new(rest, self.span.extended(), self.height);
        let (above, below) = reach(self.height);
        for position in rows.start as i64 - above as i64..rows.end as i64 + below as i64 {
            self.span.load_with(source, self.codec, position, ring.row_mut(position), load);
            let y = position - below as i64;
            if y >= rows.start as i64 {
                emit(y as usize, &ring, sums);
            }
        }
    }
}

/// Two 3×3 gradients for one plane.
pub(super) struct GradientKernel {
    op: Gradient,
    span: Span,
    codec: Codec,
    finish: Finish,
    level: Level,
}

impl GradientKernel {
    pub fn new(op: &Gradient, mut span: Span, mut codec: Codec, level: Level) -> Self {
        (span.left, span.right) = (1, 1);
        // The root is not linear: nothing to centre.
        codec.centre = 0.0;
        Self { op: *op, span, codec, finish: Finish::new(codec, 0.0, op.scale, op.delta), level }
    }

    pub fn need(&self) -> Need {
        Need { floats: 2 * self.span.values() + self.span.extended() * 3, ..Need::default() }
    }

    pub fn run(&self, source: &Source, target: &Target, rows: Range<usize>, memory: &mut Memory) {
        let (gx, rest) = memory.floats.split_at_mut(self.span.values());
        let (gy, rest) = rest.split_at_mut(self.span.values());
        let mut ring = Ring::new(rest, self.span.extended(), 3);
        for position in rows.start as i64 - 1..rows.end as i64 + 1 {
            self.span.load_with(source, self.codec, position, ring.row_mut(position), self.level.load());
            let y = position - 1;
            if y < rows.start as i64 {
                continue;
            }
            for (weights, sums) in [(&self.op.x, &mut *gx), (&self.op.y, &mut *gy)] {
                let (mut offsets, mut taps, mut count) = ([0; 9], [0.0; 9], 0);
                for (k, &weight) in weights.iter().enumerate().filter(|(_, w)| **w != 0.0) {
                    offsets[count] = ring.start(y - 1 + (k / 3) as i64) + k % 3 * self.span.components;
                    taps[count] = weight;
                    count += 1;
                }
                self.level.weighted(ring.rows, &offsets[..count], &taps[..count], sums);
            }
            match self.level {
                Level::Plain => gx.iter_mut().zip(gy.iter()).for_each(|(x, y)| *x = (*x * *x + y * y).sqrt()),
                Level::Simd => simd::magnitudes(gx, gy),
            }
            // SAFETY: row `y` belongs to this task's band.
            self.level.finish(&self.finish, gx, self.codec, unsafe { target.row(y as usize) });
        }
    }
}

/// Positions before and after the anchor ⌊taps/2⌋.
pub(super) fn reach(taps: usize) -> (usize, usize) {
    (taps / 2, taps.saturating_sub(taps / 2 + 1))
}
