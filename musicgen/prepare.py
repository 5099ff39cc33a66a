"""Prepare a corpus on its own: python -m musicgen.prepare [data=pop909 data.root=... ...].

On several machines, or with one of Hydra's launchers: shard=1/8, or -m shard=1/8,2/8,...
"""

from __future__ import annotations

if __name__ == "__main__":
    import musicgen.startup  # noqa: F401, before what takes seconds to import

from pathlib import Path

from hydra.utils import instantiate
from omegaconf import DictConfig

from musicgen import cli
from musicgen.data.datamodule import MusicData
from musicgen.data.prepare import Shard
from musicgen.tokenization.base import Tokenizer


def main(cfg: DictConfig) -> None:
    """Encode a corpus or a part of it, and print what became of it.

    Raises:
        UserError: settings that do not go together, missing data, no usable piece.
    """
    tokenizer: Tokenizer = instantiate(cfg.tokenizer, _convert_="all")
    data: MusicData = instantiate(cfg.data, tokenizer=tokenizer)
    cache = data.prepare_shard(Shard.parse(str(cfg.shard)))
    if cache is not None:
        cli.say(f"ready: {len(cache)} pieces in {cache.folder}")


if __name__ == "__main__":
    cli.run(main, "prepare", Path(__file__).parents[1] / "conf")
