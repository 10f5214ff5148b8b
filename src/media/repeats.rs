//! How often an animation is shown, which FFmpeg's readers of GIF and APNG leave out: it stands among a file's first bytes.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Bytes that are searched: a colour table of 256 entries and the extensions of common writers lie before it.
const HEAD: u64 = 4096;

/// How often the animation in `file` is shown, 0 for ever; None if `container` is no animation's or the file cannot be read again.
pub(super) fn of_file(container: &str, file: &str) -> Option<u32> {
    let plays = match container {
        "gif" => of_gif,
        "apng" => of_apng,
        _ => return None,
    };
    let mut head = Vec::new();
    File::open(Path::new(file)).ok()?.take(HEAD).read_to_end(&mut head).ok()?;
    Some(plays(&head))
}

/// The Netscape extension counts repetitions after the first time; without one there are none.
fn of_gif(head: &[u8]) -> u32 {
    const MARK: &[u8] = b"NETSCAPE2.0\x03\x01";
    let found = head.windows(MARK.len() + 2).find(|w| w.starts_with(MARK));
    let count = found.and_then(|w| w.last_chunk().copied()).map(u16::from_le_bytes);
    count.map_or(1, |count| if count == 0 { 0 } else { u32::from(count) + 1 })
}

/// The chunk `acTL`: number of pictures, number of plays.
fn of_apng(head: &[u8]) -> u32 {
    const MARK: &[u8] = b"acTL";
    let found = head.windows(MARK.len() + 8).find(|w| w.starts_with(MARK));
    found.and_then(|w| w.last_chunk().copied()).map_or(1, u32::from_be_bytes)
}

/// The muxer's option for `plays` (0: for ever); None if `container` holds no such number.
pub(super) fn option(container: &str, plays: u32) -> Option<(&'static std::ffi::CStr, String)> {
    match (container, plays) {
        ("gif", 0) => Some((c"loop", "0".to_owned())),
        ("gif", 1) => Some((c"loop", "-1".to_owned())),
        ("gif", n) => Some((c"loop", (n - 1).min(u32::from(u16::MAX)).to_string())),
        ("apng", n) => Some((c"plays", n.min(u32::from(u16::MAX)).to_string())),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_where_they_stand() {
        assert_eq!(of_gif(b"GIF89a.....!\xFF\x0BNETSCAPE2.0\x03\x01\x00\x00\x00"), 0);
        assert_eq!(of_gif(b"GIF89a.....!\xFF\x0BNETSCAPE2.0\x03\x01\x02\x01\x00"), 0x0103);
        assert_eq!(of_gif(b"GIF89a.....!\xFF\x0BNETSCAPE2.0\x03\x01\x02"), 1, "cut off");
        assert_eq!(of_apng(b"\x89PNG....acTL\x00\x00\x00\x05\x00\x00\x00\x07crc"), 7);
        assert_eq!((of_gif(b""), of_apng(b"")), (1, 1));
    }

    #[test]
    fn options_give_back_what_was_read() {
        let value = |container, plays| option(container, plays).map(|(_, value)| value);
        assert_eq!([0, 1, 4, 70_000].map(|n| value("gif", n).unwrap_or_default()), ["0", "-1", "3", "65535"]);
        assert_eq!([0, 1, 4].map(|n| value("apng", n).unwrap_or_default()), ["0", "1", "4"]);
        assert_eq!(value("mp4", 3), None);
    }
}
