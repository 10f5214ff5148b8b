//! Pooling and convolution of batches of multi-channel images, as layers of a network use them: on CUDA or on the CPU.
//!
//! ```
//! use convoy::tensor::{Dims, Engine, Layout, Pooling, Reduce, Tensor};
//!
//! let dims = Dims { batch: 1, channels: 1, height: 2, width: 4 };
//! let input = Tensor::f32(dims, Layout::Nchw, vec![1.0, 5.0, 2.0, 3.0, 4.0, 0.0, 7.0, 6.0])?;
//! let pooled = Engine::cpu(Some(1)).pool(&Pooling::new(Reduce::Max, 2, 2), &input, None)?;
//! assert_eq!(pooled.to_f32(), [5.0, 7.0]);
//! # Ok::<(), convoy::error::Error>(())
//! ```
//!
//! Results are rounded once, at the end: halves are summed in `f32`. Means over 64 samples or more use compensated (Kahan) sums. Where a
//! NaN goes in a maximum or minimum is not defined.

use std::sync::Arc;

use half::f16;

use crate::backend::cpu::tensor as cpu;
use crate::backend::cuda::tensor as cuda;
use crate::error::{Error, Result};

/// Size of a tensor; every side is at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dims {
    /// Images.
    pub batch: usize,
    /// Channels of an image.
    pub channels: usize,
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
}

impl Dims {
    /// Values in all; None if there are more than can be addressed in 2⁴⁰.
    pub fn count(self) -> Option<usize> {
        [self.channels, self.height, self.width]
            .into_iter()
            .try_fold(self.batch, |n, side| n.checked_mul(side))
            .filter(|&n| n > 0 && n <= 1 << 40 && [self.batch, self.channels, self.height, self.width].iter().all(|&s| s < 1 << 31))
    }
}

impl std::fmt::Display for Dims {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}x{}x{}x{}", self.batch, self.channels, self.height, self.width)
    }
}

/// Order of the values, slowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Batch, channel, row, column.
    Nchw,
    /// Batch, row, column, channel.
    Nhwc,
}

/// The values themselves, shared.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// 32-bit floats.
    F32(Arc<[f32]>),
    /// IEEE halves.
    F16(Arc<[f16]>),
}

impl Values {
    fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F16(values) => values.len(),
        }
    }
}

/// A batch of images in memory, without gaps.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    dims: Dims,
    layout: Layout,
    values: Values,
}

impl Tensor {
    /// A tensor of these values.
    ///
    /// # Errors
    /// There are more or fewer values than `dims` says, or a side is 0.
    pub fn new(dims: Dims, layout: Layout, values: Values) -> Result<Self> {
        match dims.count() {
            Some(count) if count == values.len() => Ok(Self { dims, layout, values }),
            Some(count) => {
                Err(Error::usage(format!("cannot make a tensor of {dims}"), format!("it has {count} values, not {}", values.len())))
            }
            None => Err(Error::usage(format!("cannot make a tensor of {dims}"), "a side is 0, or it is too large")),
        }
    }

    /// A tensor of 32-bit floats.
    ///
    /// # Errors
    /// As for [`Tensor::new`].
    pub fn f32(dims: Dims, layout: Layout, values: Vec<f32>) -> Result<Self> {
        Self::new(dims, layout, Values::F32(values.into()))
    }

    /// A tensor of halves.
    ///
    /// # Errors
    /// As for [`Tensor::new`].
    pub fn f16(dims: Dims, layout: Layout, values: Vec<f16>) -> Result<Self> {
        Self::new(dims, layout, Values::F16(values.into()))
    }

    /// Its size.
    pub fn dims(&self) -> Dims {
        self.dims
    }

    /// Its layout.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// Its values.
    pub fn values(&self) -> &Values {
        &self.values
    }

    /// Its values as 32-bit floats, in the order of the layout.
    pub fn to_f32(&self) -> Vec<f32> {
        match &self.values {
            Values::F32(values) => values.to_vec(),
            Values::F16(values) => values.iter().map(|v| v.to_f32()).collect(),
        }
    }
}

/// What a window becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduce {
    /// The largest value.
    Max,
    /// The mean.
    Mean,
    /// The smallest value.
    Min,
}

/// Where windows lie, down and across.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Windows {
    /// Values per window, at least 1.
    pub kernel: [usize; 2],
    /// Distance of neighbouring windows, at least 1.
    pub stride: [usize; 2],
    /// How far the first window starts before the image, at most half of the kernel for pooling.
    pub pad: [usize; 2],
    /// Distance of neighbouring values of a window, at least 1.
    pub dilation: [usize; 2],
}

impl Windows {
    /// Square windows without padding or dilation.
    pub const fn square(kernel: usize, stride: usize) -> Self {
        Self { kernel: [kernel; 2], stride: [stride; 2], pad: [0; 2], dilation: [1; 2] }
    }

    /// Values of a window.
    pub fn area(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    /// Windows along `n` values: ⌊(n + 2·pad − dilation·(kernel − 1) − 1) / stride⌋ + 1, as PyTorch without ceil mode.
    fn along(&self, axis: usize, n: usize) -> Result<usize, String> {
        let [kernel, stride, pad, dilation] = [self.kernel[axis], self.stride[axis], self.pad[axis], self.dilation[axis]];
        let name = if axis == 0 { "down" } else { "across" };
        if kernel == 0 || stride == 0 || dilation == 0 {
            return Err(format!("kernel, stride and dilation {name} must be at least 1; they are {kernel}, {stride}, {dilation}"));
        }
        if [kernel, stride, pad, dilation].iter().any(|&v| v > 1 << 14) {
            return Err(format!("kernel, stride, padding and dilation {name} must not exceed {}", 1 << 14));
        }
        let reach = dilation * (kernel - 1) + 1;
        match (n + 2 * pad).checked_sub(reach) {
            Some(rest) => Ok(rest / stride + 1),
            None => Err(format!("windows reach over {reach} values {name}, and with its padding the image has {}", n + 2 * pad)),
        }
    }

    fn output(&self, dims: Dims, channels: usize) -> Result<Dims, String> {
        Ok(Dims { channels, height: self.along(0, dims.height)?, width: self.along(1, dims.width)?, ..dims })
    }
}

/// A pooling layer. What lies outside the image takes no part: it is no maximum, and adds nothing to a mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pooling {
    /// What a window becomes.
    pub reduce: Reduce,
    /// Where windows lie.
    pub windows: Windows,
    /// Whether a mean is divided by the window's area, padding included, or by the values that exist (0 if there are none).
    pub count_pad: bool,
}

impl Pooling {
    /// Square windows without padding.
    pub const fn new(reduce: Reduce, kernel: usize, stride: usize) -> Self {
        Self { reduce, windows: Windows::square(kernel, stride), count_pad: true }
    }

    /// The same with padding on all sides.
    #[must_use]
    pub const fn pad(mut self, pad: usize) -> Self {
        self.windows.pad = [pad; 2];
        self
    }

    /// The result's size.
    ///
    /// # Errors
    /// Windows do not fit the image, or the padding exceeds half of the kernel.
    pub fn output(&self, dims: Dims) -> Result<Dims> {
        let what = || format!("cannot pool a tensor of {dims}");
        for axis in 0..2 {
            if self.windows.pad[axis] > self.windows.kernel[axis] / 2 {
                let (pad, kernel) = (self.windows.pad[axis], self.windows.kernel[axis]);
                return Err(Error::usage(what(), format!("a padding of {pad} exceeds half of the kernel's {kernel}")));
            }
        }
        self.windows.output(dims, dims.channels).map_err(|why| Error::usage(what(), why))
    }

    /// Whether sums are compensated.
    pub(crate) fn compensated(&self) -> bool {
        self.reduce == Reduce::Mean && self.windows.area() >= 64
    }
}

/// A convolution layer (correlation, as networks have it): `out[o] = bias[o] + Σ weights[o][i] ⋆ in[i]`, zero outside the image.
#[derive(Clone, Debug, PartialEq)]
pub struct Convolution {
    /// Output channels × input channels × kernel rows × kernel columns.
    pub weights: Arc<[f32]>,
    /// One per output channel.
    pub bias: Option<Arc<[f32]>>,
    /// Channels that it makes.
    pub out_channels: usize,
    /// Where windows lie.
    pub windows: Windows,
}

impl Convolution {
    /// The result's size.
    ///
    /// # Errors
    /// Windows do not fit the image, or there are too few or too many weights for its channels.
    pub fn output(&self, dims: Dims) -> Result<Dims> {
        let what = || format!("cannot convolve a tensor of {dims}");
        let wanted = [dims.channels, self.windows.kernel[0], self.windows.kernel[1]]
            .into_iter()
            .try_fold(self.out_channels, |n, side| n.checked_mul(side))
            .unwrap_or(usize::MAX);
        if wanted == 0 || self.weights.len() != wanted {
            let text = format!("{} output channels need {wanted} weights, and there are {}", self.out_channels, self.weights.len());
            return Err(Error::usage(what(), text));
        }
        if let Some(bias) = self.bias.as_ref().filter(|bias| bias.len() != self.out_channels) {
            return Err(Error::usage(what(), format!("{} output channels have {} biases", self.out_channels, bias.len())));
        }
        self.windows.output(dims, self.out_channels).map_err(|why| Error::usage(what(), why))
    }
}

/// What executes layers.
pub struct Engine {
    kind: Kind,
}

enum Kind {
    Cpu(usize),
    Cuda(Box<cuda::Tensors>),
}

/// Device times of a layer on CUDA, data on the device, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// Median of the layer.
    pub layer_us: f64,
    /// Median of a device copy of the input, in the same run.
    pub copy_us: f64,
}

impl Engine {
    /// The CPU, with `threads` threads; None takes all.
    pub fn cpu(threads: Option<usize>) -> Self {
        Self { kind: Kind::Cpu(threads.unwrap_or_else(crate::backend::cpu::Cpu::threads).max(1)) }
    }

    /// GPU `index`.
    ///
    /// # Errors
    /// No driver, no such GPU or no compiler.
    pub fn cuda(index: usize) -> Result<Self> {
        Ok(Self { kind: Kind::Cuda(Box::new(cuda::Tensors::open(index)?)) })
    }

    /// Variants of a pooling layer with the reason why one does not fit.
    pub fn pool_variants(&self, layer: &Pooling, input: &Tensor) -> Vec<(&'static str, Result<(), String>)> {
        match &self.kind {
            Kind::Cpu(_) => vec![("cpu-threads", Ok(()))],
            Kind::Cuda(tensors) => tensors.pool_variants(layer, input),
        }
    }

    /// Variants of a convolution layer with the reason why one does not fit.
    pub fn convolve_variants(&self, layer: &Convolution, input: &Tensor) -> Vec<(&'static str, Result<(), String>)> {
        match &self.kind {
            Kind::Cpu(_) => vec![("cpu-threads", Ok(()))],
            Kind::Cuda(_) => cuda::Tensors::convolve_variants(layer, input),
        }
    }

    /// Pools; the result has the input's layout and type. `variant` forces one; None takes the fastest.
    ///
    /// # Errors
    /// The layer does not fit the tensor, the variant does not fit the layer, or a device error.
    pub fn pool(&self, layer: &Pooling, input: &Tensor, variant: Option<&str>) -> Result<Tensor> {
        let output = layer.output(input.dims)?;
        let values = match &self.kind {
            Kind::Cpu(threads) => only_cpu(variant).and_then(|()| cpu::pool(layer, input, output, *threads))?,
            Kind::Cuda(tensors) => tensors.pool(layer, input, output, variant)?,
        };
        Tensor::new(output, input.layout, values)
    }

    /// Convolves an NCHW tensor of 32-bit floats.
    ///
    /// # Errors
    /// As for [`Engine::pool`]; the tensor has another layout or type.
    pub fn convolve(&self, layer: &Convolution, input: &Tensor, variant: Option<&str>) -> Result<Tensor> {
        let output = layer.output(input.dims)?;
        let (Layout::Nchw, Values::F32(values)) = (input.layout, &input.values) else {
            let cause = "convolution takes NCHW tensors of 32-bit floats";
            return Err(Error::usage(format!("cannot convolve a tensor of {}", input.dims), cause));
        };
        let values = match &self.kind {
            Kind::Cpu(threads) => only_cpu(variant).and_then(|()| cpu::convolve(layer, values, (input.dims, output), *threads))?,
            Kind::Cuda(tensors) => tensors.convolve(layer, values, (input.dims, output), variant)?,
        };
        Tensor::f32(output, Layout::Nchw, values)
    }

    /// Times a pooling layer on data that stays on the device.
    ///
    /// # Errors
    /// As for [`Engine::pool`]; the engine is no GPU.
    pub fn time_pool(&self, layer: &Pooling, input: &Tensor, variant: Option<&str>) -> Result<Timing> {
        let output = layer.output(input.dims)?;
        match &self.kind {
            Kind::Cpu(_) => Err(Error::usage("cannot time a layer on the device", "the engine is the CPU")),
            Kind::Cuda(tensors) => tensors.time_pool(layer, input, output, variant),
        }
    }

    /// Times a convolution layer on data that stays on the device.
    ///
    /// # Errors
    /// As for [`Engine::convolve`]; the engine is no GPU.
    pub fn time_convolve(&self, layer: &Convolution, input: &Tensor, variant: Option<&str>) -> Result<Timing> {
        let output = layer.output(input.dims)?;
        match (&self.kind, &input.values) {
            (Kind::Cuda(tensors), Values::F32(values)) => tensors.time_convolve(layer, values, (input.dims, output), variant),
            (Kind::Cuda(_), Values::F16(_)) => Err(Error::usage("cannot time a layer", "convolution takes 32-bit floats")),
            (Kind::Cpu(_), _) => Err(Error::usage("cannot time a layer on the device", "the engine is the CPU")),
        }
    }
}

fn only_cpu(variant: Option<&str>) -> Result<()> {
    match variant {
        None | Some("auto" | "cpu-threads") => Ok(()),
        Some(name) => Err(Error::usage(format!("variant '{name}' cannot run a layer on the CPU"), "the CPU has one: cpu-threads")),
    }
}
