"""The replay: when everything of a window would run if something were different."""
