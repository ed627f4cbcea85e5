"""The demo: its handlers, its workers, and what kills them. `cli/demo/` tells the story."""
