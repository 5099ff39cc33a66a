"""`minutes=10`: look at the music, and decide how a model of it is trained within that time.

A plan is a list of plain overrides, printed as the command that trains the same model again.
"""

from __future__ import annotations

import itertools
import re
import shlex
import time
from collections.abc import Iterable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import pytorch_lightning as pl
import torch
from hydra import compose
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.utils import instantiate
from omegaconf import DictConfig, open_dict, read_write
from pytorch_lightning.callbacks import EarlyStopping
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from musicgen.cli.arguments import PATHS, override_key, quoted
from musicgen.cli.building import build_training
from musicgen.cli.output import command
from musicgen.cli.resume_arguments import given_overrides
from musicgen.cli.run_recorder import RunRecorder
from musicgen.cli.threads import fewer_threads, set_up_cpu
from musicgen.console import log, warn
from musicgen.data.loading import MusicDataModule
from musicgen.data.preparation import Limits
from musicgen.errors import UserError
from musicgen.evaluation.evaluation import evaluate_run
from musicgen.evaluation.look import Look, look_at
from musicgen.files import write_text
from musicgen.models import parameter_count
from musicgen.text import pluralize
from musicgen.tokenization import frozen_tokenizers
from musicgen.training.finders import TRAINER
from musicgen.validation import check_float

TOKENIZERS = {
    "chorale": ["tokenizer=chorale"],
    "remi": ["task=pop_piano"],
    "remi_metres": ["task=pop_piano", "tokenizer=remi_metres"],
    "groove2groove": ["task=groove"],
    "groove2groove_band": ["task=groove", "tokenizer=groove2groove_band"],
}
"""What a choice of tokenizer is on the command line; of equals, the first is taken."""
EQUAL = 0.02  # of the notes
SHIPPED = {"REMI": "pop-piano-small", "Groove2Groove": "groove-small", "Chorale": "bach-chorales"}
OF_SHIPPED = ("tokenizer=chorale", "task=pop_piano", "task=groove")  # they have these themselves
TEACH = ["optimizer=adamw", "optimizer.lr=5e-4", "loader.batch_size=1"]
"""Settings for all weights of a trained model."""
LENGTH = 2048
SIZES = ((128, 4), (192, 6), (256, 8), (384, 12), (512, 16))  # width, layers
TOKENS_PER_WEIGHT = 20
"""Hoffmann et al. 2022, "Training compute-optimal large language models", table 3."""
KEYS = 12  # transpositions, in which a piece is other music
PROBE = 0.1  # of the time: each try of a beginning
PROMPTS, PIECES, BARS, LEAST_BARS = 4, 10, 16, 4  # of the page at the end
PAGE_TOKENS, PAGE_SHARE = 100_000, 0.3  # it takes as long as training on these, at most this share
VALIDATED = (2, 10)  # pieces of a validation, at least and at most
LIMIT = "+trainer.limit_val_batches"
FILE, THREADS = "plan.txt", "OMP_NUM_THREADS"
CLOCK = "callbacks.clock.seconds"
PYTHON = 0.05  # of the time: to start, and to write the page when it is due
VALIDATING = 0.15  # of the training time


class Probe(NamedTuple):
    """A short training: its result and its speed.

    Attributes:
        nats: validation loss a note.
        validation: seconds of one, of `validated` pieces.
    """

    nats: float
    steps: int
    seconds_per_step: float
    validation: float
    validated: int
    parameters: int
    tokens_per_step: int
    held_out: int


class Plan:
    """The overrides of the command line, and those that are decided beside them.

    Attributes:
        reasons: lines that were printed.
        end: when the page is due, in seconds of the monotonic clock; None: when it is done.
        page: seconds that all of it takes.
        threads: that compute, if not all.
    """

    def __init__(self, overrides: Iterable[str], reasons: Iterable[str] = ()) -> None:
        self.overrides = {override_key(override): override for override in overrides}
        self.reasons = list(reasons)
        self.end: float | None = None
        self.page = 0.0
        self.threads: int | None = None

    @staticmethod
    def of_run(folder: Path) -> Plan | None:
        """Return the plan of a run that is resumed, if it has one."""
        path = folder / FILE
        if not path.is_file():
            return None
        plan = Plan(given_overrides(), path.read_text(encoding="utf-8").splitlines())
        if threads := re.search(rf" {THREADS}=(\d+) ", plan.reasons[-1]):
            plan.compute_with(int(threads[1]))
        return plan

    def compute_with(self, threads: int | None) -> None:
        """Set the number of threads, on which the last bits of the weights depend."""
        self.threads = threads
        if threads is not None:
            torch.set_num_threads(threads)

    def write(self, folder: Path) -> None:
        """Write its lines, by which a run that is resumed is known as planned."""
        write_text(folder / FILE, "\n".join([*self.reasons, ""]))

    def gives(self, *names: str) -> bool:
        """Return whether a setting is given, or one below it."""
        return any(f"{key}.".startswith(f"{name}.") for key in self.overrides for name in names)

    def decide(self, *overrides: str) -> Plan:
        """Return the plan with further settings, where they are not given."""
        own = [override for override in overrides if override_key(override) not in self.overrides]
        plan = Plan([*self.overrides.values(), *own], self.reasons)
        plan.threads = self.threads
        return plan

    def say(self, reason: str) -> None:
        log(reason)
        self.reasons.append(reason)

    def config(self) -> DictConfig:
        """Compose it; Hydra's record of the overrides becomes the plan's."""
        overrides, hydra = list(self.overrides.values()), HydraConfig.get()
        with read_write(hydra), open_dict(hydra):  # type: ignore[arg-type]
            hydra.overrides.task = overrides
        return compose("train", overrides)

    def command(self) -> str:
        """Return the command that trains the same model again."""
        texts = [f"{key}={_plain(override)}" for key, override in self.overrides.items()]
        threads = "" if self.threads is None else f"{THREADS}={self.threads} "
        return f"{threads}{command('train')} {shlex.join(texts)}"

    def finish(self, trainer: pl.Trainer, recorder: RunRecorder) -> None:
        """Record the steps, which the clock decided, and write the page of `evaluate.py RUN`."""
        if CLOCK in self.overrides:
            self._record(trainer, recorder.cfg.init)
            recorder.cfg = self.config()
            recorder.write()
            self.write(recorder.folder)
        device = str(trainer.strategy.root_device)
        page = recorder.folder / "evaluation"
        rows = 2 * PROMPTS  # of held-out pieces and of training pieces
        set_up_cpu(rows * parameter_count(trainer.lightning_module))
        sizes: dict[str, int] = {"num_prompts": PROMPTS, "num_pieces": PIECES, "bars": BARS}
        if self.end is not None:
            left = max(0.0, self.end - time.monotonic())
            if left < self.page:
                sizes["bars"] = max(LEAST_BARS, int(BARS * left / self.page))
                log(f"{left:.0f} s are left for the page: continuations of {sizes['bars']} bars")
        try:
            evaluate_run(recorder.folder, page, device=device, sizes=sizes)
        except UserError as error:  # such as of pieces that are too short to be continued
            warn(f"no page: {error}")

    def _record(self, trainer: pl.Trainer, init: str | None) -> None:
        """Replace the clock by the number of steps, which it decided."""
        as_planned = {*shlex.split(self.command())} <= {*shlex.split(self.reasons[-1])}
        del self.overrides[CLOCK]
        if init is not None:  # which the arguments of a resumed run lack
            self.overrides.setdefault("init", f"init={quoted(init)}")
        done, steps = trainer.global_step, trainer.max_steps
        early = trainer.early_stopping_callback
        settings = [f"trainer.max_steps={steps}"]
        if isinstance(early, EarlyStopping) and early.wait_count >= early.patience:
            self.say(f"ended after {done} steps: the validation loss fell no more")
        elif done < steps:
            self.say(f"ended by the clock after {done} of {steps} steps")
            settings = [f"scheduler.max_steps={steps}", f"trainer.max_steps={done}"]
        self.overrides.update({override_key(setting): setting for setting in settings})
        if as_planned:  # and not resumed with other settings
            self.say(f"the same model again: {self.command()}")


def plan(cfg: DictConfig) -> Plan:
    """Decide what the command line leaves open."""
    check_float("minutes", cfg.minutes, above=0)
    seconds = (1 - PYTHON) * 60 * cfg.minutes
    end = time.monotonic() + seconds
    left_out = ("experiment", "minutes")
    given = [override for override in given_overrides() if override_key(override) not in left_out]
    found = Plan(given).decide(
        f"data={HydraConfig.get().runtime.choices['data']}", f"run_name={cfg.run_name}"
    )
    found.compute_with(fewer_threads() if cfg.trainer.accelerator == "cpu" else None)
    if found.threads is not None:
        found.say(f"{pluralize(found.threads, 'threads')}: more are slower beside what else runs")
    look = _look(cfg)
    for line in look.lines():
        found.say(line)
    chosen = [] if found.gives("init", "task", "tokenizer") else tokenizer(found, look)
    share = min(0.2, max(3 / look.num_pieces, min(0.05, 20 / look.num_pieces)))
    found = found.decide(f"loader.val_fraction={share:.2g}", f"loader.test_fraction={share:.2g}")
    found, tried = start(found, chosen, look, seconds)
    page = PAGE_TOKENS * tried.seconds_per_step / tried.tokens_per_step
    found = steps(found, tried, end - time.monotonic() - min(page, PAGE_SHARE * seconds))
    found.end, found.page = end, page
    found.say(f"the plan: {found.command()}")
    return found


def _plain(override: str) -> str:
    """Return a value without the quotes that Hydra's grammar needs of paths."""
    key, _, value = override.partition("=")
    if key not in PATHS:
        return value
    parsed = OverridesParser.create().parse_override(override).value()
    return "null" if parsed is None else str(parsed)


def _look(cfg: DictConfig) -> Look:
    frozen, corpus = frozen_tokenizers(), instantiate(cfg.data, _convert_="all")
    tokenizers = {name: frozen[name] for name in TOKENIZERS}
    return look_at(corpus, tokenizers, Limits(**cfg.loader.limits))


def tokenizer(found: Plan, look: Look) -> list[str]:
    """Take the tokenizer that keeps most notes with their instruments and metre."""
    kept = {name: look.kept(name) for name in TOKENIZERS}
    best = next(name for name, share in kept.items() if share >= max(kept.values()) - EQUAL)
    others = ", ".join(f"{name} {share:.0%}" for name, share in kept.items() if name != best)
    found.say(
        f"{' '.join(TOKENIZERS[best])}: it keeps {kept[best]:.0%} of the notes in their "
        f"instruments and metre ({others})"
    )
    return TOKENIZERS[best]


def start(found: Plan, chosen: list[str], look: Look, seconds: float) -> tuple[Plan, Probe]:
    """Begin with the package's model of this tokenizer, or with nothing: what a probe says.

    Args:
        chosen: settings of the tokenizer.
    """
    of_model = found.gives("model", "position", "attention", "span")
    nothing = found.decide(*chosen)
    probes: dict[str, tuple[Plan, Probe]] = {}

    def try_(name: str, begun: Plan) -> None:
        """Probe a beginning; all are validated on as many pieces as the first."""
        for _, first in probes.values():
            begun = begun.decide(f"{LIMIT}={first.validated}")
        probes[name] = begun, probe(begun, PROBE * seconds)

    if not found.gives("init") and not of_model:
        shipped = SHIPPED[nothing.config().tokenizer._target_.rpartition(".")[2]]
        own = [setting for setting in chosen if setting not in OF_SHIPPED]
        try_(f"init={shipped}", found.decide(*own, f"init={shipped}", *TEACH))
    if found.gives("init") and found.config().init is not None:
        taught = found.decide(*TEACH)
        try_(f"init={taught.config().init}", taught)
    else:
        nothing = nothing.decide("init=null", f"loader.length={LENGTH}", "loader.batch_size=1")
        if not of_model:
            nothing = size(nothing, look, seconds, [tried for _, tried in probes.values()])
        try_("init=null", nothing)
    best = min(probes, key=lambda name: probes[name][1].nats)
    found, won = probes[best]
    found = found.decide(f"{LIMIT}={won.validated}")
    tried = ", ".join(
        f"{name} {own.nats:.3f} after {pluralize(own.steps, 'steps')}"
        for name, (_, own) in probes.items()
    )
    pieces = pluralize(min(won.validated, won.held_out or won.validated), "pieces")
    known = "held out" if won.held_out else "that are known"
    found.say(f"{best}: nats a note of {pieces} {known}: {tried}")
    return found, won


def size(nothing: Plan, look: Look, seconds: float, others: Sequence[Probe]) -> Plan:
    """Take the largest model with 20 tokens a weight, as far as time and music reach.

    The music counts in every key. Without a measured speed, it is the smallest model.
    """
    music = KEYS * max(look.tokens(name) for name in TOKENIZERS)
    width, layers = SIZES[0]
    for other in others:
        work = seconds / other.seconds_per_step * other.tokens_per_step * other.parameters
        for larger in SIZES:
            weights = 12 * larger[0] ** 2 * larger[1]
            if weights * TOKENS_PER_WEIGHT <= min(music, work / weights):
                width, layers = larger
    nothing.say(
        f"model.dim={width} model.num_layers={layers} if it begins with nothing: the folder has "
        f"{music:,} tokens in all keys"
    )
    return nothing.decide(
        *(f"model.dim={width}", f"model.num_layers={layers}", f"model.num_heads={width // 32}"),
        *(f"model.ff_dim={4 * width}", "model.copy={}"),
    )


def steps(found: Plan, tried: Probe, left: float) -> Plan:
    """Let the schedule run to its end in the seconds that are left."""
    validations = round(min(12, max(1, VALIDATING * left / tried.validation)))
    fit = (left - validations * tried.validation) / tried.seconds_per_step
    count = max(validations, int(fit))
    found.say(
        f"trainer.max_steps={count}, or as the clock says: {max(0.0, left):.0f} s are left, a step "
        f"takes {tried.seconds_per_step:.2f} s, each of {validations} validations "
        f"{tried.validation:.1f} s"
    )
    if not found.gives("trainer.max_steps", "scheduler"):
        found = found.decide(f"{CLOCK}={max(1.0, left):.1f}")
    found = found.decide(f"trainer.max_steps={count}", "callbacks=early_stopping")
    count = found.config().trainer.max_steps
    return found.decide(
        "scheduler=warmup_cooldown",
        f"scheduler.warmup_steps={min(50, 1 + count // 20)}",
        f"trainer.val_check_interval={max(1, count // validations)}",
    )


def probe(found: Plan, seconds: float) -> Probe:
    """Train for some seconds, with a learning rate that falls to 0 by the clock, and validate."""
    cfg = found.config()
    pl.seed_everything(cfg.seed, workers=True, verbose=False)
    clock: list[float] = []

    def schedule(optimizer: Optimizer) -> LambdaLR:
        def factor(step: int) -> float:
            if step == len(clock):  # of the groups of weights, the first
                clock.append(time.monotonic())
            return min((step + 1) / 5, max(0.0, 1 - (clock[-1] - clock[0]) / seconds))

        return LambdaLR(optimizer, factor)

    module, data, _ = build_training(cfg, schedule)
    if not isinstance(data, MusicDataModule):
        raise UserError("minutes=: it plans the training of models of music")
    data.prepare_data()
    limit = timedelta(seconds=seconds)
    limits = {"max_steps": -1, "max_time": limit, "limit_val_batches": 0}
    trainer: pl.Trainer = instantiate(cfg.trainer, **TRAINER | limits)
    if trainer.world_size > 1:
        raise UserError("minutes=: it plans for one device; give trainer.devices=1")
    trainer.fit(module, datamodule=data)
    first, *others = [b - a for a, b in itertools.pairwise(clock)]
    paces = others or [first]  # the first step is slower
    pace = sum(paces) / len(paces)
    least, most = VALIDATED
    validated = cfg.trainer.get("limit_val_batches") or min(most, max(least, int(seconds / pace)))
    trainer.limit_val_batches = validated
    begin = time.monotonic()
    (measures,) = trainer.validate(module, datamodule=data, verbose=False)
    return Probe(
        nats=measures["val/nats_per_note"],
        steps=trainer.global_step,
        seconds_per_step=pace,
        validation=time.monotonic() - begin,
        validated=validated,
        parameters=parameter_count(module.model),
        tokens_per_step=cfg.loader.length * cfg.loader.batch_size,
        held_out=len(data.encoded.cache.pieces("val")),
    )
