//! Samples as things that have an order and nothing else: the row operations of minimum, maximum, rank and compass filters.
//!
//! Every operation exists twice, from one body: compiled for the baseline (`cpu-scalar`) and once per instruction set.

use multiversion::multiversion;

use super::linear::Level;
use super::plane::{Codec, Value, load, store_codes, store_floats};
use crate::filter::plan::Extreme;
use crate::frame::Sample;

/// A sample's own type. Floats compare as numbers; a NaN loses or wins as the machine's instruction has it.
pub(super) trait Ordered: Value + PartialOrd {
    /// Stores a row; the exact inverse of [`load`].
    fn store(row: &[Self], codec: Codec, out: &mut [u8]);
    /// The inverse of [`Value::from_code`].
    fn code(self) -> u32;
    /// The inverse of [`Value::from_float`].
    #[inline(always)]
    fn float(self) -> f32 {
        self.code() as f32
    }
    /// `self + distance`, at most the type's largest value.
    fn raised(self, distance: Self) -> Self;
    /// `self − distance`, at least the type's smallest value.
    fn lowered(self, distance: Self) -> Self;
    /// From a threshold of the plan.
    fn from_threshold(threshold: f32) -> Self;
    /// [`least`] of itself and a value that joins it in place.
    #[inline(always)]
    fn lower(self, value: Self) -> Self {
        least(value, self)
    }
    /// [`most`] of itself and a value that joins it in place.
    #[inline(always)]
    fn higher(self, value: Self) -> Self {
        most(value, self)
    }
}

impl Ordered for u8 {
    #[inline(always)]
    fn store(row: &[Self], _: Codec, out: &mut [u8]) {
        let n = out.len().min(row.len());
        out[..n].copy_from_slice(&row[..n]);
    }
    #[inline(always)]
    fn code(self) -> u32 {
        u32::from(self)
    }
    #[inline(always)]
    fn raised(self, distance: Self) -> Self {
        self.saturating_add(distance)
    }
    #[inline(always)]
    fn lowered(self, distance: Self) -> Self {
        self.saturating_sub(distance)
    }
    fn from_threshold(threshold: f32) -> Self {
        threshold as Self
    }
}

impl Ordered for u16 {
    #[inline(always)]
    fn store(row: &[Self], codec: Codec, out: &mut [u8]) {
        for (o, &value) in out.as_chunks_mut::<2>().0.iter_mut().zip(row) {
            *o = (value << codec.shift).to_le_bytes();
        }
    }
    #[inline(always)]
    fn code(self) -> u32 {
        u32::from(self)
    }
    #[inline(always)]
    fn raised(self, distance: Self) -> Self {
        self.saturating_add(distance)
    }
    #[inline(always)]
    fn lowered(self, distance: Self) -> Self {
        self.saturating_sub(distance)
    }
    fn from_threshold(threshold: f32) -> Self {
        threshold as Self
    }
}

/// For sums of samples.
impl Ordered for u32 {
    #[inline(always)]
    fn store(row: &[Self], codec: Codec, out: &mut [u8]) {
        store_codes(row.iter().copied(), codec, out);
    }
    #[inline(always)]
    fn code(self) -> u32 {
        self
    }
    #[inline(always)]
    fn raised(self, distance: Self) -> Self {
        self.saturating_add(distance)
    }
    #[inline(always)]
    fn lowered(self, distance: Self) -> Self {
        self.saturating_sub(distance)
    }
    fn from_threshold(threshold: f32) -> Self {
        threshold as Self
    }
}

impl Ordered for f32 {
    #[inline(always)]
    fn store(row: &[Self], codec: Codec, out: &mut [u8]) {
        match codec.sample {
            Sample::F32 => {
                for (o, value) in out.as_chunks_mut::<4>().0.iter_mut().zip(row) {
                    *o = value.to_le_bytes();
                }
            }
            Sample::U8 | Sample::U16 | Sample::F16 => store_floats(row.iter().copied(), codec.sample, out),
        }
    }
    #[inline(always)]
    fn code(self) -> u32 {
        self as u32
    }
    #[inline(always)]
    fn float(self) -> f32 {
        self
    }
    #[inline(always)]
    fn raised(self, distance: Self) -> Self {
        self + distance
    }
    #[inline(always)]
    fn lowered(self, distance: Self) -> Self {
        self - distance
    }
    fn from_threshold(threshold: f32) -> Self {
        threshold
    }
    // A chosen float that goes back to where one of the two was becomes a masked store on AVX, half as fast as the baseline's code; the
    // standard library's rule for NaN keeps the compiler from that, for two more instructions.
    #[inline(always)]
    fn lower(self, value: Self) -> Self {
        self.min(value)
    }
    #[inline(always)]
    fn higher(self, value: Self) -> Self {
        self.max(value)
    }
}

/// The type that a plane's samples are compared in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Bytes,
    Words,
    Floats,
}

impl Kind {
    /// The kind of every plane with this codec.
    pub fn of(codec: Codec) -> Self {
        match codec.sample {
            Sample::U8 => Self::Bytes,
            Sample::U16 => Self::Words,
            Sample::F16 | Sample::F32 => Self::Floats,
        }
    }
}

/// The smaller one; a single instruction, unlike `f32::min`, which has a rule for NaN.
#[inline(always)]
pub(super) fn least<T: Ordered>(a: T, b: T) -> T {
    if b < a { b } else { a }
}

/// The larger one.
#[inline(always)]
pub(super) fn most<T: Ordered>(a: T, b: T) -> T {
    if b > a { b } else { a }
}

/// Defines `$name` as the choice between the plain and the per-instruction-set compilation of `$body`; generic over `T: Ordered` unless other
/// generics are given in brackets.
macro_rules! leveled {
    ([$($generics:tt)*] $(#[$doc:meta])* $name:ident, $fast:ident, $body:ident($($argument:ident: $type:ty),*)) => {
        #[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
        fn $fast<$($generics)*>($($argument: $type),*) {
            $body($($argument),*);
        }

        $(#[$doc])*
        pub(super) fn $name<$($generics)*>(level: Level, $($argument: $type),*) {
            match level {
                Level::Plain => $body($($argument),*),
                Level::Simd => $fast($($argument),*),
            }
        }
    };
    ($($rest:tt)*) => {
        leveled!([T: Ordered] $($rest)*);
    };
}
pub(super) use leveled;

#[inline(always)]
fn load_body<T: Ordered>(bytes: &[u8], codec: Codec, out: &mut [T]) {
    load(bytes, codec, out);
}

leveled!(
    /// As [`load`].
    load_row, load_fast, load_body(bytes: &[u8], codec: Codec, out: &mut [T])
);

#[inline(always)]
fn store_body<T: Ordered>(row: &[T], codec: Codec, out: &mut [u8]) {
    T::store(row, codec, out);
}

leveled!(
    /// As [`Ordered::store`].
    store_row, store_fast, store_body(row: &[T], codec: Codec, out: &mut [u8])
);

#[inline(always)]
fn pair_body<T: Ordered>(kind: Extreme, a: &[T], b: &[T], out: &mut [T]) {
    match kind {
        Extreme::Min => {
            for ((o, &a), &b) in out.iter_mut().zip(a).zip(b) {
                *o = least(a, b);
            }
        }
        Extreme::Max => {
            for ((o, &a), &b) in out.iter_mut().zip(a).zip(b) {
                *o = most(a, b);
            }
        }
    }
}

leveled!(
    /// `out[i]` = the extreme of `a[i]` and `b[i]`.
    pair_row, pair_fast, pair_body(kind: Extreme, a: &[T], b: &[T], out: &mut [T])
);

#[inline(always)]
fn merge_body<T: Ordered>(kind: Extreme, row: &[T], into: &mut [T]) {
    match kind {
        Extreme::Min => {
            for (o, &a) in into.iter_mut().zip(row) {
                *o = o.lower(a);
            }
        }
        Extreme::Max => {
            for (o, &a) in into.iter_mut().zip(row) {
                *o = o.higher(a);
            }
        }
    }
}

leveled!(
    /// `into[i]` = the extreme of `into[i]` and `row[i]`.
    merge_row, merge_fast, merge_body(kind: Extreme, row: &[T], into: &mut [T])
);

#[inline(always)]
fn slide_body<T: Ordered>(kind: Extreme, row: &[T], suffix: &mut [T], prefix: &mut [T], out: &mut [T]) {
    let places = out.iter_mut().zip(suffix).zip(prefix).zip(row);
    match kind {
        Extreme::Min => {
            for (((o, suffix), prefix), &value) in places {
                let running = prefix.lower(value);
                *prefix = running;
                *o = least(*suffix, running);
            }
        }
        Extreme::Max => {
            for (((o, suffix), prefix), &value) in places {
                let running = prefix.higher(value);
                *prefix = running;
                *o = most(*suffix, running);
            }
        }
    }
}

leveled!(
    /// One row of van Herk's and Gil and Werman's method: `row` joins the running extreme `prefix` of a block; the output is
    /// the extreme of that and of `suffix`, which belongs to the block before.
    slide_row, slide_fast, slide_body(kind: Extreme, row: &[T], suffix: &mut [T], prefix: &mut [T], out: &mut [T])
);

#[inline(always)]
fn limit_body<T: Ordered>(kind: Extreme, threshold: T, input: &[T], out: &mut [T]) {
    match kind {
        Extreme::Min => {
            for (o, &input) in out.iter_mut().zip(input) {
                *o = most(input.lowered(threshold), *o);
            }
        }
        Extreme::Max => {
            for (o, &input) in out.iter_mut().zip(input) {
                *o = least(input.raised(threshold), *o);
            }
        }
    }
}

leveled!(
    /// Keeps `out` within `threshold` of `input`.
    limit_row, limit_fast, limit_body(kind: Extreme, threshold: T, input: &[T], out: &mut [T])
);
