//! `convoy kernels pack`: compiles the kernels of the common filters for several architectures into one file.
//!
//! For each example graph and sample type the pack holds the kernel that the automatic choice takes at the default border, and for every
//! border the general kernels, which take any parameter: with a pack and no NVRTC every filter runs, the usual ones at full speed.

use std::collections::HashSet;

use crate::backend::cuda::compile::{Nvrtc, Request};
use crate::backend::cuda::pack::Builder;
use crate::backend::cuda::variants::{Machine, Task, ranked};
use crate::cli::PackArgs;
use crate::error::{Error, Result};
use crate::filter;
use crate::filter::Border;
use crate::filter::plan::PlaneOp;
use crate::frame::{Packing, PixelFormat, Shape};
use crate::status;

/// Graphs whose best kernels are packed; radii stand for the buckets that kernels are compiled for.
const GRAPHS: &[&str] = &[
    "gblur=radius=1:sigma=0.5",
    "gblur=radius=2:sigma=1",
    "gblur=radius=3:sigma=1",
    "gblur=radius=4:sigma=2",
    "gblur=radius=5:sigma=2",
    "gblur=radius=6:sigma=2",
    "gblur=radius=7:sigma=3",
    "gblur=radius=8:sigma=3",
    "gblur=radius=12:sigma=4",
    "gblur=radius=16:sigma=5",
    "gblur=radius=20:sigma=7",
    "gblur=radius=24:sigma=8",
    "gblur=radius=28:sigma=9",
    "gblur=radius=32:sigma=10",
    "gblur=sigma=30",
    "boxblur",
    "avgblur=1",
    "avgblur=2",
    "avgblur=3",
    "avgblur=5",
    "avgblur=7",
    "avgblur=9",
    "avgblur=11",
    "avgblur=15",
    "avgblur=100",
    "unsharp",
    "unsharp=3:3:1",
    "unsharp=7:7:1",
    "convolution=1 2 1 2 5 2 1 3 1",
    "convolution=0 -1 0 -1 5 -1 0 -1 0",
    "convolution=1 2 1 2 5 1 2 3 2 1 1 2 4 2 1 1 3 2 2 1 1 2 5 2 1",
    "sobel",
    "prewitt",
    "scharr",
    "roberts",
    "kirsch",
    "laplacian",
    "emboss",
    "sharpen",
    "edge",
    "erosion",
    "dilation",
    "dilation=radius=3",
    "erosion=radius=7",
    "dilation=radius=100",
    "median",
    "median=2",
    "median=5",
    "maxpool",
    "avgpool",
    "minpool",
    "pixelate=16",
];

/// Rows that take any parameter of their operation.
const GENERAL: [&str; 4] = ["naive", "running", "separable", "blocks"];

/// Sample types whose kernels differ.
fn formats() -> Vec<PixelFormat> {
    let semi = |format: PixelFormat, high_bits| PixelFormat { packing: Packing::SemiPlanar, high_bits, ..format };
    vec![
        PixelFormat::yuv(8, 1, 1),
        semi(PixelFormat::yuv(8, 1, 1), false),
        PixelFormat::yuv(10, 1, 1),
        semi(PixelFormat::yuv(10, 1, 1), true),
        PixelFormat::yuv(12, 1, 1),
        PixelFormat::gbr(16),
        PixelFormat::gbr(32),
    ]
}

/// What to compile for one architecture.
fn requests(arch: &str) -> Result<Vec<Request>> {
    let mut seen = HashSet::new();
    let mut all = Vec::new();
    for format in formats() {
        let shape = Shape { format, width: 1920, height: 1080 };
        for (graph, border) in GRAPHS.iter().flat_map(|graph| Border::ALL.map(|border| (graph, border))) {
            let mut plan = filter::plan(&filter::parse(graph)?, shape)?;
            plan.steps.iter_mut().for_each(|step| step.border = border);
            for mut task in plan.steps.iter().flat_map(Task::of_step) {
                let planes = task.planes.clone();
                // All planes of the operation in one launch, and one alone: the others may pass.
                for count in [planes.len(), 1] {
                    task.planes = planes.iter().copied().take(count).collect();
                    add(&task, border == Border::Clamp, arch, &mut seen, &mut all);
                }
            }
        }
        for count in 1..=3 {
            let op = PlaneOp::Copy;
            let task = Task { op, border: Border::Clamp, shape, output: shape, components: 1, planes: (0..count).collect(), block: None };
            add(&task, true, arch, &mut seen, &mut all);
        }
    }
    Ok(all)
}

fn add(task: &Task, best: bool, arch: &str, seen: &mut HashSet<Request>, all: &mut Vec<Request>) {
    let rows = ranked(task, Machine::ASSUMED.multiprocessors, Machine::ASSUMED.bandwidth);
    let mut rows = rows.into_iter().filter(|(row, ..)| row.library().is_none());
    let first = if best { rows.next() } else { None };
    for (_, _, specs) in first.into_iter().chain(rows.filter(|(row, ..)| GENERAL.contains(&row.name))) {
        // Modules of their own, for weights in constant memory, are no general kernels.
        for spec in specs.iter().filter(|spec| spec.constants.is_empty()) {
            let request = Request { file: spec.file, defines: spec.defines.clone(), arch: arch.to_owned() };
            if seen.insert(request.clone()) {
                all.push(request);
            }
        }
    }
}

/// Compiles and writes the pack.
///
/// # Errors
/// No NVRTC, a kernel that does not compile, or a file that cannot be written.
pub fn pack(args: &PackArgs) -> Result<()> {
    let nvrtc = Nvrtc::open(None)?;
    if nvrtc.version().0 > 12 {
        status::warn(format_args!(
            "NVRTC {}.{} makes kernels that drivers of CUDA 12 do not load; set CONVOY_NVRTC to one of version 12",
            nvrtc.version().0,
            nvrtc.version().1
        ));
    }
    let mut builder = Builder::default();
    for arch in &args.arch {
        let requests = requests(arch)?;
        status::say(format_args!("{arch}: {} kernels", requests.len()));
        for request in &requests {
            builder.add(request, &nvrtc.compile(request, false)?.0);
        }
    }
    let data = builder.finish(&nvrtc)?;
    let failed = |e: &dyn std::fmt::Display| Error::failed(format!("cannot write the kernel pack '{}'", args.output.display()), e);
    let folder = args.output.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(std::path::Path::new("."));
    let write = || -> std::io::Result<()> {
        use std::io::Write as _;
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(&data)?;
        file.persist(&args.output)?;
        Ok(())
    };
    write().map_err(|e| failed(&e))?;
    status::say(format_args!("wrote {} ({} KiB)", args.output.display(), data.len().div_ceil(1024)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_has_general_kernels_in_the_pack() {
        let all = requests("sm_90").unwrap();
        for file in [
            "naive.cu",
            "separable.cu",
            "box.cu",
            "direct.cu",
            "gradient.cu",
            "neighbours.cu",
            "order.cu",
            "median.cu",
            "pool.cu",
            "copy.cu",
        ] {
            assert!(all.iter().any(|r| r.file == file), "{file}");
        }
        assert!(all.len() < 1500, "{}", all.len());
        println!("{} kernels", all.len());
    }
}
