#!/usr/bin/env bash
# Build a static FFmpeg for `make portable`, from the distribution's own source packages.
#
# usage: .ci/static-ffmpeg.sh PREFIX
#
# Codecs: x264, x265, vpx, dav1d (AV1), NVDEC/NVENC; protocols: TLS through OpenSSL, SRT where its archive exists.
# The result is GPL version 3 (x264, x265). PREFIX/static holds links to the archives, so that they win over
# the shared libraries. About 8 minutes on 2 cores. Idempotent: a finished PREFIX is kept.
set -euo pipefail
prefix=$(realpath -m "${1:?usage: static-ffmpeg.sh PREFIX}")
stamp=$prefix/.complete-1
[ -f "$stamp" ] && { echo "already built: $prefix"; exit 0; }
work=$prefix/build
mkdir -p "$work/apt/lists/partial" "$prefix/static"
cd "$work"

sudo=()
[ "$(id -u)" -eq 0 ] || sudo=(sudo)
"${sudo[@]}" apt-get install -y -qq build-essential nasm meson ninja-build pkg-config xz-utils libx264-dev libx265-dev \
  libvpx-dev libnuma-dev zlib1g-dev libssl-dev libffmpeg-nvenc-dev >/dev/null
"${sudo[@]}" apt-get install -y -qq libsrt-openssl-dev >/dev/null || echo "SRT is not packaged here: built without it"

# Source entries on the same mirror and suite as the machine's own packages, in a private list.
. /etc/os-release
uri=$(grep -rhoE 'https?://[^ ]*debian[^ ]*' /etc/apt/sources.list.d/*.sources /etc/apt/sources.list 2>/dev/null |
  grep -vE 'snapshot|security' | head -1 || true)
echo "deb-src ${uri:?no Debian mirror found in the apt sources} $VERSION_CODENAME main" > apt/sources.list
apt=(-o "Dir::Etc::sourcelist=$work/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
     -o "Dir::State::lists=$work/apt/lists" -o APT::Sandbox::User=root)
apt-get "${apt[@]}" update -qq
apt-get "${apt[@]}" source -qq --download-only ffmpeg dav1d

archive() { # link one static archive into PREFIX/static; fails if it does not exist
  local file
  file=$(gcc -print-file-name="lib$1.a")
  [ -f "$file" ] && ln -sf "$file" "$prefix/static/"
}
for name in x264 x265 vpx numa z ssl crypto; do archive "$name"; done
extra=()
if archive srt; then extra+=(--enable-libsrt); fi

rm -rf dav1d-src && mkdir dav1d-src && tar xf dav1d_*.orig.tar.[bgx]z -C dav1d-src --strip-components=1
rm -rf dav1d-build
meson setup dav1d-build dav1d-src --prefix="$prefix" --libdir=lib --buildtype=release --default-library=static \
  -Denable_tools=false -Denable_tests=false > dav1d.log 2>&1
ninja -C dav1d-build install >> dav1d.log 2>&1

rm -rf ffmpeg-src && mkdir ffmpeg-src && tar xf ffmpeg_*.orig.tar.[bgx]z -C ffmpeg-src --strip-components=1
cd ffmpeg-src
export PKG_CONFIG_PATH="$prefix/lib/pkgconfig${PKG_CONFIG_PATH:+:$PKG_CONFIG_PATH}"
./configure --prefix="$prefix" --disable-doc --disable-debug --disable-shared --enable-static --enable-pic \
  --enable-gpl --enable-version3 --enable-libx264 --enable-libx265 --enable-libvpx --enable-libdav1d --enable-openssl \
  --enable-ffnvcodec "${extra[@]}" \
  --disable-ffplay --disable-vaapi --disable-vdpau --disable-libdrm --disable-xlib --disable-libxcb --disable-sdl2 \
  --disable-alsa --disable-lzma --disable-bzlib --disable-iconv --disable-v4l2-m2m \
  --pkg-config-flags=--static --extra-ldflags="-L$prefix/static" --extra-libs="-lpthread -lm -ldl -lstdc++" > ../configure.log
make -j"$(nproc)" > ../make.log 2>&1
make install > ../install.log 2>&1
touch "$stamp"
echo "built: $prefix"
