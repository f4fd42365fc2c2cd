#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Users and tenants beside each other: a user of the daemon is a uid, and one that it trusts speaks for many."""

import os
import subprocess
from contextlib import ExitStack

from wire import TOKENIZE, Wire
from harness import Daemon, main, program, test, until

IGNORE_EOS = 2
TRUSTED = {"trusted": "uid:%d" % os.getuid()}
ENDLESS = {"text": b"x", "flags": IGNORE_EOS}


def run(daemon, *args):
    return subprocess.run([program("tokenring"), "run", "--raw", *args, "x", "--socket", daemon.socket],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=60, check=False)


def read_until(clients, what, condition):
    """Reads all clients' streams, for a full ring would take a stream out of the batch."""
    def look():
        for client in clients:
            while client.take():
                pass
        return condition()
    until(what, look)


@test
def a_tenant_is_denied_to_users_that_nobody_trusts():
    for config in ({}, {"trusted": "uid:%d" % (os.getuid() + 1)}):
        with Daemon(model="echo:", config=config) as daemon, Wire(daemon.socket) as client:
            for request in ({"text": b"a"}, {"text": b"a", "op": TOKENIZE}, {"ids": [65]}):
                answer = client.ask(tenant=7, **request)
                assert answer.status == "DENIED", (answer.status, answer.result)
                assert answer.result["message"].startswith("tenant: this user may not speak for others"), answer.result
            assert client.ask(text=b"a").text == b"a"
            assert daemon.stats()["ended"]["DENIED"] == 3
            done = run(daemon, "--tenant", "7")
            assert done.returncode != 0 and "tenant: this user may not speak for others" in done.stderr, done


@test
def a_trusted_user_speaks_for_any_tenant():
    with Daemon(model="echo:", config=TRUSTED) as daemon, Wire(daemon.socket) as client:
        for tenant in (0, 1, 7, 2**64 - 1):
            assert client.ask(text=b"abc", tenant=tenant).text == b"abc"
        done = run(daemon, "--tenant", "18446744073709551615")
        assert done.stdout == "x\n", done


@test
def ten_connections_for_one_tenant_leave_another_with_one_its_half_of_the_places():
    config = {"running_max": 4, "queued_max": 32, **TRUSTED}
    with Daemon(model="echo:tokens_per_s=500", config=config) as daemon, ExitStack() as stack:
        crowd = [stack.enter_context(Wire(daemon.socket)) for _ in range(10)]
        single = stack.enter_context(Wire(daemon.socket))
        many = [client.submit(tenant=7, **ENDLESS) for client in crowd]
        everybody = [*crowd, single]
        read_until(everybody, "all places taken", lambda: sum(len(a.ids) > 0 for a in many) == 4)
        few = [single.submit(tenant=8, **ENDLESS) for _ in range(4)]

        def grown(n):
            return lambda: sum(len(a.ids) >= n for a in few) >= 2

        read_until(everybody, "two of four streams for the one", grown(20))
        before = [len(a.ids) for a in many]
        read_until(everybody, "more of them", grown(60))
        grew = sum(len(a.ids) > n for a, n in zip(many, before))
        assert grew == 2, "%d streams of the ten go on: %s, %s" % (grew, before, [len(a.ids) for a in many])
        assert sorted(len(a.ids) > 0 for a in few) == [False, False, True, True], [len(a.ids) for a in few]

        def settled():
            counts = daemon.stats()["requests"]
            return (counts["running"], counts["queued"]) == (4, 10)

        read_until(everybody, "figures that say so", settled)


@test
def limits_of_a_user_are_each_tenants_own():
    config = {"user_requests_max": 2, "user_kv_positions_max": 1024, "user_prompt_tokens_max": 300, **TRUSTED}
    with Daemon(model="echo:tokens_per_s=500", config=config) as daemon:
        with Wire(daemon.socket) as one, Wire(daemon.socket) as two:
            answer = one.ask(text=b"a", max_tokens=2000, tenant=7)
            assert (answer.status, answer.result["have"], answer.result["want"]) == ("OVERLOADED", 16, 32), answer.result
            assert answer.result["message"] == "one user may have 16 KV pages of 64 positions", answer.result
            answer = one.ask(text=b"a" * 301, tenant=7)
            assert (answer.status, answer.result["have"], answer.result["want"]) == ("OVERLOADED", 300, 301), answer.result
            running = [client.submit(tenant=7, max_tokens=400, **ENDLESS) for client in (one, two)]
            answer = two.ask(text=b"a", tenant=7)
            assert (answer.status, answer.result["have"], answer.result["want"]) == ("OVERLOADED", 2, 3), answer.result
            assert answer.result["message"] == "one user may have 2 requests", answer.result
            assert two.ask(text=b"a", tenant=8).text == b"a"
            assert two.ask(text=b"a").text == b"a"
            for client, stream in zip((one, two), running):
                client.cancel(stream)
                client.finish(stream)


if __name__ == "__main__":
    main()
