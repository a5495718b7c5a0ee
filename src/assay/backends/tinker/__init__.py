"""The Tinker backend: a model behind the Tinker API, trained and sampled through the official SDK."""
