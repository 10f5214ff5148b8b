//! Launches of the operations that are no weighted sums: compass, minimum and maximum, neighbours, ranks, pooling, pixelation.

use super::lower::{TILED_ROWS, WARPS, within_naive, wrong};
use super::spec::{Buffer, Finish, Params, Spec, warp_tile};
use super::variants::Task;
use crate::filter::plan::{Compass, Extreme, Extremum, Median, Morphology, Pixelate, PlaneOp, Pool, PoolKind};
use crate::frame::Sample;

/// Largest radius that the fused extremum kernel is compiled for.
const EXTREMUM_RADIUS: usize = 31;
/// Radius that a window is widened from: larger ones cost the fused kernel half of its columns.
const WIDEN_FROM: usize = 15;
/// Probes each way of a pass that widens a window; PROBES in `kernels/order.cu`.
const PROBES: usize = 5;
/// Largest radius of the median networks.
const NETWORK_RADIUS: usize = 2;
/// Largest radii of the median by levels, and rows of its tile.
const LEVELS_RADIUS: usize = 8;
const LEVELS_RADIUS_DOWN: usize = 24;
const LEVELS_ROWS: usize = 18;
/// What a block has everywhere without asking, less what kernels declare themselves.
const SHARED_BYTES: usize = 46 << 10;
/// Most samples of a pooling window that is unrolled.
const POOLED: usize = 49;

fn naive(task: &Task, entry: &'static str, params: Params) -> Vec<Spec> {
    vec![Spec::new(task, "naive.cu", entry).tile(32, 8).params(params)]
}

/// Four columns a lane, neighbours by shuffle, `rows` rows a warp.
fn shuffled(task: &Task, file: &'static str, entry: &'static str, rows: usize) -> Spec {
    let spec = Spec::new(task, file, entry).define("ROWS", rows).define("WARPS", WARPS);
    spec.tile(120, WARPS * rows).threads(32 * WARPS)
}

fn maximum(kind: Extreme) -> usize {
    match kind {
        Extreme::Min => 0,
        Extreme::Max => 1,
    }
}

fn compass(task: &Task, op: &Compass) -> Finish {
    // The eight sums add up to 0: nothing is subtracted on loading, and they are exact.
    Finish::new(task.format(), 0.0, 0.0, op.scale, op.delta)
}

pub(super) fn lower_compass_naive(task: &Task) -> Result<Vec<Spec>, String> {
    let PlaneOp::Compass(op) = &task.op else { return Err(wrong(&task.op)) };
    Ok(naive(task, "compass__naive", Params::default().finish(compass(task, op))))
}

pub(super) fn lower_compass_tiled(task: &Task) -> Result<Vec<Spec>, String> {
    let PlaneOp::Compass(op) = &task.op else { return Err(wrong(&task.op)) };
    let params = Params::default().finish(compass(task, op)).floats([0.0]);
    let spec = shuffled(task, "neighbours.cu", "compass__tiled", TILED_ROWS).define("UNIT", usize::from(op.scale == 1.0));
    Ok(vec![spec.params(params)])
}

/// A result that is a sample already.
fn as_it_is(task: &Task) -> Finish {
    Finish::new(task.format(), 0.0, 0.0, 1.0, 0.0)
}

pub(super) fn lower_morphology_naive(task: &Task) -> Result<Vec<Spec>, String> {
    let PlaneOp::Morphology(op) = task.op else { return Err(wrong(&task.op)) };
    let params = Params::default().ints([i32::from(op.coordinates), maximum(op.kind) as i32]).floats([limit(op)]);
    Ok(naive(task, "morphology__naive", params.finish(as_it_is(task))))
}

pub(super) fn lower_morphology_tiled(task: &Task) -> Result<Vec<Spec>, String> {
    let PlaneOp::Morphology(op) = task.op else { return Err(wrong(&task.op)) };
    let spec = shuffled(task, "neighbours.cu", "morphology__tiled", TILED_ROWS).define("UNIT", 1).define("BOUNDED", 1);
    let spec = spec.define("CELLS", usize::from(op.coordinates)).define("MAXIMUM", maximum(op.kind));
    Ok(vec![spec.params(Params::default().finish(as_it_is(task)).floats([limit(op)]))])
}

/// The threshold; infinity holds nothing back.
fn limit(op: Morphology) -> f32 {
    op.threshold.unwrap_or(f32::INFINITY)
}

pub(super) fn lower_extremum_naive(task: &Task) -> Result<Vec<Spec>, String> {
    let PlaneOp::Extremum(op) = task.op else { return Err(wrong(&task.op)) };
    within_naive((2 * op.radius_x + 1) * (2 * op.radius_y + 1))?;
    let params = Params::default().ints([op.radius_x as i32, op.radius_y as i32, maximum(op.kind) as i32]);
    Ok(naive(task, "extremum__naive", params))
}

pub(super) fn lower_extremum_fused(task: &Task) -> Result<Vec<Spec>, String> {
    let PlaneOp::Extremum(op) = task.op else { return Err(wrong(&task.op)) };
    let (limit, rx, ry) = (EXTREMUM_RADIUS / task.components, op.radius_x, op.radius_y);
    if rx > limit || ry > EXTREMUM_RADIUS {
        return Err(format!("its radius is limited to {limit} across and {EXTREMUM_RADIUS} down; this filter has {rx} and {ry}"));
    }
    Ok(vec![extremum_fused(task, op)])
}

fn extremum_fused(task: &Task, op: Extremum) -> Spec {
    // A high window costs more to begin than to slide.
    let rows = if op.radius_y <= 3 { 4 } else { 8 };
    let spec = Spec::new(task, "order.cu", "extremum__fused").define("MAXIMUM", maximum(op.kind));
    let spec = spec.define("RADIUS_X", op.radius_x).define("RADIUS_Y", op.radius_y).define("ROWS", rows).define("WARPS", WARPS);
    spec.tile(warp_tile(op.radius_x, task.components), WARPS * rows).threads(32 * WARPS)
}

/// Offsets, symmetric and at most 2·`radius` + 1 apart, that widen a window of `radius` to `wanted` or as far as [`PROBES`] go; and
/// the radius then.
fn widen(radius: usize, wanted: usize) -> (Vec<i32>, usize) {
    let width = 2 * radius + 1;
    let steps = (wanted - radius).div_ceil(width).min(PROBES / 2);
    let gain = (wanted - radius).min(steps * width);
    let offset = |i: usize| (gain * i).checked_div(steps).unwrap_or(0) as i32;
    let offsets = (0..=2 * steps).map(|i| if i <= steps { -offset(steps - i) } else { offset(i - steps) }).collect();
    (offsets, radius + gain)
}

pub(super) fn lower_extremum_running(task: &Task) -> Result<Vec<Spec>, String> {
    let PlaneOp::Extremum(op) = task.op else { return Err(wrong(&task.op)) };
    // Beyond the plane's own size nothing changes: every sample (and a zero outside) is in the window then.
    let largest = |size: fn((usize, usize)) -> usize| task.planes.iter().map(|&p| size(task.shape.plane_size(p))).max().unwrap_or(1);
    let wanted = (op.radius_x.min(largest(|s| s.0)), op.radius_y.min(largest(|s| s.1)));
    let mut radius = (wanted.0.min(WIDEN_FROM / task.components), wanted.1.min(WIDEN_FROM));
    let mut specs = vec![extremum_fused(task, Extremum { radius_x: radius.0, radius_y: radius.1, ..op })];
    while radius != wanted {
        let ((x, rx), (y, ry)) = (widen(radius.0, wanted.0), widen(radius.1, wanted.1));
        radius = (rx, ry);
        let padded = |offsets: &[i32]| (0..PROBES).map(|i| offsets.get(i).copied().unwrap_or(0)).collect::<Vec<_>>();
        let params = Params::default().ints([x.len() as i32, y.len() as i32]).ints(padded(&x)).ints(padded(&y));
        let spec = Spec::new(task, "order.cu", "extremum__widened").define("MAXIMUM", maximum(op.kind));
        specs.push(spec.tile(32, 8).threads(256).params(params));
    }
    let last = specs.len() - 1;
    for (index, spec) in specs.iter_mut().enumerate() {
        spec.from = if index == 0 { Buffer::Source } else { Buffer::Scratch((index - 1) % 2) };
        spec.to = if index == last { Buffer::Target } else { Buffer::Scratch(index % 2) };
    }
    Ok(specs)
}

fn ranked(op: Median) -> Params {
    Params::default().ints([op.radius_x as i32, op.radius_y as i32, op.rank as i32])
}

pub(super) fn lower_median_naive(task: &Task) -> Result<Vec<Spec>, String> {
    let PlaneOp::Median(op) = task.op else { return Err(wrong(&task.op)) };
    Ok(naive(task, "median__naive", ranked(op)))
}

pub(super) fn lower_median_network(task: &Task) -> Result<Vec<Spec>, String> {
    let PlaneOp::Median(op) = task.op else { return Err(wrong(&task.op)) };
    if op.radius_x.max(op.radius_y) > NETWORK_RADIUS {
        let (x, y) = (op.radius_x, op.radius_y);
        return Err(format!("its radius is limited to {NETWORK_RADIUS}; this filter has {x} across and {y} down"));
    }
    // Networks of floats take twice the registers.
    let rows = if task.format().sample() == Sample::F32 { TILED_ROWS / 2 } else { TILED_ROWS };
    let spec = shuffled(task, "order.cu", "median__network", rows).define("RANK", op.rank);
    Ok(vec![spec.define("RADIUS_X", op.radius_x).define("RADIUS_Y", op.radius_y)])
}

pub(super) fn lower_median_levels(task: &Task) -> Result<Vec<Spec>, String> {
    let PlaneOp::Median(op) = task.op else { return Err(wrong(&task.op)) };
    let count = (2 * op.radius_x + 1) * (2 * op.radius_y + 1);
    if task.format().sample() != Sample::U8 || task.components != 1 {
        return Err("it takes planes of 8-bit samples of one component".to_owned());
    }
    if op.radius_x > LEVELS_RADIUS || op.radius_y > LEVELS_RADIUS_DOWN || count > 255 {
        return Err(format!(
            "its windows have 255 samples at most and a radius of {LEVELS_RADIUS} across and {LEVELS_RADIUS_DOWN} down; this filter's have {count}, {} and {}",
            op.radius_x, op.radius_y
        ));
    }
    let spec = Spec::new(task, "median_levels.cu", "median__levels").define("RADIUS_X", op.radius_x).define("RADIUS_Y", op.radius_y);
    let spec = spec.define("RANK", op.rank).define("TILE_Y", LEVELS_ROWS);
    Ok(vec![spec.tile(496, LEVELS_ROWS).threads(256)])
}

pub(super) fn lower_median_select(task: &Task) -> Result<Vec<Spec>, String> {
    let PlaneOp::Median(op) = task.op else { return Err(wrong(&task.op)) };
    let (across, down) = (32, 16);
    let staged = (across + 2 * op.radius_x * task.components) * (down + 2 * op.radius_y);
    let bytes = (staged * task.format().sample().bytes()).next_multiple_of(4);
    if bytes > SHARED_BYTES {
        return Err(format!(
            "a tile with its windows needs {bytes} bytes of shared memory, more than the {SHARED_BYTES} that every GPU has"
        ));
    }
    let mut spec = Spec::new(task, "median.cu", "median__select").tile(across, down).threads(128).params(ranked(op));
    spec.shared = bytes;
    Ok(vec![spec])
}

fn pool_kind(kind: PoolKind) -> usize {
    match kind {
        PoolKind::Max => 0,
        PoolKind::Mean => 1,
        PoolKind::Min => 2,
    }
}

/// Pooling counts in 32 bits.
fn within_32_bits(task: &Task, op: &Pool) -> Result<(), String> {
    let side = task.shape.width.max(task.shape.height).max(task.output.width).max(task.output.height) + 1;
    let reach = |a: usize, b: usize| a.checked_mul(b).is_some_and(|n| n < 1 << 29);
    if reach(side, op.stride) && reach(op.kernel, op.dilation) && op.pad < 1 << 29 {
        return Ok(());
    }
    Err(format!("windows of {} samples, {} apart, at a stride of {} reach too far", op.kernel, op.dilation, op.stride))
}

pub(super) fn lower_pool_naive(task: &Task) -> Result<Vec<Spec>, String> {
    let PlaneOp::Pool(op) = task.op else { return Err(wrong(&task.op)) };
    within_32_bits(task, &op)?;
    let ints = [pool_kind(op.kind), op.kernel, op.stride, op.pad, op.dilation].map(|v| v as i32);
    Ok(naive(task, "pool__naive", Params::default().ints(ints)))
}

pub(super) fn lower_pool_tiled(task: &Task) -> Result<Vec<Spec>, String> {
    let PlaneOp::Pool(op) = task.op else { return Err(wrong(&task.op)) };
    within_32_bits(task, &op)?;
    let span = (4 / task.components - 1) * op.stride + (op.kernel - 1) * op.dilation + 1;
    if op.kernel * op.kernel > POOLED || span * task.components > 64 {
        return Err(format!(
            "it unrolls windows of {POOLED} samples that span 64 with three neighbours; this filter's have {0}x{0} and span {span}",
            op.kernel
        ));
    }
    let spec = Spec::new(task, "pool.cu", "pool__tiled").define("KIND", pool_kind(op.kind)).define("KERNEL", op.kernel);
    let spec = spec.define("STRIDE", op.stride).define("PAD", op.pad).define("DILATION", op.dilation);
    Ok(vec![spec.tile(128, 4).threads(128)])
}

pub(super) fn lower_pixelate_naive(task: &Task) -> Result<Vec<Spec>, String> {
    let PlaneOp::Pixelate(op) = task.op else { return Err(wrong(&task.op)) };
    let op = inside(task, op);
    within_naive(op.block_x * op.block_y)?;
    Ok(naive(task, "pixelate__naive", Params::default().ints([op.block_x as i32, op.block_y as i32])))
}

pub(super) fn lower_pixelate_blocks(task: &Task) -> Result<Vec<Spec>, String> {
    let PlaneOp::Pixelate(op) = task.op else { return Err(wrong(&task.op)) };
    let op = inside(task, op);
    let group = if op.block_x * op.block_y * task.components <= 1024 { 32 } else { 128 };
    let lanes = (op.block_x * task.components).next_power_of_two().clamp(task.components, 32);
    let spec = Spec::new(task, "pool.cu", "pixelate__blocks").define("GROUP", group).define("LANES_X", lanes);
    let spec = spec.params(Params::default().ints([op.block_x as i32, op.block_y as i32]));
    Ok(vec![spec.tile(op.block_x * task.components * (128 / group), op.block_y).threads(128)])
}

/// Blocks no larger than the largest plane.
fn inside(task: &Task, op: Pixelate) -> Pixelate {
    let sizes = || task.planes.iter().map(|&p| task.shape.plane_size(p));
    Pixelate {
        block_x: op.block_x.min(sizes().map(|s| s.0).max().unwrap_or(1)),
        block_y: op.block_y.min(sizes().map(|s| s.1).max().unwrap_or(1)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn widened_windows_have_no_gaps_and_end_where_wanted() {
        for start in [1, 7, 15] {
            for wanted in start + 1..1500 {
                let mut radius = start;
                let mut passes = 0;
                while radius != wanted {
                    let (offsets, wider) = widen(radius, wanted);
                    assert!(offsets.len() <= PROBES && offsets.len() % 2 == 1);
                    assert!(
                        offsets.windows(2).all(|w| w[0] < w[1] && w[1] - w[0] <= 2 * radius as i32 + 1),
                        "{start} {wanted} {offsets:?}"
                    );
                    assert_eq!(*offsets.last().unwrap(), (wider - radius) as i32);
                    assert!(offsets.iter().eq(offsets.iter().rev().map(|o| -o).collect::<Vec<_>>().iter()));
                    (radius, passes) = (wider, passes + 1);
                }
                assert!(passes <= 5, "{start} {wanted}: {passes}");
            }
        }
    }
}
