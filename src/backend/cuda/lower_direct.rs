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

/// Samples across and rows that a lane of the integer kernel makes, and whether what it writes leaves the caches first. More share more
/// loads; fewer leave the GPU more warps to hide latency with, which a small frame needs. Found by timing them all.
fn integer_lane(task: &Task, op: &Direct) -> (usize, usize, bool) {
    match (task.samples() > 8 << 20, op.width.max(op.height) <= 3) {
        (false, _) => (8, 2, false),
        (true, true) => (16, 3, true),
        (true, false) => (8, 4, false),
    }
}

/// The end of sums in whole numbers: `(sum · multiplier + addend) >> shift`, clamped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct WholeEnd {
    multiplier: i32,
    addend: i32,
    shift: u32,
}

/// Most sums that [`WholeEnd::find`] compares.
const COMPARED: f64 = (1 << 18) as f64;

impl WholeEnd {
    /// One that gives, for every sum from `least` to `most`, the code that `finish` does. None if none is found.
    fn find(least: f64, most: f64, finish: Finish) -> Option<Self> {
        let (scale, offset) = (f64::from(finish.scale), f64::from(finish.offset));
        // Beyond these sums codes are clamped, and both ends grow with the sum or both fall.
        let [a, b] = [-1.0, 256.0].map(|code| (code - offset) / scale);
        let (first, last) = (a.min(b).max(least).floor(), a.max(b).min(most).ceil());
        if !(first <= last && last - first < COMPARED) {
            return None;
        }
        let sums = || (0..=(last - first) as i64).map(|i| first as i64 + i);
        let code = |sum: i64| ((sum as f64 * scale + offset) as f32).floor().clamp(0.0, 255.0) as i64;
        let largest = least.abs().max(most.abs());
        let fits =
            |shift: &u32| scale.abs() * f64::from(*shift).exp2() * largest + (offset.abs() + scale.abs()) * f64::from(*shift).exp2() < 2e9;
        // The finer the better; up where the scale is a little too small for a tie, down where it is too large.
        let shifts = (0..=30).rev().filter(fits).take(3);
        let roundings: [fn(f64) -> f64; 3] = [f64::round, f64::ceil, f64::floor];
        let ends = shifts.flat_map(|shift| roundings.map(|rounding| (shift, rounding))).map(|(shift, rounding)| {
            let one = f64::from(shift).exp2();
            Self { multiplier: rounding(scale * one) as i32, addend: (offset * one).round() as i32, shift }
        });
        let same = |end: &Self| {
            sums().all(|sum| ((sum * i64::from(end.multiplier) + i64::from(end.addend)) >> end.shift).clamp(0, 255) == code(sum))
        };
        ends.filter(|end| end.multiplier != 0).find(same)
    }
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
    let reached = |sign: fn(f32) -> f32| op.taps.iter().map(|&w| f64::from(sign(w))).sum::<f64>() * f64::from(format.max_value());
    let whole = WholeEnd::find(reached(|w| w.min(0.0)), reached(|w| w.max(0.0)), finish);
    let end = whole.unwrap_or(WholeEnd { multiplier: 0, addend: 0, shift: 0 });
    let params = params.ints([end.multiplier, end.addend, end.shift as i32]).finish(finish);
    let (across, rows, streamed) = integer_lane(task, op);
    let spec = Spec::new(task, "direct_integer.cu", "direct__integer").define("WIDTH", op.width).define("HEIGHT", op.height);
    let spec = spec.define("ACROSS", across).define("ROWS", rows).define("FIXED", usize::from(whole.is_some()));
    let spec = spec.define("STREAMED", usize::from(streamed)).params(params);
    Ok(vec![spec.tile(32 * across, rows * WARPS).threads(32 * WARPS)])
}

/// Up to 3 × 3 taps on float samples, of 32 bits or 16.
pub(super) fn registers(task: &Task, op: &Direct) -> Result<Vec<Spec>, String> {
    let format = task.format();
    if !format.sample().is_float() || task.components != 1 || op.width > 3 || op.height > 3 {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn finish(scale: f32, bias: f32) -> Finish {
        Finish { scale, offset: bias + 0.5, base: 0 }
    }

    fn code(end: WholeEnd, sum: i32) -> i32 {
        ((sum * end.multiplier + end.addend) >> end.shift).clamp(0, 255)
    }

    #[test]
    fn ends_in_whole_numbers_round_ties_up_and_clamp() {
        for (divisor, bias) in
            [(1.0, 0.0), (2.0, 0.0), (9.0, 0.0), (12.0, 0.0), (16.0, 3.5), (37.0, 0.0), (37.0, -20.25), (255.0, 128.0), (-5.0, 255.0)]
        {
            let end =
                WholeEnd::find(-70.0 * 255.0, 120.0 * 255.0, finish(1.0 / divisor, bias)).unwrap_or_else(|| panic!("{divisor}, {bias}"));
            for sum in -70 * 255..=120 * 255 {
                // In whole numbers: floor(sum / divisor + bias + 1/2) as a fraction of 4 · |divisor|.
                let quarters = (4.0 * (bias + 0.5)) as i64 * divisor as i64 + 4 * i64::from(sum);
                let want = (quarters * divisor.signum() as i64).div_euclid(4 * (divisor as i64).abs()).clamp(0, 255);
                assert_eq!(i64::from(code(end, sum)), want, "{sum} / {divisor} + {bias}, {end:?}");
            }
        }
    }

    #[test]
    fn ends_that_whole_numbers_cannot_give_are_left_to_floats() {
        // Too many sums to compare, a scale of 0, a scale too small for 31 bits.
        assert_eq!(WholeEnd::find(-2e6, 2e6, finish(1e-6, 0.0)), None);
        assert_eq!(WholeEnd::find(0.0, 100.0, finish(0.0, 0.0)), None);
        assert_eq!(WholeEnd::find(0.0, 2295.0, finish(f32::NAN, 0.0)), None);
    }
}
