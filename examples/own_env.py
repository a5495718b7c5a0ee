"""An environment of your own: assay train dataset_builder=own_env.py:LargestDigit model_name=scratch lora_rank=0"""

import chz

from assay.envs import DatasetBuilder, EnvData, Message, Score, StepResult, Task, TaskBatches, TokenizerCorpus


class Question:  # one turn and nothing to prepare: the group is its own env
    def __init__(self, task):
        self.task = task

    async def make(self, n):
        return [self] * n

    async def reset(self):
        return list(self.task.prompt)

    async def step(self, text):
        return StepResult(Score("scored", float(text == self.task.payload["answer"])), done=True)


@chz.chz
class LargestDigit(DatasetBuilder):
    digits: int = 2  # of each number

    def build(self, context):
        texts = [f"{n:0{self.digits}}=" for n in range(10**self.digits)]
        tasks = [Task("largest", text, (Message("user", text),), {"answer": max(text[:-1])}) for text in texts]
        train = TaskBatches([t for i, t in enumerate(tasks) if i % 5], Question, self.batch_size, num_epochs=40)
        heldout = TaskBatches(tasks[::5], Question, self.batch_size)
        return EnvData(train, heldout, tokenizer_corpus=TokenizerCorpus(texts, r"\d|=", "0123456789="))
