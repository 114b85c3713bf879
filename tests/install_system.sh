#!/usr/bin/env bash
# What tests need besides Python packages: Chromium, for the page. Where it cannot be installed, the tests of the page fail.
set -euo pipefail

for name in chromium chromium-browser google-chrome; do
    if command -v "$name" >/dev/null; then exit 0; fi
done

cannot() {
    echo "Chromium is missing and could not be installed ($1), so the tests of the page will fail. Install it with your system's package manager." >&2
    exit 0
}

command -v apt-get >/dev/null || cannot "there is no apt-get"
if [ "$(id -u)" = 0 ]; then
    as_root=()
elif sudo -n true 2>/dev/null; then
    as_root=(sudo -n)
else
    cannot "that needs root"
fi
"${as_root[@]}" apt-get update -qq || cannot "apt-get update failed"
DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends chromium </dev/null || cannot "apt-get failed"
