import re

import numpy as np
import pytest
from tokenizers import Regex, pre_tokenizers

from assay.backends.local.models import train_tokenizer
from assay.envs.chess.corpus import ALPHABET, PIECES, corpus_of
from assay.envs.chess.positions.endgames import EndgameSource
from assay.envs.chess.positions.selfplay import RandomGames
from assay.envs.chess.supervised import ChessSupervisedDataset
from assay.envs.chess.tasks import TaskStyle

MIXED = TaskStyle("full", "P: {fen}", 0.5, 0.2, True)


def pieces(text):
    """Pre-tokens, as Python's and as the tokenizer library's regular expressions see them."""
    cut = [match.group() for match in re.finditer(rf"{PIECES}|[\s\S]", text)]
    split = pre_tokenizers.Split(Regex(rf"{PIECES}|[\s\S]"), "isolated")
    assert [piece for piece, _ in split.pre_tokenize_str(text)] == cut
    return cut


def test_a_rank_is_one_piece_and_a_square_is_two_although_they_look_alike():
    # b4 is a rank (a bishop and four empty squares would be b4...), a move's square, and a rank beginning with one.
    cut = pieces("P: b4b2/4k3/8/1b6/8/8/b4b2/4K3 w - - 0 1 B: b4b2")
    assert [c for c in cut if c not in "/"][:9] == ["P: ", "b4b2", "4k3", "8", "1b6", "8", "8", "b4b2", "4K3"]
    assert cut[-5:] == [" B: ", "b", "4", "b", "2"]
    assert pieces("A: 7k/8/8/8/8/8/8/b6K b - - 0 1+a1b2+a1b2+")[-10:] == list("a1b2+a1b2+")
    assert pieces("+b7b8q+1Q5k/8/8/8/8/8/8/K7 b - - 0 2+0.001+0+0")[:8] == [*"+b7b8q+", "1Q5k"]


def test_the_other_fields_are_cut_at_their_borders():
    assert pieces("8/8 w KQkq e3 0 12")[3:] == [" w ", "KQkq", " e3 0 12"]
    assert pieces("8/8 b - - 10 2")[3:] == [" b ", "-", " - 10 2"]
    assert pieces(" M: a4a3 E: -3.06 0.00 B: a4a3")[5:] == [" E: ", "-3.06", " ", "0.00", " B: ", *"a4a3"]
    assert pieces("1+-1.0+0+1") == ["1", "+", "-1.0", "+", "0", "+", "1"]


@pytest.mark.parametrize(
    "source", [EndgameSource("KBBk,KRkp", "both"), RandomGames("both")], ids=["endgames", "random"]
)
def test_a_trained_tokenizer_gives_back_every_text(source):
    examples = ChessSupervisedDataset(source, MIXED, 0).batch(0, 300)
    corpus = corpus_of(lambda: examples[:200])
    tokenizer = train_tokenizer(corpus, 400)
    others = ["".join(m.content for m in example.prompt) + example.completion for example in examples[200:]]
    complaint = "Invalid answer: 'e9' cannot be read. Try again.\n"
    for text in (*others, complaint, ALPHABET):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids) == text
    # Prompt and completion are encoded apart and still meet at a border of tokens.
    for example in examples[200:]:
        prompt, answer = example.prompt[0].content, example.completion
        parts = [tokenizer.encode(text, add_special_tokens=False) for text in (prompt, answer, prompt + answer)]
        assert parts[0] + parts[1] == parts[2]


def test_a_short_answer_on_an_endgame_takes_few_tokens():
    style = TaskStyle("best", "P: {fen}", 0.0, 0.1, True)
    examples = ChessSupervisedDataset(EndgameSource("KQk,KRk", "white"), style, 0).batch(0, 1000)
    tokenizer = train_tokenizer(corpus_of(lambda: examples), 512)
    prompts = [len(tokenizer.encode(e.prompt[0].content, add_special_tokens=False)) for e in examples]
    answers = {len(tokenizer.encode(e.completion, add_special_tokens=False)) for e in examples}
    assert np.mean(prompts) < 26
    assert answers == {5}
