#include "codec.h"

static const struct wire_rule rules[] = {
#define CALL(NAME, n, opc, st, request_tail_max, reply_tail_max, fds) \
    {.name = #NAME,                                                   \
     .opcode = (opc),                                                 \
     .is_call = 1,                                                    \
     .state = WIRE_##st,                                              \
     .reply_fds = (fds),                                              \
     .request_size = sizeof(struct wire_##n),                         \
     .request_tail = (request_tail_max),                              \
     .reply_size = sizeof(struct wire_##n##_reply),                   \
     .reply_tail = (reply_tail_max)},
#define NOTE(NAME, n, opc, st, tail_max, fds) \
    {.name = #NAME,                           \
     .opcode = (opc),                         \
     .state = WIRE_##st,                      \
     .request_fds = (fds),                    \
     .request_size = sizeof(struct wire_##n), \
     .request_tail = (tail_max)},
#include "messages.def"
#undef CALL
#undef NOTE
};

/* The largest message of all must fit. */
#define CALL(NAME, n, opc, st, request_tail_max, reply_tail_max, fds)                           \
    _Static_assert(sizeof(struct wire_header) + sizeof(struct wire_##n) + (request_tail_max) <= \
                       WIRE_MESSAGE_MAX,                                                        \
                   #NAME);                                                                      \
    _Static_assert(sizeof(struct wire_header) + sizeof(struct wire_##n##_reply) +               \
                           (reply_tail_max) <=                                                  \
                       WIRE_MESSAGE_MAX,                                                        \
                   #NAME);                                                                      \
    _Static_assert((fds) <= WIRE_FDS_MAX, #NAME);
#define NOTE(NAME, n, opc, st, tail_max, fds)                                           \
    _Static_assert(sizeof(struct wire_header) + sizeof(struct wire_##n) + (tail_max) <= \
                       WIRE_MESSAGE_MAX,                                                \
                   #NAME);                                                              \
    _Static_assert((fds) <= WIRE_FDS_MAX, #NAME);
#include "messages.def"
#undef CALL
#undef NOTE

const struct wire_rule *wire_rule(uint16_t opcode) {
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        if (rules[i].opcode == opcode) {
            return &rules[i];
        }
    }
    return NULL;
}

static const char *check_frame(const struct wire_header *header, size_t nbytes, size_t nfds,
                               const struct wire_rule **ret_rule) {
    if (nbytes < sizeof *header || header->nbytes != nbytes) {
        return "the size in the header is not the size of the message";
    }
    *ret_rule = wire_rule(header->opcode);
    if (!*ret_rule) {
        return "unknown opcode";
    }
    if (header->nfds != nfds) {
        return "the header counts other descriptors than came";
    }
    return NULL;
}

static int size_fits(size_t body, uint32_t size, uint32_t tail) {
    return body >= size && body - size <= tail;
}

const char *wire_check_request(const struct wire_header *header, size_t nbytes, size_t nfds,
                               const struct wire_rule **ret_rule) {
    const struct wire_rule *rule;
    const char *broken = check_frame(header, nbytes, nfds, &rule);

    if (broken) {
        return broken;
    }
    if (!size_fits(nbytes - sizeof *header, rule->request_size, rule->request_tail)) {
        return "wrong body size";
    }
    if (nfds > rule->request_fds) {
        return "descriptors where none belong";
    }
    if ((header->request != 0) != rule->is_call) {
        return "a call needs a request id, a note must have none";
    }
    if (header->status != 0 || header->destroyed != 0) {
        return "a request has no status";
    }
    *ret_rule = rule;
    return NULL;
}

const char *wire_check_reply(const struct wire_header *header, size_t nbytes, size_t nfds,
                             const struct wire_rule **ret_rule) {
    const struct wire_rule *rule;
    const char *broken = check_frame(header, nbytes, nfds, &rule);

    if (broken) {
        return broken;
    }
    if (!rule->is_call || header->request == 0) {
        return "a reply to a note";
    }

    int failed = header->status != STATUS_OK;
    size_t body = nbytes - sizeof *header;
    if (!size_fits(body, failed ? 0 : rule->reply_size,
                   failed ? WIRE_TEXT_MAX : rule->reply_tail)) {
        return "wrong body size";
    }
    if (nfds > (failed ? 0 : rule->reply_fds)) {
        return "more descriptors than the reply may carry";
    }
    *ret_rule = rule;
    return NULL;
}
