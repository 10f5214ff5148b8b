//! OpenCV's CPU filters on one thread as a contender: a Python process with cv2 that times one call per line of input, on our samples.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::plan::{Case, Kind, sigma, weights};
use super::race::{Subject, wrong_result};
use crate::axes::SampleType;
use crate::error::{Error, Result};
use crate::filter::Border;
use crate::filter::plan::Plan;
use crate::frame::Sample;
use crate::reference::{Comparison, Content, Judge, Picture, Tolerance};

/// Lines in: `load KIND H W FILE`, `check FILE CALL`, `time FRAMES CALL`; one line out each: `ok`, or nanoseconds, or `error TEXT`.
const SERVER: &str = r#"
import sys, time
import numpy as np, cv2
cv2.setNumThreads(1)
print("ready", cv2.__version__, flush=True)
xs = []
for line in sys.stdin:
    try:
        word, rest = line.strip().split(" ", 1)
        if word == "load":
            kind, h, w, path = rest.split(" ", 3)
            x = np.fromfile(path, dtype=kind).reshape(int(h), int(w))
            # More inputs than the caches hold.
            xs = [np.roll(x, 17 * i, axis=0).copy() for i in range(max(3, min(64, (96 << 20) // x.nbytes)))]
            print("ok", flush=True)
            continue
        argument, call = rest.split(" ", 1)
        f = eval("lambda x: " + call)
        if word == "check":
            np.ascontiguousarray(f(xs[0])).tofile(argument)
            print("ok", flush=True)
        else:
            n = int(argument)
            begin = time.perf_counter_ns()
            for i in range(n):
                f(xs[i % len(xs)])
            print(time.perf_counter_ns() - begin, flush=True)
    except Exception as e:
        print("error", str(e).replace("\n", " "), flush=True)
"#;

/// The running process.
pub(super) struct Server {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    folder: tempfile::TempDir,
    /// "4.10.0".
    pub version: String,
}

impl Server {
    /// Starts Python.
    ///
    /// # Errors
    /// Why there is none with cv2, in a word.
    pub fn start() -> Result<Self, String> {
        let missing = || "Python with cv2 is not installed (CONVOY_PYTHON names another Python)".to_owned();
        let python = std::env::var("CONVOY_PYTHON").unwrap_or_else(|_| "python3".to_owned());
        let folder = tempfile::tempdir().map_err(|e| format!("no temporary folder: {e}"))?;
        let mut command = Command::new(python);
        command.args(["-c", SERVER]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|_| missing())?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else { return Err(missing()) };
        let mut server = Self { child, input, output: BufReader::new(output), folder, version: String::new() };
        let line = server.answer().map_err(|_| missing())?;
        server.version = line.strip_prefix("ready ").ok_or_else(missing)?.to_owned();
        Ok(server)
    }

    fn answer(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line).map_err(|e| Error::failed("cannot read from OpenCV's process", e))?;
        if line.is_empty() {
            return Err(Error::failed("cannot read from OpenCV's process", "it ended"));
        }
        Ok(line.trim().to_owned())
    }

    fn ask(&mut self, line: &str) -> Result<String> {
        writeln!(self.input, "{line}").map_err(|e| Error::failed("cannot write to OpenCV's process", e))?;
        let answer = self.answer()?;
        match answer.strip_prefix("error ") {
            Some(why) => Err(Error::failed("OpenCV cannot run this", why)),
            None => Ok(answer),
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process only waits for more input; nothing of its end matters.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// OpenCV's call on `x` for a case; None where it has none that means the same.
fn call(case: &Case) -> Option<String> {
    let (kind, k) = case.kind?;
    let border = match case.border.unwrap_or_default() {
        Border::Clamp => "cv2.BORDER_REPLICATE",
        Border::Reflect => "cv2.BORDER_REFLECT",
        Border::Reflect101 => "cv2.BORDER_REFLECT_101",
        Border::Zero => "cv2.BORDER_CONSTANT",
        Border::Wrap => return None,
    };
    let replicated = border == "cv2.BORDER_REPLICATE";
    match kind {
        Kind::Gauss => Some(format!("cv2.GaussianBlur(x,({k},{k}),{},borderType={border})", sigma(k))),
        Kind::Conv => {
            let taps = weights(k);
            let sum: usize = taps.iter().sum();
            let list: Vec<String> = taps.iter().map(ToString::to_string).collect();
            Some(format!(
                "cv2.filter2D(x,-1,(np.array([{}],np.float64)/{sum}).astype(np.float32).reshape({k},{k}),borderType={border})",
                list.join(",")
            ))
        }
        Kind::Box => Some(format!("cv2.blur(x,({k},{k}),borderType={border})")),
        // At a repeated edge the extremum is that of the samples inside.
        Kind::Max => replicated.then(|| format!("cv2.dilate(x,np.ones(({k},{k}),np.uint8),borderType={border})")),
        Kind::Min => replicated.then(|| format!("cv2.erode(x,np.ones(({k},{k}),np.uint8),borderType={border})")),
        Kind::Median => (replicated && (k <= 5 || case.sample == SampleType::U8)).then(|| format!("cv2.medianBlur(x,{k})")),
        Kind::Unsharp | Kind::Sobel | Kind::Maxpool => None,
    }
}

/// OpenCV on the case's frame, if it has the filter.
///
/// # Errors
/// The input cannot be handed over.
pub(super) fn contender<'a>(server: &'a mut Server, case: &Case, plan: &Plan) -> Result<Option<Contender<'a>>> {
    let Some(call) = call(case) else { return Ok(None) };
    let kind = match case.shape.format.sample() {
        Sample::U8 => "uint8",
        Sample::U16 => "uint16",
        Sample::F32 => "float32",
    };
    let picture = Picture::new(case.shape, Content::Random, 1);
    let path = server.file("input.raw");
    std::fs::write(&path, bytes(&picture))
        .map_err(|e| Error::failed("cannot hand OpenCV its input", e).hint("set TMPDIR to a folder with room"))?;
    server.ask(&format!("load {kind} {} {} {}", case.shape.height, case.shape.width, path.display()))?;
    Ok(Some(Contender { server, call, plan: plan.clone(), picture }))
}

/// A gray picture's samples without padding.
fn bytes(picture: &Picture) -> Vec<u8> {
    let plane = picture.planes.first().map(Vec::as_slice).unwrap_or_default();
    match picture.shape.format.sample() {
        Sample::U8 => plane.iter().map(|&v| v as u8).collect(),
        Sample::U16 => plane.iter().flat_map(|&v| (v as u16).to_le_bytes()).collect(),
        Sample::F32 => plane.iter().flat_map(|&v| (v as f32).to_le_bytes()).collect(),
    }
}

/// The reverse of [`bytes`].
fn picture(bytes: &[u8], like: &Picture) -> Picture {
    let plane = match like.shape.format.sample() {
        Sample::U8 => bytes.iter().map(|&b| f64::from(b)).collect(),
        Sample::U16 => bytes.as_chunks().0.iter().map(|&b| f64::from(u16::from_le_bytes(b))).collect(),
        Sample::F32 => bytes.as_chunks().0.iter().map(|&b| f64::from(f32::from_le_bytes(b))).collect(),
    };
    Picture { shape: like.shape, planes: vec![plane] }
}

/// One call of OpenCV.
pub(super) struct Contender<'a> {
    server: &'a mut Server,
    call: String,
    plan: Plan,
    picture: Picture,
}

impl Subject for Contender<'_> {
    /// Whatever it returns is compared and reported; only another size is refused.
    fn verify(&mut self) -> Result<Comparison> {
        let wrong = |why: String| wrong_result("OpenCV", why);
        let path = self.server.file("output.raw");
        self.server.ask(&format!("check {} {}", path.display(), self.call))?;
        let result = std::fs::read(&path).map_err(|e| wrong(e.to_string()))?;
        let result = picture(&result, &self.picture);
        if result.planes.first().map(Vec::len) != self.picture.planes.first().map(Vec::len) {
            return Err(wrong("its result has another size".to_owned()));
        }
        let frame = result.frame(std::sync::Arc::new(crate::pool::Heap), 0)?;
        Judge::within(&self.plan, &self.picture, 4e7).map_err(wrong)?.compare(&frame, Tolerance::of_plan(&self.plan)).map_err(wrong)
    }

    fn inputs(&self) -> usize {
        3
    }

    fn run(&mut self, _first: usize, frames: usize) -> Result<Option<f64>> {
        let answer = self.server.ask(&format!("time {frames} {}", self.call))?;
        answer.parse().map(Some).map_err(|_| Error::failed("cannot time OpenCV", format!("it answered '{answer}'")))
    }
}
