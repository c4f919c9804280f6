/* A topic: senders 1 and 2, subscribers 3 and 4, each with a cursor of its own. They join when they like,
 * at the head or one before it, and leave when they like.
 *
 * Options: N, M, K1, K2 (messages of each sender), CRASH, DROP (full: drop the oldest), ONE_SUB, STAY
 * (subscribers do not leave by themselves), REF (messages by reference), GIVE_UP (sender 2 may leave
 * where it waits), EARLY (closed at any time).
 */
#ifndef N
#define N 1
#endif
#ifndef M
#define M (N+2)
#endif
#ifndef K1
#define K1 2
#endif
#ifndef K2
#define K2 0
#endif
#ifndef CRASH
#define CRASH 1
#endif
#define NC 4
#define NPROC 4
#ifndef S
#define S (N+1)
#endif
#define NMSG (K1+K2)
#define FIRST_READER 3

byte cur[NC+1];                 /* cursor of a subscriber */
bit  sub[NC+1];                 /* its state: its cursor counts */
byte att[M];                    /* REF: what the daemon has attached to each buffer */
bit  dbusy;                     /* REF: the daemon is one thread */
hidden byte lo;

#define EFF(i) MAX(cur[i], flr)
/* the lowest message that is needed: by a subscriber, or as the last one */
#ifdef MUT_NO_RETAIN
#define LAST head
#else
#define LAST (head > flr -> head - 1 : head)
#endif
#define lowest(first) \
	lo = first; \
	if :: sub[3] && EFF(3) < lo -> lo = EFF(3) :: else fi; \
	if :: sub[4] && EFF(4) < lo -> lo = EFF(4) :: else fi
#define busy_ring() \
	lowest(LAST); x = lo; \
	do :: x < head -> m = m | (1 << rbuf[x % S]); x++ :: else -> break od

#define client_done(i) done[i]
#define kill_sleep(i)  fut[i] = 0
#ifdef MUT_REPAIR_NO_GROUP
#define repair_group(c) skip
#else
#define repair_group(c) sub[c] = 0
#endif

#include "common.pml"

#define FULL ((sub[3] && head - EFF(3) >= N) || (sub[4] && head - EFF(4) >= N))

inline droppable() {
	d_step {
		m = uses[1] | uses[2] | uses[3] | uses[4];
		lowest(LAST); x = lo;
		do :: x < head && (m & (1 << rbuf[x % S])) -> x++ :: else -> break od;
		m = 0
	}
}

proctype sender(byte me; byte cid; byte n) {
	byte b = NONE, k;
	bit prep, woken, more;
	{
	do
	:: k < n ->
loan:		do_lock();
		FLAG_AGAIN(QFREE);
look:		atomic { find_free(); if :: b != NONE || closed -> UNPREPARE(); prep = 0; goto l4 :: else fi };
#ifdef DROP
		/* up to the first needed message whose buffer that frees, if there is one */
		atomic { droppable(); if :: x < head -> flr = x + 1 :: else -> goto l2 fi };
		goto look;      /* what else that frees, MORE_FREE tells the next */
#endif
l2:		if
		:: atomic { !prep -> ev[QFREE] = 1; fut[me] = FRESH + QFREE; prep = 1 };
#ifndef MUT_NO_RECHECK
			goto look
#endif
		:: else
		fi;
		do_unlock();
		prep = 0;
		if
		:: atomic { me == 2 -> skip }; FUTEX_WAIT_OR_GIVE_UP(QFREE, out)
		:: atomic { me != 2 -> skip }; FUTEX_WAIT(QFREE)
		fi;
		goto loan;

l4:		if :: atomic { closed -> b = NONE }; do_unlock(); break :: else fi;
		uses[cid] = uses[cid] | (1 << b);
		MORE_FREE();
		do_unlock();
		if :: more -> more = 0; signal_one(QFREE) :: else fi;

		buf[b] = me * 16 + k;
#ifdef REF
		atomic { !dbusy -> att[b] = me * 16 + k };      /* call: attach */
#endif

commit:		do_lock();
		FLAG_AGAIN(QRING);
		if :: !(FULL && !closed) -> goto c4 :: else fi;
#ifdef DROP
		atomic { flr = head - N + 1 };
		goto c4;
#endif
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
#endif
		rseq[head % S] = head;
		rbuf[head % S] = b;
		atomic { sent[head] = me * 16 + k; head++ };   /* COMMIT */
#ifndef MUT_CLEAR_AFTER_UNLOCK
		CLEAR_USE();
#endif
		more = !FULL;
		do_unlock();
#ifdef MUT_CLEAR_AFTER_UNLOCK
		CLEAR_USE();
#endif
		signal_all(QDATA);
		if :: more -> more = 0; signal_one(QRING) :: else fi;
#ifndef MUT_SEND_NO_FREE_SIGNAL
		signal_one(QFREE);      /* the former last message is no longer kept */
#endif
		k++
	:: else -> break
	od;
	goto out;
unsent:	RELEASE();
out:	skip
	} unless { dead[cid] };
	atomic { b = 0; k = 0; prep = 0; more = 0; woken = 0; done[me] = 1 }
}

proctype subscriber(byte me; byte cid) {
	byte b = NONE, c, want;
	bit woken;
	{
	/* join */
#ifndef MUT_JOIN_UNLOCKED
	do_lock();
#endif
	if
	:: c = head
	:: atomic { head > flr -> c = head - 1 }          /* "latest" */
	fi;
	cur[cid] = c;
	sub[cid] = 1;                                   /* COMMIT */
	atomic { want = c; c = 0 };
#ifndef MUT_JOIN_UNLOCKED
	do_unlock();
#endif

again:	do
#ifndef STAY
	:: goto leave
#endif
	:: break
	od;
	do_lock();
	woken = 0;
	if :: !(EFF(cid) == head && !closed) -> goto r4 :: else fi;
	PREPARE(QDATA);
#ifndef MUT_NO_RECHECK
	if :: atomic { !(EFF(cid) == head && !closed) -> UNPREPARE() }; goto r4 :: else fi;
#endif
	do_unlock();
	FUTEX_WAIT(QDATA);
	goto again;

r4:	if :: EFF(cid) == head -> do_unlock(); goto leave :: else fi;
#ifdef MUT_IGNORE_FLOOR
	atomic { c = cur[cid];
#else
	atomic { c = EFF(cid);
#endif
		b = rbuf[c % S]; assert(c < head && rseq[c % S] == c) };
#ifdef MUT_COMMIT_BEFORE_HOLD
	cur[cid] = c + 1;
	uses[cid] = uses[cid] | (1 << b);
#else
#ifndef MUT_NO_HOLD
	uses[cid] = uses[cid] | (1 << b);
#endif
	cur[cid] = c + 1;                               /* COMMIT */
#endif
	do_unlock();
#ifndef MUT_RECV_NO_SIGNAL
	signal_one(QRING);
#endif
#ifdef DROP
	atomic { assert(c >= want && c - want <= flr); want = c + 1 };
#else
	atomic { assert(c == want); want = c + 1 };
#endif
#ifdef REF
#ifdef MUT_RELEASE_BEFORE_REDEEM
	CLEAR_USE(); b = rbuf[c % S];
#endif
	atomic { !dbusy -> assert(att[b] == sent[c]) }; /* call: redeem */
#endif
	atomic { assert(buf[b] == sent[c]); c = 0 };
	RELEASE();
	goto again;
leave:	sub[cid] = 0;                                   /* no lock */
#ifndef MUT_LEAVE_NO_SIGNAL
	shout(QRING); shout(QFREE)
#endif
	} unless { dead[cid] };
	atomic { b = 0; c = 0; want = 0; woken = 0; done[me] = 1 }
}

#define OK(i) (!dead[i] || gone[i])
#define ALL_OK (OK(1) && OK(2) && OK(3) && OK(4))
#define DRAINED(i) (done[i] || (sub[i] && EFF(i) == head))

#ifdef REF
/* as in queue.pml */
proctype sweeper() {
	byte i, h, l, f;
	bit last;
end:	do
	:: atomic { (i < M && att[i] && !dbusy) -> dbusy = 1 };
#ifndef MUT_SWEEP_ONE_MASK_READ
		READ_MASK(1); READ_MASK(3); READ_MASK(4);
#endif
		f = flr;
		h = head;
		l = (h > f -> h - 1 : h);
		if :: atomic { sub[3] && MAX(cur[3], f) < l -> l = MAX(cur[3], f) } :: else fi;
		if :: atomic { sub[4] && MAX(cur[4], f) < l -> l = MAX(cur[4], f) } :: else fi;
		do
		:: atomic { l < h && rbuf[l % S] == i -> goto keep }
		:: atomic { l < h && rbuf[l % S] != i -> l++ }
		:: atomic { l >= h -> break }
		od;
#ifndef MUT_SWEEP_NO_SECOND
		READ_MASK(1); READ_MASK(3); READ_MASK(4);
#endif
		att[i] = 0;
keep:		atomic { h = 0; l = 0; f = 0; dbusy = 0; i++ }
	:: atomic { i < M && !att[i] && !dbusy -> i++ }
	:: atomic { i >= M && !last -> i = 0; if :: done[1] && done[2] && done[3] && done[4] && ALL_OK && flr >= head -> last = 1 :: else fi }
	:: atomic { i >= M && last ->
		assert(lockw == 0);
		h = 0; do :: h < M -> assert(att[h] == 0); h++ :: else -> break od; break }
	od
}
#endif

proctype closer() {
#ifndef EARLY
	done[1] && done[2] && OK(1) && OK(2) && DRAINED(3) && DRAINED(4) && OK(3) && OK(4);
#endif
	closed = 1;
	shout(QDATA); shout(QRING); shout(QFREE);
	/* the end */
	done[1] && done[2] && done[3] && done[4] && ALL_OK;
	assert(lockw == 0);
	assert(uses[1] == 0 && uses[2] == 0 && uses[3] == 0 && uses[4] == 0);
	assert(!sub[3] && !sub[4]);
#ifdef REF
	flr = head                      /* the channel is removed: the last one too is let go */
#endif
}

proctype daemon() {
end:	do
	:: dead[1] && !gone[1] -> repair(1)
	:: dead[2] && !gone[2] -> repair(2)
	:: dead[3] && !gone[3] -> repair(3)
	:: dead[4] && !gone[4] -> repair(4)
	od
}

init {
	atomic {
		run sender(1, 1, K1);
		if :: K2 > 0 -> run sender(2, 2, K2) :: else -> done[2] = 1 fi;
		run subscriber(3, 3);
#ifdef ONE_SUB
		done[4] = 1;
#else
		run subscriber(4, 4);
#endif
#ifdef REF
		run sweeper();
#endif
		run closer(); run daemon(); run killer()
	}
}
