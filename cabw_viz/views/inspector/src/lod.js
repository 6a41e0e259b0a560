/** Zoom at which things appear: below `marks` only colour, below `labels` no text in boxes, below `headers` titles leave the frame. */
export const LOD = { labels: 0.6, marks: 0.3, headers: 0.6, round: 0.16 };
