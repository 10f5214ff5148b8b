//! Times leave as they came: irregular, late, missing, reordered, few; and parts of a file are cut where they should be.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test is a panic")]

mod support;

use support::clips::{Clips, H264, PICTURE, SOUND, same_steps};
use support::stderr;

/// Half a tick of the coarsest clock on the way, and what ffprobe rounds away.
const TICK_1000: f64 = 0.0006;
const TICK_90000: f64 = 0.000_008;

#[test]
fn irregular_times_leave_as_they_came() {
    let c = Clips::new();
    // As from a phone or a screen: steps of 11 to 100 ms, no two alike.
    let uneven = "-vf settb=1/90000,setpts='(N*0.04+0.011*sin(N*N)+0.0007*N*N)/TB' -vsync passthrough -enc_time_base 1/90000";
    c.make("phone.mp4", &format!("{PICTURE} {uneven} {H264} -video_track_timescale 90000"));
    let want = c.times("phone.mp4", "v");
    let steps: Vec<i64> = want.windows(2).map(|w| ((w[1] - w[0]) * 1e5) as i64).collect();
    assert!(want.len() == 25 && steps.windows(2).filter(|w| w[0] != w[1]).count() > 20, "{want:?}");
    for (name, tick) in [
        ("o.mp4", TICK_90000),
        ("o.mov", TICK_90000),
        ("o.ts", TICK_90000),
        ("o.mkv", TICK_1000),
        ("o.webm", TICK_1000),
        ("o.flv", TICK_1000),
    ] {
        c.run("phone.mp4", name, &["--vf", "gblur"]);
        let got = c.times(name, "v");
        assert!(same_steps(&want, &got, tick), "{name}: {want:?} {got:?}");
    }
}

#[test]
fn gif_times_stay_and_the_last_delay_counts() {
    let c = Clips::new();
    // Pictures at 0, 0.1, 0.4, 0.9 s; the last one stays for 1.5 s.
    c.make(
        "a.gif",
        "-f lavfi -i testsrc2=size=64x48:rate=10:duration=0.4 -vf settb=1/100,setpts=(N*N*0.1)/TB -vsync passthrough -final_delay 150",
    );
    let want = c.times("a.gif", "v");
    assert_eq!(want, [0.0, 0.1, 0.4, 0.9]);
    for name in ["o.gif", "o.mp4", "o.mkv", "o.webm", "o.apng"] {
        c.run("a.gif", name, &[]);
        assert!(same_steps(&want, &c.times(name, "v"), 0.0011), "{name}: {:?}", c.times(name, "v"));
        if name != "o.apng" {
            let length = c.entry(name, "v", "format=duration")[0].parse::<f64>().unwrap();
            assert!((length - 2.4).abs() < 0.011, "{name}: {length}");
        }
    }
}

/// What FFmpeg writes behind the mark of each format: the number as it stands in the file.
#[test]
fn animations_are_repeated_as_often_as_before() {
    let c = Clips::new();
    let number = |name: &str, mark: &[u8], skip: usize, bytes: usize| {
        let file = std::fs::read(c.at(name)).unwrap();
        let at = file.windows(mark.len()).position(|w| w == mark)? + mark.len() + skip;
        Some(file[at..at + bytes].to_vec())
    };
    let gif = |name: &str| number(name, b"NETSCAPE2.0", 2, 2).map(|n| u16::from_le_bytes([n[0], n[1]]));
    let apng = |name: &str| number(name, b"acTL", 4, 4).map(|n| u32::from_be_bytes([n[0], n[1], n[2], n[3]]));
    // The GIF's own option, what stands in a GIF, and how often that is shown in all.
    for (option, count, plays) in [("-1", None, 1), ("0", Some(0), 0), ("3", Some(3), 4)] {
        c.make("a.gif", &format!("{PICTURE} -frames:v 4 -loop {option}"));
        assert_eq!(gif("a.gif"), count);
        c.run("a.gif", "o.gif", &["--vf", "gblur"]);
        assert_eq!(gif("o.gif"), count, "-loop {option}");
        c.run("a.gif", "o.apng", &["--vf", "gblur"]);
        assert_eq!(apng("o.apng"), Some(plays), "-loop {option}");
        c.run("o.apng", "back.gif", &[]);
        assert_eq!(gif("back.gif"), count, "-loop {option}");
    }
    c.run("a.gif", "o.gif", &["--mux-opt", "loop=7"]);
    assert_eq!(gif("o.gif"), Some(7), "the user's own number stands");
}

#[test]
fn a_millisecond_clock_makes_no_hole_and_no_double() {
    let c = Clips::new();
    c.make("a.mkv", &format!("-f lavfi -i testsrc2=size=64x48:rate=24000/1001:duration=4 {H264}"));
    for name in ["o.mkv", "o.mp4", "o.ts"] {
        c.run("a.mkv", name, &[]);
        let times = c.times(name, "v");
        assert_eq!(times.len(), 96);
        assert!(times.windows(2).all(|w| (0.0405..0.0426).contains(&(w[1] - w[0]))), "{name}: {times:?}");
    }
}

#[test]
fn a_late_video_keeps_its_offset_to_the_tick() {
    let c = Clips::new();
    c.make("av.mp4", &format!("{PICTURE} {SOUND} {H264} -c:a libmp3lame -video_track_timescale 90000"));
    // 0.12346 s: no whole number of milliseconds.
    let late =
        "-itsoffset 0.12346 -i DIR/av.mp4 -i DIR/av.mp4 -map 0:v -map 1:a -c copy -video_track_timescale 90000 -movie_timescale 90000";
    c.make("late.mp4", late);
    let offset = |name: &str| c.times(name, "v")[0] - c.times(name, "a")[0];
    let want = offset("late.mp4");
    assert!(want > 0.1, "{want}");
    for (name, tick) in [("o.mp4", 0.000_03), ("o.mov", 0.000_03), ("o.ts", 0.000_03), ("o.mkv", 0.0011)] {
        c.run("late.mp4", name, &[]);
        assert!((offset(name) - want).abs() <= tick, "{name}: {} {want}", offset(name));
    }
}

#[test]
fn packets_without_times_come_out_in_order_at_the_right_rate() {
    let c = Clips::new();
    for (name, args) in [
        ("a.avi", "-c:v mpeg4 -bf 2"),
        ("b.avi", "-c:v libx264 -bf 2 -preset veryfast"),
        ("a.h264", "-c:v libx264 -bf 2 -preset veryfast"),
        ("a.h265", "-c:v libx265 -preset ultrafast -x265-params log-level=none"),
        ("a.mpg", "-c:v mpeg2video -bf 2 -f vob"),
    ] {
        c.make(name, &format!("{PICTURE} -pix_fmt yuv420p {args}"));
        let want = c.frame_hashes(name, &[]);
        assert_eq!(want.len(), 25, "{name}");
        c.run(name, "o.mkv", &["-c:v", "ffv1"]);
        assert_eq!(c.frame_hashes("o.mkv", &[]), want, "{name}");
        c.run(name, "o.mp4", &[]);
        for out in ["o.mkv", "o.mp4"] {
            let times = c.times(out, "v");
            assert!(times.len() == 25 && times.windows(2).all(|w| (w[1] - w[0] - 0.04).abs() < 0.0006), "{name} {out}: {times:?}");
        }
    }
}

#[test]
fn decoding_times_rise_strictly_with_b_frames() {
    let c = Clips::new();
    c.make("a.mp4", &format!("{PICTURE} {H264}"));
    for name in ["o.mp4", "o.mkv", "o.ts", "o.flv", "o.mov", "o.avi"] {
        c.run("a.mp4", name, &["--preset", "medium"]);
        let dts = c.packets(name, "v", "dts_time");
        assert!(dts.len() >= 23 && dts.windows(2).all(|w| w[0] < w[1]), "{name}: {dts:?}");
        let pts = c.packets(name, "v", "pts_time");
        assert!(name == "o.avi" || pts.windows(2).any(|w| w[0] > w[1]), "{name} has no B-frames: {pts:?}");
        assert_eq!(c.frame_hashes(name, &[]).len(), 25, "{name}");
    }
}

#[test]
fn frame_rates_survive() {
    let c = Clips::new();
    for rate in ["241/20", "24000/1001", "60000/1001", "120000/1001"] {
        let (num, den) = rate.split_once('/').unwrap();
        // ffmpeg alone would round 120000/1001 to 120.
        let exact = format!("-vf settb={den}/{num},setpts=N -vsync passthrough -enc_time_base {den}/{num} -video_track_timescale {num}");
        let exact = if rate == "120000/1001" { exact } else { String::new() };
        c.make("a.mp4", &format!("-f lavfi -i testsrc2=size=64x48:rate={rate}:duration=2 {exact} {H264}"));
        c.make("a.mkv", "-r RATE -i DIR/a.mp4 -c copy".replace("RATE", rate).as_str());
        for (input, output) in [("a.mp4", "o.mp4"), ("a.mp4", "o.mkv"), ("a.mkv", "o.mkv"), ("a.mp4", "o.mov"), ("a.mp4", "o.avi")] {
            c.run(input, output, &[]);
            let rates = |name: &str| c.entry(name, "v", "stream=r_frame_rate,avg_frame_rate");
            // Matroska stores the duration of a picture in whole nanoseconds: ffmpeg itself writes 19001/317 for 60000/1001.
            let judge = if output.ends_with("mkv") { "a.mkv" } else { "a.mp4" };
            if output == "o.avi" && rate == "120000/1001" {
                // This input's last picture has no duration, so its rate is not known to be constant.
                continue;
            }
            let exact = format!("{rate},{rate}");
            assert!(rates(output)[0] == exact || rates(output) == rates(judge), "{rate}: {output}: {:?} {:?}", rates(output), rates(judge));
            assert!(judge == "a.mkv" || rates(output)[0].starts_with(&format!("{rate},")), "{rate}: {output}");
        }
    }
}

#[test]
fn one_two_and_three_frames_all_arrive() {
    let c = Clips::new();
    for frames in 1..=3 {
        c.make("a.mp4", &format!("{PICTURE} {H264} -frames:v {frames}"));
        for lanes in ["1", "8"] {
            for name in ["o.mp4", "o.mkv", "o.webm", "o.ts", "o.gif"] {
                c.run("a.mp4", name, &["--vf", "gblur", "--lanes", lanes]);
                assert_eq!(c.frame_hashes(name, &[]).len(), frames, "{name}, {lanes} lanes");
            }
        }
    }
}

/// Two seconds with sound, words, chapters, and key pictures 1.2 s apart, some of them open.
fn long_clip(c: &Clips) {
    c.write("s.srt", "1\n00:00:00,200 --> 00:00:01,400\nearly\n\n2\n00:00:01,500 --> 00:00:01,900\nlate\n");
    let chapters = "[CHAPTER]\nTIMEBASE=1/1000\nSTART=0\nEND=500\ntitle=One\n[CHAPTER]\nTIMEBASE=1/1000\nSTART=500\nEND=1200\ntitle=Two\n[CHAPTER]\nTIMEBASE=1/1000\nSTART=1200\nEND=2000\ntitle=Three\n";
    c.write("c.txt", format!(";FFMETADATA1\n{chapters}"));
    c.make(
        "long.mkv",
        &format!(
            "-f lavfi -i testsrc2=size=64x48:rate=25:duration=2 -f lavfi -i sine=duration=2:sample_rate=48000 -i DIR/s.srt -i DIR/c.txt \
             -map 0 -map 1 -map 2 -map_chapters 3 {H264} -g 30 -x264-params open-gop=1:keyint=30 -c:a flac -c:s srt"
        ),
    );
    c.make("long.mp4", "-i DIR/long.mkv -c copy -c:s mov_text -strict -2");
    c.make("long.ts", "-i DIR/long.mkv -map 0:v -map 0:a -c copy -c:a libmp3lame");
}

#[test]
fn a_part_is_exact_to_the_frame_and_its_sound_matches() {
    let c = Clips::new();
    long_clip(&c);
    let whole = c.frame_hashes("long.mkv", &[]);
    assert_eq!(whole.len(), 50);
    for input in ["long.mkv", "long.mp4", "long.ts"] {
        let zero = c.entry(input, "v", "format=start_time")[0].parse::<f64>().unwrap();
        let video = c.times(input, "v");
        let index = |t: &str| video.iter().position(|v| v - zero > t.parse::<f64>().unwrap() - 1e-6).unwrap_or(video.len());
        for (from, to, frames) in [
            ("0.4", "1.0", None),
            ("1.2", "", None),
            ("1.29", "1.7", None),
            ("", "0.36", None),
            ("0.52", "", Some("7")),
            ("1.95", "", None),
        ] {
            let first = if from.is_empty() { 0 } else { index(from) };
            let last = match frames {
                Some(frames) => first + frames.parse::<usize>().unwrap(),
                None if to.is_empty() => 50,
                None => index(to),
            };
            let mut args = vec!["-c:v", "ffv1"];
            for (option, value) in [("--ss", from), ("--to", to), ("--frames", frames.unwrap_or(""))] {
                if !value.is_empty() {
                    args.extend([option, value]);
                }
            }
            c.run(input, "o.mkv", &args);
            assert_eq!(c.frame_hashes("o.mkv", &[]), whole[first..last], "{input} {args:?}");
            // The sound that begins in the part, and where it stood beside the pictures.
            let audio = c.times(input, "a");
            let start = zero + from.parse().unwrap_or(-1.0);
            let end = if frames.is_some() { video[last - 1] + 0.04 } else { zero + to.parse().unwrap_or(9.0) };
            let wanted: Vec<f64> = audio.into_iter().filter(|t| (start - 1e-6..end - 1e-6).contains(t)).collect();
            let sound = if wanted.is_empty() { Vec::new() } else { c.times("o.mkv", "a") };
            assert_eq!(sound.len(), wanted.len(), "{input} {args:?}: {sound:?} {wanted:?}");
            let (Some(heard), Some(meant)) = (sound.first(), wanted.first()) else { continue };
            let beside = (heard - c.times("o.mkv", "v")[0]) - (meant - video[first]);
            assert!(beside.abs() < 0.0016, "{input} {args:?}: {beside}");
        }
    }
}

#[test]
fn a_part_has_its_words_chapters_and_time_code() {
    let c = Clips::new();
    long_clip(&c);
    c.run("long.mkv", "o.mkv", &["--ss", "1.0", "--to", "1.8"]);
    let text = c.text("o.mkv", "0:s");
    assert!(text.contains("00:00:00,000 --> 00:00:00,400\nearly") && text.contains("00:00:00,500 --> 00:00:00,800\nlate"), "{text}");
    let chapters = c.entry("o.mkv", "v", "chapter=start_time,end_time:chapter_tags=title");
    assert_eq!(chapters, ["0.000000,0.200000,Two", "0.200000,0.800000,Three"]);
    c.make("tc.mov", "-i DIR/long.mkv -map 0:v -c copy -timecode 01:00:00:00");
    c.run("tc.mov", "o.mov", &["--ss", "1.2"]);
    assert_eq!(c.entry("o.mov", "v", "stream_tags=timecode"), ["01:00:01:05"]);
}

#[test]
fn an_empty_part_is_refused() {
    let c = Clips::new();
    long_clip(&c);
    for (args, code, word) in [
        (["--ss", "1", "--to", "1"], 2, "--to is not after --ss"),
        (["--ss", "9", "--to", "10"], 1, "not before its end"),
        (["--ss", "1.961", "--to", "1.97"], 1, "no frame begins"),
    ] {
        let done = c.try_run("long.mkv", "none.mkv", &args);
        assert!(done.status.code() == Some(code) && stderr(&done).contains(word), "{args:?}: {}", stderr(&done));
        assert!(!std::path::Path::new(&c.at("none.mkv")).exists());
    }
}

#[test]
fn a_pipe_is_cut_by_reading_through_it() {
    let c = Clips::new();
    long_clip(&c);
    let whole = c.frame_hashes("long.mkv", &[]);
    let mut command = support::convoy();
    command.args(["run", "-", "-o", &c.at("o.mkv"), "--ss", "1.0", "--frames", "3", "-c:v", "ffv1", "--backend", "cpu"]);
    let mut cat = std::process::Command::new("cat").arg(c.at("long.mkv")).stdout(std::process::Stdio::piped()).spawn().unwrap();
    command.stdin(cat.stdout.take().unwrap());
    let done = support::finish_within(command, std::time::Duration::from_secs(30));
    assert!(done.status.success(), "{}", stderr(&done));
    let _ = cat.wait();
    assert_eq!(c.frame_hashes("o.mkv", &[]), whole[25..28]);
}

#[test]
fn the_frame_log_follows_every_frame_through_every_stage() {
    let c = Clips::new();
    c.make("a.mp4", &format!("{PICTURE} {SOUND} {H264} -c:a aac"));
    let log = c.at("log.jsonl");
    c.run("a.mp4", "o.mp4", &["--vf", "gblur", &format!("--log-frames={log}")]);
    let text = std::fs::read_to_string(&log).unwrap();
    let lines: Vec<serde_json::Value> = text.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let of = |stage: &str, stream: u64| -> Vec<&serde_json::Value> {
        lines.iter().filter(|l| l["stage"] == stage && l["stream"] == stream).collect()
    };
    for stage in ["demux", "decode", "filter", "encode", "mux"] {
        let entries = of(stage, 0);
        assert_eq!(entries.len(), 25, "{stage}");
        // The report: times in seconds, sorted, are the input's.
        let mut times: Vec<f64> = entries
            .iter()
            .map(|l| l["pts"].as_f64().unwrap() * l["time_base"][0].as_f64().unwrap() / l["time_base"][1].as_f64().unwrap())
            .collect();
        times.sort_by(f64::total_cmp);
        assert!(same_steps(&c.times("a.mp4", "v"), &times, 1e-6), "{stage}: {times:?}");
        assert!(entries.iter().all(|l| l["duration"].as_i64().unwrap() > 0 && l["size"].as_u64().unwrap() > 0), "{stage}");
        assert_eq!(entries.iter().any(|l| l["dts"].is_i64()), !["decode", "filter"].contains(&stage), "{stage}");
    }
    assert_eq!(of("demux", 1).len(), of("mux", 1).len());
    assert!(of("demux", 1).len() > 40);
    // Without a file it goes to stderr.
    let said = c.run("a.mp4", "o.mp4", &["--log-frames", "--frames", "2"]);
    assert_eq!(said.lines().filter(|l| l.contains("\"stage\":\"encode\"")).count(), 2, "{said}");
}
