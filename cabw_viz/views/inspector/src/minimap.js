import { badges } from "./shapes.js";

/** The overview: the whole graph, small, with ticks where something was found; drawn once, the window each frame. */
export function drawMap(r) {
  const { map, mapCtx: c, scene, theme, view, ratio } = r;
  const W = map.clientWidth;
  const H = map.clientHeight;
  if (!W || !H) return;
  const s = Math.min((W - 30) / scene.w, (H - 16) / scene.h);
  const ox = (W - 14 - scene.w * s) / 2;
  const oy = 8;
  r.mapping = { s, ox, oy };
  if (!r.picture) {
    r.picture = Object.assign(document.createElement("canvas"), { width: map.width, height: map.height });
    const p = r.picture.getContext("2d");
    p.setTransform(ratio, 0, 0, ratio, 0, 0);
    p.fillStyle = theme.sunken;
    for (const b of scene.frames(-Infinity, Infinity, -Infinity, Infinity, 2))
      p.fillRect(ox + b.x * s, oy + b.y * s, b.w * s, b.h * s);
    const found = [];
    const W2 = 2 * W;
    const taken = new Uint8Array(W2 * 2 * (H + 1));
    const { place, size, item, leaves } = scene;
    const { dim, hits } = r.state; // of many boxes on one half pixel one is enough
    for (const i of leaves) {
      const x = ox + place[2 * i] * s;
      const y = oy + place[2 * i + 1] * s;
      const spot = Math.floor(2 * y) * W2 + Math.floor(2 * x);
      if (hits?.[item[i]]) found.push(i);
      if (taken[spot]) continue;
      taken[spot] = 1;
      const node = r.graph.items[item[i]];
      const f = r.classOf(node);
      const col = r.colours.get(node.nodes ? f.main : f);
      p.globalAlpha = dim?.[item[i]] ? 0.2 : 1;
      p.fillStyle = col.quiet ? col.border : col.solid;
      p.fillRect(x, y, Math.max(size[2 * i] * s, 1), Math.max(size[2 * i + 1] * s, 1));
    }
    p.globalAlpha = 1;
    const tick = (b, colour, tall) => {
      p.fillStyle = colour;
      p.fillRect(W - 9, oy + (b.y + b.h / 2) * s - tall / 2, 7, tall);
    };
    let last = -9;
    for (const i of found) {
      const b = scene.view(i);
      const at = b.y * s;
      if (Math.abs(at - last) >= 0.5) {
        tick(b, theme.hit, 2);
        last = at;
      }
    }
    for (const b of scene.badged) if (badges(b.item).some(([, loud]) => loud)) tick(b, theme["c-alarm"], 3);
  }
  c.setTransform(1, 0, 0, 1, 0, 0);
  c.clearRect(0, 0, map.width, map.height);
  c.drawImage(r.picture, 0, 0);
  c.setTransform(ratio, 0, 0, ratio, 0, 0);
  const x0 = Math.max(1, ox + view.x * s);
  const x1 = Math.min(W - 12, ox + (view.x + r.w / view.k) * s);
  const y0 = Math.max(1, oy + view.y * s);
  const y1 = Math.min(H - 1, Math.max(oy + (view.y + r.h / view.k) * s, y0 + 4));
  c.fillStyle = theme.accent;
  c.globalAlpha = 0.1;
  c.fillRect(x0, y0, x1 - x0, y1 - y0);
  c.globalAlpha = 1;
  c.strokeStyle = theme.accent;
  c.lineWidth = 1;
  c.strokeRect(x0 + 0.5, y0 + 0.5, x1 - x0 - 1, y1 - y0 - 1);
  const sel = scene.box(r.state.selection);
  if (sel) {
    c.fillStyle = theme.accent;
    c.fillRect(W - 9, oy + (sel.y + Math.min(sel.h, 30) / 2) * s - 1.5, 7, 3);
  }
}
