"""Rewards for the rows of sums.jsonl: assay train --config sums.yaml"""


def correct(completion, answer):
    return completion.strip() == answer


def close(completion, answer):
    """Part of the way: 1 for the right number, less the further off."""
    return 1 / (1 + abs(int(completion) - int(answer))) if completion.isdigit() else 0.0
