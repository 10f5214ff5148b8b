//! What the tests of the media library share: decoding with hashes, encoding and muxing in one thread.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test is a panic")]
#![allow(dead_code, reason = "each test binary uses its part")]

use std::process::{Command, Stdio};
use std::sync::Arc;

use convoy::cancel::Cancel;
use convoy::error::Result;
use convoy::frame::{Frame, FrameMem, Packing};
use convoy::media::{self, DecodeSource, EncodeSpec, FileMuxer, Input, InputSpec, OutputTarget, Packet, SourceOptions, VideoEncoder};
use convoy::pipeline::{Encoder, Item, Muxer, Source};
use convoy::pool::{Budget, Heap};
use sha2::{Digest, Sha256};

pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    /// Runs ffmpeg with `args` to make `name`.
    pub fn make(&self, name: &str, args: &str) -> String {
        let path = self.path(name);
        let args: Vec<String> = args.split_whitespace().map(|a| a.replace("DIR", self.0.path().to_str().unwrap())).collect();
        run("ffmpeg", args.iter().map(String::as_str).chain(["-y", &path]));
        path
    }
}

pub fn run<'a>(program: &str, args: impl IntoIterator<Item = &'a str>) -> String {
    let args: Vec<&str> = args.into_iter().collect();
    let mut command = Command::new(program);
    if program == "ffmpeg" {
        command.args(["-hide_banner", "-nostdin", "-loglevel", "error"]);
    }
    let out = command.args(&args).stdin(Stdio::null()).output().unwrap();
    assert!(out.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

pub fn spec(url: &str) -> InputSpec {
    InputSpec { url: url.to_owned(), ..InputSpec::default() }
}

pub fn source_with(spec: &InputSpec, threads: usize, cancel: &Cancel) -> Result<DecodeSource> {
    let options = SourceOptions { mem: Arc::new(Heap), budget: Budget::new(1 << 30), threads: Some(threads) };
    Input::open(spec, cancel)?.into_source(options)
}

pub fn source(url: &str, threads: usize) -> DecodeSource {
    source_with(&spec(url), threads, &Cancel::new()).unwrap()
}

#[derive(Default)]
pub struct Decoded {
    pub hash: String,
    pub frames: usize,
    pub packets: usize,
    pub shared: usize,
    pub foreign: usize,
    pub own: usize,
    pub pts: Vec<i64>,
}

pub fn hash_frame(hasher: &mut Sha256, frame: &Frame) {
    assert_eq!(frame.layout.shape.format.packing, Packing::Planar);
    for (index, plane) in frame.layout.planes().iter().enumerate() {
        for y in 0..plane.height {
            hasher.update(frame.row(index, y));
        }
    }
}

pub fn decode(source: &mut DecodeSource) -> Decoded {
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
pub fn judge_hash(path: &str, extra: &[&str]) -> String {
    if let Some(graph) = path.strip_prefix("lavfi:") {
        return hash_of(["-f", "lavfi", "-i", graph].into_iter().chain(extra.iter().copied()));
    }
    // The flag makes ffmpeg crop to the sample, as it is coded.
    let args = ["-flags", "unaligned", "-i", path, "-map", "0:v:0", "-vsync", "passthrough"];
    hash_of(args.into_iter().chain(extra.iter().copied()))
}

pub fn hash_of<'a>(args: impl Iterator<Item = &'a str>) -> String {
    let out = run("ffmpeg", args.chain(["-f", "hash", "-hash", "sha256", "-"]));
    out.trim().rsplit('=').next().unwrap().to_owned()
}

pub fn probe(path: &str, entries: &str, select: &str) -> String {
    run("ffprobe", ["-v", "error", "-select_streams", select, "-show_entries", entries, "-of", "csv=p=0", path])
}

/// Presentation times of the packets of the first video stream, sorted, in seconds.
pub fn times(path: &str) -> Vec<f64> {
    let mut times: Vec<f64> = probe(path, "packet=pts_time", "v:0").lines().filter_map(|l| l.trim_end_matches(',').parse().ok()).collect();
    times.sort_by(f64::total_cmp);
    times
}

pub fn packet_hash(path: &str, map: &str) -> String {
    run("ffmpeg", ["-i", path, "-map", map, "-c", "copy", "-f", "md5", "-"])
}

pub struct Sink {
    pub encoder: VideoEncoder,
    pub muxer: FileMuxer,
}

pub fn open(source: &DecodeSource, path: &str, spec: &EncodeSpec) -> Result<Sink> {
    media::check_output(path, spec)?;
    let target = OutputTarget { url: path, final_name: path };
    let (encoder, muxer) = media::open_output(&target, spec, &source.info(), source.shape(), &Cancel::new())?;
    Ok(Sink { encoder, muxer })
}

pub fn copy(source: &mut DecodeSource, sink: &mut Sink) -> Result<usize> {
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

pub fn transcode(input: &str, output: &str, spec: &EncodeSpec) -> Sink {
    let mut source = source(input, 2);
    let mut sink = open(&source, output, spec).unwrap();
    copy(&mut source, &mut sink).unwrap();
    sink
}

pub fn codec(name: &str) -> EncodeSpec {
    EncodeSpec { codec: Some(name.to_owned()), ..EncodeSpec::default() }
}

pub const CLIP: &str = "-f lavfi -i testsrc2=size=320x180:rate=25:duration=2 -f lavfi -i sine=duration=2 -pix_fmt yuv420p";

pub const PICTURE: &str = "-f lavfi -i testsrc2=size=320x180:rate=25:duration=1";

pub const ODD: &str = "-f lavfi -i testsrc=size=321x181:rate=25:duration=1";

/// What the source said while `path` was decoded, and how many frames came.
pub fn said(path: &str) -> (usize, Vec<String>) {
    let mut source = source(path, 2);
    let frames = decode(&mut source).frames;
    (frames, source.counters().warnings())
}

/// Decodes with 1 and 4 threads and compares with ffmpeg; returns what was seen.
pub fn agrees(path: &str, judge: &[&str]) -> (Decoded, DecodeSource) {
    let want = judge_hash(path, judge);
    let mut alone = source(path, 1);
    assert_eq!(decode(&mut alone).hash, want, "{path}, 1 thread");
    let mut source = source(path, 4);
    let seen = decode(&mut source);
    assert_eq!(seen.hash, want, "{path}, 4 threads");
    assert!(seen.frames > 0);
    (seen, source)
}
