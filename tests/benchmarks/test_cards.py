"""The cards of the package's models are those of the stored measures."""

from __future__ import annotations

import pytest

from benchmarks import cards
from musicgen.package_data import PRETRAINED


@pytest.mark.parametrize("name", cards.RECIPES)
def test_cards_agree_with_the_results(name):
    card = (PRETRAINED / name / "README.md").read_text(encoding="utf-8")
    assert card == cards.card(name), "python -m benchmarks.cards"


def test_every_model_of_the_package_has_a_card():
    assert set(cards.RECIPES) == {path.parent.name for path in PRETRAINED.glob("*/config.json")}
