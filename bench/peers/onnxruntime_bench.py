#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ONNX Runtime GenAI on a folder that its builder made (int4): see cells.py."""
import json
import sys
import time

import numpy
import onnxruntime_genai

import cells


class Engine:
    def __init__(self, model, threads):
        config = onnxruntime_genai.Config(model)
        config.overlay(json.dumps({"model": {"decoder": {"session_options": {
            "intra_op_num_threads": threads, "inter_op_num_threads": 1}}}}))
        self.model = onnxruntime_genai.Model(config)

    def generate(self, ids, n):
        begin = time.perf_counter()
        params = onnxruntime_genai.GeneratorParams(self.model)
        length = ids.shape[1] + n
        params.set_search_options(max_length=length, min_length=length, do_sample=False, batch_size=len(ids))
        generator = onnxruntime_genai.Generator(self.model, params)
        generator.append_tokens(ids.astype(numpy.int32) if len(ids) > 1 else ids[0].astype(numpy.int32))
        generator.generate_next_token()
        first = time.perf_counter()
        for _ in range(n - 1):
            generator.generate_next_token()
        end = time.perf_counter()
        if generator.token_count() != length:
            sys.exit("onnxruntime_bench: %d tokens, not %d" % (generator.token_count(), length))
        return end - begin, end - first


if __name__ == "__main__":
    cells.main(Engine)
