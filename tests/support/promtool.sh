#!/usr/bin/env bash
# usage: promtool.sh [directory]   unpacks Prometheus' promtool from Debian's package, without installing the daemon.
# Default directory: ~/.cache/koord/promtool. The tests look there, and on PATH.
set -euo pipefail
target=${1:-$HOME/.cache/koord/promtool}
[ -x "$target/usr/bin/promtool" ] && exit 0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
mkdir -p "$target"
cd "$work"
apt-get download -qq prometheus
dpkg-deb --fsys-tarfile prometheus_*.deb | tar -xf - -C "$target" ./usr/bin/promtool
