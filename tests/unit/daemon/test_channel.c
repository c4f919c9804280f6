/* Channels: seats, lifetime, what messages refer to, what children keep. The storages have no
 * bytes. */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "attachment.h"
#include "log.h"
#include "participant.h"
#include "ring_mask.h"
#include "status.h"
#include "storages_fixture.h"

enum { HANDLES = 5, CHANNELS = 3, ALICE = 7, BOB = 9 };

static const struct ring_shape QUEUE = {.capacity = 2, .buffers = 4, .members = 3};
static const struct ring_shape TOPIC = {
    .flags = RING_TOPIC, .capacity = 2, .buffers = 4, .members = 3};
static const struct ring_wait AT_ONCE;

struct fixture {
    struct segments segments;
    struct storages storages;
    struct tickets tickets;
    struct account account; /* that is charged for all */
    struct channels channels;
    struct lifepages pages;
    struct forkpages forks; /* alice's; bob does not fork */
    struct participants alice, bob;
    struct holds holds; /* alice's */
};

static void on_freed(struct forkpages *forks, enum fork_kind kind, struct heap_node *node) {
    (void)forks;
    EXPECT_EQ(FORK_BUFFER, kind);
    participant_freed(node);
}

static void free_all(struct forkpages *forks) {
    while (forkpages_free_some(forks)) {
    }
}

static void setup(struct fixture *f) {
    *f = (struct fixture){
        .storages = {.max = 100},
        .account.has_client = true,
        .channels = {.storages = &f->storages, .max = CHANNELS},
        .forks = {.pages = &f->pages, .freed = on_freed, .closed = free_all, .max = 10},
        .alice = {.forks = &f->forks, .holds = &f->holds, .client = ALICE, .max = HANDLES},
        .bob = {.forks = &f->forks, .holds = &f->holds, .client = BOB, .max = HANDLES},
        .holds = {.storages = &f->storages, .tickets = &f->tickets, .forks = &f->forks}};
    log_set_level(LOG_ERROR);
    storages_init(&f->storages);
    channels_init(&f->channels);
    lifepages_init(&f->pages);
    forkpages_init(&f->forks);
    holds_init(&f->holds);
    participants_init(&f->alice);
    participants_init(&f->bob);
}

/* Everybody ends; asserts that nothing is left. */
static void teardown(struct fixture *f) {
    participants_end(&f->alice);
    participants_end(&f->bob);
    while (holds_return_some(&f->holds)) {
    }
    forkpages_fini(&f->forks);
    free_all(&f->forks);
    participants_fini(&f->alice);
    participants_fini(&f->bob);
    channels_fini(&f->channels);
    holds_fini(&f->holds);
    EXPECT_EQ(0, f->account.used[ACCOUNT_ATTACHMENTS]);
    EXPECT_EQ(0, f->account.used[ACCOUNT_CHANNELS]);
    lifepages_fini(&f->pages);
    storages_fini(&f->storages);
}

static struct storage *given_storage(struct fixture *f) {
    return storage_of_nothing(&f->storages, &f->segments, &f->account);
}

static void give_size(struct fixture *f, struct channel *channel) {
    struct storage *storage = given_storage(f);

    channel_size(channel, storage, 256);
    storage_unref(&f->storages, storage);
}

static struct channel *given_channel(struct fixture *f, const char *name,
                                     const struct ring_shape *shape) {
    struct channel *channel;

    EXPECT_EQ(0, channel_create(&f->channels, &f->account, shape, name, strlen(name), &channel));
    give_size(f, channel);
    return channel;
}

static struct participant *given_seat(struct participants *participants, struct channel *channel) {
    struct participant *participant;

    EXPECT_EQ(0, participant_join(participants, channel, &participant));
    return participant;
}

/* What the participant's process has mapped. */
static struct ring ring_of(const struct participant *participant) {
    struct ring ring = participant->channel->ring;

    ring.client = participant->participants->client;
    ring.member = participant->slot;
    return ring;
}

static uint32_t given_loan(const struct participant *participant) {
    struct ring ring = ring_of(participant);
    uint32_t buffer;

    EXPECT_EQ(RING_OK, ring_loan(&ring, &AT_ONCE, &buffer));
    return buffer;
}

static uint32_t given_message(const struct participant *participant) {
    struct ring ring = ring_of(participant);
    uint32_t buffer = given_loan(participant);

    EXPECT_EQ(RING_OK, ring_send(&ring, &AT_ONCE, buffer));
    return buffer;
}

static uint32_t receive(const struct participant *participant) {
    struct ring ring = ring_of(participant);
    struct ring_message message;

    EXPECT_EQ(RING_OK, ring_recv(&ring, &AT_ONCE, false, &message));
    return message.buffer;
}

static int uses(const struct participant *participant, uint32_t buffer) {
    return use_has(&participant->channel->ring, participant->slot, buffer);
}

static size_t count(struct fixture *f) {
    channels_settle(&f->channels);
    return f->channels.by_id.count;
}

static int given_fork(struct fixture *f) {
    int fd = memfd_create("fork", MFD_CLOEXEC);

    EXPECT_EQ(0, ftruncate(fd, 4096));
    EXPECT_EQ(0, forkpages_note(&f->forks, fd));
    participants_note(&f->alice);
    return fd;
}

static void close_page(struct fixture *f, int fd) {
    close(fd);
    lifepages_read(&f->pages);
}

/* ------------------------------------------------------------------------------------- lifetime */

TEST(a_channel_that_nobody_joins_ends) {
    struct fixture f;
    setup(&f);
    given_channel(&f, "q", &QUEUE);
    EXPECT_EQ(0, count(&f));
    EXPECT_EQ(0, f.storages.by_id.count);
    teardown(&f);
}

TEST(names_are_found_until_they_are_deleted) {
    struct fixture f;
    setup(&f);
    struct channel *ab = given_channel(&f, "ab", &QUEUE);
    given_seat(&f.alice, ab);
    struct channel *a = given_channel(&f, "a", &TOPIC);
    given_seat(&f.alice, a);

    EXPECT_TRUE(channels_find_name(&f.channels, "ab", 2) == ab);
    EXPECT_TRUE(channels_find_name(&f.channels, "ab", 1) == a);
    EXPECT_TRUE(!channels_find_name(&f.channels, "abc", 3));
    channel_delete(a);
    EXPECT_TRUE(!channels_find_name(&f.channels, "a", 1));
    EXPECT_TRUE(channels_find(&f.channels, a->id) == a);
    EXPECT_EQ(1, a->ring.control->closed);
    EXPECT_TRUE(!channels_find(&f.channels, 0) && !channels_find(&f.channels, UINT64_MAX));
    teardown(&f);
}

TEST(a_queue_lasts_while_a_message_waits_and_a_topic_does_not) {
    struct fixture f;
    setup(&f);
    struct participant *queue = given_seat(&f.alice, given_channel(&f, "q", &QUEUE));
    struct participant *topic = given_seat(&f.alice, given_channel(&f, "t", &TOPIC));
    struct channel *channel = queue->channel;

    given_message(queue);
    given_message(topic);
    participant_leave(queue);
    participant_leave(topic);
    EXPECT_EQ(1, count(&f));
    EXPECT_EQ(1, channel_depth(channel));
    queue = given_seat(&f.bob, channel);
    receive(queue);
    participant_leave(queue);
    EXPECT_EQ(0, count(&f));
    EXPECT_EQ(0, f.bob.count);
    teardown(&f);
}

TEST(there_are_at_most_so_many) {
    struct fixture f;
    setup(&f);
    struct channel *channel;
    static const char *const names[CHANNELS] = {"a", "b", "c"};

    for (int i = 0; i < CHANNELS; i++) {
        given_seat(&f.alice, given_channel(&f, names[i], &QUEUE));
    }
    EXPECT_EQ(-EDQUOT, channel_create(&f.channels, &f.account, &QUEUE, "d", 1, &channel));
    teardown(&f);
}

TEST(a_buffer_begins_where_a_tensor_may) {
    EXPECT_EQ(256, channel_buffer_nbytes(1));
    EXPECT_EQ(65536, channel_buffer_nbytes(65536 - 255));
    EXPECT_EQ(65536 + 4096, channel_buffer_nbytes(65537));
}

/* ---------------------------------------------------------------------------------------- seats */

TEST(seats_are_taken_in_order_and_given_again) {
    struct fixture f;
    setup(&f);
    struct channel *channel = given_channel(&f, "q", &QUEUE);
    struct participant *first = given_seat(&f.alice, channel);
    struct participant *second = given_seat(&f.bob, channel);
    struct participant *none;

    given_seat(&f.alice, channel);
    EXPECT_EQ(-EBUSY, participant_join(&f.bob, channel, &none));
    EXPECT_TRUE(participant_find(&f.bob, channel, 1) == second);
    EXPECT_TRUE(!participant_find(&f.alice, channel, 1));
    EXPECT_TRUE(!participant_find(&f.alice, channel, 3));
    EXPECT_TRUE(participants_are_in(&f.bob, channel));

    uint32_t buffer = given_loan(second);
    participant_leave(second);
    EXPECT_TRUE(!participants_are_in(&f.bob, channel));
    EXPECT_EQ(-EBUSY, participant_join(&f.bob, channel, &none));
    ring_release_for(&channel->ring, 1, buffer);
    EXPECT_EQ(1, given_seat(&f.bob, channel)->slot);
    EXPECT_EQ(0, first->slot);
    teardown(&f);
}

TEST(a_client_has_at_most_so_many_handles) {
    struct fixture f;
    setup(&f);
    struct channel *channel = given_channel(&f, "q", &(struct ring_shape){0, 2, 4, 9, 0});
    struct participant *last = NULL, *none;

    for (int i = 0; i < HANDLES; i++) {
        last = given_seat(&f.alice, channel);
    }
    EXPECT_EQ(-EDQUOT, participant_join(&f.alice, channel, &none));
    given_seat(&f.bob, channel);
    participant_leave(last);
    EXPECT_EQ(HANDLES - 1, given_seat(&f.alice, channel)->slot);
    teardown(&f);
}

TEST(what_the_dead_used_and_locked_is_free) {
    struct fixture f;
    setup(&f);
    struct channel *channel = given_channel(&f, "q", &QUEUE);
    struct participant *alice = given_seat(&f.alice, channel);
    given_seat(&f.bob, channel);
    uint32_t buffer = given_loan(alice);

    channel->ring.control->lock = ALICE | 1u << 31;
    participants_end(&f.alice);
    EXPECT_EQ(0, channel->ring.control->lock);
    EXPECT_TRUE(!use_has(&channel->ring, 0, buffer));
    EXPECT_EQ(RING_LEFT, channel->ring.members[0].state);
    EXPECT_EQ(1, count(&f));
    EXPECT_EQ(0, f.alice.count);
    channel->ring.control->lock = BOB;
    participants_end(&f.alice);
    EXPECT_EQ(BOB, channel->ring.control->lock);
    teardown(&f);
}

/* ----------------------------------------------------------------------------------- references */

TEST(what_is_attached_goes_when_nobody_needs_the_buffer) {
    struct fixture f;
    setup(&f);
    struct channel *channel = given_channel(&f, "q", &QUEUE);
    struct participant *alice = given_seat(&f.alice, channel);
    struct participant *bob = given_seat(&f.bob, channel);
    struct storage *storage = given_storage(&f);
    struct storage *twice[] = {storage, storage};
    uint64_t id = storage->id;
    uint32_t buffer = given_loan(alice);

    const struct attachment *attachment = attachment_create(channel, buffer, &f.account, twice, 2);
    storage_unref(&f.storages, storage);
    EXPECT_EQ(2, f.channels.references);
    EXPECT_TRUE(attachment_find(channel, buffer, attachment->ref) == attachment);
    EXPECT_TRUE(!attachment_find(channel, buffer, attachment->ref + 1));
    EXPECT_TRUE(!attachment_find(channel, buffer + 1, attachment->ref));
    EXPECT_EQ(0, channels_sweep(&f.channels));
    struct ring ring = ring_of(alice);
    EXPECT_EQ(RING_OK, ring_send(&ring, &AT_ONCE, buffer));
    EXPECT_EQ(0, channels_sweep(&f.channels));
    EXPECT_EQ(buffer, receive(bob));
    EXPECT_EQ(0, channels_sweep(&f.channels));
    EXPECT_TRUE(storage_find(&f.storages, id) == storage);
    ring_release_for(&channel->ring, bob->slot, buffer);
    EXPECT_EQ(2, channels_sweep(&f.channels));
    EXPECT_TRUE(!storage_find(&f.storages, id));
    teardown(&f);
}

TEST(to_attach_again_replaces) {
    struct fixture f;
    setup(&f);
    struct channel *channel = given_channel(&f, "q", &QUEUE);
    uint32_t buffer = given_loan(given_seat(&f.alice, channel));
    struct storage *storage = given_storage(&f);

    attachment_create(channel, buffer, &f.account, &storage, 1);
    attachment_create(channel, buffer, &f.account, &storage, 1);
    storage_unref(&f.storages, storage);
    EXPECT_EQ(1, f.channels.references);
    EXPECT_EQ(1, channel->attached);
    teardown(&f);
}

/* ---------------------------------------------------------------------------------------- forks */

TEST(children_keep_what_was_received_before_the_fork) {
    struct fixture f;
    setup(&f);
    struct participant *alice = given_seat(&f.alice, given_channel(&f, "q", &QUEUE));
    uint32_t before = given_loan(alice);
    int page = given_fork(&f);
    uint32_t after = given_loan(alice);

    participant_return(alice, before);
    participant_return(alice, after);
    participant_return(alice, after + 1);
    participant_return(alice, UINT32_MAX);
    EXPECT_TRUE(uses(alice, before) && !uses(alice, after));
    participant_return(alice, before);
    close_page(&f, page);
    EXPECT_TRUE(!uses(alice, before));
    teardown(&f);
}

TEST(a_buffer_used_anew_is_not_the_childrens) {
    struct fixture f;
    setup(&f);
    struct participant *alice = given_seat(&f.alice, given_channel(&f, "q", &QUEUE));
    uint32_t buffer = given_loan(alice);
    int first = given_fork(&f);
    ring_release_for(&alice->channel->ring, alice->slot, buffer); /* it was a loan */
    int second = given_fork(&f);

    EXPECT_EQ(buffer, given_loan(alice));
    participant_return(alice, buffer);
    EXPECT_TRUE(!uses(alice, buffer));
    close_page(&f, first);
    close_page(&f, second);
    teardown(&f);
}

TEST(children_keep_what_a_parent_had_that_is_gone) {
    struct fixture f;
    setup(&f);
    struct channel *channel = given_channel(&f, "q", &QUEUE);
    struct participant *alice = given_seat(&f.alice, channel);
    given_seat(&f.bob, channel);
    uint32_t before = given_loan(alice);
    int page = given_fork(&f);
    uint32_t after = given_loan(alice);

    participants_end(&f.alice);
    EXPECT_EQ(1, count(&f));
    EXPECT_TRUE(uses(alice, before) && !uses(alice, after));
    EXPECT_EQ(1, f.alice.count);
    close_page(&f, page);
    EXPECT_TRUE(!use_has(&channel->ring, 0, before));
    count(&f);
    EXPECT_EQ(0, f.alice.count);
    teardown(&f);
}

TEST(a_channel_ends_before_the_pages_do) {
    struct fixture f;
    setup(&f);
    struct participant *alice = given_seat(&f.alice, given_channel(&f, "q", &QUEUE));
    uint32_t buffer = given_loan(alice);
    int page = given_fork(&f);

    participant_return(alice, buffer);
    participant_leave(alice);
    EXPECT_EQ(0, count(&f));
    close_page(&f, page);
    teardown(&f);
}

TEST(bits_that_others_set_hold_up_no_end) {
    struct fixture f;
    setup(&f);
    struct channel *channel = given_channel(&f, "q", &QUEUE);

    given_seat(&f.alice, channel);
    given_seat(&f.bob, channel);
    participants_end(&f.alice);
    memset(channel->ring.members, 0xff, QUEUE.members * sizeof *channel->ring.members);
    channels_settle(&f.channels);
    EXPECT_EQ(1, f.alice.count);
    participants_fini(&f.alice);
    EXPECT_EQ(0, f.alice.count);
    EXPECT_EQ(1, count(&f));
    teardown(&f);
}
