"""Stochastic positional encoding (Liutkus et al. 2021).

`base.py` has the gate, `sine.py` and `conv.py` draw the noise. Queries and keys are multiplied by
codes, and gated, in `batched.py` on accelerators, and in `sine_blockwise.py` and
`conv_blockwise.py` on CPUs.
"""
