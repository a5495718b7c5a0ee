"""Watching a run: rules over its metrics, the monitor that keeps their state, and the report."""
