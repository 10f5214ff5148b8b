//! Sound, words, covers, chapters, tags: kept, converted, or named when they are left out.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failed test is a panic")]

mod support;

use std::io::{Read, Write};
use std::time::Duration;

use support::clips::{Clips, H264, PICTURE, SOUND};
use support::{convoy, finish_within, stderr, stdout};

const WORDS: &str = "1\n00:00:00,100 --> 00:00:00,400\nHello, you\nthere\n\n2\n00:00:00,500 --> 00:00:00,900\nGrüße\n";

#[test]
fn plain_text_subtitles_change_their_form_and_keep_their_words_and_times() {
    let c = Clips::new();
    c.write("s.srt", WORDS);
    c.make("a.mp4", &format!("{PICTURE} -i DIR/s.srt -map 0 -map 1 {H264} -c:s mov_text -metadata:s:s:0 language=deu"));
    for (input, output, codec) in [
        ("a.mp4", "b.mkv", "subrip"),
        ("b.mkv", "c.mp4", "mov_text"),
        ("c.mp4", "d.mov", "mov_text"),
        ("b.mkv", "e.webm", "webvtt"),
        ("e.webm", "f.mp4", "mov_text"),
        ("e.webm", "g.mkv", "webvtt"),
    ] {
        let said = c.run(input, output, &["-v"]);
        assert!(!said.contains("left out"), "{said}");
        // MOV has the bibliographic code alone.
        let language = if output.ends_with("mov") { "ger" } else { "deu" };
        assert_eq!(c.entry(output, "s", "stream=codec_name:stream_tags=language"), [format!("{codec},{language}")]);
        assert_eq!(c.text(output, "0:s").trim(), WORDS.trim(), "{output}");
    }
    assert!(c.run("a.mp4", "b.mkv", &["-v"]).contains("subtitle stream #1 (mov_text) is converted to subrip"));
    let said = c.run("a.mp4", "o.ts", &[]);
    assert!(said.contains("warning: subtitle stream #1 (mov_text) is left out: mpegts cannot hold mov_text"), "{said}");
    // Styled subtitles have no lossless form: named, exit 0.
    c.make("ass.mkv", &format!("{PICTURE} -i DIR/s.srt -map 0 -map 1 {H264} -c:s ass"));
    assert!(c.run("ass.mkv", "o.mp4", &[]).contains("subtitle stream #1 (ass) is left out: mp4 cannot hold ass"));
}

#[test]
fn cover_art_is_never_the_video_and_is_kept_where_it_can_be() {
    let c = Clips::new();
    // Larger than the video, first in the file, and marked as default.
    c.make("cover.png", "-f lavfi -i color=red:size=320x240 -frames:v 1");
    c.make("cover.jpg", "-f lavfi -i color=blue:size=320x240 -frames:v 1");
    c.make(
        "a.mp4",
        &format!("-i DIR/cover.jpg {PICTURE} {SOUND} -map 1 -map 2 -map 0 {H264} -c:a aac -c:v:1 copy -disposition:v:1 attached_pic"),
    );
    c.make("only.m4a", &format!("-i DIR/cover.png {SOUND} -map 1 -map 0 -c:a aac -c:v copy -disposition:v:0 attached_pic"));
    let cover = |name: &str| {
        let lines = c.entry(name, "v", "stream=index,codec_name:stream_disposition=attached_pic");
        lines.iter().find(|l| l.ends_with(",1")).map(|l| l.split(',').next().unwrap().to_owned())
    };
    let hash = |name: &str| c.packet_hash(name, &format!("0:{}", cover(name).unwrap()));
    for name in ["o.mp4", "o.mkv"] {
        let said = c.run("a.mp4", name, &["--vf", "gblur"]);
        assert!(!said.contains("left out"), "{said}");
        assert_eq!(hash(name), hash("a.mp4"), "{name}");
        assert_eq!(c.frame_hashes(name, &[]).len(), 25, "{name}");
    }
    // And back from Matroska's attachment.
    c.run("o.mkv", "back.mp4", &[]);
    assert_eq!(hash("back.mp4"), hash("a.mp4"));
    for name in ["o.mov", "o.webm", "o.ts", "o.avi"] {
        let said = c.run("a.mp4", name, &[]);
        assert!(said.contains("video stream #2 (mjpeg) is left out: ") && cover(name).is_none(), "{name}: {said}");
    }
    let done = c.try_run("only.m4a", "none.mp4", &[]);
    assert!(done.status.code() == Some(1) && stderr(&done).contains("sound but no video stream"), "{}", stderr(&done));
}

#[test]
fn of_several_videos_one_is_filtered_and_the_others_are_copied() {
    let c = Clips::new();
    c.make(
        "two.mkv",
        &format!("{PICTURE} -f lavfi -i testsrc=size=96x64:rate=25:duration=1 {SOUND} -map 0 -map 1 -map 2 {H264} -c:a flac -disposition:v:0 default -disposition:v:1 0"),
    );
    for name in ["o.mkv", "o.mp4"] {
        c.run("two.mkv", name, &["--vf", "gblur=3"]);
        assert_eq!(c.entry(name, "v", "stream=width"), ["64", "96"]);
        assert_eq!(c.packet_hash(name, "0:1"), c.packet_hash("two.mkv", "0:1"), "{name}");
        assert_ne!(c.sample_hash(name, "0:0"), c.sample_hash("two.mkv", "0:0"), "{name}");
    }
    for stream in ["1", "v:1"] {
        c.run("two.mkv", "o.mkv", &["--vf", "gblur=3", "--stream", stream]);
        assert_eq!(c.packet_hash("o.mkv", "0:0"), c.packet_hash("two.mkv", "0:0"));
        assert_ne!(c.sample_hash("o.mkv", "0:1"), c.sample_hash("two.mkv", "0:1"));
    }
    for (stream, word) in [("2", "names no video stream"), ("7", "matches no stream"), ("x:y", "no stream specifier")] {
        let done = c.try_run("two.mkv", "none.mkv", &["--stream", stream]);
        assert!(done.status.code() == Some(2) && stderr(&done).contains(word), "{stream}: {}", stderr(&done));
    }
}

#[test]
fn streams_are_chosen_as_with_ffmpegs_map() {
    let c = Clips::new();
    c.write("s.srt", WORDS);
    let sounds = "-f lavfi -i sine=300:duration=1 -f lavfi -i sine=500:duration=1";
    c.make(
        "a.mkv",
        &format!("{PICTURE} {sounds} -i DIR/s.srt -map 0 -map 1 -map 2 -map 3 {H264} -c:a flac -c:s srt -metadata:s:a:0 language=eng -metadata:s:a:1 language=deu"),
    );
    let (video, sound, words) = ("video h264", "audio flac", "subtitle subrip");
    for (args, kept) in [
        (vec![], vec![video, sound, sound, words]),
        (vec!["--no-audio"], vec![video, words]),
        (vec!["--no-subs"], vec![video, sound, sound]),
        (vec!["--no-audio", "--no-subs"], vec![video]),
        (vec!["--map", "a:1"], vec![video, sound]),
        (vec!["--map", "0:a:1", "--map", "0:s"], vec![video, sound, words]),
        (vec!["-map", "-a:0"], vec![video, sound, words]),
        (vec!["--map", "m:language:deu"], vec![video, sound]),
        (vec!["--map", "s", "--map", "d?"], vec![video, words]),
        (vec!["--map", "0", "--map", "-s"], vec![video, sound, sound]),
    ] {
        c.run("a.mkv", "o.mkv", &args);
        assert_eq!(c.streams("o.mkv"), kept, "{args:?}");
    }
    c.run("a.mkv", "o.mkv", &["--map", "a:1"]);
    assert_eq!(c.packet_hash("o.mkv", "0:a"), c.packet_hash("a.mkv", "0:a:1"));
    let done = c.try_run("a.mkv", "none.mkv", &["--map", "d"]);
    assert!(done.status.code() == Some(2) && stderr(&done).contains("--map d matches no stream"), "{}", stderr(&done));
}

#[test]
fn tags_dispositions_time_code_and_creation_time_stay() {
    let c = Clips::new();
    let tags = "-metadata title=Film -metadata comment=Words -metadata creation_time=2020-02-03T04:05:06Z -metadata:s:a:0 language=fra \
                -metadata:s:a:0 title=Commentary -disposition:a:0 comment -timecode 01:02:03:04";
    c.make("a.mov", &format!("{PICTURE} {SOUND} {H264} -c:a aac {tags}"));
    for name in ["o.mov", "o.mp4", "o.mkv"] {
        let said = c.run("a.mov", name, &[]);
        assert!(!said.contains("left out"), "{name}: {said}");
        let tag = |key: &str| c.entry(name, "v", &format!("format_tags={key}")).join("");
        assert_eq!((tag("title"), tag("comment")), ("Film".to_owned(), "Words".to_owned()), "{name}");
        assert!(tag("creation_time").starts_with("2020-02-03T04:05:06"), "{name}: {}", tag("creation_time"));
        assert_eq!(c.entry(name, "a", "stream_tags=language"), ["fra"], "{name}");
        let time_code = c.entry(name, "v", "stream_tags=timecode").into_iter().chain(c.entry(name, "v", "format_tags=timecode"));
        assert!(time_code.into_iter().any(|t| t == "01:02:03:04"), "{name}");
    }
    c.make("a.mkv", "-i DIR/a.mov -map 0:v -map 0:a -c copy -metadata:s:a:0 title=Commentary -disposition:a:0 comment+forced");
    c.run("a.mkv", "b.mkv", &[]);
    let disposition = |name: &str| c.entry(name, "a", "stream_disposition=comment,forced,default:stream_tags=title");
    assert_eq!(disposition("b.mkv"), disposition("a.mkv"));
    assert_eq!(disposition("b.mkv"), ["0,1,1,Commentary"]);
}

#[test]
fn a_tag_that_the_container_cannot_hold_is_named() {
    let c = Clips::new();
    c.make("a.mkv", &format!("{PICTURE} {H264} -metadata title=Film -metadata camera=B12 -metadata:s:v:0 lens=35mm"));
    for (name, lost) in [
        ("o.mkv", vec![]),
        ("o.mp4", vec!["the tag 'camera' is left out: mp4 cannot hold it", "the tag 'lens' of video stream #0 (h264) is left out: mp4"]),
        ("o.mov", vec!["the tag 'camera' is left out: mov cannot hold it"]),
        ("o.avi", vec!["the tag 'camera' is left out: avi cannot hold it"]),
        ("o.y4m", vec!["left out: yuv4mpegpipe cannot hold them"]),
    ] {
        let said = c.run("a.mkv", name, &[]).to_lowercase();
        assert!(lost.iter().all(|l| said.contains(l)) && said.contains("left out") != lost.is_empty(), "{name}: {said}");
        assert!(name == "o.y4m" || c.entry(name, "v", "format_tags=title") == ["Film"], "{name}");
    }
    let said = c.run("a.mkv", "o.mp4", &["--mux-opt", "movflags=+use_metadata_tags"]);
    assert!(!said.contains("camera"), "{said}");
    assert_eq!(c.entry("o.mp4", "v", "format_tags=camera,title"), ["Film,B12"]);
    // Our own flags stay beside the user's: the index still lies in front.
    let bytes = std::fs::read(c.at("o.mp4")).unwrap();
    let find = |tag: &[u8]| bytes.windows(4).position(|w| w == tag).unwrap();
    assert!(find(b"moov") < find(b"mdat"));
}

#[test]
fn programmes_of_a_transport_stream_stay() {
    let c = Clips::new();
    c.make(
        "a.ts",
        &format!(
            "{PICTURE} {SOUND} -map 0 -map 1 -map 1 {H264} -c:a mp2 -program title=News:st=0:st=1 -program title=Sport:st=0:st=2 -metadata:s:a:0 language=eng -streamid 0:300"
        ),
    );
    let programmes = |name: &str| c.entry(name, "v", "program=program_id,nb_streams:program_tags=service_name");
    assert!(programmes("a.ts").iter().any(|l| l.contains("News")), "{:?}", programmes("a.ts"));
    c.run("a.ts", "o.ts", &[]);
    assert_eq!(programmes("o.ts"), programmes("a.ts"));
    assert_eq!(c.entry("o.ts", "a:0", "stream=id:stream_tags=language"), c.entry("a.ts", "a:0", "stream=id:stream_tags=language"));
}

#[test]
fn the_index_of_mp4_lies_in_front_unless_it_shall_not() {
    let c = Clips::new();
    c.make("a.mkv", &format!("{PICTURE} {H264}"));
    for (args, front) in [(vec![], true), (vec!["--faststart"], true), (vec!["--no-faststart"], false)] {
        for name in ["o.mp4", "o.mov"] {
            c.run("a.mkv", name, &args);
            let bytes = std::fs::read(c.at(name)).unwrap();
            let find = |tag: &[u8]| bytes.windows(4).position(|w| w == tag).unwrap();
            assert_eq!(find(b"moov") < find(b"mdat"), front, "{name} {args:?}");
        }
    }
}

/// Serves `body` to everyone who asks with the right password, one request after the other.
fn serve(body: Vec<u8>) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().take(20).flatten() {
            let mut stream = stream;
            let mut request = [0; 4096];
            let got = stream.read(&mut request).unwrap_or(0);
            let request = String::from_utf8_lossy(&request[..got]).into_owned();
            let (status, body) =
                if request.contains("Authorization: Basic") { ("200 OK", body.as_slice()) } else { ("401 Unauthorized", &[][..]) };
            let ask = "WWW-Authenticate: Basic realm=\"x\"\r\n";
            let head = format!("HTTP/1.1 {status}\r\n{ask}Content-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            let _ = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
        }
    });
    address
}

#[test]
fn credentials_are_never_printed_nor_written() {
    let c = Clips::new();
    c.make("a.ts", &format!("{PICTURE} {H264}"));
    let address = serve(std::fs::read(c.at("a.ts")).unwrap());
    let log = c.at("log");
    let loud = ["-v", "--stats=json", "--progress", "json", &format!("--log-frames={log}")];
    let run = |url: &str, expected: bool| {
        let mut command = convoy();
        command.args(["run", url, "-o", &c.at("o.mkv"), "-y", "--backend", "cpu", "--preset", "ultrafast"]).args(loud);
        let done = finish_within(command, Duration::from_secs(30));
        assert_eq!(done.status.success(), expected, "{}", stderr(&done));
        let said = stderr(&done) + &stdout(&done) + &std::fs::read_to_string(&log).unwrap_or_default();
        assert!(!said.contains("hunter2") && !said.contains("joe") && !said.contains("sesame"), "{said}");
        said
    };
    let said = run(&format!("http://joe:hunter2@{address}/a.ts?token=sesame"), true);
    assert!(said.contains(&format!("http://***@{address}/a.ts?***")), "{said}");
    let bytes = std::fs::read(c.at("o.mkv")).unwrap();
    for secret in [&b"hunter2"[..], b"sesame"] {
        assert!(!bytes.windows(secret.len()).any(|w| w == secret));
    }
    for url in [
        "http://joe:hunter2@127.0.0.1:1/x?token=sesame",
        "rtsp://joe:hunter2@127.0.0.1:1/x",
        "rtmp://127.0.0.1:1/app/sesame",
        "nosuch://joe:hunter2@host/x",
    ] {
        run(url, false);
        let mut command = convoy();
        command.args(["run", &c.at("a.ts"), "-o", url, "--backend", "cpu", "-v"]);
        let done = finish_within(command, Duration::from_secs(30));
        let said = stderr(&done) + &stdout(&done);
        assert!(!done.status.success() && !said.contains("hunter2") && !said.contains("sesame"), "{url}: {said}");
    }
}

/// A port that is free now.
fn port() -> u16 {
    std::net::UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Whether this ffmpeg has a protocol.
fn has_protocol(name: &str) -> bool {
    let out = std::process::Command::new("ffmpeg").args(["-hide_banner", "-protocols"]).output().unwrap();
    String::from_utf8_lossy(&out.stdout).lines().any(|l| l.trim() == name)
}

#[test]
fn an_output_is_fed_over_the_network() {
    let c = Clips::new();
    c.make("a.ts", "-f lavfi -i testsrc2=size=64x48:rate=25:duration=2 -pix_fmt yuv420p -c:v libx264 -preset ultrafast -g 5");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("tcp://{}", listener.local_addr().unwrap());
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        listener.accept().unwrap().0.read_to_end(&mut bytes).unwrap();
        bytes
    });
    let done = c.try_run("a.ts", &url, &["--preset", "ultrafast", "--vf", "gblur"]);
    assert!(done.status.success(), "{}", stderr(&done));
    c.write("received.ts", reader.join().unwrap());
    assert_eq!(c.frame_hashes("received.ts", &[]).len(), 50);
}

/// Everything that arrives at a port, until nothing has come for two seconds.
fn receive(socket: std::net::UdpSocket) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        socket.set_read_timeout(Some(Duration::from_secs(15))).unwrap();
        let (mut bytes, mut packet) = (Vec::new(), [0; 65_536]);
        while let Ok(got) = socket.recv(&mut packet) {
            bytes.extend(&packet[..got]);
            socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        }
        bytes
    })
}

#[test]
fn a_live_output_is_fed_at_the_inputs_speed_and_everything_arrives() {
    let c = Clips::new();
    c.make("a.ts", "-f lavfi -i testsrc2=size=64x48:rate=25:duration=2 -f lavfi -i sine=duration=2 -pix_fmt yuv420p -c:v libx264 -preset ultrafast -g 5 -c:a mp2");
    for (args, paced) in [(vec![], true), (vec!["--no-re"], false), (vec!["--re"], false)] {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let url = format!("udp://{}", socket.local_addr().unwrap());
        let receiver = receive(socket);
        let done = c.try_run("a.ts", &url, &[vec!["--preset", "ultrafast", "--vf", "gblur"], args.clone()].concat());
        assert!(done.status.success(), "{}", stderr(&done));
        assert_eq!(stderr(&done).contains("reading at the input's own speed, since the output is live"), paced, "{}", stderr(&done));
        c.write("received.ts", receiver.join().unwrap());
        assert_eq!(c.frame_hashes("received.ts", &[]).len(), 50, "{args:?}");
        assert_eq!(c.packet_hash("received.ts", "0:a"), c.packet_hash("a.ts", "0:a"), "{args:?}");
    }
    // A file takes as fast as it can, unless it shall not.
    assert!(!c.run("a.ts", "o.mkv", &[]).contains("speed"));
    c.run("a.ts", "o.mkv", &["-re", "--frames", "5"]);
}

#[test]
fn srt_streams_go_out() {
    if !has_protocol("srt") {
        println!("skipped: this ffmpeg has no SRT");
        return;
    }
    let c = Clips::new();
    c.make("a.ts", "-f lavfi -i testsrc2=size=64x48:rate=25:duration=2 -pix_fmt yuv420p -c:v libx264 -preset ultrafast -g 5");
    let url = format!("srt://127.0.0.1:{}", port());
    let mut receiver = start_ffmpeg(&["-i", &format!("{url}?mode=listener"), "-c", "copy", &c.at("received.ts")]);
    std::thread::sleep(Duration::from_millis(700));
    let done = c.try_run("a.ts", &url, &["--preset", "ultrafast"]);
    let _ = receiver.wait();
    assert!(done.status.success() && stderr(&done).contains("since the output is live"), "{}", stderr(&done));
    // What is sent while the sender leaves may be lost on the way.
    let frames = c.frame_hashes("received.ts", &[]).len();
    assert!((40..=50).contains(&frames), "{frames}: {}", stderr(&done));
}

/// Starts ffmpeg; the test waits for its end.
fn start_ffmpeg(args: &[&str]) -> std::process::Child {
    std::process::Command::new("ffmpeg").args(["-hide_banner", "-nostdin", "-v", "error", "-y"]).args(args).spawn().unwrap()
}

#[test]
fn srt_streams_come_in_and_a_sender_that_leaves_ends_the_file() {
    if !has_protocol("srt") {
        println!("skipped: this ffmpeg has no SRT");
        return;
    }
    let c = Clips::new();
    c.make("a.ts", "-f lavfi -i testsrc2=size=64x48:rate=25:duration=3 -pix_fmt yuv420p -c:v libx264 -preset ultrafast -g 5");
    let url = format!("srt://127.0.0.1:{}", port());
    let mut sender = start_ffmpeg(&["-re", "-i", &c.at("a.ts"), "-c", "copy", "-f", "mpegts", &format!("{url}?mode=listener")]);
    std::thread::sleep(Duration::from_millis(700));
    let done = c.try_run(&url, "o.mkv", &["--vf", "gblur"]);
    let _ = sender.wait();
    let said = stderr(&done);
    assert!(done.status.success() && said.contains("ended early"), "{said}");
    // What is sent before the receiver is ready, or while it closes, is lost on the way.
    let frames = c.frame_hashes("o.mkv", &[]).len();
    assert!((40..=75).contains(&frames), "{frames}: {said}");
}

#[test]
fn rtsp_streams_come_in() {
    let c = Clips::new();
    c.make("a.mp4", "-f lavfi -i testsrc2=size=64x48:rate=25:duration=3 -f lavfi -i sine=duration=3 -pix_fmt yuv420p -c:v libx264 -preset ultrafast -g 5 -c:a aac");
    let url = format!("rtsp://127.0.0.1:{}/live", port());
    let sender = {
        let (clip, url) = (c.at("a.mp4"), url.clone());
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(700));
            start_ffmpeg(&["-re", "-i", &clip, "-c", "copy", "-f", "rtsp", "-rtsp_transport", "tcp", &url]).wait()
        })
    };
    let done = c.try_run(&url, "o.mkv", &["--in-opt", "rtsp_flags=listen", "--vf", "gblur"]);
    let _ = sender.join();
    assert!(done.status.success(), "{}", stderr(&done));
    let frames = c.frame_hashes("o.mkv", &[]).len();
    assert!((60..=75).contains(&frames), "{frames}: {}", stderr(&done));
    assert_eq!(c.streams("o.mkv"), ["video h264", "audio aac"]);
}
