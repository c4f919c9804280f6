/*
 * fuzz.h - how a target takes libFuzzer's bytes apart
 *
 * After the end of the input there are zeroes, so that every input means something.
 */
#pragma once

#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes);

struct input {
    const uint8_t *at; /* borrowed */
    size_t left;
};

/* The next bytes, at most `wanted` of them, borrowed. */
static inline const uint8_t *input_bytes(struct input *input, size_t wanted, size_t *ret_nbytes) {
    const uint8_t *at = input->at;

    *ret_nbytes = wanted < input->left ? wanted : input->left;
    input->at += *ret_nbytes;
    input->left -= *ret_nbytes;
    return at;
}

static inline void input_take(struct input *input, void *ret_bytes, size_t nbytes) {
    size_t had;
    const uint8_t *bytes = input_bytes(input, nbytes, &had);

    memset(ret_bytes, 0, nbytes);
    if (had > 0) {
        memcpy(ret_bytes, bytes, had);
    }
}

/* A number of so many bytes. */
static inline uint64_t input_number(struct input *input, size_t nbytes) {
    uint64_t number = 0;

    input_take(input, &number, nbytes);
    return number;
}
