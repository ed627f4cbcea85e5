"""The demo: its handlers, its workers, and the faults that kill them. `cli/demo/` tells the
story."""
