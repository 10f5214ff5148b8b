//! Ranks of large windows at a cost that does not grow with them: one histogram per column, which a new row changes by two
//! samples, and their sum, which a new column changes by two histograms (S. Perreault, P. Hébert, Median filtering in constant
//! time, IEEE Transactions on Image Processing 16, 2007).
//!
//! A histogram has two levels of `B` bins for `B²` code values. Bins are cumulative within their level, so that the bin of a
//! rank is the number of counts that do not exceed it: no search, no branch. Fine bins of the sum follow only when asked for.

// Loops over a fixed number of bins by index become operations on whole registers.
#![allow(clippy::needless_range_loop)]

use std::hint::black_box;

use multiversion::multiversion;

use super::linear::Level;
use super::median::Rankable;

/// One column: the coarse bins, then the fine ones of each coarse bin. Counts fit 8 bits, windows have at most 255 rows.
pub(super) type Bins<const B: usize> = [u8; B];

/// Geometry of the sum.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sweep {
    /// Columns of the window.
    pub width: usize,
    /// Samples of the window.
    pub samples: usize,
    /// Wanted rank within the window.
    pub rank: u16,
}

/// Row `b` has 1 in the bins from `b` on: what a sample in bin `b` adds to cumulative bins.
struct Steps<const B: usize>;

impl<const B: usize> Steps<B> {
    const UP: [Bins<B>; B] = {
        let mut table = [[0; B]; B];
        let mut row = 0;
        while row < B {
            let mut bin = row;
            while bin < B {
                table[row][bin] = 1;
                bin += 1;
            }
            row += 1;
        }
        table
    };
}

#[inline(always)]
fn count_body<T: Rankable, const B: usize>(columns: &mut [Bins<B>], rows: Change<'_, T>, step: usize) {
    let up = &Steps::<B>::UP;
    let columns = columns.chunks_exact_mut(B + 1);
    match rows {
        Change::Enter(values) => {
            for (column, value) in columns.zip(values.iter().step_by(step)) {
                let key = value.key() as usize;
                let (high, low) = (&up[key / B % B], &up[key % B]);
                for i in 0..B {
                    column[0][i] = column[0][i].wrapping_add(high[i]);
                }
                let fine = &mut column[1 + key / B % B];
                for i in 0..B {
                    fine[i] = fine[i].wrapping_add(low[i]);
                }
            }
        }
        Change::Swap { entering, leaving } => {
            for ((column, new), old) in columns.zip(entering.iter().step_by(step)).zip(leaving.iter().step_by(step)) {
                let (new, old) = (new.key() as usize, old.key() as usize);
                let (high, low) = (&up[new / B % B], &up[new % B]);
                let (old_high, old_low) = (&up[old / B % B], &up[old % B]);
                for i in 0..B {
                    column[0][i] = column[0][i].wrapping_add(high[i]).wrapping_sub(old_high[i]);
                }
                let fine = &mut column[1 + new / B % B];
                for i in 0..B {
                    fine[i] = fine[i].wrapping_add(low[i]);
                }
                let fine = &mut column[1 + old / B % B];
                for i in 0..B {
                    fine[i] = fine[i].wrapping_sub(old_low[i]);
                }
            }
        }
    }
}

/// What happens to the columns.
#[derive(Clone, Copy)]
pub(super) enum Change<'a, T> {
    /// A row is new.
    Enter(&'a [T]),
    /// One row is new and another one is not under the window any more.
    Swap { entering: &'a [T], leaving: &'a [T] },
}

#[multiversion(targets("x86_64+avx2+fma+popcnt", "aarch64+neon"))]
fn count_fast<T: Rankable, const B: usize>(columns: &mut [Bins<B>], rows: Change<'_, T>, step: usize) {
    count_body(columns, rows, step);
}

/// Changes the columns by every `step`th sample of rows.
pub(super) fn count<T: Rankable, const B: usize>(level: Level, columns: &mut [Bins<B>], rows: Change<'_, T>, step: usize) {
    match level {
        Level::Plain => count_body(columns, rows, step),
        Level::Simd => count_fast(columns, rows, step),
    }
}

/// Counts that do not exceed `rank`.
#[inline(always)]
fn bin<const B: usize>(sums: &[u16; B], rank: u16) -> usize {
    // Loaded as whole registers: otherwise the compiler keeps single bins apart, which costs a store and a load for each.
    let sums = *black_box(sums);
    let mut below = 0u32;
    for i in 0..B {
        below += u32::from(sums[i] <= rank);
    }
    below as usize
}

#[inline(always)]
fn sweep_body<T: Rankable, const B: usize>(sweep: Sweep, columns: &[Bins<B>], out: &mut [T]) {
    let stride = B + 1;
    let mut coarse = [0u16; B];
    let mut fine = [[0u16; B]; B];
    // Window that the fine bins stand for.
    let mut place = [usize::MAX; B];
    for column in columns.chunks_exact(stride).take(sweep.width - 1) {
        for i in 0..B {
            coarse[i] += u16::from(column[0][i]);
        }
    }
    for (x, o) in out.iter_mut().enumerate() {
        let entering = &columns[(x + sweep.width - 1) * stride];
        for i in 0..B {
            coarse[i] += u16::from(entering[i]);
        }
        let high = bin(&coarse, sweep.rank).min(B - 1);
        let rest = sweep.rank.wrapping_sub(if high > 0 { coarse[high - 1] } else { 0 });
        let sums = &mut fine[high];
        let from = place[high];
        if from > x || x - from >= sweep.width {
            *sums = [0; B];
            for column in columns[x * stride..(x + sweep.width) * stride].chunks_exact(stride) {
                for i in 0..B {
                    sums[i] += u16::from(column[1 + high][i]);
                }
            }
        } else {
            for left in from..x {
                let (leaving, entering) = (&columns[left * stride + 1 + high], &columns[(left + sweep.width) * stride + 1 + high]);
                for i in 0..B {
                    sums[i] = sums[i].wrapping_add(u16::from(entering[i])).wrapping_sub(u16::from(leaving[i]));
                }
            }
        }
        place[high] = x;
        *o = T::from_key((high * B + bin(sums, rest)) as u32);
        let leaving = &columns[x * stride];
        for i in 0..B {
            coarse[i] -= u16::from(leaving[i]);
        }
    }
}

/// Eight bins as one number; bytes never carry into each other, as no sum exceeds 255 and none falls below 0.
#[inline(always)]
fn eight<const B: usize>(bins: &Bins<B>, index: usize) -> u64 {
    bins.as_chunks::<8>().0.get(index).map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// Bins that do not exceed `rank`.
#[inline(always)]
fn small_bin<const B: usize>(sums: &[u64; LONGS], rank: u8) -> usize {
    let mut below = 0;
    for sum in sums.iter().take(B / 8) {
        for byte in sum.to_le_bytes() {
            below += u32::from(byte <= rank);
        }
    }
    below as usize
}

/// Numbers of eight bins at most.
const LONGS: usize = 8;

/// As [`sweep_body`], for windows of `W` columns and at most 255 samples: sums are bytes, and adding the fine bins of all columns
/// anew costs less than the branches that would avoid it. `places` holds each output's coarse bin and rank within it.
#[inline(always)]
fn small_body<T: Rankable, const B: usize, const W: usize>(sweep: Sweep, columns: &[Bins<B>], places: &mut [[u8; 2]], out: &mut [T]) {
    let stride = B + 1;
    let rank = sweep.rank as u8;
    let mut coarse = [0u64; LONGS];
    for column in columns.chunks_exact(stride).take(W - 1) {
        for i in 0..B / 8 {
            coarse[i] += eight(&column[0], i);
        }
    }
    for (place, window) in places.iter_mut().zip(columns.windows((W - 1) * stride + 1).step_by(stride)) {
        let entering = &window[(W - 1) * stride];
        for i in 0..B / 8 {
            coarse[i] += eight(entering, i);
        }
        let bin = small_bin::<B>(&coarse, rank) % B;
        let below = if bin > 0 { (coarse[(bin - 1) / 8] >> (8 * ((bin - 1) % 8))) as u8 } else { 0 };
        *place = [bin as u8, rank.wrapping_sub(below)];
        for i in 0..B / 8 {
            coarse[i] -= eight(&window[0], i);
        }
    }
    for ((o, window), &[high, rest]) in out.iter_mut().zip(columns.windows(W * stride).step_by(stride)).zip(&*places) {
        let window = &window[..W * stride];
        let high = usize::from(high) % B;
        let mut fine = [0u64; LONGS];
        for column in 0..W {
            for i in 0..B / 8 {
                fine[i] += eight(&window[column * stride + 1 + high], i);
            }
        }
        *o = T::from_key((high * B + small_bin::<B>(&fine, rest)) as u32);
    }
}

#[inline(always)]
fn any_body<T: Rankable, const B: usize>(sweep: Sweep, columns: &[Bins<B>], places: &mut [[u8; 2]], out: &mut [T]) {
    // With more bins the sums take too many registers.
    match sweep.width {
        _ if B > 16 || sweep.samples > 255 => sweep_body(sweep, columns, out),
        9 => small_body::<T, B, 9>(sweep, columns, places, out),
        11 => small_body::<T, B, 11>(sweep, columns, places, out),
        13 => small_body::<T, B, 13>(sweep, columns, places, out),
        15 => small_body::<T, B, 15>(sweep, columns, places, out),
        _ => sweep_body(sweep, columns, out),
    }
}

#[multiversion(targets("x86_64+avx2+fma+popcnt", "aarch64+neon"))]
fn sweep_fast<T: Rankable, const B: usize>(sweep: Sweep, columns: &[Bins<B>], places: &mut [[u8; 2]], out: &mut [T]) {
    any_body(sweep, columns, places, out);
}

/// One output row from the columns under it; there are `sweep.width − 1` more columns than outputs. `places` is scratch, as long as
/// the row.
pub(super) fn sweep_row<T: Rankable, const B: usize>(
    level: Level,
    sweep: Sweep,
    columns: &[Bins<B>],
    places: &mut [[u8; 2]],
    out: &mut [T],
) {
    match level {
        Level::Plain => any_body(sweep, columns, places, out),
        Level::Simd => sweep_fast(sweep, columns, places, out),
    }
}
