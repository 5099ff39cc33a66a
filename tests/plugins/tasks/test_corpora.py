"""Published data sets are read from their files; what is missing or damaged is named."""

import pickle
from functools import partial

import numpy as np
import pytest
from PIL import Image

from musicgen.errors import ParameterError, UserError
from musicgen.plugins.tasks import AAN, CIFAR10, IMDb, Pathfinder, WikiText
from tests.plugins.tasks import samples

imdb = partial(IMDb, val_fraction=0, split_seed=0)
cifar10 = partial(CIFAR10, colours="grey", num_val=5, val_seed=None)
pathfinder = partial(Pathfinder, difficulty="hard", side=32, split_seed=0)
wikitext = partial(WikiText, num_words=None)


def examples(split):
    return [split[i] for i in range(len(split))]


def text(ids):
    return bytes((ids - 1).astype(np.uint8)).decode(errors="replace")


def test_imdb(tmp_path):
    root = samples.write_imdb(tmp_path / "aclImdb")
    train = examples(imdb(root).split("train", 1000))
    assert [x.target for x in train] == [0] * 4 + [1] * 4
    assert text(train[4].sequences[0]) == "train a fine film, é"
    assert text(imdb(root).split("train", 5)[4].sequences[0]) == "train"
    # Validation on the test reviews, or on a part of the training reviews.
    assert text(imdb(root).split("val", 4)[0].sequences[0]) == "test"
    held_out = imdb(root, val_fraction=0.25)
    paths = [{path for path, _ in held_out.split(name, 9).items} for name in ("train", "val")]
    assert [len(part) for part in paths] == [6, 2]
    assert not set.intersection(*paths)


def test_aan(tmp_path):
    pairs = AAN(samples.write_aan(tmp_path / "aan")).split("val", 8)
    assert [x.target for x in examples(pairs)] == [0, 1, 0, 1, 0, 1]
    assert [text(ids) for ids in pairs[2].sequences] == ["about 2", "aboutabo"]
    assert [text(ids) for ids in pairs[0].sequences] == ["about 0", " "]  # an empty text


def test_aan_names_the_line_of_an_error(tmp_path):
    root = samples.write_aan(tmp_path / "aan")
    with (root / "new_aan_pairs.test.tsv").open("a") as file:
        file.write("2\tP\tQ\ta\tb\n")
    with pytest.raises(UserError, match=r"test\.tsv, line 7: expected label"):
        AAN(root).split("test", 8)[6]


def test_cifar10(tmp_path):
    root = samples.write_cifar10(tmp_path / "cifar")
    raw = pickle.loads((root / "data_batch_5").read_bytes())
    image = raw[b"data"][3].reshape(3, 32, 32)
    grey = cifar10(root, num_val=4).split("val", 1024)
    assert [x.target for x in examples(grey)] == [3, 1, 4, 1]
    (pixels,) = grey[3].sequences
    luma = 0.2989 * image[0] + 0.587 * image[1] + 0.114 * image[2]
    assert np.array_equal(pixels.reshape(32, 32), luma.round().astype(int))
    images = pickle.loads((root / "test_batch").read_bytes())
    images[b"data"][0] = 255
    (root / "test_batch").write_bytes(pickle.dumps(images))
    (white,) = cifar10(root, num_val=4).split("test", 1024)[0].sequences
    assert (white == 255).all()
    (colours,) = cifar10(root, num_val=4, colours="rgb").split("val", 1024)[3].sequences
    assert colours.shape == (1024, 3)
    assert np.allclose((colours[32 + 5] + 1) * 127.5, image[:, 1, 5], atol=1e-4)
    drawn = cifar10(root, num_val=6, val_seed=0)
    parts = [list(drawn.split(name, 1024).items) for name in ("train", "val")]
    assert sorted(parts[0] + parts[1]) == list(range(20))
    assert parts[1] != list(range(14, 20))
    assert len(drawn.split("test", 1024)) == 4


class Harmful:
    def __reduce__(self):
        return print, ("run",)


def test_pickles_of_other_objects_are_refused(tmp_path, capsys):
    root = samples.write_cifar10(tmp_path / "cifar")
    (root / "test_batch").write_bytes(pickle.dumps({b"data": Harmful()}))
    with pytest.raises(UserError, match="test_batch: not a batch of CIFAR-10; unpack"):
        cifar10(root).split("test", 1024)
    assert capsys.readouterr().out == ""


def test_pathfinder(tmp_path):
    root = samples.write_pathfinder(tmp_path / "pathfinder32")
    corpus = pathfinder(root)
    splits = [corpus.split(name, 1024) for name in ("train", "val", "test")]
    assert [len(split) for split in splits] == [15, 2, 2]  # of 19: one image is empty
    paths = [path for split in splits for path, _ in split.items]
    assert len(set(paths)) == 19
    for split in splits:
        for (path, label), example in zip(split.items, examples(split), strict=True):
            assert example.target == label == int(path.stem[-1]) % 2
            with Image.open(path) as image:
                assert example.sequences[0].tolist() == list(image.getdata())
    with pytest.raises(ParameterError, match="side=16: expected 32"):
        pathfinder(root, side=16).split("train", 1024)[0]
    with pytest.raises(ParameterError, match=r"^difficulty=harder: expected one of easy,"):
        pathfinder(root, difficulty="harder")


def test_wikitext(tmp_path):
    corpus = wikitext(samples.write_wikitext(tmp_path / "wiki"), tmp_path / "cache")
    assert corpus.words[:3] == ["the", "<eos>", "."]
    assert corpus.vocab_size == corpus.num_outputs == 2 + len(corpus.words)
    names = ["PAD", "MASK", *corpus.words]
    split = corpus.split("test", 7)
    words = (tmp_path / "wiki/wiki.test.tokens").read_text().replace("\n", " <eos> ").split()
    words = [word if word in names else "<unk>" for word in words]
    read = [names[i] for x in examples(split) for i in x.sequences[0]]
    assert read == words[:-1]
    assert [names[i] for x in examples(split) for i in x.target] == words[1:]
    assert {len(x.target) for x in examples(split)[:-1]} == {7}
    # Encoded once; a smaller vocabulary has the most frequent words.
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()}
    wikitext(tmp_path / "wiki", tmp_path / "cache").split("test", 7)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").iterdir()} == stamps
    small = wikitext(tmp_path / "wiki", tmp_path / "cache", num_words=3)
    assert small.words == ["the", "<eos>", "<unk>"]
    assert small.split("train", 9)[0].sequences[0].max() == 4
