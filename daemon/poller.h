/*
 * poller.h - watches a descriptor on the loop
 *
 * libuv ends the process when it finds no memory for its table of watched descriptors, and when the
 * kernel refuses to watch one more. So the memory for a larger table is there before a descriptor
 * that needs one is watched, and the kernel watches it before libuv asks for that.
 */
#pragma once

struct uv_loop_s;
struct uv_poll_s;

/* Before anything else that libuv does. */
void pollers_init(void);

typedef void poller_event_t(struct uv_poll_s *poll, int status, int events);

/* Calls `event` when `fd` is readable. Owned by the caller. NULL, and errno: ENOMEM, or ENOSPC
 * (sysctl fs.epoll.max_user_watches). */
struct uv_poll_s *poller_create(struct uv_loop_s *loop, int fd, void *data, poller_event_t *event);

/* Watches for these events from now on, as at first or after uv_poll_stop(). 0, or a negative
 * errno: it watches for nothing. */
int poller_start(struct uv_poll_s *poll, int events, poller_event_t *event);

/* Stops. The descriptor may be closed right after. */
void poller_destroy(struct uv_poll_s *poll);
