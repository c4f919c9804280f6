/* Names: order, versions, leases, and who waits for them. The storages have no bytes. */
#include <stdio.h>

#include "catalog.h"
#include "storages_fixture.h"

struct fixture {
    struct segments segments;
    struct storages storages;
    struct catalog catalog;
    struct account account;
    struct list ready;
    struct storage *storage; /* one reference of ours */
    uint64_t now_ms;
};

static void setup(struct fixture *f) {
    *f = (struct fixture){.storages = {.max = 1000}, .account = {.has_client = true}, .now_ms = 1};
    f->catalog = (struct catalog){.storages = &f->storages, .ready = &f->ready, .max = 1000};
    list_init(&f->ready);
    storages_init(&f->storages);
    catalog_init(&f->catalog);
    f->storage = storage_of_nothing(&f->storages, &f->segments, &f->account);
}

static void teardown(struct fixture *f) {
    catalog_fini(&f->catalog);
    EXPECT_EQ(0, f->account.used[ACCOUNT_NAMES]);
    storage_unref(&f->storages, f->storage);
    storages_fini(&f->storages);
}

static struct put put_of(struct fixture *f, const char *name) {
    return (struct put){.name = name,
                        .name_nbytes = strlen(name),
                        .desc = "desc",
                        .desc_nbytes = 4,
                        .storage = f->storage,
                        .account = &f->account,
                        .now_ms = f->now_ms};
}

static uint64_t put(struct fixture *f, struct put put) {
    uint64_t version;

    EXPECT_EQ(STATUS_OK, catalog_put(&f->catalog, &put, &version));
    return version;
}

static struct name *find(struct fixture *f, const char *name) {
    return catalog_find(&f->catalog, name, strlen(name), f->now_ms);
}

static int exists(struct fixture *f, const char *name) {
    return find(f, name) != NULL;
}

static struct waitlist *waitlist_of(struct fixture *f, const char *name) {
    return catalog_waitlist(&f->catalog, name, strlen(name));
}

/* All names with this prefix, in order, each followed by a blank. */
static const char *listed(struct fixture *f, const char *prefix) {
    static char text[256];
    const char *after = "";
    size_t after_nbytes = 0;
    struct name *name;
    int used = 0;

    text[0] = '\0';
    while ((name = catalog_next(&f->catalog, prefix, strlen(prefix), after, after_nbytes))) {
        used += snprintf(text + used, sizeof text - (size_t)used, "%.*s ", (int)name->nbytes,
                         name->bytes);
        after = name->bytes;
        after_nbytes = name->nbytes;
    }
    return text;
}

TEST(a_name_is_found_with_what_was_put) {
    struct fixture f;
    setup(&f);
    uint64_t version = put(&f, put_of(&f, "a"));
    const struct name *name = find(&f, "a");

    EXPECT_EQ(version, name->version);
    EXPECT_TRUE(name->storage == f.storage);
    EXPECT_EQ(4, name->desc_nbytes);
    EXPECT_EQ(0, memcmp(name_desc(name), "desc", 4));
    EXPECT_EQ(2, f.storage->references);
    teardown(&f);
}

TEST(versions_rise_and_are_never_repeated) {
    struct fixture f;
    setup(&f);

    EXPECT_EQ(1, put(&f, put_of(&f, "a")));
    EXPECT_EQ(2, put(&f, put_of(&f, "b")));
    EXPECT_EQ(3, put(&f, put_of(&f, "a")));
    catalog_delete(&f.catalog, find(&f, "a"));
    EXPECT_EQ(4, put(&f, put_of(&f, "a")));
    teardown(&f);
}

TEST(replacing_and_deleting_let_the_storage_go) {
    struct fixture f;
    setup(&f);

    put(&f, put_of(&f, "a"));
    put(&f, put_of(&f, "a"));
    EXPECT_EQ(2, f.storage->references);
    EXPECT_EQ(1, f.catalog.count);
    catalog_delete(&f.catalog, find(&f, "a"));
    EXPECT_EQ(1, f.storage->references);
    EXPECT_TRUE(find(&f, "a") == NULL);
    EXPECT_EQ(0, f.catalog.count);
    teardown(&f);
}

TEST(names_are_bytes_and_sorted_by_them) {
    struct fixture f;
    static const char *const names[] = {"b", "a/b", "a", "\xc3\xa4", "a/", "B", "ab", "a/a"};
    setup(&f);

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        put(&f, put_of(&f, names[i]));
    }
    EXPECT_STR_EQ("B a a/ a/a a/b ab b \xc3\xa4 ", listed(&f, ""));
    EXPECT_STR_EQ("a/ a/a a/b ", listed(&f, "a/"));
    EXPECT_STR_EQ("b ", listed(&f, "b"));
    EXPECT_STR_EQ("", listed(&f, "c"));
    EXPECT_STR_EQ("", listed(&f, "\xff"));
    teardown(&f);
}

TEST(a_list_goes_on_after_any_name_there_or_not) {
    struct fixture f;
    setup(&f);
    put(&f, put_of(&f, "p1"));
    put(&f, put_of(&f, "p3"));

    const struct name *name = catalog_next(&f.catalog, "p", 1, "p2", 2);
    EXPECT_TRUE(name && memcmp(name->bytes, "p3", 2) == 0);
    name = catalog_next(&f.catalog, "p", 1, "a", 1);
    EXPECT_TRUE(name && memcmp(name->bytes, "p1", 2) == 0);
    EXPECT_TRUE(catalog_next(&f.catalog, "p", 1, "p3", 2) == NULL);
    EXPECT_TRUE(catalog_next(&f.catalog, "p", 1, "z", 1) == NULL);
    teardown(&f);
}

TEST(a_limit_on_names_is_kept_but_replacing_goes_on) {
    struct fixture f;
    uint64_t version;
    setup(&f);
    f.catalog.max = 1;
    put(&f, put_of(&f, "a"));

    struct put second = put_of(&f, "b");
    EXPECT_EQ(STATUS_LIMIT, catalog_put(&f.catalog, &second, &version));
    EXPECT_TRUE(find(&f, "b") == NULL);
    EXPECT_EQ(2, put(&f, put_of(&f, "a")));
    teardown(&f);
}

TEST(a_ttl_ends_a_name_in_its_time_and_order) {
    struct fixture f;
    setup(&f);
    struct put put_later = put_of(&f, "later");
    struct put put_soon = put_of(&f, "soon");
    put_later.ttl_ms = 100;
    put_soon.ttl_ms = 10;
    put(&f, put_later);
    put(&f, put_soon);
    put(&f, put_of(&f, "never"));

    EXPECT_EQ(11, catalog_due(&f.catalog));
    EXPECT_TRUE(!catalog_expire(&f.catalog, 10));
    EXPECT_TRUE(exists(&f, "soon"));
    EXPECT_TRUE(!catalog_expire(&f.catalog, 11));
    EXPECT_STR_EQ("later never ", listed(&f, ""));
    EXPECT_EQ(101, catalog_due(&f.catalog));
    EXPECT_TRUE(!catalog_expire(&f.catalog, 1000));
    EXPECT_STR_EQ("never ", listed(&f, ""));
    EXPECT_TRUE(catalog_due(&f.catalog) == UINT64_MAX);
    teardown(&f);
}

TEST(a_name_whose_time_is_over_is_not_found_even_before_it_is_its_turn) {
    struct fixture f;
    setup(&f);
    struct put brief = put_of(&f, "a");
    brief.ttl_ms = 10;

    put(&f, brief);
    f.now_ms = 10;
    EXPECT_TRUE(exists(&f, "a"));
    f.now_ms = 11;
    EXPECT_TRUE(!exists(&f, "a"));
    EXPECT_EQ(0, f.catalog.count);
    EXPECT_TRUE(catalog_due(&f.catalog) == UINT64_MAX);
    teardown(&f);
}

TEST(names_that_end_in_the_same_millisecond_all_end) {
    struct fixture f;
    char text[16];
    setup(&f);

    for (int i = 0; i < 50; i++) {
        snprintf(text, sizeof text, "n%d", i);
        struct put brief = put_of(&f, text);
        brief.ttl_ms = 5;
        put(&f, brief);
    }
    EXPECT_TRUE(!catalog_expire(&f.catalog, 6));
    EXPECT_EQ(0, f.catalog.count);
    EXPECT_EQ(1, f.storage->references);
    teardown(&f);
}

enum { MANY = 3000 };

/* Puts many names, made so by `put`. */
static void given_many(struct fixture *f, struct put like) {
    char text[16];

    f->catalog.max = MANY;
    for (int i = 0; i < MANY; i++) {
        snprintf(text, sizeof text, "n%d", i);
        like.name = text;
        like.name_nbytes = strlen(text);
        put(f, like);
    }
}

TEST(many_that_expire_together_end_in_steps) {
    struct fixture f;
    setup(&f);
    struct put brief = put_of(&f, "");
    brief.ttl_ms = 5;
    given_many(&f, brief);

    EXPECT_TRUE(catalog_expire(&f.catalog, 6));
    EXPECT_TRUE(f.catalog.count > 0 && f.catalog.count < MANY);
    EXPECT_TRUE(catalog_expire_all(&f.catalog, 6));
    EXPECT_EQ(0, f.catalog.count);
    EXPECT_TRUE(!catalog_expire_all(&f.catalog, 7));
    teardown(&f);
}

TEST(many_names_of_one_owner_go_in_steps) {
    struct fixture f;
    struct list owner;
    setup(&f);
    list_init(&owner);
    struct put owned = put_of(&f, "");
    owned.owner = &owner;
    given_many(&f, owned);

    EXPECT_TRUE(catalog_drop(&f.catalog, &owner));
    EXPECT_TRUE(f.catalog.count > 0 && f.catalog.count < MANY);
    while (catalog_drop(&f.catalog, &owner)) {
    }
    EXPECT_EQ(0, f.catalog.count);
    teardown(&f);
}

TEST(putting_again_ends_the_old_lease) {
    struct fixture f;
    struct list owner;
    setup(&f);
    list_init(&owner);
    struct put leased = put_of(&f, "a");
    leased.ttl_ms = 10;
    leased.owner = &owner;

    put(&f, leased);
    put(&f, put_of(&f, "a"));
    EXPECT_TRUE(list_is_empty(&owner));
    EXPECT_TRUE(!catalog_expire(&f.catalog, 1000));
    EXPECT_TRUE(exists(&f, "a"));
    teardown(&f);
}

TEST(a_ttl_beyond_all_time_is_no_ttl) {
    struct fixture f;
    setup(&f);
    struct put endless = put_of(&f, "a");
    endless.ttl_ms = UINT64_MAX;

    put(&f, endless);
    EXPECT_TRUE(catalog_due(&f.catalog) == UINT64_MAX);
    EXPECT_TRUE(exists(&f, "a"));
    teardown(&f);
}

TEST(ephemeral_names_go_with_their_owner_and_only_those) {
    struct fixture f;
    struct list alice;
    struct list bob;
    setup(&f);
    list_init(&alice);
    list_init(&bob);
    struct put of_alice = put_of(&f, "alice");
    struct put of_bob = put_of(&f, "bob");
    of_alice.owner = &alice;
    of_bob.owner = &bob;
    put(&f, of_alice);
    put(&f, of_bob);
    put(&f, put_of(&f, "all"));

    catalog_drop(&f.catalog, &alice);
    EXPECT_STR_EQ("all bob ", listed(&f, ""));
    EXPECT_TRUE(list_is_empty(&alice));
    catalog_drop(&f.catalog, &bob);
    EXPECT_STR_EQ("all ", listed(&f, ""));
    teardown(&f);
}

TEST(a_put_wakes_who_waits_for_that_name) {
    struct fixture f;
    struct waiter first;
    struct waiter second;
    struct waiter other;
    setup(&f);

    waiter_wait(&first, waitlist_of(&f, "a"));
    waiter_wait(&second, waitlist_of(&f, "a"));
    waiter_wait(&other, waitlist_of(&f, "b"));
    EXPECT_TRUE(!exists(&f, "a"));
    EXPECT_STR_EQ("", listed(&f, ""));
    put(&f, put_of(&f, "a"));
    EXPECT_TRUE(list_pop(&f.ready) == &first.link);
    EXPECT_TRUE(list_pop(&f.ready) == &second.link);
    EXPECT_TRUE(list_is_empty(&f.ready));
    EXPECT_TRUE(exists(&f, "a") && !exists(&f, "b"));
    waiter_stop(&other);
    teardown(&f);
}

TEST(a_name_that_nobody_waits_for_any_more_is_forgotten) {
    struct fixture f;
    struct waiter first;
    struct waiter second;
    setup(&f);

    waiter_wait(&first, waitlist_of(&f, "a"));
    waiter_wait(&second, waitlist_of(&f, "a"));
    waiter_stop(&first);
    EXPECT_TRUE(f.catalog.awaited.root != NULL);
    waiter_stop(&second);
    EXPECT_TRUE(f.catalog.awaited.root == NULL);

    waitlist_check(waitlist_of(&f, "in vain"));
    EXPECT_TRUE(f.catalog.awaited.root == NULL);
    teardown(&f);
}

TEST(waiters_outlive_the_name_they_wait_beside) {
    struct fixture f;
    struct waiter waiter;
    setup(&f);
    put(&f, put_of(&f, "a"));

    waiter_wait(&waiter, waitlist_of(&f, "a"));
    catalog_delete(&f.catalog, find(&f, "a"));
    EXPECT_TRUE(!exists(&f, "a") && list_is_empty(&f.ready));
    put(&f, put_of(&f, "a"));
    EXPECT_TRUE(list_pop(&f.ready) == &waiter.link);
    teardown(&f);
}
