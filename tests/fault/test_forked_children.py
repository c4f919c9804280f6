"""Children of a fork that end in every way, beside busy threads, a stopped and a dead daemon."""

import pytest
from helpers import LONG, Program

MANY_ENDS = """
tensors = [cx.full(1000, i, "int32") for i in range(3)]
views = [t.numpy() for t in tensors]
cx.put("shared", np.full(1000, 7))
busy = [True]
def work():
    while busy[0]:
        cx.put("busy", np.ones(100))
        cx.get("busy")
worker = threading.Thread(target=work)
worker.start()

def child(i):
    assert all((v == k).all() for k, v in enumerate(views)), "not the parent's data"
    if i % 2:
        (me,) = (c for c in cx.clients() if c["is_self"])
        assert me["pid"] == os.getpid(), "not a client of its own"
        assert cx.get("shared").numpy()[0] == 7
    way = i // 2 % 5
    if way == 0: sys.exit(0)
    if way == 1: os._exit(0)
    if way == 2: os.execv("/bin/true", ["true"])
    if way == 3: die()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    raise RuntimeError("wanted")

codes = {0: 0, 1: 0, 2: 0, 3: -signal.SIGKILL, 4: 1}
for i in range(int(sys.argv[1])):
    pid = os.fork()
    if pid == 0:
        child(i)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code == codes[i // 2 % 5], (i, code)
    (me,) = (c for c in cx.clients() if c["is_self"])
    assert me["tensors"] >= 3, "the child has released what is the parent's"
    assert all((v == k).all() for k, v in enumerate(views))
busy[0] = False
worker.join()
cx.delete("busy")
cx.delete("shared")
"""

THREADS = """
busy = [True]
def work(k):
    while busy[0]:
        cx.put(f"{k}", np.full(100 + k, k))
        t = cx.get(f"{k}")
        assert t.numpy()[0] == k
        del t
threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
for thread in threads:
    thread.start()
kept = cx.full(1 << 20, 7, "uint8")
for i in range(int(sys.argv[1])):
    pid = os.fork()
    if pid == 0:
        good = (kept.numpy() == 7).all() and (cx.asarray(np.ones(3)).numpy() == 1).all()
        os._exit(0 if good and cx.asarray(kept).data_ptr() == kept.data_ptr() else 1)
    assert os.waitpid(pid, 0)[1] == 0
busy[0] = False
for thread in threads:
    thread.join()
for name in cx.names():
    cx.delete(name)
"""


def run(code, count, daemon):
    with Program("import threading\n" + code, count, socket=daemon.path) as program:
        program.finish(LONG)
    daemon.settle_clean()


def test_fifty_children_that_end_in_every_way(daemon):
    run(MANY_ENDS, 50, daemon)


def test_forks_beside_eight_busy_threads(daemon):
    run(THREADS, 30, daemon)


@pytest.mark.slow
def test_many_forks_beside_eight_busy_threads(daemon):
    run(THREADS, 500, daemon)


CHILD_USES = """
t = cx.full(1 << 20, 7, "uint8")
name = cx.put("x", np.full(100, 7))
say("ready")
hear()
pid = os.fork()
if pid == 0:
    hear()
    ok = (t.numpy() == 7).all() and (name.numpy() == 7).all()
    say("verified" if ok else "lost")
    os._exit(0)
t.close()
say("let go")
os.waitpid(pid, 0)
say("waited")
hear()
"""


def test_a_fork_does_not_wait_for_a_stopped_daemon(daemon):
    with Program(CHILD_USES, socket=daemon.path) as program:
        program.expect("ready")
        with daemon.stopped():
            program.tell()
            program.expect("let go")
            program.tell()
            program.expect("verified")
            program.expect("waited")
        daemon.settle(storages=1)  # that of the name
        program.tell()
        program.finish()
    with daemon.connect() as other:
        other.delete("x")


def test_a_stopped_daemon_learns_of_the_fork_before_it_learns_what_was_let_go(daemon):
    with Program(CHILD_USES, socket=daemon.path) as program:
        program.expect("ready")
        with daemon.stopped():
            program.tell()
            program.expect("let go")
        with daemon.connect() as other:
            assert other.stats()["storages"] == 2
            program.tell()
            program.expect("verified")
            program.expect("waited")
            daemon.settle(storages=1)
            program.tell()
            program.finish()
            other.delete("x")


def test_a_child_uses_what_it_inherited_when_the_daemon_is_killed(start):
    daemon = start(checked=False)
    with Program(CHILD_USES, socket=daemon.path) as program:
        program.expect("ready")
        program.tell()
        program.expect("let go")
        daemon.kill()
        program.tell()
        program.expect("verified")
        program.expect("waited")
        program.tell()
        program.finish()


def test_a_parent_that_is_killed_leaves_its_children_what_they_use(daemon):
    code = """
    t = cx.full(1 << 20, 7, "uint8")
    if os.fork() == 0:
        say("ready")
        hear()
        cx.put("from the child", t)
        say("good" if (t.numpy() == 7).all() else "lost")
        os._exit(0)
    hear()
    """
    with Program(code, socket=daemon.path) as program:
        program.expect("ready")
        program.kill()
        with daemon.connect() as other:
            other.alloc(1 << 20)
            program.tell()
            program.expect("good")
            assert other.get("from the child")["grant"]["nbytes"] == 1 << 20
            other.delete("from the child")


DIES_POOR = """
import resource
t = cx.full(1 << 20, 7, "uint8")
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
pid = os.fork()
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
if pid:
    die()
say("orphaned")
hear()
say("verified" if (t.numpy() == 7).all() else "lost")
"""


def test_forked_without_a_free_descriptor_one_keeps_all_when_its_parent_dies(daemon):
    with Program(DIES_POOR, socket=daemon.path) as program:
        program.expect("orphaned")
        program.process.wait()
        daemon.settle(clients=0)
        assert daemon.stats()["bytes"] == 1 << 20
        program.tell()
        program.expect("verified")
        assert program.next_line() is None
    daemon.settle_clean()
