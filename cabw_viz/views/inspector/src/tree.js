/** A module or a part of one, with its nodes. */
class Group {
  children = [];
  own = [];
  nodes = [];
  odd = [];
  index = 0;
  badges = null;

  constructor(row, name, parent, { suffix = 1, cls = "", part = 1, parts = 1, stack = 0, owner = null } = {}) {
    this.row = row;
    this.name = name;
    this.parent = parent;
    this.depth = parent ? parent.depth + 1 : 0;
    this.path = below(parent?.path, name) + (suffix > 1 ? `@${suffix}` : "");
    this.key = `g:${this.path}`;
    this.module = below(parent?.module, name);
    this.cls = cls;
    this.part = part;
    this.parts = parts;
    this.stack = stack;
    this.owner = owner; // the autograd node whose group it is; null for a module
  }
}

const below = (path, name) => (path ? `${path}.${name}` : name);

/**
 * The tree of modules over the nodes of a graph, as analysis/module_tree.py has built it. `rows` are its groups, each
 * after the one around it, the root first; `groupOf` has the row of each node's innermost group.
 */
export function treeOf(nodes, groupOf, rows, rootName) {
  const all = [];
  for (const row of rows) all.push(new Group(all.length, row.name, all.length ? all[row.parent] : null, row));
  all[0].name = rootName;
  for (const node of nodes) {
    const home = all[groupOf[node.index]];
    node.parent = home;
    home.own.push(node);
    for (let group = home; group; group = group.parent) group.nodes.push(node);
  }
  const groups = new Map([["", all[0]]]);
  for (const group of all.slice(1)) {
    if (!group.nodes.length) continue; // none of its nodes is drawn at this level
    groups.set(group.path, group);
    group.parent.children.push(group);
    if (rows[group.row].odd) group.parent.odd.push(group);
  }
  for (const group of groups.values()) {
    group.children.sort((a, b) => a.nodes[0].index - b.nodes[0].index);
    group.stack = group.stack && group.children.length > 2 ? group.children.length : 0;
  }
  return { root: all[0], groups };
}

/** The groups of a packed graph, a row each. */
export function groupRows({ columns: c, tables: t }) {
  return Array.from(c.group_parent, (parent, i) => ({
    parent,
    name: t.group_names[c.group_name[i]],
    cls: t.group_classes[c.group_class[i]],
    suffix: c.group_suffix[i],
    part: c.group_part[i],
    parts: c.group_parts[i],
    stack: c.group_stack[i],
    odd: c.group_odd[i],
  }));
}
