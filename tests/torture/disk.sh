#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# cdgrab train on a real disk that fills up, and on one that becomes read-only, while it trains: it ends with the reason,
# what it has saved stays whole, and once there is room again it goes on to the end of a run that nothing happened to.
#   disk.sh CDGRAB     exits with 77 where file systems may not be mounted
set -euo pipefail
if [[ ${2:-} != mounted ]]; then
  user=()
  [[ $(id -u) == 0 ]] || user=(--map-root-user)
  if ! unshare "${user[@]}" --mount mount -t tmpfs none /mnt 2>/dev/null; then
    echo "skipped: no file system may be mounted here"
    exit 77
  fi
  exec unshare "${user[@]}" --mount "$0" "$1" mounted
fi

cdgrab=$(realpath "$1")
export OMP_NUM_THREADS=1
scratch=$(mktemp -d)
trap 'umount "$scratch/disk" 2>/dev/null || true; rm -rf "$scratch"' EXIT
cd "$scratch"
mkdir disk
mount -t tmpfs -o size=2m none disk

fail() {
  echo "$*" >&2
  exit 1
}

hash_in() { sed -nE 's/.*"weights_hash":"([0-9a-f]+)".*/\1/p' "$1"; }
settings=(--examples 160 --batch 8 --epochs 100 --json --quiet --checkpoint-every 1)
"$cdgrab" train "${settings[@]}" >whole 2>said || fail "the whole run: $(cat said)"

check_disk() {  # what happens to the disk, what undoes it, what must be said
  "$cdgrab" train "${settings[@]}" --out disk/run >out 2>said &
  local code=0
  process=$!
  while kill -0 "$process" 2>/dev/null && [[ $(wc -l <out) -lt 4 ]]; do sleep 0.02; done
  $1
  wait "$process" || code=$?
  [[ $code == 3 ]] || fail "$1: it ends with $code, not 3: $(cat said)"
  grep -q "$3" said || fail "$1: \"$3\" is not said: $(cat said)"
  "$cdgrab" inspect disk/run/checkpoint.safetensors >/dev/null || fail "$1: the checkpoint is not whole"
  code=0
  "$cdgrab" train --resume disk/run --json --quiet --checkpoint-every 1 >out 2>said || code=$?
  [[ $code == 3 ]] || fail "$1: going on without room ends with $code, not 3: $(cat said)"
  $2
  "$cdgrab" train --resume disk/run --json --quiet >out 2>said || fail "$1: it does not go on: $(cat said)"
  [[ $(hash_in out) == $(hash_in whole) ]] || fail "$1: another end: $(cat out)"
  [[ $(ls -A disk/run | wc -l) == 2 ]] || fail "$1: files are left: $(ls -A disk/run)"
  rm -rf disk/run
  echo "$1: \"$3\", a whole checkpoint, and the same end"
}

# The run stands still meanwhile: on a busy machine it would be through before.
fill() {
  kill -STOP "$process"
  cat /dev/zero >disk/other 2>/dev/null || true
  kill -CONT "$process"
}
empty() { rm disk/other; }
make_read_only() {  # not while a file is open for writing
  until kill -STOP "$process" && mount -o remount,ro disk 2>/dev/null; do
    kill -CONT "$process"
    sleep 0.005
  done
  kill -CONT "$process"
}
make_writable() { mount -o remount,rw disk; }
check_disk fill empty 'No space left on device'
check_disk make_read_only make_writable 'Read-only file system'
