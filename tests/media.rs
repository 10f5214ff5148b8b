//! Encoding and muxing through the library, with the installed ffmpeg and ffprobe as judges. Inputs are generated.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test is a panic")]

mod support;

use std::sync::atomic::Ordering;

use convoy::cancel::Cancel;
use convoy::media::{self, EncodeSpec, InputSpec, Packet};
use convoy::pipeline::{Encoder, Item, Source};
use support::library::{
    CLIP, Folder, ODD, PICTURE, agrees, codec, copy, judge_hash, open, packet_hash, probe, run, said, source, source_with, spec, times,
    transcode,
};

#[test]
fn a_transcode_keeps_times_sound_and_count() {
    let dir = Folder::new();
    let clip = dir.make("a.mp4", &format!("{CLIP} -c:v libx264 -bf 3 -c:a aac"));
    for name in ["b.mp4", "b.mkv", "b.mov"] {
        let out = dir.path(name);
        let sink = transcode(&clip, &out, &EncodeSpec::default());
        assert_eq!(sink.muxer.warnings(), [] as [&str; 0]);
        assert_eq!(sink.encoder.counters().host_copied_bytes.load(Ordering::Relaxed), 0);
        let (want, got) = (times(&clip), times(&out));
        assert_eq!(want.len(), got.len());
        // Matroska has no negative time stamps: AAC's priming moves every stream by 23 ms, as with ffmpeg itself.
        let shift = if name == "b.mkv" { 0.023 } else { 0.0 };
        assert!(want.iter().zip(&got).all(|(a, b)| (a + shift - b).abs() < 0.0006), "{name}: {want:?} {got:?}");
        assert_eq!(packet_hash(&clip, "0:a"), packet_hash(&out, "0:a"), "{name}");
    }
}

#[test]
fn variable_frame_rate_stays_variable() {
    let dir = Folder::new();
    // Frames 3, 4 and 11 … 19 are missing.
    let clip = dir.make(
        "vfr.mkv",
        "-f lavfi -i testsrc2=size=320x180:rate=30:duration=2 -vf select='not(between(n\\,3\\,4)+between(n\\,11\\,19))' -vsync vfr -pix_fmt yuv420p -c:v libx264 -bf 2",
    );
    let want = times(&clip);
    assert_eq!(want.len(), 49);
    for name in ["o.mkv", "o.mp4", "o.ts", "o.webm"] {
        let out = dir.path(name);
        transcode(&clip, &out, &EncodeSpec::default());
        let got = times(&out);
        assert_eq!(got.len(), want.len(), "{name}");
        let start = got[0] - want[0];
        assert!(want.iter().zip(&got).all(|(a, b)| (a + start - b).abs() < 0.0011), "{name}: {want:?} {got:?}");
        let dts: Vec<f64> = probe(&out, "packet=dts_time", "v:0").lines().filter_map(|l| l.trim_end_matches(',').parse().ok()).collect();
        assert!(dts.len() > 40 && dts.windows(2).all(|w| w[0] < w[1]), "{name}: {dts:?}");
    }
}

#[test]
fn the_lossless_round_trip_is_exact() {
    let dir = Folder::new();
    for format in ["yuv420p", "yuv422p10le", "yuv444p12le", "gray", "gray10le", "gbrp12le", "yuva420p"] {
        let clip = dir.make(&format!("{format}.mkv"), &format!("{ODD} -pix_fmt {format} -c:v ffv1"));
        let out = dir.path(&format!("{format}-out.mkv"));
        for threads in [1, 16] {
            let sink = transcode(&clip, &out, &EncodeSpec { threads: Some(threads), ..codec("ffv1") });
            assert_eq!(sink.encoder.pixel_format(), format);
            assert_eq!(sink.encoder.counters().host_copied_bytes.load(Ordering::Relaxed), 0);
            assert_eq!(judge_hash(&clip, &[]), judge_hash(&out, &[]), "{format}, {threads} threads");
        }
    }
}

#[test]
fn encoders_that_hold_as_many_frames_as_threads_finish() {
    let dir = Folder::new();
    let clip = dir.make("a.mkv", &format!("{CLIP} -c:v ffv1"));
    for (name, encoder) in [("o.avi", "mjpeg"), ("o.mov", "prores_ks"), ("o.mkv", "huffyuv"), ("p.mkv", "utvideo"), ("q.mkv", "libx264")] {
        for threads in [1, 16] {
            let out = dir.path(name);
            let spec = EncodeSpec { threads: Some(threads), ..codec(encoder) };
            let mut source = source(&clip, 16);
            let mut sink = match open(&source, &out, &spec) {
                Ok(sink) => sink,
                Err(error) => panic!("{encoder}: {error}"),
            };
            assert_eq!(copy(&mut source, &mut sink).unwrap(), 50);
            assert_eq!(times(&out).len(), 50, "{encoder}, {threads} threads");
        }
    }
}

#[test]
fn a_frame_limit_cuts_the_sound_too() {
    let dir = Folder::new();
    let clip = dir.make("a.mp4", &format!("{CLIP} -c:v libx264 -bf 3 -c:a aac"));
    let out = dir.path("b.mp4");
    let spec = InputSpec { frames: Some(10), ..spec(&clip) };
    let mut source = source_with(&spec, 16, &Cancel::new()).unwrap();
    let mut sink = open(&source, &out, &EncodeSpec::default()).unwrap();
    assert_eq!(copy(&mut source, &mut sink).unwrap(), 10);
    assert_eq!(times(&out).len(), 10);
    let sound: Vec<f64> = probe(&out, "packet=pts_time", "a:0").lines().filter_map(|l| l.trim_end_matches(',').parse().ok()).collect();
    let last = sound.iter().copied().fold(f64::MIN, f64::max);
    assert!((0.35..0.4).contains(&last), "{sound:?}");
}

#[test]
fn everything_else_is_carried_over() {
    let dir = Folder::new();
    let srt = dir.path("s.srt");
    std::fs::write(&srt, "1\n00:00:00,200 --> 00:00:01,000\nHello\n\n2\n00:00:01,200 --> 00:00:01,800\nthere\n").unwrap();
    let chapters = dir.path("c.txt");
    std::fs::write(&chapters, ";FFMETADATA1\ntitle=A film\n[CHAPTER]\nTIMEBASE=1/1000\nSTART=0\nEND=900\ntitle=One\n[CHAPTER]\nTIMEBASE=1/1000\nSTART=900\nEND=2000\ntitle=Two\n").unwrap();
    let clip = dir.make(
        "a.mkv",
        &format!(
            "{PICTURE} -f lavfi -i sine=duration=2 -i {srt} -i {chapters} -pix_fmt yuv420p -map 0 -map 1 -map 2 -map_metadata 3 -map_chapters 3 -c:v libx264 -c:a aac -c:s srt \
                  -aspect 4:3 -color_primaries bt709 -color_trc bt709 -colorspace bt709 -color_range tv \
                  -metadata:s:a:0 language=deu -disposition:s:0 default -attach {srt} -metadata:s:t mimetype=text/plain"
        ),
    );
    let out = dir.path("b.mkv");
    let sink = transcode(&clip, &out, &EncodeSpec::default());
    assert_eq!(sink.muxer.warnings(), [] as [&str; 0]);
    for (entries, select) in [
        ("stream=codec_type,codec_name:stream_disposition=default:stream_tags=language", "a"),
        ("stream=codec_type,codec_name:stream_disposition=default:stream_tags=language", "s"),
        ("stream=codec_type,codec_name:stream_tags=filename,mimetype", "t"),
        (
            "stream=sample_aspect_ratio,display_aspect_ratio,color_range,color_space,color_transfer,color_primaries,r_frame_rate,avg_frame_rate",
            "v",
        ),
        ("format_tags=title", "v"),
    ] {
        let want = probe(&clip, entries, select);
        assert!(!want.trim().is_empty(), "{entries}");
        assert_eq!(want, probe(&out, entries, select), "{entries}");
    }
    let chapters = |path| run("ffprobe", ["-v", "error", "-show_chapters", "-of", "csv", path]);
    assert!(chapters(&clip).contains("Two"));
    assert_eq!(chapters(&clip), chapters(&out));
    assert_eq!(packet_hash(&clip, "0:s"), packet_hash(&out, "0:s"));

    let mp4 = dir.path("b.mp4");
    let sink = transcode(&clip, &mp4, &EncodeSpec::default());
    let warnings = sink.muxer.warnings().join("\n");
    assert!(warnings.contains("attachment stream #3") && !warnings.contains("subtitle"), "{warnings}");
    assert_eq!(sink.muxer.notes(), ["subtitle stream #2 (subrip) is converted to mov_text"]);
    assert_eq!(chapters(&mp4).lines().count(), 2);
    assert_eq!(packet_hash(&clip, "0:a"), packet_hash(&mp4, "0:a"));
    let webm = transcode(&clip, &dir.path("b.webm"), &EncodeSpec::default());
    assert!(webm.muxer.warnings().iter().any(|w| w.contains("audio stream #1 (aac) is left out")), "{:?}", webm.muxer.warnings());
}

#[test]
fn rotation_is_kept() {
    let dir = Folder::new();
    let plain = dir.make("a.mp4", &format!("{PICTURE} -pix_fmt yuv420p -c:v libx264"));
    let clip = dir.make("r.mp4", &format!("-i {plain} -c copy -metadata:s:v:0 rotate=90"));
    let rotation = |path: &str| probe(path, "stream_side_data=rotation", "v");
    // ffprobe counts counterclockwise.
    let clockwise = -rotation(&clip).trim_matches([',', '\n']).parse::<i32>().unwrap();
    assert_eq!(clockwise.rem_euclid(180), 90);
    let out = dir.path("o.mp4");
    let mut source = source(&clip, 1);
    assert_eq!(source.info().rotation, clockwise.rem_euclid(360));
    let mut sink = open(&source, &out, &EncodeSpec::default()).unwrap();
    copy(&mut source, &mut sink).unwrap();
    assert_eq!(rotation(&clip), rotation(&out));
    assert_eq!(sink.muxer.warnings(), [] as [&str; 0]);
    for name in ["o.mov", "o.mkv", "o.avi", "f_%02d.png"] {
        let out = dir.path(name);
        let sink = transcode(&clip, &out, &EncodeSpec::default());
        let warned = sink.muxer.warnings().iter().any(|w| w.starts_with("the rotation by"));
        let kept = rotation(&out) == rotation(&clip);
        assert!(kept != warned && (kept || name != "o.mov"), "{name}: {:?}", sink.muxer.warnings());
    }
}

#[test]
fn containers_of_one_stream_hold_pictures_alone() {
    let dir = Folder::new();
    let clip = dir.make("a.mp4", &format!("{CLIP} -c:v libx264 -c:a aac"));
    for (name, size) in [("o.yuv", Some(50 * 320 * 180 * 3 / 2)), ("o.h264", None), ("o.m2v", None)] {
        let out = dir.path(name);
        let sink = transcode(&clip, &out, &EncodeSpec::default());
        let warnings = sink.muxer.warnings();
        assert!(warnings.iter().any(|w| w.starts_with("audio stream #1 (aac) is left out")), "{name}: {warnings:?}");
        if let Some(size) = size {
            assert_eq!(std::fs::metadata(&out).unwrap().len(), size);
        }
    }
}

#[test]
fn streams_that_a_container_would_disguise_are_left_out() {
    let dir = Folder::new();
    let srt = dir.path("s.srt");
    std::fs::write(&srt, "1\n00:00:00,200 --> 00:00:01,000\nHello\n").unwrap();
    let clip = dir.make(
        "a.mkv",
        &format!("{PICTURE} -f lavfi -i sine=duration=1 -i {srt} -map 0 -map 1 -map 2 -pix_fmt yuv420p -c:v libx264 -c:a aac -c:s srt -attach {srt} -metadata:s:t mimetype=text/plain"),
    );
    for (name, kept) in [("o.ts", vec!["h264", "aac"]), ("o.mpg", vec!["mpeg1video"]), ("o.webm", vec!["vp9"])] {
        let out = dir.path(name);
        let sink = transcode(&clip, &out, &EncodeSpec::default());
        let warnings = sink.muxer.warnings().join("\n");
        assert!(warnings.contains("subtitle stream #2 (subrip) is left out") == (name != "o.webm"), "{name}: {warnings}");
        assert!(warnings.contains("attachment stream #3") && warnings.contains("holds no attachments"), "{name}: {warnings}");
        let codecs = run("ffprobe", ["-v", "error", "-show_entries", "stream=codec_name", "-of", "default=nk=1:nw=1", &out]);
        let mut codecs: Vec<&str> = codecs.lines().collect();
        codecs.dedup();
        codecs.truncate(kept.len());
        assert_eq!(codecs, kept, "{name}");
        assert!(!run("ffprobe", ["-v", "error", "-show_entries", "stream=codec_name", &out]).contains("bin_data"), "{name}");
    }
    let error = media::check_output("o.ts", &codec("ffv1")).unwrap_err().to_string();
    assert!(error.contains("mpegts cannot hold ffv1"), "{error}");
}

/// First presentation time of a stream.
fn first_time(path: &str, select: &str) -> f64 {
    let times = probe(path, "packet=pts_time", select);
    times.lines().filter_map(|l| l.split(',').next()?.parse::<f64>().ok()).fold(f64::MAX, f64::min)
}

#[test]
fn a_far_start_is_moved_and_offsets_between_streams_stay() {
    let dir = Folder::new();
    let clip = dir.make("a.mp4", &format!("{CLIP} -c:v libx264 -c:a mp2"));
    let late = dir.make("late.ts", &format!("-itsoffset 0.4 -i {clip} -i {clip} -map 0:v -map 1:a -c copy -output_ts_offset 3600"));
    let gap = first_time(&late, "v") - first_time(&late, "a");
    assert!(first_time(&late, "v") > 3600.0 && gap > 0.35, "{gap}");
    assert!(said(&late).1.iter().any(|w| w.contains("times start at 360")), "{:?}", said(&late).1);
    for name in ["o.mp4", "o.mkv", "o.avi"] {
        let out = dir.path(name);
        transcode(&late, &out, &EncodeSpec::default());
        let duration: f64 =
            run("ffprobe", ["-v", "error", "-show_entries", "format=duration", "-of", "csv=p=0", &out]).trim().parse().unwrap();
        assert!((1.9..2.6).contains(&duration), "{name}: {duration}");
        if name != "o.avi" {
            let kept = first_time(&out, "v") - first_time(&out, "a");
            assert!((kept - gap).abs() < 0.002, "{name}: {kept} {gap}");
        }
    }
    // Near zero nothing moves.
    let near = dir.make("near.mkv", &format!("-i {clip} -c copy -output_ts_offset 0.5"));
    let out = dir.path("n.mkv");
    transcode(&near, &out, &EncodeSpec::default());
    assert_eq!(first_time(&near, "v"), first_time(&out, "v"));
    assert_eq!(said(&near), (50, vec![]));
}

#[test]
fn opus_keeps_its_place_beside_the_pictures() {
    let dir = Folder::new();
    let mut from = dir.make("a.mp4", &format!("{CLIP} -c:v libx264 -c:a libopus"));
    let offset = |path: &str| first_time(path, "v") - first_time(path, "a");
    let want = offset(&from);
    for name in ["b.mkv", "c.webm", "d.webm", "e.mkv"] {
        let out = dir.path(name);
        transcode(&from, &out, &EncodeSpec::default());
        assert!((offset(&out) - want).abs() < 0.0011, "{name}: {} {want}", offset(&out));
        from = out;
    }
}

#[test]
fn quicktime_keys_are_kept() {
    let dir = Folder::new();
    let keys = "-movflags use_metadata_tags -metadata com.apple.quicktime.make=Apple -metadata title=Hi";
    let clip = dir.make("a.mov", &format!("{PICTURE} -pix_fmt yuv420p -c:v libx264 {keys}"));
    for name in ["o.mov", "o.mp4"] {
        let out = dir.path(name);
        transcode(&clip, &out, &EncodeSpec::default());
        let tag = |key: &str| probe(&out, &format!("format_tags={key}"), "v").trim().to_owned();
        assert_eq!((tag("com.apple.quicktime.make"), tag("title")), ("Apple".to_owned(), "Hi".to_owned()), "{name}");
    }
}

#[test]
fn other_containers_get_their_own_encoder() {
    let dir = Folder::new();
    let clip = dir.make("a.mp4", &format!("{CLIP} -c:v libx264 -bf 2 -c:a aac"));
    for (name, encoder) in [
        ("o.webm", "libvpx-vp9"),
        ("o.avi", "libx264"),
        ("o.ts", "libx264"),
        ("o.gif", "gif"),
        ("o.flv", "libx264"),
        ("o.nut", "libx264"),
        ("o.mxf", "mpeg2video"),
        ("o.apng", "apng"),
        ("o.y4m", "wrapped_avframe"),
        ("f_%03d.png", "png"),
        ("o.mpg", "mpeg1video"),
    ] {
        let out = dir.path(name);
        let mut source = source(&clip, 2);
        let mut sink = match open(&source, &out, &EncodeSpec::default()) {
            Ok(sink) => sink,
            Err(error) => panic!("{name}: {error}"),
        };
        assert_eq!(sink.encoder.name(), encoder, "{name}");
        assert_eq!(copy(&mut source, &mut sink).unwrap(), 50, "{name}");
        assert_eq!(probe(&out, "packet=size", "v:0").lines().filter(|l| !l.is_empty()).count(), 50, "{name}");
    }
    let mpeg4 = dir.path("m.mp4");
    transcode(&clip, &mpeg4, &codec("mpeg4"));
    assert_eq!(times(&mpeg4), times(&clip));
}

#[test]
fn streams_without_time_stamps_get_rising_ones() {
    let dir = Folder::new();
    let clip = dir.make("a.h264", &format!("{PICTURE} -pix_fmt yuv420p -c:v libx264 -bf 2"));
    let (seen, _) = agrees(&clip, &[]);
    assert_eq!(seen.frames, 25);
    let steps: Vec<i64> = seen.pts.windows(2).map(|w| w[1] - w[0]).collect();
    assert!(steps.iter().all(|&s| s > 0 && s == steps[0]), "{:?}", seen.pts);
    let out = dir.path("o.mkv");
    transcode(&clip, &out, &EncodeSpec::default());
    assert_eq!(times(&out).len(), 25);
}

#[test]
fn packets_get_their_frames_durations_and_rising_dts() {
    let dir = Folder::new();
    let clip = dir.make("a.mp4", &format!("{PICTURE} -pix_fmt yuv420p -c:v libx264 -bf 3"));
    let mut source = source(&clip, 2);
    let mut sink = open(&source, &dir.path("o.mp4"), &EncodeSpec::default()).unwrap();
    let mut packets = Vec::new();
    let mut keep = |p: Packet| {
        packets.push((p.pts().unwrap(), p.dts().unwrap(), p.duration()));
        Ok(())
    };
    while let Item::Frame(frame) = source.next().unwrap() {
        sink.encoder.encode(frame, &mut keep).unwrap();
    }
    sink.encoder.finish(&mut keep).unwrap();
    assert_eq!(packets.len(), 25);
    assert!(packets.iter().all(|p| p.2 == 512), "{packets:?}");
    assert!(packets.windows(2).all(|w| w[0].1 < w[1].1) && packets.iter().all(|p| p.1 <= p.0), "{packets:?}");
    assert!(packets.windows(2).any(|w| w[0].0 > w[1].0), "no B-frames: {packets:?}");
}

#[test]
fn interlacing_is_kept() {
    let dir = Folder::new();
    for order in ["tff", "bff"] {
        let clip = dir.make(
            "a.mkv",
            &format!(
                "-f lavfi -i testsrc2=size=320x192:rate=25:duration=1 -vf setfield={order} -pix_fmt yuv420p -c:v libx264 -flags +ildct+ilme"
            ),
        );
        let out = dir.path("o.mkv");
        transcode(&clip, &out, &EncodeSpec::default());
        let fields = |path: &str| -> Vec<String> {
            let lines = probe(path, "frame=interlaced_frame,top_field_first", "v:0");
            lines.lines().map(|l| l.trim_end_matches(',')).filter(|l| l.len() == 3).map(str::to_owned).collect()
        };
        assert_eq!(fields(&out).len(), 25);
        assert_eq!(fields(&clip)[0], if order == "tff" { "1,1" } else { "1,0" });
        assert_eq!(fields(&clip), fields(&out), "{order}");
    }
}

#[test]
fn quality_options_reach_the_encoder() {
    let dir = Folder::new();
    let clip = dir.make("a.mkv", &format!("{PICTURE} -pix_fmt yuv420p -c:v ffv1"));
    let size = |name: &str, spec: &EncodeSpec| {
        let out = dir.path(name);
        transcode(&clip, &out, spec);
        std::fs::metadata(out).unwrap().len()
    };
    let crf = |crf| EncodeSpec { crf: Some(crf), ..EncodeSpec::default() };
    let (default, low, same) = (size("d.mp4", &EncodeSpec::default()), size("l.mp4", &crf(40.0)), size("s.mp4", &crf(18.0)));
    assert_eq!(default, same);
    assert!(low * 2 < default, "{low} {default}");
    let by_option = EncodeSpec { options: vec![("crf".into(), "40".into())], ..EncodeSpec::default() };
    assert_eq!(size("o.mp4", &by_option), low);
    let fast = EncodeSpec { preset: Some("ultrafast".into()), ..EncodeSpec::default() };
    assert_ne!(size("f.mp4", &fast), default);
    let bitrate = EncodeSpec { bitrate: Some("100k".into()), ..EncodeSpec::default() };
    assert!(size("b.mp4", &bitrate) < default / 2);
    // A faster index: `moov` stands before `mdat`.
    let bytes = std::fs::read(dir.path("d.mp4")).unwrap();
    let find = |tag: &[u8]| bytes.windows(4).position(|w| w == tag).unwrap();
    assert!(find(b"moov") < find(b"mdat"));
}
