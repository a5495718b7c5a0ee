"""What the adapters of all hosts share: settings, scoring, and the engine in a Ray actor."""
