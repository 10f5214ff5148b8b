//! `convoy compare`, judged by ffmpeg's psnr and ssim filters on the same files.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test is a panic")]

mod support;

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use support::{convoy, ffmpeg, finish_within, noisy_clip, path_str, stderr, stdout};

fn compare(args: &[&str]) -> Output {
    let mut command = convoy();
    command.arg("compare").args(args);
    finish_within(command, Duration::from_secs(60))
}

fn report(a: &Path, b: &Path) -> serde_json::Value {
    let output = compare(&[path_str(a), path_str(b), "--json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    serde_json::from_str(&stdout(&output)).unwrap()
}

/// Name and value of every `name:value` in the last line that ffmpeg's filter logged.
fn judged(filter: &str, a: &Path, b: &Path) -> Vec<(String, f64)> {
    let output = Command::new("ffmpeg")
        .args(["-hide_banner", "-nostdin", "-i", path_str(a), "-i", path_str(b), "-lavfi", filter, "-f", "null", "-"])
        .output()
        .unwrap();
    let text = stderr(&output);
    let line = text.lines().rfind(|l| l.contains(&format!("Parsed_{filter}"))).unwrap_or_else(|| panic!("{text}"));
    let value = |word: &str| word.split_once(':').and_then(|(name, v)| Some((name.to_lowercase(), v.parse().ok()?)));
    line.split_whitespace().filter_map(value).collect()
}

#[test]
fn psnr_and_ssim_are_ffmpegs() {
    let folder = tempfile::tempdir().unwrap();
    for (pix_fmt, size) in
        [("yuv420p", "321x243"), ("yuv422p10le", "176x144"), ("gray", "97x65"), ("gbrp", "64x48"), ("yuv444p16le", "80x60")]
    {
        let a = noisy_clip(folder.path(), pix_fmt, size, 5);
        let b = folder.path().join(format!("{pix_fmt}-b.mkv"));
        ffmpeg(&["-i", path_str(&a), "-vf", "boxblur=1:1,noise=alls=9:all_seed=3", "-pix_fmt", pix_fmt, "-c:v", "ffv1", path_str(&b)]);
        let report = report(&a, &b);
        let mut compared = 0;
        for (filter, key, tolerance) in [("psnr", "psnr", 1e-4), ("ssim", "ssim", 2e-5)] {
            for (name, want) in judged(filter, &a, &b) {
                let planes = report["planes"].as_array().unwrap();
                let figures = planes.iter().find(|p| p["name"].as_str().unwrap().eq_ignore_ascii_case(&name));
                let got = match (figures, name.as_str()) {
                    (Some(figures), _) => figures[key].as_f64().unwrap(),
                    (None, "average" | "all") => report["overall"][key].as_f64().unwrap(),
                    (None, _) => continue,
                };
                // ffmpeg prints six digits after the point, and computes SSIM in single precision.
                assert!((got - want).abs() < tolerance, "{pix_fmt} {filter} {name}: got {got}, ffmpeg {want}");
                compared += 1;
            }
        }
        assert_eq!(compared, if pix_fmt == "gray" { 4 } else { 8 }, "{pix_fmt}");
        assert_eq!(report["identical"], false);
    }
}

#[test]
fn the_same_clip_in_another_container_is_identical() {
    let folder = tempfile::tempdir().unwrap();
    let a = noisy_clip(folder.path(), "yuv420p", "64x48", 6);
    let b = folder.path().join("b.avi");
    ffmpeg(&["-i", path_str(&a), "-c", "copy", path_str(&b)]);
    let output = compare(&[path_str(&a), path_str(&b), "--min-psnr", "90"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(
        text.contains("6 and 6, 6 compared") && text.ends_with("identical\n") && text.contains("inf") && text.contains("times    equal"),
        "{text}"
    );
}

#[test]
fn one_changed_sample_a_lost_frame_and_a_late_one_are_seen() {
    let folder = tempfile::tempdir().unwrap();
    let a = noisy_clip(folder.path(), "gray", "64x48", 6);
    let at = |name: &str| folder.path().join(name);
    let with =
        |name: &str, vf: &str| ffmpeg(&["-i", path_str(&a), "-vf", vf, "-vsync", "passthrough", "-c:v", "ffv1", path_str(&at(name))]);
    with("dot.mkv", "geq=lum='if(eq(X,40)*eq(Y,30)*eq(N,3),mod(lum(X,Y)+100,256),lum(X,Y))'");
    let dot = report(&a, &at("dot.mkv"));
    assert!(dot["overall"]["max_difference"].as_f64().unwrap() > 50.0 && dot["identical"] == false, "{dot}");
    assert_eq!(dot["times"]["different"], 0);

    with("short.mkv", "select='not(eq(n,5))'");
    let short = compare(&[path_str(&a), path_str(&at("short.mkv")), "--min-psnr", "20"]);
    assert_eq!(short.status.code(), Some(1));
    assert!(stdout(&short).contains("6 and 5, 5 compared") && stderr(&short).contains("6 and 5 frames"), "{}", stdout(&short));

    with("late.mkv", "setpts='PTS+if(gte(N,4),0.04/TB,0)'");
    let late = report(&a, &at("late.mkv"));
    assert_eq!((late["times"]["different"].as_u64(), late["times"]["first_different"].as_u64()), (Some(2), Some(4)), "{late}");
    assert!((late["times"]["largest_ms"].as_f64().unwrap() - 40.0).abs() < 1.0);
    assert_eq!(late["overall"]["max_difference"], 0.0);
}

#[test]
fn too_low_a_psnr_and_clips_that_cannot_be_compared_fail() {
    let folder = tempfile::tempdir().unwrap();
    let a = noisy_clip(folder.path(), "yuv420p", "64x48", 3);
    let b = folder.path().join("b.mkv");
    ffmpeg(&["-i", path_str(&a), "-vf", "gblur=3", "-pix_fmt", "yuv420p", "-c:v", "ffv1", path_str(&b)]);
    let low = compare(&[path_str(&a), path_str(&b), "--min-psnr", "60"]);
    assert_eq!(low.status.code(), Some(1));
    assert!(stderr(&low).contains("below 60 dB"), "{}", stderr(&low));
    assert!(compare(&[path_str(&a), path_str(&b), "--min-psnr", "1"]).status.success());
    let other = noisy_clip(folder.path(), "yuv420p", "32x48", 3);
    let refused = compare(&[path_str(&a), path_str(&other)]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("64x48") && stderr(&refused).contains("32x48"), "{}", stderr(&refused));
}
