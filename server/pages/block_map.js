// The KV pool as a grid of cells, each filled from below by the share of its blocks that is used or cached.

const HEIGHT = 180; // CSS pixels that the map may take
const GAP = 1;

/** `blocks` is that part of /debug/live's answer. */
export function drawBlockMap(canvas, blocks) {
  const width = canvas.clientWidth;
  const count = blocks.used.length;
  const size = Math.max(4, Math.min(24, Math.floor(Math.sqrt((width * HEIGHT) / count))));
  const columns = Math.max(1, Math.floor(width / size));
  const height = Math.ceil(count / columns) * size;
  const scale = window.devicePixelRatio;
  canvas.width = width * scale; // empties it too
  canvas.height = height * scale;
  canvas.style.height = `${height}px`;
  const style = getComputedStyle(canvas);
  const [used, cached, free] = ["--used", "--cached", "--free"].map((name) => style.getPropertyValue(name));
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  const side = size - GAP;
  for (let i = 0; i < count; i += 1) {
    const x = (i % columns) * size;
    const bottom = Math.floor(i / columns) * size + side;
    const inCell = Math.min(blocks.per_cell, blocks.total - i * blocks.per_cell);
    const usedHeight = (side * blocks.used[i]) / inCell;
    const cachedHeight = (side * blocks.cached[i]) / inCell;
    context.fillStyle = free;
    context.fillRect(x, bottom - side, side, side);
    context.fillStyle = used;
    context.fillRect(x, bottom - usedHeight, side, usedHeight);
    context.fillStyle = cached;
    context.fillRect(x, bottom - usedHeight - cachedHeight, side, cachedHeight);
  }
}
