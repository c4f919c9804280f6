/* The fake driver's memory: what it promises to the tests that rely on it. */
#include <signal.h>
#include <sys/resource.h>

#include "fakecuda_fixture.h"
#include "processes.h"

#define MIB   ((size_t)1 << 20)
#define BLOCK (2 * MIB)

static const CUmemAllocationProp properties = {
    .type = CU_MEM_ALLOCATION_TYPE_PINNED,
    .requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
    .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0},
};
static const CUmemAccessDesc read_write = {{CU_MEM_LOCATION_TYPE_DEVICE, 0},
                                           CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
static const CUmemAccessDesc read_only = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, (CUmemAccess_flags)1};

static const struct cuda_driver *driver;

/* A descriptor of fresh memory. */
static int given_descriptor(size_t nbytes) {
    CUmemGenericAllocationHandle handle;
    int fd;

    EXPECT_EQ(CUDA_SUCCESS, driver->create(&handle, nbytes, &properties, 0));
    EXPECT_EQ(CUDA_SUCCESS,
              driver->export_handle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    EXPECT_EQ(CUDA_SUCCESS, driver->release(handle));
    return fd;
}

/* A descriptor's memory, mapped, which the descriptor need not outlive. */
static CUdeviceptr map(int fd, size_t nbytes, const CUmemAccessDesc *access) {
    CUmemGenericAllocationHandle handle;
    CUdeviceptr address;

    EXPECT_EQ(CUDA_SUCCESS, driver->import_handle(&handle, (void *)(intptr_t)fd,
                                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    EXPECT_EQ(CUDA_SUCCESS, driver->address_reserve(&address, nbytes, 0, 0, 0));
    EXPECT_EQ(CUDA_SUCCESS, driver->map(address, nbytes, 0, handle, 0));
    EXPECT_EQ(CUDA_SUCCESS, driver->release(handle));
    if (access) {
        EXPECT_EQ(CUDA_SUCCESS, driver->set_access(address, nbytes, access, 1));
    }
    return address;
}

static void unmap(CUdeviceptr address, size_t nbytes) {
    EXPECT_EQ(CUDA_SUCCESS, driver->unmap(address, nbytes));
    EXPECT_EQ(CUDA_SUCCESS, driver->address_free(address, nbytes));
}

static int byte_at(CUdeviceptr address) {
    unsigned char byte;

    EXPECT_EQ(CUDA_SUCCESS, fake.cuMemcpyDtoH_v2(&byte, address, 1));
    return byte;
}

static void fill(CUdeviceptr address, int value, size_t nbytes) {
    EXPECT_EQ(CUDA_SUCCESS, fake.cuMemsetD8_v2(address, (unsigned char)value, nbytes));
}

/* --------------------------------------------------------------------------------- descriptors */

static void maps_and_writes(void) {
    char ignored;
    int fd = hear(&ignored, 1);

    driver = given_context();
    CUdeviceptr address = map(fd, BLOCK, &read_write);
    EXPECT_EQ(7, byte_at(address));
    fill(address + BLOCK - 1, 8, 1);
    say("x", 1, -1);
    hear(&ignored, 1);
    EXPECT_EQ(9, byte_at(address));
    unmap(address, BLOCK);
}

TEST(a_descriptor_is_memory_that_two_processes_share) {
    char ignored;
    pid_t pid = given_peer(maps_and_writes);

    driver = given_context();
    int fd = given_descriptor(BLOCK);
    CUdeviceptr address = map(dup(fd), BLOCK, &read_write);
    fill(address, 7, BLOCK);
    say("x", 1, fd);
    close(fd);
    hear(&ignored, 1);
    EXPECT_EQ(8, byte_at(address + BLOCK - 1));
    fill(address, 9, 1);
    say("x", 1, -1);
    expect_peer_passes(pid);
    unmap(address, BLOCK);
}

static void makes_and_ends(void) {
    driver = given_context();
    int fd = given_descriptor(BLOCK);
    fill(map(dup(fd), BLOCK, &read_write), 7, BLOCK);
    say("x", 1, fd);
    kill(getpid(), SIGKILL);
}

TEST(memory_outlives_its_maker_and_ends_with_its_last_user) {
    int status;
    char ignored;
    pid_t pid = given_peer(makes_and_ends);
    int fd = hear(&ignored, 1);

    EXPECT_EQ(pid, waitpid(pid, &status, 0));
    close(peer);
    driver = given_context();
    size_t without = free_bytes();
    CUdeviceptr address = map(fd, BLOCK, &read_only);
    EXPECT_EQ(7, byte_at(address));
    EXPECT_EQ(without, free_bytes());
    unmap(address, BLOCK);
    EXPECT_EQ(without + BLOCK, free_bytes());
}

TEST(fresh_memory_has_old_bytes) {
    driver = given_context();
    CUdeviceptr address = map(given_descriptor(BLOCK), BLOCK, &read_write);

    EXPECT_EQ(0xa5, byte_at(address));
    unmap(address, BLOCK);
}

TEST(a_full_device_says_so) {
    CUmemGenericAllocationHandle handle;

    driver = given_context();
    int fd = given_descriptor(free_bytes() - BLOCK);
    EXPECT_EQ(CUDA_ERROR_OUT_OF_MEMORY, driver->create(&handle, 2 * BLOCK, &properties, 0));
    close(fd);
    EXPECT_EQ(CUDA_SUCCESS, driver->create(&handle, 2 * BLOCK, &properties, 0));
    EXPECT_EQ(CUDA_SUCCESS, driver->release(handle));
}

TEST(without_a_free_descriptor_memory_is_an_error_and_not_full) {
    CUmemGenericAllocationHandle handle;
    struct rlimit before, none;

    driver = given_context();
    EXPECT_EQ(0, getrlimit(RLIMIT_NOFILE, &before));
    none = (struct rlimit){0, before.rlim_max};
    EXPECT_EQ(0, setrlimit(RLIMIT_NOFILE, &none));
    EXPECT_EQ(304, driver->create(&handle, BLOCK, &properties, 0));
    EXPECT_EQ(0, setrlimit(RLIMIT_NOFILE, &before));
}

TEST(odd_sizes_and_foreign_descriptors_are_refused) {
    CUmemGenericAllocationHandle handle;

    driver = given_context();
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, driver->create(&handle, 0, &properties, 0));
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, driver->create(&handle, BLOCK + 1, &properties, 0));
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE,
              driver->import_handle(&handle, (void *)(intptr_t)STDERR_FILENO,
                                    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
}

TEST(only_whole_mappings_are_unmapped) {
    driver = given_context();
    CUdeviceptr address = map(given_descriptor(2 * BLOCK), 2 * BLOCK, &read_write);

    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, driver->unmap(address, BLOCK));
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, driver->address_free(address, 2 * BLOCK));
    unmap(address, 2 * BLOCK);
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, driver->unmap(address, 2 * BLOCK));
}

TEST(memory_without_access_loses_the_context_of_who_touches_it) {
    char byte;

    driver = given_context();
    CUdeviceptr address = map(given_descriptor(BLOCK), BLOCK, NULL);
    EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS, fake.cuMemcpyDtoH_v2(&byte, address, 1));
    EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS, driver->context_synchronize());
}

TEST(a_write_to_readonly_memory_loses_the_context) {
    driver = given_context();
    CUdeviceptr address = map(given_descriptor(BLOCK), BLOCK, &read_only);

    EXPECT_EQ(0xa5, byte_at(address));
    EXPECT_EQ(CUDA_ERROR_ILLEGAL_ADDRESS, fake.cuMemsetD8_v2(address, 0, 1));
}

TEST_FAILS(the_host_cannot_read_device_memory) {
    driver = given_context();
    CUdeviceptr address = map(given_descriptor(BLOCK), BLOCK, &read_write);

    printf("%d\n", *(volatile char *)(uintptr_t)address);
}

/* --------------------------------------------------------------------------------------- cuIpc */

static CUipcMemHandle given_ipc_handle(CUdeviceptr *ret_address) {
    CUipcMemHandle handle;

    EXPECT_EQ(CUDA_SUCCESS, driver->alloc(ret_address, BLOCK));
    fill(*ret_address, 7, BLOCK);
    EXPECT_EQ(CUDA_SUCCESS, driver->ipc_get(&handle, *ret_address));
    return handle;
}

static CUipcMemHandle no_such_handle(CUipcMemHandle like) {
    like.reserved[24]++; /* its number */
    return like;
}

static void opens_twice(void) {
    CUdeviceptr address, again;
    CUipcMemHandle handle;

    hear(&handle, sizeof handle);
    driver = given_context();
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, driver->ipc_open(&address, handle, 0));
    EXPECT_EQ(CUDA_SUCCESS, driver->ipc_open(&address, handle, 1));
    EXPECT_EQ(CUDA_SUCCESS, driver->ipc_open(&again, handle, 1));
    EXPECT_EQ(address, again);
    EXPECT_EQ(7, byte_at(address));
    EXPECT_EQ(CUDA_SUCCESS, driver->ipc_close(address));

    say("x", 1, -1);
    hear(&again, 1); /* it is freed now */
    EXPECT_EQ(0xdd, byte_at(address));
    EXPECT_EQ(CUDA_ERROR_INVALID_HANDLE, driver->ipc_open(&again, no_such_handle(handle), 1));
    CUcontext context;
    EXPECT_EQ(CUDA_SUCCESS, driver->context_pop(&context));
    EXPECT_EQ(CUDA_ERROR_INVALID_CONTEXT, driver->ipc_close(address));
    EXPECT_EQ(CUDA_SUCCESS, driver->context_push(context));
    EXPECT_EQ(CUDA_SUCCESS, driver->ipc_close(address));
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, driver->ipc_close(address));
    say("x", 1, -1);
}

TEST(memory_freed_while_others_have_it_open_is_poisoned) {
    char ignored;
    CUdeviceptr address, opened;
    pid_t pid = given_peer(opens_twice);

    driver = given_context();
    size_t without = free_bytes();
    CUipcMemHandle handle = given_ipc_handle(&address);
    EXPECT_EQ(CUDA_ERROR_INVALID_CONTEXT, driver->ipc_open(&opened, handle, 1));
    say(&handle, sizeof handle, -1);
    hear(&ignored, 1);
    EXPECT_EQ(CUDA_SUCCESS, driver->free(address));
    EXPECT_EQ(without - BLOCK, free_bytes());
    say("x", 1, -1);
    hear(&ignored, 1);
    EXPECT_EQ(without, free_bytes());
    expect_peer_passes(pid);
}

TEST(small_allocations_share_a_block) {
    CUdeviceptr a, b, base;
    size_t nbytes;

    driver = given_context();
    EXPECT_EQ(CUDA_SUCCESS, driver->alloc(&a, 1));
    EXPECT_EQ(CUDA_SUCCESS, driver->alloc(&b, 1));
    EXPECT_EQ(a + 512, b);
    EXPECT_EQ(CUDA_SUCCESS, fake.cuMemGetAddressRange_v2(&base, &nbytes, b));
    EXPECT_EQ(a, base);
    EXPECT_EQ(BLOCK, nbytes);
    EXPECT_EQ(CUDA_SUCCESS, driver->free(a));
    EXPECT_EQ(0xa5, byte_at(b));
    EXPECT_EQ(CUDA_SUCCESS, driver->free(b));
    EXPECT_EQ(CUDA_ERROR_INVALID_VALUE, driver->free(b));
}
