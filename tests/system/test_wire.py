#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Requests over the wire ABI from a client that is not the library: arithmetic of every weight type, ids that
are not there, cancels, deadlines, a full queue. Tiny models, so thousands of tokens take no time.
"""

import math
import random
import socket
import struct
import time

import wire
from harness import Daemon, Scratch, Skip, load, main, note, test, until, variant_daemon
import make_gguf      # harness has put tests/tools on the path
from wire import GENERATE, LOGPROBS, NOOP, TOKENIZE, Wire

# Largest difference of a log-probability from float32. f16 keys and values alone, or 8-bit activations too.
OFF_FLOAT, OFF_INTEGER = 0.005, 0.15
FLOATS = ("F32", "F16", "BF16")
IGNORE_EOS = 2
N_VOCAB, N_CTX = 293, 4096

SHARED = []


def shared():
    """One daemon with little room: 4 run, 8 wait, and a long context to keep them running."""
    if not SHARED:
        scratch = Scratch().__enter__()
        path = scratch.file("tiny.gguf", make_gguf.make_bytes(ctx=N_CTX))
        SHARED.extend([Daemon(model=path, config={"running_max": 4, "queued_max": 8}).start(), scratch])
    return SHARED[0]


def endless(client, **more):
    """A request that runs until something ends it."""
    return client.submit(ids=[5, 6, 7], flags=IGNORE_EOS, **more)


@test
def log_probabilities_of_every_weight_type_and_shape_are_those_of_float32():
    wrong = []
    for case in load("tiny.json")["cases"]:
        types = [case["options"][key] for key in ("type", "embd_type", "output_type") if key in case["options"]]
        off = OFF_FLOAT if all(t in FLOATS for t in types) else OFF_INTEGER
        with Scratch() as scratch:
            path = scratch.file("tiny.gguf", make_gguf.make_bytes(**case["options"]))
            with Daemon(model=path) as daemon, Wire(daemon.socket) as client:
                logprobs = client.ask(op=LOGPROBS, ids=case["ids"], max_tokens=0).bulk
                ids = client.ask(ids=case["ids"], max_tokens=len(case["greedy_ids"]), flags=IGNORE_EOS).ids
        assert len(logprobs) == len(case["ids"]) - 1
        worst = max(abs(a - b) for a, b in zip(logprobs, case["logprobs"]))
        top = sorted(case["logits"], reverse=True)
        margin = case["logits"][case["greedy_ids"][0]] - case["logits"][ids[0]]
        note("%s: log-probabilities within %.4f, %d of %d ids equal" % (
            case["name"], worst, next((i for i, (a, b) in enumerate(zip(ids, case["greedy_ids"])) if a != b), len(ids)),
            len(ids)))
        if worst > off or margin > 2 * off or not math.isfinite(top[0]):
            wrong.append("%s: log-probabilities off by %.4f, first id at a margin of %.4f" % (case["name"], worst, margin))
    assert not wrong, "\n".join(wrong)


@test
def every_kernel_variant_gives_the_same_bits():
    ids = [random.Random(4).randrange(3, N_VOCAB) for _ in range(150)]
    for options in ({"type": "Q4_1"}, {"type": "Q8_0"}, {"type": "Q4_0"}, {"type": "F16"}, {"type": "BF16"}):
        given = {}
        with Scratch() as scratch:
            path = scratch.file("tiny.gguf", make_gguf.make_bytes(**options))
            for variant in ("ref", "avx2", "avxvnni", "avx512"):
                try:
                    daemon = variant_daemon(variant, model=path)
                except Skip as reason:
                    note(reason)
                    continue
                with daemon, Wire(daemon.socket) as client:
                    logprobs = client.ask(op=LOGPROBS, ids=ids, max_tokens=0).bulk
                    given[variant] = (logprobs, client.ask(ids=ids, max_tokens=30, flags=IGNORE_EOS).ids)
        assert all(g == given["ref"] for g in given.values()), options


@test
def threads_and_chunks_change_no_bit():
    ids = [random.Random(5).randrange(3, N_VOCAB) for _ in range(600)]     # over two attention splits
    given = []
    with Scratch() as scratch:
        path = scratch.file("tiny.gguf", make_gguf.make_bytes(ctx=1024))
        for threads, chunk_rows in ((1, 128), (2, 128), (2, 1), (1, 7), (2, 1024)):
            config = {"threads": threads, "chunk_rows": chunk_rows}
            with Daemon(model=path, config=config) as daemon, Wire(daemon.socket) as client:
                logprobs = client.ask(op=LOGPROBS, ids=ids, max_tokens=0).bulk
                given.append((logprobs, client.ask(ids=ids, max_tokens=30, flags=IGNORE_EOS).ids))
    assert all(g == given[0] for g in given)


@test
def a_greedy_request_has_the_same_ids_alone_and_with_1_7_and_31_others():
    rng = random.Random(6)
    ids = [rng.randrange(3, N_VOCAB) for _ in range(100)]
    with Scratch() as scratch:
        path = scratch.file("tiny.gguf", make_gguf.make_bytes(ctx=1024))
        with Daemon(model=path) as daemon, Wire(daemon.socket) as client:
            alone = client.ask(ids=ids, max_tokens=60, flags=IGNORE_EOS)
            for n_others in (1, 7, 31):
                others = [client.submit(ids=[rng.randrange(3, N_VOCAB) for _ in range(rng.randrange(1, 200))],
                                        max_tokens=80, flags=IGNORE_EOS) for _ in range(n_others)]
                among = client.submit(ids=ids, max_tokens=60, flags=IGNORE_EOS)
                client.finish(among, *others)
                assert (among.ids, among.text) == (alone.ids, alone.text), n_others
                assert all(o.status == "OK" for o in others)


@test
def a_row_that_is_not_finite_ends_its_request_numeric_and_nobody_elses():
    poison = 50
    with Scratch() as scratch:
        path = scratch.file("tiny.gguf", make_gguf.make_bytes(type="F32", untied=True, poison=poison, ctx=1024))
        with Daemon(model=path) as daemon, Wire(daemon.socket) as client:
            healthy = {"ids": [9, 8, 7], "max_tokens": 100, "flags": IGNORE_EOS}
            solo = client.ask(**healthy)
            watched = client.submit(**healthy)
            for _ in range(5):
                sick = client.ask(ids=[5] * 100 + [poison, 6], max_tokens=10)
                assert sick.status == "NUMERIC" and sick.ids == [], (sick.status, sick.ids)
            client.finish(watched)
            again = client.ask(**healthy)       # in pages that held what is not finite
            assert poison not in solo.ids and solo.ids == watched.ids == again.ids
            assert daemon.stop() == 0


@test
def a_prompt_gives_the_same_log_probabilities_in_any_company():
    ids = [random.Random(3).randrange(3, N_VOCAB) for _ in range(700)]
    with Wire(shared().socket) as client, Wire(shared().socket) as other:
        alone = client.ask(op=LOGPROBS, ids=ids, max_tokens=0).bulk
        company = [endless(other, max_tokens=300) for _ in range(3)]
        among = client.ask(op=LOGPROBS, ids=ids, max_tokens=0).bulk
        other.finish(*company)
    assert alone == among


@test
def ids_outside_the_vocabulary_are_refused_by_number():
    with Wire(shared().socket) as client:
        for bad in (N_VOCAB, 0xffffffff):
            for request in ({"ids": [5, bad, 6]}, {"ids": [5], "stop_ids": [3, bad]}):
                answer = client.ask(max_tokens=4, **request)
                assert answer.status == "INVALID" and str(bad) in answer.result["message"], (answer.status, answer.result)
                assert answer.ids == []


@test
def wrong_sampling_values_and_fields_are_refused_by_name():
    f32 = lambda value: struct.pack("<f", value)
    cases = [("temperature", [(0x50, f32(value))]) for value in (-1, math.nan, math.inf, 101)]
    cases += [("top_p", [(0x54, f32(value))]) for value in (-0.1, 1.5, math.nan)]
    cases += [("min_p", [(0x58, f32(value))]) for value in (-0.1, 1.5, math.nan)]
    cases += [("top_k", [(0x4c, struct.pack("<I", 0xffffffff))]), ("head_len", [(0, struct.pack("<H", 64))])]
    with Wire(shared().socket) as client:
        for name, lies in cases:
            answer = client.ask(ids=[5], max_tokens=1, lies_of_params=lies)
            assert answer.status == "INVALID" and name in answer.result["message"], (name, answer.status, answer.result)


@test
def what_is_not_implemented_is_unsupported_and_nothing_else():
    u64 = struct.pack("<Q", 1)
    params = [("session2", 0x20, u64), ("prefix", 0x28, u64), ("grammar", 0x30, u64[:4]),
              ("labels", 0x34, u64[:4]), ("adapter", 0x3c, u64[:2]), ("on_late", 0x3e, u64[:1]), ("pooling", 0x3f, u64[:1]),
              ("pos", 0x40, u64[:4]), ("n_logprobs", 0x48, u64[:1]), ("emit", 0x49, u64[:1]),
              ("repeat", 0x5c, struct.pack("<f", 1.1))]
    with Wire(shared().socket) as client:
        for op in (*range(6, 18), 18, 255):
            answer = client.ask(op=op, ids=[5])
            assert answer.status in ("UNSUPPORTED", "INVALID"), (op, answer.status)
            assert op > 17 or answer.status == "UNSUPPORTED", (op, answer.status)
        for name, at, value in params:
            answer = client.ask(ids=[5], max_tokens=1, lies_of_params=[(at, value)])
            assert answer.status == "UNSUPPORTED", (name, answer.status, answer.result)
        assert client.ask(op=NOOP, lies=[(0x20, u64[:4])]).status == "UNSUPPORTED"     # resume_pos
        assert client.ask(ids=[5], max_tokens=1).status == "OK"


@test
def a_stream_goes_on_as_the_same_stream_from_wherever_its_client_has_it():
    how = dict(ids=[5, 6, 7], max_tokens=40, flags=IGNORE_EOS, seed=7, temperature=1.0)
    with Wire(shared().socket) as client:
        whole = client.ask(**how)
        assert whole.status == "OK" and len(whole.ids) == 40, whole.status
        for n in (1, 17, 39, 40):
            answer = client.ask(resume_ids=whole.ids[:n], resume_bytes=0, **how)
            assert answer.status == "OK" and answer.ids == whole.ids, (n, answer.status, answer.result)
            assert answer.text == whole.text, (n, answer.text, whole.text)
            assert answer.result["output"] == 40 and answer.result["prompt"] == 3, answer.result
            assert answer.result["seed"] == 7
        part = client.ask(resume_ids=whole.ids, resume_bytes=len(whole.text) // 2, **how)
        assert part.text == whole.text[len(whole.text) // 2:], part.text


@test
def a_resume_that_does_not_fit_together_is_invalid():
    u32 = struct.pack("<I", 3)
    with Wire(shared().socket) as client:
        def refused(word, **more):
            answer = client.ask(ids=[5], **more)
            assert answer.status == "INVALID" and word in answer.result["message"], (word, answer.status, answer.result)

        refused("resume_pos: 3, but 0 resume ids", lies=[(0x20, u32)])
        refused("resume_pos: 3, but 2 resume ids", resume_ids=[5, 5], lies=[(0x20, u32)])
        refused("resume_pos: 2, max_tokens is 1", resume_ids=[5, 5], max_tokens=1)
        refused("only with its seed", resume_ids=[5], temperature=1.0)
        refused("resume id", resume_ids=[1 << 30])
        refused("resume_bytes", resume_ids=[5], resume_bytes=1 << 20)
        refused("resume_bytes", resume_bytes=1)
        refused("only GENERATE", op=LOGPROBS, resume_ids=[5], lies=[(0x20, bytes(4))])


@test
def a_tokenize_past_its_deadline_is_not_answered():
    with Wire(shared().socket) as client:
        answer = client.ask(op=TOKENIZE, text=b"hello", deadline_ns=1)
        assert answer.status == "DEADLINE" and answer.bulk is None, (answer.status, answer.bulk)
        answer = client.ask(op=TOKENIZE, text=b"hello", stop_ids=[1 << 30])
        assert answer.status == "INVALID" and "stop id" in answer.result["message"], answer.result


@test
def a_pad_is_skipped_without_an_answer():
    with Wire(shared().socket) as client:
        pad = client.submit(op=wire.PAD)
        assert client.ask(op=NOOP).status == "OK" and not pad.done


@test
def a_slot_that_points_outside_the_arena_is_refused():
    with Wire(shared().socket) as client:
        size = client.grant.arena_len
        for off, length in ((size, 4), (0, size + 4), (0xfffffffc, 8), (8, 0xfffffffc), (size - 4, 8)):
            answer = client.ask(ids=[5], max_tokens=1, lies=[(0x10, struct.pack("<II", off, length))])
            assert answer.status == "INVALID", ((off, length), answer.status)
        for off, length in ((size, 128), (size - 64, 128), (0xfffffff8, 128), (4, 128), (0, 64), (0, 129)):
            answer = client.ask(ids=[5], max_tokens=1, lies=[(0x18, struct.pack("<I", off)),
                                                             (0x38, struct.pack("<I", length))])
            assert answer.status == "INVALID", ((off, length), answer.status)
        assert client.ask(op=NOOP).status == "OK"


@test
def an_id_or_tag_that_is_alive_is_a_duplicate_and_both_clients_may_use_the_same():
    with Wire(shared().socket) as client, Wire(shared().socket) as other:
        first = endless(client, tag=3, user=77, max_tokens=400)
        again = client.submit(ids=[5], max_tokens=1, tag=4, user=77)
        elsewhere = other.submit(ids=[5], max_tokens=1, tag=3, user=77)
        client.finish(again)
        same_tag = client.submit(ids=[5], max_tokens=1, tag=3, user=78)
        client.finish(first, same_tag)
        assert again.status == "DUPLICATE" and same_tag.status in ("DUPLICATE", "OK"), (again.status, same_tag.status)
        assert other.finish(elsewhere).status == "OK"
        assert first.status == "OK" and len(first.ids) == 400, (first.status, len(first.ids))


@test
def stop_ids_end_the_answer_before_them():
    with Wire(shared().socket) as client:
        whole = client.ask(ids=[5, 6, 7], max_tokens=60, flags=IGNORE_EOS)
        stop = next(i for i in whole.ids if whole.ids.index(i) > 2)
        answer = client.ask(ids=[5, 6, 7], max_tokens=60, flags=IGNORE_EOS, stop_ids=[stop])
        assert answer.ids == whole.ids[:whole.ids.index(stop)], (whole.ids, stop, answer.ids)
        assert answer.result["finish"] == "stop" and answer.result["output"] == len(answer.ids)


@test
def max_tokens_0_is_length_with_no_token():
    with Wire(shared().socket) as client:
        answer = client.ask(ids=[5, 6, 7], max_tokens=0)
        assert (answer.status, answer.ids, answer.result["finish"]) == ("OK", [], "length"), answer.result
        assert answer.result["prompt"] == 3


@test
def without_max_tokens_the_context_ends_the_answer():
    with Wire(shared().socket) as client:
        ids = [5 + i % 200 for i in range(N_CTX - 100)]
        answer = client.ask(ids=ids, flags=IGNORE_EOS)
        assert (answer.status, answer.result["finish"]) == ("OK", "length"), answer.result
        assert len(ids) + len(answer.ids) == N_CTX, len(answer.ids)
        long = client.ask(ids=[5] * (N_CTX + 1), max_tokens=1)
        assert long.status == "CONTEXT" and {long.result["have"], long.result["want"]} == {N_CTX, N_CTX + 1}, long.result


@test
def a_deadline_that_passes_in_the_queue_is_told_and_never_starts():
    with Wire(shared().socket) as client:
        busy = [endless(client) for _ in range(4)]
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        late = client.submit(ids=[5], max_tokens=1, deadline_ns=now + 5_000_000)
        past = client.submit(ids=[5], max_tokens=1, deadline_ns=1)
        client.finish(late, past)
        for answer in (late, past):
            assert answer.status == "DEADLINE" and answer.ids == [], (answer.status, answer.ids)
            assert answer.result is None or answer.result["stamps"][3] == 0, answer.result       # no prefill
        for request in busy:
            client.cancel(request)
        client.finish(*busy)


@test
def more_requests_than_run_and_wait_are_refused_at_once_with_a_hint():
    with Wire(shared().socket) as client:
        many = [endless(client) for _ in range(20)]
        until("refusals", lambda: client.take() >= 0 and sum(a.done for a in many) >= 8)
        refused = [a for a in many if a.done]
        assert refused and all(a.status == "OVERLOADED" and a.ids == [] for a in refused), [a.status for a in refused]
        assert all(a.result["retry_after_ns"] > 0 for a in refused)
        for request in many:
            client.cancel(request)
        client.finish(*[a for a in many if not a.done])
        assert {a.status for a in many} == {"OVERLOADED", "CANCELLED"}, [a.status for a in many]
        assert client.ask(ids=[5], max_tokens=1).status == "OK"


@test
def a_cancel_ends_a_request_once_wherever_it_is_and_others_do_not_change():
    prompt = [9, 8, 7]
    with Wire(shared().socket) as client, Wire(shared().socket) as other:
        solo = other.ask(ids=prompt, max_tokens=200, flags=IGNORE_EOS)
        watched = other.submit(ids=prompt, max_tokens=200, flags=IGNORE_EOS)
        decoding = endless(client)
        prefilling = client.submit(ids=[5] * 3000, max_tokens=1)
        more = [endless(client) for _ in range(3)]
        until("first ids", lambda: client.take() and decoding.ids)
        for request in (decoding, prefilling, *more):
            client.cancel(request)
            client.cancel(request)              # twice
        client.finish()
        assert all(a.done == 1 for a in (decoding, prefilling, *more))
        assert {a.status for a in (decoding, *more)} == {"CANCELLED"}
        assert prefilling.status in ("CANCELLED", "OK")
        ended = client.ask(ids=[5], max_tokens=1)
        client.cancel(ended)                    # after its end: nothing
        ordered = client.submit(op=wire.CANCEL, session=12345)     # names nobody
        assert client.finish(ordered).status in ("OK", "INVALID")
        running = endless(client)
        until("first ids", lambda: client.take() and running.ids)
        by_slot = client.submit(op=wire.CANCEL, session=running.user)
        client.finish(running, by_slot)
        assert (running.status, by_slot.status) == ("CANCELLED", "OK"), (running.status, by_slot.status)
        other.finish(watched)
        assert watched.ids == solo.ids and watched.text == solo.text
        assert client.ask(ids=[5], max_tokens=1).status == "OK"


@test
def thousands_of_random_submits_and_cancels_leave_no_page():
    rng, sent = random.Random(20), []
    with Wire(shared().socket) as client:
        while len(sent) < 2000:
            sent.append(client.submit(ids=[rng.randrange(3, N_VOCAB) for _ in range(rng.randrange(1, 90))],
                                      max_tokens=rng.choice((0, 1, 5, 30, wire.NO_LIMIT)), flags=IGNORE_EOS))
            client.take()
            if len(client.live) == 12:      # as many as run and wait: room before the next
                victim = rng.choice(list(client.live.values()))
                client.cancel(victim)
                client.finish(victim)
        for answer in list(client.live.values()):
            client.cancel(answer)
        client.finish(*sent)
    ends = [[a.status for a in sent].count(status) for status in ("OK", "CANCELLED")]
    note("%d ended OK, %d CANCELLED" % tuple(ends))
    assert sum(ends) == len(sent) and min(ends) > 200, ends
    until("every page back", lambda: shared().stats()["kv_pages"]["used"] == 0)
    stats = shared().stats()
    assert stats["requests"]["running"] == 0 and stats["requests"]["queued"] == 0, stats


@test
def a_pool_that_ends_inside_a_page_serves_its_whole_context():
    with Scratch() as scratch:
        path = scratch.file("tiny.gguf", make_gguf.make_bytes(ctx=256))
        with Daemon(model=path, config={"kv_positions": 100, "ctx": 100}) as daemon, Wire(daemon.socket) as client:
            answer = client.ask(ids=[5] * 99, max_tokens=wire.NO_LIMIT, flags=IGNORE_EOS)
            assert (answer.status, len(answer.ids)) == ("OK", 1), (answer.status, answer.ids)


@test
def hundreds_of_short_prompts_at_once_take_little_memory():
    with Scratch() as scratch:
        path = scratch.file("tiny.gguf", make_gguf.make_bytes(ctx=256))
        with Daemon(model=path) as daemon, Wire(daemon.socket, sq_log2=8, max_inflight=256) as one, \
                Wire(daemon.socket, sq_log2=8, max_inflight=256) as two:
            before = daemon.rss()
            sent = [(client, client.submit(text=b"one two three", max_tokens=1))
                    for _ in range(250) for client in (one, two)]
            for client, answer in sent:
                client.finish(answer)
            # 500 prompts of 13 bytes. One page of 4 KiB for each of the ten arrays of a request is 20 MB.
            assert daemon.rss() - before < 200e6, (before, daemon.rss())


@test
def a_client_that_does_not_read_loses_nothing_and_stops_nobody():
    with Wire(shared().socket, cq_log2=5, max_inflight=16) as slow, Wire(shared().socket) as other:
        solo = other.ask(ids=[9, 8, 7], max_tokens=500, flags=IGNORE_EOS)
        lazy = slow.submit(ids=[9, 8, 7], max_tokens=500, flags=IGNORE_EOS)      # far more than 32 lines
        for _ in range(3):
            assert other.ask(ids=[9, 8, 7], max_tokens=500, flags=IGNORE_EOS).ids == solo.ids
        assert slow.finish(lazy).status == "OK" and lazy.ids == solo.ids and lazy.text == solo.text


@test
def a_queue_that_was_full_goes_on_while_the_engine_never_rests():
    with Wire(shared().socket, cq_log2=5, max_inflight=16) as slow, Wire(shared().socket) as other:
        sent = []
        for i in range((1 << slow.grant.cq_log2) + 1):     # one more than there is room for answers
            sent.append(slow.submit(op=NOOP, tag=i % slow.grant.max_inflight))
            time.sleep(0.001)
        time.sleep(0.1)                                    # idle: the daemon puts the full queue aside
        busy = endless(other)
        until("first ids", lambda: other.take() and busy.ids)
        slow.finish(*sent)
        other.take()
        assert not busy.done, "answered only when the engine was idle again"
        other.cancel(busy)
        other.finish(busy)


@test
def connections_that_say_nothing_keep_nobody_out_while_the_engine_never_rests():
    with Scratch() as scratch:
        path = scratch.file("tiny.gguf", make_gguf.make_bytes(ctx=N_CTX))
        with Daemon(model=path, config={"clients_max": 2, "kv_positions": 64 * N_CTX}) as daemon, \
                Wire(daemon.socket, sq_log2=6, max_inflight=64) as other:
            busy = [endless(other, max_tokens=4000) for _ in range(60)]       # many rows: the steps take seconds
            until("first ids", lambda: other.take() and busy[-1].ids)
            silent = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(30)]
            for one in silent:
                one.connect(daemon.socket)
            for one in silent:
                one.close()
            with Wire(daemon.socket) as late:
                other.take()
                assert not all(b.done for b in busy), "attached only when the engine was idle again"
                assert late.ask(op=NOOP).status == "OK"


@test
def bytes_that_are_not_utf8_come_as_they_are():
    # Random weights make any bytes; the text must be the tokens' bytes put together, whole characters at a time.
    byte_of = {char: byte for byte, char in make_gguf.byte_table().items()}
    tokens = make_gguf.default_vocabulary()[0]
    with Wire(shared().socket) as client:
        for start in range(3, 40):
            answer = client.ask(ids=[start, start + 100], max_tokens=40, flags=IGNORE_EOS, temperature=1.5, seed=start)
            plain = b"".join(bytes(byte_of[c] for c in tokens[i]) if i > 2 else b"" for i in answer.ids)
            assert answer.status == "OK" and answer.text == plain[:len(answer.text)], (answer.text, plain)
            assert len(plain) - len(answer.text) < 4, (answer.text, plain)      # a character cut by the limit


@test
def tokenize_gives_ids_and_too_long_a_prompt_is_told():
    with Wire(shared().socket) as client:
        answer = client.ask(op=TOKENIZE, text=b"Hello")
        assert answer.status == "OK" and answer.bulk == [make_gguf.default_vocabulary()[0].index("Hello")], answer.bulk
        assert client.ask(op=GENERATE, text=b"!" * (N_CTX + 1), max_tokens=1).status == "CONTEXT"


@test
def the_daemon_of_all_these_requests_ends_in_order():
    daemon = shared()
    until("no client", lambda: daemon.stats()["clients"] == 0)
    assert daemon.stats()["kv_pages"]["used"] == 0
    assert daemon.stop() == 0, daemon.log()


if __name__ == "__main__":
    try:
        main()
    finally:
        for thing in SHARED:
            thing.__exit__()
