/*
 * pass.c - a tensor without a name goes from one process to another, through a pipe
 *
 *     cc pass.c $(pkg-config --cflags --libs tensorcx) -o pass
 *     ./pass make | ./pass sum
 *
 * Only a ticket goes through the pipe, some 80 bytes: it keeps the memory alive until the second
 * process has it, also when the first one has ended by then.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tensorcx.h>

static void check(int status) {
    if (status != TCX_OK) {
        fprintf(stderr, "pass: %s\n", tcx_error());
        exit(1);
    }
}

static void make(tcx_client_t *client) {
    const tcx_dtype_t float32 = {TCX_FLOAT, 32, 1};
    const int64_t shape[1] = {1000000};
    char ticket[TCX_TICKET_MAX];
    size_t nbytes;
    tcx_tensor_t *numbers;

    check(tcx_empty(client, (tcx_device_t){TCX_CPU, 0}, float32, 1, shape, &numbers));
    float *data = tcx_tensor_array(numbers)->data;
    for (int64_t i = 0; i < shape[0]; i++) {
        data[i] = (float)i;
    }
    check(tcx_tensor_ticket(client, numbers, ticket, &nbytes));
    fwrite(ticket, 1, nbytes, stdout);
    tcx_tensor_unref(numbers);
}

static void sum(tcx_client_t *client) {
    char ticket[TCX_TICKET_MAX];
    size_t nbytes = fread(ticket, 1, sizeof ticket, stdin);
    double total = 0;
    tcx_tensor_t *numbers;

    check(tcx_redeem(client, ticket, nbytes, &numbers, NULL));
    const tcx_array_t *array = tcx_tensor_array(numbers);
    const float *data = array->data;
    for (int64_t i = 0; i < array->shape[0]; i++) {
        total += data[i];
    }
    printf("a ticket of %zu bytes, %lld numbers, sum %.0f\n", nbytes, (long long)array->shape[0],
           total);
    tcx_tensor_unref(numbers);
}

int main(int argc, char **argv) {
    tcx_client_t *client;

    check(tcx_client_open(NULL, &client));
    if (argc == 2 && strcmp(argv[1], "make") == 0) {
        make(client);
    } else if (argc == 2 && strcmp(argv[1], "sum") == 0) {
        sum(client);
    } else {
        fprintf(stderr, "usage: pass make | pass sum\n");
        return 2;
    }
    tcx_client_close(client);
    return 0;
}
