//! Sums of products of 16-bit numbers, two neighbours at a time: the inner loops of [`super::fixed`]. The compiler does not find
//! the instruction (`vpmaddwd`) by itself; the plain twins say what it computes, and a test holds both together.

use super::fixed::{End, Fan, ROWS, Start, Weights};

/// Sums of the columns for [`ROWS`] output rows.
pub(super) struct Columns<'a> {
    /// Rows of interleaved samples: those of a pair of input rows alternate.
    pub ring: &'a [u8],
    /// Pair in the ring that is the first under the first output row.
    pub oldest: usize,
    /// One for each pair.
    pub fans: &'a [Fan],
    pub start: Start,
}

impl Start {
    /// Added before the shift: half a step on average, spread over eight neighbours.
    pub fn round(&self, x: usize) -> i32 {
        const PLACES: [i32; 8] = [1, 9, 5, 13, 3, 11, 7, 15];
        (PLACES[x % 8] << self.shift) >> 4
    }
}

/// Whether this machine has the instructions; else [`super::fixed`] is not used.
pub(super) fn has_pairs() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

/// `out[r][left + x] = (Σ weights · samples − middle + round) >> shift`, r < [`ROWS`], for the whole padded width; `out` holds the
/// rows one after the other.
pub(super) fn down_pairs(columns: &Columns<'_>, left: usize, out: &mut [u16]) {
    #[cfg(target_arch = "x86_64")]
    if has_pairs() {
        // SAFETY: the features have just been detected.
        unsafe { avx2::down(columns, left, out) };
        return;
    }
    down_plain(columns, left, out);
}

/// A finished row: `out[x]` from `Σ_k weights[k] · (sums[x + 2k], sums[x + 2k + 1])`, where odd x take the second weights at
/// x − 1. `last` is room for a block, and `sums` is readable for one more than the row.
pub(super) fn across_pairs(sums: &[u16], weights: &[[Weights; 2]], end: End, last: &mut [u8], out: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    if has_pairs() {
        // SAFETY: the features have just been detected.
        unsafe { avx2::across(sums, weights, end, last, out) };
        return;
    }
    let _ = last;
    across_plain(sums, weights, end, out);
}

/// `out = upper[0], lower[0], upper[1], …`
#[multiversion::multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
pub(super) fn interleave(upper: &[u8], lower: &[u8], out: &mut [u8]) {
    for ((o, &upper), &lower) in out.as_chunks_mut::<2>().0.iter_mut().zip(upper).zip(lower) {
        *o = [upper, lower];
    }
}

/// The two numbers of a lane.
fn halves(weights: Weights) -> [i32; 2] {
    [i32::from(weights as i16), weights >> 16]
}

fn down_plain(columns: &Columns<'_>, left: usize, out: &mut [u16]) {
    let stride = columns.ring.len() / columns.fans.len();
    let per = out.len() / ROWS;
    for (r, out) in out.chunks_exact_mut(per).enumerate() {
        for (x, out) in out[left..].iter_mut().take(stride / 2).enumerate() {
            let mut sum = columns.start.round(x) - columns.start.middle;
            for (k, fan) in columns.fans.iter().enumerate() {
                let at = (columns.oldest + k) % columns.fans.len() * stride + 2 * x;
                let [first, second] = halves(fan[r]);
                sum += i32::from(columns.ring[at]) * first + i32::from(columns.ring[at + 1]) * second;
            }
            *out = (sum >> columns.start.shift) as u16;
        }
    }
}

fn across_plain(sums: &[u16], weights: &[[Weights; 2]], end: End, out: &mut [u8]) {
    for (x, out) in out.iter_mut().enumerate() {
        let mut sum = 0;
        for (k, weights) in weights.iter().enumerate() {
            let at = x - x % 2 + 2 * k;
            let [first, second] = halves(weights[x % 2]);
            sum += i32::from(sums[at] as i16) * first + i32::from(sums[at + 1] as i16) * second;
        }
        *out = (sum as f32).mul_add(end.scale, end.offset).max(0.0).min(end.max) as u8;
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    #[allow(clippy::wildcard_imports, reason = "a page of names with a prefix of their own")]
    use std::arch::x86_64::*;

    use super::super::fixed::{BLOCK, End, Fan, ROWS, Weights};
    use super::Columns;

    #[inline]
    #[target_feature(enable = "avx2")]
    fn load_words(values: &[u16; 16]) -> __m256i {
        // SAFETY: 32 bytes that may be read, and the instruction asks for no alignment.
        unsafe { _mm256_loadu_si256(values.as_ptr().cast()) }
    }

    /// 16 bytes, widened.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn load_bytes(values: &[u8; 16]) -> __m256i {
        // SAFETY: 16 bytes that may be read, and the instruction asks for no alignment.
        _mm256_cvtepu8_epi16(unsafe { _mm_loadu_si128(values.as_ptr().cast()) })
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn store<T>(value: __m256i, out: &mut [T]) {
        debug_assert!(size_of_val(out) == 32);
        if size_of_val(out) == 32 {
            // SAFETY: 32 bytes of integers that may be written, and the instruction asks for no alignment.
            unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), value) };
        }
    }

    /// Adds one pair of input rows to 16 columns of all output rows.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn add_pair(sums: &mut [[__m256i; 2]; ROWS], samples: &[u8; 32], fan: &Fan) {
        let ([low, high], _) = samples.as_chunks::<16>() else { return };
        let (low, high) = (load_bytes(low), load_bytes(high));
        for r in 0..ROWS {
            let weights = _mm256_set1_epi32(fan[r]);
            sums[r][0] = _mm256_add_epi32(sums[r][0], _mm256_madd_epi16(low, weights));
            sums[r][1] = _mm256_add_epi32(sums[r][1], _mm256_madd_epi16(high, weights));
        }
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn down(columns: &Columns<'_>, left: usize, out: &mut [u16]) {
        const WIDE: usize = 16;
        let Columns { ring, oldest, fans, start } = columns;
        let (stride, per) = (ring.len() / fans.len(), out.len() / ROWS);
        let (wrapped, first) = ring.split_at(oldest * stride);
        let (of_first, of_wrapped) = fans.split_at(fans.len() - oldest);
        let [a, b, c, d, e, f, g, h] = std::array::from_fn(|x| start.round(x) - start.middle);
        let (begin, shift) = (_mm256_setr_epi32(a, b, c, d, e, f, g, h), _mm_cvtsi32_si128(start.shift));
        for x in (0..stride / 2).step_by(WIDE) {
            let mut sums = [[begin; 2]; ROWS];
            for (rows, fans) in [(first, of_first), (wrapped, of_wrapped)] {
                for (row, fan) in rows.chunks_exact(stride).zip(fans) {
                    let Some(samples) = row[2 * x..].first_chunk() else { return };
                    add_pair(&mut sums, samples, fan);
                }
            }
            for (r, [low, high]) in sums.into_iter().enumerate() {
                // Packing works within halves of a register: the middle quarters change places.
                let packed = _mm256_packs_epi32(_mm256_sra_epi32(low, shift), _mm256_sra_epi32(high, shift));
                store(_mm256_permute4x64_epi64::<0b11_01_10_00>(packed), &mut out[r * per + left + x..][..WIDE]);
            }
        }
    }

    /// Eight code values.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    fn finish(sums: __m256i, scale: __m256, offset: __m256, max: __m256) -> __m256i {
        let value = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), scale, offset);
        _mm256_cvttps_epi32(_mm256_min_ps(_mm256_max_ps(value, _mm256_setzero_ps()), max))
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn across(sums: &[u16], weights: &[[Weights; 2]], end: End, last: &mut [u8], out: &mut [u8]) {
        let (scale, offset, max) = (_mm256_set1_ps(end.scale), _mm256_set1_ps(end.offset), _mm256_set1_ps(end.max));
        for x in (0..out.len()).step_by(BLOCK) {
            let (mut even, mut odd) = ([_mm256_setzero_si256(); BLOCK / 16], [_mm256_setzero_si256(); BLOCK / 16]);
            for (k, [of_even, of_odd]) in weights.iter().enumerate() {
                let (of_even, of_odd) = (_mm256_set1_epi32(*of_even), _mm256_set1_epi32(*of_odd));
                let Some(block) = sums[x + 2 * k..].first_chunk::<BLOCK>() else { return };
                for (i, values) in block.as_chunks::<16>().0.iter().enumerate() {
                    let values = load_words(values);
                    even[i] = _mm256_add_epi32(even[i], _mm256_madd_epi16(values, of_even));
                    odd[i] = _mm256_add_epi32(odd[i], _mm256_madd_epi16(values, of_odd));
                }
            }
            let mut codes = [_mm256_setzero_si256(); BLOCK / 16];
            for i in 0..BLOCK / 16 {
                let (even, odd) = (finish(even[i], scale, offset, max), finish(odd[i], scale, offset, max));
                codes[i] = _mm256_or_si256(even, _mm256_slli_epi32::<16>(odd));
            }
            let whole = x + BLOCK <= out.len();
            let to = if whole { &mut out[x..x + BLOCK] } else { &mut *last };
            for (to, codes) in to.chunks_exact_mut(32).zip(codes.chunks_exact(2)) {
                let packed = _mm256_packus_epi16(codes[0], codes[1]);
                store(_mm256_permute4x64_epi64::<0b11_01_10_00>(packed), to);
            }
            if !whole {
                let rest = out.len() - x;
                out[x..].copy_from_slice(&last[..rest]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_instructions_compute_what_the_plain_twins_do() {
        let mut state = 1u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 16
        };
        for (width, taps) in [(1usize, 1usize), (63, 5), (64, 31), (200, 12)] {
            let (padded, pairs) = (width.next_multiple_of(64), (taps + 3).div_ceil(2));
            let ring: Vec<u8> = (0..2 * padded * pairs).map(|_| next() as u8).collect();
            let fans: Vec<Fan> =
                (0..pairs).map(|_| std::array::from_fn(|_| (next() % 900) as i32 | ((next() % 900) as i32) << 16)).collect();
            let start = Start { middle: 77_777, shift: 7 };
            let columns = Columns { ring: &ring, oldest: pairs / 3, fans: &fans, start };
            let length = padded + 2 * pairs + 64;
            let (mut fast, mut plain) = (vec![0u16; length * ROWS], vec![0u16; length * ROWS]);
            down_pairs(&columns, 3, &mut fast);
            down_plain(&columns, 3, &mut plain);
            assert_eq!(fast, plain, "{width} {taps}");

            let weights: Vec<[Weights; 2]> = (0..pairs).map(|k| [fans[k][0], fans[k][1]]).collect();
            let end = End { scale: 1e-5, offset: 100.5, max: 255.0 };
            let (mut fast, mut plain, mut last) = (vec![0u8; width], vec![0u8; width], [0u8; 64]);
            let sums: Vec<u16> = (0..length).map(|_| next() as u16).collect();
            across_pairs(&sums, &weights, end, &mut last, &mut fast);
            across_plain(&sums, &weights, end, &mut plain);
            assert_eq!(fast, plain, "{width} {taps}");
            assert!(width < 60 || (fast.contains(&0) && fast.iter().any(|&v| v > 100)), "{fast:?}");
        }
    }
}
