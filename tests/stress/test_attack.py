#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every attack of hostile.c, with honest clients beside it.

    test_attack.py HOSTILE uring+futex|uring+socket|epoll+socket [WORD_OF_A_NAME...]

Each test runs one attack for a moment (longer with TOKENRING_LONG=1) while honest clients ask, through the
library, what they asked alone before: each byte must be the same. Afterwards the daemon lives, and pages,
slots, descriptors and memory are what they were.
"""

import os
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "system"))

import harness
from harness import LONG, Daemon, Scratch, Skip, ask, main, note, test, until
import make_gguf

ATTACK_S = 10 if LONG else 0.4
HONEST = 2
ASK_S_MAX = 60              # an honest client that waits longer hangs
RSS_GROWTH_MAX = 64 << 20   # a request's fixed memory is touched when it is first used
RSS_AGAIN_MAX = 4 << 20     # but not twice
SANITIZED = "TOKENRING_SANITIZED" in os.environ
PROMPTS = ("the quick brown fox", "0123456789 0123456789", "a")
N_MAX = 60

HOSTILE, WAY = (sys.argv.pop(1), sys.argv.pop(1)) if len(sys.argv) > 2 else (None, "uring+futex")

ATTACKS = {
    "seals": "a region that is shared cannot be truncated, punched or mapped writable, and nobody else notices the tries",
    "unsealed": "a region without the seals or with a spoilt header is refused again and again",
    "reuse": "a region that somebody has is never taken twice",
    "rewrite": "slots and prompts that change while they are read hurt only their client",
    "wild": "offsets, lengths, tags and operations of any value hurt only their client",
    "duplicates": "requests with tags and names of living ones hurt only their client",
    "sq_flood": "a flood of slots in eight queues starves nobody",
    "bell_flood": "a flood of bells starves nobody",
    "cq_flood": "a client that never reads its completions holds up nobody",
    "hammer": "stores to the polled lines from another core change no answer",
    "garbage_seq": "garbage in every slot hurts only its client",
    "lying_cq_head": "lies about what was read hurt only the liar",
    "cancel_storm": "a storm of cancels by word and by slot ends only its own requests",
    "release_lies": "bulk memory that is released while it is filled hurts only the liar",
    "detach": "clients that hang up in the middle of requests leave nothing",
    "stop": "clients that are stopped and then killed leave nothing",
    "fork": "children that hold a dead client's socket open keep nothing alive",
    "odd_fds": "huge, odd and many descriptors are refused and closed",
    "attach_flood": "a flood of attaches keeps nobody out and leaves nothing",
    "half_open": "a crowd of connections that never attach keeps nobody out for long",
    "socket_bytes": "bytes on the socket of an attached client end that client only",
}


class Victim:
    """The daemon that all attacks share, and what its honest clients hear when they are alone."""

    def __init__(self):
        self.scratch = Scratch().__enter__()
        model = self.scratch.file("tiny.gguf", make_gguf.make_bytes(ctx=256))
        self.daemon = Daemon("--io", WAY.split("+")[0], "--doorbell", WAY.split("+")[1], model=model,
                             config={"threads": 1})
        try:
            self.daemon.start()
        except AssertionError as failure:
            if "io_uring is not available" in str(failure) or "has no FUTEX_WAIT" in str(failure):
                raise Skip("this kernel: " + str(failure).splitlines()[-1]) from failure
            raise
        self.alone = [self.ask(prompt) for prompt in PROMPTS]
        run_attack(self.daemon, "detach", 0.3)         # first use touches memory that stays
        run_attack(self.daemon, "cancel_storm", 0.3)
        self.settle()
        self.before = self.state()
        self.rss = self.daemon.rss()

    def ask(self, prompt):
        got = ask(self.daemon, prompt=prompt, n_max=N_MAX, limit_s=ASK_S_MAX)
        return {key: got[key] for key in ("text", "token_ids", "prompt_tokens", "completion_tokens", "finish_reason")}

    def state(self):
        stats = self.daemon.stats()
        return {"clients": stats["clients"], "pages": stats["kv_pages"]["used"],
                "running": stats["requests"]["running"], "queued": stats["requests"]["queued"],
                "descriptors": self.daemon.descriptors()}

    def settle(self):
        until("the end of all clients", lambda: self.daemon.stats()["clients"] == 0)


class HonestClient(threading.Thread):
    """Asks without end until told to stop; what differs from its solo run is kept."""

    def __init__(self, victim, prompt, solo):
        super().__init__()
        self.victim, self.prompt, self.solo = victim, prompt, solo
        self.answers, self.worst_s, self.wrong, self.over = 0, 0.0, None, threading.Event()

    def run(self):
        while not self.over.is_set() and self.wrong is None:
            begin = time.monotonic()
            try:
                got = self.victim.ask(self.prompt)
                if got != self.solo:
                    self.wrong = "alone %s, under attack %s" % (self.solo, got)
            except Exception as failure:
                self.wrong = repr(failure)
            self.answers += 1
            self.worst_s = max(self.worst_s, time.monotonic() - begin)


def run_attack(daemon, mode, seconds, seed=1):
    done = subprocess.run([HOSTILE, daemon.socket, mode, str(seconds), str(seed)], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=seconds + 60)
    assert done.returncode == 0, "%s: exit code %d: %s" % (mode, done.returncode, done.stdout)
    return done.stdout.strip()


VICTIM = []


def victim():
    if not VICTIM:
        VICTIM.append(Victim())
    return VICTIM[0]


def attack(mode):
    v = victim()
    honest = [HonestClient(v, PROMPTS[i % len(PROMPTS)], v.alone[i % len(PROMPTS)]) for i in range(HONEST)]
    for client in honest:
        client.start()
    try:
        tried = run_attack(v.daemon, mode, ATTACK_S, 1 + ord(mode[0]))
    finally:
        for client in honest:
            client.over.set()
        for client in honest:
            client.join()
    wrong = [client.wrong for client in honest if client.wrong]
    assert not wrong, wrong
    note("%s; %d honest answers, all as alone, the slowest %.2f s" % (tried, sum(c.answers for c in honest),
                                                                       max(c.worst_s for c in honest)))
    assert v.daemon.process.poll() is None, v.daemon.log()
    try:
        until("the return to what was before", lambda: v.state() == v.before)
    except AssertionError as failure:
        raise AssertionError("before %s, now %s" % (v.before, v.state())) from failure
    grown = v.daemon.rss() - v.rss
    assert SANITIZED or grown < RSS_GROWTH_MAX, "%d bytes more than before" % grown


def register(mode, sentence):
    def run():
        attack(mode)
    run.__name__ = sentence.replace(" ", "_")
    test(run)


for name, says in ATTACKS.items():
    register(name, says)


@test
def every_mode_of_the_attacker_has_its_test():
    modes = subprocess.run([HOSTILE], check=True, text=True, stdout=subprocess.PIPE).stdout.split()
    assert sorted(modes) == sorted(ATTACKS), (modes, sorted(ATTACKS))


@test
def a_second_round_of_attaches_and_hang_ups_takes_no_more_memory():
    v = victim()
    sizes = []
    for seed in (5, 6, 5, 6):
        for mode in ("detach", "socket_bytes", "attach_flood", "odd_fds", "fork"):
            run_attack(v.daemon, mode, 0.2, seed)
        until("the return to what was before", lambda: v.state() == v.before)
        sizes.append(v.daemon.rss())
    assert SANITIZED or max(sizes[2:]) - max(sizes[:2]) < RSS_AGAIN_MAX, sizes


@test
def after_all_attacks_the_daemon_answers_and_ends_in_order():
    v = victim()
    assert [v.ask(prompt) for prompt in PROMPTS] == v.alone
    assert v.daemon.stop() == 0
    assert not os.path.exists(v.daemon.socket), "the socket file was left"


if __name__ == "__main__":
    try:
        main()
    finally:
        for one in VICTIM:
            one.daemon.__exit__()
            one.scratch.__exit__()
