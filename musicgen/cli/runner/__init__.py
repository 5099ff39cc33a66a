"""Run a command: arguments, Hydra, errors in one line."""
