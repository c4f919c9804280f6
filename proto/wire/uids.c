#include "uids.h"

#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>

int uids_add(struct uids *uids, const char *text) {
    char *end;

    do {
        if (!isdigit((unsigned char)text[0])) {
            return -1;
        }
        unsigned long long uid = strtoull(text, &end, 10);
        if ((*end && *end != ',') || uid >= UINT32_MAX || uids->count == UIDS_MAX) {
            return -1;
        }
        uids->uid[uids->count++] = (uid_t)uid;
        text = end + 1;
    } while (*end);
    return 0;
}

int uids_find(const struct uids *uids, uid_t uid) {
    for (size_t i = 0; i < uids->count; i++) {
        if (uids->uid[i] == uid) {
            return (int)i;
        }
    }
    return -1;
}
