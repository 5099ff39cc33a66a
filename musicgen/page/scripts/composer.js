// Composition: continues a piece token by token, as musicgen/generation/sampler.py does for one row.

const MAX_TOKENS_PER_BAR = 1024;

class Composer {
  constructor(newModel) {
    const model = newModel();
    Object.assign(this, { model, newModel, tokenizer: model.tokenizer });
    this.mask = new Uint8Array(this.tokenizer.size);
    this.clear();
  }

  /** Begin a piece without music. */
  clear() {
    const nothing = { signatures: [], tempos: [], tracks: [] };
    const barLength = this.tokenizer.barLength(nothing);
    this.begin({ tokens: this.tokenizer.startTokens, endTime: 0, barLength, frame: nothing });
  }

  /** Begin with what makePrompt returns. */
  begin(prompt) {
    this.prompt = prompt;
    this.tokens = [...prompt.tokens]; // of the whole piece
    this.endTime = prompt.endTime; // where the music so far ends, in grid steps
  }

  /** The piece so far, as a score with the tick at which the prompt ends and the one where all ends. */
  get score() {
    const step = TICKS_PER_BEAT / this.tokenizer.stepsPerBeat;
    const { tokenizer, tokens, prompt } = this;
    const score = withFrame(tokenizer.decode(tokens), prompt.frame);
    const names = noteNames(score.keys, tokenizer.decode(prompt.tokens), tokenizer) ?? noteNames([], score, tokenizer);
    const markers = score.markers.map(([tick, text]) => [tick, spelled(text, names)]);
    const tracks = score.tracks.map((track, part) => ({ ...track, kept: part === prompt.lead }));
    return { ...score, tracks, markers, promptEnd: prompt.endTime * step, end: this.endTime * step };
  }

  get numBars() {
    return Math.ceil(this.endTime / this.prompt.barLength);
  }

  /** Forget the music from a musical time on. */
  cut(time) {
    const times = this.tokenizer.times(this.tokens);
    const first = times.findIndex((each, i) => each >= time && i >= this.tokenizer.startTokens.length);
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
   * @param options seed and take, which decide the random numbers; end, musical time; holdTempo,
   *   holdMetre; params of sampleToken, and avoid_parallels
   */
  *compose({ end, seed, take = 0, holdTempo = true, holdMetre = true, params }) {
    const { model, prompt } = this;
    const start = this.endTime;
    const random = randomNumbers(seed, take, start);
    const [temperature, filters] = model.split(params);
    yield* this.read(temperature);
    const limit = this.tokens.length + MAX_TOKENS_PER_BAR * Math.ceil((end - start) / prompt.barLength);
    model.grammar.afterPrompt(prompt.tokens);
    model.grammar.hold(holdTempo, holdMetre);
    model.grammar.forbidParallels(params.avoid_parallels);
    while (this.tokens.length < limit) {
      const { grammar } = model;
      const allowed = grammar.allowed(this.mask, { end: false, notBefore: start });
      const token = sampleToken(model.logits, allowed, filters, random());
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
   * Return the work of writing the other voices or parts to the melody of the piece, a token at a time.
   *
   * @param options seed and take, which decide the random numbers; params of sampleToken
   */
  accompany({ seed, take = 0, params }) {
    const melody = this.tokenizer.withMelodyAhead(this.tokens);
    this.begin({ ...this.prompt, tokens: [], endTime: melody.endTime, lead: melody.lead });
    this.endTime = 0;
    return this.#fill(melody, randomNumbers(seed, take, 0), params);
  }

  *#fill({ given, lead, written }, random, params) {
    const { model, tokenizer, prompt } = this;
    const [temperature, filters] = model.split(params);
    // What guidance leads away from: the model that hears the melody a tritone away.
    const other = params.guidance === 1 ? null : (this.other ??= Object.assign(this.newModel(), { maxSnapshots: 0 }));
    const guided = (logit, i) => other.logits[i] + params.guidance * (logit - other.logits[i]);
    const logits = () => (other ? model.logits.map(guided) : model.logits);
    try {
      model.rewind([], prompt.barLength, temperature);
      other?.rewind([], prompt.barLength, temperature);
      model.grammar.forbidParallels(params.avoid_parallels);
      model.grammar.give(lead, written);
      for (let at = 0; at < given.length; at++) {
        const until = tokenizer.hasParts ? given[at + 1] : undefined;
        const token = given[at] ?? sampleToken(logits(), model.grammar.allowed(this.mask, { until }), filters, random());
        other?.feed(given[at] === null ? token : tokenizer.away[token]);
        if (given[at] === null && until !== undefined) at += token === until ? 1 : -1;
        this.tokens.push(token);
        model.feed(token);
        this.endTime = model.grammar.complete;
        yield;
      }
    } finally { // the melody stays if the work is interrupted
      this.begin({ ...prompt, tokens: tokenizer.withMelody(this.tokens, given, prompt.endTime) });
    }
  }
}
