#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Packed weights in a cache file: what a daemon answers from it is what one answers that packed them itself."""

import contextlib
import os

from harness import Daemon, Scratch, ask, main, note, test, until
import make_gguf      # harness has put tests/tools on the path

MODEL = {"layers": 3, "embd": 256, "heads": 4, "kv_heads": 2, "ffn": 512, "ctx": 128}


@contextlib.contextmanager
def place():
    """A scratch folder with a model, a folder for its cache that does not exist yet, and what it answers without."""
    with Scratch() as scratch:
        scratch.model = scratch.file("tiny.gguf", make_gguf.make_bytes(**MODEL))
        scratch.cache = os.path.join(scratch.path, "cache", "tokenring")
        with Daemon(model=scratch.model) as daemon:
            scratch.answer = answer(daemon)
            assert "weights=packed" in daemon.log(), daemon.log()
        yield scratch


def answer(daemon):
    """Ids that other logits would hardly give: sampled at a temperature that makes all of them likely."""
    return ask(daemon, "--seed", "7", "--temperature", "2", prompt="a bc d", n_max=60)["token_ids"]


def started(scratch, **options):
    return Daemon(model=scratch.model, cache=scratch.cache, **options)


def files(scratch):
    return sorted(os.listdir(scratch.cache)) if os.path.isdir(scratch.cache) else []


def written(daemon):
    return until("the cache is written", lambda: "cache=" in daemon.log())


def maps(daemon, path):
    """Lines of the daemon's memory map that are of this file."""
    with open("/proc/%d/maps" % daemon.process.pid, encoding="ascii") as stream:
        return [line for line in stream if line.rstrip().endswith(path)]


@test
def two_daemons_map_one_file_and_answer_as_one_that_packed():
    with place() as scratch:
        with started(scratch) as first:
            written(first)
            assert answer(first) == scratch.answer
        (name,) = files(scratch)
        path = os.path.join(scratch.cache, name)
        with started(scratch) as one, started(scratch) as two:
            for daemon in (one, two):
                assert "weights=mapped" in daemon.log() and "warning" not in daemon.log(), daemon.log()
                (line,) = maps(daemon, path)
                assert line.split()[1] == "r--s", line       # readable, shared, never written
                assert answer(daemon) == scratch.answer
            assert maps(one, path)[0].split()[3:5] == maps(two, path)[0].split()[3:5]      # device and inode
        assert files(scratch) == [name]


@test
def a_damaged_file_is_ignored_with_one_line_and_written_again():
    with place() as scratch:
        with started(scratch) as daemon:
            written(daemon)
        path = os.path.join(scratch.cache, files(scratch)[0])
        with open(path, "r+b") as stream:
            stream.seek(-100, os.SEEK_END)
            byte = stream.read(1)[0]
            stream.seek(-100, os.SEEK_END)
            stream.write(bytes([byte ^ 4]))
        with started(scratch) as daemon:
            written(daemon)
            lines = [line for line in daemon.log().splitlines() if "ignored" in line]
            assert len(lines) == 1 and path in lines[0], daemon.log()
            assert "weights=packed" in daemon.log() and answer(daemon) == scratch.answer
        with started(scratch) as daemon:
            assert "weights=mapped" in daemon.log() and answer(daemon) == scratch.answer


@test
def a_daemon_killed_at_any_moment_leaves_nothing_that_the_next_one_believes():
    with place() as scratch:
        seen = set()
        for _ in range(12):
            daemon = started(scratch, ready=False).start()
            try:
                until("ready", lambda d=daemon: "ready " in d.log())
                daemon.process.kill()       # between the start of the writer and the end of it, or after
                daemon.process.wait()
                seen.update("half" if name.endswith(".tmp") else "whole" for name in files(scratch))
                assert "ignored" not in daemon.log(), daemon.log()
            finally:
                daemon.__exit__()
            for name in files(scratch):
                if not name.endswith(".tmp"):
                    os.unlink(os.path.join(scratch.cache, name))
        note("left behind: %s" % (", ".join(sorted(seen)) or "nothing"))
        with started(scratch) as daemon:
            written(daemon)
            assert answer(daemon) == scratch.answer
        assert len(files(scratch)) == 1 and not files(scratch)[0].endswith(".tmp"), files(scratch)


@test
def the_default_folder_is_the_services_then_the_users():
    names = ("CACHE_DIRECTORY", "XDG_CACHE_HOME", "HOME")
    saved = {name: os.environ.get(name) for name in names}
    with Scratch() as scratch:
        model = scratch.file("tiny.gguf", make_gguf.make_bytes(**MODEL))
        for i, (name, below) in enumerate(zip(names, ("", "tokenring", ".cache/tokenring"))):
            try:
                for other in names:
                    os.environ.pop(other, None)
                for other in names[i:]:
                    os.environ[other] = os.path.join(scratch.path, other)
                with Daemon(model=model, cache=None) as daemon:
                    written(daemon)
            finally:
                for other, value in saved.items():
                    os.environ.pop(other, None)
                    if value is not None:
                        os.environ[other] = value
            folder = os.path.join(scratch.path, name, below)
            assert len(os.listdir(folder)) == 1, (name, os.listdir(folder))
            assert not any(os.path.exists(os.path.join(scratch.path, other)) for other in names[i + 1:])
            os.rename(os.path.join(scratch.path, name), os.path.join(scratch.path, "done-" + name))


@test
def without_a_cache_nothing_is_written():
    with Scratch() as scratch:
        model = scratch.file("tiny.gguf", make_gguf.make_bytes(**MODEL))
        with Daemon(model=model, config={"cache": "none"}, cache=None) as daemon:
            answer(daemon)
            assert daemon.stop() == 0
            assert "cache" not in daemon.log(), daemon.log()
        assert os.listdir(scratch.path) == ["tiny.gguf"]


@test
def a_folder_that_cannot_be_written_costs_a_line_and_nothing_else():
    with Scratch() as scratch:
        model = scratch.file("tiny.gguf", make_gguf.make_bytes(**MODEL))
        with Daemon(model=model, cache=os.path.join(model, "below")) as daemon:
            until("the line", lambda: "is not written" in daemon.log())
            answer(daemon)
            assert daemon.stop() == 0


if __name__ == "__main__":
    main()
