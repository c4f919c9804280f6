/*
 * step.h - places in the code where a test kills, stops and lets go on: after every change of state
 *
 * REACHED(NAME) stands behind the change, which steps.def describes; what is before a change is
 * behind the one before it. Where an attempt that failed comes by as well, nothing has changed
 * since the step before. It is nothing but in a build with STEPS=1, where step.c counts it and
 * does what a test has planned, or a unit test has a hook of its own.
 */
#pragma once

enum step {
#define STEP(NAME, side, what) STEP_##NAME,
#include "steps.def"
#undef STEP
    STEP_COUNT
};

#ifdef TENSORCX_STEPS
extern void (*step_hook)(enum step reached); /* NULL: nothing happens */
#    define REACHED(NAME)               \
        do {                            \
            if (step_hook) {            \
                step_hook(STEP_##NAME); \
            }                           \
        } while (0)
#else
#    define REACHED(NAME) ((void)STEP_##NAME)
#endif
