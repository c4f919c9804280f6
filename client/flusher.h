/*
 * flusher.h - a thread that sends what the socket did not take, when nobody else is there to do it
 *
 * Without it, what a program frees in one go would stay at the daemon until the program's next
 * call. It has all signals blocked, and ends when everything is sent or the session is dead. If it
 * cannot be started, the next call sends the rest.
 */
#pragma once

struct session;

/* Starts one if messages wait, nobody polls the socket, and there is none. Lock held. */
void flusher_start_if_needed(struct session *session);
