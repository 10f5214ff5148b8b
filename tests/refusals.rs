//! What the library refuses, and the words it finds for it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test is a panic")]

mod support;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use convoy::cancel::Cancel;
use convoy::media::{self, EncodeSpec, InputSpec, OutputTarget};
use support::library::{CLIP, Folder, ODD, PICTURE, Sink, codec, copy, open, source, source_with, spec, transcode};

#[test]
fn bad_inputs_give_clear_errors() {
    let dir = Folder::new();
    let clip = dir.make("a.mp4", &format!("{CLIP} -c:v libx264 -c:a aac"));
    let whole = std::fs::read(&clip).unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = dir.path(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let sound = dir.make("s.m4a", "-f lavfi -i sine=duration=1 -c:a aac");
    for (path, expected) in [
        (dir.path("missing.mp4"), "no such file"),
        (dir.path(""), "it is a directory"),
        (write("text.txt", b"This is a text.\nNothing else.\n"), "not a media file"),
        (write("text.mp4", b"This is a text.\nNothing else.\n".repeat(100).as_slice()), "not a media file"),
        (write("empty.mp4", b""), "the file is empty"),
        (write("cut.mp4", &whole[..200]), "header is damaged or cut off"),
        (sound, "it has sound but no video stream"),
        (dir.path("f_%04d.png"), "no file matches"),
        ("nosuch://host/x".to_owned(), "no protocol 'nosuch'"),
        ("lavfi:nosuchfilter".to_owned(), "nosuchfilter"),
        ("/dev/video99".to_owned(), "no such camera"),
    ] {
        let started = Instant::now();
        let error = source_with(&spec(&path), 1, &Cancel::new()).err().unwrap_or_else(|| panic!("{path} was accepted")).to_string();
        assert!(error.contains(expected), "{path}: {error}");
        assert!(started.elapsed() < Duration::from_secs(2));
    }
    let unknown = InputSpec { options: vec![("nosuchoption".into(), "1".into())], ..spec(&clip) };
    let error = source_with(&unknown, 1, &Cancel::new()).err().unwrap();
    assert_eq!((error.exit_code(), error.to_string().contains("nosuchoption")), (2, true), "{error}");
    let secret = source_with(&spec("http://user:hunter2@127.0.0.1:9/x.mp4"), 1, &Cancel::new()).err().unwrap().to_string();
    assert!(!secret.contains("hunter2"), "{secret}");
}

#[test]
fn bad_outputs_fail_before_any_work() {
    let option = |key: &str| EncodeSpec { options: vec![(key.to_owned(), "1".to_owned())], ..EncodeSpec::default() };
    for (name, spec, expected) in [
        ("o.mp4", codec("nosuchcodec"), "no encoder 'nosuchcodec'"),
        ("o.mp4", codec("aac"), "not a video encoder"),
        ("o.webm", codec("libx264"), "cannot hold h264"),
        ("o.nosuch", EncodeSpec::default(), "does not tell which container"),
        ("-", EncodeSpec::default(), "--format"),
        ("o.mp4", EncodeSpec { format: Some("nosuch".into()), ..EncodeSpec::default() }, "no output format 'nosuch'"),
        ("o.mp4", option("nosuchoption"), "no option 'nosuchoption'"),
        ("o.mkv", EncodeSpec { crf: Some(20.0), ..codec("ffv1") }, "no option 'crf'"),
        ("o.mp4", EncodeSpec { pix_fmt: Some("nosuch".into()), ..EncodeSpec::default() }, "no such pixel format"),
        ("o.mp4", EncodeSpec { pix_fmt: Some("rgb24".into()), ..EncodeSpec::default() }, "libx264 takes yuv420p"),
        ("/nonexistent/o.mp4", EncodeSpec::default(), "'/nonexistent' does not exist"),
    ] {
        let error = media::check_output(name, &spec).unwrap_err().to_string();
        assert!(error.contains(expected), "{name}: {error}");
    }
    media::check_output("o.mp4", &option("refs")).unwrap();
}

#[test]
fn encoders_say_what_they_cannot_take() {
    let dir = Folder::new();
    let odd = dir.make("odd.mkv", &format!("{ODD} -pix_fmt yuv420p -c:v ffv1"));
    let error = open(&source(&odd, 1), &dir.path("o.mp4"), &EncodeSpec::default()).err().unwrap().to_string();
    assert!(error.contains("321x181") && error.contains("multiples of 2x2") && error.contains("--odd pad"), "{error}");
    let spec = EncodeSpec { pix_fmt: Some("yuv444p".into()), ..EncodeSpec::default() };
    let sink = transcode(&odd, &dir.path("o.mp4"), &spec);
    assert!(sink.encoder.counters().host_copied_bytes.load(Ordering::Relaxed) > 0);
    let deep = dir.make("deep.mkv", &format!("{PICTURE} -pix_fmt yuv444p12le -c:v ffv1"));
    let error = open(&source(&deep, 1), &dir.path("o.mkv"), &codec("mjpeg")).err().unwrap().to_string();
    assert!(error.contains("it takes yuvj420p") && error.contains("--pix-fmt"), "{error}");
    // Gray with alpha has no swscale format of its own: alpha is left out with a warning where the encoder has none.
    let sink = transcode("lavfi:testsrc=size=64x48:duration=0.2,format=ya8", &dir.path("o.mp4"), &EncodeSpec::default());
    let warnings = sink.encoder.counters().warnings();
    assert!(warnings.iter().any(|w| w.contains("cannot take alpha: frames are converted to gray")), "{warnings:?}");
    let value = EncodeSpec { options: vec![("refs".into(), "many".into())], ..EncodeSpec::default() };
    let plain = dir.make("plain.mkv", &format!("{PICTURE} -pix_fmt yuv420p -c:v ffv1"));
    let error = open(&source(&plain, 1), &dir.path("o.mkv"), &value).err().unwrap().to_string();
    assert!(error.contains("many"), "{error}");
    let mux = EncodeSpec { mux_options: vec![("nosuchoption".into(), "1".into())], ..codec("ffv1") };
    let error = open(&source(&deep, 1), &dir.path("o.mkv"), &mux).err().unwrap().to_string();
    assert!(error.contains("no option 'nosuchoption'"), "{error}");
}

#[test]
fn a_full_disk_is_reported() {
    let dir = Folder::new();
    let clip = dir.make("a.mp4", &format!("{CLIP} -c:v libx264 -c:a aac"));
    let mut source = source(&clip, 1);
    let target = OutputTarget { url: "/dev/full", final_name: "/dev/full" };
    let spec = EncodeSpec { format: Some("matroska".into()), ..EncodeSpec::default() };
    let result = media::open_output(&target, &spec, &source.info(), source.shape(), &Cancel::new())
        .and_then(|(encoder, muxer)| copy(&mut source, &mut Sink { encoder, muxer }));
    let error = result.unwrap_err().to_string();
    assert!(error.contains("no space left on device"), "{error}");
}
