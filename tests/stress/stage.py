# SPDX-License-Identifier: Apache-2.0
"""What the kills and the soak share: a daemon that can die and come back, and clients that know every byte."""

import json
import os
import random
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "system"))

from harness import Daemon, Scratch, note, until
import make_gguf


class Stage:
    """A model, a place for the socket, and the answers of a solo run. stream: the program of that name."""

    def __init__(self, stream):
        self.stream = stream

    def __enter__(self):
        self.scratch = Scratch().__enter__()
        self.model = self.scratch.file("tiny.gguf", make_gguf.make_bytes(ctx=1024))
        self.socket = os.path.join(self.scratch.path, "socket")
        self.solo = os.path.join(self.scratch.path, "solo")
        self.seed = random.SystemRandom().randrange(1 << 32)
        note("seed %d" % self.seed)
        return self

    def __exit__(self, *_):
        self.scratch.__exit__()

    def daemon(self, *args):
        daemon = Daemon(*args, model=self.model, socket=self.socket, config={"threads": 1}).start()
        if not os.path.exists(self.solo):
            done = subprocess.run([self.stream, self.socket, "record", self.solo], stdout=subprocess.PIPE, text=True)
            assert done.returncode == 0, done.stdout
        return daemon

    def client(self, how, seed):
        return subprocess.Popen([self.stream, self.socket, how, self.solo, str(seed)], stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, text=True)

    def player(self, seed):
        player = self.client("play", seed)
        assert player.stdout.readline() == "{}\n", "did not attach"
        return player


def ended(player):
    """What a client counted; its streams are finished first."""
    player.terminate()
    out, err = player.communicate(timeout=120)
    lines = out.splitlines()
    assert player.returncode == 0 and lines, (player.returncode, out, err)
    return json.loads(lines[-1])


def figures(counts):
    total = {key: sum(count[key] for count in counts) for key in counts[0]}
    note("%(streams)d streams, %(tokens)d tokens: %(lost)d lost, %(repeated)d repeated, %(foreign)d foreign" % total)
    assert total["lost"] == total["repeated"] == total["foreign"] == 0, total
    return total


def state(daemon):
    stats = daemon.stats()
    return {"clients": stats["clients"], "pages": stats["kv_pages"]["used"], "running": stats["requests"]["running"],
            "queued": stats["requests"]["queued"], "descriptors": daemon.descriptors()}


def calm(daemon):
    """The state when nobody is there any more."""
    until("no client", lambda: daemon.stats()["clients"] == 0)
    return state(daemon)


def comes_back(daemon, before):
    try:
        until("the return to what was before", lambda: state(daemon) == before)
    except AssertionError as failure:
        raise AssertionError("before %s, now %s" % (before, state(daemon))) from failure


def kept(process):
    """Descriptors and shared mappings of a process."""
    with open("/proc/%d/maps" % process.pid, encoding="ascii", errors="replace") as maps:
        shared = sum("memfd:" in line for line in maps)
    return len(os.listdir("/proc/%d/fd" % process.pid)), shared
