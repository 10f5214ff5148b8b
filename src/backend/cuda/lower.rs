//! Each variant's launches for a task, or why it does not fit.

use super::lower_box;
use super::spec::{Buffer, Finish, Params, Spec, Weights, bucket, centre, centred_taps, sum};
use super::variants::{Task, family};
use crate::filter::Border;
use crate::filter::math::border_index;
use crate::filter::plan::{BoxMean, Direct, Gradient, PlaneOp, Separable, Unsharp};

/// Warps of a block of the register-blocked kernels; WARPS in `kernels/`.
pub(super) const WARPS: usize = 4;
/// As [`WARPS`], for the fused separable kernels, whose warps share nothing.
const FUSED_WARPS: usize = 2;
/// Rows of samples that a warp makes; ROWS in `kernels/`. More share more work between rows, fewer hide latency better.
pub(super) const TILED_ROWS: usize = 4;
/// As [`TILED_ROWS`], for gradients.
const GRADIENT_ROWS: usize = 4;

/// As [`TILED_ROWS`], for the fused box: a high window costs more to begin than to slide.
fn box_rows(radius: usize) -> usize {
    if radius <= 7 { 4 } else { 8 }
}

/// As [`TILED_ROWS`], for the fused separable kernels.
fn fused_rows(radius: usize) -> usize {
    if radius <= 2 { 4 } else { 8 }
}
/// Largest radius that the fused separable kernel is compiled for.
const FUSED_RADIUS: usize = 32;
/// Largest radius that the fused box kernel is compiled for.
const BOX_RADIUS: usize = 31;
/// Most taps that the tiled kernel unrolls.
pub(super) const UNROLLED_TAPS: usize = 121;
/// Most taps per sample that a naive kernel takes: 127 × 127, the largest convolution.
const NAIVE_TAPS: usize = 127 * 127;

/// For a row that is asked for another family's operation.
pub(super) fn wrong(op: &PlaneOp) -> String {
    format!("it does not execute {} kernels", family(op))
}

pub(super) fn lower_fused(task: &Task, op: &Separable) -> Result<Vec<Spec>, String> {
    let (rx, ry) = (bucket(op.row.len() / 2), bucket(op.col.len() / 2));
    let limit = FUSED_RADIUS / task.components;
    if rx > limit || ry > FUSED_RADIUS {
        return Err(format!(
            "its radius is limited to {limit} across and {FUSED_RADIUS} down; this kernel has {} and {}",
            op.row.len() / 2,
            op.col.len() / 2
        ));
    }
    let format = task.format();
    let finish = Finish::new(format, centre(format), sum(&op.row) * sum(&op.col), op.scale, op.bias);
    let params = Params::default().weights(format, centred_taps(&op.col, ry)).weights(format, centred_taps(&op.row, rx)).finish(finish);
    let spec = Spec::new(task, "separable.cu", "separable__fused").centred(format).blocked(rx, ry, fused_rows(ry), FUSED_WARPS);
    Ok(vec![spec.ends(format, Weights::Product(&op.row, &op.col), op.scale, op.bias).params(params)])
}

pub(super) fn lower_two_pass(task: &Task, op: &Separable) -> Vec<Spec> {
    let format = task.format();
    let pass = |taps: &[f32], outside: f64, finish: Finish| {
        let count = taps.len().next_multiple_of(8);
        let params = Params::default().ints([count as i32, (taps.len() / 2) as i32]).wide(format, [outside]).finish(finish);
        (params, taps.iter().copied().chain(std::iter::repeat_n(0.0, count - taps.len())).collect::<Vec<_>>())
    };
    let plain = Finish { scale: 1.0, offset: 0.0, base: 0 };
    let (rows, row_taps) = pass(&op.row, 0.0, plain);
    // Under the zero border a row outside is a row of zeros, that is, of −centre each.
    let outside = -f64::from(centre(format)) * sum(&op.row);
    let finish = Finish::new(format, centre(format), sum(&op.row) * sum(&op.col), op.scale, op.bias);
    let (cols, col_taps) = pass(&op.col, outside, finish);
    let spec = |entry| Spec::new(task, "separable.cu", entry).centred(format).threads(128);
    // Row sums of deep samples are doubles.
    let between = if centre(format) == 0.0 { Buffer::Scratch(0) } else { Buffer::Sums };
    vec![
        spec("separable__rows").tile(1024, 1).params(rows).table(row_taps).between(Buffer::Source, between),
        spec("separable__cols").tile(128, 8).params(cols).table(col_taps).between(between, Buffer::Target),
    ]
}

pub(super) fn within_naive(taps: usize) -> Result<(), String> {
    if taps <= NAIVE_TAPS { Ok(()) } else { Err(format!("it takes {NAIVE_TAPS} taps per sample at most; this kernel has {taps}")) }
}

pub(super) fn lower_separable_naive(task: &Task) -> Result<Vec<Spec>, String> {
    let PlaneOp::Separable(op) = &task.op else { return Err(wrong(&task.op)) };
    within_naive(op.row.len() * op.col.len())?;
    let format = task.format();
    let finish = Finish::new(format, centre(format), sum(&op.row) * sum(&op.col), op.scale, op.bias);
    let params = Params::default().ints([op.row.len() as i32, op.col.len() as i32]).finish(finish);
    let spec = Spec::new(task, "naive.cu", "separable__naive").centred(format).tile(32, 8).params(params);
    Ok(vec![spec.table(op.col.iter().chain(op.row.iter()).copied())])
}

pub(super) fn lower_direct_naive(task: &Task) -> Result<Vec<Spec>, String> {
    let PlaneOp::Direct(op) = &task.op else { return Err(wrong(&task.op)) };
    let format = task.format();
    let finish = Finish::new(format, centre(format), sum(&op.taps), op.scale, op.bias);
    let params = Params::default().ints([op.width as i32, op.height as i32]).finish(finish);
    Ok(vec![Spec::new(task, "naive.cu", "direct__naive").centred(format).tile(32, 8).params(params).table(op.taps.iter().copied())])
}

pub(super) fn lower_tiled(task: &Task, op: &Direct) -> Result<Vec<Spec>, String> {
    let format = task.format();
    let finish = Finish::new(format, centre(format), sum(&op.taps), op.scale, op.bias);
    let (rx, ry) = (op.width / 2, op.height / 2);
    let row = |y: usize| op.taps.get(y * op.width..(y + 1) * op.width).unwrap_or_default();
    if (2 * rx + 1) * (2 * ry + 1) <= UNROLLED_TAPS && rx * task.components <= 16 && ry <= 16 {
        let rows = (0..2 * ry + 1).flat_map(|y| centred_taps(row(y), rx));
        // A row beyond an even kernel's last is empty: centred_taps fills it with zeros.
        let params = Params::default().weights(format, rows).finish(finish);
        let spec = Spec::new(task, "direct.cu", "direct__tiled").centred(format).blocked(rx, ry, TILED_ROWS, WARPS);
        return Ok(vec![spec.ends(format, Weights::Table(&op.taps), op.scale, op.bias).params(params)]);
    }
    // Zero taps in front keep the first column a multiple of four; zero rows around spare the kernel every test.
    let left = rx.next_multiple_of(4);
    let pitch = (left - rx + op.width).next_multiple_of(8);
    let shared = 16 * (128 + pitch * task.components) * 4;
    if shared > 48 << 10 {
        return Err(format!("a band of its input needs {shared} bytes of shared memory, more than the 48 KiB that every GPU has"));
    }
    let around = BANDED_ROWS - 1;
    let mut table = vec![0.0; (op.height + 2 * around) * pitch];
    for y in 0..op.height {
        for (to, from) in table.iter_mut().skip((around + y) * pitch + left - rx).zip(row(y)) {
            *to = *from;
        }
    }
    let params = Params::default().ints([pitch as i32, op.height as i32, left as i32, ry as i32]).finish(finish);
    let spec = Spec::new(task, "direct.cu", "direct__banded").centred(format).define("ROWS", BANDED_ROWS).define("WARPS", WARPS);
    let mut spec = spec.tile(128, WARPS * BANDED_ROWS).threads(32 * WARPS).params(params).table(table);
    spec.shared = shared;
    Ok(vec![spec])
}

/// Rows per warp of the banded kernel: fewer than elsewhere, since its taps are in registers too.
const BANDED_ROWS: usize = 4;

pub(super) fn lower_box_naive(task: &Task) -> Result<Vec<Spec>, String> {
    let PlaneOp::Box(op) = task.op else { return Err(wrong(&task.op)) };
    if op.power != 1 {
        return Err(format!("it makes one pass; this filter makes {}", op.power));
    }
    within_naive((2 * op.radius_x + 1) * (2 * op.radius_y + 1))?;
    let params = Params::default().ints([op.radius_x as i32, op.radius_y as i32]);
    Ok(vec![Spec::new(task, "naive.cu", "box__naive").tile(32, 8).params(params)])
}

pub(super) fn lower_box_fused(task: &Task, op: BoxMean) -> Result<Vec<Spec>, String> {
    let (rx, ry) = (op.radius_x, op.radius_y);
    let format = task.format();
    if op.power != 1 {
        return lower_box_powers(task, op);
    }
    if let Ok(specs) = lower_box::packed(task, op) {
        return Ok(specs);
    }
    // Ones as taps. Exact for integers up to 12 bits and 15 x 15: the sums are whole, and a mean's distance from a tie, half
    // of 1/225, is above the product's error of 4096 / 2^24. Faster there, since nothing waits for a prefix sum.
    if format.sample().is_float() || (format.depth <= 12 && rx.max(ry) <= 7) {
        let ones = |radius: usize| vec![1.0f32; 2 * radius + 1].into();
        let scale = 1.0 / ((2 * rx + 1) * (2 * ry + 1)) as f32;
        return lower_fused(task, &Separable { row: ones(rx), col: ones(ry), scale, bias: 0.0 });
    }
    let limit = BOX_RADIUS / task.components;
    if rx > limit || ry > BOX_RADIUS {
        return Err(format!("its radius is limited to {limit} across and {BOX_RADIUS} down; this filter has {rx} and {ry}"));
    }
    Ok(vec![Spec::new(task, "box.cu", "box__fused").blocked(rx, ry, box_rows(ry), WARPS)])
}

/// Several passes as one kernel of radius power · radius, whose weights near the edge are what the passes make of them there.
fn lower_box_powers(task: &Task, op: BoxMean) -> Result<Vec<Spec>, String> {
    let (rx, ry) = (bucket(op.radius_x.saturating_mul(op.power)), bucket(op.radius_y.saturating_mul(op.power)));
    let limit = FUSED_RADIUS / task.components;
    if rx > limit || ry > FUSED_RADIUS {
        let reach = (op.radius_x.saturating_mul(op.power), op.radius_y.saturating_mul(op.power));
        return Err(format!(
            "radius times power is limited to {limit} across and {FUSED_RADIUS} down; this filter's are {} and {}",
            reach.0, reach.1
        ));
    }
    let format = task.format();
    if centre(format) != 0.0 {
        return Err("the mean's divisor, a float, is too coarse for samples of more than 12 bits".to_owned());
    }
    let (col, row) = (rims(op.radius_y, op.power, ry, task.border), rims(op.radius_x, op.power, rx, task.border));
    let middle = |table: &[f32], radius: usize| {
        table.get(radius * (2 * radius + 1)..).unwrap_or_default().get(..2 * radius + 1).map(<[f32]>::to_vec)
    };
    let (Some(col_taps), Some(row_taps)) = (middle(&col, ry), middle(&row, rx)) else {
        return Err("its weights have no middle".to_owned());
    };
    let scale = (1.0 / (sum(&row_taps) * sum(&col_taps))) as f32;
    match task.border {
        // A line continued by a mirror or by itself is still that after a symmetric pass: one border does for all passes.
        Border::Reflect | Border::Reflect101 | Border::Wrap => {
            return lower_fused(task, &Separable { row: row_taps.into(), col: col_taps.into(), scale, bias: 0.0 });
        }
        Border::Clamp | Border::Zero => {}
    }
    let sizes = || task.planes.iter().map(|&p| task.shape.plane_size(p));
    if sizes().any(|(w, h)| w < 2 * rx + 1 || h < 2 * ry + 1) {
        return Err(format!("planes must have {}x{} samples at least for this radius and power", 2 * rx + 1, 2 * ry + 1));
    }
    let finish = Finish::new(format, centre(format), sum(&row_taps) * sum(&col_taps), scale, 0.0);
    let params = Params::default().weights(format, col_taps.iter().copied()).weights(format, row_taps.iter().copied()).finish(finish);
    let spec = Spec::new(task, "separable.cu", "separable__fused").centred(format).blocked(rx, ry, fused_rows(ry), FUSED_WARPS);
    let spec = spec.ends(format, Weights::Product(&row_taps, &col_taps), scale, 0.0).define("RIMS", 1);
    Ok(vec![spec.params(params).table(col.into_iter().chain(row))])
}

/// Weights of `power` passes of a box of `radius` under the clamp or zero border, for every place within `reach` of either end of a
/// line, and in the middle for all others: (2 · `reach` + 1) × (2 · `reach` + 1) whole numbers. What lies outside has no weight, but under
/// the zero border, where it is worth nothing, one place there takes what is missing from the full sum.
fn rims(radius: usize, power: usize, reach: usize, border: Border) -> Vec<f32> {
    let (n, taps) = (4 * reach + 1, 2 * reach + 1);
    let inside = |i: i64| border_index(i, n as i64, border);
    // matrix[place][sample]
    let mut matrix: Vec<Vec<f64>> = (0..n).map(|i| (0..n).map(|j| f64::from(u8::from(i == j))).collect()).collect();
    for _ in 0..power {
        let window = |place: usize| (0..=2 * radius).filter_map(move |k| inside(place as i64 + k as i64 - radius as i64));
        let sum_of =
            |place: usize, sample: usize| window(place).map(|i| matrix.get(i as usize).and_then(|r| r.get(sample)).unwrap_or(&0.0)).sum();
        matrix = (0..n).map(|place| (0..n).map(|sample| sum_of(place, sample)).collect()).collect();
    }
    let full = (2.0 * radius as f64 + 1.0).powi(power as i32);
    let mut table = Vec::with_capacity(taps * taps);
    for class in 0..taps {
        // The line's middle stands for all places that are no rim.
        let place = match class.cmp(&reach) {
            std::cmp::Ordering::Less => class,
            std::cmp::Ordering::Equal => 2 * reach,
            std::cmp::Ordering::Greater => class + 2 * reach,
        };
        let at = |k: usize| (place + k).checked_sub(reach).and_then(|i| matrix.get(place)?.get(i)).copied();
        let mut weights: Vec<f64> = (0..taps).map(|k| at(k).unwrap_or(0.0)).collect();
        let missing = full - weights.iter().sum::<f64>();
        if missing != 0.0
            && let Some(outside) = (0..taps).find(|&k| at(k).is_none())
        {
            weights[outside] += missing;
        }
        table.extend(weights.into_iter().map(|w| w as f32));
    }
    table
}

pub(super) fn lower_box_running(task: &Task, op: BoxMean) -> Vec<Spec> {
    if let Ok(specs) = lower_box::wide(task, op) {
        return specs;
    }
    let format = task.format();
    let float = format.sample().is_float();
    let windows = [(2 * op.radius_x + 1) as u64, (2 * op.radius_y + 1) as u64];
    let max = if float { 1 } else { (1u64 << format.depth) - 1 };
    // One pass each way with sums that fit 32 bits needs no division in between.
    let narrow = !float && op.power == 1 && max * windows[0] * windows[1] < 1 << 32;
    let fraction = if narrow || float { 0 } else { 32 - i32::from(format.depth) };
    let passes = 2 * op.power;
    let mut specs = Vec::with_capacity(passes);
    for pass in 0..passes {
        let across = pass < op.power;
        let (first, last) = (pass == 0, pass + 1 == passes);
        let (radius, window) = if across { (op.radius_x, windows[0]) } else { (op.radius_y, windows[1]) };
        let divisor = if !narrow {
            window
        } else if last {
            windows[0] * windows[1]
        } else {
            1
        };
        let from = if first { Buffer::Source } else { Buffer::Scratch((pass - 1) % 2) };
        let to = if last { Buffer::Target } else { Buffer::Scratch(pass % 2) };
        // Row sums stay in shared memory where the widest row fits.
        let widest = task.planes.iter().map(|&p| task.shape.plane_size(p).0).max().unwrap_or(1) * task.components;
        let bytes = widest * if narrow { 4 } else { 8 };
        let in_shared = across && bytes <= 46 << 10;
        let shift = |edge: bool| if edge { 0 } else { fraction };
        let params = Params::default().ints([radius as i32, divisor as u32 as i32, shift(first), shift(last)]);
        let entry = if across { "box__rows" } else { "box__cols" };
        let mut spec = Spec::new(task, "box.cu", entry)
            .define("READS", usize::from(!first))
            .define("WRITES", usize::from(!last))
            .define("WIDE", usize::from(!narrow))
            .define("IN_SHARED", usize::from(in_shared))
            .params(params)
            .between(from, to);
        spec = if across { spec.tile(usize::MAX, 1).threads(256) } else { spec.tile(16, usize::MAX).threads(1024) };
        spec.shared = if in_shared { bytes } else { 0 };
        spec.aux = (!in_shared).then_some(Buffer::Sums);
        specs.push(spec);
    }
    specs
}

/// C(size − 1, i): at most C(22, 11) = 705432.
pub(super) fn binomial(size: usize) -> Vec<u32> {
    let mut row = vec![1u32];
    for _ in 1..size {
        let mut next = vec![1];
        next.extend(row.windows(2).map(|w| w.iter().sum::<u32>()));
        next.push(1);
        row = next;
    }
    row
}

pub(super) fn lower_unsharp_naive(task: &Task) -> Result<Vec<Spec>, String> {
    let PlaneOp::Unsharp(op) = task.op else { return Err(wrong(&task.op)) };
    let shift = (op.size_x + op.size_y - 2) as i32;
    let params = Params::default().ints([op.size_x as i32, op.size_y as i32, shift, op.amount]);
    let mut spec = Spec::new(task, "naive.cu", "unsharp__naive").tile(32, 8).params(params);
    spec.table = binomial(op.size_y).into_iter().chain(binomial(op.size_x)).collect();
    Ok(vec![spec])
}

pub(super) fn lower_unsharp_fused(task: &Task, op: Unsharp) -> Result<Vec<Spec>, String> {
    let format = task.format();
    let bits = op.size_x + op.size_y - 2;
    if !format.sample().is_float() && usize::from(format.depth) + bits > 24 {
        return Err(format!(
            "sums of {} bits times 2^{bits} are not exact in float; depth + size_x + size_y must not exceed 26",
            format.depth
        ));
    }
    if op.amount.unsigned_abs() > 8_000_000 {
        return Err(format!("its amount is limited to 122; this filter has {}", op.amount / 65536));
    }
    let (rx, ry) = (op.size_x / 2, op.size_y / 2);
    let weights = |size| binomial(size).into_iter().map(|w| w as f32);
    let params =
        Params::default().floats(weights(op.size_y)).floats(weights(op.size_x)).floats([(-(bits as f32)).exp2()]).ints([op.amount]);
    Ok(vec![Spec::new(task, "separable.cu", "unsharp__fused").blocked(rx, ry, fused_rows(ry), FUSED_WARPS).params(params)])
}

pub(super) fn gradient_spec(task: &Task, op: &Gradient, file: &'static str, entry: &'static str) -> Spec {
    let finish = Finish::new(task.format(), 0.0, 0.0, op.scale, op.delta);
    Spec::new(task, file, entry).params(Params::default().floats(op.x).floats(op.y).finish(finish))
}

pub(super) fn lower_gradient_tiled(task: &Task, op: &Gradient) -> Spec {
    // Zero weights cost nothing: which they are is compiled in.
    let mask = |taps: &[f32; 9]| taps.iter().enumerate().map(|(i, &w)| usize::from(w != 0.0) << i).sum();
    let spec = gradient_spec(task, op, "gradient.cu", "gradient__tiled").define("TAPS_X", mask(&op.x)).define("TAPS_Y", mask(&op.y));
    let spec = spec.define("ROWS", GRADIENT_ROWS).define("WARPS", WARPS).define("UNIT", usize::from(op.scale == 1.0));
    spec.tile(120, WARPS * GRADIENT_ROWS).threads(32 * WARPS)
}
