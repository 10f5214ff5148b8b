//! Layers over tensors on the CPU: the twins of `kernels/tensor_*.cu`.
//!
//! A task makes a band of rows of one image (or of one output channel). It sums or compares whole rows first, which vectorises, then across.
//! Each task writes a vector of its own; they are joined at the end.

use std::sync::{Arc, Mutex, PoisonError};

use half::f16;

use super::crew::{Crew, Work};
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
    let parts = work.made.iter().map(|slot| std::mem::take(&mut *slot.lock().unwrap_or_else(PoisonError::into_inner)));
    Ok(parts.flatten().collect())
}

/// Where a line's window `o` reads: tap and position of each value inside, along `axis` of n values.
fn inside(windows: &Windows, axis: usize, o: usize, n: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
    let (kernel, pad, dilation) = (windows.kernel[axis], windows.pad[axis], windows.dilation[axis]);
    let start = o * windows.stride[axis];
    (0..kernel).filter_map(move |tap| (start + tap * dilation).checked_sub(pad).filter(|&at| at < n).map(|at| (tap, at)))
}

/// A running value; sums carry what rounding lost where the layer says so.
#[derive(Clone, Copy)]
struct Total {
    value: f32,
    lost: f32,
}

#[derive(Clone, Copy)]
enum Rule {
    Max,
    Min,
    Sum,
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

    fn neutral(self) -> Total {
        let value = match self {
            Self::Max => f32::NEG_INFINITY,
            Self::Min => f32::INFINITY,
            Self::Sum | Self::Compensated => 0.0,
        };
        Total { value, lost: 0.0 }
    }

    /// One operation over two lines.
    fn add(self, totals: &mut [Total], values: &[f32]) {
        let pairs = totals.iter_mut().zip(values);
        match self {
            Self::Max => pairs.for_each(|(t, &v)| t.value = if v > t.value { v } else { t.value }),
            Self::Min => pairs.for_each(|(t, &v)| t.value = if v < t.value { v } else { t.value }),
            Self::Sum => pairs.for_each(|(t, &v)| t.value += v),
            Self::Compensated => pairs.for_each(|(t, &v)| {
                let y = v - t.lost;
                let sum = t.value + y;
                t.lost = (sum - t.value) - y;
                t.value = sum;
            }),
        }
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
        Values::F32(values) => pool_values(layer, Arc::clone(values), input, output, threads, |&v| v, |v| v).map(|v| Values::F32(v.into())),
        Values::F16(values) => pool_values(layer, Arc::clone(values), input, output, threads, |v: &f16| v.to_f32(), f16::from_f32)
            .map(|v| Values::F16(v.into())),
    }
}

fn pool_values<T: Copy + Send + Sync + 'static>(
    layer: &Pooling,
    values: Arc<[T]>,
    input: &Tensor,
    output: Dims,
    threads: usize,
    widen: impl Fn(&T) -> f32 + Send + Sync + 'static,
    narrow: impl Fn(f32) -> T + Send + Sync + 'static,
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
    let make = move |task: usize| {
        let (image, from, to) = bands.get(task).copied().unwrap_or_default();
        let mut down = vec![rule.neutral(); line];
        let mut floats = vec![0.0f32; line];
        let mut made = Vec::with_capacity((to - from) * out_line);
        for y in from..to {
            down.fill(rule.neutral());
            let mut rows = 0usize;
            for (_, row) in inside(&layer.windows, 0, y, dims.height) {
                let start = (image * dims.height + row) * line;
                floats.iter_mut().zip(values.get(start..start + line).unwrap_or_default()).for_each(|(to, from)| *to = widen(from));
                rule.add(&mut down, &floats);
                rows += 1;
            }
            for x in 0..output.width {
                let columns: Vec<usize> = inside(&layer.windows, 1, x, dims.width).map(|(_, at)| at).collect();
                let divisor = if layer.count_pad { layer.windows.area() } else { rows * columns.len() };
                for c in 0..components {
                    let mut total = [rule.neutral()];
                    for &column in &columns {
                        if let Some(part) = down.get(column * components + c) {
                            rule.add(&mut total, &[part.value]);
                        }
                    }
                    let value = total[0].value;
                    made.push(narrow(match layer.reduce {
                        Reduce::Max | Reduce::Min => value,
                        Reduce::Mean if divisor == 0 => 0.0,
                        Reduce::Mean => value / divisor as f32,
                    }));
                }
            }
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
