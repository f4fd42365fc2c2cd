#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The daemon's life: settings, ready, drain, sudden death, and what ringstat says in each state."""

import json
import os
import signal
import subprocess
import time

from harness import (WAIT_S_MAX, Daemon, Scratch, ask, client, default_model, load, main, note, program, refused,
                     ringstat, test, until)
import make_gguf      # harness has put tests/tools on the path

GONE_S_MAX = 1.0        # a killed daemon is reported within a second (CASES.md 40)
SLACK_S = 1.0           # for starting to look on a busy machine

COUNTING = "1, 2, 3, 4, 5, 6,"      # the greedy answer goes on counting for hundreds of tokens


def check_config(text):
    """--check-config on this file: exit code, output."""
    with Scratch() as scratch:
        path = scratch.file("settings.yaml", text)
        done = subprocess.run([program("tokenringd"), "--check-config", "--config", path], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=WAIT_S_MAX)
    return done.returncode, done.stdout


@test
def a_valid_configuration_passes_the_check():
    code, out = check_config("threads: 2\nqueued_max: 10\nkv_prefault: false\n")
    assert code == 0, out


@test
def a_wrong_setting_is_reported_with_file_line_and_column():
    for text, place, name in (
            ("threads: 2\nthreds: 3\n", "line 2, column 1", "threds"),
            ("running_max: 4\nqueued_max: many\n", "line 2, column 1: queued_max", "many"),
            ("threads: 2\n\nkv_positions: 1\n", "line 3, column 1", "kv_positions"),
            ("threads: 2\ncpu: sse9\n", "line 2, column 1", "cpu"),
            ("threads: 2\n  drain_s: [\n", "line", None),
            ("- a\n- b\n", "line 1", None)):
        code, out = check_config(text)
        assert code > 0, "%r passed: %s" % (text, out)
        assert "settings.yaml" in out and place in out, "%r: %s" % (text, out)
        assert name is None or name in out, "%r: %s" % (text, out)


@test
def a_missing_configuration_or_model_is_refused_by_its_name():
    for option in ("--config", "--model"):
        done = subprocess.run([program("tokenringd"), option, "/nonexistent/file"], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=WAIT_S_MAX)
        assert done.returncode > 0 and "/nonexistent/file" in done.stdout, done.stdout


def tiny_model(scratch, ctx):
    """Path of a model that loads in no time and says nothing sensible."""
    return scratch.file("tiny.gguf", make_gguf.make_bytes(layers=1, embd=64, heads=1, kv_heads=1, ffn=64, ctx=ctx))


class Streaming:
    """A client that streams a long answer; its output goes to a file, so it never waits for us."""

    def __init__(self, daemon, n_max):
        self.path = os.path.join(daemon.directory, "stream")
        with open(self.path, "wb") as out, open(self.path + ".err", "wb") as err:
            self.process = subprocess.Popen(client(daemon, "run", "--raw", "--max-tokens", str(n_max), COUNTING),
                                            stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        until("first text", self.text)

    def text(self):
        with open(self.path, "rb") as stream:
            return stream.read()

    def messages(self):
        with open(self.path + ".err", encoding="utf-8", errors="replace") as stream:
            return stream.read()


@test
def daemon_client_and_ringstat_meet_at_tokenring_socket():
    with Scratch() as scratch:
        socket = os.path.join(scratch.path, "here")
        env = dict(os.environ, TOKENRING_SOCKET=socket)
        daemon = subprocess.Popen([program("tokenringd"), "--model", tiny_model(scratch, 64), "--cache", "none"],
                                  env=env, stderr=subprocess.DEVNULL)
        try:
            look = lambda: subprocess.run([program("ringstat"), "--once"], env=env, stdout=subprocess.DEVNULL,
                                          stderr=subprocess.DEVNULL, timeout=WAIT_S_MAX).returncode == 0
            until("ready", look)
            done = subprocess.run([program("tokenring"), "models"], env=env, stdout=subprocess.PIPE,
                                  timeout=WAIT_S_MAX)
            assert done.returncode == 0 and b"tiny" in done.stdout, done.stdout
        finally:
            daemon.terminate()
            assert daemon.wait(WAIT_S_MAX) == 0
        assert not os.path.exists(socket), "the socket file is left behind"


@test
def a_context_larger_than_the_pool_is_cut_to_it_with_a_visible_line():
    with Scratch() as scratch:
        with Daemon(model=tiny_model(scratch, 256), config={"kv_positions": 128}) as daemon:
            assert "context=128" in daemon.log(), daemon.log()
            done = ask(daemon, "--raw", prompt="a b", n_max=500)
            assert done["prompt_tokens"] + done["completion_tokens"] <= 128, done


@test
def ringstat_says_ready_then_stopped_and_shows_the_last_figures():
    with Daemon() as daemon:
        stats = daemon.stats()
        assert stats["state"] == "ready" and stats["pid"] == daemon.process.pid, stats
        for key in ("uptime_s", "clients", "model", "model_hash", "cpu_variant", "threads"):
            assert key in stats, key
        assert set(stats["requests"]) >= {"running", "queued", "finished", "cancelled", "failed"}
        assert set(stats["kv_pages"]) >= {"total", "used"}
        assert oct(os.stat(daemon.socket).st_mode & 0o777) == oct(0o600)
        before = stats["requests"]["finished"]
        ask(daemon, prompt=COUNTING, n_max=4)
        until("one more finished", lambda: daemon.stats()["requests"]["finished"] == before + 1)
        assert daemon.stop() == 0
        code, text = ringstat(daemon.socket)
        assert code != 0 and "stopped" in text, text
        stats = daemon.stats()
        assert stats["state"] == "stopped" and stats["requests"]["finished"] == before + 1, stats


def faults(process):
    """Page faults of a process so far, field 10 of /proc/PID/stat."""
    with open("/proc/%d/stat" % process.pid, encoding="ascii") as stream:
        return int(stream.read().rsplit(")", 1)[1].split()[7])


@test
def ready_comes_after_a_warm_up_so_the_first_answer_touches_no_more_new_memory_than_later_ones():
    counts = []
    with Daemon() as daemon:
        for _ in range(4):
            before = faults(daemon.process)
            ask(daemon, prompt=COUNTING, n_max=4)
            counts.append(faults(daemon.process) - before)
    note("page faults of four answers: %s" % counts)        # those of a client's regions, mapped at attach
    assert counts[0] <= 2 * counts[-1] + 64, counts


@test
def a_killed_daemon_is_reported_gone_within_a_second_and_ringstat_says_dead():
    with Daemon() as daemon:
        streaming = Streaming(daemon, 2000)
        daemon.process.kill()
        daemon.process.wait()
        begin = time.monotonic()
        code = streaming.process.wait(WAIT_S_MAX)
        took = time.monotonic() - begin
        note("told after %.2f s: %s" % (took, streaming.messages().strip()))
        assert code > 0 and "gone" in streaming.messages().lower(), (code, streaming.messages())
        assert took <= GONE_S_MAX + SLACK_S, took
        code, text = ringstat(daemon.socket)
        assert code != 0 and "dead" in text, text
        assert daemon.stats()["state"] == "dead"
        daemon.start()      # the socket that the dead one left is no obstacle
        assert daemon.stats()["state"] == "ready"
        assert ask(daemon, prompt=COUNTING, n_max=4)["completion_tokens"] == 4


@test
def without_a_daemon_a_client_says_so_and_fails():
    with Scratch() as scratch:
        nobody = Daemon(model="unused", socket=os.path.join(scratch.path, "nobody"))
        message = refused(nobody, "Hello")
        assert nobody.socket in message, message
        assert ringstat(nobody.socket)[0] != 0
        nobody.__exit__()


@test
def a_second_daemon_on_a_living_socket_is_refused_and_the_first_serves_on():
    with Daemon() as daemon:
        done = subprocess.run([program("tokenringd"), "--model", default_model(), "--socket", daemon.socket],
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=WAIT_S_MAX)
        assert done.returncode > 0 and daemon.socket in done.stdout, (done.returncode, done.stdout)
        assert daemon.stats()["pid"] == daemon.process.pid and daemon.stats()["state"] == "ready"
        assert ask(daemon, prompt=COUNTING, n_max=4)["completion_tokens"] == 4


@test
def a_new_daemon_takes_over_while_the_old_one_finishes_its_streams():
    with Daemon() as old:
        running = Streaming(old, 150)
        with Daemon("--takeover", socket=old.socket) as new:
            answer = ask(new, "--raw", prompt="one two", n_max=4)
            assert answer["completion_tokens"] == 4, answer
            assert old.wait_end() == 0, old.log()
            assert running.process.wait(WAIT_S_MAX) == 0, running.messages()
            with Daemon() as alone:
                again = Streaming(alone, 150)
                assert again.process.wait(WAIT_S_MAX) == 0
                assert running.text() == again.text()
            assert ringstat(new.socket)[0] == 0
            assert os.path.exists(new.socket), "the old daemon took the new one's socket file along"


@test
def on_sigterm_new_work_is_refused_and_what_ends_in_time_ends_whole():
    with Daemon(config={"drain_s": 60}) as daemon:
        whole = ask(daemon, prompt=COUNTING, n_max=100)["text"]
        streaming = Streaming(daemon, 100)
        daemon.process.terminate()
        until("draining", lambda: daemon.stats()["state"] != "ready")
        assert daemon.stats()["state"] == "draining", daemon.stats()
        assert ringstat(daemon.socket)[0] != 0
        refused(daemon, "--raw", "Hello")
        assert streaming.process.wait(WAIT_S_MAX) == 0, streaming.messages()
        assert streaming.text().decode().rstrip("\n") == whole.rstrip("\n")
        assert daemon.wait_end() == 0
        assert not os.path.exists(daemon.socket), "the socket stayed behind"


@test
def what_outlives_the_drain_limit_ends_aborted_and_the_exit_code_is_0():
    with Daemon(config={"drain_s": 1}) as daemon:
        streaming = Streaming(daemon, 4000)
        daemon.process.send_signal(signal.SIGTERM)
        code = streaming.process.wait(WAIT_S_MAX)
        message = streaming.messages()
        assert code > 0 and ("abort" in message.lower()), (code, message)
        assert streaming.text().startswith(b" 7, 8, 9"), "the text so far: %r" % streaming.text()
        assert daemon.wait_end() == 0


@test
def sigterm_without_clients_ends_at_once():
    with Daemon(config={"drain_s": 60}) as daemon:
        assert daemon.stop() == 0
        assert not os.path.exists(daemon.socket)


@test
def models_lists_the_model_that_is_served():
    with Daemon() as daemon:
        done = subprocess.run(client(daemon, "models"), stdout=subprocess.PIPE, text=True, timeout=WAIT_S_MAX)
        assert done.returncode == 0 and daemon.stats()["model"] in done.stdout, done.stdout


if __name__ == "__main__":
    main()
