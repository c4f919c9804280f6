"""A daemon of another protocol version, or something that is no daemon at all."""

import contextlib
import os
import socket
import threading

import pytest
import recorded
from helpers import Program
from wire_table import HEADER, MESSAGES, Status

CALLS = """
calls = [lambda: cx.put("x", np.zeros(3)), cx.names, cx.stats, lambda: cx.get("x")]
for call in calls[: int(sys.argv[1])]:
    try:
        call()
    except cx.Error as error:
        say(type(error).__name__, error)
"""


def refusal(status, text):
    body = text.encode()
    head = HEADER.pack(
        nbytes=HEADER.size + len(body), opcode=MESSAGES["HELLO"].opcode, request=1, status=status
    )
    return head + body


def welcome(**fields):
    body = MESSAGES["HELLO"].reply.pack(**fields)
    return HEADER.pack(nbytes=HEADER.size + len(body), opcode=1, request=1) + body


class Impostor:
    """Listens where the daemon would, and answers every message with the same bytes."""

    def __init__(self, path, answer):
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(path)
        self.listener.listen(16)
        self.answer = answer
        self.heard = []
        self.thread = threading.Thread(target=self.serve)

    def serve(self):
        with contextlib.suppress(OSError):
            while True:
                peer, _ = self.listener.accept()
                with peer, contextlib.suppress(OSError):
                    self.heard.append(peer.recv(100_000))
                    if self.heard[-1] and self.answer:
                        peer.send(self.answer)
                        while peer.recv(100_000):
                            peer.send(self.answer)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()


def answers(folder, answer, *, calls=4, env=None):
    """What the first calls of a program say to a peer that answers so."""
    path = f"{folder}/d.sock"
    environment = {"TENSORCX_TIMEOUT": "0.2"} | (env or {})
    with Impostor(path, answer), Program(CALLS, calls, socket=path, env=environment) as program:
        lines = [program.line() for _ in range(calls)]
        program.finish()
    return lines


def test_the_library_says_hello_as_it_is_on_record(folder):
    path = f"{folder}/d.sock"
    with Impostor(path, refusal(Status.VERSION, "no")) as peer:
        with Program(CALLS, 1, socket=path) as program:
            program.line()
            program.finish()
        newest = recorded.HELLO[max(recorded.HELLO)]
        shared = slice(4, newest.index(b"old"))  # all but its length and who says it
        assert peer.heard[0][shared] == newest[shared]


def test_the_daemons_text_reaches_the_user(folder):
    text = "this daemon speaks 7 to 9, you speak 1: upgrade the client"
    for line in answers(folder, refusal(Status.VERSION, text)):
        assert line.startswith("DaemonUnavailable") and text in line


@pytest.mark.parametrize("autostart", ["0", "1"])
def test_no_second_daemon_is_started_beside_one_of_another_version(folder, autostart):
    lines = answers(
        folder, refusal(Status.VERSION, "too old"), env={"TENSORCX_AUTOSTART": autostart}
    )
    assert all("too old" in line for line in lines)
    assert os.listdir(folder) == ["d.sock"]


@pytest.mark.parametrize("version", [0, 2, 0xFFFF])
def test_a_version_we_did_not_offer_is_refused_by_us(folder, version):
    for line in answers(folder, welcome(version=version, layout=1, boot_id=1, client=1, pid=1)):
        assert line.startswith("Daemon"), line


def test_another_layout_is_refused_by_us(folder):
    for line in answers(folder, welcome(version=1, layout=99, boot_id=1, client=1, pid=1)):
        assert line.startswith("Daemon"), line


NONSENSE = {
    "bytes": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "half a header": b"\0" * 10,
    "huge size": HEADER.pack(nbytes=2**32 - 1, opcode=1, request=1),
    "another request": HEADER.pack(nbytes=HEADER.size, opcode=1, request=99, status=5),
    "unknown status": refusal(200, "what"),
    "unknown opcode": HEADER.pack(nbytes=HEADER.size, opcode=999, request=1),
    "a text that is not UTF-8": refusal(Status.DENIED, "x")[:-1] + b"\xff",
    "no answer": b"",
}


@pytest.mark.parametrize("answer", NONSENSE.values(), ids=NONSENSE.keys())
def test_what_is_no_daemon_is_an_error_never_a_crash(folder, answer):
    for line in answers(folder, answer, calls=1):
        assert line.split()[0] in ("DaemonUnavailable", "DaemonLost", "Timeout", "Error"), line


def test_a_socket_of_another_kind_is_an_error(folder):
    path = f"{folder}/d.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        stream.bind(path)
        stream.listen(4)
        with Program(CALLS, 4, socket=path) as program:
            for _ in range(4):
                assert program.line().startswith("DaemonUnavailable")
            program.finish()
