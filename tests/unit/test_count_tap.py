#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/count-tap, whose last line decides whether a change lands. Prints TAP."""
import json
import os
import subprocess
import sys
import tempfile

ROOT = os.path.abspath(sys.argv[1])


def count(*programs, extra=()):
    """Returns (exit code, last line) for programs given as (result, stdout)."""
    with tempfile.TemporaryDirectory() as folder:
        log = os.path.join(folder, "gcc.json")
        with open(log, "w", encoding="utf-8") as out:
            for number, (result, stdout) in enumerate(programs):
                out.write(json.dumps({"name": f"p{number}", "result": result, "stdout": stdout}))
                out.write("\n")
        run = subprocess.run([sys.executable, os.path.join(ROOT, "tools/count-tap"), *extra, log],
                             text=True, stdout=subprocess.PIPE, check=False)
        return run.returncode, run.stdout.splitlines()[-1]


def each_tap_line_counts_once():
    return count(("OK", "1..2\nok 1 - a\nok 2 - b\n"), ("OK", "1..1\nok 1 - c\n")) == \
        (0, "3 passed, 0 failed")


def a_failed_line_counts_as_one_failure_and_the_others_still_pass():
    return count(("FAIL", "1..3\nok 1 - a\nnot ok 2 - b: Assertion 'x' failed\nok 3 - c\n")) == \
        (1, "2 passed, 1 failed")


def a_program_that_stops_before_its_plan_is_done_has_failed():
    return count(("ERROR", "1..3\nok 1 - a\n")) == (1, "1 passed, 1 failed")


def a_program_that_passes_all_and_then_crashes_has_failed():
    return count(("FAIL", "1..1\nok 1 - a\n")) == (1, "1 passed, 1 failed")


def a_program_that_times_out_has_failed():
    return count(("TIMEOUT", "")) == (1, "0 passed, 1 failed")


def a_program_without_tap_counts_once():
    return count(("OK", "hello\n")) == (0, "1 passed, 0 failed")


def a_skipped_test_has_not_passed():
    return count(("OK", "1..2\nok 1 - a # SKIP no GPU\nok 2 - b\n")) == (0, "1 passed, 0 failed")


def nothing_run_is_no_success():
    return count() == (1, "0 passed, 0 failed")


def a_build_that_failed_is_counted():
    return count(("OK", "1..1\nok 1 - a\n"), extra=("--failed", "1")) == (1, "1 passed, 1 failed")


RULES = [
    each_tap_line_counts_once,
    a_failed_line_counts_as_one_failure_and_the_others_still_pass,
    a_program_that_stops_before_its_plan_is_done_has_failed,
    a_program_that_passes_all_and_then_crashes_has_failed,
    a_program_that_times_out_has_failed,
    a_program_without_tap_counts_once,
    a_skipped_test_has_not_passed,
    nothing_run_is_no_success,
    a_build_that_failed_is_counted,
]


def main():
    failed = 0
    print(f"1..{len(RULES)}")
    for number, rule in enumerate(RULES, 1):
        passed = rule()
        failed += not passed
        print(f"{'ok' if passed else 'not ok'} {number} - {rule.__name__}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
