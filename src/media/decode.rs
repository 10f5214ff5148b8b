//! The decoder as a [`Source`]: frames in presentation order, copied packets in file order between them. Where the wanted part
//! begins and ends is in `part`, what the first frame tells in `first`.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use ffmpeg_next::ffi;

use super::counters::MediaCounters;
use super::decoder::{Decoder, SourceOptions, open_decoder};
use super::info::SourceInfo;
use super::input::{Demuxer, InputSpec};
use super::intake::Intake;
use super::owned::AvFrame;
use super::reader::{Open, Reader};
use super::scan::Scan;
use super::sequence::Images;
use super::window::{Place, Window};
use super::{Packet, av_failed, log, rescale, timestamp};
use crate::cancel::Cancel;
use crate::error::Result;
use crate::frame::{Frame, FrameTime, Shape};
use crate::frame_log::FrameLog;
use crate::pipeline::{Item, Source};

mod first;
mod part;

/// Consecutive decoder errors without a frame or packet in between, after which the decoder counts as stuck.
const STUCK: u32 = 10_000;

/// An opened input that is about to be decoded.
pub(super) struct Start {
    pub demuxer: Demuxer,
    pub info: SourceInfo,
    pub cancel: Cancel,
    /// Images of a sequence.
    pub images: Option<Images>,
    /// The part that is wanted.
    pub window: Window,
    pub spec: InputSpec,
}

/// What the demuxer and decoder give, before it is an item.
enum Pulled {
    Frame(AvFrame),
    Packet(Packet),
    End,
}

/// Demuxer and decoder of one input.
pub struct DecodeSource {
    decoder: Decoder,
    reader: Reader,
    info: Arc<SourceInfo>,
    cancel: Cancel,
    intake: Intake,
    first: Option<AvFrame>,
    received: AvFrame,
    /// Copied packets that wait for their place between frames.
    held: VecDeque<Packet>,
    window: Window,
    log: Option<Arc<FrameLog>>,
    /// When the first picture that was read is shown.
    began: Option<i64>,
    seq: u64,
    /// How the first picture was scanned.
    scan: Option<Scan>,
    /// End of the last frame given out, in the stream's time base.
    position: Option<i64>,
    /// Streams that the limit's tail has read past.
    passed: Vec<bool>,
    draining: bool,
    /// Whether the last wanted frame has been given out.
    tailing: bool,
    ended: bool,
    reported: bool,
    errors_in_a_row: u32,
}

impl DecodeSource {
    pub(super) fn new(start: Start, options: SourceOptions) -> Result<Self> {
        let Start { demuxer, mut info, cancel, images, window, spec } = start;
        let counters = Arc::new(MediaCounters::default());
        images.iter().filter_map(Images::warning).for_each(|w| counters.warn(w));
        let decoder = open_decoder(&demuxer, &info, &options, spec.threads)?;
        let passed = vec![false; info.streams.len()];
        let placeholder = Shape { format: crate::frame::PixelFormat::gray(8), width: 1, height: 1 };
        let mark = log::Mark::now();
        let operation = format!("cannot decode input '{}'", info.name);
        info.live |= info.duration.is_none() && info.container.contains("rtsp");
        let log = spec.log.clone();
        let open = Open { demuxer, cancel: cancel.clone(), images, log: log.clone() };
        let reader = Reader::new(open, &info, Arc::clone(&counters));
        let mut intake = Intake::new(info.name.clone(), placeholder, options, counters);
        intake.on_change = spec.on_change;
        let mut source = Self {
            decoder,
            reader,
            info: Arc::new(info),
            cancel,
            intake,
            first: None,
            received: AvFrame::alloc()?,
            held: VecDeque::new(),
            window,
            log,
            began: None,
            seq: 0,
            scan: None,
            position: None,
            passed,
            draining: false,
            tailing: false,
            ended: false,
            reported: false,
            errors_in_a_row: 0,
        };
        let first = match spec.from_us.filter(|_| source.seekable()) {
            None => source.first_frame(&operation, mark)?,
            Some(_) => source.first_frame_after_seek(&operation, mark)?,
        };
        source.adopt(&first)?;
        source.intake.full_range = source.info.colour.full_range();
        source.first = Some(first);
        Ok(source)
    }

    /// Shape of every frame that comes: the first one's.
    pub fn shape(&self) -> Shape {
        self.intake.shape
    }

    /// What is known about the input, refined by the first frame.
    pub fn info(&self) -> Arc<SourceInfo> {
        Arc::clone(&self.info)
    }

    /// Counters and warnings, filled while items flow.
    pub fn counters(&self) -> Arc<MediaCounters> {
        Arc::clone(&self.intake.counters)
    }

    /// The next decoded frame or copied packet.
    fn pull(&mut self) -> Result<Pulled> {
        loop {
            if let Some(frame) = self.receive()? {
                return Ok(Pulled::Frame(frame));
            }
            if self.ended {
                return Ok(Pulled::End);
            }
            if self.draining {
                continue;
            }
            if self.cancel.requested() {
                self.drain()?;
                continue;
            }
            match self.reader.read()? {
                Some(packet) if packet.stream() == self.info.video => {
                    self.began = self.began.or(packet.pts()).or(packet.dts());
                    self.send(&packet)?;
                }
                Some(packet) => {
                    if let Some(packet) = self.admit(packet) {
                        return Ok(Pulled::Packet(packet));
                    }
                }
                None => self.drain()?,
            }
        }
    }

    /// A finished frame, if the decoder has one.
    fn receive(&mut self) -> Result<Option<AvFrame>> {
        // SAFETY: an open decoder and a valid frame, which the call unreferences first.
        let code = unsafe { ffi::avcodec_receive_frame(self.decoder.context, self.received.as_ptr()) };
        match code {
            0 => {
                self.errors_in_a_row = 0;
                let frame = self.received.take()?;
                if frame.get().flags & ffi::AV_FRAME_FLAG_CORRUPT != 0 || frame.get().decode_error_flags != 0 {
                    self.intake.counters.corrupt_pictures.fetch_add(1, Ordering::Relaxed);
                }
                Ok(Some(frame))
            }
            ffi::AVERROR_EOF => {
                self.ended = true;
                Ok(None)
            }
            _ if code == ffi::AVERROR(libc::EAGAIN) => Ok(None),
            _ => self.damage(code).map(|()| None),
        }
    }

    fn send(&mut self, packet: &Packet) -> Result<()> {
        // SAFETY: an open decoder and a valid packet, which the decoder references on its own.
        let code = unsafe { ffi::avcodec_send_packet(self.decoder.context, packet.raw) };
        if code == ffi::AVERROR(libc::EAGAIN) {
            // `pull` received until the decoder wanted input; a decoder that says both breaks its contract.
            return self.damage(code);
        }
        if code < 0 && code != ffi::AVERROR_EOF { self.damage(code) } else { Ok(()) }
    }

    /// Counts damage that can be skipped; returns errors that cannot.
    fn damage(&mut self, code: i32) -> Result<()> {
        if let Some(error) = self.decoder.allocator.take_error() {
            return Err(error);
        }
        self.errors_in_a_row += 1;
        self.intake.counters.corrupt_packets.fetch_add(1, Ordering::Relaxed);
        if code == ffi::AVERROR(libc::ENOMEM) || self.errors_in_a_row > STUCK {
            return Err(av_failed(format!("cannot decode input '{}'", self.info.name), code, log::Mark::now()));
        }
        Ok(())
    }

    /// Tells the decoder that no more comes.
    fn drain(&mut self) -> Result<()> {
        if !self.draining {
            self.draining = true;
            // SAFETY: a null packet starts the flush.
            let code = unsafe { ffi::avcodec_send_packet(self.decoder.context, std::ptr::null()) };
            if code < 0 && code != ffi::AVERROR_EOF {
                self.ended = true;
                return self.damage(code);
            }
        }
        Ok(())
    }

    fn time_of(&self, frame: &AvFrame) -> FrameTime {
        let raw = frame.get();
        // SAFETY: a view of a live frame that is never dropped by the view.
        let view = ManuallyDrop::new(unsafe { ffmpeg_next::Frame::wrap(frame.as_ptr()) });
        let mut duration = view.packet().duration.max(0);
        if duration == 0
            && let Some(rate) = self.info.frame_rate
        {
            duration = rescale(1, rate.inverse(), self.info.time_base).max(1);
        }
        let pts = timestamp(raw.best_effort_timestamp).or(timestamp(raw.pts)).or(self.position).unwrap_or(0);
        FrameTime { pts: Some(pts), duration }
    }

    fn frame(&mut self, frame: AvFrame) -> Result<Frame> {
        let time = self.time_of(&frame);
        self.position = time.pts.map(|pts| pts.saturating_add(time.duration.max(1)));
        let seq = self.seq;
        let scan = Scan::of(frame.get());
        self.intake.counters.scans.count(scan);
        let first = *self.scan.get_or_insert(scan);
        self.info.riders.remember(seq, &frame, Some(scan).filter(|&scan| scan != first));
        let (layout, mem) = self.intake.take(frame)?;
        if let Some(log) = &self.log {
            log.write(&time.entry(
                "decode",
                self.info.video,
                (self.info.time_base.num, self.info.time_base.den),
                layout.shape.payload_bytes(),
            ));
        }
        self.seq += 1;
        Ok(Frame { layout, time, seq, born: Instant::now(), mem })
    }
}

impl Source for DecodeSource {
    fn next(&mut self) -> Result<Item> {
        let item = self.next_item()?;
        if matches!(item, Item::End) && !std::mem::replace(&mut self.reported, true) {
            let to_its_end = self.window.frames.is_none() && self.window.length_us.is_none();
            self.reader.report(self.seq, to_its_end && !self.cancel.requested());
        }
        Ok(item)
    }
}

impl DecodeSource {
    fn next_item(&mut self) -> Result<Item> {
        loop {
            if let Some(packet) = self.release() {
                return Ok(Item::Packet(packet));
            }
            if self.tailing || self.window.frames.is_some_and(|limit| self.seq >= limit) {
                return self.tail();
            }
            let pulled = match self.first.take() {
                Some(frame) => Pulled::Frame(frame),
                None => self.pull()?,
            };
            match pulled {
                Pulled::Frame(frame) => match self.window.place(self.time_of(&frame).pts.unwrap_or(0), self.info.time_base) {
                    Place::Inside => return self.frame(frame).map(Item::Frame),
                    Place::Before => {}
                    Place::After => return self.tail(),
                },
                Pulled::Packet(packet) if self.window.frames.is_some() => self.held.push_back(packet),
                Pulled::Packet(packet) => return Ok(Item::Packet(packet)),
                Pulled::End => return Ok(self.held.pop_front().map_or(Item::End, Item::Packet)),
            }
        }
    }
}
