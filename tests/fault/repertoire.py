"""What operations.c can do.

A new operation is a line in a list of operations*.c (its name, what sets the scene, what is done)
and its name here. Who goes through operations has it then: test_every_step*.py, where a client or
the daemon is killed or stopped at each step that it reaches; test_out_of_resources.py, where each
call of the system's fails once; test_many_rounds.py, after which nothing has grown. What must be
true afterwards is the same for all; of one on a channel, how many messages went through it, too.
"""

CHILD_DIED = 100  # operations.h: what one may end with beside a status

OPERATIONS = [
    "connect", "put-small", "put-large", "put-shared", "put-bundle", "replace", "get",
    "get-bundle", "wait", "wait-in-vain", "ticket", "redeem", "redeem-bundle", "release", "delete",
    "list", "fork",
]  # fmt: skip

# They reach steps that no others do; most tests do without them.
FOR_STEPS = [
    "put-expiring", "put-ephemeral", "get-again", "give-up", "flood", "lose", "fork-poor", "die",
]  # fmt: skip

# How many messages each sends, and receives.
OF_CHANNELS = {
    "make-queue": (0, 0), "join-queue": (0, 0), "leave-queue": (0, 0), "shutdown-queue": (0, 0),
    "delete-queue": (0, 0), "fork-queue": (0, 1), "send-small": (1, 0), "send-again": (1, 0),
    "send-first": (1, 0), "send-large": (1, 0), "send-shared": (2, 0), "send-bundle": (1, 0),
    "send-loan": (1, 0), "return-loan": (0, 0), "send-late": (1, 1), "send-in-vain": (0, 0),
    "receive-small": (0, 1), "receive-large": (0, 1), "receive-at-once": (0, 1),
    "receive-shared": (0, 2), "receive-bundle": (0, 1), "receive-late": (1, 1),
    "receive-in-vain": (0, 0), "release-received": (0, 0), "subscribe": (0, 0), "lag": (2, 0),
}  # fmt: skip

OF_CUDA = [
    "cuda-put", "cuda-put-shared", "cuda-put-bundle", "cuda-get", "cuda-copy-between",
    "cuda-release", "cuda-hurry", "cuda-disconnect", "cuda-ticket", "cuda-redeem",
    "cuda-make-queue", "cuda-send-shared", "cuda-send-loan", "cuda-receive",
]  # fmt: skip
