"""The commands: a module each, with `add_arguments(parser)` and `run(arguments) -> exit code`."""
