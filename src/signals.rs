//! SIGINT and SIGTERM: the first asks the run to drain, the second ends the process at once.

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::exit;

use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::pipeline::spawn_helper;

/// Installs both handlers for the life of the process.
///
/// # Errors
/// The system refused a handler or its thread.
pub fn install(cancel: &Cancel) -> Result<()> {
    let failed = |e: &dyn std::fmt::Display| Error::failed("cannot install the signal handlers", e);
    let on_interrupt = cancel.clone();
    ctrlc::set_handler(move || arrived(&on_interrupt, SIGINT)).map_err(|e| failed(&e))?;
    let mut signals = Signals::new([SIGTERM]).map_err(|e| failed(&e))?;
    let on_terminate = cancel.clone();
    spawn_helper("signals", move || {
        for signal in signals.forever() {
            arrived(&on_terminate, signal);
        }
    })?;
    Ok(())
}

fn arrived(cancel: &Cancel, signal: i32) {
    if cancel.request(signal) {
        eprintln!("convoy: stopping; finishing the file (again to stop at once)");
    } else {
        cancel.remove_temporary();
        // Without exit handlers: other threads are still inside FFmpeg or the driver.
        exit(128 + signal);
    }
}
