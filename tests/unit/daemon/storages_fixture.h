/*
 * storages_fixture.h - storages without bytes, so that no memory is needed
 */
#pragma once

#include "fixture.h"
#include "hold.h"
#include "status.h"
#include "storage.h"

/* A new storage that `account` is charged for; the one reference is the caller's. */
static inline struct storage *
storage_of_nothing(struct storages *storages, struct segments *segments, struct account *account) {
    struct storage *storage;
    struct waitlist *wait;
    struct shortage shortage;

    EXPECT_EQ(STATUS_OK,
              storage_create(storages, segments, account, 0, &storage, &wait, &shortage));
    return storage;
}

/* The same, that only this client holds. */
static inline struct storage *storage_held_by(struct holds *holds, struct segments *segments,
                                              struct account *account) {
    struct storage *storage = storage_of_nothing(holds->storages, segments, account);

    EXPECT_EQ(0, hold_grant(holds, storage));
    storage_unref(holds->storages, storage);
    return storage;
}
