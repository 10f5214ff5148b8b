//! Ranks of middle-sized windows of 8-bit samples by counting: a sample's rank filter exceeds a threshold where enough samples of
//! its window do. For one threshold that is a box sum of ones and zeros, 32 places to a register; and within a block of 64
//! neighbours few thresholds tell their results apart, mostly those that did so in the row above.
//!
//! A block's thresholds lie between one that all results exceed and one that none does. That interval is divided until the same
//! places exceed both ends, or nothing lies between them. Counts per column and threshold are kept from row to row and brought
//! up to date when they are asked for.
//!
//! The cost grows with the number of different results in a block. Against the histograms of `columns`, for 15×15: a quarter for
//! the picture of the benchmark, half for noise, a seventh more where squares of 12 random values change everywhere.

use std::ops::Range;

#[cfg(target_arch = "x86_64")]
use super::lanes::avx2;
use super::lanes::{LANES, Lanes};
use super::linear::Level;
use super::plane::{Codec, Source, Span, Target};
use crate::filter::math::border_index;
use crate::filter::plan::Median;
use crate::frame::Sample;

/// Outputs of a block.
const BLOCK: usize = 64;
/// Samples of a window at most: counts are bytes.
const MOST: usize = 255;
/// Columns under a block, and so the width of a window at most: one more than [`LANES`].
const COLUMNS: usize = BLOCK + LANES;
/// Counts of a threshold: those of the columns and room to read beyond.
const STRIDE: usize = COLUMNS + LANES;
/// Thresholds that are counted together, so that no sum is read right after it was written.
const BATCH: usize = 8;
/// Intervals that wait at most: less than [`BATCH`] of the first range, 9 beyond each of its ends, and two divisions of one.
const WAITING: usize = 64;

/// 255 where a block's results exceed a threshold, else 0.
type Mask<L> = [L; BLOCK / LANES];

/// One plane's rank filter.
pub(super) struct CountedKernel {
    op: Median,
    width: usize,
    height: usize,
    span: Span,
    /// Samples above a threshold that make the result exceed it.
    enough: u8,
}

/// The thresholds `above < t <= last`, and where the results exceed both ends.
#[derive(Clone, Copy)]
struct Interval<L> {
    above: i32,
    last: i32,
    exceed_above: Mask<L>,
    exceed_last: Mask<L>,
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
struct Strip<'a, L, const WIDTH: usize> {
    width: usize,
    height: usize,
    enough: u8,
    /// The last rows, less 128; a power of two of them, at least 2 · `height`.
    rows: &'a mut [[u8; COLUMNS]],
    /// For each threshold, the samples above it in each column; none for the last one.
    counts: &'a mut [[u8; STRIDE]; 256],
    /// For each threshold, one more than the row that its counts stand for; 0 for none.
    places: [u32; 256],
    sums: [[u8; STRIDE]; BATCH],
    masks: [Mask<L>; BATCH],
    waiting: [Interval<L>; WAITING],
}

/// A worker's memory.
pub(super) struct Room<'a> {
    pub bytes: &'a mut [u8],
    pub counts: &'a mut [u8],
}

/// Neighbours that are summed first, to be summed again: nearly the root of the width.
const fn group(width: usize) -> usize {
    let (mut best, mut group) = (1, 1);
    while group <= width && group <= LANES / 2 {
        if group + width / group + width % group < best + width / best + width % best {
            best = group;
        }
        group += 1;
    }
    best
}

impl CountedKernel {
    /// None if the counts may not fit.
    pub fn new(op: &Median, mut span: Span, codec: Codec, level: Level) -> Option<Self> {
        let (width, height) = (2 * op.radius_x + 1, 2 * op.radius_y + 1);
        let samples = width * height;
        if level == Level::Plain
            || width > COLUMNS - BLOCK + 1
            || codec.sample != Sample::U8
            || span.components != 1
            || samples > MOST
            || op.rank >= samples
        {
            return None;
        }
        (span.left, span.right) = (op.radius_x, op.radius_x);
        Some(Self { op: *op, width, height, span, enough: (samples - op.rank) as u8 })
    }

    /// Rows that a band must read beyond its own.
    pub fn halo(&self) -> usize {
        self.height - 1
    }

    /// Rows that are kept.
    fn kept(&self) -> usize {
        (2 * self.height).next_power_of_two()
    }

    /// Bytes of rows and counts that a worker needs.
    pub fn scratch(&self) -> (usize, usize) {
        (self.kept() * COLUMNS, 256 * STRIDE)
    }

    pub fn run(&self, source: &Source, target: &Target, rows: Range<usize>, room: Room<'_>) {
        #[cfg(target_arch = "x86_64")]
        if avx2::detected() {
            // SAFETY: the feature has just been detected.
            unsafe { self.run_avx2(source, target, rows, room) };
            return;
        }
        self.walk::<[u8; LANES], 0>(source, target, rows, room);
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn run_avx2(&self, source: &Source, target: &Target, rows: Range<usize>, room: Room<'_>) {
        match self.width {
            11 => self.walk::<avx2::Register, 11>(source, target, rows, room),
            13 => self.walk::<avx2::Register, 13>(source, target, rows, room),
            15 => self.walk::<avx2::Register, 15>(source, target, rows, room),
            _ => self.walk::<avx2::Register, 0>(source, target, rows, room),
        }
    }

    #[inline(always)]
    fn walk<L: Lanes, const WIDTH: usize>(&self, source: &Source, target: &Target, rows: Range<usize>, room: Room<'_>) {
        let none = [L::splat(0); BLOCK / LANES];
        let nothing = Interval { above: 0, last: 0, exceed_above: none, exceed_last: none };
        let kept = self.kept();
        let (lines, _) = room.bytes.as_chunks_mut::<COLUMNS>();
        let Some(counts) = room.counts.as_chunks_mut::<STRIDE>().0.first_chunk_mut::<256>() else { return };
        let mut strip = Strip::<L, WIDTH> {
            width: self.width,
            height: self.height,
            enough: self.enough,
            rows: &mut lines[..kept],
            counts,
            places: [0; 256],
            sums: [[0; STRIDE]; BATCH],
            masks: [none; BATCH],
            waiting: [nothing; WAITING],
        };
        strip.counts.fill([0; STRIDE]);
        for left in (0..self.span.width).step_by(BLOCK) {
            // The last block overlaps the one before.
            let left = left.min(self.span.width.saturating_sub(BLOCK));
            let shown = BLOCK.min(self.span.width - left);
            strip.places = [0; 256];
            let top = rows.start as i64 - self.op.radius_y as i64;
            for index in 0..self.height - 1 {
                self.read(source, top + index as i64, left, &mut strip.rows[index % kept]);
            }
            let mut results = [128; BLOCK];
            for (index, y) in rows.clone().enumerate() {
                let newest = index + self.height - 1;
                self.read(source, top + newest as i64, left, &mut strip.rows[newest % kept]);
                strip.rank(index, &mut results);
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

/// Registers of a row of `N` bytes from `from` on; all of them lie within it.
#[inline(always)]
fn registers<L: Lanes, const N: usize, const COUNT: usize>(row: &[u8; N], from: usize) -> [L; COUNT] {
    // Loops rather than closures, which would be compiled without the caller's instruction set.
    let mut all = [L::splat(0); COUNT];
    for (n, register) in all.iter_mut().enumerate() {
        let Some((_, rest)) = row.split_at_checked(from + n * LANES) else { break };
        let Some(values) = rest.first_chunk() else { break };
        *register = L::load(values);
    }
    all
}

#[inline(always)]
fn add<L: Lanes, const COUNT: usize>(a: [L; COUNT], b: [L; COUNT]) -> [L; COUNT] {
    let mut sums = a;
    for (sum, other) in sums.iter_mut().zip(b) {
        *sum = sum.plus(other);
    }
    sums
}

#[inline(always)]
fn same<L: Lanes>(a: Mask<L>, b: Mask<L>) -> bool {
    a[0].same(b[0]) && a[1].same(b[1])
}

impl<L: Lanes, const WIDTH: usize> Strip<'_, L, WIDTH> {
    /// The window's width, known to the compiler for the most frequent ones.
    #[inline(always)]
    fn width(&self) -> usize {
        if WIDTH == 0 { self.width } else { WIDTH }
    }

    #[inline(always)]
    fn row(&self, index: usize) -> &[u8; COLUMNS] {
        &self.rows[index & (self.rows.len() - 1)]
    }

    /// Brings the counts of a threshold to the window of row `index`.
    #[inline(always)]
    fn advance(&mut self, threshold: usize, index: usize) {
        let have = std::mem::replace(&mut self.places[threshold], index as u32 + 1) as usize;
        let limit = L::splat(threshold as u8 ^ 128);
        // A comparison that holds is −1.
        let mut sums = [L::splat(0); 3];
        if have == 0 || 2 * (index + 1 - have) > self.height {
            for row in index..index + self.height {
                for (sum, row) in sums.iter_mut().zip(registers::<L, COLUMNS, 3>(self.row(row), 0)) {
                    *sum = sum.minus(row.is_above(limit));
                }
            }
        } else {
            sums = registers(&self.counts[threshold], 0);
            for index in have..=index {
                let entering = registers::<L, COLUMNS, 3>(self.row(index + self.height - 1), 0);
                let leaving = registers::<L, COLUMNS, 3>(self.row(index - 1), 0);
                for ((sum, entering), leaving) in sums.iter_mut().zip(entering).zip(leaving) {
                    *sum = sum.minus(entering.is_above(limit)).plus(leaving.is_above(limit));
                }
            }
        }
        for (counts, sum) in self.counts[threshold].as_chunks_mut().0.iter_mut().zip(sums) {
            sum.store(counts);
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
        let group = group(self.width());
        let (groups, singles) = (self.width() / group, self.width() % group);
        for (&threshold, sums) in thresholds.iter().zip(&mut self.sums) {
            let counts = &self.counts[threshold.clamp(0, 255) as usize];
            let mut total: [L; 3] = registers(counts, 0);
            for shift in 1..group {
                total = add(total, registers(counts, shift));
            }
            for (sums, total) in sums.as_chunks_mut().0.iter_mut().zip(total) {
                total.store(sums);
            }
        }
        let enough = L::splat(self.enough);
        for ((&threshold, sums), mask) in thresholds.iter().zip(&self.sums).zip(&mut self.masks) {
            let counts = &self.counts[threshold.clamp(0, 255) as usize];
            let mut total: Mask<L> = registers(sums, 0);
            for n in 1..groups {
                total = add(total, registers(sums, n * group));
            }
            for single in 0..singles {
                total = add(total, registers(counts, groups * group + single));
            }
            *mask = match threshold {
                ..0 => [L::splat(255); BLOCK / LANES],
                255.. => [L::splat(0); BLOCK / LANES],
                _ => {
                    for total in &mut total {
                        *total = total.is_at_least(enough);
                    }
                    total
                }
            };
        }
    }

    /// The results of row `index`; `results` comes with those of the row above.
    #[inline(always)]
    fn rank(&mut self, index: usize, results: &mut [u8; BLOCK]) {
        let (mut least, mut most) = (255, 0);
        for &value in results.iter() {
            least = value.min(least);
            most = value.max(most);
        }
        // The range of the row above and one more, then outwards by steps that grow, then inwards. One loop, so that `exceed` stands
        // here once.
        let (mut above, mut last) = (i32::from(least) - 2, i32::from(most) + 1);
        let (all, none) = ([L::splat(255); BLOCK / LANES], [L::splat(0); BLOCK / LANES]);
        let (mut exceed_above, mut exceed_last) = (all, none);
        let (mut search, mut step, mut waiting) = (Search::Range, 1, 0);
        let mut sums = none;
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
                    interval = self.waiting[waiting % WAITING];
                    between(interval.above, interval.last, &mut thresholds)
                }
            };
            self.exceed(&thresholds[..count], index);
            // The ends at hand around the new thresholds.
            let (mut lower, upper) = match search {
                Search::Range => {
                    (exceed_above, exceed_last) = (self.masks[0], self.masks[count - 1]);
                    (None, None)
                }
                Search::Down => {
                    let old = (above, exceed_above);
                    (above, exceed_above, step) = (thresholds[0], self.masks[0], 2 * step);
                    (None, Some(old))
                }
                Search::Up => {
                    let old = (last, exceed_last);
                    (last, exceed_last, step) = (thresholds[0], self.masks[0], 2 * step);
                    (Some(old), None)
                }
                Search::Between => (Some((interval.above, interval.exceed_above)), Some((interval.last, interval.exceed_last))),
            };
            let found = thresholds[..count].iter().zip(self.masks).map(|(&threshold, exceed)| (threshold, exceed));
            for (last, exceed_last) in found.chain(upper) {
                let Some((above, exceed_above)) = lower.replace((last, exceed_last)) else { continue };
                if last - above <= 1 || same(exceed_above, exceed_last) {
                    // A result is the number of thresholds from 0 on that it exceeds.
                    for (sum, exceed) in sums.iter_mut().zip(exceed_last) {
                        *sum = sum.plus(exceed.and(L::splat((last - above) as u8)));
                    }
                } else {
                    self.waiting[waiting % WAITING] = Interval { above, last, exceed_above, exceed_last };
                    waiting += 1;
                }
            }
            search = match search {
                Search::Range | Search::Down if !same(exceed_above, all) => Search::Down,
                Search::Range | Search::Down => {
                    step = 1;
                    if same(exceed_last, none) { Search::Between } else { Search::Up }
                }
                Search::Up if !same(exceed_last, none) => Search::Up,
                Search::Up | Search::Between => Search::Between,
            };
        }
        for (result, sum) in results.as_chunks_mut().0.iter_mut().zip(sums) {
            sum.plus(L::splat((above + 1) as u8)).store(result);
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
