#!/usr/bin/env bash
# usage: dist.sh [--one-dir]   builds into $DIST (dist/):
#   koord/            the one-dir build, with its SBOM as koord/koord.cdx.json
#   koord-onefile     the same as one file (left out with --one-dir)
#   koord.cdx.json    the SBOM (CycloneDX): what is inside, with versions, licences and hashes
#   SHA256SUMS        checksums of all of it
set -euo pipefail
cd "$(dirname "$0")/.."
top=$PWD python=$PWD/.venv/bin/python
dist=${DIST:-dist} build=${BUILD:-build}
# PyInstaller packs the interpreter's shared library. Debian's python3.11 has it in a package of its own.
"$python" -c 'import sys; from PyInstaller.depend.bindepend import get_python_library_path as path; sys.exit(path() is None)' || {
  echo "dist: the shared library of $("$python" --version) is missing (Debian: apt-get install libpython3.11)" >&2
  exit 3
}
mkdir -p "$dist" "$build"
rm -rf "$dist"/{koord,koord-onefile,koord.cdx.json,SHA256SUMS}
dist=$(realpath "$dist") build=$(realpath "$build")
# hooks warn of libraries of other systems
KOORD_CONTENTS=$build/contents "$python" -m PyInstaller --noconfirm --clean --log-level ERROR --distpath "$dist" --workpath "$build" packaging/koord.spec
"$python" packaging/sbom.py requirements-dev.lock "$build/contents" >"$dist/koord.cdx.json"
cp "$dist/koord.cdx.json" "$dist/koord/"
"$dist/koord/koord" --version

if [ "${1:-}" != --one-dir ]; then
  stamp=$(git -C "$top" log -1 --format=%ct 2>/dev/null || echo 0)
  tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@${SOURCE_DATE_EPOCH:-$stamp}" -C "$dist" -cf - koord | gzip -n >"$build/koord.tar.gz"
  digest=$(sha256sum "$build/koord.tar.gz" | cut -d ' ' -f 1)
  version=$("$dist/koord/koord" --version | sed 's/.* //')
  # the offset is written with as many digits as it takes, so that it does not move what it tells the place of
  header=$(sed -e "s/@VERSION@/$version/" -e "s/@DIGEST@/$digest/" packaging/onefile.sh)
  offset=$(printf '%s\n' "${header/@OFFSET@/00000}" | wc -c)
  { printf '%s\n' "${header/@OFFSET@/$(printf '%05d' $((offset + 1)))}"; cat "$build/koord.tar.gz"; } >"$dist/koord-onefile"
  chmod 755 "$dist/koord-onefile"
fi
cd "$dist"
find . -type f -printf '%P\0' | LC_ALL=C sort -z | xargs -0 sha256sum >"$build/SHA256SUMS"
mv "$build/SHA256SUMS" .
du -sh -- *
