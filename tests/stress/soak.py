#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Everything at once for a long time: honest streams, attackers, dying clients, dying daemons.

    soak.py STREAM HOSTILE [MINUTES]

Each honest stream is compared byte for byte with its solo run. Without MINUTES: 15 with TOKENRING_LONG=1, else
a few seconds. The figures are in the output.
"""

import random
import subprocess
import sys
import threading
import time

from stage import Stage, calm, comes_back, ended, figures, kept
from harness import LONG, main, note, test, until

STREAM, HOSTILE = (sys.argv.pop(1), sys.argv.pop(1)) if len(sys.argv) > 2 else (None, None)
SOAK_S = float(sys.argv.pop(1)) * 60 if len(sys.argv) > 1 else 900 if LONG else 4
PLAYERS = 3
ATTACK_S = 0.5
LIFE_S_MAX = 0.3
DAEMON_LIFE_S = 20 if LONG else 1.5


class Trouble(threading.Thread):
    """Does one thing again and again until told to stop; a failure is kept."""

    def __init__(self, act):
        super().__init__()
        self.act, self.n, self.failure, self.over = act, 0, None, threading.Event()

    def run(self):
        try:
            while not self.over.is_set():
                self.act(self.n)
                self.n += 1
        except BaseException as failure:
            self.failure = failure

    def stop(self):
        self.over.set()
        self.join()
        if self.failure:
            raise self.failure


@test
def a_soak_of_attacks_and_deaths_changes_no_honest_stream():
    with Stage(STREAM) as stage:
        rng = random.Random(stage.seed)
        modes = subprocess.run([HOSTILE], check=True, text=True, stdout=subprocess.PIPE).stdout.split()
        daemon, players, kills = stage.daemon(), [], 0

        def attack(i):
            done = subprocess.run([HOSTILE, stage.socket, modes[i % len(modes)], str(ATTACK_S), str(stage.seed + i)],
                                  text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)
            # The daemon may have died in the middle; what must not happen is that an attack gets through.
            assert "got through" not in done.stdout, (modes[i % len(modes)], done.stdout)

        def die(i):
            client = stage.client("gone", i)
            time.sleep(rng.uniform(0, LIFE_S_MAX))
            client.kill()
            client.communicate()

        try:
            players = [stage.player(i) for i in range(PLAYERS)]
            before = [kept(player) for player in players]
            troubles = [Trouble(attack), Trouble(die)]
            for trouble in troubles:
                trouble.start()
            end = time.monotonic() + SOAK_S
            while time.monotonic() < end:
                time.sleep(min(DAEMON_LIFE_S, max(0, end - time.monotonic())))
                assert daemon.process.poll() is None, "the daemon ended by itself: " + daemon.log()
                daemon.process.kill()
                daemon.process.wait()
                kills += 1
                daemon.__exit__()
                daemon = stage.daemon()
            for trouble in troubles:
                trouble.stop()
            until("new streams on the last daemon", lambda: daemon.stats()["requests"]["finished"] > 2 * PLAYERS)
            after = [kept(player) for player in players]
            counts = [ended(player) for player in players]
            note("%.0f s: %d attacks, %d clients and %d daemons killed" % (SOAK_S, troubles[0].n, troubles[1].n, kills))
            total = figures(counts)
            assert total["ended"] == 0, total
            assert after == before, "descriptors and mappings of the players: %s, then %s" % (before, after)
            state = calm(daemon)
            player = stage.player(99)
            time.sleep(0.1)
            figures([ended(player)])
            comes_back(daemon, state)
            assert daemon.stop() == 0
        finally:
            for player in players:
                player.kill()
            daemon.__exit__()


if __name__ == "__main__":
    main()
