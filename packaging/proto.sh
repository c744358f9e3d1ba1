#!/usr/bin/env bash
# usage: proto.sh   generates the *_pb2.py modules (and their type stubs) from koord/protocols/*.proto.
set -euo pipefail
cd "$(dirname "$0")/.."
.venv/bin/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. koord/protocols/*.proto
