//! A driver and a kernel pack, no NVRTC: every common filter runs on the GPU and gives the CPU's numbers. Runs where
//! `CONVOY_KERNEL_PACK` names a pack and `CONVOY_NVRTC` a file that does not exist; else it prints a skip.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod reference;

use convoy::backend::cpu::Cpu;
use convoy::backend::cuda::compile::{Cache, Nvrtc};
use convoy::backend::cuda::{self};
use convoy::filter;
use convoy::filter::Border;
use convoy::frame::{Packing, PixelFormat, Shape};
use convoy::kernels::COMMON;
use reference::{Content, Picture, Tolerance, check, options, run};

#[test]
fn every_common_filter_runs_without_nvrtc() {
    if std::env::var_os("CONVOY_KERNEL_PACK").is_none() || Nvrtc::open(None).is_ok() {
        assert!(std::env::var_os("CONVOY_REQUIRE_PACK").is_none(), "CONVOY_REQUIRE_PACK is set, but there is no pack, or an NVRTC");
        println!("SKIPPED: no kernel pack, or an NVRTC that could compile");
        return;
    }
    // No cache: nothing compiled earlier may help.
    let folder = tempfile::tempdir().unwrap();
    let gpu = cuda::open_with(0, Cache::at(folder.path())).unwrap();
    let semi = |format: PixelFormat, high_bits| PixelFormat { packing: Packing::SemiPlanar, high_bits, ..format };
    let formats = [
        PixelFormat::gray(8),
        PixelFormat::yuv(8, 1, 1),
        PixelFormat::yuv(10, 1, 0),
        semi(PixelFormat::yuv(8, 1, 1), false),
        semi(PixelFormat::yuv(10, 1, 1), true),
        PixelFormat::gbr(16),
        PixelFormat::gray(32),
    ];
    let mut ran = 0;
    for format in formats {
        for (number, graph) in COMMON.into_iter().enumerate() {
            let shape = Shape { format, width: 202, height: 118 };
            let filters = filter::parse(graph).unwrap();
            if filter::separates_chroma(&filters, shape) {
                continue;
            }
            for border in [Border::Clamp, Border::ALL[1 + number % 4]] {
                let mut plan = filter::plan(&filters, shape).unwrap();
                plan.steps.iter_mut().for_each(|step| step.border = border);
                let pictures = [Picture::new(shape, Content::Random, 5)];
                let want = run(&Cpu, &plan, &options(None, None), &pictures).unwrap().iter().map(Picture::read).collect::<Vec<_>>();
                let got = run(&gpu, &plan, &options(None, None), &pictures).unwrap_or_else(|e| panic!("{graph} on {shape}: {e}"));
                let codes = if plan.steps.len() > 1 { 8.0 } else { 1.0 };
                // Near ties deep samples may fall either way, in more than one in a thousand on so small a plane.
                if let Err(e) = check(&got[0], &want[0], Tolerance { codes, float: 1e-3, unequal: 1.0 }) {
                    panic!("{graph} on {shape}, border {}: {e}", border.name());
                }
                ran += 1;
            }
        }
    }
    println!("{ran} graphs ran without NVRTC");
    assert!(ran > 400);
    // What the pack does not have is an error that says so.
    let shape = Shape { format: PixelFormat::gray(8), width: 64, height: 64 };
    let plan = filter::plan(&filter::parse("gblur=2").unwrap(), shape).unwrap();
    let error = gpu.compile(&plan, Some("tiled")).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("kernel pack does not have it"), "{error}");
}
