//! CUDA against the reference itself, which knows where ties are: the rows that sum in whole numbers or in parts, the high blocks of
//! smoothing kernels, and small frames of every weighted sum.

use super::*;

/// Each operation under a border of its own, side by side, on the rows that are named here. All failures are listed.
fn verify_sums(format: PixelFormat) {
    let Some(gpu) = gpu() else { return };
    let names = ["tensor", "tensor8", "integer", "registers", "levels", "running"];
    let asymmetric = || -> Arc<[f32]> { [0.05f32, 0.3, -0.1, 0.75].as_slice().into() };
    let operations = [
        separable([1.0f32].as_slice().into(), asymmetric()),
        separable(asymmetric(), gaussian(1.5, 5)),
        separable(gaussian(2.5, 7), gaussian(2.5, 7)),
        separable(gaussian(5.0, 15), gaussian(1.0, 3)),
        separable(gaussian(6.0, 16), gaussian(7.0, 32)),
        direct(3, 3, 2),
        direct(4, 2, 5),
        direct(7, 7, 4),
        direct(9, 9, 12),
        fractional(3, 3, 8),
        fractional(9, 9, 9),
        fractional(31, 31, 13),
        boxed(7, 7, 1),
        boxed(15, 31, 1),
        boxed(60, 40, 1),
        median(7, 7, 112),
        median(4, 8, 0),
        median(8, 7, 254),
    ];
    let verify = &|number: usize, op: &PlaneOp| {
        let plan = plan(Shape { format, width: 300, height: 41 }, Border::ALL[number % 5], op.clone());
        let pictures: Vec<_> = Content::ALL[..2].iter().map(|&c| Picture::new(plan.input, c, 3 + number as u64)).collect();
        let wants: Vec<_> = pictures.iter().map(|p| expect(&plan, p)).collect();
        let boxes = matches!(op, PlaneOp::Box(_));
        let mut found = Vec::new();
        for variant in supporting(&plan).into_iter().filter(|name| names.contains(name) || (boxes && *name == "fused")) {
            for (frame, want) in run(gpu, &plan, &options(Some(variant), None), &pictures).unwrap().iter().zip(&wants) {
                let verdict = check(frame, want, Tolerance::EXACT);
                found.push((variant, verdict.map_err(|e| format!("{variant} of {} on {}: {e}", plan.steps[0].label, plan.input))));
            }
        }
        found
    };
    let found: Vec<_> = if brief() {
        // Sanitizers lose launches of many threads.
        operations.iter().enumerate().flat_map(|(number, op)| verify(number, op)).collect()
    } else {
        std::thread::scope(|scope| {
            let threads: Vec<_> = operations.iter().enumerate().map(|(number, op)| scope.spawn(move || verify(number, op))).collect();
            threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
        })
    };
    let (mut totals, mut failures) = (BTreeMap::<&str, Tally>::new(), Vec::new());
    for (variant, verdict) in found {
        match verdict {
            Ok(tally) => totals.entry(variant).or_default().add(tally),
            Err(e) => failures.push(e),
        }
    }
    for (variant, tally) in &totals {
        println!("{format} {variant}: {} of {} samples differ by one", tally.unequal, tally.samples);
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

macro_rules! sums {
    ($($test:ident: $format:expr;)*) => {$(
        #[test]
        fn $test() {
            verify_sums($format);
        }
    )*};
}

sums! {
    sums_of_420_8_bit_match_the_reference: PixelFormat::yuv(8, 1, 1);
    sums_of_nv12_match_the_reference: nv12();
    sums_of_p010_match_the_reference: p010();
    sums_of_floats_match_the_reference: PixelFormat::gray(32);
}

/// Frames that are large enough for the high blocks of the products in whole numbers, with edges that no tile ends at.
#[test]
fn high_blocks_of_smoothing_kernels_match_the_reference() {
    let Some(gpu) = gpu() else { return };
    let shape = Shape { format: PixelFormat::gray(8), width: 4099, height: 2167 };
    for (border, op) in [
        (Border::Reflect101, separable(gaussian(2.5, 7), gaussian(2.5, 7))),
        (Border::Zero, separable(gaussian(1.5, 5), gaussian(5.0, 15))),
        (Border::Wrap, separable(gaussian(7.0, 20), gaussian(3.0, 9))),
    ] {
        let plan = plan(shape, border, op);
        let picture = Picture::new(shape, Content::Random, 5);
        let frames = run(gpu, &plan, &options(Some("tensor8"), None), std::slice::from_ref(&picture)).unwrap();
        let found = check(&frames[0], &expect(&plan, &picture), Tolerance::EXACT).unwrap_or_else(|e| panic!("{}: {e}", border.name()));
        println!("{}: {} of {} samples differ by one", border.name(), found.unequal, found.samples);
    }
}

#[test]
fn small_frames_match_the_reference_itself() {
    let Some(gpu) = gpu() else { return };
    for format in [PixelFormat::yuv(8, 1, 1), PixelFormat::gray(16), PixelFormat::gray(32)] {
        for op in sums(Suite::Gpu) {
            let shape = Shape { format, width: 61, height: 43 };
            let plan = plan(shape, Border::Reflect, op);
            let pictures: Vec<_> = Content::ALL.iter().map(|&c| Picture::new(shape, c, 3)).collect();
            for (frame, picture) in run(gpu, &plan, &options(None, None), &pictures).unwrap().iter().zip(&pictures) {
                check(frame, &expect(&plan, picture), Tolerance::EXACT.for_few(61 * 43))
                    .unwrap_or_else(|e| panic!("{}: {e}", plan.steps[0].label));
            }
        }
    }
}
