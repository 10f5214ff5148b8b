//! What each container cannot hold is named: chapters, programmes, dispositions, tags, colour, fields; and times, where it has none.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test is a panic")]

mod support;

use support::clips::{Clips, H264, PICTURE, SOUND};
use support::stderr;

const FILM: &str = ";FFMETADATA1\ntitle=A film\n[CHAPTER]\nTIMEBASE=1/1000\nSTART=0\nEND=400\ntitle=One\n[CHAPTER]\nTIMEBASE=1/1000\nSTART=400\nEND=1000\ntitle=Two\n";
/// In FFmpeg's order, in which ffprobe prints them.
const KINDS: [&str; 12] = [
    "default",
    "dub",
    "original",
    "comment",
    "lyrics",
    "karaoke",
    "forced",
    "hearing_impaired",
    "visual_impaired",
    "clean_effects",
    "captions",
    "descriptions",
];

/// Dispositions of an audio stream, without the default of the first.
fn dispositions(c: &Clips, name: &str, stream: usize) -> Vec<&'static str> {
    let lines = c.entry(name, &format!("a:{stream}"), &format!("format=format_name:stream_disposition={}", KINDS.join(",")));
    let set = |line: &String| KINDS.into_iter().zip(line.split(',')).filter(|(_, v)| *v == "1").map(|(k, _)| k).collect();
    lines.first().map_or(Vec::new(), set)
}

#[test]
fn every_disposition_chapter_and_tag_is_kept_or_named() {
    let c = Clips::new();
    c.write("c.txt", FILM);
    let streams = "-f lavfi -i sine=duration=1:sample_rate=48000 -f lavfi -i sine=400:duration=1:sample_rate=48000 -i DIR/c.txt";
    let marks = "-disposition:a:0 comment+dub+forced -disposition:a:1 default+hearing_impaired+original -metadata:s:a:0 language=deu \
                 -metadata:s:a:1 language=fra -metadata camera=B12";
    c.make("a.mkv", &format!("{PICTURE} {streams} -map 0 -map 1 -map 2 -map_metadata 3 -map_chapters 3 {H264} -c:a mp2 {marks}"));
    for name in ["o.mkv", "o.mp4", "o.mov", "o.ts", "o.avi", "o.nut", "o.mpg", "o.flv", "o.mxf", "o.webm", "o.y4m"] {
        let said = c.run("a.mkv", name, &["--vf", "gblur"]);
        let named = |word: &str| said.lines().any(|line| line.contains("left out") && line.contains(word));
        let chapters = c.entry(name, "v", "chapter=start_time:chapter_tags=title");
        assert!((chapters == ["0.000000,One", "0.400000,Two"]) != named("the 2 chapters"), "{name}: {chapters:?} {said}");
        for stream in 0..2 {
            if named(&format!("audio stream #{} (mp2) is left out", stream + 1)) {
                continue;
            }
            let label = format!("of audio stream #{}", stream + 1);
            let of_stream =
                |word: &str| said.lines().any(|l| l.contains("left out") && l.contains(&label) && l.contains(&format!("'{word}'")));
            let (want, got) = (dispositions(&c, "a.mkv", stream), dispositions(&c, name, stream));
            assert_eq!(want.len(), 3);
            for kind in want {
                assert!(got.contains(&kind) != of_stream(kind), "{name}: {kind} of audio {stream}: {got:?} {said}");
            }
            let languages = c.entry(name, &format!("a:{stream}"), "format=format_name:stream_tags=language");
            let language = languages.first().cloned().unwrap_or_default();
            let kept = [["deu", "ger"], ["fra", "fre"]][stream].contains(&language.as_str());
            assert!(kept != of_stream("language"), "{name}: {language} {said}");
        }
        // Matroska's reader spells the keys in capitals.
        let said = said.to_lowercase();
        for (tag, value) in [("title", "A film"), ("camera", "B12")] {
            let kept = c.entry(name, "v", &format!("format_tags={tag}")).join("") == value;
            assert!(
                kept != said.lines().any(|l| l.contains("left out") && l.contains(&format!("'{tag}'")) && !l.contains(" of ")),
                "{name}: {tag} {said}"
            );
        }
    }
}

#[test]
fn colour_tags_and_the_order_of_fields_are_kept_or_named() {
    let c = Clips::new();
    let tags = "-color_primaries bt470bg -color_trc gamma28 -colorspace bt470bg -color_range pc -aspect 16:9";
    c.make("a.mkv", &format!("{PICTURE} -vf setfield=tff -pix_fmt yuv420p -c:v libx264 -preset ultrafast -flags +ildct {tags}"));
    let seen = |name: &str, entry: &str| c.entry(name, "v", &format!("stream={entry}")).join("");
    for (name, encoder) in [
        ("o.avi", "ffv1"),
        ("o.avi", "libx264"),
        ("o.avi", "mpeg4"),
        ("o.mkv", "mpeg4"),
        ("o.mov", "prores_ks"),
        ("o.nut", "ffv1"),
        ("o.ts", "mpeg2video"),
        ("o.flv", "flv"),
        ("o.mkv", "libvpx-vp9"),
        ("o.y4m", "wrapped_avframe"),
    ] {
        let said = c.run("a.mkv", name, &["-c:v", encoder, "--vf", "gblur"]);
        let case = format!("{name} {encoder}: {said}");
        for (entry, word) in
            [("color_range", "'range'"), ("color_space", "'matrix'"), ("color_transfer", "'transfer'"), ("color_primaries", "'primaries'")]
        {
            let (kept, named) =
                (seen(name, entry) == seen("a.mkv", entry), said.lines().any(|l| l.contains("colour tag") && l.contains(word)));
            // Video range goes without saying; an encoder may have asked for it before.
            assert!(kept != named || (entry == "color_range" && said.contains("range")), "{entry}, {} {case}", seen(name, entry));
        }
        let interlaced = !["progressive", "unknown"].contains(&seen(name, "field_order").as_str());
        assert!(interlaced != said.contains("the order of the fields"), "{} {case}", seen(name, "field_order"));
        assert!((seen(name, "sample_aspect_ratio") == "4:3") != said.contains("the sample aspect"), "{case}");
    }
}

#[test]
fn programmes_are_named_where_there_are_none() {
    let c = Clips::new();
    c.make(
        "two.ts",
        &format!("{PICTURE} {SOUND} -map 0 -map 1 -map 1 {H264} -c:a mp2 -program title=News:st=0:st=1 -program title=Sport:st=0:st=2"),
    );
    let said = c.run("two.ts", "o.mkv", &[]);
    assert!(said.contains("warning: the programmes 'News', 'Sport' are left out: matroska holds streams only"), "{said}");
    assert!(!c.run("two.ts", "o.ts", &[]).contains("programmes"));
    // Every transport stream is one programme; that is no news.
    c.make("one.ts", &format!("{PICTURE} {SOUND} {H264} -c:a mp2"));
    let said = c.run("one.ts", "o.mkv", &[]);
    assert!(!said.contains("warning"), "{said}");
}

#[test]
fn irregular_times_are_measured_where_the_container_has_none() {
    let c = Clips::new();
    // 25 pictures; from the 11th on half a second late.
    c.make("gap.mkv", &format!("{PICTURE} -vf setpts='(N+13*gte(N,10))/25/TB' -vsync passthrough {H264}"));
    c.make("even.mkv", &format!("{PICTURE} {H264}"));
    for (name, args) in
        [("o.mxf", vec!["-c:v", "mpeg2video"]), ("o.y4m", vec![]), ("o.yuv", vec![]), ("o.h264", vec![]), ("o_%03d.png", vec![])]
    {
        let said = c.run("gap.mkv", name, &args);
        assert!(said.contains("of 25 pictures leave their places, by up to 0.") && said.contains("holds no times"), "{name}: {said}");
        let said = c.run("even.mkv", name, &args);
        assert!(!said.contains("leave their places"), "{name}: {said}");
        assert!(name.contains('%') || c.frame_hashes(name, &["-s", "64x48"][..if name == "o.yuv" { 2 } else { 0 }]).len() == 25, "{name}");
    }
    // AVI holds them, to its unit: nothing to say.
    let said = c.run("gap.mkv", "o.avi", &[]);
    assert!(!said.contains("warning"), "{said}");
    // A rate that MXF does not know ends the run before anything is written.
    c.make("odd.mkv", &format!("-f lavfi -i testsrc2=size=64x48:rate=17:duration=1 {H264}"));
    let done = c.try_run("odd.mkv", "none.mxf", &["-c:v", "mpeg2video"]);
    assert!(done.status.code() == Some(1) && stderr(&done).contains("17/1 fps"), "{}", stderr(&done));
    assert!(!std::path::Path::new(&c.at("none.mxf")).exists());
}

#[test]
fn streams_that_begin_apart_are_named_where_they_are_put_together() {
    let c = Clips::new();
    c.make("av.mkv", &format!("{PICTURE} {SOUND} {H264} -c:a pcm_s16le"));
    c.make("late.mkv", "-itsoffset 0.4 -i DIR/av.mkv -i DIR/av.mkv -map 0:v -map 1:a -c copy");
    let said = c.run("late.mkv", "o.mxf", &[]);
    assert!(said.contains("warning: the streams begin up to 0.4") && said.contains("mxf starts them together"), "{said}");
    let said = c.run("av.mkv", "o.mxf", &[]);
    assert!(!said.contains("apart"), "{said}");
}
