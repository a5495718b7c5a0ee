"""A judge as reward, asked with a rubric of your own.

assay score --input completions.jsonl --reward judge_reward.py:rubric judge.model=gpt-4o-mini judge.votes=1
"""

from assay.rewards import JudgeReward

RUBRIC = """\
Someone asked:
{prompt}

An assistant answered:
{response}

Grade the answer: 4 points if it is correct, 3 if it says how it was found, 3 if a beginner could follow it.
Give your reasons in two sentences, then the sum: <score>0 to 10</score>"""


def rubric(judge):
    """Called once; `judge` holds the settings judge.* (endpoint, model, votes)."""
    return JudgeReward(RUBRIC, judge=judge, name="rubric")
