//! From an AVFrame to the frame that is filtered: in place wherever its memory allows, else converted into a slab.

use std::ptr::NonNull;
use std::sync::Arc;

use ffmpeg_next::ffi;

use super::convert::{Converter, Picture};
use super::counters::MediaCounters;
use super::decoder::SourceOptions;
use super::format;
use super::input::OnChange;
use super::owned::AvFrame;
use super::repack::{Memory, Repack};
use super::slab::slab_of;
use crate::error::{Error, Result};
use crate::frame::{FrameLayout, FrameMem, Guard, MAX_PLANES, PlaneLayout, Shape};
use crate::pool::Pool;

/// Brings every frame of a stream into one shape: the first frame's.
pub(super) struct Intake {
    pub name: String,
    pub shape: Shape,
    pub full_range: bool,
    pub options: SourceOptions,
    pub counters: Arc<MediaCounters>,
    /// What a change in mid-stream means.
    pub on_change: OnChange,
    /// The first frame's sample aspect, 0 if unknown.
    pub aspect: (i32, i32),
    /// The first frame's coded format.
    pub coded: Option<ffi::AVPixelFormat>,
    converter: Converter,
    /// Lossless conversion of the format that came last, if there is one.
    repack: Option<(ffi::AVPixelFormat, Option<Repack>)>,
    /// Layout and pool of converted frames, once one was needed.
    converted: Option<(FrameLayout, Pool)>,
}

impl Intake {
    pub(super) fn new(name: String, shape: Shape, options: SourceOptions, counters: Arc<MediaCounters>) -> Self {
        Self {
            name,
            shape,
            full_range: false,
            options,
            counters,
            on_change: OnChange::Scale,
            aspect: (0, 0),
            coded: None,
            converter: Converter::new(),
            repack: None,
            converted: None,
        }
    }

    /// Where the frame's samples are, and what keeps them.
    pub(super) fn take(&mut self, frame: AvFrame) -> Result<(FrameLayout, FrameMem)> {
        let aspect = frame.get().sample_aspect_ratio;
        if aspect.num > 0 && self.aspect.0 > 0 && (aspect.num, aspect.den) != self.aspect {
            let (num, den) = self.aspect;
            self.changed(
                format!("the sample aspect changes from {num}:{den} to {}:{} in mid-stream", aspect.num, aspect.den),
                "the output keeps the first one",
            )?;
        }
        let Some((layout, place)) = self.in_place(&frame) else { return self.convert(&frame) };
        let object = NonNull::new(frame.into_raw().cast()).ok_or_else(|| Error::failed("cannot decode", "out of memory"))?;
        // SAFETY: the object is an AVFrame that nobody else owns; freeing it is sound from any thread.
        let guard = unsafe { Guard::new(object, release_frame) };
        let mem = match place {
            Place::Slab { base, bytes } => FrameMem::Shared { base, bytes, pinned: self.options.mem.pinned(), guard },
            Place::Foreign(planes) => FrameMem::Foreign { planes, guard },
        };
        Ok((layout, mem))
    }

    /// The frame's planes where they lie; None when they must be converted or copied.
    fn in_place(&self, frame: &AvFrame) -> Option<(FrameLayout, Place)> {
        let raw = frame.get();
        let native = format::av_from_raw(raw.format).and_then(format::native)?;
        let shape = Shape { format: native, width: usize::try_from(raw.width).ok()?, height: usize::try_from(raw.height).ok()? };
        if shape != self.shape {
            return None;
        }
        let sample = native.sample();
        let slab = slab_of(raw);
        let mut layout =
            FrameLayout { shape, planes: [PlaneLayout::default(); MAX_PLANES], slab_bytes: slab.map_or(0, |(_, bytes)| bytes) };
        let mut pointers = [std::ptr::null(); MAX_PLANES];
        let mut inside = slab.is_some();
        for index in 0..native.plane_count() {
            let (width, height) = shape.plane_size(index);
            let data = *raw.data.get(index)?;
            let pitch = usize::try_from(*raw.linesize.get(index)?).ok()?;
            let mut plane = PlaneLayout { offset: 0, pitch, width, height, components: native.components(index) };
            let aligned = data.addr().is_multiple_of(sample.bytes()) && pitch.is_multiple_of(sample.bytes());
            if data.is_null() || !aligned || (height > 1 && pitch < plane.row_bytes(sample)) {
                return None;
            }
            *pointers.get_mut(index)? = data.cast_const();
            if let Some((base, bytes)) = slab {
                plane.offset = data.addr().wrapping_sub(base.addr().get());
                inside &= plane.offset <= bytes && plane.end(sample) <= bytes;
            }
            *layout.planes.get_mut(index)? = plane;
        }
        match slab {
            Some((base, bytes)) if inside => Some((layout, Place::Slab { base, bytes })),
            _ => {
                layout.planes.iter_mut().for_each(|p| p.offset = 0);
                Some((layout, Place::Foreign(pointers)))
            }
        }
    }

    /// A change in mid-stream: said, or the end.
    fn changed(&self, what: String, consequence: &str) -> Result<()> {
        match self.on_change {
            OnChange::Scale => {
                self.counters.warn(format!("{what}; {consequence}"));
                Ok(())
            }
            OnChange::Error => {
                Err(Error::failed(format!("cannot filter input '{}'", self.name), format!("{what}, and --on-change error says to stop")))
            }
        }
    }

    /// Brings a frame into the run's shape in a slab of its own.
    fn convert(&mut self, frame: &AvFrame) -> Result<(FrameLayout, FrameMem)> {
        let raw = frame.get();
        let operation = || format!("cannot convert a frame of input '{}'", self.name);
        let from = format::av_from_raw(raw.format).ok_or_else(|| Error::failed(operation(), "its pixel format is unknown"))?;
        let side = |s: usize| i32::try_from(s).unwrap_or(0);
        let (width, height) = (side(self.shape.width), side(self.shape.height));
        let same_size = (raw.width, raw.height) == (width, height);
        // A yuvj format is the same samples under another name.
        let same_format = |coded| coded == from || (format::native(from).is_some() && format::native(coded) == format::native(from));
        if !same_size || !self.coded.is_none_or(same_format) {
            let what = format!("the picture changes to {}x{} {} in mid-stream", raw.width, raw.height, format::name(from));
            self.changed(what, &format!("it is converted to the first frame's {}", self.shape))?;
        }
        let (layout, pool) = match &self.converted {
            Some(both) => both,
            None => {
                let layout = FrameLayout::packed(self.shape)?;
                let pool = Pool::new(Arc::clone(&self.options.mem), layout.slab_bytes, Arc::clone(&self.options.budget));
                self.converted.insert((layout, pool))
            }
        };
        let layout = *layout;
        let lease = pool.lease()?;
        let repack = match self.repack {
            Some((known, repack)) if known == from => repack,
            _ => self.repack.insert((from, format::repack_from(from, self.shape.format))).1,
        };
        let full_range = raw.color_range == ffi::AVColorRange::AVCOL_RANGE_JPEG || format::implies_full_range(from);
        // A frame without tags is taken as what the first frame was.
        let tagged = raw.color_range != ffi::AVColorRange::AVCOL_RANGE_UNSPECIFIED;
        let target_range = if tagged || format::implies_full_range(from) { self.full_range } else { full_range };
        let mut planes = [std::ptr::null_mut(); MAX_PLANES];
        let mut pitches = [0; MAX_PLANES];
        for (index, plane) in layout.planes().iter().enumerate() {
            planes[index] = lease.as_ptr().wrapping_add(plane.offset);
            pitches[index] = side(plane.pitch);
        }
        self.counters.copied(self.shape.payload_bytes());
        let rgb = format::is_rgb(from);
        if let Some(repack) = repack.filter(|_| same_size && (rgb || full_range == target_range)) {
            let source = Memory { planes: [0, 1, 2, 3].map(|p| raw.data[p].cast_const()), pitches: [0, 1, 2, 3].map(|p| raw.linesize[p]) };
            // SAFETY: the source is the decoded frame, whose planes FFmpeg allocated for its format and size (palettes with
            // 256 entries); the target planes lie in the lease, which nobody else has, laid out for the shape.
            unsafe { repack.run((self.shape.width, self.shape.height), source, Memory { planes, pitches }) };
            return Ok((layout, FrameMem::Slab(lease)));
        }
        let to = format::av(self.shape.format)
            .ok_or_else(|| Error::failed(operation(), format!("FFmpeg cannot convert {} to {}", format::name(from), self.shape)))?;
        let source = Picture { format: from, width: raw.width, height: raw.height, matrix: raw.colorspace, full_range };
        let target = Picture { format: to, width, height, matrix: raw.colorspace, full_range: target_range };
        // SAFETY: the source planes are the decoded frame's; the target planes lie in the lease, laid out for the shape.
        unsafe { self.converter.run((source, (&raw.data[..4], &raw.linesize[..4])), (target, (&planes, &pitches))) }?;
        Ok((layout, FrameMem::Slab(lease)))
    }
}

enum Place {
    Slab { base: NonNull<u8>, bytes: usize },
    Foreign([*const u8; MAX_PLANES]),
}

/// Frees the AVFrame behind a guard.
///
/// # Safety
/// `object` is an AVFrame that the caller owns.
pub(super) unsafe fn release_frame(object: NonNull<std::ffi::c_void>) {
    // SAFETY: the caller's promise; taken back once.
    drop(unsafe { AvFrame::from_raw(object.as_ptr().cast()) });
}
