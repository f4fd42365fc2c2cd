# SPDX-License-Identifier: Apache-2.0
"""What the system tests share: a real daemon on a socket of its own, its clients, and TAP output.

Programs come from TOKENRING_BIN (directories, separated by ':'), else build/bin. The model comes from
TOKENRING_MODEL, else TOKENRING_TEST_MODEL, else tools/fetch-model. TOKENRING_LONG=1 runs what takes long.
Nothing here sleeps for a fixed time and hopes: it polls for an event, with a generous limit.
"""

import ctypes
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import traceback

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DATA = os.path.join(ROOT, "tests", "data")
LONG = os.environ.get("TOKENRING_LONG", "") not in ("", "0")
START_S_MAX = 120       # loading and packing on a busy machine
WAIT_S_MAX = 60         # for anything that should take well under a second
POLL_S = 0.01

sys.path.insert(0, os.path.join(ROOT, "tests", "tools"))


def program(name):
    places = os.environ.get("TOKENRING_BIN", os.path.join(ROOT, "build", "bin")).split(":")
    for place in places:
        path = os.path.join(place, name)
        if os.access(path, os.X_OK) and os.path.isfile(path):
            return path
    raise FileNotFoundError("%s is not in %s" % (name, ":".join(places)))


def default_model(found=[]):
    if not found:
        path = os.environ.get("TOKENRING_MODEL") or os.environ.get("TOKENRING_TEST_MODEL")
        if not path:
            fetch = subprocess.run([os.path.join(ROOT, "tools", "fetch-model")], check=True, text=True,
                                   stdout=subprocess.PIPE)
            path = fetch.stdout.strip()
        found.append(path)
    return found[0]


def load(name):
    with open(os.path.join(DATA, name), encoding="utf-8") as stream:
        return json.load(stream)


def until(what, condition, limit_s=WAIT_S_MAX):
    """Polls until condition() is true; its value. Fails saying what did not happen."""
    end = time.monotonic() + limit_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError("%s did not happen within %d s" % (what, limit_s))
        time.sleep(POLL_S)


class Scratch:
    """A directory for sockets and small files, gone at the end."""

    def __enter__(self):
        self.path = tempfile.mkdtemp(prefix="tokenring-test.")
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.path, ignore_errors=True)

    def file(self, name, content):
        path = os.path.join(self.path, name)
        with open(path, "wb") as stream:
            stream.write(content if isinstance(content, bytes) else content.encode())
        return path


# Numbers of system calls (asm-generic and x86-64 agree on these).
FORBIDDABLE = {"io_uring_setup": 425, "io_uring_register": 427}


def forbidder(call, error):
    """What makes one system call fail in the calling process and its children, as a container's seccomp filter does."""
    number = FORBIDDABLE[call]
    # seccomp(2), filter.h: load nr; if it is the call: return ERRNO; return ALLOW.
    code = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | error), (0x06, 0, 0, 0x7fff0000)]
    lines = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in code))
    libc = ctypes.CDLL(None, use_errno=True)

    def act():      # PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP
        program_bytes = ctypes.create_string_buffer(struct.pack("@HP", len(code), ctypes.addressof(lines)))
        if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, program_bytes, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")
    return act


class Daemon:
    """tokenringd with a socket and a log in a directory of its own; `with` starts it and ends it."""

    def __init__(self, *args, model=None, config=None, socket=None, ready=True, forbid=None, cache="none"):
        self.args, self.model, self.config, self.wait = list(args), model or default_model(), config, ready
        self.cache = cache      # folder of packed weights; None: the default one, which is the tester's own
        self.directory = tempfile.mkdtemp(prefix="tokenring-test.")
        self.socket = socket or os.path.join(self.directory, "socket")
        self.log_path = os.path.join(self.directory, "log")
        self.process = None
        self.forbid = forbid and forbidder(*forbid)     # system call (of FORBIDDABLE), errno

    def start(self):
        command = [program("tokenringd"), "--model", self.model, "--socket", self.socket]
        command += (["--cache", self.cache] if self.cache else []) + self.args
        if self.config:
            path = os.path.join(self.directory, "config.yaml")
            with open(path, "w", encoding="utf-8") as stream:
                stream.writelines("%s: %s\n" % item for item in self.config.items())
            command += ["--config", path]
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            preexec_fn=self.forbid)
        if self.wait:
            until("ready", self.is_ready, START_S_MAX)
        return self

    def is_ready(self):
        if self.process.poll() is not None:
            raise AssertionError("the daemon ended with %d: %s" % (self.process.returncode, self.log()))
        return ringstat(self.socket)[0] == 0

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as stream:
            return stream.read()

    def stats(self):
        return json.loads(ringstat(self.socket, "--json")[1])

    def descriptors(self):
        return len(os.listdir("/proc/%d/fd" % self.process.pid))

    def rss(self):
        """Resident bytes."""
        with open("/proc/%d/statm" % self.process.pid, encoding="ascii") as stream:
            return int(stream.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def wait_end(self, limit_s=WAIT_S_MAX):
        return self.process.wait(limit_s)

    def stop(self):
        """SIGTERM; the exit code. A daemon that does not end is killed, which is a failure."""
        if self.process is None or self.process.poll() is not None:
            return self.process and self.process.returncode
        self.process.terminate()
        try:
            return self.process.wait(WAIT_S_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError("the daemon did not end on SIGTERM: " + self.log())

    def __enter__(self):
        try:
            return self if self.process else self.start()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_):
        try:
            if self.process and self.process.poll() is None:
                self.process.kill()
                self.process.wait()
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)


class Skip(Exception):
    """Says why a test has nothing to try here."""


def variant_daemon(variant, **options):
    """A started daemon with these kernels; Skip where the CPU lacks them."""
    daemon = Daemon("--cpu", variant, **options)
    try:
        return daemon.start()
    except AssertionError as failure:
        daemon.__exit__()
        if variant != "ref" and "this CPU lacks" in str(failure):
            raise Skip(variant + " needs another CPU")
        raise


def ringstat(socket, *args):
    """-> exit code, output."""
    done = subprocess.run([program("ringstat"), "--once", "--socket", socket, *args], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=WAIT_S_MAX)
    return done.returncode, done.stdout


def client(daemon, command, *args):
    """The command line of `tokenring`."""
    return [program("tokenring"), command, "--socket", daemon.socket, *args]


def tokenring(daemon, command, *args, stdin=b"", limit_s=600):
    """Runs one `tokenring` command to its end: exit code, standard output, standard error (bytes, bytes, text)."""
    done = subprocess.run(client(daemon, command, *args), input=stdin, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, timeout=limit_s)
    return done.returncode, done.stdout, done.stderr.decode(errors="replace")


def ask(daemon, *args, prompt=None, messages=None, n_max=None, limit_s=600):
    """`tokenring run --json` of a raw prompt (through standard input) or of messages: the parsed line."""
    options = list(args)
    if n_max is not None:
        options += ["--max-tokens", str(n_max)]
    with Scratch() as scratch:
        if messages is not None:
            options += ["--messages", scratch.file("messages.json", json.dumps(messages))]
            code, out, err = tokenring(daemon, "run", "--json", *options, limit_s=limit_s)
        else:
            code, out, err = tokenring(daemon, "run", "--json", "--raw", *options, "-", stdin=as_bytes(prompt),
                                       limit_s=limit_s)
    assert code == 0, "exit code %d: %s%s" % (code, out.decode(errors="replace"), err)
    lines = out.decode().splitlines()
    assert len(lines) == 1, "expected one line of JSON, got %r" % out
    return json.loads(lines[0])


def as_bytes(text):
    return text.encode() if isinstance(text, str) else text


def refused(daemon, *args, stdin=b""):
    """A `tokenring run` that must be refused: its message. It fails in order, by an exit code, not by a signal."""
    code, out, err = tokenring(daemon, "run", *args, stdin=stdin)
    assert code > 0, "exit code %d with %r %r" % (code, out, err)
    assert err.strip(), "refused without a word"
    assert not out.strip() or out.lstrip().startswith(b"{"), "text before the refusal: %r" % out
    return err


# ---- TAP --------------------------------------------------------------------------------------------

TESTS = []


def test(function):
    """Registers a test; its name is the sentence that its function's name spells."""
    TESTS.append(function)
    return function


def note(text):
    """A line for the reader, beside the results."""
    for line in str(text).splitlines():
        print("# " + line, flush=True)


def main():
    """Runs the registered tests in order (or those whose names hold an argument); exit code 0 if all passed."""
    chosen = [t for t in TESTS if len(sys.argv) < 2 or any(a in t.__name__ for a in sys.argv[1:])]
    print("1..%d" % len(chosen), flush=True)
    failed = 0
    for i, function in enumerate(chosen, 1):
        name, begin = function.__name__.replace("_", " "), time.monotonic()
        try:
            function()
            print("ok %d - %s" % (i, name), flush=True)
        except Skip as reason:
            print("ok %d - %s # SKIP %s" % (i, name, reason), flush=True)
        except Exception:
            failed += 1
            print("not ok %d - %s" % (i, name), flush=True)
            note(traceback.format_exc())
        note("%.1f s" % (time.monotonic() - begin))
    sys.exit(1 if failed else 0)
