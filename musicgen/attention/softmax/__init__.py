"""Softmax attention: torch's fused operation, or blocks of queries."""
