#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
quality.py - how far engines are from float32 arithmetic on the same file: `tools/bench quality`

For each type of weights the oracle (tests/tools/gguf_reference.py: the file's weights dequantised, all else
in float32 by numpy) computes every row of logits of 8192 tokens in windows of 512, and so does each engine.
Of each engine: perplexity, its ratio to the oracle's and that ratio's standard error, the mean KL divergence
of the oracle's distribution from the engine's over all rows, and the share of rows with the same largest
logit. Engines that --peers names stand beside ours, as their libraries compute by themselves.

The exit status is 1 when a gate does not hold:
  ppl    perplexity at most 1.005 of the oracle's (F16, BF16, Q8_0 and 4-bit types)
  kl     mean KL at most 1.1 of llama.cpp's, with or without flash attention, whichever is nearer to float32
  kv     perplexity with K and V in 8 bits at most 1.003 of that with K and V in f16

The text is tests/data/perplexity.txt and quality.txt. Files of other types than the default model's are made
by llama-quantize beside the peers (bench/peers/install). OpenVINO reads some types only (OPENVINO below).
"""
import argparse
import contextlib
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys

from race_engines import FOLDER, THREADS, quantized, run

ROOT = pathlib.Path(__file__).resolve().parent.parent
USUAL = "q4_1,q4_0,q8_0,f16"
ALL = USUAL + ",bf16,q4_k_m,iq4_nl,iq4_xs,mxfp4,q5_0,q5_1,q5_k_m,q6_k,q3_k_m,q2_k"
PPL_GATED = {"f16", "bf16", "q8_0", "q4_0", "q4_1", "q4_k_m", "iq4_nl", "iq4_xs", "mxfp4"}
PPL_MOST = 1.005
KL_MOST = 1.1
KV_MOST = 1.003
PEERS = ("llamacpp", "ik_llamacpp", "openvino")
OPENVINO = {"q4_0", "q4_1", "q8_0", "f16"}
ROWS = 64   # of doubles at a time


def oracle_modules():
    """What the oracle imports, in the versions of tests/tools/requirements.txt, in a folder of its own."""
    folder = FOLDER / "oracle"
    if not (folder / "VERSION").is_file():
        pinned = re.findall(r"^(?:numpy|gguf|tokenizers|Jinja2)==\S+", (ROOT / "tests/tools/requirements.txt").read_text(),
                            re.M)
        print("quality: installing %s for the oracle" % " ".join(pinned), file=sys.stderr)
        run(sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--target", folder, *pinned)
        (folder / "VERSION").write_text(" ".join(pinned) + "\n")
    sys.path[:0] = [str(folder), str(ROOT / "tests/tools")]


def token_ids(reference, n_tokens):
    import numpy
    import token_oracle
    get = lambda key: reference.fields["tokenizer.ggml." + key]
    tokenizer = token_oracle.build(get("tokens"), get("merges"), get("pre"))
    text = "".join((ROOT / "tests/data" / name).read_text(encoding="utf-8") for name in ("perplexity.txt", "quality.txt"))
    ids = token_oracle.encode(tokenizer, text)
    if len(ids) < n_tokens:
        raise SystemExit("quality: the text has %d tokens, not %d" % (len(ids), n_tokens))
    return numpy.array(ids[:n_tokens], numpy.uint32)


class Engine:
    """A program that reads ids and writes their rows of logits, and how far these are from the oracle's."""

    def __init__(self, name, *command):
        self.name = name
        self.command = [str(c) for c in command]

    def start(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.kl = self.same = 0.0
        self.nll = []

    def fail(self):
        raise SystemExit("quality: %s failed (%s)" % (self.name, " ".join(self.command)))

    def rows(self, ids, n_vocab):
        """Of one window. Its ids come only now, so that nobody else computes at the same time."""
        import numpy
        rows = numpy.empty((len(ids), n_vocab), numpy.float32)
        try:
            self.process.stdin.write(ids.tobytes())
            self.process.stdin.flush()
        except BrokenPipeError:
            self.fail()
        if self.process.stdout.readinto(rows) != rows.nbytes:
            self.fail()
        return rows

    def end(self):
        more, _ = self.process.communicate()
        if self.process.returncode != 0 or more:
            self.fail()

    def stop(self):
        self.process.kill()
        self.process.wait()


def nll_of(logp, following):
    """Of each id that follows these rows, one less than the rows at the end of a window."""
    return [-float(logp[i, following[i]]) for i in range(len(following))]


def measure(reference, engines, ids, window):
    """Runs all; returns the oracle's negative log-likelihoods of the ids that are scored."""
    from gguf_reference import log_softmax
    import numpy
    nll = []
    for at in range(0, len(ids), window):
        part = ids[at:at + window]
        reference.reset()
        truth = reference.forward(part, all_rows=True)
        theirs = [(engine, engine.rows(part, truth.shape[1])) for engine in engines]
        for row in range(0, len(part), ROWS):
            logp = log_softmax(truth[row:row + ROWS])
            p, best = numpy.exp(logp), logp.argmax(axis=1)
            following = part[row + 1:row + ROWS + 1]
            nll += nll_of(logp, following)
            for engine, rows in theirs:
                logq = log_softmax(rows[row:row + ROWS])
                engine.kl += float((p * (logp - logq)).sum())
                engine.same += int((logq.argmax(axis=1) == best).sum())
                engine.nll += nll_of(logq, following)
        print("quality: %d of %d tokens" % (at + len(part), len(ids)), file=sys.stderr, flush=True)
    return nll


def report(kind, engine, nll, n_rows):
    """A line of the table; the ratio of perplexities and the KL."""
    more = [e - o for e, o in zip(engine.nll, nll)]
    ratio, kl = math.exp(statistics.fmean(more)), engine.kl / n_rows
    print("%-10s %-18s %10.4f %10.5f +- %.5f %12.3e %9.2f %%" %
          (kind, engine.name, math.exp(statistics.fmean(engine.nll)), ratio,
           ratio * statistics.stdev(more) / math.sqrt(len(more)), kl, 100 * engine.same / n_rows), flush=True)
    return ratio, kl


def measure_file(kind, path, engines, ids, window):
    """{engine: (ratio, KL)}, printed."""
    import gguf_reference
    reference = gguf_reference.Reference(path)
    with contextlib.ExitStack() as stack:
        for engine in engines:
            engine.start()
            stack.callback(engine.stop)
        nll = measure(reference, engines, ids, window)
        for engine in engines:
            engine.end()
    print("%-10s %-18s %10.4f" % (kind, "float32", math.exp(statistics.fmean(nll))))
    return {engine.name: report(kind, engine, nll, len(ids)) for engine in engines}


def gates(kind, found):
    """The figures of a file; what does not hold."""
    ratio, kl = found["tokenring"]
    failed = []
    print("figure quality.ppl_ratio_%s %.5f ratio" % (kind, ratio))
    for name, values in found.items():
        engine = name.replace("tokenring", "").replace(" ", "_").strip("_").lower()
        engine += "_" if engine else ""
        print("figure quality.kl_%s%s %.3e nat" % (engine, kind, values[1]))
    if kind in PPL_GATED and not ratio <= PPL_MOST:
        failed.append("ppl %s: %.5f, at most %.3f" % (kind, ratio, PPL_MOST))
    kv = found["tokenring q8 KV"][0] / ratio
    print("figure quality.q8_kv_ppl_ratio_%s %.5f ratio" % (kind, kv))
    if not kv <= KV_MOST:
        failed.append("kv %s: %.5f of the perplexity with f16, at most %.3f" % (kind, kv, KV_MOST))
    theirs = [values[1] for name, values in found.items() if name in ("llamacpp", "llamacpp flash")]
    if theirs:
        print("figure quality.kl_vs_llamacpp_%s %.3f ratio" % (kind, kl / min(theirs)))
        if not kl <= KL_MOST * min(theirs):
            failed.append("kl %s: %.3f of llama.cpp's, at most %.1f" % (kind, kl / min(theirs), KL_MOST))
    return failed


def engines_of(kind, path, args, peers):
    window = [path, args.window, args.threads]
    engines = [Engine("tokenring", args.program, *window, args.cpu),
               Engine("tokenring q8 KV", "env", "TOKENRING_KV_TYPE=q8", args.program, *window, args.cpu)]
    for peer in peers:
        if peer == "openvino":
            if kind in OPENVINO:
                engines.append(Engine(peer, FOLDER / "openvino/venv/bin/python", ROOT / "bench/peers/openvino_logits.py",
                                      *window))
        else:
            engines += [Engine(peer + name, FOLDER / peer / "llama_logits", *window, flash)
                        for name, flash in (("", 0), (" flash", 1))]
    return engines


def peers_of(names):
    peers = {"all": list(PEERS), "none": []}.get(names, names.split(","))
    for peer in peers:
        if not (FOLDER / peer / "VERSION").is_file():
            raise SystemExit("quality: %s is not there: bench/peers/install %s" % (peer, peer))
    return peers


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[1])
    parser.add_argument("--files", default=USUAL, help="types of weights, with commas; all: every one we know")
    parser.add_argument("--peers", default="llamacpp",
                        help="names with commas, all, or none; the gate of KL needs llamacpp")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--cpu", default="auto", help="our kernels: auto, ref, avx2, avxvnni, avx512")
    parser.add_argument("--program", default=ROOT / "build/bench/bench/bench_logits", help="our bench_logits")
    args = parser.parse_args()
    peers = peers_of(args.peers)
    oracle_modules()
    import gguf_reference
    model = os.environ.get("TOKENRING_TEST_MODEL") or run(ROOT / "tools/fetch-model").strip()
    if args.tokens % args.window:
        raise SystemExit("quality: tokens are whole windows")
    ids = token_ids(gguf_reference.Reference(model), args.tokens)
    print("%d tokens in windows of %d; KL of float32 from the engine, nats, mean of all rows" % (len(ids), args.window))
    print("%-10s %-18s %10s %22s %12s %11s" %
          ("weights", "engine", "perplexity", "of float32", "KL", "same choice"), flush=True)
    failed = []
    for kind in (ALL if args.files == "all" else args.files).split(","):
        path = quantized(model, kind)
        engines = engines_of(kind, path, args, peers)
        failed += gates(kind, measure_file(kind, path, engines, ids, args.window))
    for gate in failed:
        print("quality: does not hold: " + gate, file=sys.stderr)
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
