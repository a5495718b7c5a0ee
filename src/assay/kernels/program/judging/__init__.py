"""What the answers of a replay prove: outputs compared, error bounds and rules held against what was measured."""
