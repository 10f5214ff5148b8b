//! Lossless conversion between layouts of the same components: packed, semi-planar, palette, big-endian to planar and back.
//!
//! swscale reaches many of these only through its own YUV, which rounds; here samples are moved, never computed. The one
//! exceptions lose nothing either: RGB of fewer bits, whose bits are repeated downwards (5 bits `abcde` become `abcdeabc`), and
//! floats of 16 bits where 32 are wanted.

use ffmpeg_next::ffi;
use half::f16;
use multiversion::multiversion;

use super::owned;
use crate::frame::{Model, Packing, PixelFormat, Sample};

/// The bytes that hold one sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Byte,
    Little16,
    Big16,
    Little32,
    Big32,
}

impl Word {
    const fn bytes(self) -> usize {
        match self {
            Self::Byte => 1,
            Self::Little16 | Self::Big16 => 2,
            Self::Little32 | Self::Big32 => 4,
        }
    }
}

/// Where the samples of one component lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    plane: usize,
    /// Bytes from a row's start to the first sample.
    offset: usize,
    /// Bytes from one sample to the next.
    step: usize,
    /// Bits below the sample in its word.
    shift: u32,
    /// Bits of the sample.
    depth: u32,
    word: Word,
}

impl Place {
    /// Bytes of a row up to the end of its last sample.
    const fn row_bytes(&self, width: usize) -> usize {
        if width == 0 { 0 } else { self.offset + (width - 1) * self.step + self.word.bytes() }
    }
}

/// A pixel format as the places of its components, in FFmpeg's order: Y, U, V, A or R, G, B, A or Y, A.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Places {
    model: Model,
    alpha: bool,
    float: bool,
    /// Components are bytes of a 32-bit entry that plane 0 names by its index.
    palette: bool,
    chroma_shift: (u32, u32),
    components: [Option<Place>; 4],
}

impl Places {
    /// Of an FFmpeg format; None when its samples are not whole numbers or floats at regular places.
    pub(super) fn of_descriptor(d: &ffi::AVPixFmtDescriptor) -> Option<Self> {
        let has = |flag: libc::c_int| d.flags & flag as u64 != 0;
        // SAFETY: descriptor names are static strings.
        let name = unsafe { owned::text(d.name) }.unwrap_or_default();
        // X, Y, Z are no R, G, B; UYYVYY's luma has no single step.
        let irregular = name.starts_with("xyz") || name == "uyyvyy411";
        if irregular || has(ffi::AV_PIX_FMT_FLAG_BITSTREAM) || has(ffi::AV_PIX_FMT_FLAG_HWACCEL) || has(ffi::AV_PIX_FMT_FLAG_BAYER) {
            return None;
        }
        if has(ffi::AV_PIX_FMT_FLAG_PAL) {
            // The entry is 0xAARRGGBB in the machine's own byte order.
            let place = |byte: usize| {
                let offset = if cfg!(target_endian = "little") { byte } else { 3 - byte };
                Some(Place { plane: 0, offset, step: 1, shift: 0, depth: 8, word: Word::Byte })
            };
            let components = [2, 1, 0, 3].map(place);
            return Some(Self { model: Model::Rgb, alpha: true, float: false, palette: true, chroma_shift: (0, 0), components });
        }
        let (alpha, float, big) = (has(ffi::AV_PIX_FMT_FLAG_ALPHA), has(ffi::AV_PIX_FMT_FLAG_FLOAT), has(ffi::AV_PIX_FMT_FLAG_BE));
        let count = usize::from(d.nb_components);
        let model = match (count.checked_sub(usize::from(alpha))?, has(ffi::AV_PIX_FMT_FLAG_RGB)) {
            (1, false) => Model::Gray,
            (3, true) => Model::Rgb,
            (3, false) => Model::Yuv,
            _ => return None,
        };
        let mut components = [None; 4];
        for (place, c) in components.iter_mut().zip(d.comp.get(..count)?) {
            let (shift, depth) = (u32::try_from(c.shift).ok()?, u32::try_from(c.depth).ok()?);
            if depth == 0 || (float && !matches!(depth, 16 | 32)) || (!float && depth > 16) {
                return None;
            }
            let word = match (shift + depth, big) {
                (0..=8, _) => Word::Byte,
                (9..=16, false) => Word::Little16,
                (9..=16, true) => Word::Big16,
                (17..=32, false) => Word::Little32,
                (17..=32, true) => Word::Big32,
                _ => return None,
            };
            // As in av_read_image_line2: the byte of a big-endian word that holds the low bits is the second.
            let offset = c.offset + i32::from(big && word == Word::Byte);
            *place = Some(Place {
                plane: usize::try_from(c.plane).ok().filter(|&p| p < 4)?,
                offset: usize::try_from(offset).ok()?,
                step: usize::try_from(c.step).ok().filter(|&s| s > 0)?,
                shift,
                depth,
                word,
            });
        }
        let chroma_shift = if model == Model::Yuv { (u32::from(d.log2_chroma_w), u32::from(d.log2_chroma_h)) } else { (0, 0) };
        Some(Self { model, alpha, float, palette: false, chroma_shift, components })
    }

    /// Of a native format.
    pub(super) fn of_native(format: PixelFormat) -> Self {
        let bytes = format.sample().bytes();
        let (word, float) = match format.sample() {
            Sample::U8 => (Word::Byte, false),
            Sample::U16 => (Word::Little16, false),
            Sample::F16 => (Word::Little16, true),
            Sample::F32 => (Word::Little32, true),
        };
        let depth = u32::from(format.depth);
        let shift = if format.high_bits && word == Word::Little16 { 16 - depth } else { 0 };
        let own = |plane| Some(Place { plane, offset: 0, step: bytes, shift, depth, word });
        let shared = |offset| Some(Place { plane: 1, offset, step: 2 * bytes, shift, depth, word });
        let alpha = |plane| if format.alpha { own(plane) } else { None };
        let components = match (format.model, format.packing) {
            (Model::Gray, _) => [own(0), alpha(1), None, None],
            // The project's order is G, B, R.
            (Model::Rgb, _) => [own(2), own(0), own(1), alpha(3)],
            (Model::Yuv, Packing::Planar) => [own(0), own(1), own(2), alpha(3)],
            (Model::Yuv, Packing::SemiPlanar) => [own(0), shared(0), shared(bytes), alpha(2)],
        };
        let chroma_shift = (u32::from(format.chroma_shift_x), u32::from(format.chroma_shift_y));
        Self { model: format.model, alpha: format.alpha, float, palette: false, chroma_shift, components }
    }

    /// Bits of the widest component.
    pub(super) fn depth(&self) -> u32 {
        self.places().map(|p| p.depth).max().unwrap_or(0)
    }

    /// The planar native format that holds these components exactly.
    pub(super) fn planar(&self) -> Option<PixelFormat> {
        let widest = self.depth();
        let depth = [8, 9, 10, 12, 14, 16, 32].into_iter().find(|&d| d >= widest)?;
        let shift = |s: u32| u8::try_from(s).ok();
        let format = PixelFormat {
            model: self.model,
            alpha: self.alpha,
            chroma_shift_x: shift(self.chroma_shift.0)?,
            chroma_shift_y: shift(self.chroma_shift.1)?,
            depth: u8::try_from(depth).ok()?,
            float: self.float,
            packing: Packing::Planar,
            high_bits: false,
        };
        Repack::between(*self, Self::of_native(format)).map(|_| format)
    }

    fn places(&self) -> impl Iterator<Item = &Place> {
        self.components.iter().flatten()
    }

    fn is_chroma(&self, component: usize) -> bool {
        self.model == Model::Yuv && (component == 1 || component == 2)
    }

    /// Samples of a component in a picture of `size`.
    fn size(&self, component: usize, (width, height): (usize, usize)) -> (usize, usize) {
        if self.is_chroma(component) {
            (width.div_ceil(1 << self.chroma_shift.0), height.div_ceil(1 << self.chroma_shift.1))
        } else {
            (width, height)
        }
    }

    /// Bytes of plane `plane` that components occupy in one group of samples, and the group's size.
    fn occupied(&self, plane: usize) -> (usize, usize) {
        let group = self.places().filter(|p| p.plane == plane).map(|p| p.step).max().unwrap_or(0);
        (self.places().filter(|p| p.plane == plane).map(|p| p.word.bytes() * (group / p.step)).sum(), group)
    }

    /// Whether every sample has bytes of its own, so that it can be written without regard to its neighbours.
    fn writable(&self) -> bool {
        let apart = |plane| {
            let (occupied, group) = self.occupied(plane);
            occupied <= group
        };
        !self.palette && (0..4).all(apart)
    }
}

/// Rows of a picture's planes in memory. A pitch may be negative; unused planes are null.
#[derive(Clone, Copy)]
pub(super) struct Memory<P> {
    pub planes: [P; 4],
    pub pitches: [i32; 4],
}

/// A conversion that loses nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Repack {
    from: Places,
    to: Places,
}

impl Repack {
    /// None when `to` cannot hold every component of `from` exactly. A missing alpha becomes opaque.
    pub(super) fn between(from: Places, to: Places) -> Option<Self> {
        let same = (from.model, from.float, from.chroma_shift) == (to.model, to.float, to.chroma_shift);
        let fits = from.components.iter().zip(&to.components).all(|pair| match pair {
            (Some(a), Some(b)) => a.depth == b.depth || (a.depth < b.depth && (from.model == Model::Rgb || from.float)),
            (Some(_), None) => false,
            (None, _) => true,
        });
        let bytes_only = to.places().all(|p| (p.word, p.shift) == (Word::Byte, 0));
        (same && fits && to.writable() && (!from.palette || bytes_only)).then_some(Self { from, to })
    }
    /// As [`Repack::between`], leaving alpha out.
    pub(super) fn without_alpha(from: Places, to: Places) -> Option<Self> {
        let mut from = from;
        let colours = if from.model == Model::Gray { 1 } else { 3 };
        from.components.iter_mut().skip(colours).for_each(|c| *c = None);
        from.alpha = false;
        Self::between(from, to)
    }

    /// Whether an opaque alpha is added.
    pub(super) fn adds_alpha(&self) -> bool {
        self.to.alpha && !self.from.alpha
    }

    /// Bits of the widest component after it.
    pub(super) fn depth(&self) -> u32 {
        self.to.depth()
    }

    /// Moves every sample of a picture of `size`.
    ///
    /// # Safety
    /// `source` and `target` are pictures of that size in the two formats: every plane that the format names has the rows
    /// and row bytes that FFmpeg prescribes, a palette has 256 entries in plane 1; the target is writable and not shared.
    pub(super) unsafe fn run(&self, size: (usize, usize), source: Memory<*const u8>, target: Memory<*mut u8>) {
        // SAFETY: the caller's promise: plane 1 of a palette format holds 256 entries of 4 bytes.
        let palette = self.from.palette.then(|| unsafe { std::slice::from_raw_parts(source.planes[1], 1024) });
        for (index, to) in self.to.components.iter().enumerate() {
            let Some(to) = to else { continue };
            let (width, height) = self.to.size(index, size);
            let from = self.from.components[index];
            let (occupied, group) = self.to.occupied(to.plane);
            // What no sample covers (the X of RGBX, the second luma of YUYV's last pair at odd widths) is written once,
            // before the first component of its plane.
            let first = self.to.components[..index].iter().flatten().all(|p| p.plane != to.plane);
            let groups = (width * to.step).div_ceil(group);
            let uncovered = first && (occupied < group || groups * group > width * to.step);
            for y in 0..height {
                if uncovered {
                    // SAFETY: whole groups of row `y`, by the caller's promise; no other reference to it lives.
                    unsafe { row_mut(target, to.plane, y, groups * group) }.fill(0xFF);
                }
                // SAFETY: row `y` of the plane, whose last sample ends at `row_bytes`, by the caller's promise.
                let out = unsafe { row_mut(target, to.plane, y, to.row_bytes(width)) };
                match from {
                    Some(from) => {
                        let bytes = if self.from.palette { width } else { from.row_bytes(width) };
                        // SAFETY: as above, for the source.
                        let row = unsafe { row(source, from.plane, y, bytes) };
                        match palette {
                            Some(palette) => look_up(row, palette, &from, out, to),
                            None => copy(row, &from, out, to, width),
                        }
                    }
                    None => fill(out, to, width, self.to.float),
                }
            }
        }
    }
}

/// # Safety
/// Row `y` of the plane has `bytes` readable bytes for as long as the result is used.
unsafe fn row<'a>(memory: Memory<*const u8>, plane: usize, y: usize, bytes: usize) -> &'a [u8] {
    // SAFETY: the caller's promise; rows of pictures fit into isize.
    unsafe { std::slice::from_raw_parts(memory.planes[plane].offset(y as isize * memory.pitches[plane] as isize), bytes) }
}

/// # Safety
/// As for [`row`], writable and not otherwise referenced.
unsafe fn row_mut<'a>(memory: Memory<*mut u8>, plane: usize, y: usize, bytes: usize) -> &'a mut [u8] {
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(memory.planes[plane].offset(y as isize * memory.pitches[plane] as isize), bytes) }
}

/// One component of a row of palette indices.
fn look_up(row: &[u8], palette: &[u8], from: &Place, out: &mut [u8], to: &Place) {
    let entries = palette.get(from.offset..).unwrap_or_default();
    let samples = out.get_mut(to.offset..).unwrap_or_default().chunks_mut(to.step);
    for (&index, out) in row.iter().zip(samples) {
        if let (Some(&sample), Some(out)) = (entries.get(4 * usize::from(index)), out.first_mut()) {
            *out = sample;
        }
    }
}

/// One component of a row. SSE2 alone has no byte shuffle, which strides need.
#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
fn copy(row: &[u8], from: &Place, out: &mut [u8], to: &Place, width: usize) {
    let (Some(row), Some(out)) = (row.get(from.offset..), out.get_mut(to.offset..)) else { return };
    let bytes = from.word.bytes();
    let alike = (from.word, from.shift, from.depth) == (to.word, to.shift, to.depth);
    if alike && from.step == bytes && to.step == bytes {
        out[..width * bytes].copy_from_slice(&row[..width * bytes]);
        return;
    }
    if from.depth != to.depth {
        return widen(row, from, out, to);
    }
    let steps = (from.step, to.step);
    let (down, up) = (from.shift, to.shift);
    let mask = if from.depth < 16 { (1u16 << from.depth) - 1 } else { u16::MAX };
    // Both shifts are below 16; the wrapping forms leave out a check that would keep the loops from vectorising.
    let code = |word: u16| (word.wrapping_shr(down) & mask).wrapping_shl(up);
    match (from.word, to.word) {
        // Narrower samples may have bits of a neighbour in their word.
        (Word::Byte, Word::Byte) if alike && from.depth == 8 => bytes_strided(row, out, steps),
        (Word::Little16, Word::Little16) | (Word::Big16, Word::Big16) if alike && from.depth == 16 => words_strided(row, out, steps, |b| b),
        (Word::Byte, Word::Byte) => strided(row, out, steps, |[b]: [u8; 1]| [code(b.into()) as u8]),
        (Word::Byte, Word::Little16) => strided(row, out, steps, |[b]: [u8; 1]| code(b.into()).to_le_bytes()),
        (Word::Byte, Word::Big16) => strided(row, out, steps, |[b]: [u8; 1]| code(b.into()).to_be_bytes()),
        (Word::Little16, Word::Byte) => strided(row, out, steps, |b: [u8; 2]| [code(u16::from_le_bytes(b)) as u8]),
        (Word::Big16, Word::Byte) => strided(row, out, steps, |b: [u8; 2]| [code(u16::from_be_bytes(b)) as u8]),
        (Word::Little16, Word::Little16) => words_strided(row, out, steps, |b| code(u16::from_le_bytes(b)).to_le_bytes()),
        (Word::Little16, Word::Big16) => words_strided(row, out, steps, |b| code(u16::from_le_bytes(b)).to_be_bytes()),
        (Word::Big16, Word::Little16) => words_strided(row, out, steps, |b| code(u16::from_be_bytes(b)).to_le_bytes()),
        (Word::Big16, Word::Big16) => words_strided(row, out, steps, |b| code(u16::from_be_bytes(b)).to_be_bytes()),
        // 32-bit words are floats, or 16 bits and fewer within a packed word.
        (from_word, to_word) => {
            let keep = if from.depth < 32 { (1u32 << from.depth) - 1 } else { u32::MAX };
            let samples = row.chunks(from.step).zip(out.chunks_mut(to.step));
            samples.for_each(|(s, d)| store(d, to_word, ((load(s, from_word) >> down) & keep) << up));
        }
    }
}

fn load(bytes: &[u8], word: Word) -> u32 {
    let two = || bytes.first_chunk::<2>().copied().unwrap_or_default();
    let four = || bytes.first_chunk::<4>().copied().unwrap_or_default();
    match word {
        Word::Byte => bytes.first().copied().unwrap_or_default().into(),
        Word::Little16 => u16::from_le_bytes(two()).into(),
        Word::Big16 => u16::from_be_bytes(two()).into(),
        Word::Little32 => u32::from_le_bytes(four()),
        Word::Big32 => u32::from_be_bytes(four()),
    }
}

fn store(bytes: &mut [u8], word: Word, value: u32) {
    let wide = match word {
        Word::Byte => [value as u8, 0, 0, 0],
        Word::Little16 => widened((value as u16).to_le_bytes()),
        Word::Big16 => widened((value as u16).to_be_bytes()),
        Word::Little32 => value.to_le_bytes(),
        Word::Big32 => value.to_be_bytes(),
    };
    bytes.iter_mut().zip(wide).take(word.bytes()).for_each(|(to, from)| *to = from);
}

fn widened([a, b]: [u8; 2]) -> [u8; 4] {
    [a, b, 0, 0]
}

/// Repeats a sample's bits downwards until they fill `to` bits.
fn replicate(code: u32, from: u32, to: u32) -> u32 {
    let mut room = to - from;
    let mut wide = code << room;
    while room > 0 {
        if room >= from {
            room -= from;
            wide |= code << room;
        } else {
            wide |= code >> (from - room);
            room = 0;
        }
    }
    wide
}

fn widen(row: &[u8], from: &Place, out: &mut [u8], to: &Place) {
    if to.depth == 32 {
        // Halves: no other samples have so many.
        for (s, d) in row.chunks(from.step).zip(out.chunks_mut(to.step)) {
            store(d, to.word, f16::from_bits(load(s, from.word) as u16).to_f32().to_bits());
        }
        return;
    }
    let mask = (1u32 << from.depth) - 1;
    for (s, d) in row.chunks(from.step).zip(out.chunks_mut(to.step)) {
        store(d, to.word, replicate((load(s, from.word) >> from.shift) & mask, from.depth, to.depth) << to.shift);
    }
}

/// Opaque alpha.
fn fill(out: &mut [u8], to: &Place, width: usize, float: bool) {
    let full = match (float, to.depth) {
        (true, 16) => f16::ONE.to_bits().into(),
        (true, _) => 1f32.to_bits(),
        (false, depth) => ((1u32 << depth) - 1) << to.shift,
    };
    let Some(out) = out.get_mut(to.offset..) else { return };
    out.chunks_mut(to.step).take(width).for_each(|d| store(d, to.word, full));
}

#[inline(always)]
fn strided<const S: usize, const D: usize>(row: &[u8], out: &mut [u8], (from, to): (usize, usize), f: impl Fn([u8; S]) -> [u8; D]) {
    for (s, d) in row.chunks(from).zip(out.chunks_mut(to)) {
        if let (Some(s), Some(d)) = (s.first_chunk::<S>(), d.first_chunk_mut::<D>()) {
            *d = f(*s);
        }
    }
}

/// [`strided`] with constant steps, in whole steps as far as they go, which the compiler turns into shuffles.
#[inline(always)]
fn stepped<const FROM: usize, const TO: usize, const S: usize, const D: usize>(row: &[u8], out: &mut [u8], f: impl Fn([u8; S]) -> [u8; D]) {
    let whole = (row.len() / FROM).min(out.len() / TO);
    let (steps, rest) = row.split_at(whole * FROM);
    let (out_steps, out_rest) = out.split_at_mut(whole * TO);
    for (s, d) in steps.as_chunks::<FROM>().0.iter().zip(out_steps.as_chunks_mut::<TO>().0) {
        // Always Some; written so that nothing is checked or called per sample.
        if let (Some(s), Some(d)) = (s.first_chunk::<S>(), d.first_chunk_mut::<D>()) {
            *d = f(*s);
        }
    }
    // The last sample's step is cut off behind the sample.
    strided(rest, out_rest, (FROM, TO), f);
}

#[inline(always)]
fn words_strided(row: &[u8], out: &mut [u8], steps: (usize, usize), f: impl Fn([u8; 2]) -> [u8; 2]) {
    match steps {
        (2, 2) => stepped::<2, 2, 2, 2>(row, out, f),
        (4, 2) => stepped::<4, 2, 2, 2>(row, out, f),
        (6, 2) => stepped::<6, 2, 2, 2>(row, out, f),
        (8, 2) => stepped::<8, 2, 2, 2>(row, out, f),
        (2, 4) => stepped::<2, 4, 2, 2>(row, out, f),
        (2, 6) => stepped::<2, 6, 2, 2>(row, out, f),
        (2, 8) => stepped::<2, 8, 2, 2>(row, out, f),
        _ => strided(row, out, steps, f),
    }
}

#[inline(always)]
fn bytes_strided(row: &[u8], out: &mut [u8], steps: (usize, usize)) {
    let f = |b: [u8; 1]| b;
    match steps {
        (2, 1) => stepped::<2, 1, 1, 1>(row, out, f),
        (3, 1) => stepped::<3, 1, 1, 1>(row, out, f),
        (4, 1) => stepped::<4, 1, 1, 1>(row, out, f),
        (1, 2) => stepped::<1, 2, 1, 1>(row, out, f),
        (1, 3) => stepped::<1, 3, 1, 1>(row, out, f),
        (1, 4) => stepped::<1, 4, 1, 1>(row, out, f),
        _ => strided(row, out, steps, f),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_repeated_until_they_fill() {
        assert_eq!(replicate(0b10110, 5, 8), 0b1011_0101);
        assert_eq!(replicate(0b10, 2, 8), 0b1010_1010);
        assert_eq!(replicate(1, 1, 8), 255);
        assert_eq!(replicate(1023, 10, 16), 65535);
        assert_eq!(replicate(513, 10, 16), (513 << 6) | (513 >> 4));
    }

    /// FFmpeg's descriptor of the same planes of halves, of which older versions have none.
    fn halved(of: ffi::AVPixelFormat, packed: bool) -> ffi::AVPixFmtDescriptor {
        // SAFETY: the format is one of FFmpeg's table, whose entries live forever.
        let mut d = unsafe { ffi::av_pix_fmt_desc_get(of).as_ref() }.copied().unwrap();
        let count = usize::from(d.nb_components);
        for (index, c) in d.comp[..count].iter_mut().enumerate() {
            (c.depth, c.step) = (16, 2);
            if packed {
                (c.plane, c.step, c.offset) = (0, 2 * count as i32, 2 * index as i32);
            }
        }
        d
    }

    #[test]
    fn halves_have_formats_of_their_own_and_become_floats_without_loss() {
        use ffi::AVPixelFormat::*;
        let planar = [
            (AV_PIX_FMT_GRAYF32LE, PixelFormat::gray(32)),
            (AV_PIX_FMT_GBRPF32LE, PixelFormat::gbr(32)),
            (AV_PIX_FMT_GBRAPF32LE, PixelFormat { alpha: true, ..PixelFormat::gbr(32) }),
        ];
        for (id, wide) in planar {
            let places = Places::of_descriptor(&halved(id, false)).unwrap();
            assert_eq!(places, Places::of_native(wide.half()));
            assert_eq!((places.planar(), places.depth()), (Some(wide.half()), 16));
            assert!(Repack::between(places, Places::of_native(wide)).is_some());
            assert!(Repack::between(Places::of_native(wide), places).is_none(), "32 bits do not fit 16");
            let words = PixelFormat { depth: 16, float: false, ..wide };
            assert!(
                Repack::between(places, Places::of_native(words)).is_none() && Repack::between(Places::of_native(words), places).is_none()
            );
        }
        // Packed pixels (FFmpeg's rgbaf16le) into planes of halves and of floats; B, G and R of half the components get an opaque alpha.
        let packed = Places::of_descriptor(&halved(AV_PIX_FMT_GBRAPF32LE, true)).unwrap();
        let wide = PixelFormat { alpha: true, ..PixelFormat::gbr(32) };
        assert_eq!(packed.planar(), Some(wide.half()));
        let values = [0.5f32, -2.0, 65504.0, 6e-8, 0.333_251_95, 0.0, 1.0, 1e-3].map(f16::from_f32);
        let source: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let run = |from: Places, to: PixelFormat, source: &[u8]| -> Vec<Vec<u8>> {
            let bytes = to.sample().bytes();
            let mut planes = vec![vec![0u8; 2 * bytes]; to.plane_count()];
            let null = std::ptr::null_mut();
            let at = |p: usize, planes: &mut Vec<Vec<u8>>| planes.get_mut(p).map_or(null, |plane| plane.as_mut_ptr());
            let targets = [0, 1, 2, 3].map(|p| at(p, &mut planes));
            let sources = [source.as_ptr(), std::ptr::null(), std::ptr::null(), std::ptr::null()];
            let repack = Repack::between(from, Places::of_native(to)).unwrap();
            let (source, target) =
                (Memory { planes: sources, pitches: [16; 4] }, Memory { planes: targets, pitches: [2 * bytes as i32; 4] });
            // SAFETY: two pixels of one row lie in `source`, and each plane has room for two samples.
            unsafe { repack.run((2, 1), source, target) };
            planes
        };
        let halves = run(packed, wide.half(), &source);
        let floats = run(packed, wide, &source);
        // The project's planes are G, B, R, A; components come as R, G, B, A.
        for (plane, component) in [1, 2, 0, 3].into_iter().enumerate() {
            let want = [values[component], values[component + 4]];
            assert_eq!(halves[plane], want.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>());
            assert_eq!(floats[plane], want.iter().flat_map(|v| v.to_f32().to_le_bytes()).collect::<Vec<_>>());
        }
        let gray = Places::of_native(PixelFormat::gray(32).half());
        let opaque = run(gray, PixelFormat { alpha: true, ..PixelFormat::gray(32).half() }, &source);
        assert_eq!(opaque[1], [f16::ONE.to_le_bytes(); 2].concat());
    }

    #[test]
    fn samples_that_share_bytes_can_be_read_but_not_written() {
        use crate::media::format::places;
        use ffi::AVPixelFormat::*;
        for id in [AV_PIX_FMT_RGB565LE, AV_PIX_FMT_RGB8, AV_PIX_FMT_X2RGB10LE, AV_PIX_FMT_PAL8] {
            let places = places(id).unwrap();
            assert!(!places.writable() && places.planar().is_some(), "{id:?}");
        }
        for id in [AV_PIX_FMT_BGR0, AV_PIX_FMT_RGB48BE, AV_PIX_FMT_YUYV422, AV_PIX_FMT_P010BE, AV_PIX_FMT_AYUV64LE, AV_PIX_FMT_Y210LE] {
            assert!(places(id).unwrap().writable(), "{id:?}");
        }
        assert!(places(AV_PIX_FMT_UYYVYY411).is_none() && places(AV_PIX_FMT_MONOBLACK).is_none());
    }
}
