"""A trained model with its tokenizer: music in, music out."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import torch

from musicgen.checkpoints import CheckpointContent, rebuild, with_realizations, write_folder
from musicgen.errors import ParameterError, UserError
from musicgen.generation.constraints import Constraint
from musicgen.generation.continuation import Continuation
from musicgen.generation.decoder import lag_bias
from musicgen.generation.kept_prompt import kept_prompt
from musicgen.generation.logits_processors import Processor
from musicgen.generation.prompt import PROMPT_BARS, Prompt, empty_prompt, make_prompt
from musicgen.generation.request import (
    DecodingParams,
    GenerationRequest,
    PieceParams,
)
from musicgen.generation.sampler import Sampler
from musicgen.generation.sampling import SWITCHES, SamplingParams
from musicgen.generation.source import on_beats, pace_of, signatures_of_new, tracks_with_notes
from musicgen.generation.surprisal import Surprisal, surprisal
from musicgen.midi import Score, as_score, music_name, read
from musicgen.midi.io import read_with_data
from musicgen.midi.key import final_key
from musicgen.midi.score import PIANO
from musicgen.models import Transformer
from musicgen.package_data import DEFAULT_MODEL
from musicgen.plugins import plugin
from musicgen.tokenization.base import Tokenizer
from musicgen.tokenization.chord_recognition import with_chords
from musicgen.tokenization.chords import key_of_chords
from musicgen.tokenization.coordinates import Coordinates
from musicgen.tokenization.vocabulary import IntArray
from musicgen.validation import check_choice, check_float, check_int


class MusicModel:
    """A trained model, in evaluation mode, with its tokenizer, as `load` returns it."""

    def __init__(
        self, model: Transformer, tokenizer: Tokenizer, content: CheckpointContent, path: Path
    ) -> None:
        self.model, self.tokenizer, self.content, self.path = model, tokenizer, content, path

    def __repr__(self) -> str:
        return f"MusicModel({self.content.describe(self.path.name)})"

    def to(self, device: str) -> MusicModel:
        """Move it to a torch device; `auto` is the fastest here."""
        devices = ["cpu"]
        devices += ["mps"] if torch.backends.mps.is_available() else []
        devices += ["cuda"] if torch.cuda.is_available() else []
        check_choice("device", str(device).partition(":")[0], ["auto", *devices])
        self.model.to(devices[-1] if device == "auto" else device)
        return self

    def with_realizations(self, num_realizations: int | None, *, seed: int = 0) -> MusicModel:
        """Return it with another number of realizations of SPE; None is the exact limit.

        Random features, which depend on the number, are drawn anew with `seed`.
        """
        changed = with_realizations(self.model, self.content, num_realizations, seed=seed)
        return MusicModel(changed[0], self.tokenizer, changed[1], self.path)

    def save_pretrained(self, folder: str | Path, *, dtype: str = "float32") -> None:
        """Write config.json, tokenizer.json, model.safetensors and README.md, without local paths.

        Args:
            dtype: of the stored weights: `float16` and `bfloat16` halve the size of `float32`.
        """
        write_folder(self.content, self.model.state_dict(), Path(folder), dtype)

    def save_onnx(self, folder: str | Path, *, seed: int = 0) -> None:
        """Write model.onnx, tokenizer.json and README.md for programs without torch.

        The graph is one decoding step with its state, see `docs/export.md`. Needs the extra `onnx`.

        Args:
            seed: of the noise of stochastic positional encodings.

        Raises:
            UserError: the state of the model's attention or encoding grows with each token.
        """
        from musicgen.export.step import save_onnx

        save_onnx(self.model, self.tokenizer, Path(folder), seed=seed)

    def save_page(self, path: str | Path) -> None:
        """Write one HTML file that composes with the model, in a browser and without a network.

        Its title is the name of the file, see `docs/page.md`. Needs the extra `onnx`.

        Raises:
            UserError: the page cannot have this model or its tokenizer.
        """
        sampling = self.sampling()
        bias = lag_bias(self.model, sampling)  # the page does not know the usual one
        plugin("page", "save_page").save_page(
            self.model,
            self.tokenizer,
            self.content,
            Path(path),
            sampling=asdict(replace(sampling, lag_bias=bias)),
        )

    @property
    def training_length(self) -> int:
        """Tokens in a training window."""
        return int(self.content.config["loader"]["length"])

    def positions(self, tokens: IntArray, bar_length: int | None = None) -> IntArray:
        """Return the positions that the model reads: ids [L] -> [L, P].

        Args:
            bar_length: grid steps in a bar, for tokens without bars; None: four quarters.
        """
        names = self.model.coordinate_names
        return Coordinates(self.tokenizer).of(tokens, names, bar_length=bar_length)

    def prompt(
        self,
        music: Any,
        name: str | None = None,
        prompt_bars: int | Literal["auto"] | None = None,
        request: GenerationRequest | None = None,
        beats: str = "auto",
        performance: str = "prompt",
        time_signature: str | None = None,
    ) -> Prompt:
        """Return the first bars of a piece, with chords from the source used in training.

        With `keep` or `fill`, return what is kept of the whole piece, see `kept_prompt`.

        Args:
            music: a Score, an object of miditoolkit, muspy or pretty_midi, or the path of a MIDI
                file or printed score, to which continuations are appended; None: a new piece.
            name: None: the name of the file.
            prompt_bars: bars to keep; None: all; `auto`: `PROMPT_BARS`. With `keep`: first bars in
                which the other parts are kept as well; None and `auto`: 0.
            request: sets tempo, chords and programs; None: those of the music.
            beats: the beats of a performance. `auto`: find them if the notes are not on a grid of
                the file's ticks; `file`: those of the file; a path: those of a text file. The music
                sounds as before, and continues at the tempo of its last bars.
            performance: `prompt`: new notes are played like similar notes of the prompt, and its
                pedal continues; `none`: on the grid, at velocities of the tokens, or one per track.
            time_signature: such as 3/4, instead of the one that is found, or the file's.
        """
        check_choice("performance", performance, ("prompt", "none"))
        request = request or self.request()
        piece, tune_part = request.piece, None
        if prompt_bars == "auto":
            prompt_bars = None if piece.is_whole_piece else PROMPT_BARS
        if music is None:
            prompt = self._empty_prompt(piece, time_signature)
        else:
            is_path = isinstance(music, str | Path)
            name = name or (music_name(Path(music)) if is_path else "prompt")
            own, data = (
                read_with_data(music, keep_events=True) if is_path else (as_score(music), None)
            )
            score, data = on_beats(own, data, beats, time_signature)
            if piece.is_whole_piece:
                prompt = self._kept_prompt(score, data, name, prompt_bars, request)
            else:
                tempo = piece.tempo or (None if score is own else pace_of(score, prompt_bars))
                score, tune_part = self.tokenizer.name_tune(score)
                written = self._with_chords(self.tokenizer.normalise_rhythm(score))
                prompt = make_prompt(self.tokenizer, written, name, prompt_bars, data, tempo, score)
                _check_no_key(piece, prompt)
        programs = {} if tune_part is None else {tune_part: PIANO}
        programs |= piece.programs(self.tokenizer, tracks_with_notes(prompt.piece))
        source = replace(prompt.source, programs=programs, tune_part=tune_part)
        if performance == "none":
            source = replace(source, performance=None)
        return replace(prompt, source=source)

    def _empty_prompt(self, piece: PieceParams, time_signature: str | None) -> Prompt:
        """Return the prompt of a new piece."""
        if piece.is_whole_piece:
            raise UserError("keep writes to parts of a piece; give one as the prompt")
        keys, signatures = piece.key_signatures, signatures_of_new(self.tokenizer, time_signature)
        chord = None
        if piece.progression and not self.tokenizer.families.get("Key"):
            chord = piece.progression[0][0]  # before the tempo; in songs it comes after that
        elif piece.progression and not keys and (key := key_of_chords(piece.progression)):
            keys = [key.signature]
        return empty_prompt(self.tokenizer, piece.tempo, keys, chord, signatures)

    def _kept_prompt(
        self,
        score: Score,
        data: bytes | None,
        name: str,
        prompt_bars: int | None,
        request: GenerationRequest,
    ) -> Prompt:
        """Return what `keep` and `fill` keep of a whole piece."""
        piece, gap, entropy = request.piece, request.piece.gap, None
        check_int("prompt_bars", prompt_bars, 0, none_means="none of the target parts")
        if prompt_bars is not None:
            if gap.bars != (0, None):
                raise ParameterError("prompt_bars", prompt_bars, "expected no bars in fill with it")
            gap = gap._replace(bars=(prompt_bars, None))
        if gap.bars == (0, None):
            entropy = [request.decoding.seed, zlib.crc32(name.encode())]
        score = replace(score, key_signatures=piece.key_signatures or score.key_signatures)
        markers = self._with_chords(score).markers
        return kept_prompt(
            self.tokenizer, score, name, piece.keep, gap, markers, piece.progression, data, entropy
        )

    def _with_chords(self, score: Score) -> Score:
        """Return a score with its chords, from the source that training used."""
        if not self.tokenizer.chords:
            return with_chords(score, "markers")
        return with_chords(score, self.content.config["loader"]["chords"])

    def sampling(self, **overrides: Any) -> SamplingParams:
        """Return the sampling of the model with overrides; None leaves a parameter as it is.

        It switches those of `SWITCHES` off, which `auto` leaves.

        The sampling of the model is that of its training configuration, unless the checkpoint
        stores another one.
        """
        stored = {**(self.content.config.get("sampling") or {}), **(self.content.sampling or {})}
        if unknown := stored.keys() - {each.name for each in fields(SamplingParams)}:
            raise UserError(
                f"{self.path}: its sampling has {', '.join(sorted(map(str, unknown)))}, which this "
                "musicgen does not know; use the version that wrote it"
            )
        return SamplingParams(**{**stored, **_given(overrides)})

    def request(
        self,
        *,
        length_factor: float | None = None,
        sampling: SamplingParams | None = None,
        **options: Any,
    ) -> GenerationRequest:
        """Return what to generate.

        Args:
            length_factor: tokens in all, as a multiple of the training length.
            sampling: None takes the model's own; options that are `SamplingParams` change it.
            options: fields of `PieceParams`, `DecodingParams` or `SamplingParams`, or the short
                forms `rewrite`, of `fill`, and `cadence`, of `ending`. None is the default, and
                switches `top_k`, `variation` and `max_notes` off; `auto` takes those of the model.

        Raises:
            UserError: names the option.
        """
        least = 1 / self.training_length  # one token
        check_float("length_factor", length_factor, least, maximum=1e5, none_means="")
        options = _given(options)
        kinds = PieceParams, DecodingParams, SamplingParams
        known = ["rewrite", "cadence", *(each.name for kind in kinds for each in fields(kind))]
        if unknown := sorted(options.keys() - set(known)):
            near = get_close_matches(unknown[0], [*known, "prompt_bars", "length_factor"], 1)
            hint = "see PieceParams, DecodingParams and SamplingParams"
            if near:
                hint = f"did you mean {near[0]}?"
            raise UserError(f"there is no option {unknown[0]}; {hint}")
        if length_factor is not None:
            options["total_tokens"] = round(length_factor * self.training_length)
        request = GenerationRequest.of(sampling or self.sampling(), **options)
        if request.piece.chords and not self.tokenizer.chords:
            raise UserError(
                "chords need a model with tokens of chords (tokenizer=remi "
                f"tokenizer.chords=true), such as checkpoint={DEFAULT_MODEL}"
            )
        if request.piece.key_signatures and not self.tokenizer.families.get("Key"):
            such = "tokenizer=songs, or tokenizer.keys=true of chorales and bands"
            raise UserError(f"key needs a model with tokens of keys ({such})")
        if request.piece.cadences and not self.tokenizer.families.get("Left"):
            raise UserError(
                "cadence needs a model that counts bars (tokenizer.phrases=true), such as "
                f"checkpoint={DEFAULT_MODEL}"
            )
        if isinstance(request.piece.program, Mapping):
            request.piece.programs(self.tokenizer, ())  # raises if a track is unknown
        return request

    def generate(
        self,
        prompts: Any = None,
        *,
        prompt_bars: int | Literal["auto"] | None = None,
        beats: str = "auto",
        performance: str = "prompt",
        time_signature: str | None = None,
        logits_processors: Sequence[Processor] = (),
        constraints: Sequence[Constraint] = (),
        **options: Any,
    ) -> list[Continuation]:
        """Continue each prompt `num_samples` times, or compose new pieces.

            model.generate("song.mid", prompt_bars=4, bars=16, num_samples=2, temperature=0.8)
            model.generate("song.mid", prompt_bars=4, chords="C Am F G")
            model.generate("tune.mid", keep="soprano")
            model.generate("quartet.mid", fill="violin 5-8")

        Args:
            prompts: Scores, paths of MIDI files, or objects of miditoolkit, muspy or pretty_midi;
                or a single one; None: compose a new piece.
            prompt_bars, beats, performance, time_signature: how prompts are cut, read and
                continued, see `prompt`.
            logits_processors: functions of the tokens so far [B, L] and the logits [B, V] that
                return new logits. They run before temperature, top_p and the other options, see
                `LogitsProcessor`.
            constraints: further limits on the tokens, see `Constraint`.
            options: bars, num_samples, seed, temperature and others, see `request`.

        Returns:
            Continuations by prompt, then sample. `.score` is the music, prompt included. `.notice`
            warns if the model added very few notes. `.save(path)` writes a MIDI file, which begins
            with the prompt's own file if there is one.

        Raises:
            UserError: a prompt cannot be read or an option be used.
        """
        request = self.request(**options)
        if isinstance(prompts, str) or not isinstance(prompts, Sequence):
            prompts = [prompts]
        made = []
        for i, each in enumerate(prompts):
            name = None if isinstance(each, str | Path) else f"prompt {i}"
            made.append(
                self.prompt(each, name, prompt_bars, request, beats, performance, time_signature)
            )
        sampler = Sampler(
            self.model,
            self.tokenizer,
            request,
            logits_processors=logits_processors,
            constraints=constraints,
        )
        done = sampler.continuations(made)
        return sorted(done, key=lambda each: (made.index(each.prompt), each.sample))

    def score(self, music: Any, *, beats: str = "auto") -> Surprisal:
        """Return how surprising each token of a piece is, in nats, with sums per note and bar.

            found = model.score("song.mid")
            found.nats.mean(), found.notes["nats"], found.bars

        Args:
            music: as in `prompt`; the whole piece is read.
            beats: as in `prompt`.

        Raises:
            UserError: the music cannot be read, has no note that the vocabulary can represent, or
                is longer than the model can read.
        """
        is_path = isinstance(music, str | Path)
        name = music_name(Path(music)) if is_path else "the piece"
        own = read(music) if is_path else as_score(music)
        score, _ = self.tokenizer.name_tune(on_beats(own, None, beats)[0])
        score = self._with_chords(self.tokenizer.normalise_rhythm(score))
        return surprisal(self.model, self.tokenizer, score, name)


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that replace a default: not None, or `auto` in those that None ends."""
    return {
        name: value
        for name, value in options.items()
        if (value != "auto" if name in SWITCHES else value is not None)
    }


def _check_no_key(piece: PieceParams, prompt: Prompt) -> None:
    """Refuse a key for a continuation, with the key of the prompt."""
    if piece.key is not None:
        key = final_key(prompt.score)
        expected = (
            f"expected no prompt with it: {prompt.name} is in {key.name if key else 'no key'}, in "
            "which its continuation stays; transpose the prompt first"
        )
        raise ParameterError("key", piece.key, expected)


def load(checkpoint: str | Path) -> MusicModel:
    """Load a checkpoint of train.py, or a folder, on the CPU; nothing in it is executed."""
    path = Path(checkpoint)
    return MusicModel(*rebuild(path), path)
