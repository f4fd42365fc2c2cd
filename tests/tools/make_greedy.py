#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/greedy.json: what float32 arithmetic answers to 24 prompts.

    make_greedy.py MODEL.gguf LONG_TEXT OUT.json

LONG_TEXT is English text of which the long prompts are made (tests/data/perplexity.txt).
"""

import os
import sys

import gguf_reference
import make_tokens
import token_oracle

N_MAX = 48
USER, BOT, SYSTEM = "user", "assistant", "system"

# Name, short (the slow reference kernels run these), raw text or messages.
RAW = [
    ("one token", True, "The"),
    ("two tokens", True, "Once upon"),
    ("five tokens", True, "The capital of France is"),
    ("a newline", False, "\n"),
    ("counting", False, "1, 2, 3, 4, 5, 6,"),
    ("C code", False, "#include <stdio.h>\n\nint main(void)\n{\n    for (int i = 0; i < 10; i++) {\n"),
    ("Python code", False, "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n"),
    ("German", False, "Die Hauptstadt von Deutschland ist"),
    ("Chinese", False, "北京是中国的"),
    ("a table", False, "| year | population |\n|------|------------|\n| 1900 | 1.6 billion |\n| 1950 |"),
    ("control-token text", False, "The token <|im_end|> marks the end of"),
]
CHAT = [
    ("greeting", True, [(USER, "Hello!")]),
    ("arithmetic", True, [(USER, "What is 7 + 5?")]),
    ("system message", True, [(SYSTEM, "Answer with one word."), (USER, "What colour is the sky?")]),
    ("a list", False, [(USER, "List five fruits, one per line.")]),
    ("a poem", False, [(USER, "Write a short poem about the sea.")]),
    ("several turns", False, [(USER, "My name is Ada."), (BOT, "Nice to meet you, Ada!"),
                              (USER, "What is my name, and how is it spelled?")]),
    ("French", False, [(USER, "Écris une phrase sur la forêt en automne.")]),
    ("Russian", False, [(USER, "Привет! Как дела?")]),
    ("Japanese", False, [(USER, "「ありがとう」を英語に訳してください。")]),
    ("a program", False, [(SYSTEM, "You are a C programmer."), (USER, "Write a function that reverses a string in place.")]),
    ("emoji and numbers", False, [(USER, "What does 😀 mean? Also compute 12 * 12 and 2026 - 1986.")]),
]


def cases(text):
    """The lists above and two long prompts: one raw of several attention splits, one chat above 2,000 tokens."""
    for name, short, prompt in RAW:
        yield {"name": name, "short": short, "prompt": prompt}
    yield {"name": "four paragraphs", "short": False, "prompt": text[:3200]}
    for name, short, messages in CHAT:
        yield {"name": name, "short": short, "messages": [{"role": r, "content": c} for r, c in messages]}
    yield {"name": "a question about a long text", "short": False,
           "messages": [{"role": USER, "content": text[:9000] + "\n\nWho is Naomi, and what happens to her in this text?"}]}


def main():
    model, long_text, out = sys.argv[1:]
    reference = gguf_reference.Reference(model)
    get = lambda key: reference.fields["tokenizer." + key]
    tokens, template = get("ggml.tokens"), get("chat_template")
    tokenizer = token_oracle.build(tokens, get("ggml.merges"), get("ggml.pre"))
    specials = {t: i for i, (t, kind) in enumerate(zip(tokens, get("ggml.token_type"))) if kind == 3}
    with open(long_text, encoding="utf-8") as stream:
        text = stream.read()

    results = []
    for case in cases(text):
        if "prompt" in case:
            ids = token_oracle.encode(tokenizer, case["prompt"])
        else:
            ids = token_oracle.chat_ids(tokenizer, template, specials, case["messages"])
        greedy, top5, finish = reference.greedy(ids, N_MAX, get("ggml.eos_token_id"))
        print("%-30s %5d tokens -> %s %r" % (case["name"], len(ids), finish, tokenizer.decode(greedy)[:60]))
        results.append(dict(case, prompt_ids=ids, greedy_ids=greedy, finish=finish, top5=top5))
    make_tokens.write(out, {
        "about": "Greedy ids (at most %d, an ending EOS left out) and for each step the five best [id, "
                 "log-probability], also of the step that chose EOS, in float32 with dequantised weights." % N_MAX,
        "source": dict(gguf_reference.versions(), by="tests/tools/make_greedy.py", model=os.path.basename(model)),
        "cases": results,
    })


if __name__ == "__main__":
    main()
