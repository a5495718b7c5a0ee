"""The reward `chess`: a move judged by Stockfish for the position that its sample names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.cli.main import main
from assay.envs.chess.position_reward import ChessReward, position_of_sample
from assay.errors import ConfigError, DataError, EngineError
from assay.rewards import EngineConfig, JudgeConfig, RewardEngine, Sample
from assay.rewards.named import find_reward
from assay.types import Message

MATE_IN_ONE = "7k/5ppp/8/8/8/8/8/R6K w - - 0 1"
MATED = "R5k1/5ppp/8/8/8/8/8/7K b - - 0 1"
OPTIONS = {"stockfish": {"nodes": 200}}


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[RewardEngine]:
    reward = find_reward("chess", {**OPTIONS, "cache_dir": str(tmp_path)}, JudgeConfig())
    with RewardEngine(reward, config=EngineConfig(max_failure_rate=1.0)) as made:
        yield made


def test_moves_are_judged_for_their_position(engine: RewardEngine) -> None:
    texts = ["B: a1a8", "B: a1a2", "B: a1b2", "a1a8"]
    best, legal, illegal, malformed = engine.score_many_sync([Sample(t, extra={"fen": MATE_IN_ONE}) for t in texts])
    assert best.value == pytest.approx(1.0) and best.parts["best"] == 1.0
    assert best.evidence["fen"] == MATE_IN_ONE and "Stockfish" in str(best.evidence["engine"])
    assert legal.value is not None and 0.2 <= legal.value < 1.0
    assert [score.status for score in (best, legal, illegal, malformed)] == ["scored", "scored", "invalid", "invalid"]
    assert malformed.value is not None and malformed.value < 0
    assert best.fingerprint == engine.reward.fingerprint and len({best.fingerprint, ChessReward().fingerprint}) == 2


def test_the_position_may_stand_in_the_prompt_which_may_have_said_the_label(engine: RewardEngine) -> None:
    prompt = (Message("user", f"P: {MATE_IN_ONE} B:"),)
    (score,) = engine.score_many_sync([Sample("a1a8", prompt=prompt)])
    assert score.value == pytest.approx(1.0)


def test_a_sample_names_one_position() -> None:
    both = (Message("user", f"{MATE_IN_ONE} or {MATED}?"),)
    assert position_of_sample(Sample("", prompt=both, extra={"fen": f" {MATED} "})) == MATED
    with pytest.raises(DataError, match="2 different positions"):
        position_of_sample(Sample("", prompt=both))
    with pytest.raises(DataError, match="no position, and the columns are level"):
        position_of_sample(Sample("", extra={"level": 1}))


@pytest.mark.parametrize(("fen", "message"), [("8/8/8/8/8/8/8/8 w - - 0 1", "not a possible"), (MATED, "no engine")])
def test_an_impossible_position_is_an_errored_sample(fen: str, message: str, engine: RewardEngine) -> None:
    bad, good = engine.score_many_sync([Sample("B: a1a8", extra={"fen": f}) for f in (fen, MATE_IN_ONE)])
    assert bad.status == "errored" and message in bad.evidence["message"] and good.status == "scored"


def test_a_file_is_scored_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "moves.jsonl"
    source.write_text(json.dumps({"response": "B: a1a8", "fen": MATE_IN_ONE}) + "\n")
    options = ["options.stockfish.nodes=200", f"options.cache_dir={tmp_path}", "options.weights.best=1.3"]
    assert main(["score", f"--input={source}", "--reward=chess", *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["mean"] == pytest.approx(2.0) and found["calls"] == 0


def test_what_cannot_work_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="best or full"):
        ChessReward(answer="long")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="nods"):
        ChessReward(stockfish={"nods": 3})
    with pytest.raises(EngineError, match="not an executable file"):
        ChessReward(stockfish={"path": str(tmp_path / "missing")})
