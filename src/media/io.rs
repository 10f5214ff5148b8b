//! Reading from pipes, FIFOs and other descriptors in a way that an idle peer cannot block, and the interrupt callback.

use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ffmpeg_next::ffi;

use crate::cancel::Cancel;
use crate::error::{Error, Result};

const BUFFER_BYTES: usize = 64 << 10;
/// How long one poll waits before the cancel flag is looked at again.
const POLL_MS: libc::c_int = 50;

/// Sleeps without a thread API: waits on no descriptor.
pub(super) fn pause(ms: libc::c_int) {
    // SAFETY: no descriptors are passed.
    unsafe { libc::poll(std::ptr::null_mut(), 0, ms) };
}

struct Reader {
    fd: RawFd,
    /// Keeps a descriptor of our own open; standard input stays open by itself.
    _owner: Option<OwnedFd>,
    cancel: Cancel,
}

/// An AVIOContext over a descriptor. Must outlive the demuxer that uses it.
pub(super) struct FdInput {
    context: *mut ffi::AVIOContext,
    reader: *mut Reader,
}

// SAFETY: owned by one demuxer at a time; a descriptor is not tied to a thread.
unsafe impl Send for FdInput {}

impl FdInput {
    /// Standard input; seekable when it is a regular file.
    pub(super) fn stdin(cancel: &Cancel) -> Result<Self> {
        Self::new(libc::STDIN_FILENO, None, cancel)
    }

    /// A FIFO or character device, opened without waiting for the other end.
    pub(super) fn open(path: &std::path::Path, cancel: &Cancel) -> std::io::Result<Result<Self>> {
        use std::os::unix::fs::OpenOptionsExt;
        let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
        let fd = file.as_raw_fd();
        Ok(Self::new(fd, Some(file.into()), cancel))
    }

    fn new(fd: RawFd, owner: Option<OwnedFd>, cancel: &Cancel) -> Result<Self> {
        // SAFETY: querying a descriptor with an initialised buffer.
        let regular = unsafe {
            let mut stat: libc::stat = std::mem::zeroed();
            libc::fstat(fd, &mut stat) == 0 && stat.st_mode & libc::S_IFMT == libc::S_IFREG
        };
        let reader = Box::into_raw(Box::new(Reader { fd, _owner: owner, cancel: cancel.clone() }));
        // SAFETY: the buffer comes from FFmpeg's allocator, as avio_alloc_context demands; `reader` lives until drop.
        let context = unsafe {
            let buffer = ffi::av_malloc(BUFFER_BYTES).cast::<u8>();
            let seek: Option<unsafe extern "C" fn(*mut libc::c_void, i64, libc::c_int) -> i64> = if regular { Some(seek) } else { None };
            let context = if buffer.is_null() {
                std::ptr::null_mut()
            } else {
                ffi::avio_alloc_context(buffer, BUFFER_BYTES as libc::c_int, 0, reader.cast(), Some(read), None, seek)
            };
            if context.is_null() {
                ffi::av_free(buffer.cast());
                drop(Box::from_raw(reader));
            }
            context
        };
        if context.is_null() {
            return Err(Error::failed("cannot read from a pipe", "out of memory"));
        }
        Ok(Self { context, reader })
    }

    pub(super) fn as_ptr(&self) -> *mut ffi::AVIOContext {
        self.context
    }
}

impl Drop for FdInput {
    fn drop(&mut self) {
        // SAFETY: the demuxer is gone (field order in its owner); the buffer may have been replaced by FFmpeg, so the
        // context's own pointer is freed; then the reader, which nothing refers to any more.
        unsafe {
            ffi::av_freep((&raw mut (*self.context).buffer).cast());
            ffi::avio_context_free(&mut self.context);
            drop(Box::from_raw(self.reader));
        }
    }
}

unsafe extern "C" fn read(opaque: *mut libc::c_void, buffer: *mut u8, size: libc::c_int) -> libc::c_int {
    // SAFETY: `opaque` is the Reader that `FdInput` keeps alive; FFmpeg reads from one thread at a time.
    let reader = unsafe { &*opaque.cast::<Reader>() };
    let Ok(size) = usize::try_from(size) else { return ffi::AVERROR(libc::EINVAL) };
    loop {
        if reader.cancel.requested() {
            return ffi::AVERROR_EXIT;
        }
        let mut poll = libc::pollfd { fd: reader.fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one initialised entry.
        match unsafe { libc::poll(&mut poll, 1, POLL_MS) } {
            0 => continue,
            n if n < 0 => match errno() {
                libc::EINTR => continue,
                code => return ffi::AVERROR(code),
            },
            _ => {}
        }
        // SAFETY: FFmpeg gives `size` writable bytes.
        let got = unsafe { libc::read(reader.fd, buffer.cast(), size) };
        return match got {
            0 => ffi::AVERROR_EOF,
            n if n > 0 => libc::c_int::try_from(n).unwrap_or(libc::c_int::MAX),
            _ => match errno() {
                libc::EINTR | libc::EAGAIN => continue,
                code => ffi::AVERROR(code),
            },
        };
    }
}

unsafe extern "C" fn seek(opaque: *mut libc::c_void, offset: i64, whence: libc::c_int) -> i64 {
    // SAFETY: as in `read`.
    let reader = unsafe { &*opaque.cast::<Reader>() };
    // SAFETY: plain system calls on an open descriptor.
    let result = unsafe {
        if whence & ffi::AVSEEK_SIZE != 0 {
            let mut stat: libc::stat = std::mem::zeroed();
            if libc::fstat(reader.fd, &mut stat) == 0 { stat.st_size } else { -1 }
        } else {
            libc::lseek(reader.fd, offset, whence & 3)
        }
    };
    if result < 0 { i64::from(ffi::AVERROR(errno())) } else { result }
}

fn errno() -> libc::c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// Opens a FIFO for writing, waiting for its reader in a way that can be cancelled; None when `path` is no FIFO.
pub(super) fn open_fifo_for_writing(path: &str, cancel: &Cancel) -> std::io::Result<Option<OwnedFd>> {
    use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
    if !std::fs::metadata(path).is_ok_and(|m| m.file_type().is_fifo()) {
        return Ok(None);
    }
    let file = loop {
        match File::options().write(true).custom_flags(libc::O_NONBLOCK).open(path) {
            // Nobody reads yet.
            Err(e) if e.raw_os_error() == Some(libc::ENXIO) => {
                if cancel.requested() {
                    return Err(std::io::Error::other("interrupted while waiting for a reader"));
                }
                pause(POLL_MS);
            }
            other => break other?,
        }
    };
    // SAFETY: plain flag calls on an open descriptor; writes shall wait for the reader again.
    let code = unsafe {
        let flags = libc::fcntl(file.as_raw_fd(), libc::F_GETFL);
        libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags & !libc::O_NONBLOCK)
    };
    if code < 0 { Err(std::io::Error::last_os_error()) } else { Ok(Some(file.into())) }
}

/// What interrupts FFmpeg's blocking calls. Boxed, so that its address stays put.
pub(super) struct Interrupt {
    cancel: Cancel,
    grace: Option<Grace>,
}

struct Grace {
    allowed: Duration,
    created: Instant,
    /// When the current call began, in nanoseconds after `created`.
    began_ns: AtomicU64,
}

impl Interrupt {
    /// Interrupts as soon as the run is cancelled: for inputs.
    pub(super) fn at_once(cancel: &Cancel) -> Box<Self> {
        Box::new(Self { cancel: cancel.clone(), grace: None })
    }

    /// Interrupts a call of a cancelled run that takes longer than `allowed`: outputs must still get their trailer, but a
    /// peer that takes nothing must not hold the process.
    pub(super) fn after(cancel: &Cancel, allowed: Duration) -> Box<Self> {
        let grace = Grace { allowed, created: Instant::now(), began_ns: AtomicU64::new(0) };
        Box::new(Self { cancel: cancel.clone(), grace: Some(grace) })
    }

    /// A call that may block begins now.
    pub(super) fn begin(&self) {
        if let Some(grace) = &self.grace {
            let now = u64::try_from(grace.created.elapsed().as_nanos()).unwrap_or(u64::MAX);
            grace.began_ns.store(now, Ordering::Relaxed);
        }
    }

    /// Whether the run was cut short.
    pub(super) fn cancelled(&self) -> bool {
        self.cancel.requested()
    }

    pub(super) fn callback(&self) -> ffi::AVIOInterruptCB {
        ffi::AVIOInterruptCB { callback: Some(interrupted), opaque: std::ptr::from_ref(self).cast_mut().cast() }
    }
}

unsafe extern "C" fn interrupted(opaque: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `opaque` is the boxed Interrupt that the context's owner keeps alive.
    let interrupt = unsafe { &*opaque.cast::<Interrupt>() };
    let overdue = |g: &Grace| g.created.elapsed().saturating_sub(Duration::from_nanos(g.began_ns.load(Ordering::Relaxed))) > g.allowed;
    let cancel = &interrupt.cancel;
    // An aborted run has no use for its output, so nothing need be waited for.
    (cancel.aborted() || cancel.requested() && interrupt.grace.as_ref().is_none_or(overdue)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_interrupted_only_when_a_call_of_a_cancelled_run_hangs() {
        let cancel = Cancel::new();
        let (input, output) = (Interrupt::at_once(&cancel), Interrupt::after(&cancel, Duration::from_millis(30)));
        // SAFETY: both objects outlive the calls.
        let asks = |i: &Interrupt| unsafe { interrupted(i.callback().opaque) };
        output.begin();
        pause(40);
        assert_eq!((asks(&input), asks(&output)), (0, 0));
        cancel.request(2);
        assert_eq!((asks(&input), asks(&output)), (1, 1));
        output.begin();
        assert_eq!(asks(&output), 0);
        cancel.abort();
        assert_eq!(asks(&output), 1);
    }
}
