//! Layers over tensors on the CPU against independent f64 loops and against windows written out by hand.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod layers;

use convoy::tensor::{Convolution, Dims, Engine, Layout, Pooling, Reduce, Tensor, Windows};
use layers::{check, convolutions, poolings, sizes, tensor};

#[test]
fn pooling_matches_the_loops() {
    for threads in [1, 3] {
        let cpu = Engine::cpu(Some(threads));
        let mut ran = 0;
        for dims in sizes() {
            for layer in poolings() {
                for layout in [Layout::Nchw, Layout::Nhwc] {
                    for half in [false, true] {
                        let input = tensor(dims, layout, half, 3);
                        let Ok(output) = layer.output(dims) else { continue };
                        let want = layers::pool(&layer, &input);
                        assert_eq!(output, want.0);
                        let got = cpu.pool(&layer, &input, None).unwrap();
                        check(&got, &want, half, 1e-6).unwrap_or_else(|e| panic!("{layer:?} on {dims} {layout:?}, half {half}: {e}"));
                        ran += 1;
                    }
                }
            }
        }
        assert!(ran > 500, "{ran}");
    }
}

#[test]
fn convolution_matches_the_loops() {
    let cpu = Engine::cpu(Some(2));
    let mut ran = 0;
    for dims in sizes() {
        let input = tensor(dims, Layout::Nchw, false, 4);
        for layer in convolutions(dims.channels) {
            if layer.output(dims).is_err() {
                continue;
            }
            let want = layers::convolve(&layer, &input);
            let got = cpu.convolve(&layer, &input, None).unwrap();
            check(&got, &want, false, 5e-5).unwrap_or_else(|e| panic!("{:?} on {dims}: {e}", layer.windows));
            ran += 1;
        }
    }
    assert!(ran > 20, "{ran}");
}

fn image(rows: &[&[f32]]) -> Tensor {
    let dims = Dims { batch: 1, channels: 1, height: rows.len(), width: rows[0].len() };
    Tensor::f32(dims, Layout::Nchw, rows.concat()).unwrap()
}

/// What torch.nn.functional gives (max_pool2d, avg_pool2d, conv2d), by hand.
#[test]
fn small_windows_are_as_pytorch_has_them() {
    let cpu = Engine::cpu(Some(1));
    let input = image(&[&[1.0, 2.0, 3.0, 4.0], &[5.0, 6.0, 7.0, 8.0], &[9.0, 10.0, 11.0, 12.0]]);
    let pool = |layer: Pooling| cpu.pool(&layer, &input, None).unwrap().to_f32();
    assert_eq!(pool(Pooling::new(Reduce::Max, 2, 1)), [6.0, 7.0, 8.0, 10.0, 11.0, 12.0]);
    assert_eq!(pool(Pooling::new(Reduce::Max, 2, 2)), [6.0, 8.0]);
    assert_eq!(pool(Pooling::new(Reduce::Mean, 2, 2)), [3.5, 5.5]);
    // Padded: the corner's window has four values of nine.
    let padded = Pooling::new(Reduce::Mean, 3, 2).pad(1);
    assert_eq!(pool(padded), [14.0 / 9.0, 30.0 / 9.0, 30.0 / 9.0, 54.0 / 9.0]);
    assert_eq!(pool(Pooling { count_pad: false, ..padded }), [3.5, 5.0, 7.5, 9.0]);
    let ones = Convolution { weights: vec![1.0; 4].into(), bias: Some(vec![0.5].into()), out_channels: 1, windows: Windows::square(2, 1) };
    assert_eq!(cpu.convolve(&ones, &input, None).unwrap().to_f32(), [14.5, 18.5, 22.5, 30.5, 34.5, 38.5]);
    // Correlation: the kernel is not turned.
    let right = Convolution {
        weights: vec![0.0, 1.0].into(),
        bias: None,
        out_channels: 1,
        windows: Windows { kernel: [1, 2], ..Windows::square(1, 1) },
    };
    assert_eq!(cpu.convolve(&right, &input, None).unwrap().to_f32(), [2.0, 3.0, 4.0, 6.0, 7.0, 8.0, 10.0, 11.0, 12.0]);
}

#[test]
fn large_means_keep_their_precision() {
    // 16 million values of 0.1: a plain f32 sum would be off by percent.
    let dims = Dims { batch: 1, channels: 1, height: 4000, width: 4000 };
    let input = Tensor::f32(dims, Layout::Nchw, vec![0.1; 16_000_000]).unwrap();
    let got = Engine::cpu(None).pool(&Pooling::new(Reduce::Mean, 4000, 1), &input, None).unwrap().to_f32();
    assert!((got[0] - 0.1).abs() < 1e-7, "{}", got[0]);
}

#[test]
fn what_does_not_fit_is_an_error_that_says_why() {
    let cpu = Engine::cpu(Some(1));
    let dims = Dims { batch: 1, channels: 2, height: 4, width: 4 };
    let input = tensor(dims, Layout::Nchw, false, 1);
    let pool = |layer: Pooling| cpu.pool(&layer, &input, None).unwrap_err().to_string();
    assert!(pool(Pooling::new(Reduce::Max, 5, 1)).contains("windows reach over 5 values"));
    assert!(pool(Pooling::new(Reduce::Max, 0, 1)).contains("at least 1"));
    assert!(pool(Pooling::new(Reduce::Max, 3, 0)).contains("at least 1"));
    assert!(pool(Pooling::new(Reduce::Max, 3, 1).pad(2)).contains("exceeds half"));
    assert!(pool(Pooling::new(Reduce::Max, 1 << 40, 1)).contains("must not exceed"));
    assert!(cpu.pool(&Pooling::new(Reduce::Max, 2, 1), &input, Some("tiled")).unwrap_err().to_string().contains("cpu-threads"));
    assert!(Tensor::f32(dims, Layout::Nchw, vec![0.0; 31]).is_err());
    assert!(Tensor::f32(Dims { batch: 0, ..dims }, Layout::Nchw, vec![]).is_err());
    assert!(Tensor::f32(Dims { batch: usize::MAX, ..dims }, Layout::Nchw, vec![]).is_err());
    let layer = Convolution { weights: vec![0.0; 17].into(), bias: None, out_channels: 1, windows: Windows::square(3, 1) };
    assert!(cpu.convolve(&layer, &input, None).unwrap_err().to_string().contains("need 18 weights"));
    let layer = Convolution { weights: vec![0.0; 18].into(), bias: Some(vec![0.0; 2].into()), ..layer };
    assert!(cpu.convolve(&layer, &input, None).unwrap_err().to_string().contains("2 biases"));
    let layer = Convolution { bias: None, ..layer };
    assert!(cpu.convolve(&layer, &tensor(dims, Layout::Nhwc, false, 1), None).unwrap_err().to_string().contains("NCHW"));
}

#[test]
fn the_checker_finds_one_wrong_value() {
    let dims = Dims { batch: 1, channels: 1, height: 2, width: 3 };
    let input = tensor(dims, Layout::Nchw, false, 1);
    let mut want = layers::pool(&Pooling::new(Reduce::Max, 1, 1), &input);
    check(&input, &want, false, 1e-6).unwrap();
    want.1[4] += 1e-4;
    assert!(check(&input, &want, false, 1e-6).unwrap_err().contains("value 4"));
}
