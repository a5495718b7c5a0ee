"""Assay's losses and advantages beside those of TRL and verl, on the same made-up batches.

`cases` makes the batches, `assay_side`, `trl_side` and `verl_side` say what each makes of one, and `comparisons` holds
what is compared, with the conventions in which the three differ.
"""
