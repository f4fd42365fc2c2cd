# SPDX-License-Identifier: Apache-2.0
"""The cells of bench/race.py for an engine that is a Python package:

    NAME_bench.py cells MODEL THREADS CELL... | latency MODEL THREADS

run in the environment that bench/peers/install makes. Prints `cell NAME VALUE` lines. `latency` first prints
`token` as soon as there is one after a prompt of 32 tokens (whoever started the program takes the time), then
cell rss and cell ttft32.

An engine has generate(ids[streams][n_prompt], n): n tokens for each stream, greedy, no end before; returns the
seconds until all are there, and of these the ones after the first token of each.
"""
import random
import sys
import time

import numpy

PROMPT, DECODE, DEEP, BATCH_HAS, BATCHED = 32, 128, 32, 64, 32
DEPTHS = {"decode_4k": 4096, "decode_8k": 8000}
REQUESTS, WARM = 20, 3
ids = random.Random(1)


def prompt(n, streams=1):
    """Ids that no prompt before had in this order."""
    return numpy.array([[ids.randrange(100, 49000) for _ in range(n)] for _ in range(streams)], dtype=numpy.int64)


def decoded(engine, n_prompt, streams, n):
    """Tokens a second of n for each stream after its first."""
    engine.generate(prompt(PROMPT, streams), 4)  # prepares for this number of streams
    return streams * n / engine.generate(prompt(n_prompt, streams), n + 1)[1]


def cell(engine, name):
    if name.startswith("prefill"):
        n = int(name[7:])
        engine.generate(prompt(min(n, 512)), 1)
        return n / engine.generate(prompt(n), 1)[0]
    if name == "decode":
        return decoded(engine, PROMPT, 1, DECODE)
    if name in DEPTHS:
        return decoded(engine, DEPTHS[name], 1, DEEP)
    return decoded(engine, BATCH_HAS, int(name[5:]), BATCHED)


def rss_mb():
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Rss:")) * 1024 / 1e6


def latency(engine):
    engine.generate(prompt(PROMPT), 1)
    print("token", flush=True)
    print("cell rss %.1f" % rss_mb())
    times = []
    for _ in range(WARM + REQUESTS):
        time.sleep(0.02)
        times.append(engine.generate(prompt(PROMPT), 1)[0] * 1e3)
    print("cell ttft32 %.3f" % sorted(times[WARM:])[REQUESTS // 2])


def main(kind):
    what, model, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    engine = kind(model, threads)
    if what == "latency":
        latency(engine)
    else:
        for name in sys.argv[4:]:
            print("cell %s %.2f" % (name, cell(engine, name)), flush=True)
