#include "poller.h"

#include <errno.h>
#include <malloc.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <uv.h>

static void *spare; /* for libuv's next realloc() */
static size_t spare_nbytes;
static int highest = -1; /* descriptor that libuv's table surely has room for */

static void *reallocate(void *block, size_t nbytes) {
    void *taken = spare;

    if (!taken || nbytes > spare_nbytes) {
        return realloc(block, nbytes);
    }
    spare = NULL;
    if (block) {
        size_t had = malloc_usable_size(block);
        memcpy(taken, block, had < nbytes ? had : nbytes);
        free(block);
    }
    return taken;
}

void pollers_init(void) {
    uv_replace_allocator(malloc, reallocate, calloc, free);
}

/* The table has a pointer per descriptor, and its size is the next power of two. */
static bool make_room(int fd) {
    if (fd > highest) {
        spare_nbytes = 2 * ((size_t)fd + 3) * sizeof(void *);
        spare = malloc(spare_nbytes);
    }
    return fd <= highest || spare;
}

/* When the loop goes on libuv adds it as well, and is content with what is there. */
int poller_start(uv_poll_t *poll, int events, poller_event_t *event) {
    int fd;

    uv_poll_start(poll, events, event);
    uv_fileno((uv_handle_t *)poll, &fd);
    struct epoll_event none = {.data.fd = fd};
    if (epoll_ctl(uv_backend_fd(poll->loop), EPOLL_CTL_ADD, fd, &none) == 0) {
        return 0;
    }
    int r = -errno;
    uv_poll_stop(poll);
    return r;
}

static void free_poll(uv_handle_t *poll) {
    free(poll);
}

static uv_poll_t *create(uv_loop_t *loop, int fd, void *data, poller_event_t *event) {
    uv_poll_t *poll = malloc(sizeof *poll);

    if (!poll || !make_room(fd) || uv_poll_init(loop, poll, fd) != 0) {
        free(poll);
        errno = ENOMEM;
        return NULL;
    }
    poll->data = data;
    int r = poller_start(poll, UV_READABLE, event);
    if (r < 0) {
        uv_close((uv_handle_t *)poll, free_poll);
        errno = -r;
        return NULL;
    }
    highest = fd > highest ? fd : highest;
    return poll;
}

uv_poll_t *poller_create(uv_loop_t *loop, int fd, void *data, poller_event_t *event) {
    uv_poll_t *poll = create(loop, fd, data, event);

    free(spare);
    spare = NULL;
    return poll;
}

void poller_destroy(uv_poll_t *poll) {
    uv_close((uv_handle_t *)poll, free_poll);
}
