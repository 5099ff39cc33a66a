"""The model's side of decoding: logits of a batch after its prompts, then after each new token."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from musicgen.errors import ParameterError, UserError
from musicgen.generation.engines import Engine
from musicgen.generation.prompt import Prompt
from musicgen.generation.request import GenerationRequest
from musicgen.generation.sampling import SamplingParams
from musicgen.models import CopySettings, ModelState, Transformer
from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.coordinates import Coordinates
from musicgen.tokenization.vocabulary import IntArray

# Nats added to the log-probability of copies. A section that returns is like the first one, and
# varied; with twice as many nats it is often the same note for note.
RETURN, CONTRAST = 3.0, -6.0


class Decoder:
    """Runs a model on a batch of sequences and holds the model's state of each.

    Args:
        engine: the model.
        tokenizer: tells the positions of tokens.
        lag_biases: nats added to the log-probability of copies at each lag, by bar, see
            `lag_biases`; None: the model has no copy head that knows bars. [N, max_lag + 1]
        temperature: divides the logits of a model with a copy head, but not its copies.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        lag_biases: Tensor | None,
        temperature: float,
    ) -> None:
        self.engine, self.tokenizer = engine, tokenizer
        self.lag_biases, self.temperature = lag_biases, temperature
        self.coordinates, self.names = Coordinates(tokenizer), engine.model.coordinate_names
        self.state: Any = None
        self._positions = self._bar_lengths = np.empty(0, np.int64)
        self._rows = self._bar_lengths  # of `lag_biases`, at the last step
        self._settings: CopySettings | None = None  # of these rows

    @property
    def batch(self) -> int:
        """The number of sequences."""
        return len(self._bar_lengths)

    def prefill(self, prompts: Sequence[Prompt], index: Tensor) -> Tensor:
        """Return the logits [B, V] after the prompts at `index` [B], which may repeat.

        Neighbours of equal length go through the model together.
        """
        logits, states, last_positions = [], [], []
        for _, group in groupby(prompts, lambda prompt: len(prompt.tokens)):
            same = [*group]
            ids = np.stack([prompt.tokens for prompt in same])  # [G, L]
            positions = np.stack(  # [G, L, P]
                [
                    self.coordinates.of(
                        x.tokens, self.names, bar_length=x.bar_length, gap_end=x.gap_end
                    )
                    for x in same
                ]
            )
            inputs = (torch.from_numpy(each).to(self.engine.device) for each in (ids, positions))
            last, state = self.engine.prefill(*inputs)
            logits.append(check_finite(last.cpu()))
            states.append(state)
            last_positions.append(positions[:, -1])
        self.state = ModelState.cat(states).select(index.to(self.engine.device))
        at = index.numpy()
        self._positions = np.concatenate(last_positions)[at]
        self._bar_lengths = np.array([prompt.bar_length for prompt in prompts])[at]
        self._upbeats = np.array([prompt.has_upbeat for prompt in prompts])[at]
        first = torch.cat(logits)[index]
        if self.engine.model.copy_head is not None:  # which has settings from the first step on
            first = first.double() / self.temperature
        return first

    def step(self, tokens: Tensor, times: IntArray, allowed: Tensor) -> Tensor:
        """Return the logits [B, V], on the CPU, after one more token of each sequence.

        Args:
            tokens: ids. [B]
            times: index and musical time of the tokens, see `GrammarState.positions`. [B, 2]
            allowed: the tokens that they were drawn from. [B, V]
        """
        self._positions = self.coordinates.next(
            self.names, self._positions, tokens.numpy(), times, self._bar_lengths
        )
        device = self.engine.device
        positions = torch.from_numpy(self._positions).to(device)
        logits, self.state = self.engine.step(
            tokens.to(device), positions, self.state, self._copy_settings()
        )
        return check_finite(logits.cpu())

    def _copy_settings(self) -> CopySettings | None:
        """Return the settings of the copy head at the bar of each sequence."""
        head = self.engine.model.copy_head
        if head is None:
            return None
        if self.lag_biases is None:
            biases, rows = head.settings(1).lag_bias, np.zeros(self.batch, np.int64)
        else:
            biases, bars = self.lag_biases, self._positions[:, self.names.index("bar")]
            rows = (bars - self._upbeats) % len(biases)
        if not np.array_equal(rows, self._rows):  # else the engine has them already
            self._rows, device = rows, self.engine.device
            temperature = torch.full((self.batch, 1), self.temperature)
            lag_bias = biases[torch.from_numpy(rows)]
            self._settings = CopySettings(lag_bias.to(device), temperature.to(device))
        return self._settings

    def select(self, index: Tensor) -> None:
        """Keep only the sequences at `index`."""
        at = index.numpy()
        self._positions, self._bar_lengths = self._positions[at], self._bar_lengths[at]
        self._upbeats = self._upbeats[at]
        self.state = self.state.select(index.to(self.engine.device))


class GuidedDecoder:
    """A decoder with classifier-free guidance by the kept tokens, or by the key of a new piece.

    The model runs on the batch twice: after the prompts, and after negative prompts, whose tokens
    are others in the bars to write.

    Args:
        decoder: the model.
        scale: logits become negative + scale × (logits − negative).
        negative: the id that a negative prompt has in place of each id, such as `tritone`. [V]
    """

    def __init__(self, decoder: Decoder, scale: float, negative: IntArray) -> None:
        self.decoder, self.scale = decoder, scale
        self._other = torch.from_numpy(negative)

    def prefill(self, prompts: Sequence[Prompt], index: Tensor) -> Tensor:
        """Return the guided logits [B, V] after the prompts at `index`, see `Decoder.prefill`."""
        negative = [self._negative(prompt) for prompt in prompts]
        both = torch.cat([index, index + len(prompts)])
        return self._guided(self.decoder.prefill([*prompts, *negative], both))

    def step(self, tokens: Tensor, times: IntArray, allowed: Tensor) -> Tensor:
        """Return the guided logits [B, V] after one more token of each, see `Decoder.step`."""
        is_kept = allowed.sum(dim=1) == 1
        negative = torch.where(is_kept, self._other[tokens], tokens)
        both = torch.cat([tokens, negative])
        return self._guided(self.decoder.step(both, np.tile(times, (2, 1)), allowed))

    def select(self, index: Tensor) -> None:
        """Keep only the sequences at `index`."""
        batch = self.decoder.batch // 2
        self.decoder.select(torch.cat([index, index + batch]))

    def _negative(self, prompt: Prompt) -> Prompt:
        """Return a prompt with the other tokens in the first bar to be written."""
        tokenizer = self.decoder.tokenizer
        is_new = tokenizer.times(prompt.tokens) >= prompt.end.step
        is_new[: tokenizer.future_length(prompt.tokens)] = False
        other = self._other.numpy()[prompt.tokens]
        return replace(prompt, tokens=np.where(is_new, other, prompt.tokens))

    def _guided(self, logits: Tensor) -> Tensor:
        """Combine the logits of both halves of a batch. [2 B, V] -> [B, V]"""
        positive, negative = logits.chunk(2)
        return negative + self.scale * (positive - negative)


def check_finite(logits: Tensor) -> Tensor:
    """Return the logits.

    Raises:
        UserError: one is infinite or not a number.
    """
    if not math.isfinite(logits.numpy().sum()):
        raise UserError(
            "the model's output is not finite: its training diverged. Take an earlier checkpoint"
        )
    return logits


# Biases on copies by their lag in bars, for a form such as AABA and for all music.


def lag_biases(model: Transformer, request: GenerationRequest) -> Tensor | None:
    """Return the nats added to the log-probability of copies, by bar and lag: [N, max_lag + 1].

    Bar n has row n % N, where N is the number of bars of the form. None: the model has no copy head
    that knows bars.

    Raises:
        UserError: the request needs such a head.
    """
    form, head, by_lag = request.piece.form, model.copy_head, lag_bias(model, request.sampling)
    if head is None or head.coordinate != "bar":
        for name, value in ("form", form), ("lag_bias", by_lag):
            if value is not None:
                expected = "expected null: the model has no copy head that knows bars (model.copy)"
                raise ParameterError(name, value, expected)
        return None
    biases = torch.zeros(1, head.max_lag + 1)
    if form is not None:
        biases = form_biases(form, request.piece.section_bars, head.max_lag)
    known = torch.tensor(by_lag or [0.0], dtype=torch.float32)[: head.max_lag + 1]
    return biases + F.pad(known, (0, head.max_lag + 1 - len(known)))


def lag_bias(model: Transformer, sampling: SamplingParams) -> Sequence[float] | None:
    """Return the `lag_bias` of a sampling, or the default if a copy head knows bars.

    The default was the best one for several models. Without a bias, the music loops.
    """
    head = model.copy_head
    if sampling.lag_bias is not None or head is None or head.coordinate != "bar":
        return sampling.lag_bias
    lags = range(1, head.max_lag + 1)
    return [0.0] + [-1.5 if lag % 4 else -0.7 if lag < 16 else -0.3 for lag in lags]


def form_biases(form: str, section_bars: int, max_lag: int) -> Tensor:
    """Return the bias of each lag in each bar of a form, [N, max_lag + 1].

    Copies from the same bar of an earlier section with the same letter become more probable, and
    copies from sections with other letters less probable. The form, a letter per section, loops.
    """
    num_bars = len(form) * section_bars
    letters = torch.tensor([ord(letter) for letter in form]).repeat_interleave(section_bars)
    lags = torch.arange(max_lag + 1)
    same = letters[(torch.arange(num_bars)[:, None] - lags) % num_bars] == letters[:, None]
    returns = same & (lags > 0) & (lags % section_bars == 0)
    return RETURN * returns.float() + CONTRAST * (~same).float()
