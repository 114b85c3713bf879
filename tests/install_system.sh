#!/usr/bin/env bash
# What tests need besides Python packages: Chromium for the page, tmux for terminal programs.
set -euo pipefail

browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)
wanted=()
[ -n "$browser" ] || wanted+=(chromium)
command -v tmux >/dev/null || wanted+=(tmux)
[ ${#wanted[@]} -gt 0 ] || exit 0

if ! command -v apt-get >/dev/null; then
    echo "Tests need ${wanted[*]}: install with your system's package manager, then run this again." >&2
    exit 1
fi
if [ "$(id -u)" = 0 ]; then
    as_root=()
elif sudo -n true 2>/dev/null; then
    as_root=(sudo -n)
else
    echo "Tests need ${wanted[*]}: run 'sudo apt-get install ${wanted[*]}', then run this again." >&2
    exit 1
fi
"${as_root[@]}" apt-get update -qq
DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${wanted[@]}" </dev/null
