// The colours of style.css, for drawing on a canvas.
const NUM_TRACK_COLOURS = 8;

function readColours() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const names = ["surface", "ink", "muted", "line", "bar", "row", "prompt", "accent", "accent-soft", "mark"];
  const colours = Object.fromEntries(names.map((name) => [name, colour(name)]));
  colours.tracks = Array.from({ length: NUM_TRACK_COLOURS }, (_, i) => colour(`track-${i}`));
  colours.mutedTracks = colours.tracks.map((track) => `color-mix(in srgb, ${track}, ${colours.muted} 65%)`);
  return colours;
}
