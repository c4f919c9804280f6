/*
 * channel_fixture.h - a daemon of the test's own, and what is sent through its channels: float32
 * arrays full of one number
 */
#pragma once

#include "client_fixture.h"

enum { COUNT = 1000, NUMBERS_MAX = 40000 };

static inline tcx_channel_t *open_channel(tcx_client_t *from, const char *name, unsigned flags,
                                          uint32_t capacity) {
    tcx_channel_options_t options = {.flags = flags, .capacity = capacity};
    tcx_channel_t *channel;

    EXPECT_OK(tcx_channel_open(from, name, &options, &channel));
    return channel;
}

static inline tcx_channel_t *subscribe(tcx_channel_t *topic, int latest) {
    tcx_channel_t *reader;

    EXPECT_OK(tcx_channel_subscribe(topic, latest, &reader));
    return reader;
}

static inline int try_send(tcx_channel_t *channel, float number, int64_t count, double timeout) {
    float data[NUMBERS_MAX];
    struct floats floats;

    for (int64_t i = 0; i < count; i++) {
        data[i] = number;
    }
    return tcx_channel_send(channel, floats_on(&floats, data, count), timeout);
}

static inline void send_number(tcx_channel_t *channel, float number) {
    EXPECT_OK(try_send(channel, number, COUNT, 20));
}

static inline tcx_tensor_t *receive(tcx_channel_t *channel) {
    tcx_tensor_t *tensor = NULL;
    tcx_bundle_t *bundle = NULL;

    EXPECT_OK(tcx_channel_recv(channel, 20, 0, &tensor, &bundle));
    EXPECT_TRUE(tensor && !bundle);
    return tensor;
}

static inline tcx_bundle_t *receive_bundle(tcx_channel_t *channel) {
    tcx_tensor_t *tensor = NULL;
    tcx_bundle_t *bundle = NULL;

    EXPECT_OK(tcx_channel_recv(channel, 20, 0, &tensor, &bundle));
    EXPECT_TRUE(bundle && !tensor);
    return bundle;
}

static inline tcx_tensor_t *item_of(const tcx_bundle_t *bundle, size_t index) {
    const char *const *path;
    size_t depth;
    tcx_tensor_t *tensor;

    tcx_bundle_item(bundle, index, &path, &depth, &tensor);
    return tensor;
}

static inline int try_recv(tcx_channel_t *channel, double timeout) {
    tcx_tensor_t *tensor = NULL;
    tcx_bundle_t *bundle = NULL;
    int r = tcx_channel_recv(channel, timeout, 0, &tensor, &bundle);

    tcx_tensor_unref(tensor);
    tcx_bundle_unref(bundle);
    return r;
}

static inline void expect_full(const tcx_tensor_t *tensor, float number, int64_t count) {
    EXPECT_EQ(count, tcx_tensor_array(tensor)->shape[0]);
    for (int64_t i = 0; i < count; i++) {
        EXPECT_TRUE(floats_of(tensor)[i] == number);
    }
}

static inline void expect_next(tcx_channel_t *channel, float number) {
    tcx_tensor_t *tensor = receive(channel);

    expect_full(tensor, number, COUNT);
    tcx_tensor_unref(tensor);
}

static inline tcx_tensor_t *loan(tcx_channel_t *channel, int64_t count) {
    tcx_tensor_t *tensor;

    EXPECT_OK(tcx_channel_loan(channel, float32, 1, &count, 20, &tensor));
    return tensor;
}

static inline tcx_tensor_t *shared(tcx_client_t *from, float number, int64_t count) {
    tcx_tensor_t *tensor;

    EXPECT_OK(tcx_empty(from, (tcx_device_t){0}, float32, 1, &count, &tensor));
    for (int64_t i = 0; i < count; i++) {
        floats_of(tensor)[i] = number;
    }
    return tensor;
}

static inline tcx_channel_info_t look_at(tcx_channel_t *channel) {
    tcx_channel_info_t info;

    tcx_channel_info(channel, &info);
    return info;
}

struct held {
    uint32_t handles;
    uint32_t buffers;
    tcx_holder_t last;
};

static inline int count_holder(void *context, const tcx_holder_t *holder) {
    struct held *held = context;

    held->handles++;
    held->buffers += holder->buffers;
    held->last = *holder;
    held->last.program = NULL;
    return 0;
}

static inline struct held holders_of(tcx_channel_t *channel) {
    struct held held = {0};

    EXPECT_OK(tcx_channel_holders(channel, count_holder, &held));
    return held;
}

/* Waits until so many buffers are in use; fails after a generous time. */
static inline void expect_held(tcx_channel_t *channel, uint32_t buffers) {
    int64_t deadline = clock_after(20 * NS_PER_S);

    while (holders_of(channel).buffers != buffers && clock_now() < deadline) {
        usleep(1000);
    }
    EXPECT_EQ(buffers, holders_of(channel).buffers);
}

static inline void expect_text(const char *part) {
    if (!strstr(tcx_error(), part)) {
        TEST_FAILED("\"%s\" is not in: %s", part, tcx_error());
    }
}

static inline void expect_success(pid_t pid) {
    int status;

    EXPECT_EQ(pid, waitpid(pid, &status, 0));
    EXPECT_EQ(0, status);
}
