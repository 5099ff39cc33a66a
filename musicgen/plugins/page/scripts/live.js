// Answer mode: somebody plays and pauses for a beat; the model goes on in that tempo until they play
// again. Times are seconds of performance.now().

const SHORTEST_PAUSE = 0.35; // s
const ANSWER_DELAY = 0.06; // s from the decision to answer until the first note can sound
const ANSWER_BARS = 2; // composed at a time: the next key may interrupt the answer

const now = () => performance.now() / 1000;

class Live {
  /** @param page the page, which has listen(...), answer(...), tempo(), interrupt() and player */
  constructor(page) {
    this.page = page;
    this.phrase = null; // what is being played: a Recorder, with the tick and the time it begins at
  }

  press(pitch, velocity) {
    const time = now();
    clearTimeout(this.timer);
    if (!this.phrase) this.#begin(time);
    this.phrase.recorder.press(pitch, velocity, time);
  }

  release(pitch) {
    if (!this.phrase) return;
    this.phrase.recorder.release(pitch, now());
    this.#listen();
    clearTimeout(this.timer);
    if (!this.phrase.recorder.anyDown)
      this.timer = setTimeout(() => this.#answer(), 1000 * this.pause);
  }

  /** A beat, in seconds. */
  get pause() {
    return Math.max(SHORTEST_PAUSE, 60 / this.bpm);
  }

  /** The tempo of the piece, or of the first phrase as far as it is known. */
  get bpm() {
    const { recorder, isFirst } = this.phrase;
    const played = isFirst ? estimateTempo(recorder.notes.map((note) => note.start)) : null;
    return this.page.tempo(played);
  }

  /** Begin a phrase where the answer stands that it interrupts, or else after the piece. */
  #begin(time) {
    const { player, stepTicks } = this.page;
    const { score } = player.card;
    const isFirst = !score.notes.length;
    const tick = player.playing ? score.tickAt(player.position) : isFirst ? 0 : score.end;
    if (player.playing) player.pause();
    this.page.interrupt();
    this.phrase = {
      recorder: new Recorder(),
      time,
      tick,
      isFirst,
      from: Math.floor(tick / stepTicks),
    };
  }

  #listen() {
    const { recorder, time, tick, from } = this.phrase;
    const bpm = this.bpm;
    const notes = recorder
      .inTicks(time, bpm, now())
      .map(([onset, ...rest]) => [onset + tick, ...rest]);
    this.page.listen({ notes, from, bpm });
    this.phrase.from = undefined; // the piece before the phrase is known from now on
  }

  #answer() {
    const { time, tick } = this.phrase;
    const { stepTicks } = this.page;
    const perSecond = (this.bpm * CONSTANTS.ticksPerBeat) / 60;
    const at = Math.ceil((tick + (now() + ANSWER_DELAY - time) * perSecond) / stepTicks);
    this.phrase = null;
    this.page.answer({ at, time: time + (at * stepTicks - tick) / perSecond });
  }

  stop() {
    clearTimeout(this.timer);
    this.phrase = null;
  }
}
