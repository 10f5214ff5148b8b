//! What the tests of the program share: running convoy, ffmpeg and ffprobe, and reading raw planes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test is a panic")]
#![allow(dead_code, reason = "each test binary uses its part")]

pub mod clips;
pub mod library;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The program under test.
pub fn convoy() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_convoy"));
    command.stdin(Stdio::null());
    command
}

/// Runs `command`; kills it and fails when it takes longer than `limit`.
pub fn finish_within(mut command: Command, limit: Duration) -> Output {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("spawn");
    let id = child.id() as i32;
    let (tx, rx) = std::sync::mpsc::channel();
    std::thread::spawn(move || tx.send(child.wait_with_output()));
    match rx.recv_timeout(limit) {
        Ok(output) => output.expect("wait"),
        Err(_) => {
            // SAFETY: kill has no memory effects; the process is our child and has not been waited for.
            unsafe { libc::kill(id, libc::SIGKILL) };
            panic!("{command:?} took longer than {limit:?}");
        }
    }
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// `convoy run INPUT -o OUTPUT ARGS…` on the CPU; fails the test unless it exits 0.
pub fn convoy_run(input: &str, output: &Path, args: &[&str]) -> Output {
    let mut command = convoy();
    command.args(["run", input, "-o"]).arg(output).args(["--backend", "cpu"]).args(args);
    let output = finish_within(command, Duration::from_secs(120));
    assert!(output.status.success(), "convoy run {input} {args:?}: {}", stderr(&output));
    output
}

/// Runs the installed ffmpeg, the outside judge.
pub fn ffmpeg(args: &[&str]) -> Vec<u8> {
    let output =
        Command::new("ffmpeg").args(["-hide_banner", "-nostdin", "-v", "error", "-y"]).args(args).output().expect("ffmpeg is installed");
    assert!(output.status.success(), "ffmpeg {args:?}: {}", stderr(&output));
    output.stdout
}

/// Runs ffprobe and returns its lines.
pub fn ffprobe(file: &Path, args: &[&str]) -> Vec<String> {
    let output =
        Command::new("ffprobe").args(["-v", "error", "-of", "csv=p=0"]).args(args).arg(file).output().expect("ffprobe is installed");
    assert!(output.status.success(), "ffprobe {args:?} {file:?}: {}", stderr(&output));
    stdout(&output).lines().map(|l| l.trim_end_matches(',').to_owned()).filter(|l| !l.is_empty()).collect()
}

pub fn path_str(path: &Path) -> &str {
    path.to_str().expect("UTF-8 path")
}

/// A lossless clip of moving, noisy test pictures in `pix_fmt`.
pub fn noisy_clip(folder: &Path, pix_fmt: &str, size: &str, frames: u32) -> PathBuf {
    let path = folder.join(format!("{pix_fmt}-{size}.mkv"));
    let source = format!("testsrc=size={size}:rate=25,noise=alls=40:allf=t:all_seed=7,format={pix_fmt}");
    ffmpeg(&["-f", "lavfi", "-i", &source, "-frames:v", &frames.to_string(), "-c:v", "ffv1", "-pix_fmt", pix_fmt, path_str(&path)]);
    path
}

/// All samples of a clip, widened, plane by plane of every frame.
pub struct Planes {
    /// `frames[f][p]` is a plane.
    pub frames: Vec<Vec<Plane>>,
}

pub struct Plane {
    pub width: usize,
    pub height: usize,
    pub samples: Vec<u16>,
}

/// Planes of a pixel format: (log2 horizontal, log2 vertical subsampling) each, and bytes per sample.
fn format_of(pix_fmt: &str) -> (Vec<(u32, u32)>, usize) {
    let wide = pix_fmt.ends_with("le");
    let planes = match pix_fmt {
        f if f.starts_with("gray") => vec![(0, 0)],
        f if f.starts_with("yuv420p") => vec![(0, 0), (1, 1), (1, 1)],
        f if f.starts_with("yuv422p") => vec![(0, 0), (1, 0), (1, 0)],
        f if f.starts_with("yuv444p") || f.starts_with("gbrp") => vec![(0, 0); 3],
        other => panic!("{other} is not known to this test"),
    };
    (planes, if wide { 2 } else { 1 })
}

/// Splits raw video into planes.
pub fn planes(raw: &[u8], pix_fmt: &str, width: usize, height: usize) -> Planes {
    let (shifts, bytes) = format_of(pix_fmt);
    let size = |(sx, sy): (u32, u32)| (width.div_ceil(1 << sx), height.div_ceil(1 << sy));
    let frame_bytes: usize = shifts.iter().map(|&s| size(s).0 * size(s).1 * bytes).sum();
    assert!(
        !raw.is_empty() && raw.len().is_multiple_of(frame_bytes),
        "{} bytes are no whole number of {frame_bytes}-byte frames",
        raw.len()
    );
    let frames = raw.chunks(frame_bytes).map(|frame| {
        let mut rest = frame;
        let mut planes = Vec::new();
        for &shift in &shifts {
            let (width, height) = size(shift);
            let (plane, tail) = rest.split_at(width * height * bytes);
            rest = tail;
            let samples = match bytes {
                1 => plane.iter().map(|&b| u16::from(b)).collect(),
                _ => plane.chunks(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect(),
            };
            planes.push(Plane { width, height, samples });
        }
        planes
    });
    Planes { frames: frames.collect() }
}

/// Where two clips differ most, `margin` samples from every border left out.
#[derive(Debug, Default)]
pub struct Difference {
    pub largest: u16,
    /// Frame, plane, x, y, got, want of the first sample that differs by `largest`.
    pub place: Option<(usize, usize, usize, usize, u16, u16)>,
    pub compared: usize,
    pub unequal: usize,
}

pub fn difference(got: &Planes, want: &Planes, margin: usize) -> Difference {
    assert_eq!(got.frames.len(), want.frames.len(), "frame counts differ");
    let mut found = Difference::default();
    for (f, (a, b)) in got.frames.iter().zip(&want.frames).enumerate() {
        for (p, (a, b)) in a.iter().zip(b).enumerate() {
            assert_eq!((a.width, a.height), (b.width, b.height));
            for y in margin..a.height.saturating_sub(margin) {
                for x in margin..a.width.saturating_sub(margin) {
                    let (g, w) = (a.samples[y * a.width + x], b.samples[y * a.width + x]);
                    let d = g.abs_diff(w);
                    found.compared += 1;
                    found.unequal += usize::from(d > 0);
                    if d > found.largest {
                        found.largest = d;
                        found.place = Some((f, p, x, y, g, w));
                    }
                }
            }
        }
    }
    assert!(found.compared > 0, "nothing was compared");
    found
}

/// Waits until `ready` holds; fails after `limit`.
pub fn wait_until(limit: Duration, what: &str, mut ready: impl FnMut() -> bool) {
    let start = Instant::now();
    while !ready() {
        assert!(start.elapsed() < limit, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
