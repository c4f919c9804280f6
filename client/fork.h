/*
 * fork.h - which clients and sessions there are, so that fork() finds their locks free and the
 * child leaves its parent's connections alone
 */
#pragma once

#include <stdint.h>

struct session;
struct tcx_client;

void fork_add_session(struct session *session);
void fork_remove_session(struct session *session);

/* For a walk through the sessions with the daemon `boot_id`: the next one with one more reference,
 * or NULL. *cursor is 0 at the start. */
struct session *fork_next_session(uint64_t boot_id, uint64_t *cursor);

void fork_add_client(struct tcx_client *client);
void fork_remove_client(struct tcx_client *client);
