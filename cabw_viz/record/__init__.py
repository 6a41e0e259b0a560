"""Plain data about backwards: frozen, without torch, numbered instead of pointing."""
