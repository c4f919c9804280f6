/*
 * operations.c - a client that does one operation at a time, as it is told
 *
 *     operations SOCKET        then a word per line: prepare, act, drop, clean; the first two with
 * the name of an operation: "act get"
 *
 * The answer to a word is a line "STATUS TEXT". "prepare" sets the scene, with a connection of its
 * own and before any accident; "act" is the operation itself; "drop" lets go of what came of it;
 * "clean" gives everything back.
 */
#include "operations.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define FILL  7
#define STACK (256 << 10)

int is_interrupted;

static int interrupt(void *unused) {
    (void)unused;
    return is_interrupted;
}

static tcx_client_options_t options = {.no_autostart = 1, .interrupt = interrupt};
tcx_client_t *client;
tcx_client_t *other;
tcx_tensor_t *kept;
tcx_tensor_t *tensor;
tcx_bundle_t *bundle;
char ticket[TCX_TICKET_MAX];
size_t ticket_nbytes;
static char bytes[LARGE];

static const int64_t large_shape[] = {LARGE};
const tcx_array_t large = {
    .data = bytes, .dtype = {TCX_UINT, 8, 1}, .ndim = 1, .shape = large_shape};
static const int64_t small_shape[] = {SMALL};
const tcx_array_t small = {
    .data = bytes, .dtype = {TCX_UINT, 8, 1}, .ndim = 1, .shape = small_shape};

tcx_client_t *open_client(void) {
    tcx_client_t *opened = NULL;

    MUST(tcx_client_open(&options, &opened));
    return opened;
}

static int drop(void) {
    tcx_tensor_unref(tensor);
    tcx_bundle_unref(bundle);
    tensor = NULL;
    bundle = NULL;
    channels_drop();
    return TCX_OK;
}

/* ---------------------------------------------------------------------------------- operations */

static int do_connect(void) {
    tcx_client_disconnect(client);
    return tcx_client_connect(client);
}

static int do_put_small(void) {
    return tcx_put(client, "mine", &small, NULL, &tensor);
}

static int do_put_large(void) {
    return tcx_put(client, "mine", &large, NULL, &tensor);
}

static int do_put_shared(void) {
    int r = tcx_zeros(client, (tcx_device_t){0}, large.dtype, 1, large_shape, &tensor);
    return r == TCX_OK ? tcx_put(client, "mine", tcx_tensor_array(tensor), NULL, NULL) : r;
}

static int ignore(void *context, const tcx_entry_t *entry) {
    (void)context;
    (void)entry;
    return 0;
}

static int count_entry(void *context, const tcx_entry_t *entry) {
    (void)entry;
    ++*(int *)context;
    return 0;
}

/* Ends by itself: a call with that name would end it. */
static int do_put_expiring(void) {
    const tcx_put_options_t soon = {.ttl = 0.001};
    int count = 1;

    int r = tcx_put(client, "expiring", &large, &soon, NULL);
    while (r == TCX_OK && count) {
        count = 0;
        r = tcx_list(client, "expiring", count_entry, &count);
    }
    return r;
}

static int do_put_ephemeral(void) {
    const tcx_put_options_t ephemeral = {.flags = TCX_PUT_EPHEMERAL};

    return tcx_put(client, "ephemeral", &large, &ephemeral, NULL);
}

static void have_large(void) {
    MUST(tcx_put(other, "theirs", &large, NULL, NULL));
}

static int do_replace(void) {
    return tcx_put(client, "theirs", &small, NULL, NULL);
}

static int put_bundle(tcx_client_t *by, const char *name, const tcx_tensor_t *shared,
                      tcx_bundle_t **ret_bundle) {
    const char *const one[] = {"one"};
    const char *const two[] = {"deep", "two"};
    const tcx_item_t items[] = {{one, 1, &small}, {two, 2, tcx_tensor_array(shared)}};

    return tcx_put_bundle(by, name, items, 2, NULL, ret_bundle);
}

static int do_put_bundle(void) {
    return put_bundle(client, "mine", kept, &bundle);
}

static int do_get(void) {
    return tcx_get(client, "theirs", NULL, &tensor, NULL);
}

/* What it has already. */
static int do_get_again(void) {
    tcx_tensor_t *again = NULL;
    int r = do_get();

    r = r == TCX_OK ? tcx_get(client, "theirs", NULL, &again, NULL) : r;
    tcx_tensor_unref(again);
    return r;
}

static tcx_bundle_t *make_bundle(const char *name) {
    tcx_tensor_t *shared = NULL;
    tcx_bundle_t *made = NULL;

    MUST(tcx_copy(other, &large, (tcx_device_t){0}, &shared));
    MUST(put_bundle(other, name, shared, &made));
    tcx_tensor_unref(shared);
    return made;
}

static void have_bundle(void) {
    tcx_bundle_unref(make_bundle("theirs"));
}

static int do_get_bundle(void) {
    return tcx_get(client, "theirs", NULL, NULL, &bundle);
}

static int do_wait_in_vain(void) {
    const tcx_get_options_t soon = {.timeout = 0.01};
    int r = tcx_get(client, "never", &soon, &tensor, NULL);

    return r == TCX_TIMEOUT ? TCX_OK : r;
}

static int put_late(tcx_client_t *late) {
    return tcx_put(late, "late", &small, NULL, NULL);
}

static void have_publisher(void) {
    (void)tcx_delete(other, "late");
    late_prepare(put_late);
}

static int do_wait(void) {
    const tcx_get_options_t patient = {.timeout = 60};

    late_begin();
    int r = tcx_get(client, "late", &patient, &tensor, NULL);
    late_end();
    return r;
}

static int do_release(void) {
    tcx_stats_t stats;
    int r = tcx_copy(client, &large, (tcx_device_t){0}, &tensor);

    drop();
    /* One reply tells that a segment has been destroyed, the next one which. */
    for (int i = 0; r == TCX_OK && i < 3; i++) {
        r = tcx_stats(client, &stats);
    }
    return r;
}

static int do_delete(void) {
    return tcx_delete(client, "theirs");
}

static int do_list(void) {
    return tcx_list(client, NULL, ignore, NULL);
}

/* A ticket is all that keeps the tensor. */
static void have_ticket(void) {
    tcx_tensor_t *shared = NULL;

    MUST(tcx_copy(other, &large, (tcx_device_t){0}, &shared));
    MUST(tcx_tensor_ticket(other, shared, ticket, &ticket_nbytes));
    tcx_tensor_unref(shared);
}

static int do_ticket(void) {
    return tcx_tensor_ticket(client, kept, ticket, &ticket_nbytes);
}

static int do_redeem(void) {
    return tcx_redeem(client, ticket, ticket_nbytes, &tensor, NULL);
}

static void have_bundle_ticket(void) {
    tcx_bundle_t *shared = make_bundle(NULL);

    MUST(tcx_bundle_ticket(other, shared, ticket, &ticket_nbytes));
    tcx_bundle_unref(shared);
}

static int do_redeem_bundle(void) {
    return tcx_redeem(client, ticket, ticket_nbytes, NULL, &bundle);
}

int is_intact(const tcx_tensor_t *large_one) {
    return memcmp(tcx_tensor_array(large_one)->data, bytes, LARGE) == 0;
}

static void have_inheritance(void) {
    have_large();
    MUST(tcx_copy(client, &large, (tcx_device_t){0}, &tensor));
}

/* In the child: its parent may be dead, so that nobody else hears of this. */
static void expect_intact(const tcx_tensor_t *large_one) {
    if (!is_intact(large_one)) {
        fprintf(stderr, "what a child has is not what it was\n");
        _exit(TCX_INTERNAL);
    }
}

/* The child reads what it inherits when its parent has let go of it, asks the daemon itself, passes
 * on what it inherits, and lets go of all. */
_Noreturn static void be_child(int from_parent) {
    char word;
    tcx_tensor_t *found = NULL;

    if (read(from_parent, &word, 1) < 0) {
        abort();
    }
    int r = tcx_get(client, "theirs", NULL, &found, NULL);
    if (r == TCX_OK) {
        expect_intact(found);
        r = tcx_put(client, "mine", tcx_tensor_array(tensor), NULL, NULL);
    }
    expect_intact(tensor);
    drop();
    tcx_tensor_unref(kept);
    _exit(r);
}

static int bequeath(pid_t (*make_child)(void)) {
    int status = 0;
    int ends[2];

    if (pipe(ends) != 0) {
        abort();
    }
    pid_t child = make_child();
    if (child == 0) {
        close(ends[1]);
        be_child(ends[0]);
    }
    close(ends[0]);
    drop();
    close(ends[1]);
    if (child < 0 || waitpid(child, &status, 0) != child) {
        abort();
    }
    return WIFSIGNALED(status) ? CHILD_DIED : WEXITSTATUS(status);
}

static int do_fork(void) {
    return bequeath(fork);
}

/* Without a descriptor for a fork page. */
static pid_t fork_poor(void) {
    struct rlimit limit;

    getrlimit(RLIMIT_NOFILE, &limit);
    const struct rlimit none = {0, limit.rlim_max};
    setrlimit(RLIMIT_NOFILE, &none);
    pid_t child = fork();
    setrlimit(RLIMIT_NOFILE, &limit);
    return child;
}

static int do_fork_poor(void) {
    return bequeath(fork_poor);
}

/* A client that is killed with all it has: tensors, a name of its own, a ticket. */
static int do_die(void) {
    int status = 0;
    pid_t child = fork();

    if (child == 0) {
        do_put_shared();
        do_put_ephemeral();
        do_ticket();
        raise(SIGKILL);
    }
    if (child < 0 || waitpid(child, &status, 0) != child) {
        abort();
    }
    return WIFSIGNALED(status) ? TCX_OK : TCX_INTERNAL;
}

static const struct operation core_operations[] = {
    {"connect", NULL, do_connect},
    {"put-small", NULL, do_put_small},
    {"put-large", NULL, do_put_large},
    {"put-shared", NULL, do_put_shared},
    {"put-expiring", NULL, do_put_expiring},
    {"put-ephemeral", NULL, do_put_ephemeral},
    {"put-bundle", NULL, do_put_bundle},
    {"replace", have_large, do_replace},
    {"get", have_large, do_get},
    {"get-again", have_large, do_get_again},
    {"get-bundle", have_bundle, do_get_bundle},
    {"wait", have_publisher, do_wait},
    {"wait-in-vain", NULL, do_wait_in_vain},
    {"release", NULL, do_release},
    {"delete", have_large, do_delete},
    {"ticket", NULL, do_ticket},
    {"redeem", have_ticket, do_redeem},
    {"redeem-bundle", have_bundle_ticket, do_redeem_bundle},
    {"list", have_large, do_list},
    {"fork", have_inheritance, do_fork},
    {"fork-poor", have_inheritance, do_fork_poor},
    {"die", NULL, do_die},
    {NULL, NULL, NULL},
};

/* --------------------------------------------------------------------------------------- words */

static const struct operation *find(const char *name) {
    const struct operation *const all[] = {core_operations, stall_operations, channel_operations,
                                           cuda_operations};

    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        for (const struct operation *operation = all[i]; operation->name; operation++) {
            if (strcmp(operation->name, name) == 0) {
                return operation;
            }
        }
    }
    fprintf(stderr, "no operation \"%s\"\n", name);
    exit(2);
}

static int prepare(const struct operation *operation) {
    drop();
    if (!client) {
        client = open_client();
        MUST(tcx_copy(client, &large, (tcx_device_t){0}, &kept));
    }
    if (operation->prepare) {
        other = open_client();
        operation->prepare();
        tcx_client_close(other);
    }
    return TCX_OK;
}

/* A mapping that was lost is the end of us. */
static int act(const struct operation *operation) {
    int r = operation->act();

    if (!is_intact(kept)) {
        fprintf(stderr, "what was mapped has changed\n");
        exit(1);
    }
    return r;
}

static int clean(void) {
    drop();
    tcx_tensor_unref(kept);
    tcx_client_close(client);
    late_clean();
    kept = NULL;
    client = NULL;
    return TCX_OK;
}

/* A line of standard input without a buffer of stdio, which a fork would double. */
static int hear(char *line, size_t capacity) {
    size_t n = 0;

    while (n < capacity - 1 && read(STDIN_FILENO, line + n, 1) == 1) {
        if (line[n] == '\n') {
            line[n] = '\0';
            return 1;
        }
        n++;
    }
    return 0;
}

static void *nothing(void *unused) {
    return unused;
}

/* The library's own thread may run or not, and libc keeps the stack of one that has ended: so that
 * this is no difference, there is a stack of its size from the start. */
static void keep_stack(void) {
    pthread_attr_t attributes;
    pthread_t thread;

    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK);
    if (pthread_create(&thread, &attributes, nothing, NULL) != 0) {
        abort();
    }
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attributes);
}

int main(int argc, char **argv) {
    char line[64];

    if (argc != 2) {
        return 2;
    }
    options.socket = argv[1];
    keep_stack();
    memset(bytes, FILL, sizeof bytes);
    while (hear(line, sizeof line)) {
        char *name = strchr(line, ' ');
        int r;
        if (name) {
            *name++ = '\0';
        }
        if (strcmp(line, "clean") == 0) {
            r = clean();
        } else if (strcmp(line, "drop") == 0) {
            r = drop();
        } else {
            const struct operation *operation = find(name ? name : "");
            r = strcmp(line, "act") == 0 ? act(operation) : prepare(operation);
        }
        dprintf(STDOUT_FILENO, "%d %s\n", r, r == TCX_OK ? "" : tcx_error());
    }
    return 0;
}
