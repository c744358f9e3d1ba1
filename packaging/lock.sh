#!/usr/bin/env bash
# usage: lock.sh VENV   resolves pyproject.toml into requirements.lock (what runs) and requirements-dev.lock (what builds and tests).
set -euo pipefail
cd "$(dirname "$0")/.."
"$1/bin/pip" install --quiet pip-tools
flags=(--quiet --generate-hashes --allow-unsafe --no-header --strip-extras --no-emit-index-url --no-emit-trusted-host --no-emit-find-links)
"$1/bin/pip-compile" "${flags[@]}" --extra gpu --output-file requirements.lock pyproject.toml
"$1/bin/pip-compile" "${flags[@]}" --all-extras --all-build-deps --constraint requirements.lock --output-file requirements-dev.lock pyproject.toml
