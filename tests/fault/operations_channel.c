/*
 * operations_channel.c - what a client does with queues and topics
 *
 * All is about one channel, which each preparation makes anew.
 */
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "operations.h"

#define CAPACITY 2
#define PATIENT  60

tcx_channel_t *channel;
static tcx_channel_t *reader; /* of `client` */
static tcx_tensor_t *second;  /* beside `tensor` */

static const tcx_channel_options_t queue = {
    .capacity = CAPACITY, .buffers = 5, .participants = 8, .buffer_nbytes = 1024};
static const tcx_channel_options_t unsized = {.capacity = CAPACITY, .buffers = 4};
static const tcx_channel_options_t topic = {.flags = TCX_CHANNEL_TOPIC | TCX_CHANNEL_DROP_OLDEST,
                                            .capacity = CAPACITY,
                                            .buffers = 5,
                                            .buffer_nbytes = SMALL};

void channels_drop(void) {
    tcx_tensor_unref(second);
    tcx_channel_close(reader);
    tcx_channel_close(channel);
    second = NULL;
    reader = channel = NULL;
}

/* -------------------------------------------------------------------------------------- scenes */

static void have_none(void) {
    (void)tcx_delete(other, CHANNEL);
}

void channel_have(const tcx_channel_options_t *wanted) {
    have_none();
    MUST(tcx_channel_open(client, CHANNEL, wanted, &channel));
}

static void have_queue(void) {
    channel_have(&queue);
}

static void have_unsized(void) {
    channel_have(&unsized);
}

static void have_topic(void) {
    channel_have(&topic);
}

static void have_reader(void) {
    channel_have(&topic);
    MUST(tcx_channel_subscribe(channel, 0, &reader));
}

/* Somebody, who then is gone, sends the same so many times. */
static void send_by_other(const tcx_array_t *array, int times) {
    tcx_channel_t *theirs = NULL;

    MUST(tcx_channel_open(other, CHANNEL, &queue, &theirs));
    for (int i = 0; i < times; i++) {
        MUST(tcx_channel_send(theirs, array, 0));
    }
    tcx_channel_close(theirs);
}

static void have_sent(void) {
    have_none();
    send_by_other(&small, 1);
}

static void have_small(void) {
    have_queue();
    send_by_other(&small, 1);
}

static void have_large(void) {
    have_queue();
    send_by_other(&large, 1);
}

/* The second time by a reference that is named before. */
static void have_shared(void) {
    tcx_tensor_t *shared = NULL;

    have_queue();
    MUST(tcx_copy(other, &large, (tcx_device_t){0}, &shared));
    send_by_other(tcx_tensor_array(shared), CAPACITY);
    tcx_tensor_unref(shared);
}

static int send_bundle(tcx_channel_t *by, const tcx_tensor_t *shared) {
    const char *const one[] = {"one"};
    const char *const two[] = {"deep", "two"};
    const tcx_item_t items[] = {{one, 1, &small}, {two, 2, tcx_tensor_array(shared)}};

    return tcx_channel_send_bundle(by, items, 2, 0);
}

static void have_bundle(void) {
    tcx_channel_t *theirs = NULL;
    tcx_tensor_t *shared = NULL;

    have_queue();
    MUST(tcx_channel_open(other, CHANNEL, &queue, &theirs));
    MUST(tcx_copy(other, &large, (tcx_device_t){0}, &shared));
    MUST(send_bundle(theirs, shared));
    tcx_tensor_unref(shared);
    tcx_channel_close(theirs);
}

static void have_full(void) {
    have_queue();
    send_by_other(&small, CAPACITY);
}

/* ----------------------------------------------------------------------------------- receiving */

static int check_small(const tcx_tensor_t *received) {
    const tcx_array_t *array = tcx_tensor_array(received);
    int fits = array->ndim == 1 && array->shape[0] == SMALL;

    return fits && memcmp(array->data, small.data, SMALL) == 0 ? TCX_OK : TCX_INTERNAL;
}

/* `status`, or whether what came of it is what was sent. */
static int check(int status, const tcx_tensor_t *received) {
    if (status != TCX_OK) {
        return status;
    }
    if (tcx_tensor_array(received)->shape[0] == SMALL) {
        return check_small(received);
    }
    return is_intact(received) ? TCX_OK : TCX_INTERNAL;
}

static int receive(tcx_channel_t *by, tcx_tensor_t **ret_tensor) {
    int r = tcx_channel_recv(by, 0, 0, ret_tensor, NULL);

    return check(r, *ret_tensor);
}

static int do_receive(void) {
    return receive(channel, &tensor);
}

static int do_receive_twice(void) {
    int r = receive(channel, &tensor);

    return r == TCX_OK ? receive(channel, &second) : r;
}

/* A message that it takes a question to open is not opened at once, and comes at the next call. */
static int do_receive_at_once(void) {
    int r = tcx_channel_recv(channel, TCX_AT_ONCE, 0, &tensor, NULL);

    if (r != TCX_TIMEOUT) {
        return r == TCX_OK ? TCX_INTERNAL : r;
    }
    return receive(channel, &tensor);
}

static int do_receive_bundle(void) {
    const char *const *path;
    tcx_tensor_t *one;
    tcx_tensor_t *two;
    size_t depth;
    int r = tcx_channel_recv(channel, 0, 0, NULL, &bundle);

    if (r != TCX_OK) {
        return r;
    }
    tcx_bundle_item(bundle, 0, &path, &depth, &one);
    tcx_bundle_item(bundle, 1, &path, &depth, &two);
    return check_small(one) == TCX_OK && is_intact(two) ? TCX_OK : TCX_INTERNAL;
}

static int do_receive_in_vain(void) {
    int r = tcx_channel_recv(channel, 0.01, 0, &tensor, NULL);

    return r == TCX_TIMEOUT ? TCX_OK : r;
}

static int send_late(tcx_client_t *late) {
    tcx_channel_t *theirs = NULL;
    int r = tcx_channel_open(late, CHANNEL, &queue, &theirs);

    r = r == TCX_OK ? tcx_channel_send(theirs, &small, 0) : r;
    tcx_channel_close(theirs);
    return r;
}

static void have_sender(void) {
    have_queue();
    late_prepare(send_late);
}

static int do_receive_late(void) {
    late_begin();
    int r = tcx_channel_recv(channel, PATIENT, 0, &tensor, NULL);
    late_end();
    return check(r, tensor);
}

/* The daemon waits for this, and the last message that refers to it is gone. */
static void have_received(void) {
    have_large();
    MUST(receive(channel, &tensor));
}

static int do_release(void) {
    tcx_stats_t stats;
    int r = TCX_OK;

    tcx_tensor_unref(tensor);
    tensor = NULL;
    /* One reply tells that a segment has been destroyed, the next one which. */
    for (int i = 0; r == TCX_OK && i < 3; i++) {
        r = tcx_stats(client, &stats);
    }
    return r;
}

/* ------------------------------------------------------------------------------------- sending */

/* The next buffer still names what its last message referred to. */
static void have_used(void) {
    have_received();
    tcx_tensor_unref(tensor);
    tensor = NULL;
}

static int do_send_small(void) {
    return tcx_channel_send(channel, &small, 0);
}

static int do_send_large(void) {
    return tcx_channel_send(channel, &large, 0);
}

/* The second time by a reference that stays. */
static int do_send_shared(void) {
    int r = TCX_OK;

    for (int i = 0; r == TCX_OK && i < CAPACITY; i++) {
        r = tcx_channel_send(channel, tcx_tensor_array(kept), 0);
    }
    return r;
}

static int do_send_bundle(void) {
    return send_bundle(channel, kept);
}

static int do_send_loan(void) {
    int r = tcx_channel_loan(channel, small.dtype, 1, small.shape, 0, &tensor);

    if (r == TCX_OK) {
        memcpy(tcx_tensor_array(tensor)->data, small.data, SMALL);
        r = tcx_channel_send_loan(channel, tensor, 0);
    }
    return r;
}

static int do_return_loan(void) {
    int r = tcx_channel_loan(channel, small.dtype, 1, small.shape, 0, &tensor);

    tcx_tensor_unref(tensor);
    tensor = NULL;
    return r;
}

static int do_send_in_vain(void) {
    int r = tcx_channel_send(channel, &small, 0.01);

    return r == TCX_TIMEOUT ? TCX_OK : r;
}

static int receive_late(tcx_client_t *late) {
    tcx_channel_t *theirs = NULL;
    tcx_tensor_t *received = NULL;
    int r = tcx_channel_open(late, CHANNEL, &queue, &theirs);

    r = r == TCX_OK ? receive(theirs, &received) : r;
    tcx_tensor_unref(received);
    tcx_channel_close(theirs);
    return r;
}

static void have_receiver(void) {
    have_full();
    late_prepare(receive_late);
}

static int do_send_late(void) {
    late_begin();
    int r = tcx_channel_send(channel, &small, PATIENT);
    late_end();
    return r;
}

/* -------------------------------------------------------------------------------------- topics */

static int do_subscribe(void) {
    return tcx_channel_subscribe(channel, 0, &reader);
}

/* More than the topic keeps: the reader misses the first one. */
static int do_lag(void) {
    tcx_channel_info_t info;
    int r = TCX_OK;

    for (int i = 0; r == TCX_OK && i < CAPACITY + 1; i++) {
        r = tcx_channel_send(channel, &small, 0);
    }
    r = r == TCX_OK ? receive(reader, &tensor) : r;
    if (r != TCX_OK) {
        return r;
    }
    tcx_channel_info(reader, &info);
    return info.missed == 1 ? TCX_OK : TCX_INTERNAL;
}

/* ------------------------------------------------------------------------------- begin and end */

static int do_open(void) {
    return tcx_channel_open(client, CHANNEL, &queue, &channel);
}

/* By the time that this answers the daemon knows. */
static int ask(void) {
    tcx_stats_t stats;

    return tcx_stats(client, &stats);
}

static int do_leave(void) {
    tcx_channel_close(channel);
    channel = NULL;
    return ask();
}

static int do_shutdown(void) {
    int r = tcx_channel_shutdown(channel);

    if (r == TCX_OK) {
        r = tcx_channel_send(channel, &small, 0);
    }
    return r == TCX_CLOSED ? TCX_OK : r;
}

static int do_delete(void) {
    int r = tcx_delete(client, CHANNEL);

    return r == TCX_OK ? do_shutdown() : r;
}

/* --------------------------------------------------------------------------------------- forks */

/* What was received before, and one more to come. */
static void have_inheritance(void) {
    have_full();
    MUST(receive(channel, &tensor));
}

_Noreturn static void be_child(int from_parent) {
    char word;
    tcx_tensor_t *next = NULL;

    if (read(from_parent, &word, 1) < 0 || check_small(tensor) != TCX_OK) {
        _exit(TCX_INTERNAL);
    }
    _exit(receive(channel, &next));
}

/* The child reads what its parent has received and let go of, and receives itself. */
static int do_fork(void) {
    int status = 0;
    int ends[2];

    if (pipe(ends) != 0) {
        abort();
    }
    pid_t child = fork();
    if (child == 0) {
        close(ends[1]);
        be_child(ends[0]);
    }
    close(ends[0]);
    tcx_tensor_unref(tensor);
    tensor = NULL;
    close(ends[1]);
    if (child < 0 || waitpid(child, &status, 0) != child) {
        abort();
    }
    return WIFSIGNALED(status) ? CHILD_DIED : WEXITSTATUS(status);
}

const struct operation channel_operations[] = {
    {"make-queue", have_none, do_open},
    {"join-queue", have_sent, do_open},
    {"leave-queue", have_small, do_leave},
    {"shutdown-queue", have_queue, do_shutdown},
    {"delete-queue", have_small, do_delete},
    {"fork-queue", have_inheritance, do_fork},
    {"send-small", have_queue, do_send_small},
    {"send-again", have_used, do_send_small},
    {"send-first", have_unsized, do_send_small},
    {"send-large", have_queue, do_send_large},
    {"send-shared", have_queue, do_send_shared},
    {"send-bundle", have_queue, do_send_bundle},
    {"send-loan", have_queue, do_send_loan},
    {"return-loan", have_queue, do_return_loan},
    {"send-late", have_receiver, do_send_late},
    {"send-in-vain", have_full, do_send_in_vain},
    {"receive-small", have_small, do_receive},
    {"receive-large", have_large, do_receive},
    {"receive-at-once", have_large, do_receive_at_once},
    {"receive-shared", have_shared, do_receive_twice},
    {"receive-bundle", have_bundle, do_receive_bundle},
    {"receive-late", have_sender, do_receive_late},
    {"receive-in-vain", have_queue, do_receive_in_vain},
    {"release-received", have_received, do_release},
    {"subscribe", have_topic, do_subscribe},
    {"lag", have_reader, do_lag},
    {NULL, NULL, NULL},
};
