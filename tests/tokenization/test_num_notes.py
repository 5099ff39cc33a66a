"""The notes that losses per note are divided by are those of the decoded music."""

import numpy as np
import pytest

from musicgen.composer import compose_groove, compose_pop
from musicgen.tokenization import frozen_tokenizers


@pytest.mark.parametrize("name", frozen_tokenizers())
def test_notes_are_those_of_the_decoded_score(name):
    tokenizer = frozen_tokenizers()[name]
    score = compose_pop(0, 0) if "groove" not in name else compose_groove(0, "funk", 0, 0)
    tokens = tokenizer.encode(score)
    # Chorale counts as the literature does: every voice of every frame.
    expected = len(tokens) - 2 if name == "chorale" else tokenizer.decode(tokens).num_notes
    assert tokenizer.num_notes(tokens) == expected > 0
    batch = np.stack(
        [tokens, np.full_like(tokens, -100), np.full_like(tokens, len(tokenizer.vocabulary) - 1)]
    )
    assert tokenizer.num_notes(batch) == expected
