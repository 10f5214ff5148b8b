//! How values are written on the command line: sizes, counts, rates, pairs.

pub(super) fn parse_pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE".to_owned()),
    }
}

/// `1920x1080`.
pub fn parse_size(text: &str) -> Result<(usize, usize), String> {
    let side = |t: &str| t.parse::<usize>().ok().filter(|s| (1..=crate::frame::MAX_SIDE).contains(s));
    text.split_once('x')
        .and_then(|(w, h)| Some((side(w)?, side(h)?)))
        .ok_or_else(|| format!("expected WIDTHxHEIGHT, each 1 to {}", crate::frame::MAX_SIDE))
}

pub(super) fn parse_bounded(text: &str, limit: usize) -> Result<usize, String> {
    text.parse().ok().filter(|n| (1..=limit).contains(n)).ok_or_else(|| format!("expected a whole number from 1 to {limit}"))
}

pub(super) fn parse_lanes(text: &str) -> Result<usize, String> {
    parse_bounded(text, 64)
}

pub(super) fn parse_threads(text: &str) -> Result<usize, String> {
    parse_bounded(text, 512)
}

pub(super) fn parse_window(text: &str) -> Result<usize, String> {
    parse_bounded(text, 255)
}

pub(super) fn parse_batch(text: &str) -> Result<usize, String> {
    parse_bounded(text, 1 << 20)
}

pub(super) fn parse_limit(text: &str) -> Result<std::time::Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|s| (0.1..=86_400.0).contains(s));
    seconds.map(std::time::Duration::from_secs_f64).ok_or_else(|| "expected seconds from 0.1 to 86400".to_owned())
}

pub(super) fn parse_seconds(text: &str) -> Result<std::time::Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|s| (0.0..=600.0).contains(s));
    seconds.map(std::time::Duration::from_secs_f64).ok_or_else(|| "expected seconds from 0 to 600".to_owned())
}

pub(super) fn parse_share(text: &str) -> Result<f64, String> {
    text.parse::<f64>().ok().filter(|s| (0.0..=1.0).contains(s)).ok_or_else(|| "expected a share from 0 to 1".to_owned())
}

pub(super) fn parse_percent(text: &str) -> Result<f64, String> {
    text.parse::<f64>().ok().filter(|p| (0.0..=1000.0).contains(p)).ok_or_else(|| "expected percent from 0 to 1000".to_owned())
}

/// A number with an optional suffix; `step` is 1024 for bytes, 1000 for bit rates.
pub(super) fn parse_scaled(text: &str, step: f64) -> Option<f64> {
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(split);
    let power = match suffix.trim_end_matches("iB").trim_end_matches('B') {
        "" => 0,
        "k" | "K" => 1,
        "M" => 2,
        "G" => 3,
        "T" => 4,
        _ => return None,
    };
    number.parse::<f64>().ok().map(|n| n * step.powi(power)).filter(|n| *n >= 1.0 && *n < 9e15)
}

pub(super) fn parse_bytes(text: &str) -> Result<usize, String> {
    parse_scaled(text, 1024.0).map(|n| n as usize).ok_or_else(|| "expected a size such as 512M or 4G".to_owned())
}

pub(super) fn parse_bit_rate(text: &str) -> Result<u64, String> {
    parse_scaled(text, 1000.0).map(|n| n as u64).ok_or_else(|| "expected a rate such as 800k or 4M".to_owned())
}
