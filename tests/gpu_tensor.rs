//! Layers over tensors on a GPU: every variant × layer × size × layout × type against independent f64 loops. Without a GPU each test prints
//! a skip; `CONVOY_REQUIRE_GPU=1` makes that, and a missing cuBLAS, a failure.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod layers;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use convoy::tensor::{Convolution, Dims, Engine, Layout, Pooling, Reduce, Windows};
use layers::{Noise, check, convolutions, poolings, sizes, tensor};

fn required() -> bool {
    std::env::var_os("CONVOY_REQUIRE_GPU").is_some_and(|v| v == "1")
}

fn gpu() -> Option<&'static Engine> {
    static GPU: OnceLock<Option<Engine>> = OnceLock::new();
    GPU.get_or_init(|| match Engine::cuda(0) {
        Ok(engine) => Some(engine),
        Err(error) => {
            assert!(!required(), "CONVOY_REQUIRE_GPU=1, but {error}");
            println!("SKIPPED: {error}");
            None
        }
    })
    .as_ref()
}

fn pooling(layout: Layout, half: bool) {
    let Some(gpu) = gpu() else { return };
    let mut ran: BTreeMap<&str, usize> = BTreeMap::new();
    for dims in sizes() {
        let input = tensor(dims, layout, half, 3);
        for layer in poolings().into_iter().filter(|layer| layer.output(dims).is_ok()) {
            let want = layers::pool(&layer, &input);
            for (name, fits) in gpu.pool_variants(&layer, &input) {
                let result = gpu.pool(&layer, &input, Some(name));
                match (fits, result) {
                    (Ok(()), Ok(got)) => {
                        check(&got, &want, half, 1e-6)
                            .unwrap_or_else(|e| panic!("{name}: {layer:?} on {dims} {layout:?}, half {half}: {e}"));
                        *ran.entry(name).or_default() += 1;
                    }
                    (Err(why), Err(error)) => assert!(error.to_string().contains(&why), "{error}"),
                    (fits, result) => panic!("{name} on {dims}: {fits:?}, but {:?}", result.err().map(|e| e.to_string())),
                }
            }
            check(&gpu.pool(&layer, &input, None).unwrap(), &want, half, 1e-6).unwrap();
        }
    }
    println!("{layout:?}, half {half}: {ran:?}");
    let expected = if layout == Layout::Nchw { ["coarsened", "tiled"] } else { ["vector", "naive"] };
    assert!(expected.iter().all(|name| ran.get(name).is_some_and(|&n| n > 10)), "{ran:?}");
}

#[test]
fn pooling_of_planes_of_floats() {
    pooling(Layout::Nchw, false);
}

#[test]
fn pooling_of_planes_of_halves() {
    pooling(Layout::Nchw, true);
}

#[test]
fn pooling_of_channels_of_floats() {
    pooling(Layout::Nhwc, false);
}

#[test]
fn pooling_of_channels_of_halves() {
    pooling(Layout::Nhwc, true);
}

#[test]
fn convolution_matches_the_loops() {
    let Some(gpu) = gpu() else { return };
    let mut ran: BTreeMap<&str, usize> = BTreeMap::new();
    for dims in sizes() {
        let input = tensor(dims, Layout::Nchw, false, 4);
        for layer in convolutions(dims.channels).into_iter().filter(|layer| layer.output(dims).is_ok()) {
            let want = layers::convolve(&layer, &input);
            for (name, fits) in gpu.convolve_variants(&layer, &input) {
                if fits.is_err() {
                    continue;
                }
                let got = gpu.convolve(&layer, &input, Some(name)).unwrap();
                check(&got, &want, false, 5e-5).unwrap_or_else(|e| panic!("{name}: {:?} on {dims}: {e}", layer.windows));
                *ran.entry(name).or_default() += 1;
            }
            check(&gpu.convolve(&layer, &input, None).unwrap(), &want, false, 5e-5).unwrap();
        }
    }
    println!("{ran:?}");
    assert!(!required() || ["direct", "gemm", "winograd"].iter().all(|name| ran.get(name).is_some_and(|&n| n > 3)), "{ran:?}");
}

#[test]
fn a_forced_variant_that_does_not_fit_says_why() {
    let Some(gpu) = gpu() else { return };
    let input = tensor(Dims { batch: 1, channels: 2, height: 9, width: 9 }, Layout::Nchw, false, 1);
    let error = |name| gpu.pool(&Pooling::new(Reduce::Max, 3, 1), &input, Some(name)).unwrap_err().to_string();
    assert!(error("coarsened").contains("multiple of 4") && error("coarsened").contains("naive"), "{}", error("coarsened"));
    assert!(error("warp9").contains("no variant of that name"));
}

/// `cargo test --release --test gpu_tensor timings -- --ignored --nocapture`
#[test]
#[ignore = "a measurement, not a test"]
fn timings() {
    let Some(gpu) = gpu() else { return };
    let dims = Dims { batch: 32, channels: 64, height: 256, width: 256 };
    println!("{:<26} {:<8} {:<12} {:>9} {:>9}", "layer", "type", "variant", "us", "copy us");
    for half in [false, true] {
        let input = tensor(dims, Layout::Nchw, half, 1);
        let layers = [
            ("max 3x3 s1 p1", Pooling::new(Reduce::Max, 3, 1).pad(1)),
            ("max 3x3 s2 p1", Pooling::new(Reduce::Max, 3, 2).pad(1)),
            ("avg 3x3 s1 p1", Pooling::new(Reduce::Mean, 3, 1).pad(1)),
            ("avg 3x3 s1 p1 no pad", Pooling { count_pad: false, ..Pooling::new(Reduce::Mean, 3, 1).pad(1) }),
            ("max 2x2 s2", Pooling::new(Reduce::Max, 2, 2)),
            ("avg 9x9 s1 p4", Pooling::new(Reduce::Mean, 9, 1).pad(4)),
        ];
        for (label, layer) in layers {
            for (name, fits) in gpu.pool_variants(&layer, &input) {
                if fits.is_ok() {
                    let t = gpu.time_pool(&layer, &input, Some(name)).unwrap();
                    println!("{label:<26} {:<8} {name:<12} {:>9.1} {:>9.1}", if half { "f16" } else { "f32" }, t.layer_us, t.copy_us);
                }
            }
        }
    }
    let mut noise = Noise(1);
    let dims = Dims { batch: 8, channels: 64, height: 128, width: 128 };
    let input = tensor(dims, Layout::Nchw, false, 1);
    let windows = Windows { pad: [1; 2], ..Windows::square(3, 1) };
    let layer = Convolution { weights: (0..64 * 64 * 9).map(|_| noise.next()).collect(), bias: None, out_channels: 64, windows };
    for (name, fits) in gpu.convolve_variants(&layer, &input) {
        if fits.is_ok() {
            let t = gpu.time_convolve(&layer, &input, Some(name)).unwrap();
            println!("{:<26} {:<8} {name:<12} {:>9.1} {:>9.1}", "conv 3x3 64->64 8x128x128", "f32", t.layer_us, t.copy_us);
        }
    }
}
