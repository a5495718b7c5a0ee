"""Watching a run: rules over its metrics, the monitor that remembers, the report that explains."""
