/*
 * memory.h - how much memory the machine still has for us
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Bytes that the kernel calls available, or that the cgroup of this process (v1 or v2) still
 * allows, whichever is less. *ret_limit is a static text that names the limit. */
uint64_t memory_available(const char **ret_limit);

/* The path of the cgroup that limits our memory, "?" when unknown. */
void memory_cgroup(char *ret_path, size_t size);
