/*
 * ring_step.h - what tests do to a ring: kill between any two steps that others can see, and wait
 * without end, so that a lost wake-up is a hang
 */
#pragma once

#include "ring.h"

#ifdef RING_STEPS
extern void (*ring_step_hook)(void); /* these two are the test's */
extern uint64_t ring_slice_ns;
#    define RING_STEP()           \
        do {                      \
            if (ring_step_hook) { \
                ring_step_hook(); \
            }                     \
        } while (0)
#    define SLICE_NS ring_slice_ns
#else
#    define RING_STEP() ((void)0)
#    define SLICE_NS    RING_SLICE_NS
#endif
