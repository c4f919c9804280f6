/*
 * channel.c - what a queue costs in C, beside a bare ring in the same run: channel SOCKET HERE
 * THERE RUNS
 *
 * Two processes, each on a processor of its own, the receiver spins. Prints JSON, for each of the
 * two the nanoseconds of each run: "one way", half a round trip of a message each way, and
 * "message", of many one way, at most 8 under way.
 */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "bare.h"
#include "tensorcx.h"

#define ROUNDS   200 /* short, so that many runs are not interrupted */
#define MESSAGES 1000
#define SPIN_US  10000
#define RUNS_MAX 1000

/* What a process sends by and receives from. */
struct side {
    tcx_client_t *client;
    tcx_channel_t *out, *back;
    struct bare *bare_out, *bare_back;
};

struct contender {
    const char *name;
    void (*send)(struct side *);
    void (*receive)(struct side *);
};

static void check(int status) {
    if (status) {
        fprintf(stderr, "channel: %s\n", tcx_error());
        exit(1);
    }
}

/* ------------------------------------------------------------------------------- the contenders */

static void send_bare(struct side *side) {
    bare_send(side->bare_out, 1);
}

static void receive_bare(struct side *side) {
    bare_recv(side->bare_back);
}

static void send_message(struct side *side) {
    const int64_t one = 1;
    tcx_tensor_t *loan;

    check(tcx_channel_loan(side->out, (tcx_dtype_t){TCX_UINT, 32, 1}, 1, &one, -1, &loan));
    *(volatile uint32_t *)tcx_tensor_array(loan)->data = 1;
    check(tcx_channel_send_loan(side->out, loan, -1));
    tcx_tensor_unref(loan);
}

static void receive_message(struct side *side) {
    tcx_bundle_t *bundle;
    tcx_tensor_t *tensor;

    check(tcx_channel_recv(side->back, -1, SPIN_US, &tensor, &bundle));
    (void)*(volatile uint32_t *)tcx_tensor_array(tensor)->data;
    tcx_tensor_unref(tensor);
}

static const struct contender contenders[] = {
    {"a bare ring", send_bare, receive_bare},
    {"tensorcx", send_message, receive_message},
};

/* -------------------------------------------------------------------------------- the two sides */

static double now(void) {
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void open_side(struct side *side, const char *socket, int index, int cpu) {
    const tcx_client_options_t options = {.socket = socket, .no_autostart = 1};
    const tcx_channel_options_t settings = {.capacity = IN_FLIGHT};
    const char *names[] = {"there", "back"};
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    sched_setaffinity(0, sizeof set, &set);
    check(tcx_client_open(&options, &side->client));
    check(tcx_channel_open(side->client, names[index], &settings, &side->out));
    check(tcx_channel_open(side->client, names[!index], &settings, &side->back));
}

static void close_side(struct side *side) {
    tcx_channel_close(side->out);
    tcx_channel_close(side->back);
    tcx_client_close(side->client);
}

/* The other end of a run. */
static void answer(const struct contender *c, struct side *side) {
    for (int i = 0; i < ROUNDS; i++) {
        c->receive(side);
        c->send(side);
    }
    for (int i = 0; i < MESSAGES; i++) {
        c->receive(side);
    }
    c->send(side);
}

static void run(const struct contender *c, struct side *side, double *ret_way,
                double *ret_message) {
    double start = now();

    for (int i = 0; i < ROUNDS; i++) {
        c->send(side);
        c->receive(side);
    }
    *ret_way = (now() - start) / ROUNDS / 2;
    start = now();
    for (int i = 0; i < MESSAGES; i++) {
        c->send(side);
    }
    c->receive(side);
    *ret_message = (now() - start) / MESSAGES;
}

static void print_times(const char *what, const double *times, int count) {
    printf("\"%s\": [", what);
    for (int i = 0; i < count; i++) {
        printf("%s%.1f", i ? ", " : "", times[i]);
    }
    printf("]");
}

int main(int argc, char **argv) {
    static double way[2][RUNS_MAX], message[2][RUNS_MAX];
    struct bare *bare =
        mmap(NULL, 2 * sizeof *bare, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int runs = argc == 5 ? atoi(argv[4]) : 0;

    if (runs < 1 || runs > RUNS_MAX || bare == MAP_FAILED) {
        fprintf(stderr, "channel: SOCKET HERE THERE RUNS, at most %d\n", RUNS_MAX);
        return 1;
    }
    int is_other = fork() == 0;
    if (is_other) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    }
    struct side side = {.bare_out = &bare[is_other], .bare_back = &bare[!is_other]};
    open_side(&side, argv[1], is_other, atoi(argv[2 + is_other]));
    for (int i = 0; i < runs; i++) {
        for (int c = 0; c < 2; c++) {
            if (is_other) {
                answer(&contenders[c], &side);
            } else {
                run(&contenders[c], &side, &way[c][i], &message[c][i]);
            }
        }
    }
    for (int c = 0; c < 2 && !is_other; c++) {
        printf("%s\"%s\": {", c ? ", " : "{", contenders[c].name);
        print_times("one way", way[c], runs);
        printf(", ");
        print_times("message", message[c], runs);
        printf("}%s", c ? "}\n" : "");
    }
    close_side(&side);
    return 0;
}
