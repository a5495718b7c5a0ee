"""What a reward function is called with: it takes what it names.

    completion, response, solution_str    the completion's text
    prompt, messages                      the prompt as text; as a list of {"role": ..., "content": ...}
    answer, ground_truth                  the sample's ground truth
    data_source, extra_info               where the sample is from; all its columns
    anything else                         the column of that name

A function that names `completions` (or `responses`, `solution_strs`) is given lists, one entry per sample, as TRL does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from assay.errors import ConfigError, DataError
from assay.rewards.base import Sample
from assay.rewards.judge.template import prompt_text

_COMPLETION = ("completion", "response", "solution_str")
_TRUTH = ("ground_truth", "answer")
_SINGULAR: Mapping[str, str] = {
    "completions": "completion",
    "responses": "response",
    "solution_strs": "solution_str",
    "prompts": "prompt",
    "ground_truths": "ground_truth",
    "answers": "answer",
    "data_sources": "data_source",
    "extra_infos": "extra_info",
}
"""Name of a list in a batch function -> what its entries are."""
_BATCH = tuple(plural for plural, singular in _SINGULAR.items() if singular in _COMPLETION)


@dataclass(frozen=True)
class Parameters:
    """How a reward function is called.

    Attributes:
        required, optional: names of its parameters without and with a default, less those that are fixed.
        takes_rest: it has `**kwargs`, and is given everything there is.
        batch: it takes lists.
    """

    required: tuple[str, ...]
    optional: tuple[str, ...]
    takes_rest: bool
    batch: bool


def takes_completion(function: object) -> bool:
    """Whether something is called with completions: a reward function, and no factory of rewards."""
    return callable(function) and not inspect.isclass(function) and bool(_names(function) & {*_COMPLETION, *_BATCH})


def parameters_of(function: Callable[..., Any], fixed: Mapping[str, object], said: str) -> Parameters:
    """How `function` is called.

    Args:
        fixed: keyword arguments that are the same for every sample.
        said: names the function in messages.

    Raises:
        ConfigError: it takes no completion, both one and many, or not what is fixed.
    """
    names = _names(function)
    parameters = inspect.signature(function).parameters.values()
    single, batch = names & {*_COMPLETION}, names & {*_BATCH}
    if not single and not batch:
        raise ConfigError(f"{said} takes no `completion` (or `completions`, for a batch), so it could judge nothing.")
    if single and batch:
        raise ConfigError(
            f"{said} takes both `{min(single)}` (one sample) and `{min(batch)}` (a batch). Leave one of them out."
        )
    if len(taken := sorted(single or batch)) > 1:
        raise ConfigError(
            f"{said} takes both `{taken[0]}` and `{taken[1]}`, which are two names of what is scored. Leave one out, "
            "or rename the column that it stands for."
        )
    if apart := [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL)]:
        raise ConfigError(f"{said} has positional parameters ({', '.join(apart)}). Arguments are passed by name.")
    takes_rest = any(p.kind is p.VAR_KEYWORD for p in parameters)
    named = {p.name: p for p in parameters if p.kind is not p.VAR_KEYWORD}
    if unknown := sorted(fixed.keys() - named.keys()) if not takes_rest else []:
        raise ConfigError(f"{said} has no parameter {unknown[0]!r} for options.{unknown[0]}. It is {_shown(function)}.")
    if taken := sorted(fixed.keys() & {*_COMPLETION, *_BATCH}):
        raise ConfigError(f"options.{taken[0]} of {said} would stand in for what is scored. Remove it.")
    free = {name: p for name, p in named.items() if name not in fixed}
    return Parameters(
        tuple(name for name, p in free.items() if p.default is p.empty),
        tuple(name for name, p in free.items() if p.default is not p.empty),
        takes_rest,
        bool(batch),
    )


def arguments_of(parameters: Parameters, samples: Sequence[Sample], said: str) -> dict[str, Any]:
    """Keyword arguments for one sample, or for a batch of them as lists.

    Raises:
        DataError: the function needs what a sample lacks.
    """
    there = [available(sample) for sample in samples]
    arguments: dict[str, Any] = {}
    for name in (*parameters.required, *parameters.optional):
        plural = parameters.batch and (name in _BATCH or not all(name in sample.extra for sample in samples))
        entry = _SINGULAR.get(name, name) if plural else name
        lacking = next((names for names in there if entry not in names), None)
        if lacking is None:
            arguments[name] = [names[entry] for names in there]
        elif name in parameters.required:
            raise DataError(
                f"{said} takes `{name}`, which a sample does not have. It has {', '.join(sorted(lacking))}. Rename the "
                f"parameter, add the column, or give it a default: `{name}=None`."
            )
        elif any(entry in names for names in there):
            arguments[name] = [names.get(entry) for names in there]
    if parameters.takes_rest:
        columns = dict.fromkeys(name for names in there for name in names if name not in arguments)
        arguments.update({name: [names.get(name) for names in there] for name in columns})
    return arguments if parameters.batch else {name: values[0] for name, values in arguments.items()}


def available(sample: Sample) -> dict[str, Any]:
    """Everything that a function may take of a sample, by name. Columns called `data_source` and `extra_info` are what
    these names mean where the host says nothing itself, as in data sets that were made for verl."""
    columns = sample.extra
    names: dict[str, Any] = dict(columns)
    for name in _TRUTH:
        truths = (sample.ground_truth, columns.get(name), *(columns.get(other) for other in _TRUTH))
        if (truth := next((value for value in truths if value is not None), None)) is not None:
            names[name] = truth
    if sample.prompt:
        names["prompt"] = prompt_text(sample.prompt)
        names["messages"] = [{"role": message.role, "content": message.content} for message in sample.prompt]
    names.update(dict.fromkeys(_COMPLETION, sample.response))
    names["data_source"] = sample.data_source or columns.get("data_source", "")
    if not isinstance(columns.get("extra_info"), Mapping):
        names["extra_info"] = dict(columns)
    return names


def _names(function: Any) -> set[str]:
    try:
        return set(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return set()


def _shown(function: Callable[..., Any]) -> str:
    return f"{getattr(function, '__name__', type(function).__name__)}{inspect.signature(function)}"
