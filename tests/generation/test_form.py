"""Forms: which bars return, bar by bar, and that decoding asks the copy head for them."""

import pytest
import torch

from musicgen.errors import UserError
from musicgen.generation.decoder import CONTRAST, RETURN, form_biases, lag_bias, lag_biases
from musicgen.generation.engines import Engine
from musicgen.generation.prompt import make_prompt
from musicgen.generation.request import GenerationRequest
from musicgen.generation.sampler import Sampler
from musicgen.generation.sampling import SamplingParams
from musicgen.midi import Score, TimeSignature, Track, dumps, loads, notes_from
from tests.generation.builders import SCORES, TOKENIZERS, run, small_model
from tests.tokenizers import frozen_tokenizers

MAX_LAG = 7


def expected(form: str, section_bars: int, bar: int, lag: int) -> float:
    """The bias by its definition, for a piece that goes through the form again and again."""
    pieces = form * 9
    bar += 5 * len(form) * section_bars
    section, source = pieces[bar // section_bars], pieces[(bar - lag) // section_bars]
    if section != source:
        return CONTRAST
    return RETURN if lag and lag % section_bars == 0 else 0.0


@pytest.mark.parametrize(("form", "section_bars"), [("AABA", 2), ("ABACA", 3), ("A", 1)])
def test_biases_are_their_definition(form, section_bars):
    found = form_biases(form, section_bars, MAX_LAG)
    for bar, of_bar in enumerate(found.tolist()):
        assert of_bar == [expected(form, section_bars, bar, lag) for lag in range(MAX_LAG + 1)]


def test_decoding_asks_for_the_form_in_every_bar(monkeypatch):
    model = small_model(TOKENIZERS["remi"])
    with pytest.raises(UserError, match=r"form=AB.*no copy head"):
        run(TOKENIZERS["remi"], model, form="AB")
    model.add_copy_head({"window": 64, "max_lag": MAX_LAG})
    biases, bars, settings = form_biases("AAB", 1, MAX_LAG), [], []
    biases[:, 2] += 0.5
    step = Engine.step

    def checked(engine, tokens, positions, state, copy_settings):
        bar = positions[:, model.coordinate_names.index("bar")]
        assert torch.equal(copy_settings.lag_bias, biases[bar % 3])
        if bars and torch.equal(bars[-1], bar):
            assert copy_settings is settings[-1]  # the engine has them already
        bars.append(bar)
        settings.append(copy_settings)
        return step(engine, tokens, positions, state, copy_settings)

    monkeypatch.setattr(Engine, "step", checked)
    options = {"form": "AAB", "section_bars": 1, "sampling": SamplingParams(lag_bias=[0, 0, 0.5])}
    run(TOKENIZERS["remi"], model, bars=3, num_samples=2, **options)
    assert set(torch.cat(bars).tolist()) >= {2, 3, 4}


@pytest.mark.parametrize("filled", [False, True])
def test_sections_begin_after_an_upbeat(monkeypatch, filled):
    """Alone in a bar of 1/4, or, as files have no 1/4, in a bar of 4/4 that begins with silence."""
    tokenizer = frozen_tokenizers()["songs"]
    model, step, found = small_model(tokenizer), Engine.step, {}
    model.add_copy_head({"window": 64, "max_lag": MAX_LAG})
    biases, column = form_biases("AAB", 1, MAX_LAG), model.coordinate_names.index("bar")

    def observed(engine, tokens, positions, state, copy_settings):
        found[int(positions[0, column])] = copy_settings.lag_bias[0]
        return step(engine, tokens, positions, state, copy_settings)

    monkeypatch.setattr(Engine, "step", observed)
    signatures = [TimeSignature(0, 1, 4), TimeSignature(480, 4, 4)]
    notes = notes_from([(tick, 480, 72, 80) for tick in range(0, 2400, 480)])
    score = Score(480, [Track("Voice", notes=notes)], time_signatures=signatures)
    prompt = make_prompt(tokenizer, loads(dumps(score)) if filled else score, "p", None)
    sampling = SamplingParams(lag_bias=[0])
    run(tokenizer, model, [prompt], bars=2, form="AAB", section_bars=1, sampling=sampling)
    assert {2, 3} <= found.keys()  # after the upbeat and a bar
    for bar, bias in found.items():
        assert torch.equal(bias, biases[(bar - 1) % 3])


def test_a_copy_head_takes_the_temperature_after_the_first_token(monkeypatch):
    model, step, logits = small_model(TOKENIZERS["remi"]), Engine.step, []
    model.add_copy_head({"window": 64, "max_lag": MAX_LAG})

    def observed(engine, tokens, positions, state, copy_settings):
        assert (copy_settings.temperature == (temperature or 1.0)).all()
        return step(engine, tokens, positions, state, copy_settings)

    def observed_logits(tokens, processed):
        logits.append(processed)
        return processed

    monkeypatch.setattr(Engine, "step", observed)
    first = {}
    for temperature in (1.0, 0.5, 0.0):
        logits.clear()
        request = GenerationRequest.of(SamplingParams(temperature), bars=2, num_samples=2)
        prompt = make_prompt(TOKENIZERS["remi"], SCORES["remi"], "p", 2)
        sampler = Sampler(model, TOKENIZERS["remi"], request, logits_processors=[observed_logits])
        assert len([*sampler.continuations([prompt])]) == 2
        first[temperature] = logits[0]
    torch.testing.assert_close(first[0.5], 2 * first[1.0])
    torch.testing.assert_close(first[0.0], first[1.0])  # greedy decoding follows


def test_models_without_a_chosen_bias_have_the_usual_one():
    model = small_model(TOKENIZERS["remi"])
    assert lag_bias(model, SamplingParams()) is None
    model.add_copy_head({"window": 64, "max_lag": 17})
    usual = lag_bias(model, SamplingParams())
    assert [usual[lag] for lag in (0, 1, 4, 15, 16, 17)] == [0, -1.5, -0.7, -1.5, -0.3, -1.5]
    assert lag_bias(model, SamplingParams(lag_bias=[])) == []
    request = GenerationRequest.of(SamplingParams(), bars=1)
    torch.testing.assert_close(lag_biases(model, request), torch.tensor([usual]))
    model.copy_head.coordinate = "index"
    assert lag_biases(model, request) is None
