//! A folder of small generated clips, and what ffprobe says about them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test is a panic")]
#![allow(dead_code, reason = "each test binary uses its part")]

use std::path::Path;
use std::process::Output;
use std::time::Duration;

use super::{convoy, ffmpeg, ffprobe, finish_within, stderr};

/// 25 pictures of 64×48 in one second.
pub const PICTURE: &str = "-f lavfi -i testsrc2=size=64x48:rate=25:duration=1";
/// A fast H.264 encoder with B-frames.
pub const H264: &str = "-pix_fmt yuv420p -c:v libx264 -preset veryfast -bf 2";
/// A second of sound.
pub const SOUND: &str = "-f lavfi -i sine=duration=1:sample_rate=48000";

/// Quick encoders for outputs: convoy's arguments by extension.
pub fn quick(name: &str) -> &'static [&'static str] {
    match name.rsplit('.').next() {
        Some("webm") => &["--enc-opt", "cpu-used=8", "--enc-opt", "deadline=realtime"],
        Some("mp4" | "mkv" | "mov" | "ts" | "flv" | "avi") => &["--preset", "ultrafast"],
        _ => &[],
    }
}

/// A folder that goes away with the test.
pub struct Clips(tempfile::TempDir);

impl Clips {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn folder(&self) -> &Path {
        self.0.path()
    }

    pub fn at(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    /// Writes a file.
    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> String {
        std::fs::write(self.at(name), bytes).unwrap();
        self.at(name)
    }

    /// Makes `name` with ffmpeg; `DIR` in the arguments stands for the folder.
    pub fn make(&self, name: &str, args: &str) -> String {
        let path = self.at(name);
        let folder = self.0.path().to_str().unwrap();
        let args: Vec<String> = args.split_whitespace().map(|a| a.replace("DIR", folder)).collect();
        ffmpeg(&args.iter().map(String::as_str).chain([path.as_str()]).collect::<Vec<_>>());
        path
    }

    /// A copy of a clip that is shown turned clockwise. FFmpeg 6 has an option for it, older ones a tag.
    pub fn turn(&self, from: &str, name: &str, degrees: i32) -> String {
        static OPTION: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
        let has_option = *OPTION.get_or_init(|| {
            let help = std::process::Command::new("ffmpeg").args(["-hide_banner", "-h", "full"]).output().unwrap();
            String::from_utf8_lossy(&help.stdout).contains("-display_rotation")
        });
        let args = match has_option {
            true => format!("-display_rotation:v:0 {} -i DIR/{from} -c copy", -degrees),
            false => format!("-i DIR/{from} -c copy -metadata:s:v:0 rotate={degrees}"),
        };
        self.make(name, &args)
    }

    /// `convoy run INPUT -o OUTPUT ARGS…` with a quick encoder; must succeed. Returns what it said on stderr.
    pub fn run(&self, input: &str, output: &str, args: &[&str]) -> String {
        let done = self.try_run(input, output, args);
        assert!(done.status.success(), "convoy run {input} -o {output} {args:?}: {}", stderr(&done));
        stderr(&done)
    }

    /// As [`Self::run`], whatever comes of it.
    pub fn try_run(&self, input: &str, output: &str, args: &[&str]) -> Output {
        let mut command = convoy();
        let own = ["-c:v", "--codec", "--preset", "--enc-opt"].iter().any(|o| args.contains(o));
        let quick = if own { &[] } else { quick(output) };
        command.args(["run", &self.resolve(input), "-o", &self.resolve(output), "-y", "--backend", "cpu"]).args(quick).args(args);
        command.current_dir(self.folder());
        finish_within(command, Duration::from_secs(60))
    }

    fn resolve(&self, name: &str) -> String {
        let elsewhere = name.contains(':') || name.starts_with('/') || name == "-";
        if elsewhere { name.to_owned() } else { self.at(name) }
    }

    fn probe(&self, name: &str, args: &[&str]) -> Vec<String> {
        ffprobe(Path::new(&self.resolve(name)), args)
    }

    /// Presentation times of a stream's packets in seconds, in order of presentation.
    pub fn times(&self, name: &str, select: &str) -> Vec<f64> {
        let mut times: Vec<f64> = self.packets(name, select, "pts_time");
        times.sort_by(f64::total_cmp);
        times
    }

    /// A number of each of a stream's packets, in the file's order.
    pub fn packets(&self, name: &str, select: &str, entry: &str) -> Vec<f64> {
        let lines = self.probe(name, &["-select_streams", select, "-show_entries", &format!("packet={entry}")]);
        lines.iter().filter_map(|l| l.split(',').next()?.parse().ok()).collect()
    }

    /// An entry of `-show_entries`, of the selected streams.
    pub fn entry(&self, name: &str, select: &str, entries: &str) -> Vec<String> {
        let mut lines = self.probe(name, &["-select_streams", select, "-show_entries", entries]);
        // A transport stream lists its streams twice: in its programme and alone.
        if name.ends_with(".ts") && entries.starts_with("stream") {
            lines.truncate(lines.len() / 2);
        }
        lines
    }

    /// Kinds and codecs of all streams: "video h264".
    pub fn streams(&self, name: &str) -> Vec<String> {
        let lines = self.probe(name, &["-show_entries", "stream=codec_type,codec_name"]);
        // A transport stream lists its streams twice: in its programme and alone.
        let mut seen: Vec<String> = lines.iter().map(|l| l.split(',').rev().collect::<Vec<_>>().join(" ")).collect();
        if name.ends_with(".ts") {
            seen.truncate(seen.len() / 2);
        }
        seen
    }

    /// Hash of the packets of streams as they are.
    pub fn packet_hash(&self, name: &str, map: &str) -> String {
        self.hash(&["-i", &self.resolve(name), "-map", map, "-c", "copy", "-f", "streamhash", "-hash", "md5", "-"])
    }

    /// Hash of decoded samples.
    pub fn sample_hash(&self, name: &str, map: &str) -> String {
        self.hash(&["-i", &self.resolve(name), "-map", map, "-f", "md5", "-"])
    }

    fn hash(&self, args: &[&str]) -> String {
        let text = String::from_utf8(ffmpeg(args)).unwrap();
        // Without the stream's number, which may differ.
        text.lines().filter_map(|l| l.rsplit('=').next()).collect::<Vec<_>>().join(" ")
    }

    /// MD5 of every frame as ffmpeg decodes it.
    pub fn frame_hashes(&self, name: &str, before: &[&str]) -> Vec<String> {
        let path = self.resolve(name);
        let args: Vec<&str> =
            before.iter().copied().chain(["-i", &path, "-map", "0:v:0", "-vsync", "passthrough", "-f", "framemd5", "-"]).collect();
        let text = String::from_utf8(ffmpeg(&args)).unwrap();
        text.lines().filter(|l| !l.starts_with('#')).map(|l| l.rsplit(',').next().unwrap().trim().to_owned()).collect()
    }

    /// The words of a subtitle stream, as srt.
    pub fn text(&self, name: &str, map: &str) -> String {
        String::from_utf8(ffmpeg(&["-i", &self.resolve(name), "-map", map, "-f", "srt", "-"])).unwrap().replace('\r', "")
    }
}

/// Whether two lists of times are the same after moving the second by its start, within `tolerance` seconds.
pub fn same_steps(a: &[f64], b: &[f64], tolerance: f64) -> bool {
    a.len() == b.len() && !a.is_empty() && a.iter().zip(b).all(|(x, y)| ((x - a[0]) - (y - b[0])).abs() <= tolerance)
}
