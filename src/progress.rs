//! Progress on stderr: a bar on a terminal, JSON lines for programs, or nothing.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::cli::Progress;
use crate::error::Result;
use crate::pipeline::spawn_helper;
use crate::stats::PipelineStats;

const BAR_INTERVAL: Duration = Duration::from_millis(100);
const JSON_INTERVAL: Duration = Duration::from_millis(500);

/// What is known about the length of the run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Expected {
    /// Frames that will come, if known.
    pub frames: Option<u64>,
    /// The input's frame rate, for the speed.
    pub fps: Option<f64>,
}

/// Shows progress until dropped.
pub struct Display {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Serialize)]
struct Line {
    frame: u64,
    frames: Option<u64>,
    fps: f64,
    speed: Option<f64>,
    eta_s: Option<f64>,
    done: bool,
}

impl Line {
    fn now(stats: &PipelineStats, expected: Expected, elapsed: Duration, done: bool) -> Self {
        let frame = stats.frames_out.load(Ordering::Relaxed);
        let seconds = elapsed.as_secs_f64();
        let fps = if seconds > 0.0 { frame as f64 / seconds } else { 0.0 };
        let left = expected.frames.map(|n| n.saturating_sub(frame));
        Self {
            frame,
            frames: expected.frames,
            fps,
            speed: expected.fps.filter(|r| *r > 0.0).map(|r| fps / r),
            eta_s: left.filter(|_| fps > 0.0).map(|n| n as f64 / fps),
            done,
        }
    }
}

impl Display {
    /// Starts showing the progress of `stats`.
    ///
    /// # Errors
    /// The system refused the thread.
    pub fn start(mode: Progress, stats: &Arc<PipelineStats>, expected: Expected) -> Result<Self> {
        let stats = Arc::clone(stats);
        let (stop, stopped) = bounded::<()>(1);
        let wait = move |interval| matches!(stopped.recv_timeout(interval), Err(RecvTimeoutError::Timeout));
        let started = Instant::now();
        let thread = match mode {
            Progress::None => return Ok(Self { stop: None, thread: None }),
            Progress::Json => spawn_helper("progress", move || {
                let print = |done| {
                    let line = Line::now(&stats, expected, started.elapsed(), done);
                    // A reader that closed stderr wants no more progress; the run goes on.
                    let _ = serde_json::to_string(&line).map(|text| writeln!(std::io::stderr(), "{text}"));
                };
                while wait(JSON_INTERVAL) {
                    print(false);
                }
                print(true);
            })?,
            Progress::Auto => {
                let bar = bar(expected.frames);
                if bar.is_hidden() {
                    return Ok(Self { stop: None, thread: None });
                }
                spawn_helper("progress", move || {
                    while wait(BAR_INTERVAL) {
                        let line = Line::now(&stats, expected, started.elapsed(), false);
                        bar.set_position(line.frame);
                        let speed = line.speed.map(|s| format!(" {s:.2}x")).unwrap_or_default();
                        // The last frame went in, but encoders hold many back.
                        let flushing = if line.frames.is_some_and(|n| n == line.frame) { "  finishing" } else { "" };
                        bar.set_message(format!("{:.1} fps{speed}{flushing}", line.fps));
                    }
                    bar.finish_and_clear();
                })?
            }
        };
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

fn bar(frames: Option<u64>) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(frames, ProgressDrawTarget::stderr());
    let template = match frames {
        Some(_) => "{bar:32} {pos}/{len} frames  {msg}  ETA {eta}",
        None => "{spinner} {pos} frames  {msg}  {elapsed}",
    };
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

impl Drop for Display {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A progress thread that panicked has nothing to say about the run.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_states_rate_speed_and_time_left() {
        let stats = PipelineStats::default();
        stats.frames_out.store(50, Ordering::Relaxed);
        let expected = Expected { frames: Some(150), fps: Some(25.0) };
        let line = Line::now(&stats, expected, Duration::from_secs(1), false);
        assert_eq!((line.fps, line.speed, line.eta_s), (50.0, Some(2.0), Some(2.0)));
        let unknown = Line::now(&stats, Expected::default(), Duration::ZERO, true);
        assert_eq!((unknown.fps, unknown.speed, unknown.eta_s), (0.0, None, None));
    }
}
