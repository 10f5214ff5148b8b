//! Batches on CUDA: max pooling of many small planes in one launch, through `convoy::tensor`.

use super::kernel::Bench;
use super::plan::{Case, Kind};
use super::race::{Subject, race, wrong_result};
use super::row::Row;
use crate::axes::Planes;
use crate::axes::SampleType;
use crate::backend::Device;
use crate::backend::cuda::Cuda;
use crate::error::Result;
use crate::reference::{Comparison, Noise};
use crate::tensor::{Dims, Engine, Layout, Pooling, Reduce, Tensor};

/// Channels that the batch is divided into, where it can be: the article's 32 images of 64 channels.
const CHANNELS: usize = 64;

/// A case that is a tensor layer.
pub(super) struct Batched {
    dims: Dims,
    layer: Pooling,
    kernel: usize,
}

impl Batched {
    /// The layer of a batch of gray float planes under max pooling; None for every other case.
    pub fn of(case: &Case) -> Option<Self> {
        let (kind, kernel) = case.kind?;
        if kind != Kind::Maxpool || case.batch < 2 || case.planes != Planes::Gray || case.sample != SampleType::F32 {
            return None;
        }
        let channels = if case.batch.is_multiple_of(CHANNELS) { CHANNELS } else { 1 };
        let dims = Dims { batch: case.batch / channels, channels, height: case.shape.height, width: case.shape.width };
        Some(Self { dims, layer: Pooling::new(Reduce::Max, kernel, 1).pad(kernel / 2), kernel })
    }

    /// One row per variant, and the copy's. `empty` makes a row of the case.
    pub fn rows(&self, bench: &Bench<'_>, cuda: &Cuda, empty: impl Fn() -> Row) -> Result<Vec<Row>> {
        let engine = Engine::cuda(cuda.info().index)?;
        let mut noise = Noise(1);
        let count = self.dims.batch * self.dims.channels * self.dims.height * self.dims.width;
        let values: Vec<f32> = (0..count).map(|_| noise.below(1 << 20) as f32 / (1 << 20) as f32).collect();
        let input = Tensor::f32(self.dims, Layout::Nchw, values)?;
        let names = engine.pool_variants(&self.layer, &input).into_iter().filter(|(_, fits)| fits.is_ok()).map(|(name, _)| name);
        let names: Vec<&str> = names.filter(|name| bench.args.variant.is_empty() || bench.args.variant.iter().any(|v| v == name)).collect();
        let mut subjects: Vec<Pooled<'_>> =
            names.iter().map(|&variant| Pooled { of: self, engine: &engine, input: &input, variant, copy_us: 0.0 }).collect();
        let outcomes = {
            let mut contenders: Vec<&mut dyn Subject> = subjects.iter_mut().map(|s| s as &mut dyn Subject).collect();
            race(bench.clock, &mut contenders, &bench.settings)
        };
        let mut rows = Vec::new();
        for (subject, outcome) in subjects.iter().zip(outcomes) {
            let mut row = empty();
            subject.variant.clone_into(&mut row.variant);
            row.notes = vec![format!("one launch over {} NCHW on {}", self.dims, cuda.describe())];
            row.fill(outcome);
            // The host's time holds the upload.
            row.wall_us = None;
            row.copy_share = row.time_us.map(|t| subject.copy_us / t.median.max(1e-9));
            rows.push(row);
        }
        Ok(rows)
    }

    /// Plain loops: the largest value of each window that lies inside.
    fn want(&self, values: &[f32]) -> Vec<f32> {
        let (w, h, radius) = (self.dims.width, self.dims.height, self.kernel / 2);
        let (out_w, out_h) = (w + 2 * radius + 1 - self.kernel, h + 2 * radius + 1 - self.kernel);
        let mut want = Vec::with_capacity(values.len());
        for plane in values.chunks_exact((w * h).max(1)) {
            for y in 0..out_h {
                for x in 0..out_w {
                    let rows = y.saturating_sub(radius)..(y + self.kernel).saturating_sub(radius).min(h);
                    let columns = x.saturating_sub(radius)..(x + self.kernel).saturating_sub(radius).min(w);
                    let row = |y: usize| plane.get(y * w + columns.start..y * w + columns.end).unwrap_or_default();
                    want.push(rows.flat_map(row).copied().fold(f32::NEG_INFINITY, f32::max));
                }
            }
        }
        want
    }
}

/// One variant of the layer.
struct Pooled<'a> {
    of: &'a Batched,
    engine: &'a Engine,
    input: &'a Tensor,
    variant: &'a str,
    copy_us: f64,
}

impl Subject for Pooled<'_> {
    fn verify(&mut self) -> Result<Comparison> {
        let wrong = |why: String| wrong_result(self.variant, why);
        let got = self.engine.pool(&self.of.layer, self.input, Some(self.variant))?.to_f32();
        let want = self.of.want(&self.input.to_f32());
        if got.len() != want.len() {
            return Err(wrong(format!("{} values, not {}", got.len(), want.len())));
        }
        match got.iter().zip(&want).position(|(a, b)| a != b) {
            Some(at) => Err(wrong(format!("value {at}: got {:?}, want {:?}", got.get(at), want.get(at)))),
            None => Ok(Comparison { samples: want.len() as u64, exact: want.len() as u64, ..Comparison::default() }),
        }
    }

    fn inputs(&self) -> usize {
        1
    }

    /// The engine times by events, the tensor on the device; it is far larger than any cache.
    fn run(&mut self, _first: usize, frames: usize) -> Result<Option<f64>> {
        let mut ns = 0.0;
        for _ in 0..frames {
            let timing = self.engine.time_pool(&self.of.layer, self.input, Some(self.variant))?;
            self.copy_us = timing.copy_us;
            ns += 1e3 * timing.layer_us;
        }
        Ok(Some(ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Values;

    /// The loops that the GPU is held to agree with the CPU's layer, which other tests hold to other loops.
    #[test]
    fn the_plain_loops_are_max_pooling() {
        let mut noise = Noise(3);
        for kernel in [2, 3, 5] {
            let dims = Dims { batch: 2, channels: 3, height: 9, width: 13 };
            let values: Vec<f32> = (0..2 * 3 * 9 * 13).map(|_| noise.below(1000) as f32).collect();
            let batched = Batched { dims, layer: Pooling::new(Reduce::Max, kernel, 1).pad(kernel / 2), kernel };
            let input = Tensor::f32(dims, Layout::Nchw, values.clone()).unwrap();
            let got = Engine::cpu(Some(1)).pool(&batched.layer, &input, None).unwrap();
            assert!(matches!(got.values(), Values::F32(_)));
            assert_eq!(got.to_f32(), batched.want(&values), "{kernel}");
        }
    }
}
