"""An environment whose judge fails on one answer."""

from assay.envs import Environment, Task


class Fails(Environment):
    """Say the digit."""

    def tasks(self):
        return [Task.of(f"{n}=", answer=str(n)) for n in range(4)]

    def score(self, task, text):
        if text == "!":
            raise RuntimeError("the judge is dead")
        return text == task.answer
