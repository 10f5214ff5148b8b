//! An independent reference: every operation of [`crate::filter::plan`] in `f64`, as naive loops straight from the formulas in its
//! documentation, with its own border rule, its own frames and its own checker. It shares nothing with the backends but plain
//! types, and a backend never calls it: `convoy verify`, `bench` and the tests hold the backends to it.

mod binary16;
mod check;
mod picture;
mod region;
mod windows;

pub use check::{BadSample, Comparison, Tally, Tolerance, check, compare};
pub use picture::{Content, Noise, Picture};
pub use region::{AFFORDABLE, Judge, cost, is_affordable};

use crate::filter::Border;
use crate::filter::plan::{Plan, PlaneOp};
use crate::frame::{PixelFormat, Sample};

/// What the formulas give, before the last rounding (which [`check`] applies).
pub fn expect(plan: &Plan, input: &Picture) -> Picture {
    let mut picture = input.clone();
    for (index, step) in plan.steps.iter().enumerate() {
        if index > 0 {
            round(&mut picture);
        }
        let format = step.input.format;
        let planes = (0..format.plane_count()).map(|p| {
            let (w, h) = step.input.plane_size(p);
            let components = format.components(p) as i64;
            let view = View { plane: &picture.planes[p], width: w as i64, height: h as i64, components, border: step.border };
            apply(&step.planes[p], &view, step.output.plane_size(p), format)
        });
        picture = Picture { shape: step.output, planes: planes.collect() };
    }
    picture
}

/// To the samples of the format: whole numbers half up and into range, halves to the nearest one.
pub fn round(picture: &mut Picture) {
    let format = picture.shape.format;
    let max = f64::from(format.max_value());
    let values = picture.planes.iter_mut().flatten();
    match format.sample() {
        Sample::U8 | Sample::U16 => values.for_each(|v| *v = (*v + 0.5).floor().clamp(0.0, max)),
        Sample::F16 => values.for_each(|v| *v = binary16::nearest(*v)),
        Sample::F32 => {}
    }
}

/// Sample position under a border, by walking step by step from the edge; None is zero.
fn place(mut i: i64, n: i64, border: Border) -> Option<i64> {
    while i < 0 || i >= n {
        i = match border {
            Border::Zero => return None,
            Border::Clamp => i.clamp(0, n - 1),
            Border::Wrap => {
                if i < 0 {
                    i + n
                } else {
                    i - n
                }
            }
            Border::Reflect => {
                if i < 0 {
                    -1 - i
                } else {
                    2 * n - 1 - i
                }
            }
            Border::Reflect101 => {
                if n == 1 {
                    0
                } else if i < 0 {
                    -i
                } else {
                    2 * (n - 1) - i
                }
            }
        };
    }
    Some(i)
}

/// One plane with random access under a border.
struct View<'a> {
    plane: &'a [f64],
    width: i64,
    height: i64,
    components: i64,
    border: Border,
}

impl View<'_> {
    fn at(&self, x: i64, y: i64, c: i64) -> f64 {
        match (place(x, self.width, self.border), place(y, self.height, self.border)) {
            (Some(x), Some(y)) => self.plane[((y * self.width + x) * self.components + c) as usize],
            _ => 0.0,
        }
    }

    fn map(&self, f: impl Fn(i64, i64, i64) -> f64) -> Vec<f64> {
        let mut out = Vec::with_capacity(self.plane.len());
        for y in 0..self.height {
            for x in 0..self.width {
                for c in 0..self.components {
                    out.push(f(x, y, c));
                }
            }
        }
        out
    }

    fn with<'b>(&self, plane: &'b [f64]) -> View<'b> {
        View { plane, width: self.width, height: self.height, components: self.components, border: self.border }
    }
}

/// `out` is the output plane's size.
fn apply(op: &PlaneOp, view: &View<'_>, out: (usize, usize), format: PixelFormat) -> Vec<f64> {
    let (sample, max) = (format.sample(), f64::from(format.max_value()));
    match op {
        PlaneOp::Copy => view.plane.to_vec(),
        PlaneOp::Separable(op) => {
            let (ax, ay) = (op.row.len() as i64 / 2, op.col.len() as i64 / 2);
            // Σ_y col[y] Σ_x row[x] · in, the inner sum first for every row that exists; the border rules are separable.
            let rows = view.map(|x, y, c| weighted(&op.row, |i| view.at(x + i - ax, y, c)));
            let rows = view.with(&rows);
            view.map(|x, y, c| weighted(&op.col, |j| rows.at(x, y + j - ay, c)) * f64::from(op.scale) + f64::from(op.bias))
        }
        PlaneOp::Direct(op) => {
            let (w, ax, ay) = (op.width as i64, op.width as i64 / 2, op.height as i64 / 2);
            view.map(|x, y, c| {
                weighted(&op.taps, |i| view.at(x + i % w - ax, y + i / w - ay, c)) * f64::from(op.scale) + f64::from(op.bias)
            })
        }
        PlaneOp::Box(op) => {
            let mut plane = view.plane.to_vec();
            let mean = |radius: usize, get: &dyn Fn(i64) -> f64| {
                let r = radius as i64;
                (-r..=r).map(get).sum::<f64>() / (2 * r + 1) as f64
            };
            for _ in 0..op.power {
                let from = view.with(&plane);
                plane = view.map(|x, y, c| mean(op.radius_x, &|i| from.at(x + i, y, c)));
            }
            for _ in 0..op.power {
                let from = view.with(&plane);
                plane = view.map(|x, y, c| mean(op.radius_y, &|i| from.at(x, y + i, c)));
            }
            plane
        }
        PlaneOp::Unsharp(op) => {
            let (row, col) = (pascal(op.size_x), pascal(op.size_y));
            let (ax, ay) = (op.size_x as i64 / 2, op.size_y as i64 / 2);
            let all = 1i128 << (op.size_x + op.size_y - 2);
            if sample.is_float() {
                let blur = view.map(|x, y, c| {
                    let mut sum = 0.0;
                    for (j, wy) in col.iter().enumerate() {
                        for (i, wx) in row.iter().enumerate() {
                            sum += (wx * wy) as f64 * view.at(x + i as i64 - ax, y + j as i64 - ay, c);
                        }
                    }
                    sum / all as f64
                });
                return view.plane.iter().zip(&blur).map(|(v, b)| v + (v - b) * f64::from(op.amount) / 65536.0).collect();
            }
            view.map(|x, y, c| {
                let mut sum = 0i128;
                for (j, wy) in col.iter().enumerate() {
                    for (i, wx) in row.iter().enumerate() {
                        sum += wx * wy * view.at(x + i as i64 - ax, y + j as i64 - ay, c) as i128;
                    }
                }
                let value = view.at(x, y, c) as i128;
                let blur = (2 * sum + all).div_euclid(2 * all);
                let out = value + ((value - blur) * i128::from(op.amount)).div_euclid(65536);
                (out as f64).clamp(0.0, max)
            })
        }
        PlaneOp::Gradient(op) => view.map(|x, y, c| {
            let gx = weighted(&op.x, |i| view.at(x + i % 3 - 1, y + i / 3 - 1, c));
            let gy = weighted(&op.y, |i| view.at(x + i % 3 - 1, y + i / 3 - 1, c));
            (gx * gx + gy * gy).sqrt() * f64::from(op.scale) + f64::from(op.delta)
        }),
        PlaneOp::Compass(op) => windows::compass(op, view),
        PlaneOp::Extremum(op) => windows::extremum(op, view),
        PlaneOp::Morphology(op) => windows::morphology(op, view),
        PlaneOp::Median(op) => windows::median(op, view),
        PlaneOp::Pool(op) => windows::pool(op, view, out),
        PlaneOp::Pixelate(op) => windows::pixelate(op, view),
    }
}

fn weighted(weights: &[f32], get: impl Fn(i64) -> f64) -> f64 {
    weights.iter().enumerate().map(|(i, &w)| f64::from(w) * get(i as i64)).sum()
}

/// C(size − 1, i).
fn pascal(size: usize) -> Vec<i128> {
    let mut row = vec![1i128];
    for _ in 1..size {
        let mut next = vec![1];
        next.extend(row.windows(2).map(|w| w[0] + w[1]));
        next.push(1);
        row = next;
    }
    row
}
