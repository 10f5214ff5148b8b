//! Timing tables on a GPU: measurements, not tests.

use convoy::filter::plan::{Compass, Pixelate};

use super::*;
use crate::reference::operations::morphology;

/// `cargo test --release --test gpu timings -- --ignored --nocapture`: the kernel-level table.
#[test]
#[ignore = "a measurement, not a test"]
fn timings() {
    use convoy::backend::cuda::measure::{Settings, measure};
    let Some(gpu) = gpu() else { return };
    println!("{}", gpu.describe());
    let gray8 = PixelFormat::gray(8);
    let (hd, uhd8) = ((1920, 1080), (7680, 4320));
    let gauss = |radius: i64| separable(gaussian(radius as f64 / 3.0, radius), gaussian(radius as f64 / 3.0, radius));
    let f32s = PixelFormat::gray(32);
    let yuv = PixelFormat::yuv(8, 1, 1);
    type Case = (&'static str, PixelFormat, (usize, usize), PlaneOp, Vec<&'static str>);
    let cases: Vec<Case> = vec![
        ("copy", gray8, hd, PlaneOp::Copy, vec!["auto"]),
        ("gauss 3", gray8, hd, gauss(1), vec!["fused", "separable", "naive"]),
        ("gauss 5", gray8, hd, gauss(2), vec!["fused"]),
        ("gauss 7", gray8, hd, gauss(3), vec!["fused", "tensor8"]),
        ("gauss 9", gray8, hd, gauss(4), vec!["fused", "tensor8", "tensor"]),
        ("gauss 15", gray8, hd, gauss(7), vec!["fused", "tensor8", "tensor", "separable"]),
        ("gauss 31", gray8, hd, gauss(15), vec!["fused", "tensor8", "tensor", "separable"]),
        ("gauss 65", gray8, hd, gauss(32), vec!["fused", "tensor8", "tensor", "separable"]),
        ("gauss 6145", gray8, hd, gauss(3072), vec!["auto"]),
        ("direct 3", gray8, hd, direct(3, 3, 2), vec!["tiled", "integer", "tensor", "naive"]),
        ("direct 5", gray8, hd, direct(5, 5, 2), vec!["tiled", "integer"]),
        ("direct 7", gray8, hd, direct(7, 7, 2), vec!["tiled", "integer", "tensor", "naive"]),
        ("direct 7 frac", gray8, hd, fractional(7, 7, 8), vec!["tiled", "tensor"]),
        ("direct 11", gray8, hd, direct(11, 11, 2), vec!["tiled", "tensor"]),
        ("direct 31", gray8, hd, direct(31, 31, 2), vec!["tiled", "tensor"]),
        ("box 3", gray8, hd, boxed(1, 1, 1), vec!["fused", "running"]),
        ("box 15", gray8, hd, boxed(7, 7, 1), vec!["fused", "running", "naive"]),
        ("box 31", gray8, hd, boxed(15, 15, 1), vec!["fused", "running"]),
        ("box 63", gray8, hd, boxed(31, 31, 1), vec!["fused", "running"]),
        ("box 1001", gray8, hd, boxed(500, 500, 1), vec!["running"]),
        ("box 2049", gray8, hd, boxed(1024, 1024, 1), vec!["auto"]),
        ("box 5 power 2", gray8, hd, boxed(2, 2, 2), vec!["auto"]),
        ("unsharp 5", gray8, hd, unsharp(5, 5, 1.0), vec!["fused", "naive"]),
        ("sobel", gray8, hd, PlaneOp::Gradient(SOBEL), vec!["tiled", "naive"]),
        ("kirsch", gray8, hd, PlaneOp::Compass(Compass { scale: 1.0, delta: 0.0 }), vec!["tiled", "naive"]),
        ("erosion", gray8, hd, morphology(Extreme::Min, 0b1010_0100, Some(3.0)), vec!["tiled", "naive"]),
        ("max 3", gray8, hd, extremum(Extreme::Max, 1, 1), vec!["fused"]),
        ("max 15", gray8, hd, extremum(Extreme::Max, 7, 7), vec!["fused", "naive"]),
        ("max 31", gray8, hd, extremum(Extreme::Max, 15, 15), vec!["fused"]),
        ("max 63", gray8, hd, extremum(Extreme::Max, 31, 31), vec!["fused", "running"]),
        ("max 1001", gray8, hd, extremum(Extreme::Max, 500, 500), vec!["running"]),
        ("max 15", PixelFormat::gray(10), hd, extremum(Extreme::Max, 7, 7), vec!["fused"]),
        ("max 15", f32s, hd, extremum(Extreme::Max, 7, 7), vec!["fused"]),
        ("median 3", gray8, hd, median(1, 1, 4), vec!["network", "select", "naive"]),
        ("median 5", gray8, hd, median(2, 2, 12), vec!["network", "select"]),
        ("median 3", PixelFormat::gray(16), hd, median(1, 1, 4), vec!["network"]),
        ("median 3", f32s, hd, median(1, 1, 4), vec!["network"]),
        ("median 5", f32s, hd, median(2, 2, 12), vec!["network"]),
        ("median 15", gray8, hd, median(7, 7, 112), vec!["levels", "select"]),
        ("maxpool 3 s1", f32s, hd, pool(PoolKind::Max, [3, 1, 1, 1]), vec!["tiled", "naive"]),
        ("avgpool 2 s2", gray8, hd, pool(PoolKind::Mean, [2, 2, 0, 1]), vec!["tiled", "naive"]),
        ("pixelate 16", gray8, hd, PlaneOp::Pixelate(Pixelate { block_x: 16, block_y: 16 }), vec!["blocks", "naive"]),
        ("pixelate 100", gray8, hd, PlaneOp::Pixelate(Pixelate { block_x: 100, block_y: 100 }), vec!["blocks"]),
        ("gauss 15", nv12(), hd, gauss(7), vec!["auto"]),
        ("max 15", nv12(), hd, extremum(Extreme::Max, 7, 7), vec!["auto"]),
        ("median 3", nv12(), hd, median(1, 1, 4), vec!["auto"]),
        ("gauss 3", f32s, hd, gauss(1), vec!["fused"]),
        ("gauss 15", f32s, hd, gauss(7), vec!["fused"]),
        ("direct 3", f32s, hd, direct(3, 3, 2), vec!["tiled", "registers", "naive"]),
        ("direct 7", f32s, hd, direct(7, 7, 2), vec!["tiled", "tensor"]),
        ("direct 31", f32s, hd, fractional(31, 31, 2), vec!["tiled", "tensor"]),
        ("sobel", f32s, hd, PlaneOp::Gradient(SOBEL), vec!["tiled"]),
        ("gauss 15", PixelFormat::gray(10), hd, gauss(7), vec!["fused", "tensor"]),
        ("gauss 15", yuv, hd, gauss(7), vec!["fused", "tensor8", "tensor"]),
        ("direct 3", yuv, hd, direct(3, 3, 2), vec!["auto"]),
        ("box 15", yuv, hd, boxed(7, 7, 1), vec!["auto"]),
        ("gauss 15", gray8, uhd8, gauss(7), vec!["fused", "tensor8", "tensor"]),
        ("gauss 31", gray8, uhd8, gauss(15), vec!["fused", "tensor8", "tensor"]),
        ("gauss 65", gray8, uhd8, gauss(32), vec!["tensor8", "tensor"]),
        ("direct 3", gray8, uhd8, direct(3, 3, 2), vec!["tiled", "integer"]),
        ("gauss 3", gray8, uhd8, gauss(1), vec!["fused"]),
        ("direct 7", gray8, uhd8, direct(7, 7, 2), vec!["tiled", "integer", "tensor"]),
        ("direct 7 frac", gray8, uhd8, fractional(7, 7, 8), vec!["tiled", "tensor"]),
        ("box 15", gray8, uhd8, boxed(7, 7, 1), vec!["fused", "running"]),
        ("sobel", gray8, uhd8, PlaneOp::Gradient(SOBEL), vec!["tiled"]),
    ];
    println!("{:<14} {:<22} {:<10} {:>8} {:>8} {:>8} {:>8}  registers/shared", "case", "shape", "variant", "us", "p5", "p95", "copy us");
    for (name, format, (width, height), op, names) in cases {
        let shape = Shape { format, width, height };
        let plan = plan(shape, Border::Clamp, op);
        for variant in names {
            let forced = (variant != "auto").then_some(variant);
            let m = measure(gpu, &plan, forced, Settings::default()).unwrap();
            let resources: Vec<_> = m.kernels.iter().map(|k| format!("{}/{}", k.registers, k.shared_bytes)).collect();
            println!(
                "{name:<14} {:<22} {variant:<10} {:>8.2} {:>8.2} {:>8.2} {:>8.2}  {}",
                shape.to_string(),
                m.kernel.median(),
                m.kernel.quantile(0.05),
                m.kernel.quantile(0.95),
                m.copy.median(),
                resources.join(" ")
            );
            assert!(m.kernels.iter().all(|k| k.local_bytes == 0), "{name} {variant} uses local memory");
        }
    }
    assert_eq!(f32s.sample(), Sample::F32);
}

/// `… device_loop -- --ignored --nocapture`: pinned host memory in and out over the lanes.
#[test]
#[ignore = "a measurement, not a test"]
fn device_loop() {
    let Some(gpu) = gpu() else { return };
    let shape = Shape { format: PixelFormat::yuv(8, 1, 1), width: 1920, height: 1080 };
    let plan = plan(shape, Border::Clamp, separable(gaussian(2.0, 6), gaussian(2.0, 6)));
    let picture = Picture::new(shape, Content::Random, 5);
    for lanes in [1, 2, 3, 4, 6, 8] {
        let options = BuildOptions { lanes: Some(lanes), ..options(None, None) };
        let mut built = gpu.build(&plan, &options).unwrap();
        // Frames that stand still: the loop measures the device, not the making of pictures.
        let mut frames: Vec<_> = (0..1 + lanes as u64).map(|seq| picture.frame(gpu.host_memory(), seq).unwrap()).collect();
        let total = 4000u64;
        let (tickets, arrived) = std::sync::mpsc::sync_channel(lanes);
        let (give, take) = std::sync::mpsc::channel();
        let begin = std::time::Instant::now();
        std::thread::scope(|scope| {
            let collector = &mut built.collector;
            scope.spawn(move || {
                for ticket in arrived {
                    let frame = collector.wait(ticket).unwrap();
                    // The output becomes an input again: same shape, same layout, no allocation.
                    let _ = give.send(frame);
                }
            });
            let mut due = Vec::new();
            for seq in 0..total {
                let mut frame = frames.pop().unwrap_or_else(|| take.recv().unwrap());
                frame.seq = seq;
                built.submitter.submit(frame, &mut due).unwrap();
                due.drain(..).for_each(|t| tickets.send(t).unwrap());
            }
            drop(tickets);
        });
        let seconds = begin.elapsed().as_secs_f64();
        let per_frame = |c: &std::sync::atomic::AtomicU64| c.load(Ordering::Relaxed) as f64 / total as f64 / 1e3;
        let s = &built.stats;
        println!(
            "device loop, 1080p 4:2:0 gauss 13x13, {lanes} lanes: {:.0} fps; per frame: upload {:.1} us, kernel {:.1} us, download {:.1} us, lane wait {:.1} us",
            total as f64 / seconds,
            per_frame(&s.upload_ns),
            per_frame(&s.kernel_ns),
            per_frame(&s.download_ns),
            per_frame(&s.lane_wait_ns)
        );
    }
}
