# SPDX-License-Identifier: Apache-2.0
"""A client of the wire ABI in plain Python, written from docs/abi.md and not from the library.

It can say what the library never would (ids outside the vocabulary, wrong regions), and shows that the
page is enough to write a second client. Every step that it takes can be replaced to tell a lie.
"""

import array
import ctypes
import fcntl
import mmap
import os
import platform
import socket
import struct
import threading
import time

from harness import POLL_S, WAIT_S_MAX

MAJOR, MINOR = 1, 0
MAGIC_CTL, MAGIC_R = 0x4c54434b, int.from_bytes(b"TKRRRG01", "little")
HELLO, WELCOME, ATTACH, READY, REFUSED = range(1, 6)
SEALS = 0x0001 | 0x0002 | 0x0004 | 0x0010               # SEAL, SHRINK, GROW, FUTURE_WRITE
F_ADD_SEALS = 1033
REASONS = dict(enumerate("VERSION MESSAGE PEER LIMIT FD SEALS FILESYSTEM SIZE HOLES REUSED LAYOUT MLOCK DRAIN "
                         "INTERNAL".split(), 1))
NOOP, PAD, CANCEL, GENERATE, TOKENIZE, LOGPROBS = range(6)
TEXT, TOKENS, MESSAGES = 1, 2, 3
STATUS = dict(enumerate("OK INVALID UNSUPPORTED CONTEXT DEADLINE OVERLOADED CANCELLED ABORTED NUMERIC SLOW NO_MODEL "
                        "MISMATCH DENIED DUPLICATE INTERNAL GONE RESTARTED".split()))
FINISH = {0: "none", 1: "stop", 2: "length"}
TAIL_MESSAGE, TAIL_STOP_TEXT, TAIL_STOP_IDS, TAIL_RESUME_IDS = 1, 2, 3, 4
NO_LIMIT = 0xffffffff
CQE_TOKEN, CQE_BULK, CQE_DONE = 1, 2, 5
NO_RESULT = 4
FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine())
FUTEX_WAKE = 1

libc = ctypes.CDLL(None, use_errno=True)
fence_lock = threading.Lock()


def up(x, n):
    return (x + n - 1) // n * n


def fence():
    """A full fence: taking and giving a lock is two locked instructions."""
    with fence_lock:
        pass


class RefusedError(Exception):
    def __init__(self, message):
        reason, = struct.unpack_from("<H", message, 0x10)
        self.have, self.want = struct.unpack_from("<QQ", message, 0x18)
        self.reason, self.text = REASONS.get(reason, reason), message[0x28:0xa8].split(b"\0")[0].decode()
        super().__init__("%s: %s (have %d, want %d)" % (self.reason, self.text, self.have, self.want))


def head(kind, major=MAJOR, magic=MAGIC_CTL, size=256):
    return struct.pack("<IHHHHI", magic, kind, size, major, MINOR, 0)


def hello(arena_len=1 << 20, bulk_len=1 << 20, nsq=1, sq_log2=6, cq_log2=9, max_inflight=64, features=0, **head_lies):
    body = head(HELLO, **head_lies) + struct.pack("<QQQIIIIII", features, arena_len, bulk_len, nsq, sq_log2, cq_log2,
                                                  max_inflight, 0, 0) + b"wire.py".ljust(32, b"\0")
    return body.ljust(256, b"\0")


class Grant:
    """What WELCOME says, and where things lie in R and T because of it."""

    def __init__(self, message):
        (self.features, self.arena_len, self.bulk_len, self.nsq, self.sq_log2, self.cq_log2, self.max_inflight,
         self.colour, self.doorbell, self.t_len, self.client_id, self.epoch, self.pid) = struct.unpack_from(
             "<QQQIIIIIIQQQi", message, 0x10)
        c, words = 64 * self.colour, up(4 * self.max_inflight, 64)
        self.ctl_off = 4096 + c
        self.cancel_off = 8192 + c
        self.release_off = self.cancel_off + words
        self.sq_off = up(self.release_off + words, 4096) + c
        self.sq_stride = up(64 << self.sq_log2, 4096) + 256
        self.arena_off = up(self.sq_off + self.sq_stride * self.nsq, 4096)
        self.r_len = up(self.arena_off + self.arena_len, 4096)


def r_header(g, **lies):
    """The header of R; lies replace fields."""
    field = {"magic": MAGIC_R, "major": MAJOR, "minor": MINOR, "header_len": 256, "region_len": g.r_len,
             "features": g.features, "nsq": g.nsq, "sq_log2": g.sq_log2, "sq_off": g.sq_off, "ctl_off": g.ctl_off,
             "arena_off": g.arena_off, "arena_len": g.arena_len, "nonce": 1, "max_inflight": g.max_inflight,
             "colour": g.colour, "sq_stride": g.sq_stride, "cancel_off": g.cancel_off, "release_off": g.release_off,
             "reserved": 0, **lies}
    return struct.pack("<QHHIQQIIIIQQQIIIIII", *field.values()).ljust(256, b"\0")


class Handshake:
    """The control socket up to WELCOME; what comes after is the caller's."""

    def __init__(self, path, first=None):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(WAIT_S_MAX)
        self.socket.connect(path)
        self.socket.send(hello() if first is None else first)
        message, fds = self.receive(WELCOME)
        self.grant, self.t_fd = Grant(message), fds[0]

    def receive(self, wanted):
        message, control, _, _ = self.socket.recvmsg(4096, socket.CMSG_SPACE(64))
        fds = array.array("i")
        for _, _, data in control:
            fds.frombytes(data[:len(data) - len(data) % fds.itemsize])
        if not message:
            raise ConnectionError("the daemon hung up")
        kind, = struct.unpack_from("<H", message, 4)
        if kind == REFUSED:
            raise RefusedError(message)
        assert kind == wanted and len(message) == 256, (kind, len(message))
        return message, list(fds)

    def make_region(self, seals=SEALS, size=None, allocate=True, **lies):
        """-> descriptor and writable mapping of R, made in the order of the page."""
        size = self.grant.r_len if size is None else size
        fd = os.memfd_create("wire-r", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        os.ftruncate(fd, size)
        if allocate:
            os.posix_fallocate(fd, 0, size)
        view = mmap.mmap(fd, size)
        for at in range(0, size if allocate else 0, 4096):
            view[at] = 0                # a page that was only allocated counts as a hole
        view[0:256] = r_header(self.grant, **lies)
        fcntl.fcntl(fd, F_ADD_SEALS, seals)
        return fd, view

    def attach(self, fds, region_len=None, raw=None):
        message = raw or (head(ATTACH) + struct.pack("<QII", region_len or self.grant.r_len, 0, 0)).ljust(256, b"\0")
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.socket.sendmsg([message], rights)
        self.receive(READY)

    def close(self):
        self.socket.close()


class Answer:
    def __init__(self, tag, user):
        self.tag, self.user, self.ids, self.text, self.bulk, self.done = tag, user, [], b"", None, 0
        self.status = self.result = None


class Wire:
    """An attached client. One thread."""

    def __init__(self, path, **wanted):
        self.shake = Handshake(path, hello(**wanted))
        self.grant = g = self.shake.grant
        self.r_fd, self.r = self.shake.make_region()
        self.t = mmap.mmap(self.shake.t_fd, g.t_len, mmap.MAP_SHARED, mmap.PROT_READ)
        (self.t_ctl, self.cq_off, _, self.res_off) = struct.unpack_from("<IIII", self.t, 0x40)
        self.bulk_off, = struct.unpack_from("<Q", self.t, 0x50)
        self.shake.attach([self.r_fd])
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.r))
        self.sq_pos = self.cq_pos = self.used = self.last_user = 0
        self.live = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.shake.close()

    # ---- the arena: bump allocation, whole again when a request comes and nothing lives ----

    def place(self, data):
        at = up(self.used, 64)
        assert at + len(data) <= self.grant.arena_len, "the arena is full"
        self.r[self.grant.arena_off + at:self.grant.arena_off + at + len(data)] = data
        self.used = at + len(data)
        return at

    def params(self, stop_ids=None, stops=(), messages=(), seed=None, flags=0, temperature=0.0, top_p=0.0, min_p=0.0,
               top_k=0, tenant=0, resume_ids=(), resume_bytes=0, lies_of_params=()):
        """The parameter block's place and length; the lies are (offset, bytes) written over it."""
        tail = b""
        for role, text in messages:
            tail += struct.pack("<HHIII", TAIL_MESSAGE, role, self.place(text), len(text), 0)
        for text in stops:
            tail += struct.pack("<HHIII", TAIL_STOP_TEXT, 0, self.place(text), len(text), 0)
        if stop_ids is not None:
            data = struct.pack("<%dI" % len(stop_ids), *stop_ids)
            tail += struct.pack("<HHIII", TAIL_STOP_IDS, 0, self.place(data), len(data), len(stop_ids))
        if resume_ids:
            data = struct.pack("<%dI" % len(resume_ids), *resume_ids)
            tail += struct.pack("<HHIII", TAIL_RESUME_IDS, 0, self.place(data), len(data), len(resume_ids))
        block = bytearray(128)
        struct.pack_into("<I", block, 0x44, resume_bytes)
        struct.pack_into("<HHI", block, 0, 128, len(tail) // 16, flags | (seed is not None))
        struct.pack_into("<QQ", block, 0x08, tenant, seed or 0)
        struct.pack_into("<Ifff", block, 0x4c, top_k, temperature, top_p, min_p)
        for at, data in lies_of_params:
            block[at:at + len(data)] = data
        return self.place(bytes(block) + tail), 128 + len(tail)

    # ---- submitting ----

    def submit(self, op=GENERATE, ids=None, text=None, max_tokens=NO_LIMIT, deadline_ns=0, tag=None, user=None,
               param_len=None, kind=None, session=0, lies=(), **params):
        """Puts one slot and rings if need be: the Answer that will fill up. lies: (offset, bytes) over the slot."""
        if not self.live:
            self.used = 0
        data = struct.pack("<%dI" % len(ids), *ids) if ids is not None else text or b""
        kind = kind if kind is not None else TOKENS if ids is not None else TEXT if text is not None else 0
        if params.get("messages"):
            kind = MESSAGES
        data_off = self.place(data) if data else 0
        param_off, length = self.params(**params) if params else (0, 0)
        if user is None:
            user = self.last_user = self.last_user + 1
        if tag is None:
            tag = next(t for t in range(self.grant.max_inflight) if t not in {a.tag for a in self.live.values()})
        slot = bytearray(struct.pack("<IBBHQIIIIIHBBQQII", 0, op, 0, tag, user, data_off, len(data), param_off, max_tokens,
                                     len(params.get("resume_ids", ())), 0, kind, 0, deadline_ns, session, length if param_len is None else param_len, 0))
        for at, lie in lies:
            slot[at:at + len(lie)] = lie
        answer = self.live[self.sq_pos] = Answer(tag, user)
        answer.ids += params.get("resume_ids", ())
        at = self.grant.sq_off + 64 * (self.sq_pos % (1 << self.grant.sq_log2))
        self.r[at + 4:at + 64] = bytes(slot[4:])
        self.sq_pos += 1
        struct.pack_into("<I", self.r, at, self.sq_pos)
        self.ring()
        return answer

    def ring(self):
        fence()
        if struct.unpack_from("<I", self.t, self.t_ctl + 192)[0]:
            if self.grant.doorbell:
                self.shake.socket.send(b"!")
                return
            at = self.grant.ctl_off + 128
            struct.pack_into("<I", self.r, at, struct.unpack_from("<I", self.r, at)[0] + 1 & NO_LIMIT)
            libc.syscall(FUTEX, ctypes.c_void_p(self.base + at), FUTEX_WAKE, 1, None, None, 0)

    def cancel(self, answer):
        """The one store. It is seen at the next pass; a parked queue is rung so that there is one."""
        struct.pack_into("<I", self.r, self.grant.cancel_off + 4 * answer.tag, answer.user & NO_LIMIT)
        self.ring()

    # ---- completions ----

    def take(self):
        """Reads the lines that are there; how many."""
        n = 0
        while True:
            line_at = self.cq_off + 64 * (self.cq_pos % (1 << self.grant.cq_log2))
            if struct.unpack_from("<I", self.t, line_at)[0] != self.cq_pos + 1:
                break
            line = self.t[line_at:line_at + 64]
            self.cq_pos += 1
            n += 1
            self.read_line(line)
        struct.pack_into("<I", self.r, self.grant.ctl_off, self.cq_pos)
        return n

    def read_line(self, line):
        _, kind, n_tok, n_bytes, flags, user, pos, tag, status = struct.unpack_from("<IBBBBQIHH", line)
        key = next((k for k, a in self.live.items() if a.user == user and a.tag == tag), None)
        assert key is not None, "a line of a request that does not live: kind %d user %d tag %d" % (kind, user, tag)
        answer = self.live[key]
        if kind == CQE_TOKEN:
            assert pos == len(answer.ids), "output position %d after %d ids" % (pos, len(answer.ids))
            answer.ids += struct.unpack_from("<%dI" % n_tok, line, 0x18)
            answer.text += line[0x28:0x28 + n_bytes]
        elif kind == CQE_BULK:
            off, n_bytes, count, kind_of = struct.unpack_from("<IIIH", line, 0x18)
            data = self.t[self.bulk_off + off:self.bulk_off + off + n_bytes]
            answer.bulk = list(struct.unpack("<%d%s" % (count, "If"[kind_of - 1]), data))
        elif kind == CQE_DONE:
            answer.done += 1
            answer.status = STATUS[status & 0x7fff]
            if not flags & NO_RESULT:
                answer.result = self.result(tag)
                assert answer.result["status"] == answer.status and answer.result["user"] == user, answer.result
            del self.live[key]

    def result(self, tag):
        at = self.res_off + 256 * tag
        user, status, finish = struct.unpack_from("<QHB", self.t, at)
        prompt, cached, output, discarded, retry = struct.unpack_from("<IIIIQ", self.t, at + 0x10)
        seed, = struct.unpack_from("<Q", self.t, at + 0x28)
        have, want = struct.unpack_from("<QQ", self.t, at + 0x90)
        return {"user": user, "status": STATUS[status & 0x7fff], "finish": FINISH[finish], "prompt": prompt,
                "cached": cached, "output": output, "discarded": discarded, "retry_after_ns": retry, "seed": seed,
                "stamps": struct.unpack_from("<7Q", self.t, at + 0x58), "have": have, "want": want,
                "message": self.t[at + 0xa8:at + 0xf8].split(b"\0")[0].decode()}

    def finish(self, *answers):
        """Reads until these have ended (all that live, if none is named); the first of them."""
        answers = answers or list(self.live.values())
        end = time.monotonic() + WAIT_S_MAX
        while not all(a.done for a in answers):
            if not self.take():
                assert time.monotonic() < end, "no end within %d s: %s" % (
                    WAIT_S_MAX, [(a.user, a.status) for a in answers if not a.done])
                time.sleep(POLL_S / 10)
                self.ring()
        return answers[0]

    def ask(self, **request):
        return self.finish(self.submit(**request))
