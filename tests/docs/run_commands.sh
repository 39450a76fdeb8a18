#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the shell commands of a page, line by line, as a reader would: in a folder with the sources, the release
# build in its place and `cdgrab` on the path. `make` is what runs this; a benchmark is only looked for.
#   run_commands.sh [--short] PAGE SOURCE BUILD
# --short: what trains does so for one epoch on few examples, with the first rate and one seed. The data that such
# pages name is in CDGRAB_DATA; without it they are skipped (77).
set -euo pipefail
short=
if [[ $1 == --short ]]; then
  short=yes
  shift
  [[ -n ${CDGRAB_DATA:-} ]] || { echo "skipped: CDGRAB_DATA is not set"; exit 77; }
fi
page=$1 source=$2 build=$3
export OMP_NUM_THREADS=1 PATH=$build/bin:$PATH
# OpenMPI asks for these where the user is root and ranks are more than cores.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/build"
ln -s "$build" "$scratch/build/release"
for entry in "$source"/*; do
  [[ $(basename "$entry") == build ]] || ln -s "$entry" "$scratch/"
done
cd "$scratch"
# What the pages' readers have: MNIST in a folder, and vectors of their own (500 of 8 numbers).
if [[ -n ${CDGRAB_DATA:-} ]]; then ln -s "$CDGRAB_DATA/mnist" mnist; fi
python3 - <<'PY'
import random, struct
header = "{'descr': '<f4', 'fortran_order': False, 'shape': (500, 8), }".ljust(117) + "\n"
rows = struct.pack("<4000f", *(random.gauss(0, 1) for _ in range(4000)))
open("grads.npy", "wb").write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + rows)
PY

with() {  # command, flag, value: the flag has that value
  if [[ $1 == *" $2 "* ]]; then
    sed -E "s/( $2) [^ ]+/\1 $3/" <<<"$1"
  else
    echo "$1 $2 $3"
  fi
}

shorten() {  # command
  local command=$1
  case $command in
    *--resume*) ;;
    *"cdgrab train "* | *"cdgrab train" | *"cdgrab compare"*)
      command=$(with "$(with "$command" --epochs 1)" --examples 64)
      if [[ $command == *"cdgrab compare"* ]]; then
        command=$(sed -E 's/( --lr [^, ]+)[^ ]*/\1/' <<<"$command")
        command=$(with "$command" --seeds 1)
      fi ;;
    *"cdgrab simulate"*"--task"*) command=$(with "$(with "$command" --rounds 1)" --examples 256) ;;
    *"cdgrab simulate"*) command=$(with "$(with "$command" --rounds 2)" --examples 2000) ;;
  esac
  echo "$command"
}

run() {  # command
  local command=$1
  if [[ -n $short ]]; then command=$(shorten "$command"); fi
  echo "\$ $command"
  bash -euo pipefail -c "$command" </dev/null
}

ran=0
while read -r line; do
  command=${line%%#*}
  command=${command%"${command##*[! ]}"}
  [[ -n $command ]] || continue
  case $command in
    make*)
      target=$(cut -d' ' -f2 <<<"$command")
      grep -q "^$target:" Makefile || { echo "$page: make has no target $target" >&2; exit 1; } ;;
    pip* | python* | torchrun*) ;;  # scripts/check_wheel and tests/python do these
    mpirun*)
      command -v mpirun >/dev/null || continue
      run "$command" ;;
    *bench_*)
      program=${command%% *}
      [[ -x $program ]] || { echo "$page: no program $program" >&2; exit 1; } ;;
    *) run "$command" ;;
  esac
  ran=$((ran + 1))
done < <(awk '/^```/ { inside = ($0 == "```sh"); next } inside { while (sub(/\\$/, "")) { getline more; $0 = $0 more } print }' "$page")
if [[ $ran == 0 ]]; then
  echo "$page: no shell command found" >&2
  exit 1
fi
