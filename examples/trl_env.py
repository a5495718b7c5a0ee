"""TRL's own GRPOTrainer on an Assay environment.

    python trl_env.py MODEL --env dataset_builder=own_env.py:LargestDigit --output_dir runs/trl --num_generations 16

`--env` takes settings of `assay train`; everything else is TRL's. The model and the trainer's log
(`trainer_state.json`) are written to the output folder.
"""

import argparse

from transformers import AutoTokenizer, HfArgumentParser
from trl import GRPOConfig, GRPOTrainer

from assay.integrations.trl_environment import environment


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder or hub id")
    parser.add_argument("--env", nargs="+", required=True, metavar="KEY=VALUE")
    args, rest = parser.parse_known_args()
    (config,) = HfArgumentParser(GRPOConfig).parse_args_into_dataclasses(rest)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    env = environment(None, args.env, tokenizer=tokenizer)
    trainer = GRPOTrainer(
        args.model,
        reward_funcs=env.reward_func,
        rollout_func=env.rollout_func,
        train_dataset=env.dataset("train"),
        processing_class=tokenizer,
        args=config,
    )
    trainer.train()
    trainer.save_model()
    trainer.save_state()


if __name__ == "__main__":
    main()
