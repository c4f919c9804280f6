/*
 * ring_slice.h - how long a wait lasts before its caller looks around: in tests without end, so
 * that a lost wake-up is a hang
 */
#pragma once

#include "ring.h"

#ifdef RING_TESTED
extern uint64_t ring_slice_ns; /* the test's */
#    define SLICE_NS ring_slice_ns
#else
#    define SLICE_NS RING_SLICE_NS
#endif
