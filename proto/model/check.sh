#!/bin/sh
# check.sh [-full | -mutations]: the runs that must find nothing (full: the long ones, too), or the broken
# variants (-DMUT_...) in each of which something must be found. Exits 0 if all is as it must be.
cd "$(dirname "$0")" || exit 2
what=${1:-bounded}
bad=0
out=$(mktemp)
trap 'rm -f "$out"' EXIT

pass() {
    if ./run.sh "$@" >"$out" 2>&1; then
        echo "ok          $* $(awk '/stored$/ { printf "(%.1f M states)", $1 / 1e6 }' "$out")"
    else
        echo "FAILED      $*"
        cat "$out"
        bad=1
    fi
}
both() { # without and with one kill
    pass "$@" -DCRASH=0
    pass "$@" -DCRASH=1
}
fail() {
    if ./run.sh "$@" >"$out" 2>&1 || ! grep -q '^pan:1' "$out"; then
        echo "NOT CAUGHT  $*"
        cat "$out"
        bad=1
    else
        echo "caught      $*"
    fi
}

Q=queue.pml T=topic.pml F=fork.pml R=standing.pml

bounded() {
    both $Q -DK1=1 -DK2=1 -DONE_READER
    both $Q -DK1=1 -DK2=1 -DONE_READER -DTHREADS
    both $Q -DK1=1 -DK2=1 -DONE_READER -DSELF
    pass $Q -DK1=1 -DK2=1 -DONE_READER -DGIVE_UP -DCRASH=0
    pass $Q -DK1=1 -DK2=1 -DONE_READER -DEARLY -DCRASH=0
    pass $Q -DK1=1 -DK2=1 -DCRASH=0
    pass $Q -DK1=2 -DK2=0 -DCRASH=0
    both $T -DK1=3 -DONE_SUB -DM=2
    both $T -DK1=3 -DONE_SUB -DM=2 -DDROP
    pass $T -DK1=3 -DONE_SUB -DM=2 -DCRASH=2
    pass $T -DK1=3 -DONE_SUB -DM=2 -DCRASH=2 -DDROP
    pass $T -DN=2 -DK1=3 -DCRASH=0
    pass $T -DM=2 -DK1=3 -DCRASH=0 -DDROP
    both $T -DK1=1 -DK2=1 -DONE_SUB -DM=2
    pass $T -DK1=1 -DK2=1 -DONE_SUB -DM=2 -DDROP -DCRASH=0
    pass $T -DK1=1 -DK2=1 -DONE_SUB -DM=2 -DGIVE_UP -DCRASH=0
    both $T -DK1=3 -DONE_SUB -DREF -DM=2
    both $T -DK1=3 -DONE_SUB -DREF -DM=2 -DDROP
    both $F
    pass $R
    pass $R -DCRASH
}

long() {
    pass $Q -DK1=2 -DK2=0 -DTHREE_READERS -DCRASH=0
    pass $Q -DK1=1 -DK2=1 -DTHREE_SENDERS -DCRASH=0
    pass $Q -DK1=1 -DK2=1 -DGIVE_UP -DCRASH=0
    both $Q -DK1=1 -DK2=1 -DONE_READER -DREF
    pass $Q -DK1=2 -DK2=0 -DREF -DCRASH=0
    pass $Q -DK1=2 -DK2=0 -DCRASH=1
    pass $Q -DK1=1 -DK2=1 -DONE_READER -DEARLY -DCRASH=1
    pass $Q -DM=3 -DK1=2 -DK2=1 -DONE_READER -DCRASH=0
    pass $Q -DM=3 -DK1=2 -DK2=1 -DONE_READER -DHOLD -DCRASH=0
    pass $Q -DN=2 -DM=3 -DK1=2 -DK2=1 -DONE_READER -DCRASH=0
    pass $T -DN=2 -DM=3 -DK1=4 -DDROP -DCRASH=0
    both $T -DK1=2
    both $T -DK1=2 -DDROP
    pass $T -DK1=2 -DEARLY -DCRASH=0
}

mutations() {
    for m in NO_LOAN_MARK NO_HOLD NO_RECHECK WAKE_NO_RECHECK FUTEX_NO_COMPARE SEND_NO_SIGNAL \
        UNLOCK_NO_WAKE "CLEAR_BEFORE_HEAD -DMUT_CLEAR_UNLOCKED"; do
        fail $Q -DK1=2 -DK2=1 -DCRASH=0 -DONE_READER -DMUT_$m
    done
    fail $Q -DK1=2 -DK2=1 -DCRASH=0 -DONE_READER -DSELF -DMUT_CLEAR_AFTER_UNLOCK
    fail $Q -DK1=3 -DK2=0 -DCRASH=0 -DMUT_RELEASE_NO_SIGNAL
    fail $Q -DK1=3 -DK2=0 -DCRASH=0 -DMUT_SIGNAL_BEFORE_RELEASE
    fail $Q -DM=3 -DK1=2 -DK2=1 -DCRASH=0 -DONE_READER -DHOLD -DMUT_RECV_NO_SIGNAL
    fail $Q -DK1=1 -DK2=1 -DCRASH=0 -DONE_READER -DMUT_REPAIR_LIVING
    # waking one
    for m in FLAG_NOT_AGAIN RECV_NO_NEXT; do
        fail $Q -DN=2 -DM=3 -DK1=2 -DK2=0 -DCRASH=0 -DGIVE_UP -DMUT_$m
    done
    fail $Q -DM=2 -DK1=2 -DK2=1 -DTHREE_SENDERS -DSLOW -DCRASH=0 -DMUT_LOAN_NO_NEXT
    fail $Q -DK1=2 -DK2=0 -DCRASH=0 -DGIVE_UP -DMUT_GIVE_UP_NO_PASS
    for m in FLAGGED_ONLY WAKES_ONE NO_BUMP; do
        fail $Q -DK1=1 -DK2=1 -DCRASH=0 -DMUT_SHOUT_$m
    done
    for m in HEAD_BEFORE_ENTRY REPAIR_NO_READER_USES REPAIR_NO_WRITER_USES REPAIR_NO_LOCK \
        REPAIR_NO_WAKE REPAIR_NO_LOCK_WAKE SHOUT_NO_BUMP SHOUT_FLAGGED_ONLY; do
        fail $Q -DK1=1 -DK2=1 -DCRASH=1 -DONE_READER -DMUT_$m
    done
    for m in NO_RETAIN JOIN_UNLOCKED LEAVE_NO_SIGNAL NO_HOLD NO_RECHECK; do
        fail $T -DK1=3 -DCRASH=0 -DMUT_$m
    done
    fail $T -DK1=3 -DCRASH=0 -DDROP -DMUT_IGNORE_FLOOR
    fail $T -DN=2 -DK1=3 -DCRASH=0 -DDROP -DMUT_NO_RECHECK
    fail $T -DK1=2 -DK2=2 -DM=2 -DCRASH=0 -DONE_SUB -DMUT_SEND_NO_FREE_SIGNAL
    fail $T -DK1=2 -DCRASH=1 -DMUT_REPAIR_NO_GROUP
    fail $T -DK1=3 -DCRASH=1 -DONE_SUB -DS=1
    # by reference
    for m in SWEEP_ONE_MASK_READ SWEEP_NO_SECOND COMMIT_BEFORE_HOLD CLEAR_BEFORE_HEAD; do
        fail $Q -DK1=2 -DK2=1 -DCRASH=0 -DONE_READER -DREF -DMUT_$m
    done
    for m in SWEEP_ONE_MASK_READ SWEEP_NO_SECOND RELEASE_BEFORE_REDEEM CLEAR_BEFORE_HEAD; do
        fail $T -DK1=3 -DCRASH=0 -DONE_SUB -DREF -DM=2 -DMUT_$m
    done
    fail $T -DN=2 -DM=3 -DK1=3 -DCRASH=0 -DONE_SUB -DREF -DMUT_COMMIT_BEFORE_HOLD
    for m in DIRECT_RELEASE NOTE_IGNORES_PAGE GONE_IGNORES_PAGE GONE_BEFORE_NOTES; do
        fail $F -DCRASH=1 -DMUT_$m
    done
    for m in SWEEP_BEFORE_WATCH SWEEP_NO_SECOND WATCHED_BEFORE_RELEASE TELL_IF_NAMED; do
        fail $R -DMUT_$m
    done
}

case $what in
bounded) bounded ;;
-full) bounded && long ;;
-mutations) mutations ;;
*) echo "usage: check.sh [-full | -mutations]" >&2; exit 2 ;;
esac
exit $bad
