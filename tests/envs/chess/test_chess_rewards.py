import math

import chess
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.envs.chess.arbiter import ruling_on
from assay.envs.chess.grammar import arbiter_answer, parse_arbiter, parse_policy, policy_answer
from assay.envs.chess.positions.base import draw_distinct
from assay.envs.chess.positions.endgames import EndgameSource
from assay.envs.chess.positions.selfplay import RandomGames, random_legal_move
from assay.envs.chess.rewards import (
    ArbiterWeights,
    PolicyTruth,
    PolicyWeights,
    candidate_credit,
    eval_credit,
    fen_credit,
    score_arbiter,
    score_policy,
)

WEIGHTS, RULES = PolicyWeights(), ArbiterWeights()
# Two best moves that tie, three worse ones that keep the win, one that draws, one that loses; in centipawns.
TRUTH = PolicyTruth(
    {"a1a8": 99_995, "a1b1": 99_995, "a1a2": 900, "a1a3": 800, "e1e2": 700, "e1d1": 0, "e1f1": -900}, "engine 1"
)
BEST_FIVE = ["a1a8", "a1b1", "a1a2", "a1a3", "e1e2"]
GOOD_EVALS = [999.95, 999.95, 9.0, 8.0, 7.0]


def short(uci, truth=TRUTH, weights=WEIGHTS):
    return score_policy(truth, parse_policy(f"B: {uci}"), weights, "best")


def long(moves, evals, best, truth=TRUTH):
    text = f"M: {' '.join(moves)} E: {' '.join(map(str, evals))} B: {best}"
    return score_policy(truth, parse_policy(text, "full"), WEIGHTS, "full")


def test_short_answers_earn_the_documented_rewards():
    # rank: of 6 other moves, 0, 2, 5 and 6 are strictly better.
    assert short("a1a8").value == pytest.approx(1.0)
    assert short("a1b1").value == pytest.approx(1.0)
    assert short("a1a2").value == pytest.approx(0.2 + 0.2 + 0.3 * (1 - 2 / 6))
    assert short("e1d1").value == pytest.approx(0.2 + 0.3 * (1 - 5 / 6))
    assert short("e1f1").value == pytest.approx(0.2)
    assert (short("e1e3").status, short("e1e3").value) == ("invalid", 0.0)
    malformed = score_policy(TRUTH, parse_policy("e4!"), WEIGHTS, "best")
    assert (malformed.status, malformed.value) == ("invalid", -0.2)
    assert short("a1a8").fingerprint == "engine 1"


@pytest.mark.parametrize(
    ("values", "uci", "keeps"),
    [
        ({"a1a2": 301, "a1a3": 300}, "a1a3", 0.0),
        ({"a1a2": 301, "a1a3": 301}, "a1a3", 1.0),
        ({"a1a2": 0, "a1a3": -300}, "a1a3", 1.0),
        ({"a1a2": 0, "a1a3": -301}, "a1a3", 0.0),
        ({"a1a2": -600, "a1a3": -99_998}, "a1a3", 1.0),
    ],
)
def test_keeping_is_judged_by_the_class_of_the_position(values, uci, keeps):
    assert short(uci, PolicyTruth(values, "")).parts["keeps"] == keeps


def test_weights_come_from_the_settings():
    weights = PolicyWeights(malformed=-1, illegal=-0.5, legal=1, keeps=2, rank=4, best=8, win_cp=10)
    assert short("a1a8", weights=weights).value == 15
    assert short("e1e3", weights=weights).value == -0.5
    assert score_policy(TRUTH, parse_policy(""), weights, "best").value == -1


def test_a_perfect_long_answer_earns_the_most_that_any_answer_can():
    perfect = long(BEST_FIVE, GOOD_EVALS, "a1a8")
    assert perfect.value == pytest.approx(1.3)
    assert perfect.status == "scored"
    assert set(perfect.parts.values()) == {1.0}
    # The order of the list is free, as long as every evaluation stays with its move.
    order = [3, 0, 4, 1, 2]
    shuffled = long([BEST_FIVE[i] for i in order], [GOOD_EVALS[i] for i in order], "a1b1")
    assert shuffled.value == pytest.approx(perfect.value)
    # Evaluations in the engine's order beside moves in another one are wrong.
    assert long([BEST_FIVE[i] for i in order], GOOD_EVALS, "a1b1").parts["evals"] < 0.5


@pytest.mark.parametrize(
    ("name", "moves", "evals"),
    [
        ("one good move", ["a1a8"], [999.95]),
        ("one good move five times", ["a1a8"] * 5, [999.95] * 5),
        ("one good and four illegal moves", ["a1a8", "h1h2", "h2h3", "h3h4", "h4h5"], [999.95, 0, 0, 0, 0]),
        ("illegal moves only", ["h1h2", "h2h3", "h3h4", "h4h5", "h5h6"], [0, 0, 0, 0, 0]),
        ("every legal move", [*TRUTH.values], [v / 100 for v in TRUTH.values.values()]),
        ("two of five", ["a1a8", "a1b1"], [999.95, 999.95]),
    ],
)
def test_no_shortcut_fills_the_list_of_candidates(name, moves, evals):
    score = long(moves, evals, "a1a8")
    assert score.parts["candidates"] <= 0.6
    if name != "every legal move":
        assert score.parts["candidates"] == 0.0
        assert score.parts["evals"] <= 0.4 + 1e-9
    assert score.value < long(BEST_FIVE, GOOD_EVALS, "a1a8").value - 0.05


def test_fewer_legal_moves_than_five_make_a_shorter_list_complete():
    truth = PolicyTruth({"a1a2": 10, "a1a3": -10}, "")
    assert candidate_credit(truth, ["a1a3", "a1a2"]) == 1.0
    assert candidate_credit(truth, ["a1a2"]) == 0.0
    assert candidate_credit(truth, ["a1a2", "a1a2", "a1a2", "a1a2", "a1a2"]) == 0.0
    assert eval_credit(truth, ["a1a2", "a1a3"], [0.1, -0.1], 0.5) == 1.0


def test_evaluations_are_tolerated_in_proportion():
    truth = PolicyTruth({"a1a2": 300}, "")
    # The tolerance at 3 pawns is 0.5 * (1 + 3) = 2 pawns.
    assert eval_credit(truth, ["a1a2"], [3.0], 0.5) == 1.0
    assert eval_credit(truth, ["a1a2"], [4.0], 0.5) == pytest.approx(0.5)
    assert eval_credit(truth, ["a1a2"], [5.0], 0.5) == 0.0
    assert eval_credit(truth, ["a1a2"], [-3.0], 0.5) == 0.0
    assert eval_credit(truth, ["a1a2"], [], 0.5) == 0.0


def test_an_illegal_best_move_is_invalid_even_beside_good_candidates():
    score = long(BEST_FIVE, GOOD_EVALS, "h1h8")
    assert score.status == "invalid"
    assert score.value < long(BEST_FIVE, GOOD_EVALS, "e1f1").value


def test_without_truth_there_is_no_value():
    for score in (
        score_policy(None, parse_policy("B: e2e4"), WEIGHTS, "best"),
        score_policy(None, parse_policy(""), WEIGHTS, "full"),
        score_policy(PolicyTruth({}, ""), parse_policy("B: e2e4"), WEIGHTS, "best"),
        score_arbiter(None, parse_arbiter(""), RULES),
    ):
        assert (score.status, score.value) == ("errored", None)
        assert score.evidence["error"]


values = st.dictionaries(
    st.sampled_from(["a1a2", "a1a3", "b1b2", "c1c2", "d7d8q", "e1e2"]),
    st.integers(-1000, 1000) | st.integers(99_900, 99_999) | st.integers(-99_999, -99_900),
    min_size=1,
)


@given(values, st.sampled_from(["best", "full"]), st.integers(0, 1000))
def test_the_engines_own_answer_earns_the_maximum_and_none_earns_more(truth_values, form, seed):
    truth = PolicyTruth(truth_values, "")
    ranked = sorted(truth_values, key=lambda uci: -truth_values[uci])[:5]
    perfect = policy_answer(ranked[0], ranked, [truth_values[uci] / 100 for uci in ranked], form=form)
    highest = 1.0 + (0.3 if form == "full" else 0.0)
    assert score_policy(truth, parse_policy(perfect, form), WEIGHTS, form).value == pytest.approx(highest, abs=1e-3)
    rng = np.random.default_rng(seed)
    moves = rng.choice([*truth_values, "h1h2"], size=int(rng.integers(1, 7))).tolist()
    other = policy_answer(moves[0], moves, rng.normal(size=len(moves)).tolist(), form=form)
    score = score_policy(truth, parse_policy(other, form), WEIGHTS, form)
    assert -0.2 <= score.value <= highest
    assert all(0 <= part <= 1 for part in score.parts.values())


@given(st.text(), st.sampled_from(["best", "full"]))
def test_any_text_has_a_finite_reward(text, form):
    assert math.isfinite(score_policy(TRUTH, parse_policy(text, form), WEIGHTS, form).value)
    truth = ruling_on(chess.STARTING_FEN, "e2e4")
    assert math.isfinite(score_arbiter(truth, parse_arbiter(text), RULES).value)
    framed = parse_arbiter(f"{truth.fen}+{text}+0+0")
    assert math.isfinite(score_arbiter(truth, framed, RULES).value)


def cases():
    """(fen, uci, verdict) of random legal moves, and of one illegal move each."""
    rng = np.random.default_rng(7)
    positions = draw_distinct(RandomGames("both"), rng, "train", 40)
    positions += draw_distinct(EndgameSource("KPk,KRkp,KQk", "both"), rng, "train", 40)
    for position in positions:
        uci = random_legal_move(position.board, rng).uci()
        yield position.fen, uci, ruling_on(position.fen, uci)


def arbiter_score(truth, fen, reward=None, flags=None):
    terminated, truncated = flags or (truth.terminated, truth.truncated)
    text = arbiter_answer(fen, truth.reward if reward is None else reward, terminated, truncated)
    return score_arbiter(truth, parse_arbiter(text), RULES)


def test_the_exact_arbiter_answer_earns_the_maximum_and_copying_the_board_earns_next_to_nothing():
    for fen, _, truth in cases():
        exact = arbiter_score(truth, truth.fen)
        assert exact.value == pytest.approx(1.0)
        assert exact.parts["exact"] == exact.parts["exact4"] == exact.parts["fen"] == 1.0
        copied = arbiter_score(truth, fen)
        assert copied.parts["fen"] < 0
        assert copied.value < 0.3
        passed = arbiter_score(truth, truth.baseline)
        assert passed.parts["fen"] == 0.0
        assert copied.value < passed.value < 0.35
        claimed_illegal = arbiter_score(truth, fen, reward=-1.0, flags=(False, True))
        assert claimed_illegal.value < 0.1


def test_half_of_a_move_earns_half_of_its_credit_and_damage_costs():
    truth = ruling_on("4k3/8/8/8/8/8/8/R3K3 w - - 0 1", "a1a4")
    assert fen_credit(truth, "4k3/8/8/8/8/8/8/4K3 b - - 1 1") == 0.5
    assert fen_credit(truth, "4k3/8/8/8/R7/8/8/R3K3 b - - 1 1") == 0.5
    assert fen_credit(truth, "4k3/8/8/8/R7/8/8/4K3 b - - 1 1") == 1.0
    assert fen_credit(truth, "4k3/8/8/8/R7/8/8/5K2 b - - 1 1") == 0.0
    assert fen_credit(truth, "4k3/8/8/8/R7/8/8/4K3 b - - 0 1") == 0.5
    assert fen_credit(truth, "8/8/8/8/8/8/8/8 w KQkq e3 50 50") == -1.0


def test_an_illegal_move_is_answered_by_the_unchanged_board():
    fen = "4k3/8/8/8/8/8/8/R3K3 w - - 0 1"
    truth = ruling_on(fen, "a1b2")
    assert arbiter_score(truth, fen).value == pytest.approx(1.0)
    moved = arbiter_score(truth, "4k3/8/8/8/8/8/1R6/4K3 b - - 1 1", 0.001, (False, False))
    assert moved.parts["fen"] < 0
    assert moved.value < 0


def test_counters_do_not_count_for_the_position_alone():
    truth = ruling_on("4k3/8/8/8/8/8/8/R3K3 w - - 7 20", "a1a4")
    score = arbiter_score(truth, truth.fen.replace(" 8 20", " 9 20"))
    assert (score.parts["exact"], score.parts["exact4"]) == (0.0, 1.0)
    assert arbiter_score(truth, truth.fen, reward=0.5).parts["reward_field"] == 0.0
    assert arbiter_score(truth, truth.fen, flags=(True, False)).parts["flags"] == 0.0
    malformed = score_arbiter(truth, parse_arbiter(truth.fen), RULES)
    assert (malformed.status, malformed.value) == ("invalid", -0.2)


def mirrored_uci(uci):
    return "".join(str(9 - int(char)) if char.isdigit() else char for char in uci)


def mirrored_fen(fen):
    return chess.Board(fen).mirror().fen(en_passant="legal")


def test_rewards_are_the_same_with_colours_swapped():
    for fen, uci, truth in cases():
        mirror = ruling_on(mirrored_fen(fen), mirrored_uci(uci))
        half = fen.split()[1] == "w"
        # Black's moves end a full move, White's do not: that counter alone cannot be mirrored.
        assert mirror.fen.rsplit(" ", 1)[0] == mirrored_fen(truth.fen).rsplit(" ", 1)[0]
        assert int(mirror.fen.rsplit(" ", 1)[1]) - int(truth.fen.rsplit(" ", 1)[1]) == (1 if half else -1)
        assert (mirror.reward, mirror.terminated) == (truth.reward, truth.terminated)
        assert arbiter_score(mirror, mirror.fen).value == arbiter_score(truth, truth.fen).value
    swapped = PolicyTruth({mirrored_uci(uci): value for uci, value in TRUTH.values.items()}, "")
    for uci in TRUTH.values:
        assert short(uci).value == short(mirrored_uci(uci), swapped).value
