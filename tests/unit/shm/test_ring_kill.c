/* Processes that are killed at every step of every operation, and repaired. Waits are endless here:
 * who is not woken hangs, which the runner ends. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "ring_fixture.h"

#define CAPACITY 2
#define BUFFERS  6
#define VICTIM   1

static int steps_left;

static void die_at_last_step(enum step reached) {
    (void)reached;
    if (--steps_left == 0) {
        kill(getpid(), SIGKILL);
    }
}

struct scene {
    uint32_t flags;
    uint32_t sent;                                     /* messages in the ring at the beginning */
    void (*act)(struct rig *rig, struct ring *victim); /* what the victim does */
    uint32_t may_send, may_take;                       /* messages, up to its death */
};

static struct ring_message received;

static void act_send(struct rig *rig, struct ring *victim) {
    EXPECT_EQ(RING_OK, send_number(rig, victim, &for_ever, 500));
}

static void act_receive(struct rig *rig, struct ring *victim) {
    (void)rig;
    EXPECT_EQ(RING_OK, ring_recv(victim, &for_ever, false, &received));
    ring_release(victim, received.buffer);
}

static void act_receive_latest(struct rig *rig, struct ring *victim) {
    (void)rig;
    EXPECT_EQ(RING_OK, ring_recv(victim, &for_ever, true, &received));
    ring_release(victim, received.buffer);
}

static void act_subscribe(struct rig *rig, struct ring *victim) {
    (void)rig;
    EXPECT_EQ(RING_OK, ring_subscribe(victim, 0, true));
}

static void act_subscribe_and_leave(struct rig *rig, struct ring *victim) {
    act_subscribe(rig, victim);
    ring_leave(victim);
}

static void act_close(struct rig *rig, struct ring *victim) {
    (void)rig;
    ring_close(victim);
}

/* The victim, in a child: it acts and dies at step `step`. False when it got to its end before. */
static bool dies(struct rig *rig, struct ring *victim, const struct scene *scene, int step) {
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        steps_left = step;
        step_hook = die_at_last_step;
        scene->act(rig, victim);
        _exit(0);
    }
    EXPECT_EQ(pid, waitpid(pid, &status, 0));
    EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    return WIFSIGNALED(status);
}

/* After the repair: what is there is in order and whole, then it works as if new. Returns messages
 * found. */
static uint32_t expect_in_order(struct rig *rig, struct ring *reader, uint32_t sent) {
    struct ring_message message;
    uint32_t found = 0;

    while (ring_recv(reader, &at_once, false, &message) == RING_OK) {
        const struct payload *p = &rig->payloads[message.buffer];
        expect_whole(p);
        EXPECT_TRUE(p->number == 500 || p->number < sent);
        ring_release(reader, message.buffer);
        found++;
    }
    return found;
}

static void expect_works(struct rig *rig, struct ring *sender, struct ring *reader) {
    uint32_t loans[BUFFERS];
    uint32_t spare = rig->shape.flags & RING_TOPIC ? BUFFERS - 1 : BUFFERS;

    for (uint32_t i = 0; i < spare; i++) { /* every buffer has come back */
        EXPECT_EQ(RING_OK, ring_loan(sender, &at_once, &loans[i]));
    }
    for (uint32_t i = 0; i < spare; i++) {
        ring_release(sender, loans[i]);
    }
    for (uint32_t n = 0; n < 2 * CAPACITY; n++) {
        EXPECT_EQ(RING_OK, send_number(rig, sender, &at_once, 600 + n));
        expect_received(rig, reader, 600 + n);
    }
    expect_at_rest(rig);
}

static void kill_at_every_step(const struct scene *scene) {
    bool topic = scene->flags & RING_TOPIC;
    int step = 1;

    for (bool died = true; died; step++) {
        struct rig rig = given_rig(scene->flags, CAPACITY, BUFFERS);
        struct ring victim = given_client(&rig, VICTIM);
        struct ring sender = given_client(&rig, 2);
        struct ring reader = given_client(&rig, 3);

        if (topic) {
            ring_subscribe(&reader, 0, false);
            if (scene->act == act_receive || scene->act == act_receive_latest) {
                ring_subscribe(&victim, 0, false);
            }
        }
        for (uint32_t n = 0; n < scene->sent; n++) {
            EXPECT_EQ(RING_OK, send_number(&rig, &sender, &at_once, n));
        }
        died = dies(&rig, &victim, scene, step);
        bury(&rig, VICTIM);
        EXPECT_TRUE(ring_seat(&rig.daemon, VICTIM - 1, 9));

        uint32_t found = expect_in_order(&rig, &reader, scene->sent);
        EXPECT_TRUE(found + scene->may_take >= scene->sent);
        EXPECT_TRUE(found <= scene->sent + scene->may_send);
        if (rig.daemon.control->closed) {
            EXPECT_TRUE(scene->act == act_close);
            expect_at_rest(&rig);
        } else {
            expect_works(&rig, &sender, &reader);
        }
        munmap(rig.block, ring_nbytes(&rig.shape));
        munmap(rig.payloads, BUFFERS * sizeof *rig.payloads);
    }
    EXPECT_TRUE(step > 3); /* it did die on the way */
}

#define SCENE(name, ...)                                  \
    TEST(killed_at_every_step_of_##name) {                \
        kill_at_every_step(&(struct scene){__VA_ARGS__}); \
    }

SCENE(a_send, .act = act_send, .sent = 1, .may_send = 1)
SCENE(a_receive, .act = act_receive, .sent = 2, .may_take = 1)
SCENE(a_send_to_a_topic, .flags = RING_TOPIC, .act = act_send, .sent = 1, .may_send = 1)
SCENE(a_send_that_drops, .flags = RING_TOPIC | RING_DROP_OLDEST, .act = act_send, .sent = 2,
      .may_send = 0, .may_take = 1)
SCENE(a_send_that_drops_from_a_queue, .flags = RING_DROP_OLDEST, .act = act_send, .sent = 2,
      .may_take = 1)
SCENE(a_subscribers_receive, .flags = RING_TOPIC, .act = act_receive, .sent = 2)
SCENE(the_newests_receive, .flags = RING_TOPIC | RING_DROP_OLDEST, .act = act_receive_latest,
      .sent = 2)
SCENE(a_subscribe, .flags = RING_TOPIC, .act = act_subscribe, .sent = 1)
SCENE(a_leave, .flags = RING_TOPIC, .act = act_subscribe_and_leave, .sent = 1)
SCENE(a_close, .act = act_close, .sent = 1)

/* ------------------------------------------------------------------- others wait while it dies */

struct waiter {
    struct rig *rig;
    struct ring ring;
    int sends;
};

static void *work_until_closed(void *arg) {
    struct waiter *w = arg;
    struct ring_message message;

    if (w->sends) {
        while (send_number(w->rig, &w->ring, &for_ever, 500) == RING_OK) {
        }
        return NULL;
    }
    while (ring_recv(&w->ring, &for_ever, false, &message) == RING_OK) {
        ring_release(&w->ring, message.buffer);
    }
    return NULL;
}

/* Something to do for one of those who wait. */
static void poke(struct rig *rig, struct ring *other, int sending) {
    struct ring_message message;

    if (!sending) {
        send_number(rig, other, &at_once, 500);
    } else if (ring_recv(other, &at_once, false, &message) == RING_OK) {
        ring_release(other, message.buffer);
    }
}

/* Until those who wait have done all there is to do. */
static void settle(const struct rig *rig, int sending) {
    struct ring_report report;

    do {
        usleep(100);
        ring_report((struct ring *)&rig->daemon, NULL, 0, &report);
    } while (report.depth != (sending ? CAPACITY : 0));
}

/* The daemon's part, meanwhile: whoever else may be waiting for the lock of the dead. */
struct undertaker {
    struct rig *rig;
    pid_t pid;
    int status;
    int done;
};

static void *bury_when_dead(void *arg) {
    struct undertaker *u = arg;

    EXPECT_EQ(u->pid, waitpid(u->pid, &u->status, 0));
    bury(u->rig, VICTIM);
    __atomic_store_n(&u->done, 1, __ATOMIC_RELEASE);
    return NULL;
}

static pid_t fork_victim(struct rig *rig, struct ring *victim, int sending, int step) {
    pid_t pid = fork();

    if (pid == 0) {
        steps_left = step;
        step_hook = die_at_last_step;
        (sending ? act_send : act_receive)(rig, victim);
        _exit(0);
    }
    return pid;
}

/* The victim and two threads wait for the same; the victim dies at some step, and what it was woken
 * for must be done by the others. */
static bool kill_a_waiter(int sending, int step) {
    struct rig rig = given_rig(0, CAPACITY, BUFFERS);
    struct ring victim = given_client(&rig, VICTIM);
    struct ring other = given_client(&rig, 2);
    struct waiter waiters[2];
    pthread_t threads[2], burial;
    struct undertaker undertaker = {.rig = &rig};

    for (uint32_t n = 0; sending && n < CAPACITY; n++) {
        send_number(&rig, &other, &at_once, n);
    }
    undertaker.pid = fork_victim(&rig, &victim, sending, step);
    EXPECT_EQ(0, pthread_create(&burial, NULL, bury_when_dead, &undertaker));
    usleep(1000); /* so that it mostly is the first asleep, and the first woken */
    for (uint32_t i = 0; i < 2; i++) {
        waiters[i] = (struct waiter){&rig, given_client(&rig, 3 + i), sending};
        EXPECT_EQ(0, pthread_create(&threads[i], NULL, work_until_closed, &waiters[i]));
    }
    usleep(1000);
    while (!__atomic_load_n(&undertaker.done, __ATOMIC_ACQUIRE)) {
        poke(&rig, &other, sending);
        poke(&rig, &other, sending);
        usleep(200);
    }
    pthread_join(burial, NULL);
    settle(&rig, sending);
    poke(&rig, &other, sending);
    settle(&rig, sending);
    ring_close(&other);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    expect_at_rest(&rig);
    munmap(rig.block, ring_nbytes(&rig.shape));
    munmap(rig.payloads, BUFFERS * sizeof *rig.payloads);
    return WIFSIGNALED(undertaker.status);
}

/* More steps than there are; how many there are depends on whether it had to sleep. */
static void kill_a_waiter_at_every_step(int sending) {
    int deaths = 0;

    for (int step = 1; step <= 25; step++) {
        deaths += kill_a_waiter(sending, step);
    }
    EXPECT_TRUE(deaths >= 4);
}

TEST(what_a_killed_reader_was_woken_for_others_do) {
    kill_a_waiter_at_every_step(0);
}

TEST(what_a_killed_sender_was_woken_for_others_do) {
    kill_a_waiter_at_every_step(1);
}

/* -------------------------------------------------------------------------------- at random */

#define KILLS     120
#define CHILDREN  6 /* the first half send */
#define CLIENTS   (KILLS + CHILDREN + 1)
#define MOST_SENT 65536

struct tally {
    uint32_t received;
    uint8_t taken[CLIENTS][MOST_SENT];
};

struct chaos {
    struct rig rig;
    struct tally *tally; /* shared */
    pid_t pids[CHILDREN];
    uint32_t clients[CHILDREN];
    uint32_t last_client;
    uint32_t reader_deaths;
    unsigned seed;
};

static void receive_until_closed(struct chaos *chaos, struct ring *ring,
                                 const struct ring_wait *wait) {
    struct ring_message message;
    uint32_t next[CLIENTS] = {0};
    bool topic = ring->shape.flags & RING_TOPIC;

    while (ring_recv(ring, wait, false, &message) == RING_OK) {
        const struct payload *p = &chaos->rig.payloads[message.buffer];
        expect_whole(p);
        EXPECT_TRUE(p->sender < CLIENTS && p->number < MOST_SENT && p->number >= next[p->sender]);
        next[p->sender] = p->number + 1;
        if (!topic) {
            EXPECT_EQ(0, __atomic_fetch_add(&chaos->tally->taken[p->sender][p->number], 1,
                                            __ATOMIC_RELAXED));
            __atomic_fetch_add(&chaos->tally->received, 1, __ATOMIC_RELAXED);
        }
        ring_release(ring, message.buffer);
    }
}

/* A child that works until the ring is closed, or until it dies by itself at some step. */
static void start(struct chaos *chaos, int index) {
    uint32_t client = ++chaos->last_client;
    bool by_itself = rand_r(&chaos->seed) % 2;
    int step = 1 + rand_r(&chaos->seed) % 2000;
    struct ring_wait wait = {RING_FOREVER, rand_r(&chaos->seed) % 2 ? 0 : 2000};

    EXPECT_TRUE(ring_seat(&chaos->rig.daemon, (uint32_t)index, client));
    chaos->clients[index] = client;
    chaos->pids[index] = fork();
    if (chaos->pids[index] != 0) {
        return;
    }
    struct ring ring = chaos->rig.daemon;
    ring.client = client;
    ring.member = (uint32_t)index;
    if (by_itself) {
        steps_left = step;
        step_hook = die_at_last_step;
    }
    if (index < CHILDREN / 2) {
        for (uint32_t n = 0; n < MOST_SENT; n++) {
            if (send_number(&chaos->rig, &ring, &wait, n) != RING_OK) {
                break;
            }
        }
    } else if (!(ring.shape.flags & RING_TOPIC) ||
               ring_subscribe(&ring, RING_FOREVER, client % 2) == RING_OK) {
        receive_until_closed(chaos, &ring, &wait);
    }
    _exit(0);
}

/* Waits for any child to end, and repairs what it left. Its index. */
static int bury_one(struct chaos *chaos) {
    int status, index = 0;
    pid_t pid = wait(&status);

    while (chaos->pids[index] != pid) {
        index++;
        EXPECT_TRUE(index < CHILDREN);
    }
    EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    if (WIFSIGNALED(status)) {
        EXPECT_EQ(SIGKILL, WTERMSIG(status));
        chaos->reader_deaths += index >= CHILDREN / 2;
    }
    ring_vacate(&chaos->rig.daemon, (uint32_t)index, NULL);
    ring_repair(&chaos->rig.daemon, chaos->clients[index]);
    return index;
}

static void kill_at_random(uint32_t flags, uint32_t capacity, uint32_t buffers) {
    struct chaos chaos = {.rig = given_rig(flags, capacity, buffers), .seed = flags + capacity};

    chaos.tally = shared_memory(sizeof *chaos.tally);
    for (int i = 0; i < CHILDREN; i++) {
        start(&chaos, i);
    }
    for (int kills = 0; kills < KILLS; kills++) {
        usleep((useconds_t)rand_r(&chaos.seed) % 4000);
        kill(chaos.pids[rand_r(&chaos.seed) % CHILDREN], SIGKILL);
        start(&chaos, bury_one(&chaos));
    }
    ring_close(&chaos.rig.daemon);
    for (int i = 0; i < CHILDREN; i++) {
        bury_one(&chaos);
    }
    expect_at_rest(&chaos.rig);
    if (!flags) {
        struct ring drain = chaos.rig.daemon;
        EXPECT_TRUE(ring_seat(&chaos.rig.daemon, 0, CLIENTS + 1));
        drain.client = CLIENTS + 1;
        receive_until_closed(&chaos, &drain, &at_once);
        uint64_t lost = chaos.rig.daemon.control->head - chaos.tally->received;
        EXPECT_TRUE(chaos.tally->received > 0);
        EXPECT_TRUE(lost <= chaos.reader_deaths);
    }
}

TEST(killed_at_random_a_queue_loses_at_most_what_the_dead_had_taken) {
    kill_at_random(0, 4, 12);
}

TEST(killed_at_random_a_narrow_queue_goes_on) {
    kill_at_random(0, 1, 4);
}

TEST(killed_at_random_a_topic_goes_on) {
    kill_at_random(RING_TOPIC, 4, 12);
}

TEST(killed_at_random_a_dropping_topic_goes_on) {
    kill_at_random(RING_TOPIC | RING_DROP_OLDEST, 4, 12);
}
