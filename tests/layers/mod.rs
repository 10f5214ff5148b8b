//! Layers over tensors as plain f64 loops that share nothing with `src`, and the cases that both engines must pass.
#![allow(dead_code, reason = "each test binary uses its part")]

use convoy::tensor::{Convolution, Dims, Layout, Pooling, Reduce, Tensor, Windows};
use half::f16;

/// Numbers from a fixed seed (splitmix64).
pub struct Noise(pub u64);

impl Noise {
    pub fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

pub fn tensor(dims: Dims, layout: Layout, half: bool, seed: u64) -> Tensor {
    let mut noise = Noise(seed);
    let count = dims.batch * dims.channels * dims.height * dims.width;
    // Negative values too: a maximum that starts at 0 would be found.
    let values: Vec<f32> = (0..count).map(|_| noise.next() * 3.0 - 1.0).collect();
    if half {
        Tensor::f16(dims, layout, values.into_iter().map(f16::from_f32).collect()).unwrap()
    } else {
        Tensor::f32(dims, layout, values).unwrap()
    }
}

/// Position of (n, c, y, x).
fn at(dims: Dims, layout: Layout, [n, c, y, x]: [usize; 4]) -> usize {
    match layout {
        Layout::Nchw => ((n * dims.channels + c) * dims.height + y) * dims.width + x,
        Layout::Nhwc => ((n * dims.height + y) * dims.width + x) * dims.channels + c,
    }
}

/// Windows along n values by counting, not by formula.
fn windows(w: &Windows, axis: usize, n: usize) -> usize {
    let reach = w.dilation[axis] * (w.kernel[axis] - 1) + 1;
    (0..).take_while(|o| o * w.stride[axis] + reach <= n + 2 * w.pad[axis]).count()
}

pub fn pool(layer: &Pooling, input: &Tensor) -> (Dims, Vec<f64>) {
    let (dims, values) = (input.dims(), input.to_f32());
    let w = &layer.windows;
    let out = Dims { height: windows(w, 0, dims.height), width: windows(w, 1, dims.width), ..dims };
    let mut results = vec![f64::NAN; out.batch * out.channels * out.height * out.width];
    for n in 0..out.batch {
        for c in 0..out.channels {
            for y in 0..out.height {
                for x in 0..out.width {
                    let mut found = Vec::new();
                    for j in 0..w.kernel[0] {
                        for i in 0..w.kernel[1] {
                            let row = (y * w.stride[0] + j * w.dilation[0]) as i64 - w.pad[0] as i64;
                            let column = (x * w.stride[1] + i * w.dilation[1]) as i64 - w.pad[1] as i64;
                            if row >= 0 && row < dims.height as i64 && column >= 0 && column < dims.width as i64 {
                                found.push(f64::from(values[at(dims, input.layout(), [n, c, row as usize, column as usize])]));
                            }
                        }
                    }
                    let count = if layer.count_pad { w.kernel[0] * w.kernel[1] } else { found.len() };
                    results[at(out, input.layout(), [n, c, y, x])] = match layer.reduce {
                        Reduce::Max => found.into_iter().fold(f64::NEG_INFINITY, f64::max),
                        Reduce::Min => found.into_iter().fold(f64::INFINITY, f64::min),
                        Reduce::Mean if count == 0 => 0.0,
                        Reduce::Mean => found.into_iter().sum::<f64>() / count as f64,
                    };
                }
            }
        }
    }
    (out, results)
}

pub fn convolve(layer: &Convolution, input: &Tensor) -> (Dims, Vec<f64>) {
    let (dims, values) = (input.dims(), input.to_f32());
    let w = &layer.windows;
    let out = Dims { channels: layer.out_channels, height: windows(w, 0, dims.height), width: windows(w, 1, dims.width), ..dims };
    let mut results = vec![f64::NAN; out.batch * out.channels * out.height * out.width];
    for n in 0..out.batch {
        for o in 0..out.channels {
            for y in 0..out.height {
                for x in 0..out.width {
                    let mut sum = layer.bias.as_ref().map_or(0.0, |b| f64::from(b[o]));
                    for c in 0..dims.channels {
                        for j in 0..w.kernel[0] {
                            for i in 0..w.kernel[1] {
                                let row = (y * w.stride[0] + j * w.dilation[0]) as i64 - w.pad[0] as i64;
                                let column = (x * w.stride[1] + i * w.dilation[1]) as i64 - w.pad[1] as i64;
                                if row >= 0 && row < dims.height as i64 && column >= 0 && column < dims.width as i64 {
                                    let weight = layer.weights[((o * dims.channels + c) * w.kernel[0] + j) * w.kernel[1] + i];
                                    let value = values[at(dims, input.layout(), [n, c, row as usize, column as usize])];
                                    sum += f64::from(weight) * f64::from(value);
                                }
                            }
                        }
                    }
                    results[at(out, Layout::Nchw, [n, o, y, x])] = sum;
                }
            }
        }
    }
    (out, results)
}

/// Compares; the error names the first bad value. Halves may be off by one rounding of the result.
pub fn check(got: &Tensor, (dims, want): &(Dims, Vec<f64>), half: bool, tolerance: f64) -> Result<(), String> {
    if got.dims() != *dims {
        return Err(format!("got {}, want {dims}", got.dims()));
    }
    for (i, (got, want)) in got.to_f32().into_iter().zip(want).enumerate() {
        let allowed = if half { want.abs() * 2f64.powi(-11) + 1e-7 } else { 0.0 } + tolerance * want.abs().max(1.0);
        let equal = f64::from(got) == *want;
        if !equal && (got.is_nan() || (f64::from(got) - want).abs() > allowed) {
            return Err(format!("value {i}: got {got}, want {want}"));
        }
    }
    Ok(())
}

pub fn poolings() -> Vec<Pooling> {
    let layer = |reduce, kernel, stride, pad, dilation, count_pad| Pooling {
        reduce,
        windows: Windows { kernel, stride, pad, dilation },
        count_pad,
    };
    let mut all = Vec::new();
    for reduce in [Reduce::Max, Reduce::Mean, Reduce::Min] {
        for count_pad in [true, false] {
            if reduce != Reduce::Mean && !count_pad {
                continue;
            }
            all.extend([
                layer(reduce, [1, 1], [1, 1], [0, 0], [1, 1], count_pad),
                layer(reduce, [2, 2], [2, 2], [0, 0], [1, 1], count_pad),
                layer(reduce, [3, 3], [1, 1], [1, 1], [1, 1], count_pad),
                layer(reduce, [3, 3], [2, 2], [1, 1], [1, 1], count_pad),
                layer(reduce, [3, 3], [1, 1], [0, 0], [1, 1], count_pad),
                layer(reduce, [2, 5], [1, 2], [1, 2], [1, 1], count_pad),
                layer(reduce, [4, 1], [2, 1], [2, 0], [1, 1], count_pad),
                layer(reduce, [1, 9], [1, 1], [0, 4], [1, 1], count_pad),
                layer(reduce, [9, 4], [1, 1], [4, 0], [1, 1], count_pad),
                layer(reduce, [3, 2], [3, 5], [1, 0], [2, 3], count_pad),
                layer(reduce, [5, 5], [1, 1], [2, 2], [2, 2], count_pad),
                layer(reduce, [11, 13], [2, 1], [5, 6], [1, 1], count_pad),
            ]);
        }
    }
    all
}

pub fn sizes() -> Vec<Dims> {
    let dims = |batch, channels, height, width| Dims { batch, channels, height, width };
    vec![dims(1, 1, 1, 1), dims(2, 3, 7, 9), dims(1, 8, 13, 16), dims(2, 16, 40, 152), dims(1, 2, 33, 296)]
}

pub fn convolutions(in_channels: usize) -> Vec<Convolution> {
    let mut noise = Noise(in_channels as u64 + 5);
    let mut layer = |out_channels: usize, kernel: [usize; 2], stride, pad, dilation, bias: bool| Convolution {
        weights: (0..out_channels * in_channels * kernel[0] * kernel[1]).map(|_| noise.next()).collect(),
        bias: bias.then(|| (0..out_channels).map(|o| o as f32 - 1.5).collect()),
        out_channels,
        windows: Windows { kernel, stride, pad, dilation },
    };
    vec![
        layer(1, [1, 1], [1, 1], [0, 0], [1, 1], false),
        layer(9, [3, 3], [1, 1], [1, 1], [1, 1], true),
        layer(4, [3, 3], [1, 1], [0, 2], [1, 1], false),
        layer(3, [3, 3], [2, 2], [1, 1], [1, 1], true),
        layer(17, [5, 2], [1, 3], [2, 0], [1, 1], true),
        layer(2, [3, 3], [1, 1], [2, 2], [2, 2], false),
    ]
}
