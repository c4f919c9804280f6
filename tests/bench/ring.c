/*
 * ring.c - what a ring costs in C, beside a bare ring of one sender and one reader in the same run
 *
 * Two processes, each on a core of its own. One way: half a round trip of a message each way, every
 * one loaned, sent, received and released. Messages a second: one way, at most 8 in flight. Asleep:
 * nobody spins. Median and best of many short runs, as others use the machine, too.
 */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bare.h"
#include "ring.h"
#include "ring_futex.h"

#define RUNS     51
#define ROUNDS   1000
#define MESSAGES 4000

/* -------------------------------------------------------------------------------- the two sides */

struct place {
    struct ring there[2], back[2]; /* of either process */
    struct bare *bare_there, *bare_back;
    struct ring_wait wait;
    int rounds;
};

static void *shared_memory(size_t nbytes) {
    void *memory = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (memory == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return memory;
}

static void make_ring(struct ring *views, uint32_t members) {
    struct ring_shape shape = {
        .capacity = IN_FLIGHT, .buffers = 16, .members = 64, .buffer_nbytes = 64};
    void *block = shared_memory(ring_nbytes(&shape));

    ring_init(block, &shape);
    for (uint32_t m = 0; m < members; m++) {
        ring_open(block, ring_nbytes(&shape), &shape, m + 1, m, &views[m]);
        ring_seat(&views[m], m, m + 1);
    }
}

static void send_one(struct place *p, struct ring *ring) {
    uint32_t buffer;

    while (ring_loan(ring, &p->wait, &buffer) != RING_OK) {
    }
    *(volatile uint64_t *)ring_desc(ring, buffer) = buffer;
    while (ring_send(ring, &p->wait, buffer) != RING_OK) {
    }
}

static void receive_one(struct place *p, struct ring *ring) {
    struct ring_message message;

    while (ring_recv(ring, &p->wait, false, &message) != RING_OK) {
    }
    (void)*(volatile uint64_t *)ring_desc(ring, message.buffer);
    ring_release(ring, message.buffer);
}

static void ping(struct place *p, int side) {
    for (int i = 0; i < p->rounds; i++) {
        if (side == 0) {
            send_one(p, &p->there[0]);
            receive_one(p, &p->back[0]);
        } else {
            receive_one(p, &p->there[1]);
            send_one(p, &p->back[1]);
        }
    }
}

static void stream(struct place *p, int side) {
    for (int i = 0; i < p->rounds; i++) {
        if (side == 0) {
            send_one(p, &p->there[0]);
        } else {
            receive_one(p, &p->there[1]);
        }
    }
}

static void all_by_one(struct place *p) {
    for (int i = 0; i < p->rounds; i++) {
        send_one(p, &p->there[0]);
        receive_one(p, &p->there[0]);
    }
}

static void bare_ping(struct place *p, int side) {
    for (int i = 0; i < p->rounds; i++) {
        if (side == 0) {
            bare_send(p->bare_there, 1);
            bare_recv(p->bare_back);
        } else {
            bare_recv(p->bare_there);
            bare_send(p->bare_back, 1);
        }
    }
}

static void bare_stream(struct place *p, int side) {
    for (int i = 0; i < p->rounds; i++) {
        if (side == 0) {
            bare_send(p->bare_there, 1);
        } else {
            bare_recv(p->bare_there);
        }
    }
}

static void run_on(int cpu) {
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
}

/* Runs both sides, each on a core of its own; ns for each round, from start to the end of the later
 * one. */
static double run_once(struct place *p, void (*work)(struct place *, int)) {
    int ready[2];
    char go;

    if (pipe(ready) != 0) {
        exit(1);
    }
    pid_t pid = fork();
    run_on(pid == 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (write(ready[1], "", 1) != 1) {
            _exit(1);
        }
        work(p, 1);
        _exit(0);
    }
    if (read(ready[0], &go, 1) != 1) {
        exit(1);
    }
    uint64_t start = ring_now();
    work(p, 0);
    waitpid(pid, NULL, 0);
    uint64_t end = ring_now();
    close(ready[0]);
    close(ready[1]);
    return (double)(end - start) / p->rounds;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

struct figure {
    double median, best; /* ns */
};

static struct figure measure(struct place *p, void (*work)(struct place *, int), int rounds) {
    double ns[RUNS];

    p->rounds = rounds;
    for (int i = 0; i < RUNS; i++) {
        ns[i] = run_once(p, work);
    }
    qsort(ns, RUNS, sizeof *ns, by_value);
    return (struct figure){ns[RUNS / 2], ns[0]};
}

static void print_way(const char *what, struct figure f) { /* of a round trip */
    printf("%-24s %8.0f ns   best %8.0f\n", what, f.median / 2, f.best / 2);
}

static void print_rate(const char *what, struct figure f) {
    printf("%-24s %8.2f M/s  best %8.2f\n", what, 1e3 / f.median, 1e3 / f.best);
}

/* ------------------------------------------------------------------------- many senders, asleep */

#define MOST_SENDERS 48
#define MANY_TOTAL   100000

struct many {
    struct ring views[MOST_SENDERS + 1];
    uint32_t sent[MOST_SENDERS]; /* shared with the senders */
    uint64_t worst_ns[MOST_SENDERS];
};

_Noreturn static void send_until_closed(struct many *many, int index) {
    const struct ring_wait wait = {RING_FOREVER, 0};
    struct ring *ring = &many->views[index];
    uint32_t buffer;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) {
        uint64_t start = ring_now();
        enum ring_result r;
        while ((r = ring_loan(ring, &wait, &buffer)) == RING_AGAIN) {
        }
        while (r == RING_OK && (r = ring_send(ring, &wait, buffer)) == RING_AGAIN) {
        }
        if (r != RING_OK) {
            _exit(0);
        }
        uint64_t took = ring_now() - start;
        many->worst_ns[index] = took > many->worst_ns[index] ? took : many->worst_ns[index];
        many->sent[index]++;
    }
}

static void many_to_one(int senders) {
    struct many *many = shared_memory(sizeof *many);
    struct place p = {.wait = {RING_FOREVER, 0}};
    uint64_t worst = 0;
    uint32_t least = UINT32_MAX, most = 0;

    make_ring(many->views, (uint32_t)senders + 1);
    for (int i = 0; i < senders; i++) {
        if (fork() == 0) {
            send_until_closed(many, i);
        }
    }
    uint64_t start = ring_now();
    for (int n = 0; n < MANY_TOTAL; n++) {
        receive_one(&p, &many->views[senders]);
    }
    double ns = (double)(ring_now() - start) / MANY_TOTAL;
    ring_close(&many->views[senders]);
    for (int i = 0; i < senders; i++) {
        wait(NULL);
        least = many->sent[i] < least ? many->sent[i] : least;
        most = many->sent[i] > most ? many->sent[i] : most;
        worst = many->worst_ns[i] > worst ? many->worst_ns[i] : worst;
    }
    printf("%2d senders to 1, asleep  %8.2f M/s  slowest/fastest %.2f, worst send %.1f ms\n",
           senders, 1e3 / ns, (double)least / most, (double)worst / 1e6);
}

static double alone(struct place *p) {
    double best = 1e9;

    p->rounds = ROUNDS;
    for (int i = 0; i < 4 * RUNS; i++) {
        uint64_t start = ring_now();
        all_by_one(p);
        double ns = (double)(ring_now() - start) / p->rounds;
        best = ns < best ? ns : best;
    }
    return best;
}

int main(void) {
    struct place p = {.bare_there = shared_memory(sizeof(struct bare)),
                      .bare_back = shared_memory(sizeof(struct bare))};
    cpu_set_t all;

    setlinebuf(stdout);
    sched_getaffinity(0, sizeof all, &all);
    make_ring(p.there, 2);
    make_ring(p.back, 2);
    printf("the four calls, alone    %8.0f ns\n", alone(&p));
    print_way("one way, bare", measure(&p, bare_ping, ROUNDS));
    p.wait = (struct ring_wait){RING_FOREVER, 100000};
    print_way("one way, spinning", measure(&p, ping, ROUNDS));
    print_rate("8 in flight, bare", measure(&p, bare_stream, MESSAGES));
    print_rate("8 in flight, spinning", measure(&p, stream, MESSAGES));
    p.wait.spin_ns = 2000;
    print_rate("8 in flight, 2 us spin", measure(&p, stream, MESSAGES));
    p.wait.spin_ns = 0;
    print_rate("8 in flight, asleep", measure(&p, stream, MESSAGES));
    print_way("one way, asleep", measure(&p, ping, ROUNDS / 5));
    sched_setaffinity(0, sizeof all, &all);
    many_to_one(4);
    many_to_one(16);
    many_to_one(48);
    return 0;
}
