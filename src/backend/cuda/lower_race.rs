//! Launches of the stations of the race: every textbook way to convolve, for general 2-D kernels and, by their outer product, for
//! separable ones. What wins is elsewhere; these are there to be chosen, verified and timed.

use std::borrow::Cow;

use super::lower::{UNROLLED_TAPS, lower_tiled, wrong};
use super::spec::{Buffer, Call, Finish, Params, Spec, Tiles, centre, sum};
use super::variants::Task;
use crate::filter::Border;
use crate::filter::plan::{Direct, PlaneOp};

/// Most taps of any kernel: 127 × 127.
const MOST_TAPS: usize = 127 * 127;
/// Threads across and down of a block where the user names none.
const BLOCK: (usize, usize) = (32, 8);
/// What a block has on every GPU without asking.
const SHARED_LIMIT: usize = 48 << 10;
/// Neighbouring samples that a column of the product's matrix serves; STRIP in `kernels/gemm.cu`.
const STRIP: usize = 16;
/// The matrix of the product is made in pieces of at most this many bytes.
const PIECE_BYTES: usize = 256 << 20;
/// Most pieces: each costs three launches.
const MOST_PIECES: usize = 64;
/// Sides of Fourier tiles: products of 2 and 3, for which cuFFT has its fastest kernels.
const TILE_SIDES: [usize; 12] = [16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024];
/// Most memory of one lane's tiles and spectra.
const FFT_BYTES: usize = 4 << 30;

/// The task's kernel as a table of weights.
fn as_direct(task: &Task) -> Result<Cow<'_, Direct>, String> {
    match &task.op {
        PlaneOp::Direct(op) => Ok(Cow::Borrowed(op)),
        PlaneOp::Separable(op) => {
            let (width, height) = (op.row.len(), op.col.len());
            if width * height > MOST_TAPS {
                return Err(format!("it takes {MOST_TAPS} taps per sample at most; this kernel has {width}x{height}"));
            }
            let taps = op.col.iter().flat_map(|&y| op.row.iter().map(move |&x| x * y)).collect();
            Ok(Cow::Owned(Direct { width, height, taps, scale: op.scale, bias: op.bias }))
        }
        other => Err(wrong(other)),
    }
}

fn finish(task: &Task, op: &Direct) -> Finish {
    let format = task.format();
    Finish::new(format, centre(format), sum(&op.taps), op.scale, op.bias)
}

/// A kernel of one thread per sample with the kernel's size compiled in.
fn classic(task: &Task, op: &Direct, entry: &'static str) -> Result<Spec, String> {
    let (x, y) = task.block.unwrap_or(BLOCK);
    if x * y > 1024 || !(x * y).is_multiple_of(32) {
        return Err(format!("a block has a multiple of 32 threads, at most 1024; {x}x{y} has {}", x * y));
    }
    let spec = Spec::new(task, "classic.cu", entry).centred(task.format()).define("KW", op.width).define("KH", op.height);
    let spec = spec.define("BLOCK_X", x).define("BLOCK_Y", y);
    Ok(spec.tile(x, y).threads(x * y))
}

pub(super) fn lower_constant(task: &Task) -> Result<Vec<Spec>, String> {
    let op = as_direct(task)?;
    // Few sizes, so that few modules are compiled; the largest is all of constant memory.
    let room = op.taps.len().next_power_of_two().clamp(16, MOST_TAPS);
    if op.taps.len() > room {
        return Err(format!("constant memory holds {MOST_TAPS} weights; this kernel has {}", op.taps.len()));
    }
    let mut spec =
        classic(task, &op, "direct__constant")?.define("CONSTANT_TAPS", room).params(Params::default().finish(finish(task, &op)));
    spec.constants = op.taps.iter().map(|w| w.to_bits()).collect();
    Ok(vec![spec])
}

pub(super) fn lower_plain_tile(task: &Task) -> Result<Vec<Spec>, String> {
    let op = as_direct(task)?;
    let spec = classic(task, &op, "direct__tiled")?;
    let (x, y) = spec.tile;
    let bytes = (x + (op.width - 1) * task.components) * (y + op.height - 1) * 4;
    if bytes > SHARED_LIMIT {
        return Err(format!(
            "a {x}x{y} tile with the halo of {}x{} taps needs {bytes} bytes of shared memory, more than {SHARED_LIMIT}",
            op.width, op.height
        ));
    }
    Ok(vec![spec.params(Params::default().finish(finish(task, &op))).table(op.taps.iter().copied())])
}

pub(super) fn lower_coarsened(task: &Task) -> Result<Vec<Spec>, String> {
    let op = as_direct(task)?;
    if op.taps.len() > UNROLLED_TAPS {
        return Err(format!("it unrolls {UNROLLED_TAPS} taps of an outer product at most; this one has {}", op.taps.len()));
    }
    lower_tiled(task, &op)
}

pub(super) fn lower_texture(task: &Task) -> Result<Vec<Spec>, String> {
    let op = as_direct(task)?;
    let normalised = match task.border {
        Border::Clamp | Border::Zero => 0,
        Border::Wrap | Border::Reflect => 1,
        Border::Reflect101 => return Err("the hardware has no border mode 'reflect101'".to_owned()),
    };
    if let Some((_, height)) = task.planes.iter().map(|&p| task.shape.plane_size(p)).find(|&(_, h)| h > 65_000) {
        return Err(format!("textures over memory have 65000 rows at most; this plane has {height}"));
    }
    let mut spec = classic(task, &op, "direct__texture")?.define("TEXTURE", 1).define("NORMALISED", normalised);
    spec.texture = Some(task.border);
    Ok(vec![spec.params(Params::default().finish(finish(task, &op))).table(op.taps.iter().copied())])
}

/// G of F(out, 3), row by row (Lavin and Gray 2015).
const G2: [[f64; 3]; 4] = [[1.0, 0.0, 0.0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0.0, 0.0, 1.0]];
const G4: [[f64; 3]; 6] = [
    [1.0 / 4.0, 0.0, 0.0],
    [-1.0 / 6.0, -1.0 / 6.0, -1.0 / 6.0],
    [-1.0 / 6.0, 1.0 / 6.0, -1.0 / 6.0],
    [1.0 / 24.0, 1.0 / 12.0, 1.0 / 6.0],
    [1.0 / 24.0, -1.0 / 12.0, 1.0 / 6.0],
    [0.0, 0.0, 1.0],
];

/// `G g Gᵀ`, row-major, for a 3×3 kernel `g`.
pub(super) fn winograd_kernel(g: &[f32], transform: &[[f64; 3]]) -> Vec<f64> {
    let at = |y: usize, x: usize| g.get(3 * y + x).map_or(0.0, |&w| f64::from(w));
    let mut out = Vec::with_capacity(transform.len() * transform.len());
    for left in transform {
        for right in transform {
            let mut total = 0.0;
            for (y, l) in left.iter().enumerate() {
                for (x, r) in right.iter().enumerate() {
                    total += l * at(y, x) * r;
                }
            }
            out.push(total);
        }
    }
    out
}

/// The transform's matrix G for tiles of `out` × `out`.
pub(super) fn winograd_matrix(out: usize) -> &'static [[f64; 3]] {
    if out == 2 { &G2 } else { &G4 }
}

fn winograd(task: &Task, out: usize) -> Result<Vec<Spec>, String> {
    let op = as_direct(task)?;
    if op.width > 3 || op.height > 3 {
        return Err(format!("it takes kernels up to 3x3; this one has {}x{} taps", op.width, op.height));
    }
    // Around the anchor ⌊k/2⌋, padded with zeros to 3x3.
    let (left, above) = (1 - op.width / 2, 1 - op.height / 2);
    let mut kernel = [0.0f32; 9];
    for (index, &w) in op.taps.iter().enumerate() {
        if let Some(cell) = kernel.get_mut((index / op.width + above) * 3 + index % op.width + left) {
            *cell = w;
        }
    }
    let params = Params::default().wide(task.format(), winograd_kernel(&kernel, winograd_matrix(out))).finish(finish(task, &op));
    let spec = Spec::new(task, "winograd.cu", "direct__winograd").centred(task.format()).define("OUT", out);
    Ok(vec![spec.tile(32 * out, 4 * out).threads(128).params(params)])
}

pub(super) fn lower_winograd2(task: &Task) -> Result<Vec<Spec>, String> {
    winograd(task, 2)
}

pub(super) fn lower_winograd4(task: &Task) -> Result<Vec<Spec>, String> {
    winograd(task, 4)
}

/// Strips of all planes.
fn strips(task: &Task) -> usize {
    task.planes.iter().map(|&p| task.shape.plane_size(p)).map(|(w, h)| (w * task.components).div_ceil(STRIP) * h).sum()
}

pub(super) fn lower_gemm(task: &Task) -> Result<Vec<Spec>, String> {
    let op = as_direct(task)?;
    let across = STRIP + (op.width - 1) * task.components;
    let depth = across * op.height;
    let total = strips(task);
    let columns = (PIECE_BYTES / (depth * 4)).clamp(1, total.max(1));
    let pieces = total.div_ceil(columns);
    if pieces > MOST_PIECES || total > 1 << 30 {
        return Err(format!(
            "its matrix for this frame has {} MiB, more than {MOST_PIECES} pieces of {} MiB",
            (total * depth * 4) >> 20,
            PIECE_BYTES >> 20
        ));
    }
    // Column-major, 16 rows: row t holds the kernel's rows, each t samples farther right.
    let mut weights = vec![0.0f32; STRIP * depth];
    for (index, &w) in op.taps.iter().enumerate() {
        let (j, i) = (index / op.width, index % op.width);
        for t in 0..STRIP {
            if let Some(cell) = weights.get_mut((j * across + t + i * task.components) * STRIP + t) {
                *cell = w;
            }
        }
    }
    let work = [columns * depth * 4, columns * STRIP * 4];
    let kernel = |entry| {
        let spec = Spec::new(task, "gemm.cu", entry).centred(task.format()).define("KW", op.width).define("KH", op.height);
        spec.tile(1 << 20, 1 << 20).work(work)
    };
    let mut specs = Vec::with_capacity(3 * pieces);
    for piece in 0..pieces {
        let first = piece * columns;
        let count = columns.min(total - first);
        let range = || Params::default().ints([first as i32, count as i32]);
        specs.push(kernel("direct__columns").params(range()).between(Buffer::Source, Buffer::Work(0)).blocks(count.div_ceil(8)));
        let product = Call::Product { rows: STRIP, columns: count, depth };
        specs.push(Spec::call(task, product, Buffer::Work(0), Buffer::Work(1)).table(weights.iter().copied()).work(work).blocks(1));
        let end = range().finish(finish(task, &op));
        specs.push(kernel("direct__strips").params(end).between(Buffer::Work(1), Buffer::Target).blocks(count.div_ceil(16)));
    }
    Ok(specs)
}

/// Fourier tiles for a task: the size with the least work, and how many.
pub(super) fn fourier_tiles(task: &Task, (width, height): (usize, usize)) -> Option<Tiles> {
    let sizes = || TILE_SIDES.iter().copied();
    let candidates =
        sizes().filter(|&w| w >= 2 * width.max(2)).flat_map(|w| sizes().filter(|&h| h >= 2 * height.max(2)).map(move |h| (w, h)));
    let count = |(w, h): (usize, usize)| -> usize {
        let planes = task.planes.iter().map(|&p| task.shape.plane_size(p));
        planes.map(|(pw, ph)| pw.div_ceil(w - width + 1) * ph.div_ceil(h - height + 1) * task.components).sum()
    };
    let work = |(w, h): (usize, usize)| count((w, h)) as f64 * (w * h) as f64 * (8.0 + ((w * h) as f64).log2());
    let (w, h) = candidates.min_by(|&a, &b| work(a).total_cmp(&work(b)))?;
    Some(Tiles { width: w, height: h, count: count((w, h)) })
}

pub(super) fn lower_fft(task: &Task) -> Result<Vec<Spec>, String> {
    let op = as_direct(task)?;
    let tiles = fourier_tiles(task, (op.width, op.height)).ok_or("its kernel is larger than half of the largest tile")?;
    let work = [tiles.real_bytes(), tiles.complex_bytes()];
    if work.iter().sum::<usize>() > FFT_BYTES {
        return Err(format!("its tiles and spectra need {} MiB, more than {}", work.iter().sum::<usize>() >> 20, FFT_BYTES >> 20));
    }
    // cuFFT does not divide by the size: the weights are, which for powers of two is exact.
    let mut plane = vec![0.0f32; tiles.width * tiles.height];
    let area = (tiles.width * tiles.height) as f64;
    for (index, &w) in op.taps.iter().enumerate() {
        if let Some(cell) = plane.get_mut(index / op.width * tiles.width + index % op.width) {
            *cell = (f64::from(w) / area) as f32;
        }
    }
    let kernel = |entry| {
        let spec = Spec::new(task, "fft.cu", entry).centred(task.format()).define("KW", op.width).define("KH", op.height);
        let spec = spec.define("TILE_X", tiles.width).define("TILE_Y", tiles.height).define("TILES", tiles.count);
        spec.tile(1 << 20, 1 << 20).work(work)
    };
    let (real, spectra) = (Buffer::Work(0), Buffer::Work(1));
    let each = (tiles.width / 2 + 1) * tiles.height;
    let mut multiply = kernel("direct__multiply").between(spectra, spectra).blocks(each.div_ceil(256) * tiles.count.div_ceil(4));
    multiply.table = plane.iter().map(|w| w.to_bits()).collect();
    multiply.transform = Some(Tiles { count: 1, ..tiles });
    Ok(vec![
        kernel("direct__spread").between(Buffer::Source, real).blocks((tiles.real_bytes() / 4).div_ceil(256)),
        Spec::call(task, Call::Forward(tiles), real, spectra).work(work).blocks(1),
        multiply,
        Spec::call(task, Call::Inverse(tiles), spectra, real).work(work).blocks(1),
        kernel("direct__gather").tile(32, 8).params(Params::default().finish(finish(task, &op))).between(real, Buffer::Target),
    ])
}

/// How far a variant's sum before rounding may be off, relative to the sample's range times the sum of the weights' sizes times the
/// scale; 0 where it is as exact as the plain sum of products.
pub(super) fn slack(name: &str, task: &Task) -> f64 {
    let deep = centre(task.format()) != 0.0;
    match name {
        "fft" => 4e-6,
        "winograd4" if !deep => 2e-5,
        "winograd" if task.format().sample().is_float() => 2e-6,
        // Its sums are floats, which hold deep samples to 1/512 of a code value.
        "gemm" if deep => 4e-6,
        // Two bfloat16 for each weight and sample: 2^-18 each, and as much for the product of the lower parts, which is left out. Halves are
        // exact, and their weights nearly so; but sums of fractions are cut off by the hardware at their 24th bit, product by product.
        "tensor" if task.format().sample().is_float() => 1.2e-5,
        _ => 0.0,
    }
}
