"""Causal linear attention, forward and backward, against pytorch-fast-transformers and SDPA."""

from __future__ import annotations

import json

import torch
from torch.nn import functional as F

from benchmarks import measure
from musicgen.attention import causal_linear_attention

LENGTHS = (2048, 8192)


def run(side: str, length: int, device: str, repeats: int) -> float:
    """Seconds of forward and backward at B 1, H 8, M 128, V 64."""
    torch.manual_seed(0)
    q, k = torch.rand(2, 1, length, 8, 128, device=device).unbind(0)
    v = torch.randn(1, length, 8, 64, device=device)
    inputs = [x.contiguous().requires_grad_() for x in (q, k, v)]
    grad = torch.randn_like(v)

    def ours() -> torch.Tensor:
        return causal_linear_attention(*inputs)[0]

    def fast_transformers() -> torch.Tensor:
        from fast_transformers.causal_product import causal_dot_product

        q, k, v = (x.transpose(1, 2).contiguous() for x in inputs)
        normaliser = 1 / ((q * k.cumsum(2)).sum(-1, keepdim=True) + 1e-6)
        return (causal_dot_product(q, k, v) * normaliser).transpose(1, 2)

    def softmax() -> torch.Tensor:
        q, k, v = (x[..., :64].transpose(1, 2) for x in inputs)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

    forward = {"ours": ours, "fast_transformers": fast_transformers, "softmax": softmax}[side]
    return min(measure.seconds(lambda: forward().backward(grad), repeats, device))


def main() -> None:
    args = measure.arguments(__doc__, repeats=5)
    if args.side:
        times = {str(n): run(args.side, n, args.device, args.repeats) for n in LENGTHS}
        print(json.dumps(times))
        return
    names = ["ours", "softmax"]
    try:
        import fast_transformers  # noqa: F401

        names.append("fast_transformers")
    except ImportError:
        print("pytorch-fast-transformers is not installed: its rows are left out")
    found = measure.sides(__file__, names, args, rounds=3)
    rows = []
    for n, limit in zip(map(str, LENGTHS), ("≥ 2.5", "≥ 1.8"), strict=True):
        for other in names[1:]:
            to_reach = limit if other == "fast_transformers" else "—"
            what = f"{other} / ours at {n}"
            rows.append(measure.row(what, found[other][n], found["ours"][n], "s", to_reach))
    measure.report(__file__, rows, args)


if __name__ == "__main__":
    main()
