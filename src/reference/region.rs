//! Large frames against the reference: nine patches instead of every sample, where every sample would take minutes.
//!
//! A patch is cut out with the neighbourhood that its samples read; the reference filters the cut, and what the cut's own
//! edges spoiled is left out. Corners and sides of the frame are among the patches, so that borders, the last row and the
//! last column are looked at.

use super::check::{Comparison, Tolerance, compare, judge};
use super::picture::read_row;
use super::{Picture, expect};
use crate::filter::Border;
use crate::filter::plan::{Plan, PlaneOp};
use crate::frame::{Frame, Shape};

/// Sample reads that a comparison may cost.
pub const AFFORDABLE: f64 = 4e8;
/// Side of a patch in luma samples; a multiple of every chroma subsampling.
const PATCH: (usize, usize) = (96, 48);
/// Cuts begin and end at multiples of this, so that chroma is cut where luma is.
const GRID: usize = 4;

/// What a plan must make of one picture: every sample where the reference can afford it, else nine patches.
pub struct Judge {
    output: Shape,
    wants: Wants,
}

enum Wants {
    Whole(Picture),
    Patches { cuts: Vec<(Cut, Picture)>, spoiled: (usize, usize), wraps: bool, input: Shape },
}

impl Judge {
    /// Filters `picture` with the reference.
    ///
    /// # Errors
    /// The plan is too expensive even in patches (huge windows, or pooling of a huge frame): check it on smaller frames.
    pub fn new(plan: &Plan, picture: &Picture) -> Result<Self, String> {
        Self::within(plan, picture, AFFORDABLE)
    }

    /// Like [`Judge::new`], with patches from `reads` sample reads on: for whoever judges much.
    ///
    /// # Errors
    /// As for [`Judge::new`].
    pub fn within(plan: &Plan, picture: &Picture, reads: f64) -> Result<Self, String> {
        // What cannot be cut into patches is filtered whole as long as that is bearable.
        if cost(plan) <= reads || (cost(plan) <= AFFORDABLE && patches(plan).is_none()) {
            Ok(Self { output: plan.output(), wants: Wants::Whole(expect(plan, picture)) })
        } else {
            Self::in_patches(plan, picture)
        }
    }

    fn in_patches(plan: &Plan, picture: &Picture) -> Result<Self, String> {
        let patches = patches(plan).ok_or("the reference would take too long on frames of this size")?;
        let want = |cut: Cut| {
            let shape = Shape { width: cut.width, height: cut.height, ..plan.input };
            (cut, expect(&resized(plan, shape), &part(picture, shape, cut)))
        };
        // A periodic border joins the frame's two ends, which no cut holds.
        let wraps = plan.steps.iter().any(|s| s.border == Border::Wrap);
        let cuts = patches.cuts.into_iter().map(want).collect();
        Ok(Self { output: plan.output(), wants: Wants::Patches { cuts, spoiled: patches.spoiled, wraps, input: plan.input } })
    }

    /// Compares a result, sample by sample.
    ///
    /// # Errors
    /// The frame has another shape.
    pub fn compare(&self, got: &Frame, tolerance: Tolerance) -> Result<Comparison, String> {
        let (cuts, spoiled, wraps, input) = match &self.wants {
            Wants::Whole(want) => return compare(got, want, tolerance),
            Wants::Patches { cuts, spoiled, wraps, input } => (cuts, *spoiled, *wraps, *input),
        };
        if got.layout.shape != self.output {
            return Err(format!("got {}, want {}", got.layout.shape, self.output));
        }
        let format = input.format;
        let mut found = Comparison::default();
        let mut row = Vec::new();
        for (cut, want) in cuts {
            for (plane, want_plane) in want.planes.iter().enumerate() {
                let components = format.components(plane);
                let ((w, h), (whole_w, whole_h)) = (want.shape.plane_size(plane), input.plane_size(plane));
                let (x0, y0) = origin(input, plane, *cut);
                // Good columns and rows of the cut: up to the frame's own edge, or short of the cut's.
                let good = |start: usize, length: usize, whole: usize, spoiled: usize| {
                    let from = if start == 0 && !wraps { 0 } else { spoiled };
                    let to = if start + length == whole && !wraps { length } else { length.saturating_sub(spoiled) };
                    from..to
                };
                for y in good(y0, h, whole_h, spoiled.1) {
                    // Not the whole frame: at 8K that takes longer than the patches.
                    row.clear();
                    read_row(got, plane, y0 + y, &mut row);
                    for x in good(x0, w, whole_w, spoiled.0) {
                        for c in 0..components {
                            let want = want_plane.get((y * w + x) * components + c).copied().unwrap_or(f64::NAN);
                            let got = row.get((x0 + x) * components + c).copied().unwrap_or(f64::NAN);
                            judge(&mut found, format, tolerance, (got, want), (plane, x0 + x, y0 + y));
                        }
                    }
                }
            }
        }
        Ok(found)
    }
}

/// Whether [`Judge::new`] can judge results of `plan`.
pub fn is_affordable(plan: &Plan) -> bool {
    cost(plan) <= AFFORDABLE || patches(plan).is_some()
}

/// Sample reads of the reference for one frame.
pub fn cost(plan: &Plan) -> f64 {
    let step = |step: &crate::filter::plan::Step| {
        let planes = step.planes.iter().enumerate().take(step.output.format.plane_count());
        planes.map(|(p, op)| samples(step.output, p) * reads(op)).sum::<f64>()
    };
    plan.steps.iter().map(step).sum()
}

fn samples(shape: Shape, plane: usize) -> f64 {
    let (w, h) = shape.plane_size(plane);
    (w * h * shape.format.components(plane)) as f64
}

/// Reads (or as much work) per sample.
fn reads(op: &PlaneOp) -> f64 {
    let area = |x: usize, y: usize| x as f64 * y as f64;
    match op {
        PlaneOp::Copy => 1.0,
        PlaneOp::Separable(op) => (op.row.len() + op.col.len()) as f64,
        PlaneOp::Direct(op) => area(op.width, op.height),
        PlaneOp::Box(op) => (op.power * (2 * (op.radius_x + op.radius_y) + 2)) as f64,
        PlaneOp::Unsharp(op) => area(op.size_x, op.size_y),
        PlaneOp::Gradient(_) => 18.0,
        PlaneOp::Compass(_) => 64.0,
        PlaneOp::Extremum(op) => (2 * (op.radius_x + op.radius_y) + 2) as f64,
        PlaneOp::Morphology(_) => 9.0,
        // Read and sorted.
        PlaneOp::Median(op) => 8.0 * area(2 * op.radius_x + 1, 2 * op.radius_y + 1),
        PlaneOp::Pool(op) => 2.0 * area(op.kernel, op.kernel),
        // Read once, written once.
        PlaneOp::Pixelate(_) => 2.0,
    }
}

/// How far an operation reads left and right, up and down; None if its result depends on where the plane begins.
fn halo(op: &PlaneOp) -> Option<(usize, usize)> {
    match op {
        PlaneOp::Copy => Some((0, 0)),
        PlaneOp::Separable(op) => Some((op.row.len() / 2, op.col.len() / 2)),
        PlaneOp::Direct(op) => Some((op.width / 2, op.height / 2)),
        PlaneOp::Box(op) => Some((op.radius_x * op.power, op.radius_y * op.power)),
        PlaneOp::Unsharp(op) => Some((op.size_x / 2, op.size_y / 2)),
        PlaneOp::Gradient(_) | PlaneOp::Compass(_) | PlaneOp::Morphology(_) => Some((1, 1)),
        PlaneOp::Extremum(op) => Some((op.radius_x, op.radius_y)),
        PlaneOp::Median(op) => Some((op.radius_x, op.radius_y)),
        PlaneOp::Pool(_) | PlaneOp::Pixelate(_) => None,
    }
}

/// A part of a frame, in luma samples.
#[derive(Clone, Copy, Debug)]
struct Cut {
    left: usize,
    top: usize,
    width: usize,
    height: usize,
}

/// Nine cuts, and how far their results are spoiled at a cut edge, in samples of any plane.
struct Patches {
    cuts: Vec<Cut>,
    spoiled: (usize, usize),
}

fn patches(plan: &Plan) -> Option<Patches> {
    let shape = plan.input;
    let mut spoiled = (0, 0);
    for step in &plan.steps {
        if step.output != shape {
            return None;
        }
        let mut widest = (0, 0);
        for op in step.planes.iter().take(shape.format.plane_count()) {
            let (x, y) = halo(op)?;
            widest = (widest.0.max(x), widest.1.max(y));
        }
        spoiled = (spoiled.0 + widest.0, spoiled.1 + widest.1);
    }
    // A chroma sample is as wide as several luma samples.
    let margin = (spoiled.0 << shape.format.chroma_shift_x, spoiled.1 << shape.format.chroma_shift_y);
    let spans = |side: usize, patch: usize, margin: usize| {
        let middle = side / 2;
        [0, middle.saturating_sub(patch / 2), side.saturating_sub(patch)].map(|start| {
            let from = start.saturating_sub(margin) / GRID * GRID;
            let to = (start + patch + margin).next_multiple_of(GRID).min(side);
            (from, to.saturating_sub(from))
        })
    };
    let (columns, rows) = (spans(shape.width, PATCH.0, margin.0), spans(shape.height, PATCH.1, margin.1));
    let cuts: Vec<Cut> = rows.iter().flat_map(|&(top, height)| columns.map(|(left, width)| Cut { left, top, width, height })).collect();
    let total: f64 = cuts.iter().map(|cut| cost(&resized(plan, Shape { width: cut.width, height: cut.height, ..shape }))).sum();
    (total <= AFFORDABLE).then_some(Patches { cuts, spoiled })
}

/// The same operations on frames of another size.
fn resized(plan: &Plan, shape: Shape) -> Plan {
    let mut plan = plan.clone();
    plan.input = shape;
    plan.steps.iter_mut().for_each(|step| (step.input, step.output) = (shape, shape));
    plan
}

/// Where a cut begins in a plane.
fn origin(shape: Shape, plane: usize, cut: Cut) -> (usize, usize) {
    if shape.format.is_chroma(plane) {
        (cut.left >> shape.format.chroma_shift_x, cut.top >> shape.format.chroma_shift_y)
    } else {
        (cut.left, cut.top)
    }
}

fn part(picture: &Picture, shape: Shape, cut: Cut) -> Picture {
    let plane = |(index, plane): (usize, &Vec<f64>)| {
        let components = shape.format.components(index);
        let ((w, h), (whole, _)) = (shape.plane_size(index), picture.shape.plane_size(index));
        let (x0, y0) = origin(picture.shape, index, cut);
        let row = |y: usize| plane.get(((y0 + y) * whole + x0) * components..).unwrap_or_default().iter().take(w * components);
        (0..h).flat_map(row).copied().collect()
    };
    Picture { shape, planes: picture.planes.iter().enumerate().map(plane).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu;
    use crate::filter;
    use crate::frame::PixelFormat;
    use crate::pool::Heap;
    use crate::reference::Content;
    use std::sync::Arc;

    /// Patches give what the whole gives, for every border and plane, and see a fault in the last row and column.
    #[test]
    fn patches_agree_with_the_whole_picture() {
        let semi = PixelFormat { packing: crate::frame::Packing::SemiPlanar, ..PixelFormat::yuv(8, 1, 1) };
        for format in [PixelFormat::yuv(8, 1, 1), semi, PixelFormat::gray(32), PixelFormat::gray(32).half()] {
            let shape = Shape { format, width: 421, height: 243 };
            for graph in ["gblur=sigma=2", "sobel=border=wrap", "convolution='1 2 3 4 5 6 7 8 1'", "gblur=1:border=reflect,erosion"] {
                let plan = filter::plan(&filter::parse(graph).unwrap(), shape).unwrap();
                let tolerance = Tolerance::of_plan(&plan);
                let picture = Picture::new(shape, Content::Random, 5);
                let mut frame = cpu::apply(&plan, picture.frame(Arc::new(Heap), 0).unwrap()).unwrap();
                let judge = Judge::in_patches(&plan, &picture).unwrap();
                let found = judge.compare(&frame, tolerance).unwrap();
                assert_eq!(found.failure(tolerance), None, "{graph} {format}");
                assert!(found.samples > 20_000, "{}", found.samples);
                if graph.contains("wrap") || format.sample().is_float() {
                    continue;
                }
                let (w, h) = shape.plane_size(1);
                let last = frame.row_mut(1, h - 1).unwrap().last_mut().unwrap();
                *last = last.wrapping_add(100);
                let bad = judge.compare(&frame, tolerance).unwrap().first_bad.unwrap();
                assert_eq!((bad.plane, bad.x, bad.y), (1, w - 1, h - 1));
            }
        }
    }

    #[test]
    fn what_cannot_be_cut_is_affordable_only_when_small() {
        let affordable = |graph: &str, width, height| {
            let shape = Shape { format: PixelFormat::gray(8), width, height };
            is_affordable(&filter::plan(&filter::parse(graph).unwrap(), shape).unwrap())
        };
        assert!(affordable("median=radius=7", 7680, 4320) && affordable("maxpool=3:1:1", 1920, 1080));
        assert!(affordable("pixelate=16", 1920, 1080) && affordable("pixelate=64", 7680, 4320));
        assert!(!affordable("avgblur=1024", 7680, 4320));
    }
}
