/*
 * path.h - where the daemon's socket is, and whether that place can be trusted
 *
 * Both sides call this file, so that they never look in different places. It looks at files and the
 * environment; it knows nothing of connections. Whoever can write in the socket's folder, or owns
 * the socket, could pose as the daemon: so both belong to us, to root or to a user that
 * $TENSORCX_TRUST_UID names, and neither is a link.
 *
 * Functions return an enum status; when it is not STATUS_OK, `ret_text` says what is wrong and what
 * to do.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

#define PATH_SIZE      108 /* sun_path with its final 0: 107 bytes of path */
#define PATH_TEXT_SIZE 512

/* The path of the socket, absolute: `given`, else $TENSORCX_SOCKET, else
 * $XDG_RUNTIME_DIR/tensorcx/tensorcxd.sock, else that under /run/user/<uid>, else
 * /tmp/tensorcx-<uid>/tensorcxd.sock. NULL and "" are the same; a runtime folder that is not ours
 * is passed over. STATUS_INVALID: too long; STATUS_SYSTEM: no current folder. */
int path_resolve(const char *given, char ret_path[PATH_SIZE], char ret_text[PATH_TEXT_SIZE]);

/* For the daemon: makes the folder of the socket (0700, or 0711 to let `others` in; its parent must
 * be there) unless it is there, and checks it. STATUS_DENIED, STATUS_UNAVAILABLE, STATUS_SYSTEM. */
int path_make_folder(const char *path, bool others, char ret_text[PATH_TEXT_SIZE]);

/* Whether something may be talked to at `path`: the folder is safe, and the file is a socket of an
 * owner we trust. STATUS_NOT_FOUND: no such file, so no daemon; STATUS_UNAVAILABLE: it is not a
 * socket; STATUS_DENIED; STATUS_SYSTEM. */
int path_check(const char *path, char ret_text[PATH_TEXT_SIZE]);

/* Whether a daemon of this user may be trusted: ourselves, root, or who is in $TENSORCX_TRUST_UID.
 */
int path_trusts(uid_t uid);
