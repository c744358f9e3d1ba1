#!/usr/bin/env bash
# usage: kernel.sh [directory]   unpacks Debian's cloud kernel, without installing it, for the tests that need cgroup v2 (marker vm).
# Default directory: ~/.cache/koord/vm. The tests look there, or where KOORD_TEST_KERNEL points. QEMU: apt-get install qemu-system-x86 cpio.
set -euo pipefail
target=${1:-$HOME/.cache/koord/vm}
compgen -G "$target/boot/vmlinuz-*" >/dev/null && exit 0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
package=$(apt-cache depends linux-image-cloud-amd64 | awk '/Depends: linux-image/ {print $2; exit}')
apt-get download -qq "$package"
dpkg-deb -x ./*.deb unpacked
mkdir -p "$target/boot" "$target/modules"
cp unpacked/boot/vmlinuz-* "$target/boot/"
find unpacked/lib/modules \( -name 'null_blk.ko' -o -name 'configfs.ko' \) -exec cp {} "$target/modules/" \;
