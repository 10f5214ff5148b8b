//! Where planes lie in device buffers.

use super::texture;
use crate::frame::{FrameLayout, MAX_PLANES, Shape};

/// Rows of device planes start at multiples of this, so that kernels may always use 16-byte accesses.
pub const ROW_ALIGN: usize = 16;
/// Bytes behind the last row that a vector access may touch.
pub const TAIL: usize = 128;

/// One plane's place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PlanePlace {
    /// Bytes from the buffer's start to the first sample.
    pub offset: usize,
    /// Bytes from row to row.
    pub pitch: usize,
}

/// What a buffer holds per sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// The format's own sample.
    Sample,
    /// Four bytes: float or fixed-point.
    Word,
    /// Eight bytes: wide sums.
    Double,
}

/// The planes of one buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Geometry {
    /// One per plane of the format.
    pub planes: [PlanePlace; MAX_PLANES],
    /// Bytes that the buffer must have.
    pub bytes: usize,
}

impl Geometry {
    /// The project's packed layout, or the like with wider elements.
    pub fn packed(shape: Shape, element: Element) -> Self {
        let bytes = match element {
            Element::Sample => shape.format.sample().bytes(),
            Element::Word => 4,
            Element::Double => 8,
        };
        let mut geometry = Self::default();
        let mut offset = 0;
        for (index, plane) in geometry.planes.iter_mut().enumerate().take(shape.format.plane_count()) {
            let (width, height) = shape.plane_size(index);
            let pitch = (width * shape.format.components(index) * bytes).next_multiple_of(128);
            *plane = PlanePlace { offset, pitch };
            offset = (offset + pitch * height).next_multiple_of(512);
        }
        geometry.bytes = offset + TAIL;
        geometry
    }

    /// The frame's own layout, counted from its first visible byte. None if a row would not be aligned.
    pub fn of_span(layout: &FrameLayout) -> Option<Self> {
        let (start, end) = layout.span();
        let mut geometry = Self { bytes: end - start + TAIL, ..Self::default() };
        for (place, plane) in geometry.planes.iter_mut().zip(layout.planes()) {
            let offset = plane.offset - start;
            if start % ROW_ALIGN != 0 || offset % ROW_ALIGN != 0 || plane.pitch % ROW_ALIGN != 0 {
                return None;
            }
            *place = PlanePlace { offset, pitch: plane.pitch };
        }
        Some(geometry)
    }

    /// Whether every plane may be read through a texture object, if the buffer itself is aligned.
    pub fn suits_textures(&self) -> bool {
        let suits = |p: &PlanePlace| (p.offset as u64).is_multiple_of(texture::BASE_ALIGN) && p.pitch.is_multiple_of(texture::PITCH_ALIGN);
        self.planes.iter().all(suits)
    }

    /// An output layout as it is, for buffers that are downloaded in one piece.
    pub fn of_packed_layout(layout: &FrameLayout) -> Self {
        let mut geometry = Self { bytes: layout.slab_bytes + TAIL, ..Self::default() };
        for (place, plane) in geometry.planes.iter_mut().zip(layout.planes()) {
            *place = PlanePlace { offset: plane.offset, pitch: plane.pitch };
        }
        geometry
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::PixelFormat;

    #[test]
    fn planes_are_aligned_apart_and_inside() {
        for (width, height) in [(1, 1), (13, 42), (1921, 1081)] {
            for format in [PixelFormat::gray(8), PixelFormat::yuv(10, 1, 1), PixelFormat::gray(32)] {
                let shape = Shape { format, width, height };
                for element in [Element::Sample, Element::Word, Element::Double] {
                    let geometry = Geometry::packed(shape, element);
                    let mut end = 0;
                    for (index, place) in geometry.planes.iter().enumerate().take(format.plane_count()) {
                        assert_eq!((place.offset % ROW_ALIGN, place.pitch % ROW_ALIGN), (0, 0));
                        assert!(place.offset >= end);
                        end = place.offset + place.pitch * shape.plane_size(index).1;
                    }
                    assert!(geometry.bytes >= end + TAIL);
                }
            }
        }
    }

    #[test]
    fn an_unaligned_crop_has_no_span_geometry() {
        let shape = Shape { format: PixelFormat::yuv(8, 1, 1), width: 64, height: 48 };
        let mut layout = FrameLayout::packed(shape).unwrap();
        assert!(Geometry::of_span(&layout).is_some());
        layout.planes[0].offset += 8;
        assert!(Geometry::of_span(&layout).is_none());
        layout.planes[0].offset += 8;
        assert!(Geometry::of_span(&layout).is_some());
    }
}
