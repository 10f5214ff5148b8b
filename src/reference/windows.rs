//! The reference for operations that are no weighted sums: windows, ranks, blocks.

use crate::filter::plan::{Compass, Extreme, Extremum, Median, Morphology, Pixelate, Pool, PoolKind};

use super::View;

/// Left, top = −1; in FFmpeg's order of the neighbours: as one reads.
const NEIGHBOURS: [(i64, i64); 8] = [(-1, -1), (0, -1), (1, -1), (-1, 0), (1, 0), (-1, 1), (0, 1), (1, 1)];

/// Eight sums written out: 5 on three neighbours that follow each other, −3 on the rest.
pub(super) fn compass(op: &Compass, view: &View<'_>) -> Vec<f64> {
    view.map(|x, y, c| {
        let mut strongest = f64::NEG_INFINITY;
        for k in 0..8 {
            let mut sum = 0.0;
            for (place, (dx, dy)) in NEIGHBOURS.iter().enumerate() {
                let weight = if [k, (k + 1) % 8, (k + 2) % 8].contains(&place) { 5.0 } else { -3.0 };
                sum += weight * view.at(x + dx, y + dy, c);
            }
            strongest = strongest.max(sum);
        }
        strongest.abs() * f64::from(op.scale) + f64::from(op.delta)
    })
}

fn pick(kind: Extreme, a: f64, b: f64) -> f64 {
    match kind {
        Extreme::Min => a.min(b),
        Extreme::Max => a.max(b),
    }
}

/// What any sample beats.
fn none(kind: Extreme) -> f64 {
    match kind {
        Extreme::Min => f64::INFINITY,
        Extreme::Max => f64::NEG_INFINITY,
    }
}

/// Along rows, then along columns: with a zero border, a row outside is all zeros, and so is its extremum.
pub(super) fn extremum(op: &Extremum, view: &View<'_>) -> Vec<f64> {
    let (rx, ry) = (op.radius_x as i64, op.radius_y as i64);
    let rows = view.map(|x, y, c| (-rx..=rx).map(|i| view.at(x + i, y, c)).fold(none(op.kind), |a, b| pick(op.kind, a, b)));
    let rows = view.with(&rows);
    view.map(|x, y, c| (-ry..=ry).map(|j| rows.at(x, y + j, c)).fold(none(op.kind), |a, b| pick(op.kind, a, b)))
}

pub(super) fn morphology(op: &Morphology, view: &View<'_>) -> Vec<f64> {
    view.map(|x, y, c| {
        let own = view.at(x, y, c);
        let mut found = own;
        for (bit, (dx, dy)) in NEIGHBOURS.iter().enumerate() {
            if op.coordinates >> bit & 1 == 1 {
                found = pick(op.kind, found, view.at(x + dx, y + dy, c));
            }
        }
        match (op.kind, op.threshold) {
            (_, None) => found,
            (Extreme::Min, Some(t)) => found.max(own - f64::from(t)),
            (Extreme::Max, Some(t)) => found.min(own + f64::from(t)),
        }
    })
}

pub(super) fn median(op: &Median, view: &View<'_>) -> Vec<f64> {
    let (rx, ry) = (op.radius_x as i64, op.radius_y as i64);
    view.map(|x, y, c| {
        let mut window: Vec<f64> =
            (-ry..=ry).flat_map(|j| (-rx..=rx).map(move |i| (i, j))).map(|(i, j)| view.at(x + i, y + j, c)).collect();
        window.sort_by(f64::total_cmp);
        // A rank outside the window is a plan that cannot be; NaN equals nothing.
        window.get(op.rank).copied().unwrap_or(f64::NAN)
    })
}

/// Columns (or rows) of window `i` inside 0..`n`; the one nearest to the window's centre if there is none.
fn taps(op: &Pool, i: i64, n: i64) -> Vec<i64> {
    let place = |j: i64| i * op.stride as i64 - op.pad as i64 + j * op.dilation as i64;
    let inside: Vec<i64> = (0..op.kernel as i64).map(place).filter(|p| (0..n).contains(p)).collect();
    if inside.is_empty() { vec![place(op.kernel as i64 / 2).clamp(0, n - 1)] } else { inside }
}

/// `out` is the size of the output plane in samples of one component.
pub(super) fn pool(op: &Pool, view: &View<'_>, out: (usize, usize)) -> Vec<f64> {
    let mut plane = Vec::new();
    for y in 0..out.1 as i64 {
        let rows = taps(op, y, view.height);
        for x in 0..out.0 as i64 {
            let columns = taps(op, x, view.width);
            for c in 0..view.components {
                let window: Vec<f64> =
                    rows.iter().flat_map(|&y| columns.iter().map(move |&x| (x, y))).map(|(x, y)| view.at(x, y, c)).collect();
                plane.push(match op.kind {
                    PoolKind::Max => window.iter().copied().fold(f64::NEG_INFINITY, f64::max),
                    PoolKind::Min => window.iter().copied().fold(f64::INFINITY, f64::min),
                    PoolKind::Mean => window.iter().sum::<f64>() / window.len() as f64,
                });
            }
        }
    }
    plane
}

pub(super) fn pixelate(op: &Pixelate, view: &View<'_>) -> Vec<f64> {
    let (width, height, components) = (view.width, view.height, view.components);
    let mut out = vec![0.0; (width * height * components) as usize];
    // Block by block: a mean for every sample would read each of them as often as a block is large.
    for top in (0..height).step_by(op.block_y) {
        for left in (0..width).step_by(op.block_x) {
            let (right, bottom) = ((left + op.block_x as i64).min(width), (top + op.block_y as i64).min(height));
            let places = || (top..bottom).flat_map(|y| (left..right).map(move |x| (x, y)));
            for c in 0..components {
                let sum: f64 = places().map(|(x, y)| view.at(x, y, c)).sum();
                let mean = sum / ((right - left) * (bottom - top)) as f64;
                places().for_each(|(x, y)| out[((y * width + x) * components + c) as usize] = mean);
            }
        }
    }
    out
}
