//! Filters to steps: parameters and the input's shape decide what happens to each plane.

use std::sync::Arc;

use super::catalog::RADIUS_VARIABLES;
use super::kernel::Kernel;
use super::math::{factor_rank_1, gaussian_radius, gaussian_weights};
use super::parse::shown;
use super::plan::{
    BoxMean, Compass, Direct, Extreme, Extremum, Gradient, Median, Morphology, Pixelate, Plan, PlaneOp, Pool, PoolKind, Separable, Step,
    Unsharp,
};
use super::{
    AverageBlur, BoxBlur, BoxParams, Convolution, Direction, Filter, GaussianBlur, GradientMagnitude, Mosaic, Neighbours, Op, PlaneKernel,
    PlaneMask, Pooling, Rank, Stencil, UnsharpMask, UnsharpParams,
};
use crate::error::{Error, Result};
use crate::frame::{MAX_PLANES, Model, Packing, PixelFormat, Sample, Shape};

/// Largest radius of a box, the plane's size aside: what no picture needs, and what a window of 2¹⁶ samples holds.
const MAX_BOX_RADIUS: usize = 32767;
/// Longest label of a step in characters; a large kernel's text form would fill the screen.
const MAX_LABEL: usize = 120;

/// Lowers a chain for frames of shape `input`. Filters that change nothing are left out.
///
/// # Errors
/// When a filter does not fit the frames (a negative radius, U and V apart in one plane); the error names the filter.
pub fn plan(filters: &[Filter], input: Shape) -> Result<Plan> {
    let mut steps = Vec::with_capacity(filters.len());
    let mut shape = input;
    for filter in filters {
        let step = lower(filter, shape)
            .map_err(|why| Error::usage(format!("filter '{}' cannot run on {shape}", label(filter)), why.cause).hint(why.hint))?;
        shape = step.output;
        if step.planes.iter().any(|op| *op != PlaneOp::Copy) {
            steps.push(step);
        }
    }
    Ok(Plan { input, steps })
}

/// Whether a filter of the chain treats U and V differently, so that they cannot share a plane (NV12, P010): the frames
/// must be made planar on entry. A step has one operation per plane; rare masks are not worth a second form of every kernel.
pub fn separates_chroma(filters: &[Filter], input: Shape) -> bool {
    let planar = Shape { format: input.format.planar(), ..input };
    input.format.packing == Packing::SemiPlanar
        && plan(filters, planar).is_ok_and(|plan| plan.steps.iter().any(|step| step.planes.get(1) != step.planes.get(2)))
}

/// Why a filter does not fit, and what to do.
struct Unfit {
    cause: String,
    hint: String,
}

fn label(filter: &Filter) -> String {
    let text = filter.to_string();
    if text.chars().count() <= MAX_LABEL {
        return text;
    }
    text.chars().take(MAX_LABEL).chain(['…']).collect()
}

/// Components that plane `index` holds, as bits of a [`PlaneMask`]: two for semi-planar chroma.
fn components(format: PixelFormat, index: usize) -> &'static [usize] {
    const EACH: [&[usize]; MAX_PLANES] = [&[0], &[1], &[2], &[3]];
    match (format.model, format.packing, index) {
        (Model::Gray, _, 1) | (Model::Yuv, Packing::SemiPlanar, 2) => &[3],
        (Model::Yuv, Packing::SemiPlanar, 1) => &[1, 2],
        (Model::Gray | Model::Yuv | Model::Rgb, Packing::Planar | Packing::SemiPlanar, _) => EACH.get(index).copied().unwrap_or_default(),
    }
}

fn lower(filter: &Filter, input: Shape) -> Result<Step, Unfit> {
    let mut planes = [const { PlaneOp::Copy }; MAX_PLANES];
    for (index, plane) in planes.iter_mut().enumerate().take(input.format.plane_count()) {
        let mut ops = Vec::with_capacity(2);
        for &component in components(input.format, index) {
            ops.push(match &filter.op {
                Op::GaussianBlur(g) => gaussian(g, component, input.format),
                Op::AverageBlur(a) => average(a, component),
                Op::BoxBlur(b) => box_blur(b, component, input)?,
                Op::UnsharpMask(u) => unsharp(u, component, input.format.model),
                Op::Convolution(c) => convolution(c, component)?,
                Op::Sobel(g) => gradient(g, component, SOBEL),
                Op::Prewitt(g) => gradient(g, component, PREWITT),
                Op::Scharr(g) => gradient(g, component, SCHARR),
                Op::Roberts(g) => gradient(g, component, ROBERTS),
                Op::Kirsch(s) if s.planes.contains(component) => PlaneOp::Compass(Compass { scale: s.scale, delta: s.delta }),
                Op::Kirsch(_) => PlaneOp::Copy,
                Op::Laplacian(s) => stencil(s, component, LAPLACIAN),
                Op::Emboss(s) => stencil(s, component, EMBOSS),
                Op::Sharpen(s) => stencil(s, component, SHARPEN),
                Op::Edge(s) => stencil(s, component, EDGE),
                Op::Erosion(n) => neighbours(n, component, input.format, Extreme::Min)?,
                Op::Dilation(n) => neighbours(n, component, input.format, Extreme::Max)?,
                Op::Median(m) => median(m, component),
                Op::MaxPool(p) => pool(p, PoolKind::Max),
                Op::AveragePool(p) => pool(p, PoolKind::Mean),
                Op::MinPool(p) => pool(p, PoolKind::Min),
                Op::Pixelate(m) => pixelate(m, component, input.format),
            });
        }
        // PlaneOp is per plane: U and V in one plane cannot be treated apart.
        if ops.windows(2).any(|pair| pair[0] != pair[1]) {
            return Err(Unfit {
                cause: "it treats U and V differently, but they share a plane in this format".to_string(),
                hint: "convert to a planar format first (--pix-fmt yuv420p), or treat both alike".to_string(),
            });
        }
        if let Some(op) = ops.pop() {
            *plane = op;
        }
    }
    let output = match &filter.op {
        Op::MaxPool(p) | Op::AveragePool(p) | Op::MinPool(p) => {
            Shape { width: pooled(p, input.width), height: pooled(p, input.height), ..input }
        }
        Op::GaussianBlur(_)
        | Op::BoxBlur(_)
        | Op::AverageBlur(_)
        | Op::UnsharpMask(_)
        | Op::Convolution(_)
        | Op::Sobel(_)
        | Op::Prewitt(_)
        | Op::Scharr(_)
        | Op::Roberts(_)
        | Op::Kirsch(_)
        | Op::Laplacian(_)
        | Op::Emboss(_)
        | Op::Sharpen(_)
        | Op::Edge(_)
        | Op::Erosion(_)
        | Op::Dilation(_)
        | Op::Median(_)
        | Op::Pixelate(_) => input,
    };
    Ok(Step { label: label(filter), border: filter.border, variant: filter.variant.clone(), input, output, planes })
}

fn gaussian(filter: &GaussianBlur, component: usize, format: PixelFormat) -> PlaneOp {
    if !filter.planes.contains(component) {
        return PlaneOp::Copy;
    }
    // Float planes end as integers of some depth, and are held to 1e-4 of their range: 12 bits are finer than that.
    let max_value = match format.sample() {
        Sample::U8 | Sample::U16 => f64::from(format.max_value()),
        Sample::F16 | Sample::F32 => 4095.0,
    };
    let taps = |sigma: f32| -> Arc<[f32]> {
        let sigma = f64::from(sigma);
        // Below this the neighbours' weight is under 10⁻⁹: no sample of 16 bits changes.
        if sigma < 0.15 {
            return Arc::new([1.0]);
        }
        // Beyond 14σ every weight is 0 in f32.
        let far = (14.0 * sigma).ceil() as usize;
        let radius = if filter.radius > 0 { far.min(filter.radius as usize) } else { gaussian_radius(sigma, max_value) };
        gaussian_weights(sigma, radius).into()
    };
    let row = taps(filter.sigma);
    let col = taps(if filter.sigma_v < 0.0 { filter.sigma } else { filter.sigma_v });
    if row.len() == 1 && col.len() == 1 {
        return PlaneOp::Copy;
    }
    PlaneOp::Separable(Separable { row, col, scale: 1.0, bias: 0.0 })
}

fn average(filter: &AverageBlur, component: usize) -> PlaneOp {
    if !filter.planes.contains(component) {
        return PlaneOp::Copy;
    }
    let radius_y = if filter.size_y > 0 { filter.size_y } else { filter.size_x };
    PlaneOp::Box(BoxMean { radius_x: filter.size_x as usize, radius_y: radius_y as usize, power: 1 })
}

/// FFmpeg's rules (`libavfilter/boxblur.c`): chroma and alpha inherit from luma, the radius is truncated. FFmpeg refuses a
/// radius above half of the plane's shorter side; here the border goes on as far as the window needs.
fn box_blur(filter: &BoxBlur, component: usize, input: Shape) -> Result<PlaneOp, Unfit> {
    let (params, group): (&BoxParams, _) = match component {
        0 => (&filter.luma, "luma"),
        1 | 2 => (&filter.chroma, "chroma"),
        _ => (&filter.alpha, "alpha"),
    };
    let power = if params.power < 0 { filter.luma.power } else { params.power };
    let Some(expr) = params.radius.as_ref().or(filter.luma.radius.as_ref()) else { return Ok(PlaneOp::Copy) };
    let radius = expr.eval(&radius_variables(input)).trunc();
    if !(radius >= 0.0 && radius <= MAX_BOX_RADIUS as f64) {
        return Err(Unfit {
            cause: format!("the {group} radius '{}' is {radius} here, it must be >= 0 and <= {MAX_BOX_RADIUS}", shown(&expr.to_string())),
            hint: "see `convoy filters boxblur`".to_string(),
        });
    }
    let radius = radius as usize;
    if radius == 0 || power <= 0 {
        return Ok(PlaneOp::Copy);
    }
    Ok(PlaneOp::Box(BoxMean { radius_x: radius, radius_y: radius, power: power as usize }))
}

/// What a radius expression may use, in the order of [`RADIUS_VARIABLES`]; as in FFmpeg, cw and ch are rounded down.
fn radius_variables(input: Shape) -> [f64; RADIUS_VARIABLES.len()] {
    let format = input.format;
    [
        input.width as f64,
        input.height as f64,
        (input.width >> format.chroma_shift_x) as f64,
        (input.height >> format.chroma_shift_y) as f64,
        f64::from(1u32 << format.chroma_shift_x),
        f64::from(1u32 << format.chroma_shift_y),
    ]
}

/// RGB is sharpened as luma is, per channel: FFmpeg's filter knows YUV only and would convert.
fn unsharp(filter: &UnsharpMask, component: usize, model: Model) -> PlaneOp {
    let params: UnsharpParams = match (component, model) {
        (0, _) | (1 | 2, Model::Rgb) => filter.luma,
        (1 | 2, Model::Gray | Model::Yuv) => filter.chroma,
        (_, Model::Gray | Model::Yuv | Model::Rgb) => filter.alpha,
    };
    let amount = (f64::from(params.amount) * 65536.0) as i32;
    if amount == 0 {
        return PlaneOp::Copy;
    }
    PlaneOp::Unsharp(Unsharp { size_x: params.size_x as usize, size_y: params.size_y as usize, amount })
}

fn convolution(filter: &Convolution, component: usize) -> Result<PlaneOp, Unfit> {
    let Some(plane) = filter.planes.get(component) else { return Ok(PlaneOp::Copy) };
    // FFmpeg's default matrix is the identity, which rdiv and bias may still change.
    let identity = Kernel { weights: Arc::new([1.0]), columns: None, file: None };
    let kernel = plane.matrix.as_ref().or(filter.kernel.as_ref()).unwrap_or(&identity);
    lower_kernel(kernel, plane).map_err(|cause| Unfit { cause, hint: "see `convoy filters convolution`".to_string() })
}

fn lower_kernel(kernel: &Kernel, plane: &PlaneKernel) -> Result<PlaneOp, String> {
    let (width, height) = kernel.shape(plane.layout)?;
    let weights = &kernel.weights;
    let sum: f64 = weights.iter().sum();
    // A sum that only rounding keeps from 0 must not become a huge factor.
    let magnitude: f64 = weights.iter().map(|w| w.abs()).sum();
    let divisor = if sum.abs() <= 1e-9 * magnitude { 1.0 } else { sum };
    let scale = if plane.rdiv == 0.0 { 1.0 / divisor } else { f64::from(plane.rdiv) };
    let bias = plane.bias;
    if !(scale as f32).is_finite() {
        return Err(format!("the weights sum to {sum}, too small to divide by"));
    }
    let anchor = (height / 2) * width + width / 2;
    let only_centre = weights.iter().enumerate().all(|(i, w)| i == anchor || *w == 0.0);
    if only_centre && bias == 0.0 && (weights.get(anchor).copied().unwrap_or(0.0) * scale) as f32 == 1.0 {
        return Ok(PlaneOp::Copy);
    }
    if is_worth_separating(width, height)
        && let Some(factors) = factor_rank_1(weights, width)
    {
        let narrow = |taps: &[f64]| -> Arc<[f32]> { trim(taps).iter().map(|w| *w as f32).collect() };
        return Ok(PlaneOp::Separable(Separable { row: narrow(&factors.row), col: narrow(&factors.col), scale: scale as f32, bias }));
    }
    let taps = weights.iter().map(|w| *w as f32).collect();
    Ok(PlaneOp::Direct(Direct { width, height, taps, scale: scale as f32, bias }))
}

/// Two passes pay when they halve the taps at least, which 5×5 does (10 for 25) and 3×3 does not (6 for 9): the second
/// pass also rereads and rewrites what the first one wrote. A single row or column is one pass either way.
fn is_worth_separating(width: usize, height: usize) -> bool {
    width == 1 || height == 1 || width * height >= 2 * (width + height)
}

/// Without zeros that stand at both ends; the anchor ⌊k/2⌋ moves along.
fn trim(mut taps: &[f64]) -> &[f64] {
    while let [first, inner @ .., last] = taps
        && !inner.is_empty()
        && *first == 0.0
        && *last == 0.0
    {
        taps = inner;
    }
    taps
}

/// Weights of gx and gy, and what both are divided by.
type Pair = ([f32; 9], [f32; 9], f32);

const SOBEL: Pair = ([-1., 0., 1., -2., 0., 2., -1., 0., 1.], [-1., -2., -1., 0., 0., 0., 1., 2., 1.], 1.0);
const PREWITT: Pair = ([-1., 0., 1., -1., 0., 1., -1., 0., 1.], [-1., -1., -1., 0., 0., 0., 1., 1., 1.], 1.0);
const SCHARR: Pair = ([-47., 0., 47., -162., 0., 162., -47., 0., 47.], [-47., -162., -47., 0., 0., 0., 47., 162., 47.], 256.0);
/// FFmpeg's own cross, anchored bottom right.
const ROBERTS: Pair = ([1., -1., 0., 0., 0., 0., 0., 0., 0.], [0., 0., 0., -1., 1., 0., 0., 0., 0.], 1.0);

fn gradient(filter: &GradientMagnitude, component: usize, (x, y, divisor): Pair) -> PlaneOp {
    let mask: PlaneMask = filter.planes;
    if !mask.contains(component) {
        return PlaneOp::Copy;
    }
    let (keep_x, keep_y) = match filter.direction {
        Direction::Both => (true, true),
        Direction::X => (true, false),
        Direction::Y => (false, true),
    };
    // Dividing by 256 is exact in f32.
    let weights = |keep: bool, taps: [f32; 9]| if keep { taps.map(|w| w / divisor) } else { [0.0; 9] };
    PlaneOp::Gradient(Gradient { x: weights(keep_x, x), y: weights(keep_y, y), scale: filter.scale, delta: filter.delta })
}

const LAPLACIAN: [f32; 9] = [0., 1., 0., 1., -4., 1., 0., 1., 0.];
const EMBOSS: [f32; 9] = [-2., -1., 0., -1., 1., 1., 0., 1., 2.];
const SHARPEN: [f32; 9] = [0., -1., 0., -1., 5., -1., 0., -1., 0.];
const EDGE: [f32; 9] = [-1., -1., -1., -1., 8., -1., -1., -1., -1.];

fn stencil(filter: &Stencil, component: usize, taps: [f32; 9]) -> PlaneOp {
    if !filter.planes.contains(component) {
        return PlaneOp::Copy;
    }
    PlaneOp::Direct(Direct { width: 3, height: 3, taps: Arc::new(taps), scale: filter.scale, bias: filter.delta })
}

/// A threshold that no sample can reach is none; float samples, of which FFmpeg has no notion here, take it as 65535ths.
fn neighbours(filter: &Neighbours, component: usize, format: PixelFormat, kind: Extreme) -> Result<PlaneOp, Unfit> {
    let threshold = filter.thresholds.get(component).copied().unwrap_or(0);
    if !filter.planes.contains(component) || threshold == 0 || filter.coordinates == 0 {
        return Ok(PlaneOp::Copy);
    }
    let threshold = match format.sample() {
        Sample::U8 | Sample::U16 => ((threshold as f32) < format.max_value()).then_some(threshold as f32),
        Sample::F16 | Sample::F32 => (threshold < 65535).then_some((threshold as f64 / 65535.0) as f32),
    };
    if filter.coordinates == 255 && threshold.is_none() {
        let radius = filter.radius as usize;
        return Ok(PlaneOp::Extremum(Extremum { kind, radius_x: radius, radius_y: radius }));
    }
    if filter.radius > 1 {
        return Err(Unfit {
            cause: format!("threshold{component} limits the 3x3 window only, the radius is {}", filter.radius),
            hint: "leave the threshold out, or chain filters of radius 1".to_string(),
        });
    }
    Ok(PlaneOp::Morphology(Morphology { kind, coordinates: filter.coordinates, threshold }))
}

/// The rank is FFmpeg's (`libavfilter/vf_median.c`, `check_params`), computed in the same types: it truncates a float.
fn median(filter: &Rank, component: usize) -> PlaneOp {
    if !filter.planes.contains(component) {
        return PlaneOp::Copy;
    }
    let (x, y) = (filter.radius, if filter.radius_v == 0 { filter.radius } else { filter.radius_v });
    let rank = (2 * x * y + x + y) as f32 * 2.0 * filter.percentile;
    PlaneOp::Median(Median { radius_x: x as usize, radius_y: y as usize, rank: rank as usize })
}

fn stride(filter: &Pooling) -> i64 {
    if filter.stride == 0 { filter.kernel } else { filter.stride }
}

fn pool(filter: &Pooling, kind: PoolKind) -> PlaneOp {
    let stride = stride(filter);
    if filter.kernel == 1 && stride == 1 {
        return PlaneOp::Copy;
    }
    let [kernel, stride, pad, dilation] = [filter.kernel, stride, filter.pad, filter.dilation].map(|v| v as usize);
    PlaneOp::Pool(Pool { kind, kernel, stride, pad, dilation })
}

/// Windows in a side of `side` samples; one at least, which may be larger than the side.
fn pooled(filter: &Pooling, side: usize) -> usize {
    let room = side as i64 + 2 * filter.pad - filter.dilation * (filter.kernel - 1) - 1;
    if room < 0 { 1 } else { (room / stride(filter)) as usize + 1 }
}

/// Block sizes of FFmpeg's `pixelize`: chroma's is `size` over the subsampling, luma's a multiple of that.
fn pixelate(filter: &Mosaic, component: usize, format: PixelFormat) -> PlaneOp {
    if !filter.planes.contains(component) {
        return PlaneOp::Copy;
    }
    let block = |shift: u32| {
        let chroma = (filter.size as usize >> shift).max(1);
        if matches!(component, 1 | 2) { chroma } else { chroma << shift }
    };
    let (block_x, block_y) = (block(u32::from(format.chroma_shift_x)), block(u32::from(format.chroma_shift_y)));
    if block_x == 1 && block_y == 1 {
        return PlaneOp::Copy;
    }
    PlaneOp::Pixelate(Pixelate { block_x, block_y })
}
