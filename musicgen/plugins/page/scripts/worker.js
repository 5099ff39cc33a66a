// The worker of the page: it reads files, composes and writes files, so that the page stays awake.

const SLICE = 10; // ms of work between two looks at messages
const MAX_UNDONE = 100; // changes that can be undone, the last ones
const NUM_TAKES = 3; // of what is written anew
const TOKENIZERS = { remi: BarTokenizer, songs: BarTokenizer, chorale: ChoraleTokenizer };

/** The piece, the model, and the job that runs; each method but a few answers a message of the page. */
class Session {
  constructor({ tables, step, sampling, bytes }) {
    const tokenizer = new TOKENIZERS[tables.name](tables);
    this.composer = new Composer(() => new Model(step, compileStep, bytes, tokenizer));
    this.sampling = sampling;
    this.job = 0;
    this.source = this.before = this.name = null;
    this.earlier = []; // the piece before each change, see remember
    this.show();
  }

  post(kind, content) {
    postMessage({ kind, ...content });
  }

  show(content) {
    const { score, numBars } = this.composer;
    this.post("piece", { score, numBars, canUndo: this.earlier.length > 0, ...content });
  }

  /** Keep the piece as it is, before a change of it. */
  remember() {
    const { composer, source, name } = this;
    this.earlier.push({ ...composer.state, source, name });
    this.earlier = this.earlier.slice(-MAX_UNDONE);
  }

  /** Return to the piece before the last change. */
  undo() {
    const piece = this.earlier.pop();
    if (!piece) return this.show();
    Object.assign(this, { source: piece.source, name: piece.name, before: null });
    this.composer.state = piece;
    this.show({ name: piece.name, isFile: piece.source !== null });
    return this.run(this.composer.read());
  }

  /** Open a MIDI file; one that cannot be read leaves the piece as it is. */
  open({ bytes, maxBars, name }) {
    const score = readMidi(bytes);
    const written = this.composer.tokenizer.hasParts ? printedRhythm(score) : score;
    const source = withoutLongGaps(withPerformance(written, score));
    return this.begin({ maxBars, name, source });
  }

  /** Begin with the first bars of the file. */
  begin({ maxBars, name = this.name, source = this.source }) {
    const prompt = makePrompt(this.composer.tokenizer, source, maxBars);
    this.remember();
    Object.assign(this, { source, name });
    this.composer.bpm = null;
    this.composer.begin(prompt);
    this.show({ name, isFile: true, numRead: prompt.numBars, numInFile: prompt.allBars });
    return this.run(this.composer.read());
  }

  clear() {
    this.remember();
    this.source = this.before = this.name = null;
    this.composer.clear();
    this.show();
  }

  /**
   * Read what somebody plays: notes after those of the piece before `from`, a musical time; without
   * it, the phrase goes on.
   */
  listen({ notes, from, bpm }) {
    const { composer } = this;
    if (from !== undefined) {
      this.remember();
      if (!composer.endTime) composer.bpm = null; // a first phrase has the tempo in which it was played
      composer.cut(from);
      this.before = composer.scoreOnGrid;
    }
    this.played = joinNotes(this.before, composer.tokenizer, notes, bpm);
    const prompt = makePrompt(composer.tokenizer, this.played, Infinity);
    composer.begin(prompt);
    this.show();
    return this.run(composer.read());
  }

  /** Continue what was played, from a musical time in grid steps. */
  answer({ at, steps, settings }) {
    this.composer.begin(livePrompt(this.composer.tokenizer, this.played, at));
    return this.compose({ steps, settings });
  }

  /** Add bars, or grid steps, to the piece. */
  compose({ bars, steps, settings }) {
    const { composer } = this;
    return this.write({ steps: steps ?? bars * composer.prompt.barLength, settings });
  }

  /** Write so many grid steps of music from `start` on, or after the piece. */
  write({ start, steps, settings }) {
    const { composer } = this;
    const progression = parseProgression(settings.chords ?? "", composer.tokenizer);
    const keys = keySignatures(settings.key ?? "");
    const numLags = composer.model.lagBias?.length ?? 0;
    const form = formBiases(settings.form ?? "", settings.sectionBars, numLags);
    this.remember();
    if (start !== undefined) composer.cut(start);
    if (!composer.endTime) composer.begin(emptyPrompt(composer.tokenizer, keys));
    const end = composer.endTime + steps;
    this.planned = (end * CONSTANTS.ticksPerBeat) / composer.tokenizer.stepsPerBeat;
    const params = { ...this.sampling, temperature: settings.temperature };
    return this.run(composer.compose({ ...settings, end, params, progression, form }), { composing: true });
  }

  /** Write other last bars than those that the model wrote. */
  retake({ bars, settings }) {
    const { composer } = this;
    const start = Math.max(
      composer.prompt.endTime,
      composer.endTime - bars * composer.prompt.barLength,
    );
    return this.write({ start, steps: composer.endTime - start, settings });
  }

  /** Write the other voices or parts to the melody of the piece. */
  accompany({ settings }) {
    const { composer } = this;
    const params = { ...this.sampling, temperature: settings.temperature };
    const { melody } = composer; // without one nothing changes
    this.remember();
    const work = composer.accompany(melody, { ...settings, params });
    this.planned =
      (composer.prompt.endTime * CONSTANTS.ticksPerBeat) / composer.tokenizer.stepsPerBeat;
    return this.run(work, { composing: true });
  }

  /**
   * Write some parts of some bars anew, in takes; the piece stays until one is kept.
   *
   * @param from, to grid steps between which notes are replaced
   * @param parts those that are written
   * @param keepsChords whether the chords stay, if no others are asked for
   */
  rewrite({ settings, ...gap }) {
    const { composer } = this;
    const progression = parseProgression(settings.chords ?? "", composer.tokenizer);
    const params = { ...this.sampling, temperature: settings.temperature };
    const { seed, take } = settings;
    this.takes = [];
    const onTake = (state) => {
      this.takes.push(state);
      this.post("take", { score: composer.scoreOf(state) });
    };
    const work = composer.rewrite({
      ...gap,
      progression,
      params,
      seed,
      take: NUM_TAKES * take,
      count: NUM_TAKES,
      onTake,
    });
    return this.run(work, { composing: true, shows: false });
  }

  /** Make one of the takes the piece. */
  keep({ take }) {
    this.remember();
    this.composer.state = this.takes[take];
    this.show();
    return this.run(this.composer.read());
  }

  /** Let the piece begin at a tempo, in quarters a minute. */
  tempo({ bpm }) {
    this.remember();
    this.composer.bpm = bpm;
    this.show({ isNewTempo: true });
  }

  /** End the job that runs. */
  stop() {
    this.job++;
    this.work?.return();
  }

  save(options) {
    this.post("file", { bytes: writeMidi(this.composer.score), ...options });
  }

  /** Run a generator in slices until it ends or is stopped; post each new bar. */
  async run(work, { composing = false, shows = composing } = {}) {
    const job = ++this.job;
    this.work = work;
    const { composer } = this;
    let [tokens, time, shownUntil] = [0, 0, composer.endTime];
    let isFirst = shows; // the first music is shown as soon as there is some
    while (job === this.job) {
      const begin = performance.now();
      let done = false;
      while (!done && performance.now() - begin < SLICE) {
        done = work.next().done;
        tokens += done ? 0 : 1;
      }
      time += performance.now() - begin;
      const hasNews = composer.endTime >= shownUntil + (isFirst ? 1 : composer.prompt.barLength);
      if (done || (shows && hasNews)) {
        [shownUntil, isFirst] = [composer.endTime, false];
        if (shows) this.show({ done, planned: this.planned });
        if (done) return this.post("done", { composing, tokens, milliseconds: time });
      }
      await new Promise((resolve) => setTimeout(resolve));
    }
  }
}

let session = null;

onmessage = async ({ data: { kind, ...content } }) => {
  try {
    if (kind === "start") session = new Session(content);
    else {
      if (kind !== "save") session.stop();
      await session[kind](content);
    }
  } catch (error) {
    const words = error instanceof UserError ? error.message : `This should not happen: ${error}`;
    postMessage({ kind: "error", message: words });
  }
};
