#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares tests/data with llama.cpp on the same model, as a second witness beside our own float32.

    cross_check.py MODEL.gguf DATA_DIRECTORY

llama.cpp quantises activations, so it may leave the float32 ids where two candidates are close;
its first log-probabilities must be near. Run by hand when the data changes: prints what it finds
and writes the verdict into greedy.json, or exits 1.
"""

import json
import os
import sys
import urllib.request
from importlib.metadata import version

import xllamacpp

import make_tokens

NEAR = 0.5      # largest difference of a log-probability of the first token that activations explain
MARGIN = 0.5    # largest float32 margin at which the ids may part


def serve(model):
    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.cpuparams.n_threads = model, 4096, 1, 2
    return xllamacpp.Server(params)


def ask(server, path, body):
    request = urllib.request.Request(server.listening_address + path, json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.loads(answer.read())


def compare_tokens(server, texts):
    differing = []
    for case in texts:
        ids = ask(server, "/tokenize", {"content": case["text"], "parse_special": False})["tokens"]
        if ids != case["ids"]:
            differing.append((case["text"], case["ids"], ids))
    return differing


def compare_greedy(server, case):
    """-> ids equal before the parting, the margin there (None: no parting), largest difference at step 0."""
    answer = ask(server, "/completion", {"prompt": case["prompt_ids"], "n_predict": len(case["greedy_ids"]) or 1,
                                         "temperature": 0, "n_probs": 20, "return_tokens": True, "cache_prompt": False})
    off = None      # the server lists no probabilities for a token that ends inside a character
    steps = answer["completion_probabilities"]
    if steps[0]["id"] == answer["tokens"][0]:
        first = {p["id"]: p["logprob"] for p in steps[0]["top_logprobs"]}
        off = max(abs(first.get(i, -99) - logp) for i, logp in case["top5"][0][:3])
    for at, (got, wanted) in enumerate(zip(answer["tokens"], case["greedy_ids"])):
        if got != wanted:
            return at, case["top5"][at][0][1] - dict(case["top5"][at]).get(got, -99), off
    return len(case["greedy_ids"]), None, off


def main():
    model, directory = sys.argv[1:]
    load = lambda name: json.load(open(os.path.join(directory, name), encoding="utf-8"))
    server = serve(model)
    texts = load("tokens.json")["texts"]
    differing = compare_tokens(server, texts)
    for text, ours, theirs in differing:
        print("tokens of %r: witness %s, llama.cpp %s" % (text[:40], ours[:12], theirs[:12]))
    print("tokens: %d of %d texts equal" % (len(texts) - len(differing), len(texts)))
    failed = len(differing)
    greedy = load("greedy.json")
    for case in greedy["cases"]:
        at, margin, off = compare_greedy(server, case)
        wrong = (off or 0) > NEAR or (margin is not None and margin > MARGIN)
        failed += wrong
        print("%-30s %s, first log-probabilities within %s%s" % (
            case["name"], "all %d equal" % at if margin is None else "%d equal, then margin %.3f" % (at, margin),
            "?" if off is None else "%.3f" % off,
            "  WRONG" if wrong else ""))
    if failed:
        return 1
    greedy["source"]["cross_check"] = (
        "llama.cpp (xllamacpp %s) on the same file, tests/tools/cross_check.py: every case has the same ids up to a first "
        "parting with a float32 margin <= %.1f" % (version("xllamacpp"), MARGIN))
    make_tokens.write(os.path.join(directory, "greedy.json"), greedy)
    return 0


if __name__ == "__main__":
    sys.exit(main())
