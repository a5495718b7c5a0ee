"""Conversations as `Role: content`: the text that is written, and tokens that later turns do not change."""

from __future__ import annotations

from assay.backends.local.models import train_tokenizer
from assay.envs.base import TokenizerCorpus
from assay.rollouts.renderers.named import make_renderer
from assay.rollouts.renderers.role_colon import RoleColonRenderer
from assay.types import Message

LETTERS = "abcdefghijklmnopqrstuvwxyzSUA \n.:?"
TALK = TokenizerCorpus(["be brief System User Assistant no yes"] * 3, "[A-Za-z]+", LETTERS)
RULES, ASK, AGAIN = Message("system", "be brief"), Message("user", "yes or no?"), Message("user", "no.")


def test_messages_name_who_speaks_and_keep_their_tokens() -> None:
    tokenizer = train_tokenizer(TALK, 120)
    found = make_renderer("role_colon", tokenizer)
    assert isinstance(found, RoleColonRenderer) and found.stop == (tokenizer.eos_token_id,)

    def shown(tokens: list[int]) -> str:
        return str(tokenizer.decode(tokens, skip_special_tokens=False))

    end = shown(list(found.stop))
    start, reply = found.start([RULES, ASK]), found.completion("yes")
    assert shown(start) == "System: be brief\n\nUser: yes or no?\n\nAssistant:"
    assert shown(reply) == f" yes{end}" and found.text(reply) == "yes"
    later = found.extend([AGAIN], stopped=True)
    assert shown([*start, *reply, *later]).startswith(f"{shown(start)} yes{end}\n\nUser: no.\n\nAssistant:")
    assert found.extend([AGAIN], stopped=False) == [tokenizer.eos_token_id, *later]
    # Token for token, as the parts are written by themselves.
    parts = ["System: be brief\n\n", "User: yes or no?\n\n", "Assistant:"]
    assert start == [token for part in parts for token in tokenizer.encode(part, add_special_tokens=False)]
