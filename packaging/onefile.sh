#!/bin/sh
# koord @VERSION@ as one file: this script, and after it the one-dir build as a gzipped tar archive.
#
# The first start unpacks the archive into a directory of its own, named by its SHA-256; every start runs what is there. So a start costs
# what that of the one-dir build costs, a killed process leaves nothing behind, and /tmp may be noexec: a directory is only taken
# if it belongs to this user, nobody else may write to it, and programs can be run from it. KOORD_UNPACK_DIR names one.
set -eu
digest=@DIGEST@
offset=@OFFSET@
self=$0

fail() {
  echo "koord: error: $*" >&2
  exit 1
}

# mine DIR: a directory of this user's that nobody else writes to
mine() {
  # shellcheck disable=SC3067 # not POSIX, but dash, busybox and bash have -O
  [ -d "$1" ] && [ ! -L "$1" ] && [ -O "$1" ] || return 1
  # shellcheck disable=SC2012 # one directory, and only its mode is looked at
  case $(ls -ld "$1" | cut -c 6,9) in *w*) return 1 ;; esac
}

# runs_programs DIR: neither read-only nor noexec
runs_programs() {
  probe=$1/.probe.$$
  (umask 077 && printf '#!/bin/sh\nexit 0\n' >"$probe" && chmod 700 "$probe" && "$probe") 2>/dev/null || {
    rm -f "$probe" 2>/dev/null || :
    return 1
  }
  rm -f "$probe"
}

unpack() {
  [ "$(tail -c "+$offset" "$self" | sha256sum | cut -d ' ' -f 1)" = "$digest" ] || fail "$self is damaged: its checksum is wrong"
  # what was left by an earlier start that was killed while it unpacked
  find "$1" -maxdepth 1 -name '.new.*' -mmin +30 -exec rm -rf {} + 2>/dev/null || :
  new=$(mktemp -d "$1/.new.XXXXXX") || return 1
  trap 'rm -rf "$new"' EXIT
  trap 'exit 1' HUP INT TERM
  tail -c "+$offset" "$self" | tar -xzf - -C "$new" --strip-components=1 || return 1
  chmod 755 "$new"
  # another start may have been quicker: then its directory serves
  mv -T "$new" "$1/$digest" 2>/dev/null || [ -x "$1/$digest/koord" ] || return 1
  rm -rf "$new"
  trap - EXIT HUP INT TERM
  forget_others "$1"
}

# forget_others DIR: other versions, unless a process still runs from there
forget_others() {
  for other in "$1"/*; do
    [ "$other" != "$1/$digest" ] && [ -x "$other/koord" ] || continue
    # shellcheck disable=SC2010 # where the links lead is what is asked
    ls -l /proc/[0-9]*/exe 2>/dev/null | grep -qF -- "-> $other/" || rm -rf "$other"
  done
}

tried=
# attempt DIR ARGUMENTS...: become koord if DIR can hold it
attempt() {
  directory=$1
  shift
  tried="$tried $directory"
  # shellcheck disable=SC3067
  if mine "$directory" && [ -x "$directory/$digest/koord" ] && [ -O "$directory/$digest/koord" ]; then
    exec "$directory/$digest/koord" "$@"
  fi
  (umask 022 && mkdir -p "$directory") 2>/dev/null || return 0
  mine "$directory" && runs_programs "$directory" || return 0
  unpack "$directory" || return 0
  exec "$directory/$digest/koord" "$@"
}

user=$(id -u)
if [ -n "${KOORD_UNPACK_DIR:-}" ]; then
  attempt "$KOORD_UNPACK_DIR" "$@"
else
  if [ "$user" = 0 ]; then
    attempt /var/cache/koord "$@"
    attempt /var/lib/koord/bin "$@"
  elif [ -n "${XDG_CACHE_HOME:-${HOME:-}}" ]; then
    attempt "${XDG_CACHE_HOME:-$HOME/.cache}/koord" "$@"
  fi
  attempt "${TMPDIR:-/tmp}/koord-$user" "$@"
  attempt "/dev/shm/koord-$user" "$@"
fi
fail "no directory to unpack into from which programs can be run; tried$tried; set KOORD_UNPACK_DIR"
