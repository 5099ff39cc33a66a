"""Measure music or a model: python evaluate.py generated=DIR references=DIR [metrics=style]."""

from musicgen.cli.commands import evaluate

if __name__ == "__main__":
    evaluate()
