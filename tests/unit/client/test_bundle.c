/* Bundles through a real daemon, and packs made by hand that lie about themselves. */
#include "client_fixture.h"
#include "index.h"
#include "layout.h"
#include "publish.h"

static tcx_bundle_t *get(tcx_client_t *from, const char *name) {
    tcx_bundle_t *bundle;

    EXPECT_OK(tcx_get(from, name, NULL, NULL, &bundle));
    return bundle;
}

static tcx_tensor_t *item(const tcx_bundle_t *bundle, size_t index) {
    const char *const *path;
    size_t depth;
    tcx_tensor_t *tensor;

    tcx_bundle_item(bundle, index, &path, &depth, &tensor);
    return tensor;
}

static uint64_t storage_of(const tcx_tensor_t *tensor) {
    tcx_info_t info;

    tcx_tensor_info(tensor, &info);
    return info.storage_id;
}

/* ------------------------------------------------------------------------------------- put, get */

TEST(a_tree_comes_back_in_its_order) {
    struct floats a;
    struct floats b;
    float data[3] = {1, 2, 3};
    const char *const *path;
    size_t depth;
    tcx_tensor_t *tensor;

    given_daemon();
    const tcx_item_t items[] = {
        {PATH("z", "deep", "er"), floats_on(&a, data, 3)},
        {PATH("a"), floats_on(&b, data + 1, 1)},
        {PATH("z", "nothing"), NULL},
    };
    EXPECT_OK(tcx_put_bundle(client, "tree", items, 3, NULL, NULL));
    tcx_bundle_t *bundle = get(client, "tree");
    EXPECT_EQ(3, tcx_bundle_count(bundle));
    tcx_bundle_item(bundle, 0, &path, &depth, &tensor);
    EXPECT_EQ(3, depth);
    EXPECT_STR_EQ("er", path[2]);
    EXPECT_EQ(3, floats_of(tensor)[2]);
    tcx_bundle_item(bundle, 1, &path, &depth, &tensor);
    EXPECT_STR_EQ("a", path[0]);
    EXPECT_EQ(2, floats_of(tensor)[0]);
    tcx_bundle_item(bundle, 2, &path, &depth, &tensor);
    EXPECT_STR_EQ("nothing", path[1]);
    EXPECT_TRUE(tensor == NULL);

    tcx_info_t info;
    tcx_bundle_info(bundle, &info);
    EXPECT_STR_EQ("tree", info.name);
    EXPECT_EQ(16, info.nbytes);
    EXPECT_TRUE(info.is_shared && info.version == 1);
    tcx_bundle_unref(bundle);
    end_with(1);
}

TEST(an_empty_bundle_is_a_bundle) {
    given_daemon();
    EXPECT_OK(tcx_put_bundle(client, "none", NULL, 0, NULL, NULL));
    tcx_bundle_t *bundle = get(client, "none");
    EXPECT_EQ(0, tcx_bundle_count(bundle));
    tcx_bundle_unref(bundle);
    end_with(1);
}

TEST(a_tensor_is_no_bundle_and_a_bundle_no_tensor) {
    struct floats floats;
    float data = 1;
    tcx_tensor_t *tensor;
    tcx_bundle_t *bundle;

    given_daemon();
    EXPECT_OK(tcx_put(client, "t", floats_on(&floats, &data, 1), NULL, NULL));
    EXPECT_OK(tcx_put_bundle(client, "b", NULL, 0, NULL, NULL));
    EXPECT_EQ(TCX_INVALID, tcx_get(client, "b", NULL, &tensor, NULL));
    EXPECT_STR_EQ("\"b\" is a bundle, not a tensor", tcx_error());
    EXPECT_EQ(TCX_INVALID, tcx_get(client, "t", NULL, NULL, &bundle));
    EXPECT_STR_EQ("\"t\" is a tensor, not a bundle", tcx_error());
    end_with(2);
}

TEST(private_arrays_lie_in_one_storage_and_tied_ones_are_stored_once) {
    static float weights[50000];
    struct floats a;
    struct floats b;
    struct floats half;

    given_daemon();
    const tcx_item_t items[] = {
        {PATH("in"), floats_on(&a, weights, 50000)},
        {PATH("half"), floats_on(&half, weights, 25000)}, /* same memory, another layout */
        {PATH("out"), floats_on(&b, weights, 50000)},
    };
    weights[49999] = 9;
    EXPECT_OK(tcx_put_bundle(client, "tied", items, 3, NULL, NULL));
    tcx_bundle_t *bundle = get(client, "tied");
    EXPECT_TRUE(floats_of(item(bundle, 0)) == floats_of(item(bundle, 2)));
    EXPECT_TRUE(floats_of(item(bundle, 0)) != floats_of(item(bundle, 1)));
    EXPECT_EQ(9, floats_of(item(bundle, 2))[49999]);
    EXPECT_EQ(storage_of(item(bundle, 0)), storage_of(item(bundle, 1)));
    EXPECT_EQ(0, (uintptr_t)floats_of(item(bundle, 1)) % 64);
    tcx_stats_t stats;
    EXPECT_OK(tcx_stats(client, &stats));
    EXPECT_EQ(1, stats.storages);
    EXPECT_TRUE(stats.bytes < 310000);
    tcx_bundle_unref(bundle);
    end_with(1);
}

TEST(one_tensor_of_a_bundle_keeps_its_memory) {
    struct floats floats;
    float data = 4;

    given_daemon();
    const tcx_item_t items[] = {{PATH("a"), floats_on(&floats, &data, 1)}};
    EXPECT_OK(tcx_put_bundle(client, "b", items, 1, NULL, NULL));
    tcx_bundle_t *bundle = get(client, "b");
    tcx_tensor_t *kept = tcx_tensor_ref(item(bundle, 0));
    tcx_bundle_unref(bundle);
    EXPECT_OK(tcx_delete(client, "b"));
    EXPECT_EQ(4, floats_of(kept)[0]);
    tcx_tensor_unref(kept);
    end();
}

TEST(shared_arrays_are_referred_to_and_kept_alive_by_the_name) {
    struct floats floats;
    float data = 4;
    tcx_tensor_t *shared;
    tcx_tensor_t *other;

    given_daemon();
    EXPECT_OK(tcx_zeros(client, (tcx_device_t){0}, float32, 1, (int64_t[]){8}, &shared));
    EXPECT_OK(tcx_zeros(client, (tcx_device_t){0}, float32, 1, (int64_t[]){8}, &other));
    tcx_array_t tail = *tcx_tensor_array(shared);
    tail.data = floats_of(shared) + 6;
    tail.shape = (int64_t[]){2};
    const tcx_item_t items[] = {
        {PATH("private"), floats_on(&floats, &data, 1)},
        {PATH("shared"), tcx_tensor_array(shared)},
        {PATH("tail"), &tail},
        {PATH("other"), tcx_tensor_array(other)},
    };
    EXPECT_OK(tcx_put_bundle(client, "b", items, 4, NULL, NULL));
    floats_of(shared)[7] = 3;
    uint64_t id = storage_of(shared);
    tcx_tensor_unref(shared);
    tcx_tensor_unref(other);
    expect_settles(client, 0, 3);

    tcx_client_t *reader = daemon_client(&own);
    tcx_bundle_t *bundle = get(reader, "b");
    EXPECT_EQ(id, storage_of(item(bundle, 1)));
    EXPECT_EQ(3, floats_of(item(bundle, 1))[7]);
    EXPECT_TRUE(floats_of(item(bundle, 2)) == floats_of(item(bundle, 1)) + 6);
    EXPECT_EQ(4, floats_of(item(bundle, 0))[0]);
    EXPECT_OK(tcx_delete(client, "b"));
    EXPECT_EQ(3, floats_of(item(bundle, 1))[7]);
    tcx_bundle_unref(bundle);
    tcx_client_close(reader);
    end();
}

TEST(a_bundle_may_refer_to_more_than_one_hold_can_name) {
    enum { COUNT = 2500 };
    tcx_tensor_t **tensors = calloc(COUNT, sizeof(tcx_tensor_t *));
    tcx_item_t *items = calloc(COUNT, sizeof *items);
    char(*names)[12] = calloc(COUNT, sizeof *names);
    const char **keys = calloc(COUNT, sizeof *keys);

    given_daemon();
    for (int i = 0; i < COUNT; i++) {
        EXPECT_OK(tcx_zeros(client, (tcx_device_t){0}, float32, 1, (int64_t[]){1}, &tensors[i]));
        floats_of(tensors[i])[0] = (float)i;
        snprintf(names[i], sizeof names[i], "%d", i);
        keys[i] = names[i];
        items[i] = (tcx_item_t){&keys[i], 1, tcx_tensor_array(tensors[i])};
    }
    EXPECT_OK(tcx_put_bundle(client, "many", items, COUNT, NULL, NULL));
    for (int i = 0; i < COUNT; i++) {
        tcx_tensor_unref(tensors[i]);
    }
    tcx_bundle_t *bundle = get(client, "many");
    for (size_t i = 0; i < COUNT; i++) {
        EXPECT_EQ(i, floats_of(item(bundle, i))[0]);
    }
    tcx_bundle_unref(bundle);
    EXPECT_OK(tcx_delete(client, "many"));
    free(tensors);
    free(items);
    free(names);
    free(keys);
    end();
}

TEST(read_only_bundles_have_read_only_tensors) {
    tcx_put_options_t readonly = {.flags = TCX_PUT_READONLY};
    tcx_get_options_t reader = {.readonly = 1};
    struct floats floats;
    float data = 4;
    tcx_bundle_t *bundle;
    tcx_info_t info;

    given_daemon();
    const tcx_item_t items[] = {{PATH("a"), floats_on(&floats, &data, 1)}};
    EXPECT_OK(tcx_put_bundle(client, "r", items, 1, &readonly, NULL));
    bundle = get(client, "r");
    tcx_tensor_info(item(bundle, 0), &info);
    EXPECT_TRUE(info.readonly);
    tcx_bundle_unref(bundle);
    EXPECT_OK(tcx_put_bundle(client, "w", items, 1, NULL, NULL));
    EXPECT_OK(tcx_get(client, "w", &reader, NULL, &bundle));
    tcx_tensor_info(item(bundle, 0), &info);
    EXPECT_TRUE(info.readonly);
    tcx_bundle_unref(bundle);
    end_with(2);
}

/* --------------------------------------------------------------------------------------- errors */

/* Fails, and says so with this text; leaves no storage behind. */
static void expect_refused(int status, const tcx_item_t *items, size_t count, unsigned flags,
                           const char *text) {
    tcx_put_options_t options = {.flags = flags};
    tcx_bundle_t *bundle;

    EXPECT_EQ(status, tcx_put_bundle(client, "bad", items, count, &options, &bundle));
    if (!strstr(tcx_error(), text)) {
        TEST_FAILED("\"%s\" does not say \"%s\"", tcx_error(), text);
    }
}

TEST(a_bad_item_fails_the_whole_put_and_names_its_path) {
    struct floats good;
    struct floats bad;
    float data[2] = {1, 2};

    given_daemon();
    const tcx_array_t *ok = floats_on(&good, data, 2);
    const tcx_item_t negative[] = {{PATH("a"), ok}, {PATH("b", "c"), floats_on(&bad, data, -1)}};
    expect_refused(TCX_INVALID, negative, 2, 0, "item \"b/c\": dimension 0 is negative");
    const tcx_array_t strange = {.data = data, .dtype = {4, 16, 1}};
    const tcx_item_t dtype[] = {{PATH("a"), ok}, {PATH("w"), &strange}};
    expect_refused(TCX_EXCHANGE, dtype, 2, 0, "item \"w\": dtype bfloat16");
    const tcx_item_t copies[] = {{PATH("a", "b"), ok}};
    expect_refused(TCX_EXCHANGE, copies, 1, TCX_PUT_NO_COPY,
                   "item \"a/b\": this memory is private");
    const tcx_item_t no_path[] = {{NULL, 0, ok}};
    expect_refused(TCX_INVALID, no_path, 1, 0, "1 to 64 keys");
    const tcx_item_t no_text[] = {{PATH("\xff"), ok}};
    expect_refused(TCX_INVALID, no_text, 1, 0, "UTF-8");
    end();
}

TEST(paths_that_exclude_each_other_are_refused) {
    struct floats floats;
    float data = 1;

    given_daemon();
    const tcx_array_t *one = floats_on(&floats, &data, 1);
    const tcx_item_t twice[] = {{PATH("a", "b"), one}, {PATH("c"), one}, {PATH("a", "b"), one}};
    expect_refused(TCX_INVALID, twice, 3, 0, "item \"a/b\": the path is there twice");
    const tcx_item_t through[] = {{PATH("a", "b"), one}, {PATH("a"), one}};
    expect_refused(TCX_INVALID, through, 2, 0, "item \"a/b\"");
    const tcx_item_t empty[] = {{PATH("a"), NULL}, {PATH("a", "b"), one}};
    expect_refused(TCX_INVALID, empty, 2, 0, "item \"a/b\"");
    const tcx_item_t fine[] = {{PATH("a", "b"), one}, {PATH("a", "bc"), one}, {PATH("ab"), one}};
    EXPECT_OK(tcx_put_bundle(client, "fine", fine, 3, NULL, NULL));
    end_with(1);
}

/* --------------------------------------------------------------------------- hostile publishers */

/* Publishes bytes of a test's own making as a bundle named "lie". */
static void publish_lie(const void *bytes, size_t nbytes, uint64_t offset, int64_t length) {
    tcx_array_t array = {.dtype = {TCX_UINT, 8, 1}, .ndim = 1, .shape = &length};
    struct publication publication;
    struct session *session;
    struct wire_grant grant;
    struct desc desc;
    uint64_t version;

    EXPECT_OK(publication_init("lie", NULL, &publication));
    EXPECT_OK(client_session(client, &session));
    layout_describe(&array, 0, offset, DESC_BUNDLE, &desc);
    EXPECT_OK(publish_bytes(session, &publication, &desc, bytes, nbytes, &grant, &version));
    storage_decline(session, &grant);
    session_unref(session);
}

static void expect_unreadable(const char *text) {
    tcx_bundle_t *bundle;

    EXPECT_EQ(TCX_INTERNAL, tcx_get(client, "lie", NULL, NULL, &bundle));
    if (!strstr(tcx_error(), text)) {
        TEST_FAILED("\"%s\" does not say \"%s\"", tcx_error(), text);
    }
}

TEST(a_pack_without_an_index_is_refused) {
    char nonsense[64] = "nonsense";

    given_daemon();
    publish_lie(nonsense, sizeof nonsense, 0, sizeof nonsense);
    expect_unreadable("there is no index");
    publish_lie(nonsense, sizeof nonsense, 60, 4);
    expect_unreadable("cut short");
    publish_lie(nonsense, sizeof nonsense, 64, 0);
    expect_unreadable("array of bytes");
    end_with(1);
}

TEST(an_index_that_points_outside_is_refused) {
    struct index_writer writer;
    struct desc beyond;
    int64_t count = 1000;
    tcx_array_t array = {.dtype = float32, .ndim = 1, .shape = &count};

    given_daemon();
    layout_describe(&array, 0, 0, 0, &beyond);
    index_begin(&writer, 1, NULL, 0);
    index_add(&writer, PATH("a"), 0, &beyond);
    publish_lie(writer.bytes, writer.nbytes, 0, (int64_t)writer.nbytes);
    expect_unreadable("reaches beyond its storage");
    index_free(&writer);
    end_with(1);
}

TEST(an_index_that_names_a_storage_of_others_gives_nothing) {
    struct index_writer writer;
    struct desc desc;
    tcx_array_t array = {.dtype = float32};
    tcx_tensor_t *secret;
    tcx_bundle_t *bundle;

    given_daemon();
    tcx_client_t *other = daemon_client(&own);
    EXPECT_OK(tcx_zeros(other, (tcx_device_t){0}, float32, 0, NULL, &secret));
    uint64_t ids[2] = {storage_of(secret), 1234567};
    layout_describe(&array, 0, 0, 0, &desc);
    index_begin(&writer, 1, ids, 2);
    index_add(&writer, PATH("a"), 1, &desc);
    publish_lie(writer.bytes, writer.nbytes, 0, (int64_t)writer.nbytes);
    EXPECT_EQ(TCX_STALE, tcx_get(client, "lie", NULL, NULL, &bundle));
    index_free(&writer);
    tcx_tensor_unref(secret);
    tcx_client_close(other);
    end_with(1);
}
