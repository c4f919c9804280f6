/*
 * accident.h - what a test and accident.c share: which accident is to happen, and whether it has
 *
 * A page of a file that the test maps, too (accidents.py has the same fields).
 */
#pragma once

/* Bits: any of several kinds may be planned. */
enum accident_kind {
    ACCIDENT_KILL = 1,        /* SIGKILL, before and after each message that is sent or received */
    ACCIDENT_MEMORY = 2,      /* malloc() and its like have none */
    ACCIDENT_MAPPING = 4,     /* no address space, or no memory for what is mapped */
    ACCIDENT_DESCRIPTOR = 8,  /* no descriptor is free, neither for a call nor for one received */
    ACCIDENT_MESSAGE = 16,    /* the kernel has no memory for a message to send */
    ACCIDENT_SYSTEM = 32,     /* whatever else the kernel may refuse */
    ACCIDENT_CONNECTION = 64, /* a connection ends, or seems to */
};

struct accident {
    int kinds;
    int at;            /* it happens the at-th time that it can, from 1 up, */
    int times;         /* and so many times in a row; */
    int variant;       /* with which of the numbers that a function may fail with: 0 is the first */
    int passed;        /* how often it could have happened so far */
    int happened;      /* how often it did */
    long blocks;       /* of malloc() that the process has not given back */
    char function[48]; /* that failed last, */
    int number;        /* and with what */
};
