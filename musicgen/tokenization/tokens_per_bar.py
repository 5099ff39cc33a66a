"""How many tokens a bar may have."""

MAX_TOKENS_PER_BAR = 1024
"""Generation of N bars adds at most N times as many tokens, whether or not the bars are complete.

No bar of a known corpus has as many. The limit stops a model that does not end its bars.
"""
