//! FFmpeg's filter-graph language, as far as a linear chain goes: `name@id=value:parameter=value,…` with labels.
//!
//! Escaping has two levels, as in FFmpeg (`libavutil/avstring.c`, `av_get_token`): between filters `\ ' [ ] , ;` are
//! special, then, between parameters, `\ ' :`. Every character keeps its place in the text through both, so that an error
//! points at what the user typed. Unlike FFmpeg, an open quote and a positional value after a named one are errors.

use std::ops::Range;

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};

use super::Filter;
use super::catalog::{ENTRIES, Entry};
use crate::error::{Error, Result};

/// Most filters in a chain.
pub const MAX_FILTERS: usize = 100;
/// Longest graph in bytes; four kernels of 127 × 127 fit.
pub const MAX_GRAPH_BYTES: usize = 1 << 20;

/// Something wrong with a piece of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where, in characters from the start of the piece.
    pub span: Range<usize>,
    /// What.
    pub message: String,
    /// What to do.
    pub help: Option<String>,
}

impl Fault {
    /// A fault at `span`.
    pub fn at(span: Range<usize>, message: impl Into<String>) -> Self {
        Self { span, message: message.into(), help: None }
    }

    /// Suggests the candidate nearest to `name`, if one is near.
    #[must_use]
    pub fn nearest<'a>(mut self, name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Self {
        self.help = nearest(name, candidates).map(|n| format!("did you mean '{n}'?"));
        self
    }

    /// The same fault in a text that starts `by` characters earlier.
    #[must_use]
    pub fn shifted(mut self, by: usize) -> Self {
        self.span = self.span.start + by..self.span.end + by;
        self
    }

    /// Adds what to do.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Maps the span from characters of `token` to bytes of the graph; `end` is where the token ended.
    fn within(mut self, token: &[Char], end: usize) -> Self {
        let start = token.get(self.span.start).map_or(end, |c| c.1);
        let last = self.span.end.checked_sub(1).and_then(|last| token.get(last));
        self.span = match last {
            Some(&(c, at)) if self.span.end > self.span.start => start..(at + c.len_utf8()).max(start),
            _ => start..start,
        };
        self
    }

    /// The error that a user reads: the message, the line with a caret under the fault, the help.
    fn into_error(self, graph: &str) -> Error {
        let (excerpt, span) = excerpt(graph, self.span);
        let snippet = Snippet::source(excerpt).line_numbering(false).annotation(AnnotationKind::Primary.span(span));
        let report = [Group::with_level(Level::ERROR).element(snippet)];
        let drawn = Renderer::plain().render(&report);
        // The renderer ends its picture with an empty gutter line, which says nothing.
        let drawn: Vec<_> = drawn.lines().map(str::trim_end).filter(|l| !matches!(l.trim(), "" | "|")).collect();
        let error = Error::usage("bad filter graph", format!("{}\n{}", self.message, drawn.join("\n")));
        match self.help {
            Some(help) => error.hint(help),
            None => error,
        }
    }
}

/// The line around the fault, shortened to what fits a terminal, control characters blanked; and the span in it.
fn excerpt(graph: &str, span: Range<usize>) -> (String, Range<usize>) {
    const BEFORE: usize = 50;
    const AFTER: usize = 40;
    let start = graph.floor_char_boundary(span.start);
    let part = |range: Range<usize>| graph.get(range).unwrap_or_default();
    let line_start = part(0..start).rfind('\n').map_or(0, |i| i + 1);
    let line_end = part(start..graph.len()).find('\n').map_or(graph.len(), |i| start + i);
    let end = graph.floor_char_boundary(span.end).clamp(start, line_end);
    let from = part(line_start..start).char_indices().rev().nth(BEFORE - 1).map_or(line_start, |(i, _)| line_start + i);
    let to = part(start..line_end).char_indices().nth(AFTER).map_or(line_end, |(i, _)| start + i);
    let blank = |text: &str| -> String { text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect() };
    let head = format!("{}{}", if from > line_start { "…" } else { "" }, blank(part(from..start)));
    let fault = blank(part(start..end.min(to)));
    let tail = blank(part(end.min(to)..to));
    let span = head.len()..head.len() + fault.len();
    (format!("{head}{fault}{tail}{}", if to < line_end { "…" } else { "" }), span)
}

/// The candidate that a misspelt `name` most likely meant.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Comparing is quadratic; nobody misspells a name into hundreds of characters.
    if name.len() > 64 {
        return None;
    }
    let lower = name.to_lowercase();
    let scored = candidates.into_iter().map(|c| (strsim::jaro_winkler(&lower, &c.to_lowercase()), c));
    scored.filter(|(score, _)| *score > 0.75).max_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, c)| c)
}

/// `text` as a message may show it: at most 40 characters, control characters escaped.
pub fn shown(text: &str) -> String {
    let mut short: String = text.chars().take(40).flat_map(char::escape_debug).collect();
    if text.chars().nth(40).is_some() {
        short.push('…');
    }
    short
}

/// A character and its place in the graph, in bytes.
type Char = (char, usize);

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\n' | '\t' | '\r')
}

/// Characters of one level of the language.
struct Cursor<'a> {
    chars: &'a [Char],
    at: usize,
    /// Place behind the last character.
    end: usize,
}

impl Cursor<'_> {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).map(|c| c.0)
    }

    fn place(&self) -> usize {
        self.chars.get(self.at).map_or(self.end, |c| c.1)
    }

    fn skip_space(&mut self) {
        while self.peek().is_some_and(is_space) {
            self.at += 1;
        }
    }

    /// The text up to one of `stops`, one level of quoting removed, unquoted white space at its ends dropped.
    fn token(&mut self, stops: &str) -> Result<Vec<Char>, Fault> {
        self.skip_space();
        let mut token = Vec::new();
        let mut keep = 0;
        while let Some(&(c, place)) = self.chars.get(self.at) {
            if stops.contains(c) {
                break;
            }
            self.at += 1;
            match (c, self.chars.get(self.at)) {
                ('\\', Some(&escaped)) => {
                    token.push(escaped);
                    self.at += 1;
                    keep = token.len();
                }
                ('\'', _) => {
                    loop {
                        let Some(&quoted) = self.chars.get(self.at) else {
                            return Err(Fault::at(place..place + 1, "this quote is never closed"));
                        };
                        self.at += 1;
                        if quoted.0 == '\'' {
                            break;
                        }
                        token.push(quoted);
                    }
                    keep = token.len();
                }
                _ => token.push((c, place)),
            }
        }
        while token.len() > keep && token.last().is_some_and(|c| is_space(c.0)) {
            token.pop();
        }
        Ok(token)
    }
}

fn text(token: &[Char]) -> String {
    token.iter().map(|c| c.0).collect()
}

/// Bytes of the graph that a token covers.
fn cover(token: &[Char], end: usize) -> Range<usize> {
    let start = token.first().map_or(end, |c| c.1);
    start..token.last().map_or(start, |c| c.1 + c.0.len_utf8()).max(start)
}

/// A `[label]` and where it stands.
#[derive(Clone)]
struct Label {
    name: String,
    span: Range<usize>,
}

/// Filters joined by commas, between two ends that may be labelled.
struct Chain {
    filters: Vec<Filter>,
    input: Option<Label>,
    output: Option<Label>,
    start: usize,
}

/// Parses a filter graph.
///
/// # Errors
/// A usage error that shows the graph with a caret under the first fault.
pub fn parse(graph: &str) -> Result<Vec<Filter>> {
    if graph.len() > MAX_GRAPH_BYTES {
        return Err(Error::usage("bad filter graph", format!("it has {} bytes, more than {MAX_GRAPH_BYTES}", graph.len()))
            .hint("put large kernels into files: convolution=kernel=@FILE"));
    }
    parse_chains(graph).and_then(join).map_err(|fault| fault.into_error(graph))
}

fn parse_chains(graph: &str) -> Result<Vec<Chain>, Fault> {
    let chars: Vec<Char> = graph.char_indices().map(|(at, c)| (c, at)).collect();
    let mut cursor = Cursor { chars: &chars, at: 0, end: graph.len() };
    cursor.skip_space();
    if cursor.peek().is_none() {
        return Err(Fault::at(0..0, "the graph is empty").help("`convoy filters` lists the filters"));
    }
    let mut chains: Vec<Chain> = Vec::new();
    let mut count = 0;
    // The separator before the filter, None before the first.
    let mut separator = None;
    loop {
        cursor.skip_space();
        let start = cursor.place();
        let input = labels(&mut cursor, "read", "several inputs")?;
        count += 1;
        if count > MAX_FILTERS {
            return Err(Fault::at(start..start + 1, format!("a graph has at most {MAX_FILTERS} filters, this is one too many")));
        }
        let filter = parse_filter(&mut cursor)?;
        let output = labels(&mut cursor, "write", "several outputs")?;
        match chains.last_mut() {
            // A comma joins two ends without labels; FFmpeg links labelled ones by name, as behind a semicolon.
            Some(last) if separator == Some(',') && (last.output.is_none() || input.is_none()) => match (&last.output, &input) {
                (None, None) => {
                    last.filters.push(filter);
                    last.output = output;
                }
                (Some(label), _) | (None, Some(label)) => {
                    return Err(Fault::at(
                        label.span.clone(),
                        format!("[{}] and the comma both link this filter, so the graph is not a linear chain", shown(&label.name)),
                    )
                    .help("separate labelled chains with ';'"));
                }
            },
            _ => chains.push(Chain { filters: vec![filter], input, output, start }),
        }
        cursor.skip_space();
        let place = cursor.place();
        match cursor.peek() {
            None => return Ok(chains),
            Some(c @ (',' | ';')) => {
                separator = Some(c);
                cursor.at += 1;
            }
            Some(c) => {
                return Err(Fault::at(place..place + c.len_utf8(), format!("expected ',' or the end, found '{c}'"))
                    .help("quote the value with '…' if this belongs to it"));
            }
        }
    }
}

/// At most one `[label]`.
fn labels(cursor: &mut Cursor<'_>, verb: &str, what: &str) -> Result<Option<Label>, Fault> {
    let mut found: Option<Label> = None;
    loop {
        cursor.skip_space();
        if cursor.peek() != Some('[') {
            return Ok(found);
        }
        let start = cursor.place();
        cursor.at += 1;
        let name = text(&cursor.token("]")?);
        if cursor.peek() != Some(']') {
            return Err(Fault::at(start..start + 1, "this '[' is never closed"));
        }
        cursor.at += 1;
        let span = start..cursor.chars.get(cursor.at - 1).map_or(cursor.end, |c| c.1 + 1);
        if name.is_empty() {
            return Err(Fault::at(span, "this label is empty"));
        }
        if found.is_some() {
            return Err(Fault::at(span, format!("[{}] makes this filter {verb} {what}: the graph is not a linear chain", shown(&name))));
        }
        found = Some(Label { name, span });
    }
}

fn parse_filter(cursor: &mut Cursor<'_>) -> Result<Filter, Fault> {
    let token = cursor.token("=,;[")?;
    let span = cover(&token, cursor.place());
    let full = text(&token);
    let (name, id) = match full.split_once('@') {
        Some((name, id)) => (name, Some(id)),
        None => (full.as_str(), None),
    };
    if name.is_empty() {
        let place = span.start;
        return Err(Fault::at(place..place, "the name of a filter is missing here"));
    }
    if let Some(id) = id
        && (id.is_empty() || id.len() > 64 || !id.chars().all(|c| c.is_ascii_alphanumeric() || "_-.@".contains(c)))
    {
        return Err(Fault::at(span, "'@' needs an instance name of letters, digits, '_', '-' or '.' behind it"));
    }
    let Some(entry) = Entry::find(name) else {
        let message = match name {
            "sws_flags" => "'sws_flags' is not supported: nothing is scaled here".to_string(),
            _ => format!("there is no filter '{}'", shown(name)),
        };
        let fault = Fault::at(span, message).nearest(name, ENTRIES.iter().map(|e| e.name));
        return Err(match fault.help {
            Some(_) => fault,
            None => fault.help("`convoy filters` lists the filters"),
        });
    };
    let mut options = Vec::new();
    if cursor.peek() == Some('=') {
        cursor.at += 1;
        options = cursor.token("[],;")?;
    }
    parse_options(entry, &options, cursor.place(), &span, id)
}

/// Reads `value:parameter=value…` for `entry`; `end` is where the options end, `name` where the filter's name stands.
fn parse_options(entry: &Entry, options: &[Char], end: usize, name: &Range<usize>, id: Option<&str>) -> Result<Filter, Fault> {
    let params: Vec<_> = entry.all_params().collect();
    let mut values: Vec<_> = params.iter().map(|p| p.kind.default_value()).collect();
    let mut spans = vec![name.clone(); params.len()];
    let mut cursor = Cursor { chars: options, at: 0, end };
    let mut next_positional = Some(0);
    while cursor.peek().is_some() {
        let key = parse_key(&mut cursor);
        let value = cursor.token(":")?;
        let value_end = cursor.place();
        cursor.at += 1;
        let span = cover(&value, value_end);
        let index = match key {
            Some(key) => {
                next_positional = None;
                find_param(entry, &params, &key, value_end)?
            }
            None => {
                let index = next_positional.ok_or_else(|| {
                    Fault::at(span.clone(), "this value has no name, but follows a named one")
                        .help("positional values come first; write parameter=value")
                })?;
                next_positional = Some(index + 1);
                if params.get(index).is_none_or(|p| p.ours) {
                    return Err(Fault::at(span, format!("'{}' takes at most {index} positional values", entry.name)));
                }
                index
            }
        };
        if let (Some(param), Some(slot), Some(place)) = (params.get(index), values.get_mut(index), spans.get_mut(index)) {
            *slot = param.kind.parse(&text(&value)).map_err(|mut fault| {
                fault.message = format!("{} of '{}': {}", param.name, entry.name, fault.message);
                fault.within(&value, value_end)
            })?;
            *place = span;
        }
    }
    entry.build(values, id.map(str::to_string)).map_err(|misfit| {
        let index = params.iter().position(|p| p.name == misfit.param);
        let span = index.and_then(|i| spans.get(i)).unwrap_or(name).clone();
        Fault::at(span, format!("{} of '{}': {}", misfit.param, entry.name, misfit.message))
    })
}

/// `key=` if one stands here (`libavutil/opt.c`, `get_key`).
fn parse_key(cursor: &mut Cursor<'_>) -> Option<Vec<Char>> {
    cursor.skip_space();
    let rest = cursor.chars.get(cursor.at..)?;
    let length = rest.iter().take_while(|(c, _)| c.is_ascii_alphanumeric() || "-_/.".contains(*c)).count();
    let spaces = rest.get(length..)?.iter().take_while(|c| is_space(c.0)).count();
    if rest.get(length + spaces)?.0 != '=' {
        return None;
    }
    cursor.at += length + spaces + 1;
    Some(rest.get(..length)?.to_vec())
}

fn find_param(entry: &Entry, params: &[&super::catalog::Param], key: &[Char], end: usize) -> Result<usize, Fault> {
    let name = text(key);
    if let Some(index) = params.iter().position(|p| p.is_called(&name)) {
        return Ok(index);
    }
    let span = cover(key, end);
    match name.as_str() {
        "enable" => Err(Fault::at(span, "'enable' (a filter that is on for a part of the time) is not supported yet")
            .help("filter that part in a run of its own; ffmpeg -ss START -to END -i INPUT -c copy PART cuts it out")),
        "threads" | "thread_type" | "extra_hw_frames" => {
            Err(Fault::at(span, format!("'{name}' is not a matter of one filter here")).help("see --threads and --lanes"))
        }
        "" => Err(Fault::at(span, "the name of a parameter is missing before '='")),
        _ => {
            let known = params.iter().flat_map(|p| std::iter::once(p.name).chain(p.aliases.iter().copied()));
            let fault = Fault::at(span, format!("'{}' has no parameter '{}'", entry.name, shown(&name))).nearest(&name, known);
            Err(match fault.help {
                Some(_) => fault,
                None => fault.help(format!("`convoy filters {}` lists the parameters", entry.name)),
            })
        }
    }
}

/// Links chains by their labels, in the order of the text as FFmpeg does (`libavfilter/graphparser.c`): a label is free
/// again once both its ends are known. All chains must lie on one line; returns its filters.
fn join(mut chains: Vec<Chain>) -> Result<Vec<Filter>, Fault> {
    let mut next: Vec<Option<usize>> = vec![None; chains.len()];
    let mut fed = vec![false; chains.len()];
    let mut open_inputs: Vec<(&str, usize)> = Vec::new();
    let mut open_outputs: Vec<(&str, usize)> = Vec::new();
    let take = |open: &mut Vec<(&str, usize)>, name: &str| {
        let at = open.iter().rposition(|o| o.0 == name)?;
        Some(open.remove(at).1)
    };
    let mut link = |from: usize, to: usize| {
        if let (Some(slot), Some(flag)) = (next.get_mut(from), fed.get_mut(to)) {
            (*slot, *flag) = (Some(to), true);
        }
    };
    for (index, chain) in chains.iter().enumerate() {
        if let Some(label) = &chain.input {
            match take(&mut open_outputs, &label.name) {
                Some(from) => link(from, index),
                None => open_inputs.push((&label.name, index)),
            }
        }
        if let Some(label) = &chain.output {
            match take(&mut open_inputs, &label.name) {
                Some(to) => link(index, to),
                None => open_outputs.push((&label.name, index)),
            }
        }
    }
    let not_linear = |chain: &Chain, labelled: &str, bare: &str| {
        let (span, what) = match &chain.input {
            Some(label) => (label.span.clone(), format!("[{}] {labelled}", shown(&label.name))),
            None => (chain.start..chain.start + 1, format!("this chain {bare}")),
        };
        Fault::at(span, format!("{what}: the graph is not a linear chain"))
            .help("one input, one output, each filter reads what the one before wrote")
    };
    let mut heads = chains.iter().zip(&fed).enumerate().filter(|(_, (_, fed))| !**fed);
    let head = heads.next().map(|(index, _)| index);
    if let Some((_, (chain, _))) = heads.next() {
        return Err(not_linear(chain, "is written by no filter before", "reads the input too"));
    }
    let mut filters = Vec::new();
    let mut at = head;
    while let Some(index) = at {
        // A chain is fed once, so that the walk from the only one that is not fed ends.
        at = next.get(index).copied().flatten();
        if let Some(chain) = chains.get_mut(index) {
            filters.append(&mut chain.filters);
        }
    }
    match chains.iter().find(|c| !c.filters.is_empty()) {
        Some(chain) => Err(not_linear(chain, "closes a loop", "is not reached from the input")),
        None => Ok(filters),
    }
}
