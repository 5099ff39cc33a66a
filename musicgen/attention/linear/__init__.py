"""Causal linear attention: out_n = Σ_{m≤n} (q_n·k_m) v_m / Σ_{m≤n} q_n·k_m."""
