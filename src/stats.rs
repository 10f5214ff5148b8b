//! Counters of a run: busy and wait time per stage, latency, transfers. Values that are handed on, not globals.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::profile;
use crate::trace::{Span, Trace, Track};

/// Frames that do not count towards the steady rate: codecs and lanes are still filling.
pub const WARM_UP_FRAMES: u64 = 30;

/// What a backend counts while it runs; all times in nanoseconds of device (or CPU worker) time.
#[derive(Debug, Default)]
pub struct DeviceStats {
    /// Frames finished.
    pub frames: AtomicU64,
    /// Time of host-to-device copies.
    pub upload_ns: AtomicU64,
    /// Time of kernels (CPU backend: of the steps).
    pub kernel_ns: AtomicU64,
    /// Time of device-to-host copies.
    pub download_ns: AtomicU64,
    /// Host-to-device transfers enqueued.
    pub uploads: AtomicU64,
    /// Device-to-host transfers enqueued.
    pub downloads: AtomicU64,
    /// Bytes moved host-to-device.
    pub upload_bytes: AtomicU64,
    /// Bytes moved device-to-host.
    pub download_bytes: AtomicU64,
    /// Time that the submitter waited for a free lane.
    pub lane_wait_ns: AtomicU64,
    /// Bytes that the host copied to bring a frame into shape (0 for planar codecs).
    pub host_copied_bytes: AtomicU64,
    /// Where spans of the device go, if the run is traced.
    pub trace: OnceLock<Arc<Trace>>,
}

impl DeviceStats {
    /// Mean device time per frame in microseconds: upload, kernels, download.
    pub fn device_us(&self, frames: u64) -> [f64; 3] {
        let frames = (frames as f64).max(1.0);
        [&self.upload_ns, &self.kernel_ns, &self.download_ns].map(|ns| ns.load(Ordering::Relaxed) as f64 * 1e-3 / frames)
    }

    /// Counts the time since `from` as waiting for a free lane, for frame `seq`.
    pub fn waited_for_lane(&self, from: Instant, seq: u64) {
        let took = from.elapsed();
        Self::add(&self.lane_wait_ns, nanos(took));
        if let Some(trace) = self.trace.get() {
            trace.span(Span { track: Track::Filter, name: "wait for a lane".into(), frame: Some(seq), from, took });
        }
    }

    /// Adds `value` to a counter.
    pub fn add(counter: &AtomicU64, value: u64) {
        counter.fetch_add(value, Ordering::Relaxed);
    }
}

/// Busy and wait time of one stage, written by its thread alone.
#[derive(Debug, Default)]
pub struct StageClock {
    busy_ns: AtomicU64,
    wait_ns: AtomicU64,
    /// Where its spans go, if the run is traced, and as whose.
    trace: OnceLock<(Arc<Trace>, Track)>,
}

impl StageClock {
    /// Has every span noted in `trace` from now on.
    pub fn trace(&self, trace: &Arc<Trace>, track: Track) {
        // Set once per run; a second call changes nothing.
        let _ = self.trace.set((Arc::clone(trace), track));
    }

    /// Runs `work` and counts its time as busy.
    pub fn busy<T>(&self, name: &'static str, work: impl FnOnce() -> T) -> T {
        self.busy_on(name, work, |_| None)
    }

    /// Like [`StageClock::busy`]; `frame` tells which frame the work was about.
    pub fn busy_on<T>(&self, name: &'static str, work: impl FnOnce() -> T, frame: impl Fn(&T) -> Option<u64>) -> T {
        self.timed(&self.busy_ns, name, work, frame)
    }

    /// Runs `work` (a send, a receive, a device wait) and counts its time as waiting.
    pub fn wait<T>(&self, work: impl FnOnce() -> T) -> T {
        self.timed(&self.wait_ns, "wait", work, |_| None)
    }

    fn timed<T>(&self, counter: &AtomicU64, name: &'static str, work: impl FnOnce() -> T, frame: impl Fn(&T) -> Option<u64>) -> T {
        let range = profile::range(name);
        let from = Instant::now();
        let value = work();
        let took = from.elapsed();
        profile::mark_frame(|| frame(&value));
        drop(range);
        counter.fetch_add(nanos(took), Ordering::Relaxed);
        if let Some((trace, track)) = self.trace.get() {
            trace.span(Span { track: *track, name: name.into(), frame: frame(&value), from, took });
        }
        value
    }

    fn seconds(&self) -> (f64, f64) {
        let read = |ns: &AtomicU64| ns.load(Ordering::Relaxed) as f64 * 1e-9;
        (read(&self.busy_ns), read(&self.wait_ns))
    }
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

/// What the pipeline counts, shared with the progress display.
#[derive(Debug, Default)]
pub struct PipelineStats {
    /// The decode thread.
    pub decode: StageClock,
    /// The filter thread.
    pub filter: StageClock,
    /// The encode thread.
    pub encode: StageClock,
    /// Frames that came from the source.
    pub frames_in: AtomicU64,
    /// Frames handed to the encoder.
    pub frames_out: AtomicU64,
    /// Packets copied past the filter.
    pub packets_copied: AtomicU64,
    /// Most items ever queued from decode to filter.
    pub decode_queue_high: AtomicUsize,
    /// Most items ever queued from filter to encode.
    pub encode_queue_high: AtomicUsize,
    trace: OnceLock<Arc<Trace>>,
}

/// The two queues between the threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// From decode to filter.
    Decoded,
    /// From filter to encode.
    Due,
}

impl PipelineStats {
    /// Has every span and queue depth noted in `trace` from now on.
    pub fn trace(&self, trace: &Arc<Trace>) {
        self.decode.trace(trace, Track::Decode);
        self.filter.trace(trace, Track::Filter);
        self.encode.trace(trace, Track::Encode);
        let _ = self.trace.set(Arc::clone(trace));
    }

    /// Notes that a queue holds `items` after something was put in.
    pub fn queued(&self, queue: Queue, items: usize) {
        let (mark, name) = match queue {
            Queue::Decoded => (&self.decode_queue_high, "queue decode to filter"),
            Queue::Due => (&self.encode_queue_high, "queue filter to encode"),
        };
        mark.fetch_max(items, Ordering::Relaxed);
        if let Some(trace) = self.trace.get() {
            trace.depth(name, items);
        }
    }
}

/// Time from a frame's birth in the source to its end in the encoder, and the steady frame rate. Owned by the encode thread.
pub struct LatencyRecorder {
    micros: Histogram<u32>,
    started: Instant,
    frames: u64,
    warm: Option<Instant>,
    last: Instant,
}

/// Latencies above this are counted as this.
const LONGEST_US: u64 = 600_000_000;

impl LatencyRecorder {
    /// A recorder whose clock starts at `started`.
    pub fn new(started: Instant) -> Self {
        // Bounds and precision are constants that the histogram accepts; the fallback only satisfies the type.
        let micros = Histogram::new_with_bounds(1, LONGEST_US, 3)
            .unwrap_or_else(|_| Histogram::new_with_max(2, 0).unwrap_or_else(|_| unreachable!()));
        Self { micros, started, frames: 0, warm: None, last: started }
    }

    /// Counts a frame that was born at `born` and left the encoder at `now`.
    pub fn record(&mut self, born: Instant, now: Instant) {
        let us = u64::try_from(now.saturating_duration_since(born).as_micros()).unwrap_or(LONGEST_US);
        self.micros.saturating_record(us.clamp(1, LONGEST_US));
        self.frames += 1;
        self.last = now;
        if self.frames == WARM_UP_FRAMES {
            self.warm = Some(now);
        }
    }

    /// Counts the time until everything was flushed and written.
    pub fn finish(&mut self, now: Instant) {
        self.last = now;
    }

    /// The summary.
    pub fn summary(&self) -> Timing {
        let total = self.last.saturating_duration_since(self.started).as_secs_f64();
        let rate = |frames: u64, seconds: f64| if seconds > 0.0 { frames as f64 / seconds } else { 0.0 };
        let steady = match self.warm {
            Some(warm) if self.frames >= 2 * WARM_UP_FRAMES => {
                rate(self.frames - WARM_UP_FRAMES, self.last.saturating_duration_since(warm).as_secs_f64())
            }
            _ => rate(self.frames, total),
        };
        let ms = |q: f64| self.micros.value_at_quantile(q) as f64 / 1e3;
        Timing {
            frames: self.frames,
            seconds: total,
            fps: rate(self.frames, total),
            steady_fps: steady,
            latency_p50_ms: ms(0.50),
            latency_p95_ms: ms(0.95),
            latency_p99_ms: ms(0.99),
        }
    }
}

/// Rates and latencies of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Timing {
    /// Frames that the encoder took.
    pub frames: u64,
    /// From the start of the threads to the end of the trailer.
    pub seconds: f64,
    /// Frames over seconds.
    pub fps: f64,
    /// The same without the first [`WARM_UP_FRAMES`] (equal to `fps` for short runs).
    pub steady_fps: f64,
    /// Median time from decoded to encoded.
    pub latency_p50_ms: f64,
    /// 95th percentile.
    pub latency_p95_ms: f64,
    /// 99th percentile.
    pub latency_p99_ms: f64,
}

/// One stage in the report.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StageReport {
    /// "decode", "filter", "device", "encode".
    pub name: &'static str,
    /// Seconds of work.
    pub busy_s: f64,
    /// Seconds of waiting for a neighbour or the device.
    pub wait_s: f64,
    /// Busy share of the run's wall time, in percent.
    pub busy_percent: f64,
}

/// Everything that `--stats` prints.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// "cuda" or "cpu".
    pub backend: String,
    /// The device in words.
    pub device: String,
    /// Frames in flight.
    pub variants: Vec<String>,
    /// Rates and latencies.
    #[serde(flatten)]
    pub timing: Timing,
    /// Per stage.
    pub stages: Vec<StageReport>,
    /// The stage with the largest busy share.
    pub limited_by: &'static str,
    /// Mean device time per frame in microseconds: upload, kernels, download.
    pub device_us_per_frame: [f64; 3],
    /// Host-to-device transfers per frame.
    pub uploads_per_frame: f64,
    /// Device-to-host transfers per frame.
    pub downloads_per_frame: f64,
    /// Bytes copied by the host per frame, conversions included.
    pub host_bytes_copied_per_frame: f64,
    /// Packets copied past the filter.
    pub packets_copied: u64,
    /// Packets and pictures of the input that were damaged; filled in by whoever read it.
    pub damaged: u64,
    /// Most items queued decode→filter and filter→encode.
    pub queue_high_water: [usize; 2],
}

impl Report {
    /// Puts the counters of a finished run together. `host_copied` counts the bytes that source and encoder copied.
    pub fn new(
        backend: (&str, String),
        variants: Vec<String>,
        timing: Timing,
        pipeline: &PipelineStats,
        device: &DeviceStats,
        host_copied: u64,
    ) -> Self {
        let read = |n: &AtomicU64| n.load(Ordering::Relaxed) as f64;
        let frames = (timing.frames as f64).max(1.0);
        let wall = timing.seconds.max(1e-9);
        let stage = |name, (busy_s, wait_s): (f64, f64)| StageReport { name, busy_s, wait_s, busy_percent: 100.0 * busy_s / wall };
        let (filter_busy, filter_wait) = pipeline.filter.seconds();
        let lane_wait = read(&device.lane_wait_ns) * 1e-9;
        let mut stages = vec![
            stage("decode", pipeline.decode.seconds()),
            stage("filter", ((filter_busy - lane_wait).max(0.0), filter_wait + lane_wait)),
        ];
        let engine = [read(&device.upload_ns), read(&device.kernel_ns), read(&device.download_ns)];
        if backend.0 == "cuda" {
            // Copy engines and kernels run side by side: the busiest of the three is what limits the device.
            let busy = engine.iter().copied().fold(0.0, f64::max) * 1e-9;
            stages.push(stage("device", (busy, (wall - busy).max(0.0))));
        }
        stages.push(stage("encode", pipeline.encode.seconds()));
        let limited_by = stages.iter().max_by(|a, b| a.busy_s.total_cmp(&b.busy_s)).map_or("", |s| s.name);
        Self {
            backend: backend.0.to_owned(),
            device: backend.1,
            variants,
            timing,
            stages,
            limited_by,
            device_us_per_frame: device.device_us(timing.frames),
            uploads_per_frame: read(&device.uploads) / frames,
            downloads_per_frame: read(&device.downloads) / frames,
            host_bytes_copied_per_frame: (read(&device.host_copied_bytes) + host_copied as f64) / frames,
            packets_copied: pipeline.packets_copied.load(Ordering::Relaxed),
            damaged: 0,
            queue_high_water: [&pipeline.decode_queue_high, &pipeline.encode_queue_high].map(|n| n.load(Ordering::Relaxed)),
        }
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let t = &self.timing;
        writeln!(f, "backend    {} ({})", self.backend, self.device)?;
        for note in &self.variants {
            writeln!(f, "step       {note}")?;
        }
        writeln!(f, "frames     {} in {:.3} s: {:.1} fps ({:.1} fps after warm-up)", t.frames, t.seconds, t.fps, t.steady_fps)?;
        writeln!(f, "latency    p50 {:.2} ms, p95 {:.2} ms, p99 {:.2} ms", t.latency_p50_ms, t.latency_p95_ms, t.latency_p99_ms)?;
        writeln!(f, "stage         busy s    wait s   busy %")?;
        for s in &self.stages {
            writeln!(f, "  {:<8} {:>9.3} {:>9.3} {:>8.1}", s.name, s.busy_s, s.wait_s, s.busy_percent)?;
        }
        writeln!(f, "limited by {}", self.limited_by)?;
        let [up, kernel, down] = self.device_us_per_frame;
        if self.backend == "cuda" {
            writeln!(f, "device     upload {up:.1} µs, kernels {kernel:.1} µs, download {down:.1} µs per frame")?;
            writeln!(f, "transfers  {:.2} up, {:.2} down per frame", self.uploads_per_frame, self.downloads_per_frame)?;
        } else {
            writeln!(f, "filters    {kernel:.1} µs per frame")?;
        }
        writeln!(f, "host copy  {:.0} bytes per frame", self.host_bytes_copied_per_frame)?;
        write!(f, "copied     {} packets of other streams", self.packets_copied)?;
        if self.damaged > 0 {
            write!(f, "\ndamaged    {} packets and pictures of the input", self.damaged)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latency_and_rates_are_exact_on_a_made_up_clock() {
        let start = Instant::now();
        let mut recorder = LatencyRecorder::new(start);
        for i in 1..=100u64 {
            let now = start + Duration::from_millis(10 * i);
            recorder.record(now - Duration::from_millis(i), now);
        }
        let t = recorder.summary();
        assert_eq!(t.frames, 100);
        assert!((t.fps - 100.0).abs() < 1e-9 && (t.steady_fps - 100.0).abs() < 1e-9);
        assert!((t.latency_p50_ms - 50.0).abs() < 0.1, "{t:?}");
        assert!((t.latency_p99_ms - 99.0).abs() < 0.1, "{t:?}");
    }

    #[test]
    fn the_warm_up_does_not_count_towards_the_steady_rate() {
        let start = Instant::now();
        let mut recorder = LatencyRecorder::new(start);
        let mut now = start;
        for i in 0..130 {
            now += Duration::from_millis(if i < WARM_UP_FRAMES { 100 } else { 1 });
            recorder.record(now, now);
        }
        let t = recorder.summary();
        assert!((t.steady_fps - 1000.0).abs() < 1e-6, "{t:?}");
        assert!(t.fps < 50.0);
    }

    #[test]
    fn the_busiest_stage_is_named() {
        let pipeline = PipelineStats::default();
        pipeline.decode.busy_ns.store(1_000_000_000, Ordering::Relaxed);
        pipeline.encode.busy_ns.store(3_000_000_000, Ordering::Relaxed);
        let device = DeviceStats::default();
        device.kernel_ns.store(4_000_000, Ordering::Relaxed);
        let timing = Timing { frames: 4, seconds: 4.0, ..Timing::default() };
        let report = Report::new(("cpu", "test".into()), vec![], timing, &pipeline, &device, 8);
        assert_eq!(report.limited_by, "encode");
        assert_eq!(report.device_us_per_frame[1], 1000.0);
        assert_eq!(report.host_bytes_copied_per_frame, 2.0);
        assert_eq!(report.stages.last().map(|s| s.busy_percent), Some(75.0));
    }
}
