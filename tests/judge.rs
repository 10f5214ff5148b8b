//! Convoy's pictures against the installed ffmpeg's and SciPy's, on lossless output.
//!
//! FFmpeg's borders are lopsided in places, so interiors are compared; our own borders are held by `tests/parity.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test is a panic")]

mod support;

use std::path::Path;
use std::process::{Command, Stdio};

use support::{convoy_run, difference, ffmpeg, noisy_clip, path_str, planes};

const SIZE: (usize, usize) = (203, 117);
const FRAMES: u32 = 3;

fn kernel(n: usize) -> String {
    let taps: Vec<String> = (0..n * n).map(|i| ((i as i32 * 7 + i as i32 / 3) % 9 - 2).to_string()).collect();
    taps.join(" ")
}

fn raw_of(clip: &Path, pix_fmt: &str, graph: Option<&str>) -> Vec<u8> {
    let mut args = vec!["-i", path_str(clip)];
    // FFV1 keeps 8-bit RGB as bgr0: ffmpeg must filter the planes that we filter.
    let graph = graph.map(|graph| format!("format={pix_fmt},{graph}"));
    if let Some(graph) = &graph {
        args.extend(["-vf", graph]);
    }
    args.extend(["-f", "rawvideo", "-pix_fmt", pix_fmt, "-"]);
    ffmpeg(&args)
}

/// Largest difference between convoy and ffmpeg on the interior of every plane.
fn disagreement(graph: &str, pix_fmt: &str, margin: usize) -> support::Difference {
    let folder = tempfile::tempdir().unwrap();
    let clip = noisy_clip(folder.path(), pix_fmt, &format!("{}x{}", SIZE.0, SIZE.1), FRAMES);
    let ours = folder.path().join("ours.mkv");
    convoy_run(path_str(&clip), &ours, &["--vf", graph, "-c:v", "ffv1"]);
    let got = planes(&raw_of(&ours, pix_fmt, None), pix_fmt, SIZE.0, SIZE.1);
    let want = planes(&raw_of(&clip, pix_fmt, Some(graph)), pix_fmt, SIZE.0, SIZE.1);
    assert_eq!(got.frames.len(), FRAMES as usize);
    difference(&got, &want, margin)
}

fn agree(graph: &str, formats: &[&str], margin: usize) {
    for pix_fmt in formats {
        let found = disagreement(graph, pix_fmt, margin);
        assert!(found.largest <= 1, "{graph} on {pix_fmt}: {found:?}");
    }
}

/// What FFmpeg and we both filter natively.
const FORMATS: [&str; 8] = ["gray", "yuv420p", "yuv422p", "yuv444p", "yuv420p10le", "yuv422p10le", "yuv444p12le", "gbrp"];

#[test]
fn convolution_agrees_with_ffmpeg() {
    for n in [3, 5, 7] {
        let k = kernel(n);
        agree(&format!("convolution='{k}:{k}:{k}:{k}'"), &FORMATS, n);
    }
}

#[test]
fn convolution_with_bias_and_one_plane_agrees_with_ffmpeg() {
    let k = kernel(3);
    agree(&format!("convolution=0m='{k}':0bias=13"), &["yuv420p", "yuv422p10le"], 3);
}

#[test]
fn boxblur_agrees_with_ffmpeg() {
    for graph in ["boxblur", "boxblur=3:1", "boxblur=luma_radius=min(w\\,h)/20:luma_power=1:chroma_radius=2:chroma_power=2"] {
        agree(graph, &FORMATS, 12);
    }
}

#[test]
fn unsharp_agrees_with_ffmpeg_at_8_bits() {
    for graph in ["unsharp", "unsharp=7:3:1.5:3:5:-0.7", "unsharp=luma_msize_x=9:luma_msize_y=9:luma_amount=2.5"] {
        agree(graph, &["gray", "yuv420p", "yuv422p", "yuv444p"], 12);
    }
}

#[test]
fn sobel_agrees_with_ffmpeg() {
    for graph in ["sobel", "sobel=planes=1:scale=0.5:delta=10"] {
        agree(graph, &FORMATS, 3);
    }
}

#[test]
fn avgblur_agrees_with_ffmpeg() {
    for graph in ["avgblur=2", "avgblur=sizeX=5:sizeY=1", "avgblur=sizeX=3:planes=1"] {
        agree(graph, &FORMATS, 8);
    }
}

#[test]
fn prewitt_roberts_and_scharr_agree_with_ffmpeg() {
    for graph in ["prewitt", "roberts=scale=2", "scharr=planes=5:delta=3"] {
        agree(graph, &FORMATS, 3);
    }
}

#[test]
fn a_chain_agrees_with_ffmpeg() {
    // Each filter may differ by a rounding; the mean of a window does not amplify it.
    let k = kernel(3);
    let found = disagreement(&format!("convolution='{k}:{k}:{k}:{k}',boxblur=2:1"), "yuv420p", 12);
    assert!(found.largest <= 1, "{found:?}");
}

#[test]
fn the_comparison_sees_a_different_filter() {
    let folder = tempfile::tempdir().unwrap();
    let clip = noisy_clip(folder.path(), "gray", "203x117", 1);
    let a = planes(&raw_of(&clip, "gray", Some("boxblur=2:1")), "gray", 203, 117);
    let b = planes(&raw_of(&clip, "gray", Some("boxblur=3:1")), "gray", 203, 117);
    assert!(difference(&a, &b, 8).largest > 1);
}

/// Ours against SciPy's Gaussian in f64, whole planes, clamped border ("nearest").
const GAUSSIAN: &str = r#"
import sys, numpy as np
from scipy.ndimage import gaussian_filter
source, ours, w, h, bits, sigma, sigma_v = sys.argv[1:8]
w, h, kind = int(w), int(h), np.uint8 if bits == "8" else np.dtype("<u2")
a = np.fromfile(source, kind).reshape(-1, h, w).astype(np.float64)
b = np.fromfile(ours, kind).reshape(-1, h, w).astype(np.float64)
assert a.shape == b.shape and a.size > 0
worst = 0
for x, y in zip(a, b):
    want = gaussian_filter(x, (float(sigma_v), float(sigma)), mode="nearest", truncate=6)
    worst = max(worst, np.abs(np.floor(want + 0.5) - y).max())
print(worst)
"#;

fn gaussian_disagreement(graph: &str, pix_fmt: &str, bits: &str, sigma: (&str, &str)) -> f64 {
    let python = std::env::var("CONVOY_PYTHON").unwrap_or_else(|_| "python3".into());
    let folder = tempfile::tempdir().unwrap();
    let clip = noisy_clip(folder.path(), pix_fmt, "203x117", FRAMES);
    let ours = folder.path().join("ours.mkv");
    convoy_run(path_str(&clip), &ours, &["--vf", graph, "-c:v", "ffv1"]);
    let (a, b) = (folder.path().join("a.raw"), folder.path().join("b.raw"));
    std::fs::write(&a, raw_of(&clip, pix_fmt, None)).unwrap();
    std::fs::write(&b, raw_of(&ours, pix_fmt, None)).unwrap();
    let mut command = Command::new(&python);
    command.args(["-c", GAUSSIAN]).arg(&a).arg(&b).args(["203", "117", bits, sigma.0, sigma.1]).stdin(Stdio::null());
    let output = command.output().unwrap_or_else(|e| panic!("{python}: {e}"));
    assert!(output.status.success(), "SciPy is missing? run `make test`\n{}", support::stderr(&output));
    support::stdout(&output).trim().parse().unwrap()
}

#[test]
fn gblur_agrees_with_scipys_true_gaussian() {
    for (graph, sigma) in
        [("gblur=0.5", ("0.5", "0.5")), ("gblur=sigma=2", ("2", "2")), ("gblur=5:sigmaV=1.5", ("5", "1.5")), ("gblur=20", ("20", "20"))]
    {
        let worst = gaussian_disagreement(graph, "gray", "8", sigma);
        assert!(worst <= 1.0, "{graph}: {worst}");
    }
    let worst = gaussian_disagreement("gblur=2", "gray10le", "10", ("2", "2"));
    assert!(worst <= 1.0, "10 bit: {worst}");
}

#[test]
fn the_gaussian_judge_sees_another_sigma() {
    assert!(gaussian_disagreement("gblur=2", "gray", "8", ("3", "3")) > 1.0);
}
