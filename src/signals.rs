//! SIGINT, SIGTERM and SIGHUP (a closed terminal): the first asks the run to drain, the second ends the process at once.

use std::sync::Arc;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;
use signal_hook::low_level::exit;

use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::pipeline::spawn_helper;
use crate::status;

/// Installs the handlers for the life of the process.
///
/// # Errors
/// The system refused a handler or its thread.
pub fn install(cancel: &Cancel) -> Result<()> {
    let cancel = cancel.clone();
    catch(move |signal| arrived(&cancel, signal))
}

/// As [`install`], for work that has nothing to drain: the first signal calls `clean_up` and ends the process.
///
/// # Errors
/// As for [`install`].
pub fn install_ending(clean_up: impl Fn() + Clone + Send + 'static) -> Result<()> {
    catch(move |signal| {
        clean_up();
        status::say("stopped; what is missing was not measured");
        exit(128 + signal)
    })
}

fn catch(arrived: impl Fn(i32) + Clone + Send + 'static) -> Result<()> {
    let failed = |e: &dyn std::fmt::Display| Error::failed("cannot install the signal handlers", e);
    let on_interrupt = arrived.clone();
    ctrlc::set_handler(move || on_interrupt(SIGINT)).map_err(|e| failed(&e))?;
    // Past a file size limit the write then fails with an error that is reported, instead of the process dying.
    signal_hook::flag::register(SIGXFSZ, Arc::default()).map_err(|e| failed(&e))?;
    let caught: &[i32] = if hang_up_is_ignored() { &[SIGTERM] } else { &[SIGTERM, SIGHUP] };
    let mut signals = Signals::new(caught).map_err(|e| failed(&e))?;
    spawn_helper("signals", move || signals.forever().for_each(arrived))?;
    Ok(())
}

/// Whether the process was started under `nohup`: then a closed terminal must not end the run.
fn hang_up_is_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|l| l.strip_prefix("SigIgn:")).and_then(|m| u64::from_str_radix(m.trim(), 16).ok());
    mask.is_some_and(|m| m >> (SIGHUP - 1) & 1 == 1)
}

fn arrived(cancel: &Cancel, signal: i32) {
    if cancel.request(signal) {
        status::say("stopping; finishing the file (again to stop at once)");
    } else {
        cancel.remove_temporary();
        // Without exit handlers: other threads are still inside FFmpeg or the driver.
        exit(128 + signal);
    }
}
