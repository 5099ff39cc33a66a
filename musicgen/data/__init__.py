"""Corpora, their preparation (from files to a token cache) and loading (from cache to batches)."""
