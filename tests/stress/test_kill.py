#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kill -9 of clients and of daemons, at random moments and after each instruction.

    test_kill.py STREAM STEP_KILL [WORD_OF_A_NAME...]

Witnesses (stream.c) compare each of their streams with its solo run, over all deaths of the daemon. The
figures: kills; ids lost, repeated and foreign. TOKENRING_LONG=1: 10^4 clients, 10^3 daemons, each instruction.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from stage import Stage, calm, comes_back, ended, figures, kept
from harness import LONG, main, note, test, until

N_CLIENTS = 10000 if LONG else 100
N_DAEMONS = 1000 if LONG else 10
N_TAKEOVERS = 200 if LONG else 5
STRIDE = 1 if LONG else 97
AT_ONCE = 4
LIFE_S_MAX = 0.04           # a client dies in exec, attach, submit, stream or end
DAEMON_LIFE_S_MAX = 0.1
GONE_S_MAX = 1.0            # the library looks at its socket every 200 ms
PLAYERS = 3

STREAM, STEP_KILL = (sys.argv.pop(1), sys.argv.pop(1)) if len(sys.argv) > 2 else (None, None)


@test
def clients_killed_at_random_moments_leave_nothing_and_change_no_stream():
    with Stage(STREAM) as stage, stage.daemon() as daemon:
        before = calm(daemon)
        attached = daemon.stats().get("clients_attached")

        def one(i):
            rng = random.Random(stage.seed + i)
            client = stage.client("gone", i)
            time.sleep(rng.uniform(0, LIFE_S_MAX))
            client.kill()
            client.communicate()

        players = [stage.player(i) for i in range(2)]
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(one, range(N_CLIENTS)))
        counts = [ended(player) for player in players]
        note("%d clients killed" % N_CLIENTS)
        total = figures(counts)
        assert total["ended"] == total["gone"] == 0 and total["streams"] > 0, total
        comes_back(daemon, before)
        if attached is not None:
            note("%d of them had attached" % (daemon.stats()["clients_attached"] - attached - 2))
        assert daemon.stop() == 0


@test
def a_client_killed_after_any_instruction_of_submit_or_drain_leaves_nothing():
    with Stage(STREAM) as stage, stage.daemon() as daemon:
        before = calm(daemon)
        done = subprocess.run([STEP_KILL, stage.socket, str(STRIDE)], text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=3600)
        note(done.stdout.strip())
        assert done.returncode == 0, done.stdout
        comes_back(daemon, before)
        player = stage.player(1)
        time.sleep(0.2)         # long enough for some streams; how many does not matter
        figures([ended(player)])
        assert daemon.stop() == 0


@test
def a_daemon_killed_at_random_moments_loses_repeats_and_changes_no_token():
    rng = random.Random()
    worst_ns = n_gone = 0
    counts = []
    with Stage(STREAM) as stage:
        rng.seed(stage.seed)
        daemon, players, before = stage.daemon(), [], []
        try:
            players = [stage.player(i) for i in range(PLAYERS)]
            before = [kept(player) for player in players]
            for i in range(N_DAEMONS):
                client = stage.client("gone", i)
                assert client.stdout.readline() == "{}\n", "did not attach"
                time.sleep(rng.uniform(0, DAEMON_LIFE_S_MAX))
                killed_ns = time.monotonic_ns()
                daemon.process.kill()
                daemon.process.wait()
                counts.append(json.loads(client.communicate(timeout=60)[0].splitlines()[-1]))
                if counts[-1]["gone"]:
                    worst_ns = max(worst_ns, counts[-1]["gone_ns"] - killed_ns)
                    n_gone += 1
                daemon.__exit__()
                daemon = stage.daemon()
            until("new streams on the last daemon", lambda: daemon.stats()["requests"]["finished"] > PLAYERS)
            after = [kept(player) for player in players]
            counts += [ended(player) for player in players]
        finally:
            for player in players:
                player.kill()
            daemon.process.send_signal(signal.SIGTERM)
            daemon.__exit__()
        note("%d daemons killed; %d clients without reconnect were told, the last after %.0f ms" % (
            N_DAEMONS, n_gone, worst_ns / 1e6))
        total = figures(counts)
        assert total["ended"] == 0, total
        assert n_gone > 0 and worst_ns < GONE_S_MAX * 1e9, worst_ns
        assert after == before, "descriptors and mappings of the players: %s, then %s" % (before, after)
        left = sorted(os.listdir(stage.scratch.path))
        assert all(name in ("solo", "tiny.gguf") or name.startswith("socket") for name in left), left


@test
def daemons_that_take_over_from_each_other_lose_repeat_and_change_no_token():
    rng = random.Random()
    with Stage(STREAM) as stage:
        rng.seed(stage.seed)
        daemon, players = stage.daemon(), []
        try:
            players = [stage.player(i) for i in range(PLAYERS)]
            for _ in range(N_TAKEOVERS):
                time.sleep(rng.uniform(0, DAEMON_LIFE_S_MAX))
                old, daemon = daemon, stage.daemon("--takeover")
                assert old.wait_end() == 0, old.log()
                old.__exit__()
            until("new streams on the last daemon", lambda: daemon.stats()["requests"]["finished"] > PLAYERS)
            counts = [ended(player) for player in players]
        finally:
            for player in players:
                player.kill()
            daemon.__exit__()
        note("%d daemons replaced" % N_TAKEOVERS)
        assert figures(counts)["ended"] == 0, counts


if __name__ == "__main__":
    main()
