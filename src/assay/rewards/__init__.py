"""The reward engine: scores thousands of completions at the limit of whatever judges them. Imports no torch."""
