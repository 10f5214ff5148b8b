//! Box means of any size: the cost hardly grows with the radius. All rows are averaged horizontally into an intermediate
//! plane, then all columns vertically, in strips. What other kernels take does not come here: this is for floats of
//! several passes or of windows that are large beside the plane, for whole numbers whose sums do not fit, and for the plain variant.
//!
//! Float planes: sums of sums, which do not drift.
//!
//! Integer planes: sums are integers, so that they never drift; between passes a mean is kept in fixed point. Where 12 fractional
//! bits or more leave room for a window's sum in 32 bits, sums have 32 bits (each pass then adds at most 2^-12 to the error),
//! else 64 bits and 31 − depth fractional bits (at most 2^(depth − 30)).

use std::ops::Range;

use super::boxsum::window_sums;
use super::linear::Level;
use super::plane::{Codec, Source, Span, Target, load, store_codes, store_floats};
use super::simd;
use crate::filter::math::border_index;
use crate::filter::plan::BoxMean;
use crate::frame::Sample;

/// Values of one row of a column strip: a strip of 1080 rows takes 276 KiB twice.
const STRIP: usize = 64;

/// One plane's box mean.
pub(super) struct BoxKernel {
    op: BoxMean,
    span: Span,
    codec: Codec,
    /// Division of each direction's passes; the last pass of all yields code values.
    row: Vec<Division>,
    col: Vec<Division>,
    /// Sums fit 32 bits, and the SIMD functions may be used.
    narrow: bool,
    level: Level,
}

/// Fractional bits that 32-bit sums must leave: an error of 2^-12 turns one sample in 4096 at most.
const NARROW_FRACTION: i32 = 12;

/// Division of a window's sum by its size, moving between fixed-point scales.
#[derive(Clone, Copy, Debug)]
pub(super) struct Division {
    pre: u32,
    factor: u64,
    post: u32,
}

impl Division {
    /// `max` bounds one input value; the output is `sum · 2^gain / size`, rounded half up.
    pub fn new(max: u64, size: usize, gain: i32) -> Self {
        let bound = max.saturating_mul(size as u64);
        let pre = (64 - bound.leading_zeros()).saturating_sub(31);
        // factor / 2^post = 2^(gain + pre) / size with 31 significant bits.
        let ratio = f64::from(gain + pre as i32).exp2() / size as f64;
        let post = 30 - ratio.log2().floor() as i32;
        let factor = (ratio * f64::from(post).exp2()).round() as u64;
        Self { pre, factor, post: post.max(1) as u32 }
    }

    #[inline(always)]
    fn apply(self, sum: u64) -> u32 {
        (((sum >> self.pre) * self.factor + (1 << (self.post - 1))) >> self.post) as u32
    }

    /// The same for a sum of 32 bits, in a form that vectorises.
    #[inline(always)]
    pub fn apply_narrow(self, sum: u32) -> u32 {
        ((u64::from(sum >> self.pre) * u64::from(self.factor as u32) + (1 << (self.post - 1))) >> self.post) as u32
    }
}

impl BoxKernel {
    pub fn new(op: &BoxMean, mut span: Span, mut codec: Codec, level: Level) -> Self {
        codec.centre = 0.0;
        (span.left, span.right) = (op.radius_x, op.radius_x);
        let max = codec.max as u64;
        let size = 2 * op.radius_x.max(op.radius_y) as u64 + 1;
        // Bits that the largest sum of code values leaves free in a u32.
        let free = max.saturating_mul(size).leading_zeros() as i32 - 32;
        let narrow = level == Level::Simd && free >= NARROW_FRACTION && !codec.sample.is_float();
        let fraction = if narrow { free } else { max.leading_zeros() as i32 - 33 };
        let passes = |radius: usize| if radius == 0 { 0 } else { op.power };
        let total = passes(op.radius_x) + passes(op.radius_y);
        let (mut have, mut row, mut col) = (0, Vec::new(), Vec::new());
        for pass in 0..total {
            let horizontal = pass < passes(op.radius_x);
            let radius = if horizontal { op.radius_x } else { op.radius_y };
            let want = if pass + 1 == total { 0 } else { fraction };
            let division = Division::new(max << have, 2 * radius + 1, want - have);
            have = want;
            if horizontal { row.push(division) } else { col.push(division) }
        }
        Self { op: *op, span, codec, row, col, narrow, level }
    }

    /// Values of 32-bit scratch that a worker needs.
    pub fn scratch(&self) -> usize {
        let rows = 2 * self.span.extended() + self.span.values();
        let columns = match self.codec.sample {
            Sample::U8 | Sample::U16 => 2 * STRIP * self.span.height,
            Sample::F16 | Sample::F32 => STRIP * (3 * self.span.height + 4 * self.op.radius_y),
        };
        rows.max(columns)
    }

    /// Column strips of the vertical phase.
    pub fn strips(&self) -> usize {
        self.span.values().div_ceil(STRIP)
    }

    /// Averages `rows` horizontally into the intermediate plane.
    pub fn run_rows(&self, source: &Source, middle: &Target, rows: Range<usize>, codes: &mut [u32], floats: &mut [f32]) {
        for y in rows {
            // SAFETY: row `y` of the intermediate plane belongs to this task's band.
            let out = unsafe { middle.row(y) };
            match self.codec.sample {
                Sample::U8 | Sample::U16 => self.row_codes(source, y, codes, out),
                Sample::F16 | Sample::F32 => self.row_floats(source, y, floats, out),
            }
        }
    }

    fn row_codes(&self, source: &Source, y: usize, scratch: &mut [u32], out: &mut [u8]) {
        let (n, c) = (self.span.extended(), self.span.components);
        let (mut input, mut output) = scratch[..2 * n].split_at_mut(n);
        self.span.load(source, self.codec, y as i64, input);
        let (start, values, radius) = (self.span.left * c, self.span.values(), self.op.radius_x);
        for division in &self.row {
            self.span.extend(input, 0);
            for component in 0..c {
                if self.narrow {
                    let mut sum: u32 = (0..=2 * radius).map(|i| input[i * c + component]).sum();
                    if c == 1 {
                        // Slices of equal length: no index is checked in the loop. The last step enters nothing.
                        let last = start + values - 1;
                        let steps = input.iter().zip(&input[2 * radius + 1..]);
                        for (mean, (&leaving, &entering)) in output[start..last].iter_mut().zip(steps) {
                            *mean = sum;
                            sum = sum.wrapping_add(entering.wrapping_sub(leaving));
                        }
                        output[last] = sum;
                        continue;
                    }
                    for x in 0..self.span.width {
                        output[start + x * c + component] = sum;
                        let leaving = input[x * c + component];
                        let entering = input.get((x + 2 * radius + 1) * c + component).copied().unwrap_or(0);
                        sum = sum.wrapping_add(entering).wrapping_sub(leaving);
                    }
                    continue;
                }
                let mut sum: u64 = (0..=2 * radius).map(|i| u64::from(input[i * c + component])).sum();
                for x in 0..self.span.width {
                    output[start + x * c + component] = division.apply(sum);
                    let leaving = u64::from(input[x * c + component]);
                    let entering = input.get((x + 2 * radius + 1) * c + component).copied().unwrap_or(0);
                    sum = sum + u64::from(entering) - leaving;
                }
            }
            if self.narrow {
                simd::divide_codes(&mut output[start..start + values], *division);
            }
            std::mem::swap(&mut input, &mut output);
        }
        for (o, value) in out.as_chunks_mut::<4>().0.iter_mut().zip(&input[start..start + values]) {
            *o = value.to_le_bytes();
        }
    }

    fn row_floats(&self, source: &Source, y: usize, scratch: &mut [f32], out: &mut [u8]) {
        let (n, c) = (self.span.extended(), self.span.components);
        let (input, scratch) = scratch.split_at_mut(n);
        let (spare, means) = scratch.split_at_mut(n);
        self.span.load(source, self.codec, y as i64, input);
        let (start, values, size) = (self.span.left * c, self.span.values(), 2 * self.op.radius_x + 1);
        let (means, factor) = (&mut means[..values], 1.0 / size as f32);
        for _ in &self.row {
            self.span.extend(input, 0.0);
            window_sums(self.level, size, c, input, spare, means);
            means.iter_mut().for_each(|s| *s *= factor);
            input[start..start + values].copy_from_slice(means);
        }
        // The intermediate plane holds floats of 32 bits, whatever the samples are.
        store_floats(input[start..start + values].iter().copied(), Sample::F32, out);
    }

    /// Averages column strip `strip` of the intermediate plane vertically into the target.
    pub fn run_strip(&self, middle: &Source, target: &Target, strip: usize, codes: &mut [u32], floats: &mut [f32]) {
        let from = strip * STRIP;
        let width = STRIP.min(self.span.values() - from);
        match self.codec.sample {
            Sample::U8 | Sample::U16 => {
                let n = width * self.span.height;
                let (mut input, mut output) = codes[..2 * n].split_at_mut(n);
                for (y, row) in input.chunks_exact_mut(width).enumerate() {
                    load_words(&middle.row(y)[from * 4..], row);
                }
                for division in &self.col {
                    self.column_codes(*division, input, output, width);
                    std::mem::swap(&mut input, &mut output);
                }
                for (y, row) in input.chunks_exact(width).enumerate() {
                    let bytes = self.codec.sample.bytes();
                    // SAFETY: this strip of columns belongs to this task.
                    store_codes(row.iter().copied(), self.codec, unsafe { target.part(y, from * bytes, width * bytes) });
                }
            }
            Sample::F16 | Sample::F32 => {
                let (radius, middle_codec) = (self.op.radius_y, Codec { sample: Sample::F32, ..self.codec });
                let n = width * (self.span.height + 2 * radius);
                let (input, rest) = floats.split_at_mut(n);
                let (spare, rest) = rest.split_at_mut(n);
                let means = &mut rest[..width * self.span.height];
                for (y, row) in means.chunks_exact_mut(width).enumerate() {
                    load(&middle.row(y)[from * 4..], middle_codec, row);
                }
                for _ in &self.col {
                    for (row, y) in input.chunks_exact_mut(width).zip(-(radius as i64)..) {
                        match self.inside(y) {
                            Some(y) => row.copy_from_slice(&means[y * width..(y + 1) * width]),
                            None => row.fill(0.0),
                        }
                    }
                    window_sums(self.level, 2 * radius + 1, width, input, spare, means);
                    let factor = 1.0 / (2 * radius + 1) as f32;
                    means.iter_mut().for_each(|s| *s *= factor);
                }
                for (y, row) in means.chunks_exact(width).enumerate() {
                    let bytes = self.codec.sample.bytes();
                    // SAFETY: this strip of columns belongs to this task.
                    store_floats(row.iter().copied(), self.codec.sample, unsafe { target.part(y, from * bytes, width * bytes) });
                }
            }
        }
    }

    fn inside(&self, y: i64) -> Option<usize> {
        border_index(y, self.span.height as i64, self.span.border).map(|y| y as usize)
    }

    fn column_codes(&self, division: Division, input: &[u32], output: &mut [u32], width: usize) {
        let radius = self.op.radius_y as i64;
        if self.narrow {
            let row = |y: i64| self.inside(y).map(|row| &input[row * width..][..width]);
            let mut sums = [0u32; STRIP];
            for row in (-radius..=radius).filter_map(row) {
                sums.iter_mut().zip(row).for_each(|(sum, &value)| *sum += value);
            }
            for (y, out) in (0..).zip(output.chunks_exact_mut(width)) {
                simd::slide_codes(&mut sums[..width], division, row(y - radius), row(y + radius + 1), out);
            }
            return;
        }
        let mut sums = [0u64; STRIP];
        for row in (-radius..=radius).filter_map(|y| self.inside(y)) {
            for (sum, &value) in sums.iter_mut().zip(&input[row * width..][..width]) {
                *sum += u64::from(value);
            }
        }
        for (y, out) in output.chunks_exact_mut(width).enumerate() {
            for (o, &sum) in out.iter_mut().zip(&sums) {
                *o = division.apply(sum);
            }
            if let Some(row) = self.inside(y as i64 + radius + 1) {
                for (sum, &value) in sums.iter_mut().zip(&input[row * width..][..width]) {
                    *sum += u64::from(value);
                }
            }
            if let Some(row) = self.inside(y as i64 - radius) {
                for (sum, &value) in sums.iter_mut().zip(&input[row * width..][..width]) {
                    *sum -= u64::from(value);
                }
            }
        }
    }
}

fn load_words(bytes: &[u8], out: &mut [u32]) {
    for (o, b) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *o = u32::from_le_bytes(*b);
    }
}
