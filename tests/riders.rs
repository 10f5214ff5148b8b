//! What pictures carry beside their samples (user data, time codes, grain, marks of fields): kept, or named when it is lost.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test is a panic")]

mod support;

use support::clips::{Clips, H264, PICTURE};

/// Puts `unit` before every picture of an H.264 or HEVC byte stream (units whose first byte `starts_picture`).
fn insert(stream: &[u8], unit: &[u8], starts_picture: impl Fn(u8) -> bool) -> Vec<u8> {
    let mut out = Vec::new();
    for (at, &byte) in stream.iter().enumerate() {
        if stream[at..].starts_with(&[0, 0, 1]) && stream.get(at + 3).is_some_and(|&b| starts_picture(b)) {
            out.extend([0, 0, 1]);
            out.extend(unit);
        }
        out.push(byte);
    }
    out
}

/// A supplemental message: its header, kind, length and payload, with a third byte where two zeros would look like a start code.
fn message(header: &[u8], kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut unit = [header, &[kind, payload.len() as u8]].concat();
    for &byte in payload {
        if unit.ends_with(&[0, 0]) && byte <= 3 {
            unit.push(3);
        }
        unit.push(byte);
    }
    unit.push(0x80);
    unit
}

/// H.264 with `kind` and `payload` in a message before every picture.
fn h264_with(c: &Clips, name: &str, kind: u8, payload: &[u8]) {
    c.make("plain.h264", &format!("{PICTURE} {H264} -bf 0"));
    let plain = std::fs::read(c.at("plain.h264")).unwrap();
    c.write(name, insert(&plain, &message(&[6], kind, payload), |byte| matches!(byte & 0x1f, 1 | 5)));
}

/// How many pictures carry a kind of side data.
fn count(c: &Clips, name: &str, kind: &str) -> usize {
    c.entry(name, "v", "frame_side_data=side_data_type").iter().filter(|l| l.contains(kind)).count()
}

#[test]
fn user_data_stays_with_its_pictures_or_is_named() {
    let c = Clips::new();
    h264_with(&c, "a.h264", 5, b"0123456789abcdefwhere and when");
    let kind = "User Data Unregistered";
    // x264's own description of itself is one more message, in the first picture.
    assert!(count(&c, "a.h264", kind) >= 25);
    for (name, args) in [("o.mkv", vec![]), ("o.ts", vec!["--vf", "gblur", "--lanes", "8"])] {
        let said = c.run("a.h264", name, &args);
        assert!(!said.contains("left out"), "{said}");
        assert!(count(&c, name, kind) >= 25, "{name}: {}", count(&c, name, kind));
    }
    let bytes = std::fs::read(c.at("o.mkv")).unwrap();
    assert_eq!(bytes.windows(14).filter(|w| w == b"where and when").count(), 25);
    let said = c.run("a.h264", "o.webm", &[]);
    assert!(said.contains("warning: the messages of user data in the pictures are left out: libvpx-vp9 cannot write them"), "{said}");
    // What x264 says about itself is not missed.
    c.make("plain.mkv", &format!("{PICTURE} {H264}"));
    assert!(!c.run("plain.mkv", "o.webm", &[]).contains("warning"));
}

#[test]
fn the_active_format_is_named() {
    let c = Clips::new();
    // ETSI TS 101 154: "DTG1", active format flag, format 10 (16:9).
    h264_with(&c, "a.h264", 4, &[0xb5, 0x00, 0x31, b'D', b'T', b'G', b'1', 0x41, 0xfa]);
    assert_eq!(count(&c, "a.h264", "Active format description"), 25);
    let said = c.run("a.h264", "o.mkv", &["--vf", "gblur"]);
    assert_eq!(said.matches("warning: the active format descriptions in the pictures are left out: libx264 cannot write them").count(), 1);
}

#[test]
fn time_codes_in_pictures_are_named_unless_a_tag_says_the_same() {
    let c = Clips::new();
    c.make("a.h265", &format!("{PICTURE} -pix_fmt yuv420p -c:v libx265 -preset ultrafast -bf 0 -x265-params log-level=none"));
    // ITU-T H.265, D.2.27: one clock of counting type 0, 11:22:33 and 4 pictures.
    let mut bits: Vec<u8> = Vec::new();
    let mut put = |value: u32, count: u32| bits.extend((0..count).rev().map(|b| (value >> b & 1) as u8));
    for (value, count) in [(1, 2), (1, 1), (0, 1), (0, 5), (1, 1), (0, 1), (0, 1), (4, 9), (33, 6), (22, 6), (11, 5), (0, 5)] {
        put(value, count);
    }
    put(1, 1);
    while !bits.len().is_multiple_of(8) {
        bits.push(0);
    }
    let payload: Vec<u8> = bits.chunks(8).map(|b| b.iter().fold(0, |byte, bit| byte << 1 | bit)).collect();
    let plain = std::fs::read(c.at("a.h265")).unwrap();
    c.write("s12m.h265", insert(&plain, &message(&[39 << 1, 1], 136, &payload), |byte| byte >> 1 < 32));
    assert_eq!(count(&c, "s12m.h265", "SMPTE 12-1 timecode"), 25);
    let said = c.run("s12m.h265", "o.mkv", &["--vf", "gblur"]);
    assert_eq!(
        said.matches("warning: the time codes in the pictures (from 11:22:33:04 on) are left out: libx264 cannot write them").count(),
        1,
        "{said}"
    );
    c.make("s12m.mov", "-i DIR/s12m.h265 -c copy -timecode 11:22:33:04 -tag:v hvc1");
    let said = c.run("s12m.mov", "o.mov", &[]);
    assert!(!said.contains("time codes"), "{said}");

    c.make("gop.mpg", &format!("{PICTURE} -pix_fmt yuv420p -c:v mpeg2video -g 5 -gop_timecode 10:00:00:00"));
    let codes = |name: &str| c.entry(name, "v", "frame_side_data=timecode").join(" ");
    assert!(codes("gop.mpg").starts_with("10:00:00:00"), "{}", codes("gop.mpg"));
    let said = c.run("gop.mpg", "o.mkv", &[]);
    assert!(said.contains("the time codes in the pictures (from 10:00:00:00 on) are left out: libx264 cannot write them"), "{said}");
    // MPEG-2 has them again.
    for name in ["o.mpg", "o.ts"] {
        let said = c.run("gop.mpg", name, &["-c:v", "mpeg2video"]);
        assert!(!said.contains("time codes") && codes(name).starts_with("10:00:00:00"), "{name}: {said} {}", codes(name));
    }
    // Counted from zero, as in every MPEG-2 file, they say nothing.
    c.make("zero.mpg", &format!("{PICTURE} -pix_fmt yuv420p -c:v mpeg2video -g 5"));
    assert!(!c.run("zero.mpg", "o.mkv", &[]).contains("warning"));
}

#[test]
fn film_grain_is_drawn_and_its_parameters_are_named() {
    let c = Clips::new();
    c.make("a.mkv", &format!("{PICTURE} -frames:v 5 -pix_fmt yuv420p -c:v libaom-av1 -cpu-used 8 -aom-params film-grain-test=1"));
    let said = c.run("a.mkv", "o.mkv", &["-c:v", "ffv1"]);
    assert!(said.contains("warning: the film grain's parameters are left out: the grain is drawn into the pictures"), "{said}");
    // The pictures are those that a player shows.
    assert_eq!(c.frame_hashes("o.mkv", &[]), c.frame_hashes("a.mkv", &[]));
    c.make("b.mkv", &format!("{PICTURE} -frames:v 5 -pix_fmt yuv420p -c:v libaom-av1 -cpu-used 8"));
    assert!(!c.run("b.mkv", "o.mkv", &["-c:v", "ffv1"]).contains("grain"));
}

#[test]
fn the_stereo_arrangement_leaves_with_the_pictures_or_the_container() {
    let c = Clips::new();
    // Side by side, said by the pictures alone.
    c.make("a.h264", &format!("{PICTURE} {H264} -x264-params frame-packing=3"));
    // x264 repeats it with every key picture.
    assert_eq!(count(&c, "a.h264", "Stereo 3D"), 1);
    let of_stream = |name: &str| c.entry(name, "v", "stream_side_data=side_data_type").join("").contains("Stereo 3D");
    for (name, args, pictures, stream) in [("o.ts", vec![], 1, false), ("o.mkv", vec![], 1, true), ("o.mkv", vec!["-c:v", "ffv1"], 0, true)]
    {
        let said = c.run("a.h264", name, &[vec!["--vf", "gblur"], args].concat());
        assert!(!said.contains("left out"), "{name}: {said}");
        assert!(count(&c, name, "Stereo 3D") >= pictures && of_stream(name) == stream, "{name}: {}", count(&c, name, "Stereo 3D"));
    }
    // Said by the container alone.
    c.make("b.mkv", &format!("{PICTURE} {H264} -metadata:s:v stereo_mode=left_right"));
    assert!(count(&c, "b.mkv", "Stereo 3D") == 0 && of_stream("b.mkv"));
    for name in ["o.ts", "o.mkv", "o.mp4"] {
        let said = c.run("b.mkv", name, &[]);
        assert!(!said.contains("left out") && (count(&c, name, "Stereo 3D") > 0 || of_stream(name)), "{name}: {said}");
    }
    let said = c.run("a.h264", "o.avi", &["-c:v", "ffv1"]);
    assert!(said.contains("the stereo arrangements in the pictures are left out: ffv1 cannot write them"), "{said}");
}

/// A PNG with a colour profile, in front of the picture's data.
fn with_profile(png: &[u8], profile: &[u8]) -> Vec<u8> {
    let mut body = b"iCCPtest\0\0".to_vec();
    body.extend(miniz_oxide::deflate::compress_to_vec_zlib(profile, 6));
    with_chunk(png, &body)
}

/// A PNG with one more chunk (name and content), in front of the picture's data.
fn with_chunk(png: &[u8], body: &[u8]) -> Vec<u8> {
    let crc = |bytes: &[u8]| {
        !bytes.iter().fold(!0u32, |crc, &b| (0..8).fold(crc ^ u32::from(b), |c, _| if c & 1 == 1 { c >> 1 ^ 0xedb8_8320 } else { c >> 1 }))
    };
    let chunk = [&((body.len() - 4) as u32).to_be_bytes()[..], body, &crc(body).to_be_bytes()].concat();
    // Signature and header are 33 bytes.
    [&png[..33], &chunk, &png[33..]].concat()
}

#[test]
fn colour_profiles_stay_in_images_and_in_mov_and_are_named_elsewhere() {
    let c = Clips::new();
    // A profile of 128 zero bytes of header with its signature, and no tags.
    let mut profile = vec![0u8; 132];
    profile[..4].copy_from_slice(&132u32.to_be_bytes());
    profile[36..40].copy_from_slice(b"acsp");
    for n in 1..=3 {
        c.make("plain.png", &format!("{PICTURE} -frames:v 1 -pix_fmt rgb24"));
        c.write(&format!("f_{n}.png"), with_profile(&std::fs::read(c.at("plain.png")).unwrap(), &profile));
    }
    assert_eq!(count(&c, "f_1.png", "ICC profile"), 1);
    let said = c.run("f_%d.png", "o_%d.png", &["--vf", "gblur"]);
    assert!(!said.contains("left out") && count(&c, "o_3.png", "ICC profile") == 1, "{said}");
    for name in ["o.mov", "o.mp4"] {
        let said = c.run("f_%d.png", name, &["--preset", "ultrafast"]);
        assert_eq!(c.entry(name, "v", "stream_side_data=side_data_type").join("").contains("ICC"), !said.contains("ICC"), "{name}: {said}");
    }
    let said = c.run("f_%d.png", "o.mkv", &["-c:v", "ffv1"]);
    assert!(said.contains("the colour profiles in the pictures are left out: ffv1 cannot write them"), "{said}");
}

#[test]
fn texts_inside_images_are_named() {
    let c = Clips::new();
    c.make("plain.png", &format!("{PICTURE} -frames:v 1 -pix_fmt rgb24"));
    c.write("f_1.png", with_chunk(&std::fs::read(c.at("plain.png")).unwrap(), b"tEXtAuthor\0Someone"));
    let said = c.run("f_%d.png", "o_%d.png", &["--vf", "gblur"]);
    assert!(said.contains("warning: the tag 'Author' in the pictures is left out: encoders cannot hold it"), "{said}");
    assert!(!c.run("plain.png", "o.png", &[]).contains("warning"));
}

#[test]
fn alpha_beside_the_pictures_of_webm_is_decoded() {
    let c = Clips::new();
    let source = "-f lavfi -i testsrc=size=64x48:rate=10:duration=0.5,format=yuva420p,geq=lum='lum(X,Y)':cb='cb(X,Y)':cr='cr(X,Y)':a='4*X'";
    for (codec, decoder) in [("libvpx-vp9", "libvpx-vp9"), ("libvpx", "libvpx")] {
        c.make("a.webm", &format!("{source} -c:v {codec} -auto-alt-ref 0 -deadline realtime -cpu-used 5 -b:v 2M"));
        let said = c.run("a.webm", "o.mkv", &["-c:v", "ffv1"]);
        assert!(!said.contains("warning"), "{said}");
        assert_eq!(c.entry("o.mkv", "v", "stream=pix_fmt"), ["yuva420p"], "{codec}");
        assert_eq!(c.frame_hashes("o.mkv", &[]), c.frame_hashes("a.webm", &["-c:v", decoder]), "{codec}");
        // Encoders without alpha say so.
        let said = c.run("a.webm", "o.mp4", &[]);
        assert!(said.contains("frames are converted from yuva420p to yuv420p for libx264"), "{said}");
    }
}

/// Pictures with the marks that `setfield` gives, one kind after the other, as one lossless clip.
fn mixed(c: &Clips, name: &str, first: &str, second: &str) {
    for (n, field) in [first, second].into_iter().enumerate() {
        c.make(&format!("{n}.mkv"), &format!("{PICTURE} -vf setfield={field} -pix_fmt yuv420p -c:v ffv1 -level 3"));
    }
    c.write("list.txt", "file '0.mkv'\nfile '1.mkv'\n");
    c.make(name, "-f concat -safe 0 -i DIR/list.txt -c copy");
}

#[test]
fn a_mixture_of_scans_is_counted_and_every_picture_keeps_its_mark_where_it_can() {
    let c = Clips::new();
    let marks = |name: &str| c.entry(name, "v", "frame=interlaced_frame,top_field_first");
    for (first, second, said_of) in [
        ("prog", "tff", "25 of 50 pictures are interlaced, unlike the rest: they are filtered as whole frames (--fields field"),
        (
            "tff",
            "prog",
            "25 of 50 pictures are progressive, unlike the rest: they are filtered field by field like the rest (--fields frame",
        ),
    ] {
        mixed(&c, "mixed.mkv", first, second);
        assert_eq!(marks("mixed.mkv").iter().filter(|m| m.starts_with('1')).count(), 25);
        let said = c.run("mixed.mkv", "o.mkv", &["-c:v", "ffv1", "--vf", "gblur"]);
        assert!(said.contains(&format!("warning: {said_of}")), "{said}");
        assert_eq!(marks("o.mkv"), marks("mixed.mkv"), "{first} {second}");
        // Decided by the user, and every picture marked as it was: nothing to say.
        for fields in ["frame", "field"] {
            let said = c.run("mixed.mkv", "o.mkv", &["-c:v", "ffv1", "--vf", "gblur", "--fields", fields]);
            assert!(!said.contains("pictures are"), "{said}");
            assert_eq!(marks("o.mkv"), marks("mixed.mkv"), "{first} {second} {fields}");
        }
    }
    mixed(&c, "mixed.mkv", "tff", "bff");
    let said = c.run("mixed.mkv", "o.mkv", &["-c:v", "ffv1", "--vf", "gblur"]);
    assert!(!said.contains("warning"), "{said}");
    assert_eq!(marks("o.mkv"), marks("mixed.mkv"));
    let said = c.run("mixed.mkv", "o.mkv", &["--vf", "gblur"]);
    let first = marks("o.mkv")[0].clone();
    assert!(marks("o.mkv").iter().all(|m| *m == first), "{:?}", marks("o.mkv"));
    assert!(said.contains("25 of 50 pictures show their other field first: the output gives all the order of the first picture"), "{said}");
    // A pure stream says nothing.
    assert!(!c.run("0.mkv", "o.mkv", &["--vf", "gblur"]).contains("warning"));
}
