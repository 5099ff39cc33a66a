"""What a prefix state begins with."""

from __future__ import annotations

import torch

from musicgen.cli.adaptation import training_windows
from musicgen.tokenization import REMI
from tests.data.settings import ComposedCorpus, encoded_corpus


def test_windows_have_the_coordinates_that_the_model_reads(tmp_path):
    tokenizer = REMI()
    corpus = ComposedCorpus(tmp_path / "midi", kind="pop", num_pieces=3, corpus_seed=0)
    data = encoded_corpus(corpus, tokenizer, tmp_path / "cache", prepare_workers=1)
    tokens, positions = training_windows(data, ("index", "bar", "beat", "pitch"))
    index, bar, beat, pitch = positions.unbind(-1)
    assert (index == torch.arange(tokens.shape[1])).all()
    texts = [[tokenizer.vocabulary.tokens[i] for i in window] for window in tokens.tolist()]
    for n, window in enumerate(texts):
        bars = 0
        for i, text in enumerate(window):
            bars += i > 0 and text.startswith("Bar")
            assert bar[n, i] == bars
            if text.startswith("Beat"):
                assert beat[n, i] == int(text.split("_")[1])
            if text.startswith("Pitch"):
                assert pitch[n, i] == int(text.split("_")[1])
