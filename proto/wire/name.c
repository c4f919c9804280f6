#include "name.h"

#include <stdint.h>

#include "messages.h"

/* Decodes one code point at `at`. Returns its length, or 0 when it is not UTF-8 (RFC 3629). */
static size_t code_point(const uint8_t *at, size_t left, uint32_t *ret_value) {
    static const uint32_t smallest[5] = {0, 0, 0x80, 0x800, 0x10000};
    size_t length = at[0] < 0x80       ? 1
                    : at[0] >> 5 == 6  ? 2
                    : at[0] >> 4 == 14 ? 3
                    : at[0] >> 3 == 30 ? 4
                                       : 0;
    uint32_t value;

    if (length == 0 || length > left) {
        return 0;
    }
    value = length == 1 ? at[0] : at[0] & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if (at[i] >> 6 != 2) {
            return 0;
        }
        value = value << 6 | (at[i] & 0x3f);
    }
    if (value < smallest[length] || value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) {
        return 0;
    }
    *ret_value = value;
    return length;
}

static int is_control(uint32_t value) {
    return value < 0x20 || (value >= 0x7f && value < 0xa0);
}

static int check_text(const void *bytes, size_t nbytes, int allows_controls) {
    const uint8_t *at = bytes;

    while (nbytes > 0) {
        uint32_t value;
        size_t length = code_point(at, nbytes, &value);
        if (length == 0 || (!allows_controls && is_control(value))) {
            return 0;
        }
        at += length;
        nbytes -= length;
    }
    return 1;
}

int text_is_utf8(const void *bytes, size_t nbytes) {
    return check_text(bytes, nbytes, 1);
}

int text_is_clean(const void *bytes, size_t nbytes) {
    return check_text(bytes, nbytes, 0);
}

const char *name_check(const void *bytes, size_t nbytes) {
    if (nbytes == 0) {
        return "a name must not be empty";
    }
    if (nbytes > WIRE_NAME_MAX) {
        return "a name has at most 255 bytes of UTF-8";
    }
    if (!text_is_clean(bytes, nbytes)) {
        return "a name is UTF-8 without control characters";
    }
    return NULL;
}
