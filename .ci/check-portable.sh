#!/usr/bin/env bash
# A portable binary needs nothing but the C and C++ run times, and works.
set -euo pipefail
binary=${1:?usage: check-portable.sh BINARY}
foreign=$(objdump -p "$binary" | awk '/NEEDED/ {print $2}' | grep -vE '^(libc|libm|libstdc\+\+|libgcc_s|ld-linux-x86-64|ld-linux-aarch64|libpthread|libdl)\.so' || true)
if [ -n "$foreign" ]; then
  echo "$binary also needs: $foreign" >&2
  exit 1
fi
"$binary" run synth:64x64 -o null: --vf gblur=1 --frames 5 --backend cpu
echo "$binary: $(du -h "$binary" | cut -f1), self-contained"
