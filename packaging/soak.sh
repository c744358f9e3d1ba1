#!/usr/bin/env bash
# usage: soak.sh TIMES LOAD [TARGET ...]   make's targets (demo test) in a fresh clone, TIMES each, beside LOAD busy loops.
# Prints a line a run and keeps what each said in $SOAK_OUT (default: soak-out). The status says whether all ended well and left nothing.
set -euo pipefail
root=$(git -C "$(dirname "$0")" rev-parse --show-toplevel)
times=${1:?TIMES} load=${2:?LOAD}
shift 2
[ $# -gt 0 ] || set -- demo test
out=$(realpath -m "${SOAK_OUT:-soak-out}")
clone=$(mktemp -d)
mkdir -p "$out"
busy=()
# shellcheck disable=SC2329  # the trap calls it
end() { [ ${#busy[@]} -eq 0 ] || kill "${busy[@]}" 2>/dev/null || true; rm -rf "$clone"; }
trap end EXIT
git clone -q "$root" "$clone/koord"
make -s -C "$clone/koord" setup >"$out/setup.log" 2>&1
for ((i = 0; i < load; i++)); do
  # each is a session of its own, as another user's build would be
  setsid sh -c 'while :; do :; done' &
  busy+=($!)
done
groups() { find /sys/fs/cgroup -maxdepth 3 -name 'koord-*' -type d 2>/dev/null | sort; }
before=$(groups)
status=0
for target in "$@"; do
  for ((i = 1; i <= times; i++)); do
    began=$SECONDS said="$out/$target-$i.log" code=0
    make -C "$clone/koord" "$target" >"$said" 2>&1 || code=$?
    left=$(comm -13 <(echo "$before") <(groups) | tr '\n' ' ')
    echo "$target $i: status $code, $((SECONDS - began)) s, load $(cut -d' ' -f1 /proc/loadavg)${left:+, left behind: $left}; $(grep -vE '^(make|report:)' "$said" | tail -1)"
    [ "$code" -eq 0 ] && [ -z "$left" ] || status=1
  done
done
exit $status
