"use strict";

// The page: its worker, the piece, the player, the keys to play on, and the controls.

const RETAKEN_BARS = 4;
const MAX_BARS = 999; // added at a time
const MAX_FILE_BYTES = 20e6; // the worker refuses larger files
const BAR_TICKS = 4 * CONSTANTS.ticksPerBeat; // of 4/4
const MIN_TICKS_SHOWN = BAR_TICKS;

const NOTHING = {
  ticksPerBeat: CONSTANTS.ticksPerBeat,
  tracks: [],
  tempos: [],
  signatures: [],
  markers: [],
  end: MIN_TICKS_SHOWN,
  promptEnd: 0,
};

const greatestEnd = (notes) =>
  notes.reduce((end, [onset, duration]) => Math.max(end, onset + duration), 0);
const counted = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
const byId = (id) => document.getElementById(id);

class Page {
  constructor(worker) {
    this.worker = worker;
    this.take = 0;
    this.composing = false;
    this.answering = null; // { at, time } of the answer that has not begun to sound
    this.recorder = null; // of a first phrase without answer mode
    this.phrases = []; // of answer mode: first tick, last tick, whose
    this.sounding = new Map(); // what the synthesiser plays for each key that is down
    this.piece = new Piece(new Score(payloadOf(NOTHING)));
    this.roll = new Roll(document.querySelector(".roll"), this.piece.score, (track) =>
      this.piece.audible(track),
    );
    this.player = new Player(this.piece, Number(byId("volume").value), this);
    this.live = new Live(this);
    this.metronome = new Metronome(this);
    this.controls = findControls();
    this.dragged = null; // the bytes of a file that can be dragged out
    this.stepTicks = CONSTANTS.ticksPerBeat / CONTENT.tables.stepsPerBeat;
    this.rewriting = CONTENT.tables.rewrites ? new Rewriting(this) : null;
    worker.onmessage = ({ data: { kind, ...content } }) => this[`on_${kind}`](content);
    this.show();
  }

  send(kind, content = {}) {
    this.worker.postMessage({ kind, ...content });
  }

  // Messages of the worker

  on_piece({ score, numBars, canUndo, done, planned = 0, isNewTempo, ...file }) {
    const { name, isFile, numRead, numInFile } = file;
    if (name !== undefined) this.#forget({ name, isFile });
    this.canUndo = canUndo;
    if (score.tempos.length) byId("tempo").value = Math.round(score.tempos[0][1]);
    const before = this.piece.score;
    // What is to come has room already.
    const end = Math.max(score.end, planned, MIN_TICKS_SHOWN);
    const shown = this.shownAs({ ...score, end });
    const isNew = !before.notes.length || shown.end < before.end;
    this.composedEnd = shown.secondsAt(score.end);
    shown.duration = this.composing && !done ? Infinity : this.composedEnd; // the player waits
    if (shown.tracks.length !== this.piece.switches.length)
      this.piece.switches = shown.tracks.map(() => ({ mute: false, solo: false }));
    this.piece.score = shown;
    this.dragged = null;
    this.rewriting?.begin(score);
    this.numBars = numBars;
    this.hasNew = score.end > score.promptEnd;
    this.roll.setScore(shown, { fit: isNew });
    if (numInFile > numRead)
      this.say(`It begins with the first ${numRead} of ${numInFile} bars; change that below.`);
    else if (numRead) this.say(`${counted(numRead, "bar")}. Press Continue.`);
    if (isNewTempo) this.#resume();
    if (planned) this.#sound();
    if (!this.rewriting) this.#showParts(shown);
    this.show();
  }

  /** Return a score to show and to play, with marks. */
  shownAs(score, marks = this.phrases) {
    const end = Math.max(score.end, MIN_TICKS_SHOWN);
    const promptEnd = this.phrases.length ? 0 : score.promptEnd; // marks say who played what
    return new Score(payloadOf({ ...score, end, promptEnd }, marks));
  }

  on_take({ score }) {
    this.rewriting.add(score);
  }

  /** Name the parts that have notes. */
  #showParts({ notes }) {
    const parts = CONTENT.tables.tracks.map(({ name }, i) => {
      const [part, swatch] = [document.createElement("li"), document.createElement("span")];
      const isKept = notes.every((note) => note.track !== i || note.kept);
      swatch.className = `swatch track-${i % NUM_TRACK_COLOURS} ${isKept ? "kept" : ""}`;
      part.append(swatch, name);
      return part;
    });
    byId("legend").replaceChildren(
      ...parts.filter((_, i) => notes.some(({ track }) => track === i)),
    );
  }

  /** Play what has just been composed, unless it plays already. */
  #sound() {
    if (this.answering) {
      const { at, time } = this.answering;
      this.answering = null;
      this.piece.position = this.piece.score.secondsAt(at * this.stepTicks);
      this.player.play(Math.max(0.02, time - now()));
      this.roll.reveal();
    } else if (this.waiting !== null && this.composedEnd > this.waiting) {
      this.piece.position = this.waiting;
      this.waiting = null;
      this.player.play();
      this.roll.reveal();
    }
  }

  /** Go on where the player was before the tempo changed. */
  #resume() {
    const { tick, plays } = this.resumed;
    this.piece.position = this.piece.score.secondsAt(tick);
    if (plays) this.player.play();
  }

  on_done({ composing, tokens, milliseconds }) {
    if (!composing) return;
    if (this.rewriting?.isWriting) return this.rewriting.done();
    this.composing = false;
    const speed = Math.round((1000 * tokens) / milliseconds);
    const isSilent = !this.piece.score.notes.some(({ start }) => start > this.from - 0.001);
    if (isSilent)
      this.say(
        "It wrote no note: the beginning is probably unlike the music that it learned. Try another take.",
      );
    else if (!this.isLive) this.say(`${speed} tokens a second.`);
    this.show();
  }

  on_file({ bytes, isDragged }) {
    if (isDragged) return (this.dragged = bytes);
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([bytes], { type: "audio/midi" }));
    link.download = `${this.name ?? "composed"}.mid`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  on_error({ message }) {
    this.interrupt();
    this.rewriting?.stop();
    this.say(message, true);
    this.show();
  }

  // What somebody asks for

  get isLive() {
    return byId("answer").getAttribute("aria-pressed") === "true";
  }

  get settings() {
    return {
      temperature: Number(byId("temperature").value),
      seed: Number(byId("seed").value) || 0,
      chords: byId("chords")?.value ?? "",
      key: byId("key")?.value ?? "",
      form: byId("form")?.value ?? "",
      sectionBars: Math.max(1, Math.round(Number(byId("section-bars")?.value)) || 8),
      fixTempo: byId("fix-tempo")?.checked ?? true,
      fixTimeSignature: byId("fix-time-signature")?.checked ?? true,
      closes: !this.isLive && (byId("close")?.checked ?? false),
    };
  }

  async open(file) {
    try {
      const bytes = new Uint8Array(await file.slice(0, MAX_FILE_BYTES + 1).arrayBuffer());
      this.send("open", { bytes, maxBars: this.maxBars, name: file.name.replace(/\.midi?$/i, "") });
    } catch {
      this.say(`${file.name} cannot be read.`, true);
    }
  }

  /** The bars of a file with which a piece begins, at most. */
  get maxBars() {
    return Math.max(1, Number(byId("file-bars").value) || 1);
  }

  /** Begin again with the first bars of the file. */
  begin() {
    this.player.stop();
    this.send("begin", { maxBars: this.maxBars });
  }

  clear() {
    this.#forget({ name: null, isFile: false });
    this.send("clear");
  }

  /** Return to the piece before the last change. */
  undo() {
    if (this.rewriting?.hasTakes) this.rewriting.discard();
    else this.send("undo");
  }

  /** Get the bytes of the file, which are needed at once when somebody drags it. */
  prepareDrag() {
    this.send("save", { isDragged: true });
  }

  /** Let the file be dragged into another program, as browsers built on Chromium can. */
  drag(event) {
    if (!this.dragged) return event.preventDefault();
    const name = `${this.name ?? "composed"}.mid`.replace(/[\\/:]/g, "_");
    const letters = Array.from(this.dragged, (byte) => String.fromCharCode(byte));
    const url = `data:audio/midi;base64,${btoa(letters.join(""))}`;
    event.dataTransfer.setData("DownloadURL", `audio/midi:${name}:${url}`);
    event.dataTransfer.effectAllowed = "copy";
  }

  #forget(file) {
    this.player.stop();
    this.live.stop();
    Object.assign(this, { recorder: null, composing: false, take: 0, phrases: [], ...file });
    this.piece.score = new Score(payloadOf(NOTHING));
    this.say("");
  }

  /** Let the piece begin at the tempo of the field. */
  setTempo() {
    const { player, piece } = this;
    this.resumed = { tick: piece.score.tickAt(player.position), plays: player.playing };
    if (player.playing) player.pause();
    this.live.stop();
    Object.assign(this, { composing: false, answering: null }); // the message ends what is composed
    this.send("tempo", { bpm: this.bpm });
  }

  continue() {
    if (this.composing) {
      this.interrupt();
      this.say("Stopped.");
      return this.show();
    }
    this.take = 0;
    const bars = Math.min(MAX_BARS, Math.max(1, Number(byId("bars").value) || 1));
    this.#compose("compose", { bars }, this.composedEnd);
  }

  retake() {
    this.take++;
    const { score } = this.piece;
    const from = Math.max(score.promptEnd, score.bars.at(-RETAKEN_BARS) ?? 0);
    if (this.rewriting?.locked.size) {
      const { rewriting } = this;
      return rewriting.write([from, score.end], rewriting.unlocked);
    }
    this.#compose("retake", { bars: RETAKEN_BARS }, score.secondsAt(from));
  }

  accompany() {
    this.recorder = null;
    this.#compose("accompany", {}, 0);
    this.take++;
  }

  /** Ask for music, which plays from a second on as soon as it is there. */
  #compose(kind, content, from = 0) {
    this.player.wake();
    this.composing = true;
    this.from = from;
    if (kind !== "compose" && this.player.playing) this.player.pause();
    this.waiting = this.player.playing ? null : this.piece.score.notes.length ? from : 0;
    this.send(kind, { ...content, settings: { ...this.settings, take: this.take } });
    this.say("Composing …");
    this.show();
  }

  // Playing

  press(pitch, velocity) {
    this.player.wake();
    const { synth } = this.player;
    this.channel ??= synth.channel(1);
    const { voice } = CONTENT.tables.tracks[CONTENT.tables.played];
    const when = synth.context.currentTime;
    this.sounding.set(
      pitch,
      synth.note(voice, this.channel, { when, pitch, velocity, duration: 20 }),
    );
    if (this.isLive) this.live.press(pitch, velocity);
    else if (this.recorder || (!this.piece.score.notes.length && !this.composing)) {
      this.recorder ??= new Recorder();
      this.recorder.press(pitch, velocity, now());
    }
  }

  release(pitch) {
    this.player.synth.release(this.sounding.get(pitch) ?? []);
    this.sounding.delete(pitch);
    if (this.isLive) this.live.release(pitch);
    else if (this.recorder && !this.composing && this.piece.score.promptEnd === 0)
      this.#record(pitch);
  }

  /** Make what was played the piece. */
  #record(pitch) {
    const { recorder } = this;
    recorder.release(pitch, now());
    const origin = recorder.notes[0].start;
    const bpm = this.tempo(estimateTempo(recorder.notes.map((note) => note.start)));
    const notes = recorder.inTicks(origin, bpm, now());
    this.send("listen", { notes, from: 0, bpm });
    this.say(`${Math.round(bpm)} quarters a minute. Play on, or press Continue.`);
  }

  /** Return the tempo of what is played: that of the piece, a fixed one, or the estimated one. */
  tempo(estimated) {
    const { score } = this.piece;
    if (this.isLive ? !this.live.phrase.isFirst : score.promptEnd > 0) {
      return 60 / (score.tempo.at(-1)[2] * score.ticksPerBeat);
    }
    const follows = byId("follow").checked && !this.metronome.isOn;
    if (follows && estimated) byId("tempo").value = estimated;
    return this.bpm;
  }

  /** The tempo of the page's field, in quarters a minute. */
  get bpm() {
    const { min, max, value } = byId("tempo");
    return Math.min(max, Math.max(min, Number(value) || USUAL_TEMPO));
  }

  /** End what is being composed, such as an answer, since somebody plays. */
  interrupt() {
    if (this.composing) this.send("show"); // which ends it, as all do
    this.composing = false;
    this.answering = null;
  }

  listen({ notes, from, bpm }) {
    const [first, last] = [notes[0][0], greatestEnd(notes)];
    this.phrases = [...this.phrases.filter(([start]) => start < first), [first, last, "you"]];
    this.send("listen", { notes, from, bpm });
    this.say("Listening …");
  }

  answer({ at, time }) {
    this.answering = { at, time };
    this.composing = true;
    this.from = this.piece.score.secondsAt(at * this.stepTicks);
    this.send("answer", {
      at,
      steps: ANSWER_BARS * 4 * CONTENT.tables.stepsPerBeat,
      settings: { ...this.settings, take: this.take++ },
    });
    this.say("Answering. Play when you like.");
    this.show();
  }

  // The player's view

  selected() {}

  moved() {
    this.roll.reveal();
  }

  played() {
    this.roll.follow(this.previousTick);
    const { position, playing } = this.player;
    if (!playing) return;
    if (this.composing && position > this.composedEnd) {
      this.waiting = this.composedEnd;
      this.player.pause();
    }
    const bar = this.piece.score.secondsAt(BAR_TICKS);
    if (this.isLive && !this.composing && position + bar > this.composedEnd) {
      this.composing = true;
      this.piece.score.duration = Infinity;
      const steps = ANSWER_BARS * 4 * CONTENT.tables.stepsPerBeat;
      this.send("compose", { steps, settings: { ...this.settings, take: this.take } });
    }
  }

  show() {
    const { score } = this.piece;
    const hasNotes = score.notes.length > 0;
    this.previousTick = this.roll.cursorTick ?? 0;
    showPosition(this.player, this.roll, this.controls, this.composedEnd ?? 0);
    byId("continue").textContent = this.composing && !this.isLive ? "Stop" : "Continue";
    byId("continue").disabled = this.isLive;
    byId("retake").disabled = this.composing || this.isLive || !this.hasNew;
    const isLocked = this.rewriting?.locked.size > 0;
    byId("accompany").disabled = this.composing || this.isLive || !hasNotes || isLocked;
    byId("save").disabled = !hasNotes || this.rewriting?.shown >= 0; // which is not kept yet
    if (byId("key")) byId("key").disabled = hasNotes; // which have a key
    byId("undo").disabled = !this.canUndo && !this.rewriting?.hasTakes;
    this.rewriting?.update();
    byId("file-bars-row").hidden = !this.isFile;
    byId("summary").textContent = hasNotes
      ? `${counted(this.numBars, "bar")}, ${counted(score.notes.length, "note")}`
      : "No music yet";
  }

  say(words, isError = false) {
    const status = byId("status");
    status.textContent = words;
    status.classList.toggle("notice", isError);
  }
}
