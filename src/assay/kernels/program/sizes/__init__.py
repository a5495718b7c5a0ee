"""Where a submission is looked at beside the size that it is graded at first."""
