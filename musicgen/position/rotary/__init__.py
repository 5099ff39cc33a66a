"""Rotary encodings: RoPE, PermuteFormer and LRPE."""
