/*
 * operations_cuda.c - what a client does with memory of a CUDA device
 */
#include <string.h>
#include <unistd.h>

#include "operations.h"

#define HURRY (24 << 20) /* more than half of what the tests let the daemon have */

static const tcx_device_t first = {TCX_CUDA, 0};
static const tcx_device_t second = {TCX_CUDA, 1};
static const tcx_put_options_t on_device = {.device = {TCX_CUDA, 0}};

static int count_own(void *context, const tcx_peer_t *peer) {
    if (peer->pid == getpid()) {
        ++*(int *)context;
    }
    return 0;
}

/* Segments of a device are mapped once in a process. So that the client maps them itself, the one
 * that set the scene must be gone, which a thread of the library sees to. */
static void leave_scene(void) {
    int count = 0;

    tcx_client_close(other);
    while (count != 1) {
        count = 0;
        MUST(tcx_clients(client, count_own, &count));
        usleep(1000);
    }
    other = open_client();
}

static int check(int status, const tcx_tensor_t *copied) {
    char *bytes = malloc(LARGE);

    if (!bytes) {
        return TCX_OUT_OF_MEMORY;
    }
    if (status == TCX_OK) {
        status = tcx_array_pack(tcx_tensor_array(copied), bytes, LARGE);
    }
    if (status == TCX_OK && memcmp(bytes, large.data, LARGE) != 0) {
        status = TCX_INTERNAL;
    }
    free(bytes);
    return status;
}

/* --------------------------------------------------------------------------------------- names */

static int do_put(void) {
    return tcx_put(client, "mine", &large, &on_device, &tensor);
}

static int do_put_shared(void) {
    int r = tcx_zeros(client, first, large.dtype, 1, large.shape, &tensor);

    return r == TCX_OK ? tcx_put(client, "mine", tcx_tensor_array(tensor), NULL, NULL) : r;
}

static void have(void) {
    MUST(tcx_put(other, "theirs", &large, &on_device, NULL));
    leave_scene();
}

static int do_get(void) {
    int r = tcx_get(client, "theirs", NULL, &tensor, NULL);

    return check(r, tensor);
}

static int do_put_bundle(void) {
    const char *const here[] = {"here"};
    const char *const there[] = {"there"};
    int r = tcx_copy(client, &large, first, &tensor);
    if (r != TCX_OK) {
        return r;
    }
    const tcx_item_t items[] = {{here, 1, &small}, {there, 1, tcx_tensor_array(tensor)}};
    return tcx_put_bundle(client, "mine", items, 2, NULL, &bundle);
}

/* -------------------------------------------------------------------------------------- copies */

static int do_copy_between(void) {
    tcx_tensor_t *from = NULL;
    int r = tcx_copy(client, &large, first, &from);

    if (r == TCX_OK) {
        r = tcx_copy(client, tcx_tensor_array(from), second, &tensor);
    }
    tcx_tensor_unref(from);
    return check(r, tensor);
}

static int do_release(void) {
    int r = tcx_copy(client, &large, first, &tensor);

    tcx_tensor_unref(tensor);
    tensor = NULL;
    return r;
}

/* As much as can only be had when what was let go of is back. */
static int do_hurry(void) {
    static const int64_t shape[] = {HURRY};
    int r = TCX_OK;

    for (int i = 0; r == TCX_OK && i < 2; i++) {
        tcx_tensor_unref(tensor);
        tensor = NULL;
        r = tcx_empty(client, first, large.dtype, 1, shape, &tensor);
    }
    return r;
}

static int do_disconnect(void) {
    int r = tcx_copy(client, &large, first, &tensor);

    tcx_tensor_unref(tensor);
    tensor = NULL;
    tcx_client_disconnect(client);
    return r;
}

/* ------------------------------------------------------------------------------------- tickets */

static int do_ticket(void) {
    int r = tcx_copy(client, &large, first, &tensor);

    return r == TCX_OK ? tcx_tensor_ticket(client, tensor, ticket, &ticket_nbytes) : r;
}

static void have_ticket(void) {
    tcx_tensor_t *shared = NULL;

    MUST(tcx_copy(other, &large, first, &shared));
    MUST(tcx_tensor_ticket(other, shared, ticket, &ticket_nbytes));
    tcx_tensor_unref(shared);
    leave_scene();
}

static int do_redeem(void) {
    int r = tcx_redeem(client, ticket, ticket_nbytes, &tensor, NULL);

    return check(r, tensor);
}

/* ------------------------------------------------------------------------------------ channels */

static const tcx_channel_options_t queue = {.capacity = 2,
                                            .buffers = 3,
                                            .participants = 8,
                                            .buffer_nbytes = LARGE,
                                            .device = {TCX_CUDA, 0}};

static void have_queue(void) {
    channel_have(&queue);
}

static int send_from_device(tcx_client_t *by, tcx_channel_t *to) {
    tcx_tensor_t *shared = NULL;
    int r = tcx_copy(by, &large, first, &shared);

    r = r == TCX_OK ? tcx_channel_send(to, tcx_tensor_array(shared), 0) : r;
    tcx_tensor_unref(shared);
    return r;
}

static int do_send_shared(void) {
    return send_from_device(client, channel);
}

static int do_send_loan(void) {
    int r = tcx_channel_loan(channel, large.dtype, 1, large.shape, 0, &tensor);

    r = r == TCX_OK ? tcx_array_copy(tcx_tensor_array(tensor), &large) : r;
    return r == TCX_OK ? tcx_channel_send_loan(channel, tensor, 0) : r;
}

static int do_join(void) {
    return tcx_channel_open(client, CHANNEL, &queue, &channel);
}

/* In a buffer, and by reference. */
static void have_sent(void) {
    tcx_channel_t *theirs = NULL;
    tcx_tensor_t *loan = NULL;

    (void)tcx_delete(other, CHANNEL);
    MUST(tcx_channel_open(other, CHANNEL, &queue, &theirs));
    MUST(tcx_channel_loan(theirs, large.dtype, 1, large.shape, 0, &loan));
    MUST(tcx_array_copy(tcx_tensor_array(loan), &large));
    MUST(tcx_channel_send_loan(theirs, loan, 0));
    tcx_tensor_unref(loan);
    MUST(send_from_device(other, theirs));
    tcx_channel_close(theirs);
    leave_scene();
    MUST(do_join());
}

static int do_receive(void) {
    int r = TCX_OK;

    for (int i = 0; r == TCX_OK && i < 2; i++) {
        tcx_tensor_unref(tensor);
        tensor = NULL;
        r = tcx_channel_recv(channel, 0, 0, &tensor, NULL);
        r = check(r, tensor);
    }
    return r;
}

static void have_none(void) {
    (void)tcx_delete(other, CHANNEL);
}

const struct operation cuda_operations[] = {
    {"cuda-put", NULL, do_put},
    {"cuda-put-shared", NULL, do_put_shared},
    {"cuda-put-bundle", NULL, do_put_bundle},
    {"cuda-get", have, do_get},
    {"cuda-copy-between", NULL, do_copy_between},
    {"cuda-release", NULL, do_release},
    {"cuda-hurry", NULL, do_hurry},
    {"cuda-disconnect", NULL, do_disconnect},
    {"cuda-ticket", NULL, do_ticket},
    {"cuda-redeem", have_ticket, do_redeem},
    {"cuda-make-queue", have_none, do_join},
    {"cuda-send-shared", have_queue, do_send_shared},
    {"cuda-send-loan", have_queue, do_send_loan},
    {"cuda-receive", have_sent, do_receive},
    {NULL, NULL, NULL},
};
