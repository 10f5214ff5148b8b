//! A compiled launch, its arguments per frame, and the one function that enqueues it.

use std::ffi::c_void;

use super::device::{DeviceBuffer, DevicePtr, Grid, Kernel, Stream};
use super::geometry::Geometry;
use super::spec::{Buffer, Spec};
use crate::error::{Error, Result};
use crate::frame::{MAX_PLANES, Shape};

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

/// A compiled launch, shared by all lanes.
#[derive(Debug)]
pub struct Launch {
    kernel: Kernel,
    threads: u32,
    shared: u32,
    blocks: u32,
    /// The parameter structure, 8-byte aligned.
    params: Vec<u64>,
    /// Keeps the table that `params` points at.
    _table: Option<DeviceBuffer>,
    planes: Vec<LaunchPlane>,
    /// Read.
    pub from: Buffer,
    /// Written.
    pub to: Buffer,
    /// Scratch besides.
    pub aux: Option<Buffer>,
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
    /// Joins a spec with its compiled kernel; `shapes` are those of the frame that its step reads and of the one that it writes. `table`
    /// holds the spec's table on the device.
    ///
    /// # Errors
    /// When the frame has more tiles than a grid can have.
    pub fn new(spec: &Spec, (input, shape): (Shape, Shape), kernel: Kernel, table: Option<DeviceBuffer>) -> Result<Self> {
        let too_large = || Error::failed(format!("cannot filter {shape} on CUDA"), "the frame has too many tiles for one launch");
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
            kernel,
            threads: spec.threads as u32,
            shared: spec.shared as u32,
            blocks,
            params,
            _table: table,
            planes,
            from: spec.from,
            to: spec.to,
            aux: spec.aux,
        })
    }

    /// The kernel.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
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
    pub unsafe fn enqueue(&self, stream: &Stream, args: &FrameArgs) -> Result<()> {
        let mut pointers: [*mut c_void; 2] = [std::ptr::from_ref(args).cast_mut().cast(), self.params.as_ptr().cast_mut().cast()];
        let used = if self.params.is_empty() { 1 } else { 2 };
        let grid = Grid { blocks: self.blocks, threads: self.threads, shared_bytes: self.shared };
        // SAFETY: the structures mirror the kernel's parameters (each spec is built beside its kernel's name, and
        // tests/gpu.rs runs every row); the buffers are the caller's promise.
        unsafe { self.kernel.launch(stream, grid, &mut pointers[..used]) }
    }
}
