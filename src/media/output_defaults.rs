//! Which container, encoder and quality an output gets when the user does not say.

use ffmpeg_next::ffi;

use super::owned;

/// Container for URLs whose scheme implies one.
pub(super) fn container_of_url(url: &str) -> Option<&'static str> {
    match url.split_once("://").map(|(scheme, _)| scheme)? {
        "rtmp" | "rtmps" | "rtmpt" => Some("flv"),
        "rtsp" | "rtsps" => Some("rtsp"),
        "udp" | "srt" | "tcp" | "rist" => Some("mpegts"),
        "rtp" => Some("rtp_mpegts"),
        _ => None,
    }
}

/// Name of the encoder for a container; None when the container holds no video.
///
/// libx264 wherever H.264 is at home; FFmpeg's own default elsewhere.
pub(super) fn encoder(container: &ffi::AVOutputFormat, file_name: &std::ffi::CStr) -> Option<String> {
    use ffi::AVCodecID::*;
    // SAFETY: the container is static; names are terminated strings or null.
    let id = unsafe {
        ffi::av_guess_codec(container, std::ptr::null(), file_name.as_ptr(), std::ptr::null(), ffi::AVMediaType::AVMEDIA_TYPE_VIDEO)
    };
    // SAFETY: as above.
    let name = unsafe { owned::text(container.name) }.unwrap_or_default();
    let h264_at_home = matches!(id, AV_CODEC_ID_H264)
        || (matches!(id, AV_CODEC_ID_MPEG4 | AV_CODEC_ID_MPEG2VIDEO | AV_CODEC_ID_FLV1)
            && matches!(name.as_str(), "avi" | "mpegts" | "flv" | "nut" | "rtsp" | "hls" | "ismv" | "rtp_mpegts"));
    // SAFETY: lookups by a terminated name or an id; the results are null or static.
    unsafe {
        if h264_at_home && !ffi::avcodec_find_encoder_by_name(c"libx264".as_ptr()).is_null() {
            return Some("libx264".to_owned());
        }
        if id == AV_CODEC_ID_NONE {
            return None;
        }
        let codec = ffi::avcodec_find_encoder(id);
        if codec.is_null() { None } else { owned::text((*codec).name) }
    }
}

/// Encoder options that stand unless the user sets them, or sets `crf` or a bit rate himself.
pub(super) struct Quality {
    /// Options that choose the quality: dropped when the user gives a bit rate.
    pub rate: &'static [(&'static str, &'static str)],
    /// Other options.
    pub other: &'static [(&'static str, &'static str)],
}

/// Defaults of an encoder by name.
pub(super) fn quality(encoder: &str) -> Quality {
    match encoder {
        "libx264" | "libx264rgb" => Quality { rate: &[("crf", "18")], other: &[("preset", "medium")] },
        "libx265" => Quality { rate: &[("crf", "20")], other: &[("preset", "medium")] },
        // A bit rate of 0 makes crf a constant quality.
        "libvpx-vp9" => Quality { rate: &[("crf", "24"), ("b", "0")], other: &[("row-mt", "1"), ("cpu-used", "2")] },
        "libvpx" => Quality { rate: &[("crf", "10"), ("b", "4M")], other: &[("cpu-used", "2")] },
        "libaom-av1" => Quality { rate: &[("crf", "24"), ("b", "0")], other: &[("row-mt", "1"), ("cpu-used", "4")] },
        "libsvtav1" => Quality { rate: &[("crf", "26")], other: &[] },
        "h264_nvenc" | "hevc_nvenc" | "av1_nvenc" => Quality { rate: &[("cq", "20"), ("b", "0")], other: &[] },
        // The version that has checksums, threads, and a mark of fields in every picture.
        "ffv1" => Quality { rate: &[], other: &[("level", "3")] },
        "mpeg4" | "mpeg2video" | "mpeg1video" | "mjpeg" | "flv" | "msmpeg4" | "wmv2" => {
            Quality { rate: &[("flags", "+qscale"), ("global_quality", "236")], other: &[] }
        }
        _ => Quality { rate: &[], other: &[] },
    }
}
