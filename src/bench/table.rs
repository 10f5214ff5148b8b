//! The terminal's view of a bench: groups of rows as they are done.

use std::io::IsTerminal;

use super::row::Row;
use super::summary::Summary;
use crate::cli::Level;

/// Styles, where stdout is a terminal and NO_COLOR is not set.
#[derive(Clone, Copy, Debug)]
pub struct Style {
    colour: bool,
}

impl Style {
    /// Of this process's stdout.
    pub fn of_stdout() -> Self {
        Self { colour: std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty()) }
    }

    /// Never coloured.
    pub fn plain() -> Self {
        Self { colour: false }
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn heading(self, text: &str) -> String {
        self.paint("1", text)
    }

    fn bad(self, text: &str) -> String {
        self.paint("31", text)
    }

    fn doubtful(self, text: &str) -> String {
        self.paint("33", text)
    }

    fn best(self, text: &str) -> String {
        self.paint("32", text)
    }
}

/// A group of rows that competed, as text that ends with a newline.
pub fn group(rows: &[Row], style: Style) -> String {
    let Some(first) = rows.first() else { return String::new() };
    match first.level {
        Level::Kernel => kernel(first, rows, style),
        Level::Loop => looped(first, rows, style),
        Level::Pipeline => pipeline(rows, style),
    }
}

fn time(us: f64) -> String {
    if us >= 1000.0 { format!("{:.3} ms", us / 1e3) } else { format!("{us:.2} µs") }
}

fn range(t: &Summary) -> String {
    let digits = if t.median >= 1000.0 { (1e3, 3) } else { (1.0, 2) };
    format!("{:.*}…{:.*}", digits.1, t.p5 / digits.0, digits.1, t.p95 / digits.0)
}

fn name(row: &Row) -> String {
    if row.program == "convoy" { format!("{} {}", row.backend, row.variant) } else { format!("{} ({})", row.program, row.variant) }
}

fn kernel(first: &Row, rows: &[Row], style: Style) -> String {
    let border = if first.border == "own" { String::new() } else { format!(", border {}", first.border) };
    let batch = if first.batch > 1 { format!(", batch {}", first.batch) } else { String::new() };
    let title = format!("{}  {}x{} {} {}{border}{batch}", first.group, first.width, first.height, first.planes, first.r#type);
    let mut text = style.heading(&title) + "\n";
    let wide = rows.iter().map(|r| name(r).chars().count()).max().unwrap_or(0).max(24) + 2;
    text += &format!(
        "  {:<wide$} {:>12} {:>19} {:>4} {:>10} {:>8} {:>7} {:>9}  {:<14} {}\n",
        "variant", "median", "p5…p95", "n", "fps", "GB/s", "× copy", "speed-up", "regs/sm/spill", "max error"
    );
    let fastest = rows
        .iter()
        .filter(|r| r.program == "convoy" && !r.variant.starts_with("copy"))
        .filter_map(|r| r.time_us)
        .map(|t| t.median)
        .fold(f64::INFINITY, f64::min);
    for row in rows {
        let Some(t) = row.time_us else {
            text += &format!("  {:<wide$} {}\n", name(row), style.bad(&one_line(row.error.as_deref().unwrap_or("not measured"))));
            continue;
        };
        let or_dash = |value: Option<f64>, digits: usize| value.map_or("-".to_owned(), |v| format!("{v:.digits$}"));
        let use_ =
            row.kernels.iter().map(|k| format!("{}/{}/{}", k.registers, k.shared_bytes, k.local_bytes)).collect::<Vec<_>>().join(" ");
        let error = row.check.map_or("-".to_owned(), |c| {
            if c.max_error > 0.0 && c.max_error < 0.01 { format!("{:.1e}", c.max_error) } else { format!("{}", c.max_error) }
        });
        let chosen = if row.notes.iter().any(|n| n == "auto's choice") { " *" } else { "" };
        let shown = format!("{:<wide$}", name(row) + chosen);
        let shown = if t.median == fastest { style.best(&shown) } else { shown };
        text += &format!(
            "  {shown} {:>12} {:>19} {:>4} {:>10} {:>8} {:>7} {:>9}  {use_:<14} {error}\n",
            time(t.median),
            range(&t),
            t.count,
            or_dash(row.fps, if row.fps.is_some_and(|f| f < 1000.0) { 1 } else { 0 }),
            or_dash(row.gb_per_s, 1),
            or_dash(row.copy_share.map(|s| 1.0 / s.max(1e-9)), 2),
            or_dash(row.speedup, 2),
        );
        text += &doubts(row, style);
    }
    text
}

fn looped(first: &Row, rows: &[Row], style: Style) -> String {
    let title =
        format!("loop, {}: {}x{} {} {}, host memory to host memory", first.graph, first.width, first.height, first.planes, first.r#type);
    let mut text = style.heading(&title) + "\n";
    text += &format!(
        "  {:<12} {:<9} {:>5} {:>10} {:>19} {:>4} {:>8}  {}\n",
        "what", "memory", "lanes", "fps", "µs p5…p95", "n", "share", "upload + kernels + download µs"
    );
    for row in rows {
        let (lanes, memory) = (row.lanes.unwrap_or(0), row.memory.as_deref().unwrap_or("-"));
        let Some(t) = row.time_us else {
            text += &format!(
                "  {:<12} {memory:<9} {lanes:>5} {}\n",
                row.variant,
                style.bad(&one_line(row.error.as_deref().unwrap_or("not measured")))
            );
            continue;
        };
        let share = row.copy_share.map_or("-".to_owned(), |s| format!("{:.0} %", 100.0 * s));
        let phases = row.phases_us.map_or(String::new(), |[up, kernel, down]| format!("{up:.1} + {kernel:.1} + {down:.1}"));
        text += &format!(
            "  {:<12} {memory:<9} {lanes:>5} {:>10.0} {:>19} {:>4} {share:>8}  {phases}\n",
            row.variant,
            row.fps.unwrap_or(0.0),
            range(&t),
            t.count
        );
        text += &doubts(row, style);
    }
    text
}

/// The heading of the pipeline level's rows, each of which is a group.
pub fn pipeline_heading(style: Style) -> String {
    style.heading(&format!(
        "{:<20} {:>8} {:>7} {:>12} {:>12} {:>7} {:>7} {:>5} {:>7}  limited by",
        "graph", "backend", "frames", "convoy fps", "ffmpeg fps", "ratio", "net", "runs", "spread"
    )) + "\n"
}

fn pipeline(rows: &[Row], style: Style) -> String {
    let Some(ours) = rows.iter().find(|r| r.program == "convoy") else { return String::new() };
    if let Some(error) = &ours.error {
        return format!("{:<20} {:>8} {}\n", ours.group, ours.backend, style.bad(&one_line(error)));
    }
    let peer = rows.iter().find(|r| r.program == "ffmpeg");
    let fps = peer.and_then(|r| r.fps);
    let ratio = |a: Option<f64>, b: Option<f64>| a.zip(b).map_or("-".to_owned(), |(a, b)| format!("{:.2}", a / b.max(1e-9)));
    let (whole, net) = (ratio(ours.fps, fps), ratio(ours.net_fps, peer.and_then(|r| r.net_fps)));
    let count = |row: &Row| row.time_us.map_or(0, |t| t.count);
    let runs = peer.filter(|p| p.time_us.is_some()).map_or(count(ours).to_string(), |p| format!("{}/{}", count(ours), count(p)));
    let shown = |fps: Option<f64>| fps.map_or("-".to_owned(), |f| format!("{f:.1}"));
    let spread = ours.time_us.map_or(0.0, |t| 100.0 * t.spread);
    let limit = ours.limited_by.as_deref().unwrap_or("-");
    let note = peer
        .and_then(|p| p.notes.first().cloned().or_else(|| p.error.clone()))
        .map_or(String::new(), |n| format!("; ffmpeg: {}", one_line(&n)));
    format!(
        "{:<20} {:>8} {:>7} {:>12} {:>12} {whole:>7} {net:>7} {runs:>5} {spread:>5.0} %  {limit}{note}\n",
        ours.group,
        ours.backend,
        ours.frames,
        shown(ours.fps),
        shown(fps)
    )
}

/// Whether a note belongs beside the figures.
pub(super) fn is_told(note: &str) -> bool {
    note.starts_with("not the same") || note.starts_with("its own")
}

fn doubts(row: &Row, style: Style) -> String {
    let notes = row.notes.iter().filter(|n| is_told(n)).map(|n| format!("    {}: {n}\n", name(row)));
    // What to do about it stands once at the end of the bench.
    let doubts: Vec<&str> = row.warnings.iter().filter_map(|w| w.split(": ").next()).collect();
    let warning = (!doubts.is_empty()).then(|| style.doubtful(&format!("    warning: {}", doubts.join("; "))) + "\n");
    notes.chain(warning).collect()
}

fn one_line(text: &str) -> String {
    text.lines().map(str::trim).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::super::store::tests::row;
    use super::*;

    #[test]
    fn rows_line_up_and_errors_stand_in_for_times() {
        let mut wrong = row("g", "cpu-threads", &[]);
        wrong.error = Some("wrong result, not timed: plane 0, x 1\n  hint: none".to_owned());
        let mut doubtful = row("g", "cpu-simd", &[1500.0, 1600.0]);
        doubtful.warnings.push("only 2 repetitions: raise --runs".to_owned());
        let text = group(&[row("g", "cpu-scalar", &[7.0]), doubtful, wrong], Style::plain());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 6, "{text}");
        assert!(lines[2].contains("cpu cpu-scalar") && lines[2].contains("7.00 µs"));
        assert!(lines[3].contains("1.550 ms") && lines[4].contains("warning: only 2"));
        assert!(lines[5].contains("plane 0, x 1; hint: none") && !text.contains('\x1b'));
        assert!(group(&[row("g", "a", &[1.0])], Style { colour: true }).contains("\x1b[1m"));
    }

    #[test]
    fn whole_runs_show_both_ratios_and_how_often_each_ran() {
        let pipeline = |program: &str, times: &[f64], start_up_ms| {
            let mut row = row("pixelate", "auto", times);
            (row.level, row.program, row.frames) = (Level::Pipeline, program.to_owned(), 101);
            row.fps = Some(1e6 / times[0]);
            row.set_start_up(std::time::Duration::from_millis(start_up_ms));
            row
        };
        // 202 ms of which 102 ms start; 404 ms of which 4: twice as fast as a whole, four times without.
        let (ours, theirs) = (pipeline("convoy", &[2000.0, 2000.0], 102), pipeline("ffmpeg", &[4000.0], 4));
        assert_eq!((ours.net_fps, theirs.net_fps, ours.start_up_ms), (Some(1000.0), Some(250.0), Some(102.0)));
        let text = group(&[ours, theirs], Style::plain());
        let words: Vec<&str> = text.split_whitespace().collect();
        assert_eq!(words, ["pixelate", "cpu", "101", "500.0", "250.0", "2.00", "4.00", "2/1", "0", "%", "-"], "{text}");
        assert_eq!(pipeline_heading(Style::plain()).split("  ").filter(|w| !w.trim().is_empty()).count(), 10);
    }
}
