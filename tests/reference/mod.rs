//! An independent reference: every operation of `filter::plan` in `f64`, as naive loops straight from the formulas in its
//! documentation, with its own border rule, its own frames and its own checker. It shares nothing with `src` but plain types.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

pub mod operations;
mod windows;

use std::collections::VecDeque;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Instant;

use convoy::backend::{BuildOptions, Device};
use convoy::error::Result;
use convoy::filter::Border;
use convoy::filter::plan::{Plan, PlaneOp, Step};
use convoy::frame::{Frame, FrameLayout, FrameMem, FrameTime, Guard, MAX_PLANES, PixelFormat, PlaneLayout, Sample, Shape};
use convoy::pool::{Budget, Heap, HostMem, Pool};

/// What a test frame shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Uniform noise over the whole range.
    Random,
    /// Only the smallest and the largest value, in runs: worst case for overflow and clamping.
    Extremes,
    /// The largest value at one sample near the middle, else zero: shows a kernel's orientation.
    Impulse,
    /// Smooth content with a few edges, as cameras give it.
    Ramp,
}

impl Content {
    pub const ALL: [Self; 4] = [Self::Random, Self::Extremes, Self::Impulse, Self::Ramp];
}

/// SplitMix64: fixed seeds, the same numbers on every machine.
pub struct Noise(pub u64);

impl Noise {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// A frame as numbers: code values (or float samples) per plane, row-major, components interleaved.
#[derive(Clone, Debug)]
pub struct Picture {
    pub shape: Shape,
    pub planes: Vec<Vec<f64>>,
}

impl Picture {
    pub fn new(shape: Shape, content: Content, seed: u64) -> Self {
        let format = shape.format;
        let max = f64::from(format.max_value());
        let mut noise = Noise(seed);
        let mut planes = Vec::new();
        for index in 0..format.plane_count() {
            let (w, h) = shape.plane_size(index);
            let values = w * format.components(index);
            let mut plane = Vec::with_capacity(values * h);
            let mut run = (0, 0.0);
            for y in 0..h {
                for x in 0..values {
                    plane.push(match content {
                        Content::Random if format.sample() == Sample::F32 => f64::from(noise.below(1 << 20) as f32 / (1 << 20) as f32),
                        Content::Random => noise.below(max as u64 + 1) as f64,
                        Content::Extremes => {
                            if run.0 == 0 {
                                run = (1 + noise.below(5), if noise.below(2) == 0 { 0.0 } else { max });
                            }
                            run.0 -= 1;
                            run.1
                        }
                        Content::Impulse => f64::from(u8::from(x == values / 2 && y == h / 2)) * max,
                        Content::Ramp => {
                            let slope = (x * 3 + y * 5) % 997;
                            let edge = usize::from((x / 37 + y / 23) % 2 == 0) * 500;
                            let value = (slope + edge) as f64 / 1500.0 * max;
                            if format.sample() == Sample::F32 { f64::from(value as f32) } else { value.floor() }
                        }
                    });
                }
            }
            planes.push(plane);
        }
        Self { shape, planes }
    }

    /// The picture in a packed slab of `mem`.
    pub fn frame(&self, mem: Arc<dyn HostMem>, seq: u64) -> Frame {
        let layout = FrameLayout::packed(self.shape).unwrap();
        let mut lease = Pool::new(mem, layout.slab_bytes, Budget::new(usize::MAX)).lease().unwrap();
        self.write(lease.bytes_mut(), &layout.planes);
        self.wrap(layout, FrameMem::Slab(lease), seq)
    }

    /// The picture in foreign memory: odd pitches, odd addresses, each plane on its own.
    pub fn foreign(&self, seq: u64) -> Frame {
        let mut layout = FrameLayout::packed(self.shape).unwrap();
        let sample = self.shape.format.sample();
        let mut bytes = 1;
        let mut inner = layout.planes;
        for (index, plane) in inner.iter_mut().enumerate().take(self.planes.len()) {
            plane.pitch = plane.row_bytes(sample) + 2 * index + 1;
            plane.offset = bytes;
            bytes += plane.pitch * plane.height + 7;
        }
        let mut memory = Box::new(vec![0x5A; bytes]);
        self.write(&mut memory, &inner);
        let mut planes = [std::ptr::null(); MAX_PLANES];
        for (index, pointer) in planes.iter_mut().enumerate().take(self.planes.len()) {
            *pointer = memory.as_ptr().wrapping_add(inner[index].offset);
            layout.planes[index] = PlaneLayout { offset: 0, ..inner[index] };
        }
        layout.slab_bytes = 0;
        let guard = guard(memory);
        self.wrap(layout, FrameMem::Foreign { planes, guard }, seq)
    }

    /// The picture in a shared slab whose planes start in the middle, as a cropped decoder's do.
    pub fn shared(&self, seq: u64) -> Frame {
        let mut layout = FrameLayout::padded(self.shape, self.shape.width + 37, self.shape.height + 5).unwrap();
        for (index, plane) in layout.planes.iter_mut().enumerate().take(self.planes.len()) {
            plane.offset += 2 * plane.pitch + 3 * (index + 1);
        }
        let mut memory = Box::new(vec![0x5A; layout.slab_bytes]);
        self.write(&mut memory, &layout.planes);
        let base = NonNull::new(memory.as_mut_ptr()).unwrap();
        let bytes = memory.len();
        self.wrap(layout, FrameMem::Shared { base, bytes, pinned: false, guard: guard(memory) }, seq)
    }

    fn wrap(&self, layout: FrameLayout, mem: FrameMem, seq: u64) -> Frame {
        let time = FrameTime { pts: Some(1000 + 40 * seq as i64), duration: 40 };
        Frame { layout, time, seq, born: Instant::now(), mem }
    }

    fn write(&self, bytes: &mut [u8], layouts: &[PlaneLayout; MAX_PLANES]) {
        let format = self.shape.format;
        for (plane, layout) in self.planes.iter().zip(layouts) {
            let values = layout.width * layout.components;
            for (y, row) in plane.chunks_exact(values).enumerate() {
                for (x, &value) in row.iter().enumerate() {
                    let at = layout.offset + y * layout.pitch + x * format.sample().bytes();
                    match format.sample() {
                        Sample::U8 => bytes[at] = value as u8,
                        Sample::U16 => {
                            let up = if format.high_bits { 16 - format.depth } else { 0 };
                            bytes[at..at + 2].copy_from_slice(&((value as u16) << up).to_le_bytes());
                        }
                        Sample::F32 => bytes[at..at + 4].copy_from_slice(&(value as f32).to_le_bytes()),
                    }
                }
            }
        }
    }

    /// Reads a frame back. P010-like samples keep their low bits as a fraction, so that rubbish there shows as an error.
    pub fn read(frame: &Frame) -> Self {
        let format = frame.layout.shape.format;
        let mut planes = Vec::new();
        for (index, layout) in frame.layout.planes().iter().enumerate() {
            let mut plane = Vec::new();
            for y in 0..layout.height {
                let row = frame.row(index, y);
                match format.sample() {
                    Sample::U8 => plane.extend(row.iter().map(|&b| f64::from(b))),
                    Sample::U16 => {
                        let unit = if format.high_bits { f64::from(1u32 << (16 - format.depth)) } else { 1.0 };
                        plane.extend(row.chunks_exact(2).map(|b| f64::from(u16::from_le_bytes([b[0], b[1]])) / unit));
                    }
                    Sample::F32 => plane.extend(row.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])))),
                }
            }
            planes.push(plane);
        }
        Self { shape: frame.layout.shape, planes }
    }
}

// A boxed vector is one thin pointer, as the guard wants it.
#[allow(clippy::box_collection)]
fn guard(memory: Box<Vec<u8>>) -> Guard {
    unsafe fn release(object: NonNull<c_void>) {
        // SAFETY: `object` is the box leaked below, released once.
        drop(unsafe { Box::from_raw(object.as_ptr().cast::<Vec<u8>>()) });
    }
    let object = NonNull::new(Box::into_raw(memory).cast::<c_void>()).unwrap();
    // SAFETY: a boxed vector may be dropped from any thread.
    unsafe { Guard::new(object, release) }
}

/// A plan of one step that does `op` to every plane.
pub fn plan(shape: Shape, border: Border, op: PlaneOp) -> Plan {
    chain(shape, &[(border, op)])
}

/// A plan of several steps; pooling changes the shape on the way.
pub fn chain(shape: Shape, ops: &[(Border, PlaneOp)]) -> Plan {
    let mut input = shape;
    let mut step = |(border, op): &(Border, PlaneOp)| {
        let output = windows::shape_after(op, input);
        let label = format!("{op:?}").chars().take(60).collect();
        let planes = [op.clone(), op.clone(), op.clone(), op.clone()];
        Step { label, border: *border, variant: None, input: std::mem::replace(&mut input, output), output, planes }
    };
    Plan { input: shape, steps: ops.iter().map(&mut step).collect() }
}

/// Sample position under a border, by walking step by step from the edge; None is zero.
fn place(mut i: i64, n: i64, border: Border) -> Option<i64> {
    while i < 0 || i >= n {
        i = match border {
            Border::Zero => return None,
            Border::Clamp => i.clamp(0, n - 1),
            Border::Wrap => {
                if i < 0 {
                    i + n
                } else {
                    i - n
                }
            }
            Border::Reflect => {
                if i < 0 {
                    -1 - i
                } else {
                    2 * n - 1 - i
                }
            }
            Border::Reflect101 => {
                if n == 1 {
                    0
                } else if i < 0 {
                    -i
                } else {
                    2 * (n - 1) - i
                }
            }
        };
    }
    Some(i)
}

/// One plane with random access under a border.
struct View<'a> {
    plane: &'a [f64],
    width: i64,
    height: i64,
    components: i64,
    border: Border,
}

impl View<'_> {
    fn at(&self, x: i64, y: i64, c: i64) -> f64 {
        match (place(x, self.width, self.border), place(y, self.height, self.border)) {
            (Some(x), Some(y)) => self.plane[((y * self.width + x) * self.components + c) as usize],
            _ => 0.0,
        }
    }

    fn map(&self, f: impl Fn(i64, i64, i64) -> f64) -> Vec<f64> {
        let mut out = Vec::with_capacity(self.plane.len());
        for y in 0..self.height {
            for x in 0..self.width {
                for c in 0..self.components {
                    out.push(f(x, y, c));
                }
            }
        }
        out
    }

    fn with<'b>(&self, plane: &'b [f64]) -> View<'b> {
        View { plane, width: self.width, height: self.height, components: self.components, border: self.border }
    }
}

/// What the formulas give, before the last rounding (which [`check`] applies).
pub fn expect(plan: &Plan, input: &Picture) -> Picture {
    let mut picture = input.clone();
    for (index, step) in plan.steps.iter().enumerate() {
        if index > 0 {
            round(&mut picture);
        }
        let format = step.input.format;
        let planes = (0..format.plane_count()).map(|p| {
            let (w, h) = step.input.plane_size(p);
            let components = format.components(p) as i64;
            let view = View { plane: &picture.planes[p], width: w as i64, height: h as i64, components, border: step.border };
            apply(&step.planes[p], &view, step.output.plane_size(p), format)
        });
        picture = Picture { shape: step.output, planes: planes.collect() };
    }
    picture
}

/// Half up and into range, integer formats only.
pub fn round(picture: &mut Picture) {
    let format = picture.shape.format;
    if format.sample() != Sample::F32 {
        let max = f64::from(format.max_value());
        picture.planes.iter_mut().flatten().for_each(|v| *v = (*v + 0.5).floor().clamp(0.0, max));
    }
}

/// `out` is the output plane's size.
fn apply(op: &PlaneOp, view: &View<'_>, out: (usize, usize), format: PixelFormat) -> Vec<f64> {
    let (sample, max) = (format.sample(), f64::from(format.max_value()));
    match op {
        PlaneOp::Copy => view.plane.to_vec(),
        PlaneOp::Separable(op) => {
            let (ax, ay) = (op.row.len() as i64 / 2, op.col.len() as i64 / 2);
            // Σ_y col[y] Σ_x row[x] · in, the inner sum first for every row that exists; the border rules are separable.
            let rows = view.map(|x, y, c| weighted(&op.row, |i| view.at(x + i - ax, y, c)));
            let rows = view.with(&rows);
            view.map(|x, y, c| weighted(&op.col, |j| rows.at(x, y + j - ay, c)) * f64::from(op.scale) + f64::from(op.bias))
        }
        PlaneOp::Direct(op) => {
            let (w, ax, ay) = (op.width as i64, op.width as i64 / 2, op.height as i64 / 2);
            view.map(|x, y, c| {
                weighted(&op.taps, |i| view.at(x + i % w - ax, y + i / w - ay, c)) * f64::from(op.scale) + f64::from(op.bias)
            })
        }
        PlaneOp::Box(op) => {
            let mut plane = view.plane.to_vec();
            let mean = |radius: usize, get: &dyn Fn(i64) -> f64| {
                let r = radius as i64;
                (-r..=r).map(get).sum::<f64>() / (2 * r + 1) as f64
            };
            for _ in 0..op.power {
                let from = view.with(&plane);
                plane = view.map(|x, y, c| mean(op.radius_x, &|i| from.at(x + i, y, c)));
            }
            for _ in 0..op.power {
                let from = view.with(&plane);
                plane = view.map(|x, y, c| mean(op.radius_y, &|i| from.at(x, y + i, c)));
            }
            plane
        }
        PlaneOp::Unsharp(op) => {
            let (row, col) = (pascal(op.size_x), pascal(op.size_y));
            let (ax, ay) = (op.size_x as i64 / 2, op.size_y as i64 / 2);
            let all = 1i128 << (op.size_x + op.size_y - 2);
            if sample == Sample::F32 {
                let blur = view.map(|x, y, c| {
                    let mut sum = 0.0;
                    for (j, wy) in col.iter().enumerate() {
                        for (i, wx) in row.iter().enumerate() {
                            sum += (wx * wy) as f64 * view.at(x + i as i64 - ax, y + j as i64 - ay, c);
                        }
                    }
                    sum / all as f64
                });
                return view.plane.iter().zip(&blur).map(|(v, b)| v + (v - b) * f64::from(op.amount) / 65536.0).collect();
            }
            view.map(|x, y, c| {
                let mut sum = 0i128;
                for (j, wy) in col.iter().enumerate() {
                    for (i, wx) in row.iter().enumerate() {
                        sum += wx * wy * view.at(x + i as i64 - ax, y + j as i64 - ay, c) as i128;
                    }
                }
                let value = view.at(x, y, c) as i128;
                let blur = (2 * sum + all).div_euclid(2 * all);
                let out = value + ((value - blur) * i128::from(op.amount)).div_euclid(65536);
                (out as f64).clamp(0.0, max)
            })
        }
        PlaneOp::Gradient(op) => view.map(|x, y, c| {
            let gx = weighted(&op.x, |i| view.at(x + i % 3 - 1, y + i / 3 - 1, c));
            let gy = weighted(&op.y, |i| view.at(x + i % 3 - 1, y + i / 3 - 1, c));
            (gx * gx + gy * gy).sqrt() * f64::from(op.scale) + f64::from(op.delta)
        }),
        PlaneOp::Compass(op) => windows::compass(op, view),
        PlaneOp::Extremum(op) => windows::extremum(op, view),
        PlaneOp::Morphology(op) => windows::morphology(op, view),
        PlaneOp::Median(op) => windows::median(op, view),
        PlaneOp::Pool(op) => windows::pool(op, view, out),
        PlaneOp::Pixelate(op) => windows::pixelate(op, view),
    }
}

fn weighted(weights: &[f32], get: impl Fn(i64) -> f64) -> f64 {
    weights.iter().enumerate().map(|(i, &w)| f64::from(w) * get(i as i64)).sum()
}

/// C(size − 1, i).
fn pascal(size: usize) -> Vec<i128> {
    let mut row = vec![1i128];
    for _ in 1..size {
        let mut next = vec![1];
        next.extend(row.windows(2).map(|w| w[0] + w[1]));
        next.push(1);
        row = next;
    }
    row
}

/// Samples compared and how many of them differed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub samples: u64,
    pub unequal: u64,
}

impl Tally {
    pub fn add(&mut self, other: Self) {
        self.samples += other.samples;
        self.unequal += other.unequal;
    }

    /// Whether 99.9 % were equal.
    pub fn holds(&self) -> bool {
        self.unequal * 1000 <= self.samples
    }
}

/// How far results may be off.
#[derive(Clone, Copy, Debug)]
pub struct Tolerance {
    /// Code values, integer formats.
    pub codes: f64,
    /// Relative to the largest of the range and the expected value, float formats.
    pub float: f64,
}

impl Tolerance {
    /// The spec's for exact variants.
    pub const EXACT: Self = Self { codes: 1.0, float: 1e-4 };
}

/// Compares a frame with the expected values; the error names the first bad sample: plane, x, y, got, want.
///
/// A sample is equal if it is the expected value rounded half up. Where the expected value is so near to a tie that the last
/// bit of an `f32` scale decides (2^-24 of it), both neighbours are: 1/14 in `f32` is not 1/14.
/// More than 1 in 1000 unequal samples (rounded up to a whole one, for tiny frames) is an error too.
pub fn check(got: &Frame, want: &Picture, tolerance: Tolerance) -> std::result::Result<Tally, String> {
    let format = want.shape.format;
    if got.layout.shape != want.shape {
        return Err(format!("got {}, want {}", got.layout.shape, want.shape));
    }
    let max = f64::from(format.max_value());
    let mut tally = Tally::default();
    let mut first_unequal = None;
    for (plane, (got, want_plane)) in Picture::read(got).planes.iter().zip(&want.planes).enumerate() {
        let components = format.components(plane);
        let values = want.shape.plane_size(plane).0 * components;
        if got.len() != want_plane.len() {
            return Err(format!("plane {plane}: got {} values, want {}", got.len(), want_plane.len()));
        }
        for (i, (&got, &want)) in got.iter().zip(want_plane).enumerate() {
            tally.samples += 1;
            let at = |want: f64| format!("plane {plane}, x {}, y {}: got {got}, want {want}", i % values / components, i / values);
            if format.sample() == Sample::F32 {
                if got.is_nan() || (got - want).abs() > tolerance.float * want.abs().max(1.0) {
                    return Err(at(want));
                }
                continue;
            }
            let rounded = (want + 0.5).floor().clamp(0.0, max);
            if got == rounded {
                continue;
            }
            if (got - rounded).abs() > tolerance.codes || got.fract() != 0.0 {
                return Err(at(want));
            }
            if (got - want).abs() > 0.5 + want.abs() * (-24f64).exp2() {
                tally.unequal += 1;
                first_unequal.get_or_insert_with(|| at(want));
            }
        }
    }
    match first_unequal {
        Some(first) if tally.unequal > tally.samples.div_ceil(1000) => {
            Err(format!("{} of {} samples differ, the first at {first}", tally.unequal, tally.samples))
        }
        _ => Ok(tally),
    }
}

/// Options for a test: two lanes, unlimited memory.
pub fn options(variant: Option<&str>, threads: Option<usize>) -> BuildOptions {
    BuildOptions { lanes: Some(2), threads, variant: variant.map(str::to_owned), budget: Budget::new(usize::MAX) }
}

/// Runs frames through build, submit and wait, in order. The output slabs are poisoned with 0xA5 first: every lane's buffer
/// is filled by running the first frame `lanes` times, overwritten, and given back to its pool.
///
/// # Errors
/// The device's.
pub fn run(device: &dyn Device, plan: &Plan, options: &BuildOptions, pictures: &[Picture]) -> Result<Vec<Frame>> {
    let mut built = device.build(plan, options)?;
    let lanes = options.lanes.unwrap_or(2);
    let mut due = Vec::new();
    let mut spoiled = Vec::new();
    for _ in 0..if plan.steps.is_empty() { 0 } else { lanes } {
        let Some(first) = pictures.first() else { break };
        built.submitter.submit(first.frame(device.host_memory(), 0), &mut due)?;
        for ticket in due.drain(..) {
            let mut frame = built.collector.wait(ticket)?;
            let FrameMem::Slab(lease) = &mut frame.mem else { panic!("an output frame must own its slab") };
            lease.bytes_mut().fill(0xA5);
            spoiled.push(frame);
        }
    }
    drop(spoiled);
    let mut waiting = VecDeque::new();
    let mut out = Vec::new();
    for (seq, picture) in pictures.iter().enumerate() {
        // All three kinds of memory take turns.
        let frame = match seq % 3 {
            0 => picture.frame(device.host_memory(), seq as u64),
            1 => picture.foreign(seq as u64),
            _ => picture.shared(seq as u64),
        };
        built.submitter.submit(frame, &mut due)?;
        waiting.extend(due.drain(..));
        while waiting.len() >= lanes {
            out.push(built.collector.wait(waiting.pop_front().unwrap())?);
        }
    }
    built.submitter.finish(&mut due)?;
    waiting.extend(due.drain(..));
    for ticket in waiting {
        out.push(built.collector.wait(ticket)?);
    }
    assert_eq!(out.len(), pictures.len(), "every frame comes out once");
    for (seq, frame) in out.iter().enumerate() {
        assert_eq!((frame.seq, frame.time.pts), (seq as u64, Some(1000 + 40 * seq as i64)), "time and position are carried over");
    }
    Ok(out)
}

/// Heap memory, for frames that no device needs.
pub fn heap() -> Arc<dyn HostMem> {
    Arc::new(Heap)
}
