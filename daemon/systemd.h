/*
 * systemd.h - what a service manager hands to us and wants to hear, without its library
 *
 * Variables of the environment that were for this process are removed once read.
 */
#pragma once

struct options;

enum { SYSTEMD_TEXT_SIZE = 256 };

/* The socket that we were started with ($LISTEN_PID, $LISTEN_FDS), to be called before any
 * descriptor is opened or closed. 0 with *ret_fd (the caller's now; -1: there is none), or -1 and a
 * text. What kind of descriptor it is, listener_inherit() checks. */
int systemd_take_socket(const struct options *options, char ret_text[SYSTEMD_TEXT_SIZE],
                        int *ret_fd);

/* Tells $NOTIFY_SOCKET, if there is one, that clients are served. */
void systemd_notify_ready(void);
