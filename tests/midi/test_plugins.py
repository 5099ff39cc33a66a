"""The framework reads formats that packages register, and names a plugin that is missing."""

import re
import sys
from importlib import metadata
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import pytest

from musicgen import plugins
from musicgen.cli.generate import other_formats
from musicgen.errors import UserError
from musicgen.generation.source import Source
from musicgen.midi import find_music, read

ROOT = Path(__file__).parents[2]


@pytest.fixture
def registry():
    """Forget what is registered before and after a test."""
    caches = plugins._modules, plugins.suffixes
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.mark.parametrize(("suffix", "name"), [(".mxl", "scores"), (".abc", "scores")])
def test_a_missing_reader_is_named(tmp_path, monkeypatch, registry, suffix, name):
    monkeypatch.setitem(sys.modules, f"musicgen.plugins.{name}", None)
    path = tmp_path / f"song{suffix}"
    path.write_text("")
    with pytest.raises(UserError) as error:
        read(path)
    expected = f"reading {suffix} needs musicgen.plugins.{name}, which is not installed"
    assert str(error.value) == f"{path}: {expected}"


def test_a_missing_plugin_is_named(monkeypatch, registry):
    monkeypatch.setitem(sys.modules, "musicgen.plugins.page", None)
    with pytest.raises(UserError, match=r"save_page needs musicgen\.plugins\.page, which is not"):
        plugins.plugin("page", "save_page")


def test_missing_printed_scores_are_named_before_music_is_written(monkeypatch, registry):
    monkeypatch.setitem(sys.modules, "musicgen.plugins.scores", None)
    prompt = SimpleNamespace(source=Source("song.mid"))
    books = ["a/b.ABC", "book.abc/07", "x.mxl"]
    assert [Source(name).is_printed for name in (*books, "x.mid", "7", "new piece")] == [
        *(True, True, True, False, False, False)
    ]
    assert other_formats("auto", None, [prompt])
    message = "format=musicxml (format=midi writes MIDI files alone) needs musicgen.plugins.scores"
    with pytest.raises(UserError, match=re.escape(message)):
        other_formats("musicxml", None, [prompt])


def test_a_package_that_a_plugin_lacks_keeps_its_traceback(tmp_path, monkeypatch, registry):
    (tmp_path / "broken_reader.py").write_text("import a_package_that_nobody_has\n")
    monkeypatch.syspath_prepend(tmp_path)
    entry = metadata.EntryPoint("broken", "broken_reader", "musicgen.readers")
    monkeypatch.setattr(plugins, "entry_points", lambda group: [entry])
    with pytest.raises(ModuleNotFoundError, match="a_package_that_nobody_has"):
        plugins.reader(Path("song.broken"))


def test_the_reader_of_the_page_on_plugins_is_used(tmp_path, monkeypatch, registry):
    page = (ROOT / "docs/plugins.md").read_text(encoding="utf-8")
    code = page.split("```python\n")[1].split("```")[0]
    (tmp_path / "melody_text.py").write_text(dedent(code))
    monkeypatch.syspath_prepend(tmp_path)
    (line,) = [line for line in page.splitlines() if line.startswith("tune = ")]
    module = line.split('"')[1]
    entry = metadata.EntryPoint("tune", module, "musicgen.readers")
    monkeypatch.setattr(plugins, "entry_points", lambda group: [entry])
    folder = tmp_path / "tunes"
    folder.mkdir()
    (folder / "scale.tune").write_text("60 62\n64")
    (path,) = find_music(folder)
    notes = read(path).notes
    assert notes["pitch"].tolist() == [60, 62, 64]
    assert notes["onset"].tolist() == [0, 480, 960]
