//! Planes as the kernels see them: rows of raw samples in, rows of raw samples out, borders filled outside the inner loops.

use std::ops::Range;

use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::filter::Border;
use crate::filter::math::border_index;
use crate::frame::{Frame, MAX_PLANES, PixelFormat, PlaneLayout, Sample};

/// How samples are stored: what turns bytes into code values and back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Codec {
    /// Storage.
    pub sample: Sample,
    /// Bits that a stored 16-bit sample is shifted up (P010: 6).
    pub shift: u32,
    /// Largest code value; 1 for float.
    pub max: f32,
    /// Subtracted on loading to `f32`, so that sums of 16-bit samples keep their fraction: half the range above 12 bits, else 0.
    pub centre: f32,
}

impl Codec {
    /// The codec of every plane of `format`.
    pub fn new(format: PixelFormat) -> Self {
        let sample = format.sample();
        let shift = if format.high_bits && sample == Sample::U16 { 16 - u32::from(format.depth) } else { 0 };
        let max = format.max_value();
        let centre = if sample == Sample::U16 && format.depth > 12 { (max + 1.0) / 2.0 } else { 0.0 };
        Self { sample, shift, max, centre }
    }
}

/// Raw memory of one plane, read by every worker of a step. Rows are `pitch` bytes apart, with any alignment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    base: *const u8,
    pitch: usize,
    row_bytes: usize,
    /// The row at `base`, and how many rows there are from it on: all of them, or a band.
    first: usize,
    height: usize,
}

// SAFETY: a Source is only used while the submitter holds the frame (or intermediate buffer) it points into, and nobody
// writes that memory meanwhile: steps run one after the other, and a step never writes the buffer that it reads.
unsafe impl Send for Source {}

impl Source {
    const EMPTY: Self = Self { base: std::ptr::null(), pitch: 0, row_bytes: 0, first: 0, height: 0 };

    /// The planes of a frame.
    pub fn of_frame(frame: &Frame) -> [Self; MAX_PLANES] {
        let sample = frame.layout.shape.format.sample();
        let mut planes = [Self::EMPTY; MAX_PLANES];
        for (index, (plane, layout)) in planes.iter_mut().zip(frame.layout.planes()).enumerate() {
            let (pitch, row_bytes) = (layout.pitch, layout.row_bytes(sample));
            *plane = Self { base: frame.plane_ptr(index), pitch, row_bytes, first: 0, height: layout.height };
        }
        planes
    }

    /// Row `y`; `y` is below the height, as every caller takes it from [`border_index`] or the row range of its task.
    pub fn row(&self, y: usize) -> &[u8] {
        let line = y.wrapping_sub(self.first);
        assert!(line < self.height);
        // SAFETY: whoever built the frame promised `height` rows of `row_bytes` at `pitch`, and keeps them for this step.
        unsafe { std::slice::from_raw_parts(self.base.add(line * self.pitch), self.row_bytes) }
    }
}

/// Raw memory of one plane, written by the workers of a step, each its own rows (or columns).
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    base: *mut u8,
    pitch: usize,
    row_bytes: usize,
    /// The row at `base`, and how many rows there are from it on: all of them, or a band.
    first: usize,
    height: usize,
}

// SAFETY: tasks of one step write disjoint ranges of a Target; the submitter owns the memory until all have finished.
unsafe impl Send for Target {}

impl Target {
    const EMPTY: Self = Self { base: std::ptr::null_mut(), pitch: 0, row_bytes: 0, first: 0, height: 0 };

    /// The planes at `layouts` in an exclusively owned slab.
    pub fn of_slab(slab: &mut [u8], layouts: &[PlaneLayout], sample: Sample) -> [Self; MAX_PLANES] {
        let mut planes = [Self::EMPTY; MAX_PLANES];
        for (plane, layout) in planes.iter_mut().zip(layouts) {
            if layout.end(sample) <= slab.len() {
                let base = slab.as_mut_ptr().wrapping_add(layout.offset);
                *plane = Self { base, pitch: layout.pitch, row_bytes: layout.row_bytes(sample), first: 0, height: layout.height };
            }
        }
        planes
    }

    /// Rows `rows` of a plane in exclusively owned memory; no rows if they do not fit.
    pub fn of_band(memory: &mut [u8], rows: Range<usize>, row_bytes: usize) -> Self {
        let height = if rows.len().saturating_mul(row_bytes) <= memory.len() { rows.len() } else { 0 };
        Self { base: memory.as_mut_ptr(), pitch: row_bytes, row_bytes, first: rows.start, height }
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// The same memory to be read by the next step.
    pub fn as_source(&self) -> Source {
        Source { base: self.base.cast_const(), pitch: self.pitch, row_bytes: self.row_bytes, first: self.first, height: self.height }
    }

    /// Bytes `from..from + len` of row `y`.
    ///
    /// # Safety
    /// No other reference to these bytes may live: the caller's task alone writes them in this phase.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn part(&self, y: usize, from: usize, len: usize) -> &mut [u8] {
        let line = y.wrapping_sub(self.first);
        assert!(line < self.height && from <= self.row_bytes && len <= self.row_bytes - from);
        // SAFETY: inside the memory by the assertion and the constructors' checks; unique by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(line * self.pitch + from), len) }
    }

    /// All of row `y`.
    ///
    /// # Safety
    /// As for [`Target::part`].
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn row(&self, y: usize) -> &mut [u8] {
        // SAFETY: the caller's promise.
        unsafe { self.part(y, 0, self.row_bytes) }
    }
}

/// A type that samples are computed in.
pub(super) trait Value: Copy + Default + Send + 'static {
    /// From an integer sample.
    fn from_code(code: u32) -> Self;
    /// From a float sample.
    fn from_float(value: f32) -> Self;
    /// Moves the origin to `centre` (only floats do).
    fn centred(self, centre: f32) -> Self;
}

impl Value for f32 {
    #[inline(always)]
    fn from_code(code: u32) -> Self {
        // Through i32: SSE and AVX2 have no conversion from u32.
        code as i32 as f32
    }
    #[inline(always)]
    fn from_float(value: f32) -> Self {
        value
    }
    #[inline(always)]
    fn centred(self, centre: f32) -> Self {
        self - centre
    }
}

impl Value for u8 {
    #[inline(always)]
    fn from_code(code: u32) -> Self {
        code as u8
    }
    #[inline(always)]
    fn from_float(value: f32) -> Self {
        value as u8
    }
    #[inline(always)]
    fn centred(self, _: f32) -> Self {
        self
    }
}

impl Value for u16 {
    #[inline(always)]
    fn from_code(code: u32) -> Self {
        code as u16
    }
    #[inline(always)]
    fn from_float(value: f32) -> Self {
        value as u16
    }
    #[inline(always)]
    fn centred(self, _: f32) -> Self {
        self
    }
}

impl Value for u32 {
    #[inline(always)]
    fn from_code(code: u32) -> Self {
        code
    }
    #[inline(always)]
    fn from_float(value: f32) -> Self {
        value as u32
    }
    #[inline(always)]
    fn centred(self, _: f32) -> Self {
        self
    }
}

impl Value for u64 {
    #[inline(always)]
    fn from_code(code: u32) -> Self {
        u64::from(code)
    }
    #[inline(always)]
    fn from_float(value: f32) -> Self {
        value as u64
    }
    #[inline(always)]
    fn centred(self, _: f32) -> Self {
        self
    }
}

/// Converts a row of stored samples.
#[inline(always)]
pub(super) fn load<T: Value>(bytes: &[u8], codec: Codec, out: &mut [T]) {
    match codec.sample {
        Sample::U8 => {
            for (o, &b) in out.iter_mut().zip(bytes) {
                *o = T::from_code(u32::from(b));
            }
        }
        Sample::U16 => {
            let (shift, centre) = (codec.shift, codec.centre);
            for (o, b) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *o = T::from_code(u32::from(u16::from_le_bytes(*b)) >> shift).centred(centre);
            }
        }
        Sample::F16 => load_halves(bytes, out),
        Sample::F32 => {
            for (o, b) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *o = T::from_float(f32::from_le_bytes(*b));
            }
        }
    }
}

/// Halves that are converted together, by the machine's instruction where it has one.
const HALVES: usize = 64;

/// Converts a row of halves, exactly.
fn load_halves<T: Value>(bytes: &[u8], out: &mut [T]) {
    let (mut halves, mut floats) = ([f16::ZERO; HALVES], [0.0f32; HALVES]);
    for (out, bytes) in out.chunks_mut(HALVES).zip(bytes.chunks(2 * HALVES)) {
        for (half, b) in halves.iter_mut().zip(bytes.as_chunks().0) {
            *half = f16::from_le_bytes(*b);
        }
        halves.convert_to_f32_slice(&mut floats);
        for (o, &value) in out.iter_mut().zip(&floats) {
            *o = T::from_float(value);
        }
    }
}

/// Rounds floats to the nearest half, ties to the even one; beyond 65504 to infinity.
fn store_halves(mut values: impl Iterator<Item = f32>, out: &mut [u8]) {
    let (mut halves, mut floats) = ([f16::ZERO; HALVES], [0.0f32; HALVES]);
    for out in out.chunks_mut(2 * HALVES) {
        for (float, value) in floats.iter_mut().zip(values.by_ref().take(out.len() / 2)) {
            *float = value;
        }
        halves.convert_from_f32_slice(&floats);
        for (o, half) in out.as_chunks_mut().0.iter_mut().zip(&halves) {
            *o = half.to_le_bytes();
        }
    }
}

/// Stores integer code values that are already within range.
#[inline(always)]
pub(super) fn store_codes(codes: impl Iterator<Item = u32>, codec: Codec, out: &mut [u8]) {
    match codec.sample {
        Sample::U8 => {
            for (o, code) in out.iter_mut().zip(codes) {
                *o = code as u8;
            }
        }
        Sample::U16 => {
            for (o, code) in out.as_chunks_mut::<2>().0.iter_mut().zip(codes) {
                *o = ((code << codec.shift) as u16).to_le_bytes();
            }
        }
        // Float planes never come here; see `Finish` and `store_floats`.
        Sample::F16 | Sample::F32 => {}
    }
}

/// Stores float samples, not clamped, and rounded only where they are halves.
#[inline(always)]
pub(super) fn store_floats(values: impl Iterator<Item = f32>, sample: Sample, out: &mut [u8]) {
    match sample {
        Sample::F16 => store_halves(values, out),
        Sample::F32 => {
            for (o, value) in out.as_chunks_mut::<4>().0.iter_mut().zip(values) {
                *o = value.to_le_bytes();
            }
        }
        // Whole numbers never come here; see `Finish` and `store_codes`.
        Sample::U8 | Sample::U16 => {}
    }
}

/// The end of a step: `sum · scale + offset`, rounded half up, clamped, in a form whose float part stays small.
#[derive(Clone, Copy, Debug)]
pub(super) struct Finish {
    /// Multiplies the sum.
    pub scale: f32,
    /// Added to the product; holds the rounding's ½ for integer samples.
    offset: f32,
    /// Integer part of everything that is added, applied after rounding.
    base: i32,
    /// Clamp before truncation: `[-base, max - base]`.
    low: f32,
    high: f32,
}

impl Finish {
    /// `weights` is the kernel's sum, which the codec's centre must be added back with.
    pub fn new(codec: Codec, weights: f64, scale: f32, bias: f32) -> Self {
        if codec.sample.is_float() {
            return Self { scale, offset: bias, base: 0, low: f32::NEG_INFINITY, high: f32::INFINITY };
        }
        let constant = f64::from(codec.centre) * weights * f64::from(scale) + f64::from(bias);
        // Far outside the sample's range the fraction no longer matters, and i32 must not overflow.
        let base = if codec.centre != 0.0 && constant.abs() < f64::from(1 << 20) { constant.floor() } else { 0.0 };
        Self {
            scale,
            offset: (constant - base + 0.5) as f32,
            base: base as i32,
            low: -base as f32,
            high: (f64::from(codec.max) - base) as f32,
        }
    }

    /// The code value of a sum.
    #[inline(always)]
    pub fn code(&self, sum: f32) -> u32 {
        // max/min also turn NaN into `low`.
        let value = (sum * self.scale + self.offset).max(self.low).min(self.high);
        // SAFETY: `value` lies in [low, high], both far inside i32's range: |base| <= 2^20, max <= 65535.
        let truncated: i32 = unsafe { value.to_int_unchecked() };
        // Truncation is floor only for positive values; the comparison is 0 or 1 and vectorises on plain SSE2.
        let floor = truncated - i32::from(truncated as f32 > value);
        (floor + self.base) as u32
    }

    /// Nothing is added after rounding, so that the clamp leaves no negative values: so with every codec without a centre.
    pub fn is_positive(&self) -> bool {
        self.base == 0
    }

    /// As [`Finish::code`] where [`Finish::is_positive`] holds: truncation is floor.
    #[inline(always)]
    pub fn positive_code(&self, sum: f32) -> u32 {
        let value = (sum * self.scale + self.offset).max(self.low).min(self.high);
        // SAFETY: as in `code`.
        let truncated: i32 = unsafe { value.to_int_unchecked() };
        truncated as u32
    }

    /// The float sample of a sum.
    #[inline(always)]
    pub fn value(&self, sum: f32) -> f32 {
        sum * self.scale + self.offset
    }

    /// Stores a row of sums.
    #[inline(always)]
    pub fn store(&self, sums: &[f32], codec: Codec, out: &mut [u8]) {
        match codec.sample {
            Sample::U8 | Sample::U16 => store_codes(sums.iter().map(|&s| self.code(s)), codec, out),
            Sample::F16 | Sample::F32 => store_floats(sums.iter().map(|&s| self.value(s)), codec.sample, out),
        }
    }
}

/// One plane's geometry with the room that a kernel needs on both sides of a row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    /// Samples of one component per row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Interleaved components; neighbours are this many values apart.
    pub components: usize,
    /// Positions needed left of the row.
    pub left: usize,
    /// Positions needed right of the row.
    pub right: usize,
    /// What lies outside.
    pub border: Border,
}

impl Span {
    /// Values of a visible row.
    pub fn values(&self) -> usize {
        self.width * self.components
    }

    /// Values of a row with its sides.
    pub fn extended(&self) -> usize {
        (self.left + self.width + self.right) * self.components
    }

    /// Loads the row at virtual position `y` (any integer) into `row`, sides included. `row.len()` is [`Span::extended`].
    pub fn load<T: Value>(&self, source: &Source, codec: Codec, y: i64, row: &mut [T]) {
        self.load_with(source, codec, y, row, load);
    }

    /// As [`Span::load`], converting with `load`.
    pub fn load_with<T: Value>(&self, source: &Source, codec: Codec, y: i64, row: &mut [T], load: fn(&[u8], Codec, &mut [T])) {
        let zero = T::from_code(0).centred(codec.centre);
        let Some(y) = border_index(y, self.height as i64, self.border) else {
            row.fill(zero);
            return;
        };
        let start = self.left * self.components;
        load(source.row(y as usize), codec, &mut row[start..start + self.values()]);
        self.extend(row, zero);
    }

    /// Fills both sides of a row from its visible part.
    pub fn extend<T: Value>(&self, row: &mut [T], zero: T) {
        let (width, c, left) = (self.width as i64, self.components, self.left as i64);
        if self.border == Border::Clamp && c == 1 {
            let (first, last) = (row[self.left], row[self.left + self.width - 1]);
            row[..self.left].fill(first);
            row[self.left + self.width..].fill(last);
            return;
        }
        for i in (-left..0).chain(width..width + self.right as i64) {
            let to = (i + left) as usize * c;
            match border_index(i, width, self.border) {
                Some(from) => {
                    let from = (from + left) as usize * c;
                    row.copy_within(from..from + c, to);
                }
                None => row[to..to + c].fill(zero),
            }
        }
    }
}
