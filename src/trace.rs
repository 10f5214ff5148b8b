//! `run --trace FILE`: what every stage did with every frame, when, as a Chrome trace (JSON) that Perfetto and chrome://tracing show.
//!
//! Spans of the threads come from the same clocks as `--stats`, those of the device from its events, so that the sums agree. Device
//! spans lie where the device's clock says, from an anchor that was read on both clocks when the first frame came; its
//! reading is exact to a thousandth of a millisecond in the first minutes and coarser later.
//!
//! The file is written when the run is over; until then a frame costs some 500 bytes of memory.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::error::{Error, Result};

/// Who did the work: a row in the viewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Track {
    /// The decode thread.
    Decode,
    /// The filter thread.
    Filter,
    /// The encode thread.
    Encode,
    /// A lane: on CUDA its transfers and kernels, on the CPU its steps.
    Lane(usize),
}

impl Track {
    fn id(self) -> usize {
        match self {
            Self::Decode => 1,
            Self::Filter => 2,
            Self::Encode => 3,
            Self::Lane(index) => 10 + index,
        }
    }

    fn name(self) -> String {
        match self {
            Self::Decode => "decode thread".to_owned(),
            Self::Filter => "filter thread".to_owned(),
            Self::Encode => "encode thread".to_owned(),
            Self::Lane(index) => format!("lane {index}"),
        }
    }
}

/// A piece of work.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// Who.
    pub track: Track,
    /// What: "decode", "wait", "kernels", …
    pub name: std::borrow::Cow<'static, str>,
    /// Which frame, if one.
    pub frame: Option<u64>,
    /// When it began.
    pub from: Instant,
    /// How long it took.
    pub took: Duration,
}

#[derive(Debug)]
enum Event {
    Span(Span),
    /// Items in a queue.
    Depth {
        queue: &'static str,
        items: usize,
        at: Instant,
    },
}

/// Collects events of all threads.
#[derive(Debug)]
pub struct Trace {
    start: Instant,
    events: Mutex<Vec<Event>>,
}

impl Default for Trace {
    fn default() -> Self {
        Self { start: Instant::now(), events: Mutex::default() }
    }
}

impl Trace {
    /// An empty trace whose time 0 is now.
    pub fn new() -> Self {
        Self::default()
    }

    fn events(&self) -> MutexGuard<'_, Vec<Event>> {
        // A push cannot leave the list half-changed.
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a span.
    pub fn span(&self, span: Span) {
        self.events().push(Event::Span(span));
    }

    /// Notes how many items a queue holds now.
    pub fn depth(&self, queue: &'static str, items: usize) {
        self.events().push(Event::Depth { queue, items, at: Instant::now() });
    }

    /// Microseconds since time 0, to the nanosecond.
    fn micros(&self, at: Instant) -> f64 {
        at.saturating_duration_since(self.start).as_nanos() as f64 / 1e3
    }

    /// The trace in Chrome's format ("JSON object format" of the Trace Event Format).
    pub fn to_json(&self) -> Value {
        let events = self.events();
        let mut tracks = BTreeMap::new();
        let mut list: Vec<Value> = Vec::with_capacity(events.len() + 8);
        for event in events.iter() {
            match event {
                Event::Span(span) => {
                    tracks.insert(span.track.id(), span.track.name());
                    let args = span.frame.map_or(json!({}), |frame| json!({ "frame": frame }));
                    list.push(json!({
                        "ph": "X", "pid": 1, "tid": span.track.id(), "name": span.name, "args": args,
                        "ts": self.micros(span.from), "dur": span.took.as_nanos() as f64 / 1e3,
                    }));
                }
                Event::Depth { queue, items, at } => {
                    list.push(json!({ "ph": "C", "pid": 1, "name": queue, "ts": self.micros(*at), "args": { "items": items } }));
                }
            }
        }
        let mut all = vec![json!({ "ph": "M", "pid": 1, "name": "process_name", "args": { "name": "convoy" } })];
        for (tid, name) in tracks {
            all.push(json!({ "ph": "M", "pid": 1, "tid": tid, "name": "thread_name", "args": { "name": name } }));
            all.push(json!({ "ph": "M", "pid": 1, "tid": tid, "name": "thread_sort_index", "args": { "sort_index": tid } }));
        }
        all.append(&mut list);
        json!({ "displayTimeUnit": "ms", "traceEvents": all })
    }
}

/// The file of `--trace`: opened before the run, so that a wrong name is known at once, and written after it.
pub struct TraceFile {
    file: File,
    name: String,
}

impl TraceFile {
    /// Creates the file, or empties it.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn create(name: &str) -> Result<Self> {
        let file = File::create(name).map_err(|e| Error::failed(format!("cannot write the trace '{name}'"), e))?;
        Ok(Self { file, name: name.to_owned() })
    }

    /// Writes the trace.
    ///
    /// # Errors
    /// The write failed.
    pub fn write(self, trace: &Trace) -> Result<()> {
        let failed = |e: &dyn std::fmt::Display| Error::failed(format!("cannot write the trace '{}'", self.name), e);
        let mut out = BufWriter::new(&self.file);
        serde_json::to_writer(&mut out, &trace.to_json()).map_err(|e| failed(&e))?;
        out.flush().map_err(|e| failed(&e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_and_depths_are_chromes() {
        let trace = Trace::new();
        let from = trace.start + Duration::from_nanos(1_234_567);
        trace.span(Span { track: Track::Lane(2), name: "kernels".into(), frame: Some(7), from, took: Duration::from_nanos(16_300) });
        trace.depth("decode to filter", 3);
        let json = trace.to_json();
        let events = json["traceEvents"].as_array().unwrap();
        let span = events.iter().find(|e| e["ph"] == "X").unwrap();
        assert_eq!((span["ts"].as_f64(), span["dur"].as_f64()), (Some(1234.567), Some(16.3)));
        assert_eq!((span["tid"].as_u64(), span["args"]["frame"].as_u64()), (Some(12), Some(7)));
        assert!(events.iter().any(|e| e["ph"] == "C" && e["args"]["items"] == 3));
        assert!(events.iter().any(|e| e["name"] == "thread_name" && e["args"]["name"] == "lane 2" && e["tid"] == 12));
        assert!(TraceFile::create("/no/such/folder/t.json").err().unwrap().to_string().contains("/no/such/folder"));
    }
}
