//! Light, colour, alpha, fields and sizes of the picture: kept, or named when they change.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test is a panic")]

mod support;

use support::clips::{Clips, H264, PICTURE};
use support::{noisy_clip, planes, stderr};

const HDR: &str = "master-display=G(8500,39850)B(6550,2300)R(35400,14600)WP(15635,16450)L(10000000,50):max-cll=1000,400";
const BT2020: &str = "-color_primaries bt2020 -color_trc smpte2084 -colorspace bt2020nc -color_range tv";

/// HDR10's numbers as ffprobe reads them from the first picture, and from the container.
fn light(c: &Clips, name: &str) -> [Vec<String>; 2] {
    let numbers = "side_data=red_x,red_y,green_x,white_point_y,min_luminance,max_luminance,max_content,max_average";
    let of = |kind: &str| {
        let args = ["-select_streams", "v", "-read_intervals", "%+#1", "-show_entries", &format!("{kind}_{numbers}")];
        support::ffprobe(std::path::Path::new(&c.at(name)), &args)
    };
    [of("frame"), of("stream")].map(|lines| {
        lines.into_iter().flat_map(|l| l.split([',', '|']).map(str::to_owned).collect::<Vec<_>>()).filter(|w| !w.is_empty()).collect()
    })
}

fn values(words: &[String]) -> Vec<String> {
    let mut values: Vec<f64> = words
        .iter()
        .filter_map(|w| {
            let (num, den) = w.split_once('/').unwrap_or((w.as_str(), "1"));
            Some(num.parse::<f64>().ok()? / den.parse::<f64>().ok()?)
        })
        .collect();
    values.sort_by(f64::total_cmp);
    values.iter().map(|v| format!("{v:.4}")).collect()
}

#[test]
fn hdr10_leaves_in_the_pictures_and_in_the_container() {
    let c = Clips::new();
    let x265 = format!("-pix_fmt yuv420p10le -c:v libx265 -preset ultrafast {BT2020} -x265-params log-level=none:{HDR}");
    c.make("a.mkv", &format!("{PICTURE} {x265}"));
    // Here the pictures alone say it.
    c.make("a.ts", "-i DIR/a.mkv -c copy");
    let want = values(&light(&c, "a.mkv")[0]);
    assert_eq!(want, ["0.0050", "0.1700", "0.2920", "0.3290", "0.7080", "400.0000", "1000.0000", "1000.0000"]);
    assert!(light(&c, "a.ts")[1].is_empty());
    let colour = |name: &str| c.entry(name, "v", "stream=pix_fmt,color_range,color_space,color_transfer,color_primaries");
    for input in ["a.mkv", "a.ts"] {
        for (output, args, in_pictures, in_container) in [
            ("o.mkv", vec!["-c:v", "libx265", "--preset", "ultrafast"], true, true),
            ("o.mp4", vec!["-c:v", "libx265", "--preset", "ultrafast"], true, true),
            ("o.ts", vec!["-c:v", "libx265", "--preset", "ultrafast"], true, false),
            ("o.mkv", vec!["-c:v", "libx264", "--preset", "ultrafast"], false, true),
            ("o.mkv", vec!["-c:v", "ffv1"], false, true),
            ("o.webm", vec![], false, true),
        ] {
            let said = c.run(input, output, &[vec!["--vf", "gblur"], args.clone()].concat());
            assert!(!said.contains("left out"), "{input} {output} {args:?}: {said}");
            let [pictures, container] = light(&c, output);
            for (words, kept, place) in [(pictures, in_pictures, "pictures"), (container, in_container, "container")] {
                // ffmpeg's decoders pass the container's word on with the pictures.
                assert!(!kept || values(&words) == want, "{input} {output} {args:?}, {place}: {words:?}");
            }
            assert_eq!(colour(output), colour("a.mkv"), "{input} {output} {args:?}");
        }
    }
    let said = c.run("a.ts", "o.avi", &["-c:v", "ffv1"]);
    assert!(
        said.contains("warning: the HDR10 metadata (mastering display, content light level) is left out: neither ffv1 nor avi can hold it"),
        "{said}"
    );
    // The user's own word wins.
    c.run("a.mkv", "o.mkv", &["-c:v", "libx265", "--preset", "ultrafast", "--enc-opt", "x265-params=max-cll=123,45"]);
    assert!(values(&light(&c, "o.mkv")[0]).contains(&"123.0000".to_owned()));
}

/// Puts `unit` before every picture of an H.264 or HEVC byte stream (units whose first byte `starts_picture`).
fn insert(stream: &[u8], unit: &[u8], starts_picture: impl Fn(u8) -> bool) -> Vec<u8> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < stream.len() {
        if stream[at..].starts_with(&[0, 0, 1]) && at + 3 < stream.len() && starts_picture(stream[at + 3]) {
            out.extend([0, 0, 1]);
            out.extend(unit);
        }
        out.push(stream[at]);
        at += 1;
    }
    out
}

/// Puts a box at the end of the innermost of nested MP4 boxes, each with the length of its own header.
fn insert_box(file: &mut Vec<u8>, path: &[(&[u8; 4], usize)], content: &[u8]) {
    let size = |file: &[u8], at: usize| u32::from_be_bytes(file[at..at + 4].try_into().unwrap()) as usize;
    let (mut at, mut end) = (0, file.len());
    for (name, header) in path {
        while &file[at + 4..at + 8] != *name {
            at += size(file, at);
            assert!(at < end, "no {}", String::from_utf8_lossy(*name));
        }
        end = at + size(file, at);
        let longer = (size(file, at) + content.len()) as u32;
        file[at..at + 4].copy_from_slice(&longer.to_be_bytes());
        at += header;
    }
    file.splice(end..end, content.iter().copied());
}

#[test]
fn dolby_vision_and_hdr10_plus_are_named() {
    let c = Clips::new();
    c.make("a.h265", &format!("{PICTURE} -pix_fmt yuv420p10le -c:v libx265 -preset ultrafast -bf 0 -x265-params log-level=none"));
    let plain = std::fs::read(c.at("a.h265")).unwrap();
    let is_slice = |byte: u8| byte >> 1 < 32;
    assert!(!c.run("a.h265", "o.mkv", &[]).contains("warning"));
    // MP4's box of Dolby Vision, version 1.0, profile 8, level 3, with a base layer that stands alone.
    c.make("a.mp4", "-i DIR/a.h265 -c copy -tag:v hvc1");
    let mut mp4 = std::fs::read(c.at("a.mp4")).unwrap();
    let mut dvcc = vec![0, 0, 0, 32, b'd', b'v', b'c', b'C', 1, 0, 8 << 1, 3 << 3 | 0b101, 1 << 4];
    dvcc.resize(32, 0);
    insert_box(&mut mp4, &[(b"moov", 8), (b"trak", 8), (b"mdia", 8), (b"minf", 8), (b"stbl", 8), (b"stsd", 16), (b"hvc1", 86)], &dvcc);
    c.write("dolby.mp4", mp4);
    let said = c.run("dolby.mp4", "o.mkv", &["--vf", "gblur"]);
    assert!(said.contains("warning: the video's Dolby Vision metadata is left out: "), "{said}");
    assert!(!c.entry("o.mkv", "v", "stream_side_data=side_data_type").join("").contains("DOVI"));
    // A supplemental message of type 4 (ITU-T T.35, United States, SMPTE ST 2094-40), one window, no curves.
    let mut payload = vec![0xb5, 0x00, 0x3c, 0x00, 0x01, 0x04, 0x01];
    let mut bits = vec![0u8; 0];
    let mut put = |value: u32, count: u32| bits.extend((0..count).rev().map(|b| (value >> b & 1) as u8));
    put(1, 2); // windows
    put(400, 27); // target luminance
    put(0, 1); // no actual peak luminance of the target
    (0..3).for_each(|_| put(1000, 17)); // max scl
    put(500, 17); // average max rgb
    put(0, 4); // no distribution
    put(0, 10); // fraction of bright pixels
    put(0, 1); // no actual peak luminance of the mastering display
    put(0, 1); // no tone mapping
    put(0, 1); // no saturation mapping
    while !bits.len().is_multiple_of(8) {
        bits.push(0);
    }
    payload.extend(bits.chunks(8).map(|b| b.iter().fold(0, |byte, bit| byte << 1 | bit)));
    // No two zero bytes may be followed by a byte of 3 or less: a third one is put between.
    let mut unit = vec![39 << 1, 1, 4, payload.len() as u8];
    for byte in payload {
        if unit.ends_with(&[0, 0]) && byte <= 3 {
            unit.push(3);
        }
        unit.push(byte);
    }
    unit.push(0x80);
    c.write("plus.h265", insert(&plain, &unit, is_slice));
    let said = c.run("plus.h265", "o.mkv", &["--vf", "gblur"]);
    assert!(said.contains("warning: the video's HDR10+ metadata is left out: "), "{said}");
}

#[test]
fn closed_captions_stay_with_their_pictures() {
    let c = Clips::new();
    c.make("a.h264", &format!("{PICTURE} {H264} -bf 0"));
    // A message of type 4 with two caption pairs ("GA94", type 3).
    let payload = [0xb5, 0x00, 0x31, b'G', b'A', b'9', b'4', 0x03, 0xc2, 0xff, 0xfc, 0x94, 0x2c, 0xfc, 0x48, 0x65, 0xff];
    let mut unit = vec![6, 4, payload.len() as u8];
    unit.extend(payload);
    unit.push(0x80);
    let plain = std::fs::read(c.at("a.h264")).unwrap();
    c.write("cc.h264", insert(&plain, &unit, |byte| matches!(byte & 0x1f, 1 | 5)));
    let captions =
        |name: &str| c.entry(name, "v", "frame_side_data=side_data_type").iter().filter(|l| l.contains("Closed Captions")).count();
    assert_eq!(captions("cc.h264"), 25);
    for args in [vec![], vec!["--vf", "gblur", "--lanes", "8"], vec!["--frames", "9"]] {
        c.run("cc.h264", "o.mkv", &args);
        assert_eq!(captions("o.mkv"), if args.contains(&"9") { 9 } else { 25 }, "{args:?}");
    }
    let said = c.run("cc.h264", "o.webm", &[]);
    assert!(said.contains("warning: the closed captions in the pictures are left out: libvpx-vp9 cannot write them"), "{said}");
}

#[test]
fn colour_tags_stay_for_every_codec_that_has_them() {
    let c = Clips::new();
    let tags = "-color_primaries bt470bg -color_trc gamma28 -colorspace bt470bg -color_range pc -chroma_sample_location topleft";
    c.make("a.mkv", &format!("{PICTURE} -pix_fmt yuv420p -c:v libx264 -preset ultrafast -aspect 16:9 {tags}"));
    let colour = |name: &str| c.entry(name, "v", "stream=color_range,color_space,color_transfer,color_primaries,sample_aspect_ratio");
    assert_eq!(colour("a.mkv"), ["4:3,pc,bt470bg,bt470bg,bt470bg"]);
    for (name, args) in [
        ("o.mp4", vec![]),
        ("o.mov", vec![]),
        ("o.mkv", vec![]),
        ("o.ts", vec![]),
        ("o.mp4", vec!["-c:v", "libx265", "--preset", "ultrafast"]),
        ("o.mkv", vec!["-c:v", "ffv1"]),
        ("o.mkv", vec!["-c:v", "mpeg4"]),
    ] {
        c.run("a.mkv", name, &args);
        assert_eq!(colour(name), colour("a.mkv"), "{name} {args:?}");
    }
    assert_eq!(c.entry("o.mp4", "v", "stream=chroma_location"), ["topleft"]);
}

#[test]
fn alpha_stays_where_the_codec_has_it() {
    let c = Clips::new();
    // A disc that fades to nothing.
    let source = "-f lavfi -i testsrc=size=64x48:rate=10:duration=0.5,format=rgba,geq=r='r(X,Y)':g='g(X,Y)':b='b(X,Y)':a='4*X'";
    c.make("a.mov", &format!("{source} -c:v qtrle"));
    let alpha = |name: &str| {
        // VP9's native decoder leaves alpha out.
        let decoder: &[&str] = if name.ends_with("webm") { &["-c:v", "libvpx-vp9"] } else { &[] };
        let path = c.at(name);
        let args = [decoder, &["-i", &path, "-frames:v", "1", "-vf", "alphaextract,format=gray", "-f", "rawvideo", "-"]].concat();
        support::ffmpeg(&args)
    };
    let want = alpha("a.mov");
    assert!(want[1] == 4 && want[20] == 80, "{:?}", &want[..32]);
    for (name, args, tolerance) in [
        ("o.mov", vec!["-c:v", "qtrle"], 0),
        ("p.mov", vec!["-c:v", "prores_ks", "--pix-fmt", "yuva444p10le", "--enc-opt", "profile=4444"], 2),
        ("o.mkv", vec!["-c:v", "ffv1"], 0),
        ("o.apng", vec![], 0),
        ("p.mkv", vec!["-c:v", "png"], 0),
        ("o.webm", vec!["--crf", "10", "--enc-opt", "cpu-used=5"], 12),
    ] {
        c.run("a.mov", name, &args);
        let got = alpha(name);
        let worst = want.iter().zip(&got).map(|(a, b)| a.abs_diff(*b)).max();
        assert!(want.len() == got.len() && worst.unwrap() <= tolerance, "{name}: {worst:?}");
    }
    let said = c.run("a.mov", "o.mp4", &[]);
    assert!(said.contains("frames are converted from gbrap to yuv444p for libx264"), "{said}");
}

#[test]
fn rotation_stays_in_mp4_and_mov_and_is_named_elsewhere() {
    let c = Clips::new();
    c.make("plain.mp4", &format!("{PICTURE} {H264}"));
    c.turn("plain.mp4", "a.mp4", 90);
    let turned = |name: &str| c.entry(name, "v", "stream_side_data=rotation");
    assert!(!turned("a.mp4").is_empty());
    for name in ["o.mp4", "o.mov", "o.mkv"] {
        let said = c.run("a.mp4", name, &["--vf", "sobel"]);
        let kept = turned(name) == turned("a.mp4");
        assert!(kept != said.contains("the rotation by"), "{name}: {said}");
        assert!(kept || name == "o.mkv", "{name}");
        // The pixels are in coded orientation.
        assert_eq!(c.entry(name, "v", "stream=width,height"), ["64,48"], "{name}");
    }
}

/// Luma and chroma of a lossless clip.
fn samples(path: &str, width: usize, height: usize) -> support::Planes {
    let raw = support::ffmpeg(&["-i", path, "-map", "0:v", "-f", "rawvideo", "-pix_fmt", "yuv420p", "-"]);
    planes(&raw, "yuv420p", width, height)
}

#[test]
fn interlaced_pictures_are_filtered_field_by_field() {
    let c = Clips::new();
    let clip = noisy_clip(c.folder(), "yuv420p", "64x48", 6);
    let clip = clip.to_str().unwrap();
    c.make("tff.mkv", &format!("-i {clip} -vf setfield=tff -c:v ffv1"));
    c.make("bff.mkv", &format!("-i {clip} -vf setfield=bff -c:v libx264 -qp 0 -flags +ildct+ilme"));
    for input in ["tff.mkv", "bff.mkv"] {
        // The judge: each field apart, filtered by convoy as a picture of its own, woven again by ffmpeg.
        for (name, field) in [("top.mkv", "top"), ("bottom.mkv", "bottom")] {
            c.make(&format!("in-{name}"), &format!("-i DIR/{input} -vf field={field},setfield=prog -c:v ffv1"));
            c.run(&format!("in-{name}"), name, &["-c:v", "ffv1", "--vf", "gblur=1.5"]);
        }
        let weave = "[0:v][1:v]interleave,weave=first_field=top,setfield=tff";
        c.make(
            "want.mkv",
            &format!("-itsoffset 0 -i DIR/top.mkv -itsoffset 0.001 -i DIR/bottom.mkv -filter_complex {weave} -vsync passthrough -c:v ffv1"),
        );
        let want = samples(&c.at("want.mkv"), 64, 48);
        for (args, by_field) in [(vec![], true), (vec!["--fields", "field", "--lanes", "1"], true), (vec!["--fields", "frame"], false)] {
            let said = c.run(input, "o.mkv", &[vec!["-v", "-c:v", "ffv1", "--vf", "gblur=1.5"], args.clone()].concat());
            assert_eq!(said.contains("each field is filtered by itself"), by_field, "{said}");
            let got = samples(&c.at("o.mkv"), 64, 48);
            let difference = support::difference(&got, &want, 0);
            assert_eq!(difference.unequal == 0, by_field, "{input} {args:?}: {difference:?}");
        }
        // The order of the fields stays.
        c.run(input, "o.mp4", &["--vf", "gblur"]);
        let order = |name: &str| c.entry(name, "v", "frame=interlaced_frame,top_field_first").into_iter().next().unwrap();
        assert_eq!(order("o.mp4"), order(input));
        assert_eq!(order(input), if input == "tff.mkv" { "1,1" } else { "1,0" });
    }
    // Rows that cannot be shared out: named, and filtered whole.
    c.make("odd.mkv", &format!("{PICTURE} -vf scale=64:46,setfield=tff -pix_fmt yuv420p -c:v ffv1"));
    let said = c.run("odd.mkv", "o.mkv", &["-c:v", "ffv1", "--vf", "gblur"]);
    assert!(said.contains("the 46 rows of its yuv 4:2:0 8-bit pictures cannot be shared out to two fields"), "{said}");
    // Progressive pictures are filtered whole.
    assert!(!c.run(clip, "o.mkv", &["-v", "-c:v", "ffv1", "--vf", "gblur"]).contains("each field"));
}

#[test]
fn odd_sizes_are_decided_before_the_start() {
    let c = Clips::new();
    c.make("a.mkv", "-f lavfi -i testsrc=size=65x49:rate=25:duration=0.4 -pix_fmt yuv420p -c:v ffv1");
    let whole = samples(&c.at("a.mkv"), 65, 49);
    for (odd, size, format, word) in [
        ("pad", (66, 50), "yuv420p", "is padded to 66x50 for libx264"),
        ("crop", (64, 48), "yuv420p", "is cropped to 64x48 for libx264"),
        ("444", (65, 49), "yuv444p", "is encoded as yuv444p for libx264"),
    ] {
        let said = c.run("a.mkv", "o.mkv", &["--preset", "ultrafast", "--enc-opt", "qp=0", "--odd", odd, "--vf", "gblur=0.01"]);
        assert!(said.contains(word), "{said}");
        assert_eq!(c.entry("o.mkv", "v", "stream=width,height,pix_fmt"), [format!("{},{},{format}", size.0, size.1)]);
        if odd == "444" {
            continue;
        }
        // Every sample that both have is the same, and what is added repeats the last one.
        let got = samples(&c.at("o.mkv"), size.0, size.1);
        for (frame, (g, w)) in got.frames.iter().zip(&whole.frames).enumerate() {
            for (plane, (g, w)) in g.iter().zip(w).enumerate() {
                for y in 0..g.height {
                    for x in 0..g.width {
                        let want = w.samples[y.min(w.height - 1) * w.width + x.min(w.width - 1)];
                        assert_eq!(g.samples[y * g.width + x], want, "{odd}, frame {frame}, plane {plane}, {x},{y}");
                    }
                }
            }
        }
    }
    let done = c.try_run("a.mkv", "none.mp4", &[]);
    assert!(done.status.code() == Some(1) && stderr(&done).contains("--odd pad"), "{}", stderr(&done));
    assert!(!std::path::Path::new(&c.at("none.mp4")).exists());
    // Filters can make a size odd too.
    c.make("even.mkv", &format!("{PICTURE} -pix_fmt yuv420p -c:v ffv1"));
    let said = c.run("even.mkv", "o.mp4", &["--odd", "pad", "--vf", "avgpool=3:3"]);
    assert!(said.contains("is padded to"), "{said}");
}

#[test]
fn changes_in_mid_stream_are_scaled_and_named_or_refused() {
    let c = Clips::new();
    c.make("a.ts", &format!("{PICTURE} {H264}"));
    let change = |name: &str, args: &str| {
        let second = c.make(&format!("second-{name}"), args);
        c.write(name, [std::fs::read(c.at("a.ts")).unwrap(), std::fs::read(second).unwrap()].concat());
    };
    change("size.ts", &format!("-f lavfi -i testsrc2=size=96x80:rate=25:duration=1 {H264}"));
    change("format.ts", "-f lavfi -i testsrc2=size=64x48:rate=25:duration=1 -pix_fmt yuv444p -c:v libx264 -preset veryfast");
    change("aspect.ts", &format!("{PICTURE} -vf setsar=4/3 {H264}"));
    for (name, word) in [("size.ts", "96x80"), ("format.ts", "yuv444p"), ("aspect.ts", "the sample aspect changes from 1:1 to 4:3")] {
        let said = c.run(name, "o.mkv", &["--vf", "gblur"]);
        assert!(said.contains("warning: the ") && said.contains(word) && said.contains("in mid-stream"), "{name}: {said}");
        assert_eq!(said.matches("in mid-stream").count(), 1, "{said}");
        assert_eq!(c.frame_hashes("o.mkv", &[]).len(), 50, "{name}");
        assert_eq!(c.entry("o.mkv", "v", "stream=width,height"), ["64,48"]);
        let done = c.try_run(name, "none.mkv", &["--on-change", "error"]);
        assert!(done.status.code() == Some(1) && stderr(&done).contains("--on-change error"), "{name}: {}", stderr(&done));
        assert!(!std::path::Path::new(&c.at("none.mkv")).exists());
    }
    // The scaled picture is the right one, not a sheared one.
    c.run("size.ts", "o.mkv", &["-c:v", "ffv1"]);
    c.make("want.mkv", "-i DIR/second-size.ts -vf scale=64:48:flags=bicubic+accurate_rnd -vsync passthrough -c:v ffv1");
    let judge = "[0:v]trim=start_frame=25,settb=1/25,setpts=N[a];[1:v]settb=1/25,setpts=N[b];[a][b]psnr=stats_file=-";
    let psnr = support::ffmpeg(&["-i", &c.at("o.mkv"), "-i", &c.at("want.mkv"), "-lavfi", judge, "-f", "null", "-"]);
    let worst = String::from_utf8(psnr)
        .unwrap()
        .lines()
        .filter_map(|l| l.split("psnr_avg:").nth(1)?.split(' ').next()?.parse::<f64>().ok())
        .fold(f64::MAX, f64::min);
    assert!(worst > 40.0, "{worst}");
}
