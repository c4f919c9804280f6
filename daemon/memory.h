/*
 * memory.h - how much memory the machine still has for us
 */
#pragma once

#include <stdint.h>

/* Bytes that may still be committed: a share of what the kernel calls available, or what the cgroup
 * of this process (v1 or v2) still allows, whichever is less. *ret_limit is a static text that
 * names the limit. */
uint64_t memory_available(const char **ret_limit);

/* The kernel's MemAvailable, in bytes; 0 when unknown. */
uint64_t memory_total_available(void);
