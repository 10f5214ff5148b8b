//! The sample of a given rank within a window.
//!
//! Small windows by a selection network on whole registers; large ones by histograms that slide along the row.

use std::ops::Range;

use multiversion::multiversion;

use super::columns::{Change, Sweep, count as count_columns, sweep_row};
use super::extremum::loader;
use super::linear::Level;
use super::network::{Exchange, Network, Place};
use super::nine::{Middle, NineKernel};
use super::order::{Kind, Ordered, least, leveled, most, store_row};
use super::plane::{Codec, Source, Span, Target};
use crate::filter::math::border_index;
use crate::filter::plan::Median;

/// Samples of a window that a network is built for.
const NETWORK: usize = 81;
/// Visible columns and rows of a tile of the sliding histogram.
const TILE: usize = 128;
/// Children of a node of the histogram.
pub(super) const FAN: usize = 16;

/// A node of the histogram: how many samples lie in each child or one before it.
pub(super) type Node = [u16; FAN];

/// One plane's rank filter.
pub(super) struct MedianKernel {
    op: Median,
    width: usize,
    height: usize,
    span: Span,
    codec: Codec,
    level: Level,
    method: Method,
}

enum Method {
    /// The median of 3 × 3.
    Nine(NineKernel),
    Network(Network),
    /// A histogram per column, two levels of `bins` bins: integer samples of 12 bits and fewer.
    Columns {
        bins: usize,
    },
    /// One histogram as a tree that branches by [`FAN`], of code values, or of ranks within the tile.
    Tiles {
        levels: u32,
    },
}

/// A worker's memory for [`MedianKernel::run`].
pub(super) struct Workspace<'a, T> {
    pub values: &'a mut [T],
    /// Code values or ranks of a tile.
    pub keys: &'a mut [u32],
    /// Float samples of a tile with their places, sorted.
    pub sorted: &'a mut [u64],
    pub nodes: &'a mut [Node],
    /// Histograms of columns.
    pub counts: &'a mut [u8],
}

/// Lengths of a [`Workspace`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Extent {
    pub values: usize,
    pub keys: usize,
    pub sorted: usize,
    pub nodes: usize,
    pub counts: usize,
}

/// Nodes of a histogram of `levels` times four bits.
fn nodes(levels: u32) -> usize {
    (0..levels).map(|level| FAN.pow(level)).sum()
}

impl MedianKernel {
    pub fn new(op: &Median, mut span: Span, mut codec: Codec, level: Level) -> Self {
        codec.centre = 0.0;
        (span.left, span.right) = (op.radius_x, op.radius_x);
        let (width, height) = (2 * op.radius_x + 1, 2 * op.radius_y + 1);
        let mut kernel = Self { op: *op, width, height, span, codec, level, method: Method::Tiles { levels: 0 } };
        let columns = match Kind::of(codec) {
            Kind::Bytes => Some(16),
            Kind::Words if codec.max < 1024.0 => Some(32),
            Kind::Words if codec.max < 4096.0 => Some(64),
            Kind::Words | Kind::Floats => None,
        };
        kernel.method = if (width, height, op.rank) == (3, 3, 4) {
            Method::Nine(NineKernel::new(kernel.span, codec, level))
        } else if Self::is_small(op) {
            let block = kernel.block();
            Method::Network(Network::new(width, height, op.rank, span.extended().max(block), span.components, block))
        } else if let Some(bins) = columns {
            Method::Columns { bins }
        } else {
            let (columns, rows) = kernel.tile();
            let bits = match Kind::of(codec) {
                Kind::Bytes => 8,
                Kind::Words => 32 - (codec.max as u32).leading_zeros(),
                Kind::Floats => (columns * rows).next_power_of_two().trailing_zeros(),
            };
            Method::Tiles { levels: bits.div_ceil(4) }
        };
        kernel
    }

    /// Whether a network serves the window.
    pub fn is_small(op: &Median) -> bool {
        (2 * op.radius_x + 1) * (2 * op.radius_y + 1) <= NETWORK
    }

    /// The plane's codec.
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// Rows that a band must read beyond its own.
    pub fn halo(&self) -> usize {
        self.height - 1
    }

    /// Values of a block of the network: four registers of 32 bytes, less for rows that are shorter.
    fn block(&self) -> usize {
        let value = match Kind::of(self.codec) {
            Kind::Bytes => 1,
            Kind::Words => 2,
            Kind::Floats => 4,
        };
        let long = 128 / value;
        if self.span.values() >= long { long } else { 1 }
    }

    /// Columns and rows of a tile, sides included.
    fn tile(&self) -> (usize, usize) {
        (TILE.min(self.span.width) + self.width - 1, TILE.min(self.span.height) + self.height - 1)
    }

    /// The scratch that a worker needs.
    pub fn extent(&self) -> Extent {
        match &self.method {
            Method::Nine(kernel) => Extent { values: kernel.scratch(), ..Extent::default() },
            Method::Network(network) => Extent { values: network.memory + self.span.values(), ..Extent::default() },
            Method::Tiles { levels } => {
                let (columns, rows) = self.tile();
                let keys = columns * rows;
                let sorted = if Kind::of(self.codec) == Kind::Floats { keys } else { 0 };
                Extent { values: self.span.extended() + TILE, keys, sorted, nodes: nodes(*levels), ..Extent::default() }
            }
            Method::Columns { bins } => {
                let columns = self.stripe(*bins).min(self.span.width) + self.width - 1;
                Extent {
                    values: 2 * self.span.extended() + self.stripe(*bins),
                    counts: columns * bins * (bins + 1) + 2 * self.stripe(*bins),
                    ..Extent::default()
                }
            }
        }
    }

    pub fn run<T: Rankable>(&self, source: &Source, target: &Target, rows: Range<usize>, space: Workspace<'_, T>) {
        match &self.method {
            Method::Nine(kernel) => kernel.run(Middle, source, target, rows, space.values),
            Method::Network(network) => self.run_network(network, source, target, rows, space.values),
            Method::Columns { bins: 16 } => self.run_columns::<T, 16>(source, target, rows, space),
            Method::Columns { bins: 32 } => self.run_columns::<T, 32>(source, target, rows, space),
            Method::Columns { .. } => self.run_columns::<T, 64>(source, target, rows, space),
            Method::Tiles { levels } => {
                let Workspace { values, keys, sorted, nodes: all, counts } = space;
                let nodes = &mut all[..nodes(*levels)];
                self.run_tiles(source, target, rows, Workspace { values, keys, sorted, nodes, counts }, *levels);
            }
        }
    }

    /// Visible columns whose histograms are kept at a time: 38 KiB for 8 bits and a window of 15 columns, the first cache's size.
    fn stripe(&self, bins: usize) -> usize {
        2048 / bins
    }

    fn run_columns<T: Rankable, const B: usize>(&self, source: &Source, target: &Target, rows: Range<usize>, space: Workspace<'_, T>) {
        let (c, reach) = (self.span.components, self.op.radius_y as i64);
        let (extended, out) = space.values.split_at_mut(self.span.extended());
        let (leaving, out) = out.split_at_mut(self.span.extended());
        let stripe = self.stripe(B);
        let (places, bins) = space.counts.split_at_mut(2 * stripe);
        let (places, bins) = (places.as_chunks_mut::<2>().0, bins.as_chunks_mut::<B>().0);
        let sweep = Sweep { width: self.width, samples: self.width * self.height, rank: self.op.rank as u16 };
        for left in (0..self.span.width).step_by(stripe) {
            let width = stripe.min(self.span.width - left);
            let columns = width + self.width - 1;
            // A stripe away from the sides needs its own samples of a row alone.
            let inner = left.checked_sub(self.op.radius_x).filter(|first| first + columns <= self.span.width);
            let read = |y: i64, row: &mut [T]| match (inner, border_index(y, self.span.height as i64, self.span.border)) {
                (Some(first), Some(y)) => {
                    let bytes = c * self.codec.sample.bytes();
                    let samples = &source.row(y as usize)[first * bytes..(first + columns) * bytes];
                    loader(self.level)(samples, self.codec, &mut row[left * c..(left + columns) * c]);
                }
                _ => self.span.load_with(source, self.codec, y, row, loader(self.level)),
            };
            for component in 0..c {
                let columns = &mut bins[..columns * (B + 1)];
                columns.fill([0; B]);
                let from = left * c + component;
                for y in rows.start as i64 - reach..rows.start as i64 + reach {
                    read(y, extended);
                    count_columns(self.level, columns, Change::Enter(&extended[from..]), c);
                }
                for y in rows.clone() {
                    read(y as i64 + reach, extended);
                    if y == rows.start {
                        count_columns(self.level, columns, Change::Enter(&extended[from..]), c);
                    } else {
                        read(y as i64 - reach - 1, leaving);
                        let change = Change::Swap { entering: &extended[from..], leaving: &leaving[from..] };
                        count_columns(self.level, columns, change, c);
                    }
                    sweep_row(self.level, sweep, columns, &mut places[..width], &mut out[..width]);
                    if c == 1 {
                        let bytes = self.codec.sample.bytes();
                        // SAFETY: row `y` belongs to this task's band.
                        let to = unsafe { target.part(y, left * bytes, width * bytes) };
                        store_row(self.level, &out[..width], self.codec, to);
                    } else {
                        self.scatter(&out[..width], target, y, left * c + component);
                    }
                }
            }
        }
    }

    fn run_network<T: Ordered>(&self, network: &Network, source: &Source, target: &Target, rows: Range<usize>, scratch: &mut [T]) {
        let (out, memory) = scratch.split_at_mut(self.span.values());
        let block = self.block();
        let row = self.span.extended().max(block);
        let reach = self.op.radius_y as i64;
        for y in rows {
            for (index, input) in memory[..row * self.height].chunks_exact_mut(row).enumerate() {
                let input = &mut input[..self.span.extended()];
                self.span.load_with(source, self.codec, y as i64 - reach + index as i64, input, loader(self.level));
            }
            let extended = self.span.extended();
            exchange_rows(self.level, &network.columns, memory, extended, block);
            exchange_rows(self.level, &network.pairs, memory, extended.saturating_sub(self.span.components), block);
            select_row(self.level, network, memory, out, block);
            // SAFETY: row `y` belongs to this task's band.
            store_row(self.level, out, self.codec, unsafe { target.row(y) });
        }
    }

    fn run_tiles<T: Rankable>(&self, source: &Source, target: &Target, rows: Range<usize>, space: Workspace<'_, T>, levels: u32) {
        let c = self.span.components;
        let (extended, out) = space.values.split_at_mut(self.span.extended());
        for top in rows.clone().step_by(TILE) {
            let height = TILE.min(rows.end - top);
            for left in (0..self.span.width).step_by(TILE) {
                let width = TILE.min(self.span.width - left);
                let columns = width + self.width - 1;
                for component in 0..c {
                    let keys = &mut space.keys[..columns * (height + self.height - 1)];
                    let mut sorted = &mut space.sorted[..];
                    for (index, line) in keys.chunks_exact_mut(columns).enumerate() {
                        let y = (top + index) as i64 - self.op.radius_y as i64;
                        self.span.load_with(source, self.codec, y, extended, loader(self.level));
                        for (key, value) in line.iter_mut().zip(extended[left * c + component..].iter().step_by(c)) {
                            *key = value.key();
                        }
                    }
                    if T::SPARSE {
                        sorted = &mut sorted[..keys.len()];
                        for ((place, key), entry) in (0..).zip(&*keys).zip(sorted.iter_mut()) {
                            *entry = u64::from(*key) << 32 | place;
                        }
                        sorted.sort_unstable();
                        for (rank, entry) in (0..).zip(&*sorted) {
                            keys[*entry as u32 as usize] = rank;
                        }
                    }
                    for y in 0..height {
                        let window = &keys[y * columns..(y + self.height) * columns];
                        let slide = Slide { columns, width: self.width, rank: self.op.rank as u16, levels };
                        slide_row(self.level, &slide, window, space.nodes, &mut out[..width], sorted);
                        if c == 1 {
                            let bytes = self.codec.sample.bytes();
                            // SAFETY: row `top + y` belongs to this task's band.
                            let to = unsafe { target.part(top + y, left * bytes, width * bytes) };
                            store_row(self.level, &out[..width], self.codec, to);
                        } else {
                            self.scatter(&out[..width], target, top + y, left * c + component);
                        }
                    }
                }
            }
        }
    }

    /// Stores samples of one component.
    fn scatter<T: Ordered>(&self, row: &[T], target: &Target, y: usize, first: usize) {
        let (bytes, c) = (self.codec.sample.bytes(), self.span.components);
        for (x, value) in row.iter().enumerate() {
            // SAFETY: row `y` belongs to this task's band.
            let to = unsafe { target.part(y, (first + x * c) * bytes, bytes) };
            T::store(std::slice::from_ref(value), self.codec, to);
        }
    }
}

/// Samples as integers of the same order.
pub(super) trait Rankable: Ordered {
    /// Keys are so sparse that ranks within a tile stand for them.
    const SPARSE: bool;
    fn key(self) -> u32;
    fn from_key(key: u32) -> Self;
}

impl Rankable for u8 {
    const SPARSE: bool = false;
    fn key(self) -> u32 {
        u32::from(self)
    }
    fn from_key(key: u32) -> Self {
        key as Self
    }
}

impl Rankable for u16 {
    const SPARSE: bool = false;
    fn key(self) -> u32 {
        u32::from(self)
    }
    fn from_key(key: u32) -> Self {
        key as Self
    }
}

impl Rankable for f32 {
    const SPARSE: bool = true;
    /// The bits, with negative numbers turned round and below positive ones.
    fn key(self) -> u32 {
        let bits = self.to_bits();
        if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
    }
    fn from_key(key: u32) -> Self {
        Self::from_bits(if key >> 31 == 1 { key & !(1 << 31) } else { !key })
    }
}

/// A window of all rows that slides along a line of keys.
struct Slide {
    /// Keys a row.
    columns: usize,
    /// Window width.
    width: usize,
    rank: u16,
    levels: u32,
}

/// Adds `UP[digit]` to a node: one to every child from `digit` on.
const UP: [Node; FAN] = {
    let mut table = [[0; FAN]; FAN];
    let mut digit = 0;
    while digit < FAN {
        let mut child = digit;
        while child < FAN {
            table[digit][child] = 1;
            child += 1;
        }
        digit += 1;
    }
    table
};

#[inline(always)]
fn count(nodes: &mut [Node], levels: u32, key: u32, sign: u16) {
    let mut first = 0;
    for level in 0..levels {
        let rest = 4 * (levels - level - 1);
        let node = first + (key >> (rest + 4)) as usize;
        let change = &UP[(key >> rest) as usize % FAN];
        if let Some(node) = nodes.get_mut(node) {
            for i in 0..FAN {
                node[i] = node[i].wrapping_add(change[i].wrapping_mul(sign));
            }
        }
        first += FAN.pow(level);
    }
}

#[inline(always)]
fn find(nodes: &[Node], levels: u32, mut rank: u16) -> u32 {
    let (mut first, mut key) = (0, 0);
    for level in 0..levels {
        let Some(node) = nodes.get(first + key as usize) else { return 0 };
        let mut digit = 0;
        for count in node {
            digit += u32::from(*count <= rank);
        }
        if let Some(below) = digit.checked_sub(1) {
            rank -= node[below as usize % FAN];
        }
        key = key << 4 | digit;
        first += FAN.pow(level);
    }
    key
}

#[inline(always)]
fn slide_body<T: Rankable>(slide: &Slide, keys: &[u32], nodes: &mut [Node], out: &mut [T], sorted: &[u64]) {
    nodes.fill([0; FAN]);
    for line in keys.chunks_exact(slide.columns) {
        for &key in &line[..slide.width - 1] {
            count(nodes, slide.levels, key, 1);
        }
    }
    for (x, o) in out.iter_mut().enumerate() {
        for line in keys.chunks_exact(slide.columns) {
            count(nodes, slide.levels, line[x + slide.width - 1], 1);
        }
        let key = find(nodes, slide.levels, slide.rank);
        *o = T::from_key(if T::SPARSE { sorted.get(key as usize).map_or(0, |entry| (entry >> 32) as u32) } else { key });
        for line in keys.chunks_exact(slide.columns) {
            count(nodes, slide.levels, line[x], u16::MAX);
        }
    }
}

#[multiversion(targets("x86_64+avx2+fma", "aarch64+neon"))]
fn slide_fast<T: Rankable>(slide: &Slide, keys: &[u32], nodes: &mut [Node], out: &mut [T], sorted: &[u64]) {
    slide_body(slide, keys, nodes, out, sorted);
}

fn slide_row<T: Rankable>(level: Level, slide: &Slide, keys: &[u32], nodes: &mut [Node], out: &mut [T], sorted: &[u64]) {
    match level {
        Level::Plain => slide_body(slide, keys, nodes, out, sorted),
        Level::Simd => slide_fast(slide, keys, nodes, out, sorted),
    }
}

#[inline(always)]
fn exchange_block<T: Ordered, const N: usize>(exchanges: &[Exchange], memory: &mut [T], x: usize) {
    let at = |place: Place| place.start + if place.moves { x } else { 0 };
    for exchange in exchanges {
        let (Some(&a), Some(&b)) = (memory[at(exchange.a)..].first_chunk::<N>(), memory[at(exchange.b)..].first_chunk::<N>()) else {
            return;
        };
        if let Some(low) = exchange.low
            && let Some(low) = memory[at(low)..].first_chunk_mut::<N>()
        {
            for i in 0..N {
                low[i] = least(a[i], b[i]);
            }
        }
        if let Some(high) = exchange.high
            && let Some(high) = memory[at(high)..].first_chunk_mut::<N>()
        {
            for i in 0..N {
                high[i] = most(a[i], b[i]);
            }
        }
    }
}

/// Block starts that cover `0..width`; the last one overlaps the one before. A block never reads what another one wrote.
#[inline(always)]
fn exchange_blocks<T: Ordered, const N: usize>(exchanges: &[Exchange], memory: &mut [T], width: usize) {
    let mut x = 0;
    while x < width {
        exchange_block::<T, N>(exchanges, memory, x.min(width.saturating_sub(N)));
        x += N;
    }
}

#[inline(always)]
fn exchange_body<T: Ordered>(exchanges: &[Exchange], memory: &mut [T], width: usize, block: usize) {
    match block {
        128 => exchange_blocks::<T, 128>(exchanges, memory, width),
        64 => exchange_blocks::<T, 64>(exchanges, memory, width),
        32 => exchange_blocks::<T, 32>(exchanges, memory, width),
        _ => exchange_blocks::<T, 1>(exchanges, memory, width),
    }
}

leveled!(
    /// Runs exchanges over rows of `width` values.
    exchange_rows, exchange_fast, exchange_body(exchanges: &[Exchange], memory: &mut [T], width: usize, block: usize)
);

#[inline(always)]
fn select_blocks<T: Ordered, const N: usize>(network: &Network, memory: &mut [T], out: &mut [T]) {
    let (width, mut x) = (out.len(), 0);
    while x < width {
        let from = x.min(width.saturating_sub(N));
        exchange_block::<T, N>(&network.select, memory, from);
        let result = network.result.start + if network.result.moves { from } else { 0 };
        out[from..from + N].copy_from_slice(&memory[result..result + N]);
        x += N;
    }
}

#[inline(always)]
fn select_body<T: Ordered>(network: &Network, memory: &mut [T], out: &mut [T], block: usize) {
    match block {
        128 => select_blocks::<T, 128>(network, memory, out),
        64 => select_blocks::<T, 64>(network, memory, out),
        32 => select_blocks::<T, 32>(network, memory, out),
        _ => select_blocks::<T, 1>(network, memory, out),
    }
}

leveled!(
    /// The last exchanges of a row, and its results.
    select_row, select_fast, select_body(network: &Network, memory: &mut [T], out: &mut [T], block: usize)
);
