//! CUDA against the CPU backend: every operation × size × border × sample type × variant that supports it, plus chains,
//! foreign and cropped frames, many frames over many lanes. Without a GPU each test prints a skip and counts it;
//! `CONVOY_REQUIRE_GPU=1` makes that a failure.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod against_reference;
#[path = "../reference/mod.rs"]
mod reference;
mod timings;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use convoy::backend::cpu::Cpu;
use convoy::backend::cuda::{self, Cuda, variants};
use convoy::backend::{BuildOptions, Device};
use convoy::filter::Border;
use convoy::filter::plan::{Extreme, Plan, PlaneOp, PoolKind};
use convoy::frame::{Frame, PixelFormat, Sample, Shape};
use convoy::pool::Budget;
use reference::gpu::{gpu, tell};
use reference::operations::{
    SOBEL, Suite, boxed, direct, extremum, fractional, gaussian, median, operations, pool, separable, sums, unsharp,
};
use reference::{Content, Picture, Tally, Tolerance, chain, check, expect, options, plan, run};

fn nv12() -> PixelFormat {
    PixelFormat { packing: convoy::frame::Packing::SemiPlanar, ..PixelFormat::yuv(8, 1, 1) }
}

fn p010() -> PixelFormat {
    PixelFormat { packing: convoy::frame::Packing::SemiPlanar, high_bits: true, ..PixelFormat::yuv(10, 1, 1) }
}

/// Variants that can do `plan`'s only step.
fn supporting(plan: &Plan) -> Vec<&'static str> {
    let tasks: Vec<_> = plan.steps.iter().flat_map(variants::Task::of_step).collect();
    let fits = |row: &&variants::Variant| tasks.iter().all(|task| row.supports(task).is_ok());
    let mut names: Vec<_> = variants::TABLE.iter().filter(fits).map(|row| row.name).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// What the CPU backend makes of each picture, as the picture to compare with.
fn on_cpu(plan: &Plan, pictures: &[Picture]) -> Vec<Picture> {
    run(&Cpu, plan, &options(None, None), pictures).unwrap().iter().map(Picture::read).collect()
}

/// What a test found: samples off by one for each variant, and every failure, told as it comes (a test that is ended has told them).
#[derive(Default)]
struct Findings {
    totals: BTreeMap<&'static str, Tally>,
    failures: Vec<String>,
}

impl Findings {
    fn fail(&mut self, failure: String) {
        tell(&failure);
        self.failures.push(failure);
    }

    fn hold(self, name: &str) {
        for (variant, tally) in &self.totals {
            println!("{name} {variant}: {} of {} samples differ by one", tally.unequal, tally.samples);
        }
        assert!(self.failures.is_empty(), "{} failures:\n{}", self.failures.len(), self.failures.join("\n"));
        for (variant, tally) in &self.totals {
            assert!(tally.holds(), "{name}: {variant}: {} of {} samples differ", tally.unequal, tally.samples);
        }
    }
}

/// What the reference makes of frames of halves, and 0; where that takes long, what the CPU does, and how far its own rounding may
/// lie from another: half of the distance between two halves.
fn of_halves(plan: &Plan, pictures: &[Picture]) -> (Vec<Picture>, f64) {
    if convoy::reference::cost(plan) < 3e7 {
        return (pictures.iter().map(|p| expect(plan, p)).collect(), 0.0);
    }
    (on_cpu(plan, pictures), (-11f64).exp2())
}

fn verify(gpu: &Cuda, shape: Shape, border: Border, op: &PlaneOp, contents: &[Content], findings: &mut Findings) {
    let plan = plan(shape, border, op.clone());
    let pictures: Vec<_> = contents.iter().enumerate().map(|(i, &c)| Picture::new(shape, c, 7 * i as u64 + 1)).collect();
    // Near a tie the CPU backend's float sums of deep samples may fall on the other side than sums in double. The reference knows
    // where ties are, at a price.
    let deep = shape.format.sample() == Sample::U16 && shape.format.depth > 12;
    let taps = match op {
        PlaneOp::Separable(op) => op.row.len() * op.col.len(),
        PlaneOp::Direct(op) => op.taps.len(),
        _ => 0,
    };
    if deep && taps > 100 && shape.width > 1000 {
        return;
    }
    let (wants, rounding) = if shape.format.sample() == Sample::F16 {
        of_halves(&plan, &pictures)
    } else if deep && taps > 0 {
        (pictures.iter().map(|p| expect(&plan, p)).collect(), 0.0)
    } else {
        (on_cpu(&plan, &pictures), 0.0)
    };
    for variant in supporting(&plan) {
        let forced = if *op == PlaneOp::Copy { None } else { Some(variant) };
        let at = || format!("{} on {shape}, border {}, {variant}", plan.steps[0].label, border.name());
        let frames = match run(gpu, &plan, &options(forced, None), &pictures) {
            Ok(frames) => frames,
            Err(e) => {
                findings.fail(format!("{}: {e}", at()));
                continue;
            }
        };
        // A wide Gaussian on the CPU and a variant that states a tolerance of its own may differ in more samples, by no more than it.
        let allowed = Tolerance::of_plan(&plan).with_slack(&plan, variants::plan_slack(&plan, variant));
        let allowed = Tolerance { float: allowed.float + rounding, ..allowed };
        let samples: usize = wants[0].planes.iter().map(Vec::len).sum();
        for ((frame, want), content) in frames.iter().zip(&wants).zip(contents) {
            match check(frame, want, allowed.for_few(samples as u64)) {
                Ok(tally) if allowed.unequal <= Tolerance::EXACT.unequal => findings.totals.entry(variant).or_default().add(tally),
                Ok(_) => {}
                Err(e) => findings.fail(format!("{}, {content:?}: {e}", at())),
            }
        }
    }
}

/// Under a sanitizer everything takes a hundred times as long; each kernel's edges are met at the small sizes, under one border for
/// each operation.
fn brief() -> bool {
    std::env::var_os("CONVOY_GPU_BRIEF").is_some()
}

fn verify_format(format: PixelFormat, border: Border) {
    let Some(gpu) = gpu() else { return };
    let brief = brief();
    let sizes: &[(usize, usize)] = if brief { &[(13, 42), (123, 33)] } else { &[(1, 1), (2, 3), (13, 42), (123, 33), (321, 241)] };
    let mut findings = Findings::default();
    for (number, op) in operations(Suite::Gpu, format).iter().enumerate() {
        // Formats whose code paths the others share meet two borders per operation, in turn.
        let shared = format == PixelFormat::yuv(10, 1, 0) || format.packing == convoy::frame::Packing::SemiPlanar;
        let turn = Border::ALL[number % 5] == border;
        if !turn && (brief || shared && Border::ALL[(number + 2) % 5] != border) {
            continue;
        }
        for &(width, height) in sizes {
            let contents = if brief { &Content::ALL[..1] } else { &Content::ALL[..3] };
            verify(gpu, Shape { format, width, height }, border, op, contents, &mut findings);
        }
        // The large size once per operation, with the borders in turn.
        if turn && !brief {
            verify(gpu, Shape { format, width: 1921, height: 1081 }, border, op, &Content::ALL[..1], &mut findings);
        }
    }
    findings.hold(&format!("{format} {}", border.name()));
}

macro_rules! every_border {
    ($($module:ident: $format:expr;)*) => {$(
        mod $module {
            use super::*;

            #[test]
            fn clamp_matches_the_cpu() {
                verify_format($format, Border::Clamp);
            }

            #[test]
            fn zero_matches_the_cpu() {
                verify_format($format, Border::Zero);
            }

            #[test]
            fn reflect_matches_the_cpu() {
                verify_format($format, Border::Reflect);
            }

            #[test]
            fn reflect101_matches_the_cpu() {
                verify_format($format, Border::Reflect101);
            }

            #[test]
            fn wrap_matches_the_cpu() {
                verify_format($format, Border::Wrap);
            }
        }
    )*};
}

every_border! {
    yuv_420_8_bit: PixelFormat::yuv(8, 1, 1);
    yuv_422_10_bit: PixelFormat::yuv(10, 1, 0);
    gray_16_bit: PixelFormat::gray(16);
    gray_float: PixelFormat::gray(32);
    gray_half: PixelFormat::gray(32).half();
    p010_10_bit: p010();
    nv12_8_bit: nv12();
}

/// Every operation on one more format, under the borders in turn, where the choice is automatic.
fn verify_choice(format: PixelFormat) {
    let Some(gpu) = gpu() else { return };
    let mut findings = Findings::default();
    for (number, op) in operations(Suite::Gpu, format).iter().enumerate() {
        let border = Border::ALL[(usize::from(format.depth) + number) % 5];
        let plan = plan(Shape { format, width: 203, height: 97 }, border, op.clone());
        let pictures: Vec<_> = Content::ALL[..2].iter().map(|&c| Picture::new(plan.input, c, 5)).collect();
        let deep = format.sample() == Sample::U16 && format.depth > 12 && matches!(op, PlaneOp::Separable(_) | PlaneOp::Direct(_));
        let exactly = deep || format.sample() == Sample::F16;
        let wants = if exactly { pictures.iter().map(|p| expect(&plan, p)).collect() } else { on_cpu(&plan, &pictures) };
        for (frame, want) in run(gpu, &plan, &options(None, None), &pictures).unwrap().iter().zip(&wants) {
            if let Err(e) = check(frame, want, Tolerance::of_plan(&plan).for_few(203 * 97)) {
                findings.fail(format!("{} on {}, border {}: {e}", plan.steps[0].label, plan.input, border.name()));
            }
        }
    }
    findings.hold(&format.to_string());
}

macro_rules! every_operation {
    ($($test:ident: $format:expr;)*) => {$(
        #[test]
        fn $test() {
            verify_choice($format);
        }
    )*};
}

every_operation! {
    gbr_8_bit_matches_the_cpu: PixelFormat::gbr(8);
    gbra_12_bit_matches_the_cpu: PixelFormat { alpha: true, ..PixelFormat::gbr(12) };
    yuva_420_8_bit_matches_the_cpu: PixelFormat { alpha: true, ..PixelFormat::yuv(8, 1, 1) };
    nv16_8_bit_matches_the_cpu: PixelFormat { chroma_shift_y: 0, ..nv12() };
    p016_16_bit_matches_the_cpu: PixelFormat { depth: 16, ..p010() };
    yuv_444_14_bit_matches_the_cpu: PixelFormat::yuv(14, 0, 0);
    gbr_float_matches_the_cpu: PixelFormat::gbr(32);
    gbra_half_matches_the_reference: PixelFormat { alpha: true, ..PixelFormat::gbr(32).half() };
}

#[test]
fn chains_whose_frames_change_size_match_the_cpu() {
    let Some(gpu) = gpu() else { return };
    for format in [PixelFormat::yuv(8, 1, 1), nv12(), PixelFormat::gray(32)] {
        let input = Shape { format, width: 333, height: 178 };
        let plan = chain(
            input,
            &[
                (Border::Reflect, extremum(Extreme::Max, 40, 3)),
                (Border::Reflect, pool(PoolKind::Mean, [3, 2, 1, 1])),
                (Border::Wrap, boxed(60, 50, 1)),
                (Border::Zero, median(1, 1, 4)),
            ],
        );
        assert_ne!(plan.output(), input);
        let pictures: Vec<_> = (0..5).map(|i| Picture::new(input, Content::ALL[i % 4], i as u64)).collect();
        let wants = on_cpu(&plan, &pictures);
        for (frame, want) in run(gpu, &plan, &options(None, None), &pictures).unwrap().iter().zip(&wants) {
            check(frame, want, Tolerance::of_plan(&plan).for_few(203 * 97)).unwrap_or_else(|e| panic!("{format}: {e}"));
        }
    }
}

#[test]
fn planes_with_different_operations_and_chains_match_the_cpu() {
    let Some(gpu) = gpu() else { return };
    for format in [PixelFormat::yuv(8, 1, 1), PixelFormat::yuv(10, 0, 0), p010()] {
        let shape = Shape { format, width: 333, height: 177 };
        let mut steps = chain(
            shape,
            &[
                (Border::Clamp, separable(gaussian(1.5, 5), gaussian(1.5, 5))),
                (Border::Reflect, direct(3, 3, 11)),
                (Border::Zero, boxed(40, 40, 1)),
                (Border::Wrap, unsharp(5, 5, 1.0)),
                (Border::Reflect101, boxed(2, 3, 2)),
            ],
        );
        // Luma alone, chroma alone, and a plane with a kernel of its own.
        steps.steps[0].planes[1] = PlaneOp::Copy;
        steps.steps[0].planes[2] = PlaneOp::Copy;
        steps.steps[1].planes[0] = PlaneOp::Copy;
        steps.steps[3].planes[1] = unsharp(3, 3, 0.5);
        let pictures: Vec<_> = (0..6).map(|i| Picture::new(shape, Content::ALL[i % 4], i as u64)).collect();
        let wants = on_cpu(&steps, &pictures);
        for (frame, want) in run(gpu, &steps, &options(None, None), &pictures).unwrap().iter().zip(&wants) {
            // One code value per step could add up; equal inputs of each step keep it to a few.
            let tolerance = Tolerance { codes: 2.0, ..Tolerance::EXACT };
            check(frame, want, tolerance).unwrap_or_else(|e| panic!("{format}: {e}"));
        }
        // No filter at all is a transcode: bit for bit.
        let none = Plan { input: shape, steps: Vec::new() };
        for (frame, picture) in run(gpu, &none, &options(None, None), &pictures).unwrap().iter().zip(&pictures) {
            assert_eq!(check(frame, picture, Tolerance { codes: 0.0, float: 0.0, unequal: 0.0 }).unwrap().unequal, 0);
        }
    }
}

/// What `bench` verifies before it times: buffers that were filled from frames whose pitch on the host is not the device's (4:2:0 of
/// 1920 samples has 2048 bytes to a row there).
#[test]
fn prepared_measurements_read_their_frames() {
    use convoy::backend::cuda::measure::Prepared;
    let Some(gpu) = gpu() else { return };
    for format in [PixelFormat::gray(8), PixelFormat::yuv(8, 1, 1), PixelFormat::yuv(10, 1, 0), nv12(), PixelFormat::gray(32)] {
        let shape = Shape { format, width: 1920, height: 70 };
        let plan = plan(shape, Border::Clamp, separable(gaussian(2.5, 7), gaussian(2.5, 7)));
        let pictures: Vec<_> = Content::ALL[..2].iter().map(|&c| Picture::new(shape, c, 3)).collect();
        let frames: Vec<_> = pictures.iter().map(|p| p.frame(reference::heap(), 0).unwrap()).collect();
        let prepared = Prepared::new(gpu, &plan, None, &frames).unwrap();
        prepared.run_on_spoiled_outputs().unwrap();
        for index in [0, 1, prepared.sets() - 1] {
            let want = expect(&plan, &pictures[index % 2]);
            let tolerance = Tolerance::EXACT.for_few(want.planes.iter().map(|p| p.len() as u64).sum());
            check(&prepared.result(index).unwrap(), &want, tolerance).unwrap_or_else(|e| panic!("{format}, set {index}: {e}"));
        }
        let other = Picture::new(Shape { width: 1919, ..shape }, Content::Random, 3).frame(reference::heap(), 0).unwrap();
        assert!(Prepared::new(gpu, &plan, None, &[other]).is_err());
    }
}

#[test]
fn three_hundred_frames_over_eight_lanes_equal_one_lane_and_repeat() {
    let Some(gpu) = gpu() else { return };
    let shape = Shape { format: PixelFormat::yuv(8, 1, 1), width: 640, height: 360 };
    let plan = chain(shape, &[(Border::Clamp, separable(gaussian(2.0, 6), gaussian(2.0, 6))), (Border::Clamp, PlaneOp::Gradient(SOBEL))]);
    let pictures: Vec<_> = (0..300).map(|i| Picture::new(shape, Content::ALL[i % 4], 1000 + i as u64)).collect();
    let with = |lanes| BuildOptions { lanes: Some(lanes), threads: None, variant: None, budget: Budget::new(usize::MAX) };
    let planes = |frames: Vec<Frame>| -> Vec<_> { frames.iter().map(|f| Picture::read(f).planes).collect() };
    let one = planes(run(gpu, &plan, &with(1), &pictures).unwrap());
    let eight = planes(run(gpu, &plan, &with(8), &pictures).unwrap());
    let again = planes(run(gpu, &plan, &with(8), &pictures).unwrap());
    for (index, ((a, b), c)) in one.iter().zip(&eight).zip(&again).enumerate() {
        assert!(a == b, "frame {index} differs between 1 and 8 lanes");
        assert!(b == c, "frame {index} differs between two runs");
    }
}

#[test]
fn transfers_are_one_each_way_and_times_are_counted() {
    let Some(gpu) = gpu() else { return };
    let shape = Shape { format: PixelFormat::yuv(8, 1, 1), width: 640, height: 360 };
    let plan = plan(shape, Border::Clamp, separable(gaussian(2.0, 6), gaussian(2.0, 6)));
    let mut built = gpu.build(&plan, &options(None, None)).unwrap();
    let picture = Picture::new(shape, Content::Random, 5);
    let mut due = Vec::new();
    for seq in 0..10 {
        built.submitter.submit(picture.frame(gpu.host_memory(), seq).unwrap(), &mut due).unwrap();
        let frame = built.collector.wait(due.pop().unwrap()).unwrap();
        assert_eq!(frame.seq, seq);
    }
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let stats = &built.stats;
    assert_eq!((count(&stats.frames), count(&stats.uploads), count(&stats.downloads)), (10, 10, 10));
    assert_eq!(count(&stats.host_copied_bytes), 0);
    assert!(count(&stats.upload_ns) > 0 && count(&stats.kernel_ns) > 0 && count(&stats.download_ns) > 0);
    println!("{:?}", built.notes);
}

#[test]
fn wrong_frames_tickets_and_variants_are_errors() {
    let Some(gpu) = gpu() else { return };
    let shape = Shape { format: PixelFormat::gray(8), width: 64, height: 64 };
    let blur = |radius| plan(shape, Border::Clamp, separable(gaussian(9.0, radius), gaussian(9.0, radius)));
    let mut built = gpu.build(&blur(3), &options(None, None)).unwrap();
    let other = Picture::new(Shape { width: 65, ..shape }, Content::Random, 1);
    let mut due = Vec::new();
    let error = built.submitter.submit(other.frame(gpu.host_memory(), 0).unwrap(), &mut due).unwrap_err().to_string();
    assert!(error.contains("65x64") && error.contains("64x64"), "{error}");
    let picture = Picture::new(shape, Content::Random, 1);
    built.submitter.submit(picture.frame(gpu.host_memory(), 4).unwrap(), &mut due).unwrap();
    let wrong = convoy::backend::Ticket { seq: 5, ..due[0] };
    assert!(built.collector.wait(wrong).unwrap_err().to_string().contains("in order"));
    let error = gpu.build(&blur(40), &options(Some("fused"), None)).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("limited to 32"), "{error}");
    let none = BuildOptions { lanes: Some(0), ..options(None, None) };
    assert!(gpu.build(&blur(3), &none).is_err());
    // A collector whose submitter is gone with nothing in flight says so instead of waiting for ever.
    let mut built = gpu.build(&blur(3), &options(None, None)).unwrap();
    drop(built.submitter);
    assert!(built.collector.wait(due[0]).is_err());
}

#[test]
fn without_a_gpu_opening_and_probing_explain_themselves() {
    let report = cuda::probe();
    match cuda::open(0) {
        Ok(_) => assert!(report.driver_present && report.compiler.is_ok() && !report.devices.unwrap().is_empty()),
        Err(error) => assert!(error.to_string().contains("hint:"), "{error}"),
    }
    // An index beyond the last GPU is an error either way.
    assert!(cuda::open(999).is_err());
}
