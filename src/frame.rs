//! Pixel formats, the layout of a frame in its slab, and the frame itself.
//!
//! A frame's visible planes lie in one contiguous slab with the same pitches on host and device, so that it crosses the
//! bus in one transfer. The layout belongs to the frame, not to the stream: a cropped decoder's planes start elsewhere.

use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;

use crate::error::{Error, Result};
use crate::pool::Lease;

/// Planes of a frame at most: Y, U, V, A or G, B, R, A.
pub const MAX_PLANES: usize = 4;
/// Pitch of the first plane is a multiple of this many bytes.
pub const PITCH_ALIGN: usize = 128;
/// Pitch of every plane is: what codecs' SIMD wants. More would be padding that crosses the bus with each frame (1080p 4:2:0 has none).
pub const CHROMA_PITCH_ALIGN: usize = 64;
/// Each plane starts at a multiple of this many bytes in its slab.
pub const PLANE_ALIGN: usize = 512;
/// Bytes behind the last plane that codecs may read or write (FFmpeg's SIMD over-reads: 16 + 63).
pub const SLAB_TAIL: usize = 16 + 63;
/// Widest and highest frame accepted, in samples.
pub const MAX_SIDE: usize = 1 << 17;

/// What the components mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Model {
    /// One plane.
    Gray,
    /// Luma and two chroma components.
    Yuv,
    /// Planar G, B, R.
    Rgb,
}

/// Storage of one sample, little-endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sample {
    /// 8-bit integer.
    U8,
    /// 9 to 16 bits in a 16-bit integer.
    U16,
    /// 16-bit float (IEEE binary16, "half"), nominal range 0..=1.
    F16,
    /// 32-bit float, nominal range 0..=1.
    F32,
}

impl Sample {
    /// Bytes of one sample.
    pub const fn bytes(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::U16 | Self::F16 => 2,
            Self::F32 => 4,
        }
    }

    /// Whether samples are floats: neither rounded to whole numbers nor clamped.
    pub const fn is_float(self) -> bool {
        match self {
            Self::U8 | Self::U16 => false,
            Self::F16 | Self::F32 => true,
        }
    }
}

/// How chroma components share planes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Packing {
    /// Every component has its own plane.
    Planar,
    /// U and V alternate in one plane (NV12, P010).
    SemiPlanar,
}

/// A format that is filtered natively.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PixelFormat {
    /// Meaning of the components.
    pub model: Model,
    /// Whether an alpha plane follows.
    pub alpha: bool,
    /// log2 of the horizontal chroma subsampling.
    pub chroma_shift_x: u8,
    /// log2 of the vertical chroma subsampling.
    pub chroma_shift_y: u8,
    /// Significant bits of whole numbers, 8…16; of floats their size, 16 or 32.
    pub depth: u8,
    /// Samples are floats, not whole numbers.
    pub float: bool,
    /// Sharing of planes.
    pub packing: Packing,
    /// Samples occupy the high bits of their 16 (P010) rather than the low ones.
    pub high_bits: bool,
}

impl PixelFormat {
    /// One plane of `depth` bits: whole numbers of 8…16, or floats of 32.
    pub const fn gray(depth: u8) -> Self {
        Self {
            model: Model::Gray,
            alpha: false,
            chroma_shift_x: 0,
            chroma_shift_y: 0,
            depth,
            float: depth > 16,
            packing: Packing::Planar,
            high_bits: false,
        }
    }

    /// The same planes of floats of 16 bits.
    pub const fn half(self) -> Self {
        Self { depth: 16, float: true, high_bits: false, ..self }
    }

    /// Planar YUV of `depth` bits; 4:2:0 is (1, 1), 4:2:2 is (1, 0), 4:4:4 is (0, 0).
    pub const fn yuv(depth: u8, chroma_shift_x: u8, chroma_shift_y: u8) -> Self {
        Self { model: Model::Yuv, chroma_shift_x, chroma_shift_y, ..Self::gray(depth) }
    }

    /// Planar G, B, R of `depth` bits.
    pub const fn gbr(depth: u8) -> Self {
        Self { model: Model::Rgb, ..Self::gray(depth) }
    }

    /// The same components, each in a plane of its own and in the low bits.
    pub const fn planar(self) -> Self {
        Self { packing: Packing::Planar, high_bits: false, ..self }
    }

    /// Storage of one sample.
    pub const fn sample(self) -> Sample {
        match self.depth {
            0..=16 if self.float => Sample::F16,
            0..=8 => Sample::U8,
            9..=16 => Sample::U16,
            _ => Sample::F32,
        }
    }

    /// Largest sample value: 2^depth − 1, or 1 for float.
    pub fn max_value(self) -> f32 {
        match self.sample() {
            Sample::U8 | Sample::U16 => ((1u32 << self.depth) - 1) as f32,
            Sample::F16 | Sample::F32 => 1.0,
        }
    }

    /// Number of planes in memory.
    pub const fn plane_count(self) -> usize {
        let colour = match (self.model, self.packing) {
            (Model::Gray, _) => 1,
            (Model::Yuv, Packing::SemiPlanar) => 2,
            (Model::Yuv | Model::Rgb, _) => 3,
        };
        colour + self.alpha as usize
    }

    /// Interleaved components in plane `index`: 2 for semi-planar chroma, else 1.
    pub const fn components(self, index: usize) -> usize {
        if index == 1 && matches!(self.packing, Packing::SemiPlanar) { 2 } else { 1 }
    }

    /// Whether plane `index` is subsampled chroma.
    pub const fn is_chroma(self, index: usize) -> bool {
        matches!(self.model, Model::Yuv)
            && match self.packing {
                Packing::Planar => index == 1 || index == 2,
                Packing::SemiPlanar => index == 1,
            }
    }

    /// Width and height of plane `index` of a `width`×`height` frame, in samples of one component, rounded up.
    pub const fn plane_size(self, index: usize, width: usize, height: usize) -> (usize, usize) {
        if self.is_chroma(index) {
            (width.div_ceil(1 << self.chroma_shift_x), height.div_ceil(1 << self.chroma_shift_y))
        } else {
            (width, height)
        }
    }
}

impl fmt::Display for PixelFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.model {
            Model::Gray => write!(f, "gray{}", if self.alpha { " and alpha" } else { "" })?,
            Model::Rgb => write!(f, "gbr{}", if self.alpha { "a" } else { "" })?,
            Model::Yuv => {
                let chroma = match (self.chroma_shift_x, self.chroma_shift_y) {
                    (0, 0) => "4:4:4",
                    (1, 0) => "4:2:2",
                    (1, 1) => "4:2:0",
                    (0, 1) => "4:4:0",
                    (2, 0) => "4:1:1",
                    _ => "4:1:0",
                };
                write!(f, "yuv{} {chroma}", if self.alpha { "a" } else { "" })?;
            }
        }
        match self.sample() {
            Sample::F16 => write!(f, " half"),
            Sample::F32 => write!(f, " float"),
            Sample::U8 | Sample::U16 => write!(f, " {}-bit", self.depth),
        }?;
        match self.packing {
            Packing::Planar => Ok(()),
            Packing::SemiPlanar => write!(f, " semi-planar"),
        }
    }
}

/// Format and size: what a plan is made for. Two frames of one shape may have different layouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// Pixel format.
    pub format: PixelFormat,
    /// Visible width in luma samples.
    pub width: usize,
    /// Visible height in luma samples.
    pub height: usize,
}

impl Shape {
    /// Size of plane `index` in samples of one component.
    pub const fn plane_size(self, index: usize) -> (usize, usize) {
        self.format.plane_size(index, self.width, self.height)
    }

    /// Bytes of all visible samples: what a transfer must move at least.
    pub fn payload_bytes(self) -> usize {
        (0..self.format.plane_count())
            .map(|p| {
                let (w, h) = self.plane_size(p);
                w * h * self.format.components(p) * self.format.sample().bytes()
            })
            .sum()
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{} {}", self.width, self.height, self.format)
    }
}

/// Where one plane's visible samples lie in the slab.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PlaneLayout {
    /// Bytes from the slab's start to the first visible sample.
    pub offset: usize,
    /// Bytes from one row to the next.
    pub pitch: usize,
    /// Visible samples of one component per row.
    pub width: usize,
    /// Visible rows.
    pub height: usize,
    /// Interleaved components.
    pub components: usize,
}

impl PlaneLayout {
    /// Bytes of the visible part of one row.
    pub const fn row_bytes(&self, sample: Sample) -> usize {
        self.width * self.components * sample.bytes()
    }

    /// One past the last visible byte, from the slab's start.
    pub const fn end(&self, sample: Sample) -> usize {
        if self.height == 0 { self.offset } else { self.offset + (self.height - 1) * self.pitch + self.row_bytes(sample) }
    }
}

/// Where a frame's planes lie in its slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FrameLayout {
    /// Format and visible size.
    pub shape: Shape,
    /// One per plane of the format; the rest are zero.
    pub planes: [PlaneLayout; MAX_PLANES],
    /// Bytes a slab must have for this layout, the tail that codecs touch included.
    pub slab_bytes: usize,
}

impl FrameLayout {
    /// The project's own layout for `shape`: luma pitch a multiple of 128, chroma pitch = luma pitch >> shift and a multiple of 64,
    /// planes at multiples of 512.
    ///
    /// # Errors
    /// When a side is 0 or above [`MAX_SIDE`].
    pub fn packed(shape: Shape) -> Result<Self> {
        Self::padded(shape, shape.width, shape.height)
    }

    /// Like [`FrameLayout::packed`], with room for `coded_width`×`coded_height` samples (a decoder's aligned size).
    ///
    /// # Errors
    /// When a side is 0, above [`MAX_SIDE`], or the coded size is smaller than the visible one.
    pub fn padded(shape: Shape, coded_width: usize, coded_height: usize) -> Result<Self> {
        let format = shape.format;
        let valid = |side: usize| (1..=MAX_SIDE).contains(&side);
        if ![shape.width, shape.height, coded_width, coded_height].into_iter().all(valid)
            || coded_width < shape.width
            || coded_height < shape.height
        {
            return Err(Error::failed(
                format!("cannot lay out a frame of {shape} (coded {coded_width}x{coded_height})"),
                format!("sides must be 1 to {MAX_SIDE} samples"),
            ));
        }
        let bytes = format.sample().bytes();
        // Chroma's pitch is a part of luma's.
        let align = PITCH_ALIGN.max(CHROMA_PITCH_ALIGN << format.chroma_shift_x);
        let luma_pitch = (coded_width * bytes).next_multiple_of(align);
        let mut planes = [PlaneLayout::default(); MAX_PLANES];
        let mut offset = 0;
        for (index, plane) in planes.iter_mut().enumerate().take(format.plane_count()) {
            let (width, height) = shape.plane_size(index);
            let (_, rows) = format.plane_size(index, coded_width, coded_height);
            let components = format.components(index);
            let pitch = if format.is_chroma(index) { (luma_pitch >> format.chroma_shift_x) * components } else { luma_pitch };
            *plane = PlaneLayout { offset, pitch, width, height, components };
            offset = (offset + pitch * rows).next_multiple_of(PLANE_ALIGN);
        }
        Ok(Self { shape, planes, slab_bytes: offset + SLAB_TAIL })
    }

    /// The layouts of the planes that the format has.
    pub fn planes(&self) -> &[PlaneLayout] {
        &self.planes[..self.shape.format.plane_count()]
    }

    /// First byte and one past the last byte that any visible sample occupies: the span of one transfer.
    pub fn span(&self) -> (usize, usize) {
        let sample = self.shape.format.sample();
        let start = self.planes().iter().map(|p| p.offset).min().unwrap_or(0);
        let end = self.planes().iter().map(|p| p.end(sample)).max().unwrap_or(0);
        (start, end)
    }
}

/// Presentation time in the input's time base; integers only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameTime {
    /// Presentation time stamp; None if the input has none.
    pub pts: Option<i64>,
    /// Duration; 0 if unknown.
    pub duration: i64,
}

/// Keeps foreign memory alive (an AVFrame); releases it on drop. Two words, so that no frame costs an allocation.
pub struct Guard {
    object: NonNull<c_void>,
    release: unsafe fn(NonNull<c_void>),
}

// SAFETY: `Guard::new` demands an object that may be released from any thread.
unsafe impl Send for Guard {}

impl Guard {
    /// A guard that calls `release(object)` once, on drop.
    ///
    /// # Safety
    /// `release` must be sound to call with `object`, once, from any thread.
    pub unsafe fn new(object: NonNull<c_void>, release: unsafe fn(NonNull<c_void>)) -> Self {
        Self { object, release }
    }

    /// The guarded object.
    pub fn object(&self) -> NonNull<c_void> {
        self.object
    }

    /// Identifies the kind of object by its release function.
    pub fn is(&self, release: unsafe fn(NonNull<c_void>)) -> bool {
        std::ptr::fn_addr_eq(self.release, release)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // SAFETY: promised by the caller of `new`; drop runs once.
        unsafe { (self.release)(self.object) }
    }
}

/// The memory behind a frame.
pub enum FrameMem {
    /// A slab that this frame alone owns. Plane offsets count from its first byte.
    Slab(Lease),
    /// A slab that its allocator (a decoder's reference list) may still read: read-only here. Offsets count from `base`.
    Shared {
        /// The slab's first byte.
        base: NonNull<u8>,
        /// The slab's size.
        bytes: usize,
        /// Whether a device can copy from it asynchronously.
        pinned: bool,
        /// Keeps the slab from being lent again.
        guard: Guard,
    },
    /// Memory that a codec brought itself: pageable, one pointer per plane, plane offsets are 0. Read-only.
    Foreign {
        /// First visible sample of each plane.
        planes: [*const u8; MAX_PLANES],
        /// Keeps the memory alive.
        guard: Guard,
    },
}

// SAFETY: the pointers are read-only views of memory that the guard keeps alive and nobody writes meanwhile.
unsafe impl Send for FrameMem {}

/// One picture on its way through the pipeline.
pub struct Frame {
    /// Where the planes lie.
    pub layout: FrameLayout,
    /// When it is shown.
    pub time: FrameTime,
    /// Position in the stream, from 0, without gaps.
    pub seq: u64,
    /// When its source delivered it, for latency; host clock.
    pub born: std::time::Instant,
    /// The samples.
    pub mem: FrameMem,
}

impl Frame {
    /// Pointer to the first visible sample of plane `index`. Rows are `layout.planes[index].pitch` bytes apart.
    pub fn plane_ptr(&self, index: usize) -> *const u8 {
        let offset = self.layout.planes[index].offset;
        match &self.mem {
            FrameMem::Slab(lease) => lease.as_ptr().wrapping_add(offset).cast_const(),
            FrameMem::Shared { base, .. } => base.as_ptr().wrapping_add(offset).cast_const(),
            FrameMem::Foreign { planes, .. } => planes[index],
        }
    }

    /// Row `y` of plane `index`, visible bytes only.
    ///
    /// # Panics
    /// When the plane or row does not exist; callers iterate over the layout.
    pub fn row(&self, index: usize, y: usize) -> &[u8] {
        let plane = &self.layout.planes()[index];
        assert!(y < plane.height);
        // SAFETY: whoever built the frame promised `height` rows of `row_bytes` at `pitch`; memory lives as long as self.
        unsafe {
            std::slice::from_raw_parts(self.plane_ptr(index).add(y * plane.pitch), plane.row_bytes(self.layout.shape.format.sample()))
        }
    }

    /// Row `y` of plane `index` for writing; None unless the frame owns its slab.
    pub fn row_mut(&mut self, index: usize, y: usize) -> Option<&mut [u8]> {
        let sample = self.layout.shape.format.sample();
        let plane = *self.layout.planes().get(index)?;
        let FrameMem::Slab(lease) = &mut self.mem else { return None };
        let start = plane.offset + y * plane.pitch;
        lease.bytes_mut().get_mut(start..start + plane.row_bytes(sample))
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mem = match &self.mem {
            FrameMem::Slab(_) => "slab",
            FrameMem::Shared { .. } => "shared slab",
            FrameMem::Foreign { .. } => "foreign",
        };
        write!(f, "Frame #{} {} pts {:?} ({mem})", self.seq, self.layout.shape, self.time.pts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_packed_layout_keeps_the_promised_alignments() {
        for (w, h) in [(1, 1), (13, 42), (123, 33), (1920, 1080), (1921, 1081)] {
            for format in [
                PixelFormat::gray(8),
                PixelFormat::yuv(8, 1, 1),
                PixelFormat::yuv(10, 1, 0),
                PixelFormat::yuv(12, 0, 0),
                PixelFormat::gbr(16),
                PixelFormat { alpha: true, ..PixelFormat::gbr(32) },
                PixelFormat { alpha: true, ..PixelFormat::gbr(32).half() },
                PixelFormat { alpha: true, ..PixelFormat::yuv(8, 1, 0) },
                PixelFormat { packing: Packing::SemiPlanar, ..PixelFormat::yuv(8, 1, 1) },
                PixelFormat { packing: Packing::SemiPlanar, high_bits: true, ..PixelFormat::yuv(10, 1, 1) },
            ] {
                let layout = FrameLayout::packed(Shape { format, width: w, height: h }).unwrap();
                let mut end = 0;
                for (index, plane) in layout.planes().iter().enumerate() {
                    assert_eq!(plane.offset % PLANE_ALIGN, 0);
                    assert!(plane.offset >= end);
                    assert!(plane.pitch >= plane.row_bytes(format.sample()));
                    assert_eq!(plane.pitch % if index == 0 { PITCH_ALIGN } else { CHROMA_PITCH_ALIGN }, 0);
                    if format.is_chroma(index) {
                        assert_eq!(plane.pitch, (layout.planes[0].pitch >> format.chroma_shift_x) * format.components(index));
                    }
                    end = plane.end(format.sample());
                }
                assert!(layout.slab_bytes >= end + SLAB_TAIL);
            }
        }
    }

    #[test]
    fn floats_are_told_from_whole_numbers_of_the_same_size() {
        let (half, word) = (PixelFormat::gray(32).half(), PixelFormat::gray(16));
        assert_eq!((half.sample(), half.sample().bytes(), half.max_value()), (Sample::F16, 2, 1.0));
        assert_eq!((word.sample(), word.sample().bytes(), word.max_value()), (Sample::U16, 2, 65535.0));
        assert_ne!(half, word);
        assert_eq!(PixelFormat::gbr(16).half(), PixelFormat::gbr(32).half());
        assert_eq!((half.to_string(), PixelFormat::gbr(32).half().to_string()), ("gray half".into(), "gbr half".into()));
        assert!(half.sample().is_float() && PixelFormat::gray(32).sample().is_float() && !word.sample().is_float());
    }

    #[test]
    fn chroma_rounds_up_and_payload_counts_every_sample() {
        let shape = Shape { format: PixelFormat::yuv(8, 1, 1), width: 5, height: 3 };
        assert_eq!(shape.plane_size(1), (3, 2));
        assert_eq!(shape.payload_bytes(), 15 + 6 + 6);
        assert!(FrameLayout::packed(Shape { width: 0, ..shape }).is_err());
        assert!(FrameLayout::packed(Shape { width: MAX_SIDE + 1, ..shape }).is_err());
    }
}
