/*
 * ring_fixture.h - a ring in memory that forked children share, with buffers, and clients of it
 */
#pragma once

#include <stdlib.h>
#include <sys/mman.h>

#include "fixture.h"
#include "ring.h"
#include "ring_lock.h"
#include "ring_mask.h"
#include "ring_slice.h"
#include "step.h"

#define ENDLESS UINT64_C(600000000000) /* a slice after which the runner has long given up */

void (*step_hook)(enum step reached);
uint64_t ring_slice_ns = ENDLESS;

static const struct ring_wait at_once = {0, 0};
static const struct ring_wait for_ever = {RING_FOREVER, 0};
static const struct ring_wait for_ever_spinning = {RING_FOREVER, 20000};

struct payload { /* in each buffer; both ends are written, so that a torn one shows */
    uint32_t sender;
    uint32_t number;
    uint32_t filler[12];
    uint32_t sender_again;
    uint32_t number_again;
};

struct rig {
    struct ring_shape shape;
    void *block;
    struct payload *payloads; /* [buffers], shared */
    struct ring daemon;
};

static void *shared_memory(size_t nbytes) {
    void *memory = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    EXPECT_TRUE(memory != MAP_FAILED);
    return memory;
}

__attribute__((unused)) static struct rig given_rig(uint32_t flags, uint32_t capacity,
                                                    uint32_t buffers) {
    struct rig rig = {.shape = {.flags = flags,
                                .capacity = capacity,
                                .buffers = buffers,
                                .members = 64,
                                .buffer_nbytes = sizeof(struct payload)}};

    EXPECT_TRUE(ring_shape_check(&rig.shape) == NULL);
    rig.block = shared_memory(ring_nbytes(&rig.shape));
    rig.payloads = shared_memory(buffers * sizeof *rig.payloads);
    ring_init(rig.block, &rig.shape);
    EXPECT_TRUE(ring_open(rig.block, ring_nbytes(&rig.shape), &rig.shape, 0, 0, &rig.daemon) ==
                NULL);
    return rig;
}

/* Client `client` in member client - 1. */
__attribute__((unused)) static struct ring given_client(struct rig *rig, uint32_t client) {
    struct ring ring;

    EXPECT_TRUE(ring_seat(&rig->daemon, client - 1, client));
    EXPECT_TRUE(ring_open(rig->block, ring_nbytes(&rig->shape), &rig->shape, client, client - 1,
                          &ring) == NULL);
    return ring;
}

__attribute__((unused)) static struct ring given_subscriber(struct rig *rig, uint32_t client) {
    struct ring ring = given_client(rig, client);

    EXPECT_EQ(RING_OK, ring_subscribe(&ring, 0, false));
    return ring;
}

/* What the daemon does when a client is really gone. */
__attribute__((unused)) static void bury(struct rig *rig, uint32_t client) {
    ring_vacate(&rig->daemon, client - 1, NULL);
    ring_repair(&rig->daemon, client);
}

__attribute__((unused)) static void fill(struct rig *rig, uint32_t buffer, uint32_t sender,
                                         uint32_t number) {
    struct payload *p = &rig->payloads[buffer];

    p->sender = sender;
    p->number = number;
    p->sender_again = sender;
    p->number_again = number;
}

__attribute__((unused)) static void expect_whole(const struct payload *p) {
    EXPECT_EQ(p->sender, p->sender_again);
    EXPECT_EQ(p->number, p->number_again);
}

/* Loans, fills and sends, for ever if need be; RING_CLOSED may come. */
__attribute__((unused)) static enum ring_result
send_number(struct rig *rig, struct ring *ring, const struct ring_wait *wait, uint32_t number) {
    uint32_t buffer;
    enum ring_result r = ring_loan(ring, wait, &buffer);

    if (r == RING_OK) {
        fill(rig, buffer, ring->client, number);
        r = ring_send(ring, wait, buffer);
        if (r != RING_OK) {
            ring_release(ring, buffer);
        }
    }
    return r;
}

__attribute__((unused)) static void expect_received(struct rig *rig, struct ring *ring,
                                                    uint32_t number) {
    struct ring_message message;

    EXPECT_EQ(RING_OK, ring_recv(ring, &at_once, false, &message));
    EXPECT_EQ(number, rig->payloads[message.buffer].number);
    ring_release(ring, message.buffer);
}

/* No member uses anything, nobody has the lock. */
__attribute__((unused)) static void expect_at_rest(const struct rig *rig) {
    uint64_t uses[RING_MASK_WORDS] = {0};

    mask_add_uses(&rig->daemon, uses);
    for (int w = 0; w < RING_MASK_WORDS; w++) {
        EXPECT_EQ(0, uses[w]);
    }
    EXPECT_EQ(0, ring_lock_owner(&rig->daemon));
}
