"""The reward `chess`: a completion judged by Stockfish for the position that its sample names, without an environment.

    assay score --input moves.jsonl --reward chess      {"response": "B: e2e4", "fen": "rnbqkbnr/... w KQkq - 0 1"}

The position is the column `fen`, or else the only FEN in the prompt. Answers and rewards are those of the P: task.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path

from assay.config import Layer, build, resolved
from assay.config.sources import flatten
from assay.envs.chess.engine.stockfish import StockfishConfig, StockfishPool
from assay.envs.chess.engine.uci_engine import find_stockfish
from assay.envs.chess.env import policy_truth
from assay.envs.chess.grammar import AnswerForm, given_label, parse_policy
from assay.envs.chess.rewards import PolicyWeights, score_policy
from assay.errors import ConfigError, DataError, EngineError
from assay.rewards.base import Sample
from assay.rewards.client.reply_cache import default_cache_path
from assay.rewards.functions.returned import errored
from assay.types import Json, Score

_FEN = re.compile(
    r"(?:[pnbrqkPNBRQK1-8]{1,8}/){7}[pnbrqkPNBRQK1-8]{1,8} [wb] (?:-|[KQkq]{1,4}) (?:-|[a-h][36]) \d+ \d+"
)


class ChessReward:
    """The reward of a move: a `DirectReward` (`assay.rewards.base`).

    Args:
        answer: form of the answers, `best` (`B: e2e4`) or `full` (`M: ... E: ... B: ...`). A prompt that ends with the
            label already has it.
        weights: settings of `PolicyWeights`, by name.
        stockfish: settings of `StockfishConfig`, by name.
        cache_dir: folder of analyses; the user's cache folder by default.

    Raises:
        ConfigError: unknown settings, or impossible ones.
        EngineError: Stockfish is not installed.
    """

    name = "chess"
    asks_judge = False

    def __init__(
        self,
        answer: AnswerForm = "best",
        weights: Mapping[str, Json] | None = None,
        stockfish: Mapping[str, Json] | None = None,
        cache_dir: str | None = None,
    ) -> None:
        if answer not in ("best", "full"):
            raise ConfigError(f"options.answer={answer!r} of the reward chess must be best or full.")
        self._answer: AnswerForm = answer
        self._weights = build(PolicyWeights, [_layer("options.weights", weights)])
        self._config = build(StockfishConfig, [_layer("options.stockfish", stockfish)])
        find_stockfish(self._config.path)
        self._cache_dir = Path(cache_dir) if cache_dir is not None else default_cache_path().parent
        self._pool: StockfishPool | None = None
        more = ("candidates", "evals") if answer == "full" else ()
        self.parts = ("format", "legal", "keeps", "rank", "best", *more)
        what = [answer, resolved(self._weights), self._config.nodes, self._config.multipv, self._config.hash_mb]
        self.fingerprint = f"chess:{hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]}"

    async def evaluate(self, sample: Sample) -> Score:
        """See `DirectReward`. A failing engine and an impossible position make an errored score.

        Raises:
            DataError: the sample names no position.
        """
        fen = position_of_sample(sample)
        if self._pool is None:
            self._pool = StockfishPool(self._config, self._cache_dir)
        try:
            truth = policy_truth(await self._pool.analyse(fen))
        except (EngineError, DataError) as error:
            return errored("reward", str(error))
        given = given_label(sample.prompt[-1].content) if sample.prompt else ""
        score = score_policy(truth, parse_policy(sample.response, self._answer, given), self._weights, self._answer)
        if score.status == "errored":
            return errored("reward", f"{fen}: {score.evidence['error']}")
        evidence = {**score.evidence, "fen": fen, "engine": truth.fingerprint}
        return Score(score.status, score.value, score.parts, evidence, cached=score.cached)

    async def close(self) -> None:
        """End the engines; what is scored afterwards starts new ones."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.close()


def _layer(name: str, given: Mapping[str, Json] | None) -> Layer:
    return Layer(name, flatten(given or {}, name))


def position_of_sample(sample: Sample) -> str:
    """The FEN that a sample names: its column `fen`, or the only one in its prompt.

    Raises:
        DataError: there is none, or the prompt has several.
    """
    if isinstance(fen := sample.extra.get("fen"), str) and fen.strip():
        return fen.strip()
    found = list(dict.fromkeys(_FEN.findall("\n".join(message.content for message in sample.prompt))))
    if len(found) == 1:
        return str(found[0])
    what = f"shows {len(found)} different positions" if found else "shows no position"
    raise DataError(
        f"The reward chess needs to know the position: a column `fen`, or one FEN in the prompt. This prompt {what}, "
        f"and the columns are {', '.join(sample.extra) or 'none'}."
    )
