#include "participant.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "ring_mask.h"
#include "standing.h"
#include "step.h"

void participants_init(struct participants *participants) {
    list_init(&participants->all);
}

/* ----------------------------------------------------------------------------------------- free */

void participant_free(struct participant *participant) {
    struct channel *channel = participant->channel;

    for (uint32_t b = 0; b < channel->ring.shape.buffers; b++) {
        if (participant->inherited[b].is_parked) {
            heap_remove(&participant->inherited[b].parked);
        }
    }
    channel->seats[participant->slot] = NULL;
    channel->seated--;
    channel->open -= !participant->has_left;
    list_remove(&participant->link);
    participant->participants->count--;
    channel_touch(channel);
    free(participant);
    REACHED(SEAT_FREED);
}

static void reap(struct participant *participant) {
    if (participant->has_left && ring_uses(&participant->channel->ring, participant->slot) == 0) {
        participant_free(participant);
    }
}

void participants_reap(struct channel *channel) {
    for (uint32_t slot = 0; channel->seated > channel->open && slot < channel->ring.shape.members;
         slot++) {
        if (channel->seats[slot]) {
            reap(channel->seats[slot]);
        }
    }
}

/* ----------------------------------------------------------------------------------------- join */

static int take_seat(struct participant *participant) {
    struct channel *channel = participant->channel;
    uint32_t client = participant->participants->client;

    for (uint32_t slot = 0; slot < channel->ring.shape.members; slot++) {
        if (!channel->seats[slot] && ring_seat(&channel->ring, slot, client)) {
            participant->slot = slot;
            channel->seats[slot] = participant;
            channel->seated++;
            channel->open++;
            return 0;
        }
    }
    return -EBUSY;
}

/* Of those that have left some may be done unseen. */
static bool is_full(struct participants *participants) {
    if (participants->count >= participants->max) {
        list_for_each (link, &participants->all) {
            reap(container_of(link, struct participant, link));
        }
    }
    return participants->count >= participants->max;
}

int participant_join(struct participants *participants, struct channel *channel,
                     struct participant **ret_participant) {
    struct participant *participant;

    if (is_full(participants)) {
        return -EDQUOT;
    }
    participants_reap(channel);
    participant = calloc(1, sizeof *participant +
                                channel->ring.shape.buffers * sizeof participant->inherited[0]);
    if (!participant) {
        return -ENOMEM;
    }
    participant->participants = participants;
    participant->channel = channel;
    int r = take_seat(participant);
    if (r < 0) {
        free(participant);
        return r;
    }
    list_append(&participants->all, &participant->link);
    participants->count++;
    REACHED(SEAT_GIVEN);
    *ret_participant = participant;
    return 0;
}

struct participant *participant_find(const struct participants *participants,
                                     const struct channel *channel, uint32_t slot) {
    struct participant *participant =
        channel && slot < channel->ring.shape.members ? channel->seats[slot] : NULL;

    return participant && participant->participants == participants ? participant : NULL;
}

bool participants_are_in(const struct participants *participants, const struct channel *channel) {
    for (uint32_t slot = 0; slot < channel->ring.shape.members; slot++) {
        const struct participant *participant = participant_find(participants, channel, slot);
        if (participant && !participant->has_left) {
            return true;
        }
    }
    return false;
}

/* ---------------------------------------------------------------------------------------- leave */

static void left(struct participant *participant) {
    if (!participant->has_left) {
        participant->has_left = true;
        participant->channel->open--;
        standings_left(participant);
    }
    channel_touch(participant->channel);
    REACHED(SEAT_LEFT);
}

void participant_leave(struct participant *participant) {
    struct ring view = participant->channel->ring;

    view.member = participant->slot;
    ring_leave(&view); /* whatever the client did */
    left(participant);
}

/* ------------------------------------------------------------------------------------ inherited */

/* Whether a child may still use the buffer: not one on a device. */
static bool park(struct participant *participant, uint32_t buffer) {
    struct inherited *inherited = &participant->inherited[buffer];

    if (inherited->participant && !inherited->is_parked &&
        channel_device(participant->channel) == 0) {
        inherited->is_parked =
            forkpages_park(participant->participants->forks, FORK_BUFFER, &inherited->parked);
    }
    if (!inherited->is_parked) {
        inherited->participant = NULL; /* it is not, or not any more */
    }
    return inherited->is_parked;
}

void participant_return(struct participant *participant, uint32_t buffer) {
    struct channel *channel = participant->channel;

    if (buffer >= channel->ring.shape.buffers ||
        !use_has(&channel->ring, participant->slot, buffer)) {
        return;
    }
    if (!park(participant, buffer)) {
        ring_release_for(&channel->ring, participant->slot, buffer);
    }
    REACHED(BUFFER_RETURNED);
    channel_touch(channel);
}

void participant_freed(struct heap_node *node) {
    struct inherited *inherited = container_of(node, struct inherited, parked);
    struct participant *participant = inherited->participant;
    uint32_t buffer = (uint32_t)(inherited - participant->inherited);

    *inherited = (struct inherited){0};
    ring_release_for(&participant->channel->ring, participant->slot, buffer);
    REACHED(INHERITED_FREED);
    channel_touch(participant->channel);
}

/* Remembers what is in use at this fork, and since which. What was returned since an earlier one is
 * parked, and stays so: this fork's child does not have it. */
static void note(struct participant *participant) {
    const struct ring *ring = &participant->channel->ring;
    uint64_t before = participant->participants->forks->noted - 1;

    for (uint32_t b = 0; b < ring->shape.buffers; b++) {
        struct inherited *inherited = &participant->inherited[b];
        if (inherited->is_parked) {
            continue;
        }
        if (!use_has(ring, participant->slot, b)) {
            inherited->participant = NULL;
        } else if (!inherited->participant) {
            inherited->participant = participant;
            inherited->parked.key = before;
        }
    }
}

void participants_note(struct participants *participants) {
    list_for_each (link, &participants->all) {
        note(container_of(link, struct participant, link));
    }
    REACHED(INHERITED_NOTED);
}

/* ------------------------------------------------------------------------------------------ end */

/* Its process is gone: it uses nothing but what children have. */
static void vacate(struct participant *participant) {
    struct ring *ring = &participant->channel->ring;
    uint64_t keep[RING_MASK_WORDS] = {0};

    for (uint32_t b = 0; b < ring->shape.buffers; b++) {
        if (use_has(ring, participant->slot, b) && park(participant, b)) {
            mask_add(keep, b);
        }
    }
    ring_vacate(ring, participant->slot, keep);
    left(participant);
}

void participants_end(struct participants *participants) {
    list_for_each (link, &participants->all) {
        vacate(container_of(link, struct participant, link));
    }
    REACHED(SEATS_VACATED);
    list_for_each (link, &participants->all) {
        const struct participant *participant = container_of(link, struct participant, link);
        ring_repair(&participant->channel->ring, participants->client);
    }
}

void participants_fini(struct participants *participants) {
    while (!list_is_empty(&participants->all)) {
        struct participant *participant =
            container_of(participants->all.next, struct participant, link);
        assert(participant->has_left);
        ring_vacate(&participant->channel->ring, participant->slot,
                    NULL); /* others may write there */
        participant_free(participant);
    }
}
