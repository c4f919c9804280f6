"""What a client held when it forked stays until nobody has the fork page any more."""

import itertools
import mmap
import os
import signal
import socket

import daemon as d
import pytest
import wire


def held(client: wire.Connection) -> int:
    return client.alloc(100)["storage"]


def settle_held(client: wire.Connection, storages: int):
    """Waits until the daemon has this many storages, and every one of them is somebody's hold."""

    def as_expected():
        stats = client.stats()
        return stats["storages"] == stats["holds"] == storages

    d.settle(as_expected, f"{storages} storages, each held once")


def test_what_was_held_at_the_fork_stays_until_the_page_closes(client):
    storage = held(client)
    page = client.fork()
    client.release((storage, 1))
    settle_held(client, 1)
    page.close()
    settle_held(client, 0)


def test_a_page_that_closes_first_holds_up_nothing(client):
    storage = held(client)
    client.fork().close()
    client.release((storage, 1))
    settle_held(client, 0)


def test_what_was_gone_before_or_came_after_does_not_wait(client):
    client.release((held(client), 1))
    page = client.fork()
    client.release((held(client), 1))
    settle_held(client, 0)
    page.close()


def test_more_grants_after_the_fork_do_not_make_a_hold_younger(client):
    storage = held(client)
    page = client.fork()
    client.hold(storage)
    client.release((storage, 2))
    settle_held(client, 1)
    page.close()
    settle_held(client, 0)


def test_a_grant_that_was_returned_before_the_last_is_not_missed(client):
    storage = held(client)
    client.hold(storage)
    page = client.fork()
    client.release((storage, 1))
    page.close()
    settle_held(client, 1)
    client.release((storage, 1))
    settle_held(client, 0)


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_pages_may_close_in_any_order(client, order):
    """Storage i is held at the forks from the i-th on: it goes with the last of these pages."""
    storages, pages = [], []
    for _ in order:
        storages.append(held(client))
        pages.append(client.fork())
    client.release(*[(storage, 1) for storage in storages])
    open_pages = set(order)
    for closed in order:
        pages[closed].close()
        open_pages.remove(closed)
        settle_held(client, sum(any(p >= i for p in open_pages) for i in range(3)))


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_release_waits_for_no_later_fork(client, order):
    """Storage i is released between the forks i and i + 1."""
    storages = [held(client) for _ in order]
    pages = []
    for storage in storages:
        pages.append(client.fork())
        client.release((storage, 1))
    open_pages = set(order)
    for closed in order:
        pages[closed].close()
        open_pages.remove(closed)
        settle_held(client, sum(any(p <= i for p in open_pages) for i in range(3)))


def test_a_parked_storage_can_be_held_again_and_still_waits(client):
    storage = held(client)
    page = client.fork()
    client.release((storage, 1))
    client.hold(storage)
    page.close()
    settle_held(client, 1)
    page = client.fork()
    client.release((storage, 1))
    settle_held(client, 1)
    page.close()
    settle_held(client, 0)


def test_a_parked_hold_has_no_grants(client, drops):
    storage = held(client)
    page = client.fork()
    client.release((storage, 1))
    with pytest.raises(wire.Refused):
        client.publish("mine", storage, wire.desc((25,)))
    with pytest.raises(wire.Refused):
        client.ticket(storage)
    client.release((storage, 1))
    drops.expect(client)
    page.close()


def test_another_clients_release_waits_for_nobody(daemon, client):
    storage = held(client)
    page = client.fork()
    with daemon.connect() as other:
        other.hold(storage)
        other.release((storage, 1))
        settle_held(client, 1)
    client.release((storage, 1))
    page.close()


# --------------------------------------------------------------------------------- the parent ends


def test_what_a_parent_held_outlives_it_for_its_children(daemon):
    parent = daemon.connect(program="parent")
    before, page, after = held(parent), parent.fork(), held(parent)
    parent.close()
    with daemon.connect() as child:
        settle_held(child, 1)
        assert child.hold(before)[0]["nbytes"] == 100
        with pytest.raises(wire.Refused):
            child.hold(after)
        page.close()
        settle_held(child, 1)


def test_a_parent_that_ended_is_still_listed_with_what_it_holds(daemon, client):
    with daemon.connect(program="parent") as parent:
        held(parent)
        page = parent.fork()
        held(parent)
    d.settle(lambda: client.stats()["holds"] == 1)
    (row,) = [row for row in client.clients() if row["program"] == "parent"]
    assert (row["connected"], row["storages"], row["bytes"]) == (0, 1, 100)
    page.close()
    d.settle(lambda: "parent" not in [row["program"] for row in client.clients()])


def test_ephemeral_names_go_with_the_parent_not_with_its_children(daemon, client):
    with daemon.connect() as parent:
        parent.put("mine", b"abc", flags=1)
        page = parent.fork()
    d.settle(lambda: client.names() == [])
    settle_held(client, 1)
    page.close()
    settle_held(client, 0)


def test_every_order_of_release_end_and_close_frees_all(daemon, client):
    for order in itertools.permutations(["release", "end", "close"]):
        parent = daemon.connect()
        storage = held(parent)
        page = parent.fork()
        for step in order:
            if step == "close":
                page.close()
            elif step == "end":
                parent.close()
            elif parent.socket.fileno() >= 0:
                parent.release((storage, 1))
        settle_held(client, 0)


def test_a_killed_parent_and_its_child_leave_nothing(daemon, client):
    """A real fork: the child has the page by inheritance, and nobody tells when it is killed."""
    ready, told = os.pipe()
    parent = os.fork()
    if parent == 0:
        connection = daemon.connect(life_page=True)
        held(connection)
        page = connection.fork()
        child = os.fork()
        if child != 0:
            page.close()
            connection.stats()
            os.write(told, child.to_bytes(4, "little"))
        signal.pause()
        os._exit(0)
    os.close(told)
    child = int.from_bytes(os.read(ready, 4), "little")
    os.close(ready)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    # The child has inherited the parent's life page and socket, too.
    settle_held(client, 1)
    os.kill(child, signal.SIGKILL)
    settle_held(client, 0)


def test_a_fork_is_heard_of_a_parent_that_left_its_replies_unread(daemon, client):
    """The kernel tells the daemon of the unread replies first, and of the note afterwards."""
    parent = daemon.connect()
    held(parent)
    parent.send("STATS")
    parent.socket.recv(1, socket.MSG_PEEK)
    with daemon.stopped():
        page = parent.fork()
        parent.close()
    d.settle(lambda: client.stats()["clients"] == 1)
    settle_held(client, 1)
    page.close()


def test_a_fork_is_heard_of_a_parent_whose_replies_cannot_be_sent(daemon, client):
    parent = daemon.connect()
    held(parent)
    with daemon.stopped():
        parent.send("STATS")
        page = parent.fork()
        parent.close()
    d.settle(lambda: client.stats()["clients"] == 1)
    settle_held(client, 1)
    page.close()


# ----------------------------------------------------------------------------- without a page


def test_without_a_page_releases_wait_for_the_end_of_the_process(daemon, client):
    with daemon.connect() as parent:
        before = held(parent)
        parent.send("FORK")
        after = held(parent)
        parent.release((before, 1), (after, 1))
        settle_held(parent, 1)
    settle_held(client, 0)


def test_notes_with_and_without_a_page_count_one_after_the_other(daemon, client):
    with daemon.connect() as parent:
        storages, pages = [], []
        for _ in range(3):
            storages.append(held(parent))
            pages.append(parent.fork())
            storages.append(held(parent))
            parent.send("FORK")
        parent.release(*[(storage, 1) for storage in storages])
        for page in pages[:2]:
            page.close()
        settle_held(parent, 6)
    settle_held(client, 5)  # those of before the last fork that had a page
    pages[2].close()
    settle_held(client, 0)


# ------------------------------------------------------------------------------- what is no page


def not_a_page(kind: str) -> int:
    if kind == "large memfd":
        fd = os.memfd_create("large", os.MFD_CLOEXEC)
        os.ftruncate(fd, 8192)
        return fd
    if kind == "pipe":
        reader, writer = os.pipe()
        os.close(writer)
        return reader
    return os.open({"file": __file__, "null": os.devnull, "folder": "/tmp"}[kind], os.O_RDONLY)


@pytest.mark.parametrize("kind", ["file", "null", "folder", "pipe", "large memfd"])
def test_a_descriptor_that_is_no_page_is_a_breach(client, drops, kind):
    fd = not_a_page(kind)
    client.send("FORK", fds=[fd])
    os.close(fd)
    drops.expect(client)


def test_two_pages_in_one_note_are_a_breach(client, drops):
    pages = [wire.ForkPage(), wire.ForkPage()]
    client.send("FORK", fds=[page.fd for page in pages])
    for page in pages:
        os.close(page.fd)
        page.close()
    drops.expect(client)


def test_the_same_page_twice_is_a_breach(client, drops):
    page = wire.ForkPage()
    client.send("FORK", fds=[page.fd])
    client.send("FORK", fds=[page.fd])
    os.close(page.fd)
    drops.expect(client)
    page.close()


@pytest.mark.parametrize("whose", ["its own", "another's"])
def test_a_life_page_is_no_fork_page(daemon, drops, whose):
    with daemon.connect(hello=False) as client, daemon.connect(hello=False) as other:
        replies = {"its own": client.call("HELLO", **wire.HELLO),
                   "another's": other.call("HELLO", **wire.HELLO)}  # fmt: skip
        client.send("FORK", fds=replies[whose].fds)
        drops.expect(client)
        for reply in replies.values():
            os.close(reply.fds[0])


def test_a_page_nobody_has_mapped_is_closed_at_once(client):
    """The sender may have ended while its note was on its way."""
    page = wire.ForkPage()
    storage = held(client)
    page.close()
    client.send("FORK", fds=[page.fd])
    os.close(page.fd)
    client.release((storage, 1))
    settle_held(client, 0)


def test_a_segment_of_the_daemons_is_no_fork_page(client, drops):
    """It would wait for itself, for ever."""
    _, fd = client.map(client.alloc(100)["segment"])
    client.send("FORK", fds=[fd])
    os.close(fd)
    drops.expect(client)


def test_many_pages_come_and_go(client):
    storage = held(client)
    pages = [client.fork() for _ in range(300)]
    client.release((storage, 1))
    for page in pages[::2] + pages[:0:-2]:
        page.close()
        assert client.stats()["storages"] <= 1
    settle_held(client, 0)


# ---------------------------------------------------------------------------- daemons of its own


def test_the_daemon_ends_in_good_order_with_pages_open(tmp_path):
    with d.Daemon(tmp_path) as running, running.connect() as client:
        with running.connect() as parent:
            storages = [held(parent) for _ in range(10)]
            page = parent.fork()
            parent.release(*[(storage, 1) for storage in storages[:5]])
        storage = held(client)
        pages = [client.fork(), client.fork()]
        client.release((storage, 1))
        client.send("FORK")
        settle_held(client, 11)
        running.stop()
    for open_page in [page, *pages]:
        open_page.close()


def test_beyond_the_limit_of_pages_releases_wait_for_the_end_of_the_process(tmp_path):
    with d.Daemon(tmp_path, "--client-forks", "2", "--warm-seconds", "0") as running:
        with running.connect() as parent:
            pages = []
            for _ in range(4):
                storage = held(parent)
                pages.append(parent.fork())
                parent.release((storage, 1))
            for page in pages:
                page.close()
            settle_held(parent, 4)
            assert "event=fork.unwatched" in running.log()
        running.settle_clean()


def test_a_daemon_with_children_of_a_client_does_not_end_for_want_of_work(tmp_path):
    with d.Daemon(tmp_path, "--idle-exit", "1") as running:
        with running.connect() as parent:
            held(parent)
            page = parent.fork()
        d.settle(lambda: "event=client.close" in running.log())
        with running.connect() as other:
            (row,) = [row for row in other.clients() if not row["connected"]]
            assert row["storages"] == 1
        page.close()
        assert running.process.wait(d.DEADLINE) == 0


def test_what_a_child_reads_is_what_its_parent_wrote(daemon):
    """The bytes, not only the books: the segment is neither emptied nor given to others."""
    with daemon.connect() as parent:
        grant = parent.put("", b"inherited")["grant"]
        _, fd = parent.map(grant["segment"])
        page = parent.fork()
    view = mmap.mmap(fd, grant["offset"] + 4096)
    os.close(fd)
    with daemon.connect() as other:
        for _ in range(50):
            other.release((other.put("", b"something")["grant"]["storage"], 1))
        assert view[grant["offset"] : grant["offset"] + 9] == b"inherited"
    view.close()
    page.close()
