/*
 * messages.h - what goes over the socket: one header, one fixed struct and one bounded tail a
 * message
 *
 * The socket is SOCK_SEQPACKET: the kernel keeps message boundaries and ties descriptors to their
 * message. All fields are in host byte order (both ends are on one machine) and naturally aligned,
 * so there is no padding and to decode is to check the size and copy. messages.def lists the
 * messages, README.md tells what each means.
 */
#pragma once

#include <stdint.h>

#define WIRE_MAGIC       0x31584354u /* "TCX1" */
#define WIRE_VERSION_MIN 1
#define WIRE_VERSION_MAX 1
#define WIRE_LAYOUT      1 /* of what clients share in memory: the bundle index, messages */

#define WIRE_NAME_MAX    255            /* bytes of a name */
#define WIRE_PROGRAM_MAX 255            /* bytes of a program's name */
#define WIRE_TEXT_MAX    1024           /* bytes of an error text */
#define WIRE_PUT_MAX     (64 * 1024)    /* bytes of data that PUT carries */
#define WIRE_IDS_MAX     4096           /* ids in one message */
#define WIRE_HOLDS_MAX   1024           /* ids in one HOLD, grants in its reply */
#define WIRE_LIST_MAX    (64 * 1024)    /* bytes of entries in one page of a list */
#define WIRE_DESC_MAX    (24 + 64 * 16) /* desc.h: header and 64 dimensions */
#define WIRE_IPC_HANDLE  64             /* bytes of a handle of cuIpcGetMemHandle() */
#define WIRE_DEVICES_MAX 64             /* CUDA devices of one daemon */
#define WIRE_PAGE_NBYTES 4096           /* of a life page or fork page, on any machine */
#define WIRE_FDS_MAX     1              /* descriptors in one message */
#define WIRE_NO_BUFFER   0xffffffff     /* in REFER: all that the handle sends */
#define WIRE_MESSAGE_MAX (96 * 1024)    /* whole message; SEQPACKET ends near 200 KiB */

struct wire_header {
    uint32_t nbytes;    /* of the whole message, header included */
    uint16_t opcode;    /* enum message; the reply repeats it */
    uint16_t nfds;      /* descriptors that come with this message */
    uint32_t request;   /* id of a call, repeated in its reply, never 0; 0 in a note */
    uint32_t status;    /* enum status of a reply; when not OK the rest is a text; 0 otherwise */
    uint64_t destroyed; /* replies: segments destroyed since the daemon began; 0 otherwise */
};

/* One grant on a storage, and where that lies. First in every reply that grants. */
struct wire_grant {
    uint64_t storage; /* never 0, never used twice */
    uint64_t nbytes;
    uint64_t segment; /* its device in the highest 8 bits; 0 when nbytes is 0: nothing to map */
    uint64_t offset;  /* in the segment */
};

enum { GET_WAIT = 1 };                           /* wire_get.flags */
enum { PUT_EPHEMERAL = 1, PUT_EXCLUSIVE = 2 };   /* wire_publish.flags, wire_put.flags */
enum { ENTRY_EPHEMERAL = 1, ENTRY_EXPIRES = 2 }; /* wire_entry.flags */

/* wire_join.flags; the first two also those of a channel */
enum { JOIN_TOPIC = 1, JOIN_DROP_OLDEST = 2, JOIN_CREATE = 4 };

struct wire_hello {
    uint32_t magic; /* these first four fields never change, in any version */
    uint16_t version_min;
    uint16_t version_max;
    uint32_t layout;
    uint32_t reserved;
    uint64_t features;
}; /* tail: program name */

struct wire_hello_reply {
    uint16_t version;
    uint16_t reserved;
    uint32_t layout;
    uint64_t features;
    uint64_t boot_id; /* random, one per life of a daemon */
    uint64_t client;  /* our id at the daemon */
    uint32_t pid;     /* of the daemon */
    uint32_t reserved2;
}; /* descriptor: the life page (none where inotify is not to be had); tail: the daemon's version */

struct wire_cancel {
    uint32_t request;
    uint32_t reserved;
};

struct wire_fork {
    uint64_t reserved;
}; /* descriptor: the fork page (none: the client could not make one) */

struct wire_alloc {
    uint64_t nbytes;
    uint16_t device_type; /* as in DLPack; 1 is the CPU, 2 CUDA */
    uint16_t device;      /* index of DEVICES; 0: the CPU */
    uint32_t reserved;
};

struct wire_alloc_reply {
    struct wire_grant grant;
};

struct wire_map {
    uint64_t segment;
};

/* How a segment is mapped. */
enum wire_mapping {
    MAPPING_MMAP = 0, /* the descriptor, with mmap() */
    MAPPING_VMM = 1,  /* the descriptor, with cuMemImportFromShareableHandle() */
    MAPPING_IPC = 2,  /* the handle, with cuIpcOpenMemHandle() */
};

struct wire_map_reply {
    uint64_t segment; /* that was asked for */
    uint64_t nbytes;
    uint16_t device;  /* index of DEVICES; 0: the CPU */
    uint16_t mapping; /* enum wire_mapping */
    uint32_t reserved;
}; /* descriptor: the segment; or, with MAPPING_IPC, tail: its handle of 64 bytes */

struct wire_release {
    uint64_t reserved;
}; /* tail: struct wire_returned[] */

struct wire_returned {
    uint64_t storage;
    uint64_t grants; /* as many as this client had received */
};

struct wire_hold {
    uint64_t reserved;
}; /* tail: storage ids */

struct wire_hold_reply {
    uint64_t reserved;
}; /* tail: struct wire_grant[], in the order asked */

struct wire_attach {
    uint64_t storage;
}; /* tail: ids of older storages that this one keeps alive */

struct wire_attach_reply {
    uint64_t reserved;
};

struct wire_alive {
    uint64_t reserved;
}; /* tail: segment ids */

struct wire_alive_reply {
    uint64_t reserved;
}; /* tail: one byte each, 1 alive, 0 destroyed */

struct wire_unmap {
    uint64_t reserved;
}; /* tail: ids of segments on CUDA devices that are mapped no more */

struct wire_publish {
    uint64_t storage;
    uint64_t ttl_ms; /* 0: no limit */
    uint32_t flags;
    uint16_t desc_nbytes;
    uint16_t name_nbytes;
}; /* tail: description, name */

struct wire_publish_reply {
    uint64_t version;
};

struct wire_put {
    uint64_t ttl_ms;
    uint32_t flags;
    uint16_t desc_nbytes;
    uint16_t name_nbytes;
    uint32_t data_nbytes; /* size of the new storage */
    uint32_t reserved;
}; /* tail: description, name, data */

struct wire_put_reply {
    struct wire_grant grant;
    uint64_t version;
};

struct wire_get {
    uint64_t newer_than; /* only a version above this one; 0: any */
    uint32_t flags;
    uint32_t reserved;
}; /* tail: name */

struct wire_get_reply {
    struct wire_grant grant;
    uint64_t version;
}; /* tail: description */

/* What the catalog knows about one name. */
struct wire_entry {
    uint64_t version;
    uint64_t storage;
    uint64_t nbytes;      /* of the storage and of those attached to it */
    uint64_t age_ms;      /* since this version was put */
    uint64_t ttl_left_ms; /* with ENTRY_EXPIRES */
    uint64_t holders;     /* clients that hold the storage */
    uint32_t publisher;   /* pid as seen by the daemon */
    uint32_t flags;
    uint16_t desc_nbytes;
    uint16_t name_nbytes;
    uint32_t reserved;
};

struct wire_stat {
    uint64_t reserved;
}; /* tail: name */

struct wire_stat_reply {
    struct wire_entry entry;
}; /* tail: description */

struct wire_delete {
    uint64_t reserved;
}; /* tail: name */

struct wire_delete_reply {
    uint64_t version; /* the one that was deleted */
};

struct wire_list {
    uint16_t prefix_nbytes;
    uint16_t after_nbytes; /* names up to and including this one are skipped */
    uint32_t reserved;
}; /* tail: prefix, after */

struct wire_list_reply {
    uint32_t count;
    uint32_t more; /* 1: ask again with `after` = the last name */
}; /* tail: per entry a wire_entry, description, name, zeroes up to a multiple of 8; sorted by name
    */

struct wire_ticket {
    uint64_t storage;
};

struct wire_ticket_reply {
    uint64_t ticket; /* never 0, never used twice */
};

struct wire_redeem {
    uint64_t ticket;
    uint64_t storage; /* that it was made for */
};

struct wire_redeem_reply {
    struct wire_grant grant;
};

struct wire_join {
    uint64_t channel;       /* 0: the one of this name */
    uint64_t buffer_nbytes; /* this and the next three: 0: whatever it is */
    uint32_t flags;
    uint32_t capacity;
    uint32_t buffers;
    uint32_t participants;
    uint32_t device; /* index of DEVICES, with buffer_nbytes */
    uint32_t reserved;
}; /* tail: name, empty with a channel */

struct wire_join_reply {
    struct wire_grant grant; /* of the buffers; zeroes: the channel has no size yet */
    uint64_t channel;        /* never 0, never used twice */
    uint64_t buffer_nbytes;  /* of one buffer; 0: as above */
    uint32_t flags;
    uint32_t capacity;     /* N: messages */
    uint32_t buffers;      /* M */
    uint32_t slots;        /* S: of the ring */
    uint32_t participants; /* P: most at a time */
    uint32_t slot;         /* of the new participant, below P */
};                         /* descriptor: the control block */

struct wire_buffers {
    uint64_t channel;
    uint64_t nbytes; /* of one buffer, if the channel has no size yet; 0: only tell */
    uint32_t device; /* index of DEVICES, with nbytes; 0: the CPU */
    uint32_t reserved;
};

struct wire_buffers_reply {
    struct wire_grant grant; /* as in wire_join_reply */
    uint64_t buffer_nbytes;
};

struct wire_leave {
    uint64_t channel;
    uint32_t slot;
    uint32_t reserved;
};

struct wire_return {
    uint64_t channel;
    uint32_t slot;
    uint32_t buffer;
};

struct wire_refer {
    uint64_t channel;
    uint32_t slot;
    uint32_t buffer;
}; /* tail: ids of storages that the client holds */

struct wire_refer_reply {
    uint64_t ref; /* never 0, never used twice */
};

struct wire_fetch {
    uint64_t channel;
    uint64_t ref;
    uint32_t slot;
    uint32_t buffer;
};

struct wire_fetch_reply {
    uint64_t reserved;
}; /* tail: struct wire_grant[], in the order of the REFER */

struct wire_done {
    uint64_t channel;
    uint32_t buffer;
    uint32_t reserved;
};

struct wire_channels {
    uint64_t after; /* channels with an id above this one */
};

struct wire_channels_reply {
    uint32_t count;
    uint32_t more;
}; /* tail: per channel a wire_channel, name, zeroes up to a multiple of 8, wire_participant[];
      sorted by id */

struct wire_channel {
    uint64_t channel;
    uint64_t buffer_nbytes; /* 0: no size yet */
    uint64_t messages;      /* sent since the beginning */
    uint32_t depth;         /* of these, not yet received (by the slowest) */
    uint32_t closed;        /* 1: nothing is sent any more */
    uint32_t flags;
    uint32_t capacity;
    uint32_t buffers;
    uint32_t participants; /* most at a time */
    uint32_t count;        /* of wire_participant that follow */
    uint32_t name_nbytes;  /* 0: it was deleted */
    uint32_t device;       /* that its buffers are on, index of DEVICES; 0: the CPU */
    uint32_t reserved;
};

struct wire_participant {
    uint64_t client;
    uint32_t slot;
    uint32_t left;   /* 1: its handle is closed, what it holds is not */
    uint32_t holds;  /* buffers */
    uint32_t behind; /* a subscriber: messages that it has yet to receive */
};

struct wire_stats {
    uint64_t reserved;
};

struct wire_stats_reply {
#define STAT(name, text) uint64_t name;
#include "stats.def"
#undef STAT
}; /* tail: path of the socket */

struct wire_clients {
    uint64_t after; /* clients with an id above this one */
};

struct wire_clients_reply {
    uint32_t count;
    uint32_t more;
}; /* tail: per client a wire_client, program, zeroes up to a multiple of 8; sorted by id */

struct wire_client {
    uint64_t client;
    uint64_t storages;     /* that it holds */
    uint64_t bytes;        /* of these, on the CPU, */
    uint64_t device_bytes; /* and on CUDA devices */
    uint64_t tickets;      /* that it has sent and nobody has redeemed */
    uint64_t waiting;      /* calls not yet answered */
    uint64_t age_ms;
    uint32_t pid; /* as the daemon sees it (SO_PEERCRED) */
    uint32_t uid;
    uint32_t connected; /* 0: its socket is closed, its memory still mapped, maybe by children */
    uint32_t program_nbytes;
};

struct wire_stop {
    uint64_t reserved;
};

struct wire_stop_reply {
    uint32_t pid;
    uint32_t reserved;
};

struct wire_devices {
    uint64_t reserved;
};

struct wire_devices_reply {
    uint32_t count;
    uint32_t reserved;
}; /* tail: struct wire_device[] */

struct wire_device {
    uint16_t device;  /* index, 1 or more; never another device in a daemon's life */
    uint16_t mapping; /* enum wire_mapping of its segments */
    uint32_t reserved;
    uint8_t uuid[16];
    uint64_t total_bytes;     /* of the device */
    uint64_t capacity_bytes;  /* most bytes that may be committed */
    uint64_t committed_bytes; /* of all segments */
    uint64_t warm_bytes;      /* of these, nobody uses, kept for the next storage */
    uint64_t dying_bytes;     /* given up, but clients still have them mapped; not committed */
    uint64_t storages;        /* live ones */
    uint64_t bytes;           /* of these */
    char name[64];            /* ends with a 0 */
};

_Static_assert(sizeof(struct wire_header) == 24, "the header is the protocol");
_Static_assert(sizeof(struct wire_device) == 144, "no padding");
_Static_assert(sizeof(struct wire_grant) == 32, "no padding");
_Static_assert(sizeof(struct wire_hello) == 24, "HELLO never changes");
_Static_assert(sizeof(struct wire_hello_reply) == 40, "no padding");
_Static_assert(sizeof(struct wire_entry) == 64, "no padding");
_Static_assert(sizeof(struct wire_client) == 72, "no padding");
_Static_assert(sizeof(struct wire_join) == 40, "no padding");
_Static_assert(sizeof(struct wire_join_reply) == 72, "no padding");
_Static_assert(sizeof(struct wire_channel) == 64, "no padding");
_Static_assert(sizeof(struct wire_participant) == 24, "no padding");
_Static_assert(sizeof(struct wire_put) == 24, "no padding");
_Static_assert(sizeof(struct wire_publish) == 24, "no padding");
