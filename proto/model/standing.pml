/*
 * standing.pml - a standing reference: who may send it lets go, or is killed, while messages name it
 *
 * Sender 1 holds a storage and sends K messages that name it, sender 2 one that does not, through
 * the same buffers; reader 3 uses what a message names, then releases the buffer, and tells the daemon only if
 * that watches. What is under the lock is in steps where the daemon, which takes no lock, can see them.
 * Options: K, M, CRASH (sender 1 may be killed), MUT_...
 */
#ifndef K
#define K 2
#endif
#ifndef M
#define M 2
#endif
#define S (K+2)
#define NONE 255

byte uses[4];           /* masks of buffers */
bit  names[M];          /* the buffer's description names the reference */
byte rbuf[S], head, cursor;
byte lockw;             /* its owner */
bit  watched;
bit  done[4];
bit  dead, gone, let_go;        /* sender 1: killed, found so, its note */
byte told;              /* notes of released buffers on their way */
bit  held = 1, alive = 1;       /* the daemon's books: sender 1 holds the storage; the reference */
bit  busy;              /* the daemon does something */

#define BUSY (uses[1] | uses[2] | uses[3])
#define LOCK(me) atomic { lockw == 0 -> lockw = me }
#define UNLOCK(me) atomic { assert(lockw == me); lockw = 0 }

/* the lowest buffer that nobody uses and no message needs; waits */
inline loan(me) {
	atomic {
		lockw == 0;
		m = BUSY; i = cursor;
		do :: i < head -> m = m | (1 << rbuf[i]); i++ :: else -> break od;
		b = 0;
		do :: b < M && (m & (1 << b)) -> b++ :: else -> break od;
		if :: b == M -> b = NONE :: else -> uses[me] = uses[me] | (1 << b) fi;
		m = 0; i = 0
	}
}

inline send(me) {
	LOCK(me);
	rbuf[head] = b;
	head++;
	uses[me] = uses[me] & ~(1 << b);
	UNLOCK(me)
}

proctype sender(byte me; byte n; bit named) {
	byte b = NONE, m, i, k;
	{
	do
	:: k < n ->
again:		loan(me);
		if :: b == NONE -> goto again :: else fi;
		names[b] = 0;
		names[b] = named;
		send(me);
		k++
	:: else -> break
	od;
	if :: named -> let_go = 1 :: else fi
	} unless { me == 1 && dead };
	atomic { b = 0; k = 0; m = 0; i = 0; done[me] = 1 }
}

proctype reader() {
	byte b;
	bit tell;
	do
	:: LOCK(3);
		if
		:: cursor == head -> UNLOCK(3);
			if :: atomic { done[1] && done[2] && cursor == head && (!dead || gone) -> break }
			:: cursor < head
			fi
		:: cursor < head ->
			b = rbuf[cursor];
			uses[3] = uses[3] | (1 << b);
			cursor++;
			UNLOCK(3);
			if :: names[b] -> assert(alive) :: else fi;
#ifdef MUT_WATCHED_BEFORE_RELEASE
			tell = watched;
#endif
#ifdef MUT_TELL_IF_NAMED
			tell = names[b];
#endif
			atomic { if :: names[b] -> assert(alive) :: else fi; uses[3] = uses[3] & ~(1 << b) };
#ifndef MUT_WATCHED_BEFORE_RELEASE
#ifdef MUT_TELL_IF_NAMED
			tell = tell && watched;
#else
			tell = watched;
#endif
#endif
			if :: tell -> told++ :: else fi;
			tell = 0
		fi
	od;
	done[3] = 1
}

inline read_masks() {
	m = m | uses[1]; m = m | uses[2]; m = m | uses[3]
}

inline sweep() {
	if
	:: alive && !held ->
#ifndef MUT_SWEEP_BEFORE_WATCH
		watched = 1;
#endif
		m = 0;
		read_masks();
		l = cursor; h = head;
		do :: l < h -> m = m | (1 << rbuf[l]); l++ :: else -> break od;
#ifndef MUT_SWEEP_NO_SECOND
		read_masks();
#endif
		l = 0;
		do
		:: l < M && (m & (1 << l)) && names[l] -> break
		:: l < M && !((m & (1 << l)) && names[l]) -> l++
		:: l == M -> alive = 0; break
		od;
		watched = alive
	:: else
	fi;
	atomic { m = 0; l = 0; h = 0 }
}

proctype daemon() {
	byte m, l, h;
end:	do
	:: atomic { told > 0 -> told--; busy = 1 }; sweep(); busy = 0
	:: atomic { let_go && held -> held = 0; busy = 1 }; sweep(); busy = 0
	:: atomic { dead && !gone -> busy = 1 };
		uses[1] = 0;
		atomic { if :: lockw == 1 -> lockw = 0 :: else fi };
		held = 0; gone = 1;
		sweep();
		busy = 0
	od
}

#ifdef CRASH
proctype killer() {
end:	atomic { !done[1] -> dead = 1 }
}
#endif

proctype closer() {
	atomic { done[1] && done[2] && done[3] && !held && told == 0 && !busy && (!dead || gone) ->
		assert(!alive); assert(lockw == 0 && BUSY == 0) }
}

init {
	atomic {
		run sender(1, K, 1); run sender(2, 1, 0); run reader(); run daemon();
#ifdef CRASH
		run killer();
#endif
		run closer()
	}
}
