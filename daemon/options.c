#include "options.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { FLAG, TEXT, CHOICE, COUNT, SIZE, SECONDS, UIDS };

struct option {
    const char *name;
    enum kind kind;
    const char *argument;     /* as the help shows it; of a CHOICE: the choices, with '|' between */
    const char *default_text; /* parsed like an argument; NULL: the field is left zero */
    size_t field;             /* offset in struct options */
    uint64_t min, max;        /* of COUNT, SIZE; of SECONDS in milliseconds */
    const char *help;
};

#define FIELD(name) offsetof(struct options, name)
#define KIB         ((uint64_t)1 << 10)
#define MIB         ((uint64_t)1 << 20)
#define TIB         ((uint64_t)1 << 40)
#define YEAR_MS     ((uint64_t)365 * 24 * 3600 * 1000)

static const struct option table[] = {
    {"socket", TEXT, "PATH", NULL, FIELD(socket), 0, 0,
     "where to listen (default: $TENSORCX_SOCKET, else tensorcx/tensorcxd.sock in "
     "$XDG_RUNTIME_DIR or /run/user/UID, else /tmp/tensorcx-UID/tensorcxd.sock)"},
    {"capacity", SIZE, "SIZE", NULL, FIELD(capacity), MIB, 64 * TIB,
     "most memory to commit, e.g. 512M, 8G (default: half of the memory available at the start)"},
    {"backing", CHOICE, "auto|posix|memfd", "auto", FIELD(backing), 0, 0,
     "kind of shared memory; auto is posix, or memfd where the kernel gives huge pages or "
     "/dev/shm has less room than the capacity"},
    {"reserve", SIZE, "SIZE", "80M", FIELD(reserve), 0, 64 * TIB,
     "memory that is kept ready while idle, so that first tensors are fast: a slab for small ones "
     "and, with the rest, one large segment; at most a sixteenth of the capacity and of the memory "
     "available; 0: none"},
    {"cuda", CHOICE, "auto|vmm|ipc|off", "auto", FIELD(cuda), 0, 0,
     "how memory of CUDA devices is shared: vmm by descriptors, ipc by handles of the older "
     "interface, off not at all; auto is vmm where a device can, else ipc"},
    {"cuda-capacity", SIZE, "SIZE", NULL, FIELD(cuda_capacity), 2 * MIB, 64 * TIB,
     "most memory to commit on each CUDA device (default: nine tenths of what it has)"},
    {"warm-seconds", SECONDS, "SECONDS", "5", FIELD(warm_ms), 0, YEAR_MS,
     "how long freed memory is kept for the next tensor"},
    {"idle-exit", SECONDS, "SECONDS", "0", FIELD(idle_exit_ms), 0, YEAR_MS,
     "end after this time without clients, names, tickets and messages in queues; 0: never"},
    {"ticket-lease", SECONDS, "SECONDS", "60", FIELD(ticket_lease_ms), 0, YEAR_MS,
     "how long memory sent to another process is kept when its sender is done with it and nobody "
     "has taken it; 0: not at all"},
    {"max-clients", COUNT, "N", "4096", FIELD(max_clients), 1, 1000000, "most clients"},
    {"max-storages", COUNT, "N", "1048576", FIELD(max_storages), 1, UINT32_MAX,
     "most storages, most storages that bundles refer to, most that messages of channels refer to, "
     "and most tickets"},
    {"max-names", COUNT, "N", "1048576", FIELD(max_names), 1, UINT32_MAX, "most names"},
    {"max-channels", COUNT, "N", "65536", FIELD(max_channels), 1, 1000000,
     "most channels (queues and topics)"},
    {"max-output", SIZE, "SIZE", "8M", FIELD(max_output), 128 * KIB, TIB,
     "most bytes of replies that a client leaves unread before it is dropped"},
    {"max-waiting", COUNT, "N", "1024", FIELD(max_waiting), 1, 1000000,
     "most calls of one client that wait for a name or for memory"},
    {"client-bytes", SIZE, "SIZE", NULL, FIELD(client_bytes), MIB, 64 * TIB,
     "most memory that one client has made and that still exists (default: no such limit)"},
    {"client-storages", COUNT, "N", NULL, FIELD(client_storages), 1, UINT32_MAX,
     "most storages that one client has made and that still exist, and most that its bundles and "
     "messages refer to (default: no such limit)"},
    {"client-names", COUNT, "N", NULL, FIELD(client_names), 1, UINT32_MAX,
     "most names that one client has put and that still exist (default: no such limit)"},
    {"client-tickets", COUNT, "N", "65536", FIELD(client_tickets), 1, UINT32_MAX,
     "most tensors that one client has sent and that nobody has received yet"},
    {"client-forks", COUNT, "N", "4096", FIELD(client_forks), 1, 1000000,
     "most forks of one client that are told apart; beyond, what it lets go stays until it ends"},
    {"client-channels", COUNT, "N", "1024", FIELD(client_channels), 1, 1000000,
     "most channels that one client has made and that still exist, and most handles of channels "
     "that it has open"},
    {"allow-uid", UIDS, "UID,...", NULL, FIELD(allow_uid), 0, 0,
     "also serve these users, who then share everything; may be given several times"},
    {"log", TEXT, "FILE", NULL, FIELD(log), 0, 0, "append the log to FILE (default: stderr)"},
    {"log-level", CHOICE, "error|warn|info|debug", "info", FIELD(log_level), 0, 0,
     "what is worth a line"},
    {"background", FLAG, NULL, NULL, FIELD(background), 0, 0,
     "detach from the starter: own session, no terminal, nothing inherited"},
    {"ready-fd", COUNT, "FD", NULL, FIELD(ready_fd), 3, 1000000000,
     "write R to this descriptor once clients can connect, or else the reason why not; then close "
     "it"},
    {"version", FLAG, NULL, NULL, FIELD(version), 0, 0, "print the version"},
    {"help", FLAG, NULL, NULL, FIELD(help), 0, 0, "print this text"},
};

enum { OPTION_COUNT = sizeof table / sizeof *table };

/* A number with up to one decimal point, no sign, and its unit. */
static int parse_number(const char *text, double *ret_value, const char **ret_end) {
    char *end;

    if (!isdigit((unsigned char)text[0])) {
        return -1;
    }
    for (const char *c = text; *c; c++) {
        if (*c == 'x' || *c == 'X') { /* strtod() knows hexadecimal */
            return -1;
        }
    }
    *ret_value = strtod(text, &end);
    *ret_end = end;
    return __builtin_isfinite(*ret_value) ? 0 : -1;
}

static int parse_scaled(const struct option *option, const char *text, uint64_t *ret_value) {
    static const char units[] = "KMGT";
    double value;
    const char *end;
    double scale = option->kind == SECONDS ? 1000 : 1;

    if (parse_number(text, &value, &end) < 0) {
        return -1;
    }
    if (option->kind == SIZE && *end) {
        const char *unit = strchr(units, toupper((unsigned char)*end));
        if (!unit) {
            return -1;
        }
        scale = (double)((uint64_t)1 << 10 * (unit - units + 1));
        end++;
        end += strcmp(end, "iB") == 0 ? 2 : strcmp(end, "B") == 0 ? 1 : 0;
    }
    value *= scale;
    if (*end || value < (double)option->min || value > (double)option->max ||
        (option->kind == COUNT && value != (double)(uint64_t)value)) {
        return -1;
    }
    *ret_value = (uint64_t)value;
    return 0;
}

static int is_choice(const char *choices, const char *text) {
    size_t length = strcspn(text, "|");

    if (length == 0 || text[length]) {
        return 0;
    }
    for (const char *at = choices; at; at = strchr(at, '|')) {
        at += *at == '|';
        if (strncmp(at, text, length) == 0 && (at[length] == '|' || !at[length])) {
            return 1;
        }
    }
    return 0;
}

static void print_range(const struct option *option, char *text, size_t size) {
    if (option->kind == CHOICE) {
        snprintf(text, size, "one of %s", option->argument);
    } else if (option->kind == UIDS) {
        snprintf(text, size, "at most %d numbers of users, with commas between", UIDS_MAX);
    } else if (option->kind == SECONDS) {
        snprintf(text, size, "seconds from %llu to %llu", (unsigned long long)option->min / 1000,
                 (unsigned long long)option->max / 1000);
    } else if (option->kind == SIZE) {
        snprintf(text, size, "a size from %lluK to %lluG, as in 512M",
                 (unsigned long long)(option->min / KIB), (unsigned long long)(option->max >> 30));
    } else {
        snprintf(text, size, "a number from %llu to %llu", (unsigned long long)option->min,
                 (unsigned long long)option->max);
    }
}

/* Sets one option from its argument (NULL for a flag). */
static int set(struct options *options, const struct option *option, const char *argument,
               char text[OPTIONS_TEXT_SIZE]) {
    void *field = (char *)options + option->field;
    char range[96];

    switch (option->kind) {
    case FLAG:
        *(bool *)field = true;
        return 0;
    case TEXT:
        if (*argument) {
            *(const char **)field = argument;
            return 0;
        }
        snprintf(text, OPTIONS_TEXT_SIZE, "--%s must not be empty", option->name);
        return -1;
    case CHOICE:
        if (is_choice(option->argument, argument)) {
            *(const char **)field = argument;
            return 0;
        }
        break;
    case COUNT:
    case SIZE:
    case SECONDS:
        if (parse_scaled(option, argument, field) == 0) {
            return 0;
        }
        break;
    case UIDS:
        if (uids_add(field, argument) == 0) {
            return 0;
        }
        break;
    }
    print_range(option, range, sizeof range);
    snprintf(text, OPTIONS_TEXT_SIZE, "--%s=%.60s: must be %s", option->name, argument, range);
    return -1;
}

static const struct option *find(const char *name, size_t length) {
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        if (strlen(table[i].name) == length && memcmp(table[i].name, name, length) == 0) {
            return &table[i];
        }
    }
    return NULL;
}

/* Reads the option at argv[*at], and moves *at past it. */
static int parse_one(struct options *options, int argc, char **argv, int *at,
                     char text[OPTIONS_TEXT_SIZE]) {
    const char *word = argv[(*at)++];
    const char *name = word + 2;
    const char *equals = strchr(word, '=');
    const struct option *option = strncmp(word, "--", 2) == 0
                                      ? find(name, equals ? (size_t)(equals - name) : strlen(name))
                                      : NULL;

    if (!option) {
        snprintf(text, OPTIONS_TEXT_SIZE, "unknown option %.60s (see tensorcxd --help)", word);
        return -1;
    }
    const char *argument = equals ? equals + 1 : NULL;
    if (option->kind == FLAG && argument) {
        snprintf(text, OPTIONS_TEXT_SIZE, "--%s takes no argument", option->name);
        return -1;
    }
    if (option->kind != FLAG && !argument) {
        if (*at == argc) {
            snprintf(text, OPTIONS_TEXT_SIZE, "--%s needs an argument: %s", option->name,
                     option->argument);
            return -1;
        }
        argument = argv[(*at)++];
    }
    return set(options, option, argument, text);
}

int options_parse(struct options *options, int argc, char **argv,
                  char ret_text[OPTIONS_TEXT_SIZE]) {
    *options = (struct options){.ready_fd = UINT64_MAX};
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        if (table[i].default_text && set(options, &table[i], table[i].default_text, ret_text) < 0) {
            return -1;
        }
    }
    for (int at = 1; at < argc;) {
        if (parse_one(options, argc, argv, &at, ret_text) < 0) {
            return -1;
        }
    }
    return 0;
}

/* Prints `help` in lines of WIDTH columns, the first one after `head`. */
static void print_wrapped(const char *head, const char *help) {
    enum { COLUMN = 38, WIDTH = 60 };

    while (*help) {
        size_t length = strlen(help);
        if (length > WIDTH) {
            length = WIDTH;
            while (length > 0 && help[length] != ' ') {
                length--;
            }
        }
        printf("%-*s%.*s\n", COLUMN, head, (int)length, help);
        head = "";
        help += length;
        help += *help == ' ';
    }
}

void options_print_help(void) {
    puts("usage: tensorcxd [options]\n\n"
         "Owns tensor memory and shares it with the processes of one user.\n");
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        const struct option *option = &table[i];
        char head[64];
        char help[512];
        snprintf(head, sizeof head, "  --%s%s%s", option->name, option->argument ? "=" : "",
                 option->argument ? option->argument : "");
        snprintf(help, sizeof help, "%s%s%s%s", option->help,
                 option->default_text ? " (default: " : "",
                 option->default_text ? option->default_text : "", option->default_text ? ")" : "");
        print_wrapped(head, help);
    }
    puts("\nSIGTERM and SIGINT end it in good order, as `tensorcx stop` does.");
}
