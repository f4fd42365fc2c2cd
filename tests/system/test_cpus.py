#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the daemon makes of the CPUs that it may use: how many, and what they can do."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys

from harness import Daemon, Scratch, Skip, ask, main, note, program, test
import make_gguf      # harness has put tests/tools on the path

# Arguments: the preloaded liar about the CPU, and the libraries of all code that is no variant.
FILES = [a for a in sys.argv[1:] if a.endswith((".so", ".a"))]
sys.argv[1:] = [a for a in sys.argv[1:] if a not in FILES]
NO_AVX2 = next((f for f in FILES if f.endswith(".so")), None)
PLAIN = [f for f in FILES if f.endswith(".a")]
TINY = {"layers": 1, "embd": 64, "heads": 1, "kv_heads": 1, "ffn": 64}


@contextlib.contextmanager
def held_to_one_cpu():
    """This process and what it starts."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def quota_folder():
    """A control group that can limit CPU time, below the one we are in; how its quota is written."""
    for line in open("/proc/self/cgroup", encoding="ascii"):
        number, controllers, path = line.strip().split(":", 2)
        if "cpu" in controllers.split(","):
            return os.path.join("/sys/fs/cgroup", controllers, path[1:]), {"cpu.cfs_period_us": "100000",
                                                                            "cpu.cfs_quota_us": "100000"}
        if number == "0" and os.path.exists("/sys/fs/cgroup/cgroup.controllers"):
            return os.path.join("/sys/fs/cgroup", path[1:]), {"cpu.max": "100000 100000"}
    raise Skip("no control group of CPU time is mounted")


@contextlib.contextmanager
def held_to_one_cpu_by_quota():
    parent, quota = quota_folder()
    folder = os.path.join(parent, "tokenring-test.%d" % os.getpid())
    try:
        os.mkdir(folder)
    except OSError as failure:
        raise Skip("no control group can be made here: %s" % failure)
    try:
        for name, value in quota.items():
            write(os.path.join(folder, name), value)
        write(os.path.join(folder, "cgroup.procs"), str(os.getpid()))
        yield
    except OSError as failure:
        raise Skip("no control group can be used here: %s" % failure)
    finally:
        with contextlib.suppress(OSError):
            write(os.path.join(parent, "cgroup.procs"), str(os.getpid()))
        os.rmdir(folder)


def write(path, text):
    with open(path, "w", encoding="ascii") as stream:
        stream.write(text)


def refusal(model, scratch, *args):
    """Output of a daemon that must not start."""
    done = subprocess.run([program("tokenringd"), "--model", model, "--socket", os.path.join(scratch.path, "s"), *args],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60)
    assert done.returncode > 0, done.returncode
    return done.stdout.decode(errors="replace")


def check_one_cpu(held):
    with Scratch() as scratch:
        model = scratch.file("tiny.gguf", make_gguf.make_bytes(**TINY))
        with held():
            out = refusal(model, scratch, "--threads", "2")
            assert re.search(r"threads: 2 .* 1 CPU", out), out
            for args in ((), ("--threads", "1")):
                with Daemon(*args, model=model) as daemon:
                    assert "threads=1 " in daemon.log(), daemon.log()
                    assert daemon.stats()["threads"] == 1, daemon.stats()
                    assert ask(daemon, prompt="Hello", n_max=4)["prompt_tokens"] == 1


@test
def a_daemon_held_to_one_cpu_runs_one_thread_and_refuses_two_with_both_numbers():
    check_one_cpu(held_to_one_cpu)


@test
def a_quota_of_one_cpu_is_as_good_as_one_cpu():
    check_one_cpu(held_to_one_cpu_by_quota)


def answer(daemon):
    got = ask(daemon, prompt="Hello there", n_max=16)
    return got["token_ids"], got["text"]


@contextlib.contextmanager
def without_avx2():
    os.environ["LD_PRELOAD"] = NO_AVX2
    try:
        yield
    finally:
        del os.environ["LD_PRELOAD"]


@test
def a_cpu_without_avx2_gets_the_plain_kernels_with_a_warning_and_the_same_answers():
    if not NO_AVX2:
        raise Skip("the sanitizers want to be loaded first")
    with Scratch() as scratch:
        model = scratch.file("tiny.gguf", make_gguf.make_bytes(**TINY))
        with Daemon(model=model) as daemon:
            usual = answer(daemon)
            assert "lacks" not in daemon.log(), daemon.log()
        with without_avx2():
            daemon = Daemon(model=model).start()
        with daemon:
            log = daemon.log()
            if "no_avx2:" in log:
                raise Skip(re.search("no_avx2:.*", log).group())
            assert re.search("warn.*cpu=ref this CPU lacks AVX2", log, re.IGNORECASE), log
            assert "cpu=ref threads=" in log, log
            assert answer(daemon) == usual
        with without_avx2():
            for variant in ("avx2", "avxvnni", "avx512"):
                out = refusal(model, scratch, "--cpu", variant)
                assert "cpu %s: this CPU lacks AVX2" % variant in out, out


@test
def a_cpu_without_avx2_is_measured_with_the_plain_kernels():
    if not NO_AVX2:
        raise Skip("the sanitizers want to be loaded first")
    with Scratch() as scratch, without_avx2():
        model = scratch.file("tiny.gguf", make_gguf.make_bytes(**TINY))
        done = subprocess.run([program("ringctl"), "tune", "--quick", "--threads", "1", "--model", model, "--json",
                               "--cache", scratch.path], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=120)
    if "no_avx2:" in done.stderr:
        raise Skip(re.search("no_avx2:.*", done.stderr).group())
    assert done.returncode == 0, done.stderr
    kept = json.loads(done.stdout)
    assert (kept["variant"], kept["limits"]["int8_method"], kept["limits"]["int8_gops"]) == ("ref", "none", 0), kept
    assert kept["limits"]["read_gbs"] > 0, kept


# An instruction of AVX or later: by its registers, or by the v of its name (verr, verw, vm..: others).
AVX = re.compile(r"\s*[0-9a-f]+:\s+(?!ver[rw]|vm[a-z]+\s*$)(v[a-z]+|k(mov|ortest|and|or|xor|not)[bwdq]|\w+\s.*%[yz]mm)")


def functions_with_avx(path):
    listing = subprocess.run(["objdump", "-d", "--no-show-raw-insn", path], stdout=subprocess.PIPE, check=True, text=True)
    found, name, n = set(), None, 0
    for line in listing.stdout.splitlines():
        head = re.match(r"[0-9a-f]+ <(.*)>:", line)
        if head:
            name, n = head.group(1), n + 1
        elif AVX.match(line):
            found.add(name)
    return found, n


@test
def only_the_variants_hold_instructions_that_an_old_cpu_does_not_know():
    if not PLAIN or not shutil.which("objdump"):
        raise Skip("needs the libraries of the build, and objdump")
    for path in PLAIN:
        found, n = functions_with_avx(path)
        note("%s: %d functions" % (os.path.basename(path), n))
        assert n > 10 and not found, "%s: %s" % (path, ", ".join(sorted(found)[:20]))


if __name__ == "__main__":
    main()
