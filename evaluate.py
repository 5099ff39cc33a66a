"""Measure a model or music: python evaluate.py RUN, or generated=DIR [metrics=style]."""

from musicgen.cli.commands import evaluate

if __name__ == "__main__":
    evaluate()
