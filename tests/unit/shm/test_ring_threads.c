/* Many threads, each a client. Waits are endless here: a lost wake-up is a hang, which the runner
 * ends. */
#include <pthread.h>

#include "ring_fixture.h"

#define MAX_THREADS 16
#define MAX_SENT    4000

struct worker {
    struct rig *rig;
    struct ring ring;
    const struct ring_wait *wait;
    uint32_t count; /* senders: messages to send; readers: received */
    int hold;       /* readers: keep each until the next is there */
    uint64_t missed;
    uint32_t next[MAX_THREADS + 1]; /* readers: least number to expect of each sender */
    uint8_t *taken; /* [sender][number], shared by the readers of a queue, or NULL */
};

static void *send_all(void *arg) {
    struct worker *w = arg;

    for (uint32_t n = 0; n < w->count; n++) {
        EXPECT_EQ(RING_OK, send_number(w->rig, &w->ring, w->wait, n));
    }
    return NULL;
}

static void check(struct worker *w, const struct ring_message *message) {
    const struct payload *p = &w->rig->payloads[message->buffer];

    expect_whole(p);
    EXPECT_TRUE(p->number >= w->next[p->sender]);
    w->next[p->sender] = p->number + 1;
    w->missed += message->missed;
    w->count++;
    if (w->taken) {
        EXPECT_EQ(0, __atomic_fetch_add(&w->taken[p->sender * MAX_SENT + p->number], 1,
                                        __ATOMIC_RELAXED));
    }
}

static void *receive_all(void *arg) {
    struct worker *w = arg;
    struct ring_message message, held;
    int holds = 0;

    while (ring_recv(&w->ring, w->wait, false, &message) == RING_OK) {
        check(w, &message);
        if (holds) {
            ring_release(&w->ring, held.buffer);
        }
        holds = w->hold;
        held = message;
        if (!w->hold) {
            ring_release(&w->ring, message.buffer);
        }
    }
    if (holds) {
        ring_release(&w->ring, held.buffer);
    }
    return NULL;
}

struct crowd {
    struct rig rig;
    struct worker senders[MAX_THREADS], readers[MAX_THREADS];
    uint32_t nsenders, nreaders;
};

static void given_crowd(struct crowd *c, struct rig rig, uint32_t nsenders, uint32_t nreaders,
                        uint32_t count, const struct ring_wait *wait) {
    int topic = rig.shape.flags & RING_TOPIC;

    *c = (struct crowd){.rig = rig, .nsenders = nsenders, .nreaders = nreaders};
    uint8_t *taken = topic ? NULL : calloc(MAX_THREADS + 1, MAX_SENT);
    for (uint32_t i = 0; i < nsenders; i++) {
        c->senders[i] = (struct worker){
            .rig = &c->rig, .ring = given_client(&c->rig, i + 1), .wait = wait, .count = count};
    }
    for (uint32_t i = 0; i < nreaders; i++) {
        uint32_t client = nsenders + i + 1;
        c->readers[i] = (struct worker){.rig = &c->rig,
                                        .wait = wait,
                                        .hold = i % 2 && !(rig.shape.flags & RING_DROP_OLDEST),
                                        .taken = taken};
        c->readers[i].ring =
            topic ? given_subscriber(&c->rig, client) : given_client(&c->rig, client);
    }
}

/* Runs senders to their end, closes, and lets the readers drain. */
static uint64_t run(struct crowd *c) {
    pthread_t senders[MAX_THREADS], readers[MAX_THREADS];
    uint64_t received = 0;

    for (uint32_t i = 0; i < c->nreaders; i++) {
        EXPECT_EQ(0, pthread_create(&readers[i], NULL, receive_all, &c->readers[i]));
    }
    for (uint32_t i = 0; i < c->nsenders; i++) {
        EXPECT_EQ(0, pthread_create(&senders[i], NULL, send_all, &c->senders[i]));
    }
    for (uint32_t i = 0; i < c->nsenders; i++) {
        pthread_join(senders[i], NULL);
    }
    ring_close(&c->rig.daemon);
    for (uint32_t i = 0; i < c->nreaders; i++) {
        pthread_join(readers[i], NULL);
        received += c->readers[i].count;
    }
    free(c->readers[0].taken);
    expect_at_rest(&c->rig);
    return received;
}

static void queue_loses_nothing(uint32_t capacity, uint32_t buffers, uint32_t nsenders,
                                uint32_t nreaders, const struct ring_wait *wait) {
    struct crowd c;

    given_crowd(&c, given_rig(0, capacity, buffers), nsenders, nreaders, 1000, wait);
    EXPECT_EQ(1000 * nsenders, run(&c));
}

TEST(a_queue_of_one_message_loses_nothing) {
    queue_loses_nothing(1, 6, 4, 4, &for_ever);
}

TEST(a_queue_with_few_buffers_loses_nothing) {
    queue_loses_nothing(4, 6, 4, 1, &for_ever);
}

TEST(a_queue_with_many_readers_loses_nothing) {
    queue_loses_nothing(4, 14, 2, 8, &for_ever);
}

TEST(a_queue_whose_clients_spin_loses_nothing) {
    queue_loses_nothing(8, 16, 2, 2, &for_ever_spinning);
}

TEST(sixteen_senders_to_one_reader_lose_nothing) {
    queue_loses_nothing(8, 16, 16, 1, &for_ever);
}

static void *send_until_closed(void *arg) {
    struct worker *w = arg;

    while (send_number(w->rig, &w->ring, w->wait, 0) == RING_OK) {
        __atomic_fetch_add(&w->count, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

static bool each_has_sent(const struct worker *senders, uint32_t count) {
    for (uint32_t i = 0; i < 16; i++) {
        if (__atomic_load_n(&senders[i].count, __ATOMIC_RELAXED) < count) {
            return false;
        }
    }
    return true;
}

TEST(of_sixteen_senders_to_one_reader_none_starves) {
    struct rig rig = given_rig(0, 8, 16);
    struct ring reader = given_client(&rig, 60);
    struct worker senders[16];
    pthread_t threads[16];
    struct ring_message message;

    for (uint32_t i = 0; i < 16; i++) {
        senders[i] =
            (struct worker){.rig = &rig, .ring = given_client(&rig, i + 1), .wait = &for_ever};
        EXPECT_EQ(0, pthread_create(&threads[i], NULL, send_until_closed, &senders[i]));
    }
    for (int n = 0; !each_has_sent(senders, 100); n++) {
        EXPECT_TRUE(n < 2000000); /* 1,600 if all were equally quick */
        EXPECT_EQ(RING_OK, ring_recv(&reader, &for_ever, false, &message));
        ring_release(&reader, message.buffer);
    }
    ring_close(&reader);
    for (uint32_t i = 0; i < 16; i++) {
        pthread_join(threads[i], NULL);
    }
}

struct pair {
    struct ring ring;
    pthread_barrier_t *both;
    bool loans;
};

/* Takes one thing, and gives it back only when the other has one, too. */
static void *take_with_the_other(void *arg) {
    struct pair *pair = arg;
    struct ring_message message = {0};

    EXPECT_EQ(RING_OK, pair->loans ? ring_loan(&pair->ring, &for_ever, &message.buffer)
                                   : ring_recv(&pair->ring, &for_ever, false, &message));
    pthread_barrier_wait(pair->both);
    ring_release(&pair->ring, message.buffer);
    return NULL;
}

static void what_comes_for_two_reaches_two(bool loans) {
    for (int round = 0; round < 50; round++) {
        struct rig rig = given_rig(0, 2, 3);
        struct ring other = given_client(&rig, 1);
        pthread_barrier_t both;
        struct pair pairs[2];
        pthread_t threads[2];
        uint32_t buffers[3];

        pthread_barrier_init(&both, NULL, 2);
        for (int i = 0; i < 3; i++) {
            EXPECT_EQ(RING_OK, ring_loan(&other, &at_once, &buffers[i]));
        }
        for (uint32_t i = 0; i < 2; i++) {
            pairs[i] = (struct pair){given_client(&rig, 2 + i), &both, loans};
            pthread_create(&threads[i], NULL, take_with_the_other, &pairs[i]);
        }
        usleep(1000); /* so that they mostly are asleep */
        for (int i = 0; i < 2; i++) {
            if (loans) {
                ring_release(&other, buffers[i]);
            } else {
                EXPECT_EQ(RING_OK, ring_send(&other, &for_ever, buffers[i]));
            }
        }
        pthread_join(threads[0], NULL);
        pthread_join(threads[1], NULL);
        pthread_barrier_destroy(&both);
    }
}

TEST(two_messages_wake_two_readers) {
    what_comes_for_two_reaches_two(false);
}

TEST(two_free_buffers_wake_two_who_want_to_loan) {
    what_comes_for_two_reaches_two(true);
}

TEST(every_subscriber_of_a_blocking_topic_sees_all_in_order) {
    struct crowd c;

    given_crowd(&c, given_rig(RING_TOPIC, 4, 12), 2, 4, 1000, &for_ever);
    EXPECT_EQ(2 * 4 * 1000, run(&c));
}

TEST(every_subscriber_sees_or_counts_all) {
    struct crowd c;

    given_crowd(&c, given_rig(RING_TOPIC | RING_DROP_OLDEST, 4, 12), 2, 4, 2000, &for_ever);
    run(&c);
    for (uint32_t i = 0; i < 4; i++) {
        EXPECT_EQ(4000, c.readers[i].count + c.readers[i].missed);
    }
}

/* Two threads of one client, one mask: one sends what the other receives. */
TEST(threads_of_one_participant_may_send_and_receive) {
    struct crowd c;

    given_crowd(&c, given_rig(0, 2, 3), 1, 1, 3000, &for_ever);
    c.readers[0].ring = c.senders[0].ring;
    EXPECT_EQ(3000, run(&c));
}

static void *subscribe_and_leave(void *arg) {
    struct worker *w = arg;

    for (uint32_t round = 0; round < 200; round++) {
        struct ring_message message;
        EXPECT_EQ(RING_OK, ring_subscribe(&w->ring, RING_FOREVER, round % 2));
        for (int i = 0; i < 5; i++) {
            if (ring_recv(&w->ring, w->wait, false, &message) != RING_OK) {
                return NULL;
            }
            check(w, &message);
            ring_release(&w->ring, message.buffer);
        }
        ring_leave(&w->ring);
        memset(w->next, 0, sizeof w->next); /* the last message may come again */
        EXPECT_TRUE(ring_seat(&w->rig->daemon, w->ring.member, w->ring.client));
    }
    return NULL;
}

TEST(subscribers_that_come_and_go_stop_nobody) {
    struct rig rig = given_rig(RING_TOPIC, 2, 8);
    struct worker guests[3];
    pthread_t threads[3];
    struct ring sender = given_client(&rig, 1);

    for (uint32_t i = 0; i < 3; i++) {
        guests[i] =
            (struct worker){.rig = &rig, .ring = given_client(&rig, i + 2), .wait = &for_ever};
        EXPECT_EQ(0, pthread_create(&threads[i], NULL, subscribe_and_leave, &guests[i]));
    }
    for (uint32_t n = 0; n < 3000; n++) {
        EXPECT_EQ(RING_OK, send_number(&rig, &sender, &for_ever, n));
    }
    ring_close(&sender);
    for (uint32_t i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
    }
    expect_at_rest(&rig);
}

/* Messages by reference: the daemon's attachments, which it drops by sweeps. */
struct attachments {
    struct rig *rig;
    pthread_mutex_t daemon; /* it is one thread */
    uint64_t ids[12];       /* per buffer: 1 + number of the message; 0 */
    struct ring ring;
};

static void sweep(struct attachments *a) {
    uint64_t needed[RING_MASK_WORDS];

    pthread_mutex_lock(&a->daemon);
    ring_sweep(&a->rig->daemon, needed);
    for (uint32_t b = 0; b < 12; b++) {
        if (!mask_has(needed, b)) {
            a->ids[b] = 0;
        }
    }
    pthread_mutex_unlock(&a->daemon);
}

static void *sweep_until_closed(void *arg) {
    struct attachments *a = arg;

    while (!__atomic_load_n(&a->rig->daemon.control->closed, __ATOMIC_ACQUIRE)) {
        sweep(a);
    }
    return NULL;
}

static void *redeem_all(void *arg) {
    struct attachments *a = arg;
    struct ring_message message;

    while (ring_recv(&a->ring, &for_ever, false, &message) == RING_OK) {
        pthread_mutex_lock(&a->daemon);
        EXPECT_EQ(message.number + 1, a->ids[message.buffer]);
        pthread_mutex_unlock(&a->daemon);
        ring_release(&a->ring, message.buffer);
    }
    return NULL;
}

static void attach_and_send(uint32_t flags) {
    struct rig rig = given_rig(flags, 4, 12);
    struct ring sender = given_client(&rig, 1);
    struct attachments a = {.rig = &rig, .daemon = PTHREAD_MUTEX_INITIALIZER};
    pthread_t sweeper, reader;
    uint32_t buffer;

    a.ring = flags & RING_TOPIC ? given_subscriber(&rig, 2) : given_client(&rig, 2);
    pthread_create(&sweeper, NULL, sweep_until_closed, &a);
    pthread_create(&reader, NULL, redeem_all, &a);
    for (uint64_t n = 0; n < 3000; n++) {
        EXPECT_EQ(RING_OK, ring_loan(&sender, &for_ever, &buffer));
        pthread_mutex_lock(&a.daemon);
        a.ids[buffer] = n + 1;
        pthread_mutex_unlock(&a.daemon);
        EXPECT_EQ(RING_OK, ring_send(&sender, &for_ever, buffer));
    }
    ring_close(&sender);
    pthread_join(reader, NULL);
    pthread_join(sweeper, NULL);
    sweep(&a);
    for (uint32_t b = 0; b < 12; b++) {
        EXPECT_TRUE(a.ids[b] == 0 || (flags & RING_TOPIC && a.ids[b] == 3000));
    }
}

TEST(a_sweep_drops_nothing_that_is_on_its_way_through_a_queue) {
    attach_and_send(0);
}

TEST(a_sweep_drops_nothing_that_is_on_its_way_through_a_topic) {
    attach_and_send(RING_TOPIC);
}
