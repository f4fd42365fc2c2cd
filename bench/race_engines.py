# SPDX-License-Identifier: Apache-2.0
"""The engines that bench/race.py races: each measures cells of one file in its best configuration.

measure(file, model, cells, first) returns {cell: value}; first is the first round, in which an engine finds
out which of its configurations is the better one. A program that fails raises Failed. The cells are defined
in race.py.
"""
import http.client
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
FOLDER = pathlib.Path(os.environ.get("TOKENRING_PEERS") or
                      pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") /
                      "tokenring" / "peers")
THREADS = len(os.sched_getaffinity(0))
CONTEXT = 8192
PROMPT = 32
MOST_S = 900  # of one program
# llama-quantize gives MXFP4 to experts only, unless it is told which tensors.
QUANTIZED_NAMES = {"mxfp4": "MXFP4_MOE"}
QUANTIZED_TENSORS = {"mxfp4": ["--tensor-type", "attn=mxfp4", "--tensor-type", "ffn=mxfp4"]}


class Failed(SystemExit):
    """Says why; where nobody catches it, the program ends with that."""


def run(*args, env=None, cwd=None, stderr=subprocess.PIPE):
    """What it printed."""
    try:
        done = subprocess.run([str(a) for a in args], text=True, stdout=subprocess.PIPE, stderr=stderr,
                              stdin=subprocess.DEVNULL, timeout=MOST_S, cwd=cwd,
                              env={**os.environ, **(env or {})})
    except OSError as why:
        raise Failed("%s: %s" % (args[0], why)) from None
    except subprocess.TimeoutExpired:
        raise Failed("%s takes more than %d s" % (args[0], MOST_S)) from None
    if done.returncode != 0:
        raise Failed("%s ended with %d:\n%s" % (args[0], done.returncode, (done.stderr or done.stdout)[-1500:]))
    return done.stdout


def cells_in(text):
    return {m[1]: float(m[2]) for m in re.finditer(r"^cell (\S+) (\S+)", text, re.M)}


def rss_mb(pid):
    rollup = pathlib.Path("/proc/%d/smaps_rollup" % pid).read_text()
    return int(re.search(r"^Rss:\s*(\d+)", rollup, re.M)[1]) * 1024 / 1e6


def from_start(*args, env=None):
    """A program that prints `token` with its first token, after exec: its cells, and that time as `start`."""
    with tempfile.TemporaryFile("w+") as errors:
        try:
            program = subprocess.Popen([str(a) for a in args], text=True, stdout=subprocess.PIPE, stderr=errors,
                                       stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})})
        except OSError as why:
            raise Failed("%s: %s" % (args[0], why)) from None
        begin = time.perf_counter()  # exec has happened
        first = program.stdout.readline()
        start_ms = (time.perf_counter() - begin) * 1e3
        rest = program.stdout.read()
        if program.wait() != 0 or first != "token\n":
            errors.seek(0)
            raise Failed("%s ended with %d:\n%s" % (args[0], program.returncode, errors.read()[-1500:]))
    return {"start": start_ms, **cells_in(rest)}


def quantized(model, kind):
    """The default model with weights of this type, which llama-quantize makes from it once."""
    if kind == "q4_1":
        return pathlib.Path(model)
    path = FOLDER / pathlib.Path(model).name.replace("Q4_1", kind.upper())
    if not path.is_file():
        program = FOLDER / "llamacpp" / "build" / "bin" / "llama-quantize"
        if not program.is_file():
            raise Failed("the %s file is made by llama-quantize: bench/peers/install llamacpp" % kind)
        part = path.with_suffix(".part")
        run(program, "--allow-requantize", *QUANTIZED_TENSORS.get(kind, []), model, part,
            QUANTIZED_NAMES.get(kind, kind.upper()))
        part.rename(path)
    return path


class Ours:
    """bench_engine in this process's place; the real daemon and a client for what users wait for."""
    name = "tokenring"
    figures = {"start_ms": "start", "start_cached_ms": "start_cached", "rss_mb": "rss", "ttft32_ms": "ttft32",
               "request_overhead_us": "request_overhead_us", "pack_of_triad": "pack_of_triad"}

    def __init__(self, folder):
        self.folder = folder
        self.version = run("git", "-C", HERE, "describe", "--always", "--dirty").strip()
        self.limits = []

    def measure(self, file, model, cells, first):
        out = run(self.folder / "bench_engine", model, THREADS, "auto", 1, ",".join(cells))
        self.limits.append(dict(re.findall(r"^limit (\S+) (\S+)", out, re.M)))
        values = cells_in(out)
        if "start" in cells:
            out = run(self.folder / "bench_start", model, 1)
            for name, value in re.findall(r"^figure engine\.(\S+) (\S+)", out, re.M):
                if name in self.figures:
                    values[self.figures[name]] = float(value)
        return values


class Llama:
    """What llama.cpp and ik_llama.cpp share: llama-bench, llama-batched-bench, and our llama_cells for the rest."""
    # The long prefill warms itself up.
    plans = {"prefill512": (["-p", 512, "-n", 0], "n_prompt"),
             "prefill2048": (["-p", 2048, "-n", 0, "--no-warmup"], "n_prompt"),
             "decode": (["-p", 0, "-n", 128, "-d", 32], "n_gen")}
    attention = [["-fa", "0"], ["-fa", "1"]]
    attention_deep = [0, 1]
    env = {}

    def __init__(self):
        self.folder = FOLDER / self.name
        self.bin = self.folder / "build" / "bin"
        self.version = (self.folder / "VERSION").read_text().strip()
        self.best = {}

    def better(self, key, choices, measure, first):
        """measure(choice) with the choice that was best in the first round; values are rates by cell."""
        if first or key not in self.best:
            results = [measure(c) for c in choices]
            at = max(range(len(choices)), key=lambda i: sum(results[i].values()))
            self.best[key] = choices[at]
            return results[at]
        return measure(self.best[key])

    def single(self, model, args, kind):
        """Tokens a second of the one test of this run."""
        out = run(self.bin / "llama-bench", "-m", model, "-t", THREADS, "-r", 1, "-o", "json", *self.bench, *args,
                  env=self.env, cwd=self.folder)
        return [r for r in json.loads(out) if r[kind] > 0][-1]["avg_ts"]

    def batches(self, model, sizes, attention):
        out = run(self.bin / "llama-batched-bench", "-m", model, "-t", THREADS, "-npp", 64, "-ntg", 32,
                  "-npl", ",".join(map(str, sizes)), "-c", 16384, *self.batched, *attention, env=self.env,
                  cwd=self.folder, stderr=subprocess.STDOUT)  # ik_llama.cpp leaves a log where it runs
        return {"batch%s" % size: rate for size, rate in self.rows(out)}

    def deep(self, file, model, attention):
        """The positions before are computed once and kept in files."""
        states = self.folder / "states"
        states.mkdir(exist_ok=True)
        out = run(self.folder / "llama_cells", "deep", model, THREADS, attention,
                  states / ("%s.fa%d" % (file, attention)), env=self.env)
        return cells_in(out)

    def measure(self, file, model, cells, first):
        values = {}
        for cell in [c for c in cells if c in self.plans]:
            args, kind = self.plans[cell]
            values.update(self.better((file, cell), self.attention,
                                      lambda a: {cell: self.single(model, [*args, *a], kind)}, first))
        sizes = [int(c[5:]) for c in cells if c.startswith("batch")]
        if sizes:
            values.update(self.better((file, "batch"), self.attention_batch,
                                      lambda a: self.batches(model, sizes, a), first))
        if "decode_8k" in cells:
            values.update(self.better((file, "deep"), self.attention_deep,
                                      lambda a: self.deep(file, model, a), first))
        if "start" in cells:
            values.update(self.latency(model))
        return values


class LlamaCpp(Llama):
    """llama.cpp; a user waits for its server, over HTTP."""
    name = "llamacpp"
    # Its weights and KV on huge pages: faster than the mapped file.
    env = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    bench = ["-lm", "none"]
    batched = ["-lm", "none", "--output-format", "jsonl"]
    attention_batch = [["-fa", "off"], ["-fa", "on"]]

    @staticmethod
    def rows(out):
        return [(r["pl"], r["speed_tg"]) for r in map(json.loads, re.findall(r"^\{.*\}$", out, re.M))]

    def latency(self, model):
        values = LlamaServer(self.bin / "llama-server", model).measure()
        values["start_cached"] = from_start(self.folder / "llama_cells", "latency", model, THREADS, "mapped")["start"]
        return values


class IkLlamaCpp(Llama):
    """ik_llama.cpp: weights repacked at load, huge pages by its own option; from its library in process."""
    name = "ik_llamacpp"
    bench = ["-rtr", "1", "-thp", "1", "-mmp", "0"]
    batched = ["-rtr", "-thp"]
    attention_batch = [["-fa", "off"]]  # its flash attention aborts for several sequences
    plans = {**Llama.plans, "prefill2048": (["-p", 2048, "-n", 0, "-w", 0], "n_prompt"),
             "decode": (["-p", 0, "-n", 0, "-gp", "32,128"], "n_gen")}  # it lacks -d

    @staticmethod
    def rows(out):
        # | PP | TG | B | N_KV | T_PP s | S_PP t/s | T_TG s | S_TG t/s | T s | S t/s |
        return [(size, float(rate)) for size, rate in
                re.findall(r"^\|\s*64 \|\s*32 \|\s*(\d+) \|(?:[^|]*\|){4}\s*([\d.]+) \|", out, re.M)]

    def latency(self, model):
        """Packed weights answer sooner, mapped ones start sooner and take less memory."""
        kinds = [from_start(self.folder / "llama_cells", "latency", model, THREADS, kind)
                 for kind in ("packed", "mapped")]
        best = {cell: min(k[cell] for k in kinds) for cell in kinds[0]}
        return {**best, "start_cached": best["start"]}


class LlamaServer:
    """One llama-server: from exec to the first token, then idle."""
    asked = random.Random(1)

    def __init__(self, program, model):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.args = [program, "-m", model, "-t", THREADS, "-c", CONTEXT, "-np", 1, "--port", self.port, "--no-warmup"]

    def ready(self):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
            connection.request("GET", "/health")
            status = connection.getresponse().status
            connection.close()
            return status == 200
        except OSError:
            return False

    def first_token_ms(self):
        """From the request on a connection that stands to the first piece of its stream."""
        tokens = [self.asked.randrange(100, 49000) for _ in range(PROMPT)]
        body = json.dumps({"prompt": tokens, "n_predict": 1, "stream": True, "temperature": 0, "ignore_eos": True,
                           "cache_prompt": False})
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.connect()
        begin = time.perf_counter()
        connection.request("POST", "/completion", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        line = response.readline()
        ms = (time.perf_counter() - begin) * 1e3
        if response.status != 200 or not line.startswith(b"data: {"):
            raise Failed("llama-server answers %d: %r" % (response.status, line[:200]))
        response.read()
        connection.close()
        return ms

    def measure(self):
        server = subprocess.Popen([str(a) for a in self.args], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.DEVNULL)
        begin = time.perf_counter()
        try:
            while not self.ready():
                if server.poll() is not None or time.perf_counter() - begin > 60:
                    raise Failed("llama-server does not start")
                time.sleep(0.002)
            self.first_token_ms()
            values = {"start": (time.perf_counter() - begin) * 1e3, "rss": rss_mb(server.pid)}
            times = []
            for _ in range(23):
                time.sleep(0.02)
                times.append(self.first_token_ms())
            return {**values, "ttft32": sorted(times[3:])[10]}
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()


class PythonEngine:
    """An engine that is a Python package, in process, in an environment of its own."""
    lacks = ()  # cells that it cannot do

    def __init__(self):
        self.folder = FOLDER / self.name
        self.version = (self.folder / "VERSION").read_text().strip()
        self.bench = [self.folder / "venv" / "bin" / "python", HERE / "peers" / ("%s_bench.py" % self.name)]

    def model(self, file, model):
        """What it reads in the place of this file; None: nothing."""
        return model

    def measure(self, file, model, cells, first):
        model = self.model(file, model)
        if not model:
            return {}
        rates = [c for c in cells if re.match("prefill|decode|batch", c) and c not in self.lacks]
        values = cells_in(run(*self.bench, "cells", model, THREADS, *rates))
        if "start" in cells:
            values.update(from_start(*self.bench, "latency", model, THREADS))
            values["start_cached"] = values["start"]
        return values


class OpenVino(PythonEngine):
    """OpenVINO GenAI, which reads the same GGUF; its KV is 8-bit by default."""
    name = "openvino"


class OnnxRuntime(PythonEngine):
    """ONNX Runtime GenAI: 4-bit weights of its own, all but the embedding, from the default model."""
    name = "onnxruntime"
    lacks = ("batch64",)  # 32 streams at most

    def model(self, file, model):
        return self.folder / "model" if file == "q4_0" else None


PEERS = {kind.name: kind for kind in (LlamaCpp, IkLlamaCpp, OpenVino, OnnxRuntime)}
# Of these the best counts. The others read another model than ours and stand beside.
SAME_FILE = ("llamacpp", "ik_llamacpp", "openvino")
