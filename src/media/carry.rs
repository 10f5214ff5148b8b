//! What the output holds beside the pictures: which streams it takes, in which form, and every tag that comes along.

use ffmpeg_next::ffi;

use super::container::{holds_one_stream, is_mov, maps};
use super::encode::VideoEncoder;
use super::evenness::counts_pictures;
use super::info::{SourceInfo, StreamInfo, StreamKind};
use super::mux::Output;
use super::output::Chosen;
use super::owned::Dict;
use super::subtitles::{TextConverter, text_codec_for};
use super::{Rational, av_failed, describe, log, rescale, trial};
use crate::error::{Error, Result};

/// How a stream comes into the output.
pub(super) enum Form {
    /// The filtered video.
    Encoded,
    /// Its packets as they are.
    Copied,
    /// Its text in another codec's form.
    Text(Box<TextConverter>),
    /// Cover art as an attached file: Matroska knows no other.
    Attached,
}

/// One stream of the output.
pub(super) struct Carried<'a> {
    pub stream: &'a StreamInfo,
    pub form: Form,
}

/// What should be said about the streams.
#[derive(Default)]
pub(super) struct Said {
    pub warnings: Vec<String>,
    pub notes: Vec<String>,
}

/// What the output should hold.
#[derive(Clone, Copy)]
pub(super) struct Wanted<'a> {
    pub chosen: &'a Chosen,
    pub info: &'a SourceInfo,
    pub encoder: &'a VideoEncoder,
    /// Whether the video's rotation is passed on.
    pub turned: bool,
}

impl<'a> Wanted<'a> {
    /// The input streams that the container takes, tried one by one on a muxer that writes into memory.
    pub(super) fn streams_that_fit(&self, said: &mut Said) -> Result<Vec<Carried<'a>>> {
        let video = self.info.video_stream().map(|stream| Carried { stream, form: Form::Encoded });
        let mut kept: Vec<Carried<'a>> = video.into_iter().collect();
        for stream in self.info.streams.iter().filter(|s| s.index != self.info.video && s.selected) {
            let form = if self.is_cover_for_matroska(stream) { Form::Attached } else { Form::Copied };
            let refusal = self.join(&mut kept, Carried { stream, form })?;
            let Some(reason) = refusal.filter(|_| !self.is_made_anew(stream)) else { continue };
            // Its own form does not fit; perhaps another one of the same text does.
            let Some(target) = text_codec_for(&self.container(), stream) else {
                said.warnings.push(format!("{} is left out: {reason}", stream.label()));
                continue;
            };
            let converter = TextConverter::new(stream, target)?;
            let text = converter.target();
            match self.join(&mut kept, Carried { stream, form: Form::Text(Box::new(converter)) })? {
                None => said.notes.push(format!("{} is converted to {text}", stream.label())),
                Some(reason) => said.warnings.push(format!("{} is left out: {reason}", stream.label())),
            }
        }
        Ok(kept)
    }

    pub(super) fn container(&self) -> String {
        self.chosen.container_name()
    }

    fn is_cover_for_matroska(&self, stream: &StreamInfo) -> bool {
        stream.attached.is_some() && self.container() == "matroska"
    }

    /// Tracks that the muxer makes anew: MP4's chapter titles and time code, which the demuxer also reports as chapters
    /// and as a tag. (Matroska keeps the time code as that tag.)
    fn is_made_anew(&self, stream: &StreamInfo) -> bool {
        let chapters = !self.info.chapters.is_empty() && stream.codec == "bin_data";
        let time_code = stream.params.get().codec_tag == u32::from_le_bytes(*b"tmcd")
            && matches!(self.container().as_str(), "mp4" | "mov" | "matroska" | "mxf");
        stream.kind == StreamKind::Data && (chapters || time_code)
    }

    /// Adds `stream` to `kept` in the input's order, or says why it cannot join.
    fn join(&self, kept: &mut Vec<Carried<'a>>, carried: Carried<'a>) -> Result<Option<String>> {
        if let Some(reason) = self.never_fits(&carried) {
            return Ok(Some(reason));
        }
        let at = kept.partition_point(|k| k.stream.index < carried.stream.index);
        kept.insert(at, carried);
        // Containers without a file of their own connect or create files in their header: no trial there.
        if self.chosen.container.flags & ffi::AVFMT_NOFILE != 0 {
            return Ok(None);
        }
        let mark = log::Mark::now();
        let (code, _) = self.try_header(kept)?;
        if code >= 0 {
            return Ok(None);
        }
        kept.remove(at);
        let why = mark.lines().unwrap_or_else(|| describe(code));
        Ok(Some(format!("{} does not take it ({why})", self.container())))
    }

    /// Why a stream cannot be in this container, as far as that is known without trying.
    fn never_fits(&self, carried: &Carried<'_>) -> Option<String> {
        let Carried { stream, form } = carried;
        let container = self.container();
        let attachment = stream.kind == StreamKind::Attachment || matches!(form, Form::Attached);
        let codec = match form {
            Form::Text(converter) => converter.codec(),
            Form::Encoded | Form::Copied | Form::Attached => stream.params.get().codec_id,
        };
        if codec == ffi::AVCodecID::AV_CODEC_ID_NONE && !attachment {
            return Some("its codec is unknown".to_owned());
        }
        // SAFETY: the container is static.
        let holds = unsafe { ffi::avformat_query_codec(self.chosen.container, codec, ffi::FF_COMPLIANCE_EXPERIMENTAL) };
        // Attachments are files of any type, which no list of codecs covers.
        if attachment {
            if container != "matroska" {
                return Some(format!("{container} holds no attachments"));
            }
        } else if stream.attached.is_some() && !matches!(container.as_str(), "mp4" | "ipod") {
            return Some(format!("{container} holds no cover art"));
        } else if holds == 0 || !maps(&container, codec, &self.info.container) {
            return Some(format!("{container} cannot hold {}", stream.codec));
        }
        if holds_one_stream(self.chosen.container) {
            return Some(format!("{container} holds the one video stream only"));
        }
        (container == "null").then(|| format!("{container} holds pictures only"))
    }

    /// Writes a header for `streams` into memory. Returns FFmpeg's code and the header's length.
    fn try_header(&self, streams: &[Carried<'_>]) -> Result<(i32, usize)> {
        let written = trial::write(self.unopened(streams)?, &mut Dict::new(), false)?;
        Ok((written.code, written.bytes.len()))
    }

    /// An output of `streams` without a file.
    pub(super) fn unopened(&self, streams: &[Carried<'_>]) -> Result<Output> {
        let mut output = Output::new(self.chosen, "")?;
        output.get().strict_std_compliance = ffi::FF_COMPLIANCE_EXPERIMENTAL;
        for carried in streams {
            self.add_stream(&mut output, carried)?;
        }
        Ok(output)
    }

    /// A warning when the video is shown turned and the container cannot say so.
    pub(super) fn lost_rotation(&self) -> Result<Option<String>> {
        let Some(video) = self.info.video_stream() else { return Ok(None) };
        let container = self.container();
        if self.info.rotation == 0 || is_mov(&container) || container == "null" {
            return Ok(None);
        }
        let file = self.chosen.container.flags & ffi::AVFMT_NOFILE == 0;
        // A header that holds the rotation is longer. (MP4 writes it only at the end.)
        let only = [Carried { stream: video, form: Form::Encoded }];
        let (with, without) = (self.try_header(&only)?, Self { turned: false, ..*self }.try_header(&only)?);
        let kept = file && with.0 >= 0 && with.1 != without.1;
        Ok((!kept).then(|| {
            format!("the rotation by {}° is left out: {container} cannot hold it, so the video is shown as it is coded", self.info.rotation)
        }))
    }

    /// A warning when neither the encoder nor the container keeps HDR10's metadata.
    pub(super) fn lost_hdr(&self) -> Option<String> {
        let container = self.container();
        let kept = matches!(container.as_str(), "mp4" | "mov" | "matroska" | "webm")
            || self.info.hdr.encoder_option(self.encoder.name()).is_some();
        (self.info.hdr.is_static() && !kept && container != "null").then(|| {
            format!(
                "the HDR10 metadata (mastering display, content light level) is left out: neither {} nor {container} can hold it",
                self.encoder.name()
            )
        })
    }

    /// What a time needs added so that it reads back as it was. Matroska's reader takes Opus' delay off every time, but before
    /// FFmpeg 6 its writer adds none: the sound would come earlier with each pass.
    pub(super) fn codec_delay(&self, stream: &StreamInfo, to: Rational) -> i64 {
        let params = stream.params.get();
        let matroska = matches!(self.container().as_str(), "matroska" | "webm");
        if cfg!(ffmpeg_6) || !matroska || params.codec_id != ffi::AVCodecID::AV_CODEC_ID_OPUS || params.sample_rate <= 0 {
            return 0;
        }
        rescale(i64::from(params.initial_padding), Rational { num: 1, den: params.sample_rate }, to)
    }

    pub(super) fn add_stream(&self, output: &mut Output, carried: &Carried<'_>) -> Result<()> {
        let Carried { stream, form } = carried;
        let is_video = matches!(form, Form::Encoded);
        // SAFETY: the context is valid and not yet started; the stream that it returns is checked. Parameters, dictionary and
        // side data are copied.
        unsafe {
            let raw = ffi::avformat_new_stream(output.get(), std::ptr::null());
            let Some(out) = raw.as_mut() else { return Err(Error::failed("cannot set up the output", "out of memory")) };
            let code = match form {
                Form::Encoded => ffi::avcodec_parameters_from_context(out.codecpar, self.encoder.raw()),
                Form::Text(converter) => ffi::avcodec_parameters_from_context(out.codecpar, converter.encoder()),
                Form::Copied | Form::Attached => ffi::avcodec_parameters_copy(out.codecpar, stream.params.get()),
            };
            if code < 0 {
                return Err(av_failed("cannot set up the output", code, log::Mark::now()));
            }
            if is_video {
                out.time_base = self.encoder.time_base().av();
                out.avg_frame_rate = self.info.average_rate.or(self.info.frame_rate).map_or(stream.average_rate, Rational::av);
                out.r_frame_rate = stream.real_rate;
                if counts_pictures(&self.container(), self.chosen.container.flags) {
                    out.avg_frame_rate = self.info.counted_rate().av();
                }
                out.sample_aspect_ratio = (*self.encoder.raw()).sample_aspect_ratio;
            } else {
                out.time_base = stream.time_base.av();
                out.avg_frame_rate = stream.average_rate;
                out.r_frame_rate = stream.real_rate;
                out.sample_aspect_ratio = stream.sample_aspect;
                (*out.codecpar).codec_tag = if matches!(form, Form::Copied) { self.tag_for(stream) } else { 0 };
            }
            out.id = if self.info.container == self.container() { stream.id } else { 0 };
            out.disposition = stream.disposition;
            let mut metadata = self.stream_tags(carried);
            if matches!(form, Form::Attached) {
                attach(out, stream, &mut metadata)?;
            }
            ffi::av_dict_copy(&mut out.metadata, metadata.as_ptr(), 0);
            let add = |(kind, bytes): (ffi::AVPacketSideDataType, &[u8])| {
                let data = ffi::av_stream_new_side_data(raw, kind, bytes.len());
                if !data.is_null() {
                    std::ptr::copy_nonoverlapping(bytes.as_ptr(), data, bytes.len());
                }
            };
            let kept = stream.side_data.iter().filter(|(kind, _)| !is_video || self.describes_picture(*kind));
            kept.map(|(kind, bytes)| (*kind, bytes.as_slice())).for_each(add);
            if is_video {
                self.info.hdr.for_stream().for_each(add);
            }
        }
        Ok(())
    }

    /// The input's codec tag where this container knows it, else 0: the muxer chooses.
    fn tag_for(&self, stream: &StreamInfo) -> u32 {
        let params = stream.params.get();
        let tags = self.chosen.container.codec_tag;
        // SAFETY: the container's tag lists are static; `wanted` is a local.
        unsafe {
            let mut wanted = 0;
            let keep = tags.is_null()
                || ffi::av_codec_get_id(tags, params.codec_tag) == params.codec_id
                || ffi::av_codec_get_tag2(tags, params.codec_id, &mut wanted) == 0;
            if keep { params.codec_tag } else { 0 }
        }
    }

    /// Side data that says how the picture is shown, true of the filtered picture too.
    fn describes_picture(&self, kind: ffi::AVPacketSideDataType) -> bool {
        use ffi::AVPacketSideDataType::*;
        match kind {
            AV_PKT_DATA_DISPLAYMATRIX => self.turned,
            AV_PKT_DATA_STEREO3D | AV_PKT_DATA_SPHERICAL | AV_PKT_DATA_ICC_PROFILE => true,
            _ => false,
        }
    }

    /// File tags, chapters and programs. `streams` are the output's, in its order.
    pub(super) fn add_metadata(&self, output: &mut Output, streams: &[Carried<'_>]) -> Result<()> {
        let metadata = self.tags();
        let context = output.get();
        let out_of_memory = || Error::failed("cannot set up the output", "out of memory");
        // SAFETY: the chapter array and its entries come from FFmpeg's allocator, as avformat_free_context expects; every
        // allocation is checked before use.
        unsafe {
            ffi::av_dict_copy(&mut context.metadata, metadata.as_ptr(), 0);
            for program in &self.info.programs {
                let indices: Vec<usize> = (0..streams.len()).filter(|&n| program.streams.contains(&streams[n].stream.index)).collect();
                if indices.is_empty() {
                    continue;
                }
                let raw = ffi::av_new_program(context, program.id);
                let Some(out) = raw.as_mut() else { return Err(out_of_memory()) };
                ffi::av_dict_copy(&mut out.metadata, program.metadata.as_ptr(), 0);
                for index in indices {
                    ffi::av_program_add_stream_index(context, program.id, u32::try_from(index).unwrap_or(0));
                }
            }
            let chapters = &self.info.chapters;
            if chapters.is_empty() {
                return Ok(());
            }
            context.chapters = ffi::av_calloc(chapters.len(), size_of::<*mut ffi::AVChapter>()).cast();
            if context.chapters.is_null() {
                return Err(out_of_memory());
            }
            for chapter in chapters {
                let raw = ffi::av_mallocz(size_of::<ffi::AVChapter>()).cast::<ffi::AVChapter>();
                let Some(out) = raw.as_mut() else { return Err(out_of_memory()) };
                out.id = chapter.id as _;
                out.time_base = chapter.time_base;
                (out.start, out.end) = (chapter.start, chapter.end);
                ffi::av_dict_copy(&mut out.metadata, chapter.metadata.as_ptr(), 0);
                *context.chapters.add(context.nb_chapters as usize) = raw;
                context.nb_chapters += 1;
            }
        }
        Ok(())
    }
}

/// Makes `out` an attached file of the cover art's bytes.
///
/// # Safety
/// `out` is a stream of an unstarted output with its parameters set.
unsafe fn attach(out: &mut ffi::AVStream, stream: &StreamInfo, metadata: &mut Dict) -> Result<()> {
    let Some(bytes) = &stream.attached else { return Ok(()) };
    let (name, mime) = match stream.params.get().codec_id {
        ffi::AVCodecID::AV_CODEC_ID_PNG => (c"cover.png", c"image/png"),
        ffi::AVCodecID::AV_CODEC_ID_BMP => (c"cover.bmp", c"image/bmp"),
        _ => (c"cover.jpg", c"image/jpeg"),
    };
    metadata.set_default(c"filename", name);
    metadata.set_default(c"mimetype", mime);
    let size = i32::try_from(bytes.len()).map_err(|e| Error::failed("cannot attach the cover art", e))?;
    // SAFETY: the parameters own their extradata, which comes from FFmpeg's allocator and is padded as it demands.
    unsafe {
        let params = &mut *out.codecpar;
        params.codec_type = ffi::AVMediaType::AVMEDIA_TYPE_ATTACHMENT;
        ffi::av_freep((&raw mut params.extradata).cast());
        params.extradata = ffi::av_mallocz(bytes.len() + ffi::AV_INPUT_BUFFER_PADDING_SIZE as usize).cast();
        if params.extradata.is_null() {
            params.extradata_size = 0;
            return Err(Error::failed("cannot attach the cover art", "out of memory"));
        }
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), params.extradata, bytes.len());
        params.extradata_size = size;
    }
    out.disposition &= !ffi::AV_DISPOSITION_ATTACHED_PIC;
    Ok(())
}
