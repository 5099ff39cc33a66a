"""The card that `save_pretrained` writes."""

from __future__ import annotations

from musicgen.checkpoints.card import _LICENCES, model_card
from musicgen.data import corpora
from tests.checkpoints.small_model import small_model


def test_a_card_has_the_model_and_what_it_learned_from():
    card = model_card(small_model().content, 1234)
    assert card.startswith("---\nlibrary_name: musicgen-symbolic\n")
    assert "| weights | 1,234 |\n" in card
    assert "| layers × width | 2 × 8 |\n" in card
    assert "| training | 300 steps on windows of 16 tokens |\n" in card
    assert card.endswith(
        "MidiFolder: its licence is not recorded here: publish the model only if you know it.\n"
    )


def test_licences_are_those_of_corpora():
    assert set(_LICENCES) <= set(corpora.__all__)
