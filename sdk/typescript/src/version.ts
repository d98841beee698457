/** The version of this client, which is the daemon's. A test compares it with package.json. */
export const VERSION = "0.1.0";
