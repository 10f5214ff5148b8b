//! Decoding through the library, with the installed ffmpeg as the judge: samples, memory, damage. Inputs are generated.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test is a panic")]

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use convoy::cancel::Cancel;
use convoy::frame::PixelFormat;
use convoy::media::{self, EncodeSpec, Gaps, Input, InputSpec, SourceOptions};
use convoy::pool::{Budget, Heap};
use support::library::{CLIP, Folder, ODD, PICTURE, agrees, codec, copy, decode, judge_hash, open, said, source, source_with, spec};

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

/// Makes a clip and holds its frames, none of them copied on the host, to ffmpeg's: how many, and how many lie in our slabs or in the
/// codec's own memory.
fn uncopied(dir: &Folder, name: &str, args: &str) -> [usize; 3] {
    let (seen, source) = agrees(&dir.make(name, args), &[]);
    assert_eq!(source.counters().host_copied_bytes.load(Ordering::Relaxed), 0, "{name}");
    [seen.frames, seen.shared, seen.foreign]
}

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
        let [frames, shared, _] = uncopied(&dir, name, &format!("{picture} {args}"));
        assert_eq!(shared, frames, "{name} does not decode into slabs");
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
        let [frames, _, foreign] = uncopied(&dir, name, &format!("{ODD} {args}"));
        assert_eq!(foreign, frames, "{name}");
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
fn lavfi_graphs_are_inputs() {
    let mut source = source("lavfi:testsrc2=size=64x48:rate=10:duration=1,format=yuv420p", 1);
    let seen = decode(&mut source);
    assert_eq!((seen.frames, source.shape().format), (10, PixelFormat::yuv(8, 1, 1)));
    assert_eq!(source.info().frame_rate.and_then(media::Rational::value), Some(10.0));
}
