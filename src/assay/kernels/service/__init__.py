"""The grading service as its clients see it: what goes over the wire, and the grader that asks it."""
