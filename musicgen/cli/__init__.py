"""The command line: train, generate, evaluate, prepare."""
