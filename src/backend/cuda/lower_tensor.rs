//! Launches of `kernels/tensor.cu`, and the operands that its lanes hold: banded Toeplitz matrices of the weights, in two parts.
//!
//! A lane `l` has row (or column) `l / 4` of an operand and the pair of elements that begins at `2 (l mod 4)`, as `mma.sync` wants it.

use half::{bf16, f16};

use super::spec::{Finish, Params, Spec, Weights, centred_taps, sum, ties};
use super::variants::Task;
use crate::filter::plan::{Direct, Separable};
use crate::frame::{PixelFormat, Sample};

/// Samples across that a block makes: 8 warps of 16.
const TILE_X: usize = 128;
/// Rows of a block of the general kernel: more would not leave registers for a second block.
const DIRECT_ROWS: usize = 32;
/// Threads of a block.
const THREADS: usize = 256;
/// Static shared memory that every GPU has.
const SHARED_BYTES: usize = 48 << 10;
/// Largest reach across in samples, and largest radius down.
const REACH: usize = 32;
/// Deepest integer samples: codes of 10 bits are exact in half, and so is what the staging does to them.
const DEPTH: u8 = 10;

/// How a kernel's columns lie in products of 16.
#[derive(Clone, Copy)]
struct Across {
    radius: usize,
    components: usize,
    /// Columns staged to the left of the first output.
    pad: usize,
    /// Products of 16 columns.
    steps: usize,
}

impl Across {
    fn new(radius: usize, components: usize) -> Self {
        let reach = radius * components;
        let pad = reach.next_multiple_of(8);
        Self { radius, components, pad, steps: (pad + 16 + reach).div_ceil(16) }
    }

    /// Bytes of a staged row; PITCH in the source.
    fn pitch(self) -> usize {
        (((TILE_X - 16 + 16 * self.steps) / 8) | 1) * 16
    }

    /// The left operand of one row of 2 · radius + 1 taps: 16 outputs × 16 `steps` columns. Output m of the matrix is column 2 m below 8,
    /// and 2 (m − 8) + 1 from there on.
    fn operand(self, taps: &[f32], scale: f32, part: impl Fn(f32) -> u16) -> Vec<u32> {
        let element = |m: usize, column: usize| {
            let output = if m < 8 { 2 * m } else { 2 * (m - 8) + 1 };
            let first = output + self.pad - self.radius * self.components;
            let tap = column.checked_sub(first).filter(|distance| distance % self.components == 0);
            part(tap.and_then(|distance| taps.get(distance / self.components)).copied().unwrap_or(0.0) * scale)
        };
        let mut words = Vec::with_capacity(self.steps * 128);
        for step in 0..self.steps {
            for lane in 0..32 {
                for register in 0..4 {
                    let (m, column) = (lane / 4 + 8 * (register % 2), 16 * step + 2 * (lane % 4) + 8 * (register / 2));
                    words.push(u32::from(element(m, column)) | u32::from(element(m, column + 1)) << 16);
                }
            }
        }
        words
    }
}

/// The right operands of a column of 2 · radius + 1 taps: `tiles` of 8 rows × 8 outputs.
fn column_operand(taps: &[f32], tiles: usize, scale: f32, part: impl Fn(f32) -> u16) -> Vec<u32> {
    let element = |row: usize, output: usize| part(row.checked_sub(output).and_then(|tap| taps.get(tap)).copied().unwrap_or(0.0) * scale);
    let lanes = (0..tiles).flat_map(|tile| (0..32).map(move |lane| (8 * tile + 2 * (lane % 4), lane / 4)));
    lanes.map(|(row, output)| u32::from(element(row, output)) | u32::from(element(row + 1, output)) << 16).collect()
}

/// A weight's upper and lower part, as bits: a whole number of at most 11 bits and the rest in halves, or two bfloats.
#[derive(Clone, Copy)]
enum Parts {
    Half,
    Bfloat,
}

impl Parts {
    fn upper(self, weight: f32) -> u16 {
        match self {
            Self::Half => f16::from_f32(weight.round()).to_bits(),
            Self::Bfloat => bf16::from_f32(weight).to_bits(),
        }
    }

    fn lower(self, weight: f32) -> u16 {
        match self {
            Self::Half => f16::from_f32(weight - weight.round()).to_bits(),
            Self::Bfloat => bf16::from_f32(weight - bf16::from_f32(weight).to_f32()).to_bits(),
        }
    }
}

/// Largest whole part of a weight: half's 11 bits.
const WHOLE: f64 = 2048.0;
/// What sums of whole numbers stay below, with room for the rounding of each weight.
const EXACT: f64 = 16_000_000.0;

fn largest(taps: &[f32]) -> f64 {
    taps.iter().map(|w| f64::from(w.abs())).fold(0.0, f64::max)
}

fn size(taps: &[f32]) -> f64 {
    taps.iter().map(|w| f64::from(w.abs())).sum()
}

/// The largest power of two, as an exponent, that keeps `value` at or below `limit`; 0 for a value that has none.
fn exponent_below(value: f64, limit: f64) -> i32 {
    let exponent = (limit / value).log2().floor();
    if exponent.is_finite() { exponent.clamp(-60.0, 60.0) as i32 } else { 0 }
}

fn exact(taps: &[f32], scale: f32, parts: Parts) -> bool {
    taps.iter().all(|&w| parts.lower(w * scale) & 0x7fff == 0)
}

fn size_fits(task: &Task, rx: usize, ry: usize) -> Result<(), String> {
    let limit = REACH / task.components;
    if rx <= limit && ry <= REACH {
        return Ok(());
    }
    Err(format!("its radius is limited to {limit} across and {REACH} down; this kernel has {rx} and {ry}"))
}

fn depth_fits(format: PixelFormat) -> Result<(), String> {
    if format.sample().is_float() || format.depth <= DEPTH {
        return Ok(());
    }
    Err(format!("samples of more than {DEPTH} bits are not exact in half; these have {}", format.depth))
}

/// The end of a kernel. Weights of few decimals make many exact ties, which are rounded up: sums that are off by a few 2^-24 of the range
/// must not fall below them, so the offset is larger by as much. One sample in 10,000 that lies just below a tie is rounded up with them.
fn finish_of(format: PixelFormat, weights: f64, scale: f32, bias: f32) -> Finish {
    let mut finish = Finish::new(format, 0.0, weights, scale, bias);
    if !format.sample().is_float() {
        finish.offset += format.max_value() * (-22f32).exp2();
    }
    finish
}

/// Refuses weights that are not exact in halves and whose sums are often midway between two codes.
fn ties_seen(format: PixelFormat, row: &[f32], col: &[f32], scale: f32) -> Result<(), String> {
    let doubles = |taps: &[f32], scale: f32| taps.iter().map(|&w| f64::from(w) * f64::from(scale)).collect::<Vec<_>>();
    match ties(&doubles(row, scale), &doubles(col, 1.0)).filter(|_| !format.sample().is_float()) {
        Some(k) => Err(format!(
            "its weights are multiples of 1/{k}: one sample in {k} lies midway between two codes, and halves would not see which way"
        )),
        None => Ok(()),
    }
}

/// What the end of a kernel of 8-bit samples comes down to where its scale is a power of two and no result leaves the range: sums that
/// start with the offset, in units of the scale.
fn folded(format: PixelFormat, weights: Weights<'_>, scale: f32, bias: f32, finish: Finish) -> Option<f32> {
    let power = scale > 0.0 && scale.to_bits() & 0x007f_ffff == 0;
    let bounded = bias == 0.0 && weights.non_negative() && weights.sum() * f64::from(scale) <= 1.0 + 1e-6;
    (format.sample() == Sample::U8 && power && bounded).then(|| finish.offset / finish.scale)
}

/// Separable kernels of integer samples in one launch.
pub(super) fn separable(task: &Task, op: &Separable) -> Result<Vec<Spec>, String> {
    let format = task.format();
    if format.sample().is_float() {
        return Err("its sums in halves are too coarse for float samples".to_owned());
    }
    depth_fits(format)?;
    let (rx, ry) = (op.row.len() / 2, op.col.len() / 2);
    size_fits(task, rx, ry)?;
    let (row, col) = (centred_taps(&op.row, rx), centred_taps(&op.col, ry));
    let across = Across::new(rx, task.components);
    let tiles = 1 + ry.div_ceil(4);
    let shared = |rows: usize| (rows + 8 * (tiles - 1)) * across.pitch();
    let Some(rows) = [64, 32].into_iter().find(|&rows| shared(rows) <= SHARED_BYTES) else {
        return Err(format!("a tile with its halo needs {} bytes of shared memory, more than the 48 KiB that every GPU has", shared(32)));
    };
    // Whole parts of weights stay within 11 bits, and their products' sums below 2^24: those of the first pass in samples, those of the
    // second in 32nds of half's range.
    let (reach_x, reach_y) = (size(&row) * f64::from(format.max_value()), size(&col));
    let ex = exponent_below(largest(&row), WHOLE).min(exponent_below(reach_x, EXACT));
    let ey = exponent_below(largest(&col), WHOLE).min(exponent_below(reach_y, EXACT / WHOLE / 0.5));
    // Brings the first pass's sums below 2^15.
    let shrink = -(exponent_below(reach_x * f64::from(ex).exp2() + f64::from(format.max_value()), 32768.0));
    if ex < -20 || ey < -20 || !(-60..=60).contains(&shrink) {
        return Err("its weights are too large for half".to_owned());
    }
    let (scale_x, scale_y) = ((ex as f32).exp2(), (ey as f32).exp2());
    let (split_x, split_y) = (!exact(&row, scale_x, Parts::Half), !exact(&col, scale_y, Parts::Half));
    if split_x || split_y {
        ties_seen(format, &row, &col, op.scale)?;
    }
    let mut table = across.operand(&row, scale_x, |w| Parts::Half.upper(w));
    if split_x {
        table.extend(across.operand(&row, scale_x, |w| Parts::Half.lower(w)));
    }
    table.extend(column_operand(&col, tiles, scale_y, |w| Parts::Half.upper(w)));
    if split_y {
        table.extend(column_operand(&col, tiles, scale_y, |w| Parts::Half.lower(w)));
    }
    let mut finish = finish_of(format, sum(&op.row) * sum(&op.col), op.scale, op.bias);
    finish.scale *= ((shrink - ex - ey) as f32).exp2();
    let weights = Weights::Product(&op.row, &op.col);
    let start = folded(format, weights, op.scale, op.bias, finish);
    let spec = Spec::new(task, "tensor.cu", "separable__tensor").define("RADIUS_X", rx).define("RADIUS_Y", ry).define("TILE_Y", rows);
    let spec = spec.define("SPLIT_X", usize::from(split_x)).define("SPLIT_Y", usize::from(split_y));
    let spec = spec.define("FOLDED", usize::from(start.is_some())).ends(format, weights, op.scale, op.bias).define("UNIT", 0);
    // Small kernels leave registers for more blocks.
    let blocks = match (across.steps, tiles) {
        (..=2, ..=3) => 3,
        (..=3, ..=5) => 2,
        _ => 1,
    };
    let spec = spec.define("GROUP", 2).define("BLOCKS", blocks);
    let params = Params::default().floats([(-shrink as f32).exp2(), start.unwrap_or(0.0)]).finish(finish);
    let mut spec = spec.params(params).tile(TILE_X, rows).threads(THREADS);
    spec.table = table;
    Ok(vec![spec])
}

/// General kernels of integer or float samples in one launch.
pub(super) fn direct(task: &Task, op: &Direct) -> Result<Vec<Spec>, String> {
    let format = task.format();
    depth_fits(format)?;
    let (rx, ry) = (op.width / 2, op.height / 2);
    size_fits(task, rx, ry)?;
    let (planes, parts) = if format.sample() == Sample::F32 { (2, Parts::Bfloat) } else { (1, Parts::Half) };
    let across = Across::new(rx, task.components);
    let shared = |rows: usize| planes * (rows + op.height - 1) * across.pitch();
    let rows = DIRECT_ROWS;
    if shared(rows) > SHARED_BYTES {
        return Err(format!("a tile with its halo needs {} bytes of shared memory, more than the 48 KiB that every GPU has", shared(rows)));
    }
    // The products of so many rows of whole weights are summed before they are rounded; FLUSH in the source.
    let group = op.taps.chunks(4 * op.width.max(1)).map(size).fold(0.0, f64::max) * f64::from(format.max_value());
    let exponent = if planes == 2 { 0 } else { exponent_below(largest(&op.taps), WHOLE).min(exponent_below(group, EXACT)) };
    if exponent < -20 {
        return Err("its weights are too large for half".to_owned());
    }
    let scale = (exponent as f32).exp2();
    let split = !exact(&op.taps, scale, parts);
    if split {
        ties_seen(format, &op.taps, &[1.0], op.scale)?;
    }
    let mut table = Vec::new();
    for row in op.taps.chunks_exact(op.width.max(1)) {
        let row = centred_taps(row, rx);
        table.extend(across.operand(&row, scale, |w| parts.upper(w)));
        if split {
            table.extend(across.operand(&row, scale, |w| parts.lower(w)));
        }
    }
    let mut finish = finish_of(format, sum(&op.taps), op.scale, op.bias);
    finish.scale /= scale;
    let weights = Weights::Table(&op.taps);
    let start = folded(format, weights, op.scale, op.bias, finish);
    let spec = Spec::new(task, "tensor.cu", "direct__tensor")
        .define("RADIUS_X", rx)
        .define("HEIGHT", op.height)
        .define("TILE_Y", rows)
        .define("BLOCKS", 2);
    let spec = spec.define("SPLIT", usize::from(split)).define("FOLDED", usize::from(start.is_some()));
    let spec = spec.ends(format, weights, op.scale, op.bias).define("UNIT", 0);
    let mut spec = spec.params(Params::default().floats([1.0, start.unwrap_or(0.0)]).finish(finish)).tile(TILE_X, rows).threads(THREADS);
    spec.table = table;
    Ok(vec![spec])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_weight_add_up() {
        for weight in [0.1f32, -3.7, 1.0, 777.25, 1e-3, 2047.4] {
            for (parts, bits) in [(Parts::Half, 11), (Parts::Bfloat, 16)] {
                let value = |b: u16| match parts {
                    Parts::Half => f16::from_bits(b).to_f32(),
                    Parts::Bfloat => bf16::from_bits(b).to_f32(),
                };
                let error = f64::from(value(parts.upper(weight)) + value(parts.lower(weight)) - weight).abs();
                // The rest of a weight beside a whole number is at most a half; two bfloats have 16 bits together.
                let limit = if bits == 11 { 0.5 } else { f64::from(weight.abs()) };
                assert!(error <= limit * (-f64::from(bits)).exp2() + 3e-8, "{weight}: {error}");
            }
        }
    }

    #[test]
    fn operands_times_samples_are_weighted_sums() {
        // Reads the operand as the hardware does, multiplies it with a row of samples and compares with the sum itself.
        for (radius, components) in [(1, 1), (7, 1), (8, 1), (9, 1), (15, 1), (32, 1), (7, 2), (16, 2)] {
            let taps: Vec<f32> = (0..=2 * radius).map(|i| (i * i % 7) as f32 - 2.0).collect();
            let across = Across::new(radius, components);
            let words = across.operand(&taps, 1.0, |w| f16::from_f32(w).to_bits());
            let sample = |column: usize| ((column * 37 + 11) % 64) as f32;
            for m in 0..16 {
                let output = if m < 8 { 2 * m } else { 2 * (m - 8) + 1 };
                let mut got = 0.0;
                for (index, word) in words.iter().enumerate() {
                    let (step, lane, register) = (index / 128, index % 128 / 4, index % 4);
                    if lane / 4 + 8 * (register % 2) == m {
                        let column = 16 * step + 2 * (lane % 4) + 8 * (register / 2);
                        got += f16::from_bits(*word as u16).to_f32() * sample(column);
                        got += f16::from_bits((word >> 16) as u16).to_f32() * sample(column + 1);
                    }
                }
                let first = across.pad + output - radius * components;
                let want: f32 = taps.iter().enumerate().map(|(i, w)| w * sample(first + i * components)).sum();
                assert_eq!(got, want, "radius {radius}, {components} components, output {output}");
            }
        }
    }

    #[test]
    fn weights_whose_sums_are_often_midway_are_left_to_others() {
        let gray = PixelFormat::gray(8);
        // 10 samples of 100 lie midway; a quarter is exact in halves, and floats are not rounded.
        let refused = ties_seen(gray, &[0.1, 0.2, 0.3, 0.4], &[1.0], 1.0).unwrap_err();
        assert!(refused.contains("multiples of 1/10"), "{refused}");
        assert!(ties_seen(gray, &[1.0, 2.0], &[3.0, 1.0], 1.0 / 12.0).unwrap_err().contains("1/12"));
        assert!(ties_seen(gray, &[1.0; 3], &[1.0; 3], 1.0 / 9.0).is_ok());
        assert!(ties_seen(PixelFormat::gray(32), &[0.1, 0.9], &[1.0], 1.0).is_ok());
        assert!(ties_seen(PixelFormat::gray(32).half(), &[0.1, 0.9], &[1.0], 1.0).is_ok());
    }

    #[test]
    fn exponents_keep_their_limits() {
        assert_eq!(exponent_below(255.0, 32768.0), 7);
        assert_eq!(exponent_below(0.0, 1.0), 0);
        assert_eq!(exponent_below(f64::INFINITY, 1.0), 0);
    }
}
