//! Choosing and opening an output: container, encoder, then the file; checked as early as possible.

use std::path::Path;
use std::sync::Arc;

use ffmpeg_next::ffi;

use super::container::maps;
use super::copy_params::{self, COPY_PARAMS};
use super::encode::VideoEncoder;
use super::encoder_setup::{self, EncoderRequest};
use super::info::{SourceInfo, codec_name};
use super::mux::FileMuxer;
use super::owned;
use super::two_pass::{self, Pass};
use super::{c_string, output_defaults, prepare, redact};
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::frame::Shape;
use crate::frame_log::FrameLog;

/// How to encode and mux.
#[derive(Clone, Debug, Default)]
pub struct EncodeSpec {
    /// Encoder by FFmpeg's name; None takes the container's.
    pub codec: Option<String>,
    /// Constant quality, for encoders that have it.
    pub crf: Option<f64>,
    /// Speed preset, for encoders that have it.
    pub preset: Option<String>,
    /// Bit rate as FFmpeg writes it ("4M").
    pub bitrate: Option<String>,
    /// Pixel format to encode; None keeps the frames' own.
    pub pix_fmt: Option<String>,
    /// Further encoder options.
    pub options: Vec<(String, String)>,
    /// Encoder threads; None lets FFmpeg choose.
    pub threads: Option<usize>,
    /// Container by FFmpeg's name; None goes by the file's name.
    pub format: Option<String>,
    /// Muxer and protocol options.
    pub mux_options: Vec<(String, String)>,
    /// Which of two passes this is, if there are two.
    pub pass: Option<Pass>,
    /// What to do about a size that the encoder refuses.
    pub odd: Odd,
    /// Leave the index of MP4 and MOV at the end.
    pub index_last: bool,
    /// Where every packet and frame is noted.
    pub log: Option<Arc<FrameLog>>,
}

/// What to do about a size that the encoder refuses (odd sides with subsampled chroma).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Odd {
    /// Refuse, before anything is written.
    #[default]
    Error,
    /// Repeat the last column or row.
    Pad,
    /// Cut the last column or row off.
    Crop,
    /// Encode without chroma subsampling.
    FullChroma,
}

/// Where the output goes.
#[derive(Clone, Debug)]
pub struct OutputTarget<'a> {
    /// What is opened: a path (perhaps a temporary one), `-` or a URL.
    pub url: &'a str,
    /// The final name, by which the container is guessed and which messages quote.
    pub final_name: &'a str,
}

/// Container and encoder of an output.
#[derive(Clone, Copy)]
pub(super) struct Chosen {
    pub container: &'static ffi::AVOutputFormat,
    pub codec: &'static ffi::AVCodec,
}

impl Chosen {
    pub(super) fn container_name(&self) -> String {
        // SAFETY: static strings.
        unsafe { owned::text(self.container.name) }.unwrap_or_default()
    }

    pub(super) fn codec_name(&self) -> String {
        // SAFETY: static strings.
        unsafe { owned::text(self.codec.name) }.unwrap_or_default()
    }
}

/// Whether an output goes to somebody who watches as it comes, and must not get it faster than it is shown.
pub fn is_live_output(name: &str) -> bool {
    ["rtmp", "rtmps", "rtmpt", "rtsp", "rtsps", "rtp", "srtp", "udp", "srt", "rist", "whip"]
        .iter()
        .any(|scheme| name.split_once("://").is_some_and(|(own, _)| own == *scheme))
}

/// Checks what can be checked before any work: the container is known, the encoder exists, the container can hold it,
/// options are ones that the encoder has, the folder exists.
///
/// # Errors
/// Usage errors that name the option; a failure when the folder is missing.
pub fn check_output(final_name: &str, spec: &EncodeSpec) -> Result<()> {
    // The input's codec is not known yet.
    let later = EncodeSpec { codec: None, options: Vec::new(), crf: None, preset: None, pass: None, ..spec.clone() };
    let spec = if spec.codec.as_deref() == Some(COPY_PARAMS) { &later } else { spec };
    let chosen = choose(final_name, spec)?;
    encoder_setup::check_options(chosen.codec, spec)?;
    if spec.pass.is_some() {
        two_pass::check(&chosen.codec_name())?;
    }
    if !final_name.contains("://") && final_name != "-" {
        let folder = Path::new(final_name).parent().filter(|p| !p.as_os_str().is_empty());
        if let Some(folder) = folder.filter(|f| !f.is_dir()) {
            return Err(Error::failed(format!("cannot write '{final_name}'"), format!("the folder '{}' does not exist", folder.display())));
        }
    }
    Ok(())
}

pub(super) fn choose(final_name: &str, spec: &EncodeSpec) -> Result<Chosen> {
    prepare();
    let shown = redact(final_name);
    let tried = format!("cannot write '{shown}'");
    let file_name = c_string(final_name, "output name")?;
    let forced = spec.format.as_deref().or_else(|| output_defaults::container_of_url(final_name));
    let container = match forced {
        Some(name) => {
            let c_name = c_string(name, "output format")?;
            // SAFETY: terminated strings; the result is null or static.
            unsafe { ffi::av_guess_format(c_name.as_ptr(), std::ptr::null(), std::ptr::null()).as_ref() }
                .ok_or_else(|| Error::usage(&tried, format!("FFmpeg has no output format '{name}'")).hint("ffmpeg -muxers lists them"))?
        }
        None if final_name == "-" => {
            return Err(
                Error::usage(tried, "standard output needs a container").hint("name one, for example --format matroska or --format nut")
            );
        }
        // SAFETY: as above.
        None => unsafe { ffi::av_guess_format(std::ptr::null(), file_name.as_ptr(), std::ptr::null()).as_ref() }.ok_or_else(|| {
            Error::usage(&tried, "its name does not tell which container to write")
                .hint("end it in .mp4, .mkv, .webm, …, or name the container with --format")
        })?,
    };
    // SAFETY: static strings.
    let container_name = unsafe { owned::text(container.name) }.unwrap_or_default();
    let codec_name_wanted = match &spec.codec {
        Some(name) => name.clone(),
        None => output_defaults::encoder(container, &file_name).ok_or_else(|| {
            Error::usage(&tried, format!("the container {container_name} has no default video encoder here")).hint("name one with -c:v")
        })?,
    };
    let codec = find_encoder(&codec_name_wanted, &tried)?;
    // SAFETY: the container is static.
    let held = unsafe { ffi::avformat_query_codec(container, codec.id, ffi::FF_COMPLIANCE_EXPERIMENTAL) } != 0;
    if !held || !maps(&container_name, codec.id, "") {
        return Err(Error::usage(tried, format!("the container {container_name} cannot hold {}", codec_name(codec.id)))
            .hint("choose another encoder with -c:v, or another container, for example .mkv"));
    }
    Ok(Chosen { container, codec })
}

fn find_encoder(name: &str, tried: &str) -> Result<&'static ffi::AVCodec> {
    let c_name = c_string(name, "encoder")?;
    // SAFETY: terminated strings; results are null or static. A codec's name ("h264") stands for its default encoder.
    let codec = unsafe {
        ffi::avcodec_find_encoder_by_name(c_name.as_ptr()).as_ref().or_else(|| {
            let descriptor = ffi::avcodec_descriptor_get_by_name(c_name.as_ptr()).as_ref()?;
            ffi::avcodec_find_encoder(descriptor.id).as_ref()
        })
    };
    match codec {
        Some(codec) if codec.type_ == ffi::AVMediaType::AVMEDIA_TYPE_VIDEO => Ok(codec),
        Some(_) => Err(Error::usage(tried, format!("'{name}' is not a video encoder"))),
        None if name == "copy" => Err(Error::usage(tried, "the filtered video cannot be copied; it must be encoded")),
        None if name.ends_with("_nvenc") => Err(Error::usage(tried, format!("this FFmpeg has no encoder '{name}'"))
            .hint("it was built without NVENC; -c:v libx264 or libx265 encodes on the CPU")),
        None => Err(Error::usage(tried, format!("this FFmpeg has no encoder '{name}'")).hint("convoy doctor lists the encoders found")),
    }
}

/// Opens the encoder alone: for the first of two passes.
///
/// # Errors
/// The encoder cannot take the frames, or an option is wrong.
pub fn open_encoder(final_name: &str, spec: &EncodeSpec, info: &SourceInfo, shape: Shape) -> Result<VideoEncoder> {
    let spec = &copy_params::resolve(spec, info)?;
    let chosen = choose(final_name, spec)?;
    encoder_setup::check_options(chosen.codec, spec)?;
    VideoEncoder::open(&EncoderRequest { chosen, spec, info, shape })
}

/// Opens encoder and output for frames of `shape`.
///
/// # Errors
/// The encoder cannot take the frames, an option is wrong, or the output cannot be written.
pub fn open_output(
    target: &OutputTarget<'_>,
    spec: &EncodeSpec,
    info: &SourceInfo,
    shape: Shape,
    cancel: &Cancel,
) -> Result<(VideoEncoder, FileMuxer)> {
    let spec = &copy_params::resolve(spec, info)?;
    let encoder = open_encoder(target.final_name, spec, info, shape)?;
    let muxer = FileMuxer::open(target, spec, info, &encoder, cancel)?;
    Ok((encoder, muxer))
}
