import { Sheet } from "./sheet.js";

/** Between two columns: room for the titles of the frames in the right one. */
export const GUTTER = 150;

/** A long spine set like a newspaper: cut between boxes into columns that fill `aspect` best. Frames and edges over a cut are split. */
export function wrap(scene, aspect) {
  const stride = scene.w + GUTTER;
  const zoom = (columns) => Math.min(aspect / (columns * stride), columns / scene.h); // for a window of `aspect` by 1
  let count = 1;
  while (count < 400 && zoom(count + 1) > zoom(count)) count++;
  if (count < 2) return scene;
  const cuts = cutsOf(scene, count);
  const sheet = new Sheet();
  const h = splitBoxes(sheet, scene, cuts, stride);
  splitEdges(sheet, scene, cuts, stride);
  const columns = cuts.length - 1;
  return { ...sheet.arrays(), w: columns * stride - GUTTER, h, columns };
}

/** Where each column begins, and Infinity: the first gap between boxes after each even share. */
function cutsOf({ item, kind, place, size, h }, count) {
  const boxes = [];
  for (let i = 0; i < item.length; i++)
    if (kind[i] !== 3) boxes.push([place[2 * i + 1], place[2 * i + 1] + size[2 * i + 1]]);
  boxes.sort((a, b) => a[0] - b[0]);
  const cuts = [0];
  for (let c = 1, i = 0; c < count; c++) {
    let y = (c * h) / count;
    while (i < boxes.length && boxes[i][0] < y + 6) {
      if (boxes[i][1] + 6 > y) y = boxes[i][1] + 6;
      i++;
    }
    if (y < h && y > cuts.at(-1)) cuts.push(y);
  }
  cuts.push(Infinity);
  return cuts;
}

function columnAt(cuts, y) {
  let low = 0;
  let high = cuts.length - 2;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (cuts[middle] <= y) low = middle;
    else high = middle - 1;
  }
  return low;
}

/** Returns the height of the tallest column. */
function splitBoxes(sheet, { item, kind, place, size, depth }, cuts, stride) {
  let tallest = 0;
  for (let i = 0; i < item.length; i++) {
    const x = place[2 * i];
    const y = place[2 * i + 1];
    const end = y + size[2 * i + 1];
    for (let c = columnAt(cuts, y); c < cuts.length - 1 && cuts[c] < end - 1; c++) {
      const top = Math.max(y, cuts[c]);
      const bottom = Math.min(end, cuts[c + 1]);
      sheet.box(item[i], kind[i], x + c * stride, top - cuts[c], size[2 * i], bottom - top, depth[i]);
      tallest = Math.max(tallest, bottom - cuts[c]);
    }
  }
  return tallest;
}

function splitEdges(sheet, { points, pointsAt, pairs, pairsAt, arrow }, cuts, stride) {
  for (let e = 0; e < arrow.length; e++) {
    const p = points.subarray(pointsAt[e], pointsAt[e + 1]);
    const own = pairs.subarray(pairsAt[e], pairsAt[e + 1]);
    let c = columnAt(cuts, p[1]);
    let piece = [p[0], p[1]];
    for (let k = 2; k < p.length; k += 2) {
      while (p[k + 1] > cuts[c + 1]) {
        const t = (cuts[c + 1] - p[k - 1]) / (p[k + 1] - p[k - 1]);
        const x = p[k - 2] + (p[k] - p[k - 2]) * Math.max(0, t);
        piece.push(x, cuts[c + 1]);
        sheet.edge(piece, c * stride, -cuts[c], null, null, own, arrow[e] === 2 && piece[1] === p[1] ? 2 : 0);
        piece = [x, cuts[c + 1]];
        c++;
      }
      piece.push(p[k], p[k + 1]);
    }
    sheet.edge(piece, c * stride, -cuts[c], null, null, own, arrow[e] === 2 && piece[1] !== p[1] ? 0 : arrow[e]);
  }
}
