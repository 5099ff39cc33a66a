"""Corpora, their preparation (files to a token cache), and loading (cache to batches)."""
