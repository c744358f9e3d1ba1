#!/usr/bin/env bash
# usage: containerd17.sh [directory]   unpacks containerd of the Debian release after bookworm (NRI needs >= 1.7), without installing it.
# Default directory: ~/.cache/koord/containerd. The tests look there, or where KOORD_TEST_CONTAINERD points.
set -euo pipefail
target=${1:-$HOME/.cache/koord/containerd}
[ -x "$target/usr/bin/containerd" ] && exit 0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$target"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian trixie main" >"$work/sources.list"
own=(-o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$work/lists" -o "Dir::Cache=$work/cache")
cd "$work"
apt-get "${own[@]}" update -qq
apt-get "${own[@]}" download -qq containerd
dpkg-deb -x containerd_*.deb "$target"
