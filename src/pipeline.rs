//! Three threads joined by bounded channels: decode → filter → encode.
//!
//! Frames and copied packets travel in one FIFO, so that a packet keeps its place between frames and nothing deadlocks
//! in the muxer. Nothing flows back but empty buffers. Any stage's error or panic ends all three; the first cause wins.

use crate::error::Result;
use crate::frame::Frame;
use crate::media::Packet;

/// What travels from stage to stage.
pub enum Item {
    /// A decoded or filtered picture.
    Frame(Frame),
    /// A packet of another stream, to be copied.
    Packet(Packet),
    /// No more.
    End,
}

/// Produces items; lives in the decode thread.
pub trait Source: Send {
    /// The next frame or copied packet; `Item::End` once, at the end or when cancelled.
    ///
    /// # Errors
    /// A read or decode error that ends the run. Damage that can be skipped is counted, not returned.
    fn next(&mut self) -> Result<Item>;
}

/// Turns frames into packets; lives in the encode thread.
pub trait Encoder: Send {
    /// Encodes one frame, handing each finished packet to `sink` in order.
    ///
    /// # Errors
    /// The encoder's or the sink's.
    fn encode(&mut self, frame: Frame, sink: &mut dyn FnMut(Packet) -> Result<()>) -> Result<()>;

    /// Flushes delayed packets. Called once, after the last frame.
    ///
    /// # Errors
    /// As for [`Encoder::encode`].
    fn finish(&mut self, sink: &mut dyn FnMut(Packet) -> Result<()>) -> Result<()>;
}

/// Writes packets to the output; lives in the encode thread.
pub trait Muxer: Send {
    /// Writes one packet, of the encoder or copied.
    ///
    /// # Errors
    /// The write failed (disk full, peer gone).
    fn write(&mut self, packet: Packet) -> Result<()>;

    /// Writes the trailer, flushes and closes. Nothing is renamed here: whoever opened the output commits it.
    ///
    /// # Errors
    /// The write failed.
    fn finish(&mut self) -> Result<()>;
}
