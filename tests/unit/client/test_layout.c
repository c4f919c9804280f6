/* Well-formed arrays, and packing them: compared with the plainest copy there is. */
#include <stdlib.h>

#include "error.h"
#include "fixture.h"
#include "layout.h"

static const tcx_dtype_t float32 = {TCX_FLOAT, 32, 1};
static const tcx_dtype_t uint8 = {TCX_UINT, 8, 1};

/* Element by element, by multiplication. */
static void pack_plainly(const tcx_array_t *array, char *to) {
    size_t itemsize = layout_itemsize(array->dtype);
    int64_t count = 1;

    for (int32_t i = 0; i < array->ndim; i++) {
        count *= array->shape[i];
    }
    for (int64_t n = 0; n < count; n++) {
        const char *from = array->data;
        int64_t rest = n;
        for (int32_t i = array->ndim - 1; i >= 0; i--) {
            from += rest % array->shape[i] * array->strides[i] * (int64_t)itemsize;
            rest /= array->shape[i];
        }
        memcpy(to + (size_t)n * itemsize, from, itemsize);
    }
}

static void expect_packs(const tcx_array_t *array) {
    uint64_t nbytes;

    EXPECT_EQ(STATUS_OK, layout_check(array, &nbytes));
    char *expected = malloc(nbytes + 1);
    char *actual = malloc(nbytes + 1);
    pack_plainly(array, expected);
    memset(actual, 0x5a, nbytes + 1);
    layout_pack(array, actual);
    EXPECT_EQ(0, memcmp(expected, actual, nbytes));
    EXPECT_EQ(0x5a, actual[nbytes]);
    free(expected);
    free(actual);
}

static char *numbered(size_t nbytes) {
    char *bytes = malloc(nbytes);

    for (size_t i = 0; i < nbytes; i++) {
        bytes[i] = (char)(i * 7 + i / 251);
    }
    return bytes;
}

/* -------------------------------------------------------------------------------------- packing */

TEST(every_layout_packs_as_the_plain_copy_does) {
    static const struct {
        int32_t ndim;
        int64_t shape[4];
        int64_t strides[4];
        int64_t start; /* elements */
    } layouts[] = {
        {0, {0}, {0}, 0},                               /* a scalar */
        {1, {5}, {1}, 0},                               /* contiguous */
        {1, {5}, {-1}, 4},                              /* reversed */
        {1, {5}, {3}, 0},                               /* every third */
        {1, {5}, {0}, 2},                               /* broadcast */
        {2, {3, 4}, {4, 1}, 0},                         /* C order */
        {2, {3, 4}, {1, 3}, 0},                         /* Fortran order */
        {2, {3, 4}, {10, 2}, 0},                        /* a window */
        {2, {3, 4}, {-10, 2}, 20},                      /* upside down */
        {3, {2, 3, 4}, {12, 4, 1}, 0},                  /* all one row */
        {3, {2, 3, 4}, {20, 4, 1}, 0},                  /* the inner two are one row */
        {3, {2, 1, 4}, {4, 99, 1}, 0},                  /* size 1: any stride */
        {3, {1, 1, 1}, {-7, 0, 1000000000}, 0},         /* nothing but that */
        {4, {2, 3, 2, 2}, {1, 2, 6, 12}, 0},            /* all reversed */
        {4, {2, 2, 3, 2}, {0, 20, 0, 1}, 0},            /* broadcast twice */
        {3, {2, 0, 4}, {1, 1, 1}, 0},                   /* empty */
        {2, {0, 1099511627776}, {1099511627776, 1}, 0}, /* empty and huge */
    };
    static const tcx_dtype_t dtypes[] = {{TCX_BOOL, 8, 1},
                                         {TCX_FLOAT, 16, 1},
                                         {TCX_FLOAT, 32, 1},
                                         {TCX_FLOAT, 64, 1},
                                         {TCX_COMPLEX, 128, 1}};
    char *bytes = numbered(16 * 64);

    for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++) {
        for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
            size_t itemsize = layout_itemsize(dtypes[d]);
            tcx_array_t array = {.data = bytes + (size_t)layouts[l].start * itemsize,
                                 .dtype = dtypes[d],
                                 .ndim = layouts[l].ndim,
                                 .shape = layouts[l].shape,
                                 .strides = layouts[l].strides};
            expect_packs(&array);
        }
    }
    free(bytes);
}

TEST(random_layouts_pack_as_the_plain_copy_does) {
    char *bytes = numbered(1 << 20);

    srandom(7);
    for (int round = 0; round < 500; round++) {
        int64_t shape[6];
        int64_t strides[6];
        int32_t ndim = (int32_t)(random() % 7);
        int64_t reach = 0;
        for (int32_t i = 0; i < ndim; i++) {
            shape[i] = 1 + random() % 5;
            strides[i] = random() % 41 - 20;
            reach += strides[i] < 0 ? -strides[i] * (shape[i] - 1) : 0;
        }
        tcx_array_t array = {.data = bytes + reach * 4,
                             .dtype = float32,
                             .ndim = ndim,
                             .shape = shape,
                             .strides = strides};
        expect_packs(&array);
    }
    free(bytes);
}

TEST(unaligned_elements_are_copied) {
    char *bytes = numbered(64);
    int64_t shape[1] = {5};
    int64_t strides[1] = {2};
    tcx_array_t array = {
        .data = bytes + 1, .dtype = float32, .ndim = 1, .shape = shape, .strides = strides};

    expect_packs(&array);
    free(bytes);
}

TEST(pack_needs_room_of_exactly_the_size) {
    float data[6] = {0};
    float to[7];
    int64_t shape[2] = {2, 3};
    tcx_array_t array = {.data = data, .dtype = float32, .ndim = 2, .shape = shape};

    EXPECT_EQ(TCX_OK, tcx_array_pack(&array, to, 24));
    EXPECT_EQ(TCX_INVALID, tcx_array_pack(&array, to, 28));
    EXPECT_STR_EQ("the array has 24 bytes, the room 28", tcx_error());
}

/* ------------------------------------------------------------------------------------- checking */

static int check_shape(int32_t ndim, const int64_t *shape, tcx_dtype_t dtype) {
    uint64_t nbytes = 77;
    int r = layout_check_shape(dtype, ndim, shape, &nbytes);

    EXPECT_TRUE(r == STATUS_OK || nbytes == 77);
    return r;
}

#define SHAPE(...)                                                               \
    (int32_t)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]) { \
        __VA_ARGS__                                                              \
    }

TEST(shapes_that_overflow_or_are_negative_are_refused) {
    EXPECT_EQ(STATUS_INVALID, check_shape(SHAPE(-1), uint8));
    EXPECT_EQ(STATUS_INVALID, check_shape(SHAPE(3, -2), uint8));
    EXPECT_EQ(STATUS_INVALID, check_shape(SHAPE(0, -2), uint8));
    EXPECT_EQ(STATUS_INVALID, check_shape(SHAPE(1LL << 32, 1LL << 32), uint8));
    EXPECT_EQ(STATUS_INVALID, check_shape(SHAPE(1LL << 62, 4), uint8));
    EXPECT_EQ(STATUS_INVALID, check_shape(SHAPE(INT64_MAX), float32));
    EXPECT_EQ(STATUS_INVALID, check_shape(2, NULL, uint8));
    EXPECT_EQ(STATUS_INVALID, check_shape(65, (int64_t[65]){1}, uint8));
    EXPECT_EQ(STATUS_INVALID, check_shape(-1, NULL, uint8));
}

TEST(empty_and_scalar_shapes_are_fine) {
    EXPECT_EQ(STATUS_OK, check_shape(0, NULL, float32));
    EXPECT_EQ(STATUS_OK, check_shape(SHAPE(0), float32));
    EXPECT_EQ(STATUS_OK, check_shape(SHAPE(1LL << 31, 0, 1LL << 40), float32));
}

TEST(storage_knows_these_dtypes_and_no_others) {
    static const tcx_dtype_t known[] = {
        {TCX_BOOL, 8, 1},     {TCX_INT, 8, 1},      {TCX_INT, 16, 1},   {TCX_INT, 32, 1},
        {TCX_INT, 64, 1},     {TCX_UINT, 8, 1},     {TCX_UINT, 16, 1},  {TCX_UINT, 32, 1},
        {TCX_UINT, 64, 1},    {TCX_FLOAT, 16, 1},   {TCX_FLOAT, 32, 1}, {TCX_FLOAT, 64, 1},
        {TCX_COMPLEX, 64, 1}, {TCX_COMPLEX, 128, 1}};
    int count = 0;

    for (unsigned code = 0; code < 256; code++) {
        for (unsigned bits = 0; bits < 256; bits++) {
            for (unsigned lanes = 0; lanes < 3; lanes++) {
                count += tcx_dtype_is_known(
                    (tcx_dtype_t){(uint8_t)code, (uint8_t)bits, (uint16_t)lanes});
            }
        }
    }
    EXPECT_EQ(sizeof known / sizeof *known, count);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        EXPECT_TRUE(tcx_dtype_is_known(known[i]));
    }
}

TEST(a_refused_dtype_is_named) {
    EXPECT_EQ(STATUS_EXCHANGE, check_shape(0, NULL, (tcx_dtype_t){4, 16, 1}));
    EXPECT_TRUE(strstr(tcx_error(), "dtype bfloat16 is not") != NULL);
    EXPECT_EQ(STATUS_EXCHANGE, check_shape(0, NULL, (tcx_dtype_t){TCX_FLOAT, 32, 4}));
    EXPECT_TRUE(strstr(tcx_error(), "dtype float32x4 is not") != NULL);
    EXPECT_EQ(STATUS_EXCHANGE, check_shape(0, NULL, (tcx_dtype_t){17, 4, 1}));
    EXPECT_TRUE(strstr(tcx_error(), "code 17, 4 bits, 1 lanes") != NULL);
}

TEST(elements_need_data) {
    int64_t shape[1] = {1};
    tcx_array_t array = {.dtype = float32, .ndim = 1, .shape = shape};
    uint64_t nbytes;

    EXPECT_EQ(STATUS_INVALID, layout_check(&array, &nbytes));
    shape[0] = 0;
    EXPECT_EQ(STATUS_OK, layout_check(&array, &nbytes));
    EXPECT_EQ(0, nbytes);
}

/* ------------------------------------------------------------------------------------ comparing */

TEST(the_same_memory_and_layout_is_equal_however_it_is_written) {
    float data[12];
    int64_t shape[2] = {3, 4};
    int64_t c_order[2] = {4, 1};
    int64_t fortran[2] = {1, 3};
    tcx_array_t plain = {.data = data, .dtype = float32, .ndim = 2, .shape = shape};
    tcx_array_t written = {
        .data = data, .dtype = float32, .ndim = 2, .shape = shape, .strides = c_order};
    tcx_array_t turned = {
        .data = data, .dtype = float32, .ndim = 2, .shape = shape, .strides = fortran};
    tcx_array_t later = {.data = data + 1, .dtype = float32, .ndim = 2, .shape = shape};

    EXPECT_EQ(0, layout_compare(&plain, &written));
    EXPECT_TRUE(layout_compare(&plain, &turned) != 0);
    EXPECT_EQ(-layout_compare(&plain, &turned), layout_compare(&turned, &plain));
    EXPECT_TRUE(layout_compare(&plain, &later) < 0);
}
