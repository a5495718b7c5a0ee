import asyncio
from pathlib import Path

import chess
import pytest

from assay.config.schema import settings
from assay.envs.base import BuildContext, iter_builders
from assay.envs.chess.dataset import ChessDatasetBuilder
from assay.envs.chess.engine.stockfish import StockfishConfig
from assay.envs.chess.grammar import parse_arbiter, parse_policy
from assay.envs.chess.positions.base import canonical_key, split_of
from assay.envs.chess.rewards import ArbiterWeights, PolicyWeights
from assay.errors import ConfigError, DataError, EngineError

GAMES = """[Event "x"]

1. e4 e5 2. Nf3 Nc6 3. Bb5 a6 4. Ba4 Nf6 5. O-O Be7 6. Re1 b5 7. Bb3 d6 8. c3 O-O 9. h3 Nb8 10. d4 Nbd7 11. Nbd2 Bb7
12. Bc2 Re8 13. Nf1 Bf8 14. Ng3 g6 15. a4 c5 16. d5 c4 *
"""


def build(tmp_path, seed=0, max_turns=1, chat=False, **settings):
    settings = {"num_train": 24, "num_heldout": 10, "batch_size": 5, **settings}
    return ChessDatasetBuilder(**settings).build(BuildContext(seed, max_turns, tmp_path, chat))


def tasks(dataset):
    return [builder.task for builder in iter_builders(dataset)]


def keys(dataset):
    return {canonical_key(chess.Board(task.payload["fen"])) for task in tasks(dataset)}


def test_a_builder_says_how_far_it_is(tmp_path):
    told = []
    context = BuildContext(0, 1, tmp_path, progress=lambda *said: told.append(said))
    ChessDatasetBuilder(num_train=24, num_heldout=10).build(context)
    for what, total in (("training positions", 24), ("held-out positions", 10)):
        assert [done for name, done, of in told if (name, of) == (what, total)] == list(range(1, total + 1))


def test_every_training_task_comes_once_an_epoch_in_an_order_of_the_seed(tmp_path):
    data = build(tmp_path, num_epochs=3)
    ids = [task.id for task in tasks(data.train)]
    assert len(data.train) == 15 and len(ids) == 72
    epochs = [ids[:24], ids[24:48], ids[48:]]
    assert all(sorted(epoch) == sorted(set(ids)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    again = build(tmp_path, num_epochs=3)
    assert [task.id for task in tasks(again.train)] == ids
    assert [b.task.id for b in again.train.batch(7)] == ids[35:40]
    other = build(tmp_path, seed=1, num_epochs=3)
    assert {task.id for task in tasks(other.train)} != set(ids)
    plain = [task.id for task in tasks(build(tmp_path, num_epochs=2, shuffle=False).train)]
    assert plain[:24] == plain[24:]
    with pytest.raises(IndexError):
        data.train.batch(15)


def test_held_out_tasks_are_the_same_for_every_seed_and_every_training_size(tmp_path):
    first = [task.key for task in tasks(build(tmp_path).heldout)]
    assert len(set(first)) == 10
    assert [task.key for task in tasks(build(tmp_path, seed=9, num_train=100).heldout)] == first
    final = build(tmp_path, heldout_split="final")
    assert not keys(final.heldout) & keys(build(tmp_path).heldout)
    assert {split_of(key) for key in keys(final.heldout)} == {"final"}


@pytest.mark.parametrize("settings", [{}, {"task": "mixed"}, {"task": "arbiter", "source": "random", "side": "both"}])
def test_held_out_positions_are_in_neither_training_nor_supervised_data(tmp_path, settings):
    data = build(tmp_path, num_train=60, num_heldout=20, **settings)
    assert not keys(data.train) & keys(data.heldout)
    assert {split_of(key) for key in keys(data.train)} == {"train"}
    for example in data.sft.batch(0, 40):
        fen = example.prompt[0].content[3:].split("+")[0]
        assert split_of(canonical_key(chess.Board(fen))) == "train"


def test_supervised_batches_depend_on_seed_index_and_size_alone_and_teach_the_rules(tmp_path):
    data, same, other = build(tmp_path), build(tmp_path), build(tmp_path, seed=1)
    assert data.sft.batch(3, 32) == same.sft.batch(3, 32) != other.sft.batch(3, 32)
    assert data.sft.batch(3, 32) != data.sft.batch(4, 32)
    for example in data.sft.batch(0, 50):
        board = chess.Board(example.prompt[0].content.removeprefix("P: "))
        assert example.completion.startswith(" B: ")
        assert chess.Move.from_uci(parse_policy(example.completion).best) in board.legal_moves


def test_long_supervised_answers_list_distinct_legal_moves(tmp_path):
    data = build(tmp_path, answer="full")
    for example in data.sft.batch(0, 50):
        board = chess.Board(example.prompt[0].content.removeprefix("P: "))
        answer = parse_policy(example.completion, "full")
        legal = {move.uci() for move in board.legal_moves}
        assert not answer.problems and answer.best in answer.moves
        assert len(set(answer.moves)) == len(answer.moves) == min(5, len(legal))
        assert set(answer.moves) <= legal


def test_supervised_arbiter_answers_are_exact(tmp_path):
    data = build(tmp_path, task="arbiter", source="random", side="both", illegal_fraction=0.3)
    illegal = 0
    for example in data.sft.batch(0, 100):
        fen, uci, history, _ = example.prompt[0].content.removeprefix("A: ").split("+")
        answer = parse_arbiter(example.completion)
        board, move = chess.Board(fen), chess.Move.from_uci(uci)
        assert history.split()[-1] == uci and len(history.split()) <= 10
        if move in board.legal_moves:
            board.push(move)
            assert (answer.fen, answer.truncated) == (board.fen(), False)
        else:
            illegal += 1
            assert (answer.fen, answer.reward, answer.truncated) == (fen, -1.0, True)
    assert 15 <= illegal <= 45


def test_a_mixture_has_exactly_its_share_of_arbiter_tasks_and_tags_say_which(tmp_path):
    data = build(tmp_path, task="mixed", arbiter_fraction=0.25, side="both")
    kinds = [task.payload["kind"] for task in tasks(data.train)]
    assert kinds.count("A") == 6
    for task in tasks(data.train):
        side = "white" if " w " in task.payload["fen"] else "black"
        assert task.tags == (task.payload["kind"], f"{task.payload['kind']}/{side}")
    labels = [example.prompt[0].content[0] for example in data.sft.batch(0, 200)]
    assert 25 <= labels.count("A") <= 75


@pytest.mark.parametrize("task", ["policy", "arbiter"])
@pytest.mark.parametrize("source", ["endgames", "random", "engine", "pgn"])
def test_every_source_serves_every_task(tmp_path, monkeypatch, source, task):
    path = tmp_path / "games.pgn"
    path.write_text(GAMES)
    monkeypatch.setattr("assay.envs.chess.positions.selfplay.MAX_PLIES", 10)
    monkeypatch.setattr("assay.envs.chess.positions.selfplay.GAMES_AT_ONCE", 2)
    settings = {"source_path": path} if source == "pgn" else {}
    if task == "policy" or source == "engine":
        settings["stockfish"] = StockfishConfig(nodes=50)

    async def play():
        # Building happens inside a running event loop, as it may in a run.
        data = build(tmp_path, task=task, source=source, side="both", num_train=6, num_heldout=1, **settings)
        builder = data.heldout.batch(0)[0]
        (env,) = await builder.make(1)
        text = data.sft.batch(0, 1)[0].completion
        result = await env.step(text)
        assert result.score.status in ("scored", "invalid")
        assert data.figure(builder.task, [text]).startswith("<figure")
        baselines = await data.baseline_policies()
        assert list(baselines) == (["random_legal"] if task == "policy" else ["unchanged_board"])
        assert all(len(values) <= 1 for values in next(iter(baselines.values())).values())
        await data.close()
        await data.close()

    asyncio.run(play())


def test_several_turns_reach_the_environment(tmp_path):
    data = build(tmp_path, max_turns=2, task="arbiter")

    async def play():
        (env,) = await data.train.batch(0)[0].make(1)
        return [(await env.step("junk")).done for _ in range(2)]

    assert asyncio.run(play()) == [False, True]


def test_a_missing_engine_or_file_stops_the_build(tmp_path):
    with pytest.raises(EngineError):
        build(tmp_path, stockfish=StockfishConfig(path=str(tmp_path / "none")))
    build(tmp_path, task="arbiter")
    with pytest.raises(DataError, match="source_path"):
        build(tmp_path, task="arbiter", source="fen", source_path=tmp_path / "none.fen")


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"source": "pgn"}, "source_path is not set"),
        ({"source_path": Path("x.pgn")}, "source_path=x.pgn is set, but .*source=endgames"),
        ({"source": "random", "material": "KRk"}, "material=KRk is set, but .*source=random"),
        ({"arbiter_fraction": 0.5}, "arbiter_fraction=0.5 is set, but .*task=policy"),
        ({"task": "mixed", "arbiter_fraction": 1.0}, "strictly between"),
        ({"task": "arbiter", "answer": "full"}, "answer=full is set, but .*task=arbiter"),
        (
            {"task": "arbiter", "policy_weights": PolicyWeights(best=1.0)},
            r"policy_weights\.\* is set, but .*task=arbiter",
        ),
        (
            {"task": "arbiter", "stockfish": StockfishConfig(nodes=1)},
            r"stockfish\.\* is set, but .*Stockfish is asked, and task=arbiter",
        ),
        ({"task": "arbiter", "prompt_template": "{fen}"}, "prompt_template={fen} is set, but .*task=arbiter"),
        ({"arbiter_weights": ArbiterWeights(exact=1.0)}, r"arbiter_weights\.\* is set, but .*task=policy"),
        ({"illegal_fraction": 0.3}, "illegal_fraction=0.3 is set, but .*task=policy"),
        ({"task": "arbiter", "illegal_fraction": 1.5}, "at most 1"),
        ({"policy_weights": PolicyWeights(evals=0.5)}, "Set answer=full"),
        ({"prompt_template": "P: fen"}, "must hold"),
        ({"prompt_template": "P: {fen} {x}"}, "must hold"),
        ({"prompt_template": "P: {fen} M:"}, "answer=best"),
        ({"answer": "full", "prompt_template": "P: {fen} B:"}, "answer=full"),
        ({"stockfish": StockfishConfig(multipv=5)}, "leaves moves without a value"),
        ({"material": "KQ"}, "must have one K"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"num_heldout": 0}, "num_heldout=0"),
        ({"num_train": 0}, "num_train=0"),
        ({"num_epochs": 0}, "num_epochs=0"),
    ],
)
def test_impossible_settings_are_refused_with_the_cure(settings, complaint):
    with pytest.raises(ConfigError, match=complaint):
        ChessDatasetBuilder(**settings)


def test_weights_out_of_bounds_are_refused():
    with pytest.raises(ConfigError, match="win_cp=0 must be above 0"):
        PolicyWeights(win_cp=0)


def test_possible_combinations_are_not_refused():
    ChessDatasetBuilder(task="arbiter", source="engine", stockfish=StockfishConfig(nodes=100))
    ChessDatasetBuilder(task="mixed", arbiter_fraction=0.5, illegal_fraction=0.5, answer="full")
    ChessDatasetBuilder(answer="full", prompt_template="P: {fen}    M:")


def test_the_plan_is_told_in_a_sentence():
    text = ChessDatasetBuilder(task="mixed", side="both").describe()
    assert "3200 training positions from KQk,KRk with either side to move" in text
    assert "20% of tasks" in text and "Stockfish at 2000 nodes" in text and "200 validation" in text
    assert "Stockfish" not in ChessDatasetBuilder(task="arbiter", source="random").describe()


def test_every_setting_is_documented():
    assert [name for name, setting in settings(ChessDatasetBuilder).items() if not setting.doc] == []
