//! The inner loops, compiled once per instruction set and chosen at run time. Every function works on one row (or a few),
//! so that the dispatch costs nothing beside the work; `linear` holds the plain twins of `cpu-scalar`.
//!
//! Written for the autovectoriser: fixed-size blocks whose accumulators stay in registers, the weights in the outer loop.
//! The last block of a row overlaps the one before, so that there is no tail.

use multiversion::{multiversion, target::match_target};

use super::boxmean::Division;
use super::plane::{Codec, Finish, load};
use super::pyramid::TAPS;
use super::unsharp::Sharpen;
use crate::frame::Sample;

/// Values per block: eight AVX2 registers of accumulators, which hides the latency of a multiply-add (4 cycles, 2 a cycle).
const BLOCK: usize = 64;
/// Two rows of accumulators.
const HALF: usize = BLOCK / 2;
/// Block of rows that are too short for the long one.
const SHORT: usize = 8;

/// Runs `$block(x)` for every block start that covers `0..$width`, with the longest block that fits. A macro, because a closure
/// would be compiled without the caller's instruction set.
macro_rules! blocks {
    ($width:expr, $long:expr, $block:ident($($argument:expr),*)) => {{
        let width = $width;
        if width >= $long {
            blocks!(@of $long, width, $block($($argument),*));
        } else if width >= SHORT {
            blocks!(@of SHORT, width, $block($($argument),*));
        } else {
            blocks!(@of 1, width, $block($($argument),*));
        }
    }};
    (@of $length:expr, $width:ident, $block:ident($($argument:expr),*)) => {{
        let mut x = 0;
        while $length <= $width - x {
            $block::<{ $length }>($($argument,)* x);
            x += $length;
        }
        if x < $width {
            $block::<{ $length }>($($argument,)* $width - $length);
        }
    }};
}

#[inline(always)]
fn fused_block<const N: usize>(base: &[f32], offsets: &[usize], weights: &[f32], out: &mut [f32], x: usize) {
    let mut sums = [0.0f32; N];
    for (&offset, &weight) in offsets.iter().zip(weights) {
        let Some(row) = base[offset + x..].first_chunk::<N>() else { return };
        for i in 0..N {
            sums[i] = row[i].mul_add(weight, sums[i]);
        }
    }
    out[x..x + N].copy_from_slice(&sums);
}

#[inline(always)]
fn split_block<const N: usize>(base: &[f32], offsets: &[usize], weights: &[f32], out: &mut [f32], x: usize) {
    let mut sums = [0.0f32; N];
    for (&offset, &weight) in offsets.iter().zip(weights) {
        let Some(row) = base[offset + x..].first_chunk::<N>() else { return };
        for i in 0..N {
            sums[i] += row[i] * weight;
        }
    }
    out[x..x + N].copy_from_slice(&sums);
}

/// `out[x] = Σ weights[i] · base[offsets[i] + x]`.
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
pub(super) fn weighted_floats(base: &[f32], offsets: &[usize], weights: &[f32], out: &mut [f32]) {
    // Without the instruction `mul_add` would be a call into libm.
    match_target! {
        "x86_64+avx2+fma" => blocks!(out.len(), BLOCK, fused_block(base, offsets, weights, out)),
        "aarch64+neon" => blocks!(out.len(), BLOCK, fused_block(base, offsets, weights, out)),
        _ => blocks!(out.len(), BLOCK, split_block(base, offsets, weights, out)),
    }
}

#[inline(always)]
fn fused_pair<const N: usize>(pair: Pair<'_>, base: &[f32], offsets: &[usize], out: &mut [f32], below: &mut [f32], x: usize) {
    let (mut upper, mut lower) = ([0.0f32; N], [0.0f32; N]);
    let (first, rest) = offsets.split_at(pair.step);
    let (both, last) = rest.split_at(pair.weights.len() - pair.step);
    let (lead, trail) = pair.weights.split_at(pair.step);
    for (&offset, &weight) in first.iter().zip(lead) {
        let Some(row) = base[offset + x..].first_chunk::<N>() else { return };
        for i in 0..N {
            upper[i] = row[i].mul_add(weight, upper[i]);
        }
    }
    for (&offset, (&weight, &other)) in both.iter().zip(trail.iter().zip(pair.weights)) {
        let Some(row) = base[offset + x..].first_chunk::<N>() else { return };
        for i in 0..N {
            upper[i] = row[i].mul_add(weight, upper[i]);
        }
        for i in 0..N {
            lower[i] = row[i].mul_add(other, lower[i]);
        }
    }
    for (&offset, &weight) in last.iter().zip(&pair.weights[both.len()..]) {
        let Some(row) = base[offset + x..].first_chunk::<N>() else { return };
        for i in 0..N {
            lower[i] = row[i].mul_add(weight, lower[i]);
        }
    }
    out[x..x + N].copy_from_slice(&upper);
    below[x..x + N].copy_from_slice(&lower);
}

/// Weights of two output rows, one below the other.
#[derive(Clone, Copy)]
pub(super) struct Pair<'a> {
    pub weights: &'a [f32],
    /// Weights a row: the lower output's `i`th weight falls on the upper one's `i + step`th value.
    pub step: usize,
}

/// `out[x] = Σ weights[i] · base[offsets[i] + x]` and `below[x] = Σ weights[i] · base[offsets[i + step] + x]`, each value read once
/// for both. The sums are added up in the order of [`weighted_floats`].
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
pub(super) fn weighted_pair(pair: Pair<'_>, base: &[f32], offsets: &[usize], out: &mut [f32], below: &mut [f32]) {
    match_target! {
        "x86_64+avx2+fma" => blocks!(out.len(), HALF, fused_pair(pair, base, offsets, out, below)),
        "aarch64+neon" => blocks!(out.len(), HALF, fused_pair(pair, base, offsets, out, below)),
        _ => {
            blocks!(out.len(), BLOCK, split_block(base, offsets, pair.weights, out));
            blocks!(below.len(), BLOCK, split_block(base, &offsets[pair.step..], pair.weights, below));
        }
    }
}

/// Stored float samples.
type Stored<'a> = &'a [[u8; 4]];

#[inline(always)]
fn add_product(fused: bool, sum: f32, value: f32, weight: f32) -> f32 {
    if fused { value.mul_add(weight, sum) } else { sum + value * weight }
}

#[inline(always)]
fn add_all(fused: bool, sum: f32, values: &[f32], weights: &[f32]) -> f32 {
    values.iter().zip(weights).fold(sum, |sum, (&value, &weight)| add_product(fused, sum, value, weight))
}

/// `sum + Σ weights[i] · values[i]`, one after the other, rounded as in [`weighted_floats`] and [`stored_floats`].
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
pub(super) fn add_products(sum: f32, values: &[f32], weights: &[f32]) -> f32 {
    match_target! {
        "x86_64+avx2+fma" => add_all(true, sum, values, weights),
        "aarch64+neon" => add_all(true, sum, values, weights),
        _ => add_all(false, sum, values, weights),
    }
}

#[inline(always)]
fn stored_pair<const N: usize>(fused: bool, pair: Pair<'_>, finish: &Finish, lines: &[Stored<'_>], out: [&mut [[u8; 4]]; 2], x: usize) {
    let (mut upper, mut lower) = ([0.0f32; N], [0.0f32; N]);
    for (k, line) in lines.iter().enumerate() {
        let weights = |k: usize| pair.weights.get(k * pair.step..(k + 1) * pair.step);
        match (weights(k), k.checked_sub(1).and_then(weights)) {
            (Some(of_upper), Some(of_lower)) => {
                for (j, (&weight, &other)) in of_upper.iter().zip(of_lower).enumerate() {
                    let Some(row) = line[x + j..].first_chunk::<N>() else { return };
                    for i in 0..N {
                        upper[i] = add_product(fused, upper[i], f32::from_le_bytes(row[i]), weight);
                    }
                    for i in 0..N {
                        lower[i] = add_product(fused, lower[i], f32::from_le_bytes(row[i]), other);
                    }
                }
            }
            (Some(of_upper), None) => {
                for (j, &weight) in of_upper.iter().enumerate() {
                    let Some(row) = line[x + j..].first_chunk::<N>() else { return };
                    for i in 0..N {
                        upper[i] = add_product(fused, upper[i], f32::from_le_bytes(row[i]), weight);
                    }
                }
            }
            (None, of_lower) => {
                for (j, &weight) in of_lower.unwrap_or_default().iter().enumerate() {
                    let Some(row) = line[x + j..].first_chunk::<N>() else { return };
                    for i in 0..N {
                        lower[i] = add_product(fused, lower[i], f32::from_le_bytes(row[i]), weight);
                    }
                }
            }
        }
    }
    let [above, below] = out;
    if let Some(above) = above[x..].first_chunk_mut::<N>() {
        for i in 0..N {
            above[i] = finish.value(upper[i]).to_le_bytes();
        }
    }
    if let Some(below) = below[x..].first_chunk_mut::<N>() {
        for i in 0..N {
            below[i] = finish.value(lower[i]).to_le_bytes();
        }
    }
}

/// Two finished rows of a float plane from the stored `lines` under both: `out[r][x]` is the finished
/// `Σ weights[k · step + j] · lines[k + r][x + j]`.
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
pub(super) fn stored_floats(pair: Pair<'_>, finish: &Finish, lines: &[Stored<'_>], out: [&mut [[u8; 4]]; 2]) {
    let [above, below] = out;
    match_target! {
        "x86_64+avx2+fma" => blocks!(above.len(), HALF, stored_pair(true, pair, finish, lines, [&mut *above, &mut *below])),
        "aarch64+neon" => blocks!(above.len(), HALF, stored_pair(true, pair, finish, lines, [&mut *above, &mut *below])),
        _ => blocks!(above.len(), HALF, stored_pair(false, pair, finish, lines, [&mut *above, &mut *below])),
    }
}

#[inline(always)]
fn words_block<const N: usize>(base: &[u16], offsets: &[usize], weights: &[u16], start: u16, out: &mut [u16], x: usize) {
    let mut sums = [start; N];
    for (&offset, &weight) in offsets.iter().zip(weights) {
        let Some(row) = base[offset + x..].first_chunk::<N>() else { return };
        for i in 0..N {
            sums[i] = sums[i].wrapping_add(row[i].wrapping_mul(weight));
        }
    }
    out[x..x + N].copy_from_slice(&sums);
}

/// `out[x] = start + Σ weights[i] · base[offsets[i] + x]` modulo 2^16: exact when the true value fits.
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
pub(super) fn weighted_words(base: &[u16], offsets: &[usize], weights: &[u16], start: u16, out: &mut [u16]) {
    const WORDS: usize = 2 * BLOCK;
    blocks!(out.len(), WORDS, words_block(base, offsets, weights, start, out));
}

#[inline(always)]
fn codes_block<const N: usize>(base: &[u32], offsets: &[usize], weights: &[u32], out: &mut [u32], x: usize) {
    let mut sums = [0u32; N];
    for (&offset, &weight) in offsets.iter().zip(weights) {
        let Some(row) = base[offset + x..].first_chunk::<N>() else { return };
        for i in 0..N {
            sums[i] = sums[i].wrapping_add(row[i].wrapping_mul(weight));
        }
    }
    out[x..x + N].copy_from_slice(&sums);
}

/// As [`weighted_words`], modulo 2^32.
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
pub(super) fn weighted_codes(base: &[u32], offsets: &[usize], weights: &[u32], out: &mut [u32]) {
    blocks!(out.len(), BLOCK, codes_block(base, offsets, weights, out));
}

#[inline(always)]
fn longs_block<const N: usize>(base: &[u64], offsets: &[usize], weights: &[u64], out: &mut [u64], x: usize) {
    let mut sums = [0u64; N];
    for (&offset, &weight) in offsets.iter().zip(weights) {
        let Some(row) = base[offset + x..].first_chunk::<N>() else { return };
        for i in 0..N {
            sums[i] = sums[i].wrapping_add(row[i].wrapping_mul(weight));
        }
    }
    out[x..x + N].copy_from_slice(&sums);
}

/// As [`weighted_words`], modulo 2^64.
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
pub(super) fn weighted_longs(base: &[u64], offsets: &[usize], weights: &[u64], out: &mut [u64]) {
    const LONGS: usize = BLOCK / 2;
    blocks!(out.len(), LONGS, longs_block(base, offsets, weights, out));
}

/// The end of an unsharp mask whose numbers are [`Sharpen::narrow`], 8-bit samples.
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
pub(super) fn sharpen_words(sharpen: &Sharpen, sums: &[u16], input: &[u16], out: &mut [u8]) {
    let (bits, half, amount, max) = (sharpen.bits, 1u32 << (sharpen.bits - 1), sharpen.amount as i32, sharpen.max as i32);
    for ((o, &sum), &input) in out.iter_mut().zip(sums).zip(input) {
        let blur = ((u32::from(sum) + half) >> bits) as i32;
        let input = i32::from(input);
        *o = (input + (((input - blur) * amount) >> 16)).clamp(0, max) as u8;
    }
}

/// The end of an unsharp mask whose numbers are [`Sharpen::narrow`].
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
pub(super) fn sharpen_codes(sharpen: &Sharpen, sums: &[u32], input: &[u32], codec: Codec, out: &mut [u8]) {
    let (bits, half, amount, max) = (sharpen.bits, 1u32 << (sharpen.bits - 1), sharpen.amount as i32, sharpen.max as i32);
    let pairs = sums.iter().zip(input);
    match codec.sample {
        Sample::U8 => {
            for (o, (&sum, &input)) in out.iter_mut().zip(pairs) {
                let (blur, input) = (((sum + half) >> bits) as i32, input as i32);
                *o = (input + (((input - blur) * amount) >> 16)).clamp(0, max) as u8;
            }
        }
        Sample::U16 => {
            for (o, (&sum, &input)) in out.as_chunks_mut::<2>().0.iter_mut().zip(pairs) {
                let (blur, input) = (((sum + half) >> bits) as i32, input as i32);
                let code = (input + (((input - blur) * amount) >> 16)).clamp(0, max);
                *o = ((code << codec.shift) as u16).to_le_bytes();
            }
        }
        // Float planes have no floors; see `UnsharpKernel::run_floats`.
        Sample::F16 | Sample::F32 => {}
    }
}

#[inline(always)]
fn widen_cells<const STEP: usize, const C: usize, const N: usize>(fused: bool, coarse: &[f32], between: &[[f32; TAPS]], out: &mut [f32]) {
    let weights: [[f32; N]; TAPS] = std::array::from_fn(|t| std::array::from_fn(|j| between[j / C % STEP][t]));
    for (cell, taps) in out.as_chunks_mut::<N>().0.iter_mut().zip(coarse.windows(TAPS * C).step_by(C)) {
        let mut sums = [0.0; N];
        for (weights, values) in weights.iter().zip(taps.as_chunks::<C>().0) {
            for j in 0..N {
                sums[j] = add_product(fused, sums[j], values[j % C], weights[j]);
            }
        }
        *cell = sums;
    }
}

/// `STEP` values for each of a row of samples of `C` components: `out[(i · STEP + p) · C + c]` is
/// `Σ_t between[p][t] · coarse[(i + t) · C + c]`; `N` is `STEP · C`.
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
pub(super) fn widen<const STEP: usize, const C: usize, const N: usize>(coarse: &[f32], between: &[[f32; TAPS]], out: &mut [f32]) {
    match_target! {
        "x86_64+avx2+fma" => widen_cells::<STEP, C, N>(true, coarse, between, out),
        "aarch64+neon" => widen_cells::<STEP, C, N>(true, coarse, between, out),
        _ => widen_cells::<STEP, C, N>(false, coarse, between, out),
    }
}

/// Divides a row of window sums.
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
pub(super) fn divide_codes(sums: &mut [u32], division: Division) {
    for sum in sums {
        *sum = division.apply_narrow(*sum);
    }
}

/// One row of a vertical running mean: the means of `sums`, which then lose `leaving` and gain `entering`.
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
pub(super) fn slide_codes(sums: &mut [u32], division: Division, leaving: Option<&[u32]>, entering: Option<&[u32]>, out: &mut [u32]) {
    for (o, &sum) in out.iter_mut().zip(&*sums) {
        *o = division.apply_narrow(sum);
    }
    if let Some(row) = entering {
        for (sum, &value) in sums.iter_mut().zip(row) {
            *sum = sum.wrapping_add(value);
        }
    }
    if let Some(row) = leaving {
        for (sum, &value) in sums.iter_mut().zip(row) {
            *sum = sum.wrapping_sub(value);
        }
    }
}

/// As [`load`], to 32-bit integers.
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
pub(super) fn load_codes(bytes: &[u8], codec: Codec, out: &mut [u32]) {
    load(bytes, codec, out);
}

/// As [`load`], to floats.
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
pub(super) fn load_floats(bytes: &[u8], codec: Codec, out: &mut [f32]) {
    load(bytes, codec, out);
}

/// As [`load`], to 16-bit words.
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
pub(super) fn load_words(bytes: &[u8], codec: Codec, out: &mut [u16]) {
    load(bytes, codec, out);
}

/// As [`Finish::store`].
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
pub(super) fn finish_floats(finish: &Finish, sums: &[f32], codec: Codec, out: &mut [u8]) {
    match codec.sample {
        Sample::U8 => {
            for (o, &s) in out.iter_mut().zip(sums) {
                *o = finish.positive_code(s) as u8;
            }
        }
        Sample::U16 if finish.is_positive() => {
            for (o, &s) in out.as_chunks_mut::<2>().0.iter_mut().zip(sums) {
                *o = ((finish.positive_code(s) << codec.shift) as u16).to_le_bytes();
            }
        }
        Sample::U16 => {
            for (o, &s) in out.as_chunks_mut::<2>().0.iter_mut().zip(sums) {
                *o = ((finish.code(s) << codec.shift) as u16).to_le_bytes();
            }
        }
        Sample::F16 => finish.store(sums, codec, out),
        Sample::F32 => {
            for (o, &s) in out.as_chunks_mut::<4>().0.iter_mut().zip(sums) {
                *o = finish.value(s).to_le_bytes();
            }
        }
    }
}

/// As [`Finish::store`], for 16-bit sums that were moved by `start`.
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
pub(super) fn finish_words(finish: &Finish, sums: &[u16], start: i32, codec: Codec, out: &mut [u8]) {
    finish_words_plain(finish, sums, start, codec, out);
}

/// As [`finish_words`], for the baseline.
#[inline(always)]
pub(super) fn finish_words_plain(finish: &Finish, sums: &[u16], start: i32, codec: Codec, out: &mut [u8]) {
    match codec.sample {
        Sample::U8 => {
            for (o, &s) in out.iter_mut().zip(sums) {
                *o = finish.code((i32::from(s) - start) as f32) as u8;
            }
        }
        Sample::U16 => {
            for (o, &s) in out.as_chunks_mut::<2>().0.iter_mut().zip(sums) {
                *o = ((finish.code((i32::from(s) - start) as f32) << codec.shift) as u16).to_le_bytes();
            }
        }
        Sample::F16 | Sample::F32 => {}
    }
}

/// `gx = √(gx² + gy²)`.
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
pub(super) fn magnitudes(gx: &mut [f32], gy: &[f32]) {
    for (x, &y) in gx.iter_mut().zip(gy) {
        *x = (*x * *x + y * y).sqrt();
    }
}
