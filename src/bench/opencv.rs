//! OpenCV's CPU filters on one thread beside ours on the same array, alternating in one run; where Python has cv2.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use crate::backend::cpu::Cpu;
use crate::backend::{BuildOptions, Collector, Device, Submitter};
use crate::error::{Error, Result};
use crate::filter;
use crate::frame::{Frame, FrameLayout, FrameMem, FrameTime, PixelFormat, Shape};
use crate::pool::{Budget, Heap, Pool};

/// One filter on one plane, one thread each.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    name: &'static str,
    convoy_ms: f64,
    opencv_ms: f64,
    /// OpenCV's time over ours.
    ratio: f64,
}

/// (name, our graph, depth, OpenCV's call on `x`).
const CASES: [(&str, &str, u8, &str); 3] = [
    ("Gaussian 15x15 u8", "gblur=sigma=2.5:radius=7", 8, "cv2.GaussianBlur(x,(15,15),2.5,borderType=cv2.BORDER_REPLICATE)"),
    ("3x3 f32", "convolution='1 2 3 2 5 1 3 1 2'", 32, "cv2.filter2D(x,-1,k3,borderType=cv2.BORDER_REPLICATE)"),
    (
        "7x7 f32",
        "convolution='1 2 3 4 5 6 7 2 5 1 3 2 1 4 3 1 4 1 5 2 6 4 6 2 7 1 3 5 5 3 1 2 6 1 4 6 1 5 3 2 4 3 7 4 6 5 3 1 2'",
        32,
        "cv2.filter2D(x,-1,k7,borderType=cv2.BORDER_REPLICATE)",
    ),
];

/// Serves one timing per line of input: an expression in, milliseconds out.
const SERVER: &str = r#"
import sys, time
import numpy as np, cv2
cv2.setNumThreads(1)
h, w = int(sys.argv[1]), int(sys.argv[2])
r = np.random.default_rng(1)
u8 = r.integers(0, 256, (h, w), dtype=np.uint8)
f32 = r.random((h, w), dtype=np.float32)
k3 = r.random((3, 3), dtype=np.float32)
k7 = r.random((7, 7), dtype=np.float32)
print("ready", cv2.__version__, flush=True)
for line in sys.stdin:
    kind, call = line.strip().split(" ", 1)
    x = u8 if kind == "8" else f32
    f = eval("lambda: " + call, dict(globals(), x=x))
    f()
    a = time.perf_counter()
    f(); f(); f()
    print((time.perf_counter() - a) / 3 * 1e3, flush=True)
"#;

struct Server {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Server {
    /// None when Python or cv2 is missing.
    fn start((width, height): (usize, usize)) -> Option<Self> {
        let python = std::env::var("CONVOY_PYTHON").unwrap_or_else(|_| "python3".to_owned());
        let mut command = Command::new(python);
        command.args(["-c", SERVER, &height.to_string(), &width.to_string()]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
        let (input, output) = (child.stdin.take()?, BufReader::new(child.stdout.take()?));
        let mut server = Self { child, input, output };
        server.line().ok().filter(|l| l.starts_with("ready")).map(|_| server)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line).map_err(|e| Error::failed("cannot read from OpenCV's process", e))?;
        Ok(line)
    }

    fn time_ms(&mut self, depth: u8, call: &str) -> Result<f64> {
        writeln!(self.input, "{depth} {call}").map_err(|e| Error::failed("cannot write to OpenCV's process", e))?;
        let line = self.line()?;
        line.trim().parse().map_err(|_| Error::failed(format!("OpenCV could not run {call}"), format!("it answered '{}'", line.trim())))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process only waits for more input; nothing of its end matters.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Times every case; empty with a notice when OpenCV is not there.
pub(super) fn rows(size: (usize, usize), runs: u64) -> Result<Vec<Row>> {
    let Some(mut server) = Server::start(size) else {
        crate::status::say("no comparison with OpenCV: Python with cv2 is not installed (CONVOY_PYTHON names another Python)");
        return Ok(Vec::new());
    };
    let mut rows = Vec::new();
    for (name, graph, depth, call) in CASES {
        let mut ours = Ours::new(graph, PixelFormat::gray(depth), size)?;
        let (mut convoy, mut opencv) = (Vec::new(), Vec::new());
        for _ in 0..runs.max(5) * 3 {
            convoy.push(ours.time_ms()?);
            opencv.push(server.time_ms(depth, call)?);
        }
        let (convoy_ms, opencv_ms) = (super::summary(&mut convoy)[0], super::summary(&mut opencv)[0]);
        rows.push(Row { name, convoy_ms, opencv_ms, ratio: opencv_ms / convoy_ms.max(1e-9) });
    }
    Ok(rows)
}

/// One graph on one thread.
struct Ours {
    pool: Pool,
    layout: FrameLayout,
    submitter: Box<dyn Submitter>,
    collector: Box<dyn Collector>,
    next: u64,
}

impl Ours {
    fn new(graph: &str, format: PixelFormat, (width, height): (usize, usize)) -> Result<Self> {
        let shape = Shape { format, width, height };
        let plan = filter::plan(&filter::parse(graph)?, shape)?;
        let budget = Budget::new(1 << 30);
        let options = BuildOptions { lanes: Some(1), threads: Some(1), variant: None, budget: Arc::clone(&budget) };
        let built = Cpu::new().build(&plan, &options)?;
        let layout = FrameLayout::packed(shape)?;
        let pool = Pool::new(Arc::new(Heap), layout.slab_bytes, budget);
        let mut lease = pool.lease()?;
        if format.depth == 32 {
            lease
                .bytes_mut()
                .chunks_exact_mut(4)
                .enumerate()
                .for_each(|(i, b)| b.copy_from_slice(&((i * 7919 % 4096) as f32 / 4096.0).to_le_bytes()));
        } else {
            lease.bytes_mut().iter_mut().enumerate().for_each(|(i, b)| *b = (i * 7919 % 251) as u8);
        }
        Ok(Self { pool, layout, submitter: built.submitter, collector: built.collector, next: 0 })
    }

    /// Mean of three frames, as OpenCV's side does.
    fn time_ms(&mut self) -> Result<f64> {
        self.frame()?;
        let start = Instant::now();
        for _ in 0..3 {
            self.frame()?;
        }
        Ok(start.elapsed().as_secs_f64() / 3.0 * 1e3)
    }

    fn frame(&mut self) -> Result<()> {
        let (seq, mut due) = (self.next, Vec::with_capacity(1));
        self.next += 1;
        let mem = FrameMem::Slab(self.pool.lease()?);
        self.submitter.submit(Frame { layout: self.layout, time: FrameTime::default(), seq, born: Instant::now(), mem }, &mut due)?;
        due.into_iter().try_for_each(|ticket| self.collector.wait(ticket).map(drop))
    }
}

/// Prints the table to stdout.
pub(super) fn print(rows: &[Row]) {
    if rows.is_empty() {
        return;
    }
    println!("\n{:<24} {:>10} {:>10} {:>8}", "one thread, one plane", "convoy ms", "OpenCV ms", "ratio");
    for row in rows {
        println!("{:<24} {:>10.2} {:>10.2} {:>8.2}", row.name, row.convoy_ms, row.opencv_ms, row.ratio);
    }
}
