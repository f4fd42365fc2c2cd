#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Four submitting threads with a queue each and one reading thread, against daemons that wait in every way."""

import subprocess

from harness import WAIT_S_MAX, Daemon, Scratch, Skip, main, note, program, test
import make_gguf      # harness has put tests/tools on the path

N = 1000      # requests of each thread


def serves_threads(*args):
    with Scratch() as scratch:
        model = scratch.file("tiny.gguf", make_gguf.make_bytes(layers=1, embd=64, heads=1, kv_heads=1, ffn=64, ctx=256))
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


if __name__ == "__main__":
    main()
