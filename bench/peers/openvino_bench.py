#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""OpenVINO GenAI on a GGUF: see cells.py."""
import sys
import time

import numpy
import openvino
import openvino_genai

import cells


class Engine:
    def __init__(self, model, threads):
        plan = openvino_genai.SchedulerConfig()
        plan.cache_size = 2  # GB, for 64 streams and for 8000 positions
        plan.max_num_batched_tokens = 2048
        plan.max_num_seqs = 64
        plan.enable_prefix_caching = False
        self.pipe = openvino_genai.LLMPipeline(
            model, "CPU", scheduler_config=plan, INFERENCE_NUM_THREADS=threads, PERFORMANCE_HINT="LATENCY",
            NUM_STREAMS="1")

    def generate(self, ids, n):
        tokens = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(numpy.ones_like(ids)))
        how = openvino_genai.GenerationConfig()
        how.max_new_tokens = how.min_new_tokens = n
        how.ignore_eos = True
        how.do_sample = False
        how.apply_chat_template = False
        begin = time.perf_counter()
        out = self.pipe.generate(tokens, how)
        seconds = time.perf_counter() - begin
        if [len(t) for t in out.tokens] != [n] * len(ids):
            sys.exit("openvino_bench: %s tokens, not %d each" % ([len(t) for t in out.tokens], n))
        times = list(out.perf_metrics.raw_metrics.m_new_token_times)  # in ms
        return seconds, (times[-1] - times[0]) / 1e3


if __name__ == "__main__":
    cells.main(Engine)
