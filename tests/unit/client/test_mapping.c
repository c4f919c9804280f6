/* One address for the same bytes, whoever in this process uses them, and only while they are there.
 */
#include "client_fixture.h"

enum { COUNT = 50000 }; /* more than travels in a message */

/* How many mappings of the daemon's memory this process has. */
static int mappings_count(void) {
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    int count = 0;

    EXPECT_TRUE(maps != NULL);
    while (fgets(line, sizeof line, maps)) {
        int is_ours = strstr(line, "/dev/shm/#") || strstr(line, "memfd:tensorcx");
        count += is_ours && strstr(line, "rw-s") != NULL;
    }
    fclose(maps);
    return count;
}

static tcx_tensor_t *put_zeros(tcx_client_t *from, const char *name) {
    static float data[COUNT];
    struct floats floats;
    tcx_tensor_t *tensor;

    EXPECT_OK(tcx_put(from, name, floats_on(&floats, data, COUNT), NULL, &tensor));
    return tensor;
}

TEST(two_clients_of_one_daemon_have_the_same_bytes_at_one_address) {
    struct own_daemon daemon;
    tcx_tensor_t *got;
    int before = mappings_count();

    daemon_start(&daemon);
    tcx_client_t *one = daemon_client(&daemon);
    tcx_client_t *two = daemon_client(&daemon);
    tcx_tensor_t *put = put_zeros(one, "x");
    EXPECT_OK(tcx_get(two, "x", NULL, &got, NULL));
    EXPECT_TRUE(floats_of(put) == floats_of(got));
    EXPECT_EQ(before + 1, mappings_count());

    tcx_tensor_unref(put); /* the mapping stays for the other one */
    tcx_client_close(one);
    floats_of(got)[COUNT - 1] = 7;
    EXPECT_EQ(7, floats_of(got)[COUNT - 1]);
    tcx_tensor_unref(got);
    tcx_client_close(two);
    EXPECT_EQ(before, mappings_count());
    daemon_stop(&daemon);
    daemon_clean(&daemon);
}

TEST(clients_of_two_daemons_share_no_mapping) {
    struct own_daemon here;
    struct own_daemon there;
    tcx_info_t infos[2];

    daemon_start(&here);
    daemon_start(&there);
    tcx_client_t *one = daemon_client(&here);
    tcx_client_t *two = daemon_client(&there);
    tcx_tensor_t *mine = put_zeros(one, "x");
    tcx_tensor_t *theirs = put_zeros(two, "x");
    tcx_tensor_info(mine, &infos[0]);
    tcx_tensor_info(theirs, &infos[1]);
    EXPECT_EQ(infos[0].storage_id, infos[1].storage_id);
    floats_of(mine)[0] = 1;
    EXPECT_EQ(0, floats_of(theirs)[0]);
    tcx_tensor_unref(mine);
    tcx_tensor_unref(theirs);
    tcx_client_close(one);
    tcx_client_close(two);
    daemon_stop(&here);
    daemon_stop(&there);
    daemon_clean(&here);
    daemon_clean(&there);
}

TEST(memory_keeps_its_address_after_a_client_connects_anew) {
    tcx_tensor_t *got;

    given_daemon();
    tcx_tensor_t *put = put_zeros(client, "x");
    tcx_client_disconnect(client);
    EXPECT_OK(tcx_get(client, "x", NULL, &got, NULL));
    EXPECT_TRUE(floats_of(put) == floats_of(got));
    tcx_tensor_unref(put);
    EXPECT_EQ(0, floats_of(got)[COUNT - 1]);
    tcx_tensor_unref(got);
    end_with(1);
}

TEST(what_the_daemon_destroys_is_unmapped_here) {
    tcx_stats_t stats;
    tcx_tensor_t *tensor;

    given_daemon();
    EXPECT_OK(tcx_client_connect(client));
    int before = mappings_count();
    for (int i = 0; i < 20; i++) { /* each has a segment of its own */
        EXPECT_OK(
            tcx_zeros(client, (tcx_device_t){0}, float32, 1, (int64_t[]){(8 + i) << 20}, &tensor));
        EXPECT_TRUE(mappings_count() > before);
        tcx_tensor_unref(tensor);
    }
    int64_t deadline = clock_after(20 * NS_PER_S);
    do {
        EXPECT_OK(tcx_stats(client, &stats)); /* brings the news, and then the answer */
    } while (mappings_count() > before && clock_now() < deadline);
    EXPECT_EQ(before, mappings_count());
    end();
}

TEST(descriptors_stay_few_however_much_is_mapped) {
    enum { SEGMENTS = 40 };
    tcx_tensor_t *tensors[SEGMENTS];

    given_daemon();
    EXPECT_OK(tcx_client_connect(client));
    int lowest_free = dup(0);
    close(lowest_free);
    for (int i = 0; i < SEGMENTS; i++) {
        EXPECT_OK(
            tcx_zeros(client, (tcx_device_t){0}, float32, 1, (int64_t[]){5 << 20}, &tensors[i]));
    }
    EXPECT_EQ(lowest_free, dup(0));
    close(lowest_free);
    for (int i = 0; i < SEGMENTS; i++) {
        tcx_tensor_unref(tensors[i]);
    }
    end();
}
