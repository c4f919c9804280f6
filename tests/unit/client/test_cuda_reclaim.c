/* Memory on CUDA devices: who publishes it waits, who lets go of it does not, and it is given back
 * when nothing that this process has launched uses it any more. */
#include <dlpack/dlpack.h>
#include <pthread.h>
#include <stdatomic.h>

#include "cuda_fixture.h"

/* A slow kernel that reads all of a tensor. */
static void launch_read(CUstream stream, const tcx_tensor_t *tensor, float *to) {
    EXPECT_OK(tcx_device_push(cuda));
    EXPECT_EQ(CUDA_SUCCESS,
              fake.fakecuda_read(stream, address_of(tensor), COUNT * sizeof *to, SLOW_MS, to));
    tcx_device_pop(cuda);
}

static void expect_read(CUstream stream, const float *read, float value) {
    EXPECT_OK(tcx_synchronize(cuda, (intptr_t)stream));
    for (int i = 0; i < COUNT; i++) {
        EXPECT_EQ(value, read[i]);
    }
}

/* --------------------------------------------------------------------------------- letting go */

static void reads_what_was_let_go(enum mode mode) {
    float read[COUNT];

    given_cuda(mode);
    tcx_tensor_t *tensor = filled(1);
    CUstream stream = stream_create();
    launch_read(stream, tensor, read);
    tcx_tensor_unref(tensor);
    tcx_tensor_t *others[8]; /* one of which would get the same memory */
    for (int i = 0; i < 8; i++) {
        others[i] = filled(2);
    }
    expect_read(stream, read, 1);
    for (int i = 0; i < 8; i++) {
        tcx_tensor_unref(others[i]);
    }
    stream_destroy(stream);
    end_cuda();
}

TEST(a_kernel_reads_what_was_let_go_of_after_it_was_launched_vmm) {
    reads_what_was_let_go(VMM);
}

TEST(a_kernel_reads_what_was_let_go_of_after_it_was_launched_ipc) {
    reads_what_was_let_go(IPC);
}

/* The last reference goes while another thread, or this one, records a graph. */
TEST(a_graph_that_is_recorded_meanwhile_is_none_the_worse) {
    void *graph;
    tcx_array_t array;

    given_cuda(VMM);
    tcx_tensor_t *tensor = filled(1);
    CUstream stream = stream_create();
    EXPECT_OK(tcx_device_push(cuda));
    EXPECT_EQ(CUDA_SUCCESS, fake.cuStreamBeginCapture_v2(stream, 0));
    tcx_tensor_unref(tensor);
    expect_settles(client, 0, 0);
    tensor = filled(2);
    array = *tcx_tensor_array(tensor);
    array.stream = 2;
    EXPECT_OK(tcx_put(client, "x", &array, NULL, NULL));
    EXPECT_OK(tcx_delete(client, "x"));
    tcx_tensor_unref(tensor);
    expect_settles(client, 0, 0);
    tcx_client_close(client);
    expect_unmapped();
    EXPECT_EQ(CUDA_SUCCESS, fake.cuStreamEndCapture(stream, &graph));
    tcx_device_pop(cuda);
    stream_destroy(stream);
    client = daemon_client(&own);
    end_cuda();
}

TEST(what_nobody_uses_for_a_second_is_unmapped_and_mapped_again_when_needed) {
    tcx_put_options_t to_cuda = {.device = cuda};
    tcx_tensor_t *got;

    given_cuda(IPC);
    for (int i = 0; i < 2; i++) {
        EXPECT_OK(tcx_put(client, "x", counting(100), &to_cuda, NULL));
        expect_unmapped();
        EXPECT_OK(tcx_get(client, "x", NULL, &got, NULL));
        expect_tensor(got, cuda, 100, 0, 1);
        tcx_tensor_unref(got);
    }
    EXPECT_OK(tcx_delete(client, "x"));
    end_cuda();
}

/* The device has 1 GiB, of which the daemon gives nine tenths. */
TEST(memory_that_was_just_let_go_of_can_be_had_again) {
    int64_t most[] = {200 << 20};
    int64_t third[] = {64 << 20};
    tcx_tensor_t *tensors[3];
    tcx_tensor_t *tensor;

    given_cuda(VMM);
    tcx_client_t *other = daemon_client(&own);
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 3; i++) {
            EXPECT_OK(tcx_empty(i ? client : other, cuda, float32, 1, third, &tensors[i]));
        }
        EXPECT_EQ(TCX_OUT_OF_MEMORY, tcx_empty(client, cuda, float32, 1, most, &tensor));
        for (int i = 0; i < 3; i++) {
            tcx_tensor_unref(tensors[i]);
        }
        EXPECT_OK(tcx_empty(client, cuda, float32, 1, most, &tensor));
        tcx_tensor_unref(tensor);
    }
    tcx_client_close(other);
    end_cuda();
}

TEST(views_keep_the_memory) {
    tcx_tensor_t *view;

    given_cuda(VMM);
    tcx_tensor_t *tensor = filled(3);
    EXPECT_OK(tcx_tensor_view(tensor, float32, 1, (int64_t[]){10}, 40, 0, &view));
    tcx_tensor_unref(tensor);
    expect_tensor(view, cuda, 10, 3, 0);
    tcx_tensor_unref(view);
    end_cuda();
}

/* -------------------------------------------------------------------------------------- threads */

static void *get_often(void *unused) {
    tcx_client_t *mine = daemon_client(&own);
    tcx_tensor_t *tensor;

    for (int i = 0; i < 100; i++) {
        EXPECT_OK(tcx_get(i % 2 ? client : mine, "x", NULL, &tensor, NULL));
        expect_tensor(tensor, cuda, 10, 0, 1);
        tcx_tensor_unref(tensor);
    }
    tcx_client_close(mine);
    return unused;
}

static void get_in_threads(enum mode mode) {
    enum { THREADS = 8 };
    tcx_put_options_t to_cuda = {.device = cuda};
    pthread_t threads[THREADS];
    tcx_tensor_t *kept;

    given_cuda(mode);
    EXPECT_OK(tcx_put(client, "x", counting(10), &to_cuda, &kept));
    tcx_tensor_unref(kept);
    expect_unmapped();
    for (int i = 0; i < THREADS; i++) {
        EXPECT_EQ(0, pthread_create(&threads[i], NULL, get_often, NULL));
    }
    for (int i = 0; i < THREADS; i++) {
        EXPECT_EQ(0, pthread_join(threads[i], NULL));
    }
    EXPECT_OK(tcx_get(client, "x", NULL, &kept, NULL));
    expect_mapped(1);
    tcx_tensor_unref(kept);
    EXPECT_OK(tcx_delete(client, "x"));
    end_cuda();
}

TEST(threads_and_clients_of_a_process_have_one_mapping_vmm) {
    get_in_threads(VMM);
}

TEST(threads_and_clients_of_a_process_have_one_mapping_ipc) {
    get_in_threads(IPC);
}

static void *let_go(void *tensor) {
    CUcontext current = NULL;

    EXPECT_EQ(CUDA_SUCCESS, fake.cuCtxGetCurrent(&current));
    EXPECT_TRUE(current == NULL);
    expect_tensor(tensor, (tcx_device_t){TCX_CUDA, 1}, 10, 0, 1);
    tcx_tensor_unref(tensor);
    EXPECT_EQ(CUDA_SUCCESS, fake.cuCtxGetCurrent(&current));
    EXPECT_TRUE(current == NULL);
    return NULL;
}

TEST(a_threads_context_stays_what_it_was) {
    tcx_device_t second = {TCX_CUDA, 1};
    tcx_tensor_t *tensor;
    CUcontext before;
    CUcontext after;
    CUdevice device;
    pthread_t thread;

    setenv("FAKECUDA_DEVICES", "2", 1);
    given_cuda(VMM);
    EXPECT_OK(tcx_device_push(cuda));
    EXPECT_EQ(CUDA_SUCCESS, fake.cuCtxGetCurrent(&before));
    EXPECT_OK(tcx_copy(client, counting(10), second, &tensor));
    EXPECT_EQ(CUDA_SUCCESS, fake.cuCtxGetCurrent(&after));
    EXPECT_TRUE(before == after);
    EXPECT_EQ(CUDA_SUCCESS, fake.cuCtxGetDevice(&device));
    EXPECT_EQ(0, device);
    EXPECT_EQ(0, pthread_create(&thread, NULL, let_go, tensor));
    EXPECT_EQ(0, pthread_join(thread, NULL));
    tcx_device_pop(cuda);
    end_cuda();
}

/* --------------------------------------------------------------------------------------- DLPack */

static atomic_int deleted;
static pthread_t deleted_by;

static void note_deleted(struct DLManagedTensorVersioned *self) {
    deleted_by = pthread_self();
    atomic_fetch_add(&deleted, 1);
    free(self);
}

/* Somebody else's memory, as DLPack has it. */
static struct DLManagedTensorVersioned *exported(struct private_array *private) {
    struct DLManagedTensorVersioned *managed = calloc(1, sizeof *managed);

    managed->version = (DLPackVersion){DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
    managed->deleter = note_deleted;
    managed->dl_tensor = (DLTensor){
        .data = private->array.data,
        .device = {kDLCUDA, 0},
        .ndim = 1,
        .dtype = {kDLFloat, 32, 1},
        .shape = private->shape,
    };
    return managed;
}

TEST(imported_memory_goes_back_once_when_nothing_uses_it_any_more) {
    struct private_array private;
    struct DLManagedTensorVersioned *out;
    float read[COUNT];
    tcx_tensor_t *tensor;
    tcx_tensor_t *again;

    given_cuda(VMM);
    private_create(&private, COUNT);
    EXPECT_OK(tcx_from_dlpack(client, exported(&private), TCX_COPY_NEVER, &tensor));
    EXPECT_EQ(private.address, address_of(tensor));
    EXPECT_OK(tcx_to_dlpack(tensor, 0, &out));
    EXPECT_EQ(kDLCUDA, out->dl_tensor.device.device_type);
    EXPECT_OK(tcx_from_dlpack(client, out, TCX_COPY_IF_NEEDED, &again));
    CUstream stream = stream_create();
    launch_read(stream, again, read);
    tcx_tensor_unref(tensor);
    tcx_tensor_unref(again);
    EXPECT_EQ(0, atomic_load(&deleted));
    while (!atomic_load(&deleted)) {
        poll(NULL, 0, 1);
    }
    EXPECT_EQ(0, read[0]); /* the kernel has ended */
    EXPECT_EQ(COUNT - 1, read[COUNT - 1]);
    EXPECT_TRUE(!pthread_equal(deleted_by, pthread_self()));
    EXPECT_OK(tcx_from_dlpack(client, exported(&private), TCX_COPY_ALWAYS, &tensor));
    EXPECT_EQ(2, atomic_load(&deleted));
    expect_tensor(tensor, cuda, COUNT, 0, 1);
    tcx_tensor_unref(tensor);
    stream_destroy(stream);
    private_destroy(&private);
    end_cuda();
    EXPECT_EQ(2, atomic_load(&deleted));
}

TEST(shared_memory_that_comes_back_by_dlpack_is_known) {
    struct DLManagedTensorVersioned *out;
    tcx_tensor_t *back;
    tcx_info_t info;

    given_cuda(VMM);
    tcx_tensor_t *tensor = filled(1);
    EXPECT_OK(tcx_to_dlpack(tensor, 0, &out));
    EXPECT_OK(tcx_from_dlpack(client, out, TCX_COPY_NEVER, &back));
    tcx_tensor_info(back, &info);
    EXPECT_TRUE(info.is_shared && info.storage_id != 0);
    tcx_tensor_unref(tensor);
    tcx_tensor_unref(back);
    end_cuda();
}

/* ------------------------------------------------------------------------------- fork, exit, loss
 */

TEST(a_child_of_fork_has_no_cuda_and_all_the_rest) {
    tcx_tensor_t *tensor;
    tcx_tensor_t *other;
    int status;

    given_cuda(VMM);
    tcx_tensor_t *there = filled(1);
    tcx_tensor_t *dropped = filled(1);
    EXPECT_OK(tcx_copy(client, counting(10), cpu, &tensor));
    tcx_tensor_unref(dropped); /* on its way to be reclaimed */
    pid_t child = fork();
    if (child == 0) {
        EXPECT_EQ(TCX_DEVICE, tcx_zeros(client, cuda, float32, 0, NULL, &other));
        EXPECT_TRUE(strstr(tcx_error(), "child of a fork") != NULL);
        EXPECT_EQ(TCX_DEVICE, tcx_put(client, "x", tcx_tensor_array(there), NULL, NULL));
        EXPECT_TRUE(strstr(tcx_error(), "child of a fork") != NULL);
        EXPECT_OK(tcx_put(client, "y", tcx_tensor_array(tensor), NULL, NULL));
        expect_tensor(tensor, cpu, 10, 0, 1);
        tcx_tensor_unref(there);
        tcx_tensor_unref(tensor);
        tcx_client_close(client);
        _exit(0);
    }
    EXPECT_EQ(child, waitpid(child, &status, 0));
    EXPECT_EQ(0, status);
    expect_tensor(there, cuda, COUNT, 1, 0);
    EXPECT_OK(tcx_delete(client, "y"));
    tcx_tensor_unref(there);
    tcx_tensor_unref(tensor);
    end_cuda();
}

TEST(a_process_may_exit_with_all_that_it_has) {
    int status;
    tcx_stats_t stats;

    daemon_start(&own);
    pid_t child = fork();
    if (child == 0) {
        client = daemon_client(&own);
        driver = given_driver();
        tcx_tensor_t *kept = filled(1);
        tcx_tensor_unref(filled(2));
        CUstream stream = stream_create();
        launch(stream, kept, 0x3f, SLOW_MS);
        tcx_tensor_unref(kept);
        static tcx_tensor_t *volatile never_let_go;
        never_let_go = filled(3);
        expect_tensor(never_let_go, cuda, COUNT, 3, 0);
        exit(0);
    }
    EXPECT_EQ(child, waitpid(child, &status, 0));
    EXPECT_EQ(0, status);
    client = daemon_client(&own);
    expect_settles(client, 0, 0);
    EXPECT_OK(tcx_stats(client, &stats));
    tcx_client_close(client);
    daemon_stop(&own);
    daemon_clean(&own);
}

/* Its memory is given to others, as that of a process that was killed is not. */
TEST(exit_waits_until_what_was_let_go_of_is_given_back) {
    ptrdiff_t there = 0;
    float to[COUNT];
    int status;
    int ends[2];

    daemon_start(&own);
    EXPECT_EQ(0, pipe(ends));
    pid_t child = fork();
    if (child == 0) {
        client = daemon_client(&own);
        driver = given_driver();
        tcx_tensor_t *first = filled(1);
        tcx_tensor_t *second = filled(2);
        EXPECT_OK(tcx_put(client, "first", tcx_tensor_array(first), NULL, NULL));
        there = (ptrdiff_t)(address_of(second) - address_of(first));
        EXPECT_EQ(sizeof there, write(ends[1], &there, sizeof there));
        launch_read(stream_create(), second, to);
        tcx_tensor_unref(first);
        tcx_tensor_unref(second);
        exit(0);
    }
    EXPECT_EQ(child, waitpid(child, &status, 0));
    EXPECT_EQ(0, status);
    EXPECT_EQ(sizeof there, read(ends[0], &there, sizeof there));
    close(ends[0]);
    close(ends[1]);
    client = daemon_client(&own);
    driver = given_driver();
    tcx_tensor_t *first;
    EXPECT_OK(tcx_get(client, "first", NULL, &first, NULL));
    expect_settles(client, 1, 1);
    tcx_tensor_t *second = filled(3);
    EXPECT_EQ(there, (ptrdiff_t)(address_of(second) - address_of(first)));
    EXPECT_OK(tcx_delete(client, "first"));
    tcx_tensor_unref(first);
    tcx_tensor_unref(second);
    end_cuda();
}

TEST(a_lost_context_is_told_and_the_rest_goes_on) {
    tcx_tensor_t *tensor;
    float read[COUNT];

    given_cuda(VMM);
    tcx_tensor_t *there = filled(1);
    fake.fakecuda_fail("cuMemcpyDtoHAsync_v2:1:700");
    for (int i = 0; i < 2; i++) {
        EXPECT_EQ(TCX_DEVICE, tcx_array_pack(tcx_tensor_array(there), read, sizeof read));
        EXPECT_TRUE(strstr(tcx_error(), "the CUDA context of this process is lost") != NULL);
        fake.fakecuda_fail(NULL);
    }
    EXPECT_EQ(TCX_DEVICE, tcx_put(client, "x", tcx_tensor_array(there), NULL, NULL));
    EXPECT_OK(tcx_copy(client, counting(10), cpu, &tensor));
    tcx_tensor_unref(tensor);
    tcx_tensor_unref(there);
    expect_settles(client, 0, 0);
    tcx_client_close(client);
    daemon_stop(&own);
    daemon_clean(&own);
    _exit(0); /* its mappings stay until the process ends, and its connection may */
}

TEST(when_the_daemon_is_killed_its_memory_stays_readable) {
    tcx_tensor_t *other;

    given_cuda(VMM);
    tcx_tensor_t *there = filled(5);
    daemon_kill(&own);
    expect_tensor(there, cuda, COUNT, 5, 0);
    EXPECT_TRUE(tcx_zeros(client, cuda, float32, 0, NULL, &other) != TCX_OK);
    tcx_tensor_unref(there);
    expect_unmapped();
    tcx_client_close(client);
    daemon_clean(&own);
}
