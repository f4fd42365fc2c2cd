#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""OpenVINO GenAI on a GGUF: openvino_bench.py cells MODEL THREADS NAME... | latency MODEL THREADS

Runs in the environment that bench/peers/install makes. Prints `cell NAME VALUE` lines for bench/race.py, the
cells as they are defined there. `latency` first prints `token` as soon as there is one after a prompt of 32
tokens (whoever started the program takes the time), then cell rss and cell ttft32.
"""
import random
import sys
import time

import numpy
import openvino
import openvino_genai

PROMPT, DECODE, DEEP, BATCH_HAS, BATCHED = 32, 128, 32, 64, 32
DEPTHS = {"decode_4k": 4096, "decode_8k": 8000}
ids = random.Random(1)


def prompt(n, streams=1):
    """Ids that no prompt before had in this order."""
    rows = numpy.array([[ids.randrange(100, 49000) for _ in range(n)] for _ in range(streams)], dtype=numpy.int64)
    return openvino_genai.TokenizedInputs(openvino.Tensor(rows), openvino.Tensor(numpy.ones_like(rows)))


class Engine:
    def __init__(self, model, threads):
        plan = openvino_genai.SchedulerConfig()
        plan.cache_size = 2  # GB, for 32 streams and for 8000 positions
        plan.max_num_batched_tokens = 2048
        plan.max_num_seqs = 64
        plan.enable_prefix_caching = False
        self.pipe = openvino_genai.LLMPipeline(
            model, "CPU", scheduler_config=plan, INFERENCE_NUM_THREADS=threads, PERFORMANCE_HINT="LATENCY",
            NUM_STREAMS="1")

    def generate(self, tokens, n):
        """Seconds to the end, and seconds from the first token to the last."""
        how = openvino_genai.GenerationConfig()
        how.max_new_tokens = how.min_new_tokens = n
        how.ignore_eos = True
        how.do_sample = False
        how.apply_chat_template = False
        begin = time.perf_counter()
        out = self.pipe.generate(tokens, how)
        seconds = time.perf_counter() - begin
        if [len(t) for t in out.tokens] != [n] * tokens.input_ids.shape[0]:
            sys.exit("openvino_bench: %s tokens, not %d each" % ([len(t) for t in out.tokens], n))
        times = list(out.perf_metrics.raw_metrics.m_new_token_times)  # in ms
        return seconds, (times[-1] - times[0]) / 1e3

    def decoded(self, n_prompt, streams, n):
        """Tokens a second of n for each stream after its first."""
        self.generate(prompt(PROMPT, streams), 4)  # prepares for this number of streams
        return streams * n / self.generate(prompt(n_prompt, streams), n + 1)[1]

    def cell(self, name):
        if name.startswith("prefill"):
            n = int(name[7:])
            self.generate(prompt(min(n, 512)), 1)
            return n / self.generate(prompt(n), 1)[0]
        if name == "decode":
            return self.decoded(PROMPT, 1, DECODE)
        if name in DEPTHS:
            return self.decoded(DEPTHS[name], 1, DEEP)
        return self.decoded(BATCH_HAS, int(name[5:]), BATCHED)


def rss_mb():
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Rss:")) * 1024 / 1e6


def latency(engine):
    engine.generate(prompt(PROMPT), 1)
    print("token", flush=True)
    print("cell rss %.1f" % rss_mb())
    times = []
    for i in range(23):
        time.sleep(0.02)
        tokens = prompt(PROMPT)
        times.append(engine.generate(tokens, 1)[0] * 1e3)
    print("cell ttft32 %.3f" % sorted(times[3:])[10])


def main():
    kind, model, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    engine = Engine(model, threads)
    if kind == "latency":
        latency(engine)
        return
    for name in sys.argv[4:]:
        print("cell %s %.2f" % (name, engine.cell(name)), flush=True)


if __name__ == "__main__":
    main()
