#!/usr/bin/env bash
# usage: lint.sh   the Dockerfile by hadolint, every shell script by shellcheck; says what is not installed.
set -euo pipefail
cd "$(dirname "$0")/.."
status=0
if command -v hadolint >/dev/null; then hadolint --failure-threshold info Dockerfile || status=1; else echo "hadolint is not installed"; fi
if command -v shellcheck >/dev/null; then
  # by the first line, wherever the script lies
  mapfile -t scripts < <(git grep -lE '^#!.*[/ ](ba)?sh$' -- ':!*.md' ':!*.py' | sort)
  shellcheck "${scripts[@]}" || status=1
else
  echo "shellcheck is not installed"
fi
exit $status
