//! Decoding, encoding and muxing against the installed ffmpeg and ffprobe as judges. Inputs are generated.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use convoy::cancel::Cancel;
use convoy::error::Result;
use convoy::frame::{Frame, FrameMem, Packing, Shape};
use convoy::media::{self, DecodeSource, EncodeSpec, FileMuxer, Input, InputSpec, OutputTarget, Packet, SourceOptions, VideoEncoder};
use convoy::pipeline::{Encoder, Item, Muxer, Source};
use convoy::pool::{Budget, Heap};
use sha2::{Digest, Sha256};

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    /// Runs ffmpeg with `args` to make `name`.
    fn make(&self, name: &str, args: &str) -> String {
        let path = self.path(name);
        let args: Vec<String> = args.split_whitespace().map(|a| a.replace("DIR", self.0.path().to_str().unwrap())).collect();
        run("ffmpeg", args.iter().map(String::as_str).chain(["-y", &path]));
        path
    }
}

fn run<'a>(program: &str, args: impl IntoIterator<Item = &'a str>) -> String {
    let args: Vec<&str> = args.into_iter().collect();
    let mut command = Command::new(program);
    if program == "ffmpeg" {
        command.args(["-hide_banner", "-nostdin", "-loglevel", "error"]);
    }
    let out = command.args(&args).stdin(Stdio::null()).output().unwrap();
    assert!(out.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

fn spec(url: &str) -> InputSpec {
    InputSpec { url: url.to_owned(), ..InputSpec::default() }
}

fn source_with(spec: &InputSpec, threads: usize, cancel: &Cancel) -> Result<DecodeSource> {
    let options = SourceOptions { mem: Arc::new(Heap), budget: Budget::new(1 << 30), threads: Some(threads) };
    Input::open(spec, cancel)?.into_source(options)
}

fn source(url: &str, threads: usize) -> DecodeSource {
    source_with(&spec(url), threads, &Cancel::new()).unwrap()
}

#[derive(Default)]
struct Decoded {
    hash: String,
    frames: usize,
    packets: usize,
    shared: usize,
    foreign: usize,
    own: usize,
    pts: Vec<i64>,
}

fn hash_frame(hasher: &mut Sha256, frame: &Frame) {
    assert_eq!(frame.layout.shape.format.packing, Packing::Planar);
    for (index, plane) in frame.layout.planes().iter().enumerate() {
        for y in 0..plane.height {
            hasher.update(frame.row(index, y));
        }
    }
}

fn decode(source: &mut DecodeSource) -> Decoded {
    let mut hasher = Sha256::new();
    let mut seen = Decoded::default();
    loop {
        match source.next().unwrap() {
            Item::Frame(frame) => {
                assert_eq!(frame.seq, seen.frames as u64);
                assert_eq!(frame.layout.shape, source.shape());
                hash_frame(&mut hasher, &frame);
                seen.frames += 1;
                seen.pts.push(frame.time.pts.unwrap());
                match frame.mem {
                    FrameMem::Slab(_) => seen.own += 1,
                    FrameMem::Shared { .. } => seen.shared += 1,
                    FrameMem::Foreign { .. } => seen.foreign += 1,
                }
            }
            Item::Packet(_) => seen.packets += 1,
            Item::End => break,
        }
    }
    seen.hash = format!("{:x}", hasher.finalize());
    seen
}

/// SHA-256 of every visible sample as ffmpeg decodes them; `extra` may name a pixel format.
fn judge_hash(path: &str, extra: &[&str]) -> String {
    let args = ["-i", path, "-map", "0:v:0", "-vsync", "passthrough"].into_iter().chain(extra.iter().copied());
    let out = run("ffmpeg", args.chain(["-f", "hash", "-hash", "sha256", "-"]));
    out.trim().rsplit('=').next().unwrap().to_owned()
}

fn probe(path: &str, entries: &str, select: &str) -> String {
    run("ffprobe", ["-v", "error", "-select_streams", select, "-show_entries", entries, "-of", "csv=p=0", path])
}

/// Presentation times of the packets of the first video stream, sorted, in seconds.
fn times(path: &str) -> Vec<f64> {
    let mut times: Vec<f64> = probe(path, "packet=pts_time", "v:0").lines().filter_map(|l| l.trim_end_matches(',').parse().ok()).collect();
    times.sort_by(f64::total_cmp);
    times
}

fn packet_hash(path: &str, map: &str) -> String {
    run("ffmpeg", ["-i", path, "-map", map, "-c", "copy", "-f", "md5", "-"])
}

struct Sink {
    encoder: VideoEncoder,
    muxer: FileMuxer,
}

fn open(source: &DecodeSource, path: &str, spec: &EncodeSpec) -> Result<Sink> {
    media::check_output(path, spec)?;
    let target = OutputTarget { url: path, final_name: path };
    let (encoder, muxer) = media::open_output(&target, spec, &source.info(), source.shape(), &Cancel::new())?;
    Ok(Sink { encoder, muxer })
}

fn copy(source: &mut DecodeSource, sink: &mut Sink) -> Result<usize> {
    let Sink { encoder, muxer } = sink;
    let mut frames = 0;
    loop {
        match source.next()? {
            Item::Frame(frame) => {
                frames += 1;
                encoder.encode(frame, &mut |p: Packet| muxer.write(p))?;
            }
            Item::Packet(packet) => muxer.write(packet)?,
            Item::End => break,
        }
    }
    encoder.finish(&mut |p| muxer.write(p))?;
    muxer.finish()?;
    Ok(frames)
}

fn transcode(input: &str, output: &str, spec: &EncodeSpec) -> Sink {
    let mut source = source(input, 2);
    let mut sink = open(&source, output, spec).unwrap();
    copy(&mut source, &mut sink).unwrap();
    sink
}

fn codec(name: &str) -> EncodeSpec {
    EncodeSpec { codec: Some(name.to_owned()), ..EncodeSpec::default() }
}

const CLIP: &str = "-f lavfi -i testsrc2=size=320x180:rate=25:duration=2 -f lavfi -i sine=duration=2 -pix_fmt yuv420p";

#[test]
fn h264_with_b_frames_decodes_into_slabs_like_ffmpeg() {
    let dir = Folder::new();
    let clip = dir.make("a.mp4", &format!("{CLIP} -c:v libx264 -bf 3 -c:a aac"));
    for threads in [1, 16] {
        let mut source = source(&clip, threads);
        let seen = decode(&mut source);
        assert_eq!(seen.hash, judge_hash(&clip, &[]), "{threads} threads");
        assert_eq!((seen.frames, seen.shared), (50, 50));
        assert!(seen.packets > 80, "{}", seen.packets);
        assert_eq!(source.counters().host_copied_bytes.load(Ordering::Relaxed), 0);
        assert!(seen.pts.windows(2).all(|w| w[0] < w[1]), "{:?}", seen.pts);
    }
}

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
        assert!(want.iter().zip(&got).all(|(a, b)| (a - b).abs() < 0.0006), "{name}: {want:?} {got:?}");
        assert_eq!(packet_hash(&clip, "0:a"), packet_hash(&out, "0:a"), "{name}");
    }
}
