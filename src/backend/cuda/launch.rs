//! A compiled launch, its arguments per frame, and the one function that enqueues it.

use std::ffi::c_void;
use std::sync::Arc;

use super::device::{Context, DeviceBuffer, DevicePtr, Grid, Kernel, Stream};
use super::geometry::Geometry;
use super::library::{Direction, Multiplier, Product, Transformer};
use super::spec::{Buffer, Call, Spec};
use super::texture::View;
use crate::error::{Error, Result};
use crate::filter::Border;
use crate::frame::{MAX_PLANES, PixelFormat, Shape};

/// Mirrors `Plane` in `plane.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct PlaneArgs {
    src: u64,
    dst: u64,
    src_pitch: u32,
    dst_pitch: u32,
    width: i32,
    height: i32,
    first_block: u32,
    blocks_x: u32,
    aux: u64,
    aux_pitch: u32,
    blocks_magic: u32,
    src_width: i32,
    src_height: i32,
}

/// Mirrors `Frame` in `plane.cuh`: what a launch needs to know of the frame and the lane.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameArgs {
    planes: [PlaneArgs; MAX_PLANES],
    count: u32,
    reserved: u32,
}

/// Where a launch's planes are: device addresses and geometry of each buffer.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// First byte.
    pub base: DevicePtr,
    /// Offsets and pitches.
    pub geometry: &'a Geometry,
}

impl FrameArgs {
    /// Puts a texture's handle in the place of scratch.
    pub(super) fn show(&mut self, slot: usize, texture: u64) {
        if let Some(plane) = self.planes.get_mut(slot) {
            plane.aux = texture;
        }
    }
}

/// What a launch runs.
#[derive(Clone, Debug)]
pub enum Work {
    /// A kernel of ours.
    Kernel(Kernel),
    /// A library's function.
    Library(Call),
}

/// What one lane needs besides its buffers to run a launch.
#[derive(Debug)]
pub enum Engine {
    /// Nothing.
    None,
    /// A cuBLAS handle.
    Multiplier(Multiplier),
    /// A cuFFT plan.
    Transformer(Transformer),
}

/// A compiled launch, shared by all lanes.
#[derive(Debug)]
pub struct Launch {
    work: Work,
    threads: u32,
    shared: u32,
    blocks: u32,
    /// The parameter structure, 8-byte aligned.
    params: Vec<u64>,
    /// The table that `params` points at.
    table: Option<DeviceBuffer>,
    planes: Vec<LaunchPlane>,
    /// Read.
    pub from: Buffer,
    /// Written.
    pub to: Buffer,
    /// Scratch besides.
    pub aux: Option<Buffer>,
    /// Bytes of [`Buffer::Work`] that its variant needs.
    pub scratch: [usize; 2],
    texture: Option<Border>,
    format: PixelFormat,
}

#[derive(Clone, Copy, Debug)]
struct LaunchPlane {
    index: usize,
    width: i32,
    height: i32,
    src_width: i32,
    src_height: i32,
    first_block: u32,
    blocks_x: u32,
}

impl Launch {
    /// Joins a spec with what it runs; `shapes` are those of the frame that its step reads and of the one that it writes. `table`
    /// holds the spec's table on the device.
    ///
    /// # Errors
    /// When the frame has more tiles than a grid can have.
    pub fn new(spec: &Spec, (input, shape): (Shape, Shape), work: Work, table: Option<DeviceBuffer>) -> Result<Self> {
        let too_large = || Error::failed(format!("cannot filter {shape} on CUDA"), "the frame has too many tiles for one launch");
        if let Work::Library(Call::Product { rows, depth, .. }) = work
            && table.as_ref().is_none_or(|t| t.bytes() < rows * depth * 4)
        {
            return Err(Error::failed("cannot run a kernel variant", "its table is too small (a defect in the variants table)"));
        }
        let mut planes = Vec::with_capacity(spec.planes.len());
        let mut blocks = 0u32;
        for &index in &spec.planes {
            let (width, height) = shape.plane_size(index);
            let blocks_x = (width * shape.format.components(index)).div_ceil(spec.tile.0);
            let blocks_y = height.div_ceil(spec.tile.1);
            let side = |n: usize| i32::try_from(n).map_err(|_| too_large());
            let (src_width, src_height) = input.plane_size(index);
            planes.push(LaunchPlane {
                index,
                width: side(width)?,
                height: side(height)?,
                src_width: side(src_width)?,
                src_height: side(src_height)?,
                first_block: blocks,
                blocks_x: u32::try_from(blocks_x).map_err(|_| too_large())?,
            });
            let more = u32::try_from(blocks_x * blocks_y).map_err(|_| too_large())?;
            blocks = blocks.checked_add(more).filter(|&b| b <= i32::MAX as u32).ok_or_else(too_large)?;
        }
        if let Some(count) = spec.blocks {
            blocks = u32::try_from(count).ok().filter(|&b| b <= i32::MAX as u32).ok_or_else(too_large)?;
        }
        let mut words = Vec::new();
        if let Some(table) = &table {
            words.extend([table.ptr() as u32, (table.ptr() >> 32) as u32]);
        }
        words.extend_from_slice(&spec.params.words);
        if words.len() % 2 == 1 {
            words.push(0);
        }
        let params = words.chunks_exact(2).map(|pair| u64::from(pair[0]) | u64::from(pair[1]) << 32).collect();
        Ok(Self {
            work,
            threads: spec.threads as u32,
            shared: spec.shared as u32,
            blocks,
            params,
            table,
            planes,
            from: spec.from,
            to: spec.to,
            aux: spec.aux,
            scratch: spec.work,
            texture: spec.texture,
            format: input.format,
        })
    }

    /// The kernel; None where a library does the work.
    pub fn kernel(&self) -> Option<&Kernel> {
        match &self.work {
            Work::Kernel(kernel) => Some(kernel),
            Work::Library(_) => None,
        }
    }

    /// Whether planes are read through textures, which need more alignment than other reads.
    pub fn textured(&self) -> bool {
        self.texture.is_some()
    }

    /// What a lane needs to run this launch on its stream.
    ///
    /// # Errors
    /// No such library, or it refuses.
    pub fn engine(&self, context: &Arc<Context>) -> Result<Engine> {
        match self.work {
            Work::Kernel(_) => Ok(Engine::None),
            Work::Library(Call::Product { .. }) => Multiplier::new(context).map(Engine::Multiplier),
            Work::Library(Call::Forward(tiles)) => Transformer::new(context, tiles, Direction::Forward).map(Engine::Transformer),
            Work::Library(Call::Inverse(tiles)) => Transformer::new(context, tiles, Direction::Inverse).map(Engine::Transformer),
        }
    }

    /// The textures that this launch reads, by slot of its arguments.
    pub(super) fn views(&self, from: Place<'_>) -> Vec<(usize, View)> {
        let Some(border) = self.texture else { return Vec::new() };
        let view = |plane: &LaunchPlane| {
            let place = from.geometry.planes.get(plane.index).copied().unwrap_or_default();
            View {
                ptr: from.base + place.offset as u64,
                pitch: place.pitch,
                width: plane.src_width.unsigned_abs() as usize,
                height: plane.src_height.unsigned_abs() as usize,
                components: self.format.components(plane.index),
                sample: self.format.sample(),
                border,
            }
        };
        self.planes.iter().map(view).enumerate().collect()
    }

    /// Arguments for one set of buffers.
    pub fn arguments(&self, from: Place<'_>, to: Place<'_>, aux: Option<Place<'_>>) -> FrameArgs {
        let mut args = FrameArgs { count: self.planes.len() as u32, ..FrameArgs::default() };
        for (out, plane) in args.planes.iter_mut().zip(&self.planes) {
            let (src, dst) = (from.geometry.planes[plane.index], to.geometry.planes[plane.index]);
            *out = PlaneArgs {
                src: from.base + src.offset as u64,
                dst: to.base + dst.offset as u64,
                src_pitch: src.pitch as u32,
                dst_pitch: dst.pitch as u32,
                width: plane.width,
                height: plane.height,
                first_block: plane.first_block,
                blocks_x: plane.blocks_x,
                aux: aux.map_or(0, |a| a.base + a.geometry.planes[plane.index].offset as u64),
                aux_pitch: aux.map_or(0, |a| a.geometry.planes[plane.index].pitch as u32),
                blocks_magic: u32::try_from((1u64 << 32).div_ceil(u64::from(plane.blocks_x.max(1)))).unwrap_or(u32::MAX),
                src_width: plane.src_width,
                src_height: plane.src_height,
            };
        }
        args
    }

    /// Enqueues the launch.
    ///
    /// # Safety
    /// `args` came from [`Launch::arguments`] of this launch with live buffers that are as large as their geometries say,
    /// and no other stream uses the written ones until the kernel has run.
    ///
    /// # Errors
    /// A device error.
    pub unsafe fn enqueue(&self, stream: &Stream, args: &FrameArgs, engine: &Engine) -> Result<()> {
        let kernel = match &self.work {
            Work::Kernel(kernel) => kernel,
            Work::Library(call) => {
                let [first, ..] = args.planes;
                // SAFETY: promised by the caller; the variant's scratch is as large as its calls need (`Spec::work`).
                return unsafe { self.call(stream, *call, engine, (first.src, first.dst)) };
            }
        };
        let mut pointers: [*mut c_void; 2] = [std::ptr::from_ref(args).cast_mut().cast(), self.params.as_ptr().cast_mut().cast()];
        let used = if self.params.is_empty() { 1 } else { 2 };
        let grid = Grid { blocks: self.blocks, threads: self.threads, shared_bytes: self.shared };
        // SAFETY: the structures mirror the kernel's parameters (each spec is built beside its kernel's name, and
        // tests/gpu.rs runs every row); the buffers are the caller's promise.
        unsafe { kernel.launch(stream, grid, &mut pointers[..used]) }
    }

    /// Enqueues a library's function.
    ///
    /// # Safety
    /// As for [`Launch::enqueue`]; `from` and `to` are as large as the call says.
    unsafe fn call(&self, stream: &Stream, call: Call, engine: &Engine, (from, to): (DevicePtr, DevicePtr)) -> Result<()> {
        match (engine, call) {
            (Engine::Multiplier(multiplier), Call::Product { rows, columns, depth }) => {
                let left = self.table.as_ref().map_or(0, DeviceBuffer::ptr);
                // SAFETY: promised by the caller; the table holds rows x depth floats (checked in `Launch::new`).
                unsafe { multiplier.enqueue(stream, &Product { rows, columns, depth, left, right: from, out: to }) }
            }
            // SAFETY: promised by the caller.
            (Engine::Transformer(transformer), Call::Forward(_) | Call::Inverse(_)) => unsafe { transformer.enqueue(stream, from, to) },
            (Engine::None | Engine::Multiplier(_) | Engine::Transformer(_), _) => {
                Err(Error::failed("cannot run a kernel variant", "a library's handle is missing (a defect in the variants table)"))
            }
        }
    }
}
