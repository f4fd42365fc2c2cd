#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/tiny.json: float32 results of tiny random models that make_gguf.py makes.

    make_tiny.py OUT.json

Each case names the options of make_gguf.py, the ids that went in, the log-probability of each id
after those before it, the logits after the last id, and 16 greedy ids.
"""

import random
import sys
import tempfile

import gguf_reference
import make_gguf
import make_tokens

WIDE = {"layers": 1, "embd": 256, "heads": 4, "kv_heads": 2, "ffn": 256}     # for blocks of 256

# Name and options; each holds one thing that a forward pass may get wrong.
VARIANTS = [
    ("F32", {"type": "F32"}),
    ("F16", {"type": "F16"}),
    ("BF16", {"type": "BF16"}),
    ("Q8_0", {"type": "Q8_0"}),
    ("Q4_0", {"type": "Q4_0"}),
    ("Q4_1", {"type": "Q4_1"}),
    ("untied output of another type", {"type": "Q4_1", "embd_type": "F16", "untied": True, "output_type": "Q8_0"}),
    ("rope scaling of Llama 3", {"type": "F32", "rope_scaling": True}),
    ("rope base 500000", {"type": "F32", "rope_base": 500000.0}),
    ("nine heads on three", {"type": "F32", "embd": 576, "heads": 9, "kv_heads": 3, "ffn": 64, "layers": 1}),
    ("heads of 32 without groups", {"type": "F32", "heads": 4, "kv_heads": 4}),
    ("GGUF v2, alignment 64", {"type": "F32", "gguf": 2, "alignment": 64, "layers": 1}),
    ("Q5_0 and Q5_1", {"type": "Q5_0", "embd_type": "Q5_1"}),
    ("IQ4_NL and MXFP4", {"type": "IQ4_NL", "embd_type": "MXFP4"}),
    ("Q4_K and Q6_K", dict(WIDE, type="Q4_K", embd_type="Q6_K")),
    ("Q6_K and Q8_0", dict(WIDE, type="Q6_K", embd_type="Q8_0")),
    ("Q5_K and IQ4_XS", dict(WIDE, type="Q5_K", embd_type="IQ4_XS")),
    ("Q3_K and Q2_K", dict(WIDE, type="Q3_K", embd_type="Q2_K")),
]
N_IDS, N_GREEDY = 70, 16    # 70: past the first page of keys and values


def main():
    results = []
    for name, options in VARIANTS:
        with tempfile.NamedTemporaryFile(suffix=".gguf") as file:
            file.write(make_gguf.make_bytes(**options))
            file.flush()
            reference = gguf_reference.Reference(file.name)
        rng = random.Random(len(results))
        ids = [rng.randrange(3, len(reference.head)) for _ in range(N_IDS)]
        logits = reference.forward(ids, all_rows=True)
        logp = gguf_reference.log_softmax(logits)
        greedy, _, _ = reference.greedy(ids, N_GREEDY, eos=-1)
        results.append({"name": name, "options": options, "ids": ids,
                        "logprobs": [round(float(logp[i, ids[i + 1]]), 5) for i in range(N_IDS - 1)],
                        "logits": [round(float(v), 5) for v in logits[-1]], "greedy_ids": greedy})
        print("%-32s perplexity-like %.3f, logits %.2f..%.2f" % (
            name, -sum(results[-1]["logprobs"]) / (N_IDS - 1), logits[-1].min(), logits[-1].max()))
    make_tokens.write(sys.argv[1], {
        "about": "float32 results of tiny random models; options are those of tests/tools/make_gguf.py.",
        "source": dict(gguf_reference.versions(), by="tests/tools/make_tiny.py"),
        "cases": results})


if __name__ == "__main__":
    main()
