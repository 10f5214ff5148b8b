//! Odd but sound files: nothing is lost on their way, and nothing is said.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test is a panic")]

mod support;

use support::clips::{Clips, H264, PICTURE, SOUND, same_steps};

/// Presentation times of the decoded pictures.
fn picture_times(c: &Clips, name: &str) -> Vec<f64> {
    let lines = c.entry(name, "v:0", "frame=best_effort_timestamp_time");
    lines.iter().filter_map(|l| l.split(',').next()?.parse().ok()).collect()
}

#[test]
fn odd_files_pass_whole_and_in_silence() {
    let c = Clips::new();
    c.make("av.mp4", &format!("{PICTURE} {SOUND} {H264} -c:a aac"));
    let uneven = "-vf settb=1/90000,setpts='(N*0.04+0.011*sin(N*N))/TB' -vsync passthrough -enc_time_base 1/90000";
    for (name, args) in [
        ("negative.mp4", format!("{PICTURE} {H264} -movflags negative_cts_offsets")),
        ("uneven.mp4", format!("{PICTURE} {uneven} {H264} -video_track_timescale 90000")),
        ("one.mp4", format!("{PICTURE} {H264} -frames:v 1")),
        ("fragments.mp4", "-i DIR/av.mp4 -c copy -movflags frag_keyframe+empty_moov".to_owned()),
        (
            "late-video.mp4",
            "-itsoffset 5 -i DIR/av.mp4 -f lavfi -i sine=duration=7:sample_rate=48000 -map 0:v -map 1 -c:v copy -c:a aac".to_owned(),
        ),
        ("late-sound.mp4", "-i DIR/av.mp4 -itsoffset 0.5 -i DIR/av.mp4 -map 0:v -map 1:a -c copy".to_owned()),
        ("long-sound.mp4", format!("{PICTURE} -f lavfi -i sine=duration=3:sample_rate=48000 {H264} -c:a aac")),
        ("short-sound.mp4", format!("-f lavfi -i testsrc2=size=64x48:rate=25:duration=3 {SOUND} {H264} -c:a aac")),
        ("late.flv", "-itsoffset 0.7 -i DIR/av.mp4 -c copy".to_owned()),
        ("opus.mkv", format!("-f lavfi -i testsrc2=size=64x48:rate=24000/1001:duration=1 {SOUND} {H264} -c:a libopus")),
        ("code.mov", "-i DIR/av.mp4 -c copy -timecode 10:11:12:13".to_owned()),
        ("wrap.ts", format!("{PICTURE} {SOUND} {H264} -c:a mp2 -output_ts_offset 95443.2 -muxdelay 0")),
        ("impaired.ts", format!("{PICTURE} {SOUND} {H264} -c:a mp2 -metadata:s:a:0 language=eng -disposition:a:0 hearing_impaired")),
        ("cropped.mp4", format!("{PICTURE} {H264} -bsf:v h264_metadata=crop_left=2:crop_right=2")),
    ] {
        c.make(name, &args);
        let want = picture_times(&c, name);
        for extension in ["mp4", "mkv", "mov", "ts"] {
            let lossy = match name {
                "opus.mkv" | "impaired.ts" => extension == "mov",
                "code.mov" => extension == "ts",
                _ => false,
            };
            if lossy {
                // Named losses, which other tests look at.
                continue;
            }
            let output = format!("o.{extension}");
            let said = c.run(name, &output, &["--vf", "gblur"]);
            // A start far from zero is news of its own.
            let words: Vec<&str> = said.lines().filter(|l| l.contains("warning") && !l.contains("times start at")).collect();
            assert_eq!(words, [] as [&str; 0], "{name} into {extension}");
            let got = picture_times(&c, &output);
            // A clock of milliseconds on one side moves a picture by half of one.
            assert!(same_steps(&want, &got, 0.0011), "{name} into {extension}: {want:?} {got:?}");
            let sound = |file: &str| c.times(file, "a");
            let (before, after) = (sound(name), sound(&output));
            assert_eq!(before.len(), after.len(), "{name} into {extension}");
            if let (Some(a), Some(b)) = (before.first(), after.first()) {
                let moved = (a - want[0]) - (b - got[0]);
                assert!(moved.abs() < 0.0022, "{name} into {extension}: the sound moves by {moved}");
            }
        }
    }
}

#[test]
fn sound_before_an_edit_list_is_heard_nowhere() {
    let c = Clips::new();
    c.make("av.mov", &format!("{PICTURE} {SOUND} {H264} -g 100 -c:a aac"));
    // The cut lies behind the only key picture: pictures and sound before it are in the file and not shown.
    c.make("cut.mov", "-ss 0.5 -i DIR/av.mov -c copy");
    let want = picture_times(&c, "cut.mov");
    let hidden = c.times("cut.mov", "a").into_iter().filter(|&t| t < -0.03).count();
    assert!(hidden > 10 && want.len() < 15, "{hidden} {want:?}");
    for name in ["o.mkv", "o.ts", "o.mp4"] {
        let said = c.run("cut.mov", name, &[]);
        assert!(!said.contains("warning"), "{name}: {said}");
        assert!(same_steps(&want, &picture_times(&c, name), 0.0011), "{name}");
        // What is heard begins with the pictures, up to one packet that prepares the first.
        let lead =
            picture_times(&c, name)[0] - c.times(name, "a").into_iter().filter(|t| name != "o.mp4" || *t > -0.03).fold(f64::MAX, f64::min);
        assert!(lead < 0.045, "{name}: {lead}");
    }
}

#[test]
fn covers_of_matroska_come_back_without_a_word() {
    let c = Clips::new();
    c.make("cover.jpg", "-f lavfi -i color=red:size=32x32 -frames:v 1");
    c.make("a.mkv", &format!("{PICTURE} {H264} -attach DIR/cover.jpg -metadata:s:t mimetype=image/jpeg -metadata:s:t filename=cover.jpg"));
    let said = c.run("a.mkv", "o.mkv", &[]);
    assert!(!said.contains("warning"), "{said}");
    assert_eq!(c.entry("o.mkv", "v:1", "stream_disposition=attached_pic"), ["1"]);
    // Empty tracks are no streams of the output.
    c.write("none.srt", "1\n00:00:05,000 --> 00:00:06,000\nlate\n");
    c.make("late.mkv", &format!("{PICTURE} -i DIR/none.srt -map 0 -map 1 {H264} -c:s srt"));
    let said = c.run("late.mkv", "o.mp4", &["--to", "0.5"]);
    let kept = c.streams("o.mp4").iter().any(|s| s.starts_with("subtitle"));
    assert!(kept != said.contains("subtitle stream #1 (subrip) is not in the output: no packet of it came"), "{said}");
}
