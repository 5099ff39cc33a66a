"""Sampling of continuations: batches of rows, one token per row and step."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from musicgen.generation.continuation import Continuation
from musicgen.generation.engines import Engine, make_engine
from musicgen.generation.filling import fill_gaps
from musicgen.generation.form import lag_biases
from musicgen.generation.prompts import Prompt, decode, last_chord_key
from musicgen.generation.repetition import BarRepeats, cap_repeats
from musicgen.generation.request import GenerationRequest
from musicgen.generation.rewriting import RewrittenPrompt, finished
from musicgen.generation.rows import Context, Draft, Row
from musicgen.generation.sampling import sample
from musicgen.generation.selection import Candidate, Selection, best, ends_on, measure, restfulness
from musicgen.metrics.key import find_key
from musicgen.midi import pitched_notes
from musicgen.models import ModelState, Transformer
from musicgen.random import NoiseKey, RandomStream
from musicgen.tokenization.base import MAX_TOKENS_PER_BAR, TICKS_PER_BEAT, Tokenizer
from musicgen.tokenization.grammar import NEVER, Grammar, GrammarState
from musicgen.tokenization.vocabulary import IntArray

NUM_ENDINGS = 32
"""Candidates for the last bar of a piece that closes."""

OWN_CONTEXT = 512
"""Tokens before a candidate that its likelihood without copies is computed from."""


class Sampler:
    """Continues prompts with a model as a request asks.

    Args:
        model: causal, in evaluation mode.
        on_step: called after each step with the number of its rows.
        warn: called with one line if a faster engine fails, see `make_engine`.
    """

    def __init__(
        self,
        model: Transformer,
        tokenizer: Tokenizer,
        request: GenerationRequest,
        *,
        on_step: Callable[[int], None] = lambda num_tokens: None,
        warn: Callable[[str], object] = warnings.warn,
    ) -> None:
        self.model, self.tokenizer, self.request, self.on_step = model, tokenizer, request, on_step
        self.engine = make_engine(
            model, NoiseKey((request.seed,)), engine=request.engine, warn=warn
        )
        self._lag_biases = lag_biases(model, request)
        self._eos = tokenizer.vocabulary.id("EOS")
        self._ticks_per_step = TICKS_PER_BEAT // tokenizer.steps_per_beat

    def continuations(
        self, prompts: Sequence[Prompt], earlier: Sequence[Continuation] = ()
    ) -> Iterator[Continuation]:
        """Yield `num_samples` continuations of each prompt, each as soon as it is finished.

        Those that an earlier call made of the same prompts are left out.

        Raises:
            UserError: a prompt is not grammatical, or is too long for the request or the model.
        """
        request = self.request
        for prompt in prompts:  # before any work
            if not isinstance(prompt, RewrittenPrompt):
                request.num_new_tokens(prompt, self.model)
        made = {(id(each.prompt), each.sample) for each in earlier}
        samples = [
            Draft(prompt, i, prompt.tokens)
            for prompt in prompts
            for i in range(request.num_samples)
            if (id(prompt), i) not in made
        ]
        size = max(1, request.batch_size // request.best_of)
        for first in range(0, len(samples), size):
            drafts, part, closing = samples[first : first + size], 0, []
            if request.rewrites:
                yield from self._rewritten(drafts)
                continue
            while drafts:
                unfinished = []
                for draft in self._add_part(drafts, part):
                    if not self._is_complete(draft, part):
                        unfinished.append(draft)
                    elif request.ending == "close":
                        closing.append(draft)
                    else:
                        yield self._continuation(draft)
                drafts, part = unfinished, part + 1
            for draft in self._add_endings(closing):
                yield self._continuation(draft)

    def stream(self, prompt: Prompt) -> Iterator[tuple[int, int]]:
        """Yield each new token of a sample with its musical time; a closing bar as a whole.

        Raises:
            UserError: as `continuations`.
        """
        draft = Draft(prompt, 0, prompt.tokens)
        row = Row(self._context(draft, 0), self._key(0, 0, 0))
        for number, _ in enumerate(self.steps([row])):
            if len(row.tokens) > number:
                yield row.tokens[-1], row.time
        if self.request.ending == "close":
            (closed,) = self._add_endings([draft._replace(tokens=row.all_tokens)])
            new = slice(len(row.all_tokens), None)
            times = self.tokenizer.times(closed.tokens)
            yield from zip(closed.tokens[new].tolist(), times[new].tolist(), strict=True)

    @torch.inference_mode()
    def steps(self, rows: Sequence[Row], *, close: bool = False) -> Iterator[list[Row]]:
        """Draw one more token for each row a step; yield the rows that have ended with it.

        Args:
            close: end each row with EOS and without sounding notes, by its context's `silent_by`
                at the latest; the bar line that would come instead of EOS counts for it.
        """
        request, sampling, tokenizer = self.request, self.request.sampling, self.tokenizer
        device, names = self.engine.device, self.model.coordinate_names
        contexts = list(dict.fromkeys(row.context for row in rows))
        of_row = torch.tensor([contexts.index(row.context) for row in rows])
        # Only the model is on the device: grammar and sampling are small and in fp64.
        grammar = tokenizer.grammar()
        grammar_state = self._grammar_state(grammar, contexts).select(of_row)
        coordinates = [
            torch.from_numpy(tokenizer.coordinates(c.tokens, names, bar_length=c.prompt.bar_length))
            for c in contexts
        ]
        logits, state = prefill(self.engine, contexts, coordinates, of_row)
        after_first = sampling
        if state.copied is not None and sampling.temperature > 0:  # the head has it from now on
            state.copied.temperature.fill_(sampling.temperature)
            after_first = replace(sampling, temperature=1.0)
        positions = torch.stack([each[-1] for each in coordinates])[of_row]
        starts = torch.tensor([context.start for context in contexts])[of_row]
        bar_lengths = torch.tensor([context.prompt.bar_length for context in contexts])[of_row]
        repeats = self._bar_repeats(grammar, contexts)
        repeats = repeats and [repeats[i].copy() for i in of_row.tolist()]
        active, running = torch.arange(len(rows)), list(rows)
        gaps = [context.gap for context in contexts if context.gap is not None]
        may_end = close or (
            any(gap.given is not None for gap in gaps) if gaps else request.allow_end
        )
        compares = request.best_of > 1 and self.model.copy_head is None  # else `_own_log_probs`
        scored = close or compares or any(row.weighs or row.context.follow for row in rows)
        for uniform in _uniforms([row.key for row in rows]):
            allowed = grammar.allowed(grammar_state, end=may_end, not_before=starts)
            log_probs = logits.double().log_softmax(-1) if scored else None
            if close:
                closing = [grammar.eos, *grammar.bar_lines]
                logits[:, grammar.eos] = logits[:, closing].logsumexp(-1)
            if repeats:
                now = grammar_state.time
                logits, allowed = cap_repeats(logits, allowed, repeats, now, sampling.temperature)
            for i, row in enumerate(running):
                if row.given and row.given[0] >= 0:
                    _allow_only(allowed, i, row.given[0])
            token = sample(logits, sampling, allowed=allowed, uniform=uniform[active])
            after = grammar.advance(grammar_state, token)
            leaving = [
                i
                for i, row in enumerate(running)
                if row.context.follow and row.leaves_gap(int(token[i]), int(after.time[i]))
            ]
            if leaving:
                for i in leaving:
                    token[i] = running[i].given[0]
                    _allow_only(allowed, i, token[i])
                after = grammar.advance(grammar_state, token)
            grammar_state = after
            new, times = token.tolist(), grammar_state.time.tolist()
            finished = grammar_state.finished.tolist()
            log_p: list[float | None] = [None] * len(running)
            mass = log_p
            if log_probs is not None:
                log_p = log_probs.gather(1, token[:, None])[:, 0].tolist()
                if gaps:
                    mass = log_probs.masked_fill(~allowed, -torch.inf).logsumexp(-1).tolist()
            for repeat, drawn, time in zip(repeats, new, times, strict=False):
                repeat.observe([drawn], [time])
            ended: list[int] = []
            kept: list[int] = []
            for i, row in enumerate(running):
                end = row.context.end
                over = not (close or row.given) and end is not None and times[i] >= end
                if not over:
                    row.add(new[i], times[i], log_p[i], mass[i])
                full = len(row.tokens) >= row.context.limit or row.is_complete
                (ended if over or finished[i] or full else kept).append(i)
            self.on_step(len(running))
            yield [running[i] for i in ended]

            if not kept:
                return
            if ended:  # compute no further tokens of rows that have ended
                running = [running[i] for i in kept]
                repeats = repeats and [repeats[i] for i in kept]
                active, token, positions = active[kept], token[kept], positions[kept]
                starts, bar_lengths = starts[kept], bar_lengths[kept]
                grammar_state = grammar_state.select(torch.tensor(kept))
                state = state.select(torch.tensor(kept, device=device))
            positions = tokenizer.next_coordinates(
                names, positions, token, grammar_state.positions, bar_lengths
            )
            if self._lag_biases is not None:
                of_form = positions[:, names.index("bar")] % len(self._lag_biases)
                state.lag_bias[: len(of_form)] = self._lag_biases[of_form].to(device)
            on_device, state = self.engine.step(token.to(device), positions.to(device), state)
            logits, sampling = on_device.cpu(), after_first

    def _grammar_state(self, grammar: Grammar[Any], contexts: Sequence[Context]) -> GrammarState:
        """Return the grammar's state after each context, with what the request asks for."""
        request = self.request
        states = [
            grammar.start(torch.from_numpy(each.tokens)[None], len(each.prompt.tokens))
            for each in contexts
        ]
        if request.sampling.max_notes:
            grammar.bound(request.sampling.max_notes)  # of prompts it does not hold
        if request.sampling.avoid_parallels:
            grammar.forbid_parallels()
        stays = request.rewrites  # the file's tempi and metres
        state = grammar.hold(
            type(states[0]).cat(states),
            tempo=request.hold_tempo or stays,
            metre=request.hold_metre or stays,
        )
        state = grammar.harmonise(state, [each.prompt.progression for each in contexts])
        silent_by = [NEVER if each.silent_by is None else each.silent_by for each in contexts]
        state = grammar.close(state, torch.tensor(silent_by))
        gaps = [each.gap for each in contexts if each.gap is not None]
        return grammar.fill(state, gaps) if gaps else state

    def _bar_repeats(self, grammar: Grammar[Any], contexts: Sequence[Context]) -> list[BarRepeats]:
        """Return the repeated bars of each context; none if their number is not limited."""
        limit = self.request.sampling.max_bar_repeats
        if limit is None or self.request.rewrites:
            return []
        found = []
        for each in contexts:
            repeats = BarRepeats(grammar, limit, each.prompt.bar_length)
            times = self.tokenizer.times(each.tokens)
            found.append(repeats.observe(each.tokens.tolist(), times.tolist()))
        return found

    def _continuation(self, draft: Draft) -> Continuation:
        score = decode(self.tokenizer, draft.tokens, draft.prompt)
        return finished(draft.prompt, draft.sample, draft.tokens, score, draft.selections)

    def _rewritten(self, drafts: Sequence[Draft]) -> Iterator[Continuation]:
        """Yield pieces whose gaps the model has filled."""
        fillings = [fill_gaps(self.tokenizer, draft, self.request.seed) for draft in drafts]
        while fillings:
            rows, unfinished = list[Row](), []
            for filling in fillings:
                try:
                    rows += next(filling)
                except StopIteration as written:
                    yield self._continuation(written.value)
                else:
                    unfinished.append(filling)
            for first in range(0, len(rows), self.request.batch_size):
                for _ in self.steps(rows[first : first + self.request.batch_size]):
                    pass
            fillings = unfinished

    def _context(self, draft: Draft, part: int | None) -> Context:
        """Return the context of a draft's next part, or, for None, of the bar that closes it.

        Without `best_of_bars` the only part is the continuation, to the last bar if that closes.
        """
        request, prompt = self.request, draft.prompt
        start, end, silent_by = prompt.end_time, request.end_time(prompt), None
        num_new = len(draft.tokens) - len(prompt.tokens)
        limit = request.num_new_tokens(prompt, self.model) - num_new
        if request.ending == "close":
            assert end is not None
            silent_by, end = end, end - prompt.bar_length
        if part is None:
            assert end is not None
            limit = min(limit, MAX_TOKENS_PER_BAR)
            return Context(prompt, draft.tokens, end, silent_by, silent_by, limit)
        if request.best_of_bars is not None:
            length = request.best_of_bars * prompt.bar_length
            start += part * length
            end = start + length if end is None else min(end, start + length)
        return Context(prompt, draft.tokens, start, end, silent_by, limit)

    def _is_complete(self, draft: Draft, part: int) -> bool:
        """Return whether a draft is complete after a part, but for the bar that closes it."""
        if self.request.best_of_bars is None or draft.tokens[-1] == self._eos:
            return True
        following = self._context(draft, part + 1)
        at_end = following.end is not None and following.end <= following.start
        return at_end or following.limit < 1

    def _key(self, sample: int, candidate: int, part: int) -> NoiseKey:
        """Return the key of the random numbers of a sample's candidate for a part."""
        words: tuple[int, ...] = (sample, candidate, part)
        while len(words) > 1 and words[-1] == 0:  # the first draw is that of a sample alone
            words = words[:-1]
        return NoiseKey((self.request.seed, RandomStream.SAMPLING, *words))

    def _add_part(self, drafts: Sequence[Draft], part: int) -> Iterator[Draft]:
        """Yield each draft with the best candidate for its next part."""
        # Samples that share their prompt's array share its prefill.
        keys = [(id(draft.prompt), id(draft.tokens)) for draft in drafts]
        contexts = {
            key: self._context(draft, part) for key, draft in zip(keys, drafts, strict=True)
        }
        draws = [(i, c) for i in range(len(drafts)) for c in range(self.request.best_of)]
        found: list[dict[int, Candidate]] = [{} for _ in drafts]
        for first in range(0, len(draws), self.request.batch_size):
            batch = {
                Row(contexts[keys[i]], self._key(drafts[i].sample, c, part)): (i, c)
                for i, c in draws[first : first + self.request.batch_size]
            }
            for row in (row for ended in self.steps(list(batch)) for row in ended):
                i, c = batch[row]
                draft, tokens = drafts[i], row.all_tokens
                if self.request.best_of > 1:
                    tick = row.context.start * self._ticks_per_step
                    score = self.tokenizer.decode(tokens)
                    log_probs = self._own_log_probs(row) if self.model.copy_head else row.log_probs
                    found[i][c] = measure(draft.prompt, tokens, score, tick, log_probs)
                    if len(found[i]) < self.request.best_of:
                        continue
                    selection = Selection([found[i][c] for c in range(self.request.best_of)])
                    tokens = selection.tokens
                    draft = draft._replace(selections=(*draft.selections, selection))
                yield draft._replace(tokens=tokens)

    @torch.inference_mode()
    def _own_log_probs(self, row: Row) -> list[float]:
        """Return the log-probabilities of a row's new tokens, which the model has without copies.

        What a copy head repeats is always likely: of several candidates, loops would be chosen.
        """
        tokens, first = row.all_tokens, len(row.context.tokens)
        coordinates = self.tokenizer.coordinates(
            tokens, self.model.coordinate_names, bar_length=row.context.prompt.bar_length
        )
        begin = max(0, first - OWN_CONTEXT)
        ids, positions = (
            torch.from_numpy(x[None, begin:]).to(self.engine.device) for x in (tokens, coordinates)
        )
        log_p = self.model(
            ids[:, :-1], positions=positions[:, :-1], noise=self.engine.noise, targets=ids[:, 1:]
        )
        return log_p[1, 0, first - 1 - begin :].tolist()

    def _add_endings(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Return drafts with a last bar that closes them, up to EOS.

        Several candidates for the bar are sampled in which the model may end the piece, and must
        by the end of the bar: no note sounds longer, and a bar line counts as the end. Those with
        the tonic as their last bass come first, if there are any. Two measures choose among them,
        see `best`: how sure the model is, by itself, that the piece ends after
        the candidate, which approximates sampling conditioned on the end; and how much its bar
        rests on the tonic of the prompt (of the piece, without a prompt; on the last chord of a
        progression), see `restfulness`, as small models know endings better than keys. A piece that
        has ended already stays as it is, and so does one that the model's positional encoding or
        `max_new_tokens` leaves no room for.
        """
        closed = list(drafts)
        contexts = {
            i: context
            for i, draft in enumerate(drafts)
            if draft.tokens[-1] != self._eos and (context := self._context(draft, None)).limit > 0
        }
        numbers, size = list(contexts), max(1, self.request.batch_size // NUM_ENDINGS)
        for first in range(0, len(numbers), size):
            candidates = {
                i: self._endings(drafts[i], contexts[i]) for i in numbers[first : first + size]
            }
            for _ in self.steps([row for each in candidates.values() for row in each], close=True):
                pass
            for i, rows in candidates.items():
                closed[i] = drafts[i]._replace(tokens=self._best_ending(rows))
        return closed

    def _endings(self, draft: Draft, context: Context) -> list[Row]:
        words = self.request.seed, RandomStream.ENDING, draft.sample
        return [Row(context, NoiseKey((*words, number))) for number in range(NUM_ENDINGS)]

    def _best_ending(self, rows: Sequence[Row]) -> IntArray:
        """Return the tokens [L] of the best of the candidates that end the piece."""
        rows = [row for row in rows if row.tokens[-1] == self._eos] or rows[:1]
        context, step = rows[0].context, self._ticks_per_step
        start, length = context.start * step, context.prompt.bar_length * step
        known = pitched_notes(context.prompt.score)
        if not len(known):
            known = pitched_notes(self.tokenizer.decode(context.tokens))
        key = last_chord_key(context.prompt) or find_key(known)
        ends = [
            (row, self.tokenizer.decode(row.all_tokens).clip(start, start + length)) for row in rows
        ]
        if key is None:
            measures = [(row.log_probs[-1], 0.0) for row, _ in ends]
        else:
            ends = [(row, bar) for row, bar in ends if ends_on(bar, key)] or ends
            measures = [(row.log_probs[-1], restfulness(bar, key, length)) for row, bar in ends]
        return ends[best(measures)][0].all_tokens


def _allow_only(allowed: Tensor, row: int, token: int | Tensor) -> None:
    allowed[row] = False
    allowed[row, token] = True


def prefill(
    engine: Engine, contexts: Sequence[Context], positions: Sequence[Tensor], rows: Tensor
) -> tuple[Tensor, ModelState]:
    """Return logits [B, V], on the CPU, and the state of the contexts at `rows` [B].

    Those without an earlier context go through the model together if they are of equal length.

    Args:
        positions: of each context's tokens, [L, P].
    """

    def group_key(i: int) -> tuple[int, int]:
        return len(contexts[i].tokens), -1 if contexts[i].earlier is None else i

    order = sorted(range(len(contexts)), key=group_key)
    outputs = []
    for _, group in groupby(order, group_key):
        equal = list(group)
        earlier = contexts[equal[0]].earlier
        read = 0 if earlier is None else len(earlier.tokens)
        ids = torch.stack([torch.from_numpy(contexts[i].tokens[read:]) for i in equal])
        places = torch.stack([positions[i][read:] for i in equal])
        before = None if earlier is None else earlier.state
        logits, state = engine.prefill(ids.to(engine.device), places.to(engine.device), before)
        for row, i in enumerate(equal):
            if contexts[i].gap is not None:
                contexts[i].state = state.select(torch.tensor([row], device=engine.device))
        outputs.append((logits, state))
    rows = torch.tensor(order).argsort()[rows]
    logits = torch.cat([logits for logits, _ in outputs])
    state = ModelState.cat([state for _, state in outputs])
    return logits.cpu()[rows], state.select(rows.to(engine.device))


def _uniforms(keys: Sequence[NoiseKey], block: int = 256) -> Iterator[Tensor]:
    """Yield a number in [0, 1) for each row, [B] in fp64, from a generator for each key."""
    number = {key: i for i, key in enumerate(dict.fromkeys(keys))}
    generators = [key.generator() for key in number]
    of_key = torch.tensor([number[key] for key in keys])
    while True:
        draws = torch.stack([torch.rand(block, generator=g) for g in generators])
        yield from draws[of_key].double().unbind(1)
