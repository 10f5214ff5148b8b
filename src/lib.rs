//! Convoy: a real-time video filter pipeline.
//!
//! A decoder, a filter and an encoder thread are joined by bounded channels ([`pipeline`]); frames travel in slabs of
//! (pinned) host memory ([`frame`], [`pool`]); a [`backend`] executes the steps that [`filter`] planned.

pub mod axes;
pub mod backend;
pub mod bench;
pub mod cancel;
pub mod cli;
pub mod compare;
pub mod doctor;
pub mod error;
pub mod filter;
pub mod frame;
pub mod frame_log;
pub mod kernels;
pub mod media;
pub mod output;
pub mod pace;
pub mod pattern;
pub mod pipeline;
pub mod pool;
pub mod profile;
pub mod progress;
pub mod reference;
pub mod run;
pub mod signals;
pub mod stats;
pub mod status;
pub mod synth;
pub mod tensor;
pub mod trace;
pub mod variants;
pub mod verify;
