/*
 * tensorcx.h - share tensor memory between processes
 *
 * tensorcxd, a local daemon, owns the memory; this library maps it and exchanges tensors with other
 * frameworks by DLPack. A tensor lives as long as anything uses it, in whatever process.
 *
 *     tcx_client_t *client;
 *     tcx_tensor_t *tensor;
 *     tcx_client_open(NULL, &client);
 *     tcx_put(client, "frames/left", &array, NULL, &tensor);       one process
 *     tcx_get(client, "frames/left", NULL, &tensor, NULL);         another one
 *     float *pixels = tcx_tensor_array(tensor)->data;              the same memory
 *
 * Returns. Functions that can fail return TCX_OK (0) or another tcx_status; outputs (`ret_`) are
 * untouched on failure. tcx_error() then says what was asked, what the limit is and what to do.
 * Outputs, objects and callbacks must not be NULL, except where a function says that they may.
 *
 * Threads. Every function may be called from any thread at any time, on the same objects too,
 * except that an object must not be used after the call that gives up the last reference to it.
 *
 * Blocking. "Asks the daemon" means one or a few requests over a Unix socket, microseconds while
 * the daemon runs; it starts the daemon if none answers (see tcx_client_options_t). Such a call
 * returns TCX_UNAVAILABLE, TCX_LOST or TCX_TIMEOUT when the daemon is not there, gone or silent.
 * All other functions never block.
 *
 * Signals. The library installs no signal handler and raises no signal.
 *
 * CUDA. The driver (libcuda.so.1) is loaded by the first call that is about a CUDA device. What is
 * published (put, sent, made a ticket of) is complete: those calls wait on the host for the work
 * that writes it. Give its stream (tcx_array_t.stream): else they wait for all work on the device,
 * which also ends, with an error, a CUDA graph that is being recorded there. What is got or
 * received can be used at once, on any stream. Letting go never waits, and recordings do not mind:
 * a thread of the library waits for all work of this process on the device and gives the memory
 * back then. Calls may come on any thread, whatever context is current there, and leave it so.
 *
 * Fork. A child may use the tensors it inherited as long as it likes, whatever its parent does:
 * their memory stays until the child, and its children, have let go of them all, end or call exec.
 * fork() tells the daemon, and does not wait for it. The child's own calls use a connection of its
 * own; what it puts, or makes a ticket of, is not copied. CUDA does not survive a fork: where the
 * parent has used it, the child's calls about CUDA fail (TCX_DEVICE), and tensors on a device are
 * of no use to it. vfork() and posix_spawn() need nothing. A child of a raw clone() or _Fork() may
 * read and must not call the library.
 *
 * Linux 5.14 and newer; x86-64 and arm64.
 */
#ifndef TENSORCX_H
#define TENSORCX_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TCX_VERSION "0.1.0"

#if defined(__GNUC__)
#    define TCX_API __attribute__((visibility("default")))
#else
#    define TCX_API
#endif

/* --------------------------------------------------------------------------------------- status */

typedef enum tcx_status {
    TCX_OK = 0,
    TCX_NOT_FOUND = 1,     /* no such name */
    TCX_EXISTS = 2,        /* the name exists already and TCX_PUT_EXCLUSIVE was asked for */
    TCX_OUT_OF_MEMORY = 3, /* capacity, /dev/shm, or this process's own memory */
    TCX_LIMIT = 4,         /* a limit of the daemon; the text names the option that sets it */
    TCX_TIMEOUT = 5,
    TCX_CANCELLED = 6,
    TCX_STALE = 7,       /* the storage is gone */
    TCX_INVALID = 8,     /* an argument is wrong */
    TCX_UNAVAILABLE = 9, /* no daemon, and none could be started */
    TCX_LOST = 10, /* the daemon went away during the call; the next call looks for a new one */
    TCX_VERSION_MISMATCH = 11,
    TCX_DENIED = 12,   /* the socket belongs to somebody else, or the daemon refuses this user */
    TCX_EXCHANGE = 13, /* dtype, device, layout or mode that the exchange contract does not allow */
    TCX_SYSTEM = 14,   /* the operating system refused, e.g. out of descriptors; can be repeated */
    TCX_INTERNAL = 15,
    TCX_INTERRUPTED = 16, /* the interrupt function asked to stop */
    TCX_CLOSED = 17,      /* the channel is closed: nothing is sent any more */
    TCX_DEVICE = 18       /* no such CUDA device, no driver, or it failed; the text says which */
} tcx_status_t;

/* A short English text for a status; static, never NULL. */
TCX_API const char *tcx_status_text(int status);

/* What the last call of this thread that failed has to say; static text when there is nothing more
 * than the status. Valid until the next call of this library on this thread. Never NULL. */
TCX_API const char *tcx_error(void);

/* TCX_VERSION of the library that runs. */
TCX_API const char *tcx_version(void);

/* --------------------------------------------------------------------------------------- arrays */

#define TCX_NDIM_MAX 64

/* As in DLPack: `bits` counts one lane. */
typedef struct tcx_dtype {
    uint8_t code; /* enum tcx_dtype_code */
    uint8_t bits;
    uint16_t lanes; /* always 1 here */
} tcx_dtype_t;

enum tcx_dtype_code { TCX_INT = 0, TCX_UINT = 1, TCX_FLOAT = 2, TCX_COMPLEX = 5, TCX_BOOL = 6 };

/* Storage knows bool (8 bits), int and uint 8 to 64, float 16 to 64, complex 64 and 128. */
TCX_API int tcx_dtype_is_known(tcx_dtype_t dtype);

/* Where memory is, as in DLPack; {0, 0} is the CPU, too. A CUDA device has the number that it has
 * in this process: CUDA_VISIBLE_DEVICES counts. */
typedef struct tcx_device {
    int32_t type; /* enum tcx_device_type */
    int32_t id;   /* 0 for the CPU */
} tcx_device_t;

enum tcx_device_type { TCX_CPU = 1, TCX_CUDA = 2 };

/* A description of elements that this process can reach; owns nothing. */
typedef struct tcx_array {
    void *data; /* the first element; may be NULL when there are no elements */
    tcx_dtype_t dtype;
    int32_t ndim;           /* 0 (a scalar) to TCX_NDIM_MAX */
    const int64_t *shape;   /* ndim dimensions, none negative; may be NULL when ndim is 0 */
    const int64_t *strides; /* ndim strides in elements; NULL: C order */
    int readonly;           /* not to be written through: nor is what is put without a copy */
    tcx_device_t device;    /* of `data`, which then only that device may follow */
    intptr_t stream;        /* CUDA: with the work that writes the elements, as in DLPack (1: the
                               legacy default stream, 2: this thread's, else a CUstream); 0: all work of
                               this process on the device. Who reads the array waits for it */
} tcx_array_t;

/* --------------------------------------------------------------------------------------- client */

/* A client stands for one daemon as this process sees it. It connects when a call first needs the
 * daemon, and again after the daemon was lost. */
typedef struct tcx_client tcx_client_t;

typedef struct tcx_client_options {
    /* Path of the socket. NULL: $TENSORCX_SOCKET, else tensorcx/tensorcxd.sock in $XDG_RUNTIME_DIR
     * or /run/user/<uid>, else /tmp/tensorcx-<uid>/tensorcxd.sock. Its folder and the daemon must
     * belong to this user, to root, or to a user whose number $TENSORCX_TRUST_UID lists. */
    const char *socket;
    /* 1: do not start a daemon; so does TENSORCX_AUTOSTART=0. One that is started writes its log
     * to tensorcxd.log beside tensorcxd.sock. */
    int no_autostart;
    double answer_timeout; /* seconds to wait for an answer; 0: $TENSORCX_TIMEOUT, or else 30 */
    /* May be NULL. Called on the calling thread, about ten times a second and after a signal, while
     * a call waits. Non-zero: the call ends with TCX_INTERRUPTED and gives back what it was
     * granted. */
    int (*interrupt)(void *context);
    void *context;
} tcx_client_options_t;

/* Makes a client; asks nobody yet. `options` may be NULL and is copied. Give it back with
 * tcx_client_close(). TCX_INVALID: the path is too long for a socket; TCX_OUT_OF_MEMORY. */
TCX_API int tcx_client_open(const tcx_client_options_t *options, tcx_client_t **ret_client);

/* Gives the client back; NULL is fine. Tensors and bundles stay valid; the connection lives as long
 * as they do. */
TCX_API void tcx_client_close(tcx_client_t *client);

/* Lets the connection go: it ends when the last tensor that came through it is gone. The next call
 * connects anew. */
TCX_API void tcx_client_disconnect(tcx_client_t *client);

/* The path of the socket; valid as long as the client. */
TCX_API const char *tcx_client_socket(const tcx_client_t *client);

/* Connects now if that has not happened. Asks the daemon. */
TCX_API int tcx_client_connect(tcx_client_t *client);

/* -------------------------------------------------------------------------------------- tensors */

/* An immutable description of elements in shared memory, or in private memory of this process that
 * came by DLPack ("local"). Reference-counted; views of one storage keep it alive together. */
typedef struct tcx_tensor tcx_tensor_t;

/* New shared memory on `device`, C order; 256-byte aligned, page-aligned from 64 KiB up.
 * tcx_empty() may show old bytes of the same user, tcx_zeros() is zero. Asks the daemon.
 * TCX_INVALID: negative or overflowing shape; TCX_EXCHANGE: dtype not known to storage;
 * TCX_OUT_OF_MEMORY: the text has the numbers; TCX_SYSTEM: e.g. no descriptor left to map the
 * memory; TCX_DEVICE. */
TCX_API int tcx_empty(tcx_client_t *client, tcx_device_t device, tcx_dtype_t dtype, int32_t ndim,
                      const int64_t *shape, tcx_tensor_t **ret_tensor);
TCX_API int tcx_zeros(tcx_client_t *client, tcx_device_t device, tcx_dtype_t dtype, int32_t ndim,
                      const int64_t *shape, tcx_tensor_t **ret_tensor);

/* New shared memory on `device` ({0, 0}: where `source` is) with a packed copy of `source`: in any
 * layout, on a CUDA device a C-contiguous one (TCX_EXCHANGE). The copy is complete. As tcx_empty().
 */
TCX_API int tcx_copy(tcx_client_t *client, const tcx_array_t *source, tcx_device_t device,
                     tcx_tensor_t **ret_tensor);

/* One more, one less reference. NULL is fine. tcx_tensor_unref() may be called on any thread, also
 * at exit, but not in a signal handler. It never waits for the daemon or for a call of another
 * thread. The last reference to anything of a connection that is closed or lost also ends that
 * connection and unmaps its memory, which takes a lock that others hold for moments, and for the
 * time of a fork(). What the daemon is too slow to be told is sent by the next call or, if none
 * waits, by a thread that lives until then. Releasing a local tensor calls the deleter of the
 * foreign memory. */
TCX_API tcx_tensor_t *tcx_tensor_ref(tcx_tensor_t *tensor);
TCX_API void tcx_tensor_unref(tcx_tensor_t *tensor);

/* The elements; owned by the tensor, valid as long as it. `strides` is never NULL, the device's
 * type never 0, `stream` always. */
TCX_API const tcx_array_t *tcx_tensor_array(const tcx_tensor_t *tensor);

typedef struct tcx_info {
    uint64_t nbytes;         /* of the elements */
    uint64_t storage_id;     /* 0: local memory */
    uint64_t storage_nbytes; /* of the storage that the tensor keeps alive */
    uint64_t version;        /* of the name it came from; 0: from none */
    const char *name;        /* it was put under or got by; NULL: none. Owned by the tensor */
    int readonly;            /* nobody may write through this tensor */
    int is_shared;           /* its memory belongs to a daemon that this process is connected to, or
                                was inherited */
    tcx_device_t device;     /* of a bundle: where its index is, which is the CPU */
} tcx_info_t;

/* Asks the kernel whether the daemon is still there (is_shared): a system call. */
TCX_API void tcx_tensor_info(const tcx_tensor_t *tensor, tcx_info_t *ret_info);

/* Another C-contiguous tensor on the same storage: `byte_offset` from the first element of
 * `tensor`, which must be contiguous itself. Its name and version are dropped. `readonly` 1 makes
 * the view read-only; a view of a read-only tensor always is. TCX_INVALID: beyond the tensor's
 * bytes, or not aligned to the element. */
TCX_API int tcx_tensor_view(tcx_tensor_t *tensor, tcx_dtype_t dtype, int32_t ndim,
                            const int64_t *shape, uint64_t byte_offset, int readonly,
                            tcx_tensor_t **ret_tensor);

/* Whether all of these bytes lie in one live storage of the daemon that this client is or was last
 * connected to, mapped in this process by whatever client. No bytes do not. Does not ask. */
TCX_API int tcx_is_shared(tcx_client_t *client, const void *data, size_t nbytes);

/* Copies all elements of `source`, any layout, packed to `to`, which is on the CPU. Touches no
 * daemon. TCX_INVALID: the array is malformed, or does not have exactly `nbytes` bytes. On a CUDA
 * device `source` must be C-contiguous (TCX_EXCHANGE); TCX_DEVICE. */
TCX_API int tcx_array_pack(const tcx_array_t *source, void *to, size_t nbytes);

/* The same into `to`: of the same dtype and shape, C-contiguous, on any device. They may overlap if
 * `source` is C-contiguous, too. The copy is complete, and begins when the work of both streams is
 * done. */
TCX_API int tcx_array_copy(const tcx_array_t *to, const tcx_array_t *source);

/* ---------------------------------------------------------------------------------------- names */

/* Names are 1 to 255 bytes of UTF-8 without control characters. */

enum tcx_put_flag {
    TCX_PUT_READONLY = 1,  /* whoever gets it by this name may not write; handles from before may */
    TCX_PUT_EPHEMERAL = 2, /* the name goes when this process is gone, or the client is closed and
                            * the last tensor that came through it is gone */
    TCX_PUT_EXCLUSIVE = 4, /* TCX_EXISTS instead of replacing */
    TCX_PUT_COPY = 8,      /* a snapshot, also of memory that is shared already */
    TCX_PUT_NO_COPY = 16   /* TCX_EXCHANGE instead of copying private memory */
};

typedef struct tcx_put_options {
    unsigned flags; /* enum tcx_put_flag */
    double ttl;     /* seconds until the name goes; 0: no limit */
    tcx_device_t
        device; /* where it is to be; {0, 0}: where the source is. Elsewhere it is copied */
} tcx_put_options_t;

/* Publishes `source` under `name`, atomically replacing what is there; readers keep what they have.
 * Memory that is shared already and C-contiguous is published as it is (later writes show);
 * everything else is copied. `options` and `ret_tensor` may be NULL. `name` NULL: no name, just the
 * shared tensor. Asks the daemon. TCX_INVALID, TCX_EXISTS, TCX_OUT_OF_MEMORY, TCX_EXCHANGE (dtype;
 * copy needed but TCX_PUT_NO_COPY), TCX_LIMIT. */
TCX_API int tcx_put(tcx_client_t *client, const char *name, const tcx_array_t *source,
                    const tcx_put_options_t *options, tcx_tensor_t **ret_tensor);

typedef struct tcx_bundle tcx_bundle_t;

typedef struct tcx_get_options {
    /* Seconds to wait for the name, or something newer; 0: do not wait; negative: no limit. */
    double timeout;
    uint64_t newer_than; /* only a version above this one */
    int readonly;        /* this handle does not want to write */
} tcx_get_options_t;

/* Looks `name` up. Sets exactly one of *ret_tensor and *ret_bundle and leaves the other alone
 * (either may be NULL: then what it is for is TCX_INVALID). `options` may be NULL. Asks the daemon,
 * waits at most `timeout`. TCX_NOT_FOUND (without waiting), TCX_TIMEOUT, TCX_INTERRUPTED,
 * TCX_SYSTEM. */
TCX_API int tcx_get(tcx_client_t *client, const char *name, const tcx_get_options_t *options,
                    tcx_tensor_t **ret_tensor, tcx_bundle_t **ret_bundle);

/* Removes the name; its memory is free when its last user is gone. Asks the daemon. TCX_NOT_FOUND.
 */
TCX_API int tcx_delete(tcx_client_t *client, const char *name);

/* One name as the daemon knows it. */
typedef struct tcx_entry {
    const char *name;
    uint64_t version;
    uint64_t storage_id;
    uint64_t nbytes; /* of its storage, and of those that a bundle refers to */
    int is_bundle;   /* then dtype and shape mean nothing */
    int readonly;
    int ephemeral;
    const struct tcx_entry_place *place; /* for tcx_entry_device() */
    tcx_dtype_t dtype;
    int32_t ndim;
    const int64_t *shape;
    double age;       /* seconds since this version was put */
    double ttl_left;  /* seconds; negative: no limit */
    uint64_t holders; /* clients that use the storage */
    int publisher;    /* its process id */
} tcx_entry_t;

/* Called with one entry at a time, valid during the call only, with no lock held; non-zero stops.
 */
typedef int (*tcx_entry_fn)(void *context, const tcx_entry_t *entry);

/* Where it is (a bundle: the CPU), during that call only; id -1: a CUDA device that this process
 * does not see. Loads the driver if it is on a device, which only who asks this has to do. */
TCX_API tcx_device_t tcx_entry_device(const tcx_entry_t *entry);

/* Calls `fn` for one name, or for all names that begin with `prefix` (NULL: all), sorted by their
 * bytes. Takes no reference on anything. Ask the daemon; a list in pages, so names put meanwhile
 * may or may not show. tcx_stat(): TCX_NOT_FOUND. */
TCX_API int tcx_stat(tcx_client_t *client, const char *name, tcx_entry_fn fn, void *context);
TCX_API int tcx_list(tcx_client_t *client, const char *prefix, tcx_entry_fn fn, void *context);

/* -------------------------------------------------------------------------------------- bundles */

/* A bundle is an ordered tree of tensors: a mapping from keys to tensors or further mappings. */

typedef struct tcx_item {
    /* `depth` keys, outermost first: UTF-8, may be empty, at most 65,535 bytes each. */
    const char *const *path;
    size_t depth;             /* 1 to 64 */
    const tcx_array_t *array; /* NULL: an empty mapping */
} tcx_item_t;

/* Publishes a bundle. Private arrays are packed into one storage per device (the same memory and
 * layout twice is stored once), in any layout; arrays that are shared already and contiguous are
 * referred to. A
 * bad item fails the whole put and the text names its path. Otherwise as tcx_put(). */
TCX_API int tcx_put_bundle(tcx_client_t *client, const char *name, const tcx_item_t *items,
                           size_t count, const tcx_put_options_t *options,
                           tcx_bundle_t **ret_bundle);

TCX_API tcx_bundle_t *tcx_bundle_ref(tcx_bundle_t *bundle);
TCX_API void tcx_bundle_unref(tcx_bundle_t *bundle);

/* Items in the order they were put. */
TCX_API size_t tcx_bundle_count(const tcx_bundle_t *bundle);

/* The item's path and tensor (NULL: an empty mapping), borrowed from the bundle. Keys end with a 0
 * byte. `index` below tcx_bundle_count(). */
TCX_API void tcx_bundle_item(const tcx_bundle_t *bundle, size_t index, const char *const **ret_path,
                             size_t *ret_depth, tcx_tensor_t **ret_tensor);

/* name, version, readonly, is_shared, storage_id and storage_nbytes as for a tensor; nbytes is the
 * sum over its tensors. */
TCX_API void tcx_bundle_info(const tcx_bundle_t *bundle, tcx_info_t *ret_info);

/* -------------------------------------------------------------------------------------- tickets */

/* A ticket is a reference to a tensor or a bundle as plain bytes, for another process of this
 * machine: by a pipe, in a pickle. It keeps the memory alive until it is redeemed once. If nobody
 * redeems it, the daemon may take it back some time (--ticket-lease, 60 s) after its maker let the
 * memory go or ended. Name and version do not travel; read-only does. */

#define TCX_TICKET_MAX 1088 /* bytes; most tickets have less than 100 */

/* Writes at most TCX_TICKET_MAX bytes to `ret_ticket`. No copy, also in a forked child that has
 * inherited the memory; but private memory, and that of a daemon that is gone, is copied into
 * shared memory first. Asks the daemon. TCX_STALE: the inherited memory is gone; TCX_LIMIT; or as
 * tcx_copy(). */
TCX_API int tcx_tensor_ticket(tcx_client_t *client, tcx_tensor_t *tensor, void *ret_ticket,
                              size_t *ret_nbytes);
TCX_API int tcx_bundle_ticket(tcx_client_t *client, tcx_bundle_t *bundle, void *ret_ticket,
                              size_t *ret_nbytes);

/* The memory of a ticket, in any process, also the one that made it. Sets exactly one of
 * *ret_tensor and *ret_bundle, as tcx_get(). Works again as long as anything keeps the memory
 * alive. Asks the daemon, never starts one: TCX_UNAVAILABLE. TCX_STALE: the memory is gone, or the
 * ticket is from another daemon; TCX_INVALID: these bytes are no ticket, or have been changed;
 * TCX_SYSTEM: the memory cannot be mapped just now, and stays for another attempt as long as a
 * lease lasts (--ticket-lease). */
TCX_API int tcx_redeem(tcx_client_t *client, const void *ticket, size_t nbytes,
                       tcx_tensor_t **ret_tensor, tcx_bundle_t **ret_bundle);

/* ------------------------------------------------------------------------------------- channels */

/* A channel is a bounded ring of messages, tensors or bundles, with buffers of its own. Of a
 * queue's messages each goes to one receiver; of a topic's each goes to all who have subscribed by
 * then. Whoever opens it first makes it, all others join, in any order. First in, first out. A
 * queue lives while it has a handle or a message that nobody has received, a topic while it has a
 * handle; tcx_delete() ends both.
 *
 * Sending and receiving touch memory alone, but for a call that waits, the first message, and
 * messages by reference. A private array is copied once, into a buffer. What is shared already and
 * contiguous goes by reference, and so does what is larger than a buffer, or on another device, or
 * comes first where there is no memory for all buffers: that asks the daemon. So does a bundle
 * where the buffers are on a CUDA device.
 *
 * `timeout` of the calls below: seconds; 0: do not wait; negative: no limit; of loan, send_loan and
 * recv also TCX_AT_ONCE. A call that waits uses no processor, runs the client's interrupt function
 * (TCX_INTERRUPTED), and ends within a tenth of a second when the daemon is gone. TCX_TIMEOUT: the
 * text names who is in the way (client, pid, program). TCX_CLOSED: the channel has been shut down,
 * or this handle is closed. TCX_LOST: the daemon that had the channel is gone, and its messages
 * are; what was received stays. A handle stays lost: open the channel anew. TCX_INTERNAL: somebody
 * has written nonsense into the channel; of a message: it is skipped.
 *
 * When a process ends, however it does, the others go on: what it was sending is not sent, what it
 * had received is gone with it, buffers it had are free again.
 *
 * Fork. In the child a handle joins anew when it is first used, a subscription is closed
 * (TCX_CLOSED). Received tensors are inherited like all others. Loans are not: they are the
 * parent's to send, the child must not write into them. */

/* As 0, but waits neither for the daemon, nor for a CUDA device, nor for whoever has the channel's
 * lock, makes no large pages ready, and TCX_TIMEOUT has no text: for callers who hold a lock of
 * their own, and first try before they give it up. */
#define TCX_AT_ONCE (-__builtin_inf())

/* One handle: a participant of a channel. Its client must be closed after it. */
typedef struct tcx_channel tcx_channel_t;

enum tcx_channel_flag {
    TCX_CHANNEL_TOPIC = 1,      /* else a queue */
    TCX_CHANNEL_DROP_OLDEST = 2 /* full, it drops its oldest message; else senders wait */
};

/* 0 or a NULL in place of all: whatever the channel has, or the default if it is new. */
typedef struct tcx_channel_options {
    unsigned flags;         /* enum tcx_channel_flag: these always count */
    uint32_t capacity;      /* messages that wait to be received: 1 to 512; default 8 */
    uint32_t buffers;       /* at most 896; default capacity + 8 */
    uint32_t participants;  /* handles at a time: at most 1,024; default 128 */
    uint64_t buffer_nbytes; /* default: as many as the first message needs that needs a buffer */
    tcx_device_t device;    /* of the buffers; default: where that message is, or the CPU if
                               `buffer_nbytes` is given */
} tcx_channel_options_t;

/* Opens a channel, and makes it if need be. Asks the daemon. TCX_INVALID: name, options, or options
 * that differ from those of the channel: the text has both; TCX_EXISTS: the name is a tensor's;
 * TCX_LIMIT; TCX_OUT_OF_MEMORY; TCX_SYSTEM. */
TCX_API int tcx_channel_open(tcx_client_t *client, const char *name,
                             const tcx_channel_options_t *options, tcx_channel_t **ret_channel);

/* A handle that receives a topic's messages from the next one on, or with `latest` the newest at
 * each call, beginning with the last one sent (only where the oldest are dropped). It is closed by
 * itself. Asks the daemon. TCX_INVALID; otherwise as tcx_channel_open(). */
TCX_API int tcx_channel_subscribe(tcx_channel_t *topic, int latest, tcx_channel_t **ret_reader);

/* Closes the handle for all threads: calls that wait on it end with TCX_CLOSED, and so do all later
 * ones. What was received or loaned stays valid, and so does the handle, until
 * tcx_channel_close(). Never waits. */
TCX_API void tcx_channel_leave(tcx_channel_t *channel);

/* The same, and gives the handle back: no thread may use it any more. NULL is fine. */
TCX_API void tcx_channel_close(tcx_channel_t *channel);

/* Ends the channel for everybody: nothing is sent any more, receivers get what is left and then
 * TCX_CLOSED. */
TCX_API int tcx_channel_shutdown(tcx_channel_t *channel);

/* Memory to be sent: a writable C-contiguous tensor in a buffer of the channel, which counts as
 * local (tcx_put() copies it). Without a tcx_channel_send_loan() its last reference gives the
 * buffer back. Waits for a free buffer. TCX_INVALID: larger than a buffer; TCX_OUT_OF_MEMORY: for
 * the buffers of a channel without size. */
TCX_API int tcx_channel_loan(tcx_channel_t *channel, tcx_dtype_t dtype, int32_t ndim,
                             const int64_t *shape, double timeout, tcx_tensor_t **ret_tensor);

/* Sends it as it is, no copy; on a CUDA device all work of this process is waited for. From then on
 * its memory is its receivers': the caller must not touch it and only gives its reference back. On
 * failure it still is a loan. Waits while the channel is full. TCX_INVALID: not a loan of this
 * handle (a view of one is none), or sent already. */
TCX_API int tcx_channel_send_loan(tcx_channel_t *channel, tcx_tensor_t *loan, double timeout);

/* Sends an array in any layout, or a bundle (as in tcx_put_bundle()). `source` is no longer needed
 * afterwards; of what goes by reference the receiver sees later writes. Waits for a free buffer and
 * while the channel is full. TCX_EXCHANGE, TCX_INVALID, TCX_OUT_OF_MEMORY, TCX_LIMIT, TCX_STALE. */
TCX_API int tcx_channel_send(tcx_channel_t *channel, const tcx_array_t *source, double timeout);
TCX_API int tcx_channel_send_bundle(tcx_channel_t *channel, const tcx_item_t *items, size_t count,
                                    double timeout);

/* The next message. Sets exactly one of *ret_tensor and *ret_bundle and leaves the other alone. Its
 * buffer is the receiver's until the last reference to the tensor, or to the bundle and all its
 * tensors, is given back: on any thread, at any time, without waiting. What lies in a buffer counts
 * as local; what came by reference is shared as before. Of a topic's message all receivers have the
 * same memory. `spin_us`: for how many microseconds to look for a message with all the processor's
 * might before sleeping. A message that cannot be opened for want of memory or time (TCX_TIMEOUT,
 * TCX_SYSTEM, TCX_OUT_OF_MEMORY, TCX_LIMIT, TCX_INTERRUPTED) is this handle's and comes at the next
 * call. TCX_CLOSED: and nothing is left; TCX_STALE: what the message referred to is gone;
 * TCX_INVALID: a topic is received from by tcx_channel_subscribe(). */
TCX_API int tcx_channel_recv(tcx_channel_t *channel, double timeout, double spin_us,
                             tcx_tensor_t **ret_tensor, tcx_bundle_t **ret_bundle);

typedef struct tcx_channel_info {
    const char *name; /* owned by the handle */
    unsigned flags;
    uint32_t capacity, buffers, participants;
    tcx_device_t device;    /* of the buffers; {0, 0}: no size yet */
    uint64_t buffer_nbytes; /* 0: no size yet */
    uint64_t nbytes;        /* of all buffers */
    uint64_t messages;      /* sent since the channel was made */
    uint32_t depth;         /* of these, not yet received, by the slowest */
    uint32_t handles;       /* that are open */
    uint32_t readers;       /* a topic's subscriptions; of a queue every handle may receive */
    uint64_t missed;        /* messages dropped or skipped before those that this handle received */
    int is_closed;          /* shut down */
} tcx_channel_info_t;

/* Takes the channel's lock, so may wait for a tenth of a second. Does not ask. */
TCX_API void tcx_channel_info(tcx_channel_t *channel, tcx_channel_info_t *ret_info);

/* Who uses buffers (loaned or received), or has messages yet to receive. */
typedef struct tcx_holder {
    uint64_t client; /* its tcx_peer_t's id */
    int pid;         /* 0: not known */
    const char *program;
    uint32_t buffers;
    uint32_t behind; /* a subscription's messages */
} tcx_holder_t;

/* Calls `fn` for every handle that does; as tcx_list(). Asks the daemon. */
typedef int (*tcx_holder_fn)(void *context, const tcx_holder_t *holder);
TCX_API int tcx_channel_holders(tcx_channel_t *channel, tcx_holder_fn fn, void *context);

/* Any channel of the daemon, and who has handles of it. */
typedef struct tcx_participant {
    uint64_t client;  /* its tcx_peer_t's id */
    int is_open;      /* 0: its handle is closed, what it has received is not */
    uint32_t buffers; /* that it uses: loaned or received */
    uint32_t behind;  /* messages that it has yet to receive: a subscription */
} tcx_participant_t;

typedef struct tcx_channel_entry {
    const char *name; /* "": it was deleted */
    unsigned flags;   /* enum tcx_channel_flag */
    uint32_t capacity, buffers, participants;
    tcx_device_t device;    /* of the buffers; id -1 as of tcx_entry_device() */
    uint64_t buffer_nbytes; /* 0: no size yet */
    uint64_t messages;      /* as in tcx_channel_info_t */
    uint32_t depth;
    int is_closed;
    const tcx_participant_t *seated;
    size_t seated_count;
} tcx_channel_entry_t;

/* Calls `fn` for every channel; as tcx_list(). */
typedef int (*tcx_channel_fn)(void *context, const tcx_channel_entry_t *entry);
TCX_API int tcx_channels(tcx_client_t *client, tcx_channel_fn fn, void *context);

/* --------------------------------------------------------------------------------------- DLPack */

/* From <dlpack/dlpack.h>, which callers of this section include themselves. */
struct DLManagedTensor;
struct DLManagedTensorVersioned;

typedef enum tcx_copy_mode {
    TCX_COPY_IF_NEEDED = 0,
    TCX_COPY_NEVER = 1,
    TCX_COPY_ALWAYS = 2
} tcx_copy_mode_t;

/* The exchange contract (docs/exchange.md): CPU or CUDA; float32, int32, bool; C-contiguous. NEVER
 * and IF_NEEDED share the memory and keep it alive; no daemon is needed. ALWAYS makes a copy in
 * shared memory of the same device, after all work of this process there; `client` may be NULL
 * otherwise. Takes ownership of `managed` also on failure: its deleter is called exactly once, now
 * or with the last reference to the memory, on whatever thread that is; on a CUDA device then (0
 * bytes are as on the CPU) by a thread of the library, when all work of this process there is done.
 * Sharing does not wait: tcx_synchronize() for the stream that the producer was asked to make the
 * data safe on. TCX_EXCHANGE, or as tcx_copy(). */
TCX_API int tcx_from_dlpack(tcx_client_t *client, struct DLManagedTensorVersioned *managed,
                            tcx_copy_mode_t copy, tcx_tensor_t **ret_tensor);
TCX_API int tcx_from_dlpack_legacy(tcx_client_t *client, struct DLManagedTensor *managed,
                                   tcx_copy_mode_t copy, tcx_tensor_t **ret_tensor);

/* A managed tensor that shares the memory and keeps it alive until its deleter is called, once, by
 * the caller, on any thread. Version 1.x, byte offset 0, strides never NULL for ndim > 0. `copied`
 * 1 sets the flag IS_COPIED. Legacy tensors cannot say that they are read-only: TCX_EXCHANGE. */
TCX_API int tcx_to_dlpack(tcx_tensor_t *tensor, int copied,
                          struct DLManagedTensorVersioned **ret_managed);
TCX_API int tcx_to_dlpack_legacy(tcx_tensor_t *tensor, struct DLManagedTensor **ret_managed);

/* -------------------------------------------------------------------------------------- devices */

/* Waits on the host for a stream's work, as tcx_array_t.stream numbers it (0: for all of this
 * process's on the device). On the CPU there is nothing to wait for. TCX_DEVICE, TCX_INVALID. */
TCX_API int tcx_synchronize(tcx_device_t device, intptr_t stream);

/* Makes the device's primary context this thread's current one, until tcx_device_pop() brings back
 * the one before. On the CPU both do nothing. TCX_DEVICE, TCX_INVALID. */
TCX_API int tcx_device_push(tcx_device_t device);
TCX_API void tcx_device_pop(tcx_device_t device);

/* For an interpreter that is about to end: waits, a second at most, until what was let go of on
 * devices is given back. From then on, for good in this process, no deleter of foreign memory on a
 * device is called (0 bytes are as on the CPU): what it would run may be gone. One that was called
 * before is waited for, ten seconds at most. All else goes on as before. */
TCX_API void tcx_devices_end(void);

typedef struct tcx_device_entry {
    tcx_device_t device;      /* id -1: not visible to this process */
    const char *uuid;         /* "GPU-" and so on, as nvidia-smi prints it */
    const char *name;         /* of the model */
    const char *mode;         /* how its memory is shared: "vmm" or "ipc" */
    uint64_t total_bytes;     /* of the device */
    uint64_t capacity_bytes;  /* most bytes that may be committed */
    uint64_t committed_bytes; /* by the daemon */
    uint64_t warm_bytes;      /* of these, nobody uses, kept for the next storage */
    uint64_t dying_bytes;     /* given up, but processes still have them mapped; not committed */
    uint64_t storages;        /* live ones */
    uint64_t bytes;           /* of these */
} tcx_device_entry_t;

/* Calls `fn` for every CUDA device of the daemon; as tcx_list(). Makes the daemon, and this
 * process, load the driver: see tcx_stats_t.devices. TCX_DEVICE: the daemon has none. */
typedef int (*tcx_device_fn)(void *context, const tcx_device_entry_t *entry);
TCX_API int tcx_devices(tcx_client_t *client, tcx_device_fn fn, void *context);

/* ----------------------------------------------------------------------------------- the daemon */

typedef struct tcx_stats {
    uint64_t pid, boot_id, uptime_ms;
    uint64_t backing; /* 0: POSIX shared memory, 1: sealed memfd */
    uint64_t clients, holds, storages;
    uint64_t bytes; /* of those on the CPU, as all that is about memory here */
    uint64_t names, tickets, channels, segments;
    uint64_t committed_bytes, warm_bytes, capacity_bytes;
    uint64_t waiting;  /* calls that wait for a name or for memory */
    uint64_t version;  /* last version given to a name */
    uint64_t requests; /* messages received */
    uint64_t dropped;  /* clients dropped for breaking the protocol */
    uint64_t devices;  /* CUDA devices; 0: nobody has asked for them yet, or there are none */
} tcx_stats_t;

/* Counters of the daemon. Asks the daemon. */
TCX_API int tcx_stats(tcx_client_t *client, tcx_stats_t *ret_stats);

/* Version text of the daemon last connected to; "" before. Copied to `ret_text`, cut to `capacity`.
 */
TCX_API void tcx_daemon_version(tcx_client_t *client, char *ret_text, size_t capacity);

typedef struct tcx_peer {
    uint64_t id;
    int pid, uid;
    const char *program;
    uint64_t storages;     /* that it holds */
    uint64_t bytes;        /* of these, on the CPU, */
    uint64_t device_bytes; /* and on CUDA devices */
    uint64_t tickets;      /* that it has sent and nobody has redeemed */
    uint64_t waiting;      /* its calls that are not yet answered */
    double age;            /* seconds since it connected */
    int connected;         /* 0: its socket is closed, its memory still mapped */
    int is_self;           /* it is this client */
} tcx_peer_t;

/* Calls `fn` for every client of the daemon; as tcx_list(). */
typedef int (*tcx_peer_fn)(void *context, const tcx_peer_t *peer);
TCX_API int tcx_clients(tcx_client_t *client, tcx_peer_fn fn, void *context);

/* Ends the daemon in good order: mapped memory stays valid, names are gone. Never starts one.
 * Returns when the daemon has closed the connection. TCX_UNAVAILABLE: none runs. */
TCX_API int tcx_stop(tcx_client_t *client);

/* ----------------------------------------------------------------------------------------- logs */

/* The library prints nothing. With a function set, it is called for what an operator may want to
 * know (connected, lost, started a daemon), on any thread, with one line without newline; it must
 * not call the library. NULL: silent again. */
typedef void (*tcx_log_fn)(void *context, const char *line);
TCX_API void tcx_set_log(tcx_log_fn fn, void *context);

#ifdef __cplusplus
}
#endif

#endif
