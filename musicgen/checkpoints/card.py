"""The card of a model: README.md beside its weights, with the front matter that the Hub reads."""

from __future__ import annotations

from musicgen.checkpoints.content import CheckpointContent, class_name
from musicgen.text import markdown

CARD = "README.md"
_LICENCES = {  # of corpora, see data/README.md
    "ComposedCorpus": "music of this project's own seeded composer, MIT like the project",
    "BachChorales": "chorales by J. S. Bach, in the public domain, from files that state no terms",
    "JSBChorales": "chorales by J. S. Bach, in the public domain; the data set states no licence",
    "POP909": "the annotations are under MIT; the songs are commercial ones",
    "Pop1K7": "transcribed covers of commercial songs; no licence is stated",
    "Groove2GrooveMIDI": "CC BY-NC 4.0, which allows no commercial use",
}
_UNKNOWN = "its licence is not recorded here: publish the model only if you know it"
_TEXT = """\
---
library_name: musicgen-symbolic
tags: [music, symbolic-music, midi]
---
# A symbolic-music model

`pip install musicgen-symbolic`, then `musicgen.load("FOLDER").generate("song.mid", bars=16)`.

{table}
It learned from {data}.
"""


def model_card(content: CheckpointContent, num_weights: int) -> str:
    """Describe a model in Markdown: a table, and what it learned from."""
    model = content.model
    parts = model["attention"], model["attention"].get("feature_map")
    attention = " with ".join(filter(None, map(class_name, parts)))
    rows = {
        "weights": f"{num_weights:,}",
        "layers × width": f"{model['num_layers']} × {model['dim']}",
        "attention": attention + (", and a copy head" if model.get("copy") is not None else ""),
        "position": class_name(model["position"]),
        "tokenizer": f"{class_name(content.tokenizer)}, {len(content.vocabulary):,} tokens",
        "training": f"{content.steps:,} steps on windows of {content.config['loader']['length']:,}"
        " tokens",
    }
    corpus = class_name(content.config.get("data")) or "a corpus"
    table = markdown([{"": name, " ": value} for name, value in rows.items()])
    return _TEXT.format(table=table, data=f"{corpus}: {_LICENCES.get(corpus, _UNKNOWN)}")
