#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Attaching: each lie about version, messages, descriptors and regions is refused with its own reason.

After every refusal the daemon still serves, and in the end it holds no descriptor more than before.
"""

import fcntl
import os
import socket
import tempfile

import wire
from harness import Daemon, Scratch, main, note, test, until
import make_gguf      # harness has put tests/tools on the path
from wire import ATTACH, F_ADD_SEALS, Handshake, RefusedError, Wire, hello, head

SHARED = []


def shared():
    if not SHARED:
        scratch = Scratch().__enter__()
        path = scratch.file("tiny.gguf", make_gguf.make_bytes(layers=1, embd=64, heads=1, kv_heads=1, ffn=64, ctx=64))
        SHARED.extend([Daemon(model=path, config={"clients_max": 16}).start(), scratch])
    return SHARED[0]


def refusal(reason, act):
    """act() must end in REFUSED for this reason; the refusal, which says something."""
    try:
        act()
    except RefusedError as refused:
        note(refused)
        assert refused.reason == reason, "refused as %s, expected %s" % (refused, reason)
        assert refused.text, "refused without a word"
        return refused
    raise AssertionError("accepted, expected " + reason)


def serves():
    with Wire(shared().socket) as client:
        assert client.ask(op=wire.NOOP).status == "OK"


def shaken(act):
    """act(handshake) after WELCOME, on a connection that is closed behind it."""
    def run():
        shake = Handshake(shared().socket)
        try:
            act(shake)
        finally:
            shake.close()
            os.close(shake.t_fd)
    return run


def attach_region(**how):
    def act(shake):
        fd, view = shake.make_region(**how)
        try:
            shake.attach([fd])
        finally:
            view.close()
            os.close(fd)
    return shaken(act)


def with_hello(message):
    return lambda: Handshake(shared().socket, message)


@test
def an_honest_client_is_taken():
    serves()


@test
def another_major_version_is_refused():
    refused = refusal("VERSION", with_hello(hello(major=2)))
    assert (refused.have, refused.want) in ((2, 1), (1, 2)), refused
    serves()


@test
def malformed_messages_are_refused():
    broken = bytearray(hello())
    broken[0xf0] = 1                    # a reserved byte
    for name, message in (("magic", hello(magic=0x12345678)), ("size in the head", hello(size=255)),
                          ("short", hello()[:100]), ("long", hello() + b"\0" * 256), ("reserved byte", bytes(broken)),
                          ("ATTACH first", head(ATTACH).ljust(256, b"\0")), ("unknown type", head(77).ljust(256, b"\0")),
                          ("text", b"GET / HTTP/1.1\r\n\r\n")):
        note(name)
        refusal("MESSAGE", with_hello(message))
    refusal("MESSAGE", shaken(lambda shake: shake.attach([], raw=hello())))
    serves()


@test
def sizes_outside_the_limits_are_refused_or_granted_smaller():
    for name, wanted in (("nsq 0", {"nsq": 0}), ("nsq 9", {"nsq": 9}), ("sq_log2", {"sq_log2": 31}),
                         ("cq_log2", {"cq_log2": 40}), ("no inflight", {"max_inflight": 0}),
                         ("inflight", {"max_inflight": 1 << 31}), ("arena 2^63", {"arena_len": 1 << 63}),
                         ("arena unaligned", {"arena_len": 65}), ("bulk 2^64 - 1", {"bulk_len": 2**64 - 1})):
        try:
            shake = Handshake(shared().socket, hello(**wanted))
        except RefusedError as refused:
            note("%s: %s" % (name, refused))
            assert refused.reason in ("MESSAGE", "LIMIT"), refused
        else:
            g = shake.grant
            note("%s: granted %s" % (name, vars(g)))
            assert 1 <= g.nsq <= 8 and 4 <= g.sq_log2 <= 12 and 5 <= g.cq_log2 <= 16, name
            assert 1 <= g.max_inflight <= 4096 and g.arena_len % 64 == 0 and g.r_len < 1 << 32, name
            shake.close()
            os.close(shake.t_fd)
    serves()


@test
def an_attach_without_a_descriptor_or_with_two_is_refused():
    refusal("FD", shaken(lambda shake: shake.attach([])))

    def two(shake):
        fd, view = shake.make_region()
        try:
            shake.attach([fd, fd])
        finally:
            view.close()
            os.close(fd)

    refusal("FD", shaken(two))
    serves()


@test
def a_descriptor_that_is_no_memfd_is_refused():
    def act(shake):
        with tempfile.TemporaryFile() as file:
            file.truncate(shake.grant.r_len)
            shake.attach([file.fileno()])

    def pipe(shake):
        ends = os.pipe()
        try:
            shake.attach([ends[0]])
        finally:
            os.close(ends[0])
            os.close(ends[1])

    for kind in (act, pipe):
        try:
            shaken(kind)()
            raise AssertionError("accepted")
        except RefusedError as refused:
            note(refused)
            assert refused.reason in ("FD", "SEALS", "FILESYSTEM"), refused
    serves()


@test
def each_missing_seal_is_refused_with_those_found_and_those_demanded():
    for missing in (0x1, 0x2, 0x4, 0x10, 0x17):
        seals = wire.SEALS & ~missing
        refused = refusal("SEALS", attach_region(seals=seals))
        assert refused.have & wire.SEALS == seals and refused.want == wire.SEALS, refused
    serves()


@test
def a_region_on_huge_pages_is_refused():
    def act(shake):
        fd = os.memfd_create("huge", os.MFD_ALLOW_SEALING | os.MFD_HUGETLB)
        try:
            os.ftruncate(fd, wire.up(shake.grant.r_len, 2 << 20))
            fcntl.fcntl(fd, F_ADD_SEALS, wire.SEALS)
            shake.attach([fd], region_len=wire.up(shake.grant.r_len, 2 << 20))
        finally:
            os.close(fd)

    try:
        shaken(act)()
        raise AssertionError("accepted")
    except RefusedError as refused:
        note(refused)
        assert refused.reason in ("FILESYSTEM", "SIZE", "SEALS"), refused
    serves()


@test
def a_region_of_another_size_than_announced_or_granted_is_refused():
    shake = Handshake(shared().socket)
    size = shake.grant.r_len
    shake.close()
    os.close(shake.t_fd)
    for other in (size + 4096, size - 4096, 4096):
        refused = refusal("SIZE", attach_region(size=other))
        assert size in (refused.have, refused.want), refused
    serves()


@test
def a_region_with_a_hole_is_refused():
    refusal("HOLES", attach_region(allocate=False))
    serves()


@test
def a_region_that_is_attached_already_is_refused():
    with Wire(shared().socket) as client:
        refusal("REUSED", shaken(lambda shake: shake.attach([client.r_fd])))
        assert client.ask(op=wire.NOOP).status == "OK"
    serves()


@test
def the_daemons_own_region_is_refused():
    def own(shake):
        shake.attach([shake.t_fd])

    def others(shake):
        with Wire(shared().socket) as client:
            shake.attach([client.shake.t_fd])

    for kind in (own, others):
        try:
            shaken(kind)()
            raise AssertionError("accepted")
        except RefusedError as refused:
            note(refused)
            assert refused.reason in ("REUSED", "SIZE"), refused
    serves()


@test
def a_header_that_is_not_the_granted_layout_is_refused():
    shake = Handshake(shared().socket)
    g = shake.grant
    shake.close()
    os.close(shake.t_fd)
    for lie in ({"magic": 1}, {"major": 9}, {"header_len": 128}, {"region_len": g.r_len - 4096}, {"nsq": 0}, {"nsq": 8},
                {"sq_log2": 31}, {"sq_log2": g.sq_log2 + 1}, {"sq_off": 0xffffffc0}, {"sq_off": g.sq_off + 1},
                {"sq_off": g.r_len - 64}, {"ctl_off": 0}, {"ctl_off": g.ctl_off + 4}, {"ctl_off": 0xffffff00},
                {"arena_off": 2**64 - 64}, {"arena_off": g.r_len}, {"arena_off": g.arena_off + 4096},
                {"arena_len": 2**63}, {"arena_len": g.arena_len + 64}, {"max_inflight": 0}, {"max_inflight": 4096},
                {"colour": 99}, {"sq_stride": 0} if g.nsq > 1 else {"colour": 32}, {"cancel_off": 0xffffffc0},
                {"cancel_off": g.cancel_off + 2}, {"release_off": g.r_len - 4}, {"features": 1 << 63}, {"reserved": 1}):
        note(lie)
        refusal("LAYOUT", attach_region(**lie))
    serves()


@test
def more_clients_than_the_limit_are_refused_and_the_others_stay():
    clients = [Wire(shared().socket) for _ in range(16)]
    try:
        refused = refusal("LIMIT", lambda: Wire(shared().socket))
        assert 16 in (refused.have, refused.want), refused
        assert all(c.ask(op=wire.NOOP).status == "OK" for c in clients)
    finally:
        for client in clients:
            client.shake.close()
    until("room again", lambda: shared().stats()["clients"] == 0)
    serves()


@test
def half_open_connections_leave_nothing():
    until("no client", lambda: shared().stats()["clients"] == 0)
    serves()
    until("no client", lambda: shared().stats()["clients"] == 0)
    before = shared().descriptors()
    for _ in range(10):
        shake = Handshake(shared().socket)
        os.close(shake.t_fd)
        shake.close()
        bare = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        bare.connect(shared().socket)
        bare.close()
    until("descriptors as before", lambda: shared().descriptors() == before)
    serves()


@test
def all_of_it_leaves_no_descriptor_and_the_daemon_ends_in_order():
    daemon = shared()
    until("no client", lambda: daemon.stats()["clients"] == 0)
    note("%d descriptors" % daemon.descriptors())
    assert daemon.stop() == 0, daemon.log()


if __name__ == "__main__":
    try:
        main()
    finally:
        for thing in SHARED:
            thing.__exit__()
