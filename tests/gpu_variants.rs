//! The stations of the race on a GPU: every variant of general and separable kernels × kernel size × format × border × block size
//! against the f64 reference, each within the tolerance that it states, outputs poisoned. Without a GPU each test prints a skip;
//! `CONVOY_REQUIRE_GPU=1` makes that, and a missing cuBLAS or cuFFT, a failure.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod reference;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::ThreadId;

use convoy::backend::BuildOptions;
use convoy::backend::Device;
use convoy::backend::cuda::Cuda;
use convoy::backend::cuda::measure::Settings;
use convoy::backend::cuda::tuning::{Tuning, tune_into};
use convoy::backend::cuda::variants::{Machine, TABLE, Task, Variant, pick};
use convoy::filter::Border;
use convoy::filter::plan::{Plan, PlaneOp};
use convoy::frame::{Frame, Packing, PixelFormat, Sample, Shape};
use convoy::pool::Budget;
use reference::gpu::{gpu, required, tell};
use reference::operations::{direct, fractional, gaussian, separable};
use reference::{Content, Noise, Picture, Tolerance, chain, check, expect, options, plan, run};

/// Odd and even sizes from 1 to 31, and long lines.
fn operations() -> Vec<PlaneOp> {
    vec![
        direct(1, 1, 1),
        direct(3, 3, 2),
        fractional(3, 3, 3),
        direct(2, 2, 4),
        direct(3, 2, 5),
        direct(1, 3, 6),
        direct(5, 5, 7),
        fractional(6, 9, 8),
        direct(8, 4, 9),
        direct(15, 15, 10),
        direct(31, 31, 11),
        fractional(30, 17, 12),
        direct(101, 1, 13),
        separable(gaussian(1.0, 1), gaussian(0.7, 1)),
        separable(gaussian(1.5, 4), gaussian(1.0, 3)),
        separable([0.05f32, 0.3, -0.1, 0.75].as_slice().into(), gaussian(3.0, 9)),
    ]
}

/// Σ|w| · |scale|.
fn gain(op: &PlaneOp) -> f64 {
    let size = |taps: &[f32]| taps.iter().map(|&w| f64::from(w).abs()).sum::<f64>();
    match op {
        PlaneOp::Direct(op) => size(&op.taps) * f64::from(op.scale).abs(),
        PlaneOp::Separable(op) => size(&op.row) * size(&op.col) * f64::from(op.scale).abs(),
        _ => 1.0,
    }
}

/// As the variant states it: exact rows by the general rule, others by how far their sum may be off before it is rounded.
fn verify(frame: &Frame, want: &Picture, slack: f64, gain: f64) -> Result<f64, String> {
    if slack == 0.0 {
        return check(frame, want, Tolerance::EXACT).map(|tally| tally.unequal as f64 / tally.samples as f64);
    }
    let format = want.shape.format;
    let max = f64::from(format.max_value());
    let bound = slack * max * gain;
    let mut worst = 0f64;
    for (plane, (got, want_plane)) in Picture::read(frame).planes.iter().zip(&want.planes).enumerate() {
        assert_eq!(got.len(), want_plane.len());
        for (i, (&got, &want)) in got.iter().zip(want_plane).enumerate() {
            let holds = match format.sample() {
                Sample::F32 => {
                    worst = worst.max((got - want).abs() / (max * gain));
                    (got - want).abs() <= bound
                }
                Sample::F16 => {
                    // Any half that a value within the bound would be rounded to.
                    let nearest = |v: f64| half::f16::from_f64(v).to_f64();
                    (nearest(want - bound)..=nearest(want + bound)).contains(&got)
                }
                Sample::U8 | Sample::U16 => {
                    let code = |v: f64| (v + 0.5).floor().clamp(0.0, max);
                    (code(want - bound)..=code(want + bound)).contains(&got) && got.fract() == 0.0
                }
            };
            if !holds {
                return Err(format!("plane {plane}, sample {i}: got {got}, want {want} within {bound}"));
            }
        }
    }
    Ok(worst)
}

/// Whether a row is to be run: `CONVOY_ROWS=texture,gemm` runs these alone, `CONVOY_ROWS=-texture,gemm` all but these.
fn wanted(name: &str) -> bool {
    let Ok(rows) = std::env::var("CONVOY_ROWS") else { return true };
    match rows.strip_prefix('-') {
        Some(others) => others.split(',').all(|row| row != name),
        None => rows.split(',').any(|row| row == name),
    }
}

fn rows(plan: &Plan) -> (Vec<&'static Variant>, Task) {
    // Planes of one component and of two (semi-planar chroma): a row must do both.
    let tasks = Task::of_step(&plan.steps[0]);
    let rows = TABLE.iter().filter(|row| wanted(row.name));
    let rows = rows.filter(|row| tasks.iter().all(|task| row.specs(task).is_ok()));
    let available = rows.filter(|row| match tasks.iter().try_for_each(|task| row.supports(task)) {
        Ok(()) => true,
        Err(why) => {
            assert!(!required(), "CONVOY_REQUIRE_GPU=1, but {}: {why}", row.name);
            println!("SKIPPED: {}: {why}", row.name);
            false
        }
    });
    let available = available.collect();
    (available, tasks.into_iter().next().unwrap())
}

/// What each thread runs: a kernel that reaches outside its buffers takes everybody's context with it, and whoever waits first is told.
fn in_flight() -> MutexGuard<'static, HashMap<ThreadId, String>> {
    static ROWS: OnceLock<Mutex<HashMap<ThreadId, String>>> = OnceLock::new();
    ROWS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// After an error that no later call survives: all that may have caused it.
fn suspects(error: &str) -> Option<String> {
    let lost = ["ILLEGAL_ADDRESS", "MISALIGNED", "ILLEGAL_INSTRUCTION", "LAUNCH_FAILED", "ASSERT"].iter().any(|e| error.contains(e));
    lost.then(|| in_flight().values().map(|row| format!("    {row}\n")).collect())
}

/// Rows of every variant met so far: frames and the worst error; failures are told as they come.
#[derive(Default)]
struct Sweep {
    worst: BTreeMap<&'static str, (usize, f64)>,
    failures: usize,
}

impl Sweep {
    /// Every variant of `op` on one shape; the contents' seeds come from `number`.
    fn run(&mut self, gpu: &Cuda, shape: Shape, border: Border, op: &PlaneOp, number: usize, contents: &[Content]) {
        let plan = plan(shape, border, op.clone());
        let pictures: Vec<_> = contents.iter().map(|&c| Picture::new(shape, c, 31 + number as u64)).collect();
        let wants: Vec<_> = pictures.iter().map(|p| expect(&plan, p)).collect();
        let (rows, task) = rows(&plan);
        for row in rows {
            let at = format!("{} on {shape}, border {}, operation {number} {}", row.name, border.name(), describe(op));
            in_flight().insert(std::thread::current().id(), at.clone());
            let verdict = match run(gpu, &plan, &options(Some(row.name), None), &pictures) {
                Ok(frames) => frames
                    .iter()
                    .zip(&wants)
                    .try_fold(0f64, |worst, (frame, want)| verify(frame, want, row.slack(&task), gain(op)).map(|found| worst.max(found))),
                Err(e) => Err(e.to_string()),
            };
            match verdict {
                Ok(found) => {
                    let entry = self.worst.entry(row.name).or_default();
                    *entry = (entry.0 + wants.len(), entry.1.max(found));
                }
                Err(e) => {
                    self.failures += 1;
                    tell(&format!("{at}: {e}"));
                    if let Some(others) = suspects(&e) {
                        tell(&format!("the GPU's context is lost; one of these did it:\n{others}"));
                        panic!("{at}: {e}");
                    }
                }
            }
        }
    }

    fn hold(self, name: &str) {
        println!("{name}: frames, worst {:?}", self.worst);
        assert_eq!(self.failures, 0, "{name}: see the lines above");
    }
}

fn sweep(format: PixelFormat, borders: &[Border], sizes: &[(usize, usize)], select: impl Fn(usize) -> bool) {
    let Some(gpu) = gpu() else { return };
    let mut sweep = Sweep::default();
    // Under a sanitizer each kernel counts, not each value.
    let brief = std::env::var_os("CONVOY_GPU_BRIEF").is_some();
    let contents = if brief { &Content::ALL[..1] } else { &Content::ALL[..3] };
    for (number, op) in operations().into_iter().enumerate().filter(|(number, _)| select(*number)) {
        for &border in borders {
            for &(width, height) in sizes.iter().skip(usize::from(brief && sizes.len() > 1)) {
                sweep.run(gpu, Shape { format, width, height }, border, &op, number, contents);
            }
        }
    }
    sweep.hold(&format.to_string());
}

/// Kernel sizes `first`, `first` + 8 … up to 31, general and separable: small frames under every border, large ones with the borders
/// in turn.
fn sweep_kernel_sizes(format: PixelFormat, first: usize) {
    let Some(gpu) = gpu() else { return };
    let mut sweep = Sweep::default();
    for n in (first..=31).step_by(8) {
        let seed = n as u64;
        // Gaussians have odd sizes; even ones get weights without any symmetry.
        let line = |sigma: f64| if n % 2 == 1 { gaussian(sigma, n as i64 / 2) } else { lopsided(n, seed) };
        let line = line(n as f64 / 6.0 + 0.3);
        for (kind, op) in [direct(n, n, seed), fractional(n, n, seed), separable(line.clone(), line)].into_iter().enumerate() {
            let number = 3 * n + kind;
            for (turn, border) in Border::ALL.into_iter().enumerate() {
                sweep.run(gpu, Shape { format, width: 1, height: 1 }, border, &op, number, &Content::ALL[..3]);
                sweep.run(gpu, Shape { format, width: 9, height: 7 }, border, &op, number, &Content::ALL[..3]);
                sweep.run(gpu, Shape { format, width: 321, height: 241 }, border, &op, number, &Content::ALL[(number + turn) % 3..][..1]);
                // Fractional weights meet the same code as whole ones, but for the rows that want whole ones.
                if turn == number % 5 && kind != 1 {
                    sweep.run(gpu, Shape { format, width: 1096, height: 2449 }, border, &op, number, &Content::ALL[..1]);
                    sweep.run(gpu, Shape { format, width: 1920, height: 1080 }, border, &op, number, &Content::ALL[..1]);
                }
            }
        }
    }
    sweep.hold(&format!("{format}, kernel sizes {first}, {} ...", first + 8));
}

/// `size` positive weights without symmetry that sum to 1.
fn lopsided(size: usize, seed: u64) -> std::sync::Arc<[f32]> {
    let mut noise = Noise(seed);
    let weights: Vec<f64> = (0..size).map(|i| 1.0 + i as f64 + noise.below(9) as f64).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|w| (w / sum) as f32).collect()
}

fn describe(op: &PlaneOp) -> String {
    match op {
        PlaneOp::Direct(op) => format!("{}x{}", op.width, op.height),
        PlaneOp::Separable(op) => format!("{}x{} separable", op.row.len(), op.col.len()),
        _ => String::new(),
    }
}

fn nv12() -> PixelFormat {
    PixelFormat { packing: Packing::SemiPlanar, ..PixelFormat::yuv(8, 1, 1) }
}

fn p010() -> PixelFormat {
    PixelFormat { packing: Packing::SemiPlanar, high_bits: true, ..PixelFormat::yuv(10, 1, 1) }
}

const SMALL: [(usize, usize); 3] = [(1, 1), (9, 7), (213, 97)];

macro_rules! sweeps {
    ($($name:ident: $format:expr, $border:expr;)*) => {$(
        #[test]
        fn $name() {
            sweep($format, &[$border], &SMALL, |_| true);
        }
    )*};
}

sweeps! {
    planar_8_bit_clamp: PixelFormat::yuv(8, 1, 1), Border::Clamp;
    planar_8_bit_zero: PixelFormat::yuv(8, 1, 1), Border::Zero;
    planar_8_bit_reflect: PixelFormat::yuv(8, 1, 1), Border::Reflect;
    planar_8_bit_reflect101: PixelFormat::yuv(8, 1, 1), Border::Reflect101;
    planar_8_bit_wrap: PixelFormat::yuv(8, 1, 1), Border::Wrap;
    float_zero: PixelFormat::gray(32), Border::Zero;
    float_wrap: PixelFormat::gray(32), Border::Wrap;
    half_clamp: PixelFormat::gray(32).half(), Border::Clamp;
    half_wrap: PixelFormat::gray(32).half(), Border::Wrap;
    deep_clamp: PixelFormat::gray(16), Border::Clamp;
    deep_zero: PixelFormat::gray(16), Border::Zero;
    semi_planar_8_bit: nv12(), Border::Reflect;
    semi_planar_10_bit: p010(), Border::Wrap;
}

macro_rules! kernel_sizes {
    ($($module:ident: $format:expr;)*) => {$(
        /// `cargo test --release --test gpu_variants kernel_sizes -- --ignored`: every kernel size from 1 to 31.
        mod $module {
            use super::*;

            kernel_sizes!(@from $format, from_1: 1, from_2: 2, from_3: 3, from_4: 4, from_5: 5, from_6: 6, from_7: 7, from_8: 8);
        }
    )*};
    (@from $format:expr, $($test:ident: $first:expr),*) => {$(
        #[test]
        #[ignore = "minutes: thousands of kernels to compile, large frames for the reference"]
        fn $test() {
            sweep_kernel_sizes($format, $first);
        }
    )*};
}

kernel_sizes! {
    kernel_sizes_8_bit: PixelFormat::gray(8);
    kernel_sizes_float: PixelFormat::gray(32);
    kernel_sizes_half: PixelFormat::gray(32).half();
    kernel_sizes_16_bit: PixelFormat::gray(16);
}

/// `CONVOY_ROWS=fft cargo test --release --test gpu_variants side_by_side -- --ignored`: as many threads as cores build, run and drop lanes of
/// the same few rows for a while. A fault that only threads meet shows here, and by which rows; alone every row is clean under the sanitizers.
#[test]
#[ignore = "40 seconds of all cores, to look for faults between threads"]
fn threads_side_by_side() {
    let Some(gpu) = gpu() else { return };
    let end = std::time::Instant::now() + std::time::Duration::from_secs(40);
    let formats = [PixelFormat::gray(8), PixelFormat::gray(16), PixelFormat::gray(32), PixelFormat::gray(32).half()];
    let threads = std::thread::available_parallelism().map_or(4, usize::from);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                let (mut sweep, mut noise) = (Sweep::default(), Noise(thread as u64));
                let mut of = |n: usize| noise.below(n as u64) as usize;
                let operations = operations();
                while std::time::Instant::now() < end {
                    let (format, border, number) = (formats[of(4)], Border::ALL[of(5)], of(operations.len()));
                    let (width, height) = [(1, 1), (13, 42), (123, 33), (321, 241)][of(4)];
                    sweep.run(gpu, Shape { format, width, height }, border, &operations[number], number, &Content::ALL[..2]);
                }
                sweep.hold(&format!("thread {thread}"));
            });
        }
    });
}

#[test]
fn larger_planes() {
    sweep(PixelFormat::gray(8), &[Border::Clamp], &[(1096, 2449)], |n| n == 1 || n == 6);
    sweep(PixelFormat::gray(32), &[Border::Reflect], &[(1921, 1081)], |n| n == 2 || n == 13);
}

#[test]
fn block_sizes() {
    let Some(gpu) = gpu() else { return };
    let shape = Shape { format: PixelFormat::yuv(8, 1, 1), width: 213, height: 97 };
    for op in [direct(5, 5, 1), separable(gaussian(1.5, 4), gaussian(1.0, 3))] {
        let plan = plan(shape, Border::Clamp, op);
        let picture = Picture::new(shape, Content::Random, 5);
        let want = expect(&plan, &picture);
        for name in ["constant", "tiled", "texture"] {
            for block in ["16x16", "32x8", "8x32", "32x32", "64x4", "128x1"] {
                let frames = run(gpu, &plan, &options(Some(&format!("{name}:{block}")), None), std::slice::from_ref(&picture)).unwrap();
                check(&frames[0], &want, Tolerance::EXACT).unwrap_or_else(|e| panic!("{name}:{block}: {e}"));
            }
        }
    }
}

#[test]
fn two_steps_with_constant_weights_keep_their_own() {
    let Some(gpu) = gpu() else { return };
    let shape = Shape { format: PixelFormat::gray(8), width: 100, height: 70 };
    let plan = chain(shape, &[(Border::Clamp, direct(3, 3, 20)), (Border::Clamp, direct(3, 3, 21))]);
    let picture = Picture::new(shape, Content::Random, 5);
    let want = expect(&plan, &picture);
    let frames = run(gpu, &plan, &options(Some("constant"), None), std::slice::from_ref(&picture)).unwrap();
    // A code value off in the first step is multiplied by the second.
    check(&frames[0], &want, Tolerance { codes: 2.0, ..Tolerance::EXACT }).unwrap();
}

#[test]
fn three_hundred_frames_over_eight_lanes_equal_one_lane() {
    let Some(gpu) = gpu() else { return };
    let shape = Shape { format: PixelFormat::yuv(8, 1, 1), width: 320, height: 180 };
    let plan = plan(shape, Border::Clamp, direct(7, 7, 3));
    let pictures: Vec<_> = (0..300).map(|i| Picture::new(shape, Content::ALL[i % 4], 1000 + i as u64)).collect();
    let (rows, _) = rows(&plan);
    for row in rows {
        let with = |lanes| {
            let options =
                BuildOptions { lanes: Some(lanes), threads: None, variant: Some(row.name.to_owned()), budget: Budget::new(usize::MAX) };
            let frames = run(gpu, &plan, &options, &pictures).unwrap();
            frames.iter().map(|f| Picture::read(f).planes).collect::<Vec<_>>()
        };
        let one = with(1);
        for _ in 0..20 {
            assert!(one == with(8), "{}: eight lanes differ from one", row.name);
        }
    }
}

#[test]
fn measured_times_are_stored_and_decide() {
    let Some(gpu) = gpu() else { return };
    let folder = tempfile::tempdir().unwrap();
    assert!(gpu.info().uuid.starts_with("GPU-") && gpu.info().uuid.len() == 40, "{}", gpu.info().uuid);
    let open = || Tuning::open_in(Some(folder.path()), gpu.info(), gpu.driver());
    let shape = Shape { format: PixelFormat::yuv(8, 1, 1), width: 640, height: 360 };
    let plan = plan(shape, Border::Clamp, direct(5, 5, 1));
    let settings = Settings { warm_up: std::time::Duration::from_millis(2), repetitions: 3 };
    tune_into(&mut open(), gpu, &plan, settings).unwrap();
    let (store, task) = (open(), Task::of_step(&plan.steps[0]).remove(0));
    let times = store.find(&task).unwrap();
    println!("{:?}", times.ranked());
    assert!(times.ranked().len() >= 5 && times.ranked().iter().all(|&(_, us)| us > 0.0));
    let machine = Machine::of(gpu.info());
    let choice = pick(&task, "", None, machine, Some(times)).unwrap();
    let exact = |name: &str| TABLE.iter().any(|row| row.name == name && row.families.contains(&"direct") && row.slack(&task) == 0.0);
    assert_eq!(Some(choice.row.name), times.ranked().into_iter().map(|(name, _)| name).find(|name| exact(name)));
    assert!(choice.why.contains("measured"), "{}", choice.why);
    // Whatever the model says, the measurement overrules it.
    let mut turned = times.clone();
    turned.set("naive", 0.001);
    assert_eq!(pick(&task, "", None, machine, Some(&turned)).unwrap().row.name, "naive");
}

#[test]
fn the_checker_finds_one_wrong_code() {
    let shape = Shape { format: PixelFormat::gray(8), width: 31, height: 9 };
    let picture = Picture::new(shape, Content::Random, 5);
    let frame = picture.frame(reference::heap(), 0).unwrap();
    verify(&frame, &picture, 4e-6, 1.0).unwrap();
    let mut other = picture.clone();
    other.planes[0][77] += 1.0;
    assert!(verify(&frame, &other, 4e-6, 1.0).is_err());
}

/// `cargo test --release --test gpu_variants timings -- --ignored --nocapture`: every row beside the copy.
#[test]
#[ignore = "a measurement, not a test"]
fn timings() {
    use convoy::backend::cuda::measure::measure;
    let Some(gpu) = gpu() else { return };
    println!("{}", gpu.describe());
    let f32s = PixelFormat::gray(32);
    let gray8 = PixelFormat::gray(8);
    let cases = [
        ("3x3", f32s, direct(3, 3, 2)),
        ("7x7", f32s, direct(7, 7, 2)),
        ("31x31", f32s, direct(31, 31, 2)),
        ("63x63", f32s, direct(63, 63, 2)),
        ("127x127", f32s, direct(127, 127, 2)),
        ("3x3", gray8, direct(3, 3, 2)),
        ("7x7", gray8, direct(7, 7, 2)),
        ("31x31", gray8, direct(31, 31, 2)),
        ("7x7", PixelFormat::yuv(8, 1, 1), direct(7, 7, 2)),
        ("gauss 7x7", f32s, separable(gaussian(1.0, 3), gaussian(1.0, 3))),
    ];
    println!("{:<10} {:<22} {:<12} {:>9} {:>9} {:>9} {:>8}  registers/shared", "case", "shape", "variant", "us", "p5", "p95", "copy us");
    for (name, format, op) in cases {
        let shape = Shape { format, width: 1920, height: 1080 };
        let plan = plan(shape, Border::Clamp, op);
        for row in rows(&plan).0 {
            let m = match measure(gpu, &plan, Some(row.name), Settings { repetitions: 7, ..Settings::default() }) {
                Ok(m) => m,
                Err(e) => {
                    println!("{name} {}: {e}", row.name);
                    continue;
                }
            };
            let mut resources: Vec<_> = m.kernels.iter().map(|k| format!("{}/{}", k.registers, k.shared_bytes)).collect();
            resources.dedup();
            println!(
                "{name:<10} {:<22} {:<12} {:>9.2} {:>9.2} {:>9.2} {:>8.2}  {}",
                shape.to_string(),
                row.name,
                m.kernel.median(),
                m.kernel.quantile(0.05),
                m.kernel.quantile(0.95),
                m.copy.median(),
                resources.join(" ")
            );
        }
    }
}
