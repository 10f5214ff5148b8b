#!/usr/bin/env bash
# Format, lints, licences, tests: what `make test` runs after its setup.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=${CONVOY_TOOLS:-$HOME/.cache/convoy/tools}
export CONVOY_PYTHON="$tools/python/bin/python" CONVOY_CLIPS="$tools/clips"
CONVOY_NVRTC=${CONVOY_NVRTC:-$(ls "$tools"/python/lib/python3*/site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12 | head -1)}
export CONVOY_NVRTC
# A cache of its own, so that a run neither trusts nor disturbs the user's.
XDG_CACHE_HOME=$(mktemp -d)
export XDG_CACHE_HOME
trap 'rm -rf "$XDG_CACHE_HOME"' EXIT

step() { printf '\n== %s\n' "$*"; }
step rustfmt
cargo fmt --check
step clippy
cargo clippy --quiet --all-targets -- -D warnings
step cargo-deny
"$tools/bin/cargo-deny" --log-level error check --hide-inclusion-graph bans licenses sources
if timeout 60 "$tools/bin/cargo-deny" --log-level error fetch db >/dev/null 2>&1; then
  "$tools/bin/cargo-deny" --log-level error check advisories
else
  echo "skipped: advisories (their database cannot be reached)"
fi
step tests
# Every binary, also after a failure: one run should tell everything.
cargo test --no-fail-fast "$@"
step README
.ci/check-readme.sh
