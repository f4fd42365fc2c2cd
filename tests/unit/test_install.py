#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A user's view: install into a prefix, build hello.c through pkg-config, run it. Prints TAP.

  test_install.py SOURCE_ROOT BUILD_ROOT PEER CC_JSON FLAGS      FLAGS: what a sanitizer build must link with
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

SOURCE, BUILD, PEER = map(os.path.abspath, sys.argv[1:4])
CC = json.loads(sys.argv[4].replace("'", '"'))
FLAGS = sys.argv[5].split()
SECONDS_MAX = 60  # a hang fails


def run(command, **more):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=SECONDS_MAX, check=False, **more)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}")
    return done.stdout


class Prefix:
    def __init__(self, root):
        self.root = root
        run(["meson", "install", "-C", BUILD, "--no-rebuild", "--quiet", "--destdir", root])
        found = [folder for folder, _, names in os.walk(root) if "tokenring.pc" in names]
        assert len(found) == 1, found
        self.lib = os.path.dirname(found[0])
        self.env = dict(os.environ, PKG_CONFIG_PATH=found[0], PKG_CONFIG_SYSROOT_DIR=root,
                        LD_LIBRARY_PATH=self.lib)

    def pkg_config(self, *options):
        return run(["pkg-config", *options, "tokenring"], env=self.env).split()

    def header(self, name):
        with open(os.path.join(self.pkg_config("--cflags")[0][2:], "tokenring", name),
                  encoding="utf-8") as file:
            return file.read()


def example_run(prefix, name, *arguments):
    """Builds clients/examples/NAME.c as a user would, runs it beside a peer: what it printed."""
    program = os.path.join(prefix.root, name)
    run(CC + [os.path.join(SOURCE, "clients/examples", name + ".c"), "-o", program] + FLAGS
        + prefix.pkg_config("--cflags", "--libs"))
    with tempfile.TemporaryDirectory() as folder:
        socket = os.path.join(folder, "socket")
        with subprocess.Popen([PEER, socket], stdout=subprocess.PIPE, text=True) as peer:
            try:
                assert peer.stdout.readline() == "ready\n"
                return run([program, *arguments], env=dict(prefix.env, TOKENRING_SOCKET=socket))
            finally:
                peer.kill()


def hello_builds_through_pkg_config_and_prints_the_answer(prefix):
    out = example_run(prefix, "hello")
    # peer.c: the answer is the prompt
    assert out == "user:Explain quantum computing in one sentence.;\n", out


def poll_prints_every_answer_of_more_requests_than_fit_at_once(prefix):
    questions = [f"question {i}" for i in range(100)]  # tokenring.h: 64 requests at once
    out = example_run(prefix, "poll", *questions)
    # peer.c: the answer is the prompt
    assert out == "".join(f"user:{question};\n" for question in questions), out


def hello_without_a_daemon_says_so_and_exits_3(prefix):
    done = subprocess.run([os.path.join(prefix.root, "hello")], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=SECONDS_MAX, check=False,
                          env=dict(prefix.env, TOKENRING_SOCKET=os.path.join(prefix.root, "none")))
    assert done.returncode == 3, done
    assert "no daemon" in done.stderr, done.stderr


def the_header_is_clean_c11_and_pedantic(prefix):
    header_compiles(prefix, CC, "c", "-std=c11")


def the_header_is_clean_cxx17_and_pedantic(prefix):
    compilers = [c for c in ("g++", "clang++") if shutil.which(c)]
    if not compilers:
        return "no C++ compiler"
    for compiler in compilers:
        header_compiles(prefix, [compiler], "cc", "-std=c++17")
    return None


def header_compiles(prefix, compiler, suffix, standard):
    source = os.path.join(prefix.root, "use." + suffix)
    with open(source, "w", encoding="utf-8") as file:
        file.write('#include <tokenring/tokenring.h>\n'
                   'int use(tkr_conn *conn);\n'
                   'int use(tkr_conn *conn)\n'
                   '{\n'
                   '    tkr_req req = TKR_CHAT("Hi"), text = TKR_TEXT("raw");\n'
                   '    tkr_event event;\n'
                   '    tkr_req_init(&text, TKR_OP_NOOP);\n'
                   '    req.size = TKR_REQ_SIZE;\n'
                   '    return tkr_submit(conn, &req, 1) + tkr_wait(conn, &event, 1, TKR_MS(5));\n'
                   '}\n')
    run(compiler + [standard, "-pedantic-errors", "-Wall", "-Wextra", "-Wshadow", "-Wconversion",
                    "-Wold-style-cast" if suffix == "cc" else "-Wstrict-prototypes", "-Wundef",
                    "-Werror", "-fsyntax-only", source]
        + prefix.pkg_config("--cflags"))


def the_shared_library_exports_exactly_the_calls_of_the_header(prefix):
    declared = set(re.findall(r"^TKR_API [^;(]*?\*?(tkr_\w+)\(", prefix.header("tokenring.h"), re.MULTILINE))
    listing = run(["nm", "-D", "--defined-only", "--with-symbol-versions",
                   os.path.join(prefix.lib, "libtokenring.so")])
    exported = {line.split()[-1] for line in listing.splitlines() if line.split()[-2] == "T"}
    assert exported == {f"{name}@@TOKENRING_1" for name in declared}, exported ^ declared


def the_shared_library_needs_libc_only(prefix):
    if FLAGS:
        return "a sanitizer build needs its own libraries"
    listing = run(["readelf", "-d", os.path.join(prefix.lib, "libtokenring.so")])
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", listing)
    # The loader is part of the C library: it finds the thread-local text of tkr_open_error().
    assert [name for name in needed if not name.startswith("ld-linux")] == ["libc.so.6"], needed
    return None


def hello_links_with_the_static_library_too(prefix):
    hello = os.path.join(prefix.root, "hello-static")
    run(CC + [os.path.join(SOURCE, "clients/examples/hello.c"), "-o", hello] + FLAGS
        + prefix.pkg_config("--cflags") + [os.path.join(prefix.lib, "libtokenring.a")])


TESTS = [
    hello_builds_through_pkg_config_and_prints_the_answer,
    poll_prints_every_answer_of_more_requests_than_fit_at_once,
    hello_without_a_daemon_says_so_and_exits_3,
    the_header_is_clean_c11_and_pedantic,
    the_header_is_clean_cxx17_and_pedantic,
    the_shared_library_exports_exactly_the_calls_of_the_header,
    the_shared_library_needs_libc_only,
    hello_links_with_the_static_library_too,
]


def main():
    failed = 0
    print(f"1..{len(TESTS)}")
    with tempfile.TemporaryDirectory() as root:
        prefix = Prefix(root)
        for number, test in enumerate(TESTS, 1):
            skip = None
            try:
                skip = test(prefix)
                word = "ok"
            except (AssertionError, OSError, subprocess.TimeoutExpired) as error:
                print("# " + str(error).replace("\n", "\n# "))
                word = "not ok"
                failed += 1
            print(f"{word} {number} - {test.__name__}" + (f" # SKIP {skip}" if skip else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
