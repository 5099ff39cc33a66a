"""Biases on copies by their lag in bars, for a form such as AABA and for all music."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from musicgen.errors import ParameterError
from musicgen.generation.request import GenerationRequest
from musicgen.generation.sampling_params import SamplingParams
from musicgen.models import Transformer

# Nats added to the log-probability of copies. A section that returns is like the first one, and
# varied; with twice as many nats it is often the same note for note.
RETURN, CONTRAST = 3.0, -6.0


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
    copies from sections with other letters less probable. The form, a letter for each section, is
    repeated.
    """
    num_bars = len(form) * section_bars
    letters = torch.tensor([ord(letter) for letter in form]).repeat_interleave(section_bars)
    lags = torch.arange(max_lag + 1)
    same = letters[(torch.arange(num_bars)[:, None] - lags) % num_bars] == letters[:, None]
    returns = same & (lags > 0) & (lags % section_bars == 0)
    return RETURN * returns.float() + CONTRAST * (~same).float()
