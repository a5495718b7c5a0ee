"""A run's report: charts, curves, comparison, page."""
