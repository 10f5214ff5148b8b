//! What a picture carries beside its samples: captions, user data, time codes. Filters see samples only; so what is true of the
//! filtered picture too is handed from the decoder to the encoder, by position in the stream, and what nobody can write is named.

use std::collections::VecDeque;
use std::ffi::CStr;
use std::sync::{Mutex, PoisonError};

use ffmpeg_next::ffi;

use super::hdr::DYNAMIC;
use super::owned::{self, AvFrame};
use super::scan::Scan;

/// More pictures than are ever between source and encoder. Where nobody takes riders (`null:`), old ones are forgotten.
const MOST: usize = 1024;

/// x264 and x265 describe themselves in a message of user data, which is not true of what another encoder writes.
const ENCODERS_OWN: [[u8; 16]; 2] = [
    [0xdc, 0x45, 0xe9, 0xbd, 0xe6, 0xd9, 0x48, 0xb7, 0x96, 0x2c, 0xd8, 0x20, 0xd9, 0x23, 0xee, 0xef],
    [0x2c, 0xa2, 0xde, 0x09, 0xb5, 0x17, 0x47, 0xdb, 0xbb, 0x55, 0xa4, 0xfe, 0x7f, 0xc2, 0xfc, 0x4e],
];

/// Who can write a kind of side data.
#[derive(Clone, Copy)]
pub(super) enum Writer {
    /// Encoders with this option (`encoder_setup` sets it where it is off by itself).
    Option(&'static CStr),
    /// These encoders.
    Named(&'static [&'static str]),
    /// Nobody; the text says what is lost and why.
    Nobody(&'static str),
}

/// What becomes of a kind of side data.
pub(super) struct Kind {
    /// What users call it, in the plural.
    pub name: &'static str,
    pub writer: Writer,
}

/// What becomes of a picture's side data of a kind; None where nothing is lost with it: it is about sound, about how the old
/// stream was coded, or is kept for the stream as a whole (`hdr`, `SourceInfo::adopt_side_data`).
fn kind(kind: ffi::AVFrameSideDataType) -> Option<Kind> {
    use ffi::AVFrameSideDataType::*;
    let (name, writer) = match kind {
        AV_FRAME_DATA_A53_CC => ("closed captions", Writer::Option(c"a53cc")),
        AV_FRAME_DATA_SEI_UNREGISTERED => ("messages of user data", Writer::Option(c"udu_sei")),
        AV_FRAME_DATA_STEREO3D => ("stereo arrangements", Writer::Named(&["libx264", "libx264rgb"])),
        AV_FRAME_DATA_ICC_PROFILE => ("colour profiles", Writer::Named(&["png", "apng", "mjpeg", "tiff", "libjxl"])),
        AV_FRAME_DATA_GOP_TIMECODE => ("time codes", Writer::Named(&["mpeg1video", "mpeg2video"])),
        AV_FRAME_DATA_S12M_TIMECODE => ("time codes", Writer::Option(c"s12m_tc")),
        AV_FRAME_DATA_AFD => ("active format descriptions", Writer::Named(&[])),
        AV_FRAME_DATA_PANSCAN => ("pan-and-scan windows", Writer::Named(&["mpeg2video"])),
        AV_FRAME_DATA_REGIONS_OF_INTEREST => ("regions of interest", Writer::Named(&[])),
        AV_FRAME_DATA_DETECTION_BBOXES => ("detected objects", Writer::Named(&[])),
        AV_FRAME_DATA_DOVI_METADATA | AV_FRAME_DATA_DOVI_RPU_BUFFER => ("Dolby Vision", Writer::Nobody(DYNAMIC)),
        AV_FRAME_DATA_DYNAMIC_HDR_PLUS => ("HDR10+", Writer::Nobody(DYNAMIC)),
        AV_FRAME_DATA_DYNAMIC_HDR_VIVID => ("HDR Vivid", Writer::Nobody(DYNAMIC)),
        AV_FRAME_DATA_MASTERING_DISPLAY_METADATA
        | AV_FRAME_DATA_CONTENT_LIGHT_LEVEL
        | AV_FRAME_DATA_DISPLAYMATRIX
        | AV_FRAME_DATA_SPHERICAL
        | AV_FRAME_DATA_MOTION_VECTORS
        | AV_FRAME_DATA_VIDEO_ENC_PARAMS
        | AV_FRAME_DATA_FILM_GRAIN_PARAMS
        | AV_FRAME_DATA_MATRIXENCODING
        | AV_FRAME_DATA_DOWNMIX_INFO
        | AV_FRAME_DATA_REPLAYGAIN
        | AV_FRAME_DATA_SKIP_SAMPLES
        | AV_FRAME_DATA_AUDIO_SERVICE_TYPE => return None,
        // Kinds of later FFmpegs go by their own names.
        #[allow(unreachable_patterns, reason = "the list is complete for the oldest FFmpeg that is supported")]
        _ => ("", Writer::Named(&[])),
    };
    Some(Kind { name, writer })
}

/// One piece of side data on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rider {
    pub kind: ffi::AVFrameSideDataType,
    pub bytes: Vec<u8>,
}

impl Rider {
    /// What becomes of it.
    pub(super) fn fate(&self) -> Option<Kind> {
        let mut found = kind(self.kind)?;
        if found.name.is_empty() {
            // SAFETY: returns null or a static string.
            let name = unsafe { ffi::av_frame_side_data_name(self.kind).as_ref().map(|text| CStr::from_ptr(text)) };
            found.name = name.and_then(|text| text.to_str().ok()).unwrap_or("unknown side data");
        }
        Some(found)
    }

    /// The time code, of a rider that is one.
    pub(super) fn time_code(&self) -> Option<String> {
        use ffi::AVFrameSideDataType::*;
        let word = |index: usize| Some(u32::from_ne_bytes(self.bytes.get(4 * index..4 * index + 4)?.try_into().ok()?));
        let mut buffer = [0 as libc::c_char; 64];
        // SAFETY: the buffer is larger than FFmpeg's texts of time codes (AV_TIMECODE_STR_SIZE is 23), which end with a zero.
        unsafe {
            match self.kind {
                // A count, then that many codes.
                AV_FRAME_DATA_S12M_TIMECODE if word(0)? > 0 => {
                    ffi::av_timecode_make_smpte_tc_string(buffer.as_mut_ptr(), word(1)?, 0);
                }
                AV_FRAME_DATA_GOP_TIMECODE => {
                    let code = i64::from_ne_bytes(self.bytes.get(..8)?.try_into().ok()?);
                    ffi::av_timecode_make_mpeg_tc_string(buffer.as_mut_ptr(), u32::try_from(code).ok()?);
                }
                _ => return None,
            }
            owned::text(buffer.as_ptr())
        }
    }
}

/// What one picture brings.
#[derive(Debug, Default)]
pub(super) struct Load {
    pub riders: Vec<Rider>,
    /// How it was scanned, where that is not how the first picture was.
    pub scan: Option<Scan>,
}

/// The riders of the pictures that are on their way, by position in the stream. Pictures without any cost nothing.
#[derive(Debug, Default)]
pub(super) struct Riders {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    waiting: VecDeque<(u64, Load)>,
    /// Whether the time codes of MPEG's groups of pictures count from zero; known with the first of them.
    counts_from_zero: Option<bool>,
}

impl Riders {
    /// Remembers what picture `seq` brings. `scan` is how it was scanned, if unlike the first.
    pub(super) fn remember(&self, seq: u64, frame: &AvFrame, scan: Option<Scan>) {
        let size = (frame.get().width, frame.get().height);
        let worth = |&(kind, bytes): &(ffi::AVFrameSideDataType, &[u8])| self::kind(kind).is_some() && says_something(kind, bytes, size);
        let mut riders: Vec<Rider> =
            frame.all_side_data().filter(worth).map(|(kind, bytes)| Rider { kind, bytes: bytes.to_vec() }).collect();
        if riders.is_empty() && scan.is_none() {
            return;
        }
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        // Every MPEG-2 stream has them; those counted from zero say only how many pictures came before.
        riders.retain(|rider| {
            let Some(code) = rider.time_code().filter(|_| rider.kind == ffi::AVFrameSideDataType::AV_FRAME_DATA_GOP_TIMECODE) else {
                return true;
            };
            !*state.counts_from_zero.get_or_insert(code.starts_with("00:00:"))
        });
        if riders.is_empty() && scan.is_none() {
            return;
        }
        if state.waiting.len() >= MOST {
            state.waiting.pop_front();
        }
        state.waiting.push_back((seq, Load { riders, scan }));
    }

    /// What picture `seq` brought; what those before it brought is forgotten.
    pub(super) fn take(&self, seq: u64) -> Option<Load> {
        let waiting = &mut self.state.lock().unwrap_or_else(PoisonError::into_inner).waiting;
        while waiting.front().is_some_and(|&(at, _)| at < seq) {
            waiting.pop_front();
        }
        waiting.pop_front_if(|&mut (at, _)| at == seq).map(|(_, load)| load)
    }
}

/// Whether side data says anything that would be missed.
fn says_something(kind: ffi::AVFrameSideDataType, bytes: &[u8], (width, height): (i32, i32)) -> bool {
    use ffi::AVFrameSideDataType::*;
    match kind {
        AV_FRAME_DATA_SEI_UNREGISTERED => !ENCODERS_OWN.iter().any(|own| bytes.starts_with(own)),
        // AVPanScan: an identifier, width and height in sixteenths, three positions. Most streams name the whole picture.
        AV_FRAME_DATA_PANSCAN => {
            let word = |index: usize| bytes.get(4 * index..4 * index + 4).and_then(|w| Some(i32::from_ne_bytes(w.try_into().ok()?)));
            let smaller = |index, side: i32| word(index).is_some_and(|w| w > 0 && w < side.saturating_mul(16));
            smaller(1, width) || smaller(2, height) || bytes.iter().skip(12).any(|&b| b != 0)
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ffi::AVFrameSideDataType::*;

    fn frame(riders: &[(ffi::AVFrameSideDataType, &[u8])]) -> AvFrame {
        let mut frame = AvFrame::alloc().unwrap();
        (frame.get_mut().width, frame.get_mut().height) = (64, 48);
        for (kind, bytes) in riders {
            assert!(frame.add_side_data(*kind, bytes));
        }
        frame
    }

    #[test]
    fn riders_stay_with_their_picture_and_the_rest_is_dropped() {
        let riders = Riders::default();
        riders.remember(0, &frame(&[(AV_FRAME_DATA_A53_CC, b"one"), (AV_FRAME_DATA_MOTION_VECTORS, b"x")]), None);
        riders.remember(1, &frame(&[(AV_FRAME_DATA_MOTION_VECTORS, b"x")]), None);
        riders.remember(2, &frame(&[(AV_FRAME_DATA_A53_CC, b"three")]), Some(Scan::BottomFirst));
        assert!(riders.take(1).is_none());
        let load = riders.take(2).unwrap();
        assert_eq!(
            (load.riders, load.scan),
            (vec![Rider { kind: AV_FRAME_DATA_A53_CC, bytes: b"three".to_vec() }], Some(Scan::BottomFirst))
        );
    }

    #[test]
    fn what_says_nothing_is_no_loss() {
        let size = (64, 48);
        let pan = |words: [i32; 3]| words.iter().flat_map(|w| w.to_ne_bytes()).chain([0; 12]).collect::<Vec<u8>>();
        assert!(!says_something(AV_FRAME_DATA_PANSCAN, &pan([0, 64 * 16, 48 * 16]), size));
        assert!(says_something(AV_FRAME_DATA_PANSCAN, &pan([0, 48 * 16, 48 * 16]), size));
        assert!(!says_something(AV_FRAME_DATA_SEI_UNREGISTERED, &ENCODERS_OWN[0], size));
        assert!(says_something(AV_FRAME_DATA_SEI_UNREGISTERED, &[1; 20], size));
    }

    #[test]
    fn time_codes_that_count_from_zero_say_nothing() {
        // ISO 13818-2, 6.3.8: hours, minutes, a marker, seconds, pictures.
        let gop = |hours: i64| (hours << 19 | 1 << 12 | 5 << 6).to_ne_bytes();
        for (first, kept) in [(0, false), (10, true)] {
            let riders = Riders::default();
            riders.remember(0, &frame(&[(AV_FRAME_DATA_GOP_TIMECODE, &gop(first))]), None);
            riders.remember(1, &frame(&[(AV_FRAME_DATA_GOP_TIMECODE, &gop(first + 1))]), None);
            assert_eq!((riders.take(0).is_some(), riders.take(1).is_some()), (kept, kept));
        }
        let rider = Rider { kind: AV_FRAME_DATA_GOP_TIMECODE, bytes: gop(10).to_vec() };
        assert_eq!(rider.time_code().as_deref(), Some("10:00:05:00"));
    }

    #[test]
    fn kinds_have_names_and_fates() {
        for (kind, name) in [(AV_FRAME_DATA_AFD, "active format descriptions"), (AV_FRAME_DATA_A53_CC, "closed captions")] {
            assert_eq!(Rider { kind, bytes: Vec::new() }.fate().map(|k| k.name), Some(name));
        }
        assert!(Rider { kind: AV_FRAME_DATA_MOTION_VECTORS, bytes: Vec::new() }.fate().is_none());
    }
}
