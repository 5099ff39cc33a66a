// One player for all pieces of a page. It does not depend on elements of the page. Notes are
// scheduled ahead of the audio clock, as timers of tabs in the background run only once a second.

const LOOKAHEAD = 1.3; // s
const TIMER_INTERVAL = 250; // ms
const START_DELAY = 0.06; // s

function clockText(seconds) {
  const total = Math.floor(seconds + 0.001); // 9.9999 s are 10 s with a rounding error
  return `${Math.floor(total / 60)}:${String(total % 60).padStart(2, "0")}`;
}

const findControls = () => Object.fromEntries([...document.querySelectorAll(".player [id]")].map((each) => [each.id, each]));

function connectControls(player, { play, stop, seek, volume }) {
  play.addEventListener("click", () => player.toggle());
  stop.addEventListener("click", () => player.stop());
  seek.addEventListener("input", () => player.seek(Number(seek.value)));
  volume.addEventListener("input", () => player.setVolume(Number(volume.value)));
}

/** Show the position of a player in a piece that is `end` seconds long. */
function showPosition({ card, position, playing }, roll, { play, seek, clock }, end) {
  const { score } = card;
  const tick = score.tickAt(position);
  roll.moveCursor(tick);
  seek.max = end;
  seek.value = position;
  const bar = `bar ${score.barAt(tick)}`;
  seek.setAttribute("aria-valuetext", `${bar}, ${clockText(position)}`);
  clock.textContent = `${bar} · ${clockText(position)} / ${clockText(end)}`;
  play.disabled = !score.notes.length;
  play.setAttribute("aria-label", playing ? "Pause" : "Play");
  play.classList.toggle("playing", playing);
}

/** A score to play, with the position and the mute and solo switches of the listener. */
class Piece {
  constructor(score) {
    this.score = score;
    this.switches = score.tracks.map(() => ({ mute: false, solo: false }));
    this.position = 0; // s
  }

  audible(track) {
    const { mute, solo } = this.switches[track];
    return !mute && (solo || !this.switches.some((other) => other.solo));
  }

  /** The continuation or the gap in seconds, or the whole piece without a prompt; null if empty. */
  get loopSpan() {
    const { promptSeconds: from, newSeconds: to } = this.score;
    return to - from > 0.05 ? { from, to } : null;
  }
}

class Player {
  /**
   * @param card the piece that is selected at first
   * @param view gets calls on changes: show(); selected(previous); moved() after a jump; played() in each frame
   */
  constructor(card, volume, view) {
    this.card = card;
    this.volume = volume;
    this.view = view;
    this.looping = false;
    this.session = null; // schedule of the playing piece; null when paused
  }

  get playing() {
    return this.session !== null;
  }

  get position() {
    if (!this.playing) return this.card.position;
    const { origin, loop, wrapped, from } = this.session;
    let position = this.context.currentTime - origin;
    // The schedule is ahead of the clock, which may still be in the previous round of the loop.
    while (wrapped && position < loop.from) position += loop.to - loop.from;
    return Math.min(this.card.score.duration, wrapped ? position : Math.max(from, position));
  }

  select(card) {
    if (card === this.card) return;
    if (this.playing) this.pause();
    const previous = this.card;
    this.card = card;
    this.view.selected(previous);
    this.view.show();
  }

  toggle(card = this.card) {
    if (this.playing && card === this.card) {
      this.pause();
    } else {
      this.select(card);
      this.play();
    }
  }

  /** Start the audio context, which browsers allow only after a click or a key. */
  wake() {
    this.context ??= new AudioContext();
    this.context.resume();
    this.synth ??= new Synth(this.context, this.volume);
  }

  /** @param delay seconds until the first note */
  play(delay = START_DELAY) {
    const card = this.card;
    if (!card.score.notes.length) return;
    this.wake();
    if (card.position >= card.score.duration) card.position = this.#startPosition();
    const loop = this.looping ? card.loopSpan : null;
    const from = card.position;
    this.session = {
      loop,
      from,
      wrapped: false,
      origin: this.context.currentTime + delay - from, // clock time of the score's start
      channels: card.switches.map((_, track) => this.synth.channel(card.audible(track) ? 1 : 0)),
      next: card.score.notes.findIndex((note) => note.start >= from),
    };
    if (this.session.next < 0) this.session.next = card.score.notes.length;
    for (const note of card.score.notes.slice(0, this.session.next)) {
      if (!note.drum && note.stop > from + 0.05) this.#schedule(note, from); // notes that still sound
    }
    this.#scheduleAhead();
    this.timer = setInterval(() => this.#scheduleAhead(), TIMER_INTERVAL);
    this.#animate();
    this.view.show();
  }

  pause() {
    this.card.position = this.position;
    this.#end();
    this.synth.stop();
    this.view.show();
  }

  stop() {
    if (this.playing) this.pause();
    this.seek(this.#startPosition());
  }

  /** Move to `position` seconds, playing or not. */
  seek(position) {
    const playing = this.playing;
    if (playing) this.pause();
    this.card.position = Math.max(0, Math.min(this.card.score.duration, position));
    if (playing) this.play();
    this.view.show();
    this.view.moved();
  }

  /** Move to where the continuation begins. */
  jump() {
    this.seek(this.card.score.promptSeconds);
  }

  /** Move by whole bars. More than half a second into a bar, back is to the beginning of this bar. */
  skipBars(count) {
    const { score } = this.card;
    const tick = score.tickAt(this.position + (count > 0 ? 0.001 : -0.5));
    const bar = score.barAt(tick) - 1 + Math.max(0, count);
    this.seek(bar < score.bars.length ? score.secondsAt(score.bars[bar]) : score.duration);
  }

  setLooping(looping) {
    const position = this.position;
    this.looping = looping;
    // Seeking discards the notes scheduled with the old setting.
    this.seek(Math.max(position, this.#startPosition()));
  }

  setVolume(volume) {
    this.volume = volume;
    this.synth?.master.gain.setTargetAtTime(volume, this.context.currentTime, 0.01);
  }

  /** Apply mute and solo to the playing piece. */
  refreshChannels() {
    this.session?.channels.forEach((channel, track) => {
      const level = this.card.audible(track) ? 1 : 0;
      channel.gain.setTargetAtTime(level, this.context.currentTime, 0.01);
    });
  }

  #startPosition() {
    return (this.looping && this.card.loopSpan?.from) || 0;
  }

  #schedule(note, from) {
    const { origin, channels } = this.session;
    const { voice } = this.card.score.tracks[note.track];
    this.synth.note(voice, channels[note.track], {
      when: origin + from,
      pitch: note.pitch,
      velocity: note.velocity,
      duration: note.stop - from,
    });
  }

  #scheduleAhead() {
    const { notes } = this.card.score;
    const session = this.session;
    const horizon = this.context.currentTime + LOOKAHEAD;
    for (;;) {
      const note = notes[session.next];
      if (note) {
        if (session.origin + note.start > horizon) return;
        this.#schedule(note, note.start);
        session.next++;
      } else {
        const { loop } = session;
        if (!loop || session.origin + loop.to > horizon) return;
        session.origin += loop.to - loop.from;
        session.wrapped = true;
        session.next = notes.findIndex((each) => each.start >= loop.from);
        if (session.next < 0) session.next = notes.length; // the continuation has no notes
      }
    }
  }

  #animate() {
    const session = this.session;
    const frame = () => {
      if (this.session !== session) return;
      if (!session.loop && this.position >= this.card.score.duration) {
        this.#end(); // the last notes ring out
        this.card.position = this.#startPosition();
      } else {
        requestAnimationFrame(frame);
      }
      this.view.show();
      this.view.played();
    };
    requestAnimationFrame(frame);
  }

  #end() {
    clearInterval(this.timer);
    this.session = null;
  }
}

