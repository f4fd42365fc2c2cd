#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Model files: tiny valid ones are served, broken ones are refused with a message, never a crash."""

import json
import os
import subprocess

from harness import DATA, Daemon, Scratch, ask, as_bytes, load, main, note, program, refused, test, tokenring
import make_gguf      # harness has put tests/tools on the path

REFUSE_S_MAX = 20       # far above what a refusal takes; a hang fails


def try_model(path, scratch):
    """Starts a daemon that should refuse: exit code, output."""
    done = subprocess.run([program("tokenringd"), "--model", path, "--socket", os.path.join(scratch.path, "s")],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=REFUSE_S_MAX)
    return done.returncode, done.stdout.decode(errors="replace")


@test
def every_broken_file_is_refused_by_name_and_none_crashes_the_daemon():
    wrong = []
    with Scratch() as scratch:
        for name, (case, says, _) in make_gguf.BROKEN.items():
            path = scratch.file(name + ".gguf", make_gguf.make_broken(name))
            try:
                code, out = try_model(path, scratch)
            except subprocess.TimeoutExpired:
                wrong.append("%s (case %d): it was served, or hangs" % (name, case))
                continue
            if code <= 0 or path not in out:
                wrong.append("%s (case %d): exit code %d, %s" % (name, case, code, out.strip()[:300]))
            elif "." in says and says not in out:
                wrong.append("%s (case %d): does not name %s: %s" % (name, case, says, out.strip()[:300]))
            os.unlink(path)
    note("%d files" % len(make_gguf.BROKEN))
    assert not wrong, "\n".join(wrong)


@test
def a_file_cut_anywhere_is_refused():
    whole = make_gguf.make_bytes(layers=1, embd=64, heads=1, kv_heads=1, ffn=64, ctx=64, type="Q4_0")
    wrong = []
    with Scratch() as scratch:
        for cut in sorted({*range(0, 64, 7), *range(64, len(whole), len(whole) // 40), len(whole) - 1}):
            code, out = try_model(scratch.file("cut.gguf", whole[:cut]), scratch)
            if code <= 0 or "cut.gguf" not in out:
                wrong.append("cut at %d: exit code %d, %s" % (cut, code, out.strip()[:200]))
    assert not wrong, "\n".join(wrong)


def served(options, check):
    with Scratch() as scratch:
        with Daemon(model=scratch.file("tiny.gguf", make_gguf.make_bytes(**options))) as daemon:
            check(daemon)
            assert daemon.stop() == 0


@test
def tiny_models_of_every_type_and_shape_are_served():
    for case in load("tiny.json")["cases"]:
        def check(daemon):
            answer = ask(daemon, prompt="Hello there", n_max=8)
            assert answer["completion_tokens"] <= 8 and answer["prompt_tokens"] > 0, answer
            assert answer == {**ask(daemon, prompt="Hello there", n_max=8), "times_ns": answer["times_ns"],
                              "seed": answer["seed"]}

        try:
            served(case["options"], check)
        except AssertionError as failure:
            raise AssertionError("%s: %s" % (case["name"], failure))


@test
def a_model_that_adds_bos_has_exactly_one_and_runs_an_empty_prompt():
    def ids(daemon, text):
        code, out, err = tokenring(daemon, "tokenize", "-", stdin=as_bytes(text))
        assert code == 0, err
        return out

    def check(daemon):
        plain = ask(daemon, prompt="Hello", n_max=1)["prompt_tokens"]
        chat = [{"role": "user", "content": "Hello"}]
        assert ask(daemon, prompt="", n_max=1)["prompt_tokens"] == 1
        assert plain == 2, plain                       # BOS and "Hello", which is one token there
        # The template's text already begins with the BOS token <|im_start|>, so nothing is added.
        assert ask(daemon, messages=chat, n_max=1)["prompt_tokens"] == chat_tokens[0]

    chat_tokens = []
    options = {"layers": 1, "embd": 64, "heads": 1, "kv_heads": 1, "ffn": 64, "template": "chatml-plain"}
    chat = [{"role": "user", "content": "Hello"}]
    served(options, lambda daemon: chat_tokens.append(ask(daemon, messages=chat, n_max=1)["prompt_tokens"]))
    served(dict(options, add_bos=True), check)


@test
def a_model_without_a_chat_template_takes_raw_text_only():
    def check(daemon):
        assert "raw" in refused(daemon, "Hello").lower()
        assert ask(daemon, prompt="Hello", n_max=2)["prompt_tokens"] == 1

    served({"layers": 1, "embd": 64, "heads": 1, "kv_heads": 1, "ffn": 64, "template": "none"}, check)


@test
def an_unknown_chat_template_is_refused_with_its_first_line():
    first, second = make_gguf.UNKNOWN_TEMPLATE.split("\n")
    with Scratch() as scratch:
        path = scratch.file("unknown.gguf", make_gguf.make_bytes(layers=1, embd=64, heads=1, kv_heads=1, ffn=64,
                                                                  template="unknown"))
        code, out = try_model(path, scratch)
    assert code > 0 and first[:30] in out and second not in out, (code, out)


def same_ids(name):
    """The small vocabulary of a data file in a tiny model: the ids of its texts."""
    data, wrong = load(name), []
    options = {"layers": 1, "embd": 64, "heads": 1, "kv_heads": 1, "ffn": 64, "ctx": 4096,
               "vocab_json": os.path.join(DATA, name)}

    def check(daemon):
        for case in data["texts"]:
            code, out, err = tokenring(daemon, "tokenize", "-", stdin=as_bytes(case["text"]))
            ids = json.loads(out)["ids"] if code == 0 else err
            if ids != case["ids"]:
                wrong.append("%r: %s, expected %s" % (case["text"][:50], ids, case["ids"]))

    served(options, check)
    assert not wrong, "\n".join(wrong)


@test
def the_gpt_2_pre_tokenizer_gives_the_ids_of_the_reference():
    same_ids("tokens_gpt2.json")


@test
def the_llama_3_pre_tokenizer_gives_the_ids_of_the_reference():
    same_ids("tokens_llama_bpe.json")


if __name__ == "__main__":
    main()
