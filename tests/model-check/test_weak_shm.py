#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles shm/ring.h and shm/doorbell.h against Relacy and runs them there: as they are they must
hold in every schedule that is tried, and with an order weakened they must be caught. Prints TAP.
TOKENRING_LONG=1 tries fifty times as many schedules.

  test_weak_shm.py SOURCE_ROOT
"""
import os
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
HEADER = "/usr/include/relacy/relacy.hpp"
SCHEDULES = 20000
LONG_FACTOR = 50
TIMEOUT_S = 1800

HELD = "held"
RACE = "caught: DATA RACE"
ASLEEP = "caught: DEADLOCK"

# sentence, test, mistake, verdict
TESTS = [
    ("slots are read whole and rewritten only when given back", "ring", "NOTHING", HELD),
    ("a relaxed store of seq is caught", "ring", "RELAXED_PUBLISH", RACE),
    ("a relaxed load of seq is caught", "ring", "RELAXED_READY", RACE),
    ("a relaxed store of the consumer's position is caught", "ring", "RELAXED_CREDIT", RACE),
    ("a relaxed load of the consumer's position is caught", "ring", "RELAXED_CREDIT_LOAD", RACE),
    ("ringing and parking lose no wake", "bell", "NOTHING", HELD),
    ("a client without a fence loses a wake", "bell", "NO_FENCE_FIRST", ASLEEP),
    ("a daemon without a fence loses a wake", "bell", "NO_FENCE_SECOND", ASLEEP),
    ("a relaxed store of seq is caught behind a doorbell", "bell", "RELAXED_PUBLISH", RACE),
    ("a client that waits loses no wake", "wait", "NOTHING", HELD),
    ("a publishing daemon without a fence loses a wake", "wait", "NO_FENCE_FIRST", ASLEEP),
    ("a waiting client without a fence loses a wake", "wait", "NO_FENCE_SECOND", ASLEEP),
]


def run(*command):
    """Returns what the command printed."""
    try:
        return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              errors="replace", timeout=TIMEOUT_S, check=False).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)


def main():
    root = sys.argv[1]
    print(f"1..{len(TESTS)}", flush=True)
    missing = [] if shutil.which("g++") else ["g++"]
    if not os.path.exists(HEADER):
        missing.append("relacy-dev")
    if missing:
        for i, (sentence, test, _, _) in enumerate(TESTS, 1):
            print(f"ok {i} - weak {test}: {sentence} # SKIP {' and '.join(missing)} not installed")
        return 0

    schedules = SCHEDULES * (LONG_FACTOR if os.environ.get("TOKENRING_LONG") else 1)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "weak_shm")
        # The headers are C: what C++ calls an error in them (void * to T *) it lets pass when asked.
        built = run("g++", "-std=gnu++11", "-O2", "-w", "-fpermissive", "-I", os.path.join(HERE, "relacy"),
                    "-I", root, "-o", program, os.path.join(HERE, "relacy", "weak_shm.cc"))
        for i, (sentence, test, mistake, verdict) in enumerate(TESTS, 1):
            output = run(program, test, mistake, str(schedules)) if os.path.exists(program) else built
            good = output.startswith(verdict)
            failed += not good
            print(f"{'ok' if good else 'not ok'} {i} - weak {test}: {sentence}", flush=True)
            print(f"# {output.splitlines()[0] if output else 'no output'}"
                  f"{f' in {schedules} schedules' if good and verdict == HELD else ''}", flush=True)
            if not good:
                print(f"# expected '{verdict}'\n# " + "\n# ".join(output.splitlines()[:60]), flush=True)
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
