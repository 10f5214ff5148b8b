//! Options of `convoy run` that say which part of the input, which streams, and what to do about its oddities.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::media::{Gaps, OnChange, Select};

/// Which part of the input, which streams.
#[derive(Debug, Args)]
#[command(next_help_heading = "Input")]
pub struct SelectionArgs {
    /// Begin with the first frame at this time after the input's start: seconds, [HH:]MM:SS[.m], or with ms or us.
    #[arg(long, value_name = "T", value_parser = parse_time, allow_hyphen_values = true)]
    pub ss: Option<i64>,
    /// End before the first frame at this time after the input's start.
    #[arg(long, value_name = "T", value_parser = parse_time, allow_hyphen_values = true)]
    pub to: Option<i64>,
    /// The video stream to filter, by number or ffmpeg's specifier (v:1); others are copied.
    #[arg(long, value_name = "STREAM")]
    pub stream: Option<String>,
    /// Carry over only these streams beside the filtered one (a:0, s, m:language:eng), or, with a leading -, all but these; may
    /// be repeated.
    #[arg(long, value_name = "STREAMS", allow_hyphen_values = true)]
    pub map: Vec<String>,
    /// Leave sound out.
    #[arg(long)]
    pub no_audio: bool,
    /// Leave subtitles out.
    #[arg(long)]
    pub no_subs: bool,
    /// A missing number of an image sequence: refuse, let the images around it follow each other, or keep the one before on
    /// screen.
    #[arg(long, value_enum, default_value_t)]
    pub gaps: GapsArg,
    /// A change of size, aspect or pixel format in mid-stream: scale to the first picture's (with a warning), or fail.
    #[arg(long, value_enum, default_value_t)]
    pub on_change: OnChangeArg,
    /// Interlaced video: filter each field by itself, or whole frames; auto goes by what the pictures say.
    #[arg(long, value_enum, default_value_t)]
    pub fields: Fields,
    /// Read at the speed at which the input is shown, as ffmpeg's -re: the default for live outputs (rtmp, rtsp, rtp, udp, srt, rist)
    /// unless the input is live itself.
    #[arg(long, alias = "realtime", overrides_with = "no_re")]
    pub re: bool,
    /// Read as fast as possible, whatever the output.
    #[arg(long, alias = "no-realtime", overrides_with = "re")]
    pub no_re: bool,
    /// Exit with 1 when the input is damaged or ends early (the output is written all the same).
    #[arg(long)]
    pub strict: bool,
    /// Note times, duration and size of every packet and frame at each stage, as JSON lines in FILE (default: stderr).
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-", help_heading = "Reporting")]
    pub log_frames: Option<PathBuf>,
}

impl SelectionArgs {
    /// The choice of streams.
    pub fn select(&self) -> Select {
        Select { video: self.stream.clone(), map: self.map.clone(), no_audio: self.no_audio, no_subtitles: self.no_subs }
    }
}

/// `--gaps`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum GapsArg {
    /// Refuse.
    #[default]
    Error,
    /// Close the gap.
    Skip,
    /// Keep the image before.
    Hold,
}

impl From<GapsArg> for Gaps {
    fn from(gaps: GapsArg) -> Self {
        match gaps {
            GapsArg::Error => Self::Error,
            GapsArg::Skip => Self::Skip,
            GapsArg::Hold => Self::Hold,
        }
    }
}

/// `--on-change`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OnChangeArg {
    /// Scale, with a warning.
    #[default]
    Scale,
    /// Fail.
    Error,
}

impl From<OnChangeArg> for OnChange {
    fn from(on_change: OnChangeArg) -> Self {
        match on_change {
            OnChangeArg::Scale => Self::Scale,
            OnChangeArg::Error => Self::Error,
        }
    }
}

/// `--fields`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Fields {
    /// By field when the pictures are interlaced.
    #[default]
    Auto,
    /// Whole frames.
    Frame,
    /// By field.
    Field,
}

/// A time in microseconds, as ffmpeg writes them; integers only, so that a frame's own time names it exactly.
pub(super) fn parse_time(text: &str) -> Result<i64, String> {
    let wrong = || "expected a time such as 90, 1.5, 1:30, 00:01:30.250, 1500ms or 90s, not negative".to_owned();
    let (number, scale) = if let Some(rest) = text.strip_suffix("ms") {
        (rest, 1_000)
    } else if let Some(rest) = text.strip_suffix("us") {
        (rest, 1)
    } else {
        (text.strip_suffix('s').unwrap_or(text), 1_000_000)
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let parts: Vec<&str> = whole.split(':').collect();
    let digits = |t: &str| !t.is_empty() && t.bytes().all(|b| b.is_ascii_digit());
    let colons = parts.len() > 1;
    if parts.len() > 3
        || (colons && scale != 1_000_000)
        || !fraction.bytes().all(|b| b.is_ascii_digit())
        || !parts.iter().all(|p| digits(p))
    {
        return Err(wrong());
    }
    let mut units: i64 = 0;
    for (index, part) in parts.iter().enumerate() {
        let value: i64 = part.parse().map_err(|_| wrong())?;
        if index > 0 && value >= 60 {
            return Err(wrong());
        }
        units = units.checked_mul(60).and_then(|u| u.checked_add(value)).ok_or_else(wrong)?;
    }
    let mut us = units.checked_mul(scale).filter(|&us| us < 1 << 50).ok_or_else(wrong)?;
    // Microseconds are the finest unit; the seventh decimal rounds.
    let mut weight = scale;
    for digit in fraction.bytes().map(|b| i64::from(b - b'0')) {
        if weight == 1 {
            us += i64::from(digit >= 5);
            break;
        }
        weight /= 10;
        us += digit * weight;
    }
    Ok(us)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_ffmpeg_writes_them() {
        for (text, us) in [
            ("90", 90_000_000),
            ("1.5", 1_500_000),
            ("0.033367", 33_367),
            ("1:30", 90_000_000),
            ("01:00:00.25", 3_600_250_000),
            ("1500ms", 1_500_000),
            ("2s", 2_000_000),
            ("7us", 7),
            ("0.0000005", 1),
        ] {
            assert_eq!(parse_time(text), Ok(us), "{text}");
        }
        for bad in ["", "-1", "x", "1:90", "1:2:3:4", "1.x", "1:2ms", ":", "9999999999999999", "1e3"] {
            assert!(parse_time(bad).is_err(), "{bad}");
        }
    }
}
