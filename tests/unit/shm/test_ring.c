/* One process, one thread: what each operation does. */
#include "ring_fixture.h"
#include "ring_futex.h"

TEST(messages_arrive_in_the_order_they_were_sent) {
    struct rig rig = given_rig(0, 4, 6);
    struct ring sender = given_client(&rig, 1);
    struct ring reader = given_client(&rig, 2);

    for (uint32_t n = 0; n < 40; n += 4) {
        for (uint32_t i = 0; i < 4; i++) {
            EXPECT_EQ(RING_OK, send_number(&rig, &sender, &at_once, n + i));
        }
        for (uint32_t i = 0; i < 4; i++) {
            expect_received(&rig, &reader, n + i);
        }
    }
    expect_at_rest(&rig);
}

TEST(each_message_of_a_queue_goes_to_one_reader) {
    struct rig rig = given_rig(0, 4, 6);
    struct ring sender = given_client(&rig, 1);
    struct ring readers[] = {given_client(&rig, 2), given_client(&rig, 3)};
    struct ring_message message;

    send_number(&rig, &sender, &at_once, 0);
    send_number(&rig, &sender, &at_once, 1);
    expect_received(&rig, &readers[0], 0);
    expect_received(&rig, &readers[1], 1);
    EXPECT_EQ(RING_TIMED_OUT, ring_recv(&readers[0], &at_once, false, &message));
}

TEST(a_full_queue_takes_no_more_until_one_is_received) {
    struct rig rig = given_rig(0, 2, 6);
    struct ring sender = given_client(&rig, 1);
    struct ring reader = given_client(&rig, 2);

    send_number(&rig, &sender, &at_once, 0);
    send_number(&rig, &sender, &at_once, 1);
    EXPECT_EQ(RING_TIMED_OUT, send_number(&rig, &sender, &at_once, 2));
    expect_received(&rig, &reader, 0);
    EXPECT_EQ(RING_OK, send_number(&rig, &sender, &at_once, 2));
}

TEST(no_buffer_is_loaned_twice) {
    struct rig rig = given_rig(0, 4, 130);
    struct ring sender = given_client(&rig, 1);
    uint64_t seen[RING_MASK_WORDS] = {0};
    uint32_t buffer;

    for (int i = 0; i < 130; i++) {
        EXPECT_EQ(RING_OK, ring_loan(&sender, &at_once, &buffer));
        EXPECT_TRUE(buffer < 130 && !mask_has(seen, buffer));
        mask_add(seen, buffer);
    }
    EXPECT_EQ(RING_TIMED_OUT, ring_loan(&sender, &at_once, &buffer));
    ring_release(&sender, 77);
    EXPECT_EQ(RING_OK, ring_loan(&sender, &at_once, &buffer));
    EXPECT_EQ(77, buffer);
}

TEST(a_received_buffer_is_not_loaned_before_its_release) {
    struct rig rig = given_rig(0, 1, 2);
    struct ring sender = given_client(&rig, 1);
    struct ring reader = given_client(&rig, 2);
    struct ring_message message;
    uint32_t buffer;

    send_number(&rig, &sender, &at_once, 0);
    EXPECT_EQ(RING_OK, ring_recv(&reader, &at_once, false, &message));
    send_number(&rig, &sender, &at_once, 1);
    EXPECT_EQ(RING_TIMED_OUT, ring_loan(&sender, &at_once, &buffer));
    ring_release(&reader, message.buffer);
    EXPECT_EQ(RING_OK, ring_loan(&sender, &at_once, &buffer));
}

TEST(each_subscriber_sees_every_message_from_when_it_came) {
    struct rig rig = given_rig(RING_TOPIC, 4, 8);
    struct ring sender = given_client(&rig, 1);
    struct ring early = given_subscriber(&rig, 2);

    send_number(&rig, &sender, &at_once, 0);
    struct ring late = given_subscriber(&rig, 3);
    send_number(&rig, &sender, &at_once, 1);
    expect_received(&rig, &early, 0);
    expect_received(&rig, &early, 1);
    expect_received(&rig, &late, 1);
    expect_at_rest(&rig);
}

TEST(a_subscriber_may_begin_with_the_last_message) {
    struct rig rig = given_rig(RING_TOPIC, 4, 6);
    struct ring sender = given_client(&rig, 1);
    struct ring latest = given_client(&rig, 2);

    for (uint32_t n = 0; n < 20; n++) {
        EXPECT_EQ(RING_OK, send_number(&rig, &sender, &at_once, n));
    }
    EXPECT_EQ(RING_OK, ring_subscribe(&latest, 0, true));
    expect_received(&rig, &latest, 19);
}

TEST(a_slow_subscriber_holds_a_blocking_topic_until_it_leaves) {
    struct rig rig = given_rig(RING_TOPIC, 2, 8);
    struct ring sender = given_client(&rig, 1);
    struct ring quick = given_subscriber(&rig, 2);
    struct ring slow = given_subscriber(&rig, 3);

    for (uint32_t n = 0; n < 2; n++) {
        EXPECT_EQ(RING_OK, send_number(&rig, &sender, &at_once, n));
        expect_received(&rig, &quick, n);
    }
    EXPECT_EQ(RING_TIMED_OUT, send_number(&rig, &sender, &at_once, 2));
    ring_leave(&slow);
    EXPECT_EQ(RING_OK, send_number(&rig, &sender, &at_once, 2));
    expect_received(&rig, &quick, 2);
}

TEST(who_has_left_receives_no_more) {
    struct rig rig = given_rig(RING_TOPIC, 2, 4);
    struct ring subscriber = given_subscriber(&rig, 1);
    struct ring_message message;

    EXPECT_EQ(RING_NOT_IN, ring_subscribe(&subscriber, 0, false));
    ring_leave(&subscriber);
    EXPECT_EQ(RING_NOT_IN, ring_recv(&subscriber, &at_once, false, &message));
    EXPECT_EQ(RING_NOT_IN, ring_subscribe(&subscriber, 0, false));
}

TEST(who_has_left_does_not_begin_to_wait) {
    const struct ring_wait forever = {.deadline_ns = RING_FOREVER};
    struct rig rig = given_rig(0, 1, 2);
    struct ring other = given_client(&rig, 1);
    struct ring member = given_client(&rig, 2);
    struct ring_message message;
    uint32_t buffer, another;

    EXPECT_EQ(RING_OK, ring_loan(&member, &at_once, &buffer));
    ring_leave(&member);
    EXPECT_EQ(RING_NOT_IN, ring_recv(&member, &forever, false, &message));
    send_number(&rig, &other, &at_once, 0);
    EXPECT_EQ(RING_NOT_IN, ring_loan(&member, &forever, &another));
    EXPECT_EQ(RING_NOT_IN, ring_send(&member, &forever, buffer));
    EXPECT_EQ(RING_NOT_IN, ring_recv(&member, &forever, false, &message));
    expect_received(&rig, &other, 0);
}

TEST(the_oldest_are_dropped_and_counted) {
    struct rig rig = given_rig(RING_TOPIC | RING_DROP_OLDEST, 3, 5);
    struct ring sender = given_client(&rig, 1);
    struct ring subscriber = given_subscriber(&rig, 2);
    struct ring_message message;

    for (uint32_t n = 0; n < 10; n++) {
        EXPECT_EQ(RING_OK, send_number(&rig, &sender, &at_once, n));
    }
    EXPECT_EQ(RING_OK, ring_recv(&subscriber, &at_once, false, &message));
    EXPECT_EQ(7, message.number);
    EXPECT_EQ(7, message.missed);
    EXPECT_EQ(7, rig.payloads[message.buffer].number);
}

TEST(the_newest_is_received_and_those_skipped_are_counted) {
    struct rig rig = given_rig(RING_DROP_OLDEST, 4, 6);
    struct ring sender = given_client(&rig, 1);
    struct ring reader = given_client(&rig, 2);
    struct ring_message message;

    for (uint32_t n = 0; n < 3; n++) {
        send_number(&rig, &sender, &at_once, n);
    }
    EXPECT_EQ(RING_OK, ring_recv(&reader, &at_once, true, &message));
    EXPECT_EQ(2, message.number);
    EXPECT_EQ(2, message.missed);
}

TEST(messages_are_dropped_for_a_buffer_but_never_one_that_is_read) {
    struct rig rig = given_rig(RING_DROP_OLDEST, 2, 3);
    struct ring sender = given_client(&rig, 1);
    struct ring reader = given_client(&rig, 2);
    struct ring_message message;
    uint32_t mine[2];

    send_number(&rig, &sender, &at_once, 0);
    EXPECT_EQ(RING_OK, ring_recv(&reader, &at_once, false, &message));
    send_number(&rig, &sender, &at_once, 1);
    send_number(&rig, &sender, &at_once, 2);
    EXPECT_EQ(RING_OK, ring_loan(&sender, &at_once, &mine[0])); /* drops 1 */
    EXPECT_EQ(RING_OK, ring_loan(&sender, &at_once, &mine[1])); /* drops 2 */
    EXPECT_TRUE(mine[0] != message.buffer && mine[1] != message.buffer);
    EXPECT_EQ(RING_TIMED_OUT, ring_loan(&sender, &at_once, &mine[0]));
}

TEST(after_the_close_what_is_left_is_received_then_the_end) {
    struct rig rig = given_rig(0, 4, 6);
    struct ring sender = given_client(&rig, 1);
    struct ring reader = given_client(&rig, 2);
    struct ring_message message;
    uint32_t loan;

    send_number(&rig, &sender, &at_once, 0);
    EXPECT_EQ(RING_OK, ring_loan(&sender, &at_once, &loan));
    ring_close(&reader);
    EXPECT_EQ(RING_CLOSED, ring_send(&sender, &at_once, loan));
    ring_release(&sender, loan);
    EXPECT_EQ(RING_CLOSED, ring_loan(&sender, &at_once, &loan));
    expect_received(&rig, &reader, 0);
    EXPECT_EQ(RING_CLOSED, ring_recv(&reader, &for_ever, false, &message));
    expect_at_rest(&rig);
}

TEST(a_wait_returns_after_a_slice_and_ends_at_its_deadline) {
    struct rig rig = given_rig(0, 1, 2);
    struct ring reader = given_client(&rig, 1);
    struct ring_wait until_long_ago = {1, 0};
    struct ring_message message;

    ring_slice_ns = 1000000;
    EXPECT_EQ(RING_AGAIN, ring_recv(&reader, &for_ever, false, &message));
    EXPECT_EQ(RING_AGAIN, ring_recv(&reader, &for_ever_spinning, false, &message));
    EXPECT_EQ(RING_TIMED_OUT, ring_recv(&reader, &until_long_ago, false, &message));
}

TEST(a_report_names_who_holds_and_who_is_behind) {
    struct rig rig = given_rig(RING_TOPIC, 4, 8);
    struct ring sender = given_client(&rig, 1);
    struct ring subscriber = given_subscriber(&rig, 5);
    struct ring_holder holders[4];
    struct ring_report report;
    uint32_t loan;

    send_number(&rig, &sender, &at_once, 0);
    send_number(&rig, &sender, &at_once, 1);
    EXPECT_EQ(RING_OK, ring_loan(&sender, &at_once, &loan));
    ring_report(&subscriber, holders, 4, &report);
    EXPECT_EQ(0, report.lock_owner);
    EXPECT_EQ(2, report.depth);
    EXPECT_EQ(2, report.sent);
    EXPECT_EQ(2, report.nholders);
    EXPECT_EQ(1, holders[0].client);
    EXPECT_EQ(1, holders[0].holds);
    EXPECT_EQ(0, holders[0].behind);
    EXPECT_EQ(5, holders[1].client);
    EXPECT_EQ(0, holders[1].holds);
    EXPECT_EQ(2, holders[1].behind);
    ring_report(&rig.daemon, holders, 1, &report);
    EXPECT_EQ(2, report.nholders);
}

TEST(who_keeps_the_lock_is_named_and_its_death_frees_it) {
    struct rig rig = given_rig(0, 2, 4);
    struct ring stopped = given_client(&rig, 1);
    struct ring other = given_client(&rig, 2);
    struct ring_report report;
    uint32_t buffer;

    given_client(&rig, 3);
    EXPECT_EQ(RING_OK, ring_lock(&stopped, 0));
    EXPECT_EQ(RING_LOCKED, ring_loan(&other, &(struct ring_wait){RING_AT_ONCE, 0}, &buffer));
    EXPECT_EQ(RING_LOCKED,
              ring_loan(&other, &(struct ring_wait){ring_now() + 1000000, 0}, &buffer));
    ring_report(&rig.daemon, NULL, 0, &report); /* takes no lock */
    EXPECT_EQ(1, report.lock_owner);
    ring_slice_ns = 1000000;
    EXPECT_EQ(RING_LOCKED, ring_loan(&other, &at_once, &buffer));
    EXPECT_EQ(RING_AGAIN, ring_loan(&other, &for_ever, &buffer));
    ring_report(&other, NULL, 0, &report);
    EXPECT_EQ(1, report.lock_owner);
    bury(&rig, 3); /* not its owner */
    ring_report(&other, NULL, 0, &report);
    EXPECT_EQ(1, report.lock_owner);
    bury(&rig, 1);
    EXPECT_EQ(RING_OK, ring_loan(&other, &at_once, &buffer));
}

TEST(a_member_is_given_out_again_only_when_it_holds_nothing) {
    struct rig rig = given_rig(0, 2, 70);
    struct ring client = given_client(&rig, 1);
    uint64_t keep[RING_MASK_WORDS] = {0};
    uint32_t buffers[66];

    EXPECT_TRUE(!ring_seat(&rig.daemon, 0, 9));
    for (int i = 0; i < 66; i++) {
        EXPECT_EQ(RING_OK, ring_loan(&client, &at_once, &buffers[i]));
    }
    mask_add(keep, 65); /* a child still reads it */
    ring_vacate(&rig.daemon, 0, keep);
    ring_repair(&rig.daemon, 1);
    EXPECT_TRUE(!ring_seat(&rig.daemon, 0, 9));
    EXPECT_TRUE(use_has(&rig.daemon, 0, 65) && !use_has(&rig.daemon, 0, 3));
    ring_release_for(&rig.daemon, 0, 65);
    EXPECT_TRUE(ring_seat(&rig.daemon, 0, 9));
}

TEST(the_sweep_keeps_what_is_held_or_needed) {
    struct rig rig = given_rig(0, 4, 70);
    struct ring sender = given_client(&rig, 1);
    struct ring reader = given_client(&rig, 2);
    struct ring_message first;
    uint64_t needed[RING_MASK_WORDS];
    uint32_t loan;

    send_number(&rig, &sender, &at_once, 0); /* buffer 0, then 1, then 2 loaned */
    send_number(&rig, &sender, &at_once, 1);
    EXPECT_EQ(RING_OK, ring_loan(&sender, &at_once, &loan));
    EXPECT_EQ(RING_OK, ring_recv(&reader, &at_once, false, &first));
    ring_sweep(&rig.daemon, needed);
    EXPECT_EQ(7, needed[0]);
    ring_release(&reader, first.buffer);
    ring_release(&sender, loan);
    ring_sweep(&rig.daemon, needed);
    EXPECT_EQ(2, needed[0]);
    EXPECT_EQ(0, needed[1]);
    expect_received(&rig, &reader, 1);
    ring_sweep(&rig.daemon, needed);
    EXPECT_EQ(0, needed[0]);
}

TEST(a_topics_last_message_is_needed_by_itself) {
    struct rig rig = given_rig(RING_TOPIC, 2, 4);
    struct ring sender = given_client(&rig, 1);
    uint64_t needed[RING_MASK_WORDS];

    send_number(&rig, &sender, &at_once, 0);
    send_number(&rig, &sender, &at_once, 1);
    ring_sweep(&rig.daemon, needed);
    EXPECT_EQ(2, needed[0]);
}

TEST(shapes_out_of_bounds_are_refused) {
    static const struct ring_shape wrong[] = {
        {0, 0, 8, 8, 1},   {0, 513, 896, 8, 1}, {0, 4, 4, 8, 1}, {RING_TOPIC, 4, 5, 8, 1},
        {0, 4, 897, 8, 1}, {0, 4, 8, 0, 1},     {4, 4, 8, 8, 1}, {0, 4, 8, 1025, 1},
    };
    struct rig rig = given_rig(0, 512, 896);
    struct ring ring;

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        EXPECT_TRUE(ring_shape_check(&wrong[i]) != NULL);
    }
    EXPECT_TRUE(ring_open(rig.block, ring_nbytes(&rig.shape) - 1, &rig.shape, 1, 0, &ring) != NULL);
    ((struct ring_control *)rig.block)->layout++;
    EXPECT_TRUE(ring_open(rig.block, ring_nbytes(&rig.shape), &rig.shape, 1, 0, &ring) != NULL);
}

TEST(the_largest_ring_can_be_filled_and_drained) {
    struct rig rig = given_rig(0, 512, 896);
    struct ring sender = given_client(&rig, 1);
    struct ring reader = given_client(&rig, 64);

    for (uint32_t n = 0; n < 512; n++) {
        EXPECT_EQ(RING_OK, send_number(&rig, &sender, &at_once, n));
    }
    EXPECT_EQ(RING_TIMED_OUT, send_number(&rig, &sender, &at_once, 512));
    for (uint32_t n = 0; n < 512; n++) {
        expect_received(&rig, &reader, n);
    }
    ring_desc(&sender, 895);
    expect_at_rest(&rig);
}
