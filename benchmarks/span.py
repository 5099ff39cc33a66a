"""Compare softmax attention under a span with full attention: forward and backward, B 1, H 8, K 64.

Causal attention has 8,192 tokens and a window of the last 256, and includes the gradient of σ; an
image has 64 × 64 pixels and a window of 8 in both dimensions. Full attention is torch's SDPA.
Relative encodings are compared with none at 2,048 tokens. `--device cuda` measures in bf16.
"""

import math
from collections.abc import Callable
from functools import partial

import torch

from benchmarks import measure
from musicgen.attention import AttentionMask, GaussianSpan, SoftmaxAttention
from musicgen.position import SIREN, NoPosition, PositionalEncoding, TransformerXL
from musicgen.random import NoiseKey

LENGTH, IMAGE, SHORT = 8192, 64, 2048
HEADS, WIDTH = 8, 64
POSITIONS = {
    "none": NoPosition,
    "siren": partial(SIREN, training_length=SHORT),
    "transformer_xl": TransformerXL,
}


def make_step(side: str, device: str) -> Callable[[], None]:
    """Return forward and backward of a side: a window (0: none), an image or an encoding."""
    torch.manual_seed(0)
    kind, _, number = side.partition("_")
    window = int(number) if number.isdigit() else 0
    if kind == "image":
        positions = torch.cartesian_prod(*2 * (torch.arange(IMAGE),))[None]
        lengths = [IMAGE, IMAGE]
    else:
        lengths = [SHORT if side in POSITIONS else LENGTH]
        positions = torch.arange(lengths[0])[None, :, None]
    positions = positions.to(device)
    build = POSITIONS.get(side, NoPosition)
    encoding: PositionalEncoding = build(1, HEADS, WIDTH, HEADS * WIDTH).to(device)
    span = None
    if window:
        # So that σ √(−2 ln t) (N − 1) is the window.
        sigma = window / math.sqrt(-2 * math.log(0.1)) / (lengths[0] - 1)
        span = GaussianSpan(training_length=lengths, sigma=sigma).to(device)
        assert span.window == (window,) * len(lengths)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    shape = (1, positions.shape[1], HEADS, WIDTH)
    q, k, v = (torch.randn(shape, device=device, dtype=dtype).requires_grad_() for _ in range(3))
    grad = torch.randn(shape, device=device, dtype=dtype)
    attention = SoftmaxAttention(WIDTH, WIDTH**-0.5, HEADS)

    def step() -> None:
        (code,), _ = encoding(positions, noise=NoiseKey((0,)))
        layer_span = None if span is None else span(positions)
        mask = AttentionMask(causal=kind != "image", span=layer_span)
        out, _ = attention(q, k, v, code, mask)
        out.backward(grad)

    return step


def main() -> None:
    args = measure.arguments(__doc__, device="cpu", rounds=5)
    target = "≥ 8" if args.device == "cuda" else "≥ 4"
    pairs = [
        ("causal_0", "causal_256", target),
        ("image_0", "image_8", "—"),
        ("transformer_xl", "none", "—"),
        ("siren", "none", "—"),
    ]
    names = sorted({name for pair in pairs for name in pair[:2]})
    runs = {name: make_step(name, args.device) for name in names}
    times = measure.interleaved(runs, args.rounds, args.device)
    rows = [measure.compare(f"{a} / {b}", times[a], times[b], "s", limit) for a, b, limit in pairs]
    measure.save_results(__file__, rows, args.device)


if __name__ == "__main__":
    main()
