//! Neighbouring steps that run band by band, so that what lies between them stays in the cache. Every step still rounds to the
//! video's samples, and computes the same rows from the same rows: results are those of one step after the other.
//!
//! A band's task goes through all steps of a stage. Each step produces the rows that the next one reads, those beyond the band
//! once more for either neighbour. That pays where whole frames between the steps would not fit the cache: see [`LARGE`].

use std::ops::Range;

use crate::filter::Border;
use crate::filter::math::border_index;
use crate::filter::plan::{PlaneOp, Step};

/// Steps of a stage at most.
pub(super) const STEPS: usize = 8;
/// Rows of a band for each row that is computed for two bands.
const BAND_TO_HALO: usize = 16;
/// Bytes of a frame from which on it pays. Four 3×3 extremes, 2 cores with 32 MiB of cache: a frame of 3 MB takes 3 % less at
/// best, one of 12 MB a third.
pub(super) const LARGE: usize = 8 << 20;

/// Bytes of a band between two steps at most: what two workers keep of two bands each stays far below any last cache.
const BAND_BYTES: usize = 512 << 10;

/// What is fused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fusion {
    /// Large frames, where bands are much higher than what is computed twice.
    Auto,
    /// Everything that can be, in bands of so many rows (tests).
    #[cfg_attr(not(test), allow(dead_code, reason = "tests compare it with Auto"))]
    Rows(usize),
    /// Nothing (tests).
    #[cfg_attr(not(test), allow(dead_code, reason = "tests compare it with Rows"))]
    Never,
}

/// Rows above and below that an output row reads; None if the operation cannot run by bands of another step's rows.
pub(super) fn reach(op: &PlaneOp) -> Option<(usize, usize)> {
    let around = |rows: usize| Some((rows, rows));
    let taps = |taps: usize| Some(super::linear::reach(taps));
    match op {
        PlaneOp::Copy => around(0),
        PlaneOp::Separable(op) => taps(op.col.len()),
        PlaneOp::Direct(op) => taps(op.height),
        PlaneOp::Box(op) => around(op.radius_y * op.power),
        PlaneOp::Unsharp(op) => around(op.size_y / 2),
        PlaneOp::Gradient(_) | PlaneOp::Compass(_) | PlaneOp::Morphology(_) => around(1),
        PlaneOp::Extremum(op) => around(op.radius_y),
        PlaneOp::Median(op) => around(op.radius_y),
        // Another size, or rows that belong to blocks.
        PlaneOp::Pool(_) | PlaneOp::Pixelate(_) => None,
    }
}

/// The rows of a plane of `height` rows that `rows` of the next step's output are computed from.
pub(super) fn needed(rows: &Range<usize>, (above, below): (usize, usize), height: usize, border: Border) -> Range<usize> {
    let (first, last) = (rows.start as i64 - above as i64, (rows.end + below) as i64);
    let height = height as i64;
    let mut needed = first.max(0)..last.min(height);
    for outside in (first..0).chain(height..last) {
        if let Some(y) = border_index(outside, height, border) {
            needed = needed.start.min(y)..needed.end.max(y + 1);
        }
    }
    needed.start as usize..needed.end as usize
}

/// Rows of a band if `steps` run as one stage; None if they cannot, or if it does not pay.
pub(super) fn band_rows(steps: &[Step], fusion: Fusion) -> Option<usize> {
    let [first, .., last] = steps else { return None };
    if steps.len() > STEPS || steps.iter().any(|step| step.variant != first.variant || step.output != first.input) {
        return None;
    }
    let planes = first.input.format.plane_count();
    let mut halo = 0;
    for (index, step) in steps.iter().enumerate() {
        let mut most = 0;
        for op in step.planes.iter().take(planes) {
            let (above, below) = reach(op)?;
            most = most.max(above + below);
        }
        // The first step reads whole planes; wrapping would make any other one read both ends.
        if index > 0 {
            halo += most;
            if step.border == Border::Wrap && most > 0 {
                return None;
            }
        }
    }
    match fusion {
        Fusion::Never => None,
        Fusion::Rows(rows) => Some(rows),
        Fusion::Auto => {
            let format = last.output.format;
            let row = last.output.width * format.components(0) * format.sample().bytes();
            let rows = (BAND_BYTES / row.max(1)).saturating_sub(halo);
            (last.output.payload_bytes() >= LARGE && rows >= BAND_TO_HALO * halo.max(1)).then_some(rows)
        }
    }
}

/// The longest stages from the first step on: where each one starts and ends, and its band's rows.
pub(super) fn stages(steps: &[Step], fusion: Fusion, fits: impl Fn(usize) -> bool) -> Vec<(Range<usize>, Option<usize>)> {
    let mut stages = Vec::new();
    let mut start = 0;
    while start < steps.len() {
        let (mut end, mut rows) = (start + 1, None);
        while end < steps.len() && fits(start) && fits(end) {
            let Some(more) = band_rows(&steps[start..=end], fusion) else { break };
            (end, rows) = (end + 1, Some(more));
        }
        stages.push((start..end, rows));
        start = end;
    }
    stages
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::Engine;
    use super::*;
    use crate::backend::BuildOptions;
    use crate::filter::{lower, parse, plan::Plan};
    use crate::frame::{Frame, FrameLayout, FrameMem, FrameTime, Packing, PixelFormat, Sample, Shape};
    use crate::pool::{Budget, Heap, Pool};

    /// Noise; floats between 0 and 1.
    fn frame(shape: Shape) -> Frame {
        let layout = FrameLayout::packed(shape).unwrap();
        let mut slab = Pool::new(Arc::new(Heap), layout.slab_bytes, Budget::new(usize::MAX)).lease().unwrap();
        let mut state = 12345u64;
        let max = shape.format.max_value() as u64;
        let sample = shape.format.sample();
        for plane in layout.planes() {
            for y in 0..plane.height {
                for value in slab.bytes_mut()[plane.offset + y * plane.pitch..][..plane.row_bytes(sample)].chunks_mut(sample.bytes()) {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let code = (state >> 40) % (max + 1);
                    match sample {
                        Sample::U8 => value[0] = code as u8,
                        Sample::U16 => value.copy_from_slice(&(code as u16).to_le_bytes()),
                        Sample::F16 => {
                            value.copy_from_slice(&half::f16::from_f32((state >> 40) as f32 / (1u64 << 24) as f32).to_le_bytes())
                        }
                        Sample::F32 => value.copy_from_slice(&((state >> 40) as f32 / (1u64 << 24) as f32).to_le_bytes()),
                    }
                }
            }
        }
        Frame { layout, time: FrameTime::default(), seq: 0, born: std::time::Instant::now(), mem: FrameMem::Slab(slab) }
    }

    /// All samples, and how many stages there were.
    fn result(plan: &Plan, fusion: Fusion, threads: usize) -> (Vec<Vec<u8>>, usize) {
        let options = BuildOptions { lanes: None, threads: Some(threads), variant: None, budget: Budget::new(usize::MAX) };
        let mut engine = Engine::new(plan, &options, fusion, Arc::default()).unwrap();
        let out = engine.run(frame(plan.input), 0).unwrap();
        let planes = out.layout.planes().iter().enumerate();
        let rows = planes.flat_map(|(plane, layout)| (0..layout.height).map(move |y| (plane, y)));
        (rows.map(|(plane, y)| out.row(plane, y).to_vec()).collect(), engine.program.stages.len())
    }

    #[test]
    fn fused_chains_give_the_same_bytes() {
        let graphs = [
            ("gblur=sigma=1:border=B,sobel=border=B,unsharp=border=B", 1),
            ("erosion=border=B,dilation=radius=3:border=B,kirsch=border=B,roberts=border=B", 1),
            ("boxblur=2:2:border=B,median=radius=5:border=B,avgblur=sizeX=3:border=B", 1),
            ("median=border=B,gblur=sigma=5:border=B,gblur=sigma=2:planes=1:border=B", 1),
            ("avgblur=sizeX=3:border=B,avgblur=sizeX=2:sizeY=7:border=B,avgblur=border=B", 1),
            ("sharpen=border=B,maxpool=2:2,sobel=border=B,convolution=1 2 3 4 5 6 7 8 9:border=B", 3),
        ];
        let nv12 = PixelFormat { packing: Packing::SemiPlanar, ..PixelFormat::yuv(8, 1, 1) };
        let formats = [
            PixelFormat::yuv(8, 1, 1),
            PixelFormat::yuv(10, 1, 0),
            PixelFormat::gray(16),
            PixelFormat::gbr(32),
            PixelFormat::gray(32).half(),
            nv12,
        ];
        let (mut turn, mut chains) = (0, 0);
        for (graph, stages) in graphs {
            for border in Border::ALL {
                let filters = parse(&graph.replace('B', border.name())).unwrap();
                for (width, height) in [(1, 1), (9, 7), (70, 50), (171, 133)] {
                    let shape = Shape { format: formats[turn % formats.len()], width, height };
                    let rows = [3, 8, 40][turn % 3];
                    turn += 1;
                    let plan = lower::plan(&filters, shape).unwrap();
                    let (want, alone) = result(&plan, Fusion::Never, 1);
                    let (got, fused) = result(&plan, Fusion::Rows(rows), 1 + turn % 3);
                    assert_eq!(alone, plan.steps.len());
                    // Box means of several passes over floats, or beyond a plane's size, take an intermediate plane, and run alone.
                    let all = border != Border::Wrap && shape.format.depth == 8 && width > 100;
                    assert!(if all { fused == stages } else { fused <= alone }, "{graph}, {shape}: {fused} stages");
                    chains += usize::from(fused < alone);
                    let wrong = got.iter().zip(&want).position(|(got, want)| got != want);
                    assert!(got.len() == want.len() && wrong.is_none(), "{graph}, {shape}, border {}, row {wrong:?}", border.name());
                }
            }
        }
        assert!(chains > 60, "{chains} chains were fused");
    }

    #[test]
    fn large_frames_of_small_windows_are_fused_and_others_are_not() {
        let stages = |graph: &str, width: usize, height: usize| {
            let shape = Shape { format: PixelFormat::yuv(8, 1, 1), width, height };
            let plan = lower::plan(&parse(graph).unwrap(), shape).unwrap();
            super::stages(&plan.steps, Fusion::Auto, |_| true).len()
        };
        assert_eq!(stages("erosion,dilation,sobel", 3840, 2160), 1);
        assert_eq!(stages("erosion,dilation,sobel", 1920, 1080), 3);
        assert_eq!(stages("erosion,dilation=radius=30,sobel", 3840, 2160), 2);
        assert_eq!(stages("erosion,sobel=border=wrap", 3840, 2160), 2);
        assert_eq!(stages("erosion,maxpool,sobel", 3840, 2160), 3);
    }

    #[test]
    fn rows_beyond_an_edge_are_found_where_the_border_puts_them() {
        assert_eq!(needed(&(10..20), (2, 3), 100, Border::Clamp), 8..23);
        assert_eq!(needed(&(0..4), (5, 0), 100, Border::Clamp), 0..4);
        assert_eq!(needed(&(0..4), (9, 0), 100, Border::Reflect), 0..9);
        assert_eq!(needed(&(0..4), (9, 0), 100, Border::Reflect101), 0..10);
        assert_eq!(needed(&(98..100), (0, 5), 100, Border::Reflect), 95..100);
        assert_eq!(needed(&(0..4), (9, 9), 5, Border::Zero), 0..5);
        assert_eq!(needed(&(0..4), (1, 0), 100, Border::Wrap), 0..100);
    }
}
