//! The decoder as a [`Source`]: frames in presentation order, copied packets in file order between them.

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use ffmpeg_next::ffi;

use super::counters::MediaCounters;
use super::decoder::{Decoder, SourceOptions, open_decoder};
use super::format::Way;
use super::info::{SourceInfo, StreamInfo, StreamKind};
use super::input::{Demuxer, InputSpec};
use super::intake::Intake;
use super::owned::AvFrame;
use super::reader::{Open, Reader};
use super::scan::Scan;
use super::sequence::Images;
use super::window::{MICROSECONDS, Place, Window};
use super::{Packet, Rational, av_failed, format, log, rescale, timestamp};
use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::frame::{Frame, FrameLayout, FrameTime, Shape};
use crate::frame_log::FrameLog;
use crate::pipeline::{Item, Source};

/// Consecutive decoder errors without a frame or packet in between, after which the decoder counts as stuck.
const STUCK: u32 = 10_000;

/// How far before the wanted time a key picture is looked for, in microseconds, one try after the other. The first leaves
/// room for sound that lies before its pictures; the last is the beginning.
const SEEK_BACK_US: [i64; 4] = [1_000_000, 10_000_000, 100_000_000, 1 << 50];

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

    /// Gives U and V planes of their own when they share one (NV12, P010), for filters that treat them differently. Call it
    /// before the first item is taken. The samples are moved without loss, by the host, and counted.
    ///
    /// # Errors
    /// When the size cannot be laid out, or items were taken already.
    pub fn separate_chroma(&mut self) -> Result<()> {
        let planar = self.intake.shape.format.planar();
        if planar == self.intake.shape.format {
            return Ok(());
        }
        let operation = || format!("cannot convert input '{}'", self.intake.name);
        if self.seq > 0 {
            return Err(Error::failed(operation(), "internal error: frames were taken before"));
        }
        let shape = Shape { format: planar, ..self.intake.shape };
        FrameLayout::packed(shape)?;
        let info = Arc::get_mut(&mut self.info).ok_or_else(|| Error::failed(operation(), "internal error: the info is shared already"))?;
        info.shape = Some(shape);
        self.intake.shape = shape;
        self.intake.counters.note(format!(
            "{} frames are converted to planar {planar} on entry (without loss), since a filter treats U and V differently",
            info.pixel_format
        ));
        Ok(())
    }

    /// Whether this container's demuxer moves exactly, every stream to its own place. Elsewhere the input is decoded from its
    /// start, which costs time but loses nothing.
    fn seekable(&self) -> bool {
        !self.info.live && ["mov", "matroska"].iter().any(|c| self.info.container.contains(c))
    }

    /// The first frame of the wanted part; packets before it are held.
    fn first_frame(&mut self, operation: &str, mark: log::Mark) -> Result<AvFrame> {
        loop {
            match self.pull()? {
                Pulled::Packet(packet) => self.held.push_back(packet),
                Pulled::Frame(frame) => match self.window.place(self.time_of(&frame).pts.unwrap_or(0), self.info.time_base) {
                    Place::Before => {}
                    Place::Inside => return Ok(frame),
                    Place::After => return Err(Error::failed(operation, "no frame begins between --ss and --to")),
                },
                Pulled::End if self.cancel.requested() => return Err(Error::failed(operation, "interrupted before the first frame")),
                Pulled::End if self.reader.index_came_late() => {
                    return Err(Error::failed(operation, "its index lies at the end, and a pipe cannot be rewound to its pictures")
                        .hint("name the file itself, or write it with its index in front (ffmpeg -movflags +faststart)"));
                }
                Pulled::End if self.window.starts && self.began.is_some() => {
                    return Err(Error::failed(operation, "no frame begins after --ss: the input ends before"));
                }
                Pulled::End => {
                    let lines = mark.lines().map_or(String::new(), |l| format!(" ({l})"));
                    return Err(Error::failed(operation, format!("it holds no {} frame that can be decoded{lines}", self.info.codec)));
                }
            }
        }
    }

    /// As [`Self::first_frame`], from a key picture before it. Demuxers look for one by decoding times, so the picture found
    /// may be shown later than wanted: then from an earlier one.
    fn first_frame_after_seek(&mut self, operation: &str, mark: log::Mark) -> Result<AvFrame> {
        for (attempt, back_us) in SEEK_BACK_US.into_iter().enumerate() {
            if !self.reader.seek(self.info.start_us.saturating_sub(back_us), attempt > 0)? {
                break;
            }
            self.restart();
            let first = self.first_frame(operation, mark);
            // What is shown after the first key picture depends on nothing before it.
            if self.began.is_some_and(|pts| pts <= 0) || attempt + 1 == SEEK_BACK_US.len() {
                return first;
            }
        }
        self.first_frame(operation, mark)
    }

    /// Forgets what was read, for another beginning.
    fn restart(&mut self) {
        self.held.clear();
        (self.draining, self.ended, self.position, self.began) = (false, false, None, None);
        // SAFETY: an open decoder; frames that were given out keep their own references.
        unsafe { ffi::avcodec_flush_buffers(self.decoder.context) };
    }

    /// Takes shape, colour and aspect from the first frame.
    fn adopt(&mut self, first: &AvFrame) -> Result<()> {
        let frame = first.get();
        let name = self.info.name.clone();
        let operation = || format!("cannot filter input '{name}'");
        let pixel_format = format::av_from_raw(frame.format).ok_or_else(|| Error::failed(operation(), "its pixel format is unknown"))?;
        let entry = format::entry(pixel_format)
            .ok_or_else(|| Error::failed(operation(), format!("pixel format {} cannot be converted", format::name(pixel_format))))?;
        let side = |s: i32| usize::try_from(s).unwrap_or(0);
        self.intake.shape = Shape { format: entry.format, width: side(frame.width), height: side(frame.height) };
        self.intake.coded = Some(pixel_format);
        self.intake.aspect = (frame.sample_aspect_ratio.num, frame.sample_aspect_ratio.den);
        FrameLayout::packed(self.intake.shape)?;
        let info = Arc::get_mut(&mut self.info).ok_or_else(|| Error::failed(operation(), "internal error: the info is shared already"))?;
        (info.width, info.height, info.shape) = (self.intake.shape.width, self.intake.shape.height, Some(self.intake.shape));
        info.pixel_format = format::name(pixel_format);
        info.coded_format = Some(pixel_format);
        let text = format!("{} frames are converted to {} on entry, since filters work on planes", info.pixel_format, entry.format);
        match entry.way {
            Way::Native => {}
            Way::Lossless => self.intake.counters.note(format!("{text} (without loss)")),
            Way::Lossy => self.intake.counters.warn(format!("{text}; this loses precision")),
        }
        if frame.interlaced_frame != 0 {
            // The picture knows better than the container which field is shown first.
            info.interlaced = true;
            info.field_order = if frame.top_field_first != 0 { ffi::AVFieldOrder::AV_FIELD_TT } else { ffi::AVFieldOrder::AV_FIELD_BB };
        }
        if info.sample_aspect.positive().is_none() {
            info.sample_aspect = frame.sample_aspect_ratio.into();
        }
        info.hdr.refine(first);
        info.adopt_side_data(first);
        if !entry.format.alpha && info.video_stream().is_some_and(StreamInfo::has_hidden_alpha) {
            self.intake.counters.warn(format!("alpha is left out: this FFmpeg's decoder of {} does not show it", info.codec));
        }
        // SAFETY: an open decoder, used by this thread.
        if unsafe { (*self.decoder.context).properties } & ffi::FF_CODEC_PROPERTY_FILM_GRAIN as u32 != 0 {
            self.intake.counters.warn(
                "the film grain's parameters are left out: the grain is drawn into the pictures, as a player does, before they are filtered"
                    .to_owned(),
            );
        }
        let colour = &mut info.colour;
        if frame.color_range != ffi::AVColorRange::AVCOL_RANGE_UNSPECIFIED {
            colour.range = frame.color_range;
        } else if format::implies_full_range(pixel_format) {
            colour.range = ffi::AVColorRange::AVCOL_RANGE_JPEG;
        }
        if frame.color_primaries != ffi::AVColorPrimaries::AVCOL_PRI_UNSPECIFIED {
            colour.primaries = frame.color_primaries;
        }
        if frame.color_trc != ffi::AVColorTransferCharacteristic::AVCOL_TRC_UNSPECIFIED {
            colour.transfer = frame.color_trc;
        }
        if frame.colorspace != ffi::AVColorSpace::AVCOL_SPC_UNSPECIFIED {
            colour.matrix = frame.colorspace;
        }
        if frame.chroma_location != ffi::AVChromaLocation::AVCHROMA_LOC_UNSPECIFIED {
            colour.chroma_location = frame.chroma_location;
        }
        Ok(())
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

    /// The packet, if it belongs to the wanted part.
    fn admit(&mut self, mut packet: Packet) -> Option<Packet> {
        if self.info.streams.get(packet.stream()).is_some_and(|s| !s.selected) {
            return None;
        }
        match self.window.admit(&mut packet, &self.info) {
            Place::Inside => Some(packet),
            Place::Before => None,
            Place::After => {
                self.pass(&packet);
                None
            }
        }
    }

    /// A held packet whose turn it is. With a frame limit, packets wait until the frames have reached their time.
    fn release(&mut self) -> Option<Packet> {
        let due = match (self.window.frames, self.held.front()) {
            (None, _) => true,
            (Some(_), Some(packet)) => !self.beyond(packet),
            (Some(_), None) => false,
        };
        if due { self.held.pop_front() } else { None }
    }

    /// Whether a packet starts after the frames given out so far, where their number is limited.
    fn beyond(&self, packet: &Packet) -> bool {
        let Some(time) = packet.dts().or(packet.pts()).filter(|_| self.window.frames.is_some()) else { return false };
        let Some(position) = self.position else { return true };
        let base = self.info.streams.get(packet.stream()).map_or(self.info.time_base, |s| s.time_base);
        compare(time, base, position, self.info.time_base).is_ge()
    }

    /// After the last wanted frame: the copied packets that belong to its time, then the end.
    fn tail(&mut self) -> Result<Item> {
        self.tailing = true;
        while let Some(packet) = self.held.pop_front() {
            if !self.beyond(&packet) {
                return Ok(Item::Packet(packet));
            }
            self.pass(&packet);
        }
        let end = self.window.length_us.map(|us| rescale(us, MICROSECONDS, self.info.time_base));
        let end = [self.position.filter(|_| self.window.frames.is_some()), end].into_iter().flatten().min();
        while !self.ended && !self.cancel.requested() && !self.all_passed() {
            let Some(packet) = self.reader.read()? else { break };
            if packet.stream() == self.info.video {
                let second = self.info.time_base.inverse().value().map_or(0, |ticks| ticks as i64);
                if packet.dts().zip(end).is_some_and(|(dts, end)| dts > end.saturating_add(second)) {
                    break;
                }
            } else if self.beyond(&packet) {
                self.pass(&packet);
            } else if let Some(packet) = self.admit(packet) {
                return Ok(Item::Packet(packet));
            }
        }
        self.ended = true;
        Ok(Item::End)
    }

    fn pass(&mut self, packet: &Packet) {
        if let Some(passed) = self.passed.get_mut(packet.stream()) {
            *passed = true;
        }
    }

    fn all_passed(&self) -> bool {
        // Only sound comes regularly enough to wait for.
        self.info.streams.iter().zip(&self.passed).all(|(s, &passed)| passed || !s.selected || s.kind != StreamKind::Audio)
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

fn compare(a: i64, a_base: Rational, b: i64, b_base: Rational) -> std::cmp::Ordering {
    // SAFETY: pure arithmetic; time bases of streams are positive.
    unsafe { ffi::av_compare_ts(a, a_base.av(), b, b_base.av()) }.cmp(&0)
}
