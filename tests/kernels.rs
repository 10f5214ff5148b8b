//! Every kernel compiles for every architecture, without a GPU: no spills, no indexed local arrays, no more static shared
//! memory than the smallest architecture has. Needs NVRTC (`CONVOY_NVRTC` or any place that the lookup knows).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use convoy::backend::cuda::compile::{self, Cache, Nvrtc, Request, SOURCES, source};
use convoy::backend::cuda::pack::{Builder, Pack};
use convoy::backend::cuda::spec::Spec;
use convoy::backend::cuda::tensor::{ConvolutionVariant, PoolVariant};
use convoy::backend::cuda::variants::{TABLE, Task, choose, family};
use convoy::filter::Border;
use convoy::filter::plan::{
    BoxMean, Compass, Direct, Extreme, Extremum, Gradient, Median, Morphology, Pixelate, PlaneOp, Pool, PoolKind, Separable, Unsharp,
};
use convoy::frame::{PixelFormat, Sample, Shape};
use convoy::tensor::{Convolution, Pooling, Reduce, Windows};
use sha2::{Digest, Sha256};

const ARCHITECTURES: [&str; 7] = ["sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"];
/// What a block has everywhere without asking.
const SHARED_LIMIT: usize = 48 << 10;

/// None only if the user said that a missing NVRTC is fine.
fn nvrtc() -> Option<Nvrtc> {
    match Nvrtc::open(None) {
        Ok(nvrtc) => {
            println!("NVRTC {}.{} at {}", nvrtc.version().0, nvrtc.version().1, nvrtc.path().display());
            Some(nvrtc)
        }
        Err(_) if std::env::var_os("CONVOY_SKIP_NVRTC").is_some_and(|v| v == "1") => {
            println!("SKIPPED: no NVRTC, and CONVOY_SKIP_NVRTC=1");
            None
        }
        Err(error) => panic!("{error}\n(set CONVOY_SKIP_NVRTC=1 to skip this test)"),
    }
}

fn task(op: PlaneOp, depth: u8) -> Task {
    let shape = Shape { format: PixelFormat::gray(depth), width: 1920, height: 1080 };
    Task { op, border: Border::Reflect101, shape, output: shape, components: 1, planes: vec![0], block: None }
}

/// Some kernels' blocks are higher on large frames.
fn with_size(task: Task, width: usize, height: usize) -> Task {
    let shape = Shape { width, height, ..task.shape };
    Task { shape, output: shape, ..task }
}

fn separable(radius: usize) -> PlaneOp {
    let taps = || vec![1.0; 2 * radius + 1].into();
    PlaneOp::Separable(Separable { row: taps(), col: taps(), scale: 1.0, bias: 0.0 })
}

/// Weights that need both of their parts.
fn mean(radius: usize) -> PlaneOp {
    let taps = || vec![1.0 / (2 * radius + 1) as f32; 2 * radius + 1].into();
    PlaneOp::Separable(Separable { row: taps(), col: taps(), scale: 1.0, bias: 0.0 })
}

fn fractional(width: usize, height: usize) -> PlaneOp {
    PlaneOp::Direct(Direct { width, height, taps: vec![0.1; width * height].into(), scale: 1.0, bias: 0.0 })
}

fn direct(width: usize, height: usize) -> PlaneOp {
    PlaneOp::Direct(Direct { width, height, taps: vec![1.0; width * height].into(), scale: 1.0, bias: 0.0 })
}

fn boxed(radius: usize, power: usize) -> PlaneOp {
    PlaneOp::Box(BoxMean { radius_x: radius, radius_y: radius, power })
}

fn extremum(radius: usize) -> PlaneOp {
    PlaneOp::Extremum(Extremum { kind: Extreme::Max, radius_x: radius, radius_y: radius })
}

fn median(radius: usize) -> PlaneOp {
    PlaneOp::Median(Median { radius_x: radius, radius_y: radius, rank: 2 * radius * (radius + 1) })
}

/// The same on halves.
fn halves(task: Task) -> Task {
    let shape = Shape { format: task.shape.format.half(), ..task.shape };
    Task { shape, output: shape, ..task }
}

/// One or two parameter sets for each row of the table, the heavier ones.
fn tasks() -> Vec<Task> {
    let gradient = || PlaneOp::Gradient(Gradient { x: [1.0; 9], y: [1.0; 9], scale: 1.0, delta: 0.0 });
    let on_halves = [
        PlaneOp::Copy,
        separable(1),
        separable(7),
        mean(32),
        direct(3, 3),
        direct(7, 7),
        fractional(31, 31),
        boxed(15, 1),
        boxed(40, 2),
        PlaneOp::Unsharp(Unsharp { size_x: 5, size_y: 5, amount: 65536 }),
        gradient(),
        PlaneOp::Compass(Compass { scale: 1.0, delta: 0.0 }),
        PlaneOp::Morphology(Morphology { kind: Extreme::Min, coordinates: 0b1010_0101, threshold: Some(0.1) }),
        extremum(7),
        extremum(31),
        median(1),
        median(2),
        median(7),
        PlaneOp::Pool(Pool { kind: PoolKind::Mean, kernel: 3, stride: 2, pad: 1, dilation: 1 }),
        PlaneOp::Pool(Pool { kind: PoolKind::Max, kernel: 5, stride: 1, pad: 2, dilation: 1 }),
        PlaneOp::Pixelate(Pixelate { block_x: 16, block_y: 9 }),
    ];
    let on_halves = on_halves.into_iter().map(|op| halves(task(op, 32)));
    let mut tasks = vec![
        task(PlaneOp::Copy, 8),
        task(separable(7), 8),
        task(separable(7), 32),
        task(separable(7), 16),
        task(mean(7), 8),
        task(mean(15), 8),
        task(mean(15), 10),
        task(mean(32), 8),
        Task { border: Border::Zero, ..task(mean(20), 8) },
        with_size(task(mean(7), 8), 7680, 4320),
        with_size(task(mean(15), 8), 7680, 4320),
        with_size(task(mean(32), 8), 7680, 4320),
        task(direct(7, 7), 8),
        task(direct(9, 9), 8),
        task(direct(31, 31), 8),
        task(direct(3, 3), 8),
        task(direct(3, 3), 16),
        task(direct(3, 3), 32),
        task(separable(1), 8),
        Task { border: Border::Wrap, ..task(direct(5, 5), 16) },
        Task { border: Border::Clamp, ..task(separable(2), 32) },
        task(fractional(7, 7), 8),
        task(fractional(31, 31), 32),
        task(direct(7, 7), 16),
        task(boxed(15, 1), 8),
        task(boxed(31, 1), 8),
        task(boxed(31, 1), 10),
        task(boxed(15, 2), 10),
        task(boxed(2, 2), 8),
        task(PlaneOp::Unsharp(Unsharp { size_x: 5, size_y: 5, amount: 65536 }), 8),
        task(gradient(), 16),
        task(PlaneOp::Compass(Compass { scale: 1.0, delta: 0.0 }), 16),
        task(PlaneOp::Morphology(Morphology { kind: Extreme::Min, coordinates: 0b1010_0101, threshold: Some(3.0) }), 8),
        task(extremum(7), 8),
        task(extremum(31), 8),
        task(extremum(15), 32),
        task(median(1), 8),
        task(median(7), 8),
        task(median(2), 16),
        task(median(2), 32),
        task(PlaneOp::Pool(Pool { kind: PoolKind::Mean, kernel: 3, stride: 2, pad: 1, dilation: 1 }), 8),
        task(PlaneOp::Pixelate(Pixelate { block_x: 16, block_y: 9 }), 8),
    ];
    tasks.extend(on_halves);
    // Textures have no border of this kind; their modules are made for small kernels here.
    tasks.extend([direct(3, 3), separable(1)].map(|op| Task { border: Border::Wrap, ..halves(task(op, 32)) }));
    tasks
}

/// Rows that do not take halves.
const NOT_ON_HALVES: [(&str, &str); 4] = [("separable", "tensor"), ("separable", "tensor8"), ("direct", "integer"), ("median", "levels")];

/// Files whose kernels have the number of taps compiled in and do nothing else with it.
const PER_SIZE: [&str; 4] = ["classic.cu", "fft.cu", "gemm.cu", "winograd.cu"];

/// Taps of a kernel; 0 for other operations.
fn window(op: &PlaneOp) -> usize {
    match op {
        PlaneOp::Separable(op) => op.row.len() * op.col.len(),
        PlaneOp::Direct(op) => op.taps.len(),
        _ => 0,
    }
}

/// Entry points, each with spilled bytes, stack bytes and static shared bytes, from `--ptxas-options=-v`.
fn resources(log: &str) -> Vec<(String, usize, usize, usize)> {
    let found = compile::resources(log).into_iter();
    found.map(|r| (r.entry, r.spilled_bytes + r.reloaded_bytes, r.stack_bytes, r.shared_bytes)).collect()
}

/// Logs of earlier runs, below the build folder: compiling everything again takes a minute of all cores, and what has not
/// changed compiles as it did.
struct Logs {
    folder: PathBuf,
    /// What all compilations share: the compiler itself and how it is called.
    common: String,
}

impl Logs {
    fn new(folder: &Path, nvrtc: &Nvrtc) -> Self {
        let library = fs::canonicalize(nvrtc.path()).unwrap_or_else(|_| nvrtc.path().to_path_buf());
        let state = fs::metadata(&library).map(|m| (m.len(), m.modified().ok()));
        let call = hex(include_bytes!("../src/backend/cuda/compile.rs"));
        fs::create_dir_all(folder).unwrap();
        Self { folder: folder.to_path_buf(), common: format!("{:?} {} {state:?} {call}", nvrtc.version(), library.display()) }
    }

    /// Where the log of a request is kept: everything that the compiler reads is in the name.
    fn path(&self, request: &Request) -> PathBuf {
        let hash = source(request.file).map_or("", |s| s.hash);
        self.folder.join(hex(format!("{}\n{request}\n{hash}", self.common).as_bytes()))
    }

    /// The log, if it is whole.
    fn recall(&self, request: &Request) -> Option<String> {
        let text = fs::read_to_string(self.path(request)).ok()?;
        let (digest, log) = text.split_once('\n')?;
        (digest == hex(log.as_bytes())).then(|| log.to_owned())
    }

    fn keep(&self, request: &Request, log: &str) {
        let mut file = tempfile::NamedTempFile::new_in(&self.folder).unwrap();
        std::io::Write::write_all(&mut file, format!("{}\n{log}", hex(log.as_bytes())).as_bytes()).unwrap();
        file.persist(self.path(request)).unwrap();
    }

    /// Removes what no request of `wanted` asks for.
    fn tidy<'a>(&self, wanted: impl Iterator<Item = &'a Request>) {
        let wanted: HashSet<PathBuf> = wanted.map(|request| self.path(request)).collect();
        for entry in fs::read_dir(&self.folder).unwrap().flatten().filter(|entry| !wanted.contains(&entry.path())) {
            drop(fs::remove_file(entry.path()));
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_log_is_used_again_only_whole_and_for_the_same_request() {
    let Some(nvrtc) = nvrtc() else { return };
    let folder = tempfile::tempdir().unwrap();
    let logs = Logs::new(folder.path(), &nvrtc);
    let request = Request { file: "copy.cu", defines: vec![("A", 1)], arch: "sm_90".into() };
    assert!(source("copy.cu").is_some());
    logs.keep(&request, "a log\nof two lines");
    assert_eq!(logs.recall(&request).as_deref(), Some("a log\nof two lines"));
    for other in [
        Request { arch: "sm_80".into(), ..request.clone() },
        Request { defines: vec![("A", 2)], ..request.clone() },
        Request { file: "pool.cu", ..request.clone() },
    ] {
        assert_eq!(logs.recall(&other), None, "{other}");
    }
    let mut text = fs::read(logs.path(&request)).unwrap();
    *text.last_mut().unwrap() ^= 1;
    fs::write(logs.path(&request), text).unwrap();
    assert_eq!(logs.recall(&request), None, "a changed log");
    logs.keep(&request, "again");
    logs.tidy(std::iter::empty());
    assert_eq!(logs.recall(&request), None, "a log that nobody wants");
}

/// The kernels of layers over tensors: a heavy parameter set for each.
fn layers() -> Vec<(Request, HashSet<&'static str>)> {
    let mut all = Vec::new();
    let pools = [
        (PoolVariant::Naive, Reduce::Mean, 9, 1),
        (PoolVariant::Tiled, Reduce::Mean, 9, 1),
        (PoolVariant::Vector, Reduce::Mean, 9, 1),
        (PoolVariant::Coarsened, Reduce::Max, 3, 1),
        (PoolVariant::Coarsened, Reduce::Mean, 3, 2),
        (PoolVariant::Coarsened, Reduce::Min, 9, 2),
    ];
    for (variant, reduce, kernel, stride) in pools {
        for half in [false, true] {
            let layer = Pooling { count_pad: false, ..Pooling::new(reduce, kernel, stride).pad(kernel / 2) };
            let defines = variant.defines(&layer, half, false);
            all.push((Request { file: "tensor_pool.cu", defines, arch: String::new() }, HashSet::from([variant.entry()])));
        }
    }
    let layer = Convolution { weights: [].as_slice().into(), bias: None, out_channels: 1, windows: Windows::square(3, 1) };
    for variant in ConvolutionVariant::ALL {
        let request = Request { file: "tensor_conv.cu", defines: variant.defines(&layer), arch: String::new() };
        all.push((request, variant.entries().iter().copied().collect()));
    }
    all
}

/// Two halves at once need sm_80.
#[test]
fn pairs_of_halves_compile_where_they_exist() {
    let Some(nvrtc) = nvrtc() else { return };
    for reduce in [Reduce::Max, Reduce::Min] {
        let layer = Pooling::new(reduce, 3, 1).pad(1);
        let defines = PoolVariant::Coarsened.defines(&layer, true, true);
        for arch in ARCHITECTURES.into_iter().filter(|arch| *arch != "sm_75") {
            let request = Request { file: "tensor_pool.cu", defines: defines.clone(), arch: arch.to_owned() };
            let log = nvrtc.compile(&request, true).unwrap().1;
            assert!(
                resources(&log).iter().any(|(entry, spills, stack, _)| entry == "tensor_pool__coarsened" && spills + stack == 0),
                "{log}"
            );
        }
    }
}

#[test]
fn the_resource_parser_sees_spills() {
    let log = "ptxas info    : Compiling entry function 'a__b' for 'sm_90'\nptxas info    : Function properties for a__b\n    \
               ptxas         .     8 bytes stack frame, 12 bytes spill stores, 24 bytes spill loads\nptxas info    : Used 80 registers, \
               used 1 barriers, 16384 bytes smem, 8 bytes cumulative stack size\n";
    assert_eq!(resources(log), [("a__b".to_owned(), 36, 8, 16384)]);
}

/// Bytes of constant bank 0 in front of the parameters of a kernel on sm_75, whose log names their sum.
const BEFORE_PARAMETERS: usize = 0x160;
/// `Frame` of `plane.cuh`.
const FRAME_BYTES: usize = 4 * 64 + 8;

/// Bytes of a kernel's parameters, as the host gives them.
fn given(spec: &Spec) -> usize {
    let address = if spec.table.is_empty() && spec.transform.is_none() { 0 } else { 8 };
    FRAME_BYTES + (address + spec.params.bytes()).next_multiple_of(8)
}

/// And as the kernel takes them: "624 bytes cmem[0]" of an entry point, where the log says so.
fn taken(log: &str, entry: &str) -> Option<usize> {
    let (_, of_entry) = log.split_once(&format!("Compiling entry function '{entry}' for 'sm_75'"))?;
    let (before, _) = of_entry.split_once(" bytes cmem[0]")?;
    before.rsplit(' ').next()?.parse::<usize>().ok()?.checked_sub(BEFORE_PARAMETERS)
}

#[test]
fn every_row_compiles_for_every_architecture_without_spills() {
    let Some(nvrtc) = nvrtc() else { return };
    let (mut covered, mut covered_on_halves) = (HashSet::new(), HashSet::new());
    let mut requests: Vec<(Request, HashSet<&str>)> = Vec::new();
    // What the host gives each kernel. The driver copies as many bytes as the kernel declares: a shorter structure would be completed from
    // whatever lies behind it.
    let mut parameters = HashMap::new();
    // The first parameter set of each row, and the first on halves.
    let mut firsts = HashSet::new();
    for task in tasks() {
        for row in TABLE.iter().filter(|row| row.executes(&task.op)) {
            let Ok(specs) = row.specs(&task) else { continue };
            let first = if task.shape.format.sample() == Sample::F16 {
                covered_on_halves.insert((family(&task.op), row.name))
            } else {
                covered.insert((family(&task.op), row.name))
            };
            for spec in specs.into_iter().filter(|s| s.call.is_none()) {
                // One module per kernel size: the small ones stand for all.
                if PER_SIZE.contains(&spec.file) && window(&task.op) > 25 {
                    continue;
                }
                let request = Request { file: spec.file, defines: spec.defines.clone(), arch: String::new() };
                if first {
                    firsts.insert(request.clone());
                }
                parameters.insert((request.clone(), spec.entry), given(&spec));
                match requests.iter_mut().find(|(r, _)| *r == request) {
                    Some((_, entries)) => drop(entries.insert(spec.entry)),
                    None => requests.push((request, HashSet::from([spec.entry]))),
                }
            }
        }
    }
    let rows: HashSet<_> = TABLE.iter().flat_map(|row| row.families.iter().map(|family| (*family, row.name))).collect();
    assert_eq!(covered, rows, "every row needs a parameter set here");
    covered_on_halves.extend(NOT_ON_HALVES);
    assert_eq!(covered_on_halves, rows, "every row needs a parameter set on halves, or a place among those that take none");

    let layers = layers();
    firsts.extend(layers.iter().map(|(request, _)| request.clone()));
    requests.extend(layers);

    // Every set for the oldest, the newest and one between; for the others one per row, or all on demand.
    let all = std::env::var_os("CONVOY_ALL_KERNELS").is_some();
    let mut jobs = Vec::new();
    for arch in ARCHITECTURES {
        let wanted = requests.iter().filter(|(r, _)| all || ["sm_75", "sm_90", "sm_120"].contains(&arch) || firsts.contains(r));
        jobs.extend(wanted.map(|(r, entries)| (Request { arch: arch.to_owned(), ..r.clone() }, entries)));
    }
    let logs = Logs::new(&Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels"), &nvrtc);
    logs.tidy(jobs.iter().map(|(request, _)| request));
    let (compiled, measured) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let (count, queue, problems) = (jobs.len(), Mutex::new(jobs), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let Some((request, entries)) = queue.lock().unwrap().pop() else { break };
                    let report = |text: String| problems.lock().unwrap().push(format!("{request}: {text}"));
                    let log = match logs.recall(&request) {
                        Some(log) => log,
                        None => match nvrtc.compile(&request, true) {
                            Ok((cubin, log)) if !cubin.is_empty() => {
                                compiled.fetch_add(1, Ordering::Relaxed);
                                logs.keep(&request, &log);
                                log
                            }
                            Ok(_) => {
                                report("no machine code".to_owned());
                                continue;
                            }
                            Err(error) => {
                                report(error.to_string());
                                continue;
                            }
                        },
                    };
                    let found = resources(&log);
                    if !entries.iter().all(|e| found.iter().any(|f| f.0 == **e)) {
                        report(format!("wanted {entries:?} in the log\n{log}"));
                    }
                    for entry in entries {
                        let given = parameters.get(&(Request { arch: String::new(), ..request.clone() }, *entry));
                        if let (Some(given), Some(taken)) = (given, taken(&log, entry)) {
                            measured.fetch_add(1, Ordering::Relaxed);
                            if !(taken..taken + 8).contains(given) {
                                report(format!("{entry} takes {taken} bytes of parameters, and the host gives {given}"));
                            }
                        }
                    }
                    for (entry, spills, stack, shared) in found.iter().filter(|f| entries.contains(f.0.as_str())) {
                        if *spills + *stack > 0 || *shared > SHARED_LIMIT {
                            report(format!("{entry}: {spills} bytes spilled, {stack} of stack, {shared} of shared memory"));
                        }
                    }
                }
            });
        }
    });
    assert!(measured.into_inner() > TABLE.len(), "the compiler's log no longer tells the size of parameters");
    let problems = problems.into_inner().unwrap();
    let compiled = compiled.into_inner();
    println!("{count} compilations of {} requests, {compiled} of them now, the others in earlier runs", requests.len());
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn halves_are_sixteen_bits_that_are_no_whole_numbers_and_rows_that_take_none_say_why() {
    let (small, windows) = (halves(task(direct(3, 3), 32)), halves(task(separable(3), 32)));
    for task in [&small, &windows, &halves(task(median(3), 32)), &halves(task(boxed(3, 1), 32))] {
        for row in TABLE.iter().filter(|row| row.executes(&task.op)) {
            let Ok(specs) = row.specs(task) else { continue };
            for spec in specs.iter().filter(|spec| spec.call.is_none()) {
                let value = |name: &str| spec.defines.iter().find(|(n, _)| *n == name).map(|(_, value)| *value);
                let found = ["SAMPLE", "FLOATING", "MAX_VALUE", "SHIFT", "CENTRE"].map(value);
                assert_eq!(found, [Some(16), Some(1), Some(1), Some(0), Some(0)], "{} {}", family(&task.op), row.name);
                assert_ne!(value("BOUNDED"), Some(1), "{} {}: floats are not clamped", family(&task.op), row.name);
            }
        }
    }
    for ((family, name), why) in NOT_ON_HALVES.into_iter().zip(["too coarse for float", "8-bit samples", "8-bit samples", "8-bit samples"])
    {
        let row = TABLE.iter().find(|row| row.name == name && row.families.contains(&family)).unwrap();
        let task = match family {
            "separable" => windows.clone(),
            "direct" => small.clone(),
            _ => halves(task(median(3), 32)),
        };
        let refused = row.specs(&task).unwrap_err();
        assert!(refused.contains(why), "{family} {name}: {refused}");
    }
}

#[test]
fn a_cache_entry_is_used_once_whole_and_recompiled_when_not() {
    let Some(nvrtc) = nvrtc() else { return };
    let folder = tempfile::tempdir().unwrap();
    let cache = Cache::at(folder.path().join("below"));
    let specs = choose(&task(PlaneOp::Copy, 8), "copy", None, 1, 1).unwrap().1;
    let request = Request { file: specs[0].file, defines: specs[0].defines.clone(), arch: "sm_90".into() };
    let (first, compiled) = cache.cubin(&nvrtc, &request).unwrap();
    assert!(compiled);
    let (second, compiled) = cache.cubin(&nvrtc, &request).unwrap();
    assert!(!compiled && first == second, "the second time comes from disk");

    let entry = std::fs::read_dir(cache.folder().unwrap()).unwrap().next().unwrap().unwrap().path();
    let good = std::fs::read(&entry).unwrap();
    let mut flipped = good.clone();
    *flipped.last_mut().unwrap() ^= 1;
    let mut other_key = good.clone();
    other_key[9] ^= 1;
    for bad in [flipped, other_key, good[..good.len() / 2].to_vec(), Vec::new(), b"rubbish".to_vec()] {
        std::fs::write(&entry, &bad).unwrap();
        let (again, compiled) = cache.cubin(&nvrtc, &request).unwrap();
        assert!(compiled && again == first, "a damaged entry of {} bytes is recompiled", bad.len());
        assert_eq!(std::fs::read(&entry).unwrap(), good, "and replaced");
    }
    // Another architecture and other defines are other entries.
    let other = Request { arch: "sm_80".into(), ..request.clone() };
    assert!(cache.cubin(&nvrtc, &other).unwrap().1);
    // A folder that cannot be made (a file stands there) costs time only.
    let blocked = Cache::at(entry.join("below-a-file"));
    assert!(blocked.cubin(&nvrtc, &request).unwrap().1);
    assert!(blocked.cubin(&nvrtc, &request).unwrap().1);
}

#[test]
fn a_kernel_pack_gives_back_what_was_put_in_and_finds_damage() {
    let Some(nvrtc) = nvrtc() else { return };
    let specs = choose(&task(PlaneOp::Copy, 8), "copy", None, 1, 1).unwrap().1;
    let request = |arch: &str| Request { file: specs[0].file, defines: specs[0].defines.clone(), arch: arch.into() };
    let (cubin, _) = nvrtc.compile(&request("sm_80"), false).unwrap();
    let mut builder = Builder::default();
    builder.add(&request("sm_80"), &cubin);
    builder.add(&request("sm_80"), &cubin);
    let data = builder.finish(&nvrtc).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kernels.pack");
    let open = |data: &[u8]| {
        std::fs::write(&path, data).unwrap();
        Pack::read(&path)
    };
    let pack = open(&data).unwrap();
    assert_eq!((pack.len(), pack.compiler()), (1, nvrtc.version()));
    assert_eq!(pack.cubin(&request("sm_80")), Some(cubin.clone()));
    assert_eq!(pack.cubin(&request("sm_86")), Some(cubin), "a later GPU of the same major");
    for other in ["sm_75", "sm_90", "sm_8", "sm_", "compute_80"] {
        assert!(!pack.contains(&request(other)), "{other}");
    }
    // Damage is found wherever it is: at opening, or when the entry is wanted.
    let mut flipped = data.clone();
    *flipped.last_mut().unwrap() ^= 1;
    assert_eq!(open(&flipped).unwrap().cubin(&request("sm_80")), None);
    for cut in [0, 7, 19, 50, data.len() - 1] {
        assert!(open(&data[..cut]).unwrap_err().to_string().contains("kernel pack"), "{cut}");
    }
    assert!(Pack::read(std::path::Path::new("/nonexistent/pack")).unwrap_err().to_string().contains("/nonexistent/pack"));
}

#[test]
fn a_compile_error_shows_the_log() {
    let Some(nvrtc) = nvrtc() else { return };
    let request = Request { file: "copy.cu", defines: vec![("SAMPLE", 7)], arch: "sm_90".into() };
    let error = nvrtc.compile(&request, false).unwrap_err().to_string();
    assert!(error.contains("SAMPLE must be 8, 16 or 32") && error.contains("copy.cu for sm_90 SAMPLE=7"), "{error}");
    let request = Request { file: "none.cu", defines: vec![], arch: "sm_90".into() };
    assert!(nvrtc.compile(&request, false).unwrap_err().to_string().contains("no such kernel file"));
}

#[test]
fn a_missing_compiler_is_an_error_that_says_how_to_get_it() {
    let error = Nvrtc::load(std::path::Path::new("/nonexistent/libnvrtc.so.12")).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("/nonexistent/libnvrtc.so.12") && error.contains("CONVOY_NVRTC"), "{error}");
}

#[test]
fn sources_are_sorted_and_include_nothing_but_the_plane_header() {
    assert!(SOURCES.is_sorted_by_key(|s| s.name));
    for source in SOURCES {
        for line in source.text.lines().filter(|l| l.trim_start().starts_with("#include")) {
            assert_eq!(line.trim(), "#include \"plane.cuh\"", "{}", source.name);
        }
        assert_eq!(source.hash.len(), 64);
    }
}

#[test]
fn a_forced_variant_that_does_not_fit_says_why_and_only_auto_falls_back() {
    let forced =
        |task: &Task, name| choose(task, "the filter", Some(name), 132, 1 << 42).map(|(row, _)| row.name).map_err(|e| e.to_string());
    let large = task(separable(33), 8);
    let error = forced(&large, "fused").unwrap_err();
    assert!(error.contains("variant 'fused' cannot run 'the filter'") && error.contains("32") && error.contains("separable"), "{error}");
    assert_eq!(forced(&large, "separable"), Ok("separable"));
    assert!(forced(&large, "warp9").unwrap_err().contains("no variant of that name"));
    assert!(forced(&large, "network").unwrap_err().contains("no such variant of separable kernels"));
    assert_eq!(choose(&large, "", None, 132, 1 << 42).unwrap().0.name, "separable");
    assert_eq!(choose(&task(separable(1), 8), "", None, 132, 1 << 42).unwrap().0.name, "fused");
    assert_eq!(choose(&task(separable(7), 8), "", None, 132, 1 << 42).unwrap().0.name, "tensor");
    assert_eq!(choose(&task(mean(7), 8), "", None, 132, 1 << 42).unwrap().0.name, "tensor8");
    assert_eq!(choose(&task(mean(7), 10), "", None, 132, 1 << 42).unwrap().0.name, "tensor");
    assert!(forced(&task(separable(7), 8), "tensor8").unwrap_err().contains("add up to 0.5 to 1"));
    assert!(forced(&task(mean(33), 8), "tensor8").unwrap_err().contains("limited to 32"));
    assert_eq!(choose(&task(separable(7), 12), "", None, 132, 1 << 42).unwrap().0.name, "fused");
    assert_eq!(choose(&task(direct(7, 7), 8), "", None, 132, 1 << 42).unwrap().0.name, "integer");
    assert_eq!(choose(&task(direct(7, 7), 12), "", None, 132, 1 << 42).unwrap().0.name, "coarsened");
    assert_eq!(choose(&task(direct(31, 31), 32), "", None, 132, 1 << 42).unwrap().0.name, "tensor");
    assert_eq!(choose(&task(boxed(7, 1), 8), "", None, 132, 1 << 42).unwrap().0.name, "fused");
    assert_eq!(choose(&task(boxed(1024, 1), 8), "", None, 132, 1 << 42).unwrap().0.name, "running");
    assert_eq!(choose(&task(boxed(3, 2), 8), "", None, 132, 1 << 42).unwrap().0.name, "fused");
    assert_eq!(choose(&task(boxed(20, 2), 8), "", None, 132, 1 << 42).unwrap().0.name, "running");
    assert_eq!(choose(&task(extremum(7), 8), "", None, 132, 1 << 42).unwrap().0.name, "fused");
    assert_eq!(choose(&task(extremum(500), 8), "", None, 132, 1 << 42).unwrap().0.name, "running");
    assert_eq!(choose(&task(median(2), 8), "", None, 132, 1 << 42).unwrap().0.name, "network");
    assert_eq!(choose(&task(median(7), 8), "", None, 132, 1 << 42).unwrap().0.name, "levels");
    assert_eq!(choose(&task(median(7), 10), "", None, 132, 1 << 42).unwrap().0.name, "select");
    // A plane that passes is copied, whatever is forced for the others.
    assert_eq!(forced(&task(PlaneOp::Copy, 8), "fused"), Ok("vector"));
    // Every operation has a way without a wish, at any size.
    let pool = Pool { kind: PoolKind::Max, kernel: 99, stride: 99, pad: 49, dilation: 50 };
    let unsharp = Unsharp { size_x: 23, size_y: 23, amount: 1 };
    for op in [
        separable(3072),
        direct(127, 127),
        boxed(4000, 3),
        PlaneOp::Unsharp(unsharp),
        extremum(5000),
        median(127),
        PlaneOp::Pool(pool),
        PlaneOp::Pixelate(Pixelate { block_x: 5000, block_y: 5000 }),
    ] {
        for depth in [8, 10, 16, 32] {
            assert!(choose(&task(op.clone(), depth), "", None, 132, 1 << 42).is_ok());
        }
    }
}
