/*
 * accident.h - what a test and accident.c share: which accident is to happen, and whether it has
 *
 * A page of a file that the test maps, too (accidents.py has the same fields).
 */
#pragma once

enum accident_kind {
    ACCIDENT_NONE,
    ACCIDENT_KILL,       /* SIGKILL, before and after each message that is sent or received */
    ACCIDENT_MEMORY,     /* malloc() and its like have none */
    ACCIDENT_MAPPING,    /* mmap() finds no address space */
    ACCIDENT_DESCRIPTOR, /* no descriptor is free, neither for a call nor for one received */
    ACCIDENT_MESSAGE,    /* the kernel has no memory for a message to send */
};

struct accident {
    int kind;
    int at;       /* it happens the at-th time that it can, from 1 up, */
    int times;    /* and so many times in a row */
    int passed;   /* how often it could have happened so far */
    int happened; /* how often it did */
    int unused;
    long blocks; /* of malloc() that the process has not given back */
};
