"""One reward function for everything that trains: it takes what it names, and returns a number.

assay score --input completions.jsonl --reward reward_function.py:right,reward_function.py:brief*0.2
TRL     GRPOTrainer(reward_funcs=reward_func("reward_function.py:right"), ...)     # assay.integrations.trl
verl    reward.custom_reward_function.path=pkg://assay.integrations.verl
        +reward.custom_reward_function.reward_kwargs.reward=reward_function.py:right
"""

import re


def right(completion, answer):
    """Whether the last number is the answer; None (no score, and no 0) where the data set has no number to compare."""
    if not (expected := numbers(str(answer))):
        return None
    found = numbers(completion)
    return bool(found) and found[-1] == expected[-1]


def brief(completion, words=50):
    """1 up to a number of words, then less; `options.brief.words=30` sets another number."""
    return min(1.0, words / max(1, len(completion.split())))


def numbers(text):
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", text.replace(",", ""))]
