//! Kernel packs: compiled kernels of several architectures in one file, for machines with a driver and no NVRTC.
//!
//! `convoy kernels pack` writes one. A run takes the file that `CONVOY_KERNEL_PACK` names, else the one embedded at build time
//! (`CONVOY_EMBED_KERNEL_PACK`, see build.rs). Entries are found by what was compiled (source, defines, architecture), checked by SHA-256 and
//! compressed. A cubin also runs on later GPUs of its major architecture, so an entry for sm_80 serves sm_86 and sm_89.
//!
//! Layout, little-endian: `CONVOYP1`, u32 major and minor of NVRTC, u32 number of entries; per entry 32 bytes of key, 32 of the cubin's
//! digest, u64 offset, u32 compressed length, u32 length; then the data.

use std::borrow::Cow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::{env, fs};

use sha2::{Digest, Sha256};

use super::compile::{Nvrtc, Request, source};
use crate::error::{Error, Result};

include!(concat!(env!("OUT_DIR"), "/pack.rs"));

const MAGIC: &[u8; 8] = b"CONVOYP1";
const HEAD: usize = 20;
const ENTRY: usize = 80;
/// No kernel of ours is near this; a damaged length must not allocate the machine away.
const MOST_BYTES: usize = 64 << 20;

type Key = [u8; 32];

#[derive(Clone, Copy, Debug)]
struct Entry {
    digest: Key,
    offset: usize,
    packed: usize,
    length: usize,
}

/// An open pack.
#[derive(Clone, Debug)]
pub struct Pack {
    data: Cow<'static, [u8]>,
    entries: HashMap<Key, Entry>,
    compiler: (u32, u32),
    /// Where it came from; None if it is part of the program.
    path: Option<PathBuf>,
}

/// What decides a cubin, the compiler aside.
fn key(request: &Request) -> Key {
    let hash = source(request.file).map_or("", |s| s.hash);
    Sha256::digest(format!("{request}\n{hash}\nconvoy kernel pack 1")).into()
}

impl Pack {
    /// The pack that the user names, else the embedded one, if there is one.
    ///
    /// # Errors
    /// The named file cannot be read or is no pack.
    pub fn open() -> Result<Option<Self>> {
        match env::var_os("CONVOY_KERNEL_PACK").filter(|v| !v.is_empty()) {
            Some(path) => Self::read(Path::new(&path)).map(Some),
            None => match EMBEDDED_PACK {
                Some(data) => {
                    Self::parse(Cow::Borrowed(data)).map(Some).map_err(|why| Error::failed("cannot use the embedded kernel pack", why))
                }
                None => Ok(None),
            },
        }
    }

    /// Reads a pack.
    ///
    /// # Errors
    /// The file cannot be read or is no pack.
    pub fn read(path: &Path) -> Result<Self> {
        let what = || format!("cannot use the kernel pack '{}'", path.display());
        let data = fs::read(path).map_err(|e| Error::failed(what(), e))?;
        let pack =
            Self::parse(Cow::Owned(data)).map_err(|why| Error::failed(what(), why).hint("make it anew with `convoy kernels pack`"))?;
        Ok(Self { path: Some(path.to_owned()), ..pack })
    }

    fn parse(data: Cow<'static, [u8]>) -> Result<Self, String> {
        let word = |at: usize| -> Option<usize> {
            let bytes: [u8; 4] = data.get(at..at + 4)?.try_into().ok()?;
            usize::try_from(u32::from_le_bytes(bytes)).ok()
        };
        let cut = "it is cut short";
        if data.get(..8) != Some(MAGIC.as_slice()) {
            return Err("it is no kernel pack of this version".to_owned());
        }
        let (major, minor, count) = (word(8).ok_or(cut)?, word(12).ok_or(cut)?, word(16).ok_or(cut)?);
        let table = data.get(HEAD..).unwrap_or_default().chunks_exact(ENTRY);
        if table.len() < count {
            return Err(cut.to_owned());
        }
        let mut entries = HashMap::with_capacity(count);
        for (index, raw) in table.take(count).enumerate() {
            let at = HEAD + index * ENTRY;
            let (Some(key), Some(digest), Some(offset)) = (raw.first_chunk(), raw.get(32..64), raw.get(64..72)) else {
                return Err(cut.to_owned());
            };
            let offset = offset.try_into().ok().map(u64::from_le_bytes).and_then(|o| usize::try_from(o).ok()).ok_or(cut)?;
            let (packed, length) = (word(at + 72).ok_or(cut)?, word(at + 76).ok_or(cut)?);
            if offset.checked_add(packed).is_none_or(|end| end > data.len()) || length > MOST_BYTES {
                return Err(cut.to_owned());
            }
            let digest = digest.try_into().map_err(|_| cut)?;
            entries.insert(*key, Entry { digest, offset, packed, length });
        }
        let narrow = |n: usize| u32::try_from(n).unwrap_or(0);
        Ok(Self { entries, compiler: (narrow(major), narrow(minor)), path: None, data })
    }

    /// Cubins.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Version of the NVRTC that made it.
    pub fn compiler(&self) -> (u32, u32) {
        self.compiler
    }

    /// Its file; None if it is embedded.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The entry for `request`, or for an earlier architecture of the same major.
    fn find(&self, request: &Request) -> Option<&Entry> {
        let digits = request.arch.strip_prefix("sm_")?;
        let (major, minor) = digits.split_at_checked(digits.len().checked_sub(1)?)?;
        let minor: u32 = minor.parse().ok()?;
        let earlier = (0..=minor).rev().map(|minor| Request { arch: format!("sm_{major}{minor}"), ..request.clone() });
        earlier.map(|request| key(&request)).find_map(|key| self.entries.get(&key))
    }

    /// Whether it has a cubin for `request`.
    pub fn contains(&self, request: &Request) -> bool {
        self.find(request).is_some()
    }

    /// The cubin for `request`; None if it has none, or a damaged one.
    pub fn cubin(&self, request: &Request) -> Option<Vec<u8>> {
        let entry = self.find(request)?;
        let packed = self.data.get(entry.offset..entry.offset + entry.packed)?;
        let cubin = miniz_oxide::inflate::decompress_to_vec_with_limit(packed, entry.length).ok()?;
        (cubin.len() == entry.length && Key::from(Sha256::digest(&cubin)) == entry.digest).then_some(cubin)
    }
}

/// A pack in the making.
#[derive(Debug, Default)]
pub struct Builder {
    entries: Vec<(Key, Key, usize, Vec<u8>)>,
}

impl Builder {
    /// Adds what `request` was compiled to.
    pub fn add(&mut self, request: &Request, cubin: &[u8]) {
        let packed = miniz_oxide::deflate::compress_to_vec(cubin, 6);
        self.entries.push((key(request), Sha256::digest(cubin).into(), cubin.len(), packed));
    }

    /// The pack's bytes.
    ///
    /// # Errors
    /// It would be larger than its format can say.
    pub fn finish(mut self, nvrtc: &Nvrtc) -> Result<Vec<u8>> {
        let too_large = |_| Error::failed("cannot make a kernel pack", "it is too large");
        self.entries.sort_by_key(|(key, ..)| *key);
        self.entries.dedup_by_key(|(key, ..)| *key);
        let (major, minor) = nvrtc.version();
        let count = u32::try_from(self.entries.len()).map_err(too_large)?;
        let mut out = Vec::new();
        out.extend_from_slice(MAGIC);
        [major, minor, count].iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
        let mut offset = HEAD + self.entries.len() * ENTRY;
        for (key, digest, length, packed) in &self.entries {
            out.extend_from_slice(key);
            out.extend_from_slice(digest);
            out.extend_from_slice(&(offset as u64).to_le_bytes());
            out.extend_from_slice(&u32::try_from(packed.len()).map_err(too_large)?.to_le_bytes());
            out.extend_from_slice(&u32::try_from(*length).map_err(too_large)?.to_le_bytes());
            offset += packed.len();
        }
        self.entries.iter().for_each(|(.., packed)| out.extend_from_slice(packed));
        Ok(out)
    }
}
