//! A launch before it is compiled: kernel, compile-time constants, parameter bytes, tile; and the arithmetic of weights.
//!
//! The parameter structures mirror those in `kernels/`.

use super::variants::Task;
use crate::filter::Border;
use crate::frame::{PixelFormat, Sample};

/// A buffer of a step, by its role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Buffer {
    /// What the step reads.
    Source,
    /// What the step writes.
    Target,
    /// Scratch of 4 bytes per sample (0, 1).
    Scratch(usize),
    /// Scratch of 8 bytes per sample.
    Sums,
    /// Scratch whose layout is the variant's own; [`Spec::work`] says how large.
    Work(usize),
}

/// A step of a variant that a library's function does rather than a kernel of ours. Matrices are column-major floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// cuBLAS: the `rows` × `columns` product of the table (`rows` × `depth`) and [`Spec::from`] (`depth` × `columns`).
    Product {
        /// Rows of the table and of the result.
        rows: usize,
        /// Columns of the input and of the result.
        columns: usize,
        /// Columns of the table.
        depth: usize,
    },
    /// cuFFT: real planes to their spectra.
    Forward(Tiles),
    /// cuFFT: spectra to real planes.
    Inverse(Tiles),
}

/// Planes of one size, one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tiles {
    /// Columns of the real plane; the spectrum has `width / 2 + 1`.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// How many.
    pub count: usize,
}

impl Tiles {
    /// Bytes of all planes.
    pub fn real_bytes(self) -> usize {
        self.width * self.height * self.count * 4
    }

    /// Bytes of all spectra.
    pub fn complex_bytes(self) -> usize {
        (self.width / 2 + 1) * self.height * self.count * 8
    }
}

/// A launch to be compiled.
#[derive(Clone, Debug)]
pub struct Spec {
    /// Kernel file.
    pub file: &'static str,
    /// Entry point.
    pub entry: &'static str,
    /// Compile-time constants.
    pub defines: Vec<(&'static str, i64)>,
    /// Threads per block.
    pub threads: usize,
    /// Dynamic shared memory in bytes.
    pub shared: usize,
    /// Samples across and rows down that one block makes.
    pub tile: (usize, usize),
    /// Run-time parameters behind the frame's; a table's address is put in front.
    pub params: Params,
    /// Coefficients that live in device memory.
    pub table: Vec<u32>,
    /// Planes.
    pub planes: Vec<usize>,
    /// Read.
    pub from: Buffer,
    /// Written.
    pub to: Buffer,
    /// Scratch besides.
    pub aux: Option<Buffer>,
    /// A library's function instead of a kernel; `file` and `entry` are empty then.
    pub call: Option<Call>,
    /// The table's spectrum takes its place: it holds one plane of this size.
    pub transform: Option<Tiles>,
    /// What the module's variable `constant_taps` holds; its launch has a module of its own then.
    pub constants: Vec<u32>,
    /// Bytes of the scratch [`Buffer::Work`], by index.
    pub work: [usize; 2],
    /// Blocks, where they do not follow from the tile.
    pub blocks: Option<usize>,
    /// Planes are read through texture objects, whose handles arrive in place of scratch.
    pub texture: Option<Border>,
}

impl Spec {
    pub(super) fn new(task: &Task, file: &'static str, entry: &'static str) -> Self {
        let format = task.format();
        let (sample, max, shift) = match format.sample() {
            Sample::U8 => (8, (1i64 << format.depth) - 1, 0),
            Sample::U16 => (16, (1i64 << format.depth) - 1, if format.high_bits { 16 - i64::from(format.depth) } else { 0 }),
            Sample::F16 => (16, 1, 0),
            Sample::F32 => (32, 1, 0),
        };
        let border = match task.border {
            Border::Clamp => 0,
            Border::Zero => 1,
            Border::Reflect => 2,
            Border::Reflect101 => 3,
            Border::Wrap => 4,
        };
        let mut defines = vec![
            ("SAMPLE", sample),
            ("MAX_VALUE", max),
            ("SHIFT", shift),
            ("COMPONENTS", task.components as i64),
            ("BORDER", border),
            ("CENTRE", 0),
            ("PLANES", task.planes.len() as i64),
        ];
        if format.sample() == Sample::F16 {
            defines.push(("FLOATING", 1));
        }
        Self {
            file,
            entry,
            defines,
            threads: 256,
            shared: 0,
            tile: (1, 1),
            params: Params::default(),
            table: Vec::new(),
            planes: task.planes.clone(),
            from: Buffer::Source,
            to: Buffer::Target,
            aux: None,
            call: None,
            transform: None,
            constants: Vec::new(),
            work: [0; 2],
            blocks: None,
            texture: None,
        }
    }

    /// A library's call.
    pub(super) fn call(task: &Task, call: Call, from: Buffer, to: Buffer) -> Self {
        Self { call: Some(call), from, to, ..Self::new(task, "", "") }
    }

    pub(super) fn blocks(mut self, blocks: usize) -> Self {
        self.blocks = Some(blocks);
        self
    }

    pub(super) fn work(mut self, work: [usize; 2]) -> Self {
        self.work = work;
        self
    }

    pub(super) fn define(mut self, name: &'static str, value: usize) -> Self {
        self.defines.retain(|(n, _)| *n != name);
        self.defines.push((name, value as i64));
        self
    }

    pub(super) fn centred(self, format: PixelFormat) -> Self {
        self.define("CENTRE", centre(format) as usize)
    }

    /// What lets the end of a step be cheaper: a scale of 1, and weights whose sums cannot leave the sample's range.
    pub(super) fn ends(self, format: PixelFormat, weights: Weights<'_>, scale: f32, bias: f32) -> Self {
        // Beyond 1 by no more than rounding: 65535.57 still truncates to 65535.
        let total = weights.sum() * f64::from(scale);
        let bounded = !format.sample().is_float() && centre(format) == 0.0 && bias == 0.0 && scale >= 0.0;
        let bounded = bounded && weights.non_negative() && total <= 1.0 + 1e-6;
        self.define("UNIT", usize::from(scale == 1.0)).define("BOUNDED", usize::from(bounded))
    }

    pub(super) fn tile(mut self, across: usize, down: usize) -> Self {
        self.tile = (across, down);
        self
    }

    pub(super) fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Warps side by side below each other, each making `rows` rows of the 128 columns less their halo.
    pub(super) fn blocked(self, radius_x: usize, radius_y: usize, rows: usize, warps: usize) -> Self {
        let tile = warp_tile(radius_x, self.components());
        let spec = self.define("RADIUS_X", radius_x).define("RADIUS_Y", radius_y).define("ROWS", rows).define("WARPS", warps);
        spec.tile(tile, warps * rows).threads(32 * warps)
    }

    pub(super) fn components(&self) -> usize {
        self.defines.iter().find(|(name, _)| *name == "COMPONENTS").map_or(1, |(_, value)| *value as usize)
    }

    pub(super) fn params(mut self, params: Params) -> Self {
        self.params = params;
        self
    }

    pub(super) fn table(mut self, floats: impl IntoIterator<Item = f32>) -> Self {
        self.table = floats.into_iter().map(f32::to_bits).collect();
        self
    }

    pub(super) fn between(mut self, from: Buffer, to: Buffer) -> Self {
        (self.from, self.to) = (from, to);
        self
    }
}

/// Bytes of a kernel's parameter structure; every member is 4 bytes but a leading address and doubles.
#[derive(Clone, Debug, Default)]
pub struct Params {
    pub(super) words: Vec<u32>,
}

impl Params {
    /// Size of what is there so far.
    pub fn bytes(&self) -> usize {
        4 * self.words.len()
    }

    pub(super) fn floats(mut self, values: impl IntoIterator<Item = f32>) -> Self {
        self.words.extend(values.into_iter().map(f32::to_bits));
        self
    }

    /// As the kernels' `wide`: a double where [`centre`] is not 0, else a float. An even number of words must come before a double.
    pub(super) fn wide(mut self, format: PixelFormat, values: impl IntoIterator<Item = f64>) -> Self {
        for value in values {
            if centre(format) == 0.0 {
                self.words.push((value as f32).to_bits());
            } else {
                let bits = value.to_bits();
                self.words.extend([bits as u32, (bits >> 32) as u32]);
            }
        }
        self
    }

    /// Weights, as [`Params::wide`].
    pub(super) fn weights(self, format: PixelFormat, values: impl IntoIterator<Item = f32>) -> Self {
        self.wide(format, values.into_iter().map(f64::from))
    }

    pub(super) fn ints(mut self, values: impl IntoIterator<Item = i32>) -> Self {
        self.words.extend(values.into_iter().map(|v| v as u32));
        self
    }

    pub(super) fn finish(self, f: Finish) -> Self {
        self.floats([f.scale, f.offset]).ints([f.base])
    }
}

/// Mirrors `Finish` in `plane.cuh` and the CPU backend's: `⌊sum · scale + offset⌋ + base`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Finish {
    pub(super) scale: f32,
    pub(super) offset: f32,
    pub(super) base: i32,
}

impl Finish {
    /// `weights` is the kernel's sum: what [`centre`] took away comes back as its multiple.
    pub(super) fn new(format: PixelFormat, centre: f32, weights: f64, scale: f32, bias: f32) -> Self {
        if format.sample().is_float() {
            return Self { scale, offset: bias, base: 0 };
        }
        let constant = f64::from(centre) * weights * f64::from(scale) + f64::from(bias);
        // Far outside the sample's range the fraction no longer matters, and the integer must not overflow.
        let base = if centre != 0.0 && constant.abs() < f64::from(1 << 20) { constant.floor() } else { 0.0 };
        Self { scale, offset: (constant - base + 0.5) as f32, base: base as i32 }
    }
}

/// The weights of a kernel, as one table or as the product of two.
#[derive(Clone, Copy)]
pub(super) enum Weights<'a> {
    Table(&'a [f32]),
    Product(&'a [f32], &'a [f32]),
}

impl Weights<'_> {
    pub(super) fn sum(self) -> f64 {
        match self {
            Self::Table(taps) => sum(taps),
            Self::Product(row, col) => sum(row) * sum(col),
        }
    }

    pub(super) fn non_negative(self) -> bool {
        let none_below = |taps: &[f32]| taps.iter().all(|&w| w >= 0.0);
        match self {
            Self::Table(taps) => none_below(taps),
            Self::Product(row, col) => none_below(row) && none_below(col),
        }
    }
}

/// Subtracted on loading, so that sums of deep samples keep their fraction in float: half the range above 12 bits, else 0.
pub(super) fn centre(format: PixelFormat) -> f32 {
    if format.sample() == Sample::U16 && format.depth > 12 { (format.max_value() + 1.0) / 2.0 } else { 0.0 }
}

pub(super) fn sum(weights: &[f32]) -> f64 {
    weights.iter().map(|&w| f64::from(w)).sum()
}

/// Largest number of parts of a code value that [`ties`] looks for: beyond, fewer samples lie on a tie than may be unequal.
const MOST_PARTS: u32 = 1024;

/// In how many samples one lies midway between two codes, where weights are few decimals: `Some(k)` if all products of a weight across and one
/// down are multiples of 1/k, k even.
///
/// As floats such weights are a little more or less than the decimals, and the sample lies that much above or below: sums that are not
/// exact to 2^-24 of the range do not see which.
pub(super) fn ties(row: &[f64], col: &[f64]) -> Option<u32> {
    let whole = |v: f64| (v - v.round()).abs() < 1e-4;
    let fits = |k: &u32| row.iter().all(|r| col.iter().all(|c| whole(r * c * f64::from(*k))));
    // The smallest: multiples of an odd number of parts are never midway, and double that number would fit too.
    (1..=MOST_PARTS).find(fits).filter(|k| k % 2 == 0)
}

/// Taps around their anchor ⌊n/2⌋, padded with zeros to 2·radius + 1.
pub(super) fn centred_taps(taps: &[f32], radius: usize) -> Vec<f32> {
    let mut padded = vec![0.0; radius - taps.len() / 2];
    padded.extend_from_slice(taps);
    padded.resize(2 * radius + 1, 0.0);
    padded
}

/// Radii that are compiled: each small one, above 8 every fourth, so that few kernels serve many sigmas.
pub(super) fn bucket(radius: usize) -> usize {
    if radius <= 8 { radius } else { radius.next_multiple_of(4) }
}

/// Samples across that a warp's 128 columns leave when `radius` is needed on both sides.
pub(super) fn warp_tile(radius: usize, components: usize) -> usize {
    128 - 2 * (radius * components).next_multiple_of(4)
}
