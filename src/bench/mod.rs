//! `convoy bench`: frames per second of whole runs beside ffmpeg's filter of the same graph, as ratios from one sitting.
//!
//! Both programs read the same raw file and discard the frames. Runs alternate, so that a noisy neighbour hits both; the
//! median counts. On a machine with a GPU the kernels are timed beside the device copy, too.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

mod cases;
mod device;
pub mod frames;
mod opencv;
pub mod race;
pub mod summary;

use cases::{Case, default_cases};
use device::{KernelRow, LoopRow};

use crate::cancel::Cancel;
use crate::cli::{Backend, BenchArgs, Level};
use crate::error::{Error, Result};
use crate::pipeline::{Item, Source};
use crate::pool::{Budget, Heap};
use crate::synth::{Synth, SynthSpec};

/// One line of the table.
#[derive(Debug, Serialize)]
struct Row {
    case: String,
    graph: String,
    backend: String,
    /// Median frames per second of the whole process, and the lowest and highest run.
    convoy_fps: [f64; 3],
    ffmpeg_fps: Option<[f64; 3]>,
    ratio: Option<f64>,
}

#[derive(Debug, Serialize)]
struct Table {
    size: String,
    frames: u64,
    runs: u64,
    cpu_threads: usize,
    ffmpeg: Option<String>,
    rows: Vec<Row>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kernels: Vec<KernelRow>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    loops: Vec<LoopRow>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    opencv: Vec<opencv::Row>,
}

/// Runs the benchmark and prints its table to stdout.
///
/// # Errors
/// A graph that does not parse, no room for the raw file, or a run that failed.
pub fn bench(args: &BenchArgs) -> Result<()> {
    let cases = if args.vf.is_empty() { default_cases() } else { args.vf.iter().map(|g| Case::same(g, g.clone())).collect() };
    for case in &cases {
        crate::filter::parse(&case.graph)?;
    }
    let graphs: Vec<String> = cases.iter().map(|c| c.graph.clone()).collect();
    let ffmpeg = ffmpeg_version();
    if ffmpeg.is_none() {
        crate::status::say("ffmpeg is not installed: its column stays empty");
    }
    let mut table = Table {
        size: format!("{}x{}", args.size.0, args.size.1),
        frames: args.frames,
        runs: args.runs,
        cpu_threads: std::thread::available_parallelism().map_or(1, usize::from),
        ffmpeg,
        rows: Vec::new(),
        kernels: Vec::new(),
        loops: Vec::new(),
        opencv: Vec::new(),
    };
    if args.wants(Level::Pipeline) {
        let raw = raw_file(args.size, args.frames)?;
        if !args.json {
            print_heading(&table);
        }
        for case in cases {
            let row = measure(args, &raw, case, table.ffmpeg.is_some())?;
            if !args.json {
                print_row(&row);
            }
            table.rows.push(row);
        }
    }
    if args.backend != Backend::Cpu {
        match device_levels(args, &graphs) {
            Ok((kernels, loops)) => (table.kernels, table.loops) = (kernels, loops),
            Err(error) if args.backend == Backend::Cuda => return Err(error),
            Err(_) => crate::status::say("no kernel times: CUDA is not available (see `convoy doctor`)"),
        }
    }
    if args.vf.is_empty() && args.backend != Backend::Cuda && args.wants(Level::Kernel) {
        table.opencv = opencv::rows(args.size, args.runs)?;
    }
    if args.json {
        let text = serde_json::to_string_pretty(&table).map_err(|e| Error::failed("cannot write the table as JSON", e))?;
        println!("{text}");
    } else {
        device::print(&table.kernels, &table.loops);
        opencv::print(&table.opencv);
    }
    Ok(())
}

fn device_levels(args: &BenchArgs, graphs: &[String]) -> Result<(Vec<KernelRow>, Vec<LoopRow>)> {
    let kernels = if args.wants(Level::Kernel) { device::kernel_rows(args.size, graphs)? } else { Vec::new() };
    let loops = if args.wants(Level::Loop) { device::loop_rows(args.size, "gblur=sigma=2")? } else { Vec::new() };
    Ok((kernels, loops))
}

fn print_heading(table: &Table) {
    println!(
        "{} 4:2:0 8-bit, {} frames, raw file to null, median of {} runs, {} CPU threads",
        table.size, table.frames, table.runs, table.cpu_threads
    );
    println!("peer: {}", table.ffmpeg.as_deref().unwrap_or("none"));
    println!("{:<20} {:>8} {:>12} {:>12} {:>8}   spread", "graph", "backend", "convoy fps", "ffmpeg fps", "ratio");
}

fn print_row(row: &Row) {
    let [fps, low, high] = row.convoy_fps;
    let peer = row.ffmpeg_fps.map_or("-".to_owned(), |f| format!("{:.1}", f[0]));
    let ratio = row.ratio.map_or("-".to_owned(), |r| format!("{r:.2}"));
    let spread = 100.0 * (high - low) / fps.max(1e-9);
    println!("{:<20} {:>8} {:>12.1} {:>12} {:>8}   {spread:.0} %", row.case, row.backend, fps, peer, ratio);
}

fn measure(args: &BenchArgs, raw: &Path, case: Case, with_ffmpeg: bool) -> Result<Row> {
    let size = format!("{}x{}", args.size.0, args.size.1);
    let exe = std::env::current_exe().map_err(|e| Error::failed("cannot find convoy's own program file", e))?;
    let backend = args.backend.name();
    let ours = || {
        let mut command = Command::new(&exe);
        command.args(["run"]).arg(raw).args(["--input-format", "rawvideo", "--progress", "none", "-o", "null:", "--backend", backend]);
        command.args(["--in-opt", &format!("video_size={size}"), "--in-opt", "pixel_format=yuv420p", "--vf", &case.graph]);
        timed("convoy", command, args.frames)
    };
    let theirs = || {
        let mut command = Command::new("ffmpeg");
        command.args(["-hide_banner", "-nostdin", "-v", "error", "-f", "rawvideo", "-s", &size, "-pix_fmt", "yuv420p", "-i"]).arg(raw);
        command.args(["-vf", &case.peer, "-f", "null", "-"]);
        timed("ffmpeg", command, args.frames)
    };
    let (mut convoy, mut ffmpeg) = (Vec::new(), Vec::new());
    for _ in 0..args.runs {
        convoy.push(ours()?);
        if with_ffmpeg {
            ffmpeg.push(theirs()?);
        }
    }
    let convoy_fps = summary(&mut convoy);
    let ffmpeg_fps = with_ffmpeg.then(|| summary(&mut ffmpeg));
    let ratio = ffmpeg_fps.map(|f| convoy_fps[0] / f[0].max(1e-9));
    Ok(Row { case: case.name, graph: case.graph, backend: backend.to_owned(), convoy_fps, ffmpeg_fps, ratio })
}

/// Frames per second of one process, from spawn to exit.
fn timed(name: &str, mut command: Command, frames: u64) -> Result<f64> {
    let start = Instant::now();
    let output =
        command.stdin(Stdio::null()).stdout(Stdio::null()).output().map_err(|e| Error::failed(format!("cannot start {name}"), e))?;
    let seconds = start.elapsed().as_secs_f64();
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(Error::failed(format!("{name} failed in the benchmark"), text.trim()));
    }
    Ok(frames as f64 / seconds.max(1e-9))
}

/// Median, lowest, highest.
fn summary(values: &mut [f64]) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    match values {
        [] => [0.0; 3],
        [first, ..] if n == 1 => [*first; 3],
        _ => [(values[(n - 1) / 2] + values[n / 2]) / 2.0, values[0], values[n - 1]],
    }
}

fn ffmpeg_version() -> Option<String> {
    let output = Command::new("ffmpeg").arg("-version").stdin(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    Some(text.lines().next()?.split(" Copyright").next()?.to_owned())
}

/// A raw 4:2:0 file of the synthetic source, in memory-backed storage where there is some; removed on drop.
fn raw_file((width, height): (usize, usize), frames: u64) -> Result<tempfile::TempPath> {
    let failed = |e: std::io::Error| {
        Error::failed("cannot write the benchmark's raw input", e).hint("set TMPDIR to a folder with room, or lower --frames")
    };
    let spec = SynthSpec::parse(&format!("{width}x{height}@25"))?;
    let bytes = spec.shape.payload_bytes() as u64 * frames;
    let file = tempfile::Builder::new().prefix("convoy-bench-").suffix(".yuv").tempfile_in(scratch_folder(bytes)).map_err(failed)?;
    let mut out = BufWriter::new(file.as_file());
    let mut source = Synth::new(spec, Some(frames), Arc::new(Heap), Budget::new(1 << 30), Cancel::new())?;
    while let Item::Frame(frame) = source.next()? {
        for plane in 0..frame.layout.planes().len() {
            for y in 0..frame.layout.planes[plane].height {
                out.write_all(frame.row(plane, y)).map_err(failed)?;
            }
        }
    }
    out.flush().map_err(failed)?;
    drop(out);
    Ok(file.into_temp_path())
}

/// `/dev/shm` when it can hold `bytes` in a third of the free memory, else the system's temporary folder.
fn scratch_folder(bytes: u64) -> PathBuf {
    let shm = Path::new("/dev/shm");
    let available = crate::pool::system_memory("MemAvailable");
    if shm.is_dir() && available.is_some_and(|free| bytes < free as u64 / 3) { shm.to_path_buf() } else { std::env::temp_dir() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_is_median_low_high() {
        assert_eq!(summary(&mut [3.0, 1.0, 2.0]), [2.0, 1.0, 3.0]);
        assert_eq!(summary(&mut [4.0, 1.0]), [2.5, 1.0, 4.0]);
        assert_eq!(summary(&mut [7.0]), [7.0; 3]);
    }

    #[test]
    fn the_raw_file_holds_every_sample_and_goes_away() {
        let path = raw_file((33, 17), 4).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 4 * (33 * 17 + 2 * 17 * 9));
        let kept = path.to_path_buf();
        drop(path);
        assert!(!kept.exists());
    }
}
