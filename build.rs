//! Gathers `kernels/*` into one sorted, hashed table that the binary embeds, and the kernel pack that `CONVOY_EMBED_KERNEL_PACK` names; asks
//! which FFmpeg is linked.

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
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("kernels.rs"), table)?;
    fs::write(out.join("pack.rs"), pack()?)?;
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
