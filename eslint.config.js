/** What `make lint` holds the inspector's JavaScript to, beside its format. */
import js from "@eslint/js";
import globals from "globals";

export default [
  js.configs.recommended,
  {
    languageOptions: { globals: globals.browser },
    linterOptions: { reportUnusedDisableDirectives: "error" },
    rules: {
      eqeqeq: "error",
      "max-lines": ["error", 350],
      "max-lines-per-function": ["error", 50],
      "no-shadow": "error",
      "no-unneeded-ternary": "error",
      "no-unused-expressions": "error",
      "no-unused-vars": ["error", { caughtErrors: "all" }],
      "no-useless-return": "error",
      "no-var": "error",
      "object-shorthand": "error",
      "one-var": ["error", "never"],
      "prefer-const": "error",
      "prefer-template": "error",
    },
  },
  {
    // Older than these rules.
    files: ["arrange", "boxes", "columns", "encode", "families", "graph", "levels", "overlay", "tiles", "tree", "wrap"]
      .concat(["panels/chart", "panels/group", "panels/overview"])
      .map((name) => `cabw_viz/views/inspector/src/${name}.js`),
    rules: Object.fromEntries(
      ["max-lines", "max-lines-per-function", "no-control-regex", "no-shadow", "one-var", "prefer-template"].map(
        (rule) => [rule, "off"],
      ),
    ),
  },
  { files: ["tests/**"], languageOptions: { globals: globals.node }, rules: { "max-lines": "off" } },
];
