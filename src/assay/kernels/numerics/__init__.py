"""Does a kernel compute what the reference computes? Secret inputs, tolerances, and the stage that decides."""
