/*
 * memory.h - how much memory the machine still has for us
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes that the kernel calls available, or that the cgroup of this process (v1 or v2) still
 * allows, whichever is less, but not the last sixteenth of it all (of it, at most 256 MiB);
 * UINT64_MAX where neither is to be had. *ret_limit is a static text that names the limit. `root`
 * is what /proc and /sys lie below: "" but in tests. */
uint64_t memory_available(const char *root, const char **ret_limit);

/* Whether the kernel gives shared memory huge pages, at least to who asks for them. */
bool memory_has_huge_pages(const char *root);

/* The path of the cgroup that limits our memory, "?" when unknown. */
void memory_cgroup(const char *root, char *ret_path, size_t size);
