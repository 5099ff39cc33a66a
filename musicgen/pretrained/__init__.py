"""Trained models that come with the package: one folder each, NAME/config.json and so on.

`musicgen.load(NAME)` and `checkpoint=NAME` find them (see `musicgen.run_folders`).
"""
