"""Count the bytes that a layer's training step on a GPU reads and writes, without a GPU.

    make test-triton
    PYTHONPATH=.venv/triton TRITON_INTERPRET=1 python -m benchmarks.step_bytes

torch's compiler plans a step in bf16-mixed of the published baseline (`spe2021/pop_piano_ape`) with
one and with two layers, of which the difference is a layer's cost. Nothing is computed. The unit is
one activation in bf16: batch × length × width × 2 bytes.
"""

from collections import Counter
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from torch._inductor import config
from torch._inductor.graph import GraphLowering

from benchmarks import measure
from musicgen.models import Transformer
from musicgen.package_data import CONF
from musicgen.random import NoiseKey

BATCH, LENGTH, VOCAB = 2, 2048, 333
VARIANTS: dict[str, dict[str, Any]] = {
    "layers compiled one by one, as train.py does": {"whole": False},
    "one graph": {},
    "one graph, without dropout": {"dropout": 0.0},
    "one graph, residual and norms in bf16": {"residual": torch.bfloat16},
}


class Residual(torch.nn.Module):
    """Casts the embedding, and with it the residual and the norms of a post-norm model."""

    def __init__(self, embedding: torch.nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.embedding, self.dtype = embedding, dtype

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.embedding(tokens).to(self.dtype)


def planned_bytes(
    layers: int,
    backend: str,
    dropout: float = 0.1,
    residual: torch.dtype = torch.float32,
    whole: bool = True,
) -> dict[str, float]:
    """Return the bytes of a step in activations: of products and our kernels, and of all others."""
    settings = {"num_layers": layers, "dropout": dropout, "attention.backend": backend}
    overrides = [f"model.{name}={value}" for name, value in settings.items()]
    with initialize_config_dir(str(CONF), version_base=None):
        cfg = compose("train", ["experiment=spe2021/pop_piano_ape", *overrides])
    model: Transformer = instantiate(cfg.model, vocab_size=VOCAB).train()
    model.inputs["embedding"] = Residual(model.inputs["embedding"], residual)
    tokens = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    noise = model.draw(NoiseKey((0,)), tokens)
    total = Counter[str]()

    def plan(graph: GraphLowering) -> SimpleNamespace:
        graph.codegen()
        planned = Counter[str]()
        for node in graph.scheduler.nodes:
            kind = "products and own kernels" if node.is_extern() else "elementwise kernels"
            planned[kind] += node.get_read_write_buffers_sizes()
        (output,) = graph.module.graph.find_nodes(op="output")
        outputs = [None if x is None else x.meta["val"] for x in output.args[0]]

        def call(inputs: list[Any]) -> list[Any]:
            total.update(planned)
            return [None if x is None else torch.zeros(x.shape, dtype=x.dtype) for x in outputs]

        return SimpleNamespace(call=call, runner=None, __file__="", key="")

    torch.compiler.reset()
    compiled = torch.compile(model.hidden, fullgraph=True) if whole else model.hidden
    for layer in model.layers if not whole else ():
        layer.compile(fullgraph=True)
    with (
        patch.object(GraphLowering, "compile_to_module", plan),
        config.patch(force_disable_caches=True),
    ):
        with torch.autocast("cpu", torch.bfloat16):
            out, _ = compiled(tokens, noise=noise)
        out.sum().backward()
    activation = BATCH * LENGTH * model.dim * torch.bfloat16.itemsize
    return {kind: number / activation for kind, number in total.items()}


def main() -> None:
    measure.arguments(__doc__.splitlines()[0])
    rows = []
    for backend in ("auto", "triton"):
        for name, variant in VARIANTS.items():
            one, two = (planned_bytes(layers, backend, **variant) for layers in (1, 2))
            row: dict[str, Any] = {"backend": backend, "variant": name}
            row |= {kind: round(two[kind] - one[kind], 1) for kind in one}
            rows.append(row)
            print(row, flush=True)
    measure.write_results(__file__, {"rows": rows})


if __name__ == "__main__":
    main()
