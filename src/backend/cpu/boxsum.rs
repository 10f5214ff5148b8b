//! Sums over windows at a cost that hardly grows with their size, without drift, and the box mean of integer planes that fits
//! them: columns by running sums of exact integers, rows by doubling, one division at the end.

use std::ops::Range;

use multiversion::multiversion;

use super::boxmean::Division;
use super::linear::{Level, Ring};
use super::plane::{Codec, Source, Span, Target, Value, load};
use crate::filter::Border;
use crate::filter::math::border_index;
use crate::filter::plan::BoxMean;
use crate::frame::Sample;

/// A type that sums are made in; integers wrap, and fit by what [`ExactBox::new`] or `NineMean::new` has checked.
pub(super) trait Addend: Value {
    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
}

impl Addend for u16 {
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        self.wrapping_add(other)
    }
    #[inline(always)]
    fn minus(self, other: Self) -> Self {
        self.wrapping_sub(other)
    }
}

impl Addend for u32 {
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        self.wrapping_add(other)
    }
    #[inline(always)]
    fn minus(self, other: Self) -> Self {
        self.wrapping_sub(other)
    }
}

impl Addend for f32 {
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        self + other
    }
    #[inline(always)]
    fn minus(self, other: Self) -> Self {
        self - other
    }
}

#[inline(always)]
fn window_body<T: Addend>(size: usize, step: usize, values: &mut [T], spare: &mut [T], out: &mut [T]) {
    let (mut now, mut next) = (values, spare);
    let (mut reach, mut done, mut length) = (1, 0, now.len());
    loop {
        if size & reach != 0 {
            let from = &now[done * step..];
            if done == 0 {
                for (o, &value) in out.iter_mut().zip(from) {
                    *o = value;
                }
            } else {
                for (o, &value) in out.iter_mut().zip(from) {
                    *o = o.plus(value);
                }
            }
            done += reach;
        }
        if 2 * reach > size {
            return;
        }
        length -= reach * step;
        for ((sum, &a), &b) in next[..length].iter_mut().zip(&*now).zip(&now[reach * step..]) {
            *sum = a.plus(b);
        }
        std::mem::swap(&mut now, &mut next);
        reach *= 2;
    }
}

#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
fn window_fast<T: Addend>(size: usize, step: usize, values: &mut [T], spare: &mut [T], out: &mut [T]) {
    window_body(size, step, values, spare, out);
}

/// `out[i] = Σ values[i + j · step]`, j below `size`, by sums of 1, 2, 4, … values: about 2 log2 `size` additions a value, each the
/// sum of a tree, so that floats lose less than in a running sum. `values` is overwritten; `spare` is as long.
pub(super) fn window_sums<T: Addend>(level: Level, size: usize, step: usize, values: &mut [T], spare: &mut [T], out: &mut [T]) {
    match level {
        Level::Plain => window_body(size, step, values, spare, out),
        Level::Simd => window_fast(size, step, values, spare, out),
    }
}

/// Passes that are cascaded at most.
const PASSES: usize = 4;

/// Box mean of an integer plane whose window sums fit 32 bits exactly.
///
/// Horizontal and vertical passes commute, also at the border, which is a matter of one direction. So the columns come first:
/// their running sums are fed by rows of the input, and a band needs no intermediate plane.
pub(super) struct ExactBox {
    op: BoxMean,
    span: Span,
    codec: Codec,
    /// All sums fit 16 bits; else those of the columns alone may.
    narrow: bool,
    narrow_columns: bool,
    quotient: Quotient,
}

/// Division of a whole window's sum, rounded half up.
#[derive(Clone, Copy, Debug)]
pub(super) enum Quotient {
    /// `((sum + add) · factor) >> 16 >> post`: exact for every sum that occurs.
    Words { add: u16, factor: u16, post: u32 },
    /// `⌊sum · factor + ½⌋` in `f32`: off by less than a 1000th of a code value for 10 bits and fewer.
    Floats { factor: f32 },
    /// 31 significant bits.
    Longs(Division),
}

impl Quotient {
    /// For sums of `size` values up to `max`, at most `largest`; `narrow`: these fit 16 bits.
    pub fn new(largest: u64, size: u64, max: u64, narrow: bool) -> Self {
        if narrow {
            let (add, post) = (size / 2, size.ilog2());
            let factor = (1u64 << (16 + post)).div_ceil(size);
            let exact = |sum: u64| ((sum + add) * factor) >> (16 + post) == (sum + add) / size;
            if factor <= 65535 && (0..=largest).all(exact) {
                return Self::Words { add: add as u16, factor: factor as u16, post };
            }
        }
        if max <= 1023 { Self::Floats { factor: (1.0 / size as f64) as f32 } } else { Self::Longs(Division::new(max, size as usize, 0)) }
    }

    /// The mean of a sum of 16 bits.
    #[inline(always)]
    pub fn of_word(self, sum: u16) -> u16 {
        match self {
            Self::Words { add, factor, post } => quotient_of_words(sum, add, factor, post),
            Self::Floats { factor } => rounded(f32::from(sum), factor) as u16,
            Self::Longs(division) => division.apply_narrow(u32::from(sum)) as u16,
        }
    }

    /// The mean of a sum of 32 bits.
    #[inline(always)]
    pub fn of_code(self, sum: u32) -> u32 {
        match self {
            Self::Words { .. } => {
                debug_assert!(false, "a quotient in words for sums of 32 bits");
                0
            }
            Self::Floats { factor } => rounded(sum as i32 as f32, factor) as u32,
            Self::Longs(division) => division.apply_narrow(sum),
        }
    }
}

/// Scratch of a worker, by type.
pub(super) struct Sums<'a> {
    pub words: &'a mut [u16],
    pub codes: &'a mut [u32],
}

impl ExactBox {
    /// None if the sums may not fit.
    pub fn new(op: &BoxMean, mut span: Span, mut codec: Codec, level: Level) -> Option<Self> {
        if level == Level::Plain || codec.sample.is_float() || op.power > PASSES {
            return None;
        }
        // A second pass reads its border from rows of the first: all but `wrap` find them within the window.
        let cascades = op.power > 1 && op.radius_y > 0;
        if cascades && (span.border == Border::Wrap || op.radius_y >= span.height) {
            return None;
        }
        codec.centre = 0.0;
        (span.left, span.right) = (op.radius_x, op.radius_x);
        let max = codec.max as u64;
        let power = |size: usize| (size as u64).checked_pow(op.power as u32);
        let (across, down) = (power(2 * op.radius_x + 1)?, power(2 * op.radius_y + 1)?);
        let size = across.checked_mul(down)?;
        let largest = max.checked_mul(size)?;
        if largest >= 1 << 31 {
            return None;
        }
        let narrow = largest + size / 2 < 1 << 16;
        let quotient = Quotient::new(largest, size, max, narrow);
        Some(Self { op: *op, span, codec, narrow, narrow_columns: max * down < 1 << 16, quotient })
    }

    /// Rows that a band must read beyond its own.
    pub fn halo(&self) -> usize {
        2 * self.op.radius_y * self.op.power
    }

    /// Passes over the columns.
    fn passes(&self) -> usize {
        if self.op.radius_y == 0 { 0 } else { self.op.power }
    }

    /// Rows of a ring.
    fn kept(&self) -> usize {
        (2 * self.op.radius_y + 2).min(self.span.height)
    }

    /// Values of 16-bit and of 32-bit scratch that a worker needs.
    pub fn scratch(&self) -> (usize, usize) {
        let width = self.span.values();
        let down = 2 * width + self.passes() * width + self.passes().saturating_sub(1) * self.kept() * width;
        let across = 2 * self.span.extended() + width;
        let (down, words) = if self.narrow_columns { (0, down) } else { (down, 0) };
        if self.narrow { (words + across, down) } else { (words, down + across) }
    }

    pub fn run(&self, source: &Source, target: &Target, rows: Range<usize>, sums: Sums<'_>) {
        let across = 2 * self.span.extended() + self.span.values();
        let emit = |y: usize, row: &[u32]| self.emit_codes(row, target, y);
        match (self.narrow_columns, self.narrow) {
            (true, true) => {
                let (across, down) = sums.words.split_at_mut(across);
                self.walk(source, rows, down, |y, column| {
                    let row = self.across(column, across, |&value| value);
                    // SAFETY: row `y` belongs to this task's band.
                    divide_words(self.quotient, row, self.codec, unsafe { target.row(y) });
                });
            }
            (true, false) => self.walk(source, rows, sums.words, |y, column| emit(y, self.across(column, sums.codes, |&v| u32::from(v)))),
            (false, _) => {
                let (across, down) = sums.codes.split_at_mut(across);
                self.walk(source, rows, down, |y, column| emit(y, self.across(column, across, |&value| value)));
            }
        }
    }

    fn emit_codes(&self, row: &[u32], target: &Target, y: usize) {
        // SAFETY: row `y` belongs to this task's band.
        divide_codes(self.quotient, row, self.codec, unsafe { target.row(y) });
    }

    /// All horizontal passes over a row of column sums.
    fn across<'a, S: Copy, T: Addend>(&self, column: &[S], scratch: &'a mut [T], convert: impl Fn(&S) -> T) -> &'a [T] {
        let (extended, width) = (self.span.extended(), self.span.values());
        let (row, scratch) = scratch.split_at_mut(extended);
        let (spare, out) = scratch.split_at_mut(extended);
        let out = &mut out[..width];
        let inner = self.span.left * self.span.components..self.span.left * self.span.components + width;
        let passes = if self.op.radius_x == 0 { 0 } else { self.op.power };
        let first = if passes == 0 { &mut *out } else { &mut row[inner.clone()] };
        first.iter_mut().zip(column).for_each(|(o, value)| *o = convert(value));
        for pass in 0..passes {
            if pass > 0 {
                row[inner.clone()].copy_from_slice(out);
            }
            self.span.extend(row, T::default());
            window_sums(Level::Simd, 2 * self.op.radius_x + 1, self.span.components, row, spare, out);
        }
        out
    }

    /// Column sums of all passes for each row of the band.
    fn walk<T: Addend>(&self, source: &Source, rows: Range<usize>, scratch: &mut [T], mut emit: impl FnMut(usize, &[T])) {
        let width = self.span.values();
        let (fresh, scratch) = scratch.split_at_mut(width);
        let (stale, mut rest) = scratch.split_at_mut(width);
        let (passes, height, radius) = (self.passes(), self.span.height as i64, self.op.radius_y as i64);
        if passes == 0 {
            for y in rows {
                load_fast(source.row(y), self.codec, fresh);
                emit(y, fresh);
            }
            return;
        }
        let mut all: [Stage<'_, T>; PASSES] = std::array::from_fn(|pass| {
            let later = passes.saturating_sub(pass + 1);
            let kept = if later == 0 { 0 } else { self.kept() };
            let (sums, after) = std::mem::take(&mut rest).split_at_mut(if pass < passes { width } else { 0 });
            let (ring, after) = after.split_at_mut(kept * width);
            rest = after;
            // What later passes will ask of this one.
            let reach = later as i64 * radius;
            let wanted = (rows.start as i64 - reach).max(0)..(rows.end as i64 + reach).min(height);
            let next = wanted.start;
            Stage { sums, ring: Ring::new(ring, width, kept), wanted, next }
        });
        let stages = &mut all[..passes];
        let reads = Reads { source, codec: self.codec, height, border: self.span.border, radius };
        for y in rows {
            while stages.last().is_some_and(|stage| stage.next <= y as i64) {
                advance(&reads, stages, fresh, stale);
            }
            if let Some(stage) = stages.last() {
                emit(y, stage.sums);
            }
        }
    }
}

/// One pass over the columns: the sums of the window around row `next − 1`.
struct Stage<'a, T> {
    sums: &'a mut [T],
    /// Finished rows, by their place in the plane; empty for the last pass.
    ring: Ring<'a, T>,
    wanted: Range<i64>,
    next: i64,
}

struct Reads<'a> {
    source: &'a Source,
    codec: Codec,
    height: i64,
    border: Border,
    radius: i64,
}

/// Computes the next row of the last stage.
fn advance<T: Addend>(reads: &Reads<'_>, stages: &mut [Stage<'_, T>], fresh: &mut [T], stale: &mut [T]) {
    let Some((stage, before)) = stages.split_last_mut() else { return };
    let (y, radius) = (stage.next, reads.radius);
    // Everything that the window can reach within the plane must be there.
    if let Some(previous) = before.last() {
        let until = (y + radius + 1).min(previous.wanted.end);
        while before.last().is_some_and(|previous| previous.next < until) {
            advance(reads, before, fresh, stale);
        }
    }
    let at = |y: i64| border_index(y, reads.height, reads.border);
    let read = |y: Option<i64>, into: &mut [T]| match (y, before.last()) {
        (Some(y), Some(previous)) => into.copy_from_slice(&previous.ring.memory()[previous.ring.start(y)..][..into.len()]),
        (Some(y), None) => load_fast(reads.source.row(y as usize), reads.codec, into),
        (None, _) => into.fill(T::default()),
    };
    if y == stage.wanted.start {
        stage.sums.fill(T::default());
        for row in y - radius..=y + radius {
            read(at(row), fresh);
            add_row(stage.sums, fresh);
        }
    } else {
        match (at(y + radius), at(y - radius - 1)) {
            (Some(entering), Some(leaving)) if entering == leaving => {}
            (Some(entering), Some(leaving)) if before.is_empty() => {
                let row = |y: i64| reads.source.row(y as usize);
                slide_stored(stage.sums, row(entering), row(leaving), reads.codec);
            }
            (entering, leaving) => {
                read(entering, fresh);
                read(leaving, stale);
                slide_row(stage.sums, fresh, stale);
            }
        }
    }
    if !stage.ring.memory().is_empty() {
        stage.ring.row_mut(y).copy_from_slice(stage.sums);
    }
    stage.next += 1;
}

#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
fn load_fast<T: Addend>(bytes: &[u8], codec: Codec, out: &mut [T]) {
    load(bytes, codec, out);
}

#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
fn add_row<T: Addend>(sums: &mut [T], row: &[T]) {
    for (sum, &value) in sums.iter_mut().zip(row) {
        *sum = sum.plus(value);
    }
}

#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
fn slide_row<T: Addend>(sums: &mut [T], entering: &[T], leaving: &[T]) {
    for ((sum, &entering), &leaving) in sums.iter_mut().zip(entering).zip(leaving) {
        *sum = sum.plus(entering.minus(leaving));
    }
}

/// As [`slide_row`], with rows as they are stored.
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
fn slide_stored<T: Addend>(sums: &mut [T], entering: &[u8], leaving: &[u8], codec: Codec) {
    match codec.sample {
        Sample::U8 => {
            for ((sum, &entering), &leaving) in sums.iter_mut().zip(entering).zip(leaving) {
                *sum = sum.plus(T::from_code(u32::from(entering)).minus(T::from_code(u32::from(leaving))));
            }
        }
        Sample::U16 => {
            let code = |b: &[u8; 2]| T::from_code(u32::from(u16::from_le_bytes(*b)) >> codec.shift);
            let rows = entering.as_chunks().0.iter().zip(leaving.as_chunks().0);
            for (sum, (entering, leaving)) in sums.iter_mut().zip(rows) {
                *sum = sum.plus(code(entering).minus(code(leaving)));
            }
        }
        // `ExactBox::new` takes integer planes only.
        Sample::F16 | Sample::F32 => {}
    }
}

#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
fn divide_words(quotient: Quotient, sums: &[u16], codec: Codec, out: &mut [u8]) {
    match (quotient, codec.sample) {
        (Quotient::Words { add, factor, post }, Sample::U8) => {
            for (o, &sum) in out.iter_mut().zip(sums) {
                *o = quotient_of_words(sum, add, factor, post) as u8;
            }
        }
        (Quotient::Words { add, factor, post }, Sample::U16) => {
            for (o, &sum) in out.as_chunks_mut::<2>().0.iter_mut().zip(sums) {
                *o = (quotient_of_words(sum, add, factor, post) << codec.shift).to_le_bytes();
            }
        }
        (Quotient::Floats { factor }, Sample::U8) => {
            for (o, &sum) in out.iter_mut().zip(sums) {
                *o = rounded(f32::from(sum), factor) as u8;
            }
        }
        (Quotient::Floats { factor }, Sample::U16) => {
            for (o, &sum) in out.as_chunks_mut::<2>().0.iter_mut().zip(sums) {
                *o = ((rounded(f32::from(sum), factor) as u16) << codec.shift).to_le_bytes();
            }
        }
        (Quotient::Longs(division), Sample::U8 | Sample::U16) => {
            for (o, &sum) in out.as_chunks_mut::<2>().0.iter_mut().zip(sums) {
                *o = ((division.apply_narrow(u32::from(sum)) as u16) << codec.shift).to_le_bytes();
            }
        }
        // `ExactBox::new` takes integer planes only.
        (Quotient::Words { .. } | Quotient::Floats { .. } | Quotient::Longs(_), Sample::F16 | Sample::F32) => {}
    }
}

#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
fn divide_codes(quotient: Quotient, sums: &[u32], codec: Codec, out: &mut [u8]) {
    match (quotient, codec.sample) {
        (Quotient::Floats { factor }, Sample::U8) => {
            for (o, &sum) in out.iter_mut().zip(sums) {
                *o = rounded(sum as i32 as f32, factor) as u8;
            }
        }
        (Quotient::Floats { factor }, Sample::U16) => {
            for (o, &sum) in out.as_chunks_mut::<2>().0.iter_mut().zip(sums) {
                *o = ((rounded(sum as i32 as f32, factor) as u16) << codec.shift).to_le_bytes();
            }
        }
        (Quotient::Longs(division), Sample::U8 | Sample::U16) => {
            for (o, &sum) in out.as_chunks_mut::<2>().0.iter_mut().zip(sums) {
                *o = ((division.apply_narrow(sum) as u16) << codec.shift).to_le_bytes();
            }
        }
        // Sums of 32 bits have no quotient in words, and float planes do not come here.
        (Quotient::Words { .. }, _) | (Quotient::Floats { .. } | Quotient::Longs(_), Sample::F16 | Sample::F32) => {}
    }
}

/// See [`Quotient::Words`].
#[inline(always)]
fn quotient_of_words(sum: u16, add: u16, factor: u16, post: u32) -> u16 {
    ((u32::from(sum.wrapping_add(add)) * u32::from(factor)) >> 16) as u16 >> post
}

/// ⌊`sum` · `factor` + ½⌋, at most 1023.
#[inline(always)]
fn rounded(sum: f32, factor: f32) -> i32 {
    let value = (sum * factor + 0.5).min(1024.0);
    // SAFETY: sums and factors are not negative and no NaN, so that `value` lies in [0, 1024].
    unsafe { value.to_int_unchecked() }
}
