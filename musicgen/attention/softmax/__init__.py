"""Softmax attention: torch's fused form, blocks of queries on a CPU, FlexAttention on a GPU."""
