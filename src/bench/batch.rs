//! Pooling of batches of many small planes in one launch, through `convoy::tensor`, beside PyTorch.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use half::f16;

use super::kernel::Bench;
use super::peers::wrong_size;
use super::plan::{Case, Kind};
use super::race::{Settings, Subject, race, wrong_result};
use super::row::Row;
use crate::axes::{Planes, SampleType};
use crate::error::Result;
use crate::reference::{BadSample, Comparison, Noise, Tolerance};
use crate::tensor::{Dims, Engine, Layout, Pooling, Reduce, Tensor, Values};

/// Channels that the batch is divided into, where it can be: the article's 32 images of 64 channels.
const CHANNELS: usize = 64;

/// Where a layer runs.
pub(super) struct Place<'a> {
    pub engine: Engine,
    /// For the rows' notes.
    pub name: String,
    /// Whether the engine times by the device's events; peers stand beside those.
    pub on_device: bool,
    /// Makes an empty row of the case.
    pub row: &'a dyn Fn() -> Row,
}

/// A case that is a tensor layer.
pub(super) struct Batched {
    dims: Dims,
    layer: Pooling,
    half: bool,
}

impl Batched {
    /// The layer of a batch of gray float planes under pooling; None for every other case.
    pub fn of(case: &Case) -> Option<Self> {
        let (kind, _) = case.kind?;
        let pools = matches!(kind, Kind::Maxpool | Kind::Avgpool);
        if !pools || case.batch < 2 || case.planes != Planes::Gray || !case.sample.is_float() {
            return None;
        }
        let channels = if case.batch.is_multiple_of(CHANNELS) { CHANNELS } else { 1 };
        let dims = Dims { batch: case.batch / channels, channels, height: case.shape.height, width: case.shape.width };
        Some(Self { dims, layer: case.pooling()?, half: case.sample == SampleType::F16 })
    }

    fn input(&self) -> Result<Tensor> {
        let mut noise = Noise(1);
        let count = self.dims.batch * self.dims.channels * self.dims.height * self.dims.width;
        let values = (0..count).map(|_| noise.below(1 << 20) as f32 / (1 << 20) as f32);
        if self.half {
            Tensor::f16(self.dims, Layout::Nchw, values.map(f16::from_f32).collect())
        } else {
            Tensor::f32(self.dims, Layout::Nchw, values.collect())
        }
    }

    /// One row per variant, the peers' and the copy's.
    pub fn rows(&self, bench: &Bench<'_>, place: &Place<'_>) -> Result<Vec<Row>> {
        let (engine, input) = (&place.engine, self.input()?);
        let output = self.layer.output(self.dims)?;
        let want = Rc::new(self.want(&input.to_f32(), output));
        let tolerance = self.tolerance();
        let names = engine.pool_variants(&self.layer, &input).into_iter().filter(|(_, fits)| fits.is_ok()).map(|(name, _)| name);
        let names: Vec<&str> = names.filter(|name| bench.args.variant.is_empty() || bench.args.variant.iter().any(|v| v == name)).collect();
        let Some(&first) = names.first() else { return Ok(Vec::new()) };
        let copy_us = Cell::new(0.0);
        let pooled = |variant, work| Pooled { of: self, engine, input: &input, want: &want, variant, work, copy_us: &copy_us };
        let timed = if place.on_device { Work::Layer } else { Work::Whole };
        let mut subjects: Vec<Box<dyn Subject + '_>> = Vec::new();
        let mut rows = Vec::new();
        for &variant in &names {
            let mut row = (place.row)();
            variant.clone_into(&mut row.variant);
            row.notes = vec![format!("one call over {} NCHW on {}", self.dims, place.name)];
            rows.push(row);
            subjects.push(Box::new(pooled(variant, timed)));
        }
        if place.on_device {
            if bench.peers.pools_tensors() {
                let shape = [self.dims.batch, self.dims.channels, self.dims.height, self.dims.width];
                let (want, half) = (Rc::clone(&want), self.half);
                let judge = move |bytes: &[u8]| compare(&floats(bytes, half), &want, output, tolerance);
                let (kind, bytes) = bytes(&input);
                if let Some(peer) = bench.peers.on_tensor(&self.layer, (kind, &shape, bytes), Box::new(judge)) {
                    rows.push((place.row)().of_peer(&peer.program, &peer.variant, &peer.notes));
                    subjects.push(Box::new(peer));
                }
            }
            let mut row = (place.row)();
            (row.variant, row.operations) = ("copy".to_owned(), None);
            row.notes.push("device to device, the limit".to_owned());
            rows.push(row);
            subjects.push(Box::new(pooled(first, Work::Copy)));
        }
        let outcomes = {
            let mut contenders: Vec<&mut dyn Subject> = subjects.iter_mut().map(|s| &mut **s as &mut dyn Subject).collect();
            race(bench.clock, &mut contenders, &few(bench.settings))
        };
        for (row, outcome) in rows.iter_mut().zip(outcomes) {
            row.fill(outcome);
            if row.program != "convoy" && row.check.is_some_and(|c| c.max_error > tolerance) {
                row.notes.push(format!("not the same result: up to {:.2e} off", row.check.map_or(0.0, |c| c.max_error)));
            }
            if place.on_device {
                // The host's time holds transfers, or the way to another process.
                row.wall_us = None;
            }
            row.copy_share = row.time_us.filter(|_| copy_us.get() > 0.0).map(|t| copy_us.get() / t.median.max(1e-9));
            if row.variant == "copy" {
                row.check = None;
            }
        }
        Ok(rows)
    }

    /// Comparisons are exact; means are rounded to their type once.
    fn tolerance(&self) -> f64 {
        match self.layer.reduce {
            Reduce::Max | Reduce::Min => 0.0,
            Reduce::Mean if self.half => 2f64.powi(-11),
            Reduce::Mean => Tolerance::EXACT.float,
        }
    }

    /// Plain loops over what lies inside the image, tap by tap.
    fn want(&self, values: &[f32], output: Dims) -> Vec<f64> {
        let (w, h) = (self.dims.width, self.dims.height);
        let windows = &self.layer.windows;
        let reduce = self.layer.reduce;
        let neutral = match reduce {
            Reduce::Max => f64::NEG_INFINITY,
            Reduce::Min => f64::INFINITY,
            Reduce::Mean => 0.0,
        };
        let mut want = Vec::with_capacity(output.count().unwrap_or(0));
        let (mut line, mut counts) = (vec![neutral; output.width], vec![0.0; output.width]);
        for plane in values.chunks_exact((w * h).max(1)) {
            for y in 0..output.height {
                line.fill(neutral);
                counts.fill(0.0);
                for j in 0..windows.kernel[0] {
                    let row = (y * windows.stride[0] + j).checked_sub(windows.pad[0]).filter(|&row| row < h);
                    let Some(row) = row.and_then(|row| plane.get(row * w..(row + 1) * w)) else { continue };
                    for i in 0..windows.kernel[1] {
                        for (x, (total, count)) in line.iter_mut().zip(&mut counts).enumerate() {
                            let place = (x * windows.stride[1] + i).checked_sub(windows.pad[1]);
                            let Some(&value) = place.and_then(|place| row.get(place)) else { continue };
                            let value = f64::from(value);
                            *count += 1.0;
                            *total = match reduce {
                                Reduce::Max => total.max(value),
                                Reduce::Min => total.min(value),
                                Reduce::Mean => *total + value,
                            };
                        }
                    }
                }
                let result = |(&total, &count): (&f64, &f64)| if reduce == Reduce::Mean { total / count.max(1.0) } else { total };
                want.extend(line.iter().zip(&counts).map(result));
            }
        }
        want
    }
}

/// Compares values of a tensor of `dims`; errors are relative to the larger of 1 and the value.
fn compare(got: &[f32], want: &[f64], dims: Dims, tolerance: f64) -> Result<Comparison> {
    if got.len() != want.len() {
        return Err(wrong_size(got.len(), want.len()));
    }
    let mut found = Comparison::default();
    for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
        let (value, error) = (f64::from(got), (f64::from(got) - want).abs() / want.abs().max(1.0));
        found.samples += 1;
        found.exact += u64::from(got == want as f32);
        found.max_error = found.max_error.max(if error.is_nan() { f64::INFINITY } else { error });
        if error.is_nan() || error > tolerance {
            let (line, plane) = (i / dims.width.max(1), i / (dims.width * dims.height).max(1));
            let (x, y) = (i % dims.width.max(1), line % dims.height.max(1));
            found.first_bad.get_or_insert(BadSample { plane, x, y, got: value, want });
        }
    }
    Ok(found)
}

/// NumPy's name of the type, and the values.
fn bytes(input: &Tensor) -> (&'static str, Vec<u8>) {
    match input.values() {
        Values::F32(values) => ("float32", values.iter().flat_map(|v| v.to_le_bytes()).collect()),
        Values::F16(values) => ("float16", values.iter().flat_map(|v| v.to_le_bytes()).collect()),
    }
}

/// The reverse of [`bytes`].
fn floats(bytes: &[u8], half: bool) -> Vec<f32> {
    if half {
        bytes.as_chunks().0.iter().map(|&b| f16::from_le_bytes(b).to_f32()).collect()
    } else {
        bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
    }
}

/// Repetitions of tensors: each is the median of several launches already, and brings the tensor to the device again.
fn few(settings: Settings) -> Settings {
    Settings { warm_up: Duration::ZERO, least: settings.least.min(5), most: settings.most.min(5), ..settings }
}

/// What is timed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    /// The layer, by the device's events, on a tensor that lies there.
    Layer,
    /// A copy of the tensor on the device.
    Copy,
    /// The whole call, by the host's clock.
    Whole,
}

/// One variant of the layer.
struct Pooled<'a> {
    of: &'a Batched,
    engine: &'a Engine,
    input: &'a Tensor,
    want: &'a [f64],
    variant: &'a str,
    work: Work,
    copy_us: &'a Cell<f64>,
}

impl Subject for Pooled<'_> {
    fn verify(&mut self) -> Result<Comparison> {
        if self.work == Work::Copy {
            return Ok(Comparison::default());
        }
        let result = self.engine.pool(&self.of.layer, self.input, Some(self.variant))?;
        let found = compare(&result.to_f32(), self.want, result.dims(), self.of.tolerance())?;
        match found.first_bad {
            Some(bad) => Err(wrong_result(self.variant, bad)),
            None => Ok(found),
        }
    }

    fn inputs(&self) -> usize {
        1
    }

    /// The tensor is far larger than any cache.
    fn run(&mut self, _first: usize, frames: usize) -> Result<Option<f64>> {
        let mut ns = 0.0;
        for _ in 0..frames {
            if self.work == Work::Whole {
                drop(std::hint::black_box(self.engine.pool(&self.of.layer, self.input, Some(self.variant))?));
                continue;
            }
            let timing = self.engine.time_pool(&self.of.layer, self.input, Some(self.variant))?;
            self.copy_us.set(timing.copy_us);
            ns += 1e3 * if self.work == Work::Copy { timing.copy_us } else { timing.layer_us };
        }
        Ok((self.work != Work::Whole).then_some(ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The loops that the GPU is held to agree with the CPU's layer, which other tests hold to other loops.
    #[test]
    fn the_plain_loops_are_pooling() {
        let dims = Dims { batch: 2, channels: 3, height: 9, width: 13 };
        for (reduce, kernel, stride, half) in [
            (Reduce::Max, 2, 1, false),
            (Reduce::Max, 3, 2, true),
            (Reduce::Mean, 3, 1, false),
            (Reduce::Mean, 3, 1, true),
            (Reduce::Min, 5, 2, false),
        ] {
            let mut layer = Pooling::new(reduce, kernel, stride).pad(kernel / 2);
            layer.count_pad = false;
            let batched = Batched { dims, layer, half };
            let input = batched.input().unwrap();
            let got = Engine::cpu(Some(1)).pool(&batched.layer, &input, None).unwrap();
            let want = batched.want(&input.to_f32(), got.dims());
            let found = compare(&got.to_f32(), &want, got.dims(), batched.tolerance()).unwrap();
            assert_eq!((found.first_bad, found.samples), (None, want.len() as u64), "{reduce:?} {kernel} {stride} {half}");
            // What a peer is given, and gives back, is the same.
            let (kind, sent) = bytes(&got);
            assert_eq!((kind, floats(&sent, half)), (if half { "float16" } else { "float32" }, got.to_f32()));
            // One value that is off is named.
            let mut off = got.to_f32();
            off[3 * got.dims().width + 2] += 0.01;
            let bad = compare(&off, &want, got.dims(), batched.tolerance()).unwrap().first_bad.unwrap();
            assert_eq!((bad.plane, bad.x, bad.y), (0, 2, 3));
            assert!(compare(&off[1..], &want, got.dims(), 1.0).is_err());
        }
    }
}
