//! Decoding, encoding and muxing against the installed ffmpeg and ffprobe as judges. Inputs are generated.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use convoy::cancel::Cancel;
use convoy::error::Result;
use convoy::frame::{Frame, FrameMem, Packing, PixelFormat};
use convoy::media::{self, DecodeSource, EncodeSpec, FileMuxer, Gaps, Input, InputSpec, OutputTarget, Packet, SourceOptions, VideoEncoder};
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
    if let Some(graph) = path.strip_prefix("lavfi:") {
        return hash_of(["-f", "lavfi", "-i", graph].into_iter().chain(extra.iter().copied()));
    }
    // The flag makes ffmpeg crop to the sample, as it is coded.
    let args = ["-flags", "unaligned", "-i", path, "-map", "0:v:0", "-vsync", "passthrough"];
    hash_of(args.into_iter().chain(extra.iter().copied()))
}

fn hash_of<'a>(args: impl Iterator<Item = &'a str>) -> String {
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
        // Matroska has no negative time stamps: AAC's priming moves every stream by 23 ms, as with ffmpeg itself.
        let shift = if name == "b.mkv" { 0.023 } else { 0.0 };
        assert!(want.iter().zip(&got).all(|(a, b)| (a + shift - b).abs() < 0.0006), "{name}: {want:?} {got:?}");
        assert_eq!(packet_hash(&clip, "0:a"), packet_hash(&out, "0:a"), "{name}");
    }
}

/// Decodes with 1 and 4 threads and compares with ffmpeg; returns what was seen.
fn agrees(path: &str, judge: &[&str]) -> (Decoded, DecodeSource) {
    let want = judge_hash(path, judge);
    let mut alone = source(path, 1);
    assert_eq!(decode(&mut alone).hash, want, "{path}, 1 thread");
    let mut source = source(path, 4);
    let seen = decode(&mut source);
    assert_eq!(seen.hash, want, "{path}, 4 threads");
    assert!(seen.frames > 0);
    (seen, source)
}

const PICTURE: &str = "-f lavfi -i testsrc2=size=320x180:rate=25:duration=1";
const ODD: &str = "-f lavfi -i testsrc=size=321x181:rate=25:duration=1";

#[test]
fn direct_codecs_decode_without_a_host_copy() {
    let dir = Folder::new();
    for (name, picture, args) in [
        ("hevc.mkv", PICTURE, "-pix_fmt yuv420p -c:v libx265 -x265-params log-level=none"),
        ("hevc10.mkv", PICTURE, "-pix_fmt yuv420p10le -c:v libx265 -x265-params log-level=none"),
        ("vp9.webm", ODD, "-pix_fmt yuv420p -c:v libvpx-vp9 -cpu-used 8 -b:v 500k"),
        ("mpeg4.avi", ODD, "-pix_fmt yuv420p -c:v mpeg4 -bf 2"),
        ("mjpeg.avi", PICTURE, "-pix_fmt yuvj422p -c:v mjpeg"),
        ("prores.mov", PICTURE, "-pix_fmt yuv422p10le -c:v prores_ks"),
        ("ffv1.mkv", ODD, "-pix_fmt yuv422p10le -c:v ffv1"),
        ("gray.mkv", ODD, "-pix_fmt gray -c:v ffv1"),
        ("gray12.mkv", ODD, "-pix_fmt gray12le -c:v ffv1"),
        ("yuva.mkv", ODD, "-pix_fmt yuva444p -c:v ffv1"),
        ("gbrp10.mkv", ODD, "-pix_fmt gbrp10le -c:v ffv1"),
        ("odd444.mkv", ODD, "-pix_fmt yuv444p -c:v libx264"),
        ("cropped.mp4", PICTURE, "-pix_fmt yuv420p -c:v libx264 -bsf:v h264_metadata=crop_left=6:crop_top=4:crop_right=10"),
        ("interlaced.ts", PICTURE, "-pix_fmt yuv420p -c:v mpeg2video -flags +ildct+ilme"),
    ] {
        let clip = dir.make(name, &format!("{picture} {args}"));
        let (seen, source) = agrees(&clip, &[]);
        assert_eq!(seen.shared, seen.frames, "{name} does not decode into slabs");
        assert_eq!(source.counters().host_copied_bytes.load(Ordering::Relaxed), 0, "{name}");
    }
}

#[test]
fn codecs_with_memory_of_their_own_are_read_in_place() {
    let dir = Folder::new();
    for (name, args) in [
        ("raw.y4m", "-pix_fmt yuv422p"),
        ("raw.nut", "-pix_fmt yuv420p10le -c:v rawvideo"),
        ("av1.mkv", "-pix_fmt yuv420p -c:v libaom-av1 -cpu-used 8"),
    ] {
        let clip = dir.make(name, &format!("{ODD} {args}"));
        let (seen, source) = agrees(&clip, &[]);
        assert_eq!(seen.foreign, seen.frames, "{name}");
        assert_eq!(source.counters().host_copied_bytes.load(Ordering::Relaxed), 0, "{name}");
    }
}

#[test]
fn packed_formats_are_converted_on_entry_without_loss_and_counted() {
    let dir = Folder::new();
    let converted = |input: &str, planar: &str| {
        let (seen, source) = agrees(input, &["-pix_fmt", planar]);
        assert_eq!(seen.own, seen.frames, "{input}");
        let copied = source.counters().host_copied_bytes.load(Ordering::Relaxed);
        assert_eq!(copied, (seen.frames * source.shape().payload_bytes()) as u64, "{input}");
        source.info().pixel_format.clone()
    };
    for (packed, planar) in [
        ("rgb24", "gbrp"),
        ("bgra", "gbrap"),
        ("rgb48le", "gbrp16le"),
        ("yuyv422", "yuv422p"),
        ("uyvy422", "yuv422p"),
        ("nv21", "yuv420p"),
        ("p010be", "yuv420p10le"),
        ("yuv422p10be", "yuv422p10le"),
    ] {
        let graph = format!("lavfi:testsrc=size=322x182:rate=25:duration=0.4,format={packed}");
        assert_eq!(converted(&graph, planar), packed);
    }
    for (name, args, planar) in [("picture.apng", "-pix_fmt rgb24 -c:v apng", "gbrp"), ("palette.gif", "-c:v gif", "gbrap")] {
        converted(&dir.make(name, &format!("{PICTURE} {args}")), planar);
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
fn a_change_of_size_in_mid_stream_is_converted_with_one_warning() {
    let dir = Folder::new();
    let a = dir.make("a.ts", &format!("{PICTURE} -pix_fmt yuv420p -c:v libx264"));
    let b = dir.make("b.ts", "-f lavfi -i testsrc2=size=160x120:rate=25:duration=1 -pix_fmt yuv444p -c:v libx264");
    let both = dir.path("both.ts");
    std::fs::write(&both, [std::fs::read(a).unwrap(), std::fs::read(b).unwrap()].concat()).unwrap();
    let mut source = source(&both, 4);
    let seen = decode(&mut source);
    assert_eq!(seen.frames, 50);
    assert_eq!((seen.shared, seen.own), (25, 25));
    let warnings = source.counters().warnings();
    assert!(warnings.iter().filter(|w| w.contains("160x120")).count() == 1, "{warnings:?}");
}

#[test]
fn damage_and_truncation_are_survived_and_counted() {
    let dir = Folder::new();
    let clip = dir.make("a.mkv", &format!("{CLIP} -c:v libx264 -g 10 -c:a aac"));
    let whole = std::fs::read(&clip).unwrap();
    let cut = dir.path("cut.mkv");
    std::fs::write(&cut, &whole[..whole.len() / 2]).unwrap();
    let seen = decode(&mut source(&cut, 4));
    assert!((5..50).contains(&seen.frames), "{}", seen.frames);
    let mut damaged = whole;
    let (from, to) = (damaged.len() / 3, damaged.len() / 2);
    damaged[from..to].iter_mut().step_by(97).for_each(|b| *b ^= 0x5a);
    let path = dir.path("damaged.mkv");
    std::fs::write(&path, damaged).unwrap();
    let mut source = source(&path, 4);
    let seen = decode(&mut source);
    assert!(seen.frames > 20, "{}", seen.frames);
    assert!(source.counters().damaged() > 0);
    assert!(source.counters().warnings()[0].starts_with("the input is damaged: "), "{:?}", source.counters().warnings());
}

/// What the source said while `path` was decoded, and how many frames came.
fn said(path: &str) -> (usize, Vec<String>) {
    let mut source = source(path, 2);
    let frames = decode(&mut source).frames;
    (frames, source.counters().warnings())
}

#[test]
fn an_input_that_ends_early_is_named_with_its_counts() {
    let dir = Folder::new();
    let whole = dir.make("a.mp4", &format!("{CLIP} -c:v libx264 -g 10 -bf 2 -c:a aac -movflags +faststart"));
    for name in ["b.mkv", "b.flv", "b.avi"] {
        dir.make(name, &format!("-i {whole} -c copy"));
    }
    dir.make("m.avi", &format!("{CLIP} -c:v mjpeg -q:v 2 -c:a pcm_s16le"));
    for name in ["a.mp4", "b.mkv", "b.flv", "b.avi", "m.avi"] {
        let path = dir.path(name);
        assert_eq!(said(&path), (50, vec![]), "{name}");
        let bytes = std::fs::read(&path).unwrap();
        let cut = dir.path(&format!("cut-{name}"));
        std::fs::write(&cut, &bytes[..bytes.len() * 4 / 10]).unwrap();
        let (frames, warnings) = said(&cut);
        assert!((5..45).contains(&frames), "{name}: {frames}");
        assert!(warnings.iter().any(|w| w.starts_with("the input ends early: ")), "{name}: {warnings:?}");
    }
    let (frames, warnings) = said(&dir.path("cut-a.mp4"));
    assert!(warnings.iter().any(|w| w.ends_with(&format!(": {frames} of 50 frames"))), "{frames} {warnings:?}");
    // A hole: the pictures in it are missing, those behind it are not.
    let mut bytes = std::fs::read(dir.path("m.avi")).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 40_000].fill(0);
    std::fs::write(dir.path("hole.avi"), bytes).unwrap();
    let (frames, warnings) = said(&dir.path("hole.avi"));
    assert!((40..49).contains(&frames) && warnings.iter().any(|w| w.contains("of 50 frames")), "{frames} {warnings:?}");
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

#[test]
fn the_memory_budget_is_named_when_it_is_spent() {
    let dir = Folder::new();
    let clip = dir.make("a.mp4", &format!("{CLIP} -c:v libx264"));
    let options = SourceOptions { mem: Arc::new(Heap), budget: Budget::new(200 << 10), threads: Some(4) };
    let error = Input::open(&spec(&clip), &Cancel::new()).and_then(|i| i.into_source(options)).err().unwrap().to_string();
    assert!(error.contains("memory budget"), "{error}");
}

#[test]
fn slabs_go_back_when_everything_is_dropped() {
    let dir = Folder::new();
    let clip = dir.make("a.mp4", &format!("{CLIP} -c:v libx264 -bf 3"));
    let budget = Budget::new(1 << 30);
    let options = SourceOptions { mem: Arc::new(Heap), budget: Arc::clone(&budget), threads: Some(8) };
    let mut source = Input::open(&spec(&clip), &Cancel::new()).and_then(|i| i.into_source(options)).unwrap();
    let mut sink = open(&source, &dir.path("o.mkv"), &EncodeSpec { threads: Some(16), ..codec("mjpeg") }).unwrap();
    copy(&mut source, &mut sink).unwrap();
    assert!(budget.used() > 0);
    drop((source, sink));
    assert_eq!(budget.used(), 0);
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
fn image_sequences_start_where_they_start_and_a_gap_is_decided() {
    let dir = Folder::new();
    dir.make("f_%04d.png", "-f lavfi -i testsrc2=size=64x48:rate=25:duration=1 -start_number 17");
    let pattern = dir.path("f_%04d.png");
    assert_eq!(decode(&mut source(&pattern, 1)).frames, 25);
    // Holes of any width, in any place, with as many frames read ahead as there are threads.
    for missing in [38, 37, 30] {
        std::fs::remove_file(dir.path(&format!("f_{missing:04}.png"))).unwrap();
    }
    let error = source_with(&spec(&pattern), 1, &Cancel::new()).err().unwrap().to_string();
    assert!(error.contains("f_0030.png' is missing (3 numbers are missing in all)") && error.contains("--gaps"), "{error}");
    for (gaps, threads, last) in [(Gaps::Skip, 1, 21), (Gaps::Skip, 4, 21), (Gaps::Hold, 1, 24), (Gaps::Hold, 4, 24)] {
        let mut source = source_with(&InputSpec { gaps, ..spec(&pattern) }, threads, &Cancel::new()).unwrap();
        let seen = decode(&mut source);
        assert_eq!((seen.frames, seen.pts.last()), (22, Some(&last)), "{gaps:?}");
        assert!(source.counters().warnings().iter().any(|w| w.starts_with("3 images are missing")), "{:?}", source.counters().warnings());
    }
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

#[test]
fn lavfi_graphs_are_inputs() {
    let mut source = source("lavfi:testsrc2=size=64x48:rate=10:duration=1,format=yuv420p", 1);
    let seen = decode(&mut source);
    assert_eq!((seen.frames, source.shape().format), (10, PixelFormat::yuv(8, 1, 1)));
    assert_eq!(source.info().frame_rate.and_then(media::Rational::value), Some(10.0));
}

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
