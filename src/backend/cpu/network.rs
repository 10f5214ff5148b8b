//! Selection networks: a fixed sequence of minima and maxima that yields the sample of a given rank, for all columns of a
//! row at once.
//!
//! Columns of the window are sorted first, once per column of the plane; then neighbouring columns are merged (Batcher's odd-even
//! merge for lists of any length; Knuth, The Art of Computer Programming, vol. 3, 5.3.4), and what does not lead to the wanted
//! rank is left out.

use std::collections::HashMap;

/// Half or all of a compare-exchange on blocks of values in one memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Exchange {
    pub a: Place,
    pub b: Place,
    /// Where the smaller one goes; None if nobody wants it.
    pub low: Option<Place>,
    pub high: Option<Place>,
}

/// Where a value lies: at `start`, or at `start` plus the block's column.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub start: usize,
    pub moves: bool,
}

/// Values by number; the first ones are inputs.
#[derive(Default)]
struct Builder {
    pairs: Vec<(usize, usize, usize, usize)>,
    values: usize,
}

impl Builder {
    fn input(&mut self) -> usize {
        self.values += 1;
        self.values - 1
    }

    fn exchange(&mut self, a: usize, b: usize) -> (usize, usize) {
        let (low, high) = (self.values, self.values + 1);
        self.values += 2;
        self.pairs.push((a, b, low, high));
        (low, high)
    }

    /// Merges two ascending lists.
    fn merge(&mut self, a: &[usize], b: &[usize]) -> Vec<usize> {
        match (a, b) {
            ([], rest) | (rest, []) => rest.to_vec(),
            ([a], [b]) => {
                let (low, high) = self.exchange(*a, *b);
                vec![low, high]
            }
            _ => {
                let every = |list: &[usize], from: usize| list.iter().skip(from).step_by(2).copied().collect::<Vec<_>>();
                let even = self.merge(&every(a, 0), &every(b, 0));
                let odd = self.merge(&every(a, 1), &every(b, 1));
                let mut out = vec![even[0]];
                let mut rest = even[1..].iter();
                let mut odd = odd.iter();
                loop {
                    match (odd.next(), rest.next()) {
                        (Some(&o), Some(&e)) => {
                            let (low, high) = self.exchange(o, e);
                            out.extend([low, high]);
                        }
                        (Some(&left), None) | (None, Some(&left)) => out.push(left),
                        (None, None) => return out,
                    }
                }
            }
        }
    }

    fn sort(&mut self, list: &[usize]) -> Vec<usize> {
        if list.len() < 2 {
            return list.to_vec();
        }
        let (a, b) = list.split_at(list.len() / 2);
        let (a, b) = (self.sort(a), self.sort(b));
        self.merge(&a, &b)
    }

    /// The exchanges that lead to `wanted`, in order; `place` says where inputs and wanted values lie, the others get slots from
    /// `slots` on, `block` values apart. Returns the end of the slots too.
    fn finish(&self, wanted: &HashMap<usize, Place>, inputs: &[Place], slots: usize, block: usize) -> (Vec<Exchange>, usize) {
        let mut last_use = vec![None; self.values];
        wanted.keys().for_each(|&value| last_use[value] = Some(self.pairs.len()));
        for (index, &(a, b, low, high)) in self.pairs.iter().enumerate().rev() {
            if last_use[low].is_some() || last_use[high].is_some() {
                last_use[a] = last_use[a].or(Some(index));
                last_use[b] = last_use[b].or(Some(index));
            }
        }
        let mut places = vec![Place::default(); self.values];
        places[..inputs.len()].copy_from_slice(inputs);
        let (mut free, mut end, mut out) = (Vec::new(), slots, Vec::new());
        for (index, &(a, b, low, high)) in self.pairs.iter().enumerate() {
            if last_use[low].is_none() && last_use[high].is_none() {
                continue;
            }
            let (from_a, from_b) = (places[a], places[b]);
            // Both operands are read before anything is written, so that their slots can be written at once.
            for value in [a, b] {
                if value >= inputs.len() && last_use[value] == Some(index) {
                    free.push(places[value]);
                }
            }
            let mut put = |value: usize| {
                last_use[value]?;
                let place = wanted.get(&value).copied().unwrap_or_else(|| {
                    free.pop().unwrap_or_else(|| {
                        end += block;
                        Place { start: end - block, moves: false }
                    })
                });
                places[value] = place;
                Some(place)
            };
            let (low, high) = (put(low), put(high));
            out.push(Exchange { a: from_a, b: from_b, low, high });
        }
        (out, end)
    }
}

/// A network for one window and rank. Its memory holds `height` input rows of `row` values, `height` rows of sorted columns, twice as
/// many of sorted pairs of columns (if the window has four columns or more), then slots.
pub(super) struct Network {
    /// Sorts the samples of each column: every column of a row with its sides.
    pub columns: Vec<Exchange>,
    /// Merges each column with its right neighbour; empty if nothing is gained.
    pub pairs: Vec<Exchange>,
    /// Yields the rank, for every visible column.
    pub select: Vec<Exchange>,
    /// Where the result of `select` lies.
    pub result: Place,
    /// Values of memory.
    pub memory: usize,
}

impl Network {
    /// `row` values a row; neighbours are `components` values apart; exchanges work on blocks of `block` values.
    pub fn new(width: usize, height: usize, rank: usize, row: usize, components: usize, block: usize) -> Self {
        let place = |start: usize| Place { start, moves: true };
        let sorted = height * row;
        let paired = sorted + height * row;
        let slots = paired + if width >= 4 { 2 * height * row } else { 0 };

        let mut builder = Builder::default();
        let inputs: Vec<usize> = (0..height).map(|_| builder.input()).collect();
        let order = builder.sort(&inputs);
        let wanted = order.iter().enumerate().map(|(i, &value)| (value, place(sorted + i * row))).collect();
        let from: Vec<Place> = (0..height).map(|i| place(i * row)).collect();
        let (columns, mut end) = builder.finish(&wanted, &from, slots, block);
        // A single row is sorted as it is.
        let sorted = if height == 1 { 0 } else { sorted };

        let mut pairs = Vec::new();
        let mut lists: Vec<Vec<Place>> = Vec::new();
        let column = |x: usize| (0..height).map(|i| place(sorted + i * row + x * components)).collect::<Vec<_>>();
        if width >= 4 {
            let mut builder = Builder::default();
            let values: Vec<usize> = (0..2 * height).map(|_| builder.input()).collect();
            let order = builder.merge(&values[..height], &values[height..]);
            let wanted = order.iter().enumerate().map(|(i, &value)| (value, place(paired + i * row))).collect();
            let from: Vec<Place> = column(0).into_iter().chain(column(1)).collect();
            let used;
            (pairs, used) = builder.finish(&wanted, &from, slots, block);
            end = end.max(used);
            let pair = |x: usize| (0..2 * height).map(|i| place(paired + i * row + x * components)).collect::<Vec<_>>();
            lists.extend((0..width / 2).map(|i| pair(2 * i)));
            lists.extend((width % 2 == 1).then(|| column(width - 1)));
        } else {
            lists.extend((0..width).map(column));
        }

        let mut builder = Builder::default();
        let from: Vec<Place> = lists.concat();
        let mut lists: Vec<Vec<usize>> = lists.iter().map(|list| list.iter().map(|_| builder.input()).collect()).collect();
        // The two shortest first.
        while lists.len() > 1 {
            lists.sort_by_key(|list| std::cmp::Reverse(list.len()));
            if let (Some(a), Some(b)) = (lists.pop(), lists.pop()) {
                lists.push(builder.merge(&a, &b));
            }
        }
        let wanted_value = lists.concat().get(rank).copied().unwrap_or_default();
        let mut result = Place { start: slots, moves: false };
        if wanted_value < from.len() {
            result = from.get(wanted_value).copied().unwrap_or_default();
        }
        let (select, used) = builder.finish(&HashMap::from([(wanted_value, result)]), &from, slots + block, block);
        Self { columns, pairs, select, result, memory: end.max(used) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(exchanges: &[Exchange], memory: &mut [u8], x: usize) {
        let at = |place: Place| place.start + if place.moves { x } else { 0 };
        for exchange in exchanges {
            let (a, b) = (memory[at(exchange.a)], memory[at(exchange.b)]);
            if let Some(low) = exchange.low {
                memory[at(low)] = a.min(b);
            }
            if let Some(high) = exchange.high {
                memory[at(high)] = a.max(b);
            }
        }
    }

    #[test]
    fn every_rank_of_every_small_window_is_what_sorting_gives() {
        let mut seed = 1u32;
        for width in 1..8 {
            for height in 1..8 {
                for rank in 0..width * height {
                    let network = Network::new(width, height, rank, width, 1, 1);
                    let mut memory = vec![0; network.memory];
                    for byte in &mut memory[..width * height] {
                        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        *byte = (seed >> 27) as u8;
                    }
                    let mut want = memory[..width * height].to_vec();
                    want.sort_unstable();
                    (0..width).for_each(|x| run(&network.columns, &mut memory, x));
                    (0..width - 1).for_each(|x| run(&network.pairs, &mut memory, x));
                    run(&network.select, &mut memory, 0);
                    assert_eq!(memory[network.result.start], want[rank], "{width}x{height}, rank {rank}");
                }
            }
        }
    }

    #[test]
    fn a_5x5_median_takes_few_exchanges() {
        let network = Network::new(5, 5, 12, 5, 1, 1);
        let (columns, pairs, select) = (network.columns.len(), network.pairs.len(), network.select.len());
        println!("{columns} + {pairs} + {select}");
        assert!(columns == 9 && columns + pairs + select < 120, "{columns} + {pairs} + {select}");
    }
}
