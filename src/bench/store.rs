//! Files of a bench: written anew, whole, after every row, so that a bench that is killed leaves what it had.

use std::io::Write;
use std::path::{Path, PathBuf};

use super::row::{Document, Row};
use crate::error::{Error, Result};

/// What is written where.
#[derive(Clone, Debug, Default)]
pub struct Store {
    /// The document.
    pub json: Option<PathBuf>,
    /// One line per row.
    pub csv: Option<PathBuf>,
}

impl Store {
    /// Writes what was asked for.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn save(&self, document: &Document) -> Result<()> {
        if let Some(path) = &self.json {
            replace(path, json(document)?.as_bytes())?;
        }
        if let Some(path) = &self.csv {
            replace(path, csv(&document.rows).as_bytes())?;
        }
        Ok(())
    }
}

/// Reads a document.
///
/// # Errors
/// It cannot be read, or is of another schema.
pub fn load(path: &Path) -> Result<Document> {
    let what = || format!("cannot read the bench '{}'", path.display());
    let text = std::fs::read_to_string(path).map_err(|e| Error::failed(what(), e))?;
    let document: Document =
        serde_json::from_str(&text).map_err(|e| Error::failed(what(), e).hint("give it a file that `convoy bench --json=FILE` wrote"))?;
    if document.schema != super::row::SCHEMA {
        return Err(Error::failed(what(), format!("it is of schema {}, this program writes {}", document.schema, super::row::SCHEMA)));
    }
    Ok(document)
}

/// The document as text.
///
/// # Errors
/// Never for documents that this program made.
pub fn json(document: &Document) -> Result<String> {
    serde_json::to_string_pretty(document).map_err(|e| Error::failed("cannot write the bench as JSON", e))
}

/// Writes under another name in the same folder, then renames: a reader sees the old file or the new one.
///
/// # Errors
/// The folder cannot be written.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let write = || -> std::io::Result<()> {
        let mut file = tempfile::Builder::new().prefix(".convoy-bench-").permissions(permissions()).tempfile_in(folder)?;
        file.write_all(bytes)?;
        file.persist(path)?;
        Ok(())
    };
    write().map_err(|e| Error::failed(format!("cannot write '{}'", path.display()), e))
}

/// Those of an ordinary new file; the user's mask applies.
fn permissions() -> std::fs::Permissions {
    use std::os::unix::fs::PermissionsExt;
    std::fs::Permissions::from_mode(0o666)
}

/// Columns of the CSV.
const COLUMNS: [&str; 29] = [
    "level",
    "group",
    "graph",
    "kernel",
    "width",
    "height",
    "planes",
    "type",
    "border",
    "batch",
    "program",
    "backend",
    "variant",
    "lanes",
    "memory",
    "error",
    "median_us",
    "p5_us",
    "p95_us",
    "spread",
    "count",
    "wall_median_us",
    "fps",
    "gb_per_s",
    "copy_share",
    "speedup",
    "max_error",
    "start_up_ms",
    "net_fps",
];

/// All rows, with a heading (RFC 4180).
pub fn csv(rows: &[Row]) -> String {
    let mut text = COLUMNS.join(",");
    text.push('\n');
    for row in rows {
        let number = |n: Option<f64>| n.map_or(String::new(), |n| format!("{n}"));
        let time = |pick: fn(&super::summary::Summary) -> f64| number(row.time_us.as_ref().map(pick));
        let whole = |n: Option<usize>| n.map_or(String::new(), |n| n.to_string());
        let fields: [String; COLUMNS.len()] = [
            row.level.name().to_owned(),
            row.group.clone(),
            row.graph.clone(),
            whole(row.kernel),
            row.width.to_string(),
            row.height.to_string(),
            row.planes.clone(),
            row.r#type.clone(),
            row.border.clone(),
            row.batch.to_string(),
            row.program.clone(),
            row.backend.clone(),
            row.variant.clone(),
            whole(row.lanes),
            row.memory.clone().unwrap_or_default(),
            row.error.clone().unwrap_or_default(),
            time(|t| t.median),
            time(|t| t.p5),
            time(|t| t.p95),
            time(|t| t.spread),
            whole(row.time_us.as_ref().map(|t| t.count)),
            number(row.wall_us.as_ref().map(|t| t.median)),
            number(row.fps),
            number(row.gb_per_s),
            number(row.copy_share),
            number(row.speedup),
            number(row.check.as_ref().map(|c| c.max_error)),
            number(row.start_up_ms),
            number(row.net_fps),
        ];
        text.push_str(&fields.map(|field| quoted(&field)).join(","));
        text.push('\n');
    }
    text
}

fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) { format!("\"{}\"", field.replace('"', "\"\"")) } else { field.to_owned() }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::row::{Environment, SCHEMA};
    use super::super::summary::Summary;
    use super::*;
    use crate::cli::Level;
    use crate::frame::{PixelFormat, Shape};

    pub fn document(rows: Vec<Row>) -> Document {
        Document { schema: SCHEMA, complete: true, environment: Environment::default(), rows }
    }

    pub fn row(group: &str, variant: &str, times: &[f64]) -> Row {
        let shape = Shape { format: PixelFormat::gray(8), width: 64, height: 48 };
        let mut row = Row::new(Level::Kernel, group, "gblur=sigma=2,sobel", shape, ("gray", "u8"));
        (row.backend, row.variant) = ("cpu".to_owned(), variant.to_owned());
        row.time_us = (!times.is_empty()).then(|| Summary::of(times));
        row
    }

    #[test]
    fn a_document_is_read_back_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store { json: Some(folder.path().join("b.json")), csv: Some(folder.path().join("b.csv")) };
        let mut bench = document(vec![row("a", "cpu-simd", &[1.0, 2.0, 3.0])]);
        (bench.rows[0].start_up_ms, bench.rows[0].net_fps) = (Some(80.0), Some(1234.5));
        bench.complete = false;
        store.save(&bench).unwrap();
        let mut wrong = row("b \"quoted\"", "cpu-simd", &[]);
        wrong.error = Some("plane 0, x 1".to_owned());
        bench.rows.push(wrong);
        store.save(&bench).unwrap();
        let back = load(store.json.as_deref().unwrap()).unwrap();
        assert_eq!(json(&back).unwrap(), json(&bench).unwrap());
        let csv = std::fs::read_to_string(store.csv.unwrap()).unwrap();
        let lines: Vec<&str> = csv.lines().collect();
        assert!(lines[0].ends_with(",max_error,start_up_ms,net_fps") && lines[1].ends_with(",80,1234.5"), "{csv}");
        assert_eq!(lines.len(), 3);
        assert!(lines[1].starts_with("kernel,a,\"gblur=sigma=2,sobel\",,64,48,gray,u8,,1,convoy,cpu,cpu-simd,,,,2,1.1,2.9,"), "{csv}");
        assert!(lines[2].contains("\"b \"\"quoted\"\"\"") && lines[2].contains("\"plane 0, x 1\""), "{csv}");
        // Nothing else is left in the folder.
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn another_schema_or_no_document_is_refused_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.json");
        assert!(load(&path).unwrap_err().to_string().contains("x.json"));
        std::fs::write(&path, "{}").unwrap();
        assert!(load(&path).unwrap_err().to_string().contains("--json=FILE"));
        let mut other = document(vec![]);
        other.schema = 99;
        std::fs::write(&path, json(&other).unwrap()).unwrap();
        assert!(load(&path).unwrap_err().to_string().contains("schema 99"));
        assert!(replace(&folder.path().join("no/such/x"), b"").unwrap_err().to_string().contains("no/such"));
    }
}
