// The worker of the page: it reads files, composes and writes files, so that the page stays awake.

const SLICE = 10; // ms of work between two looks at messages
const TOKENIZERS = { remi: BarTokenizer, songs: BarTokenizer, chorale: ChoraleTokenizer };

class Desk {
  constructor({ tables, step, sampling, bytes }) {
    const tokenizer = new TOKENIZERS[tables.name](tables);
    this.composer = new Composer(() => new Model(step, compileStep, bytes, tokenizer));
    this.sampling = sampling;
    this.job = 0;
    this.show();
  }

  post(kind, content) {
    postMessage({ kind, ...content });
  }

  show(content) {
    const { score, numBars } = this.composer;
    this.post("piece", { score, numBars, ...content });
  }

  /** Open a MIDI file; one that cannot be read leaves the piece as it is. */
  open({ bytes, maxBars, name }) {
    const score = readMidi(bytes);
    return this.keep({ maxBars, name, source: withoutLongGaps(this.composer.tokenizer.hasParts ? inTime(score) : score) });
  }

  /** Keep the first bars of the file. */
  keep({ maxBars, name, source = this.source }) {
    const prompt = makePrompt(this.composer.tokenizer, source, maxBars);
    this.source = source;
    this.composer.begin(prompt);
    this.show({ name, kept: prompt.numBars, of: prompt.allBars });
    return this.run(this.composer.read());
  }

  clear() {
    this.source = this.base = null;
    this.composer.clear();
    this.show();
  }

  /** Take in what somebody plays: notes after those of the piece before `from`, a musical time. */
  listen({ notes, from, bpm }) {
    const { composer } = this;
    if (from !== undefined) {
      composer.cut(from);
      this.base = composer.score;
    }
    this.played = joinNotes(this.base, composer.tokenizer, notes, bpm);
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
    const end = composer.endTime + (steps ?? bars * composer.prompt.barLength);
    this.planned = (end * TICKS_PER_BEAT) / composer.tokenizer.stepsPerBeat;
    const params = { ...this.sampling, temperature: settings.temperature };
    return this.run(composer.compose({ ...settings, end, params }), true);
  }

  /** Write other last bars than those that the model wrote. */
  retake({ bars, settings }) {
    const { composer } = this;
    const start = Math.max(composer.prompt.endTime, composer.endTime - bars * composer.prompt.barLength);
    const steps = composer.endTime - start;
    composer.cut(start);
    return this.compose({ steps, settings });
  }

  /** Write the other voices or parts to the melody of the piece. */
  accompany({ settings }) {
    const { composer } = this;
    const work = composer.accompany({ ...settings, params: { ...this.sampling, temperature: settings.temperature } });
    this.planned = (composer.prompt.endTime * TICKS_PER_BEAT) / composer.tokenizer.stepsPerBeat;
    return this.run(work, true);
  }

  /** End the job that runs. */
  stop() {
    this.job++;
    this.work?.return();
  }

  save() {
    this.post("file", { bytes: writeMidi(this.composer.score) });
  }

  /** Run a generator in slices until it ends or is stopped; post each new bar. */
  async run(work, composing = false) {
    const job = ++this.job;
    this.work = work;
    const { composer } = this;
    let [tokens, time, bar, first] = [0, 0, composer.endTime, composing];
    while (job === this.job) {
      const begin = performance.now();
      let done = false;
      while (!done && performance.now() - begin < SLICE) {
        done = work.next().done;
        tokens += done ? 0 : 1;
      }
      time += performance.now() - begin;
      const hasNews = composer.endTime >= bar + (first ? 1 : composer.prompt.barLength);
      if (done || (composing && hasNews)) {
        [bar, first] = [composer.endTime, false];
        if (composing) this.show({ done, planned: this.planned });
        if (done) return this.post("done", { composing, tokens, milliseconds: time });
      }
      await new Promise((resolve) => setTimeout(resolve));
    }
  }
}

let desk = null;

onmessage = async ({ data: { kind, ...content } }) => {
  try {
    if (kind === "start") desk = new Desk(content);
    else {
      if (kind !== "save") desk.stop();
      await desk[kind](content);
    }
  } catch (error) {
    const words = error instanceof UserError ? error.message : `This should not happen: ${error}`;
    postMessage({ kind: "error", message: words });
  }
};
