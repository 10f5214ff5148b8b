//! CUDA: device, compiler, variants, lanes.
//!
//! [`open`] either gives a working device or says what is missing; nothing here panics on a machine without a GPU.
//! All compilation, allocation and lookup happens in [`Cuda::build`]; frames then only enqueue (see [`lane`]).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::backend::{BuildOptions, Built, Device};
use crate::error::Result;
use crate::filter::Border;
use crate::filter::plan::{Plan, PlaneOp, Step};
use crate::pool::HostMem;

pub mod buffers;
mod clock;
pub mod compile;
pub mod device;
pub mod geometry;
pub mod lane;
pub mod launch;
pub mod library;
mod lookup;
mod lower;
mod lower_box;
mod lower_direct;
mod lower_race;
mod lower_tensor;
mod lower_tensor8;
mod lower_windows;
pub mod measure;
pub mod pack;
pub mod pinned;
pub mod spec;
mod table;
pub mod tensor;
mod texture;
pub mod tuning;
pub mod variants;

use compile::{Cache, Compiler, Found, Nvrtc, Request};
use device::{Context, DeviceBuffer, DeviceInfo, Kernel, Module};
use launch::{Launch, Work};
use pack::Pack;
use pinned::Pinned;
use spec::Spec;
use tuning::Tuning;
use variants::{Choice, Machine, Task};

/// The variable of a module that [`Spec::constants`] fills.
const CONSTANTS: &str = "constant_taps";

/// An open GPU with its compiler.
pub struct Cuda {
    context: Arc<Context>,
    driver: (u32, u32),
    compiler: Compiler,
    memory: Arc<Pinned>,
    modules: Mutex<HashMap<Request, Arc<Module>>>,
    /// What `bench --tune` measured on this GPU.
    tuning: Tuning,
}

/// Opens GPU `index` and the kernel compiler.
///
/// # Errors
/// No driver, no such GPU, or neither NVRTC nor a kernel pack; the message says which, and how to get it.
pub fn open(index: usize) -> Result<Cuda> {
    open_with(index, Cache::user())
}

/// Like [`open`], with another kernel cache.
///
/// # Errors
/// As for [`open`].
pub fn open_with(index: usize, cache: Cache) -> Result<Cuda> {
    let context = Context::open(index)?;
    let driver = device::driver_version()?;
    let compiler = Compiler::open(driver.0, cache)?;
    let memory = Arc::new(Pinned::new(Arc::clone(&context)));
    let tuning = Tuning::open(context.info(), driver);
    Ok(Cuda { context, driver, compiler, memory, modules: Mutex::new(HashMap::new()), tuning })
}

/// What is there and what is missing, for `convoy doctor`.
#[derive(Clone, Debug)]
pub struct Report {
    /// Whether the driver library was found.
    pub driver_present: bool,
    /// The CUDA version that the driver supports, or why it does not answer.
    pub driver: Result<(u32, u32), String>,
    /// The GPUs, or why none can be listed.
    pub devices: Result<Vec<DeviceInfo>, String>,
    /// Every NVRTC that was found.
    pub compilers: Vec<Found>,
    /// The NVRTC that would be used: path and version, or why none can be.
    pub compiler: Result<(std::path::PathBuf, (u32, u32)), String>,
    /// Measured times of variants, of each GPU in turn.
    pub tuning: Vec<Tuning>,
    /// Where compiled kernels are kept; None if nowhere.
    pub cache: Option<std::path::PathBuf>,
    /// The kernel pack: where it is (None: embedded) and how many kernels it has; None without one; or why it cannot be used.
    pub pack: Result<Option<(Option<std::path::PathBuf>, usize)>, String>,
}

/// Looks around; never fails, never panics.
pub fn probe() -> Report {
    let ready = device::init();
    let text = |e: &crate::error::Error| e.to_string();
    let driver = ready.as_ref().map_err(text).and_then(|()| device::driver_version().map_err(|e| text(&e)));
    let devices = ready.as_ref().map_err(text).and_then(|()| device::devices().map_err(|e| text(&e)));
    let compiler = Nvrtc::open(driver.as_ref().ok().map(|v| v.0)).map(|n| (n.path().to_owned(), n.version())).map_err(|e| text(&e));
    let tuning = match (&driver, &devices) {
        (Ok(driver), Ok(devices)) => devices.iter().map(|device| Tuning::open(device, *driver)).collect(),
        (Err(_), _) | (_, Err(_)) => Vec::new(),
    };
    Report {
        tuning,
        driver_present: device::present(),
        driver,
        devices,
        compilers: Nvrtc::survey(),
        compiler,
        cache: Cache::user().folder().map(std::path::Path::to_owned),
        pack: Pack::open().map(|pack| pack.map(|p| (p.path().map(std::path::Path::to_owned), p.len()))).map_err(|e| text(&e)),
    }
}

/// A plan, compiled: launches in order, with the step that each belongs to.
pub struct Program {
    /// The plan, with a copy step if it had none.
    plan: Plan,
    /// Launches.
    launches: Vec<(usize, Launch)>,
    /// One line per task: "gblur: fused (…)".
    notes: Vec<String>,
}

impl Program {
    /// Resources of each kernel, in order of execution, with its step's index.
    ///
    /// # Errors
    /// A driver error.
    pub fn kernels(&self) -> Result<Vec<(usize, device::KernelInfo)>> {
        let kernels = self.launches.iter().filter_map(|(step, launch)| launch.kernel().map(|kernel| (step, kernel)));
        kernels.map(|(step, kernel)| Ok((*step, kernel.info()?))).collect()
    }

    /// What runs, one line per group of planes.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }
}

impl Cuda {
    /// The GPU.
    pub fn info(&self) -> &DeviceInfo {
        self.context.info()
    }

    /// The CUDA version that the driver supports, as (major, minor).
    pub fn driver(&self) -> (u32, u32) {
        self.driver
    }

    /// The context, for benchmarks.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Chooses variants for every step and compiles them.
    ///
    /// # Errors
    /// A forced variant does not fit, or a kernel does not compile or load.
    pub fn compile(&self, plan: &Plan, variant: Option<&str>) -> Result<Program> {
        let mut plan = plan.clone();
        if plan.steps.is_empty() {
            let planes = [PlaneOp::Copy, PlaneOp::Copy, PlaneOp::Copy, PlaneOp::Copy];
            let label = "copy".to_owned();
            plan.steps.push(Step { label, border: Border::Clamp, variant: None, input: plan.input, output: plan.input, planes });
        }
        let machine = Machine::of(self.info());
        let mut launches = Vec::new();
        let mut notes = Vec::new();
        for (index, step) in plan.steps.iter().enumerate() {
            let forced = step.variant.as_deref().or(variant);
            let pick =
                |task: &Task| variants::pick_ready(task, &step.label, forced, machine, self.tuning.find(task), &|specs| self.ready(specs));
            for task in Task::of_step(step).into_iter().flat_map(|task| self.split(task, &pick)) {
                let Choice { row, specs, .. } = pick(&task)?;
                for spec in &specs {
                    launches.push((index, self.load(spec, step)?));
                }
                let planes: Vec<String> = task.planes.iter().map(ToString::to_string).collect();
                notes.push(format!("{}: {} (planes {}; {})", step.label, row.name, planes.join(","), row.about));
            }
        }
        Ok(Program { plan, launches, notes })
    }

    fn modules(&self) -> MutexGuard<'_, HashMap<Request, Arc<Module>>> {
        // An insertion cannot leave the map half-changed, so a poisoned lock is still sound.
        self.modules.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn module(&self, request: &Request) -> Option<Arc<Module>> {
        self.modules().get(request).map(Arc::clone)
    }

    /// The task, or without a compiler, where the kernel pack has nothing for so many planes, each plane by itself.
    fn split(&self, task: Task, pick: &dyn Fn(&Task) -> Result<Choice>) -> Vec<Task> {
        if self.compiler.compiles() || pick(&task).is_ok() { vec![task] } else { task.one_by_one() }
    }

    /// Whether all kernels of a variant are compiled or can be.
    fn ready(&self, specs: &[Spec]) -> bool {
        let request = |spec: &Spec| Request { file: spec.file, defines: spec.defines.clone(), arch: self.info().arch() };
        specs.iter().filter(|spec| spec.call.is_none()).all(|spec| self.compiler.can(&request(spec)))
    }

    fn load(&self, spec: &Spec, step: &Step) -> Result<Launch> {
        let work = match spec.call {
            Some(call) => Work::Library(call),
            None => Work::Kernel(self.kernel(spec)?),
        };
        let table = match spec.transform {
            Some(tiles) => Some(library::spectrum(&self.context, &spec.table, tiles)?),
            None if spec.table.is_empty() => None,
            None => Some(DeviceBuffer::from_slice(&self.context, &spec.table)?),
        };
        Launch::new(spec, (step.input, step.output), work, table)
    }

    fn kernel(&self, spec: &Spec) -> Result<Kernel> {
        if !spec.constants.is_empty() {
            let request = Request { file: spec.file, defines: spec.defines.clone(), arch: self.info().arch() };
            // Constant memory belongs to a module: weights of two filters need two.
            let cubin = self.compiler.cubin(&request)?;
            let module = Module::load(&self.context, &cubin)?;
            module.set(CONSTANTS, &spec.constants)?;
            return module.kernel(spec.entry);
        }
        self.entry(spec.file, spec.entry, spec.defines.clone())
    }

    /// A kernel, compiled and loaded once.
    fn entry(&self, file: &'static str, entry: &str, defines: Vec<(&'static str, i64)>) -> Result<Kernel> {
        let request = Request { file, defines, arch: self.info().arch() };
        let module = match self.module(&request) {
            Some(module) => module,
            None => {
                // Not under the lock: compilation takes long, and other threads may build other plans meanwhile. Loading is short, and under it, so
                // that no module is loaded twice and one of them unloaded beside running kernels.
                let cubin = self.compiler.cubin(&request)?;
                match self.modules().entry(request) {
                    Entry::Occupied(loaded) => Arc::clone(loaded.get()),
                    Entry::Vacant(place) => Arc::clone(place.insert(Module::load(&self.context, &cubin)?)),
                }
            }
        };
        module.kernel(entry)
    }
}

impl Device for Cuda {
    fn describe(&self) -> String {
        let info = self.info();
        format!("{} ({}, driver {}.{})", info.name, info.arch(), self.driver.0, self.driver.1)
    }

    fn name(&self) -> &'static str {
        "cuda"
    }

    fn host_memory(&self) -> Arc<dyn HostMem> {
        Arc::<Pinned>::clone(&self.memory)
    }

    fn variants(&self, plan: &Plan) -> Vec<&'static str> {
        variants::fitting(plan)
    }

    fn slack(&self, plan: &Plan, variant: &str) -> f64 {
        variants::plan_slack(plan, variant)
    }

    fn build(&self, plan: &Plan, options: &BuildOptions) -> Result<Built> {
        let program = self.compile(plan, options.variant.as_deref())?;
        let mut built = lane::build(&self.context, self.host_memory(), program, options)?;
        built.notes.extend(self.tuning.note());
        Ok(built)
    }
}
