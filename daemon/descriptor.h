/*
 * descriptor.h - that memory leaves descriptors for clients
 */
#pragma once

/* What a call that makes memory returned: a descriptor, or -1 and errno. Memory may not have the
 * last ones below RLIMIT_NOFILE: a client that comes to delete something needs one, too. Returns
 * the descriptor, or a negative errno; -EMFILE: it is closed. */
int descriptor_for_memory(int fd);
