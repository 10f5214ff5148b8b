//! Layers over tensors on the GPU: pooling and multi-channel convolution (`kernels/tensor_pool.cu`, `kernels/tensor_conv.cu`).
//!
//! A call uploads, runs and downloads; nothing is kept on the device but compiled kernels and cuBLAS's handle. The timing calls leave the
//! transfers out.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, PoisonError};

use half::f16;

use super::device::{DeviceBuffer, DevicePtr, Event, Grid, Kernel, Stream, Waiting};
use super::library::{Library, Multiplier, Product};
use super::lower_race::{winograd_kernel, winograd_matrix};
use super::{Cuda, open};
use crate::error::{Error, Result};
use crate::tensor::{Convolution, Dims, Layout, Pooling, Reduce, Tensor, Timing, Values, Windows};

/// What a block has on every GPU without asking, in bytes.
const SHARED_LIMIT: usize = 48 << 10;
/// Most memory of the matrix of one image.
const MATRIX_LIMIT: usize = 8 << 30;
/// Results across and down of a block of the tiled kernels; ACROSS and DOWN in the kernels.
const TILE: (usize, usize) = (32, 8);
/// Output channels of a block of the direct convolution; CHANNELS in its kernel.
const CHANNELS: usize = 8;
/// Launches and repetitions of a timing.
const TIMED: (usize, usize) = (3, 11);

/// Mirrors `Images` in `tensor_pool.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Images {
    input: u64,
    output: u64,
    images: u32,
    height: i32,
    width: i32,
    out_height: i32,
    out_width: i32,
    components: i32,
    blocks_x: u32,
    blocks_y: u32,
}

/// Mirrors `Layer` in `tensor_conv.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Layer {
    input: u64,
    output: u64,
    weights: u64,
    bias: u64,
    in_channels: i32,
    out_channels: i32,
    height: i32,
    width: i32,
    out_height: i32,
    out_width: i32,
    blocks_x: u32,
    blocks_y: u32,
}

/// Ways to pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolVariant {
    /// 16 bytes of results per lane, several rows, neighbours by shuffle.
    Coarsened,
    /// NHWC: 16 bytes of channels per thread.
    Vector,
    /// A tile in shared memory, rows first, then columns.
    Tiled,
    /// A thread per value.
    Naive,
}

impl PoolVariant {
    /// Every variant; the automatic choice is the first that fits (tiled only where windows have many values).
    pub const ALL: [Self; 4] = [Self::Coarsened, Self::Vector, Self::Tiled, Self::Naive];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Coarsened => "coarsened",
            Self::Vector => "vector",
            Self::Tiled => "tiled",
            Self::Naive => "naive",
        }
    }

    /// Its kernel's entry point.
    pub const fn entry(self) -> &'static str {
        match self {
            Self::Coarsened => "tensor_pool__coarsened",
            Self::Vector => "tensor_pool__vector",
            Self::Tiled => "tensor_pool__tiled",
            Self::Naive => "tensor_pool__naive",
        }
    }

    /// Why it cannot pool such a tensor.
    ///
    /// # Errors
    /// The reason.
    pub fn fits(self, layer: &Pooling, dims: Dims, layout: Layout, half: bool) -> Result<(), String> {
        let planar = layout == Layout::Nchw || dims.channels == 1;
        let vec = if half { 8 } else { 4 };
        let Windows { kernel: [kh, kw], stride: [sh, sw], pad: [_, pw], dilation } = layer.windows;
        match self {
            Self::Naive => Ok(()),
            Self::Vector if planar => Err("it takes tensors whose channels are neighbours (NHWC)".to_owned()),
            Self::Vector if !dims.channels.is_multiple_of(vec) => {
                Err(format!("it takes {vec} channels at a time; this tensor has {}", dims.channels))
            }
            Self::Vector => Ok(()),
            Self::Tiled | Self::Coarsened if !planar => Err("it takes tensors of planes (NCHW)".to_owned()),
            Self::Tiled => {
                let span = |axis: usize, tile: usize| {
                    (tile - 1) * layer.windows.stride[axis] + (layer.windows.kernel[axis] - 1) * dilation[axis] + 1
                };
                let (across, down) = (span(1, TILE.0), span(0, TILE.1));
                let bytes = down * (across + TILE.0) * 4;
                if bytes <= SHARED_LIMIT {
                    Ok(())
                } else {
                    Err(format!("its tile needs {bytes} bytes of shared memory, more than {SHARED_LIMIT}"))
                }
            }
            Self::Coarsened if dilation != [1, 1] => Err("it takes windows without dilation".to_owned()),
            Self::Coarsened if sh > 2 || sw > 2 => Err(format!("it takes strides up to 2; this layer's are {sh} and {sw}")),
            Self::Coarsened if kh > 9 || kw > 9 => Err(format!("it unrolls windows up to 9x9; this layer's have {kh}x{kw}")),
            Self::Coarsened if layer.compensated() => {
                Err("it does not compensate sums, which windows of 64 values or more need".to_owned())
            }
            Self::Coarsened if !dims.width.is_multiple_of(vec) => {
                Err(format!("it takes rows of a multiple of {vec} values; this tensor's have {}", dims.width))
            }
            // What the last window needs beyond the lane's own columns is at most one vector.
            Self::Coarsened if pw > vec || (vec - 1) * sw + kw - 1 > pw + (vec * sw - 1) + vec => {
                Err("its windows reach farther than one vector".to_owned())
            }
            Self::Coarsened => Ok(()),
        }
    }

    /// Rows that a lane of the coarsened kernel makes.
    fn rows(layer: &Pooling) -> usize {
        if layer.windows.kernel[0] <= 3 && layer.windows.stride[0] == 1 { 8 } else { 4 }
    }

    /// Compile-time constants of its kernel. `pairs`: the GPU compares two halves at once (sm_80).
    pub fn defines(self, layer: &Pooling, half: bool, pairs: bool) -> Vec<(&'static str, i64)> {
        let kind = match layer.reduce {
            Reduce::Max => 0,
            Reduce::Mean => 1,
            Reduce::Min => 2,
        };
        let mut defines = vec![("HALF", i64::from(half)), ("KIND", kind)];
        defines.extend(window_defines(&layer.windows));
        defines.extend([("COUNT_PAD", i64::from(layer.count_pad)), ("KAHAN", i64::from(layer.compensated()))]);
        match self {
            Self::Coarsened => {
                let pairs = pairs && half && layer.reduce != Reduce::Mean && layer.windows.stride[1] == 1;
                defines.extend([("ROWS", Self::rows(layer) as i64), ("PAIRS", i64::from(pairs))]);
            }
            Self::Vector => defines.push(("VECTOR", 1)),
            Self::Tiled => defines.push(("TILED", 1)),
            Self::Naive => {}
        }
        defines
    }
}

fn window_defines(windows: &Windows) -> [(&'static str, i64); 8] {
    let Windows { kernel: [kh, kw], stride: [sh, sw], pad: [ph, pw], dilation: [dh, dw] } = *windows;
    [("KH", kh), ("KW", kw), ("SH", sh), ("SW", sw), ("PH", ph), ("PW", pw), ("DH", dh), ("DW", dw)].map(|(name, v)| (name, v as i64))
}

/// Ways to convolve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvolutionVariant {
    /// F(2×2,3×3): tiles to 16 planes, 16 products by cuBLAS, back.
    Winograd,
    /// im2col, then cuBLAS.
    Gemm,
    /// Tiles in shared memory, eight output channels per thread.
    Direct,
}

impl ConvolutionVariant {
    /// Every variant; the automatic choice is the first that fits and whose library is there.
    pub const ALL: [Self; 3] = [Self::Gemm, Self::Winograd, Self::Direct];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Winograd => "winograd",
            Self::Gemm => "gemm",
            Self::Direct => "direct",
        }
    }

    /// Why it cannot run such a layer.
    ///
    /// # Errors
    /// The reason.
    pub fn fits(self, layer: &Convolution, dims: Dims) -> Result<(), String> {
        let windows = &layer.windows;
        match self {
            Self::Direct => {
                let span =
                    |axis: usize, tile: usize| (tile - 1) * windows.stride[axis] + (windows.kernel[axis] - 1) * windows.dilation[axis] + 1;
                let bytes = span(0, TILE.1) * span(1, TILE.0) * 4;
                if bytes <= SHARED_LIMIT {
                    Ok(())
                } else {
                    Err(format!("its tile needs {bytes} bytes of shared memory, more than {SHARED_LIMIT}"))
                }
            }
            Self::Winograd if windows.kernel != [3, 3] || windows.stride != [1, 1] || windows.dilation != [1, 1] => {
                Err("it takes 3x3 kernels at stride 1 without dilation".to_owned())
            }
            Self::Winograd | Self::Gemm => {
                let bytes = dims.channels * windows.area() * dims.height * dims.width * 4;
                if bytes <= MATRIX_LIMIT { Ok(()) } else { Err(format!("the matrix of one image would need {} MiB", bytes >> 20)) }
            }
        }
    }

    fn library(self) -> Option<Library> {
        match self {
            Self::Winograd | Self::Gemm => Some(Library::CuBlas),
            Self::Direct => None,
        }
    }

    /// Kernels that it launches, by entry point.
    pub fn entries(self) -> &'static [&'static str] {
        match self {
            Self::Winograd => &["tensor_conv__into", "tensor_conv__back"],
            Self::Gemm => &["tensor_conv__columns", "tensor_conv__bias"],
            Self::Direct => &["tensor_conv__direct"],
        }
    }

    /// Compile-time constants of its kernels.
    pub fn defines(self, layer: &Convolution) -> Vec<(&'static str, i64)> {
        let mut defines = window_defines(&layer.windows).to_vec();
        if self == Self::Direct {
            defines.push(("DIRECT", 1));
        }
        defines
    }
}

/// A GPU that executes layers.
pub struct Tensors {
    cuda: Cuda,
    multiplier: Mutex<Option<Arc<Multiplier>>>,
}

/// A compiled layer with its buffers.
struct Prepared {
    stream: Stream,
    work: Vec<Enqueue>,
    input: DeviceBuffer,
    output: DeviceBuffer,
    /// Weights and scratch, kept until the stream is idle.
    _kept: Vec<DeviceBuffer>,
}

enum Enqueue {
    Pool(Kernel, Grid, Images),
    Layer(Kernel, Grid, Layer),
    Product(Arc<Multiplier>, Product),
}

impl Drop for Prepared {
    fn drop(&mut self) {
        // The GPU may still use the buffers; an error here is one that was reported.
        let _ = self.stream.synchronize();
    }
}

impl Prepared {
    fn enqueue(&self) -> Result<()> {
        self.work.iter().try_for_each(|work| match work {
            // SAFETY: the structure mirrors the kernel's parameter (tests/gpu_tensor.rs runs every variant); its addresses are buffers of
            // `self`, as large as the layer's sizes ask for, which live until the stream is idle.
            Enqueue::Pool(kernel, grid, images) => unsafe {
                kernel.launch(&self.stream, *grid, &mut [std::ptr::from_ref(images).cast_mut().cast::<c_void>()])
            },
            // SAFETY: as above.
            Enqueue::Layer(kernel, grid, layer) => unsafe {
                kernel.launch(&self.stream, *grid, &mut [std::ptr::from_ref(layer).cast_mut().cast::<c_void>()])
            },
            // SAFETY: as above.
            Enqueue::Product(multiplier, product) => unsafe { multiplier.enqueue(&self.stream, product) },
        })
    }

    /// The result, once it is there.
    fn finish<T: Copy + Default>(&self, count: usize) -> Result<Vec<T>> {
        self.enqueue()?;
        let mut values = vec![T::default(); count];
        let bytes = std::mem::size_of_val(values.as_slice()).min(self.output.bytes());
        // SAFETY: `values` and the buffer have `bytes` bytes each; the copy is waited for.
        unsafe { self.stream.download(values.as_mut_ptr().cast(), self.output.ptr(), bytes) }?;
        self.stream.synchronize()?;
        Ok(values)
    }

    fn time(&self, context: &Arc<super::device::Context>) -> Result<Timing> {
        let (started, ended) = (Event::new(context, Waiting::Spins)?, Event::new(context, Waiting::Spins)?);
        let bytes = self.input.bytes() / 512 * 512;
        let copy = DeviceBuffer::new(context, bytes.max(1))?;
        let median = |work: &dyn Fn() -> Result<()>| -> Result<f64> {
            let mut times = Vec::with_capacity(TIMED.1);
            for repetition in 0..TIMED.1 + 2 {
                started.record(&self.stream)?;
                (0..TIMED.0).try_for_each(|_| work())?;
                ended.record(&self.stream)?;
                ended.wait()?;
                // The first two warm up.
                if repetition >= 2 {
                    times.push(started.elapsed_ns(&ended)? as f64 / 1e3 / TIMED.0 as f64);
                }
            }
            times.sort_by(f64::total_cmp);
            Ok(times.get(times.len() / 2).copied().unwrap_or(0.0))
        };
        let layer_us = median(&|| self.enqueue())?;
        // SAFETY: two live buffers of at least `bytes` bytes; the stream is waited for before `copy` goes.
        let copy_us = median(&|| unsafe { self.stream.copy(copy.ptr(), self.input.ptr(), bytes) })?;
        self.stream.synchronize()?;
        Ok(Timing { layer_us, copy_us })
    }
}

fn too_large(dims: Dims) -> Error {
    Error::failed(format!("cannot run a layer on a tensor of {dims}"), "it has too many tiles for one launch")
}

fn grid(blocks: usize, threads: u32, dims: Dims) -> Result<Grid> {
    let blocks = u32::try_from(blocks).ok().filter(|&b| b <= i32::MAX as u32).ok_or_else(|| too_large(dims))?;
    Ok(Grid { blocks, threads, shared_bytes: 0 })
}

fn refuse(name: &str, why: String, fits: &[&str]) -> Error {
    Error::usage(format!("variant '{name}' cannot run this layer"), why).hint(format!("these can: {}", fits.join(", ")))
}

impl Tensors {
    /// Opens GPU `index` and the kernel compiler.
    ///
    /// # Errors
    /// As for [`super::open`].
    pub fn open(index: usize) -> Result<Self> {
        Ok(Self { cuda: open(index)?, multiplier: Mutex::default() })
    }

    /// Variants of a pooling layer, with the reason why one does not fit.
    pub fn pool_variants(&self, layer: &Pooling, input: &Tensor) -> Vec<(&'static str, Result<(), String>)> {
        let half = matches!(input.values(), Values::F16(_));
        PoolVariant::ALL.map(|v| (v.name(), v.fits(layer, input.dims(), input.layout(), half))).to_vec()
    }

    /// Variants of a convolution layer, with the reason why one does not fit.
    pub fn convolve_variants(layer: &Convolution, input: &Tensor) -> Vec<(&'static str, Result<(), String>)> {
        let available = |v: ConvolutionVariant| v.library().map_or(Ok(()), Library::available);
        ConvolutionVariant::ALL.map(|v| (v.name(), v.fits(layer, input.dims()).and_then(|()| available(v)))).to_vec()
    }

    fn pick_pool(&self, layer: &Pooling, input: &Tensor, variant: Option<&str>) -> Result<PoolVariant> {
        let half = matches!(input.values(), Values::F16(_));
        let fits = |v: PoolVariant| v.fits(layer, input.dims(), input.layout(), half);
        match variant.filter(|&name| name != "auto") {
            None => {
                let wanted = |v: &PoolVariant| fits(*v).is_ok() && (*v != PoolVariant::Tiled || layer.windows.area() > 16);
                Ok(PoolVariant::ALL.into_iter().find(wanted).unwrap_or(PoolVariant::Naive))
            }
            Some(name) => {
                let names: Vec<&str> = PoolVariant::ALL.into_iter().filter(|&v| fits(v).is_ok()).map(PoolVariant::name).collect();
                let found = PoolVariant::ALL.into_iter().find(|v| v.name() == name);
                let found = found.ok_or_else(|| refuse(name, "pooling has no variant of that name".to_owned(), &names))?;
                fits(found).map_err(|why| refuse(name, why, &names))?;
                Ok(found)
            }
        }
    }

    fn prepare_pool(&self, layer: &Pooling, input: &Tensor, output: Dims, variant: Option<&str>) -> Result<Prepared> {
        let picked = self.pick_pool(layer, input, variant)?;
        let (dims, context) = (input.dims(), self.cuda.context());
        let half = matches!(input.values(), Values::F16(_));
        let pairs = self.cuda.info().capability >= (8, 0);
        let kernel = self.cuda.entry("tensor_pool.cu", picked.entry(), picked.defines(layer, half, pairs))?;
        let (images, components) = match input.layout() {
            Layout::Nchw => (dims.batch * dims.channels, 1),
            Layout::Nhwc => (dims.batch, dims.channels),
        };
        let vec = if half { 8 } else { 4 };
        let pixels = images * output.height * output.width;
        let tiles = |across: usize, down: usize| (output.width.div_ceil(across), output.height.div_ceil(down));
        let (blocks_x, blocks_y, threads) = match picked {
            PoolVariant::Naive => ((pixels * components).div_ceil(256), 0, 256),
            PoolVariant::Vector => ((pixels * (components / vec)).div_ceil(256), 0, 256),
            PoolVariant::Tiled => {
                let (x, y) = tiles(TILE.0, TILE.1);
                (x, y, 256)
            }
            PoolVariant::Coarsened => {
                let (x, y) = tiles(32 * vec, 4 * PoolVariant::rows(layer));
                (x, y, 128)
            }
        };
        let blocks = if blocks_y == 0 { blocks_x } else { blocks_x * blocks_y * images };
        let count = output.count().ok_or_else(|| too_large(output))?;
        let (source, bytes) = match input.values() {
            Values::F32(values) => (DeviceBuffer::from_slice(context, values)?, count * 4),
            Values::F16(values) => (DeviceBuffer::from_slice(context, values)?, count * 2),
        };
        let target = DeviceBuffer::new(context, bytes)?;
        let side = |n: usize| i32::try_from(n).map_err(|_| too_large(dims));
        let word = |n: usize| u32::try_from(n).map_err(|_| too_large(dims));
        let images = Images {
            input: source.ptr(),
            output: target.ptr(),
            images: word(images)?,
            height: side(dims.height)?,
            width: side(dims.width)?,
            out_height: side(output.height)?,
            out_width: side(output.width)?,
            components: side(components)?,
            blocks_x: word(blocks_x)?,
            blocks_y: word(blocks_y)?,
        };
        let work = vec![Enqueue::Pool(kernel, grid(blocks, threads, dims)?, images)];
        Ok(Prepared { stream: Stream::new(context)?, work, input: source, output: target, _kept: Vec::new() })
    }

    /// Pools.
    ///
    /// # Errors
    /// The variant does not fit, or a device error.
    pub fn pool(&self, layer: &Pooling, input: &Tensor, output: Dims, variant: Option<&str>) -> Result<Values> {
        let prepared = self.prepare_pool(layer, input, output, variant)?;
        // Poisoned, so that nothing that was not written passes for a result.
        prepared.output.fill(0xFF)?;
        let count = output.count().ok_or_else(|| too_large(output))?;
        match input.values() {
            Values::F32(_) => prepared.finish::<f32>(count).map(|v| Values::F32(v.into())),
            Values::F16(_) => prepared.finish::<f16>(count).map(|v| Values::F16(v.into())),
        }
    }

    /// Times a pooling layer.
    ///
    /// # Errors
    /// As for [`Tensors::pool`].
    pub fn time_pool(&self, layer: &Pooling, input: &Tensor, output: Dims, variant: Option<&str>) -> Result<Timing> {
        self.prepare_pool(layer, input, output, variant)?.time(self.cuda.context())
    }

    fn multiplier(&self) -> Result<Arc<Multiplier>> {
        // An assignment cannot leave the slot half-changed.
        let mut slot = self.multiplier.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = slot.as_ref() {
            return Ok(Arc::clone(found));
        }
        let made = Arc::new(Multiplier::new(self.cuda.context())?);
        *slot = Some(Arc::clone(&made));
        Ok(made)
    }

    fn pick_convolve(layer: &Convolution, dims: Dims, variant: Option<&str>) -> Result<ConvolutionVariant> {
        let fits = |v: ConvolutionVariant| v.fits(layer, dims).and_then(|()| v.library().map_or(Ok(()), Library::available));
        match variant.filter(|&name| name != "auto") {
            None => {
                // Few channels do not pay for the detour through matrices.
                let few = dims.channels * layer.out_channels < 64;
                let wanted = |v: &ConvolutionVariant| (!few || *v == ConvolutionVariant::Direct) && fits(*v).is_ok();
                let any = |v: &ConvolutionVariant| fits(*v).is_ok();
                let found = ConvolutionVariant::ALL.into_iter().find(wanted).or_else(|| ConvolutionVariant::ALL.into_iter().find(any));
                found.ok_or_else(|| Error::failed("cannot convolve on CUDA", "no variant fits the layer and the tensor"))
            }
            Some(name) => {
                let names: Vec<&str> =
                    ConvolutionVariant::ALL.into_iter().filter(|v| v.fits(layer, dims).is_ok()).map(ConvolutionVariant::name).collect();
                let found = ConvolutionVariant::ALL.into_iter().find(|v| v.name() == name);
                let found = found.ok_or_else(|| refuse(name, "convolution layers have no variant of that name".to_owned(), &names))?;
                fits(found).map_err(|why| refuse(name, why, &names))?;
                Ok(found)
            }
        }
    }

    fn prepare_convolve(&self, layer: &Convolution, values: &[f32], sizes: (Dims, Dims), variant: Option<&str>) -> Result<Prepared> {
        let (dims, output) = sizes;
        let picked = Self::pick_convolve(layer, dims, variant)?;
        let context = self.cuda.context();
        let source = DeviceBuffer::from_slice(context, values)?;
        let target = DeviceBuffer::new(context, output.count().ok_or_else(|| too_large(output))? * 4)?;
        let bias = layer.bias.as_ref().map(|bias| DeviceBuffer::from_slice(context, bias)).transpose()?;
        let kernels: Vec<Kernel> =
            picked.entries().iter().map(|entry| self.cuda.entry("tensor_conv.cu", entry, picked.defines(layer))).collect::<Result<_>>()?;
        let [first, ..] = kernels.as_slice() else { return Err(too_large(dims)) };
        let side = |n: usize| i32::try_from(n).map_err(|_| too_large(dims));
        let word = |n: usize| u32::try_from(n).map_err(|_| too_large(dims));
        let blocks = (output.width.div_ceil(TILE.0), output.height.div_ceil(TILE.1), layer.out_channels.div_ceil(CHANNELS));
        let base = Layer {
            input: 0,
            output: 0,
            weights: 0,
            bias: bias.as_ref().map_or(0, DeviceBuffer::ptr),
            in_channels: side(dims.channels)?,
            out_channels: side(layer.out_channels)?,
            height: side(dims.height)?,
            width: side(dims.width)?,
            out_height: side(output.height)?,
            out_width: side(output.width)?,
            blocks_x: word(blocks.0)?,
            blocks_y: word(blocks.1)?,
        };
        let (plane, results) = (dims.height * dims.width, output.height * output.width);
        let image = |index: usize| {
            let from = source.ptr() + (index * dims.channels * plane * 4) as DevicePtr;
            (from, target.ptr() + (index * layer.out_channels * results * 4) as DevicePtr)
        };
        let threads = |n: usize| grid(n.div_ceil(256), 256, dims);
        let mut work = Vec::new();
        let mut kept = Vec::new();
        match picked {
            ConvolutionVariant::Direct => {
                let weights = DeviceBuffer::from_slice(context, &layer.weights)?;
                for index in 0..dims.batch {
                    let (input, output) = image(index);
                    let at = Layer { input, output, weights: weights.ptr(), ..base };
                    work.push(Enqueue::Layer(first.clone(), grid(blocks.0 * blocks.1 * blocks.2, 256, dims)?, at));
                }
                kept.push(weights);
            }
            ConvolutionVariant::Gemm => {
                let depth = dims.channels * layer.windows.area();
                let weights = DeviceBuffer::from_slice(context, &layer.weights)?;
                let matrix = DeviceBuffer::new(context, depth * results * 4)?;
                let multiplier = self.multiplier()?;
                for index in 0..dims.batch {
                    let (input, out) = image(index);
                    work.push(Enqueue::Layer(first.clone(), threads(depth * results)?, Layer { input, output: matrix.ptr(), ..base }));
                    // Column-major: results × output channels = columns × weights, both as they lie.
                    let product =
                        Product { rows: results, columns: layer.out_channels, depth, left: matrix.ptr(), right: weights.ptr(), out };
                    work.push(Enqueue::Product(Arc::clone(&multiplier), product));
                    if let (Some(_), Some(kernel)) = (&bias, kernels.get(1)) {
                        let add = Layer { input: out, output: out, ..base };
                        work.push(Enqueue::Layer(kernel.clone(), threads(layer.out_channels * results)?, add));
                    }
                }
                kept.extend([weights, matrix]);
            }
            ConvolutionVariant::Winograd => {
                let tiles = output.width.div_ceil(2) * output.height.div_ceil(2);
                let weights = DeviceBuffer::from_slice(context, &winograd_weights(layer, dims.channels))?;
                let (deep, wide) = (dims.channels * tiles * 4, layer.out_channels * tiles * 4);
                let (planes, sums) = (DeviceBuffer::new(context, 16 * deep)?, DeviceBuffer::new(context, 16 * wide)?);
                let multiplier = self.multiplier()?;
                for index in 0..dims.batch {
                    let (input, out) = image(index);
                    work.push(Enqueue::Layer(
                        first.clone(),
                        threads(dims.channels * tiles)?,
                        Layer { input, output: planes.ptr(), ..base },
                    ));
                    for part in 0..16 {
                        let product = Product {
                            rows: tiles,
                            columns: layer.out_channels,
                            depth: dims.channels,
                            left: planes.ptr() + (part * deep) as DevicePtr,
                            right: weights.ptr() + (part * layer.out_channels * dims.channels * 4) as DevicePtr,
                            out: sums.ptr() + (part * wide) as DevicePtr,
                        };
                        work.push(Enqueue::Product(Arc::clone(&multiplier), product));
                    }
                    if let Some(back) = kernels.get(1) {
                        let from = Layer { input: sums.ptr(), output: out, ..base };
                        work.push(Enqueue::Layer(back.clone(), threads(layer.out_channels * tiles)?, from));
                    }
                }
                kept.extend([weights, planes, sums]);
            }
        }
        kept.extend(bias);
        Ok(Prepared { stream: Stream::new(context)?, work, input: source, output: target, _kept: kept })
    }

    /// Convolves.
    ///
    /// # Errors
    /// The variant does not fit, or a device error.
    pub fn convolve(&self, layer: &Convolution, values: &[f32], sizes: (Dims, Dims), variant: Option<&str>) -> Result<Vec<f32>> {
        let prepared = self.prepare_convolve(layer, values, sizes, variant)?;
        prepared.output.fill(0xFF)?;
        prepared.finish(sizes.1.count().ok_or_else(|| too_large(sizes.1))?)
    }

    /// Times a convolution layer.
    ///
    /// # Errors
    /// As for [`Tensors::convolve`].
    pub fn time_convolve(&self, layer: &Convolution, values: &[f32], sizes: (Dims, Dims), variant: Option<&str>) -> Result<Timing> {
        self.prepare_convolve(layer, values, sizes, variant)?.time(self.cuda.context())
    }
}

/// `G g Gᵀ` of every kernel: 16 matrices of output channels × input channels.
fn winograd_weights(layer: &Convolution, in_channels: usize) -> Vec<f32> {
    let pairs = layer.out_channels * in_channels;
    let mut out = vec![0.0f32; 16 * pairs];
    for (pair, kernel) in layer.weights.chunks_exact(9).enumerate() {
        for (part, value) in winograd_kernel(kernel, winograd_matrix(2)).into_iter().enumerate() {
            if let Some(cell) = out.get_mut(part * pairs + pair) {
                *cell = value as f32;
            }
        }
    }
    out
}
