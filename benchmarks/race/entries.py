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
    "permute": ["position=permute"],
}
SOFTMAX_ENCODINGS = {
    f"softmax_{name}": ["attention=softmax", f"position={name}"]
    for name in ("none", "sinusoidal", "rope", "alibi", "transformer_xl", "siren")
}
# An entry is an encoding and variants of it, such as none+decay or rope@feature@time.
VARIANTS = {
    "+decay": ["model.attention.decay=learned"],
    "+gated": ["model.attention.decay=gated"],
    "+conv": ["model.short_conv=4"],
    "+gate": ["model.output_gate=true"],
    "+qknorm": ["model.qk_norm=true"],
    "+tied": ["model.tie_embeddings=true"],
    "+muon": ["optimizer=muon"],
    "+averaged": ["callbacks=averaged"],
    "@time": ["model.position.coordinates=time"],
    "@feature": ["model.position.site=feature"],
    "@index_beat": ["model.position.coordinates=[index,beat]"],
    "@time_pitch": ["model.position.coordinates=[time,pitch]"],
    "@index_beat_pitch_by_head": [
        "model.position.coordinates=[index,beat,pitch]",
        "model.position.per_head=true",
    ],
    "@time_chord_by_head": [
        "model.position.coordinates=[time,chord]",
        "model.position.per_head=true",
    ],
}
COORDINATES = (
    "",
    "@time",
    "@index_beat",
    "@time_pitch",
    "@index_beat_pitch_by_head",
    "@time_chord_by_head",
)
DECAYING = ("none", "sinusoidal", "sine_spe", "exact_sine_spe", "conv_spe")
TIMED = ("exact_sine_spe", "sine_spe_64", "rope", "lrpe_orthogonal")
# Options beside learned decay, one at a time, then together.
OPTIONS = (
    *("+decay" + each for each in ("", "+conv", "+gate", "+qknorm", "+tied", "+muon", "+averaged")),
    "+gated",
    "+decay+conv+muon",
    "+gated+conv+muon",
    *("+decay+conv+muon" + more for more in ("+gate", "+qknorm", "+tied", "+averaged")),
)
ROTARY = ("rope", "lrpe_unitary", "lrpe_orthogonal", "lrpe_permutation")
FAVOR = ("none", "sinusoidal", "sine_spe", "exact_sine_spe", "conv_spe", *ROTARY)
POP909 = ("data=pop909", "tokenizer.max_transposition=0")
JSB = (
    "data=jsb_chorales",
    "tokenizer=chorale",
    "tokenizer.max_transposition=5",
    "data.batch_size=2",
    "optimizer=muon",
    "model.cycles=[4,16,64]",
)


@dataclass(frozen=True)
class Race:
    """Entries of one race, their training and their model.

    Attributes:
        data: the arguments of train.py for the corpus and its preparation.
        split: held-out pieces that are measured.
        whole: measure whole pieces in nats per note, each piece for itself; else ranges of lengths.
        precision: of training.
    """

    name: str
    steps: int
    length: int
    dim: int
    entries: tuple[str, ...]
    data: tuple[str, ...] = POP909
    split: str = "test"
    whole: bool = False
    precision: str = "bf16-mixed"

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
        if self.whole:
            return {}
        return {
            f"≤ {n} (trained)": (0, n),
            f"{n}–{2 * n}": (n, 2 * n),
            f"{2 * n}–{4 * n}": (2 * n, 4 * n),
        }

    def overrides(self, entry: str, seed: int, root: str, folder: Path) -> list[str]:
        """Return the arguments of train.py for an entry."""
        name, *variants = re.split(r"(?=[+@])", entry)
        overrides = [
            "optimizer=adam",
            "sampling.choose=false",
            "model.short_conv=null",
            *self.data,
            f"data.root={root}",
            f"data.length={self.length}",
            f"model.dim={self.dim}",
            f"model.num_heads={self.dim // 32}",
            f"model.ff_dim={4 * self.dim}",
            "model.num_layers=4",
            *self._attention(name),
            *(override for variant in variants for override in VARIANTS[variant]),
            f"seed={seed}",
            f"trainer.precision={self.precision}",
            f"trainer.max_steps={self.steps}",
            f"trainer.val_check_interval={self.steps // 2}",
            f"hydra.run.dir={folder}",
        ]
        # Of several values of a setting the last one counts.
        return list({override.partition("=")[0]: override for override in overrides}.values())

    def _attention(self, name: str) -> list[str]:
        """Return the arguments for the attention and the encoding of an entry."""
        if name in SOFTMAX_ENCODINGS:
            return SOFTMAX_ENCODINGS[name]
        features = "model.attention.feature_map.num_features=64"
        return ["attention=favor", features, *ENCODINGS[name]]


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
        Race("options", 600, 256, 128, each(("rope",), *OPTIONS), precision="32-true"),
        Race("combined", 800, 512, 192, each((*DECAYING, *ROTARY, "permute"), "+gated+conv+muon")),
        Race("sites", 800, 512, 192, ("none", *each(ROTARY, "", "@feature"))),
        Race(
            "jsb",
            300,
            1024,
            128,
            (
                *SOFTMAX_ENCODINGS,
                *each(FAVOR, "+decay"),
                *each(
                    ("softmax_rope", "rope+decay"),
                    *("@time", "@index_beat", "@index_beat_pitch_by_head"),
                ),
            ),
            JSB,
            split="val",
            whole=True,
            precision="32-true",
        ),
        Race(
            "coordinates",
            600,
            256,
            128,
            each(("exact_sine_spe", "rope"), *COORDINATES),
            precision="32-true",
        ),
    )
}
