"""`assay init`: a commented file to start an environment or a reward from, which runs as it stands."""

from __future__ import annotations

import argparse
import json
import keyword
from collections.abc import Mapping, Sequence
from pathlib import Path

from assay.errors import ConfigError

ENVIRONMENT = '''\
"""{words}: an environment of your own.

    assay check {file}:{name}
    assay train dataset_builder={file}:{name}
"""

from assay.envs import Environment, Task


class {name}(Environment):
    """The larger of two digits."""

    digits: int = 10  # a typed field is a setting: dataset_builder.digits=5

    # Settings that every environment has, with other defaults.
    batch_size = 16  # tasks in a batch
    group_size = 16  # answers to each task, which are compared with each other
    num_epochs = 40
    test_fraction = 0.2  # of the tasks are held out

    # Settings of the run that suit this task: a small model from scratch, on a CPU. Whatever you give outranks them.
    # For a pretrained model remove them: assay train dataset_builder={file}:{name} model_name=...
    run_settings = {{
        "model_name": "scratch",
        "lora_rank": 0,
        "learning_rate": 3e-3,
        "grpo": {{"entropy_coef": 0.03}},  # keeps answers varied while all of them are wrong
        "max_tokens": 2,
        "log_path": "runs/{stem}",
        "scratch": {{"hidden_size": 64, "num_layers": 2, "context_length": 16}},
    }}

    def tasks(self):
        """Every problem once. With tasks(self, split) you make the splits "train" and "test" yourself."""
        pairs = [(a, b) for a in range(self.digits) for b in range(self.digits)]
        return [Task.of(f"{{a}},{{b}}:", answer=str(max(a, b))) for a, b in pairs]

    def score(self, task, text):
        """What an answer is worth: a number, True or False, or None where it cannot be judged. May be async."""
        return text.strip() == task.answer
'''

GAME = '''\
"""{words}: a game of several turns.

    assay check {file}:{name}
    assay train dataset_builder={file}:{name}
"""

from assay.envs import Environment, Message, Score, StepResult, Task


class Guessing:
    """One rollout: the policy guesses a digit and is told whether to go up or down."""

    def __init__(self, task):
        self.task = task

    async def reset(self):
        """What the policy is told first."""
        return list(self.task.prompt)

    async def step(self, text):
        """Judge a turn. Without `done`, the policy is told `messages` and answers again."""
        if text == self.task.answer:
            return StepResult(Score("scored", 1.0), done=True)
        hint = "?" if not text.isdigit() else ">" if int(text) < int(self.task.answer) else "<"
        return StepResult(Score("scored", 0.0), done=False, messages=(Message("user", hint),))


class {name}(Environment):
    """Find a digit between two others in three guesses."""

    batch_size = 16
    group_size = 16
    num_epochs = 40
    max_turns = 3
    # gamma=1 pays the first guesses of a game that was won as much as the last one.
    run_settings = {{
        "model_name": "scratch",
        "lora_rank": 0,
        "learning_rate": 3e-3,
        "grpo": {{"entropy_coef": 0.03}},  # keeps answers varied while all of them are wrong
        "max_tokens": 2,
        "mode": "multi_turn",
        "gamma": 1.0,
        "log_path": "runs/{stem}",
        "scratch": {{"hidden_size": 64, "num_layers": 2, "context_length": 32}},
    }}

    def tasks(self):
        """One task for each secret in each range."""
        ranges = [(low, high) for low in range(10) for high in range(low + 2, min(low + 7, 10))]
        return [Task.of(f"{{a}}-{{b}}:", answer=str(n)) for a, b in ranges for n in range(a, b + 1)]

    def env(self, task):
        """A fresh env for each rollout, instead of score."""
        return Guessing(task)

    def texts(self):
        """What the env says; a tokenizer that is made from scratch must know it."""
        return ["<", ">", "?"]
'''

ROWS = '''\
"""{words}: rewards for a table of prompts and answers ({stem}.jsonl).

A reward takes what it names: completion, prompt, answer, or any column. It returns a number, True or False, or None
where an answer cannot be judged. The same functions score in other trainers too.
"""


def correct(completion, answer):
    """1 for the right answer."""
    return completion.strip() == answer


def short(completion):
    """From 1 for an empty answer down to 0 for one of 8 characters."""
    return max(0.0, 1 - len(completion) / 8)
'''

KINDS: Mapping[str, str] = {"environment": ENVIRONMENT, "game": GAME, "rows": ROWS}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("file", type=Path, metavar="FILE", help="the Python file to write")
    parser.add_argument(
        "--kind",
        choices=tuple(KINDS),
        default="environment",
        help="environment (tasks and a score), game (several turns), rows (rewards for a table, with one beside FILE)",
    )
    parser.add_argument("--help", "-h", action="help", help="show this message")


def run(args: argparse.Namespace, overrides: Sequence[str]) -> int:
    """Write the file and print what to do next."""
    files = contents(args.file, args.kind)
    if there := [str(path) for path in files if path.exists()]:
        raise ConfigError(f"{there[0]} exists and is not overwritten. Give another name, or remove it.")
    for path, text in files.items():
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:
            raise ConfigError(
                f"{path} cannot be written: {error.strerror}. Give a name in a folder that exists."
            ) from error
        print(f"Wrote {path}.")
    print("\nNext:")
    for line in next_commands(args.file, args.kind):
        print(f"  {line}")
    return 0


def contents(file: Path, kind: str) -> dict[Path, str]:
    """The files of a kind, with their text.

    Raises:
        ConfigError: the name is not one of a Python module.
    """
    stem = file.stem
    if file.suffix != ".py" or not stem.isidentifier() or keyword.iskeyword(stem):
        raise ConfigError(f"{file} is not the name of a Python file. Give one such as my_task.py.")
    words = stem.replace("_", " ").strip().capitalize() or stem
    written = {file: KINDS[kind].format(words=words, file=file.name, name=class_name(stem), stem=stem)}
    if kind == "rows":
        rows = [{"prompt": f"{a}+{b}=", "answer": str(a + b)} for a in range(10) for b in range(10)]
        written[file.with_suffix(".jsonl")] = "".join(json.dumps(row) + "\n" for row in rows)
    return written


def class_name(stem: str) -> str:
    """A class's name for a module's: `my_task` is `MyTask`."""
    name = "".join(part[:1].upper() + part[1:] for part in stem.split("_") if part)
    return name if name.isidentifier() and not keyword.iskeyword(name) else f"Task{name}"


def next_commands(file: Path, kind: str) -> list[str]:
    """What to type next."""
    if kind != "rows":
        task = f"{file}:{class_name(file.stem)}"
        return [f"assay check {task}", f"assay train dataset_builder={task}"]
    rows = f"dataset_builder.path={file.with_suffix('.jsonl')} dataset_builder.reward={file}:correct"
    scratch = "model_name=scratch lora_rank=0 learning_rate=3e-3 grpo.entropy_coef=0.03 max_tokens=3"
    scratch += " scratch.context_length=16"
    size = "dataset_builder.batch_size=16 dataset_builder.group_size=16 dataset_builder.num_epochs=40"
    return [
        f"assay check rows {rows}",
        f"assay train dataset_builder=rows {rows} {size} {scratch} log_path=runs/{file.stem}",
    ]
