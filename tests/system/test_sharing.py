#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Clients beside each other: the same answers alone and together, and nothing left of those that are killed."""

import json
import random
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

from harness import Daemon, ask, as_bytes, client, load, main, note, test, until

N_KILLED = 100
KILLED_AT_ONCE = 8
LIFE_S_MAX = 0.25       # a client dies somewhere in attach, prompt, stream or end


def texts_of_cases(*names):
    cases = {c["name"]: c for c in load("greedy.json")["cases"]}
    return [cases[name] for name in names]


def asked(case):
    return {"prompt": case["prompt"]} if "prompt" in case else {"messages": case["messages"]}


def answer(daemon, case, n_max=48, *args):
    """What must not depend on company: ids, text and counts; never times."""
    got = ask(daemon, *args, n_max=n_max, **asked(case))
    return {key: got[key] for key in ("text", "token_ids", "prompt_tokens", "completion_tokens", "finish_reason")}


EIGHT = ("greeting", "counting", "C code", "a poem", "Chinese", "four paragraphs", "Russian", "one token")


@test
def eight_runs_at_once_give_the_ids_that_each_gives_alone():
    cases = texts_of_cases(*EIGHT)
    with Daemon() as daemon:
        alone = [answer(daemon, case) for case in cases]
        with ThreadPoolExecutor(len(cases)) as pool:
            together = list(pool.map(lambda case: answer(daemon, case), cases))
    for case, one, other in zip(cases, alone, together):
        assert one == other, "%s: alone %s, together %s" % (case["name"], one, other)


@test
def a_seeded_run_draws_the_same_tokens_alone_and_among_others():
    seeded, others = texts_of_cases("a poem")[0], texts_of_cases("greeting", "counting", "a list")
    draw = ("--temperature", "0.9", "--top-p", "0.95", "--top-k", "50", "--seed", "1234")
    with Daemon() as daemon:
        alone = answer(daemon, seeded, 32, *draw)
        with ThreadPoolExecutor(4) as pool:
            company = [pool.submit(answer, daemon, case) for case in others]
            among = answer(daemon, seeded, 32, *draw)
            for future in company:
                future.result()
        other_seed = answer(daemon, seeded, 32, *draw[:-1], "4321")
    assert alone == among
    assert other_seed["token_ids"] != alone["token_ids"], "the seed changes nothing"


class Witness(threading.Thread):
    """Asks the same thing again and again until told to stop; keeps every answer."""

    def __init__(self, daemon, case):
        super().__init__()
        self.daemon_, self.case, self.answers, self.failure, self.done = daemon, case, [], None, threading.Event()

    def run(self):
        try:
            while not self.done.is_set():
                self.answers.append(answer(self.daemon_, self.case))
        except BaseException as failure:
            self.failure = failure


def kill_one(daemon, rng, cases):
    """Starts a client, and kills it at a random moment, or right away at the first bytes of its answer."""
    case = rng.choice(cases)
    at_first_bytes, life_s = rng.random() < 0.3, rng.uniform(0, LIFE_S_MAX)
    process = subprocess.Popen(client(daemon, "run", "--raw", "--max-tokens", "200", "-"), stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        process.stdin.write(as_bytes(case["prompt"]))
        process.stdin.close()
        if at_first_bytes:
            process.stdout.read(1)
        else:
            process.wait(life_s)
    except (subprocess.TimeoutExpired, BrokenPipeError):
        pass
    process.kill()
    process.stdout.close()
    process.wait()


@test
def a_hundred_clients_killed_at_random_moments_leave_nothing_and_disturb_nobody():
    witness_case = texts_of_cases("counting")[0]
    victims = texts_of_cases("four paragraphs", "one token", "a newline", "C code")
    seed = random.SystemRandom().randrange(1 << 32)
    note("seed %d" % seed)
    with Daemon() as daemon:
        solo = answer(daemon, witness_case)
        until("no client", lambda: daemon.stats()["clients"] == 0)
        before, descriptors = daemon.stats(), daemon.descriptors()
        witness = Witness(daemon, witness_case)
        witness.start()
        with ThreadPoolExecutor(KILLED_AT_ONCE) as pool:
            list(pool.map(lambda i: kill_one(daemon, random.Random(seed + i), victims), range(N_KILLED)))
        witness.done.set()
        witness.join()
        if witness.failure:
            raise witness.failure
        assert witness.answers and all(a == solo for a in witness.answers), "the witness's stream changed"
        note("%d answers beside the killed ones, all equal" % len(witness.answers))

        def returned():
            now = daemon.stats()
            return (now["clients"] == 0 and now["kv_pages"]["used"] == before["kv_pages"]["used"]
                    and now["requests"]["running"] == 0 and now["requests"]["queued"] == 0
                    and daemon.descriptors() == descriptors)

        try:
            until("the return of pages, slots and descriptors", returned)
        except AssertionError:
            note("before %s with %d descriptors" % (json.dumps(before), descriptors))
            note("now    %s with %d descriptors" % (json.dumps(daemon.stats()), daemon.descriptors()))
            raise
        after = daemon.stats()["requests"]
        note("finished %d, cancelled %d, failed %d" % (after["finished"], after["cancelled"], after["failed"]))
        assert answer(daemon, witness_case) == solo
        assert daemon.stop() == 0


if __name__ == "__main__":
    main()
