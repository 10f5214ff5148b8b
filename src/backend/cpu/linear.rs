//! Kernels that walk down a band of rows with a ring of the rows that the window covers: separable, direct, gradient.

use std::ops::Range;

use super::plane::{Codec, Finish, Source, Span, Target, Value, load};
use super::simd::{self, Pair};
use crate::filter::math::border_index;
use crate::filter::plan::{Direct, Gradient, Separable};
use crate::frame::Sample;

/// Rows of a band, addressed by their virtual position (rows outside the plane included).
pub(super) struct Ring<'a, T> {
    rows: &'a mut [T],
    width: usize,
    /// Values from one row to the next.
    stride: usize,
    count: i64,
}

impl<'a, T> Ring<'a, T> {
    /// A ring of `count` rows of `width` values in `memory`.
    pub fn new(memory: &'a mut [T], width: usize, count: usize) -> Self {
        Self { rows: &mut memory[..width * count], width, stride: width, count: count as i64 }
    }

    /// As [`Ring::new`], rows [`padded`] apart.
    pub fn padded(memory: &'a mut [T], width: usize, count: usize) -> Self {
        let stride = padded(width);
        Self { rows: &mut memory[..stride * count], width, stride, count: count as i64 }
    }

    /// All rows; see [`Ring::start`].
    pub fn memory(&self) -> &[T] {
        self.rows
    }

    /// Where the row at position `y` starts in [`Ring::memory`].
    pub fn start(&self, y: i64) -> usize {
        y.rem_euclid(self.count) as usize * self.stride
    }

    /// The row at position `y`, for writing.
    pub fn row_mut(&mut self, y: i64) -> &mut [T] {
        let start = self.start(y);
        &mut self.rows[start..start + self.width]
    }
}

/// Values that start the next row at a multiple of 64 bytes too, whatever the type.
fn padded(width: usize) -> usize {
    width.next_multiple_of(LINE)
}

/// `memory` from the first multiple of 64 bytes on: a register that spans two cache lines costs two loads. Give it [`LINE`]
/// values more than are used.
fn aligned<T>(memory: &mut [T]) -> &mut [T] {
    let skip = memory.as_ptr().align_offset(64).min(LINE).min(memory.len());
    &mut memory[skip..]
}

/// Values that fill at least one cache line.
const LINE: usize = 32;

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

    /// Two rows of [`Level::weighted`], the second one from `pair.step` offsets further on.
    fn pair(self, pair: Pair<'_>, base: &[f32], offsets: &[usize], out: &mut [f32], below: &mut [f32]) {
        match self {
            Self::Plain => {
                self.weighted(base, offsets, pair.weights, out);
                self.weighted(base, &offsets[pair.step..], pair.weights, below);
            }
            Self::Simd => simd::weighted_pair(pair, base, offsets, out, below),
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
        let rows = self.col.len() + 3;
        let floats = LINE + padded(self.span.values()) * rows + self.span.extended();
        Need { floats, offsets: self.col.len() + 1, ..Need::default() }
    }

    pub fn run(&self, source: &Source, target: &Target, rows: Range<usize>, memory: &mut Memory) {
        let (width, taps) = (self.span.values(), self.col.len());
        let (sums, rest) = aligned(&mut memory.floats).split_at_mut(2 * padded(width));
        let (upper, lower) = sums.split_at_mut(padded(width));
        let (upper, lower) = (&mut upper[..width], &mut lower[..width]);
        let (ring, rest) = rest.split_at_mut(padded(width) * (taps + 1));
        let mut ring = Ring::padded(ring, width, taps + 1);
        let extended = &mut rest[..self.span.extended()];
        let offsets = &mut memory.offsets[..taps + 1];
        let (above, below) = reach(taps);
        let mut next = rows.start as i64 - above as i64;
        let mut load = |ring: &mut Ring<'_, f32>, last: i64| {
            for position in next..=last {
                self.span.load_with(source, self.codec, position, extended, self.level.load());
                self.level.weighted(extended, &self.row_offsets, &self.row, ring.row_mut(position));
            }
            next = last + 1;
        };
        for y in rows.clone().step_by(2) {
            let both = y + 1 < rows.end;
            load(&mut ring, (y + usize::from(both) + below) as i64);
            for (k, offset) in offsets.iter_mut().enumerate() {
                *offset = ring.start(y as i64 - above as i64 + k as i64);
            }
            if both {
                let pair = Pair { weights: &self.col, step: 1 };
                self.level.pair(pair, ring.rows, offsets, upper, lower);
                // SAFETY: row `y + 1` belongs to this task's band.
                self.level.finish(&self.finish, lower, self.codec, unsafe { target.row(y + 1) });
            } else {
                self.level.weighted(ring.rows, offsets, &self.col, upper);
            }
            // SAFETY: row `y` belongs to this task's band.
            self.level.finish(&self.finish, upper, self.codec, unsafe { target.row(y) });
        }
    }
}

/// Rows under two output rows that are read where they are.
const LINES: usize = 16;
/// Taps of their rows at most.
const WIDEST: usize = 128;

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
        if codec.sample.is_float() || !op.taps.iter().all(small) {
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
        let values = LINE + 2 * padded(self.span.values()) + padded(self.span.extended()) * (self.height + 1);
        let (floats, words) = if self.words.is_some() { (0, values) } else { (values, 0) };
        Need { floats, words, offsets: self.taps.len() + self.width }
    }

    pub fn run(&self, source: &Source, target: &Target, rows: Range<usize>, memory: &mut Memory) {
        let offsets = &mut memory.offsets[..self.taps.len() + self.width];
        match &self.words {
            Some(words) => self.walk(source, rows, &mut memory.words, simd::load_words, 1, |y, _, ring, sums, _| {
                self.offsets(ring, y, offsets);
                simd::weighted_words(ring.rows, offsets, &words.taps, words.start, sums);
                // SAFETY: row `y` belongs to this task's band.
                let out = unsafe { target.row(y) };
                simd::finish_words(&self.finish, sums, i32::from(words.start), self.codec, out);
            }),
            None => {
                let inner = self.run_stored(source, target, rows.clone());
                for rows in [rows.start..inner.start, inner.end..rows.end] {
                    self.run_floats(source, target, rows, &mut memory.floats, offsets);
                }
            }
        }
    }

    /// Pairs of rows whose windows lie within a float plane, read where they are. Returns the rows that are done.
    fn run_stored(&self, source: &Source, target: &Target, rows: Range<usize>) -> Range<usize> {
        let ((left, right), (above, below)) = (reach(self.width), reach(self.height));
        let (from, to) = (rows.start.max(above), rows.end.min(self.span.height.saturating_sub(below)));
        let none = rows.start..rows.start;
        let fits = self.height < LINES && self.width <= WIDEST && self.span.width >= self.width + 8 && self.span.components == 1;
        if self.codec.sample != Sample::F32 || self.level == Level::Plain || !fits || to < from + 2 {
            return none;
        }
        let to = to - (to - from) % 2;
        let inner = left..self.span.width - right;
        for y in (from..to).step_by(2) {
            let mut lines: [&[[u8; 4]]; LINES] = [&[]; LINES];
            let lines = &mut lines[..=self.height];
            for (k, line) in lines.iter_mut().enumerate() {
                *line = source.row(y - above + k).as_chunks().0;
            }
            // SAFETY: rows `y` and `y + 1` belong to this task's band.
            let (upper, lower) = unsafe { (target.row(y), target.row(y + 1)) };
            let (upper, lower) = (upper.as_chunks_mut().0, lower.as_chunks_mut().0);
            let pair = Pair { weights: &self.taps, step: self.width };
            simd::stored_floats(pair, &self.finish, lines, [&mut upper[inner.clone()], &mut lower[inner.clone()]]);
            for x in (0..left).chain(inner.end..self.span.width) {
                upper[x] = self.at_side(lines, x);
                lower[x] = self.at_side(&lines[1..], x);
            }
        }
        from..to
    }

    /// The sample at `x` whose window reaches over a side.
    fn at_side(&self, lines: &[&[[u8; 4]]], x: usize) -> [u8; 4] {
        let (mut sum, mut values) = (0.0, [0.0; WIDEST]);
        for (line, taps) in lines.iter().zip(self.taps.chunks_exact(self.width)) {
            let values = &mut values[..self.width];
            for (j, value) in values.iter_mut().enumerate() {
                let at = (x + j) as i64 - self.span.left as i64;
                let place = border_index(at, self.span.width as i64, self.span.border);
                *value = place.map_or(0.0, |at| f32::from_le_bytes(line[at as usize]));
            }
            // As the sums of all other rows and columns, to the last bit: which rows come here depends on the band.
            sum = simd::add_products(sum, values, taps);
        }
        self.finish.value(sum).to_le_bytes()
    }

    fn run_floats(&self, source: &Source, target: &Target, rows: Range<usize>, memory: &mut [f32], offsets: &mut [usize]) {
        self.walk(source, rows, memory, self.level.load(), 2, |y, both, ring, upper, lower| {
            self.offsets(ring, y, offsets);
            if both {
                let pair = Pair { weights: &self.taps, step: self.width };
                self.level.pair(pair, ring.rows, offsets, upper, lower);
                // SAFETY: row `y + 1` belongs to this task's band.
                self.level.finish(&self.finish, lower, self.codec, unsafe { target.row(y + 1) });
            } else {
                self.level.weighted(ring.rows, offsets, &self.taps, upper);
            }
            // SAFETY: row `y` belongs to this task's band.
            self.level.finish(&self.finish, upper, self.codec, unsafe { target.row(y) });
        });
    }

    /// Where each tap's values for output rows `y` and `y + 1` start in the ring.
    fn offsets<T>(&self, ring: &Ring<'_, T>, y: usize, offsets: &mut [usize]) {
        let first = y as i64 - reach(self.height).0 as i64;
        for (k, offsets) in offsets.chunks_exact_mut(self.width).enumerate() {
            let start = ring.start(first + k as i64);
            for (j, offset) in offsets.iter_mut().enumerate() {
                *offset = start + j * self.span.components;
            }
        }
    }

    /// Calls `emit` for every `together`th row, 1 or 2 at a time, with whether there are two, and memory for the sums of both.
    fn walk<T: Value>(
        &self,
        source: &Source,
        rows: Range<usize>,
        memory: &mut [T],
        load: fn(&[u8], Codec, &mut [T]),
        together: usize,
        mut emit: impl FnMut(usize, bool, &Ring<'_, T>, &mut [T], &mut [T]),
    ) {
        let width = self.span.values();
        let (sums, rest) = aligned(memory).split_at_mut(2 * padded(width));
        let (upper, lower) = sums.split_at_mut(padded(width));
        let mut ring = Ring::padded(rest, self.span.extended(), self.height + 1);
        let (above, below) = reach(self.height);
        let mut next = rows.start as i64 - above as i64;
        for y in rows.clone().step_by(together) {
            let both = together == 2 && y + 1 < rows.end;
            let last = (y + usize::from(both) + below) as i64;
            for position in next..=last {
                self.span.load_with(source, self.codec, position, ring.row_mut(position), load);
            }
            next = last + 1;
            emit(y, both, &ring, &mut upper[..width], &mut lower[..width]);
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
