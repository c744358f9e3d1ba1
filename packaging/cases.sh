#!/usr/bin/env bash
# usage: cases.sh DIR [options of the runner]   runs a folder of black-box cases (its own run.py) against `koord apiserver` and prints its table.
set -euo pipefail
cases=$(cd "$1" && pwd); shift
here=$(cd "$(dirname "$0")/.." && pwd)
venv=$here/.tools/cases-venv
[ -f "$cases/run.py" ] || { echo "$cases has no run.py: this is no folder of black-box cases" >&2; exit 2; }
if [ ! -f "$venv/.ready" ] || [ "$cases/requirements.txt" -nt "$venv/.ready" ]; then
  mkdir -p "$here/.tools"
  python3.11 -m venv "$venv" 2>/dev/null || "$here/.venv/bin/python" -m venv "$venv" --without-pip
  pip=("$here/.venv/bin/pip" --python "$venv/bin/python")
  [ ! -x "$venv/bin/pip" ] || pip=("$venv/bin/pip")
  "${pip[@]}" install --quiet --disable-pip-version-check -r "$cases/requirements.txt"
  touch "$venv/.ready"
fi
koord=$here/.venv/bin/koord
cd "$cases"
export PYTHONDONTWRITEBYTECODE=1 KOORD=${KOORD:-$koord} CRDS_DIR=${CRDS_DIR:-$here/configs/crds}
exec "$venv/bin/python" run.py --api-command "$koord apiserver --port {port} --data-dir {dir} --print-kubeconfig {kubeconfig}" "$@"
