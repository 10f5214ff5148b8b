//! Border rules, weights and rounding: pure functions that kernels and backends consume, no GPU type.

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
