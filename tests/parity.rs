//! The CPU backend against the reference: every operation × sample type × border × size × content × variant.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod reference;

use convoy::backend::Device;
use convoy::backend::cpu::Cpu;
use convoy::filter::Border;
use convoy::filter::plan::{PlaneOp, PoolKind, Unsharp};
use convoy::frame::{FrameMem, PixelFormat, Sample, Shape};
use reference::operations::{SOBEL, Suite, boxed, direct, gaussian, median, operations, pool, separable, sums, unsharp};
use reference::{Content, Picture, Tally, Tolerance, chain, check, expect, options, plan, run};

const SIZES: [(usize, usize); 6] = [(1, 1), (2, 2), (9, 7), (13, 42), (123, 33), (321, 241)];
const VARIANTS: [&str; 3] = ["cpu-scalar", "cpu-simd", "cpu-threads"];

fn formats() -> Vec<PixelFormat> {
    let p010 = PixelFormat { packing: convoy::frame::Packing::SemiPlanar, high_bits: true, ..PixelFormat::yuv(10, 1, 1) };
    vec![
        PixelFormat::yuv(8, 1, 1),
        PixelFormat::yuv(10, 1, 0),
        PixelFormat::gray(16),
        PixelFormat::gray(32),
        p010,
        PixelFormat::gray(32).half(),
    ]
}

/// Runs all of it on every variant; panics at the first frame that does not hold.
fn verify(shape: Shape, border: Border, op: &PlaneOp, contents: &[Content], total: &mut Tally) {
    let plan = plan(shape, border, op.clone());
    let pictures: Vec<_> = contents.iter().enumerate().map(|(i, &c)| Picture::new(shape, c, 7 * i as u64 + 1)).collect();
    let wants: Vec<_> = pictures.iter().map(|p| expect(&plan, p)).collect();
    for variant in VARIANTS {
        let frames = run(&Cpu, &plan, &options(Some(variant), Some(3)), &pictures).unwrap();
        for ((frame, want), content) in frames.iter().zip(&wants).zip(contents) {
            let allowed = Tolerance::of_plan(&plan);
            match check(frame, want, allowed) {
                Ok(tally) if allowed.unequal <= Tolerance::EXACT.unequal => total.add(tally),
                Ok(_) => {}
                Err(e) => panic!("{op:?} on {shape}, border {}, {content:?}, {variant}: {e}", border.name()),
            }
        }
    }
}

/// Every operation with every border; `few` leaves out sizes and contents, for formats whose kernels others run too.
fn verify_format(format: PixelFormat, few: bool) {
    let mut total = Tally::default();
    let sums = sums(Suite::Parity).len();
    for (turn, op) in operations(Suite::Parity, format).into_iter().enumerate() {
        for border in Border::ALL {
            for (index, (width, height)) in SIZES.into_iter().enumerate() {
                // The largest size costs the reference the most: one border and one content per operation, in turn.
                let contents = &Content::ALL[..3];
                let contents = match index {
                    1 | 3 | 5 if few => continue,
                    _ if few => &contents[(turn + border as usize + index) % 3..][..1],
                    5 if border != Border::ALL[turn % 5] => continue,
                    5 => &contents[turn % 3..][..1],
                    // Large windows of ranks are as slow: one content for each border, in turn.
                    3 | 4 if turn >= sums => &contents[(turn + border as usize) % 3..][..1],
                    _ => contents,
                };
                verify(Shape { format, width, height }, border, &op, contents, &mut total);
            }
        }
    }
    println!("{format}: {} of {} samples differ by one", total.unequal, total.samples);
    assert!(total.holds(), "{format}: {} of {} samples differ", total.unequal, total.samples);
}

#[test]
fn yuv_420_8_bit_matches_the_reference() {
    verify_format(formats()[0], false);
}

#[test]
fn yuv_422_10_bit_matches_the_reference() {
    verify_format(formats()[1], true);
}

#[test]
fn gray_16_bit_matches_the_reference() {
    verify_format(formats()[2], false);
}

#[test]
fn gray_float_matches_the_reference() {
    verify_format(formats()[3], false);
}

#[test]
fn p010_matches_the_reference() {
    verify_format(formats()[4], true);
}

#[test]
fn gray_half_matches_the_reference() {
    verify_format(formats()[5], false);
}

#[test]
fn the_other_formats_match_the_reference() {
    let semi = |format| PixelFormat { packing: convoy::frame::Packing::SemiPlanar, ..format };
    let alpha = |format| PixelFormat { alpha: true, ..format };
    let mut total = Tally::default();
    for format in [
        PixelFormat::gray(9),
        PixelFormat::gray(14),
        alpha(PixelFormat::gray(8)),
        PixelFormat::yuv(12, 0, 0),
        alpha(PixelFormat::yuv(10, 1, 1)),
        PixelFormat::yuv(8, 2, 0),
        semi(PixelFormat::yuv(8, 1, 1)),
        semi(PixelFormat::yuv(8, 0, 0)),
        semi(PixelFormat::yuv(16, 1, 1)),
        PixelFormat::gbr(8),
        alpha(PixelFormat::gbr(12)),
        alpha(PixelFormat::gbr(32)),
        alpha(PixelFormat::gbr(32).half()),
    ] {
        for (turn, op) in sums(Suite::Parity).into_iter().enumerate() {
            for (index, (width, height)) in [(1, 1), (9, 7), (123, 33)].into_iter().enumerate() {
                let border = Border::ALL[(turn + index) % 5];
                verify(Shape { format, width, height }, border, &op, &Content::ALL[..3], &mut total);
            }
        }
    }
    assert!(total.holds(), "{} of {} samples differ", total.unequal, total.samples);
}

#[test]
fn full_hd_with_odd_sides_matches_the_reference() {
    let mut total = Tally::default();
    for op in [separable(gaussian(2.0, 6), gaussian(2.0, 6)), direct(5, 5, 3), boxed(5, 5, 1), unsharp(5, 5, 1.0), PlaneOp::Gradient(SOBEL)]
    {
        for format in [PixelFormat::gray(8), PixelFormat::gray(10)] {
            verify(Shape { format, width: 1921, height: 1081 }, Border::Reflect101, &op, &[Content::Random], &mut total);
        }
    }
    assert!(total.holds());
}

/// 8-bit planes above 16,384 samples are blurred in whole numbers: under every border, at widths around a block, and with few rows
/// to a band.
#[test]
fn blurs_in_whole_numbers_match_the_reference() {
    let (mut total, mut turn) = (Tally::default(), 0);
    for sigma in [0.8, 1.0, 2.0, 3.3, 5.0, 7.5] {
        for border in Border::ALL {
            let (width, height) = [(161, 113), (127, 131), (193, 86), (2049, 9)][turn % 4];
            let taps = |sigma: f64| gaussian(sigma, (sigma * 3.3).ceil() as i64);
            let op = separable(taps(sigma), taps([sigma, 1.7, 4.0][turn % 3]));
            verify(Shape { format: PixelFormat::gray(8), width, height }, border, &op, &Content::ALL, &mut total);
            turn += 1;
        }
    }
    println!("{} of {} samples differ by one", total.unequal, total.samples);
    // Half of what the specification allows, over noise of all or nothing, the worst content.
    assert!(total.unequal * 2000 <= total.samples, "{} of {} samples differ", total.unequal, total.samples);
}

/// Windows of 82 to 255 samples are ranked by counting: widths around a block, ranks at both ends, contents of all kinds.
#[test]
fn ranks_by_counting_match_the_reference() {
    let mut total = Tally::default();
    let windows = [(5, 5, 60), (7, 7, 0), (7, 7, 224), (6, 5, 30), (16, 3, 115), (3, 16, 115), (0, 60, 7), (2, 25, 254), (7, 7, 112)];
    for (turn, (x, y, rank)) in windows.into_iter().enumerate() {
        for (index, (width, height)) in [(64, 40), (65, 19), (31, 50), (200, 33)].into_iter().enumerate() {
            let border = Border::ALL[(turn + index) % 5];
            let contents = &Content::ALL[(turn + index) % 2..][..3];
            verify(Shape { format: PixelFormat::yuv(8, 1, 1), width, height }, border, &median(x, y, rank), contents, &mut total);
        }
    }
    assert_eq!(total.unequal, 0);
}

/// Above σ 8 any method within one code value of the sum of all taps is allowed; ours is equal for all but a few samples.
#[test]
fn wide_gaussians_stay_within_a_code_value() {
    let p010 = formats()[4];
    let formats = [PixelFormat::gray(8), PixelFormat::gray(12), PixelFormat::gray(16), p010, PixelFormat::gray(32)];
    for (turn, format) in formats.into_iter().enumerate() {
        for (sigma, radius, other) in [(8.5, 3.4, 8.5), (10.0, 3.4, 13.0), (20.0, 3.4, 20.0), (33.0, 3.3, 33.0)] {
            let spread = if format.max_value() > 300.0 { radius + 1.2 } else { radius };
            let taps = |sigma: f64| gaussian(sigma, (sigma * spread).ceil() as i64);
            for (index, (width, height)) in [(1, 1), (9, 7), (123, 33), (161, 120)].into_iter().enumerate() {
                let border = Border::ALL[(turn + index) % 5];
                let shape = Shape { format, width, height };
                let plan = plan(shape, border, separable(taps(sigma), taps(other)));
                for content in [Content::Random, Content::Extremes] {
                    let picture = Picture::new(shape, content, 11);
                    let want = expect(&plan, &picture);
                    for variant in VARIANTS {
                        let frame = &run(&Cpu, &plan, &options(Some(variant), Some(2)), std::slice::from_ref(&picture)).unwrap()[0];
                        if let Err(e) = within(frame, &want, 0.6) {
                            panic!("sigma {sigma} on {shape}, border {}, {content:?}, {variant}: {e}", border.name());
                        }
                    }
                }
            }
        }
    }
}

/// Every sample within `codes` of the exact value, rounding aside, and so within one code value of the rounded one.
fn within(frame: &convoy::frame::Frame, want: &Picture, codes: f64) -> Result<(), String> {
    let format = want.shape.format;
    let (slack, unit) = if format.max_value() > 1.0 { (0.5, 1.0) } else { (0.0, 1e-4) };
    for (plane, (got, want)) in Picture::read(frame).planes.iter().zip(&want.planes).enumerate() {
        let worst = got.iter().zip(want).map(|(g, w)| (g - w).abs()).fold(0.0, f64::max);
        if got.len() != want.len() || worst > slack + codes * unit {
            return Err(format!("plane {plane}: {worst} off"));
        }
    }
    Ok(())
}

#[test]
fn chains_round_between_filters() {
    for format in formats() {
        let shape = Shape { format, width: 65, height: 43 };
        let ops = [
            (Border::Clamp, separable(gaussian(1.0, 3), gaussian(1.0, 3))),
            (Border::Wrap, direct(3, 3, 2)),
            // From here on the planes are smaller.
            (Border::Reflect101, pool(PoolKind::Mean, [3, 2, 1, 1])),
            (Border::Reflect, PlaneOp::Gradient(SOBEL)),
            (Border::Zero, boxed(3, 2, 1)),
        ];
        let pictures = [Picture::new(shape, Content::Ramp, 3), Picture::new(shape, Content::Random, 4)];
        for variant in VARIANTS {
            let options = options(Some(variant), Some(2));
            let mut one_by_one = pictures.to_vec();
            for count in 0..=ops.len() {
                let frames = run(&Cpu, &chain(shape, &ops[..count]), &options, &pictures).unwrap();
                if count > 0 {
                    // The same filters as plans of their own: a chain must give exactly that.
                    let alone = run(&Cpu, &chain(one_by_one[0].shape, &ops[count - 1..count]), &options, &one_by_one).unwrap();
                    one_by_one = alone.iter().map(Picture::read).collect();
                }
                for (frame, want) in frames.iter().zip(&one_by_one) {
                    assert_eq!(Picture::read(frame).planes, want.planes, "{format}, {variant}, {count} filters");
                }
                // Up to two steps a sample that rounds the other way hardly spreads.
                for (frame, picture) in frames.iter().zip(&pictures).take(if count <= 2 { 2 } else { 0 }) {
                    let plan = chain(shape, &ops[..count]);
                    // Halves spread at once: each is off by thousands of times the error that decided its rounding.
                    let allowed = if format.sample() == Sample::F16 { Tolerance::of_plan(&plan) } else { Tolerance::EXACT };
                    check(frame, &expect(&plan, picture), allowed).unwrap();
                }
            }
        }
    }
}

#[test]
fn planes_have_their_own_operations() {
    let shape = Shape { format: PixelFormat::yuv(8, 1, 1), width: 61, height: 47 };
    let mut plan = plan(shape, Border::Clamp, PlaneOp::Copy);
    plan.steps[0].planes[1] = direct(3, 3, 2);
    plan.steps[0].planes[2] = boxed(2, 2, 1);
    let picture = Picture::new(shape, Content::Random, 5);
    let frame = &run(&Cpu, &plan, &options(None, None), std::slice::from_ref(&picture)).unwrap()[0];
    check(frame, &expect(&plan, &picture), Tolerance::EXACT).unwrap();
}

#[test]
fn a_plan_without_steps_passes_the_frame_itself() {
    let shape = Shape { format: PixelFormat::yuv(8, 1, 1), width: 64, height: 48 };
    let picture = Picture::new(shape, Content::Random, 5);
    let frame = picture.frame(reference::heap(), 0).unwrap();
    let before = frame.plane_ptr(0);
    let mut built = Cpu.build(&chain(shape, &[]), &options(None, None)).unwrap();
    let mut due = Vec::new();
    built.submitter.submit(frame, &mut due).unwrap();
    assert_eq!(built.collector.wait(due[0]).unwrap().plane_ptr(0), before);
}

#[test]
fn misuse_is_an_error_that_names_it() {
    let shape = Shape { format: PixelFormat::gray(8), width: 64, height: 48 };
    let plan = plan(shape, Border::Clamp, direct(3, 3, 1));
    let fails = |variant: Option<&str>, threads| Cpu.build(&plan, &options(variant, threads)).err().unwrap().to_string();
    assert!(fails(Some("nonsense"), None).contains("cpu-scalar, cpu-simd, cpu-threads"));
    assert!(fails(Some("tiled"), None).contains("'tiled' is a CUDA variant"));
    assert!(fails(None, Some(0)).contains("0 threads"));
    let mut bad = plan.clone();
    bad.steps[0].planes[0] = PlaneOp::Unsharp(Unsharp { size_x: 4, size_y: 3, amount: 0 });
    assert!(Cpu.build(&bad, &options(None, None)).err().unwrap().to_string().contains("4x3"));

    let mut built = Cpu.build(&plan, &options(None, None)).unwrap();
    let other = Picture::new(Shape { width: 65, ..shape }, Content::Random, 1).frame(reference::heap(), 0).unwrap();
    assert!(built.submitter.submit(other, &mut Vec::new()).unwrap_err().to_string().contains("65x48"));
    drop(built.collector);
    let frame = Picture::new(shape, Content::Random, 1).frame(reference::heap(), 0).unwrap();
    let error = built.submitter.submit(frame, &mut Vec::new()).unwrap_err();
    assert_eq!(error.kind(), convoy::error::Kind::Disconnected);
}

#[test]
fn the_checker_fails_on_a_flipped_sample_and_on_a_shifted_picture() {
    let shape = Shape { format: PixelFormat::yuv(8, 1, 1), width: 123, height: 33 };
    let plan = plan(shape, Border::Clamp, direct(3, 3, 2));
    let picture = Picture::new(shape, Content::Random, 9);
    let want = expect(&plan, &picture);
    let good = || run(&Cpu, &plan, &options(None, None), std::slice::from_ref(&picture)).unwrap().remove(0);
    assert!(check(&good(), &want, Tolerance::EXACT).is_ok());

    let mut flipped = good();
    let sample = &mut flipped.row_mut(1, 5).unwrap()[7];
    *sample = if *sample > 100 { *sample - 2 } else { *sample + 2 };
    let error = check(&flipped, &want, Tolerance::EXACT).unwrap_err();
    assert!(error.contains("plane 1, x 7, y 5"), "{error}");

    let mut shifted = good();
    for y in 0..33 {
        shifted.row_mut(0, y).unwrap().rotate_left(1);
    }
    assert!(check(&shifted, &want, Tolerance::EXACT).is_err());

    // One code value off in 1 of 100 samples is within the step tolerance but not within 99.9 %.
    let mut noisy = good();
    for y in 0..33 {
        for sample in noisy.row_mut(0, y).unwrap().iter_mut().step_by(100) {
            *sample = if *sample > 100 { *sample - 1 } else { *sample + 1 };
        }
    }
    assert!(check(&noisy, &want, Tolerance::EXACT).unwrap_err().contains("samples differ"));

    let FrameMem::Slab(_) = good().mem else { panic!("outputs own their slab") };
}
