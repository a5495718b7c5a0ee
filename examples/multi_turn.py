"""A game of several turns: assay train dataset_builder=multi_turn.py:GuessTheDigit"""

from assay.envs import Environment, Message, Score, StepResult, Task


class Guessing:  # one rollout
    def __init__(self, task):
        self.task = task

    async def reset(self):
        return list(self.task.prompt)

    async def step(self, text):
        if text == self.task.answer:
            return StepResult(Score("scored", 1.0), done=True)
        hint = "?" if not text.isdigit() else ">" if int(text) < int(self.task.answer) else "<"
        return StepResult(Score("scored", 0.0), done=False, messages=(Message("user", hint),))


class GuessTheDigit(Environment):
    """Find a digit between two others in three guesses; bisection always does."""

    batch_size, group_size, num_epochs, max_turns = 16, 16, 40, 3
    run_settings = {
        "model_name": "scratch",
        "lora_rank": 0,
        "learning_rate": 3e-3,
        "grpo": {"entropy_coef": 0.03},
        "max_tokens": 2,
        "mode": "multi_turn",
        "gamma": 1.0,  # a won game pays each of its turns alike
        "log_path": "runs/guess_the_digit",
        "scratch": {"hidden_size": 64, "num_layers": 2, "context_length": 32},
    }

    def tasks(self):
        ranges = [(low, high) for low in range(10) for high in range(low + 2, min(low + 7, 10))]
        return [Task.of(f"{a}-{b}:", answer=str(n)) for a, b in ranges for n in range(a, b + 1)]

    def env(self, task):
        return Guessing(task)

    def texts(self):  # what the env says; a tokenizer made from scratch must know it
        return ["<", ">", "?"]
