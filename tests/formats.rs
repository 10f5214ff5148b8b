//! Every sample format of the specification, in and out, against the installed ffmpeg and against plain loops.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test is a panic")]

mod support;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use support::{convoy_run, ffmpeg, path_str, stderr, stdout};

/// Formats that are filtered where they lie.
const NATIVE: &[&str] = &[
    "gray",
    "gray9le",
    "gray10le",
    "gray12le",
    "gray14le",
    "gray16le",
    "grayf32le",
    "yuv420p",
    "yuv420p9le",
    "yuv420p10le",
    "yuv420p12le",
    "yuv420p14le",
    "yuv420p16le",
    "yuv422p",
    "yuv422p9le",
    "yuv422p10le",
    "yuv422p12le",
    "yuv422p14le",
    "yuv422p16le",
    "yuv444p",
    "yuv444p9le",
    "yuv444p10le",
    "yuv444p12le",
    "yuv444p14le",
    "yuv444p16le",
    "yuv440p",
    "yuv411p",
    "yuv410p",
    "nv12",
    "nv16",
    "nv24",
    "nv20le",
    "p010le",
    "p016le",
    "p210le",
    "p216le",
    "p410le",
    "gbrp",
    "gbrp9le",
    "gbrp10le",
    "gbrp12le",
    "gbrp14le",
    "gbrp16le",
    "gbrpf32le",
    "gbrap",
    "gbrap10le",
    "gbrap12le",
    "gbrap16le",
    "gbrapf32le",
    "yuva420p",
    "yuva422p",
    "yuva444p",
    "yuva420p10le",
    "yuva422p12le",
    "yuva444p16le",
];

/// Formats that are converted on entry without loss, and the planar format that they become.
const CONVERTED: &[(&str, &str)] = &[
    ("rgb24", "gbrp"),
    ("bgr24", "gbrp"),
    ("rgba", "gbrap"),
    ("bgra", "gbrap"),
    ("argb", "gbrap"),
    ("abgr", "gbrap"),
    ("rgb0", "gbrp"),
    ("0bgr", "gbrp"),
    ("rgb48le", "gbrp16le"),
    ("bgr48be", "gbrp16le"),
    ("rgba64le", "gbrap16le"),
    ("bgra64be", "gbrap16le"),
    ("yuyv422", "yuv422p"),
    ("uyvy422", "yuv422p"),
    ("yvyu422", "yuv422p"),
    ("y210le", "yuv422p10le"),
    ("ayuv64le", "yuva444p16le"),
    ("nv21", "yuv420p"),
    ("nv42", "yuv444p"),
    ("p010be", "yuv420p10le"),
    ("gray10be", "gray10le"),
    ("gray16be", "gray16le"),
    ("grayf32be", "grayf32le"),
    ("yuv420p10be", "yuv420p10le"),
    ("yuv422p16be", "yuv422p16le"),
    ("gbrp12be", "gbrp12le"),
    ("gbrpf32be", "gbrpf32le"),
    ("yuva444p10be", "yuva444p10le"),
];

/// Formats that are filtered as they are, converted on request.
const SEMI_PLANAR: &[(&str, &str)] = &[
    ("nv12", "yuv420p"),
    ("nv16", "yuv422p"),
    ("nv20le", "yuv422p10le"),
    ("nv24", "yuv444p"),
    ("p010le", "yuv420p10le"),
    ("p210le", "yuv422p10le"),
    ("p016le", "yuv420p16le"),
];

/// Packed formats of which ffmpeg rounds alpha on the way to planes: samples per pixel, then the positions of G, B, R, A
/// (or Y, U, V, A), bytes per sample, big-endian.
const UNROUNDED: &[(&str, [usize; 4], usize, bool)] = &[
    ("rgba", [1, 2, 0, 3], 1, false),
    ("bgra", [1, 0, 2, 3], 1, false),
    ("argb", [2, 3, 1, 0], 1, false),
    ("abgr", [2, 1, 3, 0], 1, false),
    ("rgba64le", [1, 2, 0, 3], 2, false),
    ("bgra64be", [1, 0, 2, 3], 2, true),
    ("ayuv64le", [1, 2, 3, 0], 2, false),
];

/// One frame of planar samples put together as another format.
type Assemble = fn(&[u8], (usize, usize)) -> Vec<u8>;

/// Formats that ffmpeg cannot write: made of these planar ones.
fn assembled(pix_fmt: &str) -> Option<(&'static str, Assemble)> {
    fn semi_planar<const BYTES: usize>(frame: &[u8], (w, h): (usize, usize)) -> Vec<u8> {
        let (luma, chroma) = frame.split_at(w * h * BYTES);
        let (u, v) = chroma.split_at(chroma.len() / 2);
        luma.iter().copied().chain(u.chunks(BYTES).zip(v.chunks(BYTES)).flat_map(|(u, v)| [u, v].concat())).collect()
    }
    fn y210(frame: &[u8], (w, h): (usize, usize)) -> Vec<u8> {
        let words: Vec<u16> = frame.chunks(2).map(|b| u16::from_le_bytes([b[0], b[1]]) << 6).collect();
        let (luma, chroma) = words.split_at(w * h);
        let (u, v) = chroma.split_at(chroma.len() / 2);
        let half = w.div_ceil(2);
        let mut out = Vec::new();
        for y in 0..h {
            for x in 0..half {
                let second = if 2 * x + 1 < w { luma[y * w + 2 * x + 1] } else { 0 };
                for word in [luma[y * w + 2 * x], u[y * half + x], second, v[y * half + x]] {
                    out.extend(word.to_le_bytes());
                }
            }
        }
        out
    }
    match pix_fmt {
        "nv16" => Some(("yuv422p", semi_planar::<1>)),
        "nv20le" => Some(("yuv422p10le", semi_planar::<2>)),
        "y210le" => Some(("yuv422p10le", y210)),
        _ => None,
    }
}

/// A packed clip of two frames as planes of little-endian samples, by hand.
fn unpacked(raw: &[u8], order: [usize; 4], bytes: usize, big: bool) -> Vec<u8> {
    let plane = |frame: &[u8], at: usize| -> Vec<u8> {
        let samples = frame.chunks(4 * bytes).map(|pixel| &pixel[at * bytes..(at + 1) * bytes]);
        samples.flat_map(|s| if big { s.iter().rev().copied().collect::<Vec<_>>() } else { s.to_vec() }).collect()
    };
    raw.chunks(raw.len() / 2).flat_map(|frame| order.iter().flat_map(|&at| plane(frame, at)).collect::<Vec<_>>()).collect()
}

const ODD: (usize, usize) = (61, 37);

/// A folder with raw clips, and what is done with them.
struct Bench(tempfile::TempDir);

impl Bench {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A noisy raw clip of two frames in `pix_fmt`, alpha included.
    fn clip(&self, pix_fmt: &str, (w, h): (usize, usize)) -> PathBuf {
        let path = self.path(&format!("{pix_fmt}-{w}x{h}.raw"));
        if let Some((planar, assemble)) = assembled(pix_fmt) {
            let raw = std::fs::read(self.clip(planar, (w, h))).unwrap();
            let frame = raw.len() / 2;
            std::fs::write(&path, raw.chunks(frame).flat_map(|f| assemble(f, (w, h))).collect::<Vec<u8>>()).unwrap();
            return path;
        }
        let picture = format!("testsrc2=size={w}x{h},format=yuva444p,noise=alls=40:allf=t:all_seed=7,format={pix_fmt}");
        ffmpeg(&["-f", "lavfi", "-i", &picture, "-frames:v", "2", "-f", "rawvideo", "-pix_fmt", pix_fmt, path_str(&path)]);
        path
    }

    /// Runs convoy on a raw clip into a raw file; returns its bytes and what it said.
    fn run(&self, clip: &Path, pix_fmt: &str, (w, h): (usize, usize), args: &[&str]) -> (Vec<u8>, String) {
        let out = self.path("out.raw");
        let size = format!("video_size={w}x{h}");
        let format = format!("pixel_format={pix_fmt}");
        let mut all = vec!["--input-format", "rawvideo", "--in-opt", &size, "--in-opt", &format, "--format", "rawvideo", "-y", "-v"];
        all.extend(args);
        let output = convoy_run(path_str(clip), &out, &all);
        (std::fs::read(&out).unwrap(), stderr(&output) + &stdout(&output))
    }
}

/// Raw clip to raw clip of another format, by ffmpeg.
fn judge(clip: &Path, pix_fmt: &str, (w, h): (usize, usize), graph: &str, output: &str) -> Vec<u8> {
    let size = format!("{w}x{h}");
    let graph = format!("{graph},format={output}");
    let input = ["-f", "rawvideo", "-pixel_format", pix_fmt, "-video_size", &size, "-i", path_str(clip)];
    ffmpeg(&[&input[..], &["-vf", &graph, "-f", "rawvideo", "-pix_fmt", output, "-"]].concat())
}

fn same(what: &str, got: &[u8], want: &[u8]) {
    assert_eq!(got.len(), want.len(), "{what}: sizes differ");
    assert!(!got.is_empty(), "{what}: nothing was compared");
    if let Some(at) = got.iter().zip(want).position(|(a, b)| a != b) {
        panic!("{what}: byte {at} is {}, want {}", got[at], want[at]);
    }
}

#[test]
fn every_format_passes_unchanged() {
    let bench = Bench::new();
    let native = NATIVE.iter().map(|&f| (f, ODD));
    let converted = CONVERTED.iter().flat_map(|&(f, _)| [(f, (64, 36)), (f, ODD)]);
    for (pix_fmt, size) in native.chain(converted) {
        let clip = bench.clip(pix_fmt, size);
        let (got, said) = bench.run(&clip, pix_fmt, size, &[]);
        let mut want = std::fs::read(&clip).unwrap();
        if let Some(padding) = ["rgb0", "0bgr"].iter().position(|f| *f == pix_fmt) {
            // The unused byte is written as 255, as ffmpeg does.
            want.chunks_mut(4).for_each(|pixel| pixel[3 - 3 * padding] = 255);
        }
        if let Some((luma, bytes)) = [("yuyv422", 0, 1), ("yvyu422", 0, 1), ("uyvy422", 1, 1), ("y210le", 0, 2)]
            .into_iter()
            .find_map(|(name, luma, bytes)| (name == pix_fmt && size.0 % 2 == 1).then_some((luma, bytes)))
        {
            // The second luma sample of a row's last pair is not part of the picture.
            for row in want.chunks_mut(size.0.div_ceil(2) * 4 * bytes) {
                let at = row.len() - 2 * bytes + luma;
                row[at..at + bytes].fill(255);
            }
        }
        same(pix_fmt, &got, &want);
        assert_eq!(said.contains("converted"), !NATIVE.contains(&pix_fmt), "{pix_fmt}: {said}");
    }
}

#[test]
fn what_is_converted_on_entry_is_what_ffmpeg_converts_to() {
    let bench = Bench::new();
    for size in [(64, 36), ODD] {
        for &(packed, planar) in CONVERTED.iter().chain(SEMI_PLANAR) {
            let clip = bench.clip(packed, size);
            let (got, said) = bench.run(&clip, packed, size, &["--pix-fmt", planar]);
            let want = if let Some(&(_, order, bytes, big)) = UNROUNDED.iter().find(|row| row.0 == packed) {
                unpacked(&std::fs::read(&clip).unwrap(), order, bytes, big)
            } else if let Some((planar, _)) = assembled(packed) {
                std::fs::read(bench.clip(planar, size)).unwrap()
            } else {
                judge(&clip, packed, size, "null", planar)
            };
            same(packed, &got, &want);
            let on_entry = format!("{packed} frames are converted to");
            assert_eq!(said.contains(&on_entry), !SEMI_PLANAR.contains(&(packed, planar)), "{said}");
            assert!(said.contains("without loss"), "{said}");
        }
    }
}

/// Graphs that treat U and V alike.
const GRAPHS: &[&str] = &[
    "gblur=2",
    "gblur=sigma=6:sigmaV=1",
    "convolution=kernel='1 2 3 4 5 6 7 8 9 8 7 6 5 4 3 2 1 2 3 4 5 -6 7 8 9'",
    "unsharp",
    "unsharp=5:3:1.5:3:5:-0.7",
    "boxblur=3:2",
    "sobel=scale=0.7:delta=5",
    "gblur=1.2:planes=1,boxblur=1,unsharp=la=-1",
];

#[test]
fn semi_planar_chroma_is_filtered_as_planar_chroma_is() {
    let bench = Bench::new();
    for (semi, planar) in [
        ("nv12", "yuv420p"),
        ("nv16", "yuv422p"),
        ("nv24", "yuv444p"),
        ("p010le", "yuv420p10le"),
        ("nv20le", "yuv422p10le"),
        ("p210le", "yuv422p10le"),
        ("p016le", "yuv420p16le"),
    ] {
        for size in [(64, 36), ODD] {
            // The planar clip is made of the semi-planar one, so that both start from the same samples.
            let clip = bench.clip(semi, size);
            let (raw, _) = bench.run(&clip, semi, size, &["--pix-fmt", planar]);
            let planar_clip = bench.path("planar.raw");
            std::fs::write(&planar_clip, &raw).unwrap();
            for graph in GRAPHS {
                let (got, said) = bench.run(&clip, semi, size, &["--vf", graph, "--pix-fmt", planar]);
                let (want, _) = bench.run(&planar_clip, planar, size, &["--vf", graph]);
                same(&format!("{graph} on {semi}"), &got, &want);
                assert!(!said.contains("on entry"), "{graph} on {semi}: {said}");
                assert!(want != raw, "{graph} changes nothing");
            }
        }
    }
}

fn host_copy(said: &str) -> f64 {
    let text = said.split("host_bytes_copied_per_frame\":").nth(1).expect("statistics");
    text.split([',', '}']).next().unwrap().parse().unwrap()
}

#[test]
fn filters_that_treat_u_and_v_differently_get_planes_and_others_no_copy() {
    let bench = Bench::new();
    let clip = bench.clip("nv12", ODD);
    let planar = bench.path("planar.raw");
    std::fs::write(&planar, bench.run(&clip, "nv12", ODD, &["--pix-fmt", "yuv420p"]).0).unwrap();
    for graph in ["gblur=2:planes=2", "avgblur=2:planes=5", "convolution=2m='1 2 1 2 4 2 1 2 1'", "gblur=1,sobel=planes=4"] {
        let (got, said) = bench.run(&clip, "nv12", ODD, &["--vf", graph, "--stats=json"]);
        // The output keeps the input's format.
        let back = bench.path("back.raw");
        std::fs::write(&back, &got).unwrap();
        let got = bench.run(&back, "nv12", ODD, &["--pix-fmt", "yuv420p"]).0;
        same(graph, &got, &bench.run(&planar, "yuv420p", ODD, &["--vf", graph]).0);
        assert!(said.contains("nv12 frames are converted to planar") && said.contains("treats U and V differently"), "{said}");
        assert_eq!(host_copy(&said), 2.0 * (61 * 37 + 2 * 31 * 19) as f64, "{said}");
    }
    for graph in ["gblur=2:planes=1", "gblur=2:planes=6", "gblur=2"] {
        let (_, said) = bench.run(&clip, "nv12", ODD, &["--vf", graph, "--stats=json"]);
        assert!(!said.contains("converted") && host_copy(&said) == 0.0, "{said}");
    }
}

fn words(raw: &[u8]) -> Vec<u16> {
    raw.chunks(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect()
}

#[test]
fn ten_bits_stay_ten_bits() {
    let bench = Bench::new();
    for (pix_fmt, shift) in [("yuv420p10le", 0), ("gray10le", 0), ("gbrp10le", 0), ("p010le", 6)] {
        let got = words(&bench.run(&bench.clip(pix_fmt, ODD), pix_fmt, ODD, &["--vf", "gblur=1"]).0);
        assert!(got.iter().any(|s| s >> shift & 3 != 0), "{pix_fmt}: all multiples of 4");
        assert!(got.iter().all(|s| s >> shift < 1024 && s & ((1 << shift) - 1) == 0), "{pix_fmt}: not 10 bits");
    }
    // And so through an encoder that takes 10 bits, by default.
    let out = bench.path("ten.mkv");
    let clip = bench.clip("yuv420p10le", (64, 36));
    let format = ["--input-format", "rawvideo", "--in-opt", "video_size=64x36", "--in-opt", "pixel_format=yuv420p10le"];
    convoy_run(path_str(&clip), &out, &[&format[..], &["--vf", "gblur=1", "-c:v", "libx265"]].concat());
    assert_eq!(support::ffprobe(&out, &["-select_streams", "v", "-show_entries", "stream=pix_fmt"]), ["yuv420p10le"]);
    let got = words(&ffmpeg(&["-i", path_str(&out), "-f", "rawvideo", "-"]));
    assert!(got.iter().any(|s| s & 3 != 0));
}

/// The components of a raw clip, each as a gray clip.
fn components(bench: &Bench, raw: &[u8], pix_fmt: &str, size: (usize, usize), names: &str) -> Vec<Vec<u8>> {
    let clip = bench.path("components.raw");
    std::fs::write(&clip, raw).unwrap();
    let (w, h) = size;
    let size = format!("{w}x{h}");
    let one = |name: char| {
        let graph = format!("extractplanes={name}");
        ffmpeg(&[
            "-f",
            "rawvideo",
            "-pixel_format",
            pix_fmt,
            "-video_size",
            &size,
            "-i",
            path_str(&clip),
            "-vf",
            &graph,
            "-f",
            "rawvideo",
            "-",
        ])
    };
    names.chars().map(one).collect()
}

#[test]
fn alpha_is_filtered_like_the_rest_and_kept_when_left_out() {
    let bench = Bench::new();
    for (pix_fmt, gray) in [("yuva420p", "gray"), ("yuva444p10le", "gray10le"), ("gbrap", "gray"), ("gbrap12le", "gray12le")] {
        let clip = bench.clip(pix_fmt, ODD);
        let alpha = |raw: &[u8]| components(&bench, raw, pix_fmt, ODD, "a").remove(0);
        let before = alpha(&std::fs::read(&clip).unwrap());
        let all = alpha(&bench.run(&clip, pix_fmt, ODD, &["--vf", "gblur=2"]).0);
        let colour = alpha(&bench.run(&clip, pix_fmt, ODD, &["--vf", "gblur=2:planes=7"]).0);
        same(pix_fmt, &colour, &before);
        let plain = bench.path("alpha.raw");
        std::fs::write(&plain, &before).unwrap();
        same(pix_fmt, &all, &bench.run(&plain, gray, ODD, &["--vf", "gblur=2"]).0);
        assert!(all != before, "{pix_fmt}: the clip's alpha is flat");
    }
    let clip = bench.clip("rgba", ODD);
    let (got, _) = bench.run(&clip, "rgba", ODD, &["--vf", "gblur=2:planes=7"]);
    let raw = std::fs::read(&clip).unwrap();
    assert!(got.chunks(4).zip(raw.chunks(4)).all(|(a, b)| a[3] == b[3]) && got != raw);
}

#[test]
fn rgb_is_filtered_per_channel() {
    let bench = Bench::new();
    for (pix_fmt, gray) in [("gbrp", "gray"), ("gbrp10le", "gray10le"), ("gbrp14le", "gray14le"), ("gbrp16le", "gray16le")] {
        let clip = bench.clip(pix_fmt, ODD);
        let raw = std::fs::read(&clip).unwrap();
        // Files hold the planes in the order G, B, R.
        let frame = raw.len() / 2;
        let split = |raw: &[u8]| -> Vec<Vec<u8>> {
            (0..3).map(|p| raw.chunks(frame).flat_map(|f| f[p * frame / 3..(p + 1) * frame / 3].to_vec()).collect()).collect()
        };
        let before = split(&raw);
        for graph in ["gblur=2", "unsharp=la=1.5", "sobel"] {
            let after = split(&bench.run(&clip, pix_fmt, ODD, &["--vf", graph]).0);
            for (channel, (got, plain)) in after.iter().zip(&before).enumerate() {
                let one = bench.path("channel.raw");
                std::fs::write(&one, plain).unwrap();
                same(&format!("{graph} on {pix_fmt} channel {channel}"), got, &bench.run(&one, gray, ODD, &["--vf", graph]).0);
            }
        }
        let green = split(&bench.run(&clip, pix_fmt, ODD, &["--vf", "gblur=2:planes=1"]).0);
        assert!(green[0] != before[0] && green[1] == before[1] && green[2] == before[2], "{pix_fmt}");
    }
    // Packed RGB is the same filter on the same channels.
    let clip = bench.clip("rgb24", ODD);
    let planar = bench.path("planar.raw");
    std::fs::write(&planar, bench.run(&clip, "rgb24", ODD, &["--pix-fmt", "gbrp"]).0).unwrap();
    let (got, _) = bench.run(&clip, "rgb24", ODD, &["--vf", "gblur=2:planes=3", "--pix-fmt", "gbrp"]);
    same("rgb24", &got, &bench.run(&planar, "gbrp", ODD, &["--vf", "gblur=2:planes=3"]).0);
}

/// Numbers from a fixed seed.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as u32
    }
}

const TAPS: [f64; 9] = [1.0, -2.0, 3.0, 0.5, 4.0, -1.5, 2.0, 1.0, 0.25];

/// The 3×3 kernel [`TAPS`] over a plane, edges repeated, in f64.
fn convolved(samples: &[f64], (w, h): (usize, usize)) -> Vec<f64> {
    let sum: f64 = TAPS.iter().sum();
    let at = |x: isize, y: isize| samples[y.clamp(0, h as isize - 1) as usize * w + x.clamp(0, w as isize - 1) as usize];
    let one = |x: isize, y: isize| {
        let window = (-1..=1).flat_map(|dy| (-1..=1).map(move |dx| (dx, dy)));
        window.zip(TAPS).map(|((dx, dy), tap)| tap * at(x + dx, y + dy)).sum::<f64>() / sum
    };
    (0..h as isize).flat_map(|y| (0..w as isize).map(move |x| (x, y))).map(|(x, y)| one(x, y)).collect()
}

fn taps() -> String {
    TAPS.map(|t| t.to_string()).join(" ")
}

#[test]
fn float_formats_agree_with_a_loop_in_f64() {
    let bench = Bench::new();
    for (pix_fmt, planes, big) in
        [("grayf32le", 1, false), ("gbrpf32le", 3, false), ("gbrapf32le", 4, false), ("grayf32be", 1, true), ("gbrpf32be", 3, true)]
    {
        let (w, h) = ODD;
        let mut noise = Noise(11);
        // Float samples may leave 0…1, and are not clamped.
        let samples: Vec<f32> = (0..w * h * planes).map(|_| noise.next() as f32 / 2f32.powi(30) - 0.5).collect();
        let bytes = |s: &f32| if big { s.to_be_bytes() } else { s.to_le_bytes() };
        let clip = bench.path("float.raw");
        std::fs::write(&clip, samples.iter().flat_map(bytes).collect::<Vec<u8>>()).unwrap();
        let (got, _) = bench.run(&clip, pix_fmt, ODD, &["--vf", &format!("convolution=kernel='{}'", taps())]);
        let float = |b: &[u8]| {
            let b = [b[0], b[1], b[2], b[3]];
            if big { f32::from_be_bytes(b) } else { f32::from_le_bytes(b) }
        };
        let got: Vec<f32> = got.chunks(4).map(float).collect();
        assert_eq!(got.len(), samples.len());
        for p in 0..planes {
            let plane: Vec<f64> = samples[p * w * h..(p + 1) * w * h].iter().map(|&s| f64::from(s)).collect();
            let want = convolved(&plane, ODD);
            let range = p * w * h..(p + 1) * w * h;
            let worst = got[range].iter().zip(&want).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
            assert!(worst < 1e-4, "{pix_fmt} plane {p}: {worst}");
            assert!(want.iter().any(|v| *v > 1.0) && want.iter().any(|v| *v < 0.0));
        }
    }
}

/// One gray frame of `size` from a fixed seed, filtered, and compared with the loop over all samples.
fn gray_frame_agrees(size: (usize, usize)) {
    let bench = Bench::new();
    let clip = bench.path("large.raw");
    let (w, h) = size;
    let mut noise = Noise(5);
    let frame: Vec<u8> = (0..w * h).map(|_| noise.next() as u8).collect();
    File::create(&clip).unwrap().write_all(&frame).unwrap();
    let (got, _) = bench.run(&clip, "gray", size, &["--vf", "convolution=kernel='1 2 3 4 5 6 7 8 9'"]);
    assert_eq!(got.len(), frame.len());
    let row = |y: usize| &frame[y * w..(y + 1) * w];
    for y in 0..h {
        let rows = [row(y.saturating_sub(1)), row(y), row((y + 1).min(h - 1))];
        for x in 0..w {
            let columns = [x.saturating_sub(1), x, (x + 1).min(w - 1)];
            let window = rows.iter().flat_map(|r| columns.iter().map(|&c| u32::from(r[c])));
            let sum: u32 = window.zip(1..).map(|(s, tap)| s * tap).sum();
            // sum / 45, rounded half up; a sum that is exactly half falls either way in 32-bit floats.
            let (want, half) = ((2 * sum + 45) / 90, (2 * sum + 45).is_multiple_of(90));
            let found = u32::from(got[y * w + x]);
            assert!(found == want || (half && found + 1 == want), "x {x}, y {y}: got {found}, want {want}");
        }
    }
}

#[test]
fn the_largest_frame_is_filtered() {
    gray_frame_agrees((16384, 8192));
}

#[test]
fn heights_above_65535_are_filtered() {
    gray_frame_agrees((4, 70_000));
    gray_frame_agrees((70_000, 3));
    let bench = Bench::new();
    let size = (4, 70_000);
    let clip = bench.path("tall.raw");
    let mut noise = Noise(6);
    let frame: Vec<u8> = (0..size.0 * size.1 * 3 / 2).map(|_| noise.next() as u8).collect();
    std::fs::write(&clip, &frame).unwrap();
    let (got, _) = bench.run(&clip, "yuv420p", size, &["--vf", "avgblur=1:sizeY=2"]);
    let (gray, _) = bench.run(&clip, "gray", (4, 105_000), &["--vf", "avgblur=1:sizeY=2"]);
    // Away from the seam between the planes the luma plane is the top of that gray picture.
    same("luma", &got[..4 * 69_998], &gray[..4 * 69_998]);
}

/// Encodes a raw clip with `args` and returns what ffmpeg reads from it as `pix_fmt`, the coded format, and what was said.
fn encoded(bench: &Bench, (clip, pix_fmt): (&Path, &str), name: &str, read_as: &str, args: &[&str]) -> (Vec<u8>, String, String) {
    let out = bench.path(name);
    let format = format!("pixel_format={pix_fmt}");
    let size = format!("video_size={}x{}", ODD.0, ODD.1);
    let mut all = vec!["--input-format", "rawvideo", "--in-opt", &size, "--in-opt", &format, "--frames", "1", "-y", "-v", "--stats=json"];
    all.extend(args);
    let output = convoy_run(path_str(clip), &out, &all);
    let coded = support::ffprobe(&out, &["-select_streams", "v", "-show_entries", "stream=pix_fmt"]).join("");
    let raw = ffmpeg(&["-i", path_str(&out), "-f", "rawvideo", "-pix_fmt", read_as, "-"]);
    (raw, coded, stderr(&output) + &stdout(&output))
}

#[test]
fn encoders_get_the_frames_own_format_or_one_that_loses_nothing() {
    let bench = Bench::new();
    for (pix_fmt, name, codec, coded, converted) in [
        ("yuv422p10le", "a.mkv", "ffv1", "yuv422p10le", false),
        ("nv12", "a.mkv", "ffv1", "yuv420p", true),
        ("nv16", "a.mkv", "ffv1", "yuv422p", true),
        ("p010le", "a.mkv", "ffv1", "yuv420p10le", true),
        ("p016le", "a.mkv", "ffv1", "yuv420p16le", true),
        ("rgb24", "a.mkv", "ffv1", "bgr0", true),
        ("gbrp", "a.mkv", "ffv1", "bgr0", true),
        ("gbrap", "a.mkv", "ffv1", "bgra", true),
        ("rgb48le", "a.mkv", "ffv1", "gbrp16le", true),
        ("gray16be", "a.mkv", "ffv1", "gray16le", true),
        ("ya8", "a.mkv", "ffv1", "ya8", true),
        ("rgb24", "a.png", "png", "rgb24", true),
        ("rgba", "a.png", "png", "rgba", true),
        ("gbrp16le", "a.png", "png", "rgb48be", true),
        ("ya16le", "a.png", "png", "ya16be", true),
        ("rgb24", "a.mkv", "libx264rgb", "gbrp", true),
        ("bgr24", "a.mkv", "utvideo", "gbrp", true),
        ("nv12", "a.nut", "rawvideo", "nv12", false),
        ("yuyv422", "a.nut", "rawvideo", "yuyv422", true),
        ("rgba", "a.nut", "rawvideo", "rgba", true),
        ("gray", "a.mkv", "ffv1", "gray", false),
    ] {
        let what = format!("{pix_fmt} with {codec} into {name}");
        let clip = bench.clip(pix_fmt, ODD);
        let lossless: &[&str] = if codec == "libx264rgb" { &["-c:v", codec, "--enc-opt", "qp=0"] } else { &["-c:v", codec] };
        let (got, found, said) = encoded(&bench, (&clip, pix_fmt), name, coded, lossless);
        assert_eq!(found, coded, "{what}: {said}");
        // What `--pix-fmt` gives is held to ffmpeg's own conversion by another test.
        let (want, _) = bench.run(&clip, pix_fmt, ODD, &["--pix-fmt", coded, "--frames", "1"]);
        let padding = usize::from(coded == "bgr0");
        let visible =
            |raw: &[u8]| raw.iter().copied().enumerate().filter(|(i, _)| padding == 0 || i % 4 != 3).map(|(_, b)| b).collect::<Vec<_>>();
        same(&what, &visible(&got), &visible(&want));
        assert_eq!(said.contains("converted"), converted, "{what}: {said}");
        assert!(!said.contains("warning"), "{what}: {said}");
        let copied = host_copy(&said);
        assert_eq!(copied > 0.0, converted, "{what}: {copied} bytes copied");
    }
}

#[test]
fn an_encoder_that_takes_semi_planar_frames_gets_them_as_they_are() {
    let bench = Bench::new();
    let size = (64, 36);
    let clip = bench.clip("nv12", size);
    let out = bench.path("o.mkv");
    let format = ["--input-format", "rawvideo", "--in-opt", "video_size=64x36", "--in-opt", "pixel_format=nv12"];
    let args = ["--vf", "gblur=1.5", "-c:v", "libx264", "--enc-opt", "qp=0", "-v", "--stats=json"];
    let output = convoy_run(path_str(&clip), &out, &[&format[..], &args].concat());
    let said = stderr(&output) + &stdout(&output);
    assert!(said.contains("encoder libx264 (nv12)") && !said.contains("converted"), "{said}");
    assert_eq!(host_copy(&said), 0.0, "{said}");
    let got = ffmpeg(&["-i", path_str(&out), "-f", "rawvideo", "-pix_fmt", "nv12", "-"]);
    same("libx264", &got, &bench.run(&clip, "nv12", size, &["--vf", "gblur=1.5"]).0);
}

#[test]
fn palettes_and_shared_bytes_are_read_exactly() {
    let bench = Bench::new();
    let (w, h) = ODD;
    let mut noise = Noise(3);
    // Indices, then 256 entries of B, G, R, A per frame.
    let indices: Vec<u8> = (0..w * h).map(|_| noise.next() as u8).collect();
    let entries: Vec<u8> = (0..1024).map(|_| noise.next() as u8).collect();
    let clip = bench.path("palette.raw");
    std::fs::write(&clip, [&indices[..], &entries].concat()).unwrap();
    let plane = |at: usize| indices.iter().map(move |&i| (i, at)).map(|(i, at)| entries[4 * usize::from(i) + at]).collect::<Vec<u8>>();
    let want = [plane(1), plane(0), plane(2), plane(3)].concat();
    let (got, said) = bench.run(&clip, "pal8", ODD, &["--pix-fmt", "gbrap"]);
    same("pal8", &got, &want);
    assert!(said.contains("pal8 frames are converted to gbra 8-bit on entry"), "{said}");

    let words: Vec<u16> = (0..w * h).map(|_| noise.next() as u16).collect();
    std::fs::write(&clip, words.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
    let six = |v: u16| (v << 2 | v >> 4) as u8;
    let five = |v: u16| (v << 3 | v >> 2) as u8;
    let green = words.iter().map(|v| six(v >> 5 & 63));
    let want: Vec<u8> = green.chain(words.iter().map(|v| five(v & 31))).chain(words.iter().map(|v| five(v >> 11))).collect();
    same("rgb565le", &bench.run(&clip, "rgb565le", ODD, &["--pix-fmt", "gbrp"]).0, &want);

    let words: Vec<u32> = (0..w * h).map(|_| noise.next()).collect();
    std::fs::write(&clip, words.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
    let plane = |shift: u32| words.iter().flat_map(move |v| ((v >> shift & 1023) as u16).to_le_bytes());
    let want: Vec<u8> = plane(10).chain(plane(0)).chain(plane(20)).collect();
    same("x2rgb10le", &bench.run(&clip, "x2rgb10le", ODD, &["--pix-fmt", "gbrp10le"]).0, &want);
}
