/** Every touch of a packed part: the code that read, the attribute, the node. */
export function readTouches({ columns: c, tables: t }, nodes) {
  return Array.from(c.touch_phase, (phase, k) => ({
    phase: t.phases[phase],
    node: c.touch_node[k] ? nodes[c.touch_node[k] - 1] : null,
    attribute: t.attributes[c.touch_attribute[k]],
    by: t.touchers[c.touch_by[k]],
    where: t.touch_places[c.touch_place[k]],
    count: c.touch_count[k],
    at: c.touch_at[k] ? t.touched_nodes[c.touch_at[k] - 1] : null,
  }));
}
