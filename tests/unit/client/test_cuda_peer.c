/* A daemon that the test plays gives memory on a device, or what cannot be that: each answer to MAP
 * is returned by an UNMAP, and no descriptor is left. */
#include <fcntl.h>
#include <sys/mman.h>

#include "device_list.h"
#include "fakecuda_fixture.h"
#include "peer.h"
#include "segment.h"
#include "storage.h"

#define SEGMENT ((UINT64_C(1) << 56) + 5) /* on the daemon's device 1 */
#define NBYTES  ((uint64_t)2 << 20)

static const struct cuda_driver *driver;

/* A segment as the daemon makes them: a descriptor. */
static int export(void) {
    CUmemAllocationProp properties = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
        .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
    };
    CUmemGenericAllocationHandle handle;
    int fd;

    EXPECT_EQ(CUDA_SUCCESS, driver->create(&handle, NBYTES, &properties, 0));
    EXPECT_EQ(CUDA_SUCCESS,
              driver->export_handle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    EXPECT_EQ(CUDA_SUCCESS, driver->release(handle));
    return fd;
}

static struct wire_map_reply good_reply(void) {
    return (struct wire_map_reply){
        .segment = SEGMENT, .nbytes = NBYTES, .device = 1, .mapping = MAPPING_VMM};
}

static void reply_map(struct peer *peer, const struct wire_map_reply *reply, int fd) {
    uint32_t request = peer_receive(peer, MESSAGE_MAP)->request;

    peer_reply(peer, MESSAGE_MAP, request, STATUS_OK, reply, sizeof *reply, fd);
}

/* The daemon has one device: the first of this process, or one that nobody sees. */
static void reply_devices(struct peer *peer, int is_ours) {
    uint32_t request = peer_receive(peer, MESSAGE_DEVICES)->request;
    struct {
        struct wire_devices_reply fixed;
        struct wire_device device;
    } reply = {.fixed = {.count = 1}, .device = {.device = 1, .mapping = MAPPING_VMM}};
    CUuuid uuid;

    EXPECT_EQ(CUDA_SUCCESS, driver->device_uuid(&uuid, 0));
    memcpy(reply.device.uuid, uuid.bytes, sizeof uuid.bytes);
    reply.device.uuid[0] ^= !is_ours;
    peer_reply(peer, MESSAGE_DEVICES, request, STATUS_OK, &reply, sizeof reply, -1);
}

/* The next message is an UNMAP of the segment. */
static void expect_unmap(struct peer *peer) {
    const struct wire_header *header = peer_receive(peer, MESSAGE_UNMAP);
    uint64_t id;

    EXPECT_EQ(sizeof *header + sizeof(struct wire_unmap) + sizeof id, header->nbytes);
    memcpy(&id, (const char *)(header + 1) + sizeof(struct wire_unmap), sizeof id);
    EXPECT_EQ(SEGMENT, id);
}

static struct peer *given_peer(void) {
    driver = given_driver();
    return peer_create(&patient);
}

/* The segment is mapped; its descriptor is the test's. */
static int given_mapped(struct peer *peer) {
    struct wire_map_reply reply = good_reply();
    struct caller caller;
    int fd = export();

    caller_start_map(&caller, peer, SEGMENT);
    reply_map(peer, &reply, fd);
    reply_devices(peer, 1);
    EXPECT_EQ(STATUS_OK, caller_join(&caller));
    return fd;
}

TEST(a_segment_is_mapped_and_when_idle_unmapped) {
    struct peer *peer = given_peer();
    int fd = given_mapped(peer);

    expect_unmap(peer);
    close(fd);
    peer_destroy(peer);
}

/* What is no memory of the device that it is said to be. */
static void refuse(struct wire_map_reply reply, int fd, int status, const char *text) {
    struct peer *peer = given_peer();
    struct caller caller;

    caller_start_map(&caller, peer, SEGMENT);
    reply_map(peer, &reply, fd);
    if (status == STATUS_DEVICE) {
        reply_devices(peer, 1);
    }
    EXPECT_EQ(status, caller_join(&caller));
    EXPECT_TRUE(strstr(caller.text, text) != NULL);
    expect_unmap(peer);
    if (fd >= 0) {
        close(fd);
    }
    peer_destroy(peer);
}

#define CANNOT_BE "a segment on a device that cannot be right"

TEST(a_descriptor_that_is_no_memory_of_a_device_is_refused) {
    refuse(good_reply(), memfd_create("plain", MFD_CLOEXEC), STATUS_DEVICE, "CUDA_ERROR_");
}

TEST(a_segment_without_a_descriptor_is_refused) {
    refuse(good_reply(), -1, STATUS_INTERNAL, CANNOT_BE);
}

TEST(a_segment_without_a_handle_is_refused) {
    struct wire_map_reply reply = good_reply();

    reply.mapping = MAPPING_IPC;
    refuse(reply, -1, STATUS_INTERNAL, CANNOT_BE);
}

/* As between two pid namespaces in which both have the same number. */
TEST(a_handle_that_seems_to_be_this_processs_own_is_explained) {
    struct peer *peer = given_peer();
    struct caller caller;
    struct {
        struct wire_map_reply fixed;
        CUipcMemHandle handle;
    } reply = {.fixed = good_reply()};
    CUdeviceptr address;

    given_context();
    EXPECT_EQ(CUDA_SUCCESS, driver->alloc(&address, NBYTES));
    EXPECT_EQ(CUDA_SUCCESS, driver->ipc_get(&reply.handle, address));
    reply.fixed.mapping = MAPPING_IPC;
    caller_start_map(&caller, peer, SEGMENT);
    uint32_t request = peer_receive(peer, MESSAGE_MAP)->request;
    peer_reply(peer, MESSAGE_MAP, request, STATUS_OK, &reply, sizeof reply, -1);
    reply_devices(peer, 1);
    EXPECT_EQ(STATUS_DEVICE, caller_join(&caller));
    EXPECT_TRUE(strstr(caller.text, "both must share a pid namespace") != NULL);
    expect_unmap(peer);
    EXPECT_EQ(CUDA_SUCCESS, driver->free(address));
    peer_destroy(peer);
}

TEST(a_segment_of_another_kind_is_refused) {
    struct wire_map_reply reply = good_reply();

    reply.mapping = MAPPING_MMAP;
    refuse(reply, memfd_create("plain", MFD_CLOEXEC), STATUS_INTERNAL, CANNOT_BE);
}

TEST(a_segment_on_another_device_than_its_number_says_is_refused) {
    struct wire_map_reply reply = good_reply();

    reply.device = 2;
    refuse(reply, memfd_create("plain", MFD_CLOEXEC), STATUS_INTERNAL, CANNOT_BE);
}

TEST(a_segment_on_a_device_that_is_hidden_is_refused) {
    struct peer *peer = given_peer();
    struct wire_map_reply reply = good_reply();
    struct caller caller;
    int fd = export();

    caller_start_map(&caller, peer, SEGMENT);
    reply_map(peer, &reply, fd);
    reply_devices(peer, 0);
    EXPECT_EQ(STATUS_DEVICE, caller_join(&caller));
    EXPECT_TRUE(strstr(caller.text, "which this process does not see") != NULL);
    expect_unmap(peer);
    close(fd);
    peer_destroy(peer);
}

TEST(an_answer_that_comes_too_late_is_undone) {
    struct peer *peer = given_peer();
    struct wire_map_reply reply = good_reply();
    struct caller caller;
    int fd = export();

    peer->session->patience = impatient;
    EXPECT_EQ(STATUS_TIMEOUT, segment_map(peer->session, SEGMENT));
    reply_map(peer, &reply, fd);
    peer->session->patience = patient;
    caller_start_map(&caller, peer, SEGMENT);
    uint32_t request = peer_receive(peer, MESSAGE_MAP)->request;
    expect_unmap(peer);
    peer_reply(peer, MESSAGE_MAP, request, STATUS_OK, &reply, sizeof reply, fd);
    reply_devices(peer, 1);
    EXPECT_EQ(STATUS_OK, caller_join(&caller));
    expect_unmap(peer);
    close(fd);
    peer_destroy(peer);
}

TEST(of_two_threads_that_map_the_same_segment_one_gives_its_answer_back) {
    struct peer *peer = given_peer();
    struct wire_map_reply reply = good_reply();
    struct caller callers[2];
    uint32_t requests[2];
    int fd = export();

    for (int i = 0; i < 2; i++) {
        caller_start_map(&callers[i], peer, SEGMENT);
        requests[i] = peer_receive(peer, MESSAGE_MAP)->request;
    }
    peer_reply(peer, MESSAGE_MAP, requests[0], STATUS_OK, &reply, sizeof reply, fd);
    reply_devices(peer, 1);
    EXPECT_EQ(STATUS_OK, caller_join(&callers[0]));
    peer_reply(peer, MESSAGE_MAP, requests[1], STATUS_OK, &reply, sizeof reply, fd);
    EXPECT_EQ(STATUS_OK, caller_join(&callers[1]));
    expect_unmap(peer);
    expect_unmap(peer);
    close(fd);
    peer_destroy(peer);
}

static void *run_allocate(void *argument) {
    struct caller *caller = argument;
    struct storage *storage;
    struct device *device;

    EXPECT_EQ(STATUS_OK, device_of_index(caller->session, 1, &device));
    caller->status = storage_allocate(caller->session, device, NBYTES, &storage);
    return NULL;
}

static void reply_out_of_memory(struct peer *peer, uint32_t request) {
    peer_reply(peer, MESSAGE_ALLOC, request, STATUS_OUT_OF_MEMORY, NULL, 0, -1);
}

TEST(what_is_given_back_while_the_daemon_finds_no_memory_is_asked_for_once_more) {
    struct peer *peer = given_peer();
    struct caller caller = {.session = peer->session};
    int fd = given_mapped(peer);

    EXPECT_EQ(0, pthread_create(&caller.thread, NULL, run_allocate, &caller));
    uint32_t request = peer_receive(peer, MESSAGE_ALLOC)->request;
    expect_unmap(peer);
    reply_out_of_memory(peer, request);
    reply_out_of_memory(peer, peer_receive(peer, MESSAGE_ALLOC)->request);
    EXPECT_EQ(STATUS_OUT_OF_MEMORY, caller_join(&caller));
    close(fd);
    peer_destroy(peer);
}

TEST(memory_is_asked_for_once_where_there_is_nothing_to_give_back) {
    struct peer *peer = given_peer();
    struct caller caller = {.session = peer->session};

    EXPECT_EQ(0, pthread_create(&caller.thread, NULL, run_allocate, &caller));
    reply_devices(peer, 1);
    reply_out_of_memory(peer, peer_receive(peer, MESSAGE_ALLOC)->request);
    EXPECT_EQ(STATUS_OUT_OF_MEMORY, caller_join(&caller));
    peer_destroy(peer);
}

static void *run_devices(void *argument) {
    struct caller *caller = argument;
    struct device *device;

    caller->status = device_of_index(caller->session, 1, &device);
    return NULL;
}

TEST(a_list_of_devices_that_is_cut_short_is_refused_and_asked_for_again) {
    struct peer *peer = given_peer();
    struct wire_devices_reply two = {.count = 2};
    struct caller caller = {.session = peer->session};

    EXPECT_EQ(0, pthread_create(&caller.thread, NULL, run_devices, &caller));
    uint32_t request = peer_receive(peer, MESSAGE_DEVICES)->request;
    peer_reply(peer, MESSAGE_DEVICES, request, STATUS_OK, &two, sizeof two, -1);
    EXPECT_EQ(STATUS_INTERNAL, caller_join(&caller));
    EXPECT_EQ(0, pthread_create(&caller.thread, NULL, run_devices, &caller));
    reply_devices(peer, 1);
    EXPECT_EQ(STATUS_OK, caller_join(&caller));
    peer_destroy(peer);
}
