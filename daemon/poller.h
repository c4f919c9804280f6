/*
 * poller.h - watches a descriptor on the loop
 *
 * libuv ends the process when it finds no memory for its table of watched descriptors. So the
 * memory for a larger table is there before a descriptor that needs one is watched.
 */
#pragma once

struct uv_loop_s;
struct uv_poll_s;

/* Before anything else that libuv does. */
void pollers_init(void);

/* Calls `event` when `fd` is readable. NULL: there is no memory for that. Owned by the caller. */
struct uv_poll_s *poller_create(struct uv_loop_s *loop, int fd, void *data,
                                void (*event)(struct uv_poll_s *poll, int status, int events));

/* Stops. The descriptor may be closed right after. */
void poller_destroy(struct uv_poll_s *poll);
