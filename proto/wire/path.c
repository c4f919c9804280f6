#include "path.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "status.h"
#include "uids.h"

/* Who starts a setuid program must not say whom it talks to. */
static const char *environment(const char *name) {
    const char *value = secure_getenv(name);

    return value && *value ? value : NULL;
}

/* Whether `folder` can hold our socket; links are fine here, the user's session made it. */
static int is_runtime_folder(const char *folder) {
    struct stat info;

    return folder && folder[0] == '/' && stat(folder, &info) == 0 && S_ISDIR(info.st_mode) &&
           info.st_uid == geteuid();
}

static int print_default(char *path, size_t size) {
    unsigned uid = (unsigned)geteuid();
    const char *runtime = environment("XDG_RUNTIME_DIR");
    char session[64];

    snprintf(session, sizeof session, "/run/user/%u", uid);
    if (!is_runtime_folder(runtime)) {
        runtime = is_runtime_folder(session) ? session : NULL;
    }
    return runtime ? snprintf(path, size, "%s/tensorcx/tensorcxd.sock", runtime)
                   : snprintf(path, size, "/tmp/tensorcx-%u/tensorcxd.sock", uid);
}

/* A relative path is made absolute: the daemon works in "/". */
static int print_given(const char *given, char *path, size_t size) {
    char here[PATH_MAX];

    if (given[0] == '/') {
        return snprintf(path, size, "%s", given);
    }
    if (!getcwd(here, sizeof here)) {
        return -1;
    }
    return snprintf(path, size, "%s/%s", here, given);
}

int path_resolve(const char *given, char ret_path[PATH_SIZE], char ret_text[PATH_TEXT_SIZE]) {
    char path[PATH_SIZE];
    int length;

    if (!given || !*given) {
        given = environment("TENSORCX_SOCKET");
    }
    length = given ? print_given(given, path, sizeof path) : print_default(path, sizeof path);
    if (length < 0) {
        snprintf(ret_text, PATH_TEXT_SIZE, "the current folder cannot be found: %s",
                 strerror(errno));
        return STATUS_SYSTEM;
    }
    if (length >= PATH_SIZE) {
        snprintf(
            ret_text, PATH_TEXT_SIZE,
            "the path of the socket has %d bytes and a Unix socket's path at most %d: %.100s... "
            "(TENSORCX_SOCKET can name a shorter one)",
            length, PATH_SIZE - 1, given ? given : path);
        return STATUS_INVALID;
    }
    memcpy(ret_path, path, (size_t)length + 1);
    return STATUS_OK;
}

int path_trusts(uid_t uid) {
    struct uids trusted = {0};
    const char *list = environment("TENSORCX_TRUST_UID");

    return uid == geteuid() || uid == 0 ||
           (list && uids_add(&trusted, list) == 0 && uids_find(&trusted, uid) >= 0);
}

static void print_folder(const char *path, char folder[PATH_SIZE]) {
    const char *slash = strrchr(path, '/');
    size_t length = slash == path ? 1 : (size_t)(slash - path);

    memcpy(folder, path, length);
    folder[length] = '\0';
}

static int check_folder(const char *folder, char ret_text[PATH_TEXT_SIZE]) {
    struct stat info;

    if (lstat(folder, &info) != 0) {
        int missing = errno == ENOENT || errno == ENOTDIR;
        snprintf(ret_text, PATH_TEXT_SIZE, "%s: %s", folder, strerror(errno));
        return missing ? STATUS_NOT_FOUND : STATUS_SYSTEM;
    }
    if (S_ISLNK(info.st_mode)) {
        snprintf(ret_text, PATH_TEXT_SIZE,
                 "%s is a symbolic link; a socket's folder must be named by its real path", folder);
        return STATUS_DENIED;
    }
    if (!S_ISDIR(info.st_mode)) {
        snprintf(ret_text, PATH_TEXT_SIZE, "%s is not a folder", folder);
        return STATUS_UNAVAILABLE;
    }
    if (!path_trusts(info.st_uid)) {
        snprintf(ret_text, PATH_TEXT_SIZE,
                 "the socket's folder %s is owned by user %u, and this process runs as user %u "
                 "(TENSORCX_SOCKET can name a socket elsewhere, TENSORCX_TRUST_UID=%u trusts that "
                 "user)",
                 folder, (unsigned)info.st_uid, (unsigned)geteuid(), (unsigned)info.st_uid);
        return STATUS_DENIED;
    }
    /* In a sticky folder, as /tmp, nobody can replace what another user made. */
    if ((info.st_mode & (S_IWGRP | S_IWOTH)) && !(info.st_mode & S_ISVTX)) {
        snprintf(ret_text, PATH_TEXT_SIZE,
                 "others may write in the socket's folder %s (mode %03o): chmod go-w %s", folder,
                 (unsigned)info.st_mode & 0777, folder);
        return STATUS_DENIED;
    }
    return STATUS_OK;
}

/* Whether others can reach what is in `folder`. */
static int check_entry(const char *folder, char ret_text[PATH_TEXT_SIZE]) {
    struct stat info;

    if (stat(folder, &info) == 0 && !(info.st_mode & (S_IXGRP | S_IXOTH))) {
        snprintf(ret_text, PATH_TEXT_SIZE,
                 "the socket's folder %s lets no other user in (mode %03o), as --allow-uid wants: "
                 "chmod 711 %s",
                 folder, (unsigned)info.st_mode & 0777, folder);
        return STATUS_DENIED;
    }
    return STATUS_OK;
}

int path_make_folder(const char *path, bool others, char ret_text[PATH_TEXT_SIZE]) {
    char folder[PATH_SIZE];

    print_folder(path, folder);
    bool made = mkdir(folder, 0700) == 0; /* and less by an umask such as 0177 */
    if ((!made && errno != EEXIST) || (made && chmod(folder, others ? 0711 : 0700) != 0)) {
        snprintf(ret_text, PATH_TEXT_SIZE, "the socket's folder %s cannot be made: %s", folder,
                 strerror(errno));
        return STATUS_SYSTEM;
    }
    int r = check_folder(folder, ret_text);
    return r == STATUS_OK && others ? check_entry(folder, ret_text) : r;
}

int path_check(const char *path, char ret_text[PATH_TEXT_SIZE]) {
    char folder[PATH_SIZE];
    struct stat info;

    print_folder(path, folder);
    int r = check_folder(folder, ret_text);
    if (r != STATUS_OK) {
        return r;
    }
    if (lstat(path, &info) != 0) {
        int status = errno == ENOENT   ? STATUS_NOT_FOUND
                     : errno == EACCES ? STATUS_DENIED
                                       : STATUS_SYSTEM;
        const char *hint =
            errno == EACCES ? " (a daemon with --allow-uid lets other users in)" : "";
        snprintf(ret_text, PATH_TEXT_SIZE, "%s: %s%s", path, strerror(errno), hint);
        return status;
    }
    if (S_ISLNK(info.st_mode)) {
        snprintf(ret_text, PATH_TEXT_SIZE,
                 "%s is a symbolic link; the socket must be named by its real path", path);
        return STATUS_DENIED;
    }
    if (!S_ISSOCK(info.st_mode)) {
        snprintf(ret_text, PATH_TEXT_SIZE, "%s is in the way: it is not a socket", path);
        return STATUS_UNAVAILABLE;
    }
    if (!path_trusts(info.st_uid)) {
        snprintf(ret_text, PATH_TEXT_SIZE,
                 "the socket %s is owned by user %u, and this process runs as user %u "
                 "(TENSORCX_SOCKET can name another one, TENSORCX_TRUST_UID=%u trusts that user)",
                 path, (unsigned)info.st_uid, (unsigned)geteuid(), (unsigned)info.st_uid);
        return STATUS_DENIED;
    }
    return STATUS_OK;
}
