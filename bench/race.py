#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
race.py - our engine and others on the same files, in turns: race.py [--rounds N] [--peers NAMES] [--files NAMES]

In each round every engine runs every cell once, so that a noisy minute hits all of them; medians of the
rounds are printed, and ratios of them as `figure` lines. Peers that bench/peers/install built are found in
its folder; one that is not there is named and left out, and with it each figure of the best peer.

Cells (tokens a second): prefill512 and prefill2048, decode (128 tokens after 32), decode_4k and decode_8k
(32 tokens at 4096 and 8000 positions), batch8, batch32, batch64 (prompts of 64 tokens, 32 generated for each;
only the generating counts, all streams together). A peer runs in the configuration that is its best in a
cell: flash attention on and off are both tried in the first round where it matters.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys

CELLS = ["prefill512", "prefill2048", "decode", "decode_4k", "decode_8k", "batch8", "batch32", "batch64"]
PEERS = ["llamacpp", "ik_llamacpp"]
FOLDER = pathlib.Path(os.environ.get("TOKENRING_PEERS") or
                      pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") /
                      "tokenring" / "peers")
THREADS = os.cpu_count()
# Each file has its cells: all on the type that the peers like best, fewer on the type of the default model.
FILE_CELLS = {"q4_0": CELLS, "q4_1": ["prefill512", "prefill2048", "decode"]}


def run(*args, env=None):
    done = subprocess.run([str(a) for a in args], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          env={**os.environ, **(env or {})})
    if done.returncode != 0:
        raise SystemExit("race: %s ended with %d:\n%s" % (args[0], done.returncode, done.stderr[-2000:]))
    return done.stdout


class Ours:
    """bench_engine prints `cell NAME VALUE` lines."""
    name = "tokenring"

    def __init__(self, program):
        self.program = program
        self.version = run("git", "-C", pathlib.Path(__file__).parent, "describe", "--always", "--dirty").strip()

    def measure(self, model, cells, first):
        out = run(self.program, model, THREADS, "auto", 1)
        return {m[1]: float(m[2]) for m in re.finditer(r"^cell (\S+) (\S+)", out, re.M) if m[1] in cells}


class LlamaBench:
    """llama-bench and llama-batched-bench of llama.cpp."""
    name = "llamacpp"
    # Its weights and KV on huge pages: faster than the mapped file.
    env = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    bench = ["-lm", "none"]
    batched = ["-c", "16384"]
    attention = [["-fa", "0"], ["-fa", "1"]]

    def __init__(self):
        self.bin = FOLDER / self.name / "build" / "bin"
        self.version = (FOLDER / self.name / "VERSION").read_text().strip()
        self.best = {}

    def single(self, model, args, kind):
        """Tokens a second of the one test of this run."""
        out = run(self.bin / "llama-bench", "-m", model, "-t", THREADS, "-r", 1, "-o", "json", *self.bench, *args,
                  env=self.env)
        rows = [r for r in json.loads(out) if r[kind] > 0]
        return rows[-1]["avg_ts"]

    def tried(self, model, cell, args, kind, first):
        """With the better attention, which the first round finds."""
        if first:
            rates = [self.single(model, args + a, kind) for a in self.attention]
            self.best[model, cell] = self.attention[rates.index(max(rates))]
            return max(rates)
        return self.single(model, args + self.best[model, cell], kind)

    def batches(self, model, sizes):
        out = run(self.bin / "llama-batched-bench", "-m", model, "-t", THREADS, "-npp", 64, "-ntg", 32,
                  "-npl", ",".join(map(str, sizes)), "--output-format", "jsonl", *self.batched, env=self.env)
        rows = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        return {"batch%d" % r["pl"]: r["speed_tg"] for r in rows}

    def measure(self, model, cells, first):
        plans = {"prefill512": (["-p", 512, "-n", 0], "n_prompt"), "prefill2048": (["-p", 2048, "-n", 0], "n_prompt"),
                 "decode": (["-p", 0, "-n", 128, "-d", 32], "n_gen"),
                 "decode_4k": (["-p", 0, "-n", 32, "-d", 4096], "n_gen"),
                 "decode_8k": (["-p", 0, "-n", 32, "-d", 8000], "n_gen")}
        values = {c: self.tried(model, c, *plans[c], first) for c in cells if c in plans}
        sizes = [int(c[5:]) for c in cells if c.startswith("batch")]
        if sizes:
            values.update(self.batches(model, sizes))
        return values


class IkLlamaBench(LlamaBench):
    """ik_llama.cpp: weights repacked at load, huge pages by its own option."""
    name = "ik_llamacpp"
    env = {}
    bench = ["-rtr", "1", "-thp", "1", "-mmp", "0"]
    batched = ["-c", "16384", "-rtr", "-thp", "-fa", "off"]  # its flash attention aborts for several sequences

    def single(self, model, args, kind):
        if "-d" in args:  # it lacks -d: a prompt before the tokens, in the same test
            at = args.index("-d")
            depth, rest = args[at + 1], args[:at] + args[at + 2:]
            args = [*rest, "-gp", "%d,%d" % (depth, rest[rest.index("-n") + 1])]
            kind = "n_gen"
        return super().single(model, args, kind)

    def batches(self, model, sizes):
        out = run(self.bin / "llama-batched-bench", "-m", model, "-t", THREADS, "-npp", 64, "-ntg", 32,
                  "-npl", ",".join(map(str, sizes)), *self.batched)
        # | PP | TG | B | N_KV | T_PP s | S_PP t/s | T_TG s | S_TG t/s | T s | S t/s |
        rows = re.findall(r"^\|\s*64 \|\s*32 \|\s*(\d+) \|(?:[^|]*\|){4}\s*([\d.]+) \|", out, re.M)
        return {"batch%s" % size: float(rate) for size, rate in rows}


def peers_found(names):
    kinds = {kind.name: kind for kind in (LlamaBench, IkLlamaBench)}
    found = []
    for name in names:
        if (FOLDER / name / "VERSION").is_file():
            found.append(kinds[name]())
        else:
            print("race: %s is not there: bench/peers/install %s" % (name, name))
    return found


def q4_0_of(model):
    """The Q4_0 file, made from the default one by llama-quantize."""
    path = FOLDER / (pathlib.Path(model).stem.replace("Q4_1", "Q4_0") + ".gguf")
    quantize = FOLDER / "llamacpp" / "build" / "bin" / "llama-quantize"
    if not path.is_file():
        if not quantize.is_file():
            raise SystemExit("race: the Q4_0 file is made by llama-quantize: bench/peers/install llamacpp")
        part = path.with_suffix(".part")
        run(quantize, "--allow-requantize", model, part, "Q4_0")
        part.rename(path)
    return path


def race(engines, files, rounds):
    """{(file, engine, cell): [value of each round]}"""
    values = {}
    for r in range(rounds):
        for name, path in files.items():
            for engine in engines:
                print("round %d of %d: %s, %s" % (r + 1, rounds, name, engine.name), file=sys.stderr, flush=True)
                for cell, value in engine.measure(path, FILE_CELLS[name], r == 0).items():
                    values.setdefault((name, engine.name, cell), []).append(value)
    return {key: statistics.median(all_) for key, all_ in values.items()}


def table(medians, engines, files):
    for name in files:
        print("\n%-12s %s   tokens/s on the %s file, medians" %
              ("", "".join("%16s" % e.name for e in engines), name))
        for cell in FILE_CELLS[name]:
            row = [medians.get((name, e.name, cell)) for e in engines]
            print("%-12s %s" % (cell, "".join("%16s" % ("%.1f" % v if v else "-") for v in row)))


def figures(medians, peers, files):
    for name in files:
        for cell in FILE_CELLS[name]:
            ours = medians.get((name, Ours.name, cell))
            theirs = {p.name: medians.get((name, p.name, cell)) for p in peers}
            if not ours:
                continue
            if theirs.get("llamacpp"):
                print("figure engine.%s_vs_llamacpp_%s %.3f ratio" % (cell, name, ours / theirs["llamacpp"]))
            if all(theirs.get(p) for p in PEERS):
                print("figure engine.%s_vs_best_of_%d_%s %.3f ratio" %
                      (cell, len(PEERS), name, ours / max(theirs.values())))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", default="llamacpp", help="llamacpp, all, or names with commas")
    parser.add_argument("--files", default="q4_1,q4_0")
    parser.add_argument("--program", default=pathlib.Path("build/bench/bench/bench_engine"), help="our bench_engine")
    args = parser.parse_args()
    model = os.environ.get("TOKENRING_TEST_MODEL") or run("tools/fetch-model").strip()
    peers = peers_found(PEERS if args.peers == "all" else args.peers.split(","))
    files = {n: q4_0_of(model) if n == "q4_0" else model for n in args.files.split(",")}
    engines = [Ours(args.program), *peers]
    cpu = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    print("%s, %d threads; %s" % (cpu[1] if cpu else "CPU without a name", THREADS,
                                  ", ".join("%s %s" % (e.name, e.version) for e in engines)), flush=True)
    medians = race(engines, files, args.rounds)
    table(medians, engines, files)
    print()
    figures(medians, peers, files)


if __name__ == "__main__":
    main()
