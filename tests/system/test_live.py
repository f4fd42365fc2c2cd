#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ringstat live, on a terminal, beside a real daemon: keys, moving numbers, resizing, a stopped and a killed daemon."""

import os
import re
import signal
import time

import wire
from harness import Daemon, Scratch, main, note, program, ringstat, test, tokenring, until
import make_gguf      # harness has put tests/tools on the path
from terminal import Terminal
from wire import Wire


class Live:
    """A daemon with a tiny model, and ringstat on a terminal that looks at it."""

    def __init__(self, rows=24, columns=80):
        self.rows, self.columns = rows, columns

    def __enter__(self):
        self.scratch = Scratch().__enter__()
        model = self.scratch.file("tiny.gguf", make_gguf.make_bytes(layers=1, embd=64, heads=1, kv_heads=1, ffn=64,
                                                                    ctx=512))
        self.daemon = Daemon(model=model).__enter__()
        self.screen = Terminal(self.scratch, [program("ringstat"), "-s", self.daemon.socket, "-i", "0.1"],
                               self.rows, self.columns)
        return self.daemon, self.screen

    def __exit__(self, *_):
        self.screen.__exit__()
        self.daemon.__exit__()
        self.scratch.__exit__()


@test
def the_keys_switch_the_screens_and_q_ends_it():
    with Live() as (daemon, screen):
        screen.until(r"pid %d .* ready" % daemon.process.pid)
        screen.press("c")
        screen.until(r"sorted by pid")
        screen.until(r"nobody is attached")
        screen.press("s")
        screen.until(r"sorted by inflight")
        screen.press("S")
        screen.until(r"inflight, turned")
        screen.press("r")
        screen.until(r"SQ_POS +SQ_HEAD")
        screen.press("\t")
        screen.until(r"kv pages")
        screen.press("h")
        screen.until(r"PgUp")
        screen.press("q")
        assert screen.end() == 0


@test
def numbers_move_while_requests_run():
    with Live() as (daemon, screen):
        screen.until(r"finished 0")
        assert tokenring(daemon, "run", "--raw", "--max-tokens", "20", "hello")[0] == 0
        screen.until(r"finished 1 ")
        screen.until(r"out [1-9]\d*  ")
        assert tokenring(daemon, "run", "--raw", "--max-tokens", "20", "hello")[0] == 0
        screen.until(r"finished 2 ")


@test
def an_attached_client_has_a_line_with_its_pid_its_library_and_its_raw_indices():
    with Live() as (daemon, screen):
        screen.press("c")
        with Wire(daemon.socket) as client:
            screen.until(r"%d +%d \S" % (os.getpid(), os.getuid()))
            for _ in range(3):
                assert client.ask(op=wire.NOOP).status == "OK"
            screen.press("r")
            screen.until(r"%d 0P +3 +3 +1 +3 " % os.getpid())  # three slots taken, three answers, parked again
        screen.until(r"nobody is attached")


@test
def refused_slots_are_counted_for_the_client_that_sent_them():
    with Live() as (daemon, _):
        with Wire(daemon.socket) as client:
            assert client.ask(op=17).status == "UNSUPPORTED"

            def rejected():
                clients = daemon.stats()["client_list"]
                return clients and clients[0]["requests"]["rejected"] == 1
            until("one refused slot", rejected)


@test
def who_does_not_read_is_shown_paused_and_then_slow():
    lag = {"lag_tokens_max": 64, "lag_timeout_ms": 3600000}
    for config, ending in ((lag, None), (dict(lag, lag_timeout_ms=50), "SLOW")):
        with Scratch() as scratch, Daemon(model="echo:", config=config) as daemon, \
                Terminal(scratch, [program("ringstat"), "-s", daemon.socket, "-i", "0.1"], 24, 80) as screen, \
                Wire(daemon.socket, cq_log2=6, max_inflight=8) as client:
            request = client.submit(text=b"y" * 3000)
            if ending:
                text = screen.until(r"paused 0 now  pauses 1  slow 1  displaced 0")
                assert "SLOW 1" in text and "failed 1" in text, text
                continue
            screen.until(r"paused 1 now  pauses 1  slow 0  displaced 0")
            screen.until(r"%d .* \d+p " % os.getpid())
            got = daemon.stats()
            assert got["client_list"][0]["paused"] and got["requests"]["paused"] == 1, got
            client.finish(request)
            assert request.status == "OK" and request.text == b"y" * 3000
            screen.until(r"paused 0 now  pauses [1-9]\d*  slow 0")


@test
def who_is_struck_out_for_malformed_slots_is_told_why_and_counted():
    with Daemon(model="echo:") as daemon, Wire(daemon.socket, sq_log2=8) as client:
        for n in range(200):
            client.submit(op=200, tag=n % 64)
        until("the strike", lambda: daemon.stats()["transport"]["struck"] == 1)
        message = client.shake.socket.recv(256)
        assert len(message) == 256 and message[0x10] == 15, message         # REFUSED, reason STRIKES: docs/abi.md
        got = daemon.stats()
        assert got["clients"] == 0 and got["transport"]["memory_errors"] == 0, got
        assert 64 < got["transport"]["rejected"] <= 200, got                # docs/abi.md: 64 a second is the limit


@test
def every_request_counts_once_by_its_reason_and_no_figure_goes_back():
    counters = ("finished", "cancelled", "failed", "pauses", "slow", "displaced")

    def sample(earlier):
        got = daemon.stats()
        for name in counters:
            assert got["requests"][name] >= earlier["requests"][name], (name, earlier, got)
        for group in ("tokens", "ended", "transport", "attach"):
            for name, value in earlier[group].items():
                assert got[group][name] >= value, (group, name, earlier, got)
        return got

    config = {"running_max": 2, "queued_max": 4}
    with Daemon(model="echo:tokens_per_s=2000", config=config) as daemon, Wire(daemon.socket) as client:
        got, told = daemon.stats(), {}
        for _ in range(3):
            asked = [client.submit(text=b"x" * 200) for _ in range(12)]     # some run, some wait, some are too many
            until("the first ids", lambda first=asked[0]: client.take() and first.ids)
            client.cancel(asked[0])                                         # in decode
            client.cancel(asked[3])                                         # in the queue
            got = sample(got)
            client.finish(*asked)
            asked += [client.ask(text=b"x", deadline_ns=1), client.ask(text=b"x", stop_ids=[1 << 30])]
            for answer in asked:
                told[answer.status] = told.get(answer.status, 0) + 1
        until("the last figures", lambda: sum(daemon.stats()["ended"].values()) == sum(told.values()))
        got = sample(got)
    note(str(told))
    assert got["ended"] == told and {"OK", "CANCELLED", "OVERLOADED", "DEADLINE", "INVALID"} <= set(told), (got, told)
    requests = got["requests"]
    assert requests["finished"] == told["OK"] and requests["cancelled"] == told["CANCELLED"], (got, told)
    assert requests["failed"] == sum(told.values()) - told["OK"] - told["CANCELLED"], (got, told)
    assert requests["running"] == requests["queued"] == requests["paused"] == 0, got


@test
def figures_move_during_a_long_prefill():
    with Scratch() as scratch:
        model = scratch.file("tiny.gguf", make_gguf.make_bytes(ctx=8192))
        with Daemon(model=model, config={"chunk_rows": 4}) as daemon, Wire(daemon.socket) as client:
            request, seen, slowest = client.submit(ids=[5] * 4000, max_tokens=1), [], 0
            while not request.done:
                client.take()
                began = time.monotonic()
                got = daemon.stats()
                slowest = max(slowest, time.monotonic() - began)
                seen.append(got["tokens"]["prompt"])
                assert got["state"] == "ready", got
            note("%d looks, the slowest took %.1f ms; prompt tokens %s" % (len(seen), slowest * 1000,
                                                                                  sorted(set(seen))))
            assert seen == sorted(seen) and len(set(seen) - {0, 4000}) >= 2, seen


@test
def the_time_that_the_loop_is_awake_without_a_step_is_told():
    with Daemon(model="echo:") as daemon, Wire(daemon.socket) as client:
        for _ in range(20):
            assert client.ask(text=b"x" * 50).status == "OK"
        until("some of it", lambda: daemon.stats()["transport"]["awake_ns"] > 0)
        got = daemon.stats()
        assert got["transport"]["awake_ns"] + got["steps"]["ns_sum"] < got["uptime_s"] * 1e9, got


@test
def a_daemon_whose_file_of_figures_is_gone_serves_on():
    with Daemon(model="echo:") as daemon, Wire(daemon.socket) as client:
        os.unlink(daemon.socket + ".stats")
        assert client.ask(text=b"hello").text == b"hello"
        assert ringstat(daemon.socket)[0] == 2                   # nothing to read: ringstat --help
        assert client.ask(text=b"again").text == b"again"
        assert daemon.stop() == 0


@test
def it_follows_the_size_of_the_terminal():
    with Live(rows=30, columns=120) as (_, screen):
        screen.until(r"q quit")
        for rows, columns in ((24, 80), (8, 40), (3, 20), (50, 200)):
            screen.resize(rows, columns)
            screen.press("c")

            def footer_is_last():
                return re.match(r" t top", screen.text().split("\n")[rows - 1])
            until("a footer in line %d" % rows, footer_is_last)


@test
def a_stopped_daemon_is_shown_as_paused_and_goes_on():
    with Live() as (daemon, screen):
        screen.until(r"ready")
        daemon.process.send_signal(signal.SIGSTOP)
        screen.until(r"pid %d .* paused" % daemon.process.pid)
        assert "no sign of life for" in screen.text()
        daemon.process.send_signal(signal.SIGCONT)
        screen.until(r"pid %d .* ready" % daemon.process.pid)


@test
def a_killed_daemon_is_dead_and_its_last_figures_stay():
    with Live() as (daemon, screen):
        assert tokenring(daemon, "run", "--raw", "--max-tokens", "20", "hello")[0] == 0
        screen.until(r"finished 1 ")
        daemon.process.kill()
        daemon.process.wait()
        text = screen.until(r"dead")
        assert "finished 1 " in text and "last figures" in text, text
        screen.press("q")
        assert screen.end() == 0


@test
def a_daemon_that_is_started_again_is_found():
    with Live() as (daemon, screen):
        screen.until(r"pid %d .* ready" % daemon.process.pid)
        daemon.stop()
        screen.until(r"stopped")
        daemon.start()
        screen.until(r"pid %d .* ready" % daemon.process.pid)


@test
def the_end_of_the_terminal_ends_it():
    with Live() as (_, screen):
        screen.until(r"ready")
        os.kill(screen.pid, signal.SIGHUP)
        assert screen.end() == 0


@test
def an_unknown_terminal_gets_the_figures_once():
    with Live() as (daemon, _):
        with Scratch() as scratch:
            # ncurses loses 1.6 KB when it does not know a terminal; that is not ours to find.
            with Terminal(scratch, ["/usr/bin/env", "TERM=nonesuch", "ASAN_OPTIONS=detect_leaks=0",
                                    program("ringstat"), "-s", daemon.socket], columns=200) as other:
                other.until(r"cannot show it")
                other.until(r"kv pages")
                assert other.end() == 0
        assert ringstat(daemon.socket)[0] == 0


if __name__ == "__main__":
    main()
