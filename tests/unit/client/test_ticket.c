/* Tickets through a real daemon: between processes, often, never, forged, and too late. */
#include <dlpack/dlpack.h>
#include <sys/resource.h>

#include "client_fixture.h"

struct ticket {
    size_t nbytes;
    char bytes[TCX_TICKET_MAX];
};

static struct ticket ticket_of(tcx_client_t *from, tcx_tensor_t *tensor) {
    struct ticket ticket;

    memset(&ticket, 0, sizeof ticket);
    EXPECT_OK(tcx_tensor_ticket(from, tensor, ticket.bytes, &ticket.nbytes));
    return ticket;
}

static tcx_tensor_t *redeem(const struct ticket *ticket) {
    tcx_tensor_t *tensor;

    EXPECT_OK(tcx_redeem(client, ticket->bytes, ticket->nbytes, &tensor, NULL));
    return tensor;
}

static void expect_refused(int status, const struct ticket *ticket, const char *text) {
    tcx_tensor_t *tensor = NULL;
    tcx_bundle_t *bundle = NULL;

    EXPECT_EQ(status, tcx_redeem(client, ticket->bytes, ticket->nbytes, &tensor, &bundle));
    EXPECT_TRUE(!tensor && !bundle);
    if (!strstr(tcx_error(), text)) {
        TEST_FAILED("\"%s\" does not say \"%s\"", tcx_error(), text);
    }
}

/* Shared memory with the numbers from 0. */
static tcx_tensor_t *numbers(tcx_client_t *from, int64_t count) {
    tcx_tensor_t *tensor;

    EXPECT_OK(tcx_empty(from, (tcx_device_t){0}, float32, 1, &count, &tensor));
    for (int64_t i = 0; i < count; i++) {
        floats_of(tensor)[i] = (float)i;
    }
    return tensor;
}

/* ----------------------------------------------------------------------------- how often, where */

/* Of a thousand numbers, from a process that is gone. */
static struct ticket ticket_of_another(void) {
    struct ticket ticket;
    int status;
    int ends[2];

    EXPECT_EQ(0, pipe(ends));
    pid_t maker = fork();
    if (maker == 0) {
        tcx_tensor_t *made = numbers(client, 1000);
        ticket = ticket_of(client, made);
        EXPECT_EQ(sizeof ticket, write(ends[1], &ticket, sizeof ticket));
        _exit(0); /* without letting anything go */
    }
    EXPECT_EQ(sizeof ticket, read(ends[0], &ticket, sizeof ticket));
    EXPECT_EQ(maker, waitpid(maker, &status, 0));
    EXPECT_EQ(0, status);
    close(ends[0]);
    close(ends[1]);
    expect_settles(client, 0, 1);
    return ticket;
}

TEST(a_ticket_outlives_its_maker_and_is_the_memory_in_another_process) {
    given_daemon();
    struct ticket ticket = ticket_of_another();
    tcx_tensor_t *tensor = redeem(&ticket);
    EXPECT_EQ(1000, tcx_tensor_array(tensor)->shape[0]);
    EXPECT_EQ(999, floats_of(tensor)[999]);
    tcx_tensor_unref(tensor);
    expect_settles(client, 0, 0);
    end_daemon();
}

TEST(a_ticket_whose_memory_cannot_be_mapped_just_now_is_good_later) {
    struct rlimit before;

    given_daemon();
    struct ticket ticket = ticket_of_another();
    EXPECT_EQ(0, getrlimit(RLIMIT_NOFILE, &before));
    struct rlimit none = {3, before.rlim_max};
    EXPECT_EQ(0, setrlimit(RLIMIT_NOFILE, &none));
    expect_refused(TCX_SYSTEM, &ticket, "cannot be mapped");
    EXPECT_EQ(0, setrlimit(RLIMIT_NOFILE, &before));
    tcx_tensor_t *tensor = redeem(&ticket);
    EXPECT_EQ(999, floats_of(tensor)[999]);
    tcx_tensor_unref(tensor);
    end_daemon();
}

TEST(a_ticket_redeemed_where_it_was_made_is_the_same_memory) {
    given_daemon();
    tcx_tensor_t *made = numbers(client, 10);
    struct ticket ticket = ticket_of(client, made);
    tcx_tensor_t *redeemed = redeem(&ticket);
    EXPECT_TRUE(floats_of(made) == floats_of(redeemed));
    EXPECT_EQ(info_of(made).storage_id, info_of(redeemed).storage_id);
    EXPECT_TRUE(info_of(redeemed).is_shared);
    tcx_tensor_unref(made);
    EXPECT_EQ(9, floats_of(redeemed)[9]);
    tcx_tensor_unref(redeemed);
    expect_settles(client, 0, 0);
    end_daemon();
}

TEST(a_used_ticket_works_again_as_long_as_the_memory_lives) {
    tcx_stats_t stats;

    given_daemon();
    tcx_tensor_t *made = numbers(client, 10);
    struct ticket ticket = ticket_of(client, made);
    EXPECT_OK(tcx_stats(client, &stats));
    EXPECT_EQ(1, stats.tickets);
    for (int i = 0; i < 3; i++) {
        tcx_tensor_unref(redeem(&ticket));
    }
    EXPECT_OK(tcx_stats(client, &stats));
    EXPECT_EQ(0, stats.tickets);
    tcx_tensor_unref(made);
    expect_settles(client, 0, 0);
    expect_refused(TCX_STALE, &ticket, "gone");
    end_daemon();
}

TEST(of_two_tickets_each_keeps_the_memory) {
    given_daemon();
    tcx_tensor_t *made = numbers(client, 10);
    struct ticket one = ticket_of(client, made);
    struct ticket two = ticket_of(client, made);
    EXPECT_TRUE(memcmp(&one, &two, sizeof one) != 0);
    tcx_tensor_unref(made);
    tcx_tensor_unref(redeem(&one));
    expect_settles(client, 0, 1);
    tcx_tensor_t *redeemed = redeem(&two);
    EXPECT_EQ(9, floats_of(redeemed)[9]);
    tcx_tensor_unref(redeemed);
    expect_settles(client, 0, 0);
    end_daemon();
}

/* --------------------------------------------------------------------------------- what travels */

TEST(a_view_travels_as_it_is_and_keeps_its_storage) {
    int64_t shape[2] = {3, 5};
    tcx_tensor_t *view;

    given_daemon();
    tcx_tensor_t *made = numbers(client, 100);
    EXPECT_OK(tcx_tensor_view(made, float32, 2, shape, 40, 0, &view));
    struct ticket ticket = ticket_of(client, view);
    tcx_tensor_t *redeemed = redeem(&ticket);
    EXPECT_EQ(2, tcx_tensor_array(redeemed)->ndim);
    EXPECT_EQ(5, tcx_tensor_array(redeemed)->shape[1]);
    EXPECT_TRUE(floats_of(redeemed) == floats_of(made) + 10);
    EXPECT_EQ(400, info_of(redeemed).storage_nbytes);
    EXPECT_TRUE(!info_of(redeemed).readonly);
    tcx_tensor_unref(redeemed);
    tcx_tensor_unref(view);
    tcx_tensor_unref(made);
    expect_settles(client, 0, 0);
    end_daemon();
}

TEST(read_only_travels_and_a_name_does_not) {
    tcx_get_options_t options = {.readonly = 1};
    struct floats floats;
    float seven = 7;
    tcx_tensor_t *got;

    given_daemon();
    EXPECT_OK(tcx_put(client, "x", floats_on(&floats, &seven, 1), NULL, NULL));
    EXPECT_OK(tcx_get(client, "x", &options, &got, NULL));
    struct ticket ticket = ticket_of(client, got);
    tcx_tensor_t *redeemed = redeem(&ticket);
    EXPECT_TRUE(info_of(redeemed).readonly);
    EXPECT_TRUE(tcx_tensor_array(redeemed)->readonly);
    EXPECT_TRUE(info_of(redeemed).name == NULL);
    EXPECT_EQ(0, info_of(redeemed).version);
    tcx_tensor_unref(redeemed);
    tcx_tensor_unref(got);
    expect_settles(client, 0, 1);
    end_daemon();
}

TEST(scalars_and_empty_shapes_travel) {
    tcx_dtype_t int64 = {TCX_INT, 64, 1};
    int64_t shape[3] = {4, 0, 7};
    tcx_tensor_t *made;

    given_daemon();
    EXPECT_OK(tcx_zeros(client, (tcx_device_t){0}, int64, 0, NULL, &made));
    struct ticket ticket = ticket_of(client, made);
    tcx_tensor_unref(made);
    tcx_tensor_t *redeemed = redeem(&ticket);
    EXPECT_EQ(0, tcx_tensor_array(redeemed)->ndim);
    EXPECT_EQ(0, *(int64_t *)tcx_tensor_array(redeemed)->data);
    tcx_tensor_unref(redeemed);

    EXPECT_OK(tcx_empty(client, (tcx_device_t){0}, int64, 3, shape, &made));
    ticket = ticket_of(client, made);
    tcx_tensor_unref(made);
    redeemed = redeem(&ticket);
    EXPECT_EQ(7, tcx_tensor_array(redeemed)->shape[2]);
    EXPECT_EQ(0, info_of(redeemed).nbytes);
    tcx_tensor_unref(redeemed);
    expect_settles(client, 0, 0);
    end_daemon();
}

static void delete_nothing(struct DLManagedTensorVersioned *self) {
    (void)self;
}

/* A tensor on memory that is not the daemon's, or whose storage nobody has told us about. */
static tcx_tensor_t *local(float *data, int64_t *shape, struct DLManagedTensorVersioned *managed) {
    tcx_tensor_t *tensor;

    *managed = (struct DLManagedTensorVersioned){
        .version = {1, 0},
        .deleter = delete_nothing,
        .dl_tensor = {.data = data, .device = {kDLCPU, 0}, .ndim = 1, .dtype = {kDLFloat, 32, 1}},
    };
    managed->dl_tensor.shape = shape;
    EXPECT_OK(tcx_from_dlpack(NULL, managed, TCX_COPY_NEVER, &tensor));
    return tensor;
}

TEST(private_memory_is_copied_and_the_copy_lives_until_it_is_redeemed) {
    static _Alignas(64) float data[3] = {1, 2, 3};
    struct DLManagedTensorVersioned managed;
    int64_t shape[1] = {3};

    given_daemon();
    tcx_tensor_t *tensor = local(data, shape, &managed);
    EXPECT_TRUE(!info_of(tensor).is_shared);
    struct ticket ticket = ticket_of(client, tensor);
    data[2] = 0;
    tcx_tensor_unref(tensor);
    expect_settles(client, 0, 1);
    tcx_tensor_t *redeemed = redeem(&ticket);
    EXPECT_TRUE(info_of(redeemed).is_shared);
    EXPECT_EQ(3, floats_of(redeemed)[2]);
    tcx_tensor_unref(redeemed);
    expect_settles(client, 0, 0);
    end_daemon();
}

TEST(shared_memory_that_came_back_by_a_framework_is_not_copied) {
    struct DLManagedTensorVersioned managed;
    int64_t shape[1] = {2};

    given_daemon();
    tcx_tensor_t *made = numbers(client, 10);
    tcx_tensor_t *tensor = local(floats_of(made) + 4, shape, &managed);
    struct ticket ticket = ticket_of(client, tensor);
    tcx_tensor_t *redeemed = redeem(&ticket);
    EXPECT_TRUE(floats_of(redeemed) == floats_of(made) + 4);
    tcx_tensor_unref(redeemed);
    tcx_tensor_unref(tensor);
    tcx_tensor_unref(made);
    expect_settles(client, 0, 0);
    end_daemon();
}

TEST(another_clients_tensor_is_not_copied) {
    given_daemon();
    tcx_client_t *other = daemon_client(&own);
    tcx_tensor_t *made = numbers(other, 10);
    struct ticket ticket = ticket_of(client, made);
    tcx_tensor_t *redeemed = redeem(&ticket);
    EXPECT_TRUE(floats_of(redeemed) == floats_of(made));
    expect_settles(client, 2, 1);
    tcx_tensor_unref(made);
    tcx_client_close(other);
    EXPECT_EQ(9, floats_of(redeemed)[9]);
    tcx_tensor_unref(redeemed);
    expect_settles(client, 0, 0);
    end_daemon();
}

/* -------------------------------------------------------------------------------------- bundles */

/* One item that is packed, one that refers to `shared`, and an empty mapping. */
static tcx_bundle_t *put_bundle(tcx_client_t *to, const tcx_tensor_t *shared, unsigned flags) {
    tcx_put_options_t options = {.flags = flags};
    struct floats floats;
    float data[2] = {5, 6};
    tcx_bundle_t *bundle;
    const tcx_item_t items[] = {
        {PATH("a", "packed"), floats_on(&floats, data, 2)},
        {PATH("a", "shared"), tcx_tensor_array(shared)},
        {PATH("empty"), NULL},
    };

    EXPECT_OK(tcx_put_bundle(to, NULL, items, 3, &options, &bundle));
    return bundle;
}

static struct ticket ticket_of_bundle(tcx_bundle_t *bundle) {
    struct ticket ticket;

    EXPECT_OK(tcx_bundle_ticket(client, bundle, ticket.bytes, &ticket.nbytes));
    return ticket;
}

/* Redeems what put_bundle() has made. */
static tcx_bundle_t *redeem_bundle(const struct ticket *ticket) {
    const char *const *path;
    size_t depth;
    tcx_bundle_t *bundle;
    tcx_tensor_t *item;

    EXPECT_OK(tcx_redeem(client, ticket->bytes, ticket->nbytes, NULL, &bundle));
    EXPECT_EQ(3, tcx_bundle_count(bundle));
    tcx_bundle_item(bundle, 0, &path, &depth, &item);
    EXPECT_STR_EQ("packed", path[1]);
    EXPECT_EQ(6, floats_of(item)[1]);
    tcx_bundle_item(bundle, 1, &path, &depth, &item);
    EXPECT_STR_EQ("shared", path[1]);
    EXPECT_EQ(9, floats_of(item)[9]);
    tcx_bundle_item(bundle, 2, &path, &depth, &item);
    EXPECT_TRUE(item == NULL);
    return bundle;
}

TEST(a_bundle_travels_with_all_that_it_refers_to) {
    tcx_info_t info;
    tcx_tensor_t *tensor;

    given_daemon();
    tcx_tensor_t *shared = numbers(client, 10);
    tcx_bundle_t *bundle = put_bundle(client, shared, TCX_PUT_READONLY);
    struct ticket ticket = ticket_of_bundle(bundle);
    tcx_bundle_unref(bundle);
    tcx_tensor_unref(shared);
    expect_settles(client, 0, 2);

    EXPECT_EQ(TCX_INVALID, tcx_redeem(client, ticket.bytes, ticket.nbytes, &tensor, NULL));
    EXPECT_STR_EQ("the ticket is of a bundle, not of a tensor", tcx_error());
    bundle = redeem_bundle(&ticket);
    tcx_bundle_info(bundle, &info);
    EXPECT_TRUE(info.readonly);
    tcx_bundle_unref(bundle);
    expect_settles(client, 0, 0);
    end_daemon();
}

TEST(a_tensors_ticket_is_not_a_bundles) {
    tcx_bundle_t *bundle;

    given_daemon();
    tcx_tensor_t *made = numbers(client, 1);
    struct ticket ticket = ticket_of(client, made);
    EXPECT_EQ(TCX_INVALID, tcx_redeem(client, ticket.bytes, ticket.nbytes, NULL, &bundle));
    EXPECT_STR_EQ("the ticket is of a tensor, not of a bundle", tcx_error());
    tcx_tensor_unref(made);
    tcx_tensor_unref(redeem(&ticket)); /* it was not used up */
    end_daemon();
}

/* -------------------------------------------------------------------------------- other daemons */

TEST(what_a_daemon_that_is_gone_left_is_copied_into_the_next_one) {
    given_daemon();
    tcx_tensor_t *made = numbers(client, 10);
    tcx_bundle_t *bundle = put_bundle(client, made, 0);
    struct ticket old = ticket_of(client, made);
    daemon_kill(&own);
    EXPECT_TRUE(!info_of(made).is_shared); /* looks, and so knows */
    expect_refused(TCX_UNAVAILABLE, &old, own.socket);

    daemon_run(&own);
    expect_refused(TCX_STALE, &old, "another daemon");
    struct ticket ticket = ticket_of(client, made);
    tcx_tensor_t *redeemed = redeem(&ticket);
    EXPECT_TRUE(floats_of(redeemed) != floats_of(made));
    EXPECT_EQ(9, floats_of(redeemed)[9]);
    tcx_tensor_unref(redeemed);
    tcx_tensor_unref(made);

    ticket = ticket_of_bundle(bundle);
    tcx_bundle_unref(bundle);
    tcx_bundle_unref(redeem_bundle(&ticket));
    expect_settles(client, 0, 0);
    end_daemon();
}

static void lose_connection(void) {
    struct session *session = client->session;

    session_lock(session);
    session_die(session, "the test ends it");
    session_unlock(session);
}

TEST(of_a_lost_connections_memory_only_what_the_next_one_does_not_have_is_copied) {
    tcx_tensor_t *got;

    given_daemon();
    tcx_tensor_t *named = numbers(client, 10);
    tcx_tensor_t *unnamed = numbers(client, 10);
    EXPECT_OK(tcx_put(client, "x", tcx_tensor_array(named), NULL, NULL));
    lose_connection();
    EXPECT_OK(tcx_get(client, "x", NULL, &got, NULL));

    struct ticket ticket = ticket_of(client, named);
    tcx_tensor_t *redeemed = redeem(&ticket);
    EXPECT_TRUE(floats_of(redeemed) == floats_of(named));
    tcx_tensor_unref(redeemed);
    ticket = ticket_of(client, unnamed);
    redeemed = redeem(&ticket);
    EXPECT_TRUE(floats_of(redeemed) != floats_of(unnamed));
    EXPECT_EQ(9, floats_of(redeemed)[9]);
    tcx_tensor_unref(redeemed);
    tcx_tensor_unref(named);
    tcx_tensor_unref(unnamed);
    tcx_tensor_unref(got);
    EXPECT_OK(tcx_delete(client, "x"));
    expect_settles(client, 0, 0);
    end_daemon();
}

TEST(redeeming_starts_no_daemon) {
    tcx_client_options_t options = {.socket = own.socket}; /* this client would */
    tcx_tensor_t *tensor;

    given_daemon();
    tcx_tensor_t *made = numbers(client, 1);
    struct ticket ticket = ticket_of(client, made);
    tcx_tensor_unref(made);
    tcx_client_close(client);
    daemon_kill(&own);
    EXPECT_OK(tcx_client_open(&options, &client));
    EXPECT_EQ(TCX_UNAVAILABLE, tcx_redeem(client, ticket.bytes, ticket.nbytes, &tensor, NULL));
    tcx_client_close(client);
    daemon_clean(&own);
}

/* ------------------------------------------------------------------------------- edited, forged */

TEST(a_ticket_with_any_byte_changed_is_refused) {
    given_daemon();
    tcx_tensor_t *made = numbers(client, 10);
    const struct ticket ticket = ticket_of(client, made);
    for (size_t i = 0; i < ticket.nbytes; i++) {
        struct ticket changed = ticket;
        changed.bytes[i] ^= 0x10;
        expect_refused(TCX_INVALID, &changed, "this is no ticket of tensorcx: ");
    }
    tcx_tensor_unref(redeem(&ticket));
    tcx_tensor_unref(made);
    end_daemon();
}

TEST(a_ticket_that_is_cut_or_longer_is_refused) {
    given_daemon();
    tcx_tensor_t *made = numbers(client, 10);
    const struct ticket ticket = ticket_of(client, made);
    for (size_t i = 0; i <= sizeof ticket.bytes; i++) {
        struct ticket changed = ticket;
        changed.nbytes = i;
        if (i != ticket.nbytes) {
            expect_refused(TCX_INVALID, &changed, "this is no ticket of tensorcx: ");
        }
    }
    struct ticket none = {0};
    EXPECT_EQ(TCX_INVALID, tcx_redeem(client, NULL, 0, NULL, NULL));
    expect_refused(TCX_INVALID, &none, "length");
    tcx_tensor_unref(made);
    end_daemon();
}

/* Puts a number where the ticket has one, and the check value right again. */
static struct ticket forge(struct ticket ticket, size_t at, uint64_t number) {
    uint64_t value = 0xcbf29ce484222325u ^ ticket.nbytes;

    memcpy(ticket.bytes + at, &number, sizeof number);
    for (size_t i = 16; i < ticket.nbytes; i++) {
        value = (value ^ (unsigned char)ticket.bytes[i]) * 0x100000001b3u;
    }
    memcpy(ticket.bytes + 8, &value, sizeof value);
    return ticket;
}

TEST(a_forged_ticket_reaches_nothing_but_what_it_says_honestly) {
    enum { TICKET = 24, STORAGE = 32, OFFSET = 40 + 16, SHAPE = 40 + 24 };
    given_daemon();
    tcx_tensor_t *made = numbers(client, 10);
    tcx_tensor_t *other = numbers(client, 10);
    struct ticket ticket = ticket_of(client, made);
    struct ticket forged = forge(ticket, STORAGE, info_of(other).storage_id);
    expect_refused(TCX_STALE, &forged, "");
    forged = forge(ticket, STORAGE, 12345);
    expect_refused(TCX_STALE, &forged, "");
    forged = forge(ticket, OFFSET, 4);
    expect_refused(TCX_INVALID, &forged, "this is no ticket of tensorcx: ");
    forged = forge(ticket, SHAPE, 11);
    expect_refused(TCX_INVALID, &forged, "this is no ticket of tensorcx: ");
    forged = forge(ticket, TICKET, 12345); /* as if it were used up */
    tcx_tensor_unref(redeem(&forged));
    tcx_tensor_unref(made);
    tcx_tensor_unref(other);
    end_daemon();
}
