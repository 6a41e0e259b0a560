/** The six panels. Each is a function of the inspector that returns DOM; each row leads back to the graph. */
import { codePanel } from "./panels/code.js";
import { memoryPanel } from "./panels/memory.js";
import { metadataPanel } from "./panels/metadata.js";
import { missesPanel } from "./panels/misses.js";
import { nodePanel } from "./panels/node.js";
import { parityPanel } from "./panels/parity.js";

export const TABS = {
  node: ["Node", nodePanel],
  metadata: ["Metadata", metadataPanel],
  parity: ["Parity", parityPanel],
  memory: ["Memory", memoryPanel],
  misses: ["Misses", missesPanel],
  code: ["Code", codePanel],
};
