//! Pipes, FIFOs and standard streams: nothing that waits cannot be interrupted, and nothing is printed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test is a panic")]

mod support;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use convoy::cancel::Cancel;
use convoy::media::{self, EncodeSpec, OutputTarget};
use convoy::pipeline::{Encoder, Item, Muxer, Source};
use support::library::{CLIP, Folder, PICTURE, Sink, codec, copy, decode, open, source, source_with, spec, times, transcode};

fn cancel_after(cancel: &Cancel, ms: u64) -> std::thread::JoinHandle<Instant> {
    let cancel = cancel.clone();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(ms));
        cancel.request(2);
        Instant::now()
    })
}

fn fifo(dir: &Folder) -> String {
    let path = dir.path("fifo");
    let c_path = std::ffi::CString::new(path.as_str()).unwrap();
    // SAFETY: a terminated path.
    assert_eq!(unsafe { libc::mkfifo(c_path.as_ptr(), 0o600) }, 0);
    path
}

#[test]
fn a_fifo_without_a_writer_can_be_cancelled() {
    let dir = Folder::new();
    let path = fifo(&dir);
    let cancel = Cancel::new();
    let requested = cancel_after(&cancel, 300);
    let error = source_with(&spec(&path), 1, &cancel).err().unwrap().to_string();
    assert!(requested.join().unwrap().elapsed() < Duration::from_secs(1));
    assert!(error.contains("interrupted"), "{error}");
}

#[test]
fn a_fifo_is_written_when_a_reader_comes_and_given_up_when_cancelled() {
    let dir = Folder::new();
    let clip = dir.make("a.mp4", &format!("{PICTURE} -pix_fmt yuv420p -c:v libx264"));
    let path = fifo(&dir);
    let spec = EncodeSpec { format: Some("matroska".into()), ..EncodeSpec::default() };
    let target = OutputTarget { url: &path, final_name: &path };
    let mut source = source(&clip, 1);
    let cancel = Cancel::new();
    let requested = cancel_after(&cancel, 300);
    let error = media::open_output(&target, &spec, &source.info(), source.shape(), &cancel).err().unwrap().to_string();
    assert!(requested.join().unwrap().elapsed() < Duration::from_secs(1));
    assert!(error.contains("waiting for a reader"), "{error}");

    let copied = dir.path("o.mkv");
    let mut cat = Command::new("cat").arg(&path).stdout(std::fs::File::create(&copied).unwrap()).spawn().unwrap();
    let (encoder, muxer) = media::open_output(&target, &spec, &source.info(), source.shape(), &Cancel::new()).unwrap();
    copy(&mut source, &mut Sink { encoder, muxer }).unwrap();
    assert!(cat.wait().unwrap().success());
    assert_eq!(times(&copied).len(), 25);
}

#[test]
fn an_idle_pipe_ends_as_if_at_its_end_when_cancelled() {
    let dir = Folder::new();
    let clip = dir.make("a.ts", &format!("{CLIP} -c:v libx264 -c:a aac"));
    let bytes = std::fs::read(&clip).unwrap();
    let path = fifo(&dir);
    let cancel = Cancel::new();
    let writer = {
        let path = path.clone();
        std::thread::spawn(move || {
            use std::io::Write;
            let mut pipe = std::fs::File::options().write(true).open(path).unwrap();
            pipe.write_all(&bytes).unwrap();
            // Then silence, with the pipe held open.
            std::thread::sleep(Duration::from_secs(5));
        })
    };
    let mut source = source_with(&spec(&path), 1, &cancel).unwrap();
    let requested = cancel_after(&cancel, 1500);
    let seen = decode(&mut source);
    assert!(requested.join().unwrap().elapsed() < Duration::from_secs(1));
    // The last picture's packet is complete only at the end of the stream, which never came.
    assert!(seen.frames >= 48, "{}", seen.frames);
    writer.join().unwrap();
}

#[test]
fn a_cancelled_file_is_drained_and_playable() {
    let dir = Folder::new();
    let clip = dir.make("a.mp4", &format!("{CLIP} -c:v libx264 -bf 3 -c:a aac"));
    let cancel = Cancel::new();
    let mut source = source_with(&spec(&clip), 4, &cancel).unwrap();
    let out = dir.path("o.mp4");
    let mut sink = open(&source, &out, &EncodeSpec::default()).unwrap();
    let Item::Frame(frame) = std::iter::from_fn(|| source.next().ok()).find(|i| matches!(i, Item::Frame(_))).unwrap() else {
        unreachable!()
    };
    let Sink { encoder, muxer } = &mut sink;
    encoder.encode(frame, &mut |p| muxer.write(p)).unwrap();
    cancel.request(15);
    let rest = copy(&mut source, &mut sink).unwrap();
    assert!((1..45).contains(&rest), "{rest}");
    assert_eq!(times(&out).len(), rest + 1);
}

/// Run as a child of the tests below, with standard input as the input.
#[test]
#[ignore = "a child of other tests"]
fn child_counts_standard_input() {
    let cancel = Cancel::new();
    let silence = std::env::var("CONVOY_TEST_CANCEL_MS").ok().map(|ms| cancel_after(&cancel, ms.parse().unwrap()));
    let seen = decode(&mut source_with(&spec("-"), 2, &cancel).unwrap());
    if let Some(requested) = silence {
        assert!(requested.join().unwrap().elapsed() < Duration::from_secs(1));
    }
    println!("\ncounted {} frames", seen.frames);
}

fn child(input: Stdio) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "--nocapture", "child_counts_standard_input"]).stdin(input).stdout(Stdio::piped());
    command
}

#[test]
fn standard_input_is_read_from_files_and_pipes() {
    let dir = Folder::new();
    // The index lies at the end: a file on standard input must be seekable.
    let clip = dir.make("a.mp4", &format!("{CLIP} -c:v libx264 -c:a aac"));
    let out = child(std::fs::File::open(&clip).unwrap().into()).output().unwrap();
    assert!(String::from_utf8_lossy(&out.stdout).contains("counted 50 frames"), "{out:?}");
    let stream = dir.make("a.mkv", &format!("-i {clip} -c copy"));
    let mut cat = Command::new("cat").arg(&stream).stdout(Stdio::piped()).spawn().unwrap();
    let out = child(cat.stdout.take().unwrap().into()).output().unwrap();
    assert!(String::from_utf8_lossy(&out.stdout).contains("counted 50 frames"), "{out:?}");
    cat.wait().unwrap();
}

#[test]
fn an_idle_standard_input_can_be_cancelled() {
    use std::io::Write;
    let dir = Folder::new();
    let clip = dir.make("a.ts", &format!("{CLIP} -c:v libx264 -c:a aac"));
    let mut running = child(Stdio::piped()).env("CONVOY_TEST_CANCEL_MS", "1500").spawn().unwrap();
    let mut pipe = running.stdin.take().unwrap();
    pipe.write_all(&std::fs::read(&clip).unwrap()).unwrap();
    // The pipe stays open and silent.
    let out = running.wait_with_output().unwrap();
    drop(pipe);
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let frames: usize = text.split("counted ").nth(1).and_then(|t| t.split(' ').next()?.parse().ok()).unwrap_or_else(|| panic!("{text}"));
    assert!(frames >= 48, "{frames}");
}

#[test]
fn nothing_is_printed() {
    let dir = Folder::new();
    let clip = dir.make("a.mkv", &format!("{PICTURE} -pix_fmt yuv420p -c:v ffv1"));
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "--nocapture", "child_transcodes_noisily"]).env("CONVOY_TEST_CLIP", &clip);
    let out = command.stdin(Stdio::null()).output().unwrap();
    assert!(out.status.success(), "{out:?}");
    assert_eq!(String::from_utf8_lossy(&out.stderr), "");
    let printed = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(printed.contains("1 passed"), "{printed}");
    let ours = |l: &&str| l.is_empty() || l.starts_with("running ") || l.starts_with("test ") || *l == "ok";
    assert_eq!(printed.lines().filter(|l| !ours(l)).collect::<Vec<_>>(), [] as [&str; 0]);
}

/// Run as a child of the test above: encoders that like to print.
#[test]
#[ignore = "a child of other tests"]
fn child_transcodes_noisily() {
    let clip = std::env::var("CONVOY_TEST_CLIP").unwrap();
    let dir = Folder::new();
    for (name, encoder) in [("a.mkv", "libx264"), ("b.mkv", "libx265"), ("c.webm", "libvpx-vp9"), ("d.mkv", "ffv1")] {
        transcode(&clip, &dir.path(name), &codec(encoder));
    }
    let _ = source_with(&spec(&dir.path("missing.mp4")), 1, &Cancel::new());
    std::fs::write(dir.path("cut.mp4"), b"\0\0\0\x18ftypmp42").unwrap();
    assert!(source_with(&spec(&dir.path("cut.mp4")), 1, &Cancel::new()).is_err());
}
