//! Deterministic frames without a decoder: a card that moves over a ramp, with fixed noise. `synth:SIZE@FPS`.
//!
//! Each frame costs one copy of a prepared picture plus the card, so that the source is never what a benchmark measures.

use std::sync::Arc;
use std::time::Instant;

use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::frame::{Frame, FrameLayout, FrameMem, FrameTime, PixelFormat, Shape};
use crate::pipeline::{Item, Source};
use crate::pool::{Budget, HostMem, Lease, Pool};

/// What `synth:` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SynthSpec {
    /// Format and size.
    pub shape: Shape,
    /// Frames per second, numerator and denominator.
    pub rate: (i32, i32),
}

impl SynthSpec {
    /// Parses `SIZE[@FPS]`, e.g. `1920x1080@60`; 25 fps by default, 8-bit 4:2:0.
    ///
    /// # Errors
    /// Names the part that is wrong.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = |why: String| Error::usage(format!("bad input 'synth:{text}'"), why).hint("write e.g. synth:1920x1080@60");
        let (size, rate) = text.split_once('@').unwrap_or((text, "25"));
        let (width, height) = crate::cli::parse_size(size).map_err(wrong)?;
        let (num, den) = rate.split_once('/').unwrap_or((rate, "1"));
        let part = |t: &str| t.parse::<i32>().ok().filter(|n| (1..=1_000_000).contains(n));
        let (Some(num), Some(den)) = (part(num), part(den)) else {
            return Err(wrong(format!("'{rate}' is no frame rate")));
        };
        Ok(Self { shape: Shape { format: PixelFormat::yuv(8, 1, 1), width, height }, rate: (num, den) })
    }
}

/// Side of the moving card in luma samples.
const CARD: usize = 64;

/// The source behind `synth:`.
pub struct Synth {
    layout: FrameLayout,
    pool: Pool,
    /// The still background, in a slab of its own.
    background: Lease,
    next: u64,
    frames: Option<u64>,
    cancel: Cancel,
}

impl Synth {
    /// A source of `frames` frames (endless if None) in slabs of `mem`.
    ///
    /// # Errors
    /// When the shape or the memory is not to be had.
    pub fn new(spec: SynthSpec, frames: Option<u64>, mem: Arc<dyn HostMem>, budget: Arc<Budget>, cancel: Cancel) -> Result<Self> {
        let layout = FrameLayout::packed(spec.shape)?;
        let pool = Pool::new(mem, layout.slab_bytes, budget);
        let mut background = pool.lease()?;
        paint(&layout, background.bytes_mut());
        Ok(Self { layout, pool, background, next: 0, frames, cancel })
    }
}

/// A diagonal ramp with xorshift noise in every plane.
fn paint(layout: &FrameLayout, slab: &mut [u8]) {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    for plane in layout.planes() {
        for y in 0..plane.height {
            let row = &mut slab[plane.offset + y * plane.pitch..][..plane.width];
            for (x, sample) in row.iter_mut().enumerate() {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                *sample = ((x + y) / 8 % 224) as u8 + (state >> 59) as u8;
            }
        }
    }
}

impl Source for Synth {
    fn next(&mut self) -> Result<Item> {
        if self.cancel.requested() || self.frames.is_some_and(|n| self.next >= n) {
            return Ok(Item::End);
        }
        let mut lease = self.pool.lease()?;
        lease.bytes_mut().copy_from_slice(self.background.bytes());
        let luma = self.layout.planes[0];
        // The card wanders diagonally, wrapping, so that consecutive frames differ in a known place.
        let step = usize::try_from(self.next).unwrap_or(usize::MAX);
        let (left, top) = (step.wrapping_mul(7) % luma.width, step.wrapping_mul(3) % luma.height);
        for y in top..(top + CARD).min(luma.height) {
            let start = luma.offset + y * luma.pitch;
            lease.bytes_mut()[start + left..start + (left + CARD).min(luma.width)].fill(235);
        }
        let frame = Frame {
            layout: self.layout,
            time: FrameTime { pts: i64::try_from(self.next).ok(), duration: 1 },
            seq: self.next,
            born: Instant::now(),
            mem: FrameMem::Slab(lease),
        };
        self.next += 1;
        Ok(Item::Frame(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Heap;

    #[test]
    fn the_spec_is_read_or_refused() {
        let spec = SynthSpec::parse("640x361@30000/1001").unwrap();
        assert_eq!((spec.shape.width, spec.shape.height, spec.rate), (640, 361, (30000, 1001)));
        assert_eq!(SynthSpec::parse("8x8").unwrap().rate, (25, 1));
        for bad in ["", "8", "0x8", "8x8@", "8x8@0", "8x8@x", "8x8@25/0"] {
            assert!(SynthSpec::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn frames_are_deterministic_distinct_and_counted() {
        let make = || {
            let spec = SynthSpec::parse("100x50@25").unwrap();
            Synth::new(spec, Some(3), Arc::new(Heap), Budget::new(1 << 24), Cancel::new()).unwrap()
        };
        let collect = |mut s: Synth| {
            let mut rows = Vec::new();
            while let Item::Frame(f) = s.next().unwrap() {
                rows.push((f.seq, (0..50).flat_map(|y| f.row(0, y).to_vec()).collect::<Vec<_>>()));
            }
            rows
        };
        let (a, b) = (collect(make()), collect(make()));
        assert_eq!(a.len(), 3);
        assert!(a == b);
        assert!(a[0].1 != a[1].1);
    }
}
