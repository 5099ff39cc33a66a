"""What users add to decoding from Python: logits processors and constraints, written as they would."""

from functools import partial

import numpy as np
import pytest
import torch

from musicgen.errors import UserError
from musicgen.generation.constraints import Constraint
from musicgen.generation.logits_processors import LogitsProcessor
from musicgen.tokenization import REMI, Chorale, Groove2Groove
from tests.generation.builders import SCORES, music_model

WHITE_KEYS = {0, 2, 4, 5, 7, 9, 11}


class WhiteKeysOnly(Constraint):
    """Only notes of the white keys come."""

    def __init__(self, tokenizer):
        names = [tokenizer.vocabulary.token(i) for i in range(len(tokenizer.vocabulary))]
        self.mask = np.array([self.is_white(*name.partition("_")[::2]) for name in names])

    @staticmethod
    def is_white(family, value):
        return family not in ("Pitch", "Ahead") or int(value) % 12 in WHITE_KEYS

    def allowed(self, state, memory):
        return self.mask


class NoRepeatedPitch(Constraint):
    """A constraint with a memory: the pitch of each sequence's last note does not come again."""

    def __init__(self, tokenizer):
        self.tokens = np.arange(len(tokenizer.vocabulary))
        self.is_pitch = np.isin(self.tokens, tokenizer.families["Pitch"])

    def start(self, state, prompts):
        return np.array([tokens[self.is_pitch[tokens]][-1] for tokens in prompts])

    def advance(self, state, memory, tokens):
        return np.where(self.is_pitch[tokens], tokens, memory)

    def allowed(self, state, memory):
        return self.tokens != memory[:, None]


class Mirostat(LogitsProcessor):
    """Keep the surprise of each token near a target, in bits (Basu et al. 2021, version 2)."""

    def __init__(self, target, rate=0.1):
        self.target, self.rate = target, rate
        self.surprises = []

    def start(self, batch):
        self.limit = torch.full((batch,), 2.0 * self.target, dtype=torch.float64)
        self.log_p = None

    def select(self, index):
        self.limit, self.log_p = self.limit[index], self.log_p[index]

    def __call__(self, tokens, logits):
        if self.log_p is not None:
            surprise = -self.log_p.gather(1, tokens[:, -1:])[:, 0] / np.log(2)
            self.limit -= self.rate * (surprise - self.target)
            self.surprises += surprise.tolist()
        surprise = -logits.log_softmax(-1) / np.log(2)
        best = surprise.amin(-1, keepdim=True)
        is_kept = surprise <= torch.maximum(self.limit[:, None], best)
        logits = logits.masked_fill(~is_kept, -torch.inf)
        self.log_p = logits.log_softmax(-1)
        return logits


@pytest.mark.parametrize("tokenizer", [REMI(), Chorale()], ids=["remi", "chorale"])
def test_white_keys_only(tokenizer):
    model = music_model(tokenizer)
    options = {"prompt_bars": 1, "bars": 2, "num_samples": 2}
    free = model.generate(SCORES["remi"], **options)
    white = model.generate(SCORES["remi"], **options, constraints=[WhiteKeysOnly(tokenizer)])
    found = [
        {int(p) % 12 for x in pieces for p in x.new_score.notes["pitch"]}
        for pieces in (free, white)
    ]
    assert found[0] - WHITE_KEYS
    # A note of the prompt may go on.
    prompt = {int(p) % 12 for p in white[0].prompt.score.notes["pitch"]}
    assert found[1] & WHITE_KEYS
    assert found[1] <= WHITE_KEYS | prompt


def test_a_constraint_has_a_memory_of_each_sequence():
    tokenizer = REMI()
    model, pitches = music_model(tokenizer), tokenizer.families["Pitch"]
    # Short notes, most of one pitch, which therefore often follows itself.
    model.model.head.bias.data[pitches[40]] = 20.0
    model.model.head.bias.data[tokenizer.families["Duration"][0]] = 20.0
    options = {"prompt_bars": 1, "bars": 3, "num_samples": 8}

    def num_repeated(**more):
        count = 0
        for piece in model.generate(SCORES["remi"], **options, **more):
            is_pitch = np.isin(piece.tokens, pitches)
            first_new = is_pitch[: len(piece.prompt.tokens)].sum()
            notes = piece.tokens[is_pitch][first_new - 1 :]
            count += int((notes[1:] == notes[:-1]).sum())
        return count

    assert num_repeated() > 4
    assert num_repeated(constraints=[NoRepeatedPitch(tokenizer)]) == 0


def test_mirostat_keeps_surprise_near_its_target():
    tokenizer = Groove2Groove()
    model = music_model(tokenizer)
    options = {"prompt_bars": 1, "bars": 2, "num_samples": 3, "max_new_tokens": 150, "top_p": 1.0}
    averages = []
    for target in (1.0, 3.0):
        mirostat = Mirostat(target)
        model.generate(SCORES["groove2groove"], **options, logits_processors=[mirostat])
        averages.append(np.mean(mirostat.surprises[150:]))
    assert averages == pytest.approx([1, 3], abs=0.5)


def test_a_processor_sees_all_tokens_and_the_masked_logits():
    tokenizer = REMI()
    seen = []

    def observe(tokens, logits):
        seen.append((tokens.clone(), logits.isfinite()))
        return logits

    scores = [SCORES["remi"], SCORES["remi"].clip(0, 2 * 1920)]
    model = music_model(tokenizer)
    pieces = model.generate(scores, bars=1, logits_processors=[observe], batch_size=2)
    prompts = sorted((x.prompt.tokens.tolist() for x in pieces), key=len)
    (first, mask), pad = seen[0], tokenizer.vocabulary.pad_id
    found = sorted(([t for t in row.tolist() if t != pad] for row in first), key=len)
    assert found == prompts
    assert (mask.sum(dim=1) < len(tokenizer.vocabulary)).all(), "the grammar has masked"
    last = [t for t in seen[-1][0][-1].tolist() if t != pad]
    assert last in [piece.tokens.tolist()[: len(last)] for piece in pieces]


def without_best(tokens, logits, seen):
    """Forbid the most probable token where another is possible."""
    seen.append(logits.clone())
    several = logits.isfinite().sum(dim=-1, keepdim=True) > 1
    best = torch.zeros_like(several).expand(logits.shape).scatter(-1, logits.argmax(-1)[:, None], 1)
    return logits.masked_fill(best & several, -torch.inf)


@pytest.mark.parametrize(
    "sampling", [{"top_p": 1e-6}, {"top_k": 1}, {"temperature": 0}, {"min_p": 1.0}]
)
def test_processors_run_before_the_sampling_settings(sampling):
    model, seen = music_model(REMI()), []
    options = {"prompt_bars": 1, "bars": 8, "max_new_tokens": 12, **sampling}
    process = partial(without_best, seen=seen)
    (piece,) = model.generate(SCORES["remi"], **options, logits_processors=[process])
    second = [row.topk(2).indices[0][row.isfinite().sum().clamp(max=2) - 1] for row in seen]
    assert len(second) == 12
    assert piece.tokens[-12:].tolist() == second
    assert max(row.isfinite().sum() for row in seen) > 2


class NoNotes(LogitsProcessor):
    def __call__(self, tokens, logits):
        return torch.full_like(logits, -torch.inf)


@pytest.mark.parametrize(
    ("process", "message"),
    [
        (NoNotes(), r"^logits_processors=NoNotes: expected .* row 0 has only -inf$"),
        (lambda tokens, logits: logits * torch.nan, r"<lambda>: .* row 0 has NaN or inf"),
        (partial(lambda tokens, logits: logits - torch.inf), r"<lambda>: .* only -inf"),
        (lambda tokens, logits: None, "<lambda>: expected .*, not NoneType"),
        (lambda tokens, logits: logits[:, 1:], r"<lambda>: expected .*\[1, \d+\], not shape \[1, "),
    ],
)
def test_a_processor_that_leaves_no_token_is_named(process, message):
    model = music_model(REMI())
    processors = [partial(without_best, seen=[]), process]
    with pytest.raises(UserError, match=message):
        model.generate(SCORES["remi"], prompt_bars=1, bars=1, logits_processors=processors)


def test_a_start_without_a_result_remembers_nothing():
    class WithoutMemory(WhiteKeysOnly):
        def start(self, state, prompts):
            pass

        def allowed(self, state, memory):
            assert memory is None
            return self.mask

    tokenizer = REMI()
    options = {"prompt_bars": 1, "bars": 2, "num_samples": 3}
    found = [
        music_model(tokenizer).generate(SCORES["remi"], **options, constraints=[kind(tokenizer)])
        for kind in (WhiteKeysOnly, WithoutMemory)
    ]
    assert [x.score for x in found[0]] == [x.score for x in found[1]]
