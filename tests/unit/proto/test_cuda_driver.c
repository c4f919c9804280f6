/* The driver's loader: what it says of each driver that is none, and that it goes on saying it. */
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "driver.h"
#include "fixture.h"

/* A variant of the fake, below LD_LIBRARY_PATH. */
static const char *variant(const char *name) {
    static char path[4096];

    snprintf(path, sizeof path, "%s/%s", getenv("LD_LIBRARY_PATH"), name);
    return path;
}

/* What dlopen("libcuda.so.1") finds from now on: a library of that name that is loaded already. */
static void given_variant(const char *name) {
    char path[4200];

    snprintf(path, sizeof path, "%s/libcuda.so.1", variant(name));
    if (!dlopen(path, RTLD_NOW)) {
        TEST_FAILED("%s", dlerror());
    }
}

/* That there is no driver, twice, and why. */
static const char *refused(void) {
    const char *why = NULL;
    const char *again = NULL;

    EXPECT_TRUE(cuda_driver(&why) == NULL);
    EXPECT_TRUE(cuda_driver(&again) == NULL);
    EXPECT_STR_EQ(why, again);
    return why;
}

TEST(a_driver_is_loaded_once_and_tells_its_devices) {
    const char *why = NULL;
    char text[CUDA_TEXT_SIZE];

    setenv("FAKECUDA_DEVICES", "2", 1);
    EXPECT_TRUE(!cuda_driver_is_loaded());
    const struct cuda_driver *driver = cuda_driver(&why);
    EXPECT_TRUE(driver != NULL && driver == cuda_driver(&why));
    EXPECT_TRUE(cuda_driver_is_loaded());
    EXPECT_EQ(2, driver->devices);
    EXPECT_EQ(13000, driver->version);
    EXPECT_STR_EQ("CUDA_ERROR_OUT_OF_MEMORY: out of memory",
                  cuda_text(CUDA_ERROR_OUT_OF_MEMORY, text));
    EXPECT_STR_EQ("CUDA error 12345", cuda_text((CUresult)12345, text));
}

TEST(a_library_that_cannot_be_loaded_is_no_driver) {
    if (!strstr(getenv("LD_LIBRARY_PATH"), "/broken")) { /* is read when a program starts */
        setenv("LD_LIBRARY_PATH", variant("broken"), 1);
        execl("/proc/self/exe", "test_cuda_driver", "cannot_be_loaded", NULL);
        TEST_FAILED("cannot run itself");
    }
    EXPECT_TRUE(strncmp(refused(), "no CUDA driver: ", strlen("no CUDA driver: ")) == 0);
    EXPECT_TRUE(strstr(refused(), "libcuda.so.1") != NULL);
    EXPECT_TRUE(!cuda_driver_is_loaded());

    char text[CUDA_TEXT_SIZE];
    EXPECT_STR_EQ("CUDA error 2", cuda_text(CUDA_ERROR_OUT_OF_MEMORY, text));
}

TEST(the_toolkit_s_stub_is_no_driver) {
    given_variant("stub");
    EXPECT_STR_EQ("libcuda.so.1 is the toolkit's stub, not a driver", refused());
}

TEST(a_driver_that_lacks_a_function_is_refused_with_its_name) {
    given_variant("missing");
    EXPECT_STR_EQ("the CUDA driver has no cuIpcCloseMemHandle: upgrade it", refused());
}

TEST(a_driver_from_before_cuda_12_is_refused) {
    setenv("FAKECUDA_VERSION", "11080", 1);
    EXPECT_STR_EQ("the CUDA driver speaks CUDA 11.8, and 12.0 is needed: upgrade it", refused());
}

TEST(the_oldest_driver_that_is_taken_speaks_cuda_12) {
    const char *why = NULL;

    setenv("FAKECUDA_VERSION", "12000", 1);
    EXPECT_TRUE(cuda_driver(&why) != NULL);
}

TEST(without_a_device_there_is_no_driver) {
    setenv("FAKECUDA_DEVICES", "0", 1);
    EXPECT_STR_EQ("the CUDA driver sees no device (CUDA_VISIBLE_DEVICES may hide it)", refused());
}

TEST(hidden_devices_are_none) {
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    EXPECT_STR_EQ("the CUDA driver sees no device (CUDA_VISIBLE_DEVICES may hide it)", refused());
}

TEST(a_driver_that_cannot_be_initialised_says_why) {
    setenv("FAKECUDA_FAIL", "cuInit:1:999", 1);
    EXPECT_STR_EQ("the CUDA driver cannot be initialised: CUDA_ERROR_UNKNOWN: unknown error",
                  refused());
}

static void expect_child_is_refused(void) {
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        EXPECT_TRUE(!cuda_driver_is_loaded());
        EXPECT_TRUE(strstr(refused(), "child of a fork") != NULL);
        _exit(0);
    }
    EXPECT_EQ(pid, waitpid(pid, &status, 0));
    EXPECT_EQ(0, status);
}

TEST(a_child_of_a_process_that_loaded_it_is_told_of_the_fork) {
    const char *why = NULL;

    EXPECT_TRUE(cuda_driver(&why) != NULL);
    expect_child_is_refused();
    EXPECT_TRUE(cuda_driver(&why) != NULL);
}

TEST(a_child_of_a_process_in_which_somebody_else_loaded_it_is_told_of_the_fork) {
    CUresult (*init)(unsigned int);
    void *library = dlopen("libcuda.so.1", RTLD_NOW);

    *(void **)&init = dlsym(library, "cuInit");
    EXPECT_EQ(CUDA_SUCCESS, init(0));
    expect_child_is_refused();
}

TEST(a_child_that_comes_before_the_first_use_has_a_driver_of_its_own) {
    const char *why = NULL;
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        _exit(cuda_driver(&why) == NULL);
    }
    EXPECT_TRUE(cuda_driver(&why) != NULL);
    EXPECT_EQ(pid, waitpid(pid, &status, 0));
    EXPECT_EQ(0, status);
}

TEST(a_uuid_reads_as_nvidia_smi_prints_it) {
    const unsigned char uuid[16] = {0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, [15] = 0xff};
    char text[CUDA_UUID_SIZE];

    EXPECT_STR_EQ("GPU-01234567-89ab-cdef-0000-0000000000ff", cuda_uuid_text(uuid, text));
}
