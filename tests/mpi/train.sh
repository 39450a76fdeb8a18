#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# cdgrab train under a real mpirun: the weights do not depend on the number of ranks, and a run of which a random
# rank is killed at a random moment goes on, on as many ranks or on others, to the same end.
#   train.sh CDGRAB MPIEXEC [ROUNDS [SEED]]
set -euo pipefail
cdgrab=$1 mpiexec=$2 rounds=${3:-2} seed=${4:-1}
export OMP_NUM_THREADS=1 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_btl_vader_single_copy_mechanism=none
RANDOM=$seed
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"

fail() {
  echo "$*" >&2
  exit 1
}

train() {  # ranks, then flags: trains, with what is said in the file `said`
  local ranks=$1
  shift
  "$mpiexec" -n "$ranks" "$cdgrab" train --json "$@" 2>said
}

hash_in() { sed -nE 's/.*"weights_hash":"([0-9a-f]+)".*/\1/p' <<<"$1"; }

small=(--examples 240 --batch 8 --epochs 3 --workers 3)

# ---- the same weights on any number of ranks
check_order() {  # flags
  local first='' hash ranks
  for ranks in 1 2 3; do
    hash=$(hash_in "$(train "$ranks" "${small[@]}" "$@")") || fail "$* on $ranks ranks: $(cat said)"
    [[ -n $hash ]] || fail "$* on $ranks ranks: no hash; $(cat said)"
    first=${first:-$hash}
    [[ $hash == "$first" ]] || fail "$* has the weights $first on 1 rank and $hash on $ranks"
  done
  echo "$*: $first on 1, 2 and 3 ranks"
}
check_order --order cd-pair
check_order --order cd-pair --overlap
check_order --order id-pair
check_order --order d-rr
check_order --order 'cd-pair; unit=8' --overlap

# ---- killed and gone on with
long=(--examples 240 --batch 8 --epochs 40 --workers 3 --order cd-pair --quiet)
whole=$(train 2 "${long[@]}" --out whole) || fail "the whole run: $(cat said)"
metrics() { sed -E 's/,"seconds":.*//' "$1/metrics.jsonl"; }

kill_one() {  # launcher, lines: ends a random rank when so many lines are out, by its number
  local launcher=$1 lines=$2 p
  local -a ranks=()
  while kill -0 "$launcher" 2>/dev/null && [[ $(wc -l <out) -lt $lines ]]; do sleep 0.02; done
  sleep "0.0$((RANDOM % 10))"
  for p in $(pgrep -P "$launcher"); do
    if tr '\0' ' ' <"/proc/$p/cmdline" 2>/dev/null | grep -q ' train --json '; then ranks+=("$p"); fi
  done
  if [[ ${#ranks[@]} -gt 0 ]]; then kill -9 "${ranks[RANDOM % ${#ranks[@]}]}" 2>/dev/null || true; fi
}

killed=0
for ((round = 1; round <= rounds; ++round)); do
  rm -rf run
  ranks=$((1 + RANDOM % 3))
  words=("${long[@]}" --out run --checkpoint-every $((1 + RANDOM % 7)))
  for attempt in 1 2 last; do
    : >out
    "$mpiexec" -n "$ranks" "$cdgrab" train --json "${words[@]}" >out 2>said &
    launcher=$!
    if [[ $attempt != last ]]; then kill_one "$launcher" $((RANDOM % 25)); fi
    code=0
    wait "$launcher" || code=$?
    if [[ $attempt == last && $code != 0 ]]; then fail "round $round does not go on (code $code): $(cat said)"; fi
    if [[ $code == 0 ]]; then break; fi
    killed=$((killed + 1))
    # A checkpoint is there unless it was killed before the first.
    if [[ -e run/checkpoint.safetensors ]]; then
      "$cdgrab" inspect run/checkpoint.safetensors >inspected 2>&1 || fail "round $round: $(cat inspected)"
      words=(--resume run --quiet --checkpoint-every $((1 + RANDOM % 7)))
    else
      rm -rf run
    fi
    if [[ $((RANDOM % 2)) == 1 ]]; then ranks=$((1 + RANDOM % 3)); fi
  done
  [[ $(hash_in "$(cat out)") == $(hash_in "$whole") ]] || fail "round $round ends with other weights: $(cat out)"
  [[ $(metrics run) == "$(metrics whole)" ]] || fail "round $round has other metrics: $(diff <(metrics run) <(metrics whole))"
  if ((rounds > 2)); then echo "round $round of $rounds: the same end after $killed kills so far"; fi
done
echo "$rounds rounds, $killed kills: the same weights and metrics"

# ---- a rank that hangs: the others give up, and say where and for whom they waited
code=0
"$mpiexec" -n 2 sh -c 'if [ "${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-0}}" = 1 ]; then (sleep 3; kill -STOP $$; sleep 5; kill -KILL $$) & fi
  exec "$0" "$@"' "$cdgrab" train --examples 240 --batch 1 --epochs 100000 --order cd-pair --timeout 1 --quiet >out 2>said || code=$?
[[ $code != 0 ]] || fail "a run with a rank that hangs ended well"
grep -Eq 'epoch [0-9]+, step [0-9]+, on rank 0 of 2.*waited 1000 ms for rank 1' said || fail "who hangs is not said: $(cat said)"
echo "a rank that hangs is named"
