"""Time causal linear attention, forward and backward at B 1, H 8, M 128, V 64.

It is compared with softmax attention, on a CPU with pytorch-fast-transformers, and with `--device
cuda` with flash-linear-attention.
"""

from collections.abc import Callable
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks import measure
from musicgen.attention import causal_linear_attention

LENGTHS = (2048, 8192)


def make_step(side: str, length: int, device: str) -> Callable[[], None]:
    """Return forward and backward of a side."""
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("highest" if device == "cpu" else "high")
    q, k = torch.rand(2, 1, length, 8, 128, device=device).unbind(0)
    v = torch.randn(1, length, 8, 64, device=device)
    inputs = [x.contiguous().requires_grad_() for x in (q, k, v)]
    grad = torch.randn_like(v)

    def fast_transformers() -> Tensor:
        from fast_transformers.causal_product import causal_dot_product

        q, k, v = (x.transpose(1, 2).contiguous() for x in inputs)
        normaliser = 1 / ((q * k.cumsum(2)).sum(-1, keepdim=True) + 1e-6)
        return (causal_dot_product(q, k, v) * normaliser).transpose(1, 2)

    def softmax() -> Tensor:
        q, k, v = (x[..., :64].transpose(1, 2) for x in inputs)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

    forward = {
        "ours": lambda: causal_linear_attention(*inputs)[0],
        "fla": lambda: causal_linear_attention(*inputs, backend="fla")[0],
        "fast_transformers": fast_transformers,
        "softmax": softmax,
    }[side]
    return lambda: forward().backward(grad)


def main() -> None:
    args = measure.arguments(__doc__, device="cpu", rounds=9)
    cuda = args.device == "cuda"
    # The two sides of each ratio, and its targets at the lengths.
    pairs = [("softmax", "ours", ("—", "—"))]
    if find_spec("fast_transformers") is None:
        print("pytorch-fast-transformers is not installed: its rows are left out")
    elif not cuda:
        pairs.insert(0, ("fast_transformers", "ours", ("≥ 2.5", "≥ 1.8")))
    if cuda and find_spec("fla") is None:
        print("flash-linear-attention is not installed: its rows are left out")
    elif cuda:
        pairs.insert(0, ("fla", "ours", ("≥ 1", "≥ 1")))
    names = sorted({name for pair in pairs for name in pair[:2]})
    rows = []
    for i, n in enumerate(LENGTHS):
        runs = {name: make_step(name, n, args.device) for name in names}
        times = measure.interleaved(runs, args.rounds, args.device)
        for a, b, limits in pairs:
            rows.append(measure.compare(f"{a} / {b} at {n}", times[a], times[b], "s", limits[i]))
    measure.save_results(__file__, rows, args.device)


if __name__ == "__main__":
    main()
