"""Assay's losses and advantages beside those of TRL and verl, on the same made-up batches.

`cases` makes the batches, `assay_side`, `trl_side` and `verl_side` say what each makes of one. `comparisons` holds what
is compared, `conventions` how the three differ, `changes` what puts them on the same ground, and `judge` the verdict on
each comparison.
"""
