#include "ring_event.h"

#include "ring_futex.h"
#include "ring_step.h"

uint32_t event_prepare(uint32_t *event) {
    uint32_t value = __atomic_fetch_or(event, EVENT_WAITS, __ATOMIC_SEQ_CST) | EVENT_WAITS;
    event_fence();
    RING_STEP();
    return value;
}

bool event_sleep(uint32_t *event, uint32_t value, uint64_t until_ns) {
    int r = futex_wait(event, value, until_ns);
    RING_STEP();
    return r == 0 || r == -EAGAIN; /* EAGAIN: somebody counted up before we slept */
}

void event_resume(uint32_t *event) {
    __atomic_fetch_or(event, EVENT_WAITS, __ATOMIC_SEQ_CST);
    event_fence();
    RING_STEP();
}

void event_pass(uint32_t *event) {
    event_resume(event);
    event_signal(event);
}

void event_wake(uint32_t *event, int count) {
    uint32_t value = __atomic_load_n(event, __ATOMIC_SEQ_CST);

    RING_STEP();
    while (value & EVENT_WAITS) {
        if (__atomic_compare_exchange_n(event, &value, value + 1, false, __ATOMIC_SEQ_CST,
                                        __ATOMIC_SEQ_CST)) {
            RING_STEP();
            futex_wake(event, count);
            RING_STEP();
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
    RING_STEP();
    futex_wake(event, INT_MAX);
    RING_STEP();
}
