/* Tickets: what they keep alive, and when they are taken back. The storages have no bytes. */
#include "storages_fixture.h"

enum { LEASE_MS = 1000 };

struct fixture {
    struct segments segments;
    struct storages storages;
    struct account account; /* that is charged for all */
    struct tickets tickets;
    struct forkpages forks; /* alice's; bob does not fork */
    struct holds alice, bob;
    uint64_t now_ms;
};

static uint64_t now(void *owner) {
    return ((struct fixture *)owner)->now_ms;
}

static void on_freed(struct forkpages *forks, enum fork_kind kind, struct heap_node *node) {
    EXPECT_EQ(FORK_HOLD, kind);
    hold_freed(&container_of(forks, struct fixture, forks)->alice, node);
}

static void setup(struct fixture *f) {
    *f = (struct fixture){.storages = {.max = 100}, .account.has_client = true, .now_ms = 5};
    f->tickets =
        (struct tickets){.storages = &f->storages, .now = now, .owner = f, .lease_ms = LEASE_MS};
    f->alice = f->bob =
        (struct holds){.storages = &f->storages, .tickets = &f->tickets, .forks = &f->forks};
    storages_init(&f->storages);
    tickets_init(&f->tickets);
    f->forks.freed = on_freed;
    forkpages_init(&f->forks);
    holds_init(&f->alice);
    holds_init(&f->bob);
}

/* Everybody ends; asserts that nothing is left. */
static void teardown(struct fixture *f) {
    while (holds_return_some(&f->alice)) {
    }
    while (holds_return_some(&f->bob)) {
    }
    holds_fini(&f->alice);
    holds_fini(&f->bob);
    tickets_fini(&f->tickets);
    storages_fini(&f->storages);
    EXPECT_EQ(0, f->account.used[ACCOUNT_TICKETS]);
}

/* A storage that alice holds. */
static struct storage *given_storage(struct fixture *f) {
    return storage_held_by(&f->alice, &f->segments, &f->account);
}

static struct ticket *given_ticket(struct fixture *f, struct holds *sender,
                                   struct storage *storage) {
    return ticket_create(&f->tickets, storage, &f->account, &holds_find(sender, storage)->tickets);
}

static uint64_t expire_at(struct fixture *f, uint64_t now_ms) {
    f->now_ms = now_ms;
    return tickets_expire(&f->tickets);
}

TEST(a_ticket_keeps_its_storage_until_it_ends) {
    struct fixture f;
    setup(&f);
    struct storage *storage = given_storage(&f);
    uint64_t id = storage->id;
    struct ticket *ticket = given_ticket(&f, &f.alice, storage);

    hold_return(&f.alice, id, 1);
    EXPECT_TRUE(storage_find(&f.storages, id) == storage);
    ticket_end(&f.tickets, ticket);
    EXPECT_TRUE(storage_find(&f.storages, id) == NULL);
    teardown(&f);
}

TEST(a_ticket_is_found_until_it_ends_and_its_id_is_never_used_again) {
    struct fixture f;
    setup(&f);
    struct storage *storage = given_storage(&f);
    struct ticket *ticket = given_ticket(&f, &f.alice, storage);
    uint64_t id = ticket->id;

    EXPECT_TRUE(ticket_find(&f.tickets, id) == ticket);
    ticket_end(&f.tickets, ticket);
    EXPECT_TRUE(given_ticket(&f, &f.alice, storage)->id > id);
    EXPECT_TRUE(ticket_find(&f.tickets, id) == NULL);
    EXPECT_TRUE(ticket_find(&f.tickets, 0) == NULL);
    EXPECT_TRUE(ticket_find(&f.tickets, UINT64_MAX) == NULL);
    teardown(&f);
}

TEST(the_lease_begins_when_the_sender_is_done) {
    struct fixture f;
    setup(&f);
    struct storage *storage = given_storage(&f);
    given_ticket(&f, &f.alice, storage);

    EXPECT_EQ(0, expire_at(&f, 100 * LEASE_MS));
    EXPECT_TRUE(tickets_due(&f.tickets) == UINT64_MAX);
    hold_return(&f.alice, storage->id, 1);
    EXPECT_EQ(101 * LEASE_MS, tickets_due(&f.tickets));
    EXPECT_EQ(0, expire_at(&f, 101 * LEASE_MS - 1));
    EXPECT_EQ(1, expire_at(&f, 101 * LEASE_MS));
    EXPECT_EQ(0, f.storages.by_id.count);
    teardown(&f);
}

TEST(another_holder_does_not_keep_the_lease_from_beginning) {
    struct fixture f;
    setup(&f);
    struct storage *storage = given_storage(&f);
    given_ticket(&f, &f.alice, storage);
    hold_grant(&f.bob, storage);

    hold_return(&f.alice, storage->id, 1);
    EXPECT_EQ(1, expire_at(&f, 2 * LEASE_MS));
    EXPECT_EQ(1, storage->holders);
    teardown(&f);
}

TEST(leases_end_in_the_order_they_began) {
    struct fixture f;
    setup(&f);
    struct storage *first = given_storage(&f);
    struct storage *second = given_storage(&f);
    given_ticket(&f, &f.alice, first);
    given_ticket(&f, &f.alice, second);
    given_ticket(&f, &f.alice, first);

    hold_return(&f.alice, second->id, 1);
    f.now_ms += 10;
    hold_return(&f.alice, first->id, 1);
    EXPECT_EQ(1, expire_at(&f, LEASE_MS + 5));
    EXPECT_EQ(LEASE_MS + 15, tickets_due(&f.tickets));
    EXPECT_EQ(2, expire_at(&f, LEASE_MS + 15));
    EXPECT_EQ(0, f.tickets.by_id.count);
    teardown(&f);
}

TEST(a_ticket_redeemed_during_its_lease_is_not_taken_back) {
    struct fixture f;
    setup(&f);
    struct storage *storage = given_storage(&f);
    struct ticket *ticket = given_ticket(&f, &f.alice, storage);

    hold_return(&f.alice, storage->id, 1);
    hold_grant(&f.bob, storage);
    ticket_end(&f.tickets, ticket);
    EXPECT_EQ(0, expire_at(&f, 10 * LEASE_MS));
    EXPECT_EQ(1, storage->holders);
    teardown(&f);
}

TEST(the_end_of_its_process_ends_a_senders_holds_too) {
    struct fixture f;
    setup(&f);
    given_ticket(&f, &f.alice, given_storage(&f));
    given_ticket(&f, &f.alice, given_storage(&f));

    while (holds_return_some(&f.alice)) {
    }
    EXPECT_EQ(LEASE_MS + 5, tickets_due(&f.tickets));
    EXPECT_EQ(2, f.storages.by_id.count);
    EXPECT_EQ(2, expire_at(&f, LEASE_MS + 5));
    EXPECT_EQ(0, f.storages.by_id.count);
    teardown(&f);
}

TEST(a_parked_hold_counts_as_done) {
    struct fixture f;
    setup(&f);
    struct storage *storage = given_storage(&f);
    given_ticket(&f, &f.alice, storage);

    EXPECT_EQ(0, forkpages_note(&f.forks, -1));
    hold_return(&f.alice, storage->id, 1);
    EXPECT_EQ(LEASE_MS + 5, tickets_due(&f.tickets));
    EXPECT_EQ(1, expire_at(&f, LEASE_MS + 5));
    EXPECT_EQ(1, storage->holders);
    forkpages_fini(&f.forks);
    while (forkpages_free_some(&f.forks)) {
    }
    teardown(&f);
}
