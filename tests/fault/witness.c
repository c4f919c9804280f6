/*
 * witness.c - a client that has nothing to do with what happens to others, and whose data must not
 * suffer
 *
 *     witness SOCKET SEED        then a word per line; the answer is a line "STATUS TEXT"
 *
 * "hold" puts tensors under names of its own and keeps them, "check" compares every byte of them
 * without asking the daemon, "look" finds the same ones by their names, "work" puts, gets, sends
 * and lets go of others, "leave" gives everything back. Bytes follow from the seed, so that nobody
 * else's are taken for them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tensorcx.h>

#define WRONG 200 /* beside tcx_status: bytes are not as they were */
#define TRY(call)                \
    do {                         \
        int status_ = (call);    \
        if (status_ != TCX_OK) { \
            return status_;      \
        }                        \
    } while (0)

enum { SMALL = 700, LARGE = 1 << 21, KEPT = 3 };

static const size_t sizes[KEPT] = {SMALL, LARGE, SMALL};

static tcx_client_t *client;
static tcx_tensor_t *kept[KEPT];
static unsigned seed;
static unsigned rounds;
static uint64_t pattern[LARGE / sizeof(uint64_t)];

/* The bytes of the tensor of this kind. */
static void set_pattern(unsigned kind, size_t nbytes) {
    uint64_t word = ((uint64_t)seed << 32 | kind) * 0x9e3779b97f4a7c15u + 1;

    for (size_t i = 0; i * sizeof word < nbytes; i++) {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        pattern[i] = word;
    }
}

static tcx_array_t array(const int64_t *nbytes) {
    return (tcx_array_t){.data = pattern, .dtype = {TCX_UINT, 8, 1}, .ndim = 1, .shape = nbytes};
}

static int compare(const tcx_tensor_t *tensor, size_t nbytes) {
    const tcx_array_t *is = tcx_tensor_array(tensor);

    return is->ndim == 1 && is->shape[0] == (int64_t)nbytes &&
                   memcmp(is->data, pattern, nbytes) == 0
               ? TCX_OK
               : WRONG;
}

static const char *name_of(unsigned i) {
    static char name[64];

    snprintf(name, sizeof name, "witness-%u/%u", seed, i);
    return name;
}

static int leave(void) {
    for (unsigned i = 0; i < KEPT; i++) {
        tcx_tensor_unref(kept[i]);
        kept[i] = NULL;
    }
    tcx_client_disconnect(client);
    return TCX_OK;
}

static int hold(void) {
    for (unsigned i = 0; i < KEPT; i++) {
        const int64_t nbytes = (int64_t)sizes[i];
        tcx_array_t source = array(&nbytes);

        tcx_tensor_unref(kept[i]);
        kept[i] = NULL;
        set_pattern(i, sizes[i]);
        TRY(tcx_put(client, name_of(i), &source, NULL, &kept[i]));
    }
    return TCX_OK;
}

static int check(void) {
    for (unsigned i = 0; i < KEPT; i++) {
        set_pattern(i, sizes[i]);
        TRY(compare(kept[i], sizes[i]));
    }
    return TCX_OK;
}

static int look(void) {
    for (unsigned i = 0; i < KEPT; i++) {
        tcx_tensor_t *found = NULL;

        TRY(tcx_get(client, name_of(i), NULL, &found, NULL));
        set_pattern(i, sizes[i]);
        int r = compare(found, sizes[i]);
        tcx_tensor_unref(found);
        TRY(r);
    }
    return TCX_OK;
}

static int send_to_itself(tcx_tensor_t *tensor, size_t nbytes) {
    char ticket[TCX_TICKET_MAX];
    size_t ticket_nbytes = 0;
    tcx_tensor_t *received = NULL;

    TRY(tcx_tensor_ticket(client, tensor, ticket, &ticket_nbytes));
    TRY(tcx_redeem(client, ticket, ticket_nbytes, &received, NULL));
    int r = compare(received, nbytes);
    tcx_tensor_unref(received);
    return r;
}

static int work_with(size_t size) {
    const int64_t nbytes = (int64_t)size;
    tcx_array_t source = array(&nbytes);
    tcx_tensor_t *made = NULL;

    set_pattern(KEPT + ++rounds, size);
    TRY(tcx_put(client, name_of(KEPT), &source, NULL, NULL));
    TRY(tcx_get(client, name_of(KEPT), NULL, &made, NULL));
    int r = compare(made, size);
    r = r == TCX_OK ? send_to_itself(made, size) : r;
    tcx_tensor_unref(made);
    TRY(r);
    return tcx_delete(client, name_of(KEPT));
}

static int work(void) {
    TRY(work_with(SMALL));
    return work_with(LARGE);
}

static int stop(void) {
    return tcx_stop(client);
}

static const struct word {
    const char *name;
    int (*act)(void);
} words[] = {{"hold", hold}, {"check", check}, {"look", look},
             {"work", work}, {"leave", leave}, {"stop", stop}};

static int obey(const char *line) {
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcmp(line, words[i].name) == 0) {
            return words[i].act();
        }
    }
    fprintf(stderr, "no word \"%s\"\n", line);
    exit(2);
}

int main(int argc, char **argv) {
    tcx_client_options_t options = {0};
    char line[64];

    if (argc != 3) {
        return 2;
    }
    options.socket = argv[1];
    seed = (unsigned)atoi(argv[2]);
    if (tcx_client_open(&options, &client) != TCX_OK) {
        return 1;
    }
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = '\0';
        int r = obey(line);
        printf("%d %s\n", r, r == TCX_OK ? "" : r == WRONG ? "bytes have changed" : tcx_error());
        fflush(stdout);
    }
    leave();
    tcx_client_close(client);
    return 0;
}
