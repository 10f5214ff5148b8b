//! Gathers `kernels/*` into one sorted, hashed table that the binary embeds, and asks which FFmpeg is linked.

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
    fs::write(PathBuf::from(env::var("OUT_DIR")?).join("kernels.rs"), table)?;
    Ok(())
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
