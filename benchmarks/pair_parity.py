"""Check every position, attention and span of conf/ on a device against fp64 on the CPU.

Logits, gradients and decoding of small models, in fp32 and on a GPU in bf16. The CPU's contracts
(recurrent = parallel, causality, padding, …) hold for the reference, in tests/contracts.

    python -m benchmarks.pair_parity --device cuda [--only rope]
"""

from __future__ import annotations

import sys
from functools import partial
from itertools import product

import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate

from benchmarks import measure
from musicgen.doctor import LENGTH, VOCAB, Cases, check_models
from musicgen.errors import UserError
from musicgen.models import Transformer, check_compatible
from musicgen.package_data import CONF

SMALL = ("model.dim=64", "model.num_heads=2", "model.num_layers=2", "model.ff_dim=128")
DECAYS = ("none", "head")


def main() -> None:
    args = measure.arguments(__doc__, only="")
    results = []
    # Precise products, so that fp32 can be compared; bf16 is checked by autocast.
    torch.backends.cuda.matmul.allow_tf32 = False
    cases = {name: make for name, make in pairs().items() if args.only in name}
    for result in check_models(cases, args.device):
        if not result.refusal:
            results.append(result)
            print(result, flush=True)
    content = {"checks": [r._asdict() for r in results], "wrong": sum(r.failed for r in results)}
    measure.write_results(__file__, content, args)
    sys.exit(any(result.failed for result in results))


def pairs() -> Cases:
    """Return the models of all combinations that `check_compatible` accepts, by name."""
    names = {
        group: sorted(path.stem for path in (CONF / group).glob("*.yaml"))
        for group in ("attention", "position", "span")
    }
    cases = {}
    with initialize_config_dir(str(CONF), version_base="1.3"):
        for attention, position, span in product(*names.values()):
            for decay in DECAYS if attention == "favor" and span == "none" else ("none",):
                overrides = [f"attention={attention}", f"position={position}", f"span={span}"]
                if attention != "softmax":
                    overrides.append(f"model.attention.decay={decay}")
                cfg = compose("train", [*overrides, *SMALL, f"loader.length={LENGTH}"])
                parts = (cfg.model.position, cfg.model.attention, cfg.model.span)
                try:
                    check_compatible(*(instantiate(part) for part in parts))
                except UserError:
                    continue
                name = ", ".join((attention, position, *({span, decay} - {"none"})))
                cases[name] = partial(build, cfg.model)
    return cases


def build(config: object) -> Transformer:
    torch.manual_seed(0)
    model: Transformer = instantiate(config, vocab_size=VOCAB, init_std=0.15)
    return model.eval()


if __name__ == "__main__":
    main()
