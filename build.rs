//! Gathers `kernels/*` into one sorted, hashed table that the binary embeds, and the kernel pack that `CONVOY_EMBED_KERNEL_PACK` names; hashes
//! what decides how fast a kernel variant is; asks which FFmpeg is linked.

use std::error::Error;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use sha2::{Digest, Sha256};

fn main() -> Result<(), Box<dyn Error>> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let kernels = root.join("kernels");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=kernels");

    // Told by ffmpeg-sys-next: 6.0 took away what makes get_buffer2 callbacks thread-safe before it.
    println!("cargo::rustc-check-cfg=cfg(ffmpeg_6)");
    if env::var_os("DEP_FFMPEG_FFMPEG_6_0").is_some_and(|v| v == "true") {
        println!("cargo::rustc-cfg=ffmpeg_6");
    }

    let mut files: Vec<PathBuf> = fs::read_dir(&kernels)?.map(|entry| Ok(entry?.path())).collect::<Result<_, std::io::Error>>()?;
    files.retain(|path| path.extension().is_some_and(|e| e == "cu" || e == "cuh"));
    files.sort();

    let header = fs::read(kernels.join("plane.cuh"))?;
    let mut table = String::from("/// Kernel sources: name, text, and SHA-256 of the text together with `plane.cuh`.\n");
    table.push_str("pub static SOURCES: &[Source] = &[\n");
    for path in &files {
        println!("cargo::rerun-if-changed={}", path.display());
        let text = fs::read(path)?;
        let name = file_name(path)?;
        let hash = Sha256::new().chain_update(&header).chain_update(&text).finalize();
        writeln!(table, "    Source {{ name: {name:?}, text: include_str!({:?}), hash: {:?} }},", path, hex(&hash))?;
    }
    table.push_str("];\n");
    writeln!(
        table,
        "/// SHA-256 of all that decides how fast a variant is; see `code`.\npub static CODE: &str = {:?};",
        code(&root, &files)?
    )?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("kernels.rs"), table)?;
    fs::write(out.join("pack.rs"), pack()?)?;
    Ok(())
}

/// A hash of the kernels and of the code that chooses their parameters and launches them: a time that was measured with another one says
/// nothing. The code itself, since a version of its own would be forgotten.
fn code(root: &Path, kernels: &[PathBuf]) -> Result<String, Box<dyn Error>> {
    const LOWERING: [&str; 2] = ["src/backend/cuda", "src/filter/lower.rs"];
    let mut files = kernels.to_vec();
    for place in LOWERING {
        println!("cargo::rerun-if-changed={place}");
        sources(&root.join(place), &mut files)?;
    }
    files.sort();
    let mut hash = Sha256::new().chain_update(env::var("CARGO_PKG_VERSION")?);
    for path in &files {
        let text = fs::read(path)?;
        let name = path.strip_prefix(root)?.to_string_lossy();
        hash.update(format!("{name} {}\n", text.len()));
        hash.update(text);
    }
    Ok(hex(&hash.finalize()))
}

/// Adds `path`, or the Rust files below it.
fn sources(path: &Path, found: &mut Vec<PathBuf>) -> Result<(), Box<dyn Error>> {
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            let path = entry?.path();
            if path.is_dir() || path.extension().is_some_and(|e| e == "rs") {
                sources(&path, found)?;
            }
        }
    } else {
        found.push(path.to_owned());
    }
    Ok(())
}

/// The embedded kernel pack, as an item of `pack.rs`.
fn pack() -> Result<String, Box<dyn Error>> {
    const VARIABLE: &str = "CONVOY_EMBED_KERNEL_PACK";
    println!("cargo::rerun-if-env-changed={VARIABLE}");
    let value = match env::var_os(VARIABLE).filter(|v| !v.is_empty()) {
        Some(path) => {
            let path = PathBuf::from(path).canonicalize().map_err(|e| format!("{VARIABLE}: {e}"))?;
            println!("cargo::rerun-if-changed={}", path.display());
            format!("Some(include_bytes!({path:?}))")
        }
        None => "None".to_owned(),
    };
    Ok(format!("/// The kernel pack that the program was built with.\nstatic EMBEDDED_PACK: Option<&'static [u8]> = {value};\n"))
}

fn file_name(path: &Path) -> Result<String, Box<dyn Error>> {
    Ok(path.file_name().and_then(|n| n.to_str()).ok_or("a kernel file's name is not UTF-8")?.to_owned())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
