#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Four submitting threads with a queue each and one reading thread, against daemons that wait in every way."""

import subprocess

from harness import WAIT_S_MAX, Daemon, Scratch, Skip, main, note, program, test, until
import make_gguf      # harness has put tests/tools on the path

N = 1000      # requests of each thread


DEATHS = 10


def tiny_model(scratch):
    return scratch.file("tiny.gguf", make_gguf.make_bytes(layers=1, embd=64, heads=1, kv_heads=1, ffn=64, ctx=256))


def serves_threads(*args):
    with Scratch() as scratch:
        model = tiny_model(scratch)
        daemon = Daemon(*args, model=model)
        try:
            daemon.start()
        except AssertionError as failure:
            daemon.__exit__()
            if "io_uring is not available" in str(failure) or "no FUTEX_WAIT" in str(failure):
                raise Skip("this kernel has no " + " ".join(args))
            raise
        with daemon:
            for reading in ("wait", "moderate", "poll"):
                done = subprocess.run([program("queues"), daemon.socket, str(N), reading], text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=WAIT_S_MAX)
                assert done.returncode == 0, "%s: %s" % (reading, done.stdout)
                note("%s: %s" % (reading, done.stdout))


@test
def io_uring_with_futexes_serves_four_threads_of_one_connection():
    serves_threads("--io", "uring", "--doorbell", "futex")


@test
def io_uring_with_a_socket_serves_four_threads_of_one_connection():
    serves_threads("--io", "uring", "--doorbell", "socket")


@test
def epoll_serves_four_threads_of_one_connection():
    serves_threads("--io", "epoll")


@test
def no_answer_changes_when_the_daemon_dies_again_and_again():
    with Scratch() as scratch, Daemon(model=tiny_model(scratch)) as daemon:
        threads = subprocess.Popen([program("queues"), daemon.socket, str(10 * N), "reconnect"], text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        deaths = 0
        while deaths < DEATHS and threads.poll() is None:
            # Sooner and later in the life of a daemon.
            until("tokens", lambda: threads.poll() is not None or daemon.stats()["tokens"]["output"] > 20 * deaths)
            daemon.process.kill()
            daemon.wait_end()
            daemon.start()
            deaths += 1
        out, _ = threads.communicate(timeout=WAIT_S_MAX)
        assert threads.returncode == 0, out
        note("%d deaths, %s" % (deaths, out))
        assert deaths > 1


if __name__ == "__main__":
    main()
