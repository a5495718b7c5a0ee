import asyncio

import chess
import numpy as np
import pytest

from assay.envs.chess.baselines import known_policies
from assay.envs.chess.engine.stockfish import StockfishConfig, StockfishPool
from assay.envs.chess.env import ChessGroupBuilder, Referee
from assay.envs.chess.figures import draw_task
from assay.envs.chess.grammar import ParsedPolicy, arbiter_answer, policy_answer
from assay.envs.chess.positions.base import position_of
from assay.envs.chess.rewards import ArbiterWeights, PolicyTruth, PolicyWeights, score_policy
from assay.envs.chess.tasks import TaskStyle, arbiter_task, policy_task, random_illegal_move

QUEEN = "8/8/8/4k3/8/8/3K4/1Q6 w - - 0 1"
LOST = "8/8/8/4k3/8/8/3K4/1Q6 b - - 0 1"
SHORT = TaskStyle("best", "P: {fen}", 0.0, 0.1, True)
FULL = TaskStyle("full", "P: {fen}", 0.0, 0.1, True)
LABELLED = TaskStyle("best", "P: {fen} B:", 0.0, 0.1, True)


def position(fen):
    return position_of(chess.Board(fen))


def run(tmp_path, play, config=None):
    """The result of `play(referee)` with a live engine."""

    async def inside():
        async with StockfishPool(config or StockfishConfig(nodes=200), tmp_path) as pool:
            return await play(Referee(pool, PolicyWeights(), ArbiterWeights()))

    return asyncio.run(inside())


def test_a_group_shares_one_analysis_and_scores_each_answer(tmp_path):
    async def play(referee):
        envs = await ChessGroupBuilder(policy_task(position(QUEEN), SHORT), referee).make(4)
        truth = envs[0].truth.policy
        answers = [f" B: {truth.best_moves(50)[0]}", " B: b1a1", " B: b1a3", "what?"]
        assert [m.content for m in await envs[0].reset()] == [f"P: {QUEEN}"]
        return truth, [await env.step(text) for env, text in zip(envs, answers, strict=True)]

    truth, (best, legal, illegal, malformed) = run(tmp_path, play)
    assert truth.values.keys() == {move.uci() for move in chess.Board(QUEEN).legal_moves}
    assert all(result.done and not result.messages for result in (best, legal, illegal, malformed))
    assert best.score.value == pytest.approx(1.0)
    assert 0.2 <= legal.score.value < 1.0
    assert [r.score.status for r in (best, legal, illegal, malformed)] == ["scored", "scored", "invalid", "invalid"]
    assert (illegal.score.value, malformed.score.value) == (0.0, -0.2)
    assert best.metrics["best"] == best.metrics["keeps_win"] == best.metrics["legal"] == 1.0
    assert illegal.metrics["format"] == 1.0
    assert illegal.metrics["legal"] == illegal.metrics["keeps_win"] == malformed.metrics["format"] == 0.0
    assert "Stockfish" in best.score.fingerprint
    assert "b1a3 is not a legal move" in illegal.score.evidence["problems"]


def test_keeps_win_is_measured_only_where_there_is_a_win(tmp_path):
    async def play(referee):
        (env,) = await ChessGroupBuilder(policy_task(position(LOST), SHORT), referee).make(1)
        return await env.step(" B: e5d4")

    result = run(tmp_path, play)
    assert "keeps_win" not in result.metrics
    assert result.metrics["keeps"] == 1.0


def test_the_long_form_is_scored_against_the_same_analysis(tmp_path):
    async def play(referee):
        (env,) = await ChessGroupBuilder(policy_task(position(QUEEN), FULL), referee).make(1)
        values = env.truth.policy.values
        top = sorted(values, key=lambda uci: -values[uci])[:5]
        text = policy_answer(top[0], top, [values[uci] / 100 for uci in top], form="full")
        return await env.step(text)

    assert run(tmp_path, play).score.value == pytest.approx(1.3, abs=1e-3)


def test_arbiter_tasks_need_no_engine():
    task = arbiter_task(position(QUEEN), SHORT, np.random.default_rng(1))
    referee = Referee(None, PolicyWeights(), ArbiterWeights())

    async def play():
        right, wrong = await ChessGroupBuilder(task, referee).make(2)
        truth = right.truth.arbiter
        text = arbiter_answer(truth.fen, truth.reward, truth.terminated, truth.truncated)
        return await right.step(text), await wrong.step("no idea")

    right, wrong = asyncio.run(play())
    assert right.score.value == pytest.approx(1.0)
    assert right.score.fingerprint == f"python-chess {chess.__version__}"
    names = ("format", "fen", "exact", "exact4", "legal_fen", "reward_field", "flags", "legal_flag")
    assert right.metrics == dict.fromkeys(names, 1.0)
    assert wrong.score.status == "invalid"
    assert set(wrong.metrics) == set(right.metrics)


@pytest.mark.parametrize("script", ["#!/bin/sh\nexit 1\n", "#!/bin/sh\necho not an engine\n"])
def test_a_failing_engine_makes_scores_errored_and_never_raises(tmp_path, script):
    engine = tmp_path / "stockfish"
    engine.write_text(script)
    engine.chmod(0o755)

    async def play(referee):
        envs = await ChessGroupBuilder(policy_task(position(QUEEN), SHORT), referee, max_turns=3).make(2)
        return [await env.step(text) for env, text in zip(envs, (" B: b1a1", "junk"), strict=True)]

    for result in run(tmp_path, play, StockfishConfig(path=str(engine), deadline_s=2.0)):
        assert (result.score.status, result.score.value) == ("errored", None)
        assert result.done
        assert result.metrics == {}
        assert str(engine) in result.score.evidence["error"]


def test_an_invalid_answer_may_be_corrected_while_turns_are_left(tmp_path):
    async def play(referee):
        builder = ChessGroupBuilder(policy_task(position(QUEEN), LABELLED), referee, max_turns=3)
        first, second = await builder.make(2)
        return (
            [await first.step(text) for text in ("junk", " B: b1a3", " B: b1a3")],
            # The label stands in the first prompt only, so a retry must give it.
            [await second.step(text) for text in (" b1a3", " B: b1a1")],
        )

    failing, recovering = run(tmp_path, play)
    assert [r.done for r in failing] == [False, False, True]
    assert "no move in UCI notation" in failing[0].messages[0].content
    assert "b1a3 is not a legal move" in failing[1].messages[0].content
    assert failing[0].messages[0].role == "user"
    assert failing[2].messages == ()
    assert [r.done for r in recovering] == [False, True]
    assert recovering[1].score.status == "scored"


def test_the_random_legal_baseline_is_the_mean_over_all_legal_moves(tmp_path):
    tasks = [policy_task(position(QUEEN), SHORT), policy_task(position(LOST), SHORT)]

    async def play(referee):
        truths = []
        for task in tasks:
            (env,) = await ChessGroupBuilder(task, referee).make(1)
            truths.append(env.truth.policy)
        return truths, await known_policies(tasks, referee)

    truths, baselines = run(tmp_path, play)
    random_legal = baselines["random_legal"]
    assert list(baselines) == ["random_legal"]
    assert random_legal["legal"] == random_legal["format"] == [1.0, 1.0]
    assert len(random_legal["keeps_win"]) == 1
    for truth, reward, best in zip(truths, random_legal["reward"], random_legal["best"], strict=True):
        weights = PolicyWeights()
        scores = [score_policy(truth, ParsedPolicy((), (), uci, ()), weights, "best").value for uci in truth.values]
        assert reward == pytest.approx(sum(scores) / len(scores))
        assert best == pytest.approx(len(truth.best_moves(50)) / len(truth.values))


def test_the_baseline_of_arbiter_tasks_copies_the_board():
    rng = np.random.default_rng(0)
    style = TaskStyle("best", "P: {fen}", 1.0, 0.5, True)
    tasks = [arbiter_task(position(QUEEN), style, rng) for _ in range(20)]
    baselines = asyncio.run(known_policies(tasks, Referee(None, PolicyWeights(), ArbiterWeights())))
    row = baselines["unchanged_board"]
    illegal = [t.payload["uci"] not in {m.uci() for m in chess.Board(t.payload["fen"]).legal_moves} for t in tasks]
    assert row["exact"] == [float(is_illegal) for is_illegal in illegal]
    assert 0 < sum(illegal) < 20


def test_illegal_moves_are_illegal_and_of_every_kind():
    rng = np.random.default_rng(0)
    pinned = chess.Board("4r1k1/P7/8/8/8/8/4N3/4K3 w - - 0 1")
    moves = [random_illegal_move(pinned, rng) for _ in range(400)]
    assert not any(move in pinned.legal_moves for move in moves)
    assert any(move in pinned.pseudo_legal_moves for move in moves)
    assert chess.Move.from_uci("a7a8") in moves
    assert any(pinned.piece_at(move.from_square) is None for move in moves)
    assert len(set(moves)) > 100


def test_figures_show_the_board_and_the_answers_harmlessly():
    task = policy_task(position(QUEEN), SHORT)
    html = draw_task(task, [" B: b1a1", " B: b1a3", "<script>alert(1)</script>", ""])
    assert html.startswith("<figure") and "<svg" in html
    assert "script" not in html  # answers are drawn; what they say is the report's to show
    # A blue arrow for the legal answer, a vermilion one for the illegal answer.
    assert "#0072b2" in html and "#d55e00" in html
    assert "<circle" in draw_task(task, [" B: b1b1"])
    arbiter = draw_task(arbiter_task(position(QUEEN), SHORT, np.random.default_rng(0)), ["x"])
    assert "#4b5563" in arbiter


def test_truth_is_refused_when_moves_were_left_out(tmp_path):
    async def play(referee):
        (env,) = await ChessGroupBuilder(policy_task(position(QUEEN), SHORT), referee).make(1)
        return await env.step(" B: b1a1")

    result = run(tmp_path, play, StockfishConfig(nodes=200, multipv=3))
    assert result.score.status == "errored"
    assert "stockfish.multipv" in result.score.evidence["error"]


def test_policy_truth_ranks_ties_together():
    truth = PolicyTruth({"a": 3, "b": 3, "c": 1, "d": 0}, "")
    assert [truth.rank_share(uci, 0) for uci in "abcd"] == pytest.approx([0, 0, 2 / 3, 1])
    assert truth.best_moves(0) == ("a", "b")
    assert PolicyTruth({"a": -5}, "").rank_share("a", 0) == 0.0


def test_differences_within_the_margin_are_ties_but_mates_are_told_apart():
    truth = PolicyTruth({"a": 540, "b": 500, "c": 480, "d": -30}, "")
    assert truth.best_moves(50) == ("a", "b")
    assert [truth.rank_share(uci, 50) for uci in "abcd"] == pytest.approx([0, 0, 1 / 3, 1])
    mates = PolicyTruth({"a": 99_999, "b": 99_998, "c": 900}, "")
    assert mates.best_moves(50) == ("a",) and mates.rank_share("c", 50) == 1.0
