#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/perplexity.json: how probable float32 arithmetic finds a text.

    make_perplexity.py MODEL.gguf TEXT OUT.json
"""

import json
import math
import os
import sys

import gguf_reference
import token_oracle

WINDOW = 512


def main():
    model, path, out = sys.argv[1:]
    reference = gguf_reference.Reference(model)
    get = lambda key: reference.fields["tokenizer.ggml." + key]
    tokenizer = token_oracle.build(get("tokens"), get("merges"), get("pre"))
    with open(path, encoding="utf-8", newline="") as stream:
        ids = token_oracle.encode(tokenizer, stream.read())
    runs = []
    for n_tokens in (2048, 256):
        nll = reference.nll(ids[:n_tokens], WINDOW)
        mean = sum(nll) / len(nll)
        runs.append({"max_tokens": n_tokens, "window": WINDOW, "scored": len(nll), "nll_mean": round(mean, 6),
                     "perplexity": round(math.exp(mean), 5)})
        print(runs[-1])
    with open(out, "w", encoding="utf-8") as stream:
        json.dump({
            "about": "Perplexity of the first tokens of a text in consecutive windows; a window's first token is "
                     "not scored. float32 with dequantised weights.",
            "source": dict(gguf_reference.versions(), by="tests/tools/make_perplexity.py", model=os.path.basename(model)),
            "text": os.path.basename(path), "text_tokens": len(ids), "runs": runs,
        }, stream, indent=1)
        stream.write("\n")


if __name__ == "__main__":
    main()
