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
    let column = |x: usize| matrix.iter().skip(x).step_by(width).copied();
    let pivot_row = *rows.get(pivot / width)?;
    let mut row = pivot_row.to_vec();
    let mut col: Vec<f64>;
    if let Some(divisor) = integer_gcd(matrix).and(integer_gcd(pivot_row)) {
        // The pivot row over its greatest common divisor is primitive: every row is an integer multiple of it.
        row.iter_mut().for_each(|w| *w /= divisor);
        let unit = *row.get(pivot % width)?;
        col = column(pivot % width).map(|w| (w / unit).round()).collect();
    } else {
        let project = |vector: &[f64], onto: &[f64]| {
            let square: f64 = onto.iter().map(|w| w * w).sum();
            vector.iter().zip(onto).map(|(a, b)| a * b).sum::<f64>() / square
        };
        col = Vec::new();
        // Two rounds of power iteration: the best fit in the least-squares sense, where the pivot row has an error.
        for _ in 0..2 {
            col = rows.iter().map(|r| project(r, &row)).collect();
            row = (0..width).map(|x| project(&column(x).collect::<Vec<_>>(), &col)).collect();
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The sequence 0…n−1 continued to both sides by hand: whole mirrored or repeated copies laid end to end.
    fn continued(n: i64, border: Border) -> Vec<Option<i64>> {
        let forward: Vec<i64> = (0..n).collect();
        let backward: Vec<i64> = forward.iter().rev().copied().collect();
        // Copies −4…4 of a period that starts at position 0; a period has n or more samples, so that −2n…3n is covered.
        let period: Vec<i64> = match border {
            Border::Clamp | Border::Zero | Border::Wrap => forward.clone(),
            Border::Reflect => [forward.clone(), backward].concat(),
            Border::Reflect101 if n == 1 => forward.clone(),
            Border::Reflect101 => [&forward[..], &backward[1..backward.len() - 1]].concat(),
        };
        let all: Vec<i64> = std::iter::repeat_n(period.clone(), 9).flatten().collect();
        let origin = 4 * period.len() as i64;
        (-2 * n..3 * n)
            .map(|i| match border {
                Border::Zero if i < 0 || i >= n => None,
                Border::Clamp if i < 0 => Some(0),
                Border::Clamp if i >= n => Some(n - 1),
                _ => Some(all[(origin + i) as usize]),
            })
            .collect()
    }

    #[test]
    fn border_index_walks_the_continued_sequence() {
        for border in Border::ALL {
            for n in 1..=9 {
                let walked: Vec<_> = (-2 * n..3 * n).map(|i| border_index(i, n, border)).collect();
                assert_eq!(walked, continued(n, border), "{border:?}, n = {n}");
            }
        }
        assert_eq!(border_index(i64::from(i32::MIN), 7, Border::Wrap), Some(i64::from(i32::MIN).rem_euclid(7)));
    }

    #[test]
    fn gaussian_weights_sum_to_one_fall_and_mirror() {
        for sigma in [0.2, 0.5, 1.0, 2.0, 5.0, 20.0, 333.3, 1024.0] {
            for max in [255.0, 1023.0, 65535.0] {
                let radius = gaussian_radius(sigma, max);
                assert!(radius >= (3.0 * sigma).ceil() as usize, "{sigma}");
                assert!(radius as f64 <= 5.0 * sigma + 2.0, "{sigma}: {radius}");
                let weights = gaussian_weights(sigma, radius);
                assert_eq!(weights.len(), 2 * radius + 1);
                let sum: f64 = weights.iter().map(|w| f64::from(*w)).sum();
                assert!((sum - 1.0).abs() < f64::from(f32::EPSILON) / 2.0, "{sigma}: {sum}");
                assert!(weights.iter().eq(weights.iter().rev()));
                // The centre, which balances the rounding of thousands of taps, is held by the ratio below.
                assert!(weights[..radius].is_sorted() && weights[0] > 0.0);
                let ratio = f64::from(weights[radius + 1]) / f64::from(weights[radius]);
                assert!((ratio / (-0.5 / (sigma * sigma)).exp() - 1.0).abs() < 1e-4, "{sigma}: {ratio}");
            }
        }
    }

    /// What the radius cuts off: even a worst-case pattern of 0 and full scale moves by half a code value at most.
    #[test]
    fn the_radius_cuts_off_nothing_that_can_be_seen() {
        for (sigma, max) in [(0.7, 255.0), (2.0, 255.0), (9.0, 255.0), (2.0, 1023.0), (50.0, 65535.0)] {
            let far = (12.0 * sigma) as usize + 2;
            let full = gaussian_weights(sigma, far);
            let cut = gaussian_weights(sigma, gaussian_radius(sigma, max));
            let pad = (full.len() - cut.len()) / 2;
            let difference = |i: usize| f64::from(full[i]) - i.checked_sub(pad).and_then(|j| cut.get(j)).map_or(0.0, |w| f64::from(*w));
            let worst: f64 = (0..full.len()).map(difference).filter(|d| *d > 0.0).sum::<f64>() * max;
            assert!(2.0 * worst <= 0.51, "sigma {sigma}, max {max}: {worst}");
        }
    }

    #[test]
    fn binomials_are_pascals_rows() {
        let mut row = vec![1u64];
        for size in 1..=30 {
            assert_eq!(binomial_weights(size).unwrap(), row);
            assert_eq!(row.iter().sum::<u64>(), 1 << (size - 1));
            row = std::iter::once(1).chain(row.windows(2).map(|w| w[0] + w[1])).chain([1]).collect();
        }
        assert_eq!(binomial_weights(0), None);
        assert_eq!(binomial_weights(500), None);
    }

    fn outer(col: &[f64], row: &[f64]) -> Vec<f64> {
        col.iter().flat_map(|c| row.iter().map(move |r| c * r)).collect()
    }

    #[test]
    fn integer_matrices_factor_into_integers() {
        let row = [1.0, 4.0, 6.0, 4.0, 1.0];
        let factors = factor_rank_1(&outer(&[-3.0, 0.0, 6.0, 9.0], &row), 5).unwrap();
        assert_eq!(outer(&factors.col, &factors.row), outer(&[-3.0, 0.0, 6.0, 9.0], &row));
        assert!(factors.row.iter().chain(&factors.col).all(|w| w.fract() == 0.0), "{factors:?}");
        let scaled = factor_rank_1(&outer(&row, &[2.0, 0.0, -4.0]), 3).unwrap();
        assert_eq!(outer(&scaled.col, &scaled.row), outer(&row, &[2.0, 0.0, -4.0]));
    }

    #[test]
    fn only_rank_1_factors() {
        let col: Vec<f64> = (0..7).map(|i| (f64::from(i) - 3.1).sin()).collect();
        let row: Vec<f64> = (0..9).map(|i| (f64::from(i) * 0.7).cos() * 1e-3).collect();
        let matrix = outer(&col, &row);
        let factors = factor_rank_1(&matrix, 9).unwrap();
        for (a, b) in outer(&factors.col, &factors.row).iter().zip(&matrix) {
            assert!((a - b).abs() < 1e-15, "{a} {b}");
        }
        let peak = matrix.iter().fold(0.0f64, |m, w| m.max(w.abs()));
        let mut nearly = matrix.clone();
        nearly[20] += 1e-8 * peak;
        assert!(factor_rank_1(&nearly, 9).is_some());
        nearly[20] += 1e-4 * peak;
        assert!(factor_rank_1(&nearly, 9).is_none());
        assert!(factor_rank_1(&[0.0, -1.0, 0.0, -1.0, 5.0, -1.0, 0.0, -1.0, 0.0], 3).is_none());
        assert!(factor_rank_1(&[0.0; 9], 3).is_none());
        assert!(factor_rank_1(&[1.0; 7], 3).is_none());
        assert!(factor_rank_1(&[], 3).is_none());
        assert!(factor_rank_1(&[f64::INFINITY, 1.0], 2).is_none());
    }
}
