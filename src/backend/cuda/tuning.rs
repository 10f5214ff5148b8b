//! Measured times of variants, kept for the automatic choice: one JSON file per GPU and driver under the user's cache folder.
//!
//! `convoy bench --tune` writes it through [`tune`]; [`super::Cuda::compile`] asks [`Tuning::find`]. A file that is missing, damaged, or of
//! another GPU or driver counts as empty: the cost model decides then. So does a record that other kernels were measured for, or kernels that
//! another version of this program parametrised ([`CODE`]); those are counted ([`Tuning::stale`]) and go with the next write. Writes are atomic.
//!
//! ```json
//! { "format": 2, "gpu": "GPU-…", "name": "NVIDIA H200", "driver": "13.0",
//!   "tasks": { "direct 7x7 u8 x1 clamp 1920x1080": { "code": "5f0c…", "times": { "coarsened": 9.4, "tiled": 31.0 } } } }
//! ```
//! Times are medians in microseconds per frame, data on the device.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Cuda;
use super::compile::CODE;
use super::device::DeviceInfo;
use super::measure::{Settings, measure};
use super::variants::{TABLE, Task};
use crate::error::{Error, Result};
use crate::filter::plan::{Plan, PlaneOp, Step};

/// Of the file; another one is not read.
const FORMAT: u32 = 2;

/// Times of one task's variants, by name, in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Times {
    times: BTreeMap<String, f64>,
}

impl Times {
    /// The time of one variant.
    pub fn of(&self, variant: &str) -> Option<f64> {
        self.times.get(variant).copied()
    }

    /// Variants, fastest first.
    pub fn ranked(&self) -> Vec<(&str, f64)> {
        let mut all: Vec<_> = self.times.iter().map(|(name, &us)| (name.as_str(), us)).collect();
        all.sort_by(|a, b| a.1.total_cmp(&b.1));
        all
    }

    /// Notes a variant's time.
    pub fn set(&mut self, variant: &str, us: f64) {
        self.times.insert(variant.to_owned(), us);
    }
}

/// What was measured for one task, and with which code.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Record {
    code: String,
    times: Times,
}

/// The store of one GPU under one driver.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tuning {
    format: u32,
    gpu: String,
    name: String,
    driver: String,
    tasks: BTreeMap<String, Record>,
    #[serde(skip)]
    path: Option<PathBuf>,
    #[serde(skip)]
    stale: usize,
}

/// A file of any format.
#[derive(Deserialize)]
struct Stored {
    gpu: String,
    driver: String,
    tasks: BTreeMap<String, serde_json::Value>,
}

impl Tuning {
    /// The user's store for `device` under `driver`; empty if there is none that fits.
    pub fn open(device: &DeviceInfo, driver: (u32, u32)) -> Self {
        use etcetera::BaseStrategy;
        let folder = etcetera::choose_base_strategy().ok().map(|strategy| strategy.cache_dir().join("convoy").join("tuning"));
        Self::open_in(folder.as_deref(), device, driver)
    }

    /// As [`Tuning::open`], in another folder; None keeps it in memory.
    pub fn open_in(folder: Option<&Path>, device: &DeviceInfo, driver: (u32, u32)) -> Self {
        Self::open_for(CODE, folder, device, driver)
    }

    /// As [`Tuning::open_in`], for the code of this hash.
    fn open_for(code: &str, folder: Option<&Path>, device: &DeviceInfo, driver: (u32, u32)) -> Self {
        let driver = format!("{}.{}", driver.0, driver.1);
        let path = folder.filter(|_| !device.uuid.is_empty()).map(|folder| folder.join(format!("{}.json", device.uuid)));
        let stored =
            path.as_deref().and_then(|path| fs::read_to_string(path).ok()).and_then(|text| serde_json::from_str::<Stored>(&text).ok());
        let stored = stored.filter(|s| s.gpu == device.uuid && s.driver == driver).map(|s| s.tasks).unwrap_or_default();
        let all = stored.len();
        // A record of an older format has no hash.
        let record = |value| serde_json::from_value::<Record>(value).ok().filter(|record| record.code == code);
        let tasks: BTreeMap<String, Record> = stored.into_iter().filter_map(|(task, value)| Some((task, record(value)?))).collect();
        let stale = all - tasks.len();
        Self { format: FORMAT, gpu: device.uuid.clone(), name: device.name.clone(), driver, tasks, path, stale }
    }

    /// Tasks that were measured with this code.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// Whether nothing was measured with this code.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Tasks that were measured with other kernels or another version of the program; they count for nothing.
    pub fn stale(&self) -> usize {
        self.stale
    }

    /// What the user should know of [`Tuning::stale`]; None if there is none.
    pub fn note(&self) -> Option<String> {
        (self.stale > 0).then(|| {
            let times = if self.stale == 1 { "time of 1 case is" } else { &format!("times of {} cases are", self.stale) };
            format!("measured {times} not used, since the kernels have changed: run `convoy bench --tune` again")
        })
    }

    /// Where it is stored.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// What was measured for `task`.
    pub fn find(&self, task: &Task) -> Option<&Times> {
        self.tasks.get(&key(task)).map(|record| &record.times)
    }

    /// Notes what was measured for `task`, in place of what was known.
    pub fn set(&mut self, task: &Task, times: Times) {
        self.tasks.insert(key(task), Record { code: CODE.to_owned(), times });
    }

    /// Writes the store.
    ///
    /// # Errors
    /// There is no cache folder, or it cannot be written.
    pub fn save(&self) -> Result<()> {
        let what = "cannot store the measured times of kernel variants";
        let path =
            self.path.as_deref().ok_or_else(|| Error::failed(what, "there is no cache folder").hint("set XDG_CACHE_HOME or HOME"))?;
        let failed = |e: &dyn std::fmt::Display| Error::failed(format!("{what} in '{}'", path.display()), e);
        let text = serde_json::to_string_pretty(self).map_err(|e| failed(&e))?;
        let folder = path.parent().ok_or_else(|| failed(&"it has no folder"))?;
        let write = || -> std::io::Result<()> {
            use std::io::Write as _;
            fs::create_dir_all(folder)?;
            let mut file = tempfile::NamedTempFile::new_in(folder)?;
            file.write_all(text.as_bytes())?;
            file.persist(path)?;
            Ok(())
        };
        write().map_err(|e| failed(&e))
    }
}

/// Operation, window, sample type, border and plane sizes: what decides a kernel's time. Weights do not.
fn key(task: &Task) -> String {
    let operation = match &task.op {
        PlaneOp::Copy => "copy".to_owned(),
        PlaneOp::Separable(op) => format!("separable {}x{}", op.row.len(), op.col.len()),
        PlaneOp::Direct(op) => format!("direct {}x{}", op.width, op.height),
        PlaneOp::Box(op) => format!("box {}x{} power {}", 2 * op.radius_x + 1, 2 * op.radius_y + 1, op.power),
        PlaneOp::Unsharp(op) => format!("unsharp {}x{}", op.size_x, op.size_y),
        PlaneOp::Gradient(_) => "gradient".to_owned(),
        PlaneOp::Compass(_) => "compass".to_owned(),
        PlaneOp::Extremum(op) => format!("extremum {}x{}", 2 * op.radius_x + 1, 2 * op.radius_y + 1),
        PlaneOp::Morphology(op) => format!("morphology {:08b}", op.coordinates),
        PlaneOp::Median(op) => format!("median {}x{} rank {}", 2 * op.radius_x + 1, 2 * op.radius_y + 1, op.rank),
        PlaneOp::Pool(op) => format!("pool {:?} {} stride {} pad {} dilation {}", op.kind, op.kernel, op.stride, op.pad, op.dilation),
        PlaneOp::Pixelate(op) => format!("pixelate {}x{}", op.block_x, op.block_y),
    };
    let format = task.format();
    let kind = if format.float { "f" } else { "u" };
    let sample = format!("{kind}{}{}", format.depth, if format.high_bits { "h" } else { "" });
    let sizes: Vec<String> = task.planes.iter().map(|&p| task.shape.plane_size(p)).map(|(w, h)| format!("{w}x{h}")).collect();
    format!("{operation} {sample} x{} {} {}", task.components, task.border.name(), sizes.join(" "))
}

/// Measures every variant of every task of `plan` and stores the times. Returns each task's label and times.
///
/// A variant that does not run (out of memory) is left out. Variants that are not exact are measured too; the automatic choice passes them over.
///
/// # Errors
/// The store cannot be written, or no variant of a task runs.
pub fn tune(cuda: &Cuda, plan: &Plan, settings: Settings) -> Result<Vec<(String, Times)>> {
    tune_into(&mut Tuning::open(cuda.info(), cuda.driver()), cuda, plan, settings)
}

/// As [`tune`], into another store.
///
/// # Errors
/// As for [`tune`].
pub fn tune_into(store: &mut Tuning, cuda: &Cuda, plan: &Plan, settings: Settings) -> Result<Vec<(String, Times)>> {
    let mut all = Vec::new();
    for step in &plan.steps {
        for task in Task::of_step(step).into_iter().filter(|task| task.op != PlaneOp::Copy) {
            let times = measure_rows(cuda, step, &task, settings)?;
            store.set(&task, times.clone());
            store.save()?;
            all.push((key(&task), times));
        }
    }
    Ok(all)
}

fn measure_rows(cuda: &Cuda, step: &Step, task: &Task, settings: Settings) -> Result<Times> {
    // The task's planes alone; the others pass, which costs every variant the same.
    let mut alone = Step { variant: None, ..step.clone() };
    for (index, op) in alone.planes.iter_mut().enumerate() {
        if !task.planes.contains(&index) {
            *op = PlaneOp::Copy;
        }
    }
    let plan = Plan { input: step.input, steps: vec![alone] };
    let mut times = Times::default();
    let mut last = None;
    for row in TABLE.iter().filter(|row| row.executes(&task.op) && row.supports(task).is_ok()) {
        match measure(cuda, &plan, Some(row.name), settings) {
            Ok(measured) => times.set(row.name, measured.kernel.median()),
            Err(error) => last = Some(error),
        }
    }
    match last {
        Some(error) if times.times.is_empty() => Err(error),
        _ => Ok(times),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::Border;
    use crate::filter::plan::Direct;
    use crate::frame::{PixelFormat, Shape};

    fn task(width: usize) -> Task {
        let op = PlaneOp::Direct(Direct { width: 3, height: 3, taps: vec![1.0; 9].into(), scale: 1.0, bias: 0.0 });
        let shape = Shape { format: PixelFormat::yuv(10, 1, 1), width, height: 40 };
        Task { op, border: Border::Zero, shape, output: shape, components: 1, planes: vec![0, 1, 2], block: None }
    }

    #[test]
    fn a_store_is_found_again_for_its_gpu_and_driver_alone() {
        let folder = tempfile::tempdir().unwrap();
        let open = |uuid: &str, driver| Tuning::open_in(Some(folder.path()), &DeviceInfo::made_up(uuid), driver);
        let mut store = open("GPU-1", (13, 0));
        assert_eq!(store.find(&task(60)), None);
        let mut times = Times::default();
        times.set("tiled", 9.5);
        times.set("fft", 3.25);
        store.set(&task(60), times.clone());
        store.save().unwrap();
        assert_eq!(open("GPU-1", (13, 0)).find(&task(60)), Some(&times));
        assert_eq!(times.ranked(), [("fft", 3.25), ("tiled", 9.5)]);
        assert_eq!(open("GPU-1", (13, 0)).find(&task(61)), None);
        assert_eq!(open("GPU-1", (13, 1)).find(&task(60)), None, "another driver");
        assert_eq!(open("GPU-2", (13, 0)).find(&task(60)), None, "another GPU");
        assert_eq!(key(&task(60)), "direct 3x3 u10 x1 zero 60x40 30x20 30x20");
        // Damage counts as nothing known, and is written over.
        std::fs::write(store.path().unwrap(), "{\"format\": 1, \"gpu").unwrap();
        assert_eq!(open("GPU-1", (13, 0)).find(&task(60)), None);
        store.save().unwrap();
        assert_eq!(open("GPU-1", (13, 0)), store);
    }

    #[test]
    fn what_other_kernels_took_counts_for_nothing_and_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let open = |code| Tuning::open_for(code, Some(folder.path()), &DeviceInfo::made_up("GPU-1"), (13, 0));
        let mut times = Times::default();
        times.set("tiled", 9.5);
        let mut store = open(CODE);
        store.set(&task(60), times.clone());
        store.save().unwrap();
        assert_eq!((open(CODE).find(&task(60)), open(CODE).stale(), open(CODE).note()), (Some(&times), 0, None));
        let changed = open("another");
        assert_eq!((changed.find(&task(60)), changed.len(), changed.stale()), (None, 0, 1));
        assert!(changed.note().unwrap().starts_with("measured time of 1 case is not used, since the kernels have changed"));
        // A file from before there were hashes, of two cases.
        let path = store.path().unwrap();
        let old = format!(
            r#"{{"format": 1, "gpu": "GPU-1", "name": "a GPU", "driver": "13.0", "tasks": {{"{}": {{"tiled": 9.5}}, "x": {{}}}}}}"#,
            key(&task(60))
        );
        std::fs::write(path, old).unwrap();
        let mut before = open(CODE);
        assert_eq!((before.find(&task(60)), before.is_empty(), before.stale()), (None, true, 2));
        assert!(before.note().unwrap().contains("times of 2 cases are not used"));
        // What is measured now is stored with its hash, and the old ones are gone.
        before.set(&task(60), times.clone());
        before.save().unwrap();
        assert_eq!((open(CODE).find(&task(60)), open(CODE).stale()), (Some(&times), 0));
        assert_eq!(CODE.len(), 64);
    }

    #[test]
    fn without_a_folder_saving_says_so() {
        let store = Tuning::open_in(None, &DeviceInfo::made_up("GPU-1"), (13, 0));
        assert!(store.save().unwrap_err().to_string().contains("no cache folder"));
    }
}
