//! What containers hold, where their muxers do not say it themselves.

use std::ffi::CString;

use ffmpeg_next::ffi;

use super::Rational;
use super::info::SourceInfo;
use super::owned::Dict;
use super::tags::BIBLIOGRAPHIC;

/// Whether a container is one elementary stream or single pictures: one that has a default for video alone. Its muxer may
/// not check, and would write the packets of other streams between the pictures.
pub(super) fn holds_one_stream(container: &ffi::AVOutputFormat) -> bool {
    use ffi::AVCodecID::AV_CODEC_ID_NONE;
    container.video_codec != AV_CODEC_ID_NONE && container.audio_codec == AV_CODEC_ID_NONE && container.subtitle_codec == AV_CODEC_ID_NONE
}

/// Whether the container defines how the codec is stored. MPEG-TS takes anything as private data, and MPEG-PS takes any
/// subtitle as a DVD's: neither can be read back.
pub(super) fn maps(container: &str, codec: ffi::AVCodecID, input: &str) -> bool {
    use ffi::AVCodecID::*;
    match container {
        "mpegts" | "rtp_mpegts" | "hls" => match codec {
            AV_CODEC_ID_H264 | AV_CODEC_ID_HEVC | AV_CODEC_ID_MPEG1VIDEO | AV_CODEC_ID_MPEG2VIDEO | AV_CODEC_ID_MPEG4 => true,
            AV_CODEC_ID_VC1 | AV_CODEC_ID_CAVS | AV_CODEC_ID_DIRAC => true,
            AV_CODEC_ID_MP1 | AV_CODEC_ID_MP2 | AV_CODEC_ID_MP3 | AV_CODEC_ID_AAC | AV_CODEC_ID_AAC_LATM => true,
            AV_CODEC_ID_AC3 | AV_CODEC_ID_EAC3 | AV_CODEC_ID_DTS | AV_CODEC_ID_TRUEHD | AV_CODEC_ID_OPUS | AV_CODEC_ID_S302M => true,
            AV_CODEC_ID_DVB_SUBTITLE | AV_CODEC_ID_DVB_TELETEXT | AV_CODEC_ID_SMPTE_KLV | AV_CODEC_ID_TIMED_ID3 => true,
            AV_CODEC_ID_WEBVTT => container == "hls",
            // Private data that was private data before is no worse for it.
            AV_CODEC_ID_BIN_DATA => input == "mpegts",
            _ => false,
        },
        "mpeg" | "vob" | "dvd" | "svcd" | "vcd" => {
            let video = [AV_CODEC_ID_H264, AV_CODEC_ID_HEVC, AV_CODEC_ID_MPEG1VIDEO, AV_CODEC_ID_MPEG2VIDEO, AV_CODEC_ID_MPEG4];
            let audio = [AV_CODEC_ID_MP1, AV_CODEC_ID_MP2, AV_CODEC_ID_MP3, AV_CODEC_ID_AC3, AV_CODEC_ID_DTS];
            let dvd = [AV_CODEC_ID_PCM_DVD, AV_CODEC_ID_PCM_S16BE, AV_CODEC_ID_DVD_SUBTITLE];
            video.contains(&codec) || audio.contains(&codec) || dvd.contains(&codec)
        }
        _ => true,
    }
}

/// Whether the container can say of a whole stream what its pictures say one by one.
pub(super) fn describes(container: &str, kind: ffi::AVFrameSideDataType) -> bool {
    use ffi::AVFrameSideDataType::*;
    match kind {
        AV_FRAME_DATA_ICC_PROFILE => is_mov(container),
        AV_FRAME_DATA_STEREO3D => is_mov(container) || matches!(container, "matroska" | "webm"),
        _ => false,
    }
}

/// What a container has a place for beside streams and tags.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holds {
    pub chapters: bool,
    /// Bits of AVStream's disposition that may be kept; `audit` finds out which really were.
    pub dispositions: i32,
}

/// What is known of a container. (FFmpeg's muxers have no word for it.)
pub(super) fn holds(container: &str) -> Holds {
    match container {
        "matroska" | "webm" | "nut" | "ogg" => Holds { chapters: true, dispositions: -1 },
        "mov" => Holds { chapters: true, dispositions: ffi::AV_DISPOSITION_DEFAULT | ffi::AV_DISPOSITION_ATTACHED_PIC },
        name if is_mov(name) => Holds { chapters: true, dispositions: -1 },
        "mpegts" => {
            let audience = ffi::AV_DISPOSITION_HEARING_IMPAIRED | ffi::AV_DISPOSITION_VISUAL_IMPAIRED | ffi::AV_DISPOSITION_CLEAN_EFFECTS;
            Holds { chapters: false, dispositions: audience }
        }
        "asf" => Holds { chapters: true, dispositions: 0 },
        _ => Holds { chapters: false, dispositions: 0 },
    }
}

/// Whether a tag that was read back is the one that was written: some containers write some in their own way.
pub(super) fn same_tag(container: &str, key: &str, written: &str, read: &str) -> bool {
    let (written, read) = (written.trim(), read.trim());
    match key.to_ascii_lowercase().as_str() {
        // Fractions of seconds, which few containers have.
        "creation_time" => written.get(..19) == read.get(..19),
        "language" if is_mov(container) => {
            written == read || BIBLIOGRAPHIC.iter().any(|(long, short)| *long == written && short.to_bytes() == read.as_bytes())
        }
        // Numbers with or without a total or leading zeros, dates with or without a day, in a form of the container's.
        "track" | "disc" | "date" | "genre" | "compilation" | "media_type" | "timecode" => true,
        _ => written == read,
    }
}

/// Whether it is MP4 or a relative, written by FFmpeg's mov muxer.
pub(super) fn is_mov(container: &str) -> bool {
    matches!(container, "mp4" | "mov" | "ipod" | "3gp" | "3g2" | "psp" | "f4v" | "ismv")
}

/// What the muxer's defaults depend on.
pub(super) struct Layout<'a> {
    pub container: &'a str,
    /// Unit of the video's time stamps.
    pub video_base: Rational,
    /// Whether the output can be rewound.
    pub rewinds: bool,
    /// Whether MP4's index is to stay at the end.
    pub index_last: bool,
}

/// Muxer options that stand unless the user sets them. Returns what should be said about them.
pub(super) fn set_defaults(layout: &Layout<'_>, info: &SourceInfo, options: &mut Dict) -> Option<String> {
    let container = layout.container;
    if let Some((name, value)) = info.plays.and_then(|plays| super::repeats::option(container, plays))
        && let Ok(value) = CString::new(value)
    {
        options.set_default(name, &value);
    }
    if !is_mov(container) || container == "ismv" {
        return None;
    }
    // Edit lists count in the movie's time scale: anything coarser than the video's shifts its start.
    if let Ok(scale) = CString::new(layout.video_base.den.max(1000).to_string()) {
        options.set_default(c"movie_timescale", &scale);
    }
    // The user's flags are added to ours, unless he names the whole set.
    let own = options.get(c"movflags").unwrap_or_default();
    if !own.is_empty() && !own.starts_with(['+', '-']) {
        return None;
    }
    // QuickTime's own keys have no place among iTunes' tags.
    let keys = info.metadata.keys().iter().any(|key| key.starts_with("com.apple.quicktime."));
    let mut flags = match (layout.rewinds, layout.index_last) {
        (true, true) => String::new(),
        (true, false) => "+faststart".to_owned(),
        // A delayed header is as readable as an empty one, and has the edit lists that keep the streams' starts.
        (false, _) => "+frag_keyframe+empty_moov+delay_moov+default_base_moof".to_owned(),
    };
    flags.push_str(if keys { "+use_metadata_tags" } else { "" });
    flags.push_str(&own);
    if let Some(flags) = CString::new(flags).ok().filter(|f| !f.is_empty()) {
        options.set(c"movflags", &flags);
    }
    (!layout.rewinds).then(|| format!("the output cannot be rewound: {container} is written in fragments"))
}
