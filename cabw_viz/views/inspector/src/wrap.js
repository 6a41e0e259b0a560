import { Sheet } from "./sheet.js";

/** Between two columns: room for the titles of the frames in the right one. */
export const GUTTER = 150;

/** A long spine set like a newspaper: cut between boxes into columns that fill `aspect` best. Frames and edges over a cut are split. */
export function wrap(scene, aspect) {
  const { item, kind, place, size, depth, points, pointsAt, pairs, pairsAt, arrow, w, h } = scene;
  const stride = w + GUTTER;
  const zoom = (c) => Math.min(aspect / (c * stride), c / h); // for a window of `aspect` by 1
  let count = 1;
  while (count < 400 && zoom(count + 1) > zoom(count)) count++;
  if (count < 2) return scene;
  const leaves = [];
  for (let i = 0; i < item.length; i++)
    if (kind[i] !== 3) leaves.push([place[2 * i + 1], place[2 * i + 1] + size[2 * i + 1]]);
  leaves.sort((a, b) => a[0] - b[0]);
  const cuts = [0];
  for (let c = 1, i = 0; c < count; c++) {
    // the first gap after an even share
    let y = (c * h) / count;
    while (i < leaves.length && leaves[i][0] < y + 6) {
      if (leaves[i][1] + 6 > y) y = leaves[i][1] + 6;
      i++;
    }
    if (y < h && y > cuts.at(-1)) cuts.push(y);
  }
  cuts.push(Infinity);
  const columnAt = (y) => {
    let lo = 0;
    let hi = cuts.length - 2;
    while (lo < hi) {
      const mid = (lo + hi + 1) >> 1;
      if (cuts[mid] <= y) lo = mid;
      else hi = mid - 1;
    }
    return lo;
  };
  const sheet = new Sheet();
  let tall = 0;
  for (let i = 0; i < item.length; i++) {
    const x = place[2 * i];
    const y = place[2 * i + 1];
    const bw = size[2 * i];
    const bh = size[2 * i + 1];
    for (let c = columnAt(y); c < cuts.length - 1 && cuts[c] < y + bh - 1; c++) {
      const top = Math.max(y, cuts[c]);
      const bottom = Math.min(y + bh, cuts[c + 1]);
      sheet.box(item[i], kind[i], x + c * stride, top - cuts[c], bw, bottom - top, depth[i]);
      tall = Math.max(tall, bottom - cuts[c]);
    }
  }
  for (let e = 0; e < arrow.length; e++) {
    const p = points.subarray(pointsAt[e], pointsAt[e + 1]);
    const own = pairs.subarray(pairsAt[e], pairsAt[e + 1]);
    let c = columnAt(p[1]);
    let piece = [p[0], p[1]];
    for (let k = 2; k < p.length; k += 2) {
      while (p[k + 1] > cuts[c + 1]) {
        const t = (cuts[c + 1] - p[k - 1]) / (p[k + 1] - p[k - 1]);
        const x = p[k - 2] + (p[k] - p[k - 2]) * Math.max(0, t);
        piece.push(x, cuts[c + 1]);
        sheet.edge(piece, c * stride, -cuts[c], null, null, own, false);
        piece = [x, cuts[c + 1]];
        c++;
      }
      piece.push(p[k], p[k + 1]);
    }
    sheet.edge(piece, c * stride, -cuts[c], null, null, own, arrow[e] === 1);
  }
  return { ...sheet.arrays(), w: (cuts.length - 1) * stride - GUTTER, h: tall, columns: cuts.length - 1 };
}
