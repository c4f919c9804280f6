/*
 * share.c - a C program shares a tensor with a Python process; both see one piece of memory
 *
 *     cc share.c $(pkg-config --cflags --libs tensorcx) -o share
 *     ./share                       and in another terminal: python share.py
 *     ./share python share.py       does both
 *
 * No daemon needs to run: the first call starts one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <tensorcx.h>
#include <unistd.h>

static void check(int status) {
    if (status != TCX_OK) {
        fprintf(stderr, "share: %s\n", tcx_error());
        exit(1);
    }
}

/* Runs the command without waiting for it. */
static pid_t start(char **command) {
    pid_t pid = fork();

    if (pid == 0) {
        execvp(*command, command);
        perror(*command);
        _exit(127);
    }
    return pid;
}

int main(int argc, char **argv) {
    const tcx_dtype_t float32 = {TCX_FLOAT, 32, 1};
    const int64_t shape[2] = {2, 3};
    tcx_get_options_t patiently = {.timeout = 60};
    tcx_client_t *client;
    tcx_tensor_t *pixels;
    tcx_tensor_t *sum;

    check(tcx_client_open(NULL, &client));

    /* Memory that is born shared is published without a copy. */
    check(tcx_zeros(client, (tcx_device_t){TCX_CPU, 0}, float32, 2, shape, &pixels));
    float *data = tcx_tensor_array(pixels)->data;
    for (int i = 0; i < 6; i++) {
        data[i] = (float)i;
    }
    check(tcx_put(client, "share/pixels", tcx_tensor_array(pixels), NULL, NULL));
    printf("put share/pixels; now run: python share.py\n");
    fflush(stdout);

    /* The other process adds 100 to every element, in place, and publishes their sum. */
    pid_t pid = argc > 1 ? start(argv + 1) : 0;
    check(tcx_get(client, "share/sum", &patiently, &sum, NULL));
    printf("first pixel: %g, last pixel: %g, sum: %g\n", data[0], data[5],
           *(double *)tcx_tensor_array(sum)->data);

    check(tcx_delete(client, "share/pixels"));
    check(tcx_delete(client, "share/sum"));
    tcx_tensor_unref(sum);
    tcx_tensor_unref(pixels);
    tcx_client_close(client);
    return pid > 0 && waitpid(pid, NULL, 0) != pid;
}
