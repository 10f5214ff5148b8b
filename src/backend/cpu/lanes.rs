//! 32 bytes in a register. For loops that read bytes at neighbouring places, where the compiler would build one register from
//! another byte by byte instead of reading both; the loops themselves are written once, for any [`Lanes`].

/// Bytes of a register.
pub(super) const LANES: usize = 32;

/// 32 bytes, each on its own; results of comparisons are 255 or 0.
pub(super) trait Lanes: Copy {
    fn splat(value: u8) -> Self;
    fn load(values: &[u8; LANES]) -> Self;
    fn store(self, to: &mut [u8; LANES]);
    /// Modulo 256.
    fn plus(self, other: Self) -> Self;
    /// Modulo 256.
    fn minus(self, other: Self) -> Self;
    fn and(self, other: Self) -> Self;
    /// Compares numbers from −128 to 127.
    fn is_above(self, other: Self) -> Self;
    /// Compares numbers from 0 to 255.
    fn is_at_least(self, other: Self) -> Self;
    /// Whether all 32 are equal.
    fn same(self, other: Self) -> bool;
}

impl Lanes for [u8; LANES] {
    #[inline(always)]
    fn splat(value: u8) -> Self {
        [value; LANES]
    }
    #[inline(always)]
    fn load(values: &[u8; LANES]) -> Self {
        *values
    }
    #[inline(always)]
    fn store(self, to: &mut [u8; LANES]) {
        *to = self;
    }
    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        std::array::from_fn(|i| self[i].wrapping_add(other[i]))
    }
    #[inline(always)]
    fn minus(self, other: Self) -> Self {
        std::array::from_fn(|i| self[i].wrapping_sub(other[i]))
    }
    #[inline(always)]
    fn and(self, other: Self) -> Self {
        std::array::from_fn(|i| self[i] & other[i])
    }
    #[inline(always)]
    fn is_above(self, other: Self) -> Self {
        std::array::from_fn(|i| if self[i] as i8 > other[i] as i8 { 255 } else { 0 })
    }
    #[inline(always)]
    fn is_at_least(self, other: Self) -> Self {
        std::array::from_fn(|i| if self[i] >= other[i] { 255 } else { 0 })
    }
    #[inline(always)]
    fn same(self, other: Self) -> bool {
        self == other
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2 {
    #[allow(clippy::wildcard_imports, reason = "a page of names with a prefix of their own")]
    use std::arch::x86_64::*;

    use super::{LANES, Lanes};

    /// An AVX2 register. Its functions may be called where AVX2 has been detected, and are inlined into a function that is
    /// compiled for it.
    #[derive(Clone, Copy)]
    pub struct Register(__m256i);

    /// Whether [`Register`] may be used.
    pub fn detected() -> bool {
        std::is_x86_feature_detected!("avx2")
    }

    impl Lanes for Register {
        #[inline(always)]
        fn splat(value: u8) -> Self {
            // SAFETY: AVX2 was detected before the first register was made.
            Self(unsafe { _mm256_set1_epi8(value as i8) })
        }
        #[inline(always)]
        fn load(values: &[u8; LANES]) -> Self {
            // SAFETY: 32 bytes that may be read, at any alignment; AVX2 as in `splat`.
            Self(unsafe { _mm256_loadu_si256(values.as_ptr().cast()) })
        }
        #[inline(always)]
        fn store(self, to: &mut [u8; LANES]) {
            // SAFETY: 32 bytes that may be written, at any alignment; AVX2 as in `splat`.
            unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), self.0) }
        }
        #[inline(always)]
        fn plus(self, other: Self) -> Self {
            // SAFETY: as in `splat`.
            Self(unsafe { _mm256_add_epi8(self.0, other.0) })
        }
        #[inline(always)]
        fn minus(self, other: Self) -> Self {
            // SAFETY: as in `splat`.
            Self(unsafe { _mm256_sub_epi8(self.0, other.0) })
        }
        #[inline(always)]
        fn and(self, other: Self) -> Self {
            // SAFETY: as in `splat`.
            Self(unsafe { _mm256_and_si256(self.0, other.0) })
        }
        #[inline(always)]
        fn is_above(self, other: Self) -> Self {
            // SAFETY: as in `splat`.
            Self(unsafe { _mm256_cmpgt_epi8(self.0, other.0) })
        }
        #[inline(always)]
        fn is_at_least(self, other: Self) -> Self {
            // SAFETY: as in `splat`.
            Self(unsafe { _mm256_cmpeq_epi8(_mm256_max_epu8(self.0, other.0), self.0) })
        }
        #[inline(always)]
        fn same(self, other: Self) -> bool {
            // SAFETY: as in `splat`.
            unsafe { _mm256_movemask_epi8(_mm256_cmpeq_epi8(self.0, other.0)) == -1 }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn registers_compute_what_arrays_do() {
            if !detected() {
                return;
            }
            for seed in 0..64u8 {
                let a: [u8; LANES] = std::array::from_fn(|i| (i as u8).wrapping_mul(37).wrapping_add(seed.wrapping_mul(91)));
                let b: [u8; LANES] = std::array::from_fn(|i| if i % 5 == 0 { a[i] } else { (i as u8).wrapping_mul(seed) ^ 0x80 });
                let (x, y) = (Register::load(&a), Register::load(&b));
                let read = |r: Register| {
                    let mut out = [0; LANES];
                    r.store(&mut out);
                    out
                };
                assert_eq!(read(x.plus(y)), a.plus(b));
                assert_eq!(read(x.minus(y)), a.minus(b));
                assert_eq!(read(x.and(y)), a.and(b));
                assert_eq!(read(x.is_above(y)), a.is_above(b));
                assert_eq!(read(x.is_at_least(y)), a.is_at_least(b));
                assert_eq!(read(Register::splat(seed)), [seed; LANES]);
                assert!(x.same(x) && x.same(y) == (a == b));
            }
        }
    }
}
