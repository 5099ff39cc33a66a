"""A trained model as one object: weights, tokenizer, and music in and out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.utils import instantiate

from musicgen.data.datamodule import MusicData
from musicgen.errors import UserError
from musicgen.generation.continuation import (
    Continuation,
    Length,
    Prompt,
    continue_prompts,
    empty_prompt,
    make_prompt,
)
from musicgen.generation.sampling import SamplingParams
from musicgen.midi import Score, as_score
from musicgen.models import Transformer
from musicgen.tokenization.base import IntArray, Tokenizer
from musicgen.tokenization.chord_recognition import with_chords
from musicgen.training.checkpoint import CheckpointContent, check_targets, rebuild

if TYPE_CHECKING:
    from typing import TypeAlias

    import miditoolkit
    import muspy

    MusicLike: TypeAlias = Score | str | Path | miditoolkit.MidiFile | muspy.Music


class MusicModel:
    """What `load` returns.

    Attributes:
        model: the Transformer, in evaluation mode.
        tokenizer: the one it was trained with.
        content: what else its checkpoint holds.
        path: its checkpoint.
    """

    def __init__(
        self, model: Transformer, tokenizer: Tokenizer, content: CheckpointContent, path: Path
    ) -> None:
        self.model, self.tokenizer, self.content, self.path = model, tokenizer, content, path

    def to(self, device: str) -> MusicModel:
        """Move the weights to a device."""
        self.model.to(device)
        return self

    @property
    def training_length(self) -> int:
        """Tokens in a training window."""
        return int(self.content.config["data"]["length"])

    def corpus(self, root: str | Path | None = None) -> MusicData:
        """The corpus it was trained on, found again from its configuration.

        Args:
            root: where the corpus lies now, if it was moved.

        Raises:
            UserError: there is no such folder, or the configuration names something else than a
                corpus of musicgen.
        """
        config = dict(self.content.config["data"])
        check_targets(config, (MusicData,))
        if root is not None:
            if not Path(root).expanduser().is_dir():
                raise UserError(
                    f"data.root={root}: no such folder; give the one where the corpus lies now"
                )
            config["root"] = str(root)
        return instantiate(config, tokenizer=self.tokenizer)

    def positions(self, tokens: IntArray) -> IntArray | None:
        """Of ids [L], what the model reads beside their index: [L, 2]; None if nothing."""
        return self.tokenizer.positions(tokens) if self.model.position.needs_positions else None

    def prompt(self, score: Score, name: str, num_bars: int | None = None) -> Prompt:
        """The first bars of a piece, with chords from where its training pieces had theirs.

        Raises:
            UserError: there is no note that the vocabulary holds.
        """
        if self.tokenizer.chords:
            # Runs from before there was the setting had the markers.
            score = with_chords(score, self.content.config["data"].get("chords", "markers"))
        return make_prompt(self.tokenizer, score, name, num_bars)

    def sampling(self, **overrides: Any) -> SamplingParams:
        """The sampling of its training configuration, but for overrides that are not None."""
        trained_with = self.content.config.get("sampling") or {}
        given = {key: value for key, value in overrides.items() if value is not None}
        return SamplingParams(**{**trained_with, **given})

    def length(
        self,
        bars: int | None = None,
        length_factor: float | None = None,
        max_new_tokens: int | None = None,
    ) -> Length:
        """How far to generate: bars after the prompt, or a multiple of the training length.

        16 bars if neither is given.
        """
        if bars is None and length_factor is None:
            bars = 16
        total = None if length_factor is None else round(length_factor * self.training_length)
        return Length(bars, total, max_new_tokens)

    def generate(
        self,
        prompts: MusicLike | Sequence[MusicLike] = (),
        *,
        prompt_bars: int | None = None,
        bars: int | None = None,
        length_factor: float | None = None,
        num_samples: int = 1,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        compile: str | bool = "auto",  # noqa: A002, as on the command line
    ) -> list[Continuation]:
        """Continue each prompt `num_samples` times; without prompts, begin pieces.

        Args:
            prompts: scores, MIDI files, or objects of miditoolkit or muspy; or one of these.
            prompt_bars: bars of each prompt to keep; None keeps all.
            bars: bars to add; 16 if neither this nor `length_factor` is given.
            length_factor: or tokens in all, as a multiple of the training length.
            temperature, top_k, top_p: None takes what the model was trained to be sampled with.
            compile: true, false, or `auto`, which compiles long generations on a CPU and
                records CUDA graphs on a GPU.

        Returns:
            Continuations by prompt, then sample; `.score` is the music, prompt first.
        """
        if isinstance(prompts, str) or not isinstance(prompts, Sequence):
            prompts = [prompts]
        made = [
            self.prompt(as_score(prompt), f"prompt {i}", prompt_bars)
            for i, prompt in enumerate(prompts)
        ] or [empty_prompt(self.tokenizer)]
        done = continue_prompts(
            self.model,
            self.tokenizer,
            made,
            length=self.length(bars, length_factor),
            sampling=self.sampling(temperature=temperature, top_k=top_k, top_p=top_p),
            num_samples=num_samples,
            seed=seed,
            compiled=compile,
        )
        places = {id(prompt): i for i, prompt in enumerate(made)}
        return sorted(done, key=lambda c: (places[id(c.prompt)], c.sample))


def load(checkpoint: str | Path) -> MusicModel:
    """A model from a checkpoint of train.py, on the CPU; nothing in the file is executed.

    Raises:
        UserError: the file is missing, or no checkpoint of ours.
    """
    path = Path(checkpoint)
    return MusicModel(*rebuild(path), path)
