/*
 * fork.h - which clients and sessions there are, so that fork() finds their locks free and the
 * child leaves its parent's connections alone
 */
#pragma once

struct session;
struct tcx_client;

void fork_add_session(struct session *session);
void fork_remove_session(struct session *session);
void fork_add_client(struct tcx_client *client);
void fork_remove_client(struct tcx_client *client);
