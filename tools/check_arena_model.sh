#!/usr/bin/env bash
# Checks the model of the arena's channel with spin, in every interleaving: as
# it is, with either side killed at any point, and with rings of other sizes.
# Also checks that errors would be detected: a bell that looks before the store
# must lose a wake-up.
set -euo pipefail
cd "$(dirname "$0")"
model=$PWD/arena_channel.pml
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

# check NAME FILE [-D...]: prints "ok" or "error", spin's result.
check() {
  local name=$1 file=$2
  shift 2
  spin -a "$@" "$file" >/dev/null
  ${CC:-cc} -O2 -DSAFETY -DCOLLAPSE -o pan pan.c 2>/dev/null
  ./pan -m100000 >"$name.log" 2>&1
  if grep -q "errors: 0" "$name.log" && ! grep -q "depth too small" "$name.log"
  then
    verdict=ok
  else
    verdict=error
  fi
  printf '%-34s %-6s %s states\n' "$name" "$verdict" \
    "$(awk '/states, stored/ {print $1}' "$name.log")"
}

failed=0
expect() {
  local wanted=$1
  shift
  check "$@"
  [ "$verdict" = "$wanted" ] || { cat "$1.log"; failed=1; }
}

expect ok ring-of-2 "$model"
expect ok ring-of-1 "$model" -DRING=1
expect ok three-passes "$model" -DITEMS=3 -DPASSES=3
expect ok worker-killed "$model" -DKILL_WORKER
expect ok parent-killed "$model" -DKILL_PARENT
expect ok both-killed "$model" -DKILL_WORKER -DKILL_PARENT -DITEMS=3

# Remove the last check of `ready`, between announcing a sleep and sleeping.
sed 's/:: (ready) -> skip \\/:: false -> skip \\/' "$model" >broken.pml
expect error a-lost-wake-up-is-noticed broken.pml
exit $failed
