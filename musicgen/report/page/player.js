// One player for all pieces of the page. Notes are scheduled ahead of the audio clock, far enough
// for tabs in the background, whose timers run once a second.

const LOOKAHEAD = 1.3; // s
const TIMER_INTERVAL = 250; // ms
const START_DELAY = 0.06; // s

function clockText(seconds) {
  const total = Math.floor(seconds + 0.001); // 9.9999 s is 10 s with a rounding error
  return `${Math.floor(total / 60)}:${String(total % 60).padStart(2, "0")}`;
}

/** One piece on the page: its score, its piano roll and the mute and solo state of its tracks. */
class Card {
  constructor(element) {
    this.element = element;
    this.title = element.querySelector("h2").textContent;
    this.button = element.querySelector(".play");
    this.score = new Score(JSON.parse(element.querySelector("script").textContent));
    this.switches = this.score.tracks.map(() => ({ mute: false, solo: false }));
    this.position = 0; // s
    this.roll = new Roll(element.querySelector(".roll"), this.score, (track) => this.audible(track));
  }

  audible(track) {
    const { mute, solo } = this.switches[track];
    return !mute && (solo || !this.switches.some((other) => other.solo));
  }

  /** The continuation in seconds, or the whole piece without a prompt; null if empty. */
  get loopSpan() {
    const { promptSeconds: from, duration: to } = this.score;
    return to - from > 0.05 ? { from, to } : null;
  }
}

class Player {
  constructor(cards, controls) {
    this.cards = cards;
    this.controls = controls;
    this.volume = Number(controls.volume.value);
    this.looping = false;
    this.session = null; // schedule of the playing piece; null when paused
    this.select(cards[0]);
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
    this.card?.element.removeAttribute("aria-current");
    this.card = card;
    card.element.setAttribute("aria-current", "true");
    this.controls.seek.max = card.score.duration;
    this.show();
  }

  toggle(card = this.card) {
    if (this.playing && card === this.card) {
      this.pause();
    } else {
      this.select(card);
      this.play();
    }
  }

  play() {
    const card = this.card;
    if (!card.score.notes.length) return;
    this.context ??= new AudioContext();
    this.context.resume();
    this.synth ??= new Synth(this.context, this.volume);
    if (card.position >= card.score.duration) card.position = this.#startPosition();
    const loop = this.looping ? card.loopSpan : null;
    const from = card.position;
    this.session = {
      loop,
      from,
      wrapped: false,
      origin: this.context.currentTime + START_DELAY - from, // clock time of the score's start
      channels: card.switches.map((_, track) => this.synth.channel(card.audible(track) ? 1 : 0)),
      next: card.score.notes.findIndex((note) => note.start >= from),
    };
    if (this.session.next < 0) this.session.next = card.score.notes.length;
    for (const note of card.score.notes.slice(0, this.session.next)) {
      if (!note.drum && note.stop > from + 0.05) this.#schedule(note, from); // held notes
    }
    this.#scheduleAhead();
    this.timer = setInterval(() => this.#scheduleAhead(), TIMER_INTERVAL);
    this.#animate();
    this.show();
  }

  pause() {
    this.card.position = this.position;
    this.#end();
    this.synth.stop();
    this.show();
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
    this.show();
    this.card.roll.reveal();
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

  show() {
    const { play, seek, now, clock, loop } = this.controls;
    const { score, title, roll } = this.card;
    const position = this.position;
    const tick = score.tickAt(position);
    roll.moveCursor(tick);
    seek.value = position;
    seek.setAttribute("aria-valuetext", `bar ${score.barAt(tick)}, ${clockText(position)}`);
    clock.textContent = `bar ${score.barAt(tick)} · ${clockText(position)} / ${clockText(score.duration)}`;
    if (now.textContent !== title) now.textContent = title;
    loop.textContent = score.promptEnd > 0 ? "Loop continuation" : "Loop";
    loop.disabled = this.card.loopSpan === null;
    play.disabled = !score.notes.length;
    play.setAttribute("aria-label", this.playing ? "Pause" : "Play");
    play.classList.toggle("playing", this.playing);
    for (const card of this.cards) {
      const active = this.playing && card === this.card;
      card.button.classList.toggle("playing", active);
      card.button.setAttribute("aria-label", `${active ? "Pause" : "Play"} ${card.title}`);
    }
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
      const previous = this.card.roll.cursorTick;
      if (!session.loop && this.position >= this.card.score.duration) {
        this.#end(); // the last notes ring out
        this.card.position = this.#startPosition();
      } else {
        requestAnimationFrame(frame);
      }
      this.show();
      this.card.roll.follow(previous);
    };
    requestAnimationFrame(frame);
  }

  #end() {
    clearInterval(this.timer);
    this.session = null;
  }
}

function connect() {
  const elements = [...document.querySelectorAll(".piece")];
  if (!elements.length) return null;
  const controls = Object.fromEntries(
    ["play", "stop", "seek", "now", "clock", "loop", "volume"].map((id) => [id, document.getElementById(id)])
  );
  const cards = elements.map((element) => new Card(element));
  const player = new Player(cards, controls);
  document.getElementById("player").hidden = false;

  controls.play.addEventListener("click", () => player.toggle());
  controls.stop.addEventListener("click", () => player.stop());
  controls.seek.addEventListener("input", () => player.seek(Number(controls.seek.value)));
  controls.volume.addEventListener("input", () => player.setVolume(Number(controls.volume.value)));
  controls.loop.addEventListener("click", () => {
    player.setLooping(!player.looping);
    controls.loop.setAttribute("aria-pressed", player.looping);
  });

  for (const card of cards) {
    card.button.disabled = !card.score.notes.length;
    card.button.addEventListener("click", () => player.toggle(card));
    card.roll.element.addEventListener("click", (event) => {
      const playing = player.playing;
      player.select(card);
      player.seek(card.score.secondsAt(card.roll.tickOfPointer(event)));
      if (playing && !player.playing) player.play();
    });
    for (const button of card.element.querySelectorAll(".zoom")) {
      button.addEventListener("click", () => card.roll.zoom(Number(button.dataset.factor)));
    }
    for (const button of card.element.querySelectorAll(".mute, .solo")) {
      button.addEventListener("click", () => {
        const track = button.closest("li").dataset.track;
        const name = button.className;
        const pressed = (card.switches[track][name] = !card.switches[track][name]);
        button.setAttribute("aria-pressed", pressed);
        card.roll.redraw();
        if (card === player.card) player.refreshChannels();
      });
    }
  }

  document.addEventListener("keydown", (event) => {
    // The space bar has its own meaning on buttons, links and sliders.
    const control = event.target.closest("button, a, input, summary");
    if (event.key !== " " || event.repeat || control || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    const element = event.target.closest(".piece");
    player.toggle(cards.find((card) => card.element === element));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const card of cards) card.roll.redraw();
  });
  return player;
}

const player = connect();
