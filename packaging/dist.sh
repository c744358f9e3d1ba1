#!/usr/bin/env bash
# usage: dist.sh   builds dist/koord/ (one-dir) and dist/koord-onefile (one file) and their checksums, then asks each for its version.
set -euo pipefail
cd "$(dirname "$0")/.."
# PyInstaller packs the interpreter's shared library. Debian's python3.11 has it in a package of its own.
.venv/bin/python -c 'import sys; from PyInstaller.depend.bindepend import get_python_library_path as path; sys.exit(path() is None)' || {
  echo "dist: the shared library of $(.venv/bin/python --version) is missing (Debian: apt-get install libpython3.11)" >&2
  exit 3
}
.venv/bin/pyinstaller --noconfirm --clean --log-level WARN --distpath "${DIST:-dist}" --workpath "${BUILD:-build}" packaging/koord.spec
cd "${DIST:-dist}"
./koord/koord --version
./koord-onefile --version
sha256sum koord-onefile koord/koord > SHA256SUMS
du -sh koord koord-onefile
