#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""OpenVINO's rows of logits of a text, for quality.py: openvino_logits.py MODEL WINDOW THREADS <IDS >ROWS

Runs in the environment that bench/peers/install makes. IDS are uint32, ROWS float32 [ids][n_vocab], both as
this machine stores them; the ids are cut into windows, each a sequence of its own. OpenVINO GenAI makes its
network of the GGUF, and the network gives all rows, of which GenAI itself keeps the last. Precisions are
those that OpenVINO takes by itself. A window is computed in steps of 64 rows, since a step reads K and V of
its own rows as they were before they are kept.
"""
import os
import pathlib
import sys
import tempfile

import numpy
import openvino
import openvino_genai

STEP = 64


def network_of(model, folder):
    """The network that GenAI makes of the file; it puts it beside the file, so the file gets a new name."""
    link = pathlib.Path(folder) / "model.gguf"
    link.symlink_to(pathlib.Path(model).resolve())
    openvino_genai.LLMPipeline(str(link), "CPU", ATTENTION_BACKEND="SDPA", enable_save_ov_model=True)
    return next(pathlib.Path(folder).glob("*model.xml"))


def main():
    model, window, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    # What the libraries print must not come between the rows.
    rows = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with tempfile.TemporaryDirectory() as folder:
        core = openvino.Core()
        compiled = core.compile_model(str(network_of(model, folder)), "CPU", {
            "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1"})
        names = {name for port in compiled.inputs for name in port.names}
        request = compiled.create_infer_request()
        while True:
            ids = numpy.frombuffer(sys.stdin.buffer.read(4 * window), numpy.uint32).astype(numpy.int64)[None, :]
            if not ids.size:
                break
            request.reset_state()
            for at in range(0, ids.size, STEP):
                n = min(STEP, ids.size - at)
                given = {"input_ids": ids[:, at:at + n], "attention_mask": numpy.ones((1, at + n), numpy.int64),
                         "position_ids": numpy.arange(at, at + n, dtype=numpy.int64)[None, :],
                         "beam_idx": numpy.zeros(1, numpy.int32)}
                logits = request.infer({k: v for k, v in given.items() if k in names})["logits"]
                rows.write(numpy.ascontiguousarray(logits[0], numpy.float32).tobytes())
            rows.flush()


if __name__ == "__main__":
    main()
