//! The inner loops, compiled once per instruction set and chosen at run time. Every function works on one row (or a few),
//! so that the dispatch costs nothing beside the work; `linear` holds the plain twins of `cpu-scalar`.
//!
//! Written for the autovectoriser: fixed-size blocks whose accumulators stay in registers, the weights in the outer loop.
//! The last block of a row overlaps the one before, so that there is no tail.

use multiversion::{multiversion, target::match_target};

use super::plane::{Codec, Finish, load};
use crate::frame::Sample;

/// Values per block: eight AVX2 registers of accumulators, which hides the latency of a multiply-add (4 cycles, 2 a cycle).
const BLOCK: usize = 64;
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
        while x + $length <= $width {
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
                *o = finish.code(s) as u8;
            }
        }
        Sample::U16 => {
            for (o, &s) in out.as_chunks_mut::<2>().0.iter_mut().zip(sums) {
                *o = ((finish.code(s) << codec.shift) as u16).to_le_bytes();
            }
        }
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
        Sample::F32 => {}
    }
}

/// `gx = √(gx² + gy²)`.
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
pub(super) fn magnitudes(gx: &mut [f32], gy: &[f32]) {
    for (x, &y) in gx.iter_mut().zip(gy) {
        *x = (*x * *x + y * y).sqrt();
    }
}
