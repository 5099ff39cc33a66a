"""Make the graphs of the models that come with the package: python -m musicgen.export.shipped."""

from __future__ import annotations

from musicgen.checkpoints import rebuild
from musicgen.export.cached import SHIPPED, architecture, make_graph
from musicgen.export.step import RecurrentStep
from musicgen.package_data import PRETRAINED
from musicgen.random import NoiseKey


def main() -> None:
    """Make one graph for each architecture, and delete the others."""
    kept = set()
    for config in PRETRAINED.glob("*/config.json"):
        model, _, _ = rebuild(config.parent)
        path = SHIPPED / f"{architecture(model)}.onnx"
        make_graph(RecurrentStep(model, NoiseKey((0,))), path)
        kept.add(path)
    for path in {*SHIPPED.glob("*.onnx")} - kept:
        path.unlink()


if __name__ == "__main__":
    main()
