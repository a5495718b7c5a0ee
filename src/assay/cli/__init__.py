"""The command line: one module per command, with `arguments(parser)` and `run(args, overrides)`."""
