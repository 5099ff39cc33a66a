"""Callbacks that only watch a training: what the model learns, and how it sounds."""
