//! The table itself: every filter with its parameters, and how its operation is built from values and taken apart again.

use super::catalog::{Entry, Kind, MAX_BOX_POWER, MAX_GAUSSIAN_RADIUS, Misfit, Param, Value};
use super::expr::Expr;
use super::kernel::Kernel;
use super::{
    AverageBlur, BoxBlur, BoxParams, Convolution, Direction, GaussianBlur, GradientMagnitude, Layout, Mosaic, Neighbours, Op, PlaneKernel,
    PlaneMask, Pooling, Rank, Stencil, UnsharpMask, UnsharpParams,
};

const fn param(name: &'static str, aliases: &'static [&'static str], kind: Kind, help: &'static str) -> Param {
    Param { name, aliases, kind, help, ours: false }
}

const fn ours(name: &'static str, kind: Kind, help: &'static str) -> Param {
    Param { name, aliases: &[], kind, help, ours: true }
}

const fn int(min: i64, max: i64, default: i64) -> Kind {
    Kind::Int { min, max, default }
}

const fn float(min: f64, max: f64, default: f32) -> Kind {
    Kind::Float { min, max, default }
}

const INT_MAX: f64 = i32::MAX as f64;
const PLANES: Param = param("planes", &[], int(0, 15, 15), "components to filter, a bit mask: 1 Y or G, 2 U or B, 4 V or R, 8 alpha");
const LAYOUTS: Kind = Kind::Choice(&["square", "row", "column"]);
const SCALE: Param = param("scale", &[], float(0.0, 65535.0, 1.0), "multiplies the magnitude");
const DELTA: Param = param("delta", &[], float(-65535.0, 65535.0, 0.0), "added after scaling, in code values");
const DIRECTION: Param = ours("direction", Kind::Choice(&["both", "x", "y"]), "magnitude of both gradients, or of one alone");

/// Parameters that every filter takes.
pub const COMMON: [Param; 2] = [
    ours("border", Kind::Choice(&["clamp", "zero", "reflect", "reflect101", "wrap"]), "what lies outside the plane"),
    ours("variant", Kind::Name, "kernel variant to force; a wrong name lists those that exist"),
];

const GRADIENT: &[Param] = &[PLANES, SCALE, DELTA, DIRECTION];
const STENCIL: &[Param] = &[PLANES, param("scale", &[], float(0.0, 65535.0, 1.0), "multiplies the sum"), DELTA];
const NEIGHBOURS: &[Param] = &[
    param(
        "coordinates",
        &[],
        int(0, 255, 255),
        "neighbours that count, a bit mask: 1 top left, 2 top, 4 top right, 8 left, … 128 bottom right",
    ),
    param(
        "threshold0",
        &[],
        THRESHOLD,
        "how far a sample of Y or G may move, in code values (float samples: 65535ths); 0 leaves the plane as it is",
    ),
    param("threshold1", &[], THRESHOLD, "the same for U or B"),
    param("threshold2", &[], THRESHOLD, "the same for V or R"),
    param("threshold3", &[], THRESHOLD, "the same for alpha"),
    ours("radius", int(1, 1024, 1), "radius of a square window; above 1 without coordinates and thresholds"),
    Param { ours: true, ..PLANES },
];
const THRESHOLD: Kind = int(0, 65535, 65535);
const POOLING: &[Param] = &[
    param("kernel", &[], int(1, 127, 2), "samples of a window in each direction"),
    param("stride", &[], int(0, 1024, 0), "distance of the windows, which divides the frame's size; 0 means kernel"),
    param("pad", &[], int(0, 63, 0), "how far the first window starts outside the plane, at most half the kernel"),
    param("dilation", &[], int(1, 1024, 1), "distance of the samples of a window"),
];

/// Every filter, in alphabetical order.
pub const ENTRIES: &[Entry] = &[
    Entry {
        name: "avgblur",
        summary: "Mean of a rectangular window; the cost does not grow with its size.",
        params: &[
            param("sizeX", &[], int(1, 1024, 1), "horizontal radius"),
            PLANES,
            param("sizeY", &[], int(0, 1024, 0), "vertical radius; 0 means sizeX"),
        ],
        formula: "out = mean of the (2 sizeX + 1) x (2 sizeY + 1) samples around in\n(libavfilter/vf_avgblur.c; FFmpeg truncates where Convoy rounds)",
        example: ("avgblur=7", "a 15x15 mean"),
        build: |v| Ok(Op::AverageBlur(AverageBlur { size_x: v.int(), planes: v.planes(), size_y: v.int() })),
    },
    Entry {
        name: "avgpool",
        summary: "Pooling: the mean of each window; a stride above 1 shrinks the frame.",
        params: POOLING,
        formula: "out[y][x] = mean over the samples in[y*stride - pad + j*dilation][x*stride - pad + i*dilation], i, j = 0..kernel-1, inside the plane\nwidth' = max(1, floor((width + 2 pad - dilation (kernel - 1) - 1) / stride) + 1), height alike; subsampled chroma: half of it, rounded up\n(torch.nn.AvgPool2d with ceil_mode=False, count_include_pad=False; border is not used)",
        example: ("avgpool=2", "half the size, each sample the mean of four"),
        build: |v| Ok(Op::AveragePool(pooling(v)?)),
    },
    Entry {
        name: "boxblur",
        summary: "Mean of a square window, repeated; the cost does not grow with its size.",
        params: &[
            param(
                "luma_radius",
                &["lr"],
                Kind::Radius { default: Some("2") },
                "radius on Y or G, an expression of w, h, cw, ch, hsub, vsub",
            ),
            param("luma_power", &["lp"], int(0, MAX_BOX_POWER, 2), "passes on Y or G; 0 leaves the plane as it is"),
            param("chroma_radius", &["cr"], Kind::Radius { default: None }, "radius on U and V, or B and R; default: luma_radius"),
            param("chroma_power", &["cp"], int(-1, MAX_BOX_POWER, -1), "passes there; -1 means luma_power"),
            param("alpha_radius", &["ar"], Kind::Radius { default: None }, "radius on alpha; default: luma_radius"),
            param("alpha_power", &["ap"], int(-1, MAX_BOX_POWER, -1), "passes there; -1 means luma_power"),
        ],
        formula: "power times along the rows, then power times along the columns: out = mean of 2 radius + 1 samples\n(libavfilter/vf_boxblur.c; FFmpeg rounds after every pass and reflects at the border, Convoy rounds once)",
        example: ("boxblur=lr='min(w,h)/40':lp=1", "a window of a twentieth of the picture"),
        build: |v| {
            let luma = BoxParams { radius: v.radius(), power: v.int() };
            let chroma = BoxParams { radius: v.radius(), power: v.int() };
            let alpha = BoxParams { radius: v.radius(), power: v.int() };
            Ok(Op::BoxBlur(BoxBlur { luma, chroma, alpha }))
        },
    },
    Entry {
        name: "convolution",
        summary: "A free kernel per plane, up to 127x127, with fractional weights.",
        params: &[
            param("0m", &[], Kind::Kernel, "weights for Y or G, row by row, or @file; rows may be written apart with '|'"),
            param("1m", &[], Kind::Kernel, "weights for U or B"),
            param("2m", &[], Kind::Kernel, "weights for V or R"),
            param("3m", &[], Kind::Kernel, "weights for alpha"),
            param("0rdiv", &[], float(0.0, INT_MAX, 0.0), "multiplies the sum on Y or G; 0 means 1 / sum of the weights"),
            param("1rdiv", &[], float(0.0, INT_MAX, 0.0), "multiplies the sum on U or B"),
            param("2rdiv", &[], float(0.0, INT_MAX, 0.0), "multiplies the sum on V or R"),
            param("3rdiv", &[], float(0.0, INT_MAX, 0.0), "multiplies the sum on alpha"),
            param("0bias", &[], float(0.0, INT_MAX, 0.0), "added on Y or G after scaling, in code values"),
            param("1bias", &[], float(0.0, INT_MAX, 0.0), "added on U or B"),
            param("2bias", &[], float(0.0, INT_MAX, 0.0), "added on V or R"),
            param("3bias", &[], float(0.0, INT_MAX, 0.0), "added on alpha"),
            param("0mode", &[], LAYOUTS, "layout of the weights for Y or G"),
            param("1mode", &[], LAYOUTS, "layout for U or B"),
            param("2mode", &[], LAYOUTS, "layout for V or R"),
            param("3mode", &[], LAYOUTS, "layout for alpha"),
            ours("kernel", Kind::Kernel, "weights or @file for every component without a matrix of its own"),
        ],
        formula: "out = rdiv * sum over y, x of m[y][x] * in[.. + y - h/2][.. + x - w/2] + bias; a sum of weights of 0 divides by 1\n(libavfilter/vf_convolution.c; FFmpeg 5.1 ignores rdiv and truncates fractional weights, Convoy follows FFmpeg's manual)",
        example: ("convolution=0m=0 -1 0 -1 5 -1 0 -1 0", "sharpens luma"),
        build: convolution,
    },
    Entry {
        name: "dilation",
        summary: "Maximum of a sample and its neighbours: bright parts grow.",
        params: NEIGHBOURS,
        formula: "out = min(max over in and its chosen neighbours, in + threshold); radius r: the maximum of the (2r + 1)^2 samples around in\n(libavfilter/vf_neighbor.c, dilation)",
        example: ("dilation=radius=7", "maximum of 15x15 samples"),
        build: |v| Ok(Op::Dilation(neighbours(v)?)),
    },
    Entry {
        name: "edge",
        summary: "Edges in every direction, signed: what is below 0 is cut off.",
        params: STENCIL,
        formula: "out = scale * sum of [-1 -1 -1; -1 8 -1; -1 -1 -1] * in + delta",
        example: ("edge=planes=1", "edges of luma"),
        build: |v| Ok(Op::Edge(stencil(v))),
    },
    Entry {
        name: "emboss",
        summary: "Relief, lit from the top left.",
        params: STENCIL,
        formula: "out = scale * sum of [-2 -1 0; -1 1 1; 0 1 2] * in + delta",
        example: ("emboss=planes=1", "luma as a relief, colours as they are"),
        build: |v| Ok(Op::Emboss(stencil(v))),
    },
    Entry {
        name: "erosion",
        summary: "Minimum of a sample and its neighbours: dark parts grow.",
        params: NEIGHBOURS,
        formula: "out = max(min over in and its chosen neighbours, in - threshold); radius r: the minimum of the (2r + 1)^2 samples around in\n(libavfilter/vf_neighbor.c, erosion)",
        example: ("erosion=coordinates=90", "minimum of a cross of five samples"),
        build: |v| Ok(Op::Erosion(neighbours(v)?)),
    },
    Entry {
        name: "gblur",
        summary: "Gaussian blur, true to the formula.",
        params: &[
            param("sigma", &[], float(0.0, 1024.0, 0.5), "standard deviation in samples; 0 leaves rows as they are"),
            param("steps", &[], int(1, 6, 1), "passes of FFmpeg's approximation; accepted and ignored"),
            PLANES,
            param("sigmaV", &[], float(-1.0, 1024.0, -1.0), "vertical standard deviation; -1 means sigma"),
            ours(
                "radius",
                int(0, MAX_GAUSSIAN_RADIUS, 0),
                "taps on each side of the centre; 0 chooses 3 sigma or more, so that what is cut off cannot be seen",
            ),
        ],
        formula: "out = sum over i of g[i] * in[.. + i] along rows, then columns, g[i] = exp(-i^2 / (2 sigma^2)) / sum\n(FFmpeg's own gblur is a recursive approximation, up to 25 code values away)",
        example: ("gblur=sigma=2", "blurs every plane with sigma 2"),
        build: |v| {
            Ok(Op::GaussianBlur(GaussianBlur { sigma: v.float(), steps: v.int(), planes: v.planes(), sigma_v: v.float(), radius: v.int() }))
        },
    },
    Entry {
        name: "kirsch",
        summary: "Edges: FFmpeg's Kirsch operator.",
        params: STENCIL,
        formula: "out = scale * |max over k of K_k * in| + delta, k = 0..7; K_k weighs the neighbours k, k+1, k+2 (modulo 8) with 5, the others with -3\nthe neighbours counted row by row from the top left, so that k = 1 takes top, top right and left, not around the centre as in the textbook\n(libavfilter/vf_convolution.c, filter_kirsch; FFmpeg truncates where Convoy rounds)",
        example: ("kirsch=planes=1:scale=0.2", "edges of luma"),
        build: |v| Ok(Op::Kirsch(stencil(v))),
    },
    Entry {
        name: "laplacian",
        summary: "Sum of the second derivatives, signed: what is below 0 is cut off.",
        params: STENCIL,
        formula: "out = scale * sum of [0 1 0; 1 -4 1; 0 1 0] * in + delta\n(scipy.ndimage.laplace, cv2.Laplacian with ksize=1)",
        example: ("laplacian=planes=1:delta=128", "both signs, around mid grey"),
        build: |v| Ok(Op::Laplacian(stencil(v))),
    },
    Entry {
        name: "maxpool",
        summary: "Pooling: the maximum of each window; a stride above 1 shrinks the frame.",
        params: POOLING,
        formula: "out[y][x] = maximum over the samples in[y*stride - pad + j*dilation][x*stride - pad + i*dilation], i, j = 0..kernel-1, inside the plane\nwidth' = max(1, floor((width + 2 pad - dilation (kernel - 1) - 1) / stride) + 1), height alike; subsampled chroma: half of it, rounded up\n(torch.nn.MaxPool2d with ceil_mode=False; border is not used)",
        example: ("maxpool=3:2:1", "half the size, windows of 3x3"),
        build: |v| Ok(Op::MaxPool(pooling(v)?)),
    },
    Entry {
        name: "median",
        summary: "Median of a window, or another percentile.",
        params: &[
            param("radius", &[], int(1, 127, 1), "horizontal radius"),
            PLANES,
            param("radiusV", &[], int(0, 127, 0), "vertical radius; 0 means radius"),
            param("percentile", &[], float(0.0, 1.0, 0.5), "0 is the minimum, 0.5 the median, 1 the maximum"),
        ],
        formula: "out = s[floor(2 * percentile * (2 rx ry + rx + ry))], s the (2 rx + 1) x (2 ry + 1) samples around in, in ascending order\n(libavfilter/vf_median.c; FFmpeg shrinks a window that is larger than the plane, Convoy continues the plane by its border)",
        example: ("median=radius=2", "a 5x5 median"),
        build: |v| Ok(Op::Median(Rank { radius: v.int(), planes: v.planes(), radius_v: v.int(), percentile: v.float() })),
    },
    Entry {
        name: "minpool",
        summary: "Pooling: the minimum of each window; a stride above 1 shrinks the frame.",
        params: POOLING,
        formula: "out[y][x] = minimum over the samples in[y*stride - pad + j*dilation][x*stride - pad + i*dilation], i, j = 0..kernel-1, inside the plane\nwidth' = max(1, floor((width + 2 pad - dilation (kernel - 1) - 1) / stride) + 1), height alike; subsampled chroma: half of it, rounded up\n(torch.nn.MaxPool2d with ceil_mode=False of the negated samples; border is not used)",
        example: ("minpool=3:1:1", "a 3x3 minimum, the size stays"),
        build: |v| Ok(Op::MinPool(pooling(v)?)),
    },
    Entry {
        name: "pixelate",
        summary: "Blocks of one colour, at the original size.",
        params: &[
            param(
                "size",
                &[],
                int(1, 1024, 16),
                "side of a block in luma samples, a multiple of the chroma subsampling or rounded down to one",
            ),
            PLANES,
        ],
        formula: "out = mean of the block of size x size samples that holds in; blocks start at the top left, and end with the plane\n(libavfilter/vf_pixelize.c, mode avg; FFmpeg truncates where Convoy rounds; border is not used)",
        example: ("pixelate=24", "blocks of 24x24"),
        build: |v| Ok(Op::Pixelate(Mosaic { size: v.int(), planes: v.planes() })),
    },
    Entry {
        name: "prewitt",
        summary: "Edges: magnitude of Prewitt's gradients.",
        params: GRADIENT,
        formula: "out = scale * sqrt(gx^2 + gy^2) + delta, gx = [-1 0 1; -1 0 1; -1 0 1], gy its transpose\n(libavfilter/vf_convolution.c, filter_prewitt; FFmpeg truncates where Convoy rounds)",
        example: ("prewitt=planes=1:scale=2", "edges of luma, twice as bright"),
        build: |v| Ok(Op::Prewitt(gradient(v))),
    },
    Entry {
        name: "roberts",
        summary: "Edges: magnitude of FFmpeg's Roberts cross.",
        params: &[PLANES, SCALE, DELTA],
        formula: "out = scale * sqrt(a^2 + b^2) + delta, a = in[y-1][x-1] - in[y-1][x], b = in[y][x] - in[y][x-1]\n(libavfilter/vf_convolution.c, filter_roberts, anchored bottom right; not the textbook's diagonal differences)",
        example: ("roberts=scale=4", "faint edges made visible"),
        build: |v| {
            Ok(Op::Roberts(GradientMagnitude { planes: v.planes(), scale: v.float(), delta: v.float(), direction: Direction::Both }))
        },
    },
    Entry {
        name: "scharr",
        summary: "Edges: magnitude of Scharr's gradients.",
        params: GRADIENT,
        formula: "out = scale * sqrt(gx^2 + gy^2) + delta, gx = [-47 0 47; -162 0 162; -47 0 47] / 256, gy its transpose\n(libavfilter/vf_convolution.c, filter_scharr; FFmpeg truncates where Convoy rounds)",
        example: ("scharr=planes=1", "edges of luma"),
        build: |v| Ok(Op::Scharr(gradient(v))),
    },
    Entry {
        name: "sharpen",
        summary: "Sharpens with the four nearest neighbours.",
        params: STENCIL,
        formula: "out = scale * sum of [0 -1 0; -1 5 -1; 0 -1 0] * in + delta",
        example: ("sharpen=planes=1", "sharpens luma"),
        build: |v| Ok(Op::Sharpen(stencil(v))),
    },
    Entry {
        name: "sobel",
        summary: "Edges: magnitude of Sobel's gradients.",
        params: GRADIENT,
        formula: "out = scale * sqrt(gx^2 + gy^2) + delta, gx = [-1 0 1; -2 0 2; -1 0 1], gy its transpose\n(libavfilter/vf_convolution.c, filter_sobel; FFmpeg truncates where Convoy rounds)",
        example: ("sobel=planes=1", "edges of luma, chroma as it is"),
        build: |v| Ok(Op::Sobel(gradient(v))),
    },
    Entry {
        name: "unsharp",
        summary: "Sharpens by adding the difference to a blur; a negative amount blurs.",
        params: &[
            param("luma_msize_x", &["lx"], int(3, 23, 5), "width of the blur on Y, gray, or G, B and R; odd"),
            param("luma_msize_y", &["ly"], int(3, 23, 5), "its height; odd"),
            param("luma_amount", &["la"], float(-2.0, 5.0, 1.0), "strength there"),
            param("chroma_msize_x", &["cx"], int(3, 23, 5), "width of the blur on U and V; odd"),
            param("chroma_msize_y", &["cy"], int(3, 23, 5), "its height; odd"),
            param("chroma_amount", &["ca"], float(-2.0, 5.0, 0.0), "strength there; 0 leaves them as they are"),
            param("alpha_msize_x", &["ax"], int(3, 23, 5), "width of the blur on alpha; odd"),
            param("alpha_msize_y", &["ay"], int(3, 23, 5), "its height; odd"),
            param("alpha_amount", &["aa"], float(-2.0, 5.0, 0.0), "strength there; 0 leaves it as it is"),
        ],
        formula: "blur = binomial mean of msize_x * msize_y samples, rounded; out = in + floor((in - blur) * trunc(65536 amount) / 65536)\n(libavfilter/vf_unsharp.c at 8 bits; FFmpeg 5.1 is 256 times too weak above 8 bits and takes no sizes with x + y > 26)",
        example: ("unsharp=7:7:1.5", "sharpens luma with a 7x7 blur"),
        build: |v| {
            let luma = v.unsharp(["luma_msize_x", "luma_msize_y"])?;
            let chroma = v.unsharp(["chroma_msize_x", "chroma_msize_y"])?;
            let alpha = v.unsharp(["alpha_msize_x", "alpha_msize_y"])?;
            Ok(Op::UnsharpMask(UnsharpMask { luma, chroma, alpha }))
        },
    },
];

fn gradient(v: &mut Values<'_>) -> GradientMagnitude {
    let (planes, scale, delta) = (v.planes(), v.float(), v.float());
    let direction = match v.choice() {
        0 => Direction::Both,
        1 => Direction::X,
        _ => Direction::Y,
    };
    GradientMagnitude { planes, scale, delta, direction }
}

fn stencil(v: &mut Values<'_>) -> Stencil {
    Stencil { planes: v.planes(), scale: v.float(), delta: v.float() }
}

fn neighbours(v: &mut Values<'_>) -> Result<Neighbours, Misfit> {
    let coordinates = (v.int() & 255) as u8;
    let thresholds = std::array::from_fn(|_| v.int());
    let (radius, planes) = (v.int(), v.planes());
    if radius > 1 && coordinates != 255 {
        return Err(Misfit::new(
            "coordinates",
            "coordinates choose among the neighbours at radius 1; a larger radius takes the whole window",
        ));
    }
    Ok(Neighbours { coordinates, thresholds, radius, planes })
}

fn pooling(v: &mut Values<'_>) -> Result<Pooling, Misfit> {
    let pooling = Pooling { kernel: v.int(), stride: v.int(), pad: v.int(), dilation: v.int() };
    if pooling.pad > pooling.kernel / 2 {
        return Err(Misfit::new("pad", format!("the pad must be at most half the kernel of {}", pooling.kernel)));
    }
    Ok(pooling)
}

fn convolution(v: &mut Values<'_>) -> Result<Op, Misfit> {
    let matrices: [_; 4] = std::array::from_fn(|_| v.kernel());
    let rdivs: [_; 4] = std::array::from_fn(|_| v.float());
    let biases: [_; 4] = std::array::from_fn(|_| v.float());
    let layouts: [_; 4] = std::array::from_fn(|_| match v.choice() {
        0 => Layout::Square,
        1 => Layout::Row,
        _ => Layout::Column,
    });
    let kernel = v.kernel();
    let mut planes = [const { PlaneKernel { matrix: None, rdiv: 0.0, bias: 0.0, layout: Layout::Square } }; 4];
    let parts = matrices.into_iter().zip(rdivs).zip(biases).zip(layouts).zip(["0m", "1m", "2m", "3m"]);
    for (plane, ((((matrix, rdiv), bias), layout), name)) in planes.iter_mut().zip(parts) {
        if let Some((kernel, name)) = matrix.as_ref().map(|m| (m, name)).or(kernel.as_ref().map(|k| (k, "kernel"))) {
            kernel.shape(layout).map_err(|message| Misfit::new(name, message))?;
        }
        *plane = PlaneKernel { matrix, rdiv, bias, layout };
    }
    Ok(Op::Convolution(Box::new(Convolution { planes, kernel })))
}

/// Values in the order of an entry's parameters. The parser fills every slot with a value of its parameter's kind, and
/// the tests hold each `build` to its table; a slot of another kind would read as that kind's zero.
pub struct Values<'a> {
    /// Those not taken yet.
    pub(super) values: std::slice::IterMut<'a, Value>,
}

impl Values<'_> {
    fn int(&mut self) -> i64 {
        match self.values.next() {
            Some(Value::Int(v)) => *v,
            _ => 0,
        }
    }

    fn float(&mut self) -> f32 {
        match self.values.next() {
            Some(Value::Float(v)) => *v,
            _ => 0.0,
        }
    }

    fn choice(&mut self) -> usize {
        match self.values.next() {
            Some(Value::Choice(v)) => *v,
            _ => 0,
        }
    }

    fn radius(&mut self) -> Option<Expr> {
        match self.values.next() {
            Some(Value::Radius(v)) => v.take(),
            _ => None,
        }
    }

    fn kernel(&mut self) -> Option<Kernel> {
        match self.values.next() {
            Some(Value::Kernel(v)) => v.take(),
            _ => None,
        }
    }

    fn planes(&mut self) -> PlaneMask {
        PlaneMask((self.int() & 15) as u8)
    }

    fn unsharp(&mut self, names: [&'static str; 2]) -> Result<UnsharpParams, Misfit> {
        let (size_x, size_y, amount) = (self.int(), self.int(), self.float());
        for (size, name) in [size_x, size_y].into_iter().zip(names) {
            if size % 2 == 0 {
                return Err(Misfit::new(name, format!("the size must be odd, {size} is even")));
            }
        }
        Ok(UnsharpParams { size_x, size_y, amount })
    }
}

/// The values of an operation's parameters, in the order of its entry.
pub(super) fn values(op: &Op) -> Vec<Value> {
    use Value::{Choice, Float, Int, Radius};
    let planes = |mask: PlaneMask| Int(i64::from(mask.0));
    match op {
        Op::GaussianBlur(g) => vec![Float(g.sigma), Int(g.steps), planes(g.planes), Float(g.sigma_v), Int(g.radius)],
        Op::AverageBlur(a) => vec![Int(a.size_x), planes(a.planes), Int(a.size_y)],
        Op::BoxBlur(b) => [&b.luma, &b.chroma, &b.alpha].into_iter().flat_map(|p| [Radius(p.radius.clone()), Int(p.power)]).collect(),
        Op::UnsharpMask(u) => {
            [u.luma, u.chroma, u.alpha].into_iter().flat_map(|p| [Int(p.size_x), Int(p.size_y), Float(p.amount)]).collect()
        }
        Op::Convolution(c) => {
            let each = |value: fn(&PlaneKernel) -> Value| c.planes.iter().map(value);
            each(|p| Value::Kernel(p.matrix.clone()))
                .chain(each(|p| Float(p.rdiv)))
                .chain(each(|p| Float(p.bias)))
                .chain(each(|p| {
                    Choice(match p.layout {
                        Layout::Square => 0,
                        Layout::Row => 1,
                        Layout::Column => 2,
                    })
                }))
                .chain([Value::Kernel(c.kernel.clone())])
                .collect()
        }
        Op::Kirsch(s) | Op::Laplacian(s) | Op::Emboss(s) | Op::Sharpen(s) | Op::Edge(s) => {
            vec![planes(s.planes), Float(s.scale), Float(s.delta)]
        }
        Op::Erosion(n) | Op::Dilation(n) => {
            let thresholds = n.thresholds.into_iter().map(Int);
            [Int(i64::from(n.coordinates))].into_iter().chain(thresholds).chain([Int(n.radius), planes(n.planes)]).collect()
        }
        Op::Median(m) => vec![Int(m.radius), planes(m.planes), Int(m.radius_v), Float(m.percentile)],
        Op::MaxPool(p) | Op::AveragePool(p) | Op::MinPool(p) => vec![Int(p.kernel), Int(p.stride), Int(p.pad), Int(p.dilation)],
        Op::Pixelate(m) => vec![Int(m.size), planes(m.planes)],
        Op::Roberts(g) => vec![planes(g.planes), Float(g.scale), Float(g.delta)],
        Op::Sobel(g) | Op::Prewitt(g) | Op::Scharr(g) => {
            let direction = match g.direction {
                Direction::Both => 0,
                Direction::X => 1,
                Direction::Y => 2,
            };
            vec![planes(g.planes), Float(g.scale), Float(g.delta), Choice(direction)]
        }
    }
}
