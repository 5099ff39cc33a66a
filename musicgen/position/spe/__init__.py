"""Stochastic positional encoding (Liutkus et al. 2021)."""
