//! Numbers and expressions as FFmpeg reads them (`libavutil/eval.c`): suffixes, constants, operators, functions.
//!
//! An expression is compiled to postfix, so that evaluating and dropping it never recurses. Functions that keep state or
//! read a clock (`st`, `ld`, `while`, `random`, `print`, `time` …) are refused: a radius must not depend on them.

use std::f64::consts;
use std::fmt;

use super::parse::{Fault, shown};

/// Nesting of parentheses and function calls, as in FFmpeg.
const MAX_NESTING: usize = 100;
/// Longest expression in characters, so that a message can still show it.
const MAX_LENGTH: usize = 4096;

/// A value by name.
pub type Variable<'a> = (&'a str, f64);

/// A compiled expression. Two are equal when their texts, white space apart, are.
#[derive(Clone, Debug)]
pub struct Expr {
    text: String,
    program: Vec<Op>,
}

impl PartialEq for Expr {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Value(f64),
    Variable(usize),
    Negate,
    Call(Function),
}

/// Operators and functions: what they are called, how many arguments they take, and their value.
#[derive(Clone, Copy, Debug)]
enum Function {
    Add,
    Mul,
    Div,
    Pow,
    Last,
    One(fn(f64) -> f64),
    Two(fn(f64, f64) -> f64),
    Three(fn(f64, f64, f64) -> f64),
}

impl Function {
    fn arity(self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Add | Self::Mul | Self::Div | Self::Pow | Self::Last | Self::Two(_) => 2,
            Self::Three(_) => 3,
        }
    }
}

const CONSTANTS: [Variable<'static>; 4] = [("E", consts::E), ("PI", consts::PI), ("PHI", 1.618_033_988_749_895), ("QP2LAMBDA", 118.0)];

/// SI prefixes and their power of ten; with an `i` behind, a power of 2^(10/3) to the same exponent.
const SUFFIXES: [(char, i32); 20] = [
    ('y', -24),
    ('z', -21),
    ('a', -18),
    ('f', -15),
    ('p', -12),
    ('n', -9),
    ('u', -6),
    ('m', -3),
    ('c', -2),
    ('d', -1),
    ('h', 2),
    ('k', 3),
    ('K', 3),
    ('M', 6),
    ('G', 9),
    ('T', 12),
    ('P', 15),
    ('E', 18),
    ('Z', 21),
    ('Y', 24),
];

/// What FFmpeg has and Convoy refuses, because the value would depend on state or time.
const STATEFUL: [&str; 8] = ["time", "ld", "st", "while", "taylor", "root", "print", "random"];

fn truth(condition: bool) -> f64 {
    f64::from(u8::from(condition))
}

/// The functions by name. `if` and `ifnot` with two arguments yield 0 otherwise, so their third is optional.
fn function(name: &str) -> Option<Function> {
    use Function::{One, Three, Two};
    Some(match name {
        "sinh" => One(f64::sinh),
        "cosh" => One(f64::cosh),
        "tanh" => One(f64::tanh),
        "sin" => One(f64::sin),
        "cos" => One(f64::cos),
        "tan" => One(f64::tan),
        "atan" => One(f64::atan),
        "asin" => One(f64::asin),
        "acos" => One(f64::acos),
        "exp" => One(f64::exp),
        "log" => One(f64::ln),
        "abs" => One(f64::abs),
        "squish" => One(|x| 1.0 / (1.0 + (4.0 * x).exp())),
        "gauss" => One(|x| (-x * x / 2.0).exp() / (2.0 * consts::PI).sqrt()),
        "isnan" => One(|x| truth(x.is_nan())),
        "isinf" => One(|x| truth(x.is_infinite())),
        "floor" => One(f64::floor),
        "ceil" => One(f64::ceil),
        "trunc" => One(f64::trunc),
        "round" => One(f64::round),
        "sqrt" => One(f64::sqrt),
        "not" => One(|x| truth(x == 0.0)),
        "sgn" => One(|x| truth(x > 0.0) - truth(x < 0.0)),
        "mod" => Two(|a, b| a - divide(a, b).floor() * b),
        "max" => Two(|a, b| if a > b { a } else { b }),
        "min" => Two(|a, b| if a < b { a } else { b }),
        "eq" => Two(|a, b| truth(a == b)),
        "gte" => Two(|a, b| truth(a >= b)),
        "gt" => Two(|a, b| truth(a > b)),
        "lte" => Two(|a, b| truth(a <= b)),
        "lt" => Two(|a, b| truth(a < b)),
        "pow" => Two(f64::powf),
        "hypot" => Two(f64::hypot),
        "atan2" => Two(f64::atan2),
        "gcd" => Two(gcd),
        "bitand" => Two(|a, b| if a.is_nan() || b.is_nan() { f64::NAN } else { (a as i64 & b as i64) as f64 }),
        "bitor" => Two(|a, b| if a.is_nan() || b.is_nan() { f64::NAN } else { (a as i64 | b as i64) as f64 }),
        "if" => Three(|c, a, b| if c != 0.0 { a } else { b }),
        "ifnot" => Three(|c, a, b| if c == 0.0 { a } else { b }),
        "between" => Three(|x, low, high| truth(x >= low && x <= high)),
        "clip" => {
            Three(|x, low, high| if x.is_nan() || low.is_nan() || high.is_nan() || low > high { f64::NAN } else { x.max(low).min(high) })
        }
        "lerp" => Three(|a, b, t| a + (b - a) * t),
        _ => return None,
    })
}

/// Names for suggestions.
const FUNCTION_NAMES: [&str; 41] = [
    "sinh", "cosh", "tanh", "sin", "cos", "tan", "atan", "asin", "acos", "exp", "log", "abs", "squish", "gauss", "isnan", "isinf", "floor",
    "ceil", "trunc", "round", "sqrt", "not", "sgn", "mod", "max", "min", "eq", "gte", "gt", "lte", "lt", "pow", "hypot", "atan2", "gcd",
    "bitand", "bitor", "if", "ifnot", "between", "clip",
];

fn divide(a: f64, b: f64) -> f64 {
    if b == 0.0 { a * f64::INFINITY } else { a / b }
}

fn gcd(a: f64, b: f64) -> f64 {
    let (mut a, mut b) = ((a as i64).unsigned_abs(), (b as i64).unsigned_abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a as f64
}

impl Expr {
    /// Compiles `text`; `names` are the variables that [`Expr::eval`] will be given, in the same order.
    ///
    /// # Errors
    /// The first thing that is wrong, with its place in characters from the start of `text`.
    pub fn compile(text: &str, names: &[&str]) -> Result<Self, Fault> {
        let chars: Vec<(char, usize)> = text.chars().enumerate().filter(|(_, c)| !c.is_whitespace()).map(|(i, c)| (c, i)).collect();
        let end = text.chars().count();
        if end > MAX_LENGTH {
            return Err(Fault::at(0..end, format!("an expression has at most {MAX_LENGTH} characters, this one has {end}")));
        }
        let mut compiler = Compiler { chars: &chars, at: 0, end, names, nesting: 0, program: Vec::new() };
        if chars.is_empty() {
            return Err(Fault::at(0..end, "a number or an expression is missing"));
        }
        compiler.sequence()?;
        if compiler.at < chars.len() {
            let what = match compiler.peek() {
                Some(')') => "this ')' closes nothing".to_string(),
                Some(c) => format!("unexpected '{c}': an operator or the end should follow"),
                None => "an operator is missing here".to_string(),
            };
            return Err(compiler.fault_here(what));
        }
        Ok(Self { text: chars.iter().map(|(c, _)| c).collect(), program: compiler.program })
    }

    /// The value with these variables, in the order of the names given to [`Expr::compile`]. May be NaN or infinite.
    pub fn eval(&self, values: &[f64]) -> f64 {
        let mut stack: Vec<f64> = Vec::with_capacity(8);
        let pop = |stack: &mut Vec<f64>| stack.pop().unwrap_or(f64::NAN);
        for op in &self.program {
            let value = match *op {
                Op::Value(v) => v,
                Op::Variable(index) => values.get(index).copied().unwrap_or(f64::NAN),
                Op::Negate => -pop(&mut stack),
                Op::Call(function) => {
                    let mut args = [0.0; 3];
                    for slot in args[..function.arity()].iter_mut().rev() {
                        *slot = pop(&mut stack);
                    }
                    let [a, b, c] = args;
                    match function {
                        Function::Add => a + b,
                        Function::Mul => a * b,
                        Function::Div => divide(a, b),
                        Function::Pow => a.powf(b),
                        Function::Last => b,
                        Function::One(f) => f(a),
                        Function::Two(f) => f(a, b),
                        Function::Three(f) => f(a, b, c),
                    }
                }
            };
            stack.push(value);
        }
        pop(&mut stack)
    }
}

struct Compiler<'a> {
    /// Without white space; each with its place in the text.
    chars: &'a [(char, usize)],
    at: usize,
    end: usize,
    names: &'a [&'a str],
    nesting: usize,
    program: Vec<Op>,
}

impl Compiler<'_> {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).map(|c| c.0)
    }

    fn eat(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        self.at += usize::from(found);
        found
    }

    fn place(&self, at: usize) -> usize {
        self.chars.get(at).map_or(self.end, |c| c.1)
    }

    /// A fault over the characters `from..to` (indices without white space).
    fn fault(&self, from: usize, to: usize, message: impl Into<String>) -> Fault {
        let start = self.place(from);
        let end = if to > from { self.place(to - 1) + 1 } else { start };
        Fault::at(start..end, message)
    }

    fn fault_here(&self, message: impl Into<String>) -> Fault {
        self.fault(self.at, self.at + 1, message)
    }

    fn sequence(&mut self) -> Result<(), Fault> {
        self.nesting += 1;
        if self.nesting > MAX_NESTING {
            return Err(self.fault_here(format!("parentheses are nested more than {MAX_NESTING} deep")));
        }
        self.sum()?;
        while self.eat(';') {
            self.sum()?;
            self.program.push(Op::Call(Function::Last));
        }
        self.nesting -= 1;
        Ok(())
    }

    fn sum(&mut self) -> Result<(), Fault> {
        self.term()?;
        // The sign stays with the term that follows, as in FFmpeg.
        while matches!(self.peek(), Some('+' | '-')) {
            self.term()?;
            self.program.push(Op::Call(Function::Add));
        }
        Ok(())
    }

    fn term(&mut self) -> Result<(), Fault> {
        self.factor()?;
        loop {
            let function = match self.peek() {
                Some('*') => Function::Mul,
                Some('/') => Function::Div,
                _ => return Ok(()),
            };
            self.at += 1;
            self.factor()?;
            self.program.push(Op::Call(function));
        }
    }

    fn factor(&mut self) -> Result<(), Fault> {
        let negative = self.signed_primary()?;
        while self.eat('^') {
            if self.signed_primary()? {
                self.program.push(Op::Negate);
            }
            self.program.push(Op::Call(Function::Pow));
        }
        if negative {
            self.program.push(Op::Negate);
        }
        Ok(())
    }

    /// A primary behind at most one sign; true if the caller must negate. "-3dB" keeps its sign, as in FFmpeg.
    fn signed_primary(&mut self) -> Result<bool, Fault> {
        let signed = matches!(self.peek(), Some('+' | '-'));
        let negative = self.peek() == Some('-');
        if negative && self.number().is_some_and(|n| n.decibels) {
            self.primary()?;
            return Ok(false);
        }
        self.at += usize::from(signed);
        self.primary()?;
        Ok(negative)
    }

    fn number(&self) -> Option<Number> {
        number(self.chars.get(self.at..)?.iter().map(|c| c.0))
    }

    fn primary(&mut self) -> Result<(), Fault> {
        if let Some(number) = self.number() {
            self.at += number.length;
            self.program.push(Op::Value(number.value));
            return Ok(());
        }
        let start = self.at;
        if self.eat('(') {
            self.sequence()?;
            return if self.eat(')') { Ok(()) } else { Err(self.fault(start, start + 1, "this '(' is never closed")) };
        }
        while self.peek().is_some_and(|c| c.is_ascii_alphanumeric() || c == '_') {
            self.at += 1;
        }
        let name: String = self.chars.get(start..self.at).unwrap_or_default().iter().map(|c| c.0).collect();
        if name.is_empty() {
            return Err(match self.peek() {
                Some(c) => self.fault_here(format!("expected a number, a name or '(', found '{c}'")),
                None => self.fault(start, start, "the expression ends where a number, a name or '(' should follow"),
            });
        }
        if self.peek() == Some('(') {
            return self.call(&name, start);
        }
        if let Some(index) = self.names.iter().position(|n| *n == name) {
            self.program.push(Op::Variable(index));
            return Ok(());
        }
        if let Some((_, value)) = CONSTANTS.iter().find(|(n, _)| *n == name) {
            self.program.push(Op::Value(*value));
            return Ok(());
        }
        let known = || self.names.iter().copied().chain(CONSTANTS.iter().map(|c| c.0));
        let fault = self.fault(start, self.at, format!("'{}' is not a number or a name known here", shown(&name))).nearest(&name, known());
        Err(match fault.help {
            Some(_) => fault,
            None => fault.help(format!("names known here: {}", known().collect::<Vec<_>>().join(", "))),
        })
    }

    fn call(&mut self, name: &str, start: usize) -> Result<(), Fault> {
        if STATEFUL.contains(&name) {
            return Err(self.fault(start, self.at, format!("FFmpeg's function '{name}' is not supported: the value must not vary")));
        }
        let Some(function) = function(name) else {
            return Err(self.fault(start, self.at, format!("there is no function '{}'", shown(name))).nearest(name, FUNCTION_NAMES));
        };
        let open = self.at;
        self.at += 1;
        let mut arguments = 0;
        loop {
            self.sequence()?;
            arguments += 1;
            if !self.eat(',') {
                break;
            }
        }
        if !self.eat(')') {
            return Err(self.fault(open, open + 1, "this '(' is never closed"));
        }
        let wanted = function.arity();
        if arguments == 2 && matches!(name, "if" | "ifnot") {
            self.program.push(Op::Value(0.0));
        } else if arguments != wanted {
            return Err(self.fault(start, self.at, format!("'{name}' takes {wanted} argument(s), here are {arguments}")));
        }
        self.program.push(Op::Call(function));
        Ok(())
    }
}

struct Number {
    value: f64,
    /// Characters read.
    length: usize,
    decibels: bool,
}

/// A number at the start of `chars`: decimal or `0x` hexadecimal, then an SI suffix (`k`, `Ki`), `dB`, or `B` (× 8).
fn number(chars: impl Iterator<Item = char>) -> Option<Number> {
    // Longer digit strings carry no more information; the limit bounds the work per position.
    let chars: Vec<char> = chars.take(400).collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let digits = |from: usize| chars.get(from..).unwrap_or_default().iter().take_while(|c| c.is_ascii_digit()).count();
    let mut value;
    let mut length;
    let sign = usize::from(matches!(at(0), '+' | '-'));
    let hex = chars.get(sign + 2..).unwrap_or_default().iter().take_while(|c| c.is_ascii_hexdigit()).count();
    if at(sign) == '0' && at(sign + 1).eq_ignore_ascii_case(&'x') && hex > 0 {
        length = sign + 2 + hex;
        value = chars.get(sign + 2..length)?.iter().filter_map(|c| c.to_digit(16)).fold(0.0, |sum, d| sum * 16.0 + f64::from(d));
        if at(0) == '-' {
            value = -value;
        }
    } else {
        length = sign + digits(sign);
        let mut any = length > sign;
        if at(length) == '.' {
            let fraction = digits(length + 1);
            any |= fraction > 0;
            length += 1 + fraction;
        }
        if !any {
            return None;
        }
        if at(length).eq_ignore_ascii_case(&'e') {
            let sign = usize::from(matches!(at(length + 1), '+' | '-'));
            let exponent = digits(length + 1 + sign);
            if exponent > 0 {
                length += 1 + sign + exponent;
            }
        }
        value = chars.get(..length)?.iter().collect::<String>().parse::<f64>().ok()?;
    }
    let decibels = at(length) == 'd' && at(length + 1) == 'B';
    if decibels {
        value = 10f64.powf(value / 20.0);
        length += 2;
    } else if let Some(&(_, decimal)) = SUFFIXES.iter().find(|s| s.0 == at(length)) {
        if at(length + 1) == 'i' {
            value *= 2f64.powf(f64::from(decimal * 10) / 3.0);
            length += 2;
        } else {
            // Dividing by an exact power of ten keeps 5m equal to 0.005.
            value = if decimal < 0 { value / 10f64.powi(-decimal) } else { value * 10f64.powi(decimal) };
            length += 1;
        }
    }
    if at(length) == 'B' {
        value *= 8.0;
        length += 1;
    }
    Some(Number { value, length, decibels })
}

/// `value` so that [`Expr::compile`] reads the same bits back; integers without a point.
pub fn format_number(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1e15 { format!("{value:.0}") } else { format!("{value:?}") }
}
