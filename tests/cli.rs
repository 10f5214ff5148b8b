//! The program from outside: bad input, signals, outputs, reports.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test is a panic")]

mod support;

use std::fs;
use std::io::{BufRead, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use support::{convoy, convoy_run, ffmpeg, ffprobe, finish_within, path_str, stderr, stdout, wait_until};

/// Errors must come within this.
const SOON: Duration = Duration::from_secs(2);

struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    /// A folder with a small clip, its sound and subtitle.
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (srt, clip) = (folder.path().join("in.srt"), folder.path().join("in.mp4"));
        fs::write(&srt, "1\n00:00:00,100 --> 00:00:00,900\nHello\n").unwrap();
        ffmpeg(&[
            "-f",
            "lavfi",
            "-i",
            "testsrc2=size=160x90:rate=25",
            "-f",
            "lavfi",
            "-i",
            "sine=frequency=440",
            "-i",
            path_str(&srt),
            "-t",
            "2",
            "-c:v",
            "libx264",
            "-pix_fmt",
            "yuv420p",
            "-c:a",
            "aac",
            "-c:s",
            "mov_text",
            "-map",
            "0",
            "-map",
            "1",
            "-map",
            "2",
            path_str(&clip),
        ]);
        Self { folder }
    }

    fn at(&self, name: &str) -> String {
        path_str(&self.folder.path().join(name)).to_owned()
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(self.folder.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// Runs convoy with `args`; expects exit 1 or 2 soon, every word in the message, and no file that was not there before.
fn refused(bench: &Bench, args: &[&str], words: &[&str]) {
    let before = bench.names();
    let mut command = convoy();
    command.args(args);
    let output = finish_within(command, SOON);
    let text = stderr(&output);
    assert!(matches!(output.status.code(), Some(1 | 2)), "{args:?}: {:?}\n{text}", output.status);
    for word in words {
        assert!(text.to_lowercase().contains(&word.to_lowercase()), "{args:?}: no '{word}' in\n{text}");
    }
    assert!(!text.contains("panicked") && !text.contains("RUST_BACKTRACE"), "{text}");
    assert!(output.stdout.is_empty(), "{args:?} wrote to stdout: {}", stdout(&output));
    assert_eq!(bench.names(), before, "{args:?} left a file");
}

#[test]
fn bad_inputs_are_refused_soon_with_a_reason_and_leave_nothing() {
    let b = Bench::new();
    let (clip, out) = (b.at("in.mp4"), b.at("out.mp4"));
    fs::write(b.at("text.mp4"), "this is no video\n".repeat(100)).unwrap();
    fs::write(b.at("empty.mp4"), "").unwrap();
    fs::write(b.at("cut.mp4"), &fs::read(&clip).unwrap()[..300]).unwrap();
    let gblur = ["--vf", "gblur"];
    let run = |input: &str, rest: &[&str], words: &[&str]| {
        let mut args = vec!["run", input, "-o", &out];
        args.extend(rest);
        refused(&b, &args, words);
    };
    run(&b.at("missing.mp4"), &gblur, &["missing.mp4", "no such file"]);
    run(path_str(b.folder.path()), &gblur, &["directory"]);
    run(&b.at("text.mp4"), &gblur, &["text.mp4"]);
    run(&b.at("empty.mp4"), &gblur, &["empty.mp4"]);
    run(&b.at("cut.mp4"), &gblur, &["cut.mp4"]);
    run(&b.at("in.srt"), &gblur, &["no video"]);
    run(&clip, &["--vf", "gblurr=2"], &["gblurr", "gblur", "^"]);
    run(&clip, &["--vf", "gblur=sigma=x"], &["sigma", "^"]);
    run(&clip, &["--vf", "gblur=sigma=-1"], &["sigma", "^"]);
    run(&clip, &["--vf", "gblur=sigma=nan"], &["sigma", "^"]);
    run(&clip, &["--vf", "gblur,,sobel"], &["^"]);
    run(&clip, &["--vf", "unsharp=4:4"], &["odd"]);
    run(&clip, &["-c:v", "no_such_encoder"], &["no_such_encoder"]);
    run(&clip, &["--variant", "no_such_variant", "--vf", "gblur", "--backend", "cpu"], &["no_such_variant", "cpu-simd"]);
    run(&clip, &["--preset", "no_such_preset"], &["preset"]);
    run(&clip, &["--enc-opt", "no_such_option=1"], &["no_such_option"]);
    run(&clip, &["--format", "no_such_container"], &["no_such_container"]);
    refused(&b, &["run", &clip, "-o", &b.at("no/such/folder/out.mp4")], &["folder"]);
    refused(&b, &["run", &clip, "-o", &b.at("out.unknownext")], &["unknownext"]);
    refused(&b, &["run", &clip, "-o", &clip, "-y"], &["is the input"]);
    refused(&b, &["run", &clip, "-o", &b.at("./in.mp4"), "-y"], &["is the input"]);
    refused(&b, &["run", &clip, "-o", "/dev/full", "--format", "matroska"], &["space"]);
    refused(&b, &["run", &clip, "-o", &b.at("text.mp4")], &["exists", "-y"]);
    refused(&b, &["run", &clip], &["--output"]);
    refused(&b, &["run", &clip, "-o", &out, "--frames", "0"], &["frames"]);
    refused(&b, &["filters", "gblurr"], &["gblur"]);
    assert_eq!(fs::read_to_string(b.at("text.mp4")).unwrap().len(), 1700);
}

#[test]
fn cuda_without_a_gpu_is_an_error_and_auto_falls_back_with_a_notice() {
    if Path::new("/dev/nvidiactl").exists() {
        println!("skipped: this machine has a GPU");
        return;
    }
    let b = Bench::new();
    refused(&b, &["run", &b.at("in.mp4"), "-o", &b.at("out.mp4"), "--vf", "gblur", "--backend", "cuda"], &["cuda"]);
    let mut command = convoy();
    command.args(["run", "synth:64x64", "-o", "null:", "--frames", "3", "--vf", "gblur"]);
    let output = finish_within(command, Duration::from_secs(10));
    assert!(output.status.success());
    assert!(stderr(&output).contains("CPU"), "{}", stderr(&output));
}

#[test]
fn a_run_keeps_frames_times_and_sound() {
    let b = Bench::new();
    let out = b.folder.path().join("out.mp4");
    convoy_run(&b.at("in.mp4"), &out, &["--vf", "gblur=sigma=2"]);
    let input = b.folder.path().join("in.mp4");
    let times = |f: &Path| ffprobe(f, &["-select_streams", "v", "-show_entries", "frame=pts_time"]);
    assert_eq!(times(&input).len(), 50);
    assert_eq!(times(&out), times(&input));
    let audio = |f: &Path| ffmpeg(&["-i", path_str(f), "-map", "0:a", "-c", "copy", "-f", "md5", "-"]);
    assert_eq!(audio(&out), audio(&input));
    let kinds = ffprobe(&out, &["-show_entries", "stream=codec_type"]);
    assert_eq!(kinds, ["video", "audio", "subtitle"]);
}

#[test]
fn the_real_clip_keeps_frames_times_and_sound() {
    let Some(clips) = std::env::var_os("CONVOY_CLIPS") else {
        println!("skipped: CONVOY_CLIPS is not set (make test sets it)");
        return;
    };
    let input = Path::new(&clips).join("bigbuckbunny.mp4");
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.mp4");
    convoy_run(path_str(&input), &out, &["--vf", "gblur=sigma=2", "--preset", "veryfast"]);
    let times = |f: &Path| ffprobe(f, &["-select_streams", "v", "-show_entries", "frame=pts_time"]);
    assert_eq!(times(&out).len(), 132);
    assert_eq!(times(&out), times(&input));
    let audio = |f: &Path| ffmpeg(&["-i", path_str(f), "-map", "0:a", "-c", "copy", "-f", "md5", "-"]);
    assert_eq!(audio(&out), audio(&input));
}

/// Starts an endless run into `output` and waits until it has written something.
fn endless(output: &str, args: &[&str]) -> std::process::Child {
    let mut command = convoy();
    command
        .args(["run", "synth:320x240@25", "-o", output, "--vf", "gblur", "--backend", "cpu", "--preset", "ultrafast", "--progress", "json"])
        .args(args);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The progress lines say when frames flow.
    let mut text = String::new();
    let stderr = child.stderr.as_mut().unwrap();
    while !text.contains("\"frame\":")
        || text.contains("\"frame\":0,\"frames\":null,\"fps\":0.0,\"speed\":0.0,\"eta_s\":null,\"done\":false}\n")
            && text.matches("\"frame\"").count() < 2
    {
        let mut byte = [0];
        assert_eq!(stderr.read(&mut byte).unwrap(), 1, "{text}");
        text.push(byte[0] as char);
    }
    child
}

fn signal(child: &std::process::Child, signal: i32) {
    // SAFETY: kill has no memory effects; the child has not been waited for.
    assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
}

fn exit_code(mut child: std::process::Child) -> Option<i32> {
    let mut status = None;
    wait_until(Duration::from_secs(10), "the end after a signal", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    status.unwrap().code()
}

#[test]
fn the_first_signal_leaves_a_playable_file() {
    for (sig, code) in [(libc::SIGINT, 130), (libc::SIGTERM, 143)] {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out.mp4");
        let child = endless(path_str(&out), &[]);
        signal(&child, sig);
        assert_eq!(exit_code(child), Some(code));
        let frames = ffprobe(&out, &["-count_frames", "-select_streams", "v", "-show_entries", "stream=nb_read_frames"]);
        assert!(frames[0].parse::<u64>().unwrap() > 0);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}

#[test]
fn an_interrupted_run_leaves_an_older_output_untouched() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.mkv");
    fs::write(&out, "precious").unwrap();
    let child = endless(path_str(&out), &["-y"]);
    signal(&child, libc::SIGINT);
    assert_eq!(exit_code(child), Some(130));
    assert_eq!(fs::read_to_string(&out).unwrap(), "precious");
    let partial = folder.path().join("out.partial.mkv");
    assert!(!ffprobe(&partial, &["-show_entries", "stream=codec_type"]).is_empty());
}

#[test]
fn the_second_signal_ends_at_once_and_removes_the_temporary() {
    // A reader that never reads: the writer blocks on the pipe, so that the first signal cannot finish.
    let folder = tempfile::tempdir().unwrap();
    let mut child = endless("-", &["--format", "matroska"]);
    signal(&child, libc::SIGINT);
    std::thread::sleep(Duration::from_millis(300));
    if child.try_wait().unwrap().is_none() {
        signal(&child, libc::SIGINT);
    }
    assert_eq!(exit_code(child), Some(130));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_reader_that_stalls_is_given_up_as_an_interruption() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("tcp://{}", listener.local_addr().unwrap());
    let mut child = endless(&url, &["--format", "matroska", "--crf", "0"]);
    let stalled = listener.accept().unwrap();
    // Until the socket is full, and no frame has moved for a while.
    let mut lines = std::io::BufReader::new(child.stderr.take().unwrap()).lines();
    let (mut last, mut still) = (String::new(), 0);
    while still < 4 {
        let line = lines.next().unwrap().unwrap();
        let frame = line.split("\"frame\":").nth(1).and_then(|l| l.split(',').next()).unwrap_or_default().to_owned();
        still = if frame == last { still + 1 } else { 0 };
        last = frame;
    }
    signal(&child, libc::SIGINT);
    let text: String = lines.map_while(Result::ok).collect();
    assert_eq!(exit_code(child), Some(130));
    assert!(text.contains("interrupted, and the reader takes no more"), "{text}");
    drop(stalled);
}

#[test]
fn an_idle_pipe_can_be_cancelled() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.mkv");
    let mut command = Command::new(env!("CARGO_BIN_EXE_convoy"));
    command
        .args(["run", "-", "-o", path_str(&out), "--backend", "cpu"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let child = command.spawn().unwrap();
    // Before its handlers are installed, a signal simply ends the process.
    let catches_sigterm = || {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let mask = status.lines().find_map(|l| l.strip_prefix("SigCgt:")).and_then(|m| u64::from_str_radix(m.trim(), 16).ok());
        mask.is_some_and(|m| m >> (libc::SIGTERM - 1) & 1 == 1)
    };
    wait_until(Duration::from_secs(10), "the signal handlers", catches_sigterm);
    std::thread::sleep(Duration::from_millis(200));
    signal(&child, libc::SIGTERM);
    assert_eq!(exit_code(child), Some(143));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_pipe_in_and_a_pipe_out_carry_nothing_but_media() {
    let b = Bench::new();
    let mut command = convoy();
    command.args(["run", "-", "-o", "-", "--format", "nut", "-c:v", "ffv1", "--vf", "gblur", "--backend", "cpu", "--stats", "-v"]);
    command.stdin(fs::File::open(b.at("in.mp4")).unwrap());
    let output = finish_within(command, Duration::from_secs(30));
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("limited by"));
    fs::write(b.at("piped.nut"), &output.stdout).unwrap();
    let frames =
        ffprobe(&b.folder.path().join("piped.nut"), &["-count_frames", "-select_streams", "v", "-show_entries", "stream=nb_read_frames"]);
    assert_eq!(frames, ["50"]);
}

#[test]
fn mp4_on_a_pipe_is_fragmented_and_an_index_behind_is_named() {
    let b = Bench::new();
    let mut command = convoy();
    command.args(["run", &b.at("in.mp4"), "-o", "-", "--format", "mp4", "--backend", "cpu"]);
    let output = finish_within(command, Duration::from_secs(30));
    assert!(output.status.success() && stderr(&output).contains("fragments"), "{}", stderr(&output));
    fs::write(b.at("piped.mp4"), &output.stdout).unwrap();
    let times = |name: &str| ffprobe(Path::new(&b.at(name)), &["-select_streams", "v", "-show_entries", "frame=pts_time"]);
    assert_eq!(times("piped.mp4"), times("in.mp4"));
    assert!(output.stdout.windows(4).any(|w| w == b"moof"));

    // Larger than what the reader keeps in memory.
    ffmpeg(&[
        "-i",
        &b.at("in.mp4"),
        "-map",
        "0:v",
        "-vf",
        "scale=640:360,noise=alls=60:allf=t",
        "-c:v",
        "libx264",
        "-crf",
        "5",
        &b.at("large.mp4"),
    ]);
    let mut command = convoy();
    let mut cat = Command::new("cat").arg(b.at("large.mp4")).stdout(Stdio::piped()).spawn().unwrap();
    command.args(["run", "-", "-o", "null:", "--backend", "cpu"]).stdin(cat.stdout.take().unwrap());
    let output = finish_within(command, Duration::from_secs(10));
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("index lies at the end") && stderr(&output).contains("faststart"), "{}", stderr(&output));
    cat.wait().unwrap();
}

#[test]
fn damage_is_said_and_counted_and_the_run_goes_on() {
    let b = Bench::new();
    let mut bytes = fs::read(b.at("in.mp4")).unwrap();
    let end = bytes.windows(4).rposition(|w| w == b"moov").unwrap() - 100;
    bytes[1000..end].iter_mut().step_by(611).for_each(|byte| *byte ^= 0xff);
    fs::write(b.at("flipped.mp4"), bytes).unwrap();
    let mut command = convoy();
    command.args(["run", &b.at("flipped.mp4"), "-o", "null:", "--backend", "cpu", "--stats=json"]);
    let output = finish_within(command, Duration::from_secs(30));
    assert!(output.status.success() && stderr(&output).contains("the input is damaged: "), "{}", stderr(&output));
    let report: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert!(report["damaged"].as_u64().unwrap() > 0);
}

#[test]
fn statistics_are_json_with_every_stage_and_nothing_copied() {
    let b = Bench::new();
    let mut command = convoy();
    command.args(["run", &b.at("in.mp4"), "-o", "null:", "--vf", "gblur", "--backend", "cpu", "--stats=json"]);
    let output = finish_within(command, Duration::from_secs(30));
    let report: serde_json::Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(report["frames"], 50);
    assert_eq!(report["host_bytes_copied_per_frame"], 0.0);
    let stages: Vec<_> = report["stages"].as_array().unwrap().iter().map(|s| s["name"].as_str().unwrap()).collect();
    assert_eq!(stages, ["decode", "filter", "encode"]);
    assert!(stages.contains(&report["limited_by"].as_str().unwrap()));
}

#[test]
fn frames_limits_the_output() {
    let b = Bench::new();
    let out = b.folder.path().join("out.mkv");
    convoy_run(&b.at("in.mp4"), &out, &["--frames", "7", "-c:v", "ffv1"]);
    assert_eq!(ffprobe(&out, &["-count_frames", "-select_streams", "v", "-show_entries", "stream=nb_read_frames"]), ["7"]);
}

#[test]
fn listings_help_and_completions_print_to_stdout() {
    for (args, words) in [
        (&["filters"][..], &["gblur", "unsharp", "sobel"][..]),
        (&["filters", "gblur"], &["sigma", "default", "border"]),
        (&["doctor"], &["FFmpeg", "libx264", "NVRTC"]),
        (&["run", "--help"], &["Examples:", "gblur=sigma=2", "--stats"]),
        (&["completions", "bash"], &["_convoy"]),
        (&["man"], &[".TH", "convoy"]),
    ] {
        let mut command = convoy();
        command.args(args);
        let output = finish_within(command, Duration::from_secs(10));
        assert!(output.status.success(), "{args:?}: {}", stderr(&output));
        for word in words {
            assert!(stdout(&output).contains(word), "{args:?}: no {word}");
        }
    }
}

#[test]
fn a_broken_stderr_or_stdout_costs_no_output() {
    let b = Bench::new();
    let full = || fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let out = b.folder.path().join("out.mkv");
    let run = |stdout: Option<fs::File>, args: &[&str]| {
        let _ = fs::remove_file(&out);
        let mut command = convoy();
        command.args(["run", &b.at("in.mp4"), "-o", path_str(&out), "--vf", "gblur", "-v", "--preset", "ultrafast"]).args(args);
        command.stderr(full()).stdout(stdout.map_or(Stdio::null(), Stdio::from));
        command.status().unwrap().code()
    };
    for progress in ["auto", "json"] {
        assert_eq!(run(None, &["--progress", progress]), Some(0));
        assert!(!ffprobe(&out, &["-show_entries", "stream=codec_type"]).is_empty());
    }
    // Statistics that cannot be written are a failure, but the video is complete.
    assert_eq!(run(Some(full()), &["--stats=json"]), Some(1));
    assert!(!ffprobe(&out, &["-show_entries", "stream=codec_type"]).is_empty());
    let mut command = convoy();
    command.args(["run", "/no/such/file", "-o", path_str(&out)]).stderr(full()).stdout(Stdio::null());
    assert_eq!(command.status().unwrap().code(), Some(1));
}

#[test]
fn image_sequences_replace_nothing_without_leave() {
    let b = Bench::new();
    let pattern = b.at("f_%04d.png");
    convoy_run(&b.at("in.mp4"), Path::new(&pattern), &["--frames", "3"]);
    let old = fs::read(b.at("f_0002.png")).unwrap();
    refused(&b, &["run", &b.at("in.mp4"), "-o", &pattern, "--vf", "gblur=5"], &["exists", "-y"]);
    refused(&b, &["run", &pattern, "-o", &pattern, "-y", "--vf", "gblur=5"], &["is the input"]);
    assert_eq!(fs::read(b.at("f_0002.png")).unwrap(), old);
    convoy_run(&b.at("in.mp4"), Path::new(&pattern), &["--frames", "3", "-y", "--vf", "gblur=5"]);
    assert_ne!(fs::read(b.at("f_0002.png")).unwrap(), old);
}
