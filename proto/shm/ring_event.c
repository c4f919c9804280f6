#include "ring_event.h"

#include "ring_futex.h"
#include "step.h"

uint32_t event_prepare(uint32_t *event) {
    uint32_t value = __atomic_fetch_or(event, EVENT_WAITS, __ATOMIC_SEQ_CST) | EVENT_WAITS;
    event_fence();
    REACHED(RING_WAIT_FLAGGED);
    return value;
}

bool event_sleep(uint32_t *event, uint32_t value, uint64_t until_ns) {
    int r = futex_wait(event, value, until_ns);
    REACHED(RING_AWAKE);
    return r == 0 || r == -EAGAIN; /* EAGAIN: somebody counted up before we slept */
}

void event_resume(uint32_t *event) {
    __atomic_fetch_or(event, EVENT_WAITS, __ATOMIC_SEQ_CST);
    event_fence();
    REACHED(RING_WAIT_RESUMED);
}

void event_pass(uint32_t *event) {
    event_resume(event);
    event_signal(event);
}

void event_wake(uint32_t *event, int count) {
    uint32_t value = __atomic_load_n(event, __ATOMIC_SEQ_CST);

    REACHED(RING_WAKE_BEGUN);
    while (value & EVENT_WAITS) {
        if (__atomic_compare_exchange_n(event, &value, value + 1, false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST)) {
            REACHED(RING_WAKE_COUNTED);
            futex_wake(event, count);
            REACHED(RING_WAKE_SENT);
            return;
        }
    }
}

void event_signal_all(uint32_t *event) {
    event_fence();
    event_wake(event, INT_MAX);
}

void event_shout(uint32_t *event) {
    uint32_t value = __atomic_load_n(event, __ATOMIC_SEQ_CST);

    /* to the next even value: the flag is clear, and whoever is about to sleep will not */
    while (!__atomic_compare_exchange_n(event, &value, (value | EVENT_WAITS) + 1, false,
                                        __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    }
    REACHED(RING_SHOUT_COUNTED);
    futex_wake(event, INT_MAX);
    REACHED(RING_SHOUT_SENT);
}
