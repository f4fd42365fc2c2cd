#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The command line `tokenring` against a daemon without a model (peer.c says what it answers). Prints TAP.

  test_cli.py TOKENRING PEER
"""
import json
import math
import os
import signal
import subprocess
import sys
import tempfile

TOKENRING, PEER = map(os.path.abspath, sys.argv[1:3])
SECONDS_MAX = 60  # a hang fails


class Bench:
    def __init__(self, folder):
        self.folder = folder
        self.socket = os.path.join(folder, "socket")
        self.peer = None
        self.start()

    def start(self):
        if os.path.exists(self.socket):
            os.unlink(self.socket)
        self.peer = subprocess.Popen([PEER, self.socket], stdout=subprocess.PIPE)
        assert self.peer.stdout.readline() == b"ready\n"

    def stop(self):
        self.peer.kill()
        self.peer.wait()
        self.peer.stdout.close()

    def command(self, *args):
        return [TOKENRING, args[0], "--socket", self.socket, *args[1:]]

    def call(self, *args, stdin=b"", code=0):
        done = subprocess.run(self.command(*args), input=stdin, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=SECONDS_MAX, check=False)
        assert done.returncode == code, (args, done)
        return done.stdout, done.stderr.decode()

    def file(self, content, name="file"):
        path = os.path.join(self.folder, name)
        with open(path, "wb") as file:
            file.write(content if isinstance(content, bytes) else json.dumps(content).encode())
        return path


def a_prompt_is_one_user_message(bench):
    assert bench.call("run", "Hello you")[0] == b"user:Hello you;\n"


def a_raw_prompt_arrives_as_it_is_from_argument_and_standard_input(bench):
    assert bench.call("run", "--raw", "a  b")[0] == b"a  b\n"
    assert bench.call("run", "--raw", "-", stdin=b" x\xff\n")[0] == b" x\xff\n"
    assert bench.call("run", "--raw", "--", "--json")[0] == b"--json\n"


def messages_come_from_a_file_or_standard_input(bench):
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi\u00e4"},
            {"role": "assistant", "content": ""}, {"role": "tool", "content": "42"}]
    out = "system:Be brief.;user:Hi\u00e4;assistant:;tool:42;\n".encode()
    assert bench.call("run", "--messages", bench.file(chat))[0] == out
    assert bench.call("run", "--messages", "-", stdin=json.dumps(chat).encode())[0] == out


def json_is_one_line_with_all_fields(bench):
    out, err = bench.call("run", "--raw", "--json", "one two \"3\" \\ \n\x01 end")
    assert out.count(b"\n") == 1 and err == "", (out, err)
    got = json.loads(out)
    assert list(got) == ["text", "token_ids", "prompt_tokens", "cached_tokens", "completion_tokens",
                         "finish_reason", "seed", "model", "times_ns"], got
    assert got["text"] == "one two \"3\" \\ \n\x01 end", got
    assert got["token_ids"] == [100 + i for i in range(len(got["token_ids"]))], got
    assert got["completion_tokens"] == len(got["token_ids"]), got
    assert got["finish_reason"] == "stop" and got["seed"] == 7 and got["model"] == "fake", got
    assert list(got["times_ns"]) == ["submit", "seen", "admitted", "prefill", "first_token",
                                     "last_token", "done"], got
    assert got["times_ns"]["done"] - got["times_ns"]["submit"] == 6000, got  # peer.c


def json_replaces_what_is_not_utf8(bench):
    for raw in (b"a\xffb", b"\xe2\x82", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\xaf", b"\xf0\x9f\x98\x80"):
        got = json.loads(bench.call("run", "--raw", "--json", "-", stdin=raw)[0])
        assert got["text"] == raw.decode(errors="replace"), (raw, got)  # Python's decoder is the reference


def max_tokens_ends_the_answer_with_length(bench):
    got = json.loads(bench.call("run", "--raw", "--json", "--max-tokens", "2", "a b c d")[0])
    assert got["text"] == "a b" and got["finish_reason"] == "length", got


def every_option_reaches_the_daemon(bench):
    out = bench.call("run", "--raw", "--max-tokens", "77", "--temperature", "0.5", "--top-k", "40",
                     "--top-p", "0.9", "--min-p", "0.05", "--seed", "18446744073709551615", "--tenant", "77",
                     "--stop", "END", "--stop", "\n", "params")[0]
    assert out == (b"kind=1 max_tokens=77 flags=1 tenant=77 seed=18446744073709551615 temperature=0.5 top_k=40 "
                   b"top_p=0.9 min_p=0.05 stops=[END][\n]\n"), out
    out = bench.call("run", "params")[0]
    assert out == (b"kind=3 max_tokens=512 flags=0 tenant=0 seed=0 temperature=0 top_k=0 top_p=0 min_p=0 "
                   b"stops=\n"), out


def stats_go_to_standard_error(bench):
    out, err = bench.call("run", "--raw", "--stats", "x")
    assert out == b"x\n" and "first token" in err and "ms" in err, (out, err)


def a_failed_request_is_named_and_exits_1(bench):
    for status, name in ((3, "CONTEXT"), (5 | 0x8000, "OVERLOADED"), (14, "INTERNAL"), (999, "UNKNOWN")):
        for more in ([], ["--json"]):
            out, err = bench.call("run", *more, f"status {status}", code=1)
            assert out == b"" and f"{name} ({status})" in err and "as ordered" in err, (out, err)


def a_daemon_that_dies_is_gone_within_a_second_and_exits_1(bench):
    out, err = bench.call("run", "vanish", code=1)
    assert "GONE" in err, err
    bench.stop()
    bench.start()


def with_reconnect_an_answer_goes_on_where_it_was(bench):
    prompt = "crash 3 in the middle of an answer"
    out, _ = bench.call("run", "--raw", "--reconnect", prompt)
    assert out.decode() == prompt + "\n", out
    out, _ = bench.call("run", "--raw", "--reconnect", "--json", "--temperature", "1", prompt)
    # peer.c: one id a word, from 100
    assert json.loads(out)["token_ids"] == list(range(100, 108)), out
    _, err = bench.call("run", "--raw", prompt, code=1)
    assert "GONE" in err, err


def ctrl_c_cancels_and_exits_130(bench):
    with subprocess.Popen(bench.command("run", "forever"), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as run:
        assert run.stdout.read(6) == b"on on "
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=SECONDS_MAX)
    assert run.returncode == 130, (run.returncode, err)
    assert out.endswith(b"on \n"), out[-20:]
    assert bench.call("run", "--raw", "next")[0] == b"next\n"  # the peer did see the cancel


def no_daemon_exits_3_and_names_the_socket(bench):
    for command in (["run", "x"], ["tokenize", "x"], ["models"], ["perplexity", bench.file(b"x")]):
        done = subprocess.run([TOKENRING, command[0], "--socket", "/nowhere/socket", *command[1:]],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=SECONDS_MAX, check=False)
        assert done.returncode == 3 and b"/nowhere/socket" in done.stderr, done
        assert done.stdout == b"", done


def wrong_command_lines_exit_2_and_say_what_is_expected(bench):
    cases = [(["run"], "no prompt"), (["run", "a", "b"], "one PROMPT"),
             (["run", "--raw", "--messages", "f"], "--raw"), (["run", "--messages", "f", "p"], "not both"),
             (["run", "--max-tokens", "-1", "p"], "whole number"), (["run", "--max-tokens", "1x", "p"], "whole number"),
             (["run", "--max-tokens", "4294967296", "p"], "whole number"),
             (["run", "--seed", "18446744073709551616", "p"], "whole number"),
             (["run", "--temperature", "nan", "p"], "0 to 100"), (["run", "--temperature", "101", "p"], "0 to 100"),
             (["run", "--top-p", "1.5", "p"], "0 to 1"), (["run", "--min-p", "-0.1", "p"], "0 to 1"),
             (["run", "--top-k", "", "p"], "whole number"), (["run", "--stop", "", "p"], "1 to 256 bytes"),
             (["run", "--stop", "x" * 257, "p"], "1 to 256 bytes"), (["run", "--stop", "x"] * 17 + ["p"], "run"),
             (["tokenize"], "either TEXT"), (["tokenize", "a", "--messages", "f"], "either TEXT"),
             (["perplexity"], "no FILE"), (["perplexity", "--window", "1", "f"], "from 2"),
             (["models", "x"], "unexpected")]
    for args, words in cases:
        err = bench.call(*args, code=2)[1]
        assert words in err, (args, err)
    for args, words in (([], b"no command"), (["dance"], b"unknown command 'dance'")):
        done = subprocess.run([TOKENRING, *args], stderr=subprocess.PIPE, timeout=SECONDS_MAX, check=False)
        assert done.returncode == 2 and words in done.stderr, done


def wrong_messages_are_refused_with_file_and_place(bench):
    cases = [(b"[{\"role\": \"user\" \"content\"}]", ":1:"), (b"[", ":1:"), (b"", "file:"), ([], "1 to 64"), ({}, "1 to 64"),
             ([1], "message 1 is not an object"), ([{"role": "user"}], "message 1 needs"),
             ([{"role": "user", "content": 1}], "message 1 needs"),
             ([{"role": "user", "content": "a"}, {"role": "robot", "content": "a"}], "message 2 has the role 'robot'"),
             ([{"role": "user", "content": "a", "name": "b"}], "key 'name'"),
             ([{"role": "user", "content": "a"}] * 65, "longer")]
    for content, words in cases:
        path = bench.file(content)
        err = bench.call("run", "--messages", path, code=1)[1]
        assert path in err and words in err, (content, err)
    err = bench.call("run", "--messages", "/nowhere/chat.json", code=1)[1]
    assert "/nowhere/chat.json: No such file" in err, err


def tokenize_prints_the_ids(bench):
    assert json.loads(bench.call("tokenize", "ab")[0]) == {"ids": [97, 98]}
    assert bench.call("tokenize", "-", stdin=b"")[0] == b'{"ids":[]}\n'
    chat = bench.file([{"role": "user", "content": "\u00e9"}])
    assert json.loads(bench.call("tokenize", "--messages", chat)[0]) == {"ids": list("user:\u00e9;".encode())}


def a_long_text_gets_a_larger_arena(bench):
    text = b"0123456789abcdef" * 40000
    assert json.loads(bench.call("tokenize", "-", stdin=text)[0]) == {"ids": list(text)}


def perplexity_scores_all_but_the_first_token_of_each_window(bench):
    text = bytes(range(32, 127)) * 3
    path = bench.file(text)
    # peer.c: a token of id n has the log-probability -n / 100
    for window, most in ((512, None), (7, None), (2, None), (100, None), (512, 50), (7, 50), (19, 2), (94, 95)):
        ids = list(text[:most] if most else text)
        parts = [ids[i:i + window] for i in range(0, len(ids), window)]
        scored = [n / 100 for part in parts for n in part[1:]]
        got = json.loads(bench.call("perplexity", path, "--window", str(window),
                                    *(["--max-tokens", str(most)] if most else []))[0])
        assert list(got) == ["tokens", "nll_mean", "perplexity"], got
        assert got["tokens"] == len(scored), (window, most, got)
        mean = sum(scored) / len(scored)
        assert abs(got["nll_mean"] - mean) < 1e-6 and abs(got["perplexity"] / math.exp(mean) - 1) < 1e-6, (got, mean)
    assert "at least 2" in bench.call("perplexity", bench.file(b"x"), code=1)[1]


def models_is_a_table(bench):
    lines = bench.call("models")[0].decode().splitlines()
    assert lines[0].split() == ["MODEL", "CONTEXT", "TOKENS", "CHAT", "HASH"], lines
    assert lines[1].split() == ["fake", "2048", "49152", "yes", "ab" * 32], lines


def help_and_version_are_there(bench):
    for args in (["--help"], ["run", "--help"], ["tokenize", "--help"], ["perplexity", "--help"], ["models", "--help"]):
        done = subprocess.run([TOKENRING, *args], stdout=subprocess.PIPE, timeout=SECONDS_MAX, check=False)
        assert done.returncode == 0 and b"Usage: tokenring" in done.stdout and b"--socket" in done.stdout, done
    assert subprocess.check_output([TOKENRING, "--version"]).startswith(b"tokenring ")
    done = subprocess.run([TOKENRING, "--socket", bench.socket, "run", "--raw", "x"], stdout=subprocess.PIPE,
                          timeout=SECONDS_MAX, check=False)
    assert done.stdout == b"x\n", done


TESTS = [
    a_prompt_is_one_user_message,
    a_raw_prompt_arrives_as_it_is_from_argument_and_standard_input,
    messages_come_from_a_file_or_standard_input,
    json_is_one_line_with_all_fields,
    json_replaces_what_is_not_utf8,
    max_tokens_ends_the_answer_with_length,
    every_option_reaches_the_daemon,
    stats_go_to_standard_error,
    a_failed_request_is_named_and_exits_1,
    a_daemon_that_dies_is_gone_within_a_second_and_exits_1,
    with_reconnect_an_answer_goes_on_where_it_was,
    ctrl_c_cancels_and_exits_130,
    no_daemon_exits_3_and_names_the_socket,
    wrong_command_lines_exit_2_and_say_what_is_expected,
    wrong_messages_are_refused_with_file_and_place,
    tokenize_prints_the_ids,
    a_long_text_gets_a_larger_arena,
    perplexity_scores_all_but_the_first_token_of_each_window,
    models_is_a_table,
    help_and_version_are_there,
]


def main():
    failed = 0
    print(f"1..{len(TESTS)}")
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(folder)
        try:
            for number, test in enumerate(TESTS, 1):
                try:
                    test(bench)
                    word = "ok"
                except (AssertionError, OSError, ValueError, subprocess.SubprocessError) as error:
                    print("# " + repr(error))
                    word = "not ok"
                    failed += 1
                    bench.stop()
                    bench.start()
                print(f"{word} {number} - {test.__name__}", flush=True)
        finally:
            bench.stop()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
