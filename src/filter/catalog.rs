//! The one table of filters: names, parameters, ranges, defaults. The parser, the printer and `convoy filters` read it.
//!
//! Names, order, ranges and defaults are those of FFmpeg 5.1 (`ffmpeg -h filter=NAME`) unless a parameter is marked ours.

use std::fmt::{self, Write};

use super::expr::{Expr, format_number};
use super::kernel::Kernel;
use super::parse::{Fault, nearest, shown};
pub use super::table::{COMMON, ENTRIES};
use super::table::{Values, values};
use super::{Border, Filter, Op};
use crate::error::{Error, Result};

/// Variables of a radius expression, in the order in which lowering gives their values.
pub const RADIUS_VARIABLES: [&str; 6] = ["w", "h", "cw", "ch", "hsub", "vsub"];
/// Most passes of `boxblur`. FFmpeg sets no limit; past a few passes the result is a Gaussian.
pub const MAX_BOX_POWER: i64 = 64;
/// Largest `radius` of `gblur`: what σ = 1024 needs at 16 bits, and some more.
pub const MAX_GAUSSIAN_RADIUS: i64 = 8192;

/// What a parameter takes.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// An integer within a closed range.
    Int {
        /// Smallest.
        min: i64,
        /// Largest.
        max: i64,
        /// Used when the graph gives none.
        default: i64,
    },
    /// A number within a closed range.
    Float {
        /// Smallest.
        min: f64,
        /// Largest.
        max: f64,
        /// Used when the graph gives none.
        default: f32,
    },
    /// One of these names, or its position; the first is the default.
    Choice(&'static [&'static str]),
    /// An expression of [`RADIUS_VARIABLES`].
    Radius {
        /// Used when the graph gives none.
        default: Option<&'static str>,
    },
    /// Weights or `@file`.
    Kernel,
    /// A word.
    Name,
}

/// A parameter's value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Of [`Kind::Int`].
    Int(i64),
    /// Of [`Kind::Float`].
    Float(f32),
    /// Of [`Kind::Choice`]: the position.
    Choice(usize),
    /// Of [`Kind::Radius`].
    Radius(Option<Expr>),
    /// Of [`Kind::Kernel`].
    Kernel(Option<Kernel>),
    /// Of [`Kind::Name`].
    Name(Option<String>),
}

/// One parameter of a filter.
#[derive(Debug)]
pub struct Param {
    /// The name that is printed.
    pub name: &'static str,
    /// Other names for it.
    pub aliases: &'static [&'static str],
    /// What it takes.
    pub kind: Kind,
    /// One line for humans.
    pub help: &'static str,
    /// Convoy's own: never positional.
    pub ours: bool,
}

/// One filter.
pub struct Entry {
    /// Its name in a graph.
    pub name: &'static str,
    /// One line for humans.
    pub summary: &'static str,
    /// Its parameters, in positional order.
    pub params: &'static [Param],
    /// What it computes, and where that is written.
    pub formula: &'static str,
    /// A graph that works, and what it does.
    pub example: (&'static str, &'static str),
    /// Takes one value per parameter, in order.
    pub(super) build: fn(&mut Values<'_>) -> std::result::Result<Op, Misfit>,
}

/// Values that are valid alone but not together.
pub struct Misfit {
    /// The parameter to point at.
    pub param: &'static str,
    /// What is wrong.
    pub message: String,
}

impl Misfit {
    pub(super) fn new(param: &'static str, message: impl Into<String>) -> Self {
        Self { param, message: message.into() }
    }
}

impl Kind {
    /// The value used when the graph gives none.
    pub fn default_value(&self) -> Value {
        match *self {
            Self::Int { default, .. } => Value::Int(default),
            Self::Float { default, .. } => Value::Float(default),
            Self::Choice(_) => Value::Choice(0),
            Self::Radius { default } => Value::Radius(default.and_then(|text| Expr::compile(text, &RADIUS_VARIABLES).ok())),
            Self::Kernel => Value::Kernel(None),
            Self::Name => Value::Name(None),
        }
    }

    /// Reads a value; numbers may be expressions of FFmpeg's constants `default`, `min`, `max`, `none`, `all`.
    ///
    /// # Errors
    /// What is wrong, with its place in characters from the start of `text`.
    pub fn parse(&self, text: &str) -> std::result::Result<Value, Fault> {
        let whole = 0..text.chars().count();
        match *self {
            Self::Int { min, max, default } => {
                Ok(Value::Int(number(text, [default as f64, max as f64, min as f64])?.round_ties_even() as i64))
            }
            Self::Float { min, max, default } => Ok(Value::Float(number(text, [f64::from(default), max, min])? as f32)),
            Self::Choice(names) => {
                let text = text.trim();
                let found = names.iter().position(|n| *n == text).or_else(|| text.parse().ok().filter(|i| *i < names.len()));
                found.map(Value::Choice).ok_or_else(|| {
                    Fault::at(whole, format!("'{}' is none of {}", shown(text), names.join(", "))).nearest(text, names.iter().copied())
                })
            }
            Self::Radius { .. } => Ok(Value::Radius(Some(Expr::compile(text, &RADIUS_VARIABLES)?))),
            Self::Kernel => Ok(Value::Kernel(Some(Kernel::parse(text)?))),
            Self::Name => {
                let valid =
                    !text.is_empty() && text.len() <= 64 && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'));
                if !valid {
                    return Err(Fault::at(whole, "a name of letters, digits, '-' and '_' is missing"));
                }
                Ok(Value::Name(Some(text.to_string())))
            }
        }
    }

    fn describe(&self) -> String {
        match *self {
            Self::Int { min, max, default } => format!("integer {min}..{max}, default {default}"),
            Self::Float { min, max, default } => format!("number {min}..{max}, default {default}"),
            Self::Choice(names) => format!("{}, default {}", names.join("|"), names.first().unwrap_or(&"")),
            Self::Radius { default } => format!("expression{}", default.map(|d| format!(", default {d}")).unwrap_or_default()),
            Self::Kernel => "weights or @file".to_string(),
            Self::Name => "name".to_string(),
        }
    }
}

/// A number within a closed range, given as `[default, max, min]`.
fn number(text: &str, [default, max, min]: [f64; 3]) -> std::result::Result<f64, Fault> {
    let value = Expr::compile(text, &["default", "max", "min", "none", "all"])?.eval(&[default, max, min, 0.0, -1.0]);
    if value >= min && value <= max {
        return Ok(value);
    }
    let range = format!("must lie between {} and {}", format_number(min), format_number(max));
    let found = if value.is_nan() { "not a number".to_string() } else { format_number(value) };
    Err(Fault::at(0..text.chars().count(), format!("the value {range}, this is {found}")))
}

impl Param {
    /// Whether `name` means this parameter.
    pub fn is_called(&self, name: &str) -> bool {
        self.name == name || self.aliases.contains(&name)
    }
}

impl Entry {
    /// The entry of a filter.
    pub fn find(name: &str) -> Option<&'static Self> {
        ENTRIES.iter().find(|e| e.name == name)
    }

    /// Own parameters, then the common ones.
    pub fn all_params(&self) -> impl Iterator<Item = &'static Param> + use<> {
        self.params.iter().chain(&COMMON)
    }

    /// The filter with these values, one per parameter of [`Entry::all_params`].
    ///
    /// # Errors
    /// When values do not fit together.
    pub fn build(&self, mut values: Vec<Value>, id: Option<String>) -> std::result::Result<Filter, Misfit> {
        let common = values.split_off(self.params.len().min(values.len()));
        let op = (self.build)(&mut Values { values: values.iter_mut() })?;
        let (mut border, mut variant) = (Border::default(), None);
        for value in common {
            match value {
                Value::Choice(index) => border = Border::ALL.get(index).copied().unwrap_or_default(),
                Value::Name(name) => variant = name,
                Value::Int(_) | Value::Float(_) | Value::Radius(_) | Value::Kernel(_) => {}
            }
        }
        Ok(Filter { op, border, variant, id })
    }
}

/// Writes a filter so that the parser reads it back.
pub(super) fn write(filter: &Filter, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str(filter.name())?;
    if let Some(id) = &filter.id {
        write!(f, "@{id}")?;
    }
    let border = Border::ALL.iter().position(|b| *b == filter.border).unwrap_or(0);
    let common = [Value::Choice(border), Value::Name(filter.variant.clone())];
    let params = Entry::find(filter.name()).into_iter().flat_map(Entry::all_params);
    let mut separator = '=';
    for (param, value) in params.zip(values(&filter.op).into_iter().chain(common)) {
        if value == param.kind.default_value() {
            continue;
        }
        let text = match (&value, param.kind) {
            (Value::Int(v), _) => v.to_string(),
            (Value::Float(v), _) => format_float(*v),
            (Value::Choice(index), Kind::Choice(names)) => names.get(*index).copied().unwrap_or_default().to_string(),
            (Value::Choice(index), _) => index.to_string(),
            (Value::Radius(expr), _) => expr.as_ref().map(ToString::to_string).unwrap_or_default(),
            (Value::Kernel(kernel), _) => kernel.as_ref().map(ToString::to_string).unwrap_or_default(),
            (Value::Name(name), _) => name.clone().unwrap_or_default(),
        };
        write!(f, "{separator}{}={}", param.name, quote(&text))?;
        separator = ':';
    }
    Ok(())
}

/// The shortest decimal that reads back as the same `f32`.
fn format_float(value: f32) -> String {
    if value.fract() == 0.0 && value.abs() < 1e9 { format!("{value:.0}") } else { format!("{value:?}") }
}

/// Escapes a value for both levels: `\ ' :` between parameters, `\ ' [ ] , ;` between filters.
fn quote(text: &str) -> String {
    let mut inner = String::with_capacity(text.len());
    let edges = (text.len() - text.trim_start().len(), text.trim_end().len());
    for (at, c) in text.char_indices() {
        if matches!(c, '\\' | '\'' | ':') || at < edges.0 || at >= edges.1 {
            inner.push('\\');
        }
        inner.push(c);
    }
    let special = |c: char| matches!(c, '\\' | '\'' | '[' | ']' | ',' | ';');
    let padded = inner.trim() != inner;
    if !padded && !inner.contains(special) {
        inner
    } else if !inner.contains('\'') {
        format!("'{inner}'")
    } else {
        inner.chars().flat_map(|c| (special(c) || c.is_whitespace()).then_some('\\').into_iter().chain([c])).collect()
    }
}

/// `convoy filters`: every filter in one line.
pub fn list() -> String {
    let width = ENTRIES.iter().map(|e| e.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for entry in ENTRIES {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{:width$}  {}", entry.name, entry.summary);
    }
    text.push_str("\n`convoy filters NAME` shows parameters, formula and an example.\n");
    text
}

/// `convoy filters NAME`: everything about one filter.
///
/// # Errors
/// An unknown name, with the nearest known one.
pub fn describe(name: &str) -> Result<String> {
    let Some(entry) = Entry::find(name) else {
        let error = Error::usage(format!("there is no filter '{name}'"), "");
        return Err(match nearest(name, ENTRIES.iter().map(|e| e.name)) {
            Some(near) => error.hint(format!("did you mean '{near}'? `convoy filters` lists them all")),
            None => error.hint("`convoy filters` lists them all"),
        });
    };
    let mut text = format!("{}: {}\n\nParameters, in positional order:\n", entry.name, entry.summary);
    let names = |p: &Param| std::iter::once(p.name).chain(p.aliases.iter().copied()).collect::<Vec<_>>().join(", ");
    let width = entry.all_params().map(|p| names(p).len()).max().unwrap_or(0);
    let mut ours = false;
    for param in entry.all_params() {
        if param.ours && !ours {
            ours = true;
            text.push_str("\nBy name only, not in FFmpeg:\n");
        }
        let _ = writeln!(text, "  {:width$}  {} ({})", names(param), param.help, param.kind.describe());
    }
    text.push_str("\nFormula:\n");
    for line in entry.formula.lines() {
        let _ = writeln!(text, "  {line}");
    }
    let _ = writeln!(text, "\nExample:\n  --vf \"{}\"  {}", entry.example.0, entry.example.1);
    Ok(text)
}
