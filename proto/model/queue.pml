/* A queue: senders 1 and 2, readers 3 and 4 (number of process = number of client, but with THREADS,
 * where both senders are threads of client 1, and SELF, where sender 1 and reader 3 are; with
 * THREE_READERS 2 is a reader, with THREE_SENDERS 4 is a sender of one message).
 *
 * Options: N, M, K1, K2 (messages of each sender), CRASH, THREADS, SELF, ONE_READER, REF (messages by
 * reference), HOLD (a reader keeps a message until it has the next), GIVE_UP (sender 2 and reader 4
 * may leave where they wait, reader 4 after each message, too), SLOW (sender 2 keeps its loan until
 * the others are done), EARLY (closed at any time; else only when nothing is left to do, so that
 * the wake-ups of close hide none that was lost).
 */
#ifndef N
#define N 1
#endif
#ifndef M
#define M 2
#endif
#ifndef K1
#define K1 2
#endif
#ifndef K2
#define K2 1
#endif
#ifndef CRASH
#define CRASH 1
#endif
#define NC 4
#define NPROC 4
#ifndef S
#define S (N+1)
#endif
#define NMSG (K1+K2+1)
#define FIRST_READER 3

byte cursor;                    /* one for all readers */
byte att[M];                    /* REF: what the daemon has attached to each buffer */
bit  dbusy, ended;              /* REF: the daemon is one thread; all is over */
byte taken;                     /* ghost: mask of the numbers of messages taken */

#define busy_ring() \
	x = MAX(cursor, flr); \
	do :: x < head -> m = m | (1 << rbuf[x % S]); x++ :: else -> break od

#ifdef SELF
#define client_done(i) ((i) == 1 -> (done[1] && done[3]) : ((i) == 3 || done[i]))
#define kill_sleep(i)  fut[i] = 0; if :: i == 1 -> fut[3] = 0 :: else fi
#else
#ifdef THREADS
#define client_done(i) ((i) == 1 -> (done[1] && done[2]) : ((i) == 2 || done[i]))
#define kill_sleep(i)  fut[i] = 0; if :: i == 1 -> fut[2] = 0 :: else fi
#else
#define client_done(i) done[i]
#define kill_sleep(i)  fut[i] = 0
#endif
#endif
#define repair_group(c) skip

#include "common.pml"

#define FULL (head - MAX(cursor, flr) >= N)
#define TAKE() atomic { cursor = c + 1; assert(!(taken & (1 << c))); taken = taken | (1 << c) }

proctype sender(byte me; byte cid; byte n) {
	byte b = NONE, k;
	bit woken, more;
	{
	do
	:: k < n ->
loan:		do_lock();
		FLAG_AGAIN(QFREE);
		atomic { find_free(); if :: b == NONE && !closed -> goto l2 :: else -> goto l4 fi };
l2:		PREPARE(QFREE);
#ifndef MUT_NO_RECHECK
		atomic { find_free(); if :: b == NONE && !closed -> goto l3 :: else -> UNPREPARE(); goto l4 fi };
#endif
l3:		do_unlock();
		if
		:: atomic { me == 2 -> skip }; FUTEX_WAIT_OR_GIVE_UP(QFREE, out)
		:: atomic { me != 2 -> skip }; FUTEX_WAIT(QFREE)
		fi;
		goto loan;

l4:		if :: atomic { closed -> b = NONE }; do_unlock(); break :: else fi;
#ifndef MUT_NO_LOAN_MARK
		uses[cid] = uses[cid] | (1 << b);
#endif
		MORE_FREE();
		do_unlock();
		if :: more -> more = 0; signal_one(QFREE) :: else fi;
#ifdef SLOW
		if :: me == 2 -> (done[1] && done[4]) :: else fi;
#endif

		buf[b] = me * 16 + k;
#ifdef REF
		atomic { !dbusy -> att[b] = me * 16 + k };      /* call: attach */
#endif

commit:		do_lock();
		FLAG_AGAIN(QRING);
		if :: !(FULL && !closed) -> goto c4 :: else fi;
		PREPARE(QRING);
#ifndef MUT_NO_RECHECK
		if :: atomic { !(FULL && !closed) -> UNPREPARE() }; goto c4 :: else fi;
#endif
		do_unlock();
		if
		:: atomic { me == 2 -> skip }; FUTEX_WAIT_OR_GIVE_UP(QRING, unsent)
		:: atomic { me != 2 -> skip }; FUTEX_WAIT(QRING)
		fi;
		goto commit;

c4:		if :: closed -> do_unlock(); RELEASE(); break :: else fi;
#ifdef MUT_CLEAR_BEFORE_HEAD
		uses[cid] = uses[cid] & ~(1 << b);
#ifdef MUT_CLEAR_UNLOCKED
		do_unlock(); do_lock();
#endif
#endif
#ifdef MUT_HEAD_BEFORE_ENTRY
		atomic { sent[head] = me * 16 + k; head++ };
		atomic { rbuf[(head-1) % S] = b; rseq[(head-1) % S] = head-1 };
#else
		atomic { rbuf[head % S] = b; rseq[head % S] = head };
		atomic { sent[head] = me * 16 + k; head++ };   /* COMMIT */
#endif
#ifndef MUT_CLEAR_AFTER_UNLOCK
		CLEAR_USE();    /* under the lock: another thread may receive with the same mask */
#endif
		more = !FULL;
		do_unlock();
#ifdef MUT_CLEAR_AFTER_UNLOCK
		CLEAR_USE();
#endif
#ifndef MUT_SEND_NO_SIGNAL
		signal_one(QDATA);
#endif
		if :: more -> more = 0; signal_one(QRING) :: else fi;
		k++
	:: else -> break
	od;
	goto out;
unsent:	RELEASE();
out:	skip
	} unless { dead[cid] };
	atomic { b = 0; k = 0; more = 0; woken = 0; done[me] = 1 }
}

proctype reader(byte me; byte cid) {
	byte b = NONE, c;
	bit woken, more;
#ifdef HOLD
	byte o = NONE, oc;      /* the one received before */
#endif
	{
	skip;
again:	do_lock();
	FLAG_AGAIN(QDATA);
	if :: !(cursor == head && !closed) -> goto r4 :: else fi;
	PREPARE(QDATA);
#ifndef MUT_NO_RECHECK
	if :: atomic { !(cursor == head && !closed) -> UNPREPARE() }; goto r4 :: else fi;
#endif
	do_unlock();
	if
	:: atomic { me == 4 -> skip }; FUTEX_WAIT_OR_GIVE_UP(QDATA, out)
	:: atomic { me != 4 -> skip }; FUTEX_WAIT(QDATA)
	fi;
#ifdef MUT_WAKE_NO_RECHECK
	do_lock();
	goto r4;
#endif
	goto again;

r4:	if :: cursor == head -> do_unlock(); goto out :: else fi;
	atomic { c = cursor; b = rbuf[c % S]; assert(c < head && rseq[c % S] == c) };
#ifdef MUT_COMMIT_BEFORE_HOLD
	TAKE();
	uses[cid] = uses[cid] | (1 << b);
#else
#ifndef MUT_NO_HOLD
	uses[cid] = uses[cid] | (1 << b);
#endif
	TAKE();         /* COMMIT */
#endif
#ifndef MUT_RECV_NO_NEXT
	more = (cursor < head);
#endif
	do_unlock();
#ifndef MUT_RECV_NO_SIGNAL
	signal_one(QRING);
#endif
	if :: more -> more = 0; signal_one(QDATA) :: else fi;
#ifdef REF
	atomic { !dbusy -> assert(att[b] == sent[c]) }; /* call: redeem */
#endif
#ifdef HOLD
	if
	:: atomic { o == NONE -> o = b; oc = c; b = NONE; c = 0 }
	:: atomic { o != NONE -> assert(buf[o] == sent[oc]); x = b; b = o; o = x; oc = c; c = 0 };
		RELEASE()
	fi;
#else
	atomic { assert(buf[b] == sent[c]); c = 0 };
	RELEASE();
#endif
#ifdef GIVE_UP
	if :: skip :: atomic { me == 4 -> goto out } fi;        /* e.g. busy for good */
#endif
	goto again;
out:	skip;
#ifdef HOLD
	if
	:: atomic { o != NONE -> assert(buf[o] == sent[oc]); b = o; o = NONE }; RELEASE()
	:: else
	fi
#endif
	} unless { dead[cid] };
	atomic { b = 0; c = 0; more = 0; woken = 0; done[me] = 1;
#ifdef HOLD
		o = 0; oc = 0
#endif
	}
}

#define OK(i) (!dead[i] || gone[i])
#ifdef SELF
#define R3 1
#else
#define R3 3
#endif
#ifdef THREE_SENDERS
#define ONE_READER
#endif
#ifdef THREE_READERS
#define NO_READER false
#else
#ifdef ONE_READER
#define NO_READER (dead[R3] && gone[R3])
#else
#ifdef GIVE_UP
#define NO_READER (dead[R3] && gone[R3] && done[4] && OK(4))
#else
#define NO_READER (dead[R3] && dead[4] && gone[R3] && gone[4])
#endif
#endif
#endif
#ifdef THREE_READERS
#define SENDERS_ENDED (done[1] && OK(1))
#else
#ifdef THREE_SENDERS
#define SENDERS_ENDED (done[1] && done[2] && done[4] && OK(1) && OK(2) && OK(4))
#else
#define SENDERS_ENDED (done[1] && done[2] && OK(1) && OK(2))
#endif
#endif

#ifdef REF
/* the daemon looks whether an attachment is still needed: without the lock, word by word */
proctype sweeper() {
	byte i, h, l;
	bit last;
end:	do
	:: atomic { (i < M && att[i] && !dbusy) -> dbusy = 1 };
#ifndef MUT_SWEEP_ONE_MASK_READ
		READ_MASK(1); READ_MASK(2); READ_MASK(3); READ_MASK(4);
#endif
		h = head;
		l = cursor;
		do
		:: atomic { l < h && rbuf[l % S] == i -> goto keep }
		:: atomic { l < h && rbuf[l % S] != i -> l++ }
		:: atomic { l >= h -> break }
		od;
#ifndef MUT_SWEEP_NO_SECOND
		READ_MASK(1); READ_MASK(2); READ_MASK(3); READ_MASK(4);
#endif
		att[i] = 0;
keep:		atomic { h = 0; l = 0; dbusy = 0; i++ }
	:: atomic { i < M && !att[i] && !dbusy -> i++ }
	:: atomic { i >= M && !last -> i = 0; if :: ended -> last = 1 :: else fi }
	:: atomic { i >= M && last ->
		h = 0; do :: h < M -> assert(att[h] == 0 || cursor < head); h++ :: else -> break od; break }
	od
}
#endif

proctype closer() {
#ifndef EARLY
	(SENDERS_ENDED && cursor == head) || NO_READER;
#endif
	closed = 1;
	shout(QDATA);
	shout(QRING);
	shout(QFREE);
	/* the end */
	(done[1] && done[2] && done[3] && done[4] && OK(1) && OK(2) && OK(3) && OK(4));
	assert(lockw == 0);
	assert(uses[1] == 0 && uses[2] == 0 && uses[3] == 0 && uses[4] == 0);
	/* a reader that lives has drained the queue */
	assert(cursor == head || NO_READER);
	/* each message below the cursor was taken exactly once */
	assert(taken == (1 << cursor) - 1);
#ifdef REF
	ended = 1
#endif
}

proctype daemon() {
end:	do
	:: dead[1] && !gone[1] -> repair(1)
	:: dead[2] && !gone[2] -> repair(2)
	:: dead[3] && !gone[3] -> repair(3)
	:: dead[4] && !gone[4] -> repair(4)
#ifdef MUT_REPAIR_LIVING                /* e.g. when a client that still runs is dropped */
	:: !gone[1] && !done[1] -> repair(1)
#endif
	od
}

init {
	atomic {
		run sender(1, 1, K1);
#ifdef THREE_READERS
		run reader(2, 2);
#else
#ifdef THREADS
		run sender(2, 1, K2);
#else
		run sender(2, 2, K2);
#endif
#endif
		run reader(3, R3);
#ifdef THREE_SENDERS
		run sender(4, 4, 1);
#else
#ifdef ONE_READER
		done[4] = 1;
#else
		run reader(4, 4);
#endif
#endif
#ifdef REF
		run sweeper();
#endif
		run closer(); run daemon(); run killer()
	}
}
