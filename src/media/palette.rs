//! A palette of its own for every picture (GIF): FFmpeg's `palettegen` and `paletteuse`, fed one frame at a time.

use std::ffi::CStr;

use ffmpeg_next::ffi;

use super::owned::AvFrame;
use super::{av_failed, c_string, format, log};
use crate::error::{Error, Result};

/// 256 colours or fewer are kept exactly; more are chosen per picture and diffused.
const GRAPH: &CStr = c"split[a][b];[a]palettegen=stats_mode=single[p];[b][p]paletteuse=new=1:dither=sierra2_4a";

/// Whether this FFmpeg has what it takes.
pub(super) fn available() -> bool {
    let has = |name: &CStr| {
        // SAFETY: a terminated name; the result is null or static.
        !unsafe { ffi::avfilter_get_by_name(name.as_ptr()) }.is_null()
    };
    has(c"palettegen") && has(c"paletteuse") && has(c"scale")
}

/// Turns frames of one format into palette pictures.
pub(super) struct Paletter {
    graph: *mut ffi::AVFilterGraph,
    source: *mut ffi::AVFilterContext,
    sink: *mut ffi::AVFilterContext,
}

// SAFETY: a filter graph is used by one thread at a time.
unsafe impl Send for Paletter {}

impl Drop for Paletter {
    fn drop(&mut self) {
        // SAFETY: owned; frees its filters too.
        unsafe { ffi::avfilter_graph_free(&mut self.graph) }
    }
}

impl Paletter {
    /// For frames of `format` and size.
    pub(super) fn new(format: ffi::AVPixelFormat, width: usize, height: usize) -> Result<Self> {
        let operation = "cannot prepare a palette for every picture";
        let mark = log::Mark::now();
        // SAFETY: the graph is checked and owned at once; filters belong to it; the open ends are freed by the parser or here.
        unsafe {
            let mut made = Self { graph: ffi::avfilter_graph_alloc(), source: std::ptr::null_mut(), sink: std::ptr::null_mut() };
            let Some(graph) = made.graph.as_mut() else { return Err(Error::failed(operation, "out of memory")) };
            graph.nb_threads = 1;
            let size = format!("video_size={width}x{height}:pix_fmt={}:time_base=1/1000:pixel_aspect=1/1", format::name(format));
            let size = c_string(&size, "picture size")?;
            let create = |to: &mut *mut ffi::AVFilterContext, filter: &CStr, args: *const libc::c_char| {
                let found = ffi::avfilter_get_by_name(filter.as_ptr());
                let code = ffi::avfilter_graph_create_filter(to, found, filter.as_ptr(), args, std::ptr::null_mut(), made.graph);
                if code < 0 { Err(av_failed(operation, code, mark)) } else { Ok(()) }
            };
            create(&mut made.source, c"buffer", size.as_ptr())?;
            create(&mut made.sink, c"buffersink", std::ptr::null())?;
            let (mut inputs, mut outputs) = (ffi::avfilter_inout_alloc(), ffi::avfilter_inout_alloc());
            if let (Some(open_in), Some(open_out)) = (inputs.as_mut(), outputs.as_mut()) {
                (open_out.name, open_out.filter_ctx) = (ffi::av_strdup(c"in".as_ptr()), made.source);
                (open_in.name, open_in.filter_ctx) = (ffi::av_strdup(c"out".as_ptr()), made.sink);
            }
            let code = ffi::avfilter_graph_parse_ptr(made.graph, GRAPH.as_ptr(), &mut inputs, &mut outputs, std::ptr::null_mut());
            ffi::avfilter_inout_free(&mut inputs);
            ffi::avfilter_inout_free(&mut outputs);
            let code = if code < 0 { code } else { ffi::avfilter_graph_config(made.graph, std::ptr::null_mut()) };
            if code < 0 {
                return Err(av_failed(operation, code, mark));
            }
            Ok(made)
        }
    }

    /// The picture of `frame` with a palette; its reference stays with the caller.
    pub(super) fn run(&mut self, frame: &mut AvFrame, pts: i64) -> Result<AvFrame> {
        let operation = "cannot find a palette for a picture";
        let mark = log::Mark::now();
        frame.get_mut().pts = pts;
        let out = AvFrame::alloc()?;
        // SAFETY: a configured graph, a valid frame that the graph references on its own, a blank frame.
        let code = unsafe {
            let code = ffi::av_buffersrc_add_frame_flags(self.source, frame.as_ptr(), ffi::AV_BUFFERSRC_FLAG_KEEP_REF as libc::c_int);
            if code < 0 { code } else { ffi::av_buffersink_get_frame(self.sink, out.as_ptr()) }
        };
        if code < 0 { Err(av_failed(operation, code, mark)) } else { Ok(out) }
    }
}
