"""The races: models, encodings and lengths."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from benchmarks import measure

ENCODINGS = {
    "none": ["position=none"],
    "sinusoidal": ["position=sinusoidal"],
    "sine_spe": ["position=sine_spe", "model.position.num_realizations=32"],
    "exact_sine_spe": ["position=sine_spe", "model.position.num_realizations=null"],
    "conv_spe": ["position=conv_spe", "model.position.num_realizations=32"],
    "sine_spe_64": ["position=sine_spe", "model.position.num_realizations=64"],
    "rope": ["position=rope"],
    "lrpe_unitary": ["position=lrpe_unitary"],
    "lrpe_orthogonal": ["position=lrpe_orthogonal"],
    "lrpe_permutation": ["position=lrpe_permutation"],
}
# An entry is an encoding and variants of it, such as none+decay or rope@feature@time.
VARIANTS = {
    "+decay": "model.attention.decay=learned",
    "@time": "model.position.coordinates=time",
    "@feature": "model.position.site=feature",
}
DECAYING = ("none", "sinusoidal", "sine_spe", "exact_sine_spe", "conv_spe")
TIMED = ("exact_sine_spe", "sine_spe_64", "rope", "lrpe_orthogonal")
ROTARY = ("rope", "lrpe_unitary", "lrpe_orthogonal", "lrpe_permutation")


@dataclass(frozen=True)
class Race:
    """Entries of one race, their training and their model."""

    name: str
    steps: int
    length: int
    dim: int
    entries: tuple[str, ...]

    @property
    def runs(self) -> Path:
        return Path("outputs/race") / self.name

    @property
    def table(self) -> Path:
        return measure.RESULTS / f"race_{self.name}.json"

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """Target positions, in tokens, over which a piece's loss is averaged."""
        n = self.length
        return {
            f"≤ {n} (trained)": (0, n),
            f"{n}–{2 * n}": (n, 2 * n),
            f"{2 * n}–{4 * n}": (2 * n, 4 * n),
        }

    def overrides(self, entry: str, seed: int, root: str, folder: Path) -> list[str]:
        """Return the arguments of train.py for an entry."""
        name, *variants = re.split(r"(?=[+@])", entry)
        return [
            "data=pop909",
            f"data.root={root}",
            f"data.length={self.length}",
            "tokenizer.max_transposition=0",
            f"model.dim={self.dim}",
            f"model.num_heads={self.dim // 32}",
            f"model.ff_dim={4 * self.dim}",
            "model.num_layers=4",
            "model.attention.feature_map.num_features=64",
            *ENCODINGS[name],
            *(VARIANTS[variant] for variant in variants),
            f"seed={seed}",
            "trainer.precision=bf16-mixed",
            f"trainer.max_steps={self.steps}",
            f"trainer.val_check_interval={self.steps // 2}",
            f"hydra.run.dir={folder}",
        ]


def each(encodings: tuple[str, ...], *variants: str) -> tuple[str, ...]:
    return tuple(encoding + variant for encoding in encodings for variant in variants)


RACES = {
    race.name: race
    for race in (
        Race("decay", 800, 512, 192, each(DECAYING, "", "+decay")),
        Race(
            "musical_time",
            600,
            256,
            128,
            (*each(TIMED, "", "@time"), *each(TIMED[2:], "@feature", "@feature@time")),
        ),
        Race("sites", 800, 512, 192, ("none", *each(ROTARY, "", "@feature"))),
    )
}
