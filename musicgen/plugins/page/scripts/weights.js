// The model's weights in the page: base64 of zlib's format, low bytes before high ones.

/** Return the buffer of what musicgen/plugins/page/document.py packs. */
async function unpackWeights(text) {
  const packed = Uint8Array.from(atob(text), (each) => each.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const planes = new Uint8Array(await new Response(stream).arrayBuffer());
  const half = planes.length / 2;
  return planes.map((_, i) => planes[i % 2 ? half + (i - 1) / 2 : i / 2]).buffer;
}
