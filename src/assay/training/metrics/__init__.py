"""Metrics of a run: aggregates, sinks, progress on the console, traces."""
