//! What one execution of a program needs on the device: input, output, what lies between steps, scratch, textures and handles of
//! libraries; the arguments of its launches; and the launches, enqueued.
//!
//! All memory is allocated in [`Buffers::new`] (an input once more, if a frame does not fit); a texture is made when arguments first
//! show it. Arguments hold for every input that lies alike: nothing is done again per frame but [`enqueue`]. Nothing here knows what
//! the GPU is at: whoever owns the buffers (a lane, a measurement) waits before it replaces or drops them.

use std::sync::{Arc, Mutex, PoisonError};

use super::Program;
use super::device::{Context, DeviceBuffer, Stream};
use super::geometry::{Element, Geometry, TAIL};
use super::launch::{Engine, FrameArgs, Place};
use super::spec::Buffer;
use super::texture::{Texture, View};
use crate::error::{Error, Result};
use crate::frame::FrameLayout;

/// The device buffers that one execution of a program needs.
pub struct Buffers {
    input: DeviceBuffer,
    between: Vec<DeviceBuffer>,
    output: DeviceBuffer,
    scratch: [Option<DeviceBuffer>; 2],
    sums: Option<DeviceBuffer>,
    work: [Option<DeviceBuffer>; 2],
    /// Handles of libraries, by launch.
    engines: Vec<Engine>,
    /// Every texture that was asked for, kept: there are as many as a stream has layouts.
    textures: Mutex<Vec<Texture>>,
    context: Arc<Context>,
    /// For scratch whose layout is a variant's own.
    flat: Geometry,
    /// What each step reads, in the project's packed layout.
    packed: Vec<Geometry>,
    output_geometry: Geometry,
    /// Scratch of each step.
    word: Vec<Geometry>,
    double: Vec<Geometry>,
    last_step: usize,
}

impl Buffers {
    /// Buffers for `program`; the input has room for `input_bytes`.
    ///
    /// # Errors
    /// Out of device memory, or a frame that has no layout.
    pub fn new(context: &Arc<Context>, program: &Program, input_bytes: usize) -> Result<Self> {
        let layout = FrameLayout::packed(program.plan.output())?;
        let of_steps = |element| program.plan.steps.iter().map(|s| Geometry::packed(s.input, element)).collect::<Vec<_>>();
        let largest = |geometries: &[Geometry]| geometries.iter().map(|g| g.bytes).max().unwrap_or(0);
        let (packed, word, double) = (of_steps(Element::Sample), of_steps(Element::Word), of_steps(Element::Double));
        let first = packed.first().map_or(0, |g| g.bytes);
        let output_geometry = Geometry::of_packed_layout(&layout);
        let used = |buffer: Buffer| program.launches.iter().any(|(_, l)| l.from == buffer || l.to == buffer || l.aux == Some(buffer));
        // Cleared once, so that padding, which is downloaded with the rows, never shows what was in GPU memory before.
        let cleared = |bytes: usize| {
            let buffer = DeviceBuffer::new(context, bytes)?;
            buffer.fill(0)?;
            Ok::<_, Error>(buffer)
        };
        let make = |buffer: Buffer, bytes: usize| used(buffer).then(|| cleared(bytes)).transpose();
        let work = |index: usize| {
            let bytes = program.launches.iter().filter_map(|(_, l)| l.scratch.get(index)).max().copied().unwrap_or(0);
            make(Buffer::Work(index), bytes)
        };
        let last_step = program.plan.steps.len().saturating_sub(1);
        let buffers = Self {
            input: cleared(input_bytes.max(first))?,
            between: (0..last_step.min(2)).map(|_| cleared(largest(packed.get(1..).unwrap_or_default()))).collect::<Result<_>>()?,
            output: cleared(output_geometry.bytes)?,
            scratch: [make(Buffer::Scratch(0), largest(&word))?, make(Buffer::Scratch(1), largest(&word))?],
            sums: make(Buffer::Sums, largest(&double))?,
            work: [work(0)?, work(1)?],
            engines: program.launches.iter().map(|(_, launch)| launch.engine(context)).collect::<Result<_>>()?,
            textures: Mutex::default(),
            context: Arc::clone(context),
            flat: Geometry::default(),
            packed,
            output_geometry,
            word,
            double,
            last_step,
        };
        Ok(buffers)
    }

    /// The input buffer.
    pub fn input(&self) -> &DeviceBuffer {
        &self.input
    }

    /// Another input buffer, of `bytes`; the GPU must be done with the old one, and arguments must be made anew.
    pub(super) fn replace_input(&mut self, bytes: usize) -> Result<()> {
        // Textures show the old one.
        self.textures.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
        self.input = DeviceBuffer::new(&self.context, bytes)?;
        Ok(())
    }

    /// How an input in the project's own layout lies.
    pub fn input_geometry(&self) -> Geometry {
        self.packed.first().copied().unwrap_or_default()
    }

    /// Bytes that input and output both have for planes, without any tail.
    pub fn plane_bytes(&self) -> usize {
        self.input_geometry().bytes.min(self.output_geometry.bytes).saturating_sub(TAIL) / 512 * 512
    }

    /// The output buffer.
    pub fn output(&self) -> &DeviceBuffer {
        &self.output
    }

    fn place<'a>(&'a self, buffer: Buffer, step: usize, input: &'a Geometry) -> Result<Place<'a>> {
        let missing = || Error::failed("cannot run a kernel", "its scratch buffer was not made (a defect in the variants table)");
        // What one step writes lies as the next one reads it.
        let between = |index: usize| {
            let (buffer, geometry) = (self.between.get(index % 2), self.packed.get(index + 1));
            buffer.zip(geometry).map(|(b, geometry)| Place { base: b.ptr(), geometry }).ok_or_else(missing)
        };
        match buffer {
            Buffer::Source if step == 0 => Ok(Place { base: self.input.ptr(), geometry: input }),
            Buffer::Source => between(step - 1),
            Buffer::Target if step == self.last_step => Ok(Place { base: self.output.ptr(), geometry: &self.output_geometry }),
            Buffer::Target => between(step),
            Buffer::Scratch(index) => {
                let scratch = self.scratch.get(index).and_then(Option::as_ref).ok_or_else(missing)?;
                Ok(Place { base: scratch.ptr(), geometry: self.word.get(step).ok_or_else(missing)? })
            }
            Buffer::Work(index) => {
                let work = self.work.get(index).and_then(Option::as_ref).ok_or_else(missing)?;
                Ok(Place { base: work.ptr(), geometry: &self.flat })
            }
            Buffer::Sums => {
                let base = self.sums.as_ref().ok_or_else(missing)?.ptr();
                Ok(Place { base, geometry: self.double.get(step).ok_or_else(missing)? })
            }
        }
    }

    /// The texture's handle; made if there is none yet.
    fn texture(&self, view: View) -> Result<u64> {
        // A push cannot leave the list half-changed.
        let mut textures = self.textures.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = textures.iter().find(|t| *t.view() == view) {
            return Ok(found.handle());
        }
        let made = Texture::new(&self.context, view)?;
        let handle = made.handle();
        textures.push(made);
        Ok(handle)
    }

    /// Arguments of every launch, for an input that lies as `input` says; written over `args`, which keeps its memory.
    ///
    /// # Errors
    /// A defect in the variants table, or a plane that cannot be read as a texture.
    pub fn arguments(&self, program: &Program, input: &Geometry, args: &mut Vec<FrameArgs>) -> Result<()> {
        args.clear();
        for (step, launch) in &program.launches {
            let place = |buffer| self.place(buffer, *step, input);
            let aux = launch.aux.map(place).transpose()?;
            let from = place(launch.from)?;
            let mut made = launch.arguments(from, place(launch.to)?, aux);
            for (slot, view) in launch.views(from) {
                made.show(slot, self.texture(view)?);
            }
            args.push(made);
        }
        Ok(())
    }
}

/// Enqueues every launch of a program.
///
/// # Safety
/// `args` came from [`Buffers::arguments`] of `buffers` and this program, and the buffers live, untouched by others, until the stream is
/// idle.
///
/// # Errors
/// A device error.
pub unsafe fn enqueue(program: &Program, buffers: &Buffers, args: &[FrameArgs], stream: &Stream) -> Result<()> {
    program.launches.iter().zip(args).zip(&buffers.engines).try_for_each(|(((_, launch), args), engine)| {
        // SAFETY: promised by the caller.
        unsafe { launch.enqueue(stream, args, engine) }
    })
}
