//! What this FFmpeg can do, for `convoy doctor`.

use ffmpeg_next::ffi;

use super::{c_string, owned, prepare};

/// One thing that may be missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// What it is: "encoder", "decoder", "protocol", "device".
    pub kind: &'static str,
    /// FFmpeg's name.
    pub name: &'static str,
    /// What it is good for.
    pub purpose: &'static str,
    /// Whether it is there.
    pub found: bool,
}

/// The FFmpeg that this program runs with.
#[derive(Clone, Debug)]
pub struct Doctor {
    /// Release of the libraries that were loaded.
    pub version: String,
    /// Their licence.
    pub license: String,
    /// (library, version at build time, version loaded).
    pub libraries: Vec<(&'static str, String, String)>,
    /// Key parts, found or not.
    pub parts: Vec<Part>,
    /// (path, name) of cameras.
    pub cameras: Vec<(String, String)>,
}

const PARTS: [(&str, &str, &str); 21] = [
    ("encoder", "libx264", "H.264, the default for mp4, mov and mkv"),
    ("encoder", "libx265", "HEVC"),
    ("encoder", "libvpx-vp9", "VP9, the default for webm"),
    ("encoder", "libsvtav1", "AV1, fast"),
    ("encoder", "libaom-av1", "AV1"),
    ("encoder", "ffv1", "lossless"),
    ("encoder", "prores_ks", "ProRes"),
    ("encoder", "h264_nvenc", "H.264 on NVIDIA GPUs"),
    ("encoder", "hevc_nvenc", "HEVC on NVIDIA GPUs"),
    ("decoder", "h264", "H.264"),
    ("decoder", "hevc", "HEVC"),
    ("decoder", "vp9", "VP9"),
    ("decoder", "libdav1d", "AV1"),
    ("decoder", "prores", "ProRes"),
    ("protocol", "https", "encrypted web streams"),
    ("protocol", "srt", "SRT streams"),
    ("protocol", "rtp", "RTSP and RTP streams"),
    ("protocol", "rtmp", "RTMP streams"),
    ("protocol", "udp", "UDP streams"),
    ("device", "lavfi", "generated test pictures"),
    ("device", "video4linux2,v4l2", "cameras"),
];

/// Looks at the libraries that are loaded.
pub fn doctor() -> Doctor {
    prepare();
    let parts = PARTS.into_iter().map(|(kind, name, purpose)| Part { kind, name, purpose, found: found(kind, name) }).collect();
    // SAFETY: version and licence calls return static strings and numbers.
    unsafe {
        let libraries = vec![
            (
                "libavutil",
                built(ffi::LIBAVUTIL_VERSION_MAJOR, ffi::LIBAVUTIL_VERSION_MINOR, ffi::LIBAVUTIL_VERSION_MICRO),
                version(ffi::avutil_version()),
            ),
            (
                "libavcodec",
                built(ffi::LIBAVCODEC_VERSION_MAJOR, ffi::LIBAVCODEC_VERSION_MINOR, ffi::LIBAVCODEC_VERSION_MICRO),
                version(ffi::avcodec_version()),
            ),
            (
                "libavformat",
                built(ffi::LIBAVFORMAT_VERSION_MAJOR, ffi::LIBAVFORMAT_VERSION_MINOR, ffi::LIBAVFORMAT_VERSION_MICRO),
                version(ffi::avformat_version()),
            ),
            (
                "libavdevice",
                built(ffi::LIBAVDEVICE_VERSION_MAJOR, ffi::LIBAVDEVICE_VERSION_MINOR, ffi::LIBAVDEVICE_VERSION_MICRO),
                version(ffi::avdevice_version()),
            ),
            (
                "libswscale",
                built(ffi::LIBSWSCALE_VERSION_MAJOR, ffi::LIBSWSCALE_VERSION_MINOR, ffi::LIBSWSCALE_VERSION_MICRO),
                version(ffi::swscale_version()),
            ),
        ];
        Doctor {
            version: owned::text(ffi::av_version_info()).unwrap_or_default(),
            license: owned::text(ffi::avcodec_license()).unwrap_or_default(),
            libraries,
            parts,
            cameras: cameras(),
        }
    }
}

fn built<T: std::fmt::Display>(major: T, minor: T, micro: T) -> String {
    format!("{major}.{minor}.{micro}")
}

fn version(packed: u32) -> String {
    format!("{}.{}.{}", packed >> 16, (packed >> 8) & 0xff, packed & 0xff)
}

fn found(kind: &str, name: &str) -> bool {
    let Ok(c_name) = c_string(name, "name") else { return false };
    // SAFETY: lookups by a terminated name.
    unsafe {
        match kind {
            "encoder" => !ffi::avcodec_find_encoder_by_name(c_name.as_ptr()).is_null(),
            "decoder" => !ffi::avcodec_find_decoder_by_name(c_name.as_ptr()).is_null(),
            "protocol" => protocols().iter().any(|p| p == name),
            _ => name.split(',').filter_map(|n| c_string(n, "name").ok()).any(|n| !ffi::av_find_input_format(n.as_ptr()).is_null()),
        }
    }
}

/// Input protocols that this FFmpeg has.
fn protocols() -> Vec<String> {
    let mut names = Vec::new();
    let mut state = std::ptr::null_mut();
    loop {
        // SAFETY: iteration with FFmpeg's own opaque state; names are static strings.
        match unsafe { owned::text(ffi::avio_enum_protocols(&mut state, 0)) } {
            Some(name) => names.push(name),
            None => return names,
        }
    }
}

/// Cameras by the kernel's names; no device is opened.
fn cameras() -> Vec<(String, String)> {
    let Ok(entries) = std::fs::read_dir("/sys/class/video4linux") else { return Vec::new() };
    let mut cameras: Vec<_> = entries
        .flatten()
        .filter_map(|entry| {
            let node = entry.file_name().into_string().ok()?;
            let name = std::fs::read_to_string(entry.path().join("name")).unwrap_or_default();
            Some((format!("/dev/{node}"), name.trim().to_owned()))
        })
        .collect();
    cameras.sort();
    cameras
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_tells_found_from_missing() {
        let doctor = doctor();
        let part = |name: &str| doctor.parts.iter().find(|p| p.name == name).unwrap().found;
        assert!(part("ffv1") && part("h264") && part("udp"));
        assert!(!found("encoder", "no-such-encoder") && !found("protocol", "no-such-protocol") && !found("device", "no-such-device"));
        assert!(doctor.libraries.iter().all(|(_, built, loaded)| built == loaded && !built.starts_with("0.")));
    }
}
