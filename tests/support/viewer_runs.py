"""Runs to look at: files in the formats that training writes, with answers that a test chooses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from assay.grpo.group_data import TurnPlace, TurnTraining
from assay.storage.files import encode_json
from assay.training.metrics.token_traces import token_records
from assay.training.metrics.traces import trace_records
from assay.training.run.ledger import Commit
from assay.types import Completion, Json, Message, Score, Task, Trajectory, TrajectoryGroup, Transition

PIECE = 4
"""Characters of a token."""
HOSTILE = (
    "</script><script>document.title = 'owned'; alert(1)</script>",
    "<img src=x onerror=\"alert(2)\"><iframe srcdoc='<script>parent.alert(3)</script>'></iframe>",
    "\x1b[31mred\x1b]0;owned\x07 and \u202egnp.exe",
    "كان المساء هادئًا <b>bold</b> &lt;script&gt;",
)
"""What a model or a judge may say."""


@dataclass
class Tokens:
    """A tokenizer that has seen all its text: pieces of equal length, numbered as they come."""

    pieces: list[str] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)

    def encode(self, text: str) -> tuple[int, ...]:
        found = []
        for start in range(0, len(text), PIECE):
            piece = text[start : start + PIECE]
            if piece not in self.numbers:
                self.numbers[piece] = len(self.pieces)
                self.pieces.append(piece)
            found.append(self.numbers[piece])
        return tuple(found)

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(self.pieces[token] for token in tokens)


@dataclass(frozen=True)
class Said:
    """One turn: what the policy said, the verdict, and what it was told before (on turns after the first)."""

    text: str
    score: Score
    told: str = ""
    truncated: bool = False


def rollout(task: Task, turns: Sequence[Said], tokens: Tokens, seed: int = 0) -> Trajectory:
    transitions: list[Transition] = []
    prompt = tokens.encode("".join(message.content for message in task.prompt))
    for said in turns:
        if transitions:
            prompt = (*prompt, *transitions[-1].completion.tokens, *tokens.encode(said.told))
        sampled = tokens.encode(said.text)
        rng = np.random.default_rng(len(sampled))
        completion = Completion(
            sampled,
            tuple(-rng.exponential(0.7, len(sampled))),
            "length" if said.truncated else "stop",
            0,
        )
        metrics = {"length": float(len(said.text))}
        transitions.append(Transition(prompt, completion, said.text, said.score, metrics))
    errored = any(said.score.status == "errored" for said in turns)
    return Trajectory(task, tuple(transitions), "errored" if errored or not turns else "done", seed)


@dataclass
class RunFiles:
    """The folder of a run, to which steps are added."""

    path: Path
    tokens: Tokens = field(default_factory=Tokens)
    run_id: str = "0123456789ab"
    before: int = 0
    """Supervised steps before the first RL batch."""

    def __post_init__(self) -> None:
        if self.path.exists():
            return
        self.path.mkdir(parents=True)
        (self.path / "config.json").write_bytes(encode_json({"log_path": str(self.path)}))
        self.commit(Commit(-1, "start", 0))
        for step in range(self.before):
            self.commit(Commit(step, "sft", step))

    def group(self, prompt: str, answers: Sequence[Sequence[Said]], *tags: str, system: str = "") -> TrajectoryGroup:
        messages = (*([Message("system", system)] if system else []), Message("user", prompt))
        task = Task("questions", prompt[:40], messages, {}, tags)
        made = tuple(rollout(task, turns, self.tokens, seed) for seed, turns in enumerate(answers))
        return TrajectoryGroup(task, made)

    def step(self, index: int, groups: Sequence[TrajectoryGroup], split: str = "train", with_tokens: int = 2) -> None:
        """Add the rollouts of an RL batch, the first groups token by token, and its metrics."""
        step = self.before + index
        turns = trained(groups)
        records = trace_records(
            groups,
            run_id=self.run_id,
            step=step,
            phase="rl",
            index=index,
            split="eval" if split == "eval" else "train",
            decode=self.tokens.decode,
            turns=turns,
        )
        self.add("traces.jsonl", records)
        if split == "train":
            self.commit(Commit(step, "rl", index))
            said = groups[:with_tokens]
            self.add("tokens.jsonl", token_records(said, step=step, turns=turns, text=self.tokens.decode))
        rewards = [r.reward for group in groups for r in group.trajectories if r.reward is not None]
        if rewards:
            low, high = np.quantile(rewards, [0.25, 0.75])
            name = "" if split == "train" else "eval/"
            values = {"reward/mean": np.mean(rewards), "reward_25pct": low, "reward_75pct": high}
            measured = {f"{name}{key}": float(value) for key, value in values.items()}
            self.add("metrics.jsonl", [{"version": 1, "step": step, "phase": "rl", "index": index, **measured}])

    def commit(self, commit: Commit) -> None:
        with (self.path / "ledger.jsonl").open("ab") as file:
            file.write(commit.encode())

    def alarm(self, step: int, message: str, level: str = "warning") -> None:
        self.add("events.jsonl", [{"version": 1, "step": step, "kind": "alarm", "level": level, "message": message}])

    def add(self, name: str, records: Sequence[Mapping[str, Json]]) -> None:
        with (self.path / name).open("ab") as file:
            file.writelines(encode_json(record) + b"\n" for record in records)


def trained(groups: Sequence[TrajectoryGroup]) -> dict[TurnPlace, TurnTraining]:
    """Advantages against the group's mean, and small log-ratios; nothing for what was not trained on."""
    found: dict[TurnPlace, TurnTraining] = {}
    for g, group in enumerate(groups):
        rewards = [r.reward for r in group.trajectories if r.reward is not None]
        mean = sum(rewards) / len(rewards) if rewards else 0.0
        for s, one in enumerate(group.trajectories):
            for t, turn in enumerate(one.transitions):
                found[g, s, t] = _training(one.reward, mean, len(set(rewards)) < 2, len(turn.completion.tokens), s)
    return found


def _training(reward: float | None, mean: float, constant: bool, length: int, seed: int) -> TurnTraining:
    if reward is None:
        return TurnTraining("errored")
    if constant:
        return TurnTraining("constant")
    rng = np.random.default_rng([seed, length])
    moved = rng.normal(0, 0.05, length).astype(np.float32)
    return TurnTraining(None, np.full(length, reward - mean, np.float32) + moved, moved)


def write_run(
    path: Path, groups: Callable[[RunFiles, int], Sequence[TrajectoryGroup]], steps: int = 3, before: int = 0
) -> RunFiles:
    """A run of some RL batches."""
    files = RunFiles(path, before=before)
    for step in range(steps):
        files.step(step, groups(files, step))
    return files


def judged(value: float, said: str = "It is right.") -> Score:
    evidence = {"votes": [10 * value], "rationales": [said], "judges": ["judge-1"]}
    return Score("scored", value, {"correct": value, "length": -0.1}, evidence, fingerprint="judge:12")


def all_kinds(files: RunFiles, step: int, gain: float = 0.1) -> list[TrajectoryGroup]:
    """One group each of plain, hostile, failed and many-turned answers."""
    better = min(1.0, 0.2 + gain * step)
    failed = Score("errored", None, evidence={"failure": "timeout", "message": "no answer in 60 s", "attempts": 4})
    message = "kernel.py:7:26: error: no attribute 'sigmoid'\n    tl.sigmoid(x)\n       ^"
    broken = Score("invalid", -0.5, {"correct": 0.0}, {"compiler": {"outcome": "error", "message": message}})
    key = [
        Said("I look under the mat.", Score("scored", 0.25)),
        Said("I take the key.", Score("scored", 0.5), told="user: There is a brass key.\n"),
    ]
    sums = [[Said(f"It is {step}.", judged(0.0))], [Said("One more.", judged(better))]]
    hostile = [[Said(text, judged(0.1 * place, text))] for place, text in enumerate(HOSTILE)]
    kernels = [[Said("Here.", broken)], [Said("No.", failed)], [Said("cut", judged(1.0), truncated=True)]]
    return [
        files.group(f"What is {step} plus 1?", sums, "sums"),
        files.group(HOSTILE[0], hostile, HOSTILE[1]),
        files.group("Write a kernel.", kernels, "kernels"),
        files.group("A locked door.", [key, []], "game"),
    ]
