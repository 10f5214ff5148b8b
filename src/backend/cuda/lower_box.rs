//! Launches of the integer box filters, `kernels/box_packed.cu` and `kernels/box_wide.cu`, or why they do not fit.

use super::spec::{Buffer, Params, Spec};
use super::variants::Task;
use crate::filter::plan::BoxMean;
use crate::frame::Sample;

/// Largest radius of the packed kernel.
const PACKED_RADIUS: usize = 31;
/// Columns that a block of the packed kernel reads; COLUMNS in its source.
const PACKED_COLUMNS: usize = 256;
/// Threads of a block of the packed kernel: 64 across, each group of 8 rows of them a chunk.
const PACKED_THREADS: usize = 512;
/// Shared memory that a launch asks for at most.
const SHARED_BYTES: usize = 46 << 10;

/// Rows of a tile of the packed kernel: as many as let every thread load the same number of rows, near the number that measured best.
fn packed_rows(radius: usize) -> usize {
    let chunks = PACKED_THREADS / (PACKED_COLUMNS / 4);
    let wanted = if radius <= 15 { 34 } else { 42 };
    (wanted + 2 * radius).div_ceil(chunks) * chunks - 2 * radius
}

/// One pass over 8-bit samples in one launch.
pub(super) fn packed(task: &Task, op: BoxMean) -> Result<Vec<Spec>, String> {
    let (rx, ry) = (op.radius_x, op.radius_y);
    let limit = PACKED_RADIUS / task.components;
    if task.format().sample() != Sample::U8 || op.power != 1 {
        return Err("it makes one pass over 8-bit samples".to_owned());
    }
    if rx > limit || ry > PACKED_RADIUS || rx + ry == 0 {
        return Err(format!("its radius is 1 to {limit} across and {PACKED_RADIUS} down; this filter has {rx} and {ry}"));
    }
    let rows = packed_rows(ry);
    let across = PACKED_COLUMNS - 2 * (rx * task.components).next_multiple_of(8);
    let spec = Spec::new(task, "box_packed.cu", "box__packed").define("RADIUS_X", rx).define("RADIUS_Y", ry);
    Ok(vec![spec.define("TILE_Y", rows).define("THREADS", PACKED_THREADS).tile(across, rows).threads(PACKED_THREADS)])
}

/// What divides sums by `divisor` with one multiplication: `⌊sum / divisor⌋ = sum · magic >> (32 + shift)` for every sum up to `largest`.
fn quotient(divisor: u64, largest: u64) -> Option<(u32, u32)> {
    let shift = divisor.checked_ilog2()?;
    let power = 1u128 << (32 + shift);
    let magic = power.div_ceil(u128::from(divisor));
    let excess = magic * u128::from(divisor) - power;
    let magic = u32::try_from(magic).ok()?;
    (largest <= u64::from(u32::MAX) && u128::from(largest) * excess < power).then_some((magic, shift))
}

/// Threads of a column block; CHUNKS in the source is a quarter of them.
const COLUMN_THREADS: usize = 1024;
/// Quads of columns that a block takes together; ACROSS in the source.
const COLUMN_QUADS: usize = 4;
/// Prefix sums at the chunks' borders: 4 words for each quad and chunk, and two more for each column.
const COLUMN_SHARED: usize = 4 * COLUMN_QUADS * (COLUMN_THREADS / COLUMN_QUADS + 2) * 4;
/// Samples that a warp of the row kernel takes together; SPAN in the source.
const ROW_SPAN: usize = 512;

/// One pass over integer samples in two launches, any radius whose sums fit 32 bits.
pub(super) fn wide(task: &Task, op: BoxMean) -> Result<Vec<Spec>, String> {
    let format = task.format();
    if format.sample().is_float() || op.power != 1 {
        return Err("it makes one pass over integer samples".to_owned());
    }
    let count = (2 * op.radius_x + 1) as u64 * (2 * op.radius_y + 1) as u64;
    let largest = ((1u64 << format.depth) - 1).checked_mul(count).and_then(|sum| sum.checked_add(count / 2));
    let Some((magic, shift)) = largest.and_then(|largest| quotient(count, largest)).filter(|_| count > 1) else {
        return Err(format!("a window of {count} samples of {} bits is too large for 32-bit sums", format.depth));
    };
    let sizes = || task.planes.iter().map(|&p| task.shape.plane_size(p));
    let widest = sizes().map(|(w, _)| w * task.components).max().unwrap_or(1);
    let highest = sizes().map(|(_, h)| h).max().unwrap_or(1);
    let prefix = (widest + 8) * 4;
    if prefix > SHARED_BYTES {
        return Err(format!("the sums of a row of {widest} samples do not fit shared memory"));
    }
    let strip = highest * COLUMN_QUADS * 4 * format.sample().bytes();
    let staged = strip + COLUMN_SHARED <= SHARED_BYTES;
    let down = Spec::new(task, "box_wide.cu", "box__columns").define("ACROSS", COLUMN_QUADS).define("THREADS", COLUMN_THREADS);
    let mut down = down.define("STAGED", usize::from(staged)).params(Params::default().ints([op.radius_y as i32]));
    down = down.tile(4 * COLUMN_QUADS, usize::MAX).threads(COLUMN_THREADS).between(Buffer::Source, Buffer::Scratch(0));
    down.shared = if staged { strip } else { 0 };
    // A warp for every ROW_SPAN samples of the widest row; by powers of two, so that few compiled kernels cover every width.
    let threads = 32 * widest.div_ceil(ROW_SPAN).next_power_of_two().min(16);
    let across = Spec::new(task, "box_wide.cu", "box__across").define("THREADS", threads);
    let params = Params::default().ints([op.radius_x as i32, (count / 2) as i32, magic as i32, shift as i32]);
    let mut across = across.params(params).tile(usize::MAX, 1).threads(threads).between(Buffer::Scratch(0), Buffer::Target);
    across.shared = prefix;
    Ok(vec![down, across])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotients_are_exact_at_every_multiple_and_just_below() {
        for divisor in [3u64, 9, 225, 961, 3969, 121 * 81, 1001 * 1401, 2049 * 2049] {
            let largest = 255 * divisor + divisor / 2;
            let (magic, shift) = quotient(divisor, largest).unwrap();
            let by_product = |sum: u64| ((u128::from(sum) * u128::from(magic)) >> (32 + shift)) as u64;
            for multiple in 0..=255 {
                for sum in [multiple * divisor, multiple * divisor + divisor / 2, (multiple + 1) * divisor - 1] {
                    assert_eq!(by_product(sum.min(largest)), sum.min(largest) / divisor, "{sum} / {divisor}");
                }
            }
        }
        assert_eq!(quotient(0, 1), None);
        assert_eq!(quotient(3, 1 << 32), None);
    }

    #[test]
    fn rows_of_a_packed_tile_share_out_evenly_and_fit_shared_memory() {
        for radius in 0..=PACKED_RADIUS {
            let rows = packed_rows(radius);
            assert!(rows.is_multiple_of(2) && (rows + 2 * radius).is_multiple_of(8) && rows * 528 <= SHARED_BYTES, "{radius}: {rows}");
        }
    }
}
