#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ringctl tune: a profile is measured, kept, shown, and found by the daemon that it fits."""

import contextlib
import json
import os
import re
import stat
import subprocess

from harness import Daemon, Scratch, main, program, test
import make_gguf      # harness has put tests/tools on the path

MODEL = {"layers": 2, "embd": 64, "heads": 2, "kv_heads": 1, "ffn": 128, "ctx": 128}
SECONDS_MAX = 120     # a hang fails


def ringctl(*args, env=None, stdout=subprocess.PIPE):
    """-> exit code, standard output, standard error."""
    done = subprocess.run([program("ringctl"), *args], stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.PIPE,
                          text=True, timeout=SECONDS_MAX, env=env, check=False)
    return done.returncode, done.stdout, done.stderr


@contextlib.contextmanager
def place():
    """A scratch folder with a model and a folder for its cache that does not exist yet."""
    with Scratch() as scratch:
        scratch.model = scratch.file("tiny.gguf", make_gguf.make_bytes(**MODEL))
        scratch.cache = os.path.join(scratch.path, "cache", "tokenring")
        yield scratch


def tune(scratch, *args):
    """A quick profile in the scratch folder's cache: its path and what it holds."""
    code, out, err = ringctl("tune", "--quick", "--model", scratch.model, "--cache", scratch.cache, "--json", *args)
    assert code == 0, (code, err)
    path = re.search("the profile is in (.*)", err).group(1)
    with open(path, encoding="utf-8") as file:
        kept = json.load(file)
    assert kept == json.loads(out), (kept, out)     # printed is what is kept
    return path, kept


def cpu_name():
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        return re.search(r"^model name\s*: (.*)$", file.read(), re.MULTILINE).group(1)


@test
def a_profile_has_the_machine_the_model_and_a_cost_for_every_cell():
    with place() as scratch:
        path, kept = tune(scratch, "--threads", "1")
        mode = os.stat(path).st_mode
        assert stat.S_ISREG(mode) and stat.S_IMODE(mode) & 0o022 == 0, oct(mode)
        assert os.path.dirname(path) == scratch.cache and os.listdir(scratch.cache) == [os.path.basename(path)]
        assert (kept["version"], kept["threads"], kept["cpu"]) == (1, 1, cpu_name()), kept
        with Daemon("--threads", "1", model=scratch.model, cache=scratch.cache) as daemon:
            figures = daemon.stats()
            assert (kept["model_hash"], kept["variant"]) == (figures["model_hash"], figures["cpu_variant"]), kept
        limits = kept["limits"]
        assert limits["read_one_gbs"] == limits["read_gbs"] > 0 and limits["barrier_ns"] == 0, limits
        # A context of 128: rows up to half of it, and the furthest context after which they fit.
        assert kept["decode"]["rows"] == kept["prefill"]["rows"] == [1, 8, 64], kept
        for grid in (kept["decode"], kept["prefill"]):
            assert grid["contexts"] == [0, 64], grid
            assert all(len(line) == 2 and min(line) > 0 for line in grid["ms"]) and len(grid["ms"]) == 3, grid
        assert 0 < kept["took_s"] < SECONDS_MAX


@test
def progress_goes_to_standard_error_and_the_table_to_standard_output():
    with place() as scratch:
        code, out, err = ringctl("tune", "--quick", "--model", scratch.model, "--cache", scratch.cache, "--threads", "1")
        assert code == 0, err
        for part in ("reading memory, one thread: ", "decode, 1 row: ", "decode, 64 rows: ", "prefill, 64 rows: ",
                     "measured in ", "the profile is in " + scratch.cache):
            assert "ringctl: " + part in err, (part, err)
        again, shown, said = ringctl("tune", "--model", scratch.model, "--cache", scratch.cache, "--threads", "1",
                                     "--show")
        assert (again, said) == (0, ""), said
        # The file has six digits of each figure, the table fewer: no more than the last one may differ.
        assert re.sub(r"[\d.]+", "", out) == re.sub(r"[\d.]+", "", shown), (out, shown)
        _, text, _ = ringctl("tune", "--model", scratch.model, "--cache", scratch.cache, "--threads", "1", "--show",
                             "--json")
        kept = json.loads(text)
        lines = shown[shown.index("tok/s"):].splitlines()[1:]
        assert [line.split()[0] for line in lines] == ["1", "2", "4", "8", "16", "32", "64"], shown
        for streams, costs in zip(kept["decode"]["rows"], kept["decode"]["ms"]):
            line = next(line.split() for line in lines if line.split()[0] == str(streams))
            for printed, ms in zip(line[1:], costs):
                assert abs(float(printed) - streams * 1000 / ms) <= 0.1, (printed, ms)


@test
def the_daemon_says_that_it_is_tuned_only_if_model_threads_and_variant_fit():
    with place() as scratch:
        tune(scratch, "--threads", "1", "--cpu", "ref")
        other = scratch.file("other.gguf", make_gguf.make_bytes(seed=5, **MODEL))
        for model, cpu, state in ((scratch.model, "ref", "tuned"), (other, "ref", "none"),
                                  (scratch.model, "auto", "none")):
            with Daemon("--threads", "1", "--cpu", cpu, model=model, cache=scratch.cache) as daemon:
                if cpu == "auto" and daemon.stats()["cpu_variant"] == "ref":
                    state = "tuned"
                assert " profile=%s " % state in daemon.log(), daemon.log()
                assert "ignored" not in daemon.log(), daemon.log()
        with Daemon("--threads", "1", "--cpu", "ref", model=scratch.model, cache="none") as daemon:
            assert " profile=none " in daemon.log(), daemon.log()


@test
def a_damaged_profile_is_ignored_with_one_line_and_the_daemon_serves():
    with place() as scratch:
        path, _ = tune(scratch, "--threads", "1")
        with open(path, "r+", encoding="utf-8") as file:
            text = file.read()
            file.seek(0)
            file.truncate()
            file.write(text.replace('"decode"', '"dec"'))
        with Daemon("--threads", "1", model=scratch.model, cache=scratch.cache) as daemon:
            lines = [line for line in daemon.log().splitlines() if "ignored" in line]
            assert len(lines) == 1 and path in lines[0] and "decode" in lines[0], daemon.log()
            assert " profile=none " in daemon.log(), daemon.log()
        code, out, err = ringctl("tune", "--show=" + path)
        assert code == 1 and not out and path in err and "decode" in err, (code, out, err)


@test
def a_profile_can_be_kept_anywhere_and_shown_on_any_machine():
    with place() as scratch:
        path = os.path.join(scratch.path, "mine.json")
        _, kept = tune(scratch, "--threads", "1", "--out", path)
        assert not os.path.exists(scratch.cache)
        kept["cpu"] = "Another 1"
        with open(path, "w", encoding="utf-8") as file:
            json.dump(kept, file)
        code, out, err = ringctl("tune", "--show=" + path)
        assert code == 0 and "Another 1, %s, 1 thread\n" % kept["variant"] in out, (code, out, err)


@test
def without_a_model_the_limits_are_printed_and_nothing_is_kept():
    with Scratch() as scratch:
        code, out, err = ringctl("tune", "--quick", "--threads", "1", "--cache", scratch.path)
        assert code == 0 and cpu_name() in out and "GB/s" in out and "measured in" in err, (code, out, err)
        assert os.listdir(scratch.path) == []


@test
def what_cannot_be_measured_kept_or_shown_is_exit_1_and_says_what_to_do():
    with place() as scratch:
        allowed = len(os.sched_getaffinity(0))
        nowhere = os.path.join(scratch.path, "nowhere.gguf")
        broken = scratch.file("broken.gguf", b"GGUF")
        in_the_way = scratch.file("file", b"")
        tiny = ("--quick", "--threads", "1", "--model", scratch.model)
        for args, parts in (
                (("--quick", "--model", nowhere), (nowhere,)),
                (("--quick", "--model", broken), (broken,)),
                (("--threads", str(allowed + 1)), (str(allowed + 1) + " are asked for", "may use ")),
                ((*tiny, "--cache", in_the_way + "/below"), (in_the_way, "Not a directory")),
                ((*tiny, "--out", scratch.path), (scratch.path, "Is a directory")),
                (("--show=" + nowhere,), (nowhere, "no such file")),
                (("--show", "--threads", "1", "--model", scratch.model, "--cache", scratch.path),
                 (scratch.path, "measure one: ringctl tune --model " + scratch.model))):
            code, _, err = ringctl("tune", *args)
            assert code == 1 and all(part in err for part in parts), (args, code, err)
        code, _, err = ringctl("tune", *tiny, env={"PATH": os.environ["PATH"]})
        assert code == 1 and "HOME" in err and "--cache" in err, (code, err)
        with open("/dev/full", "w", encoding="utf-8") as full:
            code, _, err = ringctl("tune", *tiny, "--cache", scratch.cache, stdout=full)
        assert code == 1 and "cannot write" in err, (code, err)


@test
def a_wrong_command_line_is_exit_2_and_says_what_is_expected():
    for args, part in (((), "expected tune"), (("status",), "unknown command 'status'"), (("tune", "x"), "'x'"),
                       (("tune", "--threads", "0"), "1 to 256"), (("tune", "--threads", "two"), "'two'"),
                       (("tune", "--cpu", "sse"), "'sse'"), (("tune", "--cache", "here"), "absolute"),
                       (("tune", "--json"), "--model"), (("tune", "--out", "f"), "--model"),
                       (("tune", "--model", "echo:"), "nothing to measure"), (("tune", "--show"), "--model"),
                       (("tune", "--show", "f"), "--show=f"), (("tune", "--show=f", "--model", "m"), "not both"),
                       (("tune", "--show=f", "--quick"), "measures nothing")):
        code, out, err = ringctl(*args)
        assert code == 2 and not out and part in err, (args, code, out, err)


@test
def help_and_version_are_there():
    for args in (("--help",), ("tune", "--help")):
        code, out, err = ringctl(*args)
        assert code == 0 and "Usage: ringctl" in out and "Exit codes" in out and not err, (args, code, out, err)
    assert ringctl("--version")[1].startswith("ringctl "), ringctl("--version")


if __name__ == "__main__":
    main()
