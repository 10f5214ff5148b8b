//! Launches of `kernels/tensor8.cu`: smoothing kernels in fixed point, as the bytes that the lanes of an integer `mma.sync` hold.
//!
//! A lane `l` has row `l / 4` of a left operand and row `l / 4 + 8`, and of each the four bytes that begin at `4 (l mod 4)` of every 16.

use super::spec::{Params, Spec, centred_taps, sum, ties};
use super::variants::Task;
use crate::filter::plan::Separable;
use crate::frame::Sample;

/// Samples across that a block makes: 4 warps of 32.
const TILE_X: usize = 128;
/// Threads of a block.
const THREADS: usize = 128;
/// Largest reach across in samples, and largest radius down.
const REACH: usize = 32;
/// Most samples of a launch whose blocks are kept low, so that all multiprocessors have some: a frame of 1080p.
const SMALL: usize = 5 << 19;
/// Most samples of a launch whose blocks are of middle height.
const MIDDLE: usize = 8 << 20;

/// Bits behind the point of the weights across.
const ROW_BITS: i32 = 16;
/// Most bits behind the point of the weights down.
const COL_BITS: i32 = 20;
/// Largest weight, less than what rounding may add: its upper byte is a whole number below 256, its lower one signed.
const LARGEST: f64 = 65_400.0;
/// How many ways to share the gain between the passes are tried.
const CANDIDATES: usize = 600;
/// Expected share of unequal samples from which on the kernel is left to others. The spec allows 0.001, in each picture.
const MOST_UNEQUAL: f64 = 6e-4;
/// Kernels of so few taps have few different sums in a picture of two values, a symmetric 5 × 5 some 11,000: where one of them happens to lie
/// within the error of a tie, that picture has more unequal samples than expected.
const FEW_TAPS: usize = 25;
/// What is expected of them instead.
const MOST_UNEQUAL_OF_FEW: f64 = 5e-5;
/// Standard deviations of a sample and of a byte, where all values are as likely, and a sample's root mean square.
const SPREAD: f64 = 80.0;
const BYTE_SPREAD: f64 = 73.9;
const MEAN_SQUARE: f64 = 140.0;

/// A weight's upper byte, and its lower one as a signed number.
fn bytes(weight: i32) -> (u8, i8) {
    let lower = weight as i8;
    (((weight - i32::from(lower)) >> 8) as u8, lower)
}

/// Weights of both passes in fixed point.
#[derive(Clone, Debug, PartialEq)]
struct Fixed {
    /// Across, [`ROW_BITS`] behind the point.
    row: Vec<i32>,
    /// Down.
    col: Vec<i32>,
    /// Bits behind the point of `col`.
    bits: i32,
    /// Expected share of samples of noise that are rounded the other way.
    unequal: f64,
    /// Whether nothing is lost anywhere but in the rounding of first sums to 1/256: multiples of 1/16 each way, say.
    exact: bool,
}

impl Fixed {
    /// The best of some ways to write `row` (whose sum is the gain) and `col` (whose sum is 1) in whole numbers.
    ///
    /// A factor of 0.9 to 1 on one pass and its inverse on the other change nothing but how the weights fall between whole numbers: among
    /// hundreds of factors some have all of them near. The gain of both passes together must be right to a few 10^-7, which a sum of
    /// weights that is chosen for the second pass sees to. None if a weight does not fit.
    fn search(row: &[f64], col: &[f64]) -> Option<Self> {
        let (gain, largest) = (row.iter().sum::<f64>(), col.iter().copied().fold(0.0, f64::max));
        let one = f64::from(ROW_BITS).exp2();
        let squares = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
        let (row_norm, col_norm) = (squares(&mut row.iter().copied()), squares(&mut col.iter().copied()));
        let mut best: Option<(f64, Self)> = None;
        for candidate in 0..CANDIDATES {
            // The first is none: weights that are whole numbers of 2^-16 stay what they are.
            let factor = 1.0 - 0.1 * candidate as f64 / CANDIDATES as f64;
            let across: Vec<i32> = row.iter().map(|w| (w * factor * one).round() as i32).collect();
            let total = across.iter().map(|&w| f64::from(w)).sum::<f64>() / one;
            if total <= 0.0 || across.iter().any(|&w| f64::from(w) > LARGEST) {
                continue;
            }
            // What the first pass lacks; and the error of its weights, the rounding of its sums to 1/256 behind it.
            let rest = gain / total;
            let across_error = squares(&mut across.iter().zip(row).map(|(&w, &r)| f64::from(w) / one - r * total / gain));
            let so_far = col_norm * rest * rest * (SPREAD * SPREAD * across_error + 1.0 / (12.0 * 65536.0));
            if best.as_ref().is_some_and(|(least, _)| so_far >= *least) {
                continue;
            }
            let bits = (LARGEST / (largest * rest)).log2().floor().min(f64::from(COL_BITS));
            let wanted: Vec<f64> = col.iter().map(|w| w * rest * bits.exp2()).collect();
            let down = whole(&wanted);
            let down_error = squares(&mut down.iter().zip(&wanted).map(|(&w, &v)| (f64::from(w) - v) / bits.exp2()));
            let gain_error = total * down.iter().map(|&w| f64::from(w)).sum::<f64>() / bits.exp2() - gain;
            // The product of both lower bytes, which is left out: where sums differ from row to row, and where they are alike.
            let lower = || down.iter().map(|&w| f64::from(bytes(w).1));
            let left_out = (squares(&mut lower()) + lower().sum::<f64>().powi(2)) / (2.0 * (bits + 8.0)).exp2();
            let variance = so_far
                + SPREAD * SPREAD * row_norm * (total / gain).powi(2) * down_error
                + (MEAN_SQUARE * gain_error).powi(2)
                + BYTE_SPREAD * BYTE_SPREAD * left_out;
            if best.as_ref().is_none_or(|(least, _)| variance < *least) {
                // A sample is rounded the other way where a tie lies between it and what was computed: as often as the error is large.
                let unequal = (variance * std::f64::consts::FRAC_2_PI).sqrt();
                // Rows whose sums are whole numbers of 1/256 lose nothing by their rounding either.
                let fine = row.iter().all(|w| (w * 256.0).fract() == 0.0) && factor == 1.0;
                let exact = fine && across_error == 0.0 && down_error == 0.0 && gain_error == 0.0 && left_out == 0.0;
                best = Some((variance, Self { row: across, col: down, bits: bits as i32, unequal, exact }));
            }
        }
        best.map(|(_, fixed)| fixed)
    }

    /// What the first sums start with, in 2^-16 of a code value: the half that the end's rounding down wants, and what the products that
    /// are left out amount to on average, as far as the second pass multiplies it.
    fn start(&self) -> i32 {
        let one = f64::from(self.bits).exp2();
        let lower: i32 = self.col.iter().map(|&w| i32::from(bytes(w).1)).sum();
        let codes = 0.5 + 127.5 * f64::from(lower) / (256.0 * one);
        (codes * 65536.0 * one / self.col.iter().map(|&w| f64::from(w)).sum::<f64>()).round() as i32
    }
}

/// The whole numbers nearest to `wanted` whose sum is the one nearest to theirs.
fn whole(wanted: &[f64]) -> Vec<i32> {
    let mut found: Vec<i32> = wanted.iter().map(|w| w.round() as i32).collect();
    let mut missing = wanted.iter().sum::<f64>().round() as i64 - found.iter().map(|&w| i64::from(w)).sum::<i64>();
    while missing != 0 {
        // The weight that is farthest on the other side; none that is zero.
        let off = |index: usize, value: i32| (wanted.get(index).copied().unwrap_or(0.0) - f64::from(value)) * missing.signum() as f64;
        let all = found.iter().enumerate().filter(|(_, w)| **w > 0).map(|(index, &w)| (index, off(index, w)));
        let Some((index, _)) = all.max_by(|a, b| a.1.total_cmp(&b.1)) else { break };
        if let Some(weight) = found.get_mut(index) {
            *weight += missing.signum() as i32;
        }
        missing -= missing.signum();
    }
    found
}

/// How a kernel lies in groups of 16: what it reaches, rounded up, and how many groups that takes.
#[derive(Clone, Copy)]
struct Reach {
    samples: usize,
    pad: usize,
}

impl Reach {
    fn new(samples: usize) -> Self {
        Self { samples, pad: samples.next_multiple_of(8) }
    }

    fn groups(self) -> usize {
        1 + self.pad / 8
    }
}

/// Words of a left operand's groups: `element` gives the byte at a row (0..16) and a place among the columns.
fn operand(groups: usize, place: impl Fn(usize, usize, usize) -> usize, element: impl Fn(usize, usize) -> u8) -> Vec<u32> {
    let mut words = Vec::with_capacity(groups * 64);
    for group in 0..groups {
        for lane in 0..32 {
            for row in [lane / 4, lane / 4 + 8] {
                words.push((0..4).rev().fold(0, |word, byte| word << 8 | u32::from(element(row, place(group, lane % 4, byte)))));
            }
        }
    }
    words
}

/// The columns of a row of samples as lanes load them: 8 bytes of each 32, or 4 of the last 16 of an odd number of groups.
fn column_of(groups: usize, group: usize, lane: usize, byte: usize) -> usize {
    if group < groups / 2 * 2 { 32 * (group / 2) + 8 * lane + 4 * (group % 2) + byte } else { 16 * group + 4 * lane + byte }
}

/// The rows that the products of the first pass leave in a lane: two of each of two tiles of 8.
fn row_of(group: usize, lane: usize, byte: usize) -> usize {
    16 * group + 8 * (byte / 2) + 2 * lane + byte % 2
}

/// The column that row `m` of the first pass's matrix makes, such that the second's products leave four neighbours in a lane.
fn output_of(m: usize) -> usize {
    4 * (m % 8 / 2) + 2 * (m / 8) + m % 2
}

/// Everything that the lanes read: weights across in upper and lower bytes, weights down (twice where the kernel wants them twice), starts.
fn table(fixed: &Fixed, across: Reach, down: Reach, components: usize) -> Vec<u32> {
    let upper = |w: i32| bytes(w).0;
    let lower = |w: i32| bytes(w).1 as u8;
    let mut words = Vec::new();
    for part in [&upper as &dyn Fn(i32) -> u8, &lower] {
        words.extend(operand(
            across.groups(),
            |group, lane, byte| column_of(across.groups(), group, lane, byte),
            |m, column| {
                let tap = (column + across.samples).checked_sub(across.pad + output_of(m)).filter(|distance| distance % components == 0);
                part(tap.and_then(|distance| fixed.row.get(distance / components)).copied().unwrap_or(0))
            },
        ));
    }
    let parities = if matches!(down.groups(), 2 | 3) { 2 } else { 1 };
    for _ in 0..parities {
        for part in [&upper as &dyn Fn(i32) -> u8, &lower] {
            words.extend(operand(down.groups(), row_of, |m, row| {
                let tap = (row + down.samples).checked_sub(down.pad + m);
                part(tap.and_then(|tap| fixed.col.get(tap)).copied().unwrap_or(0))
            }));
        }
    }
    // The dither: an eighth of a unit of the first sums for each row of 8, in the order of reversed bits, so that neighbours differ most.
    let start = |row: usize| fixed.start() + (2 * (row.reverse_bits() >> (usize::BITS - 3)) as i32 + 1) * 16;
    for _ in 0..2 {
        words.extend((0..32usize).flat_map(|lane| [start(lane % 4 * 2), start(lane % 4 * 2 + 1)]).map(|word| word as u32));
    }
    words
}

/// Smoothing kernels on 8-bit samples in one launch.
pub(super) fn separable(task: &Task, op: &Separable) -> Result<Vec<Spec>, String> {
    if task.format().sample() != Sample::U8 {
        return Err("it takes 8-bit samples".to_owned());
    }
    let (rx, ry) = (op.row.len() / 2, op.col.len() / 2);
    let limit = REACH / task.components;
    if rx > limit || ry > REACH {
        return Err(format!("its radius is limited to {limit} across and {REACH} down; this kernel has {rx} and {ry}"));
    }
    if op.bias != 0.0 || op.row.iter().chain(op.col.iter()).any(|w| !w.is_finite() || *w < 0.0) {
        return Err("it takes weights of at least 0 and no bias".to_owned());
    }
    let (row_sum, col_sum) = (sum(&op.row), sum(&op.col));
    let gain = row_sum * col_sum * f64::from(op.scale);
    if !(0.5..=1.0 + 1e-6).contains(&gain) {
        return Err(format!("its weights add up to 0.5 to 1; this kernel's to {gain}"));
    }
    let row: Vec<f64> = centred_taps(&op.row, rx).into_iter().map(|w| f64::from(w) / row_sum * gain).collect();
    let col: Vec<f64> = centred_taps(&op.col, ry).into_iter().map(|w| f64::from(w) / col_sum).collect();
    let fixed = Fixed::search(&row, &col).ok_or("its weights do not fit 16 bits")?;
    let most = if row.len() * col.len() <= FEW_TAPS { MOST_UNEQUAL_OF_FEW } else { MOST_UNEQUAL };
    if fixed.unequal > most && !fixed.exact {
        return Err(format!("its weights in 16 bits would round {:.3} % of all samples the other way", fixed.unequal * 100.0));
    }
    if let Some(k) = ties(&row, &col).filter(|_| !fixed.exact) {
        return Err(format!(
            "its weights are multiples of 1/{k}: one sample in {k} lies midway between two codes, and 16 bits would not see which way"
        ));
    }
    let (across, down) = (Reach::new(rx * task.components), Reach::new(ry));
    let groups = across.groups().max(down.groups());
    let rows = match task.samples() {
        0..=SMALL if down.groups() <= 2 => 32,
        0..=MIDDLE => 64,
        _ => 128,
    };
    // Blocks that share a multiprocessor's registers, and groups of rows that are loaded ahead.
    let (blocks, ahead) = match (groups, rows) {
        (0..=2, 32) => (5, 3),
        (0..=2, _) => (4, 2),
        (3, _) => (3, 2),
        _ => (2, 1),
    };
    let spec = Spec::new(task, "tensor8.cu", "separable__tensor8").define("PAD_X", across.pad).define("PAD_Y", down.pad);
    let spec = spec.define("TILE_Y", rows).define("BLOCKS", blocks).define("AHEAD", ahead).tile(TILE_X, rows).threads(THREADS);
    let mut spec = spec.params(Params::default().ints([1 << (32 - fixed.bits), 1 << (24 - fixed.bits)]));
    spec.table = table(&fixed, across, down, task.components);
    Ok(vec![spec])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::math::gaussian_weights;

    fn gaussian(sigma: f64, radius: usize) -> Vec<f64> {
        gaussian_weights(sigma, radius).into_iter().map(f64::from).collect()
    }

    /// Kernels that the row takes: the usual, wide, narrow one way, one tap, of few decimals, exact.
    fn kernels() -> Vec<(Vec<f64>, Vec<f64>)> {
        vec![
            (gaussian(7.0 / 3.0, 7), gaussian(7.0 / 3.0, 7)),
            (gaussian(5.0, 15), gaussian(5.0, 15)),
            (gaussian(2.0, 8), gaussian(3.0, 9)),
            (vec![1.0], gaussian(3.0, 10)),
            (gaussian(10.0, 32), gaussian(7.0, 24)),
            (vec![0.1, 0.2, 0.4, 0.2, 0.1], vec![0.05, 0.15, 0.15, 0.3, 0.15, 0.15, 0.05]),
            (vec![0.25, 0.5, 0.25], gaussian(1.6, 5)),
            (vec![1.0 / 15.0; 15], vec![1.0 / 15.0; 15]),
        ]
    }

    #[test]
    fn a_weight_is_its_bytes() {
        for weight in [0, 1, 127, 128, 129, 255, 256, 384, 11200, 65_400, 65_407] {
            let (upper, lower) = bytes(weight);
            assert_eq!(i32::from(upper) * 256 + i32::from(lower), weight);
        }
    }

    #[test]
    fn fixed_point_weights_fit_and_keep_the_gain() {
        for (row, col) in kernels() {
            for gain in [1.0, 0.7] {
                let row: Vec<f64> = row.iter().map(|w| w * gain).collect();
                let fixed = Fixed::search(&row, &col).unwrap();
                let total = |taps: &[i32]| taps.iter().map(|&w| f64::from(w)).sum::<f64>();
                let got = total(&fixed.row) * total(&fixed.col) / f64::from(ROW_BITS + fixed.bits).exp2();
                // At 255 a tenth of the error that the rounding of the first sums makes.
                assert!((got - gain).abs() < 1e-5, "{got} for {gain}");
                assert!(fixed.row.iter().chain(&fixed.col).all(|w| (0..=65_407).contains(w)), "{fixed:?}");
                assert!(fixed.unequal <= MOST_UNEQUAL, "{}", fixed.unequal);
                // All samples at their largest: the first sums fit 16 bits, and the second end below 256.
                let first = (255.0 * total(&fixed.row) + f64::from(fixed.start()) + 256.0) / 256.0;
                assert!(first < 65536.0 && first * total(&fixed.col) / f64::from(fixed.bits + 8).exp2() < 255.9);
            }
        }
    }

    /// The kernel's arithmetic on one column of outputs at a time, against sums in f64: every way that a sum can be lost is in it.
    #[test]
    fn noise_is_within_one_code_and_nearly_always_equal() {
        let mut state = 1u64;
        let mut noise = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as i32
        };
        let (mut unequal, mut samples) = (0, 0);
        for (row, col) in kernels() {
            let fixed = Fixed::search(&row, &col).unwrap();
            let (width, height) = (60 + row.len(), 200 + col.len());
            let picture: Vec<Vec<i32>> = (0..height).map(|_| (0..width).map(|_| noise()).collect()).collect();
            for x in 0..width - row.len() {
                let window = |y: usize| &picture[y][x..x + row.len()];
                let dot = |y: usize, part: &dyn Fn(i32) -> i32| fixed.row.iter().zip(window(y)).map(|(&w, &s)| part(w) * s).sum::<i32>();
                let dither = |y: usize| (2 * ((y % 8).reverse_bits() >> (usize::BITS - 3)) as i32 + 1) * 16;
                let first =
                    |y: usize| ((dot(y, &|w| i32::from(bytes(w).1)) + fixed.start() + dither(y)) >> 8) + dot(y, &|w| i32::from(bytes(w).0));
                let sums: Vec<i32> = (0..height).map(first).collect();
                let exact: Vec<f64> = (0..height).map(|y| row.iter().zip(window(y)).map(|(w, &s)| w * f64::from(s)).sum()).collect();
                assert!(sums.iter().all(|s| (0..65536).contains(s)));
                for y in 0..height - col.len() {
                    let (mut upper, mut middle) = (0u32, 0u32);
                    for (&w, &s) in fixed.col.iter().zip(&sums[y..]) {
                        let (high, low) = bytes(w);
                        upper += u32::from(high) * (s >> 8) as u32;
                        middle = middle.wrapping_add((i32::from(high) * (s & 255) + i32::from(low) * (s >> 8)) as u32);
                    }
                    let sum = upper.wrapping_mul(1 << (32 - fixed.bits)).wrapping_add(middle.wrapping_mul(1 << (24 - fixed.bits)));
                    let got = f64::from(sum >> 24);
                    let want: f64 = col.iter().zip(&exact[y..]).map(|(w, s)| w * s).sum();
                    assert!((got - (want + 0.5).floor()).abs() <= 1.0, "got {got}, want {want}");
                    samples += 1;
                    // A tie of weights of few decimals may fall either way.
                    unequal += i32::from((got - want).abs() > 0.5 + 1e-9 * want);
                }
            }
        }
        println!("{unequal} of {samples} samples differ");
        assert!(unequal * 1000 <= samples, "{unequal} of {samples}");
    }

    #[test]
    fn operands_times_samples_are_weighted_sums() {
        // Reads the operands as the hardware does, multiplies them with samples and compares with the sum itself.
        for (radius, components) in [(0, 1), (1, 1), (7, 1), (8, 1), (9, 1), (15, 1), (20, 1), (32, 1), (7, 2), (16, 2)] {
            let taps: Vec<i32> = (0..=2 * radius as i32).map(|i| (i * i * 977 + 300) % 60_000).collect();
            let fixed = Fixed { row: taps.clone(), col: taps.clone(), bits: 16, unequal: 0.0, exact: false };
            let (across, down) = (Reach::new(radius * components), Reach::new(radius));
            let words = table(&fixed, across, down, components);
            let sample = |place: usize| ((place * 37 + 11) % 64) as i64;
            let product = |first: usize, groups: usize, m: usize, place: &dyn Fn(usize, usize, usize) -> usize| -> i64 {
                let part = |skip: usize, signed: bool| -> i64 {
                    let words = words[first + skip..][..groups * 64].iter().enumerate().filter(|(i, _)| i % 64 / 8 + 8 * (i % 2) == m);
                    let bytes = words.flat_map(|(i, word)| word.to_le_bytes().into_iter().enumerate().map(move |(b, byte)| (i, b, byte)));
                    bytes
                        .map(|(i, b, byte)| {
                            let weight = if signed { i64::from(byte as i8) } else { i64::from(byte) };
                            weight * sample(place(i / 64, i % 64 / 2 % 4, b))
                        })
                        .sum()
                };
                256 * part(0, false) + part(groups * 64, true)
            };
            for m in 0..16 {
                let groups = across.groups();
                let got = product(0, groups, m, &|group, lane, byte| column_of(groups, group, lane, byte));
                // What two results of the second pass leave in lane t as elements e, each for one half q of the matrix's rows.
                let (q, t, e) = (m / 8, m % 8 / 2, m % 2);
                let first = across.pad + 4 * t + 2 * q + e - across.samples;
                let want: i64 = taps.iter().enumerate().map(|(i, &w)| i64::from(w) * sample(first + i * components)).sum();
                assert_eq!(got, want, "across, radius {radius}, {components} components, row {m}");
                for parity in 0..if matches!(down.groups(), 2 | 3) { 2 } else { 1 } {
                    let got = product(groups * 128 + parity * down.groups() * 128, down.groups(), m, &row_of);
                    let first = down.pad + m - radius;
                    let want: i64 = taps.iter().enumerate().map(|(i, &w)| i64::from(w) * sample(first + i)).sum();
                    assert_eq!(got, want, "down, radius {radius}, row {m}");
                }
            }
        }
    }

    #[test]
    fn weights_of_few_decimals_are_exact_or_known_to_tie() {
        let binomial: Vec<f64> = [1.0, 4.0, 6.0, 4.0, 1.0].iter().map(|w| w / 16.0).collect();
        let fixed = Fixed::search(&binomial, &binomial).unwrap();
        assert!(fixed.exact, "{fixed:?}");
        assert_eq!(ties(&binomial, &binomial), Some(256));
        let decimal = [0.1f32, 0.2, 0.3, 0.4].map(f64::from);
        assert!(!Fixed::search(&decimal, &decimal).unwrap().exact);
        assert_eq!(ties(&decimal, &decimal), Some(100));
        // 225 parts are never midway; a Gaussian's weights are no parts of anything.
        assert_eq!(ties(&[1.0 / 15.0; 15], &[1.0 / 15.0; 15]), None);
        assert_eq!(ties(&gaussian(2.0, 6), &gaussian(2.0, 6)), None);
    }

    #[test]
    fn few_taps_must_be_exact_or_nearly_so() {
        use crate::filter::Border;
        use crate::filter::plan::PlaneOp;
        use crate::frame::{PixelFormat, Shape};
        let taps = |taps: Vec<f64>| taps.into_iter().map(|w| w as f32).collect::<std::sync::Arc<[f32]>>();
        let lowered = |row: Vec<f64>, col: Vec<f64>| {
            let op = Separable { row: taps(row), col: taps(col), scale: 1.0, bias: 0.0 };
            let shape = Shape { format: PixelFormat::gray(8), width: 64, height: 64 };
            let (step, border) = (PlaneOp::Separable(op.clone()), Border::Clamp);
            separable(&Task { op: step, border, shape, output: shape, components: 1, planes: vec![0], block: None }, &op)
        };
        // 87 of 77361 samples of two values were unequal with these.
        let refused = lowered(gaussian(5.0 / 6.0 + 0.3, 2), gaussian(5.0 / 6.0 + 0.3, 2)).unwrap_err();
        assert!(refused.contains("the other way"), "{refused}");
        assert!(lowered(vec![0.25, 0.5, 0.25], vec![0.25, 0.5, 0.25]).is_ok());
        assert!(lowered(gaussian(1.2, 3), gaussian(1.2, 3)).is_ok());
    }

    /// Without a loss anywhere a tie goes up, as the rule says.
    #[test]
    fn exact_weights_round_ties_up() {
        let binomial: Vec<f64> = [1.0, 4.0, 6.0, 4.0, 1.0].iter().map(|w| w / 16.0).collect();
        let fixed = Fixed::search(&binomial, &binomial).unwrap();
        for seed in 0..2000i32 {
            let sample = |x: usize, y: usize| (seed * 7919 + (x * 5 + y) as i32 * (seed % 251 + 13) * 31).rem_euclid(256);
            let (mut upper, mut middle, mut want) = (0u32, 0u32, 0.0);
            for y in 0..5 {
                let part = |part: &dyn Fn(i32) -> i32| (0..5).map(|x| part(fixed.row[x]) * sample(x, y)).sum::<i32>();
                let dither = (2 * ((y % 8).reverse_bits() >> (usize::BITS - 3)) as i32 + 1) * 16;
                let first = ((part(&|w| i32::from(bytes(w).1)) + fixed.start() + dither) >> 8) + part(&|w| i32::from(bytes(w).0));
                let (high, low) = bytes(fixed.col[y]);
                upper += u32::from(high) * (first >> 8) as u32;
                middle = middle.wrapping_add((i32::from(high) * (first & 255) + i32::from(low) * (first >> 8)) as u32);
                want += (0..5).map(|x| binomial[x] * binomial[y] * f64::from(sample(x, y))).sum::<f64>();
            }
            let sum = upper.wrapping_mul(1 << (32 - fixed.bits)).wrapping_add(middle.wrapping_mul(1 << (24 - fixed.bits)));
            assert_eq!(f64::from(sum >> 24), (want + 0.5).floor(), "seed {seed}, {want}");
        }
    }

    #[test]
    fn whole_numbers_keep_the_sum() {
        let found = whole(&[1.4, 1.4, 1.4, 0.0]);
        assert_eq!((found.iter().sum::<i32>(), found[3]), (4, 0), "{found:?}");
        assert_eq!(whole(&[0.6, 0.6, 0.6]).iter().sum::<i32>(), 2);
        assert_eq!(whole(&[0.0, 0.0]), [0, 0]);
    }
}
