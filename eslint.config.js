/** What `make lint` holds the inspector's JavaScript to, beside its format. */
import js from "@eslint/js";
import globals from "globals";

/** Where the inspector's stateful parts are read: fields and variables of these names hold one of them. */
const PARTS =
  "/^(inspector|frame|picture|camera|renderer|r|minimap|tiles|search|legend|panels|task|tooltip|busy|aria|pointer|levels|" +
  "layout|graph|autograd|drawn|scene|session|code|arranger)$/";
/** The same for what a part hands out to be read. */
const VALUES = "/^(state|view|latest|reach|cone|way|expanded|filter|hits)$/";
const PART = `:matches(Identifier[name=${PARTS}], MemberExpression[property.name=${PARTS}], ${[
  `Identifier[name=${VALUES}]`,
  `MemberExpression[property.name=${VALUES}][object.type!="ThisExpression"]`,
]})`;
const owner = "A part changes its own fields, and others call a method of it.";

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
    files: ["columns", "encode", "families", "graph", "levels", "tiles", "tree"].map(
      (name) => `cabw_viz/views/inspector/src/${name}.js`,
    ),
    rules: Object.fromEntries(
      ["max-lines", "max-lines-per-function", "no-control-regex", "no-shadow", "one-var", "prefer-template"].map(
        (rule) => [rule, "off"],
      ),
    ),
  },
  {
    files: ["cabw_viz/**"],
    rules: {
      "no-restricted-syntax": [
        "error",
        { selector: `AssignmentExpression > MemberExpression.left > ${PART}.object`, message: owner },
        { selector: `UpdateExpression > MemberExpression.argument > ${PART}.object`, message: owner },
        { selector: `UnaryExpression[operator="delete"] > MemberExpression > ${PART}.object`, message: owner },
        { selector: `CallExpression[callee.property.name="assign"] > ${PART}:first-child`, message: owner },
      ],
    },
  },
  { files: ["tests/**"], languageOptions: { globals: globals.node }, rules: { "max-lines": "off" } },
];
