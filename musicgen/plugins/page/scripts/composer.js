// Composition: continues a piece token by token, as musicgen/generation/sampler.py does for a batch.

class Composer {
  constructor(newModel) {
    const model = newModel();
    Object.assign(this, { model, newModel, tokenizer: model.tokenizer });
    this.mask = new Uint8Array(this.tokenizer.size);
    this.clear();
  }

  /** Begin a piece without music. */
  clear() {
    this.bpm = null; // the tempo that somebody chose for the piece
    this.begin(emptyPrompt(this.tokenizer, []));
  }

  /** Begin with what makePrompt returns. */
  begin(prompt) {
    this.prompt = prompt;
    this.tokens = [...prompt.tokens]; // of the whole piece
    this.endTime = prompt.endTime; // where the music so far ends, in grid steps
  }

  /** What the piece is made of. */
  get state() {
    const { prompt, tokens, endTime, bpm } = this;
    return { prompt, tokens: [...tokens], endTime, bpm };
  }

  set state({ prompt, tokens, endTime, bpm }) {
    Object.assign(this, { prompt, tokens: [...tokens], endTime, bpm });
  }

  /** The piece so far, played like its prompt, with the ticks at which the prompt and all ends. */
  get score() {
    return this.#scoreAs({ takesTime: true });
  }

  /** The same with all notes on the grid. */
  get scoreOnGrid() {
    return this.#scoreAs({ takesTime: false });
  }

  /** The score of another state of the piece. */
  scoreOf(state) {
    const now = this.state;
    this.state = state;
    const { score } = this;
    this.state = now;
    return score;
  }

  #scoreAs({ takesTime }) {
    const { tokenizer, tokens, prompt } = this;
    const step = CONSTANTS.ticksPerBeat / tokenizer.stepsPerBeat;
    const score = withFrame(tokenizer.decode(tokens), prompt.frame);
    const { asPlayed } = prompt; // of notes that stayed while others were written anew
    const ofPrompt = noteNames(score.keys, tokenizer.decode(prompt.tokens), tokenizer);
    const names = ofPrompt ?? noteNames([], score, tokenizer);
    const markers = score.markers.map(([tick, text]) => [tick, spelled(text, names)]);
    const options = { takesVelocities: !tokenizer.velocities, takesTime };
    const played = performed(score, prompt, tokenizer.stepsPerBeat, options);
    const tracks = played.tracks.map((track, part) => {
      const isKept = part === prompt.kept;
      if (!asPlayed || !takesTime) return { ...track, isKept };
      const written = score.tracks[part].notes;
      const notes = track.notes.map((note, i) => asPlayed.get(writtenAs(part, written[i])) ?? note);
      return { ...track, isKept, notes };
    });
    return {
      ...score,
      tracks,
      markers,
      tempos: this.bpm === null ? score.tempos : temposFrom(score.tempos, this.bpm),
      promptEnd: prompt.endTime * step,
      end: this.endTime * step,
    };
  }

  /** The melody of the piece, see withMelodyAhead; throws without one. */
  get melody() {
    return this.tokenizer.withMelodyAhead(this.tokens);
  }

  get numBars() {
    return Math.ceil(this.endTime / this.prompt.barLength);
  }

  /** Forget the music from a musical time on. */
  cut(time) {
    const numStartTokens = this.tokenizer.startTokens.length;
    const times = this.tokenizer.times(this.tokens);
    const first = times.findIndex((each, i) => each >= time && i >= numStartTokens);
    if (first >= 0) this.tokens.length = first;
    this.endTime = Math.min(this.endTime, time);
  }

  /** Read what the model has not read yet, a token at a time. */
  *read(temperature) {
    const { model, tokens, prompt } = this;
    for (let i = model.rewind(tokens, prompt.barLength, temperature); i < tokens.length; i++) {
      model.feed(tokens[i]);
      yield;
    }
  }

  /**
   * Add music from the end on, a token at a time.
   *
   * @param options seed and take, which decide the random numbers; end, musical time; form, nats that
   *   formBiases returns, or null, and sectionBars, whose last bars end phrases; fixTempo,
   *   fixTimeSignature; closes, whether the bars count those left to the end, where the piece ends;
   *   params of sampleToken, and avoid_parallels; progression, the chords of each
   *   bar that is added
   */
  *compose({ end, seed, take = 0, params, progression, form = null, ...fixed }) {
    const { fixTempo = true, fixTimeSignature = true, closes = false, sectionBars } = fixed;
    const { model, prompt } = this;
    const start = this.endTime;
    const random = randomNumbers(seed, take, start);
    const [temperature, filters] = model.split(params);
    const { upbeat = 0 } = prompt; // the first section begins after it
    model.form = form && upbeat ? [form.at(-1), ...form.slice(0, -1)] : form;
    this.tokens = withEnd(this.tokenizer, this.tokens, closes ? end : null);
    yield* this.read(temperature);
    const numBars = Math.ceil((end - start) / prompt.barLength);
    const mostTokens = this.tokens.length + CONSTANTS.maxTokensPerBar * numBars;
    model.grammar.afterPrompt(prompt.tokens);
    const lines = Array.from({ length: numBars + 1 }, (_, i) => start + i * prompt.barLength);
    model.grammar.followProgression(progression && scheduleChords(progression, lines));
    const section = form ? sectionBars * prompt.barLength : 0;
    model.grammar.planEnds(plannedEnds(end, section, closes, upbeat));
    model.grammar.fixTempo(fixTempo);
    model.grammar.fixTimeSignature(fixTimeSignature);
    model.grammar.forbidParallels(params.avoid_parallels);
    while (this.tokens.length < mostTokens) {
      const { grammar } = model;
      const allowed = grammar.allowed(this.mask, { end: false, notBefore: start });
      const logits = grammar.redirected(model.logits, allowed);
      const token = sampleToken(logits, allowed, filters, random());
      const next = grammar.copy();
      next.advance(token);
      if (next.time >= end || next.finished) break;
      this.tokens.push(token);
      this.endTime = Math.max(start, next.time);
      model.feed(token);
      yield;
    }
    this.endTime = end;
  }

  /**
   * Return the work of writing the other voices or parts to a melody, a token at a time.
   *
   * @param melody that of the piece
   * @param options seed and take, which decide the random numbers; params of sampleToken
   */
  accompany(melody, { seed, take = 0, params }) {
    this.begin({ ...this.prompt, tokens: [], endTime: melody.endTime, kept: melody.kept });
    this.endTime = 0;
    return this.#accompany(melody, randomNumbers(seed, take, 0), { ...params, variation: null });
  }

  *#accompany({ conditioning, kept, targets }, random, params) {
    const { model, tokenizer, prompt } = this;
    const [temperature, filters] = model.split(params);
    const negative = params.guidance === 1 ? null : this.#negativeModel();
    model.form = null;
    try {
      for (const each of [model, negative]) each?.rewind([], prompt.barLength, temperature);
      model.grammar.forbidParallels(params.avoid_parallels);
      model.grammar.keepParts([kept], targets);
      for (const token of this.#fill(conditioning, { negative, params, filters, random })) {
        this.tokens.push(token);
        this.endTime = model.grammar.complete;
        yield;
      }
    } finally {
      // the melody stays if the work is interrupted
      const tokens = tokenizer.withMelody(this.tokens, conditioning, prompt.endTime);
      this.begin({ ...prompt, tokens });
    }
  }

  /**
   * Feed conditioning tokens, and what the model writes at each null; yield each token.
   *
   * @param options at, the first of them to feed; firstNew, the first that is wrong in the negative
   *   prompt; negative, the model that reads it, or null
   */
  *#fill(conditioning, { at = 0, firstNew = 0, negative, params, filters, random }) {
    const { model, tokenizer } = this;
    for (let i = at; i < conditioning.length; i++) {
      // Tokens with parts have any number of others at a null, until the token that follows it.
      const until = tokenizer.hasParts ? conditioning[i + 1] : undefined;
      const isSampled = conditioning[i] === null;
      const isSame = isSampled || i < firstNew;
      let token = conditioning[i];
      if (isSampled) {
        const logits = guided(model.logits, negative?.logits, params.guidance);
        const allowed = model.grammar.allowed(this.mask, { until });
        token = sampleToken(model.grammar.redirected(logits, allowed), allowed, filters, random());
        if (until !== undefined) i += token === until ? 1 : -1;
      }
      negative?.feed(isSame ? token : tokenizer.negativePrompt[token]);
      model.feed(token);
      yield token;
    }
  }

  /**
   * Write some parts of some bars anew, a token at a time, several times; the piece stays.
   *
   * @param options the gap, see gapOf; seed and take, which decide the random numbers of the first;
   *   count, how often; params of sampleToken; onTake, called with the state of each piece
   */
  *rewrite({ seed, take = 0, count, params, onTake, ...asked }) {
    const { model, tokenizer, prompt, tokens } = this;
    const gap = gapOf(tokenizer, tokens, asked);
    const { conditioning, firstNew } = gap;
    const kept = [...gap.isAhead.keys()].filter((part) => gap.isAhead[part]);
    const [temperature, filters] = model.split({ ...params, variation: null });
    const isGuided = params.guidance !== 1 && kept.length > 0;
    const negative = isGuided ? this.#negativeModel() : null;
    model.form = null;
    const at = conditioning.indexOf(null);
    const ahead = conditioning.slice(0, at);
    negative?.rewind([], prompt.barLength, temperature, gap.end);
    const shared = model.rewind(ahead, prompt.barLength, temperature, gap.end);
    for (let i = negative ? 0 : shared; i < at; i++) {
      negative?.feed(i < firstNew ? ahead[i] : tokenizer.negativePrompt[ahead[i]]);
      if (i >= shared) model.feed(ahead[i]);
      yield;
    }
    const models = negative ? [model, negative] : [model];
    const places = models.map((each) => each.place);
    const asPlayed = this.#playedOutside(asked);
    try {
      for (let number = 0; number < count; number++) {
        models.forEach((each, i) => (each.place = places[i]));
        model.grammar.keepParts(kept, asked.parts);
        if (gap.chords.length) model.grammar.followProgression(gap.chords);
        const random = randomNumbers(seed, take + number, asked.from);
        const filled = ahead.slice(gap.firstPast);
        const options = { at, firstNew, negative, params, filters, random };
        for (const token of this.#fill(conditioning, options)) {
          filled.push(token);
          yield;
        }
        onTake(this.#stateWith(withGapFilled(tokenizer, tokens, filled, asked), asPlayed, asked));
      }
    } finally {
      model.place = places[0]; // without the constraints of the gap
    }
  }

  /** Return the state of the piece with other tokens, but for the notes that stay as they are played. */
  #stateWith(tokens, asPlayed, { parts }) {
    const { prompt, tokenizer } = this;
    const ofPrompt = prompt.endTime ? tokensBefore(tokenizer, tokens, prompt.endTime) : prompt.tokens;
    const kept = parts.includes(prompt.kept) ? undefined : prompt.kept;
    return { ...this.state, tokens, prompt: { ...prompt, tokens: ofPrompt, kept, asPlayed } };
  }

  /** Return how the notes outside a gap are played, by how they are written. */
  #playedOutside({ from, to, parts }) {
    const { tokenizer, tokens } = this;
    const played = this.score.tracks;
    const step = CONSTANTS.ticksPerBeat / tokenizer.stepsPerBeat;
    const isInside = (part, [onset]) =>
      parts.includes(part) && onset >= from * step && onset < to * step;
    const notes = tokenizer.decode(tokens).tracks.flatMap((track, part) =>
      track.notes.map((note, i) => [part, note, played[part].notes[i]]),
    );
    return new Map(
      notes
        .filter(([part, note]) => !isInside(part, note))
        .map(([part, note, as]) => [writtenAs(part, note), as]),
    );
  }

  /** Return the model that reads the negative prompt: the melody in a wrong key. */
  #negativeModel() {
    this.negative ??= Object.assign(this.newModel(), { maxSnapshots: 0 }); // it never goes back
    return this.negative;
  }
}

/** Return logits moved away from those under a negative prompt, if there is one. */
function guided(logits, negative, guidance) {
  if (!negative) return logits;
  return logits.map((logit, i) => negative[i] + guidance * (logit - negative[i]));
}
