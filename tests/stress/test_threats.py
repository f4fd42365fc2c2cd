#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each test that docs/threats.md names exists. Prints TAP.

    test_threats.py ROOT
"""

import os
import re
import sys

ROOT = sys.argv[1]
NAMED = re.compile(r"`(tests/[\w./-]+)` ([^;|`]+)")


def rows(page):
    """(promise, [(file, words)]) of each row of the tables."""
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("| ") else []
        if len(cells) == 2 and cells[0] != "promise":
            yield cells[0], [(path, words.strip()) for path, words in NAMED.findall(cells[1])]


def missing(path, words):
    path = os.path.join(ROOT, path)
    if not os.path.isfile(path):
        return True
    with open(path, encoding="utf-8") as stream:
        return words not in stream.read()


def main():
    with open(os.path.join(ROOT, "docs", "threats.md"), encoding="utf-8") as stream:
        promises = list(rows(stream.read()))
    without = [promise for promise, tests in promises if not tests]
    gone = ["%s: %s" % test for _, tests in promises for test in tests if missing(*test)]
    print("1..2")
    print("%s 1 - each promise of threats.md names a test" % ("not ok" if without or not promises else "ok"))
    print("%s 2 - each test that threats.md names exists" % ("not ok" if gone else "ok"))
    for line in without + gone:
        print("# " + line)
    return 1 if without or gone or not promises else 0


if __name__ == "__main__":
    sys.exit(main())
