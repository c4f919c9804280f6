/*
 * fuzz_reply.c - what the library makes of replies, descriptors and shared memory of any content
 *
 * An input is: six calls; how many of the replies are there before the first one (the others come
 * one after each call, so mostly too late); what the files that come as descriptors contain; the
 * replies (how the request is numbered, opcode, status, kind of descriptor, size, body).
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "channel_desc.h"
#include "client.h"
#include "clock.h"
#include "codec.h"
#include "connection.h"
#include "driver.h"
#include "fuzz.h"
#include "ring.h"
#include "session.h"
#include "tensorcx.h"

enum { CALLS_MAX = 6, REPLIES_MAX = 16, FILE_NBYTES = 64 * 1024, READ_MAX = 1 << 20 };
enum { DEVICE_NBYTES = 2 << 20 };

static const struct ring_shape queue = {0, 8, 16, 4, 256};
static const struct ring_shape topic = {RING_TOPIC, 8, 16, 4, 256};

static struct input content; /* of the files that come with replies */

/* Waiting takes no time here: the clock jumps instead. */
static int64_t jumped_ns;

int __real_ppoll(struct pollfd *fds, nfds_t count, const struct timespec *time, const sigset_t *s);
int __wrap_ppoll(struct pollfd *fds, nfds_t count, const struct timespec *time, const sigset_t *s);
int __wrap_ppoll(struct pollfd *fds, nfds_t count, const struct timespec *time, const sigset_t *s) {
    static const struct timespec none;
    int n = __real_ppoll(fds, count, &none, s);

    if (n == 0 && time) {
        __atomic_add_fetch(&jumped_ns, time->tv_sec * NS_PER_S + time->tv_nsec, __ATOMIC_RELAXED);
    }
    return n;
}

int __real_clock_gettime(clockid_t clock, struct timespec *ret_time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *ret_time);
int __wrap_clock_gettime(clockid_t clock, struct timespec *ret_time) {
    int r = __real_clock_gettime(clock, ret_time);
    int64_t ns = ret_time->tv_nsec + __atomic_load_n(&jumped_ns, __ATOMIC_RELAXED);

    ret_time->tv_sec += ns / NS_PER_S;
    ret_time->tv_nsec = ns % NS_PER_S;
    return r;
}

/* ------------------------------------------------------------------------------- the descriptors
 */

static int new_file(size_t nbytes) {
    int fd = memfd_create("fuzz", MFD_CLOEXEC);

    assert(fd >= 0 && ftruncate(fd, (off_t)nbytes) == 0);
    return fd;
}

static int file_with_content(void) {
    int fd = new_file(FILE_NBYTES);

    (void)!pwrite(fd, content.at, content.left, 0);
    return fd;
}

/* Somebody else's messages: a tensor, a bundle, one by reference. */
static void send_messages(void *block, size_t nbytes, const struct ring_shape *shape) {
    static const struct ring_wait at_once = {0, 0};
    struct channel_desc desc = {.memory = {{TCX_FLOAT, 32, 1}, 1, .ndim = 1}};
    struct ring ring;
    uint32_t buffer;

    assert(!ring_open(block, nbytes, shape, 2, 1, &ring));
    desc.memory.shape[0] = 64;
    desc.memory.strides[0] = 1;
    for (int i = 0; i < 3; i++) {
        assert(ring_loan(&ring, &at_once, &buffer) == RING_OK);
        channel_desc_write(&ring, buffer, &desc);
        assert(ring_send(&ring, &at_once, buffer) == RING_OK);
        desc.memory.dtype = (struct desc_dtype){TCX_UINT, 8, 1};
        desc.memory.flags = DESC_BUNDLE;
        desc.ref = (uint64_t)i;
    }
}

/* A control block with a seat for us and messages, into which somebody has written. */
static int control_block(const struct ring_shape *shape) {
    size_t nbytes = ring_nbytes(shape);
    int fd = new_file(nbytes);
    uint32_t *block = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    struct input words = content;
    struct ring ring;

    assert(block != MAP_FAILED);
    ring_init(block, shape);
    assert(!ring_open(block, nbytes, shape, 0, 0, &ring));
    assert(ring_seat(&ring, 0, 1) && ring_seat(&ring, 1, 2));
    send_messages(block, nbytes, shape);
    while (words.left > 0) {
        uint64_t at = input_number(&words, 2) % (nbytes / sizeof *block);
        block[at] = (uint32_t)input_number(&words, 4);
    }
    block[offsetof(struct ring_control, lock) / sizeof *block] = 0; /* else all only wait for it */
    munmap(block, nbytes);
    return fd;
}

/* Memory on a device, as the daemon exports it; there is one piece for all. -1: no driver. */
static int device_memory(void) {
    static int exported = -1;
    CUmemAllocationProp properties = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
    };
    const char *why;
    const struct cuda_driver *driver = cuda_driver(&why);
    CUmemGenericAllocationHandle allocation;

    if (driver && exported < 0) {
        assert(driver->create(&allocation, DEVICE_NBYTES, &properties, 0) == CUDA_SUCCESS);
        assert(driver->export_handle(&exported, allocation,
                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_SUCCESS);
        driver->release(allocation);
    }
    return exported < 0 ? -1 : fcntl(exported, F_DUPFD_CLOEXEC, 0);
}

static int descriptor(uint64_t kind) {
    switch (kind % 7) {
    case 1:
        return file_with_content();
    case 2:
        return new_file(WIRE_PAGE_NBYTES);
    case 3:
        return control_block(&queue);
    case 4:
        return control_block(&topic);
    case 5:
        return device_memory();
    case 6:
        return open("/dev/null", O_RDWR | O_CLOEXEC);
    default:
        return -1;
    }
}

/* ------------------------------------------------------------------------------------ the replies
 */

static void send_reply(int socket, struct input *input, uint32_t number) {
    uint32_t request = number + (uint32_t)(int8_t)input_number(input, 1);
    const struct wire_rule *rule = wire_rule((uint16_t)input_number(input, 1));
    uint32_t status = (uint32_t)input_number(input, 1);
    int fd = descriptor(input_number(input, 1));
    size_t wanted = input_number(input, 2);
    size_t nbytes;
    const uint8_t *body = input_bytes(input, wanted, &nbytes);
    size_t missing = rule && !status && nbytes < rule->reply_size ? rule->reply_size - nbytes : 0;
    static const char zeroes[1024];
    struct frame frame = {.header = {.opcode = rule ? rule->opcode : 999,
                                     .request = request,
                                     .status = status,
                                     .destroyed = number / 4},
                          .fixed = body,
                          .fixed_nbytes = nbytes,
                          .tail = {zeroes},
                          .tail_nbytes = {missing},
                          .fd = fd};

    (void)connection_send(socket, &frame);
    if (fd >= 0) {
        close(fd);
    }
}

/* A client whose connection to its daemon is the other end of `*ret_socket`. */
static tcx_client_t *given_client(int *ret_socket) {
    tcx_client_options_t options = {
        .socket = "/nowhere/d.sock", .no_autostart = 1, .answer_timeout = 0.002};
    tcx_client_t *client;
    int ends[2];

    assert(tcx_client_open(&options, &client) == TCX_OK);
    assert(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    client->session = session_create(&client->patience, client->path);
    session_lock(client->session);
    session_attach(client->session, ends[0]);
    client->session->id = 1;
    client->session->boot_id = 1;
    session_unlock(client->session);
    *ret_socket = ends[1];
    return client;
}

/* -------------------------------------------------------------------------------------- the calls
 */

/* Reads every element: what was accepted is mapped. */
static void read_tensor(tcx_tensor_t *tensor) {
    tcx_info_t info;

    tcx_tensor_info(tensor, &info);
    if (info.nbytes <= READ_MAX) {
        char *copy = malloc(info.nbytes + 1);
        assert(tcx_array_pack(tcx_tensor_array(tensor), copy, info.nbytes) == TCX_OK);
        free(copy);
    }
}

static void read_bundle(const tcx_bundle_t *bundle) {
    for (size_t i = 0; i < tcx_bundle_count(bundle); i++) {
        const char *const *path;
        size_t depth;
        tcx_tensor_t *tensor;
        tcx_bundle_item(bundle, i, &path, &depth, &tensor);
        for (size_t k = 0; k < depth; k++) {
            (void)!strlen(path[k]);
        }
        if (tensor) {
            read_tensor(tensor);
        }
    }
}

/* Looks at what a call has given, and lets it go. */
static void let_go(int status, tcx_tensor_t *tensor, tcx_bundle_t *bundle) {
    assert((status == TCX_OK) == (tensor || bundle));
    if (tensor) {
        read_tensor(tensor);
    }
    if (bundle) {
        read_bundle(bundle);
    }
    tcx_tensor_unref(tensor);
    tcx_bundle_unref(bundle);
}

static int on_entry(void *context, const tcx_entry_t *entry) {
    (void)context;
    return strlen(entry->name) > WIRE_NAME_MAX;
}

static int on_peer(void *context, const tcx_peer_t *peer) {
    (void)context;
    return strlen(peer->program) > WIRE_PROGRAM_MAX;
}

static int on_channel(void *context, const tcx_channel_entry_t *entry) {
    (void)context;
    return entry->seated_count && entry->seated[entry->seated_count - 1].client == 0;
}

static int on_holder(void *context, const tcx_holder_t *holder) {
    (void)context;
    (void)holder;
    return 0;
}

static int on_device(void *context, const tcx_device_entry_t *entry) {
    (void)context;
    return strlen(entry->name) > 63;
}

static const tcx_array_t *some_array(void) {
    static float data[6] = {1, 2, 3, 4, 5, 6};
    static const int64_t dims[2] = {2, 3};
    static tcx_array_t array = {
        .data = data, .dtype = {TCX_FLOAT, 32, 1}, .ndim = 2, .shape = dims};

    return &array;
}

static void get(tcx_client_t *client, double timeout) {
    tcx_get_options_t options = {.timeout = timeout};
    tcx_tensor_t *tensor = NULL;
    tcx_bundle_t *bundle = NULL;
    int r = tcx_get(client, "name", &options, &tensor, &bundle);

    let_go(r, tensor, bundle);
}

static void put(tcx_client_t *client) {
    tcx_tensor_t *tensor = NULL;
    int r = tcx_put(client, "name", some_array(), NULL, &tensor);

    let_go(r, tensor, NULL);
}

static void put_bundle(tcx_client_t *client) {
    const char *paths[] = {"a", "b"};
    tcx_item_t items[] = {{&paths[0], 1, some_array()}, {&paths[1], 1, some_array()}};
    tcx_bundle_t *bundle = NULL;
    int r = tcx_put_bundle(client, "name", items, 2, NULL, &bundle);

    let_go(r, NULL, bundle);
}

static void use_device(tcx_client_t *client) {
    static const tcx_device_t there = {TCX_CUDA, 0};
    tcx_tensor_t *tensor = NULL;
    int r = tcx_copy(client, some_array(), there, &tensor);

    let_go(r, tensor, NULL);
    (void)tcx_devices(client, on_device, NULL);
}

static void receive(tcx_channel_t *channel) {
    for (int i = 0; i < 4; i++) {
        tcx_tensor_t *tensor = NULL;
        tcx_bundle_t *bundle = NULL;
        int r = tcx_channel_recv(channel, 0, 0, &tensor, &bundle);
        let_go(r, tensor, bundle);
    }
}

static void make_new(tcx_client_t *client) {
    static const tcx_device_t cpu = {TCX_CPU, 0};
    tcx_tensor_t *tensor = NULL;
    int r = tcx_zeros(client, cpu, some_array()->dtype, 2, some_array()->shape, &tensor);

    let_go(r, tensor, NULL);
    (void)tcx_delete(client, "name");
}

/* Gives on what it got: by a second name, in a bundle, in a message. */
static void pass_on(tcx_client_t *client) {
    tcx_channel_options_t options = {0};
    tcx_tensor_t *tensor = NULL;
    tcx_tensor_t *again = NULL;
    tcx_bundle_t *bundle = NULL;
    tcx_channel_t *channel;
    const char *path = "a";

    if (tcx_get(client, "name", NULL, &tensor, NULL) != TCX_OK) {
        return;
    }
    tcx_item_t item = {&path, 1, tcx_tensor_array(tensor)};
    int r = tcx_put(client, "again", item.array, NULL, &again);
    let_go(r, again, NULL);
    r = tcx_put_bundle(client, "again", &item, 1, NULL, &bundle);
    let_go(r, NULL, bundle);
    if (tcx_channel_open(client, "name", &options, &channel) == TCX_OK) {
        (void)tcx_channel_send(channel, item.array, 0);
        (void)tcx_channel_send_bundle(channel, &item, 1, 0);
        (void)tcx_channel_send(channel, item.array, 0);
        receive(channel);
        (void)tcx_channel_shutdown(channel);
        tcx_channel_close(channel);
    }
    let_go(TCX_OK, tensor, NULL);
}

static void pass_ticket(tcx_client_t *client) {
    char ticket[TCX_TICKET_MAX];
    size_t nbytes;
    tcx_tensor_t *tensor = NULL;
    tcx_bundle_t *bundle = NULL;

    if (tcx_get(client, "name", NULL, &tensor, &bundle) != TCX_OK) {
        return;
    }
    int r = tensor ? tcx_tensor_ticket(client, tensor, ticket, &nbytes)
                   : tcx_bundle_ticket(client, bundle, ticket, &nbytes);
    let_go(TCX_OK, tensor, bundle);
    if (r == TCX_OK) {
        tensor = NULL;
        bundle = NULL;
        r = tcx_redeem(client, ticket, nbytes, &tensor, &bundle);
        let_go(r, tensor, bundle);
    }
}

static void redeem(tcx_client_t *client) {
    tcx_tensor_t *tensor = NULL;
    tcx_bundle_t *bundle = NULL;
    int r = tcx_redeem(client, content.at, content.left, &tensor, &bundle);

    let_go(r, tensor, bundle);
}

static void send_some(tcx_channel_t *channel) {
    static const int64_t six = 6;
    const char *path = "a";
    tcx_item_t item = {&path, 1, some_array()};
    tcx_tensor_t *loan;

    (void)tcx_channel_send(channel, some_array(), 0);
    (void)tcx_channel_send_bundle(channel, &item, 1, 0);
    if (tcx_channel_loan(channel, some_array()->dtype, 1, &six, 0, &loan) == TCX_OK) {
        (void)tcx_channel_send_loan(channel, loan, 0);
        tcx_tensor_unref(loan);
    }
}

static void use_channel(tcx_client_t *client, unsigned flags) {
    tcx_channel_options_t options = {.flags = flags};
    tcx_channel_info_t info;
    tcx_channel_t *channel;
    tcx_channel_t *reader;

    if (tcx_channel_open(client, "name", &options, &channel) != TCX_OK) {
        return;
    }
    send_some(channel);
    if (tcx_channel_subscribe(channel, 0, &reader) == TCX_OK) {
        receive(reader);
        tcx_channel_close(reader);
    }
    receive(channel);
    tcx_channel_info(channel, &info);
    (void)tcx_channel_holders(channel, on_holder, NULL);
    tcx_channel_close(channel);
}

static void call(tcx_client_t *client, uint64_t kind) {
    tcx_stats_t stats;

    switch (kind % 16) {
    case 0:
        get(client, 0);
        break;
    case 1:
        put(client);
        break;
    case 2:
        put_bundle(client);
        break;
    case 3:
        pass_ticket(client);
        break;
    case 4:
        redeem(client);
        break;
    case 5:
        use_channel(client, 0);
        break;
    case 6:
        (void)tcx_list(client, NULL, on_entry, NULL);
        break;
    case 7:
        (void)tcx_stat(client, "name", on_entry, NULL);
        break;
    case 8:
        (void)tcx_clients(client, on_peer, NULL);
        break;
    case 9:
        (void)tcx_channels(client, on_channel, NULL);
        break;
    case 10:
        use_channel(client, TCX_CHANNEL_TOPIC);
        break;
    case 11:
        get(client, 0.001);
        break;
    case 12:
        use_device(client);
        break;
    case 13:
        make_new(client);
        break;
    case 14:
        pass_on(client);
        break;
    default:
        (void)tcx_stats(client, &stats);
        break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    struct input input = {data, nbytes};
    uint8_t calls[CALLS_MAX];
    uint32_t number = 0;
    int socket;

    jumped_ns = 0;
    input_take(&input, calls, sizeof calls);
    uint32_t early = (uint32_t)input_number(&input, 1);
    uint64_t content_nbytes = input_number(&input, 2);
    content.at = input_bytes(&input, content_nbytes, &content.left);
    tcx_client_t *client = given_client(&socket);
    while (input.left > 0 && number < early && number < REPLIES_MAX) {
        send_reply(socket, &input, ++number);
    }
    if (input.left == 0) {
        shutdown(socket, SHUT_WR); /* nobody waits for more */
    }
    for (size_t i = 0; i < CALLS_MAX && calls[i]; i++) {
        call(client, calls[i] - 1u);
        if (input.left > 0) {
            send_reply(socket, &input, ++number);
        }
    }
    tcx_client_close(client);
    close(socket);
    return 0;
}
