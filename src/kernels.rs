//! `convoy kernels pack`: compiles the kernels of the common filters for several architectures into one file.
//!
//! For each example graph and usual sample type the pack holds the kernel that the automatic choice takes at the default border, and for
//! every type and border the general kernels, which take any parameter: with a pack and no NVRTC the filters run, the usual ones at full speed.

use std::collections::HashSet;
use std::sync::Arc;

use crate::backend::cpu::Cpu;
use crate::backend::cpu::tensor::parallel;
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

/// What users write, and not what is packed: each of these runs from a pack alone, in every format and under every border.
pub const COMMON: [&str; 34] = [
    "gblur",
    "gblur=sigma=2",
    "gblur=sigma=5",
    "gblur=sigma=25",
    "boxblur=2",
    "boxblur=3:2",
    "avgblur=4",
    "avgblur=21",
    "avgblur=300",
    "unsharp",
    "unsharp=5:5:1.5:3:3:0.5",
    "convolution=1 2 3 4 5 6 7 8 9",
    "convolution=1 1 1 1 1 1 1 1 1 1 1 1 9 1 1 1 1 1 1 1 1 1 1 1 1",
    "convolution=0m=1 2 1 4 7 4 1 2 1:1m=1 1 1 1 1 1 1 1 1",
    "sobel",
    "prewitt=scale=0.5",
    "scharr",
    "roberts",
    "kirsch",
    "laplacian",
    "emboss",
    "sharpen",
    "edge",
    "erosion",
    "dilation=threshold0=20",
    "dilation=radius=4",
    "erosion=radius=40",
    "median",
    "median=4",
    "maxpool",
    "avgpool=kernel=3:stride=3",
    "minpool",
    "pixelate=9",
    "gblur=2,sobel,unsharp",
];

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
    "erosion=coordinates=90",
    "dilation=coordinates=165",
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

/// Graphs whose general kernels are packed for every border: one of each operation, with a window that only those take.
const EVERY_BORDER: &[&str] = &[
    "gblur=sigma=30",
    "avgblur=100",
    "boxblur=100:3",
    "unsharp=5:5:1:5:5:1",
    "laplacian",
    "sobel",
    "kirsch",
    "erosion=coordinates=90",
    "dilation=radius=100",
    "erosion=radius=100",
    "median=5",
    "maxpool",
    "pixelate=16",
];

/// Rows that take any parameter of their operation.
const GENERAL: [&str; 4] = ["naive", "running", "separable", "blocks"];

/// Sizes of the common filters' frames: some kernels' blocks are higher on larger frames.
const SIZES: [(usize, usize); 4] = [(1280, 720), (1920, 1080), (3840, 2160), (7680, 4320)];

/// One size for each number of warps that a row of the running box takes, low and high planes among them.
const BOX_SIZES: [(usize, usize); 5] = [(512, 256), (1024, 576), (1920, 1080), (3840, 2160), (7680, 4320)];

/// Sample types whose kernels differ, and whether the fastest ones are packed too: those of videos' usual formats.
fn formats() -> Vec<(PixelFormat, bool)> {
    let semi = |format: PixelFormat, high_bits| PixelFormat { packing: Packing::SemiPlanar, high_bits, ..format };
    vec![
        (PixelFormat::yuv(8, 1, 1), true),
        (semi(PixelFormat::yuv(8, 1, 1), false), true),
        (PixelFormat::yuv(10, 1, 1), true),
        (semi(PixelFormat::yuv(10, 1, 1), true), true),
        (PixelFormat::yuv(9, 1, 1), false),
        (PixelFormat::yuv(12, 1, 1), false),
        (PixelFormat::yuv(14, 1, 1), false),
        (PixelFormat::gbr(16), false),
        (semi(PixelFormat::yuv(16, 1, 1), false), false),
        (PixelFormat::gbr(32), false),
        (PixelFormat::gbr(32).half(), false),
    ]
}

/// What to compile for one architecture.
fn requests(arch: &str) -> Result<Vec<Request>> {
    let mut seen = HashSet::new();
    let (mut all, mut wanted) = (Vec::new(), Vec::new());
    for (format, usual) in formats() {
        let shape = Shape { format, width: 1920, height: 1080 };
        let tasks = |graph: &str, border: Border, (width, height): (usize, usize)| -> Result<Vec<Task>> {
            let mut plan = filter::plan(&filter::parse(graph)?, Shape { width, height, ..shape })?;
            plan.steps.iter_mut().for_each(|step| step.border = border);
            Ok(plan.steps.iter().flat_map(Task::of_step).collect())
        };
        for (graph, size) in GRAPHS.iter().filter(|_| usual).flat_map(|graph| SIZES.map(|size| (graph, size))) {
            for task in tasks(graph, Border::Clamp, size)? {
                // All planes of the operation in one launch, and one alone: the others may pass.
                wanted.extend([(task.clone(), Rows::Best), (alone(task), Rows::Best)]);
            }
        }
        for graph in EVERY_BORDER {
            for border in Border::ALL {
                // Planes go one by one where there is no kernel for all of them (`Cuda::compile`).
                wanted.extend(tasks(graph, border, (1920, 1080))?.into_iter().map(|task| (alone(task), Rows::Named(&GENERAL))));
            }
        }
        // The running box's kernels depend on the frame's size, too.
        for (width, height) in BOX_SIZES {
            for border in Border::ALL {
                let mut plan = filter::plan(&filter::parse("avgblur=100")?, Shape { format, width, height })?;
                plan.steps.iter_mut().for_each(|step| step.border = border);
                wanted.extend(plan.steps.iter().flat_map(Task::of_step).map(|task| (alone(task), Rows::Named(&["running"]))));
            }
        }
        for (components, planes) in [(1, vec![0]), (1, vec![0, 1]), (1, vec![1, 2]), (1, vec![0, 1, 2]), (2, vec![1])] {
            if components == 2 || planes.iter().all(|&p| p < format.plane_count()) {
                let task = Task { op: PlaneOp::Copy, border: Border::Clamp, shape, output: shape, components, planes, block: None };
                wanted.push((task, Rows::Best));
            }
        }
    }
    for (task, rows) in &wanted {
        add(task, rows, arch, &mut seen, &mut all);
    }
    Ok(all)
}

/// Which kernels of a task are packed.
enum Rows {
    /// The one that the automatic choice takes.
    Best,
    /// Those of these names.
    Named(&'static [&'static str]),
}

/// The first of a task's planes.
fn alone(task: Task) -> Task {
    Task { planes: task.planes.iter().copied().take(1).collect(), ..task }
}

fn add(task: &Task, rows: &Rows, arch: &str, seen: &mut HashSet<Request>, all: &mut Vec<Request>) {
    let mut ranked = ranked(task, Machine::ASSUMED.multiprocessors, Machine::ASSUMED.bandwidth);
    ranked.retain(|(row, ..)| row.library().is_none());
    match rows {
        Rows::Best => ranked.truncate(1),
        Rows::Named(names) => ranked.retain(|(row, ..)| names.contains(&row.name)),
    }
    for (_, _, specs) in ranked {
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
    let nvrtc = Arc::new(Nvrtc::open(None)?);
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
        let (nvrtc, wanted) = (Arc::clone(&nvrtc), requests.clone());
        let compile = move |task: usize| wanted.get(task).map(|request| nvrtc.compile(request, false)).into_iter().collect();
        let cubins = parallel(requests.len(), Cpu::threads(), compile)?;
        for (request, cubin) in requests.iter().zip(cubins) {
            builder.add(request, &cubin?.0);
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
    use crate::backend::cuda::variants::pick_ready;

    #[test]
    fn every_family_has_kernels_in_the_pack() {
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
        println!("{} kernels", all.len());
        assert!(all.len() < 1500, "{}", all.len());
    }

    /// As a machine without NVRTC would choose: no filter of these may be left without a kernel, whatever its format and border.
    #[test]
    fn every_common_filter_finds_its_kernels_in_the_pack() {
        let packed: HashSet<Request> = requests("sm_90").unwrap().into_iter().collect();
        let ready = |specs: &[crate::backend::cuda::spec::Spec]| {
            specs.iter().all(|s| packed.contains(&Request { file: s.file, defines: s.defines.clone(), arch: "sm_90".into() }))
        };
        let semi = |format: PixelFormat, high_bits| PixelFormat { packing: Packing::SemiPlanar, high_bits, ..format };
        let formats = [
            PixelFormat::gray(8),
            PixelFormat { alpha: true, ..PixelFormat::yuv(8, 1, 1) },
            PixelFormat::yuv(8, 0, 0),
            PixelFormat::yuv(9, 1, 1),
            PixelFormat::yuv(10, 1, 0),
            PixelFormat::gbr(12),
            PixelFormat::gbr(14),
            PixelFormat::gbr(16),
            PixelFormat::gray(32),
            PixelFormat::gray(32).half(),
            semi(PixelFormat::yuv(8, 1, 1), false),
            semi(PixelFormat::yuv(10, 1, 1), true),
            semi(PixelFormat::yuv(16, 1, 1), false),
        ];
        let graphs = GRAPHS.iter().chain(EVERY_BORDER).chain(&COMMON).chain(&[
            "gblur=sigma=5:planes=6",
            "gblur=sigma=25:planes=1",
            "boxblur=7:5",
            "unsharp=23:23:1",
            "minpool=kernel=5:stride=2:pad=1:dilation=2",
        ]);
        let machine = Machine::ASSUMED;
        for (graph, format) in graphs.flat_map(|graph| formats.map(|format| (graph, format))) {
            let shape = Shape { format, width: 202, height: 118 };
            let filters = filter::parse(graph).unwrap();
            if filter::separates_chroma(&filters, shape) {
                continue;
            }
            for border in Border::ALL {
                let mut plan = filter::plan(&filters, shape).unwrap();
                plan.steps.iter_mut().for_each(|step| step.border = border);
                for task in plan.steps.iter().flat_map(Task::of_step) {
                    let found = |task: &Task| pick_ready(task, graph, None, machine, None, &ready).map(|_| ());
                    let each = || task.one_by_one().iter().try_for_each(found);
                    if let Err(error) = found(&task).or_else(|_| each()) {
                        panic!("{graph} on {format}, {}, planes {:?}: {error}", border.name(), task.planes);
                    }
                }
            }
        }
    }
}
