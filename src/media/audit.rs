//! The output, read back by FFmpeg's own reader and held against what was to be in it: what is missing is named. This is the
//! net under everything that is known beforehand (`container`, `tags`): no list of what containers hold is ever complete.

use std::collections::HashSet;

use ffmpeg_next::ffi;

use super::container::{is_mov, same_tag};
use super::header::{Header, StreamFacts, disposition_name, side_data_name};
use super::info::StreamKind;
use super::owned::Dict;
use super::tags::describes_the_writer;

/// Something that is not in the output. Two losses with the same key are one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Loss {
    /// Stream of the output, if it is one stream's.
    pub stream: Option<usize>,
    pub what: What,
}

/// What is missing.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum What {
    /// The stream itself.
    Stream,
    Tag(String),
    Disposition(String),
    Chapters,
    ChapterTitles,
    Programs,
    SideData(String),
    Aspect,
    Colour(&'static str),
    FieldOrder,
}

impl Loss {
    pub(super) fn of(stream: impl Into<Option<usize>>, what: What) -> Self {
        Self { stream: stream.into(), what }
    }
}

/// What the output should hold, noted before its header is written.
pub(super) struct Wanted {
    pub header: Header,
    /// Names of the streams for messages, in the output's order.
    pub labels: Vec<String>,
    pub container: String,
    /// Output stream of the filtered video.
    pub video: usize,
    /// Whether the encoder writes a stereo arrangement into the pictures.
    pub stereo_in_pictures: bool,
    /// What the user has read already.
    pub named: Vec<Loss>,
}

/// Side data that says something of a whole stream and is not named elsewhere.
fn is_told_of(kind: ffi::AVPacketSideDataType, encoded: bool) -> bool {
    use ffi::AVPacketSideDataType::*;
    match kind {
        AV_PKT_DATA_SPHERICAL | AV_PKT_DATA_STEREO3D | AV_PKT_DATA_ICC_PROFILE => true,
        AV_PKT_DATA_DISPLAYMATRIX
        | AV_PKT_DATA_MASTERING_DISPLAY_METADATA
        | AV_PKT_DATA_CONTENT_LIGHT_LEVEL
        | AV_PKT_DATA_DOVI_CONF
        | AV_PKT_DATA_REPLAYGAIN
        | AV_PKT_DATA_AUDIO_SERVICE_TYPE => !encoded,
        _ => false,
    }
}

impl Wanted {
    /// Warnings about what `got` lacks.
    pub(super) fn missing_from(&self, got: &Header) -> Vec<String> {
        let mut losses = self.losses(got);
        losses.retain(|loss| !self.named.contains(loss));
        describe(&losses, &self.labels, &self.container, &self.header)
    }

    fn losses(&self, got: &Header) -> Vec<Loss> {
        // A time code may be a stream's.
        let elsewhere = |key: &str| key == "timecode" && got.streams.iter().any(|s| s.tags.get(c"timecode").is_some());
        let mut losses: Vec<Loss> = lost_tags(&self.header.tags, &got.tags, &self.container)
            .filter(|key| !elsewhere(key))
            .map(|key| Loss::of(None, What::Tag(key)))
            .collect();
        if got.chapters.len() < self.header.chapters.len() {
            losses.push(Loss::of(None, What::Chapters));
        } else if self.header.chapters.iter().zip(&got.chapters).any(|(want, got)| want.title.is_some() && want.title != got.title) {
            losses.push(Loss::of(None, What::ChapterTitles));
        } else if self.header.chapters.iter().zip(&got.chapters).any(|(want, got)| want.start_us.abs_diff(got.start_us) > 100_000) {
            // Sound that begins before zero moves everything a little in Matroska.
            losses.push(Loss::of(None, What::Chapters));
        }
        if got.programs.len() < self.header.programs.len() && self.header.programs.len() > 1 {
            losses.push(Loss::of(None, What::Programs));
        }
        let mut taken = HashSet::new();
        for (index, want) in self.header.streams.iter().enumerate() {
            let found = counterpart(want, &got.streams, &taken);
            let Some((place, got)) = found else {
                losses.push(Loss::of(index, What::Stream));
                continue;
            };
            taken.insert(place);
            losses.extend(self.stream_losses(index, want, got).into_iter().map(|what| Loss::of(index, what)));
        }
        losses
    }

    fn stream_losses(&self, index: usize, want: &StreamFacts, got: &StreamFacts) -> Vec<What> {
        let encoded = index == self.video;
        // MP4's track names are written, and FFmpeg 5.1 does not read them.
        let unread = |key: &str| is_mov(&self.container) && key == "title";
        // Most files date their streams as they date themselves.
        let known = |key: &str| key == "creation_time" && want.tags.get(c"creation_time") == self.header.tags.get(c"creation_time");
        let mut lost: Vec<What> =
            lost_tags(&want.tags, &got.tags, &self.container).filter(|key| !unread(key) && !known(key)).map(What::Tag).collect();
        let bits = lost_dispositions(index, &self.header.streams) & !got.disposition;
        lost.extend(names_of(bits).into_iter().map(What::Disposition));
        for &kind in want.side_data.iter().filter(|&&kind| is_told_of(kind, encoded) && !got.side_data.contains(&kind)) {
            let stereo = kind == ffi::AVPacketSideDataType::AV_PKT_DATA_STEREO3D;
            if !(encoded && stereo && self.stereo_in_pictures) {
                lost.push(What::SideData(side_data_name(kind)));
            }
        }
        if want.kind != StreamKind::Video || want.disposition & ffi::AV_DISPOSITION_ATTACHED_PIC != 0 {
            return lost;
        }
        if (want.aspect / got.aspect - 1.0).abs() > 0.01 {
            lost.push(What::Aspect);
        }
        lost.extend(want.colour.missing_from(&got.colour).into_iter().filter(|name| want.may_miss(name)).map(What::Colour));
        let interlaced = |order| !matches!(order, ffi::AVFieldOrder::AV_FIELD_UNKNOWN | ffi::AVFieldOrder::AV_FIELD_PROGRESSIVE);
        if interlaced(want.field_order) && !interlaced(got.field_order) {
            lost.push(What::FieldOrder);
        }
        lost
    }
}

/// The stream of a file that was read back that is `want`'s: by the container's number, else the next of its codec or kind.
fn counterpart<'a>(want: &StreamFacts, got: &'a [StreamFacts], taken: &HashSet<usize>) -> Option<(usize, &'a StreamFacts)> {
    // Matroska's reader takes attached pictures for videos.
    let alike = |g: &StreamFacts| {
        g.kind == want.kind || (want.kind == StreamKind::Attachment && g.disposition & ffi::AV_DISPOSITION_ATTACHED_PIC != 0)
    };
    let free = || got.iter().enumerate().filter(|(n, g)| !taken.contains(n) && alike(g));
    let numbered = free().find(|(_, g)| want.id != 0 && g.id == want.id && g.codec == want.codec);
    // A few codecs have another name when they are read (wrapped_avframe).
    numbered.or_else(|| free().find(|(_, g)| g.codec == want.codec)).or_else(|| free().next())
}

/// Keys of `want` that `got` lacks or says otherwise.
fn lost_tags<'a>(want: &'a Dict, got: &Dict, container: &'a str) -> impl Iterator<Item = String> + 'a {
    let got = got.clone();
    want.keys().into_iter().filter(move |key| {
        let Ok(c_key) = super::c_string(key, "tag") else { return false };
        let value = want.get(&c_key).unwrap_or_default();
        // A clock that was never set.
        let unset = key == "creation_time" && value.starts_with("1970-01-01T00:00:00");
        let silent = value.is_empty() || unset || describes_the_writer(key) || (key == "language" && value == "und");
        !silent && !got.get(&c_key).is_some_and(|kept| same_tag(container, key, &value, &kept))
    })
}

/// The dispositions of stream `index` that would be missed. That the first stream of its kind is the default goes without saying.
fn lost_dispositions(index: usize, streams: &[StreamFacts]) -> i32 {
    let Some(stream) = streams.get(index) else { return 0 };
    let first = streams.iter().position(|s| s.kind == stream.kind) == Some(index);
    let implied = if first { ffi::AV_DISPOSITION_DEFAULT } else { 0 };
    stream.disposition & !implied & !ffi::AV_DISPOSITION_TIMED_THUMBNAILS
}

fn names_of(bits: i32) -> Vec<String> {
    (0..31).map(|n| 1 << n).filter(|bit| bits & bit != 0).map(disposition_name).collect()
}

/// What is known to be lost before anything is written: `holds` says what the container has a place for.
pub(super) fn foreseen(header: &Header, container: &str, holds: super::container::Holds) -> Vec<Loss> {
    let mut losses = Vec::new();
    if !holds.chapters && !header.chapters.is_empty() {
        losses.push(Loss::of(None, What::Chapters));
    }
    if container != "mpegts" && header.programs.len() > 1 {
        losses.push(Loss::of(None, What::Programs));
    }
    for index in 0..header.streams.len() {
        let bits = lost_dispositions(index, &header.streams) & !holds.dispositions;
        losses.extend(names_of(bits).into_iter().map(|name| Loss::of(index, What::Disposition(name))));
    }
    losses
}

/// One sentence per place and kind of loss.
pub(super) fn describe(losses: &[Loss], labels: &[String], container: &str, header: &Header) -> Vec<String> {
    let mut texts = Vec::new();
    let label = |stream: Option<usize>| stream.and_then(|n| labels.get(n)).map_or(String::new(), |label| format!(" of {label}"));
    let mut streams: Vec<Option<usize>> = losses.iter().map(|l| l.stream).collect();
    streams.dedup();
    for stream in streams {
        let of = label(stream);
        let here = || losses.iter().filter(|l| l.stream == stream).map(|l| &l.what);
        let some = |pick: fn(&What) -> Option<&str>| here().filter_map(pick).collect::<Vec<&str>>();
        let tags = some(|what| if let What::Tag(key) = what { Some(key) } else { None });
        if !tags.is_empty() {
            let remedy = if is_mov(container) && stream.is_none() { super::tags::MOV_REMEDY } else { "" };
            texts.push(left_out("tag", &tags, &of, container) + remedy);
        }
        let dispositions = some(|what| if let What::Disposition(name) = what { Some(name) } else { None });
        if !dispositions.is_empty() {
            texts.push(left_out("disposition", &dispositions, &of, container));
        }
        let colours = some(|what| if let What::Colour(name) = what { Some(name) } else { None });
        if !colours.is_empty() {
            texts.push(left_out("colour tag", &colours, &of, container));
        }
        for what in here() {
            texts.push(match what {
                What::Tag(_) | What::Disposition(_) | What::Colour(_) => continue,
                What::Stream => format!("{} is not in the output: no packet of it came", of.trim_start_matches(" of ")),
                What::Chapters => format!("the {} chapters are left out: {container} cannot hold them", header.chapters.len()),
                What::ChapterTitles => format!("the titles of chapters are left out: {container} cannot hold them"),
                What::Programs => {
                    let names = header.programs.iter().map(|p| format!("'{p}'")).collect::<Vec<_>>().join(", ");
                    format!("the programmes {names} are left out: {container} holds streams only")
                }
                What::SideData(name) => format!("the {name} metadata{of} is left out: {container} cannot hold it"),
                What::Aspect => format!("the sample aspect{of} is left out: {container} cannot hold it"),
                What::FieldOrder => format!("the order of the fields{of} is left out: neither the encoder nor {container} can hold it"),
            });
        }
    }
    texts
}

/// "the tags 'a', 'b' of audio stream #1 (aac) are left out: mp4 cannot hold them".
pub(super) fn left_out(noun: &str, names: &[impl AsRef<str>], place: &str, container: &str) -> String {
    let quoted = names.iter().map(|name| format!("'{}'", name.as_ref())).collect::<Vec<_>>().join(", ");
    match names.len() {
        1 => format!("the {noun} {quoted}{place} is left out: {container} cannot hold it"),
        _ => format!("the {noun}s {quoted}{place} are left out: {container} cannot hold them"),
    }
}
