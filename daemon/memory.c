#include "memory.h"

#include <ctype.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bytes.h"

#define SPARE_MAX (256 * MIB)

enum { TEXT_SIZE = 8192, FOLDER_SIZE = 4200, PATH_SIZE = 4300 };

/* Reads a small file into `text`; false when it is not there. */
static bool read_text(const char *path, char text[TEXT_SIZE]) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, TEXT_SIZE - 1);

    if (fd >= 0) {
        close(fd);
    }
    text[n < 0 ? 0 : n] = '\0';
    return n > 0;
}

/* The number that `text` begins with; UINT64_MAX when it begins with none ("max", garbage). */
static uint64_t number_of(const char *text) {
    return isdigit((unsigned char)*text) ? strtoull(text, NULL, 10) : UINT64_MAX;
}

/* The number after `key` at the start of a line; UINT64_MAX when there is none. */
static uint64_t number_after(const char *text, const char *key) {
    size_t length = strlen(key);

    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, length) == 0) {
            line += length;
            return number_of(line + strspn(line, " "));
        }
    }
    return UINT64_MAX;
}

/* What of `left` bytes we may commit: where the last ones of `total` go the kernel kills, and the
 * books of what we hand out need memory as well. */
static uint64_t without_spare(uint64_t total, uint64_t left) {
    return left - bytes_least(left, bytes_least(total / 16, SPARE_MAX));
}

/* A line of /proc/meminfo, in bytes. */
static uint64_t bytes_after(const char *text, const char *key) {
    uint64_t kib = number_after(text, key);

    return kib < UINT64_MAX / 1024 ? kib * 1024 : UINT64_MAX;
}

static uint64_t machine_room(const char *root) {
    char path[PATH_SIZE];
    char text[TEXT_SIZE];

    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    uint64_t left = read_text(path, text) ? bytes_after(text, "MemAvailable:") : UINT64_MAX;
    return left < UINT64_MAX ? without_spare(bytes_after(text, "MemTotal:"), left) : left;
}

/* What one cgroup version calls its files. */
struct files {
    const char *limit, *throttle, *usage, *reclaimable;
};

static const struct files v2 = {"memory.max", "memory.high", "memory.current", "inactive_file "};
static const struct files v1 = {"memory.limit_in_bytes", NULL, "memory.usage_in_bytes",
                                "total_inactive_file "};

/* The number in a file of `folder`; UINT64_MAX when there is none. */
static uint64_t number_in(const char *folder, const char *file) {
    char path[PATH_SIZE];
    char text[TEXT_SIZE];

    snprintf(path, sizeof path, "%s/%s", folder, file);
    return read_text(path, text) ? number_of(text) : UINT64_MAX;
}

/* What the cgroup in `folder` still allows; UINT64_MAX: it has no limit, or is not there. Where the
 * kernel begins to throttle is a limit as well: our pages cannot be reclaimed. */
static uint64_t room_in(const char *folder, const struct files *files) {
    char path[PATH_SIZE];
    char text[TEXT_SIZE];
    uint64_t limit = number_in(folder, files->limit);

    if (files->throttle) {
        limit = bytes_least(limit, number_in(folder, files->throttle));
    }
    uint64_t usage = limit < UINT64_MAX ? number_in(folder, files->usage) : UINT64_MAX;
    if (usage == UINT64_MAX) {
        return limit;
    }
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    uint64_t reclaimable =
        read_text(path, text) ? number_after(text, files->reclaimable) : UINT64_MAX;
    if (reclaimable < UINT64_MAX) {
        usage -= bytes_least(usage, reclaimable);
    }
    return without_spare(limit, limit - bytes_least(limit, usage));
}

/* The least that `path` below `top` and the cgroups above it allow. In a container the path may
 * be the host's: then only the top is there. */
static uint64_t room_above(const char *root, const char *top, const char *path,
                           const struct files *files) {
    char folder[FOLDER_SIZE];
    uint64_t room = UINT64_MAX;
    size_t top_length = strlen(root) + strlen(top);

    snprintf(folder, sizeof folder, "%s%s%s", root, top, path);
    for (;;) {
        room = bytes_least(room, room_in(folder, files));
        char *slash = strrchr(folder, '/');
        if (!slash || (size_t)(slash - folder) < top_length) {
            return room;
        }
        *slash = '\0';
    }
}

/* Whether a line of /proc/self/cgroup, "hierarchy:controllers:path", is of version 1 and has the
 * memory. */
static bool has_memory(const char *line) {
    const char *word = line + strcspn(line, ":\n");

    while (*word == ':' || *word == ',') {
        word++;
        size_t length = strcspn(word, ",:\n");
        if (length == strlen("memory") && strncmp(word, "memory", length) == 0) {
            return true;
        }
        word += length;
        if (*word == ':') {
            break;
        }
    }
    return false;
}

/* Finds our line in the text of /proc/self/cgroup; with both versions, the one that has the
 * memory. NULL when there is none. */
static const char *find_line(const char *text, int *ret_version) {
    const char *v2_line = NULL;

    for (const char *line = text; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (has_memory(line)) {
            *ret_version = 1;
            return line;
        }
        if (strncmp(line, "0::", 3) == 0) {
            v2_line = line;
        }
    }
    *ret_version = 2;
    return v2_line;
}

/* The path of our cgroup below the top of its hierarchy; false when there is none. */
static bool own_cgroup(const char *root, char *path, size_t size, int *ret_version) {
    char file[PATH_SIZE];
    char text[TEXT_SIZE];

    snprintf(file, sizeof file, "%s/proc/self/cgroup", root);
    const char *line = read_text(file, text) ? find_line(text, ret_version) : NULL;
    const char *found = line ? strchr(line, '/') : NULL;
    if (!found || found > line + strcspn(line, "\n")) {
        return false;
    }
    snprintf(path, size, "%.*s", (int)strcspn(found, "\n"), found);
    return true;
}

static uint64_t cgroup_room(const char *root) {
    char path[FOLDER_SIZE - 64];
    int version;

    if (!own_cgroup(root, path, sizeof path, &version)) {
        return UINT64_MAX;
    }
    if (version == 1) {
        return room_above(root, "/sys/fs/cgroup/memory", path, &v1);
    }
    return bytes_least(
        room_above(root, "/sys/fs/cgroup", path, &v2),
        room_above(root, "/sys/fs/cgroup/unified", path, &v2)); /* beside version 1 */
}

void memory_cgroup(const char *root, char *ret_path, size_t size) {
    int version;

    if (!own_cgroup(root, ret_path, size, &version)) {
        snprintf(ret_path, size, "?");
    }
}

uint64_t memory_available(const char *root, const char **ret_limit) {
    uint64_t machine = machine_room(root);
    uint64_t cgroup = cgroup_room(root);

    *ret_limit =
        cgroup < machine ? "the memory limit of the daemon's cgroup" : "the memory of this machine";
    return bytes_least(cgroup, machine);
}

bool memory_has_huge_pages(const char *root) {
    char path[PATH_SIZE];
    char text[TEXT_SIZE];

    snprintf(path, sizeof path, "%s/sys/kernel/mm/transparent_hugepage/shmem_enabled", root);
    /* All choices, the one in force in brackets. */
    return read_text(path, text) && (strstr(text, "[always]") || strstr(text, "[within_size]") ||
                                     strstr(text, "[advise]") || strstr(text, "[force]"));
}
