#!/usr/bin/env bash
# usage: dist.sh   builds dist/koord/ (one-dir) and dist/koord-onefile (one file) and their checksums, then asks each for its version.
set -euo pipefail
cd "$(dirname "$0")/.."
.venv/bin/pyinstaller --noconfirm --clean --log-level WARN --distpath "${DIST:-dist}" --workpath "${BUILD:-build}" packaging/koord.spec
cd "${DIST:-dist}"
./koord/koord --version
./koord-onefile --version
sha256sum koord-onefile koord/koord > SHA256SUMS
du -sh koord koord-onefile
