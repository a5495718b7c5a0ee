"""One module for each host of `benchmarks/every_trainer.py`, run by an interpreter that has the host's package.

A module's `main` hands `report` two functions:

    play(name, play, one)   the groups of a play through the host, as `Rollout`s: what the host would train on
    failing(one)            for a group whose second rollout cannot be scored: which ones the host keeps out of training
"""
