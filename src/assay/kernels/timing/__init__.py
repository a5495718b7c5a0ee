"""How much faster than a baseline is a kernel? Timed jobs, statistics, the roofline."""
