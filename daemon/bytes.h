/*
 * bytes.h - small sums with sizes, or times
 */
#pragma once

#include <stdint.h>

#define MIB ((uint64_t)1 << 20)

static inline uint64_t bytes_least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static inline uint64_t bytes_round_up(uint64_t nbytes, uint64_t unit) {
    return (nbytes + unit - 1) / unit * unit;
}
