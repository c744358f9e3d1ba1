#!/usr/bin/env bash
# usage: kubernetes.sh [directory]   builds kube-apiserver, kube-controller-manager, kube-scheduler and kubelet from their Go module,
# once a version (about eight CPU minutes and 2 GB of Go's caches). Default directory: ~/.cache/koord/kubernetes-VERSION, which is printed.
# KUBERNETES=1.36.3 names the version. The tests that run real components take them from there: docs/testing.md.
set -euo pipefail
version=${KUBERNETES:-1.36.3}
target=${1:-$HOME/.cache/koord/kubernetes-$version}
programs=(kube-apiserver kube-controller-manager kube-scheduler kubelet)
[[ $version =~ ^1\.([0-9]+)\.([0-9]+)$ ]] || { echo "kubernetes.sh: KUBERNETES=$version: expected 1.MINOR.PATCH" >&2; exit 2; }
minor=${BASH_REMATCH[1]} patch=${BASH_REMATCH[2]}

built() {
  for program in "${programs[@]}"; do
    [ "$("$target/$program" --version 2>/dev/null)" = "Kubernetes v$version" ] || return 1
  done
}
finished() { realpath "$target"; exit 0; }
built && finished
command -v go >/dev/null || { echo "kubernetes.sh: Go is missing: install it, or put the programs into $target" >&2; exit 3; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$target"
# two at once would build the same twice
exec 9>"$target/.lock"
flock 9
built && finished
cd "$work"
# The module replaces its staging modules by directories that it does not carry; they are published beside it as 0.MINOR.PATCH. A module
# that requires it says so in its own go.mod, and builds the programs as its dependencies.
module=$(GOWORK=off go mod download -json "k8s.io/kubernetes@v$version" | sed -n 's/^[[:space:]]*"GoMod": "\(.*\)",$/\1/p')
[ -s "$module" ] || { echo "kubernetes.sh: k8s.io/kubernetes@v$version cannot be downloaded" >&2; exit 4; }
{
  echo 'module example.com/kubernetes'
  grep -E '^(go|godebug) ' "$module"
  echo "require k8s.io/kubernetes v$version"
  sed -nE "s#^[[:space:]]*(k8s\.io/[a-z0-9-]+) => \./staging/.*#replace \1 => \1 v0.$minor.$patch#p" "$module"
} >go.mod
stamp=k8s.io/component-base/version
flags="-s -w -X $stamp.gitVersion=v$version -X $stamp.gitMajor=1 -X $stamp.gitMinor=$minor"
GOFLAGS='-mod=mod -buildvcs=false' GOWORK=off CGO_ENABLED=0 \
  go build -p "$(nproc)" -ldflags "$flags" -o "$work/out/" "${programs[@]/#/k8s.io/kubernetes/cmd/}" >&2
mv "$work"/out/* "$target/"
finished
