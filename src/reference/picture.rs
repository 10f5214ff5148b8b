//! Frames as numbers: made from fixed seeds, written to and read from memory by code that no backend uses.

use std::sync::Arc;
use std::time::Instant;

use super::binary16;
use crate::error::Result;
use crate::frame::{Frame, FrameLayout, FrameMem, FrameTime, MAX_PLANES, PlaneLayout, Sample, Shape};
use crate::pool::{Budget, HostMem, Pool};

/// What a test frame shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Uniform noise over the whole range.
    Random,
    /// Only the smallest and the largest value, in runs: worst case for overflow and clamping.
    Extremes,
    /// The largest value at one sample near the middle, else zero: shows a kernel's orientation.
    Impulse,
    /// Smooth content with a few edges, as cameras give it.
    Ramp,
}

impl Content {
    /// Every content.
    pub const ALL: [Self; 4] = [Self::Random, Self::Extremes, Self::Impulse, Self::Ramp];
}

/// SplitMix64: fixed seeds, the same numbers on every machine.
pub struct Noise(pub u64);

impl Noise {
    /// The next 64 bits.
    #[expect(clippy::should_implement_trait, reason = "an endless generator, not an iterator")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number from 0 to `n` - 1.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }
}

/// A frame as numbers: code values (or float samples) per plane, row-major, components interleaved.
#[derive(Clone, Debug)]
pub struct Picture {
    /// Format and size.
    pub shape: Shape,
    /// One per plane in memory.
    pub planes: Vec<Vec<f64>>,
}

impl Picture {
    /// A picture of `content`; the same seed gives the same samples on every machine.
    pub fn new(shape: Shape, content: Content, seed: u64) -> Self {
        let format = shape.format;
        let max = f64::from(format.max_value());
        let mut noise = Noise(seed);
        let mut planes = Vec::new();
        for index in 0..format.plane_count() {
            let (w, h) = shape.plane_size(index);
            let values = w * format.components(index);
            let mut plane = Vec::with_capacity(values * h);
            let mut run = (0, 0.0);
            for y in 0..h {
                for x in 0..values {
                    plane.push(match content {
                        Content::Random if format.sample().is_float() => {
                            stored(f64::from(noise.below(1 << 20) as f32 / (1 << 20) as f32), format.sample())
                        }
                        Content::Random => noise.below(max as u64 + 1) as f64,
                        Content::Extremes => {
                            if run.0 == 0 {
                                run = (1 + noise.below(5), if noise.below(2) == 0 { 0.0 } else { max });
                            }
                            run.0 -= 1;
                            run.1
                        }
                        Content::Impulse => f64::from(u8::from(x == values / 2 && y == h / 2)) * max,
                        Content::Ramp => {
                            let slope = (x * 3 + y * 5) % 997;
                            let edge = usize::from((x / 37 + y / 23) % 2 == 0) * 500;
                            stored((slope + edge) as f64 / 1500.0 * max, format.sample())
                        }
                    });
                }
            }
            planes.push(plane);
        }
        Self { shape, planes }
    }

    /// The picture in a packed slab of `mem`, shown at 40 ticks a frame.
    ///
    /// # Errors
    /// A shape without a layout, or no memory.
    pub fn frame(&self, mem: Arc<dyn HostMem>, seq: u64) -> Result<Frame> {
        let layout = FrameLayout::packed(self.shape)?;
        let mut lease = Pool::new(mem, layout.slab_bytes, Budget::new(usize::MAX)).lease()?;
        self.write(lease.bytes_mut(), &layout.planes);
        Ok(self.wrap(layout, FrameMem::Slab(lease), seq))
    }

    /// A frame of this shape around memory that holds the picture as `layout` says.
    pub fn wrap(&self, layout: FrameLayout, mem: FrameMem, seq: u64) -> Frame {
        let time = FrameTime { pts: i64::try_from(seq).ok().map(|seq| 1000 + 40 * seq), duration: 40 };
        Frame { layout, time, seq, born: Instant::now(), mem }
    }

    /// Writes the samples where `layouts` puts each plane.
    ///
    /// # Panics
    /// When a layout reaches past `bytes`; both come from one caller.
    pub fn write(&self, bytes: &mut [u8], layouts: &[PlaneLayout; MAX_PLANES]) {
        let format = self.shape.format;
        for (plane, layout) in self.planes.iter().zip(layouts) {
            let values = layout.width * layout.components;
            for (y, row) in plane.chunks_exact(values).enumerate() {
                for (x, &value) in row.iter().enumerate() {
                    let at = layout.offset + y * layout.pitch + x * format.sample().bytes();
                    match format.sample() {
                        Sample::U8 => bytes[at] = value as u8,
                        Sample::U16 => {
                            let up = if format.high_bits { 16 - format.depth } else { 0 };
                            bytes[at..at + 2].copy_from_slice(&((value as u16) << up).to_le_bytes());
                        }
                        Sample::F16 => bytes[at..at + 2].copy_from_slice(&binary16::bits(value).to_le_bytes()),
                        Sample::F32 => bytes[at..at + 4].copy_from_slice(&(value as f32).to_le_bytes()),
                    }
                }
            }
        }
    }

    /// Reads a frame back. P010-like samples keep their low bits as a fraction, so that rubbish there shows as an error.
    pub fn read(frame: &Frame) -> Self {
        let mut planes = Vec::new();
        for (index, layout) in frame.layout.planes().iter().enumerate() {
            let mut plane = Vec::with_capacity(layout.width * layout.components * layout.height);
            (0..layout.height).for_each(|y| read_row(frame, index, y, &mut plane));
            planes.push(plane);
        }
        Self { shape: frame.layout.shape, planes }
    }
}

/// A value that such samples can have.
fn stored(value: f64, sample: Sample) -> f64 {
    match sample {
        Sample::U8 | Sample::U16 => value.floor(),
        Sample::F16 => binary16::nearest(value),
        Sample::F32 => f64::from(value as f32),
    }
}

/// Appends row `y` of a plane, which the frame must have.
pub(super) fn read_row(frame: &Frame, plane: usize, y: usize, out: &mut Vec<f64>) {
    let format = frame.layout.shape.format;
    let row = frame.row(plane, y);
    match format.sample() {
        Sample::U8 => out.extend(row.iter().map(|&b| f64::from(b))),
        Sample::U16 => {
            let unit = if format.high_bits { f64::from(1u32 << (16 - format.depth)) } else { 1.0 };
            out.extend(row.chunks_exact(2).map(|b| f64::from(u16::from_le_bytes([b[0], b[1]])) / unit));
        }
        Sample::F16 => out.extend(row.chunks_exact(2).map(|b| binary16::value(u16::from_le_bytes([b[0], b[1]])))),
        Sample::F32 => out.extend(row.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])))),
    }
}
