"""Names over the wire: what is one, and that it comes back byte for byte."""

import pytest
import wire
from wire import Refused
from wire_table import CONSTANTS, Status

LONGEST = CONSTANTS["WIRE_NAME_MAX"]

GOOD = [
    "a", " ", " leading and trailing ", "/", "..", "../../etc/passwd", "a//b", "n" * LONGEST,
    "\N{PARTY POPPER}", "ä" * (LONGEST // 2), "\N{BYTE ORDER MARK}x", "%s%n", "'; --",
]  # fmt: skip

BAD = {
    "empty": b"",
    "nul": b"a\0b",
    "newline": b"a\nb",
    "escape": b"\x1b[31m",
    "delete": b"a\x7f",
    "c1 control": b"a\xc2\x85",
    "bare continuation": b"\x80",
    "cut short": b"a\xe2\x82",
    "overlong slash": b"\xc0\xaf",
    "surrogate": b"\xed\xa0\x80",
    "beyond unicode": b"\xf4\x90\x80\x80",
    "latin-1": b"\xe4",
}


def calls_with_name(client, name: bytes):
    """Every way to say a name, as functions."""
    return {
        "PUT": lambda: client.put(name, b"abc"),
        "PUBLISH": lambda: client.publish(name, client.alloc(4)["storage"], wire.desc()),
        "GET": lambda: client.get(name),
        "GET_WAIT": lambda: client.get(name, flags=CONSTANTS["GET_WAIT"]),
        "STAT": lambda: client.call("STAT", name),
        "DELETE": lambda: client.delete(name),
    }


@pytest.mark.parametrize("name", GOOD, ids=ascii)
def test_a_name_comes_back_byte_for_byte(client, name):
    client.put(name, b"data")
    assert client.names() == [name.encode()]
    assert client.call("STAT", name.encode())["entry"]["nbytes"] == 4
    client.delete(name)


@pytest.mark.parametrize("call", ["PUT", "PUBLISH", "GET", "GET_WAIT", "STAT", "DELETE"])
@pytest.mark.parametrize("name", BAD.values(), ids=BAD.keys())
def test_what_is_no_name_is_refused_with_the_reason(client, call, name):
    if call == "PUT" and name == b"":
        pytest.skip("PUT without a name just makes a storage")
    with pytest.raises(Refused) as refused:
        calls_with_name(client, name)[call]()
    assert refused.value.status is Status.INVALID
    assert "name" in refused.value.text
    assert client.names() == []


def test_put_without_a_name_just_makes_a_storage(client):
    reply = client.put("", b"abc")
    assert reply["grant"]["nbytes"] == 3 and reply["version"] == 0
    assert client.names() == []
    assert client.stats()["storages"] == 1


def test_a_longer_name_does_not_fit_the_message(daemon, drops):
    """256 bytes: no room in GET; in PUT the room is there, so it is an answer."""
    with daemon.connect() as client:
        client.send("GET", b"n" * (LONGEST + 1))
        drops.expect(client)
    with daemon.connect() as client:
        with pytest.raises(Refused) as refused:
            client.put("n" * (LONGEST + 1), b"abc")
        assert refused.value.status is Status.INVALID


@pytest.mark.parametrize("field", ["desc_nbytes", "name_nbytes", "data_nbytes"])
@pytest.mark.parametrize("by", [-1, 1])
def test_sizes_in_put_that_do_not_add_up_are_refused(daemon, field, by):
    description, name, data = wire.desc((4,), wire.UINT8), b"name", b"data"
    fields = wire.put_fields(name, data, description)
    fields[field] += by
    with daemon.connect() as client:
        client.send("PUT", description + name + data, **fields)
        try:
            assert client.receive().status is Status.INVALID
        except wire.Dropped:
            pass
        else:
            assert client.names() == []


@pytest.mark.parametrize("prefix,after", [(200, 0), (0, 200), (0xFFFF, 1), (1, 0xFFFF)])
def test_sizes_in_list_that_do_not_add_up_are_refused(daemon, prefix, after):
    with daemon.connect() as client:
        client.send("LIST", b"short", prefix_nbytes=prefix, after_nbytes=after)
        try:
            assert client.receive().status is Status.INVALID
        except wire.Dropped:
            return
        assert client.names() == []


def test_a_list_comes_in_pages_sorted_and_whole(client):
    names = sorted(f"{i:03}".encode() * 60 for i in range(400))
    for name in names:
        client.put(name, b"x")
    first = client.call("LIST")
    assert first["more"] == 1 and first["count"] < 400
    assert client.names() == names
    assert client.names(prefix="01") == [name for name in names if name.startswith(b"01")]
    assert client.names(prefix="nothing") == []
    for name in names:
        client.delete(name)


def test_an_exclusive_put_keeps_what_is_there(client):
    client.put("name", b"first")
    with pytest.raises(Refused) as refused:
        client.put("name", b"second", flags=CONSTANTS["PUT_EXCLUSIVE"])
    assert refused.value.status is Status.EXISTS
    assert client.get("name")["grant"]["nbytes"] == 5
    client.delete("name")


def test_an_ephemeral_name_goes_with_its_publisher(daemon, client):
    with daemon.connect() as publisher:
        publisher.put("passing", b"x", flags=CONSTANTS["PUT_EPHEMERAL"])
        assert client.names() == [b"passing"]
    daemon.settle(names=0)
    assert client.names() == []


def test_a_name_with_a_time_to_live_goes_by_itself(daemon, client):
    client.put("brief", b"x", ttl_ms=50)
    daemon.settle(names=0)
    with pytest.raises(Refused) as refused:
        client.get("brief")
    assert refused.value.status is Status.NOT_FOUND


@pytest.mark.parametrize("call", ["put", "get"])
def test_unknown_flags_are_refused(client, call):
    flags = 1 << 31
    with pytest.raises(wire.Dropped):
        client.put("x", b"y", flags=flags) if call == "put" else client.get("x", flags=flags)
