//! Tags: which are true of the output too, and which of them its container cannot hold.

use std::ffi::CStr;

use ffmpeg_next::ffi;

use super::audit::{Loss, What};
use super::carry::{Carried, Form, Wanted};
use super::container::{holds_one_stream, is_mov};
use super::owned::Dict;
use super::{c_string, trial};
use crate::error::Result;

/// Tags that describe the old file, not the programme.
const STALE_TAGS: [&CStr; 4] = [c"major_brand", c"minor_version", c"compatible_brands", c"encoder"];
/// How MP4 and MOV keep every tag of a file.
pub(super) const MOV_REMEDY: &str = "; --mux-opt movflags=+use_metadata_tags keeps them all, where few players look";

/// What MP4 and MOV keep of a stream's tags.
const MOV_STREAM_TAGS: [&str; 7] = ["language", "handler_name", "title", "creation_time", "vendor_id", "timecode", "encoder"];

/// What AVI keeps of a file's tags (FFmpeg's list of RIFF INFO entries).
const AVI_TAGS: [&str; 13] = [
    "artist",
    "comment",
    "copyright",
    "date",
    "genre",
    "language",
    "title",
    "album",
    "track",
    "timecode",
    "encoded_by",
    "encoder",
    "software",
];

/// Languages with two codes in ISO 639-2: the terminological one, and the one that MOV has.
pub(super) const BIBLIOGRAPHIC: [(&str, &CStr); 14] = [
    ("deu", c"ger"),
    ("nld", c"dut"),
    ("zho", c"chi"),
    ("ell", c"gre"),
    ("isl", c"ice"),
    ("sqi", c"alb"),
    ("hye", c"arm"),
    ("kat", c"geo"),
    ("eus", c"baq"),
    ("cym", c"wel"),
    ("bod", c"tib"),
    ("mya", c"bur"),
    ("msa", c"may"),
    ("swe", c"sve"),
];

/// Languages that FFmpeg writes into MOV (`mov_mdhd_language_map`).
const MAC_LANGUAGES: [&str; 94] = [
    "eng", "fra", "ger", "ita", "dut", "sve", "spa", "dan", "por", "nor", "heb", "jpn", "ara", "fin", "gre", "ice", "mlt", "tur", "hrv",
    "chi", "urd", "hin", "tha", "kor", "lit", "pol", "hun", "est", "lav", "rus", "iri", "alb", "ron", "ces", "slk", "slv", "yid", "mac",
    "bul", "ukr", "bel", "uzb", "kaz", "aze", "arm", "geo", "mol", "kir", "tgk", "tuk", "mon", "pus", "kur", "kas", "snd", "tib", "nep",
    "san", "mar", "ben", "asm", "guj", "ori", "mal", "kan", "tam", "tel", "bur", "khm", "lao", "vie", "ind", "tgl", "may", "amh", "tir",
    "orm", "som", "swa", "run", "mlg", "epo", "wel", "baq", "cat", "lat", "que", "grn", "aym", "tat", "uig", "dzo", "jav", "und",
];

impl Wanted<'_> {
    /// The tags which the container does not keep, found by writing an empty file and reading it.
    pub(super) fn lost_tags(&self, streams: &[Carried<'_>], mut options: Dict) -> Result<Vec<Loss>> {
        let of_file = |keys: Vec<String>| keys.into_iter().map(|key| Loss::of(None, What::Tag(key)));
        let container = self.container();
        // Matroska holds every tag; FLV's are read with its first packet, so that an empty file tells nothing.
        if self.chosen.container.flags & ffi::AVFMT_NOFILE != 0 || matches!(container.as_str(), "null" | "matroska" | "webm" | "flv") {
            return Ok(Vec::new());
        }
        // A reader opens AVI only when there are pictures in it.
        if container == "avi" {
            let lost: Vec<String> = self.tags().keys().into_iter().filter(|key| !AVI_TAGS.contains(&key.as_str())).collect();
            return Ok(of_file(lost).collect());
        }
        let mut output = self.unopened(streams)?;
        self.add_metadata(&mut output, streams)?;
        let written = trial::write(output, &mut options, true)?;
        let kept = trial::tags(written.bytes)?;
        // A file without pictures that cannot be read tells nothing, unless the container has no place for tags at all.
        if kept.is_none() && !holds_one_stream(self.chosen.container) && container != "mpegts" {
            return Ok(Vec::new());
        }
        let none = Dict::new();
        let mut lost = trial::missing(&self.tags(), kept.as_ref().map_or(&none, |t| &t.file));
        // A transport stream names its services, which are made when packets come.
        lost.retain(|key| container != "mpegts" || !key.starts_with("service_"));
        lost.retain(|key| !describes_the_writer(key));
        // MP4 dates its tracks, which an empty file has not.
        lost.retain(|key| !is_mov(&container) || !matches!(key.as_str(), "creation_time" | "timecode"));
        let mut losses: Vec<Loss> = of_file(lost).collect();
        // MP4 describes streams only once they have packets.
        let streams_kept = kept.filter(|t| t.streams.len() == streams.len() && !is_mov(&container));
        for (index, carried) in streams.iter().enumerate() {
            let wanted = self.stream_tags(carried);
            let mut lost = match &streams_kept {
                Some(tags) => trial::missing(&wanted, tags.streams.get(index).unwrap_or(&none)),
                None => trial::missing(&wanted, &none),
            };
            if is_mov(&container) {
                lost.retain(|key| !MOV_STREAM_TAGS.contains(&key.as_str()));
            }
            if container == "mov" && wanted.get(c"language").is_some_and(|l| !MAC_LANGUAGES.contains(&l.as_str())) {
                lost.push("language".to_owned());
            }
            // Languages travel beside the streams in a transport stream.
            lost.retain(|key| container != "mpegts" || key != "language");
            lost.retain(|key| !describes_the_writer(key));
            lost.retain(|key| key != "language" || wanted.get(c"language").is_some_and(|l| l != "und"));
            losses.extend(lost.into_iter().map(|key| Loss::of(index, What::Tag(key))));
        }
        Ok(losses)
    }

    /// The stream's tags that are true of the output too. Matroska's writers count what they wrote (`BPS`,
    /// `NUMBER_OF_BYTES-eng`).
    pub(super) fn stream_tags(&self, carried: &Carried<'_>) -> Dict {
        let mut metadata = carried.stream.metadata.clone();
        let counted = ["BPS", "DURATION", "NUMBER_OF_FRAMES", "NUMBER_OF_BYTES", "_STATISTICS_"];
        for key in metadata.keys() {
            let encoder = key.eq_ignore_ascii_case("encoder") || key.eq_ignore_ascii_case("alpha_mode");
            // Matroska's reader says it twice.
            let stereo =
                |s: &crate::media::StreamInfo| s.side_data.iter().any(|(k, _)| *k == ffi::AVPacketSideDataType::AV_PKT_DATA_STEREO3D);
            let stale = (key.eq_ignore_ascii_case("stereo_mode")
                && !matches!(self.container().as_str(), "matroska" | "webm")
                && stereo(carried.stream))
                || counted.iter().any(|c| key.starts_with(c))
                || (encoder && matches!(carried.form, Form::Encoded));
            if stale && let Ok(key) = c_string(&key, "tag") {
                metadata.remove(&key);
            }
        }
        // MOV knows languages by their bibliographic codes only.
        if self.container() == "mov"
            && let Some(language) = metadata.get(c"language")
            && let Some((_, code)) = BIBLIOGRAPHIC.iter().find(|(code, _)| *code == language)
        {
            metadata.set(c"language", code);
        }
        metadata
    }

    /// The file's tags that are true of the output too.
    pub(super) fn tags(&self) -> Dict {
        let mut metadata = self.info.metadata.clone();
        STALE_TAGS.iter().for_each(|tag| metadata.remove(tag));
        metadata
    }
}

/// Tags about the program that wrote the old file and the file's own identity, which nobody misses: the encoder's name, what
/// MP4's demuxer makes up for every track, what every MXF begins with.
pub(super) fn describes_the_writer(key: &str) -> bool {
    const KEYS: [&str; 16] = [
        "encoder",
        "software",
        "handler_name",
        "vendor_id",
        "operational_pattern_ul",
        "uid",
        "generation_uid",
        "company_name",
        "product_name",
        "product_version_num",
        "product_version",
        "application_platform",
        "product_uid",
        "toolkit_version_num",
        "material_package_umid",
        "file_package_umid",
    ];
    KEYS.iter().any(|k| key.eq_ignore_ascii_case(k))
}
