"""The checker: three histories in, violations out. It needs no server and can be run again."""
