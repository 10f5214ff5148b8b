//! Which streams of an input are filtered, carried over, or left behind because the user said so.

use ffmpeg_next::ffi;

use super::{c_string, log};
use crate::error::{Error, Result};

/// The user's choice of streams; the default filters the main video and carries everything else over.
#[derive(Clone, Debug, Default)]
pub struct Select {
    /// The video to filter, as a number or FFmpeg's stream specifier (`v:1`).
    pub video: Option<String>,
    /// Specifiers of streams to carry over (`a:0`, `s`, `#0x101`, `m:language:eng`, `0` for all); with a leading `-` to leave out.
    pub map: Vec<String>,
    /// Leave sound out.
    pub no_audio: bool,
    /// Leave subtitles out.
    pub no_subtitles: bool,
}

/// What was chosen.
pub(super) struct Selected {
    /// Index of the filtered stream.
    pub video: usize,
    /// For every stream: whether it is in the output's plan.
    pub kept: Vec<bool>,
}

/// What matters of a stream here.
struct Candidate {
    kind: ffi::AVMediaType,
    cover: bool,
    default: bool,
    pixels: i64,
}

/// Chooses among the streams of `context`. `tried` opens error messages.
///
/// # Errors
/// No stream, no video, a specifier that is malformed or matches nothing.
///
/// # Safety
/// `context` is an open, probed demuxer.
pub(super) unsafe fn select(context: *mut ffi::AVFormatContext, wanted: &Select, tried: &str, mark: log::Mark) -> Result<Selected> {
    // SAFETY: the caller's promise: `nb_streams` valid streams.
    let streams: Vec<Candidate> = unsafe {
        (0..(*context).nb_streams as usize)
            .map(|index| {
                let stream = &**(*context).streams.add(index);
                let params = &*stream.codecpar;
                Candidate {
                    kind: params.codec_type,
                    cover: stream.disposition & ffi::AV_DISPOSITION_ATTACHED_PIC != 0,
                    default: stream.disposition & ffi::AV_DISPOSITION_DEFAULT != 0,
                    pixels: i64::from(params.width) * i64::from(params.height),
                }
            })
            .collect()
    };
    if streams.is_empty() {
        let lines = mark.lines().map_or(String::new(), |l| format!(" ({l})"));
        return Err(Error::failed(tried, format!("it holds no stream at all: the header is damaged or cut off{lines}")));
    }
    // SAFETY: passed on.
    let matches = |specifier: &str, option: &str| unsafe { matching(context, streams.len(), specifier, option, tried) };
    let (mut kept, mut positive) = (vec![true; streams.len()], false);
    for specifier in &wanted.map {
        let (leave, text) = specifier.strip_prefix('-').map_or((false, specifier.as_str()), |rest| (true, rest));
        let found = matches(text, "--map")?;
        if !leave && !std::mem::replace(&mut positive, true) {
            kept.fill(false);
        }
        kept.iter_mut().zip(found).filter(|(_, found)| *found).for_each(|(kept, _)| *kept = !leave);
    }
    for (kept, stream) in kept.iter_mut().zip(&streams) {
        let unwanted = (wanted.no_audio && stream.kind == ffi::AVMediaType::AVMEDIA_TYPE_AUDIO)
            || (wanted.no_subtitles && stream.kind == ffi::AVMediaType::AVMEDIA_TYPE_SUBTITLE);
        *kept &= !unwanted;
    }
    let allowed = match &wanted.video {
        Some(specifier) => matches(specifier, "--stream")?,
        None => vec![true; streams.len()],
    };
    let videos = || {
        let all = streams.iter().enumerate().filter(|(_, s)| s.kind == ffi::AVMediaType::AVMEDIA_TYPE_VIDEO && !s.cover);
        all.filter(|(index, _)| allowed.get(*index) == Some(&true))
    };
    let mapped = wanted.video.is_none() && positive && videos().any(|(index, _)| kept.get(index) == Some(&true));
    let usable = videos().filter(|(index, _)| !mapped || kept.get(*index) == Some(&true));
    // Of equals the first one.
    let video = usable.max_by_key(|(index, s)| (s.default, s.pixels, std::cmp::Reverse(*index))).map(|(index, _)| index);
    let Some(video) = video else {
        if let Some(specifier) = &wanted.video {
            return Err(Error::usage(tried, format!("--stream {specifier} names no video stream")).hint(listing(&streams)));
        }
        let audio = streams.iter().any(|s| s.kind == ffi::AVMediaType::AVMEDIA_TYPE_AUDIO);
        return Err(Error::failed(tried, if audio { "it has sound but no video stream" } else { "it has no video stream" }));
    };
    if let Some(kept) = kept.get_mut(video) {
        *kept = true;
    }
    Ok(Selected { video, kept })
}

fn listing(streams: &[Candidate]) -> String {
    let videos: Vec<String> = streams
        .iter()
        .enumerate()
        .filter(|(_, s)| s.kind == ffi::AVMediaType::AVMEDIA_TYPE_VIDEO && !s.cover)
        .map(|(index, _)| index.to_string())
        .collect();
    if videos.is_empty() { "the input has no video stream".to_owned() } else { format!("its video streams are {}", videos.join(", ")) }
}

/// Which streams match `specifier`; ffmpeg's leading `0:` (the first input), its `0` for all of it, and its closing `?` (may
/// match nothing) are accepted.
///
/// # Safety
/// As for [`select`].
unsafe fn matching(context: *mut ffi::AVFormatContext, count: usize, specifier: &str, option: &str, tried: &str) -> Result<Vec<bool>> {
    let (text, optional) = specifier.strip_suffix('?').map_or((specifier, false), |rest| (rest, true));
    if text == "0" && option == "--map" {
        return Ok(vec![true; count]);
    }
    let text = text.strip_prefix("0:").unwrap_or(text);
    let c_text = c_string(text, "stream specifier")?;
    let mut found = Vec::with_capacity(count);
    for index in 0..count {
        // SAFETY: the caller's promise; a terminated string.
        let code = unsafe { ffi::avformat_match_stream_specifier(context, *(*context).streams.add(index), c_text.as_ptr()) };
        if code < 0 {
            return Err(Error::usage(tried, format!("{option} {specifier} is no stream specifier"))
                .hint("give a number, or for example a:0, s, v:1, m:language:eng"));
        }
        found.push(code > 0);
    }
    if !optional && !found.contains(&true) {
        return Err(
            Error::usage(tried, format!("{option} {specifier} matches no stream")).hint(format!("it has streams 0 to {}", count - 1))
        );
    }
    Ok(found)
}
