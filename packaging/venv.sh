#!/usr/bin/env bash
# usage: venv.sh DIR LOCKFILE   makes a virtual environment of Python >= 3.11 with exactly what the lock file says, and koord in it.
# Debian splits ensurepip off into python3-venv: where it is missing, virtualenv from PyPI serves as well.
set -euo pipefail
dir=$1 lock=$2
here=$(cd "$(dirname "$0")/.." && pwd)
py=""
for candidate in python3.11 python3.12 python3.13 python3; do
  if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then py=$candidate; break; fi
done
[ -n "$py" ] || { echo "koord needs Python 3.11 or newer; found: $(python3 --version 2>&1 || echo none)" >&2; exit 1; }
if [ ! -x "$dir/bin/pip" ]; then
  rm -rf "$dir"
  "$py" -m venv "$dir" >/dev/null 2>&1 || {
    rm -rf "$dir"
    "$py" -m virtualenv --version >/dev/null 2>&1 || "$py" -m pip install --quiet --user --break-system-packages virtualenv 2>/dev/null \
      || "$py" -m pip install --quiet --user virtualenv
    "$py" -m virtualenv --quiet "$dir"
  }
fi
"$dir/bin/pip" install --quiet --disable-pip-version-check --require-hashes -r "$lock"
# the build back end's remarks on editable installations interest nobody, unless it fails
remarks=$("$dir/bin/pip" install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e "$here" 2>&1) || { echo "$remarks" >&2; exit 1; }
