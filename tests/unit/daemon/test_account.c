/* What clients have made: counted while it exists, also after its maker. A leaked account, or one
 * used after its end, is the sanitizer's to find. */
#include "account.h"
#include "catalog.h"
#include "storages_fixture.h"

struct fixture {
    struct segments segments;
    struct storages storages;
    struct catalog catalog;
    struct list ready;
};

static void setup(struct fixture *f) {
    *f = (struct fixture){.storages = {.max = 100}};
    f->catalog = (struct catalog){.storages = &f->storages, .ready = &f->ready, .max = 100};
    list_init(&f->ready);
    storages_init(&f->storages);
    catalog_init(&f->catalog);
}

static void teardown(struct fixture *f) {
    catalog_fini(&f->catalog);
    storages_fini(&f->storages);
}

static struct storage *given_storage(struct fixture *f, struct account *account) {
    return storage_of_nothing(&f->storages, &f->segments, account);
}

static void put(struct fixture *f, struct account *account, struct storage *storage) {
    struct put put = {.name = "name",
                      .name_nbytes = 4,
                      .desc = "desc",
                      .desc_nbytes = 4,
                      .storage = storage,
                      .account = account};
    uint64_t version;

    EXPECT_EQ(STATUS_OK, catalog_put(&f->catalog, &put, &version));
}

TEST(an_account_without_anything_goes_with_its_client) {
    account_leave(account_create());
}

TEST(a_storage_is_counted_until_its_last_reference_is_gone) {
    struct fixture f;
    setup(&f);
    struct account *maker = account_create();
    struct storage *storage = given_storage(&f, maker);

    storage_ref(&f.storages, storage); /* somebody else's */
    storage_unref(&f.storages, storage);
    EXPECT_EQ(1, maker->used[ACCOUNT_STORAGES]);
    storage_unref(&f.storages, storage);
    EXPECT_EQ(0, maker->used[ACCOUNT_STORAGES]);
    account_leave(maker);
    teardown(&f);
}

TEST(a_name_that_outlives_its_client_keeps_the_account) {
    struct fixture f;
    setup(&f);
    struct account *maker = account_create();
    struct storage *storage = given_storage(&f, maker);
    put(&f, maker, storage);
    storage_unref(&f.storages, storage);

    account_leave(maker);
    EXPECT_EQ(1, maker->used[ACCOUNT_NAMES]);
    EXPECT_EQ(1, maker->used[ACCOUNT_STORAGES]);
    catalog_delete(&f.catalog, catalog_find(&f.catalog, "name", 4, 0));
    teardown(&f);
}

TEST(a_name_put_again_is_charged_to_who_put_it_last) {
    struct fixture f;
    setup(&f);
    struct account *alice = account_create();
    struct account *bob = account_create();
    struct storage *storage = given_storage(&f, alice);

    put(&f, alice, storage);
    EXPECT_EQ(1, alice->used[ACCOUNT_NAMES]);
    put(&f, bob, storage);
    put(&f, bob, storage);
    EXPECT_EQ(0, alice->used[ACCOUNT_NAMES]);
    EXPECT_EQ(1, bob->used[ACCOUNT_NAMES]);
    EXPECT_EQ(0, bob->used[ACCOUNT_STORAGES]);
    storage_unref(&f.storages, storage);
    account_leave(alice);
    account_leave(bob);
    teardown(&f);
}
