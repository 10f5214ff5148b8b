//! The weights of a `convolution`, written in the graph or in a file (`@file`).

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::sync::Arc;

use super::Layout;
use super::expr::{Expr, format_number};
use super::parse::{Fault, shown};

/// Longest side of a kernel, in taps.
pub const MAX_KERNEL_SIDE: usize = 127;
/// Largest weight by magnitude: FFmpeg's integers end there, and no sum of such weights leaves the range of a float.
const MAX_WEIGHT: f64 = 2_147_483_648.0;
/// Longest kernel file read, in bytes; 127 × 127 weights of 60 characters.
const MAX_FILE_BYTES: u64 = 1 << 20;

/// Weights as written, before the layout is known.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// The weights, row by row.
    pub weights: Arc<[f64]>,
    /// Weights per row, where rows were written apart.
    pub columns: Option<usize>,
    /// The file they came from.
    pub file: Option<String>,
}

impl Kernel {
    /// Reads weights apart by spaces (FFmpeg's `|` and line ends also end a row), or `@file`.
    ///
    /// # Errors
    /// What is wrong, with its place in characters from the start of `text`.
    pub fn parse(text: &str) -> Result<Self, Fault> {
        if let Some(path) = text.strip_prefix('@') {
            let whole = 0..text.chars().count();
            return Self::read(path).map_err(|message| Fault::at(whole, message));
        }
        let mut weights = Vec::new();
        let mut rows = Vec::new();
        let mut row_start = 0;
        let mut word = String::new();
        let mut word_start = 0;
        for (index, c) in text.chars().chain(['|']).enumerate() {
            let row_ends = matches!(c, '|' | '\n');
            if !row_ends && !c.is_whitespace() {
                if word.is_empty() {
                    word_start = index;
                }
                word.push(c);
                continue;
            }
            if !word.is_empty() {
                weights.push(weight(&word).map_err(|fault| fault.shifted(word_start))?);
                word.clear();
            }
            if row_ends && weights.len() > row_start {
                rows.push(weights.len() - row_start);
                row_start = weights.len();
            }
        }
        if weights.is_empty() {
            return Err(Fault::at(0..text.chars().count(), "the kernel has no weights"));
        }
        // FFmpeg's '|' is a mere separator: single weights, or the odd one out, write no rows.
        let columns = match rows.as_slice() {
            [first, rest @ ..] if *first > 1 && !rest.is_empty() && rest.iter().all(|n| n == first) => Some(*first),
            _ => None,
        };
        let kernel = Self { weights: weights.into(), columns, file: None };
        kernel.check_count().map_err(|message| Fault::at(0..text.chars().count(), message))?;
        Ok(kernel)
    }

    fn check_count(&self) -> Result<(), String> {
        let count = self.weights.len();
        let most = MAX_KERNEL_SIDE * MAX_KERNEL_SIDE;
        if count > most {
            return Err(format!("the kernel has {count} weights, at most {MAX_KERNEL_SIDE}x{MAX_KERNEL_SIDE} = {most} are possible"));
        }
        Ok(())
    }

    /// Reads a kernel file: one row a line, weights apart by spaces, commas or tabs, `#` starts a comment.
    fn read(path: &str) -> Result<Self, String> {
        let what = |why: &dyn fmt::Display| format!("cannot read kernel file '{path}': {why}");
        if path.is_empty() {
            return Err("'@' needs the name of a kernel file behind it".to_string());
        }
        let file = File::open(path).map_err(|e| what(&e))?;
        let mut bytes = Vec::new();
        file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes).map_err(|e| what(&e))?;
        if bytes.len() as u64 > MAX_FILE_BYTES {
            return Err(what(&format!(
                "it is longer than {MAX_FILE_BYTES} bytes, which no kernel of {MAX_KERNEL_SIDE}x{MAX_KERNEL_SIDE} needs"
            )));
        }
        let text = match String::from_utf8(bytes) {
            Ok(text) if !text.contains('\0') => text,
            _ => return Err(what(&"it is binary, not text")),
        };
        let mut weights = Vec::new();
        let mut columns = None;
        let mut rows = 0;
        for (number, line) in text.lines().enumerate() {
            let number = number + 1;
            let line = line.split('#').next().unwrap_or_default();
            let before = weights.len();
            for word in line.split(|c: char| c.is_whitespace() || c == ',' || c == '|').filter(|w| !w.is_empty()) {
                weights.push(weight(word).map_err(|f| what(&format!("line {number}: '{}': {}", shown(word), f.message)))?);
            }
            let count = weights.len() - before;
            match (count, columns) {
                (0, _) => continue,
                (_, None) => columns = Some(count),
                (_, Some(first)) if first != count => {
                    return Err(what(&format!("line {number} has {count} weights, the lines before it have {first}")));
                }
                _ => {}
            }
            rows += 1;
            if count > MAX_KERNEL_SIDE && rows > 1 || rows > MAX_KERNEL_SIDE {
                return Err(what(&format!("the kernel is larger than {MAX_KERNEL_SIDE} on a side (line {number})")));
            }
        }
        if weights.is_empty() {
            return Err(what(&"it holds no weights"));
        }
        // All weights on one line: a matrix if they make a square, as in a graph, else a row.
        if rows == 1 && square(weights.len()).is_some() {
            columns = None;
        }
        let kernel = Self { weights: weights.into(), columns, file: Some(path.to_string()) };
        kernel.check_count().map_err(|e| what(&e))?;
        Ok(kernel)
    }

    /// Width and height in taps under `layout`.
    ///
    /// # Errors
    /// When the weights do not make a rectangle, or a side is above [`MAX_KERNEL_SIDE`].
    pub fn shape(&self, layout: Layout) -> Result<(usize, usize), String> {
        let count = self.weights.len();
        let (width, height) = match (layout, self.columns) {
            (Layout::Row, _) => (count, 1),
            (Layout::Column, _) => (1, count),
            (Layout::Square, Some(columns)) => (columns, count / columns),
            (Layout::Square, None) => match square(count) {
                Some(side) => (side, side),
                None => {
                    return Err(format!(
                        "{count} weights make no square; write rows of one length apart with '|', or set the mode to row or column"
                    ));
                }
            },
        };
        if width.max(height) > MAX_KERNEL_SIDE {
            return Err(format!("the kernel is {width}x{height}, at most {MAX_KERNEL_SIDE} taps on a side are possible"));
        }
        Ok((width, height))
    }
}

fn square(count: usize) -> Option<usize> {
    let side = count.isqrt();
    (side * side == count).then_some(side)
}

/// One weight: a number or an expression such as `1/16`.
fn weight(word: &str) -> Result<f64, Fault> {
    let value = Expr::compile(word, &[])?.eval(&[]);
    if value.is_finite() && value.abs() <= MAX_WEIGHT {
        return Ok(value);
    }
    Err(Fault::at(0..word.chars().count(), format!("a weight must lie between -{MAX_WEIGHT} and {MAX_WEIGHT}, this one is {value}")))
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            return write!(f, "@{file}");
        }
        for (index, weight) in self.weights.iter().enumerate() {
            let separator = match (index, self.columns) {
                (0, _) => "",
                (i, Some(columns)) if i % columns == 0 => "|",
                _ => " ",
            };
            write!(f, "{separator}{}", format_number(*weight))?;
        }
        Ok(())
    }
}
