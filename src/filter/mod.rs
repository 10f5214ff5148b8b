//! Filters as values: what they are called, their parameters, and what they do to each plane ([`mod@plan`]).
//!
//! [`parse()`] turns a filter graph in FFmpeg's syntax into [`Filter`]s, `Display` turns them back, [`lower`] turns them
//! into a [`plan::Plan`]. Names, ranges and defaults stand once, in [`catalog`].

use std::fmt;

pub mod catalog;
pub mod expr;
pub mod kernel;
pub mod lower;
pub mod math;
pub mod parse;
pub mod plan;
mod table;

pub use catalog::{describe, list};
pub use lower::{plan, separates_chroma};
pub use parse::parse;

use expr::Expr;
use kernel::Kernel;

/// What lies outside the plane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Border {
    /// The edge sample repeated: `aaa|abcd|ddd`.
    #[default]
    Clamp,
    /// Zero.
    Zero,
    /// Mirrored with the edge sample: `cba|abcd|dcb`.
    Reflect,
    /// Mirrored without the edge sample: `dcb|abcd|cba`.
    Reflect101,
    /// Continued periodically: `bcd|abcd|abc`.
    Wrap,
}

impl Border {
    /// Every border, in the order of the documentation.
    pub const ALL: [Self; 5] = [Self::Clamp, Self::Zero, Self::Reflect, Self::Reflect101, Self::Wrap];

    /// The name in a filter graph.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Clamp => "clamp",
            Self::Zero => "zero",
            Self::Reflect => "reflect",
            Self::Reflect101 => "reflect101",
            Self::Wrap => "wrap",
        }
    }
}

/// One filter of a chain: an operation and what every filter takes besides.
#[derive(Clone, Debug, PartialEq)]
pub struct Filter {
    /// What it computes.
    pub op: Op,
    /// What lies outside each plane.
    pub border: Border,
    /// A kernel variant that the user demands.
    pub variant: Option<String>,
    /// The instance name of `name@id`.
    pub id: Option<String>,
}

impl Filter {
    /// The filter's name in a graph.
    pub fn name(&self) -> &'static str {
        self.op.name()
    }
}

/// Written as `name@id=parameter=value:…` with every value that is not the default, quoted so that [`parse()`] returns
/// an equal value.
impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        catalog::write(self, f)
    }
}

/// The operations, each with its parameters.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// `gblur`.
    GaussianBlur(GaussianBlur),
    /// `boxblur`.
    BoxBlur(BoxBlur),
    /// `avgblur`.
    AverageBlur(AverageBlur),
    /// `unsharp`.
    UnsharpMask(UnsharpMask),
    /// `convolution`.
    Convolution(Box<Convolution>),
    /// `sobel`.
    Sobel(GradientMagnitude),
    /// `prewitt`.
    Prewitt(GradientMagnitude),
    /// `scharr`.
    Scharr(GradientMagnitude),
    /// `roberts`.
    Roberts(GradientMagnitude),
    /// `kirsch`.
    Kirsch(Stencil),
    /// `laplacian`.
    Laplacian(Stencil),
    /// `emboss`.
    Emboss(Stencil),
    /// `sharpen`.
    Sharpen(Stencil),
    /// `edge`.
    Edge(Stencil),
    /// `erosion`.
    Erosion(Neighbours),
    /// `dilation`.
    Dilation(Neighbours),
    /// `median`.
    Median(Rank),
    /// `maxpool`.
    MaxPool(Pooling),
    /// `avgpool`.
    AveragePool(Pooling),
    /// `minpool`.
    MinPool(Pooling),
    /// `pixelate`.
    Pixelate(Mosaic),
}

impl Op {
    /// The filter's name in a graph.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::GaussianBlur(_) => "gblur",
            Self::BoxBlur(_) => "boxblur",
            Self::AverageBlur(_) => "avgblur",
            Self::UnsharpMask(_) => "unsharp",
            Self::Convolution(_) => "convolution",
            Self::Sobel(_) => "sobel",
            Self::Prewitt(_) => "prewitt",
            Self::Scharr(_) => "scharr",
            Self::Roberts(_) => "roberts",
            Self::Kirsch(_) => "kirsch",
            Self::Laplacian(_) => "laplacian",
            Self::Emboss(_) => "emboss",
            Self::Sharpen(_) => "sharpen",
            Self::Edge(_) => "edge",
            Self::Erosion(_) => "erosion",
            Self::Dilation(_) => "dilation",
            Self::Median(_) => "median",
            Self::MaxPool(_) => "maxpool",
            Self::AveragePool(_) => "avgpool",
            Self::MinPool(_) => "minpool",
            Self::Pixelate(_) => "pixelate",
        }
    }
}

/// Which components a filter changes: bit 0 Y or G, bit 1 U or B, bit 2 V or R, bit 3 A.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaneMask(pub u8);

impl PlaneMask {
    /// Whether component `index` (0…3) is changed.
    pub const fn contains(self, index: usize) -> bool {
        self.0 >> index & 1 == 1
    }
}

/// Parameters of `gblur`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GaussianBlur {
    /// Standard deviation in samples, 0 (rows pass unchanged) to 1024.
    pub sigma: f32,
    /// FFmpeg's number of recursive passes; accepted and ignored.
    pub steps: i64,
    /// Components that are blurred.
    pub planes: PlaneMask,
    /// Vertical standard deviation; negative means `sigma`.
    pub sigma_v: f32,
    /// Taps on each side of the centre; 0 chooses them from σ.
    pub radius: i64,
}

/// Radius and number of passes of one group of planes in `boxblur`.
#[derive(Clone, Debug, PartialEq)]
pub struct BoxParams {
    /// Radius expression; None means the luma planes'.
    pub radius: Option<Expr>,
    /// Passes; −1 means the luma planes'.
    pub power: i64,
}

/// Parameters of `boxblur`.
#[derive(Clone, Debug, PartialEq)]
pub struct BoxBlur {
    /// Y or G.
    pub luma: BoxParams,
    /// U and V, or B and R.
    pub chroma: BoxParams,
    /// A.
    pub alpha: BoxParams,
}

/// Parameters of `avgblur`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AverageBlur {
    /// Horizontal radius, 1 to 1024.
    pub size_x: i64,
    /// Components that are blurred.
    pub planes: PlaneMask,
    /// Vertical radius; 0 means `size_x`.
    pub size_y: i64,
}

/// Window and strength of one group of planes in `unsharp`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UnsharpParams {
    /// Width of the blur, odd, 3…23.
    pub size_x: i64,
    /// Height of the blur, odd, 3…23.
    pub size_y: i64,
    /// Strength, −2…5; negative blurs.
    pub amount: f32,
}

/// Parameters of `unsharp`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UnsharpMask {
    /// Y, gray, or all of G, B, R.
    pub luma: UnsharpParams,
    /// U and V.
    pub chroma: UnsharpParams,
    /// A.
    pub alpha: UnsharpParams,
}

/// How the weights of a `convolution` kernel are laid out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// A matrix, row by row.
    #[default]
    Square,
    /// A single row.
    Row,
    /// A single column.
    Column,
}

/// Kernel of one component in `convolution`.
#[derive(Clone, Debug, PartialEq)]
pub struct PlaneKernel {
    /// Weights; None means [`Convolution::kernel`].
    pub matrix: Option<Kernel>,
    /// Multiplies the sum; 0 means one divided by the sum of the weights.
    pub rdiv: f32,
    /// Added after scaling, in code values.
    pub bias: f32,
    /// Layout of the weights.
    pub layout: Layout,
}

/// Parameters of `convolution`.
#[derive(Clone, Debug, PartialEq)]
pub struct Convolution {
    /// One per component.
    pub planes: [PlaneKernel; 4],
    /// For components without a matrix of their own; None leaves them unchanged, as FFmpeg's identity default does.
    pub kernel: Option<Kernel>,
}

/// Which gradient counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// √(gx² + gy²).
    #[default]
    Both,
    /// |gx|: changes along a row.
    X,
    /// |gy|: changes along a column.
    Y,
}

/// Parameters of `sobel` and its relatives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GradientMagnitude {
    /// Components that are changed.
    pub planes: PlaneMask,
    /// Multiplies the magnitude.
    pub scale: f32,
    /// Added after scaling, in code values.
    pub delta: f32,
    /// Which gradient counts; always both for `roberts`.
    pub direction: Direction,
}

/// Parameters of `kirsch` and of the ready-made 3×3 kernels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stencil {
    /// Components that are changed.
    pub planes: PlaneMask,
    /// Multiplies the sum.
    pub scale: f32,
    /// Added after scaling, in code values.
    pub delta: f32,
}

/// Parameters of `erosion` and `dilation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbours {
    /// Which of the eight neighbours count, from the top left in the order of reading; all when `radius` is above 1.
    pub coordinates: u8,
    /// How far a sample of each component may move, in its own code values; 0 leaves the component as it is.
    pub thresholds: [i64; 4],
    /// Radius of the square window, 1 to 1024.
    pub radius: i64,
    /// Components that are changed.
    pub planes: PlaneMask,
}

/// Parameters of `median`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rank {
    /// Horizontal radius, 1 to 127.
    pub radius: i64,
    /// Components that are changed.
    pub planes: PlaneMask,
    /// Vertical radius; 0 means `radius`.
    pub radius_v: i64,
    /// 0 is the minimum, 0.5 the median, 1 the maximum.
    pub percentile: f32,
}

/// Parameters of `maxpool`, `avgpool` and `minpool`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pooling {
    /// Samples of a window in each direction, 1 to 127.
    pub kernel: i64,
    /// Distance of the windows; 0 means `kernel`.
    pub stride: i64,
    /// How far the first window starts outside, at most half the kernel.
    pub pad: i64,
    /// Distance of the samples of a window.
    pub dilation: i64,
}

/// Parameters of `pixelate`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mosaic {
    /// Side of a block in luma samples, 1 to 1024.
    pub size: i64,
    /// Components that are changed.
    pub planes: PlaneMask,
}
