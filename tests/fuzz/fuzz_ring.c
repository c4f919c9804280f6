/*
 * fuzz_ring.c - a control block into which others write what they like, and the descriptions of
 * messages in it
 *
 * The daemon's view and a client's do what the input says between words that are overwritten. The
 * block has its own size only, so sanitizers see what is beyond.
 */
#include <stdlib.h>

#include "channel_desc.h"
#include "fuzz.h"
#include "ring.h"
#include "ring_slice.h"
#include "step.h"

void (*step_hook)(enum step reached);
uint64_t ring_slice_ns = 1000;

enum { STEPS_MAX = 200, BUFFER_NBYTES = 4096 };

static const struct ring_wait at_once = {0, 0};

struct rig {
    uint32_t *block; /* owned */
    size_t nbytes;
    struct ring daemon;
    struct ring client;
};

static void given_rig(struct rig *rig, struct input *input) {
    static const struct ring_shape shapes[] = {{0, 8, 70, 4, BUFFER_NBYTES},
                                               {RING_TOPIC, 8, 70, 4, BUFFER_NBYTES},
                                               {RING_TOPIC | RING_DROP_OLDEST, 4, 8, 4, 0},
                                               {RING_DROP_OLDEST, 1, 2, 1, BUFFER_NBYTES}};
    const struct ring_shape *shape = &shapes[input_number(input, 1) % 4];

    rig->nbytes = ring_nbytes(shape);
    rig->block = aligned_alloc(RING_ALIGN, rig->nbytes);
    memset(rig->block, 0, rig->nbytes);
    ring_init(rig->block, shape);
    assert(!ring_open(rig->block, rig->nbytes, shape, 0, 0, &rig->daemon));
    assert(ring_seat(&rig->daemon, 0, 7));
    assert(!ring_open(rig->block, rig->nbytes, shape, 7, 0, &rig->client));
}

/* A message that arrived: what is in it is read as a client would. */
static void open_message(struct rig *rig, const struct ring_message *message) {
    struct channel_desc desc;

    assert(message->buffer < rig->client.shape.buffers);
    if (!channel_desc_read(&rig->client, message->buffer, &desc)) {
        assert(desc.memory.ndim >= 0 && desc.memory.ndim <= CHANNEL_NDIM_MAX);
        (void)desc_check(&desc.memory, BUFFER_NBYTES);
    }
    ring_release(&rig->client, message->buffer);
}

static void report(struct rig *rig) {
    struct ring_holder holders[2];
    struct ring_report report;

    ring_report(&rig->client, holders, 2, &report);
    ring_report(&rig->daemon, holders, 2, &report);
}

static void send_one(struct rig *rig) {
    uint32_t buffer;

    if (ring_loan(&rig->client, &at_once, &buffer) == RING_OK) {
        assert(buffer < rig->client.shape.buffers);
        if (ring_send(&rig->client, &at_once, buffer) != RING_OK) {
            ring_release(&rig->client, buffer);
        }
    }
}

static void scribble(struct rig *rig, struct input *input) {
    uint64_t at = input_number(input, 2) % (rig->nbytes / sizeof *rig->block);

    rig->block[at] = (uint32_t)input_number(input, 4);
}

static void scribble_desc(struct rig *rig, struct input *input) {
    size_t nbytes;
    uint32_t buffer = (uint32_t)input_number(input, 1) % rig->client.shape.buffers;
    const uint8_t *bytes = input_bytes(input, RING_DESC_NBYTES, &nbytes);

    if (nbytes > 0) {
        memcpy(ring_desc(&rig->client, buffer), bytes, nbytes);
    }
}

static void do_step(struct rig *rig, struct input *input) {
    uint64_t needed[RING_MASK_WORDS];
    struct ring_message message;
    uint64_t kind = input_number(input, 1);

    rig->client.broken = 0; /* as another handle would find it */
    switch (kind % 10) {
    case 0:
    case 1:
        scribble(rig, input);
        break;
    case 2:
        scribble_desc(rig, input);
        break;
    case 3:
        send_one(rig);
        break;
    case 4:
        if (ring_recv(&rig->client, &at_once, kind & 16, &message) == RING_OK) {
            open_message(rig, &message);
        }
        break;
    case 5:
        ring_subscribe(&rig->client, 0, kind & 16);
        break;
    case 6:
        ring_sweep(&rig->daemon, needed);
        break;
    case 7:
        report(rig);
        break;
    case 8:
        ring_vacate(&rig->daemon, 0, NULL);
        ring_repair(&rig->daemon, 7);
        (void)ring_seat(&rig->daemon, 0, 7);
        break;
    default:
        ring_release_for(&rig->daemon, 0,
                         (uint32_t)input_number(input, 4) % rig->daemon.shape.buffers);
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    struct input input = {data, nbytes};
    struct rig rig;

    given_rig(&rig, &input);
    for (int i = 0; i < STEPS_MAX && input.left > 0; i++) {
        do_step(&rig, &input);
    }
    free(rig.block);
    return 0;
}
