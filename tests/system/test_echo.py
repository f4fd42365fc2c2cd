#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The daemon with the echo engine: no model, every answer known beforehand."""

import json
import subprocess
import time

from wire import LOGPROBS, NOOP, Wire
from harness import Daemon, main, program, test, until

IGNORE_EOS = 2
SHARED = []


def shared():
    if not SHARED:
        SHARED.append(Daemon(model="echo:").start())
    return SHARED[0]


def cli(daemon, *args, stdin=None):
    return subprocess.run([program("tokenring"), *args, "--socket", daemon.socket], stdin=stdin or subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=60, check=False)


@test
def a_message_and_a_raw_prompt_come_back_as_they_are():
    for more in ([], ["--raw"]):
        done = cli(shared(), "run", *more, "Gr\u00fc\u00df dich \u20ac \U0001f600!")
        assert done.returncode == 0, done.stderr
        assert done.stdout.rstrip("\n") == "Gr\u00fc\u00df dich \u20ac \U0001f600!", (more, done.stdout)


@test
def tokens_are_bytes():
    done = cli(shared(), "tokenize", "a\u00df")
    assert json.loads(done.stdout) == {"ids": [97, 195, 159]}, (done.stdout, done.stderr)


@test
def stop_strings_and_limits_work_as_with_a_model():
    with Wire(shared().socket) as client:
        answer = client.ask(text=b"one two three", stops=[b" th"])
        assert (answer.status, answer.text, answer.result["finish"]) == ("OK", b"one two", "stop"), answer.text
        answer = client.ask(text=b"one two three", max_tokens=5)
        assert (answer.text, answer.result["finish"], answer.result["output"]) == (b"one t", "length", 5), answer.text
        answer = client.ask(text=b"abc", max_tokens=10, flags=IGNORE_EOS, temperature=1.0, seed=3)
        assert answer.text == b"abcabcab", answer.text      # two ends of sequence are among the ten


@test
def a_stream_goes_on_from_what_its_client_has():
    prompt = "halb \u20ac, halb \U0001f600".encode()
    with Wire(shared().socket) as client:
        whole = client.ask(text=prompt)
        assert whole.text == prompt
        for n in range(1, len(prompt) + 1):
            answer = client.ask(text=prompt, resume_ids=whole.ids[:n])
            assert answer.ids == whole.ids and answer.text == prompt, (n, answer.text)


@test
def a_prompt_as_long_as_the_context_is_taken_and_a_longer_one_refused():
    with Wire(shared().socket, arena_len=1 << 22) as client:
        assert client.ask(ids=[65] * 32768, max_tokens=4).status == "OK"
        answer = client.ask(ids=[65] * 32769, max_tokens=4)
        assert (answer.status, answer.result["have"], answer.result["want"]) == ("CONTEXT", 32768, 32769), answer.result
        scores = client.ask(op=LOGPROBS, text=b"hello", max_tokens=0).bulk
        assert len(scores) == 4 and all(abs(score + 5.5568) < 1e-3 for score in scores), scores    # ln 259


@test
def the_pace_is_kept_for_each_stream_and_passes_go_on_while_it_waits():
    with Daemon(model="echo:tokens_per_s=200") as daemon, Wire(daemon.socket) as client:
        begin = time.monotonic()
        streams = [client.submit(text=b"x" * 40) for _ in range(8)]
        assert client.ask(op=NOOP).status == "OK"
        client.finish(*streams)
        # 41 tokens at 200 a second; the first is not waited for. Slower is no fault of the daemon's here.
        assert time.monotonic() - begin >= 40 / 200
        assert all(answer.text == b"x" * 40 for answer in streams)
        client.cancel(endless := client.submit(text=b"x", flags=IGNORE_EOS))
        assert client.finish(endless).status == "CANCELLED"


@test
def a_reader_that_stops_ends_slow_and_the_others_never_notice():
    with Daemon(model="echo:", config={"lag_tokens_max": 64, "lag_timeout_ms": 100}) as daemon:
        with Wire(daemon.socket, cq_log2=6, max_inflight=8) as stops, Wire(daemon.socket) as reads:
            slow = stops.submit(text=b"y" * 20000)
            until("the end of the slow one", lambda: daemon.stats()["ended"].get("SLOW") == 1)
            for _ in range(20):
                assert reads.ask(text=b"z" * 500).text == b"z" * 500
            stops.finish(slow)
            assert slow.status == "SLOW" and 0 < len(slow.ids) < 20000, (slow.status, len(slow.ids))
            assert slow.text == b"y" * len(slow.ids) and slow.result["output"] == len(slow.ids)
            assert stops.ask(text=b"again").text == b"again"


@test
def one_client_beyond_its_limits_is_refused_and_another_is_not():
    config = {"client_requests_max": 2, "client_kv_positions_max": 1024}
    with Daemon(model="echo:tokens_per_s=1000", config=config) as daemon:
        with Wire(daemon.socket) as many, Wire(daemon.socket) as other:
            running = [many.submit(text=b"a" * 100, flags=IGNORE_EOS, max_tokens=400) for _ in range(2)]
            answer = many.ask(text=b"a")
            assert (answer.status, answer.result["have"], answer.result["want"]) == ("OVERLOADED", 2, 3), answer.result
            assert other.ask(text=b"a").text == b"a"
            many.finish(*running)
            answer = many.ask(text=b"a", max_tokens=2000)
            assert (answer.status, answer.result["have"], answer.result["want"]) == ("OVERLOADED", 16, 32), answer.result


@test
def who_floods_does_not_keep_another_waiting():
    config = {"running_max": 4, "queued_max": 16, "chunk_rows": 64, "client_requests_max": 0}
    with Daemon(model="echo:tokens_per_s=500", config=config) as daemon:
        with Wire(daemon.socket, max_inflight=64, arena_len=1 << 22) as flood, Wire(daemon.socket) as honest:
            streams = [flood.submit(ids=[65] * 4000, flags=IGNORE_EOS, max_tokens=4000) for _ in range(30)]
            for n in range(5):
                answer = honest.ask(text=b"hello %d" % n)
                assert answer.text == b"hello %d" % n and answer.status == "OK"
            # All of that while not one of the flood's 4000 tokens could have been done: 8 s at this pace.
            assert not any(answer.status == "OK" for answer in streams)


@test
def wrong_options_end_with_one_line():
    for name, word in (("echo:tokens_per_s=x", "tokens_per_s=0 to"), ("echo:pace=3", "unknown")):
        with Daemon(model=name, ready=False) as daemon:
            assert daemon.wait_end() != 0
            assert word in daemon.log() and len(daemon.log().splitlines()) == 1, daemon.log()
    with Daemon("--ctx", "40000", model="echo:", config={"kv_positions": 65536}, ready=False) as daemon:
        assert daemon.wait_end() != 0 and "at most 32768" in daemon.log(), daemon.log()


if __name__ == "__main__":
    try:
        main()
    finally:
        for daemon in SHARED:
            daemon.__exit__()
