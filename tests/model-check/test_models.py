#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the SPIN models of this folder: each must hold in every state, and each planted mistake must
be caught for the expected reason. Prints TAP. TOKENRING_LONG=1 searches larger models, too.

  test_models.py            all of them
  test_models.py WORD       those with WORD in their name or options
"""
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
WORKERS = 2
MEMORY_MB = 2000
TIMEOUT_S = 240
TIMEOUT_LONG_S = 1800

# What the search must say.
HOLDS = "errors: 0"
HANGS = "invalid end state"    # somebody waits for ever
LIES = "assertion violated"

# sentence, model, options, verdict
TESTS = [
    ("the doorbell loses no wake", "doorbell", "", HOLDS),
    ("a client without a fence loses a wake", "doorbell", "NO_FENCE_CLIENT", HANGS),
    ("a daemon without a fence loses a wake", "doorbell", "NO_FENCE_DAEMON", HANGS),
    ("a client whose fence comes before its slot loses a wake", "doorbell", "FENCE_BEFORE_PUT", HANGS),
    ("a daemon that parks without a last look loses a wake", "doorbell", "NO_RECHECK", HANGS),
    ("a daemon that reads the bell after its last look loses a wake", "doorbell", "LATE_BELL", HANGS),
    ("a daemon that says it sleeps after its last look loses a wake", "doorbell", "NEED_AFTER_RECHECK", HANGS),
    ("a client that wakes without moving the bell loses a wake", "doorbell", "NO_BUMP", HANGS),
    ("a daemon that ignores the wake of an earlier parking loses a wake", "doorbell", "STALE_WAKE_IGNORED", HANGS),

    ("slots are read whole and rewritten only when given back", "ring", "", HOLDS),
    ("a seq before its payload is caught", "ring", "SEQ_FIRST", LIES),
    ("a payload that is read before its seq is caught", "ring", "PAYLOAD_FIRST_READ", LIES),
    ("a credit before the read is caught", "ring", "CREDIT_FIRST", LIES),
    ("a producer that never looks for room is caught", "ring", "NO_ROOM_CHECK", LIES),
    ("a full flag in place of a position is caught", "ring", "FULL_FLAG", LIES),
    ("a lying consumer never widens the producer's room", "ring", "LIAR", HOLDS),
    ("a producer that believes every position is caught", "ring", "LIAR NO_CLAMP", LIES),

    ("a waiting client loses no wake, woken directly or by the waker", "wait", "", HOLDS),
    ("a waiting client without a fence loses a wake", "wait", "NO_FENCE_CLIENT", HANGS),
    ("a wait that counts as answered before its position is reached loses its wake", "wait", "SERVED_EARLY", HANGS),
    ("a publishing daemon without a fence loses a wake", "wait", "NO_FENCE_DAEMON", HANGS),
    ("a client that sleeps without a last look loses a wake", "wait", "NO_RECHECK", HANGS),
    ("a client that reads the bell after its last look loses a wake", "wait", "LATE_BELL", HANGS),
    ("a bell that moves after the wake is queued loses a wake", "wait", "BELL_AFTER_WAKE", HANGS),
    ("a wake without a moved bell is lost", "wait", "NO_BUMP", HANGS),
    ("a wake at exactly one position misses a batch that passes it", "wait", "WAKE_EQUAL", HANGS),
    ("a wake dropped when the waker's queue is full is lost", "wait", "WAKE_DROPPED", HANGS),
    ("a waker without a fence loses a wake", "wait", "WAKER_NO_FENCE", HANGS),
    ("a wake queued for the waker without a fence is lost", "wait", "WAKER_PUT_NO_FENCE", HANGS),
    ("a waker that sleeps without a last look loses a wake", "wait", "WAKER_NO_RECHECK", HANGS),
    ("a waker that reads its bell late loses a wake", "wait", "WAKER_LATE_BELL", HANGS),
    ("a daemon that ends wakes its clients, who get every line first", "wait", "GONE LINES=2", HOLDS),
    ("a daemon that ends without a wake leaves its clients asleep", "wait", "GONE LINES=2 GONE_SILENT", HANGS),
    ("a client that believes GONE at once loses lines", "wait", "GONE LINES=2 GONE_FIRST_LOOK", LIES),
    ("a stray wake does no harm", "wait", "STRAY LINES=2", HOLDS),
    ("a client that takes a wake for a line is caught", "wait", "STRAY LINES=2 TRUSTS_WAKE", LIES),

    ("two queues parked apart, each with its bell, lose no wake", "queues", "", HOLDS),
    ("a submitter without a fence loses a wake", "queues", "NO_FENCE_CLIENT", HANGS),
    ("a daemon that parks a queue without a fence loses a wake", "queues", "NO_FENCE_DAEMON", HANGS),
    ("one need_wakeup word for both queues loses a wake", "queues", "NEED_SHARED", HANGS),
    ("a last look at one queue for both loses a wake", "queues", "LOOKS_AT_ONE", HANGS),
    ("a daemon that sleeps beside a hot queue loses a slot", "queues", "SLEEPS_BESIDE_HOT", HANGS),
    ("a client that rings the first queue's bell for each loses a wake", "queues", "RINGS_FIRST_BELL", HANGS),
    ("a bell that heats the first queue whichever rang loses a wake", "queues", "HEATS_FIRST_QUEUE", HANGS),
    ("a wait armed once for both queues loses a wake", "queues", "ARMED_SHARED", HANGS),
    ("a wait for the value of the other queue's bell never rests", "queues", "VALUE_OF_FIRST", LIES),
    ("two queues rung by bytes on one socket lose no wake", "queues", "SOCKET", HOLDS),
    ("a byte that finds the socket full need not be sent", "queues", "SOCKET CAP=1", HOLDS),
    ("a submitter that sends without a fence loses a wake", "queues", "SOCKET NO_FENCE_CLIENT", HANGS),
    ("a daemon that parks without a fence before it arms loses a wake", "queues", "SOCKET NO_FENCE_DAEMON", HANGS),
    ("one need_wakeup word for both queues of a socket loses a wake", "queues", "SOCKET NEED_SHARED", HANGS),
    ("a last look at one queue for both of a socket loses a wake", "queues", "SOCKET LOOKS_AT_ONE", HANGS),
    ("a byte that heats one of the parked queues loses a wake", "queues", "SOCKET RUNG_ONE", HANGS),
    ("a byte that heats nobody beside a hot queue loses a wake", "queues", "SOCKET RUNG_UNLESS_HOT", HANGS),
    ("a socket emptied after the last look loses a wake", "queues", "SOCKET TAKE_AFTER_LOOK", HANGS),
    ("a poll that misses the bytes before it loses a wake", "queues", "SOCKET ARM_SEES_NEW_ONLY", HANGS),
    ("a poll that fired and counts as armed loses a wake", "queues", "SOCKET ARMED_KEPT", HANGS),
    ("a socket armed by parking and again by the clock is caught", "queues", "SOCKET RUNG_KEPT", LIES),

    ("waits by futex and by socket lose no wake and are answered once", "arm", "", HOLDS),
    ("bytes left in the client's socket lose no wake", "arm", "CAP=2", HOLDS),
    ("a client that waits without a fence loses a wake", "arm", "NO_FENCE_CLIENT", HANGS),
    ("a daemon that looks for waits without a fence loses one", "arm", "NO_FENCE_DAEMON", HANGS),
    ("a client that arms without a look loses a wake", "arm", "ARMS_WITHOUT_LOOK", HANGS),
    ("a client that empties its socket after its look loses a wake", "arm", "TAKE_AFTER_LOOK", HANGS),
    ("a client that takes a byte for a line is caught", "arm", "TRUSTS_BYTE", LIES),
    ("a flag for answered in place of the wait loses the next wake", "arm", "SERVED_FLAG", HANGS),
    ("a wait that counts as answered before its line loses its wake", "arm", "SERVED_EARLY", HANGS),
    ("a wait that is answered for each line is caught", "arm", "NOT_SERVED", LIES),
    ("a byte that is due in place of the bell that is due loses a wake", "arm", "KIND_KEPT", HANGS),
    ("a byte dropped when the waker's queue is full is lost", "arm", "DUE_DROPPED", HANGS),

    ("a submitter that waits for room is woken, and the daemon it waits for, too", "room", "", HOLDS),
    ("the submitter's fence is FUTEX_WAIT's own as well", "room", "NO_FENCE_CLIENT", HOLDS),
    ("a daemon that looks for submitters without a fence loses a wake", "room", "NO_FENCE_DAEMON", HANGS),
    ("a submitter that sleeps without a last look loses a wake", "room", "NO_RECHECK", HANGS),
    ("a submitter that reads sq_head after its last look loses a wake", "room", "LATE_HEAD", HANGS),
    ("a submitter that sleeps on a newer sq_head than it knows loses a wake", "room", "OLD_CREDIT", HANGS),
    ("a sq_head that moves after the look at sq_wait loses a wake", "room", "HEAD_AFTER_LOOK", HANGS),
    ("a daemon that looks at sq_wait only when it published loses a wake", "room", "LINES_ONLY", HANGS),
    ("a submitter's wake dropped when the waker's queue is full is lost", "room", "DUE_DROPPED", HANGS),
    ("a submitter that sleeps for room before it rang waits for ever", "room", "SLEEPS_UNRUNG", HANGS),

    ("a client's hot queues take turns, and each has its own", "turn", "", HOLDS),
    ("a turn that stays with a queue that parked is caught", "turn", "TURN_STAYS", LIES),
    ("a turn that begins at the lowest queue after each look is caught", "turn", "LOWEST_NEXT", LIES),
    ("a turn that begins at the lowest queue after each parking is caught", "turn", "LOWEST_AFTER_PARK", LIES),

    ("each slot ends once, and a stale cancel ends nothing", "cancel", "", HOLDS),
    ("a cancel word that names no request ends a later one", "cancel", "WORD_IS_FLAG", LIES),
    ("a cancel word looked at only when it changes is lost", "cancel", "WORD_AT_EDGE", HANGS),
    ("a CANCEL slot that ends its request by itself is caught", "cancel", "SLOT_ENDS_IT", LIES),
    ("a CANCEL slot unanswered because its request has ended is caught", "cancel", "SLOT_UNANSWERED", HANGS),
    ("a terminal without a reserved line finds the queue full", "cancel", "NO_RESERVE", LIES),
    ("a tag used again before its DONE was read is caught", "cancel", "TAG_FREE_AT_CANCEL", LIES),
    ("a result record written after DONE is caught", "cancel", "RECORD_AFTER_DONE", LIES),
    ("a line after DONE is caught", "cancel", "LINE_AFTER_DONE", LIES),
    ("a cancel forgotten by a step is caught", "cancel", "CANCEL_NOT_KEPT", HANGS),

    ("a client is freed when nobody holds it, and always", "detach", "", HOLDS),
    ("unmapping before the waits are reaped is caught", "detach", "UNMAP_BEFORE_REAP", LIES),
    ("a wait that is not cancelled keeps a dead client for ever", "detach", "NO_CANCEL", HANGS),
    ("freeing a client that a job still holds is caught", "detach", "REFS_IGNORED", LIES),
    ("a place in the table given away at detach is caught", "detach", "SLOT_FREE_AT_DETACH", LIES),
    ("a client detached by both its pidfd and its socket is caught", "detach", "DETACH_TWICE", LIES),
    ("a wake still due for a freed client is caught", "detach", "DUE_KEPT", LIES),
    ("a wait armed for a dead client is caught", "detach", "PARKS_THE_DEAD", HANGS),
    ("taking a cancelled wait for a reaped one is caught", "detach", "ARMED_CLEARED_AT_CANCEL", LIES),
    ("a waker that stores to the word of a client is caught", "detach", "WAKER_STORES", LIES),
    ("a byte due to a client that nobody holds is caught", "detach", "WAKER_NO_REF", LIES),
    ("a socket armed again for a dead client is caught", "detach", "RUNG_KEPT", LIES),
]

LONG_TESTS = [
    ("the doorbell loses no wake, more slots", "doorbell", "SLOTS=8 PASSES=4", HOLDS),
    ("slots are read whole, ten laps", "ring", "LINES=20", HOLDS),
    ("a lying consumer never widens the producer's room, more lies", "ring", "LIAR LINES=6", HOLDS),
    ("a waiting client loses no wake, with stray ones", "wait", "STRAY", HOLDS),
    ("a daemon that ends wakes its clients, more lines", "wait", "GONE", HOLDS),
    ("two queues with bells lose no wake, more peeks", "queues", "PEEKS=3", HOLDS),
    ("two queues on one socket lose no wake, more slots and bytes", "queues", "SOCKET SLOTS=4 CAP=3 TAKE=2", HOLDS),
    ("waits by futex and by socket are answered once, more bytes", "arm", "CAP=3 TAKE=2 STRAYS=3", HOLDS),
    ("a submitter that waits for room is woken, more slots", "room", "SLOTS=5 PEEKS=2", HOLDS),
    ("five hot queues take turns", "turn", "QUEUES=5", HOLDS),
    ("each slot ends once, more requests and lines", "cancel", "REQUESTS=7 LINES=3 CQ=4", HOLDS),
    ("clients are freed, three on one place", "detach", "CLIENTS=3", HOLDS),
]


def search(model, options, verdict, timeout_s):
    """Returns (what the search printed, seconds)."""
    defines = [f"-D{option}" for option in options.split()]
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        def run(*command):
            return subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True, errors="replace", timeout=timeout_s, check=False).stdout
        try:
            output = run("spin", *defines, "-a", os.path.join(HERE, model + ".pml"))
            optimise = "-O2" if verdict == HOLDS else "-O0" # a mistake shows after few states
            output += run("gcc", optimise, "-w", "-DSAFETY", "-DCOLLAPSE", f"-DMEMLIM={MEMORY_MB}",
                          "-o", "pan", "pan.c")
            output += run("./pan", "-m200000")
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error), time.monotonic() - begin
    return output, time.monotonic() - begin


def judge(output, verdict):
    """Returns None when the search said what it must, else why not."""
    incomplete = ("out of memory", "max search depth too small", "Search not completed")
    if verdict == HOLDS:
        if not re.search(r"errors: 0\b", output) or any(word in output for word in incomplete):
            return "the search found an error or did not come to its end"
    elif "errors: 1" not in output or f"pan:1: {verdict}" not in output:
        return f"the mistake was not caught: no '{verdict}'"
    return None


def main():
    tests = TESTS + (LONG_TESTS if os.environ.get("TOKENRING_LONG") else [])
    if len(sys.argv) > 1:
        tests = [t for t in tests if sys.argv[1] in f"{t[1]}: {t[0]} {t[2]}"]
    print(f"1..{len(tests)}", flush=True)
    missing = [tool for tool in ("spin", "gcc") if not shutil.which(tool)]
    if missing:
        for i, (sentence, model, _, _) in enumerate(tests, 1):
            print(f"ok {i} - {model}: {sentence} # SKIP {' and '.join(missing)} not installed")
        return 0

    failed = 0
    with concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        runs = [pool.submit(search, *test[1:], TIMEOUT_LONG_S if test in LONG_TESTS else TIMEOUT_S)
                for test in tests]
        for i, ((sentence, model, _, verdict), result) in enumerate(zip(tests, runs), 1):
            output, seconds = result.result()
            why = judge(output, verdict)
            states = re.search(r"([\d.e+]+) states, stored", output)
            print(f"{'not ok' if why else 'ok'} {i} - {model}: {sentence}")
            print(f"# {states.group(1) if states else 'no'} states, {seconds:.1f} s", flush=True)
            if why:
                failed += 1
                print(f"# {why}\n# " + "\n# ".join(output.splitlines()[-25:]), flush=True)
    return failed != 0


if __name__ == "__main__":
    sys.exit(main())
