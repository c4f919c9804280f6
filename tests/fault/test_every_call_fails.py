"""Whatever our code asks of libc either fails in some test or is named here, with the reason.

So a new call is not forgotten. accident_calls.h has those that fail.
"""

import subprocess

import pytest
from daemon import PACKAGES, PROGRAM, ROOT

# What our own objects import, and accidents leave alone.
CANNOT_FAIL = {
    "they only compute, or change memory of ours": """
        __ctype_b_loc __ctype_toupper_loc __errno_location __isoc99_sscanf __popcountdi2
        __tls_get_addr environ gmtime_r memchr memcmp memcpy memset program_invocation_short_name
        qsort sigemptyset sigfillset snprintf sprintf strchr strcmp strcpy strcspn strerror
        strftime strlen strncmp strnlen strrchr strspn strstr strtod strtoull tdelete tfind twalk
        vsnprintf""",
    "they look at what is always there": """
        __assert_fail _exit clock_gettime dladdr getenv geteuid getpid getrlimit malloc_usable_size
        sched_getcpu secure_getenv stderr sysconf dlerror""",
    "on Linux none of them asks for anything": """
        pthread_attr_destroy pthread_attr_init pthread_attr_setdetachstate
        pthread_attr_setstacksize pthread_cond_broadcast pthread_cond_destroy pthread_cond_init
        pthread_cond_signal pthread_cond_timedwait pthread_cond_wait pthread_condattr_destroy
        pthread_condattr_init pthread_condattr_setclock pthread_mutex_destroy pthread_mutex_init
        pthread_mutex_lock pthread_mutex_trylock pthread_mutex_unlock pthread_once pthread_sigmask
        posix_spawn_file_actions_destroy posix_spawn_file_actions_init posix_spawnattr_destroy
        posix_spawnattr_init posix_spawnattr_setflags posix_spawnattr_setsigdefault
        posix_spawnattr_setsigmask sem_destroy sem_init sem_post sem_trywait sched_yield sigaction
        signal sigprocmask umask setsid nanosleep""",
    "what they give back is gone in any case": """
        close fclose munmap shutdown inotify_rm_watch""",
    "each does without: a limit, an affinity, a buffer's size, an order of devices": """
        sched_setaffinity setrlimit setsockopt setenv unsetenv""",
    "to 0, 1, 2 and 3, which no limit keeps from being opened": "dup2",
    "they speak to a person": "fprintf printf puts",
    "once at the start, and want memory as malloc() does": "atexit pthread_atfork",
    "they ask malloc(), which fails": "strdup tsearch",
    "a driver that is not there, not complete or broken has tests of its own": "dlopen dlsym",
}

# What of libuv we use. All that it asks of libc for these fails, too.
LIBUV = """
    uv_backend_fd uv_close uv_fileno uv_loop_close uv_loop_init uv_now uv_poll_init uv_poll_start
    uv_poll_stop uv_queue_work uv_replace_allocator uv_run uv_signal_init uv_signal_start
    uv_strerror uv_timer_init uv_timer_start uv_timer_stop"""


def symbols(*options_and_files) -> set[str]:
    output = subprocess.check_output(["nm", *options_and_files], text=True)
    names = {line.split()[-1] for line in output.splitlines() if len(line.split()) > 1}
    return {name.partition("@")[0] for name in names}


def imported() -> set[str]:
    """By our objects, and not from each other."""
    parts = ("daemon", "client", "proto", "python/core")
    objects = [o for part in parts for o in (ROOT / "build" / "obj" / part).rglob("*.o")]
    ours = symbols("--defined-only", *objects)
    others = symbols("--undefined-only", *objects) - ours
    return {n for n in others if not n.startswith(("Py", "_Py", "_GLOBAL_OFFSET_TABLE_"))}


def test_no_call_is_forgotten(built):
    fail = symbols("-D", "--defined-only", built / "accident.so")
    cannot = {name for names in CANNOT_FAIL.values() for name in names.split()}
    wanted = {name for name in imported() if not name.startswith("uv_")}
    assert wanted - fail - cannot == set()
    assert cannot - wanted == set(), "nobody calls these any more"
    assert cannot & fail == set(), "these do fail"


@pytest.mark.bare
def test_all_that_fail_are_called(built):
    called = symbols("-D", "--undefined-only", PROGRAM)  # with libuv
    called |= symbols("-D", "--undefined-only", PACKAGES / "tensorcx" / "lib" / "libtensorcx.so.0")
    fail = symbols("-D", "--defined-only", built / "accident.so")
    assert fail - called == set()


def test_no_function_of_libuv_is_forgotten():
    assert {name for name in imported() if name.startswith("uv_")} == {*LIBUV.split()}
