/** Written from cabw_viz/views/palette.py by `python -m cabw_viz.views.inspector.browser_palette`. */
export const DIFFERS_MUCH = 0.001;
export const FAMILY_OF_KIND = {
  "graph_root": "loss",
  "custom_function": "custom",
  "cpp_function": "custom",
  "aot_backward": "compiled",
  "copy_slices": "view",
  "accumulate_grad": "parameter",
};
export const FAMILY_OF_NAME = {
  "matmul": "^(Addmm|Mm|Bmm|Baddbmm|Addbmm|Mv|Dot|.*Conv.*|Linear|.*Attention.*)",
  "norm": "(Norm|Softmax)",
  "loss": "(Loss|Embedding|Gather|Index)",
  "view": "^(View|UnsafeView|Transpose|T|Permute|Expand|Clone|Copy|Split|SplitWithSizes|Reshape|ReshapeAlias|Slice|Select|Squeeze|Unsqueeze|Alias|AsStrided|Cat|Stack|ToCopy|Unbind|Detach|Unfold|Narrow|Flatten|Unflatten|NewZeros|NewEmpty|Zeros|ZerosLike|Empty|EmptyLike|EmptyStrided|Full|FullLike|NewEmptyStrided|LiftFreshCopy)(Backward|$)",
};
export const IS_PASSING = {
  "bitwise": true,
  "within_tolerance": true,
  "within_noise": true,
  "metadata": false,
  "unexpected": false,
  "not_judged": false,
  "not_reproducible": false,
  "mismatch": false,
  "missing": false,
  "nonfinite": false,
};
export const VERDICT_MARKS = {
  "bitwise": "equal",
  "within_tolerance": "bar1",
  "within_noise": "bar2",
  "metadata": "differ",
  "unexpected": "differ",
  "not_judged": "differ",
  "not_reproducible": "differ",
  "mismatch": "differ",
  "missing": "differ",
  "nonfinite": "differ",
};
export const ENCODING_TABLE = {
  "family": {
    "label": "Family", "isCategorical": true, "classes": [
      {"key": "matmul", "words": "Matmul", "token": "c-matmul", "mark": "square", "limit": null, "rare": false, "background": false},
      {"key": "norm", "words": "Norm, softmax", "token": "c-norm", "mark": "triangle", "limit": null, "rare": false, "background": false},
      {"key": "pointwise", "words": "Pointwise", "token": "c-pointwise", "mark": "circle", "limit": null, "rare": false, "background": false},
      {"key": "loss", "words": "Loss, lookup", "token": "c-loss", "mark": "diamond", "limit": null, "rare": false, "background": false},
      {"key": "custom", "words": "Custom Function", "token": "c-custom", "mark": "star", "limit": null, "rare": true, "background": false},
      {"key": "compiled", "words": "Compiled region", "token": "c-compiled", "mark": "frame", "limit": null, "rare": true, "background": false},
      {"key": "hook", "words": "Hook", "token": "c-custom", "mark": "hook", "limit": null, "rare": true, "background": false},
      {"key": "check", "words": "Check of a gradient", "token": "c-none", "mark": "ring", "limit": null, "rare": true, "background": true},
      {"key": "view", "words": "View, copy", "token": "c-view", "mark": "bar", "limit": null, "rare": false, "background": true},
      {"key": "parameter", "words": "Parameter", "token": "c-parameter", "mark": "tag", "limit": null, "rare": false, "background": true},
    ],
  },
  "kind": {
    "label": "Kind", "isCategorical": true, "classes": [
      {"key": "builtin", "words": "Built-in node", "token": "c-matmul", "mark": "square", "limit": null, "rare": false, "background": false},
      {"key": "custom_function", "words": "Custom Function", "token": "c-pointwise", "mark": "circle", "limit": null, "rare": true, "background": false},
      {"key": "cpp_function", "words": "C++ Function", "token": "c-norm", "mark": "triangle", "limit": null, "rare": true, "background": false},
      {"key": "copy_slices", "words": "In-place on a view", "token": "c-custom", "mark": "star", "limit": null, "rare": true, "background": false},
      {"key": "aot_backward", "words": "Compiled region", "token": "c-compiled", "mark": "frame", "limit": null, "rare": true, "background": false},
      {"key": "gradient_sum", "words": "Gradient sum", "token": "c-parameter", "mark": "cross", "limit": null, "rare": true, "background": true},
      {"key": "hook", "words": "Hook", "token": "c-custom", "mark": "hook", "limit": null, "rare": true, "background": false},
      {"key": "validate_outputs", "words": "Check of a gradient", "token": "c-none", "mark": "ring", "limit": null, "rare": true, "background": true},
      {"key": "other", "words": "Other operation", "token": "c-none", "mark": "bar", "limit": null, "rare": true, "background": true},
      {"key": "graph_root", "words": "Graph root", "token": "c-loss", "mark": "diamond", "limit": null, "rare": false, "background": false},
      {"key": "accumulate_grad", "words": "Accumulates into .grad", "token": "c-parameter", "mark": "tag", "limit": null, "rare": false, "background": true},
    ],
  },
  "touches": {
    "label": "Touches", "isCategorical": false, "classes": [
      {"key": "initial", "words": "Initial trace, graph pass", "token": "c-alarm", "mark": "bang", "limit": null, "rare": false, "background": false},
      {"key": "e3", "words": "Execution, 9 or more", "token": "q4", "mark": "bar3", "limit": 9, "rare": false, "background": false},
      {"key": "e2", "words": "4 to 8 reads", "token": "q3", "mark": "bar2", "limit": 4, "rare": false, "background": false},
      {"key": "e1", "words": "1 to 3", "token": "q1", "mark": "bar1", "limit": 1, "rare": false, "background": false},
      {"key": "none", "words": "Untouched", "token": "c-none", "mark": "ring", "limit": null, "rare": false, "background": false},
    ],
  },
  "parity": {
    "label": "Parity", "isCategorical": false, "classes": [
      {"key": "first", "words": "First divergence", "token": "c-alarm", "mark": "flag", "limit": null, "rare": true, "background": false},
      {"key": "d3", "words": "Differs, ≥ 1e-3", "token": "d3", "mark": "bar3", "limit": 0.001, "rare": false, "background": false},
      {"key": "d2", "words": "Differs, less", "token": "d2", "mark": "bar2", "limit": 0, "rare": false, "background": false},
      {"key": "close", "words": "Within tolerance", "token": "q2", "mark": "bar1", "limit": null, "rare": false, "background": false},
      {"key": "equal", "words": "Bitwise equal", "token": "c-equal", "mark": "equal", "limit": null, "rare": false, "background": false},
      {"key": "none", "words": "Not compared", "token": "c-none", "mark": "ring", "limit": null, "rare": false, "background": false},
    ],
  },
  "bytes": {
    "label": "Bytes", "isCategorical": false, "classes": [
      {"key": "b4", "words": "≥ 1 MB", "token": "q4", "mark": "bar3", "limit": 1000000.0, "rare": false, "background": false},
      {"key": "b3", "words": "≥ 500 kB", "token": "q3", "mark": "bar2", "limit": 500000.0, "rare": false, "background": false},
      {"key": "b2", "words": "≥ 50 kB", "token": "q2", "mark": "bar2", "limit": 50000.0, "rare": false, "background": false},
      {"key": "b1", "words": "Less", "token": "q1", "mark": "bar1", "limit": 1, "rare": false, "background": false},
      {"key": "none", "words": "Nothing saved", "token": "c-none", "mark": "ring", "limit": null, "rare": false, "background": false},
    ],
  },
  "time": {
    "label": "Time", "isCategorical": false, "classes": [
      {"key": "t4", "words": "≥ half of the slowest", "token": "q4", "mark": "bar3", "limit": 0.5, "rare": false, "background": false},
      {"key": "t3", "words": "≥ 1/8", "token": "q3", "mark": "bar2", "limit": 0.125, "rare": false, "background": false},
      {"key": "t2", "words": "≥ 1/64", "token": "q2", "mark": "bar2", "limit": 0.015625, "rare": false, "background": false},
      {"key": "t1", "words": "Less", "token": "q1", "mark": "bar1", "limit": 0, "rare": false, "background": false},
      {"key": "none", "words": "Not timed", "token": "c-none", "mark": "ring", "limit": null, "rare": false, "background": false},
    ],
  },
};
