# SPDX-License-Identifier: Apache-2.0
"""Token ids by Hugging Face `tokenizers`, built from a vocabulary and its merges, and chats by jinja2."""

import re

import jinja2
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

# Llama 3's own pattern, as its tokenizer.json has it.
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def pre_tokenizer(pre):
    """`pre` as tokenizer.ggml.pre names it -> what the models of that name ship in their tokenizer.json."""
    if pre == "gpt-2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if pre == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    if pre == "llama-bpe":
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
                                        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    raise ValueError(pre)


def build(tokens, merges, pre):
    """No special tokens are added, so control-token text is text. Llama 3 looks up whole words first."""
    vocabulary = {token: i for i, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ")) for merge in merges]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=pre == "llama-bpe"))
    tokenizer.pre_tokenizer = pre_tokenizer(pre)
    return tokenizer


def encode(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False).ids


def render(template, messages):
    environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(template).render(messages=messages, add_generation_prompt=True)


def chat_ids(tokenizer, template, specials, messages):
    """
    Ids of a chat, control tokens from the template's scaffold only. The chat is rendered with
    placeholders as contents, cut at the scaffold's control tokens, and each piece between two of
    them (scaffold text and content together, as Hugging Face sees it) is encoded as plain text.
    """
    hide = [dict(m, content="\ue000%d\ue001" % i) for i, m in enumerate(messages)]
    pattern = "(" + "|".join(re.escape(s) for s in specials) + ")"
    ids, text = [], ""
    for piece in re.split(pattern, render(template, hide)):
        if piece in specials:
            ids.append(specials[piece])
            text += piece
        elif piece:
            plain = re.sub("\ue000(\\d+)\ue001", lambda m: messages[int(m[1])]["content"], piece)
            ids += encode(tokenizer, plain)
            text += plain
    assert text == render(template, messages)
    return ids
