//! Launches of the register-only kernels for small general kernels, `kernels/direct_integer.cu` and `kernels/direct_small.cu`.

use super::spec::{Finish, Params, Spec, centred_taps, sum};
use super::variants::Task;
use crate::filter::plan::Direct;
use crate::frame::Sample;

/// Largest kernel of whole weights, either way.
const INTEGER_SIZE: usize = 9;
/// Code values that a result may reach before it is clamped: the kernel finds its floor in the low bits of a float.
const RANGE: f64 = 4_000_000.0;
/// Rows that a lane of the float kernel makes; ROWS in the source.
const FLOAT_ROWS: usize = 4;
/// Warps of a block, below each other; WARPS in the sources.
const WARPS: usize = 4;
const FLOAT_WARPS: usize = 2;

/// Rows that a lane of the integer kernel makes: more share more loads, fewer leave the GPU more warps to hide latency with, which a
/// small frame needs.
fn integer_rows(task: &Task) -> usize {
    if task.samples() > 8 << 20 { 4 } else { 2 }
}

/// Whole weights of −128 to 127 on 8-bit samples.
pub(super) fn integer(task: &Task, op: &Direct) -> Result<Vec<Spec>, String> {
    let format = task.format();
    if format.sample() != Sample::U8 || task.components != 1 {
        return Err("it takes planes of 8-bit samples of one component".to_owned());
    }
    if op.width > INTEGER_SIZE || op.height > INTEGER_SIZE {
        return Err(format!("its kernels have {INTEGER_SIZE}x{INTEGER_SIZE} taps at most; this one has {}x{}", op.width, op.height));
    }
    if let Some(weight) = op.taps.iter().find(|w| w.fract() != 0.0 || !(-128.0..=127.0).contains(*w)) {
        return Err(format!("its weights are whole numbers from -128 to 127; {weight} is not"));
    }
    let word = |four: &[f32]| four.iter().rev().fold(0u32, |word, &w| word << 8 | u32::from(w as i8 as u8));
    let mut params = Params::default();
    for row in op.taps.chunks_exact(op.width.max(1)) {
        params.words.extend(row.chunks(4).map(word));
    }
    let finish = Finish::new(format, 0.0, sum(&op.taps), op.scale, op.bias);
    let sizes: f64 = op.taps.iter().map(|w| f64::from(w.abs())).sum();
    let reach = sizes * f64::from(format.max_value()) * f64::from(finish.scale.abs()) + f64::from(finish.offset.abs());
    if reach.is_nan() || reach >= RANGE {
        return Err(format!("its results are limited to {RANGE} code values; this kernel's reach {reach:.0}"));
    }
    let params = params.finish(finish);
    let spec = Spec::new(task, "direct_integer.cu", "direct__integer").define("WIDTH", op.width).define("HEIGHT", op.height);
    let rows = integer_rows(task);
    let spec = spec.define("ROWS", rows).params(params);
    Ok(vec![spec.tile(256, rows * WARPS).threads(32 * WARPS)])
}

/// Up to 3 × 3 taps on float samples.
pub(super) fn registers(task: &Task, op: &Direct) -> Result<Vec<Spec>, String> {
    let format = task.format();
    if format.sample() != Sample::F32 || task.components != 1 || op.width > 3 || op.height > 3 {
        return Err(format!("it takes float planes of one component and up to 3x3 taps; this kernel has {}x{}", op.width, op.height));
    }
    let row = |y: usize| op.taps.get(y * op.width..(y + 1) * op.width).unwrap_or_default();
    // Rows as columns: around the anchor, padded with zeros.
    let above = 1 - op.height / 2;
    let rows = (0..3usize).flat_map(|y| y.checked_sub(above).map_or_else(|| vec![0.0; 3], |y| centred_taps(row(y), 1)));
    let params = Params::default().floats(rows).finish(Finish::new(format, 0.0, sum(&op.taps), op.scale, op.bias));
    let spec = Spec::new(task, "direct_small.cu", "direct__registers").define("ROWS", FLOAT_ROWS).define("WARPS", FLOAT_WARPS);
    let spec = spec.define("UNIT", usize::from(op.scale == 1.0)).params(params);
    Ok(vec![spec.tile(120, FLOAT_ROWS * FLOAT_WARPS).threads(32 * FLOAT_WARPS)])
}
