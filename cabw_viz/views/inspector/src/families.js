/** What kind of work a node does, from its name: the classes of the colouring by kind; and names fit to be drawn. */
const FAMILY_OF_KIND = {
  graph_root: "loss",
  custom_function: "custom",
  cpp_function: "custom",
  aot_backward: "compiled",
  copy_slices: "view",
  accumulate_grad: "parameter",
};
const VIEWS =
  "View|UnsafeView|Transpose|T|Permute|Expand|Clone|Copy|Split|SplitWithSizes|Reshape|ReshapeAlias|Slice|Select|Squeeze|" +
  "Unsqueeze|Alias|AsStrided|Cat|Stack|ToCopy|Unbind|Detach|Unfold|Narrow|Flatten|Unflatten|NewZeros|NewEmpty|Zeros|" +
  "ZerosLike|Empty|EmptyLike|EmptyStrided|Full|FullLike|NewEmptyStrided|LiftFreshCopy";
const FAMILY_OF_NAME = [
  ["matmul", /^(Addmm|Mm|Bmm|Baddbmm|Addbmm|Mv|Dot|.*Conv.*|Linear|.*Attention.*)/],
  ["norm", /(Norm|Softmax)/],
  ["loss", /(Loss|Embedding|Gather|Index)/],
  ["view", new RegExp(`^(${VIEWS})(Backward|$)`)],
];

const ofName = (name) => (FAMILY_OF_NAME.find(([, pattern]) => pattern.test(name)) || ["pointwise"])[0];

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
