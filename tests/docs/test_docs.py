"""The documentation says what is there: commands compose, code is the files', settings are all."""

import re
import shlex
import textwrap

import pytest
import torch
import yaml

from benchmarks.published import choices
from docs.commands import FENCE, PAGES, ROOT, blocks, commands
from docs.figures import disagreements
from docs.settings import COMMANDS, groups, reference
from musicgen.cli.arguments import override_key, quoted_paths
from musicgen.composer import compose_corpus
from musicgen.midi import read, write

SCRIPT = re.compile(r"(train|generate|evaluate)\.py$|^musicgen-(train|generate|evaluate|prepare)$")
UNKNOWN = re.compile(r"^\$|\$\(|^--help|^resume=")  # a shell's, or read before composing
HEADERS = sorted((ROOT / "conf").rglob("*.yaml"))


def jobs():
    """Yield the first and the last job of each command of ours: its script and its settings."""
    for part, _ in commands((*PAGES, *HEADERS)):
        words = shlex.split(part, comments=True)
        at = next((i for i, word in enumerate(words) if SCRIPT.search(word)), None)
        if at is None:
            continue
        script = next(filter(None, SCRIPT.search(words[at]).groups()))
        arguments = [x for x in words[at + 1 :] if not UNKNOWN.search(x)]
        given = [choices(x) for x in quoted_paths(arguments) if override_key(x)]
        assert len(max(given, default=[""], key=len)) == 1 or "-m" in arguments, part  # a sweep
        for i in (0, -1):
            yield script, [texts[i] for texts in given if not texts[i].startswith("hydra")]


def composed():
    """Return the settings of all jobs with the same script and the same choices of groups.

    Whether a setting is there depends on the choices alone, so that one composition tells of all.
    """
    found = {}
    for script, settings in jobs():
        chosen = [x for x in settings if (ROOT / "conf" / override_key(x)).is_dir()]
        others = [x for x in settings if x not in chosen]
        found.setdefault((script, *sorted(chosen)), {}).update(dict.fromkeys(others))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "settings"),
    [pytest.param(*each, id=" ".join(each[0])) for each in composed().items()],
)
def test_every_command_composes(config, command, settings):
    script, *chosen = command
    assert config(script, *chosen, *settings)


@pytest.mark.parametrize("script", ["train", "generate"])
def test_help_shows_ten_settings_first(config, script):
    shown = yaml.safe_load((ROOT / f"conf/{script}.yaml").read_text())["hydra"]["help"]["header"]
    lines = [line.strip() for line in shown.splitlines() if line.startswith("  ")]
    assert len(lines) == 10
    for line in lines:
        words = shlex.split(re.split("  +", line)[0])
        assert config(script, *quoted_paths([word for word in words if override_key(word)]))


def test_figures_in_the_text_are_those_of_the_results():
    assert disagreements() == []


@pytest.mark.parametrize(
    ("name", "code"),
    [
        pytest.param(*words.split()[1:], body, id=words)
        for page in (ROOT / "CONTRIBUTING.md", ROOT / "docs/research.md")
        for words, body in blocks(page)
        if re.fullmatch(r"(python|yaml|bash) \S+", words)  # the language and a file
    ],
)
def test_the_code_of_pages_is_the_files(name, code):
    indents = ("", " " * 4)  # at the top, or in a class
    assert any(textwrap.indent(code, indent) in (ROOT / name).read_text() for indent in indents)


@pytest.mark.slow
def test_the_python_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (piece,) = compose_corpus(tmp_path, kind="pop", num_pieces=1, seed=1)
    write(read(piece).clip(0, 8 * 1920), "prompt.mid")  # its first bars
    scope = {}
    for words, body in blocks(ROOT / "docs/python.md"):
        if words == "python":
            exec(body, scope)
    assert len(read("continued.mid").tracks) == len(read("prompt.mid").tracks) > 0


def test_the_loop_and_the_attention_of_the_research_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (piece,) = compose_corpus(tmp_path, kind="pop", num_pieces=1, seed=1)
    write(read(piece).clip(0, 16 * 1920), "prompt.mid")
    scope = {}
    for words, body in blocks(ROOT / "docs/research.md"):
        if words == "python":
            exec(body, scope)
    model, ids = scope["model"], scope["windows"][0][None]
    weights = [model.position.gate, model.layers[0].qkv.weight]
    assert all(each.grad.abs().sum() > 0 for each in weights)  # they were trained
    assert torch.equal(model(ids), model(ids))
    attention, x = scope["attention"], torch.randn(1, 50, 128)
    assert not torch.equal(attention(x), attention(x))
    assert torch.equal(attention.eval()(x), attention(x))


def leaves(node, prefix=""):
    for key, value in node.items():
        if key in ("defaults", "hydra") or key.startswith("_") or key.endswith("_"):
            continue
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def test_the_reference_lists_every_setting():
    sections = {
        part.partition("\n")[0]: part for part in re.split(r"^##+ ", reference(), flags=re.M)
    }
    files = {f"`musicgen-{name}`": ROOT / f"conf/{name}.yaml" for name in COMMANDS}
    for group in groups():
        paths = (ROOT / "conf" / group).glob("*.yaml")
        files |= {f"`{group}={path.stem}`": path for path in paths}
    for title, path in files.items():
        content = yaml.safe_load(path.read_text()) or {}
        missing = [key for key in leaves(content) if f"{key}` |" not in sections[title]]
        assert not missing, title
    assert len(files) > 60
    assert (
        "| `model.position.coordinates` | `index` | time, bar, beat, pitch"
        in sections["`position=alibi`"]
    )


def test_pages_link_to_files_that_are_there():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", FENCE.sub("", page.read_text())):
            if not target.startswith("http"):
                there = (page.parent / target).exists()
                assert there or target in ("settings.md",), f"{page.name}: {target}"


def test_the_glossary_names_what_is_there():
    page = (ROOT / "docs/glossary.md").read_text()
    places = re.findall(r"`([^`]+)`", " ".join(re.findall(r"\| ([^|]+) \|$", page, re.MULTILINE)))
    paths = [place for place in places if "/" in place or place.endswith(".py")]
    assert len(paths) > 60
    for path in paths:
        assert [*(ROOT / "musicgen").glob(path), *ROOT.glob(path)], path
    constants = re.findall(r"\| ([\d.,]+) \| `(\w+)` in `([^`]+)` \|$", page, re.MULTILINE)
    assert len(constants) > 4
    for value, name, path in constants:
        (file,) = [*(ROOT / "musicgen").glob(path), *ROOT.glob(path)]
        line = rf"^{name}(:| =) {value.replace(',', '')}\b"
        assert re.search(line, file.read_text(), re.MULTILINE), name


@pytest.mark.filterwarnings("ignore")  # of myst-parser, about Sphinx 11
def test_the_pages_build(tmp_path):
    """Every page is in the table of contents, and Sphinx has no warnings."""
    build = pytest.importorskip("sphinx.cmd.build")
    status = build.main(["-q", "-W", "--keep-going", str(ROOT / "docs"), str(tmp_path / "html")])
    assert status == 0
    assert "coordinates" in (tmp_path / "html/settings.html").read_text()
