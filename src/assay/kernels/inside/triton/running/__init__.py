"""How the programs of a launch share the interpreter."""
