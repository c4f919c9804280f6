/* What the queue and the topic share: lock, event words, free buffers, kill, repair.
 *
 * Each store to shared memory, atomic operation and system call is one step. A client can be killed
 * between any two (`killer`); the daemon repairs it later, in single steps among everybody else's.
 * Waits have no time-outs here (but with GIVE_UP, where who times out does not come back), so that a
 * lost wake-up is a state in which nothing can go on.
 *
 * The including file defines NC (clients), NPROC (processes that wait), N, M, S (ring slots, > N),
 * CRASH, NMSG, FIRST_READER, kill_sleep(i), client_done(i), repair_group(c) and busy_ring() (adds
 * to mask `m` the buffers that messages still need).
 */
#define W     16                /* the lock word's bit "somebody waits" */
#define NONE  15
#define QLOCK 1                 /* the futex words */
#define QDATA 2
#define QRING 3
#define QFREE 4
#define FRESH 8
#define MAX(a,b) ((a) > (b) -> (a) : (b))

byte lockw;                     /* 0, or owner, or owner|W */
byte head, flr;                 /* number of the next message; messages below flr are dropped */
byte rbuf[S], rseq[S];          /* the ring */
byte uses[NC+1];                /* per participant: mask of the buffers it reads or writes */
byte buf[M];                    /* which message was last written into each buffer */
bit  ev[5];                     /* bit 0 of the event words, "somebody waits" */
bit  closed;
byte fut[NPROC+1];              /* q: sleeps on word q. FRESH+q: is about to, and the word has not
                                 * changed since (exact but for a wrap of the 31-bit count) */
bit  dead[NC+1], gone[NC+1];    /* killed; repaired */
bit  done[NPROC+1];
hidden byte wi, x, m, more_m;   /* scratch, inside single steps only */
byte crashes;
byte sent[NMSG];                /* ghost: what was sent as message h */

/* ---------------------------------------------------------------------------- event words */

inline wake_all(q) {
	d_step {
		wi = 1;
		do
		:: wi <= NPROC -> if :: fut[wi] == q -> fut[wi] = 0 :: else fi; wi++
		:: else -> break
		od;
		wi = 0
	}
}

/* the kernel wakes one of those asleep, whichever */
inline wake_one(q) {
	atomic {
		if
		:: fut[1] == q -> fut[1] = 0
		:: fut[2] == q -> fut[2] = 0
		:: fut[3] == q -> fut[3] = 0
		:: fut[4] == q -> fut[4] = 0
		:: else
		fi
	}
}

/* count the word up, which clears its flag: who is about to sleep on it will not */
inline bump(q) {
	ev[q] = 0; wi = 1;
	do
	:: wi <= NPROC -> if :: fut[wi] == FRESH + q -> fut[wi] = 0 :: else fi; wi++
	:: else -> break
	od;
	wi = 0
}

/* after a change: if somebody waits, count up (one CAS), then wake. Only for a word on which nobody is
 * ever woken alone: there a clear flag means that nobody sleeps. */
inline signal_all(q) {
	if
	:: d_step { ev[q] -> bump(q) }; wake_all(q)
	:: atomic { !ev[q] -> skip }
	fi
}

inline signal_one(q) {
	if
	:: d_step { ev[q] -> bump(q) }; wake_one(q)
	:: atomic { !ev[q] -> skip }
	fi
}

/* close, unsubscribe, repair: everybody, whatever the flag says */
inline shout(q) {
#ifdef MUT_SHOUT_FLAGGED_ONLY
	signal_all(q)
#else
#ifdef MUT_SHOUT_WAKES_ONE
	d_step { bump(q) }; wake_one(q)
#else
#ifndef MUT_SHOUT_NO_BUMP
	d_step { bump(q) };
#endif
	wake_all(q)
#endif
#endif
}

/* Who was woken sets the flag again before it looks: others may be asleep on a word whose flag its
 * waker cleared. */
#ifdef MUT_FLAG_NOT_AGAIN
#define FLAG_AGAIN(q) woken = 0
#else
#define FLAG_AGAIN(q) if :: woken -> atomic { ev[q] = 1; woken = 0 } :: else fi
#endif

/* waiter: set the flag, remember the value (one fetch_or) */
#define PREPARE(q)    atomic { ev[q] = 1; fut[me] = FRESH + q }
#define UNPREPARE()   fut[me] = 0

/* futex_wait: the kernel compares and queues in one step */
#ifdef MUT_FUTEX_NO_COMPARE
#define SLEEP(q) fut[me] = q
#else
#define SLEEP(q) atomic { if :: fut[me] == FRESH + q -> fut[me] = q :: else fi }
#endif
#define FUTEX_WAIT(q) SLEEP(q); atomic { fut[me] == 0 -> woken = 1 }

/* With GIVE_UP a waiter may leave for good: when its time is up, asleep (nobody has woken it, it owes
 * nothing); or woken, without having looked: then it passes the wake-up on. */
#ifdef MUT_GIVE_UP_NO_PASS
#define PASS_ON(q) skip
#else
#define PASS_ON(q) ev[q] = 1; signal_one(q)
#endif
#ifdef GIVE_UP
#define FUTEX_WAIT_OR_GIVE_UP(q, leave) SLEEP(q); \
	if \
	:: atomic { fut[me] == 0 -> woken = 1 } \
	:: atomic { fut[me] == 0 -> woken = 0 }; PASS_ON(q); goto leave \
	:: atomic { fut[me] == q -> fut[me] = 0 }; goto leave \
	fi
#else
#define FUTEX_WAIT_OR_GIVE_UP(q, leave) FUTEX_WAIT(q)
#endif

/* ----------------------------------------------------------------------------------- lock */

inline do_lock() {
	do
	:: atomic { lockw == 0 -> lockw = cid; break }
	:: atomic { lockw != 0 && !(lockw & W) -> lockw = lockw | W }
	:: atomic { (lockw & W) -> fut[me] = QLOCK };   /* compared by the kernel */
	   (fut[me] == 0)
	od
}

inline do_unlock() {
	if
	:: atomic { (lockw & W) -> assert((lockw & 15) == cid); lockw = 0 };
#ifndef MUT_UNLOCK_NO_WAKE
	   wake_all(QLOCK)
#else
	   skip
#endif
	:: atomic { !(lockw & W) -> assert(lockw == cid); lockw = 0 }
	fi
}

/* -------------------------------------------------------------------------------- buffers */

/* One step: the buffers that are busy into m. */
inline all_busy() {
	m = 0; x = 1;
	do :: x <= NC -> m = m | uses[x]; x++ :: else -> break od;
	busy_ring()
}

/* the lowest free buffer into b, or NONE */
inline find_free() {
	d_step {
		all_busy();
		b = NONE; x = 0;
		do
		:: x < M && !(m & (1 << x)) -> b = x; break
		:: x < M && (m & (1 << x)) -> x++
		:: else -> break
		od;
		m = 0; x = 0
	}
}

/* whether another buffer is free, for the next who waits for one: into `more` */
#ifdef MUT_LOAN_NO_NEXT
#define MORE_FREE() skip
#else
#define MORE_FREE() d_step { all_busy(); more = (m != (1 << M) - 1); m = 0; x = 0 }
#endif

/* clear one bit of one's own mask, no lock; then wake one who waits for a buffer */
#define CLEAR_USE() atomic { uses[cid] = uses[cid] & ~(1 << b); b = NONE }
#ifdef MUT_RELEASE_NO_SIGNAL
#define RELEASE() CLEAR_USE()
#else
#ifdef MUT_SIGNAL_BEFORE_RELEASE
#define RELEASE() signal_one(QFREE); CLEAR_USE()
#else
#define RELEASE() CLEAR_USE(); signal_one(QFREE)
#endif
#endif

/* ------------------------------------------------------------------------- kill and repair */

/* Exactly CRASH clients may be killed: run it with 0, 1 and 2. */
#define KILL(i) atomic { crashes < CRASH && !dead[i] && !client_done(i) -> \
	dead[i] = 1; crashes++; kill_sleep(i) }
proctype killer() {
end:	do
	:: KILL(1)
	:: KILL(2)
	:: KILL(3)
	:: KILL(4)
	od
}

/* the daemon: never takes the lock, one atomic operation at a time */
inline repair(c) {
#ifdef MUT_REPAIR_NO_READER_USES
	if :: c >= FIRST_READER -> skip :: else -> uses[c] = 0 fi;
#else
#ifdef MUT_REPAIR_NO_WRITER_USES
	if :: c < FIRST_READER -> skip :: else -> uses[c] = 0 fi;
#else
	uses[c] = 0;
#endif
#endif
	repair_group(c);
#ifndef MUT_REPAIR_NO_LOCK
	atomic { if :: (lockw & 15) == c -> lockw = 0 :: else fi };
#endif
#ifndef MUT_REPAIR_NO_WAKE
#ifndef MUT_REPAIR_NO_LOCK_WAKE
	wake_all(QLOCK);
#endif
	shout(QDATA); shout(QRING); shout(QFREE);
#endif
	gone[c] = 1
}

/* -------------------------------------------------------------------------- by reference */

#define READ_MASK(p) if :: uses[p] & (1 << i) -> goto keep :: else fi
