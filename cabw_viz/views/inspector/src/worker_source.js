/** The text of the layout worker. The bundler replaces this module by one that reads it off the functions of the bundle; unbundled there is no worker. */
export const workerSource = () => null;
