#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The daemon on every kind of kernel: io_uring with futexes, io_uring without, no io_uring at all.

Who is served, what it answers and what it costs when idle must not depend on it.
"""

import errno
import os
import time

from harness import Daemon, Scratch, Skip, ask, main, note, test, until
import make_gguf      # harness has put tests/tools on the path
from wire import NOOP, Wire

WAYS = {
    "io_uring+futex": ["--io", "uring", "--doorbell", "futex"],
    "io_uring+socket": ["--io", "uring", "--doorbell", "socket"],
    "epoll+socket": ["--io", "epoll"],
}
PROMPTS = ["Hello there", "One two three", "x"]
ANSWERS = {}
MODEL = []


def daemon(*args, **options):
    if not MODEL:
        MODEL.append(Scratch().__enter__())
        MODEL.append(MODEL[0].file("tiny.gguf", make_gguf.make_bytes(layers=1, embd=64, heads=1, kv_heads=1, ffn=64,
                                                                     ctx=256)))
    return Daemon(*args, model=MODEL[1], **options)


def started(way, **options):
    """A daemon that waits in this way; Skip where the kernel cannot."""
    try:
        return daemon(*WAYS[way], **options).start()
    except AssertionError as failure:
        if "io_uring is not available" in str(failure) or "no FUTEX_WAIT" in str(failure):
            raise Skip("this kernel has no " + way)
        raise


def serves(running):
    """Each prompt is answered as every other daemon here answers it."""
    for prompt in PROMPTS:
        answer = ask(running, "--temperature", "0", prompt=prompt, n_max=40)["token_ids"]
        assert answer
        assert ANSWERS.setdefault(prompt, answer) == answer, "%r and %r" % (ANSWERS[prompt], answer)


def switches(process):
    """Voluntary context switches of all threads so far."""
    total = 0
    for task in os.listdir("/proc/%d/task" % process.pid):
        with open("/proc/%d/task/%s/status" % (process.pid, task), encoding="ascii") as status:
            total += sum(int(line.split()[1]) for line in status if line.startswith("voluntary_ctxt_switches"))
    return total


def cpu_ns(process):
    """Time on a CPU of all threads so far."""
    total = 0
    for task in os.listdir("/proc/%d/task" % process.pid):
        with open("/proc/%d/task/%s/schedstat" % (process.pid, task), encoding="ascii") as stat:
            total += int(stat.read().split()[0])
    return total


def quiet(running):
    """A second in which nobody asks for anything costs no wake-up and no time: the smallest number of a few tries
    counts, since a client that has just left makes some."""
    least = None
    for _ in range(5):
        before = switches(running.process), cpu_ns(running.process)
        time.sleep(1)
        now = switches(running.process) - before[0], cpu_ns(running.process) - before[1]
        least = now if least is None else min(least, now)
        if least == (0, 0):
            break
    note("%d context switches and %d us in a second" % (least[0], least[1] // 1000))
    assert least[0] == 0, "%d context switches in a second without work" % least[0]
    assert least[1] < 5_000_000, "%d ns on a CPU in a second without work" % least[1]       # 0.5 % of a core


def runs(way):
    with started(way) as running:
        assert "io=%s " % way in running.log(), running.log()
        assert "not available" not in running.log() and "no FUTEX_WAIT" not in running.log(), running.log()
        serves(running)
        quiet(running)
        assert running.stop() == 0


@test
def with_io_uring_and_futexes_the_daemon_serves_and_sleeps():
    runs("io_uring+futex")


@test
def with_io_uring_and_sockets_the_daemon_serves_and_sleeps():
    runs("io_uring+socket")


@test
def with_epoll_the_daemon_serves_and_sleeps():
    runs("epoll+socket")


@test
def a_hundred_clients_that_are_silent_cost_nothing_in_any_way():
    for way in WAYS:
        try:
            running = started(way, config={"clients_max": 100})
        except Skip as skip:
            note(str(skip))
            continue
        clients = []
        with running:
            for _ in range(100):
                clients.append(Wire(running.socket, arena_len=4096, bulk_len=4096, max_inflight=4))
                assert clients[-1].ask(op=NOOP).status == "OK"
            quiet(running)
            assert running.stats()["clients"] == 100
            for client in clients:
                assert client.ask(op=NOOP).status == "OK"
                client.shake.close()
            assert running.stop() == 0


@test
def a_container_that_forbids_io_uring_gets_epoll_and_one_line_that_says_why():
    for error in (errno.EPERM, errno.ENOSYS):
        with daemon(forbid=("io_uring_setup", error)) as running:
            lines = [line for line in running.log().splitlines() if "io_uring is not available" in line]
            assert len(lines) == 1 and os.strerror(error) in lines[0], running.log()
            note(lines[0])
            assert "io=epoll+socket " in running.log(), running.log()
            serves(running)
            quiet(running)


@test
def a_kernel_whose_io_uring_knows_no_futex_gets_sockets_and_one_line_that_says_why():
    started("io_uring+socket").__exit__()
    with daemon(forbid=("io_uring_register", errno.EINVAL)) as running:
        lines = [line for line in running.log().splitlines() if "no FUTEX_WAIT" in line]
        assert len(lines) == 1, running.log()
        note(lines[0])
        assert "io=io_uring+socket " in running.log(), running.log()
        serves(running)


def refused(words, *args, **options):
    with daemon(*args, ready=False, **options) as running:
        assert running.wait_end() > 0
        lines = running.log().strip().splitlines()
        assert len(lines) == 1 and words in lines[0], running.log()
        note(lines[0])


@test
def what_cannot_work_is_refused_in_one_line():
    refused("epoll cannot wait for futexes", "--io", "epoll", "--doorbell", "futex")
    refused("io_uring is not available", "--io", "uring", forbid=("io_uring_setup", errno.EPERM))
    refused("io_uring is not available", "--doorbell", "futex", forbid=("io_uring_setup", errno.EPERM))
    refused("expected auto, uring or epoll", "--io", "select")
    refused("expected auto, futex or socket", "--doorbell", "bell")


if __name__ == "__main__":
    main()
