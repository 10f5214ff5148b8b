//! Layers over tensors on the CPU: the twins of `kernels/tensor_*.cu`.
//!
//! A task makes a band of rows of one image (or of one output channel). It sums or compares whole rows first, which vectorises, then across.
//! Each task writes a vector of its own; they are joined at the end.

use std::sync::{Arc, Mutex, PoisonError};

use half::f16;
use half::slice::HalfFloatSliceExt;
use multiversion::multiversion;

use super::crew::{Crew, Work};
use super::linear::Level;
use super::pool::{DENSE_STRIDE, dense, inner};
use crate::error::{Error, Result};
use crate::tensor::{Convolution, Dims, Layout, Pooling, Reduce, Tensor, Values, Windows};

/// Output rows of a task at least: shorter bands would start too many tasks.
const BAND_ROWS: usize = 16;

/// Makes `parts` vectors on `threads` threads and joins them, in order.
///
/// # Errors
/// A thread could not be started, or panicked.
pub fn parallel<T>(parts: usize, threads: usize, make: impl Fn(usize) -> Vec<T> + Send + Sync + 'static) -> Result<Vec<T>>
where
    T: Send + 'static,
{
    struct Parts<T, F> {
        make: F,
        made: Vec<Mutex<Vec<T>>>,
    }
    impl<T: Send + 'static, F: Fn(usize) -> Vec<T> + Send + Sync + 'static> Work for Parts<T, F> {
        type Order = ();
        type Scratch = ();
        fn scratch(&self) {}
        fn run(&self, (): &(), task: usize, (): &mut ()) {
            if let Some(slot) = self.made.get(task) {
                *slot.lock().unwrap_or_else(PoisonError::into_inner) = (self.make)(task);
            }
        }
    }
    let work = Arc::new(Parts { make, made: (0..parts).map(|_| Mutex::default()).collect() });
    Crew::new(Arc::clone(&work), threads.min(parts).max(1))?.run((), parts, false)?;
    let made = || work.made.iter().map(|slot| slot.lock().unwrap_or_else(PoisonError::into_inner));
    let mut all = Vec::with_capacity(made().map(|part| part.len()).sum());
    // Whole blocks: value by value took longer than pooling itself.
    made().for_each(|mut part| all.append(&mut part));
    Ok(all)
}

/// Where a line's window `o` reads: tap and position of each value inside, along `axis` of n values.
fn inside(windows: &Windows, axis: usize, o: usize, n: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
    let (kernel, pad, dilation) = (windows.kernel[axis], windows.pad[axis], windows.dilation[axis]);
    let start = o * windows.stride[axis];
    (0..kernel).filter_map(move |tap| (start + tap * dilation).checked_sub(pad).filter(|&at| at < n).map(|at| (tap, at)))
}

#[derive(Clone, Copy)]
enum Rule {
    Max,
    Min,
    Sum,
    /// Sums that carry what rounding lost.
    Compensated,
}

impl Rule {
    fn of(layer: &Pooling) -> Self {
        match layer.reduce {
            Reduce::Max => Self::Max,
            Reduce::Min => Self::Min,
            Reduce::Mean if layer.compensated() => Self::Compensated,
            Reduce::Mean => Self::Sum,
        }
    }

    const fn neutral(self) -> f32 {
        match self {
            Self::Max => f32::NEG_INFINITY,
            Self::Min => f32::INFINITY,
            Self::Sum | Self::Compensated => 0.0,
        }
    }
}

/// One operation over two lines; `lost` is what rounding lost of each total.
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
fn merge(rule: Rule, values: &[f32], totals: &mut [f32], lost: &mut [f32]) {
    let pairs = totals.iter_mut().zip(values);
    match rule {
        // Not a comparison: see `Ordered::higher`.
        Rule::Max => pairs.for_each(|(t, &v)| *t = t.max(v)),
        Rule::Min => pairs.for_each(|(t, &v)| *t = t.min(v)),
        Rule::Sum => pairs.for_each(|(t, &v)| *t += v),
        Rule::Compensated => pairs.zip(lost).for_each(|((t, &v), lost)| {
            let y = v - *lost;
            let sum = *t + y;
            *lost = (sum - *t) - y;
            *t = sum;
        }),
    }
}

/// What a task keeps of a line.
struct Lines {
    /// Rows of the windows, combined.
    down: Vec<f32>,
    lost: Vec<f32>,
    /// A row as floats, then the windows of every column.
    row: Vec<f32>,
    out: Vec<f32>,
}

impl Lines {
    fn new(line: usize, out: usize) -> Self {
        Self { down: vec![0.0; line], lost: vec![0.0; line], row: vec![0.0; line], out: vec![0.0; out] }
    }

    /// Combines the columns of `down` into `out`: windows that lie inside line-wise, whole registers at a time, the others one by one.
    fn across(&mut self, rule: Rule, windows: &Windows, (width, out_width, components): (usize, usize, usize)) {
        let Self { down, lost, row: spare, out } = self;
        let stride = windows.stride[1];
        let line = [windows.kernel[1], stride, windows.pad[1], windows.dilation[1]];
        let inner = if stride <= DENSE_STRIDE { inner(line, width, out_width) } else { 0..0 };
        let mut lost_of_one = [0.0];
        for x in (0..inner.start).chain(inner.end..out_width) {
            for c in 0..components {
                let mut total = [rule.neutral()];
                lost_of_one[0] = 0.0;
                for (_, column) in inside(windows, 1, x, width) {
                    if let Some(&part) = down.get(column * components + c) {
                        merge(rule, &[part], &mut total, &mut lost_of_one);
                    }
                }
                if let Some(place) = out.get_mut(x * components + c) {
                    *place = total[0];
                }
            }
        }
        let out = out.get_mut(inner.start * components..inner.end * components).unwrap_or_default();
        dense(Level::Simd, line, (inner.start, components), down, spare, out, |tap, values, dense| {
            if tap == 0 {
                dense.fill(rule.neutral());
                lost.fill(0.0);
            }
            merge(rule, values, dense, lost);
        });
    }
}

/// Bands of `rows` output rows: (image, first, end).
fn bands(images: usize, rows: usize, threads: usize) -> Vec<(usize, usize, usize)> {
    let height = rows.div_ceil((4 * threads).div_ceil(images.max(1)).max(1)).max(BAND_ROWS.min(rows));
    (0..images).flat_map(|image| (0..rows).step_by(height.max(1)).map(move |y| (image, y, (y + height).min(rows)))).collect()
}

/// Pools `input` into a tensor of `output`'s size, in its layout and type.
///
/// # Errors
/// A thread could not be started.
pub fn pool(layer: &Pooling, input: &Tensor, output: Dims, threads: usize) -> Result<Values> {
    match input.values() {
        Values::F32(values) => {
            let widen = |from: &[f32], to: &mut [f32]| to.iter_mut().zip(from).for_each(|(to, &from)| *to = from);
            let narrow = |from: &[f32], to: &mut Vec<f32>| to.extend_from_slice(from);
            pool_values(layer, Arc::clone(values), input, output, threads, widen, narrow).map(|v| Values::F32(v.into()))
        }
        Values::F16(values) => {
            let widen = |from: &[f16], to: &mut [f32]| {
                if from.len() == to.len() {
                    from.convert_to_f32_slice(to);
                }
            };
            let narrow = |from: &[f32], to: &mut Vec<f16>| {
                let start = to.len();
                to.resize(start + from.len(), f16::ZERO);
                if let Some(to) = to.get_mut(start..) {
                    to.convert_from_f32_slice(from);
                }
            };
            pool_values(layer, Arc::clone(values), input, output, threads, widen, narrow).map(|v| Values::F16(v.into()))
        }
    }
}

fn pool_values<T: Copy + Send + Sync + 'static>(
    layer: &Pooling,
    values: Arc<[T]>,
    input: &Tensor,
    output: Dims,
    threads: usize,
    widen: impl Fn(&[T], &mut [f32]) + Send + Sync + 'static,
    narrow: impl Fn(&[f32], &mut Vec<T>) + Send + Sync + 'static,
) -> Result<Vec<T>> {
    let dims = input.dims();
    let (images, components) = match input.layout() {
        Layout::Nchw => (dims.batch * dims.channels, 1),
        Layout::Nhwc => (dims.batch, dims.channels),
    };
    let (layer, rule) = (*layer, Rule::of(layer));
    let bands = bands(images, output.height, threads);
    let parts = bands.len();
    let (line, out_line) = (dims.width * components, output.width * components);
    // Columns that each window has.
    let columns: Vec<usize> = (0..output.width).map(|x| inside(&layer.windows, 1, x, dims.width).count()).collect();
    let make = move |task: usize| {
        let (image, from, to) = bands.get(task).copied().unwrap_or_default();
        let mut lines = Lines::new(line, out_line);
        let mut made = Vec::with_capacity((to - from) * out_line);
        for y in from..to {
            lines.down.fill(rule.neutral());
            lines.lost.fill(0.0);
            let mut rows = 0usize;
            for (_, row) in inside(&layer.windows, 0, y, dims.height) {
                let start = (image * dims.height + row) * line;
                widen(values.get(start..start + line).unwrap_or_default(), &mut lines.row);
                merge(rule, &lines.row, &mut lines.down, &mut lines.lost);
                rows += 1;
            }
            lines.across(rule, &layer.windows, (dims.width, output.width, components));
            if layer.reduce == Reduce::Mean {
                for (sums, &columns) in lines.out.chunks_exact_mut(components).zip(&columns) {
                    let divisor = if layer.count_pad { layer.windows.area() } else { rows * columns };
                    // Of nothing, the mean is 0.
                    let divisor = divisor.max(1) as f32;
                    sums.iter_mut().for_each(|sum| *sum /= divisor);
                }
            }
            narrow(&lines.out, &mut made);
        }
        made
    };
    parallel(parts, threads, make)
}

/// Convolves NCHW `values` of the first size into the second.
///
/// # Errors
/// A thread could not be started.
pub fn convolve(layer: &Convolution, values: &Arc<[f32]>, (dims, output): (Dims, Dims), threads: usize) -> Result<Vec<f32>> {
    let (layer, values) = (layer.clone(), Arc::clone(values));
    let channels = layer.out_channels;
    let bands = bands(output.batch * channels, output.height, threads);
    let parts = bands.len();
    let make = move |task: usize| {
        let (plane, from, to) = bands.get(task).copied().unwrap_or_default();
        let (image, o) = (plane / channels, plane % channels);
        let bias = layer.bias.as_ref().and_then(|b| b.get(o)).copied().unwrap_or(0.0);
        let mut made = vec![bias; (to - from) * output.width];
        let [kh, kw] = layer.windows.kernel;
        for (line, y) in made.chunks_exact_mut(output.width).zip(from..to) {
            for i in 0..dims.channels {
                for (j, row) in inside(&layer.windows, 0, y, dims.height) {
                    let start = ((image * dims.channels + i) * dims.height + row) * dims.width;
                    let row = values.get(start..start + dims.width).unwrap_or_default();
                    let weights = layer.weights.get(((o * dims.channels + i) * kh + j) * kw..).unwrap_or_default();
                    for (k, &weight) in weights.iter().enumerate().take(kw) {
                        add_shifted(line, row, weight, &layer.windows, k);
                    }
                }
            }
        }
        made
    };
    let made = parallel(parts, threads, make)?;
    let count = output.count().unwrap_or(0);
    if made.len() == count {
        Ok(made)
    } else {
        Err(Error::failed("cannot convolve on the CPU", format!("{} of {count} values were made", made.len())))
    }
}

/// `line[x] += weight · row[x · stride + k · dilation − pad]` where that lies inside.
fn add_shifted(line: &mut [f32], row: &[f32], weight: f32, windows: &Windows, k: usize) {
    let (stride, pad, shift) = (windows.stride[1], windows.pad[1], k * windows.dilation[1]);
    // The first result whose tap is inside.
    let first = pad.saturating_sub(shift).div_ceil(stride);
    let start = (first * stride + shift).saturating_sub(pad);
    let (Some(line), Some(row)) = (line.get_mut(first..), row.get(start..)) else { return };
    if stride == 1 {
        line.iter_mut().zip(row).for_each(|(to, &v)| *to += weight * v);
    } else {
        line.iter_mut().zip(row.iter().step_by(stride)).for_each(|(to, &v)| *to += weight * v);
    }
}
