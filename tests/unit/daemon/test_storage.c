/* Storages and holds: what keeps a storage alive, and that counts cannot be broken from outside.
 * The storages have no bytes, so that no memory is needed. */
#include <errno.h>

#include "storages_fixture.h"

enum { LIMIT = 200000 };

struct fixture {
    struct segments segments;
    struct storages storages;
    struct account account;
    struct tickets tickets;
    struct forkpages forks; /* nobody forks here */
    struct holds alice, bob;
};

static uint64_t now(void *owner) {
    (void)owner;
    return 0;
}

static void setup(struct fixture *f) {
    *f = (struct fixture){.storages = {.max = LIMIT}, .account = {.has_client = true}};
    storages_init(&f->storages);
    f->tickets = (struct tickets){.storages = &f->storages, .now = now};
    tickets_init(&f->tickets);
    forkpages_init(&f->forks);
    f->alice = f->bob =
        (struct holds){.storages = &f->storages, .tickets = &f->tickets, .forks = &f->forks};
    holds_init(&f->alice);
    holds_init(&f->bob);
}

/* Everybody lets go; asserts that nothing is left. */
static void teardown(struct fixture *f) {
    while (holds_return_some(&f->alice)) {
    }
    while (holds_return_some(&f->bob)) {
    }
    holds_fini(&f->alice);
    holds_fini(&f->bob);
    tickets_fini(&f->tickets);
    storages_fini(&f->storages);
    EXPECT_EQ(0, f->account.used[ACCOUNT_BYTES]);
    EXPECT_EQ(0, f->account.used[ACCOUNT_STORAGES]);
    EXPECT_EQ(0, f->account.used[ACCOUNT_ATTACHMENTS]);
}

/* A new storage with one reference of the caller's. */
static struct storage *given_storage(struct fixture *f) {
    return storage_of_nothing(&f->storages, &f->segments, &f->account);
}

/* A new storage that only alice holds. Returns its id. */
static uint64_t given_held(struct fixture *f) {
    return storage_held_by(&f->alice, &f->segments, &f->account)->id;
}

TEST(a_storage_goes_with_its_last_reference) {
    struct fixture f;
    setup(&f);
    struct storage *storage = given_storage(&f);
    uint64_t id = storage->id;

    storage_ref(&f.storages, storage);
    storage_unref(&f.storages, storage);
    EXPECT_TRUE(storage_find(&f.storages, id) == storage);
    storage_unref(&f.storages, storage);
    EXPECT_TRUE(storage_find(&f.storages, id) == NULL);
    teardown(&f);
}

TEST(ids_are_never_used_twice) {
    struct fixture f;
    uint64_t last = 0;
    setup(&f);

    for (int i = 0; i < 100; i++) {
        struct storage *storage = given_storage(&f);
        EXPECT_TRUE(storage->id > last);
        last = storage->id;
        storage_unref(&f.storages, storage);
    }
    teardown(&f);
}

TEST(what_there_is_and_who_holds_it_is_counted_by_device) {
    struct fixture f;
    setup(&f);
    f.segments.device = 2;
    uint64_t id = given_held(&f);
    f.segments.device = 0;
    given_held(&f);

    EXPECT_EQ(1, f.storages.on[0].count);
    EXPECT_EQ(1, f.storages.on[2].count);
    EXPECT_EQ(2, storage_find(&f.storages, id)->device);
    EXPECT_EQ(0, hold_return(&f.alice, id, 1));
    EXPECT_EQ(0, f.storages.on[2].count);
    teardown(&f);
}

TEST(only_what_was_held_at_an_unclean_end_is_spoilt) {
    struct fixture f;
    setup(&f);
    f.segments.device = 1;
    struct storage *returned = storage_find(&f.storages, given_held(&f));
    struct storage *held = storage_find(&f.storages, given_held(&f));

    EXPECT_EQ(0, hold_grant(&f.bob, returned));
    EXPECT_EQ(0, hold_grant(&f.bob, held));
    EXPECT_EQ(0, hold_return(&f.alice, returned->id, 1));
    while (holds_return_some(&f.alice)) {
    }
    EXPECT_TRUE(held->is_spoilt && !returned->is_spoilt);
    teardown(&f);
}

TEST(many_holds_go_back_in_steps_and_none_is_left) {
    enum { MANY = 5000 };
    struct fixture f;
    int steps = 0;
    setup(&f);
    for (int i = 0; i < MANY; i++) {
        given_held(&f);
    }

    while (holds_return_some(&f.alice)) {
        EXPECT_TRUE(f.storages.by_id.count == 0 || f.storages.by_id.count + 2000 * ++steps >= MANY);
    }
    EXPECT_TRUE(steps > 2);
    EXPECT_EQ(0, holds_count(&f.alice));
    EXPECT_EQ(0, f.storages.by_id.count);
    teardown(&f);
}

TEST(a_limit_on_storages_is_kept) {
    struct fixture f;
    struct storage *storage;
    struct waitlist *wait;
    struct shortage shortage;
    setup(&f);
    f.storages.max = 1;
    struct storage *only = given_storage(&f);

    EXPECT_EQ(STATUS_LIMIT,
              storage_create(&f.storages, &f.segments, &f.account, 0, &storage, &wait, &shortage));
    storage_unref(&f.storages, only);
    storage_unref(&f.storages, given_storage(&f));
    teardown(&f);
}

TEST(ids_that_were_never_given_are_not_found) {
    struct fixture f;
    setup(&f);

    EXPECT_TRUE(storage_find(&f.storages, 0) == NULL);
    EXPECT_TRUE(storage_find(&f.storages, 1) == NULL);
    EXPECT_TRUE(storage_find(&f.storages, UINT64_MAX) == NULL);
    teardown(&f);
}

TEST(a_hold_lasts_until_every_grant_is_returned) {
    struct fixture f;
    setup(&f);
    uint64_t id = given_held(&f);

    hold_grant(&f.alice, storage_find(&f.storages, id));
    hold_grant(&f.alice, storage_find(&f.storages, id));
    EXPECT_EQ(1, holds_count(&f.alice));
    EXPECT_EQ(0, hold_return(&f.alice, id, 2));
    EXPECT_EQ(1, storage_find(&f.storages, id)->holders);
    EXPECT_EQ(0, hold_return(&f.alice, id, 1));
    EXPECT_TRUE(storage_find(&f.storages, id) == NULL);
    EXPECT_EQ(0, holds_count(&f.alice));
    teardown(&f);
}

TEST(returning_more_than_was_granted_changes_nothing) {
    struct fixture f;
    setup(&f);
    uint64_t id = given_held(&f);

    EXPECT_EQ(-EPROTO, hold_return(&f.alice, id, 2));
    EXPECT_EQ(-EPROTO, hold_return(&f.alice, id, 0));
    EXPECT_EQ(-EPROTO, hold_return(&f.alice, id, UINT64_MAX));
    EXPECT_EQ(1, storage_find(&f.storages, id)->holders);
    teardown(&f);
}

TEST(nobody_can_return_what_another_holds) {
    struct fixture f;
    setup(&f);
    uint64_t id = given_held(&f);

    EXPECT_EQ(-EPROTO, hold_return(&f.bob, id, 1));
    EXPECT_EQ(-EPROTO, hold_return(&f.bob, id + 1, 1));
    EXPECT_EQ(-EPROTO, hold_return(&f.bob, 0, 1));
    EXPECT_TRUE(holds_find(&f.alice, storage_find(&f.storages, id)));
    teardown(&f);
}

TEST(a_storage_lives_while_one_of_two_clients_holds_it) {
    struct fixture f;
    setup(&f);
    uint64_t id = given_held(&f);

    hold_grant(&f.bob, storage_find(&f.storages, id));
    EXPECT_EQ(2, storage_find(&f.storages, id)->holders);
    EXPECT_EQ(0, hold_return(&f.alice, id, 1));
    EXPECT_EQ(1, storage_find(&f.storages, id)->holders);
    teardown(&f);
    EXPECT_TRUE(storage_find(&f.storages, id) == NULL);
}

static int attach(struct fixture *f, struct storage *storage, struct storage *other) {
    int r = storage_reserve(&f->storages, storage, 1);

    if (r == STATUS_OK) {
        storage_attach(&f->storages, storage, other);
    }
    return r;
}

TEST(what_is_attached_lives_as_long_as_what_it_is_attached_to) {
    struct fixture f;
    setup(&f);
    struct storage *old = given_storage(&f);
    struct storage *pack = given_storage(&f);
    uint64_t id = old->id;

    EXPECT_EQ(STATUS_OK, attach(&f, pack, old));
    storage_unref(&f.storages, old);
    EXPECT_TRUE(storage_find(&f.storages, id) == old);
    storage_unref(&f.storages, pack);
    EXPECT_TRUE(storage_find(&f.storages, id) == NULL);
    EXPECT_EQ(0, f.storages.attachments);
    teardown(&f);
}

TEST(a_long_chain_of_attachments_ends_without_recursion) {
    struct fixture f;
    setup(&f);
    struct storage *last = given_storage(&f);

    for (int i = 1; i < LIMIT; i++) {
        struct storage *next = given_storage(&f);
        EXPECT_EQ(STATUS_OK, attach(&f, next, last));
        storage_unref(&f.storages, last);
        last = next;
    }
    EXPECT_EQ(LIMIT, f.storages.by_id.count);
    EXPECT_EQ(LIMIT, f.account.used[ACCOUNT_STORAGES]);
    storage_unref(&f.storages, last);
    teardown(&f);
}

TEST(a_storage_attached_twice_is_let_go_twice) {
    struct fixture f;
    setup(&f);
    struct storage *old = given_storage(&f);
    struct storage *pack = given_storage(&f);

    for (int i = 0; i < 5; i++) {
        EXPECT_EQ(STATUS_OK, attach(&f, pack, old));
    }
    EXPECT_EQ(6, old->references);
    storage_unref(&f.storages, pack);
    EXPECT_EQ(1, old->references);
    storage_unref(&f.storages, old);
    teardown(&f);
}

TEST(room_for_attachments_is_made_for_many_or_none) {
    struct fixture f;
    setup(&f);
    f.storages.max = 20;
    struct storage *old = given_storage(&f);
    struct storage *pack = given_storage(&f);

    EXPECT_EQ(STATUS_OK, storage_reserve(&f.storages, pack, 0));
    EXPECT_TRUE(!pack->attached);
    EXPECT_EQ(STATUS_LIMIT, storage_reserve(&f.storages, pack, 21));
    for (int more = 5; more <= 15; more += 10) {
        EXPECT_EQ(STATUS_OK, storage_reserve(&f.storages, pack, (uint32_t)more));
        for (int i = 0; i < more; i++) {
            storage_attach(&f.storages, pack, old);
        }
    }
    EXPECT_EQ(STATUS_LIMIT, storage_reserve(&f.storages, pack, 1));
    EXPECT_EQ(20, f.account.used[ACCOUNT_ATTACHMENTS]);
    storage_unref(&f.storages, pack);
    EXPECT_EQ(1, old->references);
    storage_unref(&f.storages, old);
    teardown(&f);
}

TEST(a_limit_on_attachments_is_kept) {
    struct fixture f;
    setup(&f);
    f.storages.max = 3;
    struct storage *old = given_storage(&f);
    struct storage *pack = given_storage(&f);

    for (int i = 0; i < 3; i++) {
        EXPECT_EQ(STATUS_OK, attach(&f, pack, old));
    }
    EXPECT_EQ(STATUS_LIMIT, attach(&f, pack, old));
    EXPECT_EQ(4, old->references);
    EXPECT_EQ(3, f.account.used[ACCOUNT_ATTACHMENTS]);
    storage_unref(&f.storages, pack);
    storage_unref(&f.storages, old);
    teardown(&f);
}
