"""What a submission's text gives away before anything of it runs: `checks.check` is the whole of it."""
