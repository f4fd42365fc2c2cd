#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ringstat against stats files that this test writes itself, from the offsets in docs/abi.md.

Usage: test_ringstat.py RINGSTAT. Prints TAP.
"""
import fcntl
import json
import os
import struct
import subprocess
import sys
import tempfile
import time

RINGSTAT = os.path.abspath(sys.argv[1])
STARTING, READY, DRAIN, GONE = 1, 2, 3, 4
MODEL_HASH = bytes(range(32))


def start_ticks(pid):
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
        return int(stat.read().rsplit(")", 1)[1].split()[19])  # field 22 of proc(5)


def page(state, pid=None, magic=b"TKRSTAT1", major=1, started_s=100.0, stopped_s=None, silent_s=60.0, running=0):
    """The first page of a stats file, by offset."""
    now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    start = now - int(started_s * 1e9)
    pid = pid or os.getpid()
    out = bytearray(4096)
    struct.pack_into("<8sHHIII", out, 0x00, magic, major, 0, 0x270, pid, 0)
    struct.pack_into("<QQQ", out, 0x18, start_ticks(pid), start, int(time.time() - started_s))
    struct.pack_into("<16s80s32s16s", out, 0x30, b"0.1.0", b"SmolLM2-135M-Instruct", MODEL_HASH, b"avx512")
    stopped = start + int(stopped_s * 1e9) if stopped_s else 0
    struct.pack_into("<QQQQQ", out, 0xC0, state, now - int(silent_s * 1e9), stopped, 2, 1)
    struct.pack_into("<QQQQ", out, 0xE8, 3, 120, 5, 0)
    struct.pack_into("<QQQQQ", out, 0x108, running, 1, 117, 4, 6)
    struct.pack_into("<QQQQ", out, 0x130, 5120, 7424, 512, 64)
    struct.pack_into("<QQQQ", out, 0x150, 1000, 2500, 4_000_000_000, 3_900_000)
    struct.pack_into("<7Q", out, 0x170, 117, 0, 0, 0, 1, 5, 4)  # OK, .., DEADLINE, OVERLOADED, CANCELLED
    return bytes(out)


class Daemon:
    """A stats file; alive while the lock is held."""

    def __init__(self, folder, data, alive=True):
        self.socket = os.path.join(folder, "socket")
        os.makedirs(folder, exist_ok=True)
        self.file = open(self.socket + ".stats", "wb+")
        self.file.write(data)
        self.file.flush()
        if alive:
            fcntl.flock(self.file, fcntl.LOCK_EX)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()


def ringstat(*args, env=None):
    """Returns (exit code, stdout, stderr)."""
    clean = {k: v for k, v in os.environ.items() if k not in ("TOKENRING_SOCKET", "XDG_RUNTIME_DIR")}
    clean.update(env or {})
    run = subprocess.run([RINGSTAT, *args], text=True, env=clean, check=False, timeout=60,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return run.returncode, run.stdout, run.stderr


def once_json(daemon):
    code, out, _ = ringstat("--once", "--json", "--socket", daemon.socket)
    return code, json.loads(out)


def a_ready_daemon_is_exit_0_and_json_has_every_promised_figure(folder):
    with Daemon(folder, page(READY)) as daemon:
        code, got = once_json(daemon)
    assert code == 0, code
    assert 99 < got.pop("uptime_s") < 1000
    want = {
        "state": "ready", "pid": os.getpid(), "clients": 3,
        "requests": {"running": 0, "queued": 1, "finished": 117, "cancelled": 4, "failed": 6,
                     "paused": None, "pauses": None, "slow": None, "displaced": None},
        "kv_pages": {"total": 512, "used": 64}, "model": "SmolLM2-135M-Instruct",
        "model_hash": MODEL_HASH.hex(), "cpu_variant": "avx512", "threads": 2,
        "tokens": {"prompt": 5120, "output": 7424}, "io": "io_uring futex",
        "ended": {"OK": 117, "DEADLINE": 1, "OVERLOADED": 5, "CANCELLED": 4},
    }
    for key, value in want.items():
        assert got[key] == value, (key, got[key])


def json_is_one_line(folder):
    with Daemon(folder, page(READY)) as daemon:
        _, out, err = ringstat("--once", "--json", "--socket", daemon.socket)
    assert out.count("\n") == 1 and out.endswith("\n") and not err, (out, err)


def the_text_names_the_model_the_state_and_the_figures(folder):
    with Daemon(folder, page(READY)) as daemon:
        code, out, _ = ringstat("--once", "--socket", daemon.socket)
    assert code == 0, code
    for part in ("ready", "SmolLM2-135M-Instruct", "000102030405", "avx512, 2 threads",
                 "running 0  queued 1  finished 117  cancelled 4  failed 6", "OVERLOADED 5",
                 "in 5120  out 7424", "mean 4.00 ms  last 3.90 ms  rows a step 2.5", "64 of 512 used (12 %)"):
        assert part in out, (part, out)
    assert max(map(len, out.splitlines())) <= 80, out


def a_starting_or_draining_daemon_is_exit_1(folder):
    for state, name in ((STARTING, "starting"), (DRAIN, "draining")):
        with Daemon(folder, page(state)) as daemon:
            code, got = once_json(daemon)
        assert (code, got["state"]) == (1, name), (code, got)


def a_dead_daemon_is_exit_1_says_so_and_shows_its_last_figures(folder):
    with Daemon(folder, page(READY), alive=False) as daemon:
        code, got = once_json(daemon)
        text_code, out, _ = ringstat("--once", "--socket", daemon.socket)
    assert (code, got["state"]) == (1, "dead"), (code, got)
    assert got["requests"]["finished"] == 117
    assert 39.9 < got["uptime_s"] < 40.1, got["uptime_s"]  # until its last sign of life
    assert text_code == 1 and "last figures" in out and "finished 117" in out, out


def a_recycled_pid_does_not_make_a_dead_daemon_alive(folder):
    # Our own pid lives, with the right start ticks even; only the lock is missing.
    with Daemon(folder, page(READY, pid=os.getpid()), alive=False) as daemon:
        code, got = once_json(daemon)
    assert (code, got["state"]) == (1, "dead"), (code, got)


def a_stopped_daemon_is_exit_1_and_its_uptime_stands_still(folder):
    with Daemon(folder, page(GONE, stopped_s=60.0), alive=False) as daemon:
        code, got = once_json(daemon)
    assert (code, got["state"]) == (1, "stopped"), (code, got)
    assert 59.9 < got["uptime_s"] < 60.1, got["uptime_s"]


def a_daemon_halted_by_a_signal_is_paused_and_its_figures_are_shown(folder):
    child = subprocess.Popen(["sleep", "600"])
    try:
        child.send_signal(19)  # SIGSTOP
        os.waitpid(child.pid, os.WUNTRACED)
        with Daemon(folder, page(READY, pid=child.pid)) as daemon:
            code, got = once_json(daemon)
    finally:
        child.kill()
        child.wait()
    assert (code, got["state"], got["clients"]) == (1, "paused", 3), (code, got)


def nothing_there_is_exit_2_and_names_the_place(folder):
    socket = os.path.join(folder, "none")
    code, out, err = ringstat("--once", "--socket", socket)
    assert code == 2 and not out and socket in err, (code, out, err)
    code, out, _ = ringstat("--once", "--json", "--socket", socket)
    assert code == 2 and json.loads(out) == {"state": "absent"}, (code, out)


def a_file_that_is_no_stats_file_is_exit_2(folder):
    for data in (b"", b"x" * 4096, page(READY, magic=b"TKRSTATX"), page(READY, major=2)):
        with Daemon(folder, data) as daemon:
            code, _, err = ringstat("--once", "--socket", daemon.socket)
        assert code == 2 and "not a stats file" in err, (code, err)


def the_socket_comes_from_the_environment_in_the_documented_order(folder):
    one, two = os.path.join(folder, "one"), os.path.join(folder, "two", "tokenring")
    with Daemon(one, page(READY)) as first, Daemon(two, page(DRAIN)) as second:
        env = {"TOKENRING_SOCKET": first.socket, "XDG_RUNTIME_DIR": os.path.join(folder, "two")}
        for args, variables, state in (((), env, "ready"),
                                       (("--socket", second.socket), env, "draining"),
                                       ((), {"XDG_RUNTIME_DIR": env["XDG_RUNTIME_DIR"]}, "draining")):
            _, out, _ = ringstat("--once", "--json", *args, env=variables)
            assert json.loads(out)["state"] == state, (args, variables, out)


def wrong_usage_is_exit_2(_folder):
    for args in (("--once", "--nonsense"), ("--once", "extra"), ("--json", "--csv"), ("-i", "0"), ("-i", "x"),
                 ("-i", "nan"), ("--screen", "nothing"), ("--json", "--screen", "ring")):
        code, out, err = ringstat(*args)
        assert code == 2 and not out and err, (args, code, out, err)


def figures_that_cannot_be_written_are_exit_2(folder):
    with Daemon(folder, page(READY)) as daemon, open("/dev/full", "w", encoding="utf-8") as full:
        run = subprocess.run([RINGSTAT, "--once", "--socket", daemon.socket], stdout=full,
                             stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    assert run.returncode == 2 and "cannot write" in run.stderr, run


def client(ident, pid, uid=1000, library=b"libtest 1.0", seq=2, generated=50, published=48, flags=3):
    """A record of the table of clients, by offset: shm/stats.h."""
    now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    out = bytearray(256)
    struct.pack_into("<QQII32sQQ", out, 0x00, seq, ident, pid, uid, library, now - 10 * 10**9, now)
    struct.pack_into("<6BHII", out, 0x48, 2, 1, 2, 0, 2, 2, flags, 3, 64)
    struct.pack_into("<QQQQQQQQ", out, 0x58, generated, published, 700, 5, 4, 30, 9, 1 << 63 | 812)
    struct.pack_into("<IIII", out, 0x98, 811, 555, 3, 256)
    struct.pack_into("<2I", out, 0xA8, 700, 41)
    struct.pack_into("<2I", out, 0xC8, 700, 41)
    struct.pack_into("<3H", out, 0xE8, 7, 9, 11)
    return bytes(out)


def page_with_clients(*records):
    out = bytearray(page(READY))
    struct.pack_into("<HHI", out, 0x08, 1, 1, 0x280)
    struct.pack_into("<QQ", out, 0x270, 4096, len(records))
    return bytes(out) + b"".join(records)


def page_of_minor_2(*records):
    out = bytearray(page_with_clients(*records))
    struct.pack_into("<HHI", out, 0x08, 1, 2, 0x2c8)
    # paused, pauses, slow, displaced; rejected slots, struck, memory errors, wakes; ns awake in 100 s of uptime
    struct.pack_into("<QQQQQQQQQ", out, 0x280, 2, 31, 4, 12345, 66, 1, 5, 7_654_321, 2_500_000_000)
    return bytes(out)


def troubles_of_readers_and_of_the_transport_are_shown_in_every_form(folder):
    with Daemon(folder, page_of_minor_2(client(7, 811, flags=64 | 8))) as daemon:
        got = once_json(daemon)[1]
        assert got["requests"] == {"running": 0, "queued": 1, "finished": 117, "cancelled": 4, "failed": 6,
                                   "paused": 2, "pauses": 31, "slow": 4, "displaced": 12345}, got
        assert got["transport"] == {"rejected": 66, "struck": 1, "memory_errors": 5, "wakes": 7654321,
                                    "awake_ns": 2500000000}, got
        one = got["client_list"][0]
        assert one["paused"] and one["unlocked"] and not one["cq"]["starved"], got
        for args in ((), ("--screen", "top")):
            _, out, _ = ringstat("--once", *args, "--socket", daemon.socket)
            for part in ("paused 2 now  pauses 31  slow 4  displaced 12.3k",
                         "wakes 7.7M  rejected slots 66  struck out 1  memory errors 5",
                         "awake between steps 2.5 %"):
                assert part in out, (args, part, out)
            assert max(map(len, out.splitlines())) <= 80, out
        assert "    2p" in ringstat("--once", "--screen", "clients", "--socket", daemon.socket)[1]
        assert "--P- 7,9,11" in ringstat("--once", "--screen", "ring", "--socket", daemon.socket)[1]
        _, out, _ = ringstat("--once", "--csv", "--socket", daemon.socket)
    row = dict(zip(*(text.split(",") for text in out.splitlines())))
    assert [row[name] for name in ("paused", "pauses", "slow", "displaced", "wakes", "rejected_slots", "struck",
                                   "memory_errors", "awake_s")] == \
        ["2", "31", "4", "12345", "7654321", "66", "1", "5", "2.500"], row


def figures_that_an_older_daemon_lacks_are_told_as_unknown_and_not_as_zero(folder):
    with Daemon(folder, page_with_clients(client(7, 811))) as daemon:
        got = once_json(daemon)[1]
        _, out, _ = ringstat("--once", "--screen", "top", "--socket", daemon.socket)
        _, lines, _ = ringstat("--once", "--csv", "--socket", daemon.socket)
    assert got["requests"]["paused"] is None and set(got["transport"].values()) == {None}, got
    assert "paused" not in out and "memory errors" not in out and "awake" not in out, out
    head, line = (text.split(",") for text in lines.splitlines())
    assert len(head) == len(line) and dict(zip(head, line))["wakes"] == "", lines


def the_clients_are_in_json_with_their_raw_indices(folder):
    records = [client(7, 811), bytes(256), client(9, 4711, library=b"\xff" * 32, seq=3)]
    with Daemon(folder, page_with_clients(*records)) as daemon:
        got = once_json(daemon)[1]["client_list"]
    assert len(got) == 2, got
    # The second one's writer died in the middle, and its name is no text.
    assert (got[1]["id"], got[1]["whole"], got[1]["library"]) == (9, False, "?" * 31), got[1]
    assert 9 < got[0].pop("age_s") < 1000
    assert got[0] == {
        "id": 7, "pid": 811, "uid": 1000, "library": "libtest 1.0", "whole": True,
        "requests": {"inflight": 3, "inflight_max": 64, "ended": 30, "cancelled": 4, "slots": 700, "rejected": 5},
        "tokens": {"generated": 50, "published": 48, "lag": 2, "lag_max": 9},
        "cq": {"pos": 811, "head": 555, "slots": 256, "reserved": 3, "wait_pos": 812, "wait_asleep": True,
               "starved": True},
        "paused": False, "unlocked": False, "socket_armed": False, "pidfd_armed": False, "tags": [7, 9, 11],
        "queues": [{"state": "hot", "sq_pos": 700, "sq_head": 700, "need_wakeup": False, "bell_armed": False},
                   {"state": "parked", "sq_pos": 41, "sq_head": 41, "need_wakeup": True, "bell_armed": True}],
    }, got[0]


def the_screens_can_be_printed_once_and_fit_80_columns(folder):
    with Daemon(folder, page_with_clients(client(7, 811), client(8, 4194304, uid=65534))) as daemon:
        for screen, parts in (("top", ("kv pages", "LIBRARY", "libtest 1.0", "811")),
                              ("clients", ("1/1!", "48", "libtest 1.0", "4194304")),
                              ("ring", ("0H", "1P", "700", "812", "7,9,11"))):
            code, out, _ = ringstat("--once", "--screen", screen, "--socket", daemon.socket)
            assert code == 0, code
            for part in parts:
                assert part in out, (screen, part, out)
            assert max(map(len, out.splitlines())) <= 80, out


def work_without_a_sign_of_life_is_hung_and_exit_1(folder):
    with Daemon(folder, page(READY, silent_s=12.0, running=2)) as daemon:
        code, got = once_json(daemon)
        _, out, _ = ringstat("--once", "--socket", daemon.socket)
    assert (code, got["state"]) == (1, "hung"), (code, got)
    assert "no sign of life for 12." in out and "2 running" in out, out
    with Daemon(folder, page(READY, silent_s=1.0, running=2)) as daemon:
        assert once_json(daemon)[1]["state"] == "ready"


def csv_is_a_header_and_a_line_with_as_many_fields(folder):
    with Daemon(folder, page(READY)) as daemon:
        code, out, _ = ringstat("--once", "--csv", "--socket", daemon.socket)
    assert code == 0, code
    head, line = (text.split(",") for text in out.splitlines())
    row = dict(zip(head, line))
    assert len(head) == len(line) == 32, (head, line)
    assert (row["state"], row["finished"], row["output_tokens"], row["kv_pages_total"]) == \
        ("ready", "117", "7424", "512"), row


def csv_goes_on_with_a_line_an_interval(folder):
    with Daemon(folder, page(READY)) as daemon:
        with subprocess.Popen([RINGSTAT, "--csv", "-i", "0.05", "--socket", daemon.socket], text=True,
                              stdout=subprocess.PIPE) as run:
            lines = [run.stdout.readline() for _ in range(4)]
            run.kill()
    assert lines[0].startswith("unix_s,state,"), lines
    assert all(line.split(",")[1] == "ready" for line in lines[1:]), lines


def without_a_terminal_it_says_so_and_shows_the_figures_once(folder):
    with Daemon(folder, page(READY)) as daemon:
        code, out, err = ringstat("--socket", daemon.socket)
    assert code == 0 and "finished 117" in out and "no terminal" in err, (code, out, err)


TESTS = [
    troubles_of_readers_and_of_the_transport_are_shown_in_every_form,
    figures_that_an_older_daemon_lacks_are_told_as_unknown_and_not_as_zero,
    the_clients_are_in_json_with_their_raw_indices,
    the_screens_can_be_printed_once_and_fit_80_columns,
    work_without_a_sign_of_life_is_hung_and_exit_1,
    csv_is_a_header_and_a_line_with_as_many_fields,
    csv_goes_on_with_a_line_an_interval,
    without_a_terminal_it_says_so_and_shows_the_figures_once,
    a_ready_daemon_is_exit_0_and_json_has_every_promised_figure,
    json_is_one_line,
    the_text_names_the_model_the_state_and_the_figures,
    a_starting_or_draining_daemon_is_exit_1,
    a_dead_daemon_is_exit_1_says_so_and_shows_its_last_figures,
    a_recycled_pid_does_not_make_a_dead_daemon_alive,
    a_stopped_daemon_is_exit_1_and_its_uptime_stands_still,
    a_daemon_halted_by_a_signal_is_paused_and_its_figures_are_shown,
    nothing_there_is_exit_2_and_names_the_place,
    a_file_that_is_no_stats_file_is_exit_2,
    the_socket_comes_from_the_environment_in_the_documented_order,
    wrong_usage_is_exit_2,
    figures_that_cannot_be_written_are_exit_2,
]


def main():
    failed = 0
    print(f"1..{len(TESTS)}")
    for number, test in enumerate(TESTS, 1):
        with tempfile.TemporaryDirectory() as folder:
            try:
                test(folder)
                print(f"ok {number} - {test.__name__}")
            except Exception as error:  # pylint: disable=broad-except
                failed += 1
                print(f"# {type(error).__name__}: {str(error)[:2000]!r}")
                print(f"not ok {number} - {test.__name__}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
