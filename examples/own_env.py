"""An environment of your own: assay train dataset_builder=own_env.py:LargestDigit"""

from assay.envs import Environment, Task


class LargestDigit(Environment):
    """The largest digit of a number, learned from scratch on a CPU."""

    digits: int = 2  # a setting: dataset_builder.digits=3
    batch_size, group_size, num_epochs, test_fraction = 16, 16, 40, 0.2
    run_settings = {  # defaults of the run; drop them for a pretrained model
        "model_name": "scratch",
        "lora_rank": 0,
        "learning_rate": 3e-3,
        "grpo": {"entropy_coef": 0.03},
        "max_tokens": 2,
        "log_path": "runs/largest_digit",
        "scratch": {"hidden_size": 64, "num_layers": 2, "context_length": 16},
    }

    def tasks(self):
        numbers = [f"{n:0{self.digits}}" for n in range(10**self.digits)]
        return [Task.of(f"{number}=", answer=max(number)) for number in numbers]

    def score(self, task, text):
        return text == task.answer
