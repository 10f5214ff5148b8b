//! `bench --html FILE`: one page with interactive plots, made with Plotly, whose code is part of the page: it needs no network.

use std::collections::BTreeMap;
use std::fmt::Write;

use plotly::common::{DashType, HoverInfo, Line, Marker, Mode, Pattern, PatternShape};
use plotly::layout::{Axis, AxisType, BarMode};
use plotly::{Bar, Layout, Plot, Scatter};

use super::row::{Document, Row};
use crate::cli::Level;

/// Figures of one kind at most: beyond that a page is no longer read.
const MOST_FIGURES: usize = 8;

/// A plot with what one should see in it.
struct Figure {
    title: String,
    about: String,
    plot: Plot,
}

/// The page.
pub fn page(document: &Document) -> String {
    let rows: Vec<&Row> = document.rows.iter().filter(|r| r.time_us.is_some()).collect();
    let mut figures = per_variant(&rows);
    figures.extend(against_window(&rows));
    figures.extend(against_size(&rows));
    figures.extend(roofline(&rows));
    figures.extend(lanes(&rows));
    figures.extend(stages(&rows));
    figures.extend(timeline(&rows));
    let mut body = String::new();
    // Writing to a string cannot fail.
    let _ = write!(body, "<h1>convoy bench</h1>\n{}", environment(document));
    for (index, figure) in figures.iter().enumerate() {
        let _ = writeln!(
            body,
            "<section><h2>{}</h2><p>{}</p><div class=\"plot\" id=\"plot{index}\"></div></section>",
            escape(&figure.title),
            escape(&figure.about)
        );
    }
    body += &table(&document.rows);
    let data: Vec<String> = figures.iter().map(|f| f.plot.to_json()).collect();
    // Inside a script element only "<" could end it early.
    let data = format!("[{}]", data.join(",")).replace('<', "\\u003c");
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>convoy bench {}</title>\n<style>{STYLE}</style>\n{}\n</head>\n<body>\n{body}<script>const figures = {data};\n{SCRIPT}</script>\n</body>\n</html>\n",
        escape(&document.environment.date),
        plotly_script()
    )
}

/// Plotly's code as a script element, without the typesetter of formulas that the crate puts behind it.
fn plotly_script() -> String {
    const END: &str = "</script>";
    let sources = Plot::offline_js_sources();
    match sources.find(END) {
        Some(end) => sources.get(..end + END.len()).unwrap_or_default().to_owned(),
        None => sources,
    }
}

const STYLE: &str = "
:root { color-scheme: light dark; --back: #ffffff; --fore: #1c1c1c; --dim: #5c5c5c; --line: #d8d8d8; --bad: #b00020; --doubt: #8a5a00; }
@media (prefers-color-scheme: dark) { :root { --back: #16181c; --fore: #e4e4e4; --dim: #a0a0a0; --line: #3a3d44; --bad: #ff8080; --doubt: #f0c060; } }
body { background: var(--back); color: var(--fore); font: 15px/1.45 system-ui, sans-serif; margin: 0 auto; max-width: 1200px; padding: 1.5rem; }
h1 { margin: 0 0 .5rem; } h2 { margin: 2rem 0 .2rem; font-size: 1.15rem; } p { color: var(--dim); margin: 0 0 .5rem; }
.plot { width: 100%; height: 460px; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 13px; }
td, th { border-bottom: 1px solid var(--line); padding: .2rem .6rem; text-align: right; } td.l, th.l { text-align: left; }
tr.peer { font-style: italic; } td.l:nth-child(4) { white-space: nowrap; }
body.one { max-width: none; padding: 0 1rem; } body.one > :is(h1, p, section:not(.shown)) { display: none; } body.one .plot { height: calc(100vh - 6rem); }
.scroll { overflow-x: auto; } .bad { color: var(--bad); } .doubt { color: var(--doubt); }
";

/// Draws, and draws again in other colours when the system's scheme changes.
const SCRIPT: &str = "
// More than Plotly's ten: a page shows some twenty variants. Legible on white and on black.
const colours = ['#1f77b4', '#ff7f0e', '#2ca02c', '#d62728', '#9467bd', '#8c564b', '#e377c2', '#7f7f7f', '#bcbd22', '#17becf',
  '#5b7cff', '#b8860b', '#00a878', '#ff6f91', '#7a5cff', '#c49c94', '#a0522d', '#5f9ea0', '#7fb800', '#d1495b', '#00798c', '#edae49', '#8d96a3', '#b279a2'];
const dark = matchMedia('(prefers-color-scheme: dark)');
const one = document.getElementById(location.hash.slice(1) || 'none');
function draw() {
  const style = getComputedStyle(document.documentElement);
  const [fore, line] = ['--fore', '--line'].map(name => style.getPropertyValue(name).trim());
  figures.forEach((figure, index) => {
    // What is not shown cannot be measured.
    if (one && one.id !== 'plot' + index) return;
    const layout = structuredClone(figure.layout);
    layout.paper_bgcolor = layout.plot_bgcolor = 'rgba(0,0,0,0)';
    layout.font = { ...layout.font, color: fore };
    layout.colorway = colours;
    layout.modebar = { bgcolor: 'rgba(0,0,0,0)', color: line, activecolor: fore };
    for (const name of ['xaxis', 'yaxis']) layout[name] = { ...layout[name], gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true };
    layout.margin = { t: 20, r: 20, b: 60, l: 70 };
    layout.legend = { ...layout.legend, orientation: 'h', y: -0.25 };
    Plotly.react('plot' + index, figure.data, layout, { responsive: true, displaylogo: false, displayModeBar: one ? false : 'hover' });
  });
}
// With #plot3 in its address, the page shows that plot alone, as large as the window: for a picture of it.
one?.closest('section').classList.add('shown');
document.body.classList.toggle('one', one !== null);
draw();
dark.addEventListener('change', draw);
";

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn environment(document: &Document) -> String {
    let e = &document.environment;
    let mut text = String::from("<p>");
    text += &e.summary().lines().map(escape).collect::<Vec<_>>().join("<br>");
    let _ = writeln!(text, "<br>{}<br><code>{}</code></p>", escape(&e.os), escape(&e.command));
    for missing in &e.missing {
        let _ = writeln!(text, "<p class=\"doubt\">not measured: {}</p>", escape(missing));
    }
    if !document.complete {
        text += "<p class=\"bad\">This bench was cut short.</p>\n";
    }
    text
}

fn frame(row: &Row) -> String {
    format!("{}x{} {} {}", row.width, row.height, row.planes, row.r#type)
}

fn who(row: &Row) -> String {
    let program = if is_peer(row) { &row.program } else { &row.backend };
    format!("{program} {}", row.variant)
}

/// Whether another program was measured.
fn is_peer(row: &Row) -> bool {
    row.program != "convoy"
}

/// Of bars: other programs are hatched, copies are dotted.
fn bar_of(rows: &[&Row]) -> Marker {
    let shape = match rows.first() {
        Some(row) if is_peer(row) => PatternShape::RightDiagonalLine,
        Some(row) if row.variant.starts_with("copy") => PatternShape::Dot,
        Some(_) | None => PatternShape::None,
    };
    Marker::new().pattern(Pattern::new().shape(shape))
}

/// Of lines: the same in dashes and dots.
fn line_of(rows: &[&Row]) -> Line {
    Line::new().dash(match rows.first() {
        Some(row) if is_peer(row) => DashType::Dash,
        Some(row) if row.variant.starts_with("copy") => DashType::Dot,
        Some(_) | None => DashType::Solid,
    })
}

/// What the hatching means, where there is any.
fn legend(rows: &[&Row]) -> &'static str {
    if rows.iter().any(|r| is_peer(r)) { " Other programs (the fastest call of each) are hatched, copies dotted." } else { "" }
}

fn median(row: &Row) -> f64 {
    row.time_us.map_or(0.0, |t| t.median)
}

fn samples(row: &Row) -> f64 {
    row.width as f64 * row.height as f64 * row.batch as f64
}

/// Rows by a key, keys and rows in the order of the bench.
fn by<'a>(rows: impl IntoIterator<Item = &'a Row>, key: impl Fn(&Row) -> String) -> Vec<(String, Vec<&'a Row>)> {
    let mut groups: Vec<(String, Vec<&Row>)> = Vec::new();
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    for row in rows {
        let key = key(row);
        let place = *places.entry(key.clone()).or_insert(groups.len());
        match groups.get_mut(place) {
            Some((_, group)) => group.push(row),
            None => groups.push((key, vec![row])),
        }
    }
    groups
}

fn axis(title: &str, kind: AxisType) -> Axis {
    Axis::new().title(title).type_(kind)
}

fn hover(row: &Row) -> String {
    let t = row.time_us.unwrap_or_default();
    let rate = row.gb_per_s.map_or(String::new(), |r| format!(", {r:.1} GB/s"));
    format!("{} {}<br>{}: {:.2} µs ({:.2} to {:.2}, n {}){rate}", row.group, frame(row), who(row), t.median, t.p5, t.p95, t.count)
}

/// The rows without those of other programs that another call of the same program beats in its group.
fn fastest_peers(rows: Vec<&Row>) -> Vec<&Row> {
    let beaten = |row: &Row| {
        is_peer(row)
            && rows
                .iter()
                .any(|r| r.program == row.program && r.backend == row.backend && r.title() == row.title() && median(r) < median(row))
    };
    rows.iter().copied().filter(|row| !beaten(row)).collect()
}

/// Other programs name their calls differently in every group: a bar is the program's.
fn bar_name(row: &Row) -> String {
    if is_peer(row) { row.program.clone() } else { who(row) }
}

/// One bar per variant in every group.
fn per_variant(rows: &[&Row]) -> Vec<Figure> {
    let kernels: Vec<&Row> = rows.iter().copied().filter(|r| r.level == Level::Kernel).collect();
    let sizes = by(kernels.iter().copied(), frame);
    let figure = |(frame, rows): (String, Vec<&Row>)| {
        let mut plot = Plot::new();
        let hatched = legend(&rows);
        // Bars of a logarithmic axis begin at its end: room for the shortest.
        let ends =
            rows.iter().map(|r| median(r)).filter(|&t| t > 0.0).fold((f64::INFINITY, 0.0f64), |(low, high), t| (low.min(t), high.max(t)));
        let range = vec![(ends.0 / 2.0).log10(), (ends.1 * 1.2).log10()];
        for (name, rows) in by(fastest_peers(rows), bar_name) {
            let marker = bar_of(&rows);
            let x: Vec<String> = rows.iter().map(|r| r.group.clone()).collect();
            let y: Vec<f64> = rows.iter().map(|r| median(r)).collect();
            let text: Vec<String> = rows.iter().map(|r| hover(r)).collect();
            plot.add_trace(Bar::new(x, y).name(name).marker(marker).hover_text_array(text).hover_info(HoverInfo::Text));
        }
        plot.set_layout(
            Layout::new()
                .bar_mode(BarMode::Group)
                .x_axis(axis("", AxisType::Category))
                .y_axis(axis("µs per frame", AxisType::Log).range(range)),
        );
        Figure {
            title: format!("Time per variant, {frame}"),
            about: format!("Lower is better. Median of all repetitions, logarithmic.{hatched}"),
            plot,
        }
    };
    sizes.into_iter().map(figure).take(MOST_FIGURES).collect()
}

/// The filter's name without its window.
fn filter_of(row: &Row) -> String {
    row.group.split(' ').next().unwrap_or_default().to_owned()
}

fn lines(rows: Vec<&Row>, x: impl Fn(&Row) -> f64) -> Plot {
    let mut plot = Plot::new();
    for (name, mut rows) in by(rows, who) {
        rows.sort_by(|a, b| x(a).total_cmp(&x(b)));
        let text: Vec<String> = rows.iter().map(|r| hover(r)).collect();
        let trace = Scatter::new(rows.iter().map(|r| x(r)).collect(), rows.iter().map(|r| median(r)).collect());
        let trace = trace.mode(Mode::LinesMarkers).line(line_of(&rows));
        plot.add_trace(trace.name(name).hover_text_array(text).hover_info(HoverInfo::Text));
    }
    plot
}

fn distinct(rows: &[&Row], value: impl Fn(&Row) -> u64) -> usize {
    rows.iter().map(|r| value(r)).collect::<std::collections::BTreeSet<_>>().len()
}

/// Where variants cross as windows grow.
fn against_window(rows: &[&Row]) -> Vec<Figure> {
    let varied = rows.iter().copied().filter(|r| r.level == Level::Kernel && r.kernel.is_some());
    let groups = by(varied, |r| format!("{}, {}", filter_of(r), frame(r)));
    let groups = groups.into_iter().filter(|(_, rows)| distinct(rows, |r| r.kernel.unwrap_or(0) as u64) > 1);
    let figure = |(name, rows): (String, Vec<&Row>)| {
        let mut plot = lines(rows, |r| r.kernel.unwrap_or(0) as f64);
        plot.set_layout(Layout::new().x_axis(axis("window side, samples", AxisType::Linear)).y_axis(axis("µs per frame", AxisType::Log)));
        Figure {
            title: format!("Time against window size: {name}"),
            about: "Where lines cross, another variant is the better choice.".to_owned(),
            plot,
        }
    };
    groups.map(figure).take(2 * MOST_FIGURES).collect()
}

/// How time grows with the frame.
fn against_size(rows: &[&Row]) -> Vec<Figure> {
    let kernels = rows.iter().copied().filter(|r| r.level == Level::Kernel);
    let groups = by(kernels, |r| format!("{}, {} {}", r.group, r.planes, r.r#type));
    let groups = groups.into_iter().filter(|(_, rows)| distinct(rows, |r| (r.width * r.height) as u64) > 1);
    let figure = |(name, rows): (String, Vec<&Row>)| {
        let mut plot = lines(rows, samples);
        plot.set_layout(Layout::new().x_axis(axis("samples per plane", AxisType::Log)).y_axis(axis("µs per frame", AxisType::Log)));
        Figure {
            title: format!("Time against frame size: {name}"),
            about: "A straight line of slope 1 is time in proportion to samples.".to_owned(),
            plot,
        }
    };
    groups.map(figure).take(MOST_FIGURES).collect()
}

/// Arithmetic rate against arithmetic intensity, under the roof that the copy of the same run puts up.
fn roofline(rows: &[&Row]) -> Option<Figure> {
    let points: Vec<&Row> = rows.iter().copied().filter(|r| r.level == Level::Kernel && r.operations.is_some() && r.bytes > 0).collect();
    let operations = |row: &Row| 2.0 * row.operations.unwrap_or(0.0) * samples(row);
    let intensity = |row: &Row| operations(row) / row.bytes as f64;
    if points.is_empty() {
        return None;
    }
    let mut plot = Plot::new();
    for (name, rows) in by(points.iter().copied(), who) {
        let text: Vec<String> = rows.iter().map(|r| hover(r)).collect();
        let rate = |r: &&Row| operations(r) / median(r).max(1e-9) / 1e3;
        let trace = Scatter::new(rows.iter().map(|r| intensity(r)).collect(), rows.iter().map(rate).collect());
        plot.add_trace(
            trace.mode(Mode::Markers).marker(Marker::new().size(9)).name(name).hover_text_array(text).hover_info(HoverInfo::Text),
        );
    }
    let ends = points.iter().map(|r| intensity(r)).fold((f64::INFINITY, 0.0f64), |(low, high), x| (low.min(x), high.max(x)));
    let mut about = "2 operations per multiply-add of the plain formula over the bytes of one reading and one writing. ".to_owned();
    let copies = rows.iter().filter(|r| r.variant.starts_with("copy") && r.level == Level::Kernel);
    for (backend, rows) in by(copies.copied(), |r| r.backend.clone()) {
        let rate = rows.iter().filter_map(|r| r.gb_per_s).fold(0.0, f64::max);
        let x = vec![ends.0 / 1.5, ends.1 * 1.5];
        let y: Vec<f64> = x.iter().map(|x| x * rate).collect();
        let name = format!("{backend}: copy at {rate:.0} GB/s");
        plot.add_trace(Scatter::new(x, y).mode(Mode::Lines).line(Line::new().dash(DashType::Dash)).name(name));
        let _ = write!(
            about,
            "Nothing that reads and writes memory once gets above the dashed line of its device's copy rate, measured in this run. "
        );
    }
    plot.set_layout(
        Layout::new().x_axis(axis("operations per byte", AxisType::Log)).y_axis(axis("10⁹ operations per second", AxisType::Log)),
    );
    Some(Figure { title: "Roofline".to_owned(), about, plot })
}

/// Frames per second over lanes.
fn lanes(rows: &[&Row]) -> Option<Figure> {
    let loops: Vec<&Row> = rows.iter().copied().filter(|r| r.level == Level::Loop).collect();
    if loops.is_empty() {
        return None;
    }
    let mut plot = Plot::new();
    let name = |r: &Row| format!("{} {} {}, {}", r.graph, frame(r), r.memory.as_deref().unwrap_or_default(), r.variant);
    for (name, rows) in by(loops, name) {
        let x: Vec<usize> = rows.iter().filter_map(|r| r.lanes).collect();
        let y: Vec<f64> = rows.iter().map(|r| r.fps.unwrap_or(0.0)).collect();
        plot.add_trace(Scatter::new(x, y).mode(Mode::LinesMarkers).name(name));
    }
    plot.set_layout(Layout::new().x_axis(axis("lanes", AxisType::Linear)).y_axis(axis("frames per second", AxisType::Linear)));
    Some(Figure { title: "Loop: host memory to host memory".to_owned(), about: "Higher is better.".to_owned(), plot })
}

/// How busy each stage of whole runs is.
fn stages(rows: &[&Row]) -> Option<Figure> {
    let runs: Vec<&Row> = rows.iter().copied().filter(|r| r.level == Level::Pipeline && !r.stages.is_empty()).collect();
    if runs.is_empty() {
        return None;
    }
    let mut names: Vec<&str> = Vec::new();
    for stage in runs.iter().flat_map(|r| &r.stages) {
        if !names.contains(&stage.name.as_str()) {
            names.push(&stage.name);
        }
    }
    let mut plot = Plot::new();
    for name in names {
        let share = |r: &&Row| r.stages.iter().find(|s| s.name == name).map_or(0.0, |s| s.busy_percent);
        plot.add_trace(Bar::new(runs.iter().map(|r| r.group.clone()).collect(), runs.iter().map(share).collect()).name(name));
    }
    plot.set_layout(
        Layout::new().bar_mode(BarMode::Group).x_axis(axis("", AxisType::Category)).y_axis(axis("busy, % of the run", AxisType::Linear)),
    );
    Some(Figure { title: "Stages of whole runs".to_owned(), about: "The busiest stage limits the run.".to_owned(), plot })
}

/// A few frames of a whole run on their way.
fn timeline(rows: &[&Row]) -> Option<Figure> {
    let row = rows.iter().find(|r| !r.timeline.is_empty())?;
    let mut plot = Plot::new();
    let mut names: Vec<&str> = Vec::new();
    for span in &row.timeline {
        if !names.contains(&span.name.as_str()) {
            names.push(&span.name);
        }
    }
    for name in names {
        // Each span is a thick line; a gap ends it.
        let (mut x, mut y, mut text) = (Vec::new(), Vec::new(), Vec::new());
        for span in row.timeline.iter().filter(|s| s.name == name) {
            x.extend([Some(span.start_us / 1e3), Some((span.start_us + span.length_us) / 1e3), None]);
            y.extend([Some(span.track.clone()), Some(span.track.clone()), None]);
            let frame = span.frame.map_or(String::new(), |n| format!(", frame {n}"));
            let label = format!("{name}{frame}: {:.3} ms", span.length_us / 1e3);
            text.extend([label.clone(), label, String::new()]);
        }
        let trace = Scatter::new(x, y).mode(Mode::Lines).line(Line::new().width(16.0)).name(name);
        plot.add_trace(trace.hover_text_array(text).hover_info(HoverInfo::Text));
    }
    plot.set_layout(Layout::new().x_axis(axis("ms", AxisType::Linear)).y_axis(axis("", AxisType::Category)));
    let about = "Work of each thread and lane on consecutive frames; what lies above each other happens at the same time.".to_owned();
    Some(Figure { title: format!("Timeline: {}, {}", row.group, frame(row)), about, plot })
}

fn table(rows: &[Row]) -> String {
    let mut text = String::from(
        "<section><h2>All rows</h2><div class=\"scroll\"><table><tr><th class=\"l\">level</th><th class=\"l\">what</th><th class=\"l\">frame</th>\
         <th class=\"l\">variant</th><th>lanes</th><th>median µs</th><th>p5</th><th>p95</th><th>n</th><th>fps</th><th>GB/s</th><th>copy ÷ time</th>\
         <th>speed-up</th><th>max error</th><th class=\"l\">notes</th></tr>\n",
    );
    for row in rows {
        let number = |n: Option<f64>, digits: usize| n.map_or(String::new(), |n| format!("{n:.digits$}"));
        let time = |pick: fn(&super::summary::Summary) -> f64| number(row.time_us.as_ref().map(pick), 2);
        let lanes = row.lanes.map_or(String::new(), |n| n.to_string());
        let cells = [
            lanes,
            time(|t| t.median),
            time(|t| t.p5),
            time(|t| t.p95),
            row.time_us.map_or(String::new(), |t| t.count.to_string()),
            number(row.fps, 1),
            number(row.gb_per_s, 1),
            number(row.copy_share, 2),
            number(row.speedup, 2),
            row.check.map_or(String::new(), |c| format!("{:.2e}", c.max_error)),
        ];
        let left = [row.level.name().to_owned(), row.group.clone(), frame(row), who(row)]
            .map(|c| format!("<td class=\"l\">{}</td>", escape(&c)))
            .concat();
        let right = cells.map(|c| format!("<td>{c}</td>")).concat();
        let notes: Vec<&str> = row.notes.iter().map(String::as_str).filter(|n| super::table::is_told(n) || *n == "auto's choice").collect();
        let error = row.error.as_ref().map_or(String::new(), |e| format!("<span class=\"bad\">{}</span>", escape(e)));
        let doubt = if row.warnings.is_empty() {
            String::new()
        } else {
            format!(" <span class=\"doubt\">{}</span>", escape(&row.warnings.join("; ")))
        };
        let class = if is_peer(row) { " class=\"peer\"" } else { "" };
        let _ = writeln!(text, "<tr{class}>{left}{right}<td class=\"l\">{}{error}{doubt}</td></tr>", escape(&notes.join("; ")));
    }
    text + "</table></div></section>\n"
}

#[cfg(test)]
mod tests {
    use super::super::store::tests::{document, row};
    use super::*;

    #[test]
    fn the_page_is_whole_and_nothing_breaks_out_of_it() {
        let mut rows = Vec::new();
        for k in [3usize, 5] {
            for (variant, us) in [("cpu-scalar", 40.0), ("cpu-simd", 10.0), ("copy (one thread)", 5.0)] {
                let mut row = row(&format!("gauss {k}x{k}"), variant, &[us * k as f64]);
                row.kernel = Some(k);
                row.bytes = 6144;
                row.gb_per_s = Some(1.2);
                row.operations = (variant != "copy (one thread)").then_some(2.0 * k as f64);
                rows.push(row);
            }
        }
        for (variant, us) in [("FilterA", 30.0), ("FilterB", 20.0)] {
            let mut row = row("gauss 3x3", variant, &[us]);
            row.program = "npp".to_owned();
            rows.push(row);
        }
        let shown: Vec<String> = fastest_peers(rows.iter().collect()).into_iter().filter(|r| is_peer(r)).map(who).collect();
        assert_eq!(shown, ["npp FilterB"]);
        let mut wrong = row("</script><b>evil", "cpu-simd", &[1.0]);
        wrong.warnings.push("<i>".to_owned());
        rows.push(wrong);
        let mut bench = document(rows);
        bench.environment.command = "convoy bench <x>".to_owned();
        let page = page(&bench);
        for part in [
            "Time per variant, 64x48 gray u8",
            "Time against window size: gauss, 64x48 gray u8",
            "Roofline",
            "All rows",
            "convoy bench &lt;x&gt;",
            "are hatched",
            "<tr class=\"peer\">",
        ] {
            assert!(page.contains(part), "{part}");
        }
        assert!(!page.contains("Time against frame size") && !page.contains("<b>evil") && !page.contains("<i>"));
        // Plotly's own element, and ours.
        assert_eq!(page.matches("</script>").count(), 2);
        // Plotly's code is inside, and nothing of ours is fetched.
        let body = page.split("</head>").nth(1).unwrap();
        assert!(!body.contains("http") && page.len() > 1_000_000);
    }
}
