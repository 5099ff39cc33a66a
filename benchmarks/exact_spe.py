"""Compare the error of FAVOR+ attention with sineSPE for R realizations and for the exact limit.

The reference is softmax attention with the expected kernel. FAVOR+ has 128 features, and each draw
has its own z, ε and ω. The error of FAVOR+ itself grows with the deviation of the logits.
"""

from functools import partial

import torch
from torch import Tensor

from benchmarks import measure
from musicgen.attention import FAVOR, AttentionMask, LinearAttention, SoftmaxAttention
from musicgen.position import SineSPE
from musicgen.random import NoiseKey

HEADS, WIDTH = 8, 64


def attend(spe: SineSPE, softmax: bool, q: Tensor, k: Tensor, v: Tensor, draw: int) -> Tensor:
    """Compute causal attention of one layer with one draw."""
    torch.manual_seed(draw)
    features = partial(FAVOR, num_features=128)
    build = SoftmaxAttention if softmax else partial(LinearAttention, feature_map=features)
    attention = build(encoded_dim=spe.encoded_dim, logit_scale=spe.logit_scale, num_heads=HEADS)
    codes, _ = spe(torch.arange(q.shape[1])[None, :, None], noise=NoiseKey((draw,)))
    return attention(q, k, v, codes[0], AttentionMask(causal=True))[0]


@torch.inference_mode()
def main() -> None:
    args = measure.arguments(__doc__, length=512, draws=16)
    torch.manual_seed(0)
    sizes = {"num_layers": 1, "num_heads": HEADS, "width": WIDTH, "model_dim": HEADS * WIDTH}
    limit = SineSPE(**sizes, num_realizations=None)
    q, k, v = torch.randn(3, 1, args.length, HEADS, WIDTH)
    positions = torch.arange(args.length)[None, :, None]
    q_hat, k_hat = limit(positions, noise=NoiseKey((0,)))[0][0].encode(q, k)
    spread = (limit.logit_scale * torch.einsum("blhe,bmhe->bhlm", q_hat, k_hat)).std()
    rows = []
    for deviation in (0.1, 0.3, 1.0):
        scaled = [x * (deviation / spread).sqrt() for x in (q, k)]
        expected = attend(limit, True, *scaled, v, 0)
        error = {}
        for realizations in (64, 512, None):
            spe = SineSPE(**sizes, num_realizations=realizations)
            spe.load_state_dict(limit.state_dict())
            draws = range(args.draws)
            outs = torch.stack([attend(spe, False, *scaled, v, draw) for draw in draws])
            error[realizations] = float((outs - expected).square().mean() / expected.var())
        unit = "squared error / variance of the output"
        for r in (64, 512):
            what = f"R = {r} / exact, logits of standard deviation {deviation}"
            rows.append(measure.row(what, error[r], error[None], unit, "—"))
    measure.save_results(__file__, rows)


if __name__ == "__main__":
    main()
