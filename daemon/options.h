/*
 * options.h - the command line: one table of options, checked, with defaults and help
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "uids.h"

struct options {
    const char *socket; /* NULL: the default place */
    uint64_t capacity;  /* bytes; 0: half of the memory available at the start */
    const char *backing;
    uint64_t reserve; /* bytes */
    const char *cuda;
    uint64_t cuda_capacity; /* bytes of each device; 0: most of what it has */
    uint64_t warm_ms, idle_exit_ms, ticket_lease_ms;
    uint64_t max_clients, max_storages, max_names, max_channels, max_output, max_waiting;
    uint64_t client_bytes, client_storages, client_names, client_tickets; /* 0: no limit */
    uint64_t client_forks, client_channels;
    struct uids allow_uid; /* besides the daemon's own */
    const char *log;       /* file; NULL: stderr */
    const char *log_level;
    bool background;
    uint64_t ready_fd; /* UINT64_MAX: none */
    bool version, help;
};

enum { OPTIONS_TEXT_SIZE = 256 };

/* Reads the command line; texts point into argv. 0, or -1 and a text that names the option. */
int options_parse(struct options *options, int argc, char **argv, char ret_text[OPTIONS_TEXT_SIZE]);

/* Prints usage and all options to stdout. */
void options_print_help(void);
