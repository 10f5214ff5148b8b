//! Other programs beside our rows (`bench --peers`): OpenCV on the CPU, NPP and PyTorch on the GPU. Each runs in a process of its own on our
//! samples, takes its turn in the same rounds, and is compared with the reference before it is timed.

use std::cell::RefCell;
use std::rc::Rc;

mod npp;
mod opencv;
mod process;
mod torch;

use half::f16;
pub(super) use process::Ward;
use process::{Input, Process};

use super::child::gives_up;
use super::plan::{Case, sigma, weights};
use super::race::{Subject, wrong_result};
use crate::error::{Error, Result};
use crate::filter::math::gaussian_weights;
use crate::filter::plan::Plan;
use crate::frame::Sample;
use crate::reference::{Comparison, Content, Judge, Picture, Tolerance};
use crate::tensor::Pooling;

/// Sample reads that the reference may spend on one row.
const READS: f64 = 4e7;

/// A way to have a case done by a peer.
struct Call {
    /// What the peer names it.
    variant: String,
    /// What the process is told.
    text: String,
    /// Our graph whose result it has, if that is not the case's.
    graph: Option<String>,
    /// What a reader must know.
    note: Option<String>,
}

impl Call {
    fn new(variant: &str, text: String) -> Self {
        Self { variant: variant.to_owned(), text, graph: None, note: None }
    }
}

type Shared = Rc<RefCell<Running>>;

/// A process, and what it has loaded.
struct Running {
    process: Process,
    loaded: Option<Rc<Input>>,
    start: Box<dyn Fn() -> Result<Process, String>>,
    /// Processes since the last answer that were stopped for want of one.
    silent: u32,
}

impl Running {
    fn start(start: impl Fn() -> Result<Process, String> + 'static) -> Result<Shared, String> {
        Ok(Rc::new(RefCell::new(Self { process: start()?, loaded: None, start: Box::new(start), silent: 0 })))
    }

    /// The process with these samples in its hands.
    fn with(&mut self, input: &Rc<Input>) -> Result<&mut Process> {
        self.revive()?;
        if !self.loaded.as_ref().is_some_and(|loaded| Rc::ptr_eq(loaded, input)) {
            self.loaded = None;
            self.process.load(input)?;
            self.loaded = Some(Rc::clone(input));
        }
        Ok(&mut self.process)
    }

    /// Starts another process where a call before was the end of this one.
    fn revive(&mut self) -> Result<()> {
        if self.process.ended() {
            self.loaded = None;
            self.silent += u32::from(self.process.take_silence());
            if gives_up(self.silent) {
                let why = format!("{} times in a row it did not answer", self.silent);
                return Err(Error::failed(format!("{} is left out", self.process.name), why));
            }
            let again = (self.start)().map_err(|why| Error::failed(format!("cannot start {} again", self.process.name), why))?;
            self.process = again;
        }
        Ok(())
    }
}

/// The peers that are there.
#[derive(Default)]
pub(super) struct Peers {
    opencv: Option<Shared>,
    npp: Option<Shared>,
    torch: Option<Shared>,
}

impl Peers {
    /// Starts OpenCV in `ward`.
    ///
    /// # Errors
    /// Why there is none, in a word.
    pub fn start_opencv(&mut self, ward: &Ward) -> Result<(), String> {
        let ward = ward.clone();
        self.opencv = Some(Running::start(move || opencv::start(&ward))?);
        Ok(())
    }

    /// Starts NPP and PyTorch on GPU `device`; returns why one is absent.
    pub fn start_on_gpu(&mut self, device: usize, ward: &Ward) -> Vec<String> {
        let mut absent = Vec::new();
        let [npp, torch] = [ward.clone(), ward.clone()];
        let mut there = |name: &str, peer: Result<Shared, String>| peer.map_err(|why| absent.push(format!("{name}: {why}"))).ok();
        self.npp = there("NPP", Running::start(move || npp::start(device, &npp)));
        self.torch = there("PyTorch", Running::start(move || torch::start(device, &torch)));
        absent
    }

    /// Contenders on the CPU for a case of gray frames.
    ///
    /// # Errors
    /// A graph of a peer's own does not parse (a defect).
    pub fn on_cpu(&self, case: &Case, plan: &Plan) -> Result<Vec<Contender>> {
        contenders(&[(&self.opencv, opencv::calls)], case, plan)
    }

    /// Contenders on the GPU for a case of gray frames.
    ///
    /// # Errors
    /// As for [`Peers::on_cpu`].
    pub fn on_gpu(&self, case: &Case, plan: &Plan) -> Result<Vec<Contender>> {
        contenders(&[(&self.npp, npp::calls), (&self.torch, torch::calls)], case, plan)
    }

    /// PyTorch under a pooling layer over a tensor of `dims` whose `values` are `kind` (NumPy's name); `judge` compares what comes out.
    pub fn on_tensor(
        &self,
        layer: &Pooling,
        (kind, shape, values): (&'static str, &[usize], Vec<u8>),
        judge: Verdict,
    ) -> Option<Contender> {
        let peer = self.torch.as_ref()?;
        let input = Rc::new(Input { kind, shape: shape.to_vec(), bytes: values });
        Some(Contender::new(peer, torch::layer_call(layer), &input, judge))
    }

    /// Whether [`Peers::on_tensor`] has any.
    pub fn pools_tensors(&self) -> bool {
        self.torch.is_some()
    }
}

/// Compares a result's bytes with what they should be.
pub(super) type Verdict = Box<dyn Fn(&[u8]) -> Result<Comparison>>;

/// One call of a peer.
pub(super) struct Contender {
    /// "npp", "pytorch", "opencv": the row's program.
    pub program: String,
    /// What the peer names the call.
    pub variant: String,
    /// For the row.
    pub notes: Vec<String>,
    peer: Shared,
    name: &'static str,
    call: String,
    input: Rc<Input>,
    judge: Verdict,
}

impl Contender {
    fn new(peer: &Shared, call: Call, input: &Rc<Input>, judge: Verdict) -> Self {
        let running = peer.borrow();
        let name = running.process.name;
        let notes = std::iter::once(format!("version {}", running.process.version)).chain(call.note).collect();
        let (peer, input) = (Rc::clone(peer), Rc::clone(input));
        Self { program: name.to_lowercase(), variant: call.variant, notes, peer, name, call: call.text, input, judge }
    }
}

impl Subject for Contender {
    /// Whatever it returns is compared and reported; only another size is refused.
    fn verify(&mut self) -> Result<Comparison> {
        let mut peer = self.peer.borrow_mut();
        let result = peer.with(&self.input)?.check(&self.call)?;
        peer.silent = 0;
        (self.judge)(&result).map_err(|e| e.context(self.name))
    }

    fn inputs(&self) -> usize {
        self.granule().max(3)
    }

    fn granule(&self) -> usize {
        self.peer.borrow().process.granule()
    }

    fn run(&mut self, _first: usize, frames: usize) -> Result<Option<f64>> {
        self.peer.borrow_mut().with(&self.input)?.time(frames, &self.call).map(Some)
    }
}

/// A peer, if it is there, and its calls for a case.
type Offer<'a> = (&'a Option<Shared>, fn(&Case) -> Vec<Call>);

/// Contenders that filter the case's frame; all get the same.
fn contenders(offers: &[Offer<'_>], case: &Case, plan: &Plan) -> Result<Vec<Contender>> {
    let calls: Vec<(&Shared, Call)> = offers
        .iter()
        .filter_map(|(peer, calls)| Some((peer.as_ref()?, calls(case))))
        .flat_map(|(peer, calls)| calls.into_iter().map(move |call| (peer, call)))
        .collect();
    if calls.is_empty() {
        return Ok(Vec::new());
    }
    let picture = Rc::new(Picture::new(case.shape, Content::Random, 1));
    let kind = match case.shape.format.sample() {
        Sample::U8 => "uint8",
        Sample::U16 => "uint16",
        Sample::F16 => "float16",
        Sample::F32 => "float32",
    };
    let input = Rc::new(Input { kind, shape: vec![case.shape.height, case.shape.width], bytes: bytes(&picture) });
    calls.into_iter().map(|(peer, call)| contender(peer, call, case, plan, (&picture, &input))).collect()
}

/// One call on the case's frame, held to the reference's result.
fn contender(peer: &Shared, call: Call, case: &Case, plan: &Plan, (picture, input): (&Rc<Picture>, &Rc<Input>)) -> Result<Contender> {
    let plan = match &call.graph {
        Some(graph) => Case { graph: graph.clone(), ..case.clone() }.plan()?,
        None => plan.clone(),
    };
    let picture = Rc::clone(picture);
    let judge = move |result: &[u8]| {
        let wrong = |why: String| wrong_result("the peer", why);
        let result = self::picture(result, plan.output());
        let (width, height) = plan.output().plane_size(0);
        let samples = result.planes.first().map_or(0, Vec::len);
        if samples != width * height {
            return Err(wrong_size(samples, width * height));
        }
        let got = result.frame(std::sync::Arc::new(crate::pool::Heap), 0)?;
        let tolerance = Tolerance::of_plan(&plan);
        Judge::within(&plan, &picture, READS).map_err(wrong)?.compare(&got, tolerance).map_err(wrong)
    };
    Ok(Contender::new(peer, call, input, Box::new(judge)))
}

/// A gray picture's samples without padding.
fn bytes(picture: &Picture) -> Vec<u8> {
    let plane = picture.planes.first().map(Vec::as_slice).unwrap_or_default();
    match picture.shape.format.sample() {
        Sample::U8 => plane.iter().map(|&v| v as u8).collect(),
        Sample::U16 => plane.iter().flat_map(|&v| (v as u16).to_le_bytes()).collect(),
        Sample::F16 => plane.iter().flat_map(|&v| f16::from_f64(v).to_le_bytes()).collect(),
        Sample::F32 => plane.iter().flat_map(|&v| (v as f32).to_le_bytes()).collect(),
    }
}

/// The reverse of [`bytes`].
fn picture(bytes: &[u8], shape: crate::frame::Shape) -> Picture {
    let plane = match shape.format.sample() {
        Sample::U8 => bytes.iter().map(|&b| f64::from(b)).collect(),
        Sample::U16 => bytes.as_chunks().0.iter().map(|&b| f64::from(u16::from_le_bytes(b))).collect(),
        Sample::F16 => bytes.as_chunks().0.iter().map(|&b| f16::from_le_bytes(b).to_f64()).collect(),
        Sample::F32 => bytes.as_chunks().0.iter().map(|&b| f64::from(f32::from_le_bytes(b))).collect(),
    };
    Picture { shape, planes: vec![plane] }
}

/// A row's note where a peer's result is not the reference's: it is timed all the same.
pub(super) fn difference(found: &Comparison, plan: &Plan) -> Option<String> {
    let exact = Tolerance::EXACT;
    let integers = !plan.output().format.sample().is_float();
    let (allowed, unit) = if integers { (exact.codes, "code values") } else { (exact.float, "of the range") };
    if found.max_error > allowed {
        return Some(format!("not the same result: up to {:.4} {unit} off", found.max_error));
    }
    // One code value off, but too many of them: rounded down, mostly.
    let share = found.unequal as f64 / (found.samples as f64).max(1.0);
    (integers && share > exact.unequal)
        .then(|| format!("not the same result: {:.1} % of the samples are one code value off", 100.0 * share))
}

/// Our taps of a Gaussian of an odd window, of sum 1.
fn gaussian(k: usize) -> Vec<f64> {
    gaussian_weights(sigma(k), k / 2).into_iter().map(f64::from).collect()
}

/// The weights of the general kernel, of sum 1.
fn mean_weights(k: usize) -> Vec<f64> {
    let taps = weights(k);
    let sum: usize = taps.iter().sum();
    taps.iter().map(|&t| t as f64 / sum as f64).collect()
}

fn joined(numbers: &[f64], by: &str) -> String {
    numbers.iter().map(|v| format!("{v:e}")).collect::<Vec<_>>().join(by)
}

/// The error of a peer's result that has another size.
pub(super) fn wrong_size(got: usize, want: usize) -> Error {
    wrong_result("the peer", format!("its result has {got} values, not {want}"))
}

#[cfg(test)]
mod tests {
    use super::process::tests::{DOUBLES, fake};
    use super::*;
    use crate::bench::child::tests::SHORT;

    fn contender(peer: &Shared, call: &str, input: &Rc<Input>) -> Contender {
        let judge = |result: &[u8]| {
            let samples = result.len() as u64;
            Ok(Comparison { samples, ..Comparison::default() })
        };
        Contender::new(peer, Call::new("a call", call.to_owned()), input, Box::new(judge))
    }

    #[test]
    fn contenders_share_a_process_and_load_their_own_samples() {
        let peer = Running::start(|| fake(DOUBLES)).unwrap();
        let input = |bytes: &[u8]| Rc::new(Input { kind: "uint8", shape: vec![bytes.len()], bytes: bytes.to_vec() });
        let (short, long) = (input(b"ab"), input(b"abcd"));
        let [mut a, mut b] = [contender(&peer, "double", &short), contender(&peer, "double", &long)];
        assert_eq!((a.program.as_str(), a.notes.as_slice()), ("the fake", ["version 1.2".to_owned()].as_slice()));
        for _ in 0..2 {
            assert_eq!(a.verify().unwrap().samples, 4);
            assert_eq!(b.verify().unwrap().samples, 8);
        }
        assert_eq!((a.granule(), a.run(0, 6).unwrap()), (3, Some(6000.0)));
    }

    #[test]
    fn a_process_that_a_call_ended_is_started_again_for_the_next_one() {
        // It ends after any call that it does not know.
        let dies = DOUBLES.replace("continue;", "exit;");
        let peer = Running::start(move || fake(&dies)).unwrap();
        let input = Rc::new(Input { kind: "uint8", shape: vec![2], bytes: b"ab".to_vec() });
        let [mut bad, mut good] = [contender(&peer, "crash", &input), contender(&peer, "double", &input)];
        assert!(bad.verify().is_err());
        while !peer.borrow_mut().process.ended() {
            std::hint::spin_loop();
        }
        assert_eq!(good.verify().unwrap().samples, 4);
        let once = RefCell::new(Some(fake("echo ready 1; read -r line")));
        let peer = Running::start(move || once.borrow_mut().take().unwrap_or_else(|| Err("gone".to_owned()))).unwrap();
        let mut lost = contender(&peer, "x", &input);
        assert!(lost.verify().is_err());
        while !peer.borrow_mut().process.ended() {
            std::hint::spin_loop();
        }
        assert!(lost.verify().unwrap_err().to_string().contains("cannot start the fake again: gone"));
    }

    #[test]
    fn a_peer_that_is_silent_again_and_again_is_left_out() {
        // It does not come back from a call that it does not know.
        let hangs = DOUBLES.replace("echo \"error no call '$rest'\"; continue;", "sleep 1000;");
        assert_ne!(hangs, DOUBLES);
        let peer = Running::start(move || fake(&hangs)).unwrap();
        let input = Rc::new(Input { kind: "uint8", shape: vec![2], bytes: b"ab".to_vec() });
        let [mut bad, mut good] = [contender(&peer, "hang", &input), contender(&peer, "double", &input)];
        let mut silence = || {
            // Only the hanging call is not waited for long: a busy machine may be slow to start a shell.
            let mut running = peer.borrow_mut();
            running.with(&input).unwrap().limit = SHORT;
            drop(running);
            bad.verify().unwrap_err().to_string()
        };
        assert!(silence().starts_with("the fake did not answer within 0.3 s"));
        // It answers in between: that counts.
        assert_eq!(good.verify().unwrap().samples, 4);
        assert!(silence().starts_with("the fake did not") && silence().starts_with("the fake did not"));
        assert_eq!(good.verify().unwrap_err().to_string(), "the fake is left out: 2 times in a row it did not answer");
        assert_eq!(good.verify().unwrap_err().to_string(), "the fake is left out: 2 times in a row it did not answer");
    }

    #[test]
    fn a_result_that_is_not_the_references_is_said_in_numbers() {
        let plan = |format| {
            let shape = crate::frame::Shape { format, width: 8, height: 8 };
            crate::filter::plan(&crate::filter::parse("gblur=1").unwrap(), shape).unwrap()
        };
        let (integers, floats) =
            (plan(crate::frame::PixelFormat::gray(8)), plan(crate::axes::Planes::Gray.format(crate::axes::SampleType::F32).unwrap()));
        let found = |max_error, unequal| Comparison { samples: 1000, unequal, max_error, ..Comparison::default() };
        assert_eq!(difference(&found(1.0, 1), &integers), None);
        assert!(difference(&found(1.0, 500), &integers).unwrap().contains("50.0 % of the samples are one code value off"));
        assert!(difference(&found(3.0, 1), &integers).unwrap().contains("up to 3.0000 code values off"));
        assert_eq!(difference(&found(1e-5, 0), &floats), None);
        assert!(difference(&found(0.01, 0), &floats).unwrap().contains("up to 0.0100 of the range off"));
    }

    #[test]
    fn weights_sum_to_one() {
        for k in [3, 15, 31] {
            assert!((gaussian(k).iter().sum::<f64>() - 1.0).abs() < 1e-7 && gaussian(k).len() == k);
        }
        for k in [2, 3, 15, 31] {
            assert!((mean_weights(k).iter().sum::<f64>() - 1.0).abs() < 1e-12);
        }
        assert_eq!(joined(&[0.5, 2.0], ","), "5e-1,2e0");
    }
}
