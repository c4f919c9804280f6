/*
 * fuzz_index.c - indices of bundles and descriptions of tensors, which other processes have written
 */
#include <stdlib.h>

#include "desc.h"
#include "fuzz.h"
#include "index.h"

/* A description that passes lies inside its storage, with its first and last element. */
static void check_inside(const struct desc *desc, uint64_t storage_nbytes) {
    __int128 first = desc->byte_offset;
    __int128 last = first;

    for (int i = 0; i < desc->ndim; i++) {
        __int128 reach = ((__int128)desc->shape[i] - 1) * desc->strides[i];
        *(reach < 0 ? &first : &last) += reach * (__int128)dtype_nbytes(desc->dtype);
    }
    assert(first >= 0 && last + (__int128)dtype_nbytes(desc->dtype) <= storage_nbytes);
}

static void read_desc(const void *bytes, size_t nbytes, uint64_t storage_nbytes) {
    char again[24 + 16 * DESC_NDIM_MAX];
    struct desc desc;
    uint64_t elements;

    if (desc_decode(bytes, nbytes, &desc)) {
        return;
    }
    assert(desc_encode(&desc, again) == nbytes);
    if (!desc_check(&desc, storage_nbytes) && shape_nbytes(desc.ndim, desc.shape, 1, &elements) &&
        elements > 0) {
        check_inside(&desc, storage_nbytes);
    }
}

static void read_index(const void *bytes, size_t nbytes) {
    struct index_reader reader;
    struct index_item item;
    size_t length = 0;
    const char *wrong = index_open(&reader, bytes, nbytes);

    for (uint32_t i = 0; !wrong && i < reader.items; i++) {
        wrong = index_next(&reader, &item);
        for (size_t k = 0; !wrong && k < item.depth; k++) {
            length += strlen(item.path[k]);
        }
        assert(wrong || item.storage <= reader.storage_count);
    }
    assert(length <= nbytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    struct input input = {data, nbytes};
    int is_index = (int)input_number(&input, 1) & 1;
    uint64_t storage_nbytes = is_index ? 0 : input_number(&input, 8);
    size_t left = input.left;
    char *copy = malloc(left ? left : 1); /* of this size: sanitizers see what is beyond */

    input_take(&input, copy, left);
    if (is_index) {
        read_index(copy, left);
    } else {
        read_desc(copy, left, storage_nbytes);
    }
    free(copy);
    return 0;
}
