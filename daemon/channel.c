#include "channel.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "attachment.h"
#include "bytes.h"
#include "descriptor.h"
#include "log.h"
#include "messages.h"
#include "participant.h"
#include "step.h"

struct key {
    const char *name;
    size_t nbytes;
};

static int compare_name(const void *key, const struct tree_node *node) {
    const struct channel *channel = container_of(node, struct channel, by_name);
    const struct key *name = key;
    size_t least = bytes_least(name->nbytes, channel->name_nbytes);
    int order = memcmp(name->name, channel->name, least);

    return order ? order
                 : (name->nbytes > channel->name_nbytes) - (name->nbytes < channel->name_nbytes);
}

void channels_init(struct channels *channels) {
    channels->names = (struct tree){.compare = compare_name};
    table_init(&channels->by_id);
    list_init(&channels->all);
    list_init(&channels->unsettled);
}

struct channel *channels_find(const struct channels *channels, uint64_t id) {
    return id && id <= channels->next_id ? table_find(&channels->by_id, id) : NULL;
}

struct channel *channels_find_name(struct channels *channels, const char *name, size_t nbytes) {
    struct tree_node *node;

    channels_settle(channels); /* one that has ended is in nobody's way */
    node = tree_find(&channels->names, &(struct key){name, nbytes});
    return node ? container_of(node, struct channel, by_name) : NULL;
}

/* ---------------------------------------------------------------------------------------- begin */

/* Never as large as a page that FORK sends, so that the two cannot be confused. */
static size_t block_nbytes(const struct ring_shape *shape) {
    size_t nbytes = bytes_round_up(ring_nbytes(shape), WIRE_PAGE_NBYTES);

    return nbytes > WIRE_PAGE_NBYTES ? nbytes : 2 * WIRE_PAGE_NBYTES;
}

/* All of its pages are there from the beginning: no access can fail later. */
static int block_fill(struct channel *channel, int fd, size_t nbytes) {
    int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    int r;

    do {
        r = posix_fallocate(fd, 0, (off_t)nbytes);
    } while (r == EINTR);
    if (r != 0) {
        return -r;
    }
    if (fcntl(fd, F_ADD_SEALS, seals) < 0) {
        return -errno;
    }
    void *memory = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        return -errno;
    }
    channel->ring.control = memory;
    channel->nbytes = nbytes;
    channel->fd = fd;
    return 0;
}

static int block_create(struct channel *channel, const struct ring_shape *shape) {
    size_t nbytes = block_nbytes(shape);
    int flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
    int fd = descriptor_for_memory(memfd_create("tensorcx-channel", flags));
    int r = fd < 0 ? fd : block_fill(channel, fd, nbytes);

    if (r < 0) {
        if (fd >= 0) {
            close(fd);
        }
        return r;
    }
    ring_init(channel->ring.control, shape);
    const char *wrong = ring_open(channel->ring.control, nbytes, shape, 0, 0, &channel->ring);
    assert(!wrong);
    (void)wrong;
    REACHED(BLOCK_MADE);
    return 0;
}

static void block_free(struct channel *channel) {
    munmap(channel->ring.control, channel->nbytes);
    close(channel->fd);
}

/* On the books. */
static int enlist(struct channels *channels, struct channel *channel) {
    struct key key = {channel->name, channel->name_nbytes};
    char name[4 * WIRE_NAME_MAX + 8];

    if (table_set(&channels->by_id, channels->next_id + 1, channel) < 0) {
        return -ENOMEM;
    }
    channel->id = ++channels->next_id;
    account_charge(channel->account, ACCOUNT_CHANNELS, 1);
    tree_insert(&channels->names, &key, &channel->by_name);
    list_append(&channels->all, &channel->link);
    channel_touch(channel);
    REACHED(CHANNEL_ENTERED);
    log_debug("event=channel.create channel=%" PRIu64 " name=%s", channel->id,
              log_quote(channel->name, channel->name_nbytes, name, sizeof name));
    return 0;
}

int channel_create(struct channels *channels, struct account *account,
                   const struct ring_shape *shape, const char *name, size_t nbytes,
                   struct channel **ret_channel) {
    if (channels->by_id.count >= channels->max) {
        return -EDQUOT;
    }
    struct channel *channel = calloc(1, sizeof *channel + nbytes);
    if (!channel) {
        return -ENOMEM;
    }
    list_init(&channel->unsettled);
    list_init(&channel->held);
    list_init(&channel->loose);
    channel->channels = channels;
    channel->account = account;
    channel->name_nbytes = nbytes;
    memcpy(channel->name, name, nbytes);
    channel->seats = calloc(shape->members, sizeof(struct participant *));
    int r = channel->seats ? block_create(channel, shape) : -ENOMEM;
    if (r == 0) {
        r = enlist(channels, channel);
        if (r < 0) {
            block_free(channel);
        }
    }
    if (r < 0) {
        free(channel->seats);
        free(channel);
        return r;
    }
    *ret_channel = channel;
    return 0;
}

uint64_t channel_buffer_nbytes(uint64_t nbytes) {
    return bytes_round_up(nbytes, nbytes < 64 * 1024 ? 256 : 4096);
}

void channel_size(struct channel *channel, struct storage *storage, uint64_t buffer_nbytes) {
    assert(!channel->storage);
    storage_ref(channel->channels->storages, storage);
    channel->storage = storage;
    REACHED(CHANNEL_SIZED);
    ring_size(&channel->ring, buffer_nbytes);
}

/* ------------------------------------------------------------------------------------------ end */

static void take_name(struct channel *channel) {
    struct key key = {channel->name, channel->name_nbytes};

    if (channel->name_nbytes > 0) {
        tree_remove(&channel->channels->names, &key, &channel->by_name);
        channel->name_nbytes = 0;
    }
}

void channel_delete(struct channel *channel) {
    ring_close(&channel->ring);
    take_name(channel);
    REACHED(CHANNEL_DELETED);
    channel_touch(channel);
}

/* Who still uses a buffer has its memory mapped, and a hold on it. */
static void channel_end(struct channel *channel) {
    struct channels *channels = channel->channels;

    for (uint32_t slot = 0; channel->seated > 0; slot++) {
        if (channel->seats[slot]) {
            participant_free(channel->seats[slot]);
        }
    }
    log_debug("event=channel.end channel=%" PRIu64, channel->id);
    attachments_drop(channel);
    take_name(channel);
    REACHED(CHANNEL_EMPTIED);
    table_remove(&channels->by_id, channel->id);
    list_remove(&channel->link);
    list_remove(&channel->unsettled);
    if (channel->storage) {
        storage_unref(channels->storages, channel->storage);
    }
    block_free(channel);
    account_return(channel->account, ACCOUNT_CHANNELS, 1);
    free(channel->seats);
    free(channel);
    REACHED(CHANNEL_ENDED);
}

void channels_fini(struct channels *channels) {
    while (!list_is_empty(&channels->all)) {
        struct channel *channel = container_of(channels->all.next, struct channel, link);
        channel_end(channel);
    }
    assert(channels->references == 0);
    table_fini(&channels->by_id);
}

/* --------------------------------------------------------------------------------------- settle */

uint32_t channel_depth(const struct channel *channel) {
    struct ring view = channel->ring; /* the daemon's: takes no lock */
    struct ring_report report;

    ring_report(&view, NULL, 0, &report);
    return report.depth;
}

void channel_touch(struct channel *channel) {
    list_remove(&channel->unsettled);
    list_append(&channel->channels->unsettled, &channel->unsettled);
}

bool channel_is_over(const struct channel *channel) {
    return channel->open == 0 && channel->name_nbytes == 0;
}

static bool is_needed(const struct channel *channel) {
    bool is_queue = !(channel->ring.shape.flags & RING_TOPIC);

    return channel->open > 0 ||
           (is_queue && channel->name_nbytes > 0 && channel->storage && channel_depth(channel) > 0);
}

/* Who has received what a message refers to may have no hold on it, only the buffer. Bits of seats
 * that nobody has were written by somebody who should not. */
static bool is_kept(struct channel *channel) {
    attachments_drop_sent(channel);
    if (channel->seated == 0 || channel->attached + channel->standings.count == 0) {
        return false;
    }
    take_name(channel);
    return true;
}

void channels_settle(struct channels *channels) {
    struct list *link;

    while ((link = list_pop(&channels->unsettled))) {
        struct channel *channel = container_of(link, struct channel, unsettled);
        attachments_sweep(channel);
        participants_reap(channel);
        if (!is_needed(channel) && !is_kept(channel)) {
            channel_end(channel);
        }
    }
}

uint64_t channels_sweep(struct channels *channels) {
    uint64_t before = channels->references;

    channels_settle(channels);
    list_for_each (link, &channels->all) {
        attachments_sweep(container_of(link, struct channel, link));
    }
    return before - channels->references;
}
