/*
 * segment.h - pieces of the daemon's memory, mapped in this process
 *
 * A segment is mapped once, at one address, when the first storage in it arrives, and stays mapped
 * until the daemon says that it is destroyed, or the session is dead and no storage in it lives.
 */
#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

struct session;

struct segment {
    uint64_t id;   /* never used twice by a daemon */
    void *address; /* owned mapping */
    uint64_t nbytes;
    size_t storages;            /* live ones of ours in it; guarded by the session's lock */
    _Atomic uint64_t populated; /* bytes from the start that have page table entries */
    struct segment *next;       /* session::mapped or session::doomed */
};

/* Makes sure that segment `id` is mapped. May ask the daemon. STATUS_OK, STATUS_SYSTEM (out of
 * descriptors or address space), STATUS_INTERNAL, or as call_run(). */
int segment_map(struct session *session, uint64_t id);

/* The mapped segment `id`, or NULL. Lock held. */
struct segment *segment_find(struct session *session, uint64_t id);

/* Before the first copy into a large range: gets all its pages mapped in one go, instead of one
 * fault for each. No lock. */
void segment_populate(struct segment *segment, uint64_t offset, uint64_t nbytes);

/* A reply says that so many segments are destroyed: if that is news, asks which of those that we
 * have mapped and do not use are gone. Lock held. */
void segments_notice(struct session *session, uint64_t destroyed);

/* The answer: one byte for each segment asked about, 0 for those that are gone; no bytes when the
 * daemon gave no answer. Lock held. */
void segments_bury(struct session *session, const char *alive, size_t count);

/* The session is dead: what holds no storage of ours is no use any more. Lock held. */
void segments_doom_unused(struct session *session);

/* Unmaps a list. No lock. */
void segments_unmap(struct segment *doomed);

/* Unmaps everything; nobody else knows the session. */
void segments_destroy(struct session *session);
