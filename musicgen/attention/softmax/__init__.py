"""Softmax attention: torch's fused form, or blocks of queries."""
