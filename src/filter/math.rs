//! Border rules, weights and factorisations: pure functions that kernels and backends consume, no GPU type.

use super::Border;

/// Index inside `0..n` that stands for position `i` (any integer) under `border`; None means the sample is zero.
///
/// `n` must be at least 1. The twin of `border_index` in `kernels/plane.cuh`.
pub fn border_index(i: i64, n: i64, border: Border) -> Option<i64> {
    if (0..n).contains(&i) {
        return Some(i);
    }
    match border {
        Border::Clamp => Some(i.clamp(0, n - 1)),
        Border::Zero => None,
        Border::Wrap => Some(i.rem_euclid(n)),
        Border::Reflect => {
            let r = i.rem_euclid(2 * n);
            Some(if r < n { r } else { 2 * n - 1 - r })
        }
        Border::Reflect101 => {
            if n == 1 {
                return Some(0);
            }
            let r = i.rem_euclid(2 * n - 2);
            Some(if r < n { r } else { 2 * n - 2 - r })
        }
    }
}

/// exp(−i²/2σ²), not normalised.
fn bell(i: usize, sigma: f64) -> f64 {
    let x = i as f64 / sigma;
    (-0.5 * x * x).exp()
}

/// Taps that a Gaussian needs on each side: ⌈3σ⌉ or more, until what is cut off shifts no sample by more than half a
/// code value of `max_value`.
///
/// A tail of weight t, cut off and spread over the rest, moves the sum by at most t · `max_value` in each of the two
/// directions. For 8 bits that is ⌈3.3σ⌉ or so, for 16 bits 4.7σ.
pub fn gaussian_radius(sigma: f64, max_value: f64) -> usize {
    let least = (3.0 * sigma).ceil() as usize;
    // Beyond 9σ a weight is below 10⁻¹⁷ of the centre's.
    let most = (9.0 * sigma).ceil() as usize + 1;
    let total: f64 = 1.0 + 2.0 * (1..=most).rev().map(|i| bell(i, sigma)).sum::<f64>();
    let mut tail = 0.0;
    let mut radius = most;
    while radius > least.max(1) {
        tail += 2.0 * bell(radius, sigma) / total;
        if 2.0 * tail * max_value > 0.5 {
            break;
        }
        radius -= 1;
    }
    radius.max(1)
}

/// The 2·`radius` + 1 weights of a Gaussian, normalised in f64; the centre takes up what rounding to f32 leaves, so that
/// they sum to 1 within half a unit in the last place.
pub fn gaussian_weights(sigma: f64, radius: usize) -> Vec<f32> {
    // From the smallest to the largest, so that the sum loses nothing.
    let side: Vec<f64> = (1..=radius).rev().map(|i| bell(i, sigma)).collect();
    let total = 1.0 + 2.0 * side.iter().sum::<f64>();
    let side: Vec<f32> = side.into_iter().map(|w| (w / total) as f32).collect();
    let centre = 1.0 - 2.0 * side.iter().map(|w| f64::from(*w)).sum::<f64>();
    let mut weights = side.clone();
    weights.push(centre as f32);
    weights.extend(side.iter().rev());
    weights
}

/// The binomial coefficients C(`size` − 1, i), i = 0…`size` − 1; their sum is 2^(`size` − 1). None if one exceeds 64 bits
/// (`size` above 63 or so) or `size` is 0.
pub fn binomial_weights(size: usize) -> Option<Vec<u64>> {
    let mut row: Vec<u64> = Vec::with_capacity(size);
    for i in 0..size {
        let n = (size - 1) as u64;
        let next = match row.last() {
            None => 1,
            Some(previous) => previous.checked_mul(n + 1 - i as u64)? / i as u64,
        };
        row.push(next);
    }
    (!row.is_empty()).then_some(row)
}

/// A matrix as the product of a column and a row.
#[derive(Clone, Debug, PartialEq)]
pub struct Factors {
    /// Horizontal weights.
    pub row: Vec<f64>,
    /// Vertical weights.
    pub col: Vec<f64>,
}

/// Relative error of reconstruction up to which a matrix counts as rank 1.
pub const RANK_1_TOLERANCE: f64 = 1e-6;

/// Factors `matrix` (`width` taps a row) into a column and a row, if its rank is 1 within [`RANK_1_TOLERANCE`] of its
/// largest weight. Integer matrices yield integers, so that sums stay exact.
///
/// None for a matrix of higher rank, of zeros, or that is no rectangle.
pub fn factor_rank_1(matrix: &[f64], width: usize) -> Option<Factors> {
    if width == 0 || matrix.is_empty() || !matrix.len().is_multiple_of(width) {
        return None;
    }
    let (pivot, peak) = matrix.iter().map(|w| w.abs()).enumerate().max_by(|a, b| a.1.total_cmp(&b.1))?;
    if peak == 0.0 || !peak.is_finite() {
        return None;
    }
    // With the largest weight as the pivot, cross approximation is exact for rank 1 and never amplifies an error.
    let rows: Vec<&[f64]> = matrix.chunks_exact(width).collect();
    let pivot_row = *rows.get(pivot / width)?;
    let mut row = pivot_row.to_vec();
    let mut col: Vec<f64>;
    if let Some(divisor) = integer_gcd(matrix).and(integer_gcd(pivot_row)) {
        // The pivot row over its greatest common divisor is primitive: every row is an integer multiple of it.
        row.iter_mut().for_each(|w| *w /= divisor);
        let unit = row.get(pivot % width)?;
        col = rows.iter().map(|r| (r[pivot % width] / unit).round()).collect();
    } else {
        let project = |vector: &[f64], onto: &[f64]| {
            let square: f64 = onto.iter().map(|w| w * w).sum();
            vector.iter().zip(onto).map(|(a, b)| a * b).sum::<f64>() / square
        };
        col = Vec::new();
        // Two rounds of power iteration: the best fit in the least-squares sense, where the pivot row has an error.
        for _ in 0..2 {
            col = rows.iter().map(|r| project(r, &row)).collect();
            row = (0..width).map(|x| project(&rows.iter().map(|r| r[x]).collect::<Vec<_>>(), &col)).collect();
        }
        // Balanced, so that neither factor leaves the range of f32.
        let norm = |v: &[f64]| v.iter().map(|w| w * w).sum::<f64>().sqrt();
        let balance = (norm(&row) / norm(&col)).sqrt();
        row.iter_mut().for_each(|w| *w /= balance);
        col.iter_mut().for_each(|w| *w *= balance);
    }
    let worst = rows.iter().zip(&col).flat_map(|(r, c)| r.iter().zip(&row).map(move |(m, w)| (m - c * w).abs())).fold(0.0, f64::max);
    (worst <= RANK_1_TOLERANCE * peak).then_some(Factors { row, col })
}

/// Greatest common divisor of integers that f64 holds exactly; None if one is not such an integer, or all are 0.
fn integer_gcd(weights: &[f64]) -> Option<f64> {
    let mut divisor = 0u64;
    for weight in weights {
        if weight.fract() != 0.0 || weight.abs() > 9e15 {
            return None;
        }
        let (mut a, mut b) = (divisor, weight.abs() as u64);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        divisor = a;
    }
    (divisor > 0).then_some(divisor as f64)
}
