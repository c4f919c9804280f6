/*
 * segment.h - pieces of the daemon's memory that a session uses
 *
 * A segment is mapped (mapping.h) when the first storage in it arrives, and stays mapped until the
 * daemon says that it is destroyed, or the session is dead and no storage in it lives. One on a
 * CUDA device stays mapped until no storage in it has lived for a second; the daemon, which may
 * wait for that memory, is told then.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct session;

struct segment {
    uint64_t id;             /* never used twice by a daemon */
    struct mapping *mapping; /* counted */
    size_t storages;         /* live ones of ours in it; guarded by the session's lock */
    int64_t idle_since;      /* on a device: when that became 0; likewise */
    struct segment *next;    /* session::mapped or session::doomed */
};

/* Makes sure that segment `id` is mapped. Asks the daemon unless this process has it already.
 * STATUS_OK, STATUS_SYSTEM (out of descriptors or address space), STATUS_INTERNAL, or as
 * call_run(). */
int segment_map(struct session *session, uint64_t id);

/* The daemon's number of the device that a segment is on; 0: the CPU. */
static inline uint16_t segment_device(uint64_t id) {
    return (uint16_t)(id >> 56);
}

/* An answer to MAP came, and nobody waits for it any more. Lock held. */
void segment_undo_map(struct session *session, uint64_t id);

/* The mapped segment `id`, or NULL. Lock held. */
struct segment *segment_find(struct session *session, uint64_t id);

/* A reply says that so many segments are destroyed: if that is news, asks which of those that we
 * have mapped and do not use are gone. Lock held. */
void segments_notice(struct session *session, uint64_t destroyed);

/* The answer: one byte for each segment asked about, 0 for those that are gone; no bytes when the
 * daemon gave no answer. Lock held. */
void segments_bury(struct session *session, const char *alive, size_t count);

/* The session is dead: what holds no storage of ours is no use any more. Lock held. */
void segments_doom_unused(struct session *session);

/* One storage less in it. Lock held. */
void segment_leave(struct segment *segment);

/* Unmaps those on devices that have been idle for a second (all idle ones of a session that is
 * dead, or nobody else's any more), and tells the daemon. Returns when to look again; FOREVER: when
 * a storage is let go; 0: none is left, and the session is watched no more. No lock; all work on
 * their devices is done. Only reclaim.c calls it. */
int64_t segments_tidy_devices(struct session *session);

/* Unmaps a list. No lock. */
void segments_unmap(struct segment *doomed);

/* Unmaps everything; nobody else knows the session. */
void segments_destroy(struct session *session);
