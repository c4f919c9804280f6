/*
 * ring_event.h - words to sleep on: bit 0 is "somebody waits", above it a count of wake-ups
 *
 * Who waits looks, sets the flag, looks again, sleeps while the word is unchanged. Who changes
 * something looks at the flag after the change; only if it is set it counts up (which clears it)
 * and wakes.
 *
 * Where all who wait want the same, one is woken, who wakes the next if there is more
 * (event_signal). The flag may then be clear while others sleep. So who was woken sets it again
 * before looking (event_resume), who gives up without having looked passes the wake-up on
 * (event_pass), and what concerns everybody is shouted, whatever the flag says.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define EVENT_WAITS 1u

/* The order between the change before a signal and the look at the flag. Each such change ends with
 * an atomic read-modify-write (unlock, release of a bit), which on x86 is a full fence. */
static inline void event_fence(void) {
#if defined(__x86_64__)
    __atomic_signal_fence(__ATOMIC_SEQ_CST);
#else
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

/* Sets the flag: the value to sleep on. Then look again. */
uint32_t event_prepare(uint32_t *event);

/* Sleeps on a prepared value. True when woken: look again, whatever the time; false when the time
 * is over or a signal came. */
bool event_sleep(uint32_t *event, uint32_t value, uint64_t until_ns);

/* Woken, and about to look. */
void event_resume(uint32_t *event);

/* Woken, and will not look. */
void event_pass(uint32_t *event);

void event_wake(uint32_t *event, int count);

/* After a change that one can use. */
static inline void event_signal(uint32_t *event) {
    event_fence();
    if (__atomic_load_n(event, __ATOMIC_SEQ_CST) & EVENT_WAITS) {
        event_wake(event, 1);
    }
}

/* After a change that everybody wants to see; only for an event where nobody is woken alone. */
void event_signal_all(uint32_t *event);

/* Everybody. */
void event_shout(uint32_t *event);
