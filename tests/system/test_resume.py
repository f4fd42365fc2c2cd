#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The daemon dies or is restarted while it answers; with --reconnect each answer is that of a daemon that lived."""

import json
import signal
import subprocess

from harness import WAIT_S_MAX, Daemon, client, main, note, test, until

COUNTING = "1, 2, 3, 4, 5, 6,"      # the greedy answer goes on counting for hundreds of tokens
N_TOKENS = 80
MODES = [
    ("greedy", []),
    ("sampled", ["--temperature", "0.9", "--seed", "17"]),
    ("sampled from many", ["--temperature", "1.4", "--top-p", "0.95", "--seed", "99"]),     # many pieces of UTF-8
]


def asked(daemon, *options):
    command = client(daemon, "run", "--json", "--raw", "--max-tokens", str(N_TOKENS), *options, COUNTING)
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def answer(process):
    out, err = process.communicate(timeout=WAIT_S_MAX)
    assert process.returncode == 0, err.decode()
    line = json.loads(out)
    return line["token_ids"], line["text"], line["completion_tokens"], line["prompt_tokens"], line["finish_reason"]


def undisturbed(daemon):
    return [answer(asked(daemon, *options)) for _, options in MODES]


def end_in_the_middle(daemon, end, before):
    """Ends the daemon once it has made some tokens of every answer, and starts the next one."""
    made = daemon.stats()["tokens"]["output"]
    until("tokens", lambda: daemon.stats()["tokens"]["output"] >= made + before * len(MODES))
    assert daemon.stats()["requests"]["running"] > 0, "no answer is in the middle"
    end(daemon)
    daemon.wait_end()
    daemon.start()


def compare(want, clients):
    for (name, _), expected, process in zip(MODES, want, clients):
        got = answer(process)
        assert got == expected, "%s: expected %r, got %r" % (name, expected, got)
    note("%d ids of each of %d answers" % (N_TOKENS, len(MODES)))


@test
def answers_over_two_sudden_deaths_are_those_of_a_daemon_that_lived():
    with Daemon() as daemon:
        want = undisturbed(daemon)
        clients = [asked(daemon, "--reconnect", *options) for _, options in MODES]
        for before in (10, 30):
            end_in_the_middle(daemon, lambda d: d.process.send_signal(signal.SIGKILL), before)
        compare(want, clients)


@test
def answers_over_a_restart_in_order_are_those_of_a_daemon_that_lived():
    with Daemon(config={"drain_s": 1}) as daemon:
        want = undisturbed(daemon)
        clients = [asked(daemon, "--reconnect", *options) for _, options in MODES]
        end_in_the_middle(daemon, lambda d: d.process.terminate(), 10)
        compare(want, clients)


if __name__ == "__main__":
    main()
