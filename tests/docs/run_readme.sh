#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the shell commands of a page, line by line, as a reader would: in a folder with the sources, and with the
# release build in its place. `make` is what runs this; a benchmark is only looked for.
#   run_readme.sh PAGE SOURCE BUILD
set -euo pipefail
page=$1 source=$2 build=$3
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir "$scratch/build"
ln -s "$build" "$scratch/build/release"
for entry in "$source"/*; do
  [[ $(basename "$entry") == build ]] || ln -s "$entry" "$scratch/"
done
cd "$scratch"

ran=0
while read -r line; do
  command=${line%%#*}
  [[ -n ${command// /} ]] || continue
  case $command in
    make*)
      target=$(cut -d' ' -f2 <<<"$command")
      grep -q "^$target:" Makefile || { echo "$page: make has no target $target" >&2; exit 1; } ;;
    pip* | python*) ;;  # scripts/check_wheel does these, in an environment of its own
    *bench_*)
      program=${command%% *}
      [[ -x $program ]] || { echo "$page: no program $program" >&2; exit 1; } ;;
    *)
      echo "\$ $command"
      bash -euo pipefail -c "$command" </dev/null ;;
  esac
  ran=$((ran + 1))
done < <(awk '/^```/ { inside = ($0 == "```sh"); next } inside' "$page")
if [[ $ran == 0 ]]; then
  echo "$page: no shell command found" >&2
  exit 1
fi
