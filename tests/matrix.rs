//! Every usual container into every usual container, with sound and words: the same frames at the same times, the same packets
//! of everything that is copied, or a warning that names what is missing. And the real clips.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test is a panic")]

mod support;

use std::path::Path;

use support::clips::{Clips, PICTURE, SOUND, same_steps};
use support::stderr;

const WORDS: &str = "1\n00:00:00,100 --> 00:00:00,400\nHello\n\n2\n00:00:00,500 --> 00:00:00,900\nyou\n";
const OUTPUTS: [&str; 5] = ["mp4", "mkv", "mov", "webm", "ts"];

/// Makes the inputs. Each has what its container usually has: 25 pictures, a second of sound, two lines of words.
fn inputs(c: &Clips) -> Vec<&'static str> {
    c.write("s.srt", WORDS);
    let all = format!("{PICTURE} {SOUND} -i DIR/s.srt -map 0 -map 1");
    let x264 = "-pix_fmt yuv420p -c:v libx264 -preset ultrafast -bf 2";
    c.make("a.mp4", &format!("{all} -map 2 {x264} -c:a aac -c:s mov_text"));
    c.make("a.mov", &format!("{all} -map 2 {x264} -c:a pcm_s16le -c:s mov_text"));
    c.make("a.mkv", &format!("{all} -map 2 {x264} -c:a libopus -c:s srt"));
    c.make("a.webm", &format!("{all} -map 2 -pix_fmt yuv420p -c:v libvpx-vp9 -cpu-used 8 -deadline realtime -c:a libvorbis -c:s webvtt"));
    c.make("a.avi", &format!("{all} -pix_fmt yuv420p -c:v mpeg4 -bf 2 -c:a mp3"));
    c.make("a.ts", &format!("{all} {x264} -c:a aac"));
    c.make("a.flv", &format!("{all} {x264} -c:a aac -ar 44100"));
    c.make("a.gif", PICTURE);
    c.make("a.mxf", &format!("{all} -pix_fmt yuv422p -c:v mpeg2video -c:a pcm_s16le"));
    c.make("a.y4m", &format!("{PICTURE} -pix_fmt yuv420p"));
    vec!["a.mp4", "a.mkv", "a.mov", "a.webm", "a.avi", "a.ts", "a.flv", "a.gif", "a.mxf", "a.y4m"]
}

/// Presentation times of the decoded pictures (an AVI's packets have none).
fn picture_times(c: &Clips, name: &str) -> Vec<f64> {
    let lines = c.entry(name, "v:0", "frame=best_effort_timestamp_time");
    lines.iter().filter_map(|l| l.split(',').next()?.parse().ok()).collect()
}

/// Streams of a kind, with their codecs.
fn of_kind(c: &Clips, name: &str, kind: &str) -> Vec<String> {
    c.streams(name).into_iter().filter_map(|s| s.strip_prefix(kind).map(|codec| codec.trim().to_owned())).collect()
}

#[test]
fn the_matrix_of_containers() {
    let c = Clips::new();
    for input in inputs(&c) {
        // AVI has no times: pictures follow each other at its rate.
        let even = (0..25).map(|n| f64::from(n) * 0.04).collect();
        let want = if input == "a.avi" { even } else { picture_times(&c, input) };
        assert_eq!((want.len(), c.frame_hashes(input, &[]).len()), (25, 25), "{input}");
        let sound = of_kind(&c, input, "audio");
        let sound_hash = sound.first().map(|codec| sound_hash(&c, input, codec));
        for extension in OUTPUTS {
            let output = format!("o.{extension}");
            let case = format!("{input} into {extension}");
            let done = c.try_run(input, &output, &["--vf", "gblur=sigma=0.5"]);
            let said = stderr(&done);
            assert!(done.status.success(), "{case}: {said}");
            // Pictures and their times, to the coarser clock's tick.
            let got = picture_times(&c, &output);
            assert!(same_steps(&want, &got, 0.0011), "{case}: {want:?} {got:?}");
            let dts = c.packets(&output, "v:0", "dts_time");
            assert!(dts.windows(2).all(|w| w[0] < w[1]), "{case}: {dts:?}");
            // Sound: the same packets (framed as the container frames them: the same samples), or named.
            let kept = of_kind(&c, &output, "audio");
            if let Some(codec) = sound.first() {
                if kept.is_empty() {
                    assert!(said.contains(&format!("audio stream #1 ({codec}) is left out: ")), "{case}: {said}");
                } else {
                    assert_eq!(kept, sound, "{case}");
                    assert_eq!(Some(self::sound_hash(&c, &output, codec)), sound_hash, "{case}");
                    let beside = |name: &str| c.times(name, "a")[0] - picture_times(&c, name)[0];
                    let moved = beside(&output) - beside(input);
                    assert!(moved.abs() < 0.0016, "{case}: the sound moves by {moved}");
                    assert!(!said.contains("left out: ") || !said.contains("audio stream #1"), "{case}: {said}");
                }
            }
            // Words: the same, perhaps in another form, or named.
            if let Some(codec) = of_kind(&c, input, "subtitle").first() {
                if of_kind(&c, &output, "subtitle").is_empty() {
                    assert!(said.contains(&format!("subtitle stream #2 ({codec}) is left out: ")), "{case}: {said}");
                } else {
                    assert_eq!(cues(&c.text(&output, "0:s")), cues(&c.text(input, "0:s")), "{case}");
                    assert!(!said.contains("subtitle stream #2"), "{case}: {said}");
                }
            }
        }
    }
}

/// Hash of the sound's packets. What containers frame in their own way is brought into one frame: AAC gets ADTS headers, PCM is
/// one row of samples.
fn sound_hash(c: &Clips, name: &str, codec: &str) -> String {
    match codec {
        "aac" => {
            let adts = support::ffmpeg(&["-i", &c.at(name), "-map", "0:a", "-c", "copy", "-f", "adts", "-"]);
            c.packet_hash(&c.write("sound.adts", adts), "0:a")
        }
        "pcm_s16le" => c.sample_hash(name, "0:a"),
        _ => c.packet_hash(name, "0:a"),
    }
}

/// The words of a subtitle file, without its times: these count from the file's start, which the sound's delay may move.
fn cues(srt: &str) -> Vec<String> {
    srt.lines().filter(|l| !l.contains("-->")).map(str::to_owned).collect()
}

#[test]
fn real_clips_pass_with_the_same_counts_times_and_sound() {
    let Some(folder) = std::env::var_os("CONVOY_CLIPS") else {
        println!("skipped: CONVOY_CLIPS is not set (make test sets it)");
        return;
    };
    let c = Clips::new();
    for name in ["bigbuckbunny.mp4", "bikes.mp4", "carphone_pristine.mp4", "carphone_distorted.mp4"] {
        let input = Path::new(&folder).join(name);
        let input = input.to_str().unwrap();
        let want = c.times(input, "v");
        let sound = !c.entry(input, "a", "stream=codec_name").is_empty();
        for vf in ["", "gblur=sigma=2"] {
            let args: &[&str] = if vf.is_empty() { &[] } else { &["--vf", vf] };
            let said = c.run(input, "o.mp4", args);
            assert!(!said.contains("warning"), "{name}: {said}");
            assert_eq!(c.times("o.mp4", "v"), want, "{name} {vf}");
            assert_eq!(c.frame_hashes("o.mp4", &[]).len(), want.len(), "{name} {vf}");
            if sound {
                assert_eq!(c.packet_hash("o.mp4", "0:a"), c.packet_hash(input, "0:a"), "{name} {vf}");
                assert_eq!(c.times("o.mp4", "a"), c.times(input, "a"), "{name} {vf}");
            }
            let numbers = |file: &str| c.entry(file, "v", "stream=r_frame_rate,avg_frame_rate,sample_aspect_ratio,width,height");
            assert_eq!(numbers("o.mp4"), numbers(input), "{name} {vf}");
        }
    }
}
