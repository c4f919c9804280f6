/*
 * fuzz_text.c - texts: names, paths of sockets, lists of users, the daemon's command line, what is
 * logged of a client
 */
#include <stdlib.h>

#include "fuzz.h"
#include "log.h"
#include "messages.h"
#include "name.h"
#include "options.h"
#include "path.h"
#include "status.h"
#include "uids.h"

enum { WORDS_MAX = 8 };

static void check_name(const char *bytes, size_t nbytes) {
    int is_utf8 = text_is_utf8(bytes, nbytes);
    int is_clean = text_is_clean(bytes, nbytes);

    assert(is_utf8 || !is_clean);
    assert(!name_check(bytes, nbytes) == (is_clean && nbytes > 0 && nbytes <= WIRE_NAME_MAX));
}

/* Whatever a client calls itself, the log has one printable line of it, in quotes. */
static void check_quote(const char *bytes, size_t nbytes) {
    char text[4 * WIRE_PROGRAM_MAX + 8];
    size_t length = strlen(log_quote(bytes, nbytes, text, sizeof text));

    assert(length >= 2 && length < sizeof text && text[0] == '"' && text[length - 1] == '"');
    for (size_t i = 0; i < length; i++) {
        assert(text[i] >= ' ' && text[i] != 127);
    }
}

static void check_path(const char *text) {
    char path[PATH_SIZE];
    char why[PATH_TEXT_SIZE] = "";

    if (path_resolve(text, path, why) == STATUS_OK) {
        assert(path[0] == '/' && strlen(path) < PATH_SIZE);
        (void)path_check(path, why);
    }
    assert(strlen(why) < PATH_TEXT_SIZE);
}

static void check_uids(const char *text) {
    struct uids uids = {0};

    (void)uids_add(&uids, text);
    assert(uids.count <= UIDS_MAX);
    for (size_t i = 0; i < uids.count; i++) {
        assert(uids_find(&uids, uids.uid[i]) >= 0 && uids.uid[i] != (uid_t)-1);
    }
}

/* One word a line. */
static void check_options(char *text) {
    char why[OPTIONS_TEXT_SIZE] = "";
    char *words[WORDS_MAX] = {"tensorcxd"};
    struct options options;
    int count = 1;

    for (char *word = strtok(text, "\n"); word && count < WORDS_MAX; word = strtok(NULL, "\n")) {
        words[count++] = word;
    }
    if (options_parse(&options, count, words, why) == 0) {
        assert(options.max_clients > 0 && options.backing && options.log_level);
    } else {
        assert(strlen(why) > 0 && strlen(why) < sizeof why);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    struct input input = {data, nbytes};
    uint64_t kind = input_number(&input, 1) % 4;
    size_t left = input.left;
    char *text = malloc(left + 1);

    input_take(&input, text, left);
    text[left] = '\0';
    if (kind == 0) {
        check_name(text, left);
        check_quote(text, left);
    } else if (kind == 1) {
        check_path(text);
    } else if (kind == 2) {
        check_uids(text);
    } else {
        check_options(text);
    }
    free(text);
    return 0;
}
