//! What the first frame tells of all that follow.

use std::sync::Arc;

use ffmpeg_next::ffi;

use super::DecodeSource;
use crate::error::{Error, Result};
use crate::frame::{FrameLayout, Shape};
use crate::media::audit::left_out;
use crate::media::format::{self, Way};
use crate::media::info::StreamInfo;
use crate::media::owned::{AvFrame, Dict};

impl DecodeSource {
    /// Gives U and V planes of their own when they share one (NV12, P010), for filters that treat them differently. Call it
    /// before the first item is taken. The samples are moved without loss, by the host, and counted.
    ///
    /// # Errors
    /// When the size cannot be laid out, or items were taken already.
    pub fn separate_chroma(&mut self) -> Result<()> {
        let planar = self.intake.shape.format.planar();
        if planar == self.intake.shape.format {
            return Ok(());
        }
        let operation = || format!("cannot convert input '{}'", self.intake.name);
        if self.seq > 0 {
            return Err(Error::failed(operation(), "internal error: frames were taken before"));
        }
        let shape = Shape { format: planar, ..self.intake.shape };
        FrameLayout::packed(shape)?;
        let info = Arc::get_mut(&mut self.info).ok_or_else(|| Error::failed(operation(), "internal error: the info is shared already"))?;
        info.shape = Some(shape);
        self.intake.shape = shape;
        self.intake.counters.note(format!(
            "{} frames are converted to planar {planar} on entry (without loss), since a filter treats U and V differently",
            info.pixel_format
        ));
        Ok(())
    }

    /// Takes shape, colour and aspect from the first frame.
    pub(super) fn adopt(&mut self, first: &AvFrame) -> Result<()> {
        let frame = first.get();
        let name = self.info.name.clone();
        let operation = || format!("cannot filter input '{name}'");
        let pixel_format = format::av_from_raw(frame.format).ok_or_else(|| Error::failed(operation(), "its pixel format is unknown"))?;
        let entry = format::entry(pixel_format)
            .ok_or_else(|| Error::failed(operation(), format!("pixel format {} cannot be converted", format::name(pixel_format))))?;
        let side = |s: i32| usize::try_from(s).unwrap_or(0);
        self.intake.shape = Shape { format: entry.format, width: side(frame.width), height: side(frame.height) };
        self.intake.coded = Some(pixel_format);
        self.intake.aspect = (frame.sample_aspect_ratio.num, frame.sample_aspect_ratio.den);
        FrameLayout::packed(self.intake.shape)?;
        let info = Arc::get_mut(&mut self.info).ok_or_else(|| Error::failed(operation(), "internal error: the info is shared already"))?;
        (info.width, info.height, info.shape) = (self.intake.shape.width, self.intake.shape.height, Some(self.intake.shape));
        info.pixel_format = format::name(pixel_format);
        info.coded_format = Some(pixel_format);
        let text = format!("{} frames are converted to {} on entry, since filters work on planes", info.pixel_format, entry.format);
        match entry.way {
            Way::Native => {}
            Way::Lossless => self.intake.counters.note(format!("{text} (without loss)")),
            Way::Lossy => self.intake.counters.warn(format!("{text}; this loses precision")),
        }
        if frame.interlaced_frame != 0 {
            // The picture knows better than the container which field is shown first.
            info.interlaced = true;
            info.field_order = if frame.top_field_first != 0 { ffi::AVFieldOrder::AV_FIELD_TT } else { ffi::AVFieldOrder::AV_FIELD_BB };
        }
        if info.sample_aspect.positive().is_none() {
            info.sample_aspect = frame.sample_aspect_ratio.into();
        }
        info.hdr.refine(first);
        info.adopt_side_data(first);
        // Texts of PNG, EXIF of JPEG. Filters of lavfi leave their measurements there too; time codes are riders.
        // SAFETY: the frame's dictionary is null or valid.
        let texts = unsafe { Dict::copy_of(frame.metadata) };
        let texts: Vec<String> = texts.keys().into_iter().filter(|key| !key.starts_with("lavfi.") && key != "timecode").collect();
        if !texts.is_empty() {
            self.intake.counters.warn(left_out("tag", &texts, " in the pictures", "encoders"));
        }
        if !entry.format.alpha && info.video_stream().is_some_and(StreamInfo::has_hidden_alpha) {
            self.intake.counters.warn(format!("alpha is left out: this FFmpeg's decoder of {} does not show it", info.codec));
        }
        // SAFETY: an open decoder, used by this thread.
        if unsafe { (*self.decoder.context).properties } & ffi::FF_CODEC_PROPERTY_FILM_GRAIN as u32 != 0 {
            self.intake.counters.warn(
                "the film grain's parameters are left out: the grain is drawn into the pictures, as a player does, before they are filtered"
                    .to_owned(),
            );
        }
        let colour = &mut info.colour;
        if frame.color_range != ffi::AVColorRange::AVCOL_RANGE_UNSPECIFIED {
            colour.range = frame.color_range;
        } else if format::implies_full_range(pixel_format) {
            colour.range = ffi::AVColorRange::AVCOL_RANGE_JPEG;
        }
        if frame.color_primaries != ffi::AVColorPrimaries::AVCOL_PRI_UNSPECIFIED {
            colour.primaries = frame.color_primaries;
        }
        if frame.color_trc != ffi::AVColorTransferCharacteristic::AVCOL_TRC_UNSPECIFIED {
            colour.transfer = frame.color_trc;
        }
        if frame.colorspace != ffi::AVColorSpace::AVCOL_SPC_UNSPECIFIED {
            colour.matrix = frame.colorspace;
        }
        if frame.chroma_location != ffi::AVChromaLocation::AVCHROMA_LOC_UNSPECIFIED {
            colour.chroma_location = frame.chroma_location;
        }
        Ok(())
    }
}
