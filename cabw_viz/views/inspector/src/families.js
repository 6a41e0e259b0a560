/** What work a node does, told by its name: the classes of the colouring by family; and names fit to be drawn. */
import { FAMILY_OF_KIND, FAMILY_OF_NAME } from "./palette.js";

const PATTERNS = Object.entries(FAMILY_OF_NAME).map(([family, pattern]) => [family, new RegExp(pattern)]);

const ofName = (name) => (PATTERNS.find(([, pattern]) => pattern.test(name)) || ["pointwise"])[0];

/** The family that an autograd node's kind alone tells; undefined for PyTorch's own nodes, whose name tells. */
export const familyOfKind = (kind) => FAMILY_OF_KIND[kind];

/** The family and the label of an autograd node of PyTorch's own. */
export const lookOf = (name) => ({
  family: ofName(name),
  label: plain(name.replace(/(.)Backward\d*$/, "$1")) || "(no name)",
});

/** The family of an operator: `native_layer_norm_backward` is read as `NativeLayerNormBackward`. */
export const familyOfOperator = (name) =>
  ofName(name.replace(/(^|_)([a-z0-9])/g, (_, __, letter) => letter.toUpperCase()).replace(/_/g, ""));

/** An operator as one says it: `mm` of `aten.mm.default`, `AddmmBackward0` of `ops.AddmmBackward0`. */
export const operatorOf = (target) =>
  target
    .replace(/^(torch\.)?(_?ops\.)?(aten\.)?/, "")
    .replace(/\.(default|int|Tensor|Scalar|self|dim|input|dim_IntList)$/, "");

/** A name fit for one line of the picture: what cannot be seen, or would turn the line round, as a dot. */
export const plain = (text) => text.replace(/[\u0000-\u001f\u007f\u200b-\u200f\u2028-\u202e\u2066-\u2069]/g, "·");
