#!/bin/sh
# run.sh MODEL [-DNAME[=VALUE]]... searches all there is for failed assertions and for states in which
# nothing can go on. Exits 0 if there is none, and nothing was left out. MEM (MiB, default 8000), DEPTH
# (steps, default 2000000); TRAIL=FILE keeps the steps that led to an error.
set -e
here=$(cd "$(dirname "$0")" && pwd)
model=$1
shift
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cp "$here"/*.pml .
spin -a "$@" "$model" >spin.log 2>&1 || { cat spin.log; exit 2; }
gcc -O2 -w -DSAFETY -DCOLLAPSE -DMEMLIM="${MEM:-8000}" -o pan pan.c
nice -n 10 ./pan -m"${DEPTH:-2000000}" >out 2>&1 || true
grep -E '^pan:|errors:|states, stored$|not completed|out of memory|max search depth|elapsed time|actual memory' out || cat out
if [ -n "$TRAIL" ] && ls ./*.trail >/dev/null 2>&1; then
    spin -t -p -g -l "$@" "$model" >"$TRAIL" 2>&1
fi
grep -q 'errors: 0' out && ! grep -qE 'not completed|max search depth' out
