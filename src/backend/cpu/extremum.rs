//! Minimum and maximum: over a rectangle at a cost that hardly grows with it, and over chosen neighbours.

use std::ops::Range;

use super::linear::{Level, Ring};
use super::order::{Ordered, limit_row, load_row, merge_row, pair_row, slide_row, store_row};
use super::plane::{Codec, Source, Span, Target};
use crate::filter::plan::{COMPASS_RING, Extreme, Extremum, Morphology};

/// Loads rows in a sample's own type.
pub(super) fn loader<T: Ordered>(level: Level) -> fn(&[u8], Codec, &mut [T]) {
    match level {
        Level::Plain => |bytes, codec, out| load_row(Level::Plain, bytes, codec, out),
        Level::Simd => |bytes, codec, out| load_row(Level::Simd, bytes, codec, out),
    }
}

/// One plane's minimum or maximum over a rectangle.
///
/// Along a row by doubling: extremes of 1, 2, 4, … samples, then of two such spans that overlap: ⌊log2 size⌋ + 1 operations a
/// sample on whole registers. Down the columns by van Herk's and Gil and Werman's method: three operations for any size.
pub(super) struct ExtremumKernel {
    kind: Extreme,
    /// Window sides.
    size_x: usize,
    size_y: usize,
    span: Span,
    codec: Codec,
    level: Level,
}

impl ExtremumKernel {
    pub fn new(op: &Extremum, mut span: Span, mut codec: Codec, level: Level) -> Self {
        codec.centre = 0.0;
        // A window that reaches past both ends by as much as the plane is wide has seen every sample, under every border.
        let (radius_x, radius_y) = (op.radius_x.min(span.width), op.radius_y.min(span.height));
        (span.left, span.right) = (radius_x, radius_x);
        Self { kind: op.kind, size_x: 2 * radius_x + 1, size_y: 2 * radius_y + 1, span, codec, level }
    }

    /// The plane's codec.
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// Rows that a band must read beyond its own.
    pub fn halo(&self) -> usize {
        self.size_y - 1
    }

    /// Values of scratch that a worker needs, of the sample's type.
    pub fn scratch(&self) -> usize {
        2 * self.span.extended() + self.span.values() * (self.size_y + 3)
    }

    pub fn run<T: Ordered>(&self, source: &Source, target: &Target, rows: Range<usize>, scratch: &mut [T]) {
        let width = self.span.values();
        let (extended, scratch) = scratch.split_at_mut(self.span.extended());
        let (spare, scratch) = scratch.split_at_mut(self.span.extended());
        let (fresh, scratch) = scratch.split_at_mut(width);
        let (prefix, scratch) = scratch.split_at_mut(width);
        let (out, block) = scratch.split_at_mut(width);
        let block = &mut block[..width * self.size_y];
        let first = rows.start as i64 - (self.size_y / 2) as i64;
        let mut next = first;
        let mut across = |into: &mut [T]| {
            self.span.load_with(source, self.codec, next, extended, loader(self.level));
            self.across(extended, spare, into);
            next += 1;
        };
        for row in block.chunks_exact_mut(width) {
            across(row);
        }
        let mut y = rows.start;
        let mut emit = |row: &[T]| {
            // SAFETY: row `y` belongs to this task's band.
            let out = unsafe { target.row(y) };
            store_row(self.level, row, self.codec, out);
            y += 1;
            y < rows.end
        };
        if rows.is_empty() {
            return;
        }
        loop {
            // Here the block holds rows as they are; from the bottom up each becomes the extreme of itself and those below.
            for index in (1..self.size_y).rev() {
                let (above, below) = block.split_at_mut(index * width);
                merge_row(self.level, self.kind, &below[..width], &mut above[(index - 1) * width..]);
            }
            if !emit(&block[..width]) {
                return;
            }
            for index in 1..self.size_y {
                across(fresh);
                if index == 1 {
                    prefix.copy_from_slice(fresh);
                }
                slide_row(self.level, self.kind, fresh, &mut block[index * width..(index + 1) * width], prefix, out);
                // The place above is not needed any more: the next block gathers there.
                block[(index - 1) * width..index * width].copy_from_slice(fresh);
                if !emit(out) {
                    return;
                }
            }
            across(&mut block[(self.size_y - 1) * width..]);
        }
    }

    /// The extreme of every `size_x` neighbours of a row with its sides; `spare` is as long as the row.
    fn across<'a, T: Ordered>(&self, mut row: &'a mut [T], mut spare: &'a mut [T], out: &mut [T]) {
        let c = self.span.components;
        let mut length = row.len();
        let mut reach = 1;
        while 2 * reach <= self.size_x {
            length -= reach * c;
            pair_row(self.level, self.kind, &row[..length], &row[reach * c..], &mut spare[..length]);
            std::mem::swap(&mut row, &mut spare);
            reach *= 2;
        }
        pair_row(self.level, self.kind, row, &row[(self.size_x - reach) * c..], out);
    }
}

/// One plane's minimum or maximum over chosen neighbours.
pub(super) struct MorphologyKernel {
    op: Morphology,
    span: Span,
    codec: Codec,
    level: Level,
}

impl MorphologyKernel {
    pub fn new(op: &Morphology, mut span: Span, mut codec: Codec, level: Level) -> Self {
        codec.centre = 0.0;
        (span.left, span.right) = (1, 1);
        Self { op: *op, span, codec, level }
    }

    /// The plane's codec.
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// Values of scratch that a worker needs, of the sample's type.
    pub fn scratch(&self) -> usize {
        self.span.values() + 3 * self.span.extended()
    }

    pub fn run<T: Ordered>(&self, source: &Source, target: &Target, rows: Range<usize>, scratch: &mut [T]) {
        let (out, ring) = scratch.split_at_mut(self.span.values());
        let mut ring = Ring::new(ring, self.span.extended(), 3);
        for position in rows.start as i64 - 1..rows.end as i64 + 1 {
            self.span.load_with(source, self.codec, position, ring.row_mut(position), loader(self.level));
            let y = position - 1;
            if y < rows.start as i64 {
                continue;
            }
            let place = |index: usize| &ring.memory()[ring.start(y - 1 + (index / 3) as i64) + index % 3 * self.span.components..];
            out.copy_from_slice(&place(4)[..out.len()]);
            for (_, &index) in COMPASS_RING.iter().enumerate().filter(|(bit, _)| self.op.coordinates >> bit & 1 == 1) {
                merge_row(self.level, self.op.kind, place(index), out);
            }
            if let Some(threshold) = self.op.threshold {
                limit_row(self.level, self.op.kind, T::from_threshold(threshold), place(4), out);
            }
            // SAFETY: row `y` belongs to this task's band.
            store_row(self.level, out, self.codec, unsafe { target.row(y as usize) });
        }
    }
}
