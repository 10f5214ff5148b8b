//! Ranks of middle-sized windows of 8-bit samples by counting: a sample's rank filter exceeds a threshold where enough samples of
//! its window do. For one threshold that is a box sum of ones and zeros, 32 places to a register; and within a block of 64
//! neighbours few thresholds tell their results apart, mostly those that did so in the row above.
//!
//! A block's thresholds lie between one that all results exceed and one that none does. That interval is divided until the same
//! places exceed both ends, or nothing lies between them. Counts per column and threshold are kept from row to row and brought
//! up to date when they are asked for.
//!
//! The cost grows with the number of different results in a block: a fifth of the histograms' (`columns`) for camera pictures, as
//! much as theirs where a block holds all 256.

// Loops over a fixed number of places by index become operations on whole registers.
#![allow(clippy::needless_range_loop)]

use std::ops::Range;

use multiversion::multiversion;

use super::linear::Level;
use super::plane::{Codec, Source, Span, Target};
use crate::filter::math::border_index;
use crate::filter::plan::Median;
use crate::frame::Sample;

/// Outputs of a block.
const BLOCK: usize = 64;
/// Places that loops take at a time.
const LANES: usize = 32;
/// Samples of a window at most: counts are bytes.
const MOST: usize = 255;
/// Thresholds that are counted together, so that no sum is read right after it was written.
const BATCH: usize = 8;
/// Intervals that wait at most: less than [`BATCH`] of the first range, 9 beyond each of its ends, and two divisions of one.
const WAITING: usize = 64;

/// 255 where a block's result exceeds a threshold, else 0.
type Mask = [u8; BLOCK];
const ALL: Mask = [255; BLOCK];
const NONE: Mask = [0; BLOCK];

/// One plane's rank filter.
pub(super) struct CountedKernel {
    op: Median,
    width: usize,
    height: usize,
    span: Span,
    /// Samples above a threshold that make the result exceed it.
    enough: u8,
    group: usize,
}

/// The thresholds `above < t <= last`, and where the results exceed both ends.
#[derive(Clone, Copy)]
struct Interval {
    above: i32,
    last: i32,
    exceed_above: Mask,
    exceed_last: Mask,
}

/// Which thresholds come next.
#[derive(Clone, Copy)]
enum Search {
    /// A little more than the range of the row above, and within it.
    Range,
    /// Below, until all results exceed it.
    Down,
    /// Above, until none does.
    Up,
    /// Within the interval that waits last.
    Between,
}

/// What blocks of a band share.
struct Strip<'a> {
    width: usize,
    height: usize,
    enough: u8,
    /// Columns under a block, a multiple of [`LANES`].
    columns: usize,
    /// The last 2 · `height` rows, less 128, `columns` each.
    rows: &'a mut [u8],
    /// For each threshold, the samples above it in each column, and [`LANES`] zeros.
    counts: &'a mut [u8],
    /// For each threshold, one more than the row that its counts stand for; 0 for none.
    places: &'a mut [u32],
    /// Neighbours that are summed first, to be summed again: nearly the root of the width.
    group: usize,
    sums: [[u8; BLOCK + MOST + 2 * LANES]; BATCH],
    masks: [Mask; BATCH],
    waiting: [Interval; WAITING],
}

/// A worker's memory.
pub(super) struct Room<'a> {
    pub bytes: &'a mut [u8],
    pub counts: &'a mut [u8],
    pub places: &'a mut [u32],
}

impl CountedKernel {
    /// None if the counts may not fit.
    pub fn new(op: &Median, mut span: Span, codec: Codec, level: Level) -> Option<Self> {
        let (width, height) = (2 * op.radius_x + 1, 2 * op.radius_y + 1);
        let samples = width * height;
        if level == Level::Plain || codec.sample != Sample::U8 || span.components != 1 || samples > MOST || op.rank >= samples {
            return None;
        }
        (span.left, span.right) = (op.radius_x, op.radius_x);
        let group = (1..=width).min_by_key(|group| group + width / group + width % group)?;
        Some(Self { op: *op, width, height, span, enough: (samples - op.rank) as u8, group })
    }

    /// Rows that a band must read beyond its own.
    pub fn halo(&self) -> usize {
        self.height - 1
    }

    fn columns(&self) -> usize {
        (BLOCK + self.width - 1).next_multiple_of(LANES)
    }

    /// Bytes, counts and places that a worker needs.
    pub fn scratch(&self) -> (usize, usize, usize) {
        (2 * self.height * self.columns(), 256 * (self.columns() + LANES), 256)
    }

    pub fn run(&self, source: &Source, target: &Target, rows: Range<usize>, room: Room<'_>) {
        let columns = self.columns();
        let nothing = Interval { above: 0, last: 0, exceed_above: NONE, exceed_last: NONE };
        let mut strip = Strip {
            width: self.width,
            height: self.height,
            enough: self.enough,
            columns,
            rows: &mut room.bytes[..2 * self.height * columns],
            counts: &mut room.counts[..256 * (columns + LANES)],
            places: &mut room.places[..256],
            group: self.group,
            sums: [[0; BLOCK + MOST + 2 * LANES]; BATCH],
            masks: [NONE; BATCH],
            waiting: [nothing; WAITING],
        };
        strip.counts.fill(0);
        for left in (0..self.span.width).step_by(BLOCK) {
            // The last block overlaps the one before.
            let left = left.min(self.span.width.saturating_sub(BLOCK));
            let shown = BLOCK.min(self.span.width - left);
            strip.places.fill(0);
            let top = rows.start as i64 - self.op.radius_y as i64;
            for index in 0..self.height - 1 {
                self.read(source, top + index as i64, left, strip.row_mut(index));
            }
            let mut results = [128; BLOCK];
            for (index, y) in rows.clone().enumerate() {
                let newest = index + self.height - 1;
                self.read(source, top + newest as i64, left, strip.row_mut(newest));
                rank(&mut strip, index, &mut results);
                // SAFETY: row `y` belongs to this task's band.
                unsafe { target.part(y, left, shown) }.copy_from_slice(&results[..shown]);
            }
        }
    }

    /// The samples under the block at `left` of the row at virtual position `y`, less 128.
    fn read(&self, source: &Source, y: i64, left: usize, out: &mut [u8]) {
        const ZERO: u8 = 128;
        let Some(y) = border_index(y, self.span.height as i64, self.span.border) else {
            out.fill(ZERO);
            return;
        };
        let row = source.row(y as usize);
        // Places before the plane, and where it ends.
        let before = self.op.radius_x.saturating_sub(left);
        let first = left + before - self.op.radius_x;
        let inside = (row.len() - first).min(out.len() - before);
        for (o, &value) in out[before..before + inside].iter_mut().zip(&row[first..]) {
            *o = value ^ ZERO;
        }
        for i in (0..before).chain(before + inside..out.len()) {
            let at = (left + i) as i64 - self.op.radius_x as i64;
            let place = border_index(at, row.len() as i64, self.span.border);
            out[i] = place.map_or(0, |x| row[x as usize]) ^ ZERO;
        }
    }
}

impl Strip<'_> {
    fn row_mut(&mut self, index: usize) -> &mut [u8] {
        let start = index % (2 * self.height) * self.columns;
        &mut self.rows[start..start + self.columns]
    }

    /// Brings the counts of a threshold to the window of row `index`.
    #[inline(always)]
    fn advance(&mut self, threshold: usize, index: usize) {
        let (columns, height) = (self.columns, self.height);
        let Some(place) = self.places.get_mut(threshold) else { return };
        let have = std::mem::replace(place, index as u32 + 1) as usize;
        let rows = &*self.rows;
        let row = |index: usize| &rows[index % (2 * height) * columns..][..columns];
        let counts = &mut self.counts[threshold * (columns + LANES)..][..columns];
        let limit = (threshold as u8 ^ 128) as i8;
        if have == 0 || 2 * (index + 1 - have) > height {
            counts.fill(0);
            for above in index..index + height {
                for (counts, row) in counts.as_chunks_mut::<LANES>().0.iter_mut().zip(row(above).as_chunks::<LANES>().0) {
                    let mut sums = *counts;
                    for i in 0..LANES {
                        sums[i] = sums[i].wrapping_add(u8::from(row[i] as i8 > limit));
                    }
                    *counts = sums;
                }
            }
            return;
        }
        for index in have..=index {
            let (entering, leaving) = (row(index + height - 1).as_chunks::<LANES>().0, row(index - 1).as_chunks::<LANES>().0);
            for ((counts, entering), leaving) in counts.as_chunks_mut::<LANES>().0.iter_mut().zip(entering).zip(leaving) {
                let mut sums = *counts;
                for i in 0..LANES {
                    let (more, less) = (u8::from(entering[i] as i8 > limit), u8::from(leaving[i] as i8 > limit));
                    sums[i] = sums[i].wrapping_add(more).wrapping_sub(less);
                }
                *counts = sums;
            }
        }
    }

    /// Where the results of row `index` exceed each threshold, in `masks`.
    #[inline(always)]
    fn exceed(&mut self, thresholds: &[i32], index: usize) {
        for &threshold in thresholds {
            if (0..255).contains(&threshold) {
                self.advance(threshold as usize, index);
            }
        }
        let stride = self.columns + LANES;
        let (groups, singles) = (self.width / self.group, self.width % self.group);
        let wanted = (BLOCK + self.group * (groups - 1)).div_ceil(LANES);
        for (&threshold, sums) in thresholds.iter().zip(&mut self.sums) {
            let counts = &self.counts[threshold.clamp(0, 255) as usize * stride..][..stride];
            for (n, sums) in sums.as_chunks_mut::<LANES>().0.iter_mut().enumerate().take(wanted) {
                let mut group = [0u8; LANES];
                for shift in 0..self.group {
                    let Some(counts) = counts[n * LANES + shift..].first_chunk::<LANES>() else { break };
                    for i in 0..LANES {
                        group[i] = group[i].wrapping_add(counts[i]);
                    }
                }
                *sums = group;
            }
        }
        for ((&threshold, sums), mask) in thresholds.iter().zip(&self.sums).zip(&mut self.masks) {
            let counts = &self.counts[threshold.clamp(0, 255) as usize * stride..][..stride];
            let mut total = [0u8; BLOCK];
            for group in 0..groups {
                let Some(sums) = sums[group * self.group..].first_chunk::<BLOCK>() else { break };
                for i in 0..BLOCK {
                    total[i] = total[i].wrapping_add(sums[i]);
                }
            }
            for single in 0..singles {
                let Some(counts) = counts[groups * self.group + single..].first_chunk::<BLOCK>() else { break };
                for i in 0..BLOCK {
                    total[i] = total[i].wrapping_add(counts[i]);
                }
            }
            let enough = self.enough;
            let mut exceeds = NONE;
            for i in 0..BLOCK {
                exceeds[i] = if total[i] >= enough { 255 } else { 0 };
            }
            *mask = match threshold {
                ..0 => ALL,
                255.. => NONE,
                _ => exceeds,
            };
        }
    }
}

/// Thresholds between two others, evenly spaced, as many as fit.
#[inline(always)]
fn between(above: i32, last: i32, out: &mut [i32]) -> usize {
    let count = (last - above - 1).clamp(0, out.len() as i32);
    for (i, threshold) in (1..=count).zip(out) {
        *threshold = above + i * (last - above) / (count + 1);
    }
    count as usize
}

#[inline(always)]
fn rank_body(strip: &mut Strip<'_>, index: usize, results: &mut Mask) {
    let (mut least, mut most) = (255, 0);
    for &value in results.iter() {
        least = value.min(least);
        most = value.max(most);
    }
    // The range of the row above and one more, then outwards by steps that grow, then inwards. One loop, so that `exceed` stands
    // here once.
    let (mut above, mut last) = (i32::from(least) - 2, i32::from(most) + 1);
    let (mut exceed_above, mut exceed_last) = (ALL, NONE);
    let (mut search, mut step, mut waiting) = (Search::Range, 1, 0);
    let mut sums = NONE;
    let mut thresholds = [0; BATCH];
    loop {
        let mut interval = Interval { above, last, exceed_above, exceed_last };
        let count = match search {
            Search::Range => {
                let inner = between(above, last, &mut thresholds[1..BATCH - 1]);
                (thresholds[0], thresholds[inner + 1]) = (above, last);
                inner + 2
            }
            Search::Down => {
                thresholds[0] = (above - step).max(-1);
                1
            }
            Search::Up => {
                thresholds[0] = (last + step).min(255);
                1
            }
            Search::Between => {
                if waiting == 0 {
                    break;
                }
                waiting -= 1;
                interval = strip.waiting[waiting % WAITING];
                between(interval.above, interval.last, &mut thresholds)
            }
        };
        strip.exceed(&thresholds[..count], index);
        // The ends at hand around the new thresholds.
        let (mut lower, upper) = match search {
            Search::Range => {
                (exceed_above, exceed_last) = (strip.masks[0], strip.masks[count - 1]);
                (None, None)
            }
            Search::Down => {
                let old = (above, exceed_above);
                (above, exceed_above, step) = (thresholds[0], strip.masks[0], 2 * step);
                (None, Some(old))
            }
            Search::Up => {
                let old = (last, exceed_last);
                (last, exceed_last, step) = (thresholds[0], strip.masks[0], 2 * step);
                (Some(old), None)
            }
            Search::Between => (Some((interval.above, interval.exceed_above)), Some((interval.last, interval.exceed_last))),
        };
        for n in 0..=count {
            let next = if n < count { Some((thresholds[n], strip.masks[n])) } else { upper };
            let Some((last, exceed_last)) = next else { break };
            let Some((above, exceed_above)) = lower.replace((last, exceed_last)) else { continue };
            if last - above <= 1 || exceed_above == exceed_last {
                // A result is the number of thresholds from 0 on that it exceeds.
                for i in 0..BLOCK {
                    sums[i] = sums[i].wrapping_add(exceed_last[i] & (last - above) as u8);
                }
            } else {
                strip.waiting[waiting % WAITING] = Interval { above, last, exceed_above, exceed_last };
                waiting += 1;
            }
        }
        search = match search {
            Search::Range | Search::Down if exceed_above != ALL => Search::Down,
            Search::Range | Search::Down => {
                step = 1;
                if exceed_last == NONE { Search::Between } else { Search::Up }
            }
            Search::Up if exceed_last != NONE => Search::Up,
            Search::Up | Search::Between => Search::Between,
        };
    }
    for i in 0..BLOCK {
        results[i] = sums[i].wrapping_add((above + 1) as u8);
    }
}

/// The results of row `index`; `results` comes with those of the row above.
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
fn rank(strip: &mut Strip<'_>, index: usize, results: &mut Mask) {
    rank_body(strip, index, results);
}
